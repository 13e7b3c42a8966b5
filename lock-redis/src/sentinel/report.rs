//! [`SentinelReply`]: a sentinel's reply to a query about a master.

use crate::connection::Address;
use crate::node::Account;
use lock_core::Moment;
use lock_core::backend::Failure;
use std::time::Duration;

/// A sentinel's report about the master.
#[derive(Clone, Debug)]
pub(super) struct MasterReport {
    pub(super) master: Address,
    /// The number of the last failover: the larger of two numbers belongs to the later failover.
    pub(super) epoch: u64,
    /// The `run_id` of the master, if the sentinel has received it from the master.
    pub(super) run_id: Option<String>,
    /// The time of the query.
    pub(super) asked: Moment,
    /// The replicas that the sentinel has reached and does not consider down.
    pub(super) replicas: Vec<Address>,
    /// The replicas with a known `run_id`, down or not; `None` if the user may not query them.
    pub(super) replica_ids: Option<Vec<(Address, String)>>,
    /// True if there are replicas that the sentinel has not reached yet, and does not consider
    /// down.
    pub(super) has_unheard: bool,
    /// The replicas that the sentinel considers down.
    pub(super) replicas_down: Vec<String>,
    /// The number of sentinels that must consider the master down.
    pub(super) quorum: Option<u64>,
    /// The time without a reply after which the sentinel considers the master down.
    pub(super) down_after: Option<Duration>,
    /// The sentinel's ID, and the other sentinels that it knows.
    pub(super) account: Account,
}

/// The outcome of a query to a sentinel.
#[derive(Clone, Debug)]
pub(super) enum SentinelReply {
    MasterReport(Box<MasterReport>),
    /// The sentinel watches no master of this name. The field has the names of the masters that it
    /// watches, if the user may list them.
    Unknown(Vec<String>),
    Failed(Failure),
}

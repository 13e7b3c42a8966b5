//! [`SentinelReply`]: what comes of asking a sentinel.

use crate::connection::Address;
use crate::node::Account;
use lock_core::Moment;
use lock_core::backend::Failure;
use std::time::Duration;

/// What a sentinel says about the master.
#[derive(Clone, Debug)]
pub(super) struct MasterReport {
    pub(super) master: Address,
    /// Counts the failovers. The larger number belongs to the later one.
    pub(super) epoch: u64,
    /// The `run_id` of the master, if it has heard one there.
    pub(super) run_id: Option<String>,
    /// When it was asked.
    pub(super) asked: Moment,
    /// The replicas that it has heard and does not hold for down.
    pub(super) replicas: Vec<Address>,
    /// The replicas that it knows by their `run_id`, down or not; `None` where it may not be asked.
    pub(super) replica_ids: Option<Vec<(Address, String)>>,
    /// Whether it knows replicas that it has not heard yet, and does not hold for down.
    pub(super) has_unheard: bool,
    /// Those that it holds for down.
    pub(super) replicas_down: Vec<String>,
    /// How many sentinels must hold the master for down.
    pub(super) quorum: Option<u64>,
    /// How long the master may be silent.
    pub(super) down_after: Option<Duration>,
    /// Which Sentinel it is, and which others it knows.
    pub(super) account: Account,
}

/// What came of asking a sentinel.
#[derive(Clone, Debug)]
pub(super) enum SentinelReply {
    MasterReport(Box<MasterReport>),
    /// It watches no master of this name, but these.
    Unknown(Vec<String>),
    Failed(Failure),
}

//! [`ReplicaSet`]: the replicas of a store that runs the suite; and the cases that need them.

use super::subject::Seen;
use crate::name::LockName;

/// The replicas of a store: how to keep them from confirming, and how to look at what they have.
pub trait ReplicaSet {
    /// How many there are: one at least.
    fn count(&self) -> u32;

    /// From when this returns, the first so many of them take nothing in, and confirm nothing. The
    /// others go on; those that were held back before catch up, soon. They are still replicas: the
    /// store must not hold them for gone.
    fn hold_back(&self, replicas: u32);

    /// Looks at the lock as this one of them has it, counted from zero. Only asked of one that is
    /// not held back.
    fn probe(&self, replica: u32, lock: &LockName) -> Seen;
}

/// The cases that a store without replicas cannot run, each with the reason. All others it must.
pub const NEEDS_REPLICAS: &[(&str, &str)] = &[
    ("confirmed_grant_is_on_replicas", NONE),
    ("grant_without_enough_replicas_is_reported", NONE),
    ("unconfirmed_grant_is_released_everywhere", NONE),
    ("reported_count_is_confirming_replicas", NONE),
    ("repeated_attempt_is_confirmed_again", NONE),
    ("busy_answer_needs_no_replicas", NONE),
    ("unconfirmed_renewal_is_reported", NONE),
    ("renewal_without_change_is_confirmed", NONE),
    ("batch_confirms_each_lock_independently", NONE),
    ("request_without_policy_asks_no_replica", NONE),
    ("late_replica_within_timeout_is_awaited", NONE),
    ("replica_wait_ends_at_call_deadline", NONE),
    ("all_replicas_means_every_listed_one", NONE),
    ("insufficient_replicas_is_error_without_lock", NONE),
    ("waiter_survives_insufficient_replicas", NONE),
    ("accepted_insufficient_replicas_emits_event", NONE),
    ("busy_lock_with_policy_is_a_value", NONE),
    ("unconfirmed_renewals_end_in_loss", NONE),
    ("renewal_confirmed_again_keeps_lock", NONE),
    ("grant_with_lost_reply_is_confirmed", NONE),
];

/// The cases that a store cannot run which counts the replicas that confirm, and does not know how
/// many there should be.
pub const NEEDS_A_LIST_OF_REPLICAS: &[(&str, &str)] = &[(
    "all_replicas_means_every_listed_one",
    "it does not know how many there should be, so `all` is refused",
)];

const NONE: &str = "it has no replicas";

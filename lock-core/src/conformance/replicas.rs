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
    ("a_confirmed_grant_is_on_the_replicas", NONE),
    ("a_grant_that_too_few_confirm_is_the_owners_and_says_so", NONE),
    ("an_unconfirmed_grant_can_be_taken_back_completely", NONE),
    ("the_number_told_is_how_many_confirmed", NONE),
    ("a_repeated_attempt_is_confirmed_anew", NONE),
    ("busy_needs_no_replicas", NONE),
    ("an_unconfirmed_renewal_says_so", NONE),
    ("a_renewal_that_changes_nothing_is_confirmed_too", NONE),
    ("a_batch_is_confirmed_one_by_one", NONE),
    ("without_a_policy_nobody_is_asked", NONE),
    ("replicas_are_given_the_time_they_have", NONE),
    ("replicas_are_given_no_more_time_than_the_call", NONE),
    ("all_are_those_that_should_be_there", NONE),
    ("insufficient_replicas_is_told_and_leaves_nothing", NONE),
    ("a_waiter_outlasts_insufficient_replicas", NONE),
    ("accepted_insufficient_replicas_is_held_and_told", NONE),
    ("busy_is_a_value_under_a_policy", NONE),
    ("an_unconfirmed_renewal_is_a_loss_in_time", NONE),
    ("a_renewal_that_is_confirmed_again_goes_on", NONE),
    ("a_lost_grant_is_confirmed_when_it_is_found", NONE),
];

/// The cases that a store cannot run which counts the replicas that confirm, and does not know how
/// many there should be.
pub const NEEDS_A_LIST_OF_REPLICAS: &[(&str, &str)] = &[(
    "all_are_those_that_should_be_there",
    "it does not know how many there should be, so `all` is refused",
)];

const NONE: &str = "it has no replicas";

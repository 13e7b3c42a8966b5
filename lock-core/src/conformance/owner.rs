//! What can only be asked of a store that knows who holds a lock, and tells of releases.

/// The cases that a store cannot sit whose locks have no owner, and that tells nobody of a release, each with the reason. All
/// others it must.
pub const NEEDS_AN_OWNER: &[(&str, &str)] = &[
    ("a_batch_is_answered_in_its_order", KEEP),
    ("a_batch_is_renewed_one_by_one", KEEP),
    ("a_fixed_lease_is_not_renewed", KEEP),
    ("a_full_batch_is_renewed_whole", KEEP),
    ("a_lock_of_an_ended_thread_frees", KEEP),
    ("a_renewal_extends", KEEP),
    ("a_renewal_never_recreates", KEEP),
    ("a_renewal_never_shortens", KEEP),
    ("a_renewal_of_what_is_gone_says_so", KEEP),
    ("a_stranger_cannot_renew", KEEP),
    ("an_outage_beyond_the_lease_is_a_loss", KEEP),
    ("an_outage_within_the_lease_is_survived", KEEP),
    ("dropping_the_client_drops_the_backend", KEEP),
    ("dropping_the_client_stops_threads", KEEP),
    ("extend_makes_the_lease_longer", KEEP),
    ("lost_lease_is_reported", KEEP),
    ("many_locks_are_kept_at_once", KEEP),
    ("no_reentry_on_a_lost_hold", KEEP),
    ("one_lost_lock_leaves_the_others", KEEP),
    ("reentry_with_a_longer_lease_extends", KEEP),
    ("remaining_survives_nested_unlocks", KEEP),
    ("renewal_goes_on_after_reentry", KEEP),
    ("renewal_leaves_a_longer_lease", KEEP),
    ("renewals_may_be_used_up", KEEP),
    ("renewed_again_after_a_loss", KEEP),
    ("watchdog_outlives_lease", KEEP),
    ("watchdog_stops_on_unlock", KEEP),
    ("a_stranger_cannot_release", WHOSE),
    ("force_unlock_frees_whoever_holds_it", WHOSE),
    ("stranger_cannot_release", WHOSE),
    ("verify_asks_the_store", WHOSE),
    ("verify_knows_its_own", WHOSE),
    ("a_lost_grant_is_found_again", AGAIN),
    ("a_lost_release_is_no_loss", AGAIN),
    ("a_release_may_be_repeated", AGAIN),
    ("a_repeated_attempt_has_a_full_lease", AGAIN),
    ("a_repeated_attempt_is_the_same_grant", AGAIN),
    ("a_repeated_attempt_never_shortens", AGAIN),
    ("a_closed_owner_is_never_granted_again", DOUBT),
    ("a_late_copy_locks_for_nobody", DOUBT),
    ("a_late_copy_of_a_used_lock_locks_for_nobody", DOUBT),
    ("a_tombstone_lives_for_a_lease", DOUBT),
    ("an_attempt_in_doubt_leaves_nothing", DOUBT),
    ("an_owner_that_holds_nothing_can_be_closed", DOUBT),
    ("a_dropped_watch_is_silent", NEWS),
    ("a_release_before_the_watch_is_not_missed", NEWS),
    ("a_release_by_anybody_wakes", NEWS),
    ("a_release_by_force_wakes", NEWS),
    ("a_release_in_doubt_frees_too", NEWS),
    ("a_watch_begins_when_it_returns", NEWS),
    ("every_watcher_is_woken", NEWS),
    ("waiting_leaves_no_watch_behind", NEWS),
];

const KEEP: &str =
    "it cannot tell whose the lock is, so nothing is renewed there, and a lease is fixed";
const WHOSE: &str = "it cannot tell whose the lock is";
const AGAIN: &str = "it cannot tell whose the lock is, so nothing is asked twice";
const DOUBT: &str = "it cannot turn down what comes late, nor take back what may not have come";
const NEWS: &str = "it tells nobody of a release: who waits asks again and again";

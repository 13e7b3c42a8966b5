//! The table of all cases: each once, with the mutation that it exists for. Adding a line mounts it
//! everywhere.
//!
//! The cases marked `core` catch every mutation together: `lock-core/tests/mutants.rs` proves it.
//! Among those that do, these take little time on a real server.

/// Calls `then!` with the table.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_table {
    ($then:ident $with:tt) => {
        $crate::$then! { $with
            exclusion {
                excludes_a_second_holder: AlwaysGrants,
                a_free_lock_is_granted: NeverGrants,
                busy_is_a_value: BusyIsAFailure,
                other_thread_is_a_stranger: AlwaysGrants,
                other_process_is_a_stranger: InspectSaysFree,
                never_two_inside: AlwaysGrants core,
                a_crowd_of_tries_leaves_nothing: ReleaseForgets,
                force_unlock_frees_whoever_holds_it: ForceKeeps,
                force_unlock_wakes_the_waiters: ForceWakesNobody core,
                queries_agree_with_the_store: InspectSaysFree,
                an_owned_guard_unlocks_on_another_thread: ReleaseForgets,
                an_owned_mutex_is_never_reentrant: ReleaseForgets,
            }
            reentry {
                nested_holds_count: ReleaseForgets core,
                guards_may_go_in_any_order: AlwaysGrants,
                detached_holds_end_by_unlock: ReleaseForgets,
                reentry_keeps_the_token: TokenRepeats,
                reentry_never_shortens: ShortLease,
                reentry_with_a_longer_lease_extends: RenewalDoesNothing,
                remaining_survives_nested_unlocks: ShortLease,
                renewal_goes_on_after_reentry: RenewalDoesNothing,
                a_fixed_lease_stays_fixed_inside: NeverExpires,
                no_reentry_on_a_lost_hold: RenewalClaimsExtended,
            }
            waiting {
                wakes_waiters_promptly: ReleaseWakesNobody core,
                every_waiter_has_its_turn: WakesOnlyItsOwn,
                local_waiters_are_served_in_order: AlwaysGrants,
                wakes_local_waiters_promptly: ReleaseForgets,
                the_next_in_line_takes_over: ReleaseForgets,
                a_try_does_not_overtake: NeverGrants,
                gives_up_at_its_deadline: WaitsForTheLock,
                zero_wait_is_one_attempt: WaitsForTheLock,
                huge_wait_does_not_overflow: ReleaseWakesNobody,
                takes_a_lock_that_expires: NeverExpires,
                survives_a_missed_wakeup: BusyExaggerates,
                takes_a_lock_freed_at_the_deadline: NeverGrants,
                an_interrupt_ends_the_wait: WaitsForTheLock,
                a_plain_wait_is_not_interrupted: ReleaseWakesNobody,
                an_interrupt_at_the_grant_leaves_nothing: ReleaseForgets,
            }
            watchdog {
                lease_expires_unrenewed: NeverExpires,
                a_fixed_lease_is_not_renewed: NeverExpires,
                watchdog_outlives_lease: RenewalSaysGone core,
                watchdog_stops_on_unlock: ReleaseForgets,
                one_lost_lock_leaves_the_others: RenewalClaimsExtended,
                renewals_may_be_used_up: NeverExpires,
                renewed_again_after_a_loss: RenewalDoesNothing,
                extend_makes_the_lease_longer: RenewalDoesNothing,
                renewal_leaves_a_longer_lease: RenewalShortens,
                many_locks_are_kept_at_once: RenewalDoesNothing,
            }
            guard {
                releases_on_drop: ReleaseForgets,
                releases_on_panic: ReleaseForgets,
                unlock_tells_what_became_of_it: ReleaseDenies,
                late_release_does_not_free_the_next_holder: NeverExpires core,
                stranger_cannot_release: FreesForStrangers,
                lost_lease_is_reported: RenewalClaimsExtended,
                verify_asks_the_store: InspectSaysFree,
                verify_knows_its_own: InspectMisnames,
                validity_ends_before_the_lease: ShortLease,
            }
            fencing {
                fencing_grows: TokenRepeats,
                fencing_grows_in_a_crowd: TokenRepeats,
                a_late_holder_has_the_smaller_token: TokenRepeats,
                fencing_grows_across_amnesia: TokensFromOne core,
            }
            network {
                unreachable_is_not_busy: AlwaysGrants,
                a_waiter_outlasts_an_outage: ReleaseForgets,
                a_lost_grant_is_found_again: ResendIsBusy,
                a_lost_release_is_no_loss: ReleaseForgets,
                an_attempt_in_doubt_leaves_nothing: TombstoneKeepsTheLock,
                a_late_copy_locks_for_nobody: TombstoneIgnored,
                a_late_copy_of_a_used_lock_locks_for_nobody: TombstoneIgnored,
                an_outage_within_the_lease_is_survived: RenewalDoesNothing,
                an_outage_beyond_the_lease_is_a_loss: NeverExpires,
                an_unlock_that_cannot_be_sent_is_told: NeverExpires,
                a_release_before_the_watch_is_not_missed: ReleaseForgets,
                waiting_leaves_no_watch_behind: ReleaseForgets,
            }
            ending {
                dropping_the_client_stops_threads: LeaksAThread core,
                dropping_the_client_drops_the_backend: WatchKeepsTheBackend core,
                a_dropped_client_gives_back_what_it_held: ReleaseForgets,
                a_lock_of_an_ended_thread_frees: ReleaseForgets,
            }
            store_acquire {
                a_free_name_is_granted_and_a_held_one_is_busy: AlwaysGrants,
                a_lease_is_as_long_as_asked: ShortLease,
                an_abandoned_lock_frees_after_its_lease: NeverExpires,
                busy_says_for_how_long: BusyExaggerates core,
                an_attempt_never_waits: WaitsForTheLock,
                a_repeated_attempt_is_the_same_grant: ResendIsBusy,
                a_repeated_attempt_keeps_its_token: ResendGetsNewToken core,
                a_repeated_attempt_has_a_full_lease: ResendKeepsOldLease core,
                a_repeated_attempt_never_shortens: ResendShortens core,
                names_do_not_collide: NamesCollide core,
                a_closed_owner_is_never_granted_again: TombstoneIgnored,
                an_owner_that_holds_nothing_can_be_closed: TombstoneOnlyIfHeld,
                a_tombstone_lives_for_a_lease: TombstoneFades core,
                a_tombstone_closes_only_its_owner: TombstoneClosesAll core,
            }
            store_release {
                a_release_frees_and_says_so: ReleaseDenies,
                a_release_may_be_repeated: ReleaseAlwaysFreed,
                a_stranger_cannot_release: FreesForStrangers,
                a_release_after_the_lease_says_gone: ReleaseAlwaysFreed,
                a_release_in_doubt_frees_too: TombstoneKeepsTheLock,
                looking_changes_nothing: InspectExtends,
                the_holder_is_named: InspectMisnames core,
                the_remaining_time_runs_down: RemainingStandsStill core,
                force_frees_whoever_holds_it: ForceKeeps,
                force_on_a_free_lock_says_so: ForceAlwaysTrue core,
            }
            store_renew {
                a_renewal_extends: RenewalDoesNothing,
                a_renewal_never_shortens: RenewalShortens core,
                a_renewal_never_recreates: RenewalRevives,
                a_renewal_of_what_is_gone_says_so: RenewalClaimsExtended core,
                a_stranger_cannot_renew: RenewsForStrangers,
                a_batch_is_renewed_one_by_one: BatchAborts core,
                a_batch_is_answered_in_its_order: BatchOutOfOrder core,
                a_full_batch_is_renewed_whole: BatchForgetsTheRest core,
            }
            store_tokens {
                every_grant_has_a_token: TokensMissing,
                no_token_unless_asked_for: TokensUnasked core,
                tokens_grow_however_the_lock_came_free: TokenRepeats,
                tokens_grow_across_amnesia: TokensFromOne,
                a_reserved_range_is_never_given_again: ReserveForgotten,
                a_repeated_attempt_has_the_same_range: ResendGetsNewToken,
                the_last_token_used_is_written_back: WriteBackIgnored core,
                a_used_token_is_never_given_again: WriteBackTooLow,
                a_late_write_back_is_ignored: WriteBackByStrangers core,
                a_refused_attempt_leaves_the_holders_token: ResendGetsNewToken,
            }
            store_replicas {
                a_confirmed_grant_is_on_the_replicas: ConfirmsUnasked,
                a_grant_that_too_few_confirm_is_the_owners_and_says_so: InsufficientReplicasUntold,
                an_unconfirmed_grant_can_be_taken_back_completely: UnconfirmedStays,
                the_number_told_is_how_many_confirmed: CountsWhoIsConnected,
                a_repeated_attempt_is_confirmed_anew: ResendTrusted core,
                busy_needs_no_replicas: BusyNeedsReplicas core,
                an_unconfirmed_renewal_says_so: RenewalUnconfirmed,
                a_renewal_that_changes_nothing_is_confirmed_too: RenewalTrusted,
                a_batch_is_confirmed_one_by_one: BatchSharesItsPolicy core,
                without_a_policy_nobody_is_asked: AlwaysAsksReplicas core,
                replicas_are_given_the_time_they_have: NoPatienceWithReplicas core,
                replicas_are_given_no_more_time_than_the_call: WaitsForReplicasTooLong core,
                all_are_those_that_should_be_there: AllMeansWhoeverConfirms core,
            }
            replication {
                a_policy_is_refused_where_it_cannot_be_kept_and_only_there: ReplicasDenied core,
                insufficient_replicas_is_told_and_leaves_nothing: InsufficientReplicasIsBusy,
                a_waiter_outlasts_insufficient_replicas: UnconfirmedStays,
                accepted_insufficient_replicas_is_held_and_told: InsufficientReplicasUntold,
                busy_is_a_value_under_a_policy: BusyNeedsReplicas,
                an_unconfirmed_renewal_is_a_loss_in_time: RenewalUnconfirmed,
                a_renewal_that_is_confirmed_again_goes_on: RenewalDoesNothing,
                a_lost_grant_is_confirmed_when_it_is_found: ResendTrusted,
            }
            store_watch {
                a_release_by_anybody_wakes: WakesOnlyItsOwn,
                a_release_by_force_wakes: ForceWakesNobody,
                every_watcher_is_woken: WakesOnlyOne,
                a_watch_begins_when_it_returns: WatchStartsLate,
                a_dropped_watch_is_silent: WatchNeverEnds core,
            }
        }
    };
}

/// The table as a list of [`Case`](crate::conformance::Case)s.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_list {
    (() $($room:ident { $($case:ident: $mutation:ident $($core:ident)?,)* })*) => {
        &[$($(Case {
            name: stringify!($case),
            catches: Mutation::$mutation,
            is_core: !concat!("" $(, stringify!($core))?).is_empty(),
            check: cases::$room::$case,
        },)*)*]
    };
}

/// The table as test functions.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_mount {
    (($subject:expr) $($room:ident { $($case:ident: $mutation:ident $($core:ident)?,)* })*) => {
        $($(
            #[test]
            fn $case() {
                $crate::conformance::run_case(stringify!($case), $subject);
            }
        )*)*
    };
}

/// The core cases of the table as test functions.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_mount_core {
    (($subject:expr) $($room:ident { $($case:ident: $mutation:ident $($core:ident)?,)* })*) => {
        $($($(
            $crate::__conformance_test! { $core $case $subject }
        )?)*)*
    };
}

/// A core case as a test function.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_test {
    (core $case:ident $subject:expr) => {
        #[test]
        fn $case() {
            $crate::conformance::run_case(stringify!($case), $subject);
        }
    };
}

/// Mounts every case as a `#[test]` of its own, on a [`Subject`](crate::conformance::Subject) that
/// the expression makes anew for each.
///
/// Best in a module of its own: `mod conformance {
/// lock_core::conformance_tests!(super::MySubject::start()); }`.
#[macro_export]
macro_rules! conformance_tests {
    ($subject:expr $(,)?) => {
        $crate::__conformance_table! { __conformance_mount ($subject) }
    };
}

/// Mounts the [core](crate::conformance::Case::is_core) cases in the same way.
#[macro_export]
macro_rules! conformance_core_tests {
    ($subject:expr $(,)?) => {
        $crate::__conformance_table! { __conformance_mount_core ($subject) }
    };
}

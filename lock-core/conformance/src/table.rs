//! The table of all cases, each with the mutation that it must catch. A case with a line here runs
//! on every store that uses `conformance_tests!` and does not list the case in `Subject::cannot`.
//!
//! The cases marked `core` together catch every mutation, as `tests/mutants.rs` proves.
//! They were chosen because they take little time on a real server.

/// Calls `then!` with the table.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_table {
    ($then:ident $with:tt) => {
        $crate::$then! { $with
            exclusion {
                held_lock_excludes_second_holder: AlwaysGrants,
                free_lock_is_granted: NeverGrants,
                busy_lock_is_a_value_not_an_error: BusyIsAFailure,
                other_thread_cannot_take_or_end_held_lock: AlwaysGrants,
                other_client_cannot_take_or_end_held_lock: InspectSaysFree,
                never_two_inside: AlwaysGrants core,
                concurrent_tries_leave_no_lock_behind: ReleaseForgets,
                force_unlock_frees_lock_of_any_holder: ForceKeeps,
                force_unlock_wakes_waiter: ForceWakesNoWaiter core,
                queries_agree_with_store: InspectSaysFree,
                owned_guard_unlocks_on_other_thread: ReleaseForgets,
                owned_mutex_is_not_reentrant: ReleaseForgets,
            }
            reentry {
                nested_holds_are_counted: ReleaseForgets core,
                nested_guards_unlock_in_any_order: AlwaysGrants,
                detached_holds_end_by_unlock: ReleaseForgets,
                reentry_keeps_token: TokenRepeats,
                reentry_never_shortens_lease: ShortLease,
                reentry_with_longer_lease_extends_it: RenewalDoesNothing,
                nested_unlock_keeps_remaining_lease: ShortLease,
                renewal_continues_after_reentry: RenewalDoesNothing,
                reentry_does_not_renew_fixed_lease: NeverExpires,
                reentry_after_loss_is_refused: RenewalClaimsExtended,
            }
            waiting {
                release_wakes_waiter_of_other_client: ReleaseWakesNoWaiter core,
                every_waiter_gets_the_lock: WakesOnlyItsOwn,
                local_waiters_are_served_in_order: AlwaysGrants,
                release_wakes_local_waiter: ReleaseForgets,
                next_waiter_replaces_interrupted_first: ReleaseForgets,
                try_does_not_overtake_local_waiter: NeverGrants,
                waiter_gives_up_at_deadline: AcquireWaits,
                zero_wait_is_one_attempt: AcquireWaits,
                huge_wait_does_not_overflow: ReleaseWakesNoWaiter,
                waiter_takes_lock_whose_lease_ends: NeverExpires,
                waiter_survives_missed_wakeup: BusyExaggerates,
                waiter_takes_lock_freed_before_deadline: NeverGrants,
                interrupt_ends_wait: AcquireWaits,
                wait_without_interrupt_continues: ReleaseWakesNoWaiter,
                interrupt_during_grant_leaves_no_lock: ReleaseForgets,
            }
            watchdog {
                lease_without_renewal_expires: NeverExpires,
                fixed_lease_is_not_renewed: NeverExpires,
                watchdog_keeps_lock_beyond_lease: RenewalSaysGone core,
                watchdog_stops_at_unlock: ReleaseForgets,
                loss_of_one_lock_keeps_the_others: RenewalClaimsExtended,
                last_allowed_renewal_ends_in_loss: NeverExpires,
                lock_taken_again_after_loss_is_renewed: RenewalDoesNothing,
                extend_lengthens_lease: RenewalDoesNothing,
                watchdog_keeps_extended_lease: RenewalShortens,
                many_locks_are_renewed_together: RenewalDoesNothing,
            }
            guard {
                dropped_guard_releases: ReleaseForgets,
                panic_releases: ReleaseForgets,
                lock_is_kept_for_at_least_the_time_asked_for: KeptLockFreed,
                unlock_reports_release_or_loss: ReleaseDenies,
                release_after_lease_end_keeps_next_holder: NeverExpires core,
                unlock_after_loss_keeps_next_holder: ReleasesForOtherOwners,
                loss_is_reported_to_holder: RenewalClaimsExtended,
                verify_detects_deleted_lock: InspectSaysFree,
                verify_detects_other_owner: InspectMisnames,
                validity_ends_before_lease: ShortLease,
            }
            fencing {
                fencing_token_grows_with_each_grant: TokenRepeats,
                fencing_token_grows_under_contention: TokenRepeats,
                late_holder_has_smaller_token: TokenRepeats,
                fencing_token_grows_after_data_loss: TokensFromOne core,
            }
            network {
                unreachable_store_is_not_busy: AlwaysGrants,
                waiter_survives_outage: ReleaseForgets,
                grant_with_lost_reply_is_recognised: ResendIsBusy,
                release_with_lost_reply_is_no_loss: ReleaseForgets,
                attempt_with_unknown_outcome_is_undone: TombstoneKeepsTheLock,
                late_copy_of_undone_attempt_takes_no_lock: TombstoneIgnored,
                late_copy_of_released_attempt_takes_no_lock: TombstoneIgnored,
                outage_within_lease_is_survived: RenewalDoesNothing,
                outage_beyond_lease_is_a_loss: NeverExpires,
                unlock_that_cannot_be_sent_is_an_error: NeverExpires,
                release_before_watch_is_not_missed: ReleaseForgets,
                ended_wait_leaves_no_watch: ReleaseForgets,
            }
            client_drop {
                dropped_client_stops_threads: LeaksAThread core,
                dropped_client_drops_backend: WatchKeepsTheBackend core,
                dropped_client_releases_detached_hold: ReleaseForgets,
                detached_hold_of_ended_thread_is_released: ReleaseForgets,
            }
            store_acquire {
                acquire_grants_free_name_and_refuses_held: AlwaysGrants,
                granted_lease_is_as_long_as_asked: ShortLease,
                abandoned_lock_is_free_after_lease: NeverExpires,
                busy_answer_tells_remaining_lease: BusyExaggerates core,
                acquire_never_waits: AcquireWaits,
                repeated_attempt_is_the_same_grant: ResendIsBusy,
                repeated_attempt_keeps_token: ResendGetsNewToken core,
                repeated_attempt_has_full_lease: ResendKeepsOldLease core,
                repeated_attempt_never_shortens_lease: ResendShortens core,
                names_do_not_collide: NamesCollide core,
                owner_with_tombstone_is_refused: TombstoneIgnored,
                tombstone_is_left_for_owner_without_lock: TombstoneOnlyIfHeld,
                tombstone_lasts_for_one_lease: TombstoneFades core,
                tombstone_blocks_only_its_owner: TombstoneClosesAll core,
            }
            store_release {
                release_frees_lock_and_reports_it: ReleaseDenies,
                repeated_release_reports_gone: ReleaseAlwaysFreed,
                release_by_other_owner_is_refused: ReleasesForOtherOwners,
                release_after_lease_end_reports_gone: ReleaseAlwaysFreed,
                release_with_tombstone_frees_lock: TombstoneKeepsTheLock,
                kept_lock_has_no_holder: KeptLockKeepsOwner core,
                repeated_keeping_release_reports_the_same: RepeatedKeepDenied core,
                inspect_changes_nothing: InspectExtends,
                inspect_names_holder: InspectMisnames core,
                inspected_remaining_lease_decreases: RemainingStandsStill core,
                force_release_frees_lock_of_any_owner: ForceKeeps,
                force_release_of_free_lock_reports_it: ForceAlwaysTrue core,
            }
            store_renew {
                renewal_extends_lease: RenewalDoesNothing,
                renewal_never_shortens_lease: RenewalShortens core,
                renewal_never_recreates_lock: RenewalRevives,
                renewal_of_lost_lock_reports_gone: RenewalClaimsExtended core,
                renewal_by_other_owner_is_refused: RenewsForOtherOwners,
                label_is_never_shown_for_another_owner: LabelOfFormerOwner core,
                batch_renews_each_lock_independently: BatchAborts core,
                batch_is_answered_in_order: BatchOutOfOrder core,
                full_batch_renews_every_lock: BatchTruncated core,
            }
            store_tokens {
                every_grant_has_a_token: TokensMissing,
                no_token_unless_asked_for: TokensUnasked core,
                tokens_grow_after_each_kind_of_release: TokenRepeats,
                tokens_grow_after_data_loss: TokensFromOne,
                reserved_tokens_are_never_granted_again: ReserveForgotten,
                repeated_attempt_has_same_token_range: ResendGetsNewToken,
                release_writes_back_last_used_token: WriteBackIgnored core,
                used_token_is_never_granted_again: WriteBackTooLow,
                late_token_write_back_is_ignored: WriteBackByOtherOwners core,
                refused_attempt_keeps_holders_token: ResendGetsNewToken,
            }
            store_kinds {
                readers_share_and_keep_the_writer_out: WriterIgnoresReaders core,
                writer_keeps_readers_out: ReaderIgnoresWriter core,
                kinds_of_a_name_exclude_each_other: KindsApart core,
                writer_becomes_a_reader: WriterEndsReaders core,
                each_reader_has_a_lease_of_its_own: ReaderRenewsAll core,
                dead_reader_is_not_kept_alive_by_others: ReadersNeverExpire core,
                waiting_writer_keeps_new_readers_out: WaitingWriterIgnored core,
                writer_that_gives_up_lets_readers_in: WaitingWriterStays core,
                readers_and_a_waiting_writer_are_told: InspectHidesReaders core,
                writer_that_gives_up_leaves_the_first_waiting: WriterEndsAnothersWait core,
                reader_gets_the_token_of_the_last_writer: ReaderGetsNewToken core,
                release_of_each_kind_wakes_its_waiters: ShareWakesNoWaiter core,
                owner_with_tombstone_is_refused_for_each_kind: ShareIgnoresTombstone core,
                permits_are_granted_up_to_the_limit: LimitIgnored core,
                permits_of_a_dead_holder_come_back: PermitsNeverExpire core,
                repeated_requests_for_permits_count_once: PermitResendCounts core,
                stored_limit_counts_until_it_is_changed: LimitOfEachClient core,
                force_release_ends_all_shares: ForceKeepsShares core,
                force_release_of_readers_leaves_the_writer: ForceOfReadersEndsWriter core,
                verify_is_about_the_owners_share: VerifiesAnyShare core,
                fair_lock_is_granted_in_order: QueueIgnored core,
                fair_waiter_that_is_gone_is_skipped: DeadWaiterStays core,
                fair_permits_are_granted_in_order: PermitsOvertaken core,
                fair_and_write_locks_are_kept_after_release: KeptLockOfKindFreed core,
                semaphore_and_lock_do_not_share_a_name: SemaphoreBesideLock core,
            }
            store_fair_read_write {
                fair_readers_and_writers_enter_in_order: ReaderOvertakesWriter core,
                readers_behind_a_gone_fair_writer_enter: DeadWaiterStays core,
                fair_writer_becomes_a_reader: WriterEndsReaders core,
                dead_holders_of_a_fair_lock_are_over: ReadersNeverExpire core,
            }
            store_permits {
                changes_of_a_limit_all_count: AddedLimitIsSet core,
                permit_is_released_by_its_identity: PermitOfIdIsKept core,
                permit_is_extended_by_its_identity: PermitOfIdIsNotExtended core,
                drain_takes_all_free_permits_once: DrainTakesOne core,
            }
            store_replicas {
                confirmed_grant_is_on_replicas: ConfirmsUnasked,
                grant_without_enough_replicas_is_reported: InsufficientReplicasUnreported,
                unconfirmed_grant_is_released_everywhere: UnconfirmedStays,
                reported_count_is_confirming_replicas: CountsConnectedReplicas,
                repeated_attempt_is_confirmed_again: ResendNotConfirmed core,
                busy_answer_needs_no_replicas: BusyNeedsReplicas core,
                unconfirmed_renewal_is_reported: RenewalUnconfirmed,
                renewal_without_change_is_confirmed: UnchangedRenewalNotConfirmed,
                batch_confirms_each_lock_independently: BatchSharesItsPolicy core,
                request_without_policy_asks_no_replica: AlwaysAsksReplicas core,
                late_replica_within_timeout_is_awaited: ReplicaTimeoutIgnored core,
                replica_wait_ends_at_call_deadline: ReplicasAwaitedBeyondDeadline core,
                all_replicas_means_every_listed_one: AllMeansConfirmingReplicas core,
            }
            replication {
                unsupported_replication_policy_is_refused: ReplicasDenied core,
                insufficient_replicas_is_error_without_lock: InsufficientReplicasIsBusy,
                waiter_survives_insufficient_replicas: UnconfirmedStays,
                accepted_insufficient_replicas_emits_event: InsufficientReplicasUnreported,
                busy_lock_with_policy_is_a_value: BusyNeedsReplicas,
                unconfirmed_renewals_end_in_loss: RenewalUnconfirmed,
                renewal_confirmed_again_keeps_lock: RenewalDoesNothing,
                grant_with_lost_reply_is_confirmed: ResendNotConfirmed,
            }
            store_watch {
                release_by_any_client_wakes_watch: WakesOnlyItsOwn,
                force_release_wakes_watch: ForceWakesNoWaiter,
                every_watcher_is_woken: WakesOnlyOne,
                watch_is_active_when_it_returns: WatchStartsLate,
                dropped_watch_is_silent: WatchNeverEnds core,
            }
        }
    };
}

/// The table as a list of [`Case`](crate::Case)s.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_list {
    (() $($module:ident { $($case:ident: $mutation:ident $($core:ident)?,)* })*) => {
        &[$($(Case {
            name: stringify!($case),
            catches: Mutation::$mutation,
            is_core: !concat!("" $(, stringify!($core))?).is_empty(),
            check: cases::$module::$case,
        },)*)*]
    };
}

/// The table as test functions.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_tests {
    (($subject:expr) $($module:ident { $($case:ident: $mutation:ident $($core:ident)?,)* })*) => {
        $($(
            #[test]
            fn $case() {
                $crate::run_case(stringify!($case), $subject);
            }
        )*)*
    };
}

/// The core cases of the table as test functions.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_core_tests {
    (($subject:expr) $($module:ident { $($case:ident: $mutation:ident $($core:ident)?,)* })*) => {
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
            $crate::run_case(stringify!($case), $subject);
        }
    };
}

/// Makes every case a separate `#[test]`. The expression makes the [`Subject`](crate::Subject) of
/// each test.
///
/// Use the macro in a separate module:
/// `mod conformance { lock_conformance::conformance_tests!(super::MySubject::start()); }`.
#[macro_export]
macro_rules! conformance_tests {
    ($subject:expr $(,)?) => {
        $crate::__conformance_table! { __conformance_tests ($subject) }
    };
}

/// Makes every [core](crate::Case::is_core) case a separate `#[test]`, as `conformance_tests` does
/// with all cases.
#[macro_export]
macro_rules! conformance_core_tests {
    ($subject:expr $(,)?) => {
        $crate::__conformance_table! { __conformance_core_tests ($subject) }
    };
}

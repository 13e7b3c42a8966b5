//! Lists of cases that kinds of stores cannot run, each with the reason.

/// The cases that a store without owners cannot run, each with the reason. Such a store must run
/// every case that is in none of the lists that apply to it.
pub const NEEDS_AN_OWNER: &[(&str, &str)] = &[
    ("batch_is_answered_in_order", NO_RENEWAL),
    ("batch_renews_each_lock_independently", NO_RENEWAL),
    ("fixed_lease_is_not_renewed", NO_RENEWAL),
    ("full_batch_renews_every_lock", NO_RENEWAL),
    ("detached_hold_of_ended_thread_is_released", NO_RENEWAL),
    ("renewal_extends_lease", NO_RENEWAL),
    ("renewal_never_recreates_lock", NO_RENEWAL),
    ("renewal_never_shortens_lease", NO_RENEWAL),
    ("renewal_of_lost_lock_reports_gone", NO_RENEWAL),
    ("renewal_by_other_owner_is_refused", NO_RENEWAL),
    ("label_is_never_shown_for_another_owner", NO_RENEWAL),
    ("outage_beyond_lease_is_a_loss", NO_RENEWAL),
    ("outage_within_lease_is_survived", NO_RENEWAL),
    ("dropped_client_drops_backend", NO_RENEWAL),
    ("dropped_client_stops_threads", NO_RENEWAL),
    ("extend_lengthens_lease", NO_RENEWAL),
    ("loss_is_reported_to_holder", NO_RENEWAL),
    ("many_locks_are_renewed_together", NO_RENEWAL),
    ("reentry_after_loss_is_refused", NO_RENEWAL),
    ("loss_of_one_lock_keeps_the_others", NO_RENEWAL),
    ("reentry_with_longer_lease_extends_it", NO_RENEWAL),
    ("nested_unlock_keeps_remaining_lease", NO_RENEWAL),
    ("renewal_continues_after_reentry", NO_RENEWAL),
    ("watchdog_keeps_extended_lease", NO_RENEWAL),
    ("last_allowed_renewal_ends_in_loss", NO_RENEWAL),
    ("lock_taken_again_after_loss_is_renewed", NO_RENEWAL),
    ("watchdog_keeps_lock_beyond_lease", NO_RENEWAL),
    ("watchdog_stops_at_unlock", NO_RENEWAL),
    ("force_unlock_frees_lock_of_any_holder", NO_OWNER),
    ("unlock_after_loss_keeps_next_holder", NO_OWNER),
    ("lock_is_kept_for_at_least_the_time_asked_for", NO_OWNER),
    ("repeated_keeping_release_reports_the_same", NO_OWNER),
    ("verify_detects_deleted_lock", NO_OWNER),
    ("verify_detects_other_owner", NO_OWNER),
    ("grant_with_lost_reply_is_recognised", NO_REPEAT),
    ("repeated_attempt_has_full_lease", NO_REPEAT),
    ("repeated_attempt_is_the_same_grant", NO_REPEAT),
    ("repeated_attempt_never_shortens_lease", NO_REPEAT),
    ("owner_with_tombstone_is_refused", NO_TOMBSTONE),
    ("late_copy_of_undone_attempt_takes_no_lock", NO_TOMBSTONE),
    ("late_copy_of_released_attempt_takes_no_lock", NO_TOMBSTONE),
    ("tombstone_lasts_for_one_lease", NO_TOMBSTONE),
    ("attempt_with_unknown_outcome_is_undone", NO_TOMBSTONE),
    ("tombstone_is_left_for_owner_without_lock", NO_TOMBSTONE),
];

const NO_RENEWAL: &str = "it does not store the owner, so leases are fixed and not renewed";
const NO_OWNER: &str = "it does not store the owner";
const NO_REPEAT: &str = "it does not store the owner, so no request is repeated";
const NO_TOMBSTONE: &str = "it has no tombstones, so it cannot refuse late requests";
const NO_NOTIFICATION: &str = "it does not notify waiters of releases, which poll";

/// The cases that a store without notifications of releases cannot run, each with the reason. Such
/// a store must run every case that is in none of the lists that apply to it.
pub const NEEDS_NOTIFICATION: &[(&str, &str)] = &[
    ("dropped_watch_is_silent", NO_NOTIFICATION),
    ("release_before_watch_is_not_missed", NO_NOTIFICATION),
    ("release_by_any_client_wakes_watch", NO_NOTIFICATION),
    ("force_release_wakes_watch", NO_NOTIFICATION),
    ("release_with_tombstone_frees_lock", NO_NOTIFICATION),
    ("watch_is_active_when_it_returns", NO_NOTIFICATION),
    ("every_watcher_is_woken", NO_NOTIFICATION),
    ("ended_wait_leaves_no_watch", NO_NOTIFICATION),
    ("kept_lock_has_no_holder", NO_NOTIFICATION),
];

/// The cases that a store without the extension [`Admin`](lock_core::backend::Admin) cannot run,
/// each with the reason. Such a store must run every case that is in none of the lists that apply
/// to it.
pub const NEEDS_ADMIN: &[(&str, &str)] = &[
    ("force_release_frees_lock_of_any_owner", NO_ADMIN),
    ("force_release_of_free_lock_reports_it", NO_ADMIN),
    ("force_release_wakes_watch", NO_ADMIN),
    ("force_unlock_frees_lock_of_any_holder", NO_ADMIN),
    ("force_unlock_wakes_waiter", NO_ADMIN),
];

const NO_ADMIN: &str = "it has no forced releases";

/// The cases that a store with tokens switched off cannot run, each with the reason. Such a store
/// must run every case that is in none of the lists that apply to it.
pub const NEEDS_TOKENS: &[(&str, &str)] = &[
    ("reentry_keeps_token", NO_TOKENS),
    ("fencing_token_grows_with_each_grant", NO_TOKENS),
    ("fencing_token_grows_under_contention", NO_TOKENS),
    ("late_holder_has_smaller_token", NO_TOKENS),
    ("fencing_token_grows_after_data_loss", NO_TOKENS),
    ("every_grant_has_a_token", NO_TOKENS),
    ("tokens_grow_after_each_kind_of_release", NO_TOKENS),
    ("tokens_grow_after_data_loss", NO_TOKENS),
    ("reserved_tokens_are_never_granted_again", NO_TOKENS),
    ("repeated_attempt_keeps_token", NO_TOKENS),
    ("repeated_attempt_has_same_token_range", NO_TOKENS),
    ("release_writes_back_last_used_token", NO_TOKENS),
    ("used_token_is_never_granted_again", NO_TOKENS),
    ("late_token_write_back_is_ignored", NO_TOKENS),
    ("refused_attempt_keeps_holders_token", NO_TOKENS),
    ("grant_without_enough_replicas_is_reported", NO_TOKENS),
    ("unconfirmed_grant_is_released_everywhere", NO_TOKENS),
];

const NO_TOKENS: &str = "its tokens are switched off";

/// The cases that a store without replicas cannot run, each with the reason. Such a store must run
/// every case that is in none of the lists that apply to it.
pub const NEEDS_REPLICAS: &[(&str, &str)] = &[
    ("confirmed_grant_is_on_replicas", NO_REPLICAS),
    ("grant_without_enough_replicas_is_reported", NO_REPLICAS),
    ("unconfirmed_grant_is_released_everywhere", NO_REPLICAS),
    ("reported_count_is_confirming_replicas", NO_REPLICAS),
    ("repeated_attempt_is_confirmed_again", NO_REPLICAS),
    ("busy_answer_needs_no_replicas", NO_REPLICAS),
    ("unconfirmed_renewal_is_reported", NO_REPLICAS),
    ("renewal_without_change_is_confirmed", NO_REPLICAS),
    ("batch_confirms_each_lock_independently", NO_REPLICAS),
    ("request_without_policy_asks_no_replica", NO_REPLICAS),
    ("late_replica_within_timeout_is_awaited", NO_REPLICAS),
    ("replica_wait_ends_at_call_deadline", NO_REPLICAS),
    ("all_replicas_means_every_listed_one", NO_REPLICAS),
    ("insufficient_replicas_is_error_without_lock", NO_REPLICAS),
    ("waiter_survives_insufficient_replicas", NO_REPLICAS),
    ("accepted_insufficient_replicas_emits_event", NO_REPLICAS),
    ("busy_lock_with_policy_is_a_value", NO_REPLICAS),
    ("unconfirmed_renewals_end_in_loss", NO_REPLICAS),
    ("renewal_confirmed_again_keeps_lock", NO_REPLICAS),
    ("grant_with_lost_reply_is_confirmed", NO_REPLICAS),
];

/// The cases that a store cannot run if it counts the confirmations of replicas, but does not know
/// how many replicas there should be, each with the reason.
pub const NEEDS_A_LIST_OF_REPLICAS: &[(&str, &str)] = &[(
    "all_replicas_means_every_listed_one",
    "it does not know how many there should be, so `all` is refused",
)];

const NO_REPLICAS: &str = "it has no replicas";

/// The cases that a store without [all kinds] of locks cannot run, each with the reason. Such
/// a store must run every case that is in none of the lists that apply to it.
///
/// [all kinds]: lock_core::backend::Abilities::all_kinds
pub const NEEDS_ALL_KINDS: &[(&str, &str)] = &[
    ("readers_share_and_keep_the_writer_out", MUTEXES_ONLY),
    ("writer_keeps_readers_out", MUTEXES_ONLY),
    ("kinds_of_a_name_exclude_each_other", MUTEXES_ONLY),
    ("writer_becomes_a_reader", MUTEXES_ONLY),
    ("each_reader_has_a_lease_of_its_own", MUTEXES_ONLY),
    ("dead_reader_is_not_kept_alive_by_others", MUTEXES_ONLY),
    ("waiting_writer_keeps_new_readers_out", MUTEXES_ONLY),
    ("writer_that_gives_up_lets_readers_in", MUTEXES_ONLY),
    ("readers_and_a_waiting_writer_are_told", MUTEXES_ONLY),
    (
        "writer_that_gives_up_leaves_the_first_waiting",
        MUTEXES_ONLY,
    ),
    ("reader_gets_the_token_of_the_last_writer", MUTEXES_ONLY),
    ("release_of_each_kind_wakes_its_waiters", MUTEXES_ONLY),
    (
        "owner_with_tombstone_is_refused_for_each_kind",
        MUTEXES_ONLY,
    ),
    ("permits_are_granted_up_to_the_limit", MUTEXES_ONLY),
    ("permits_of_a_dead_holder_come_back", MUTEXES_ONLY),
    ("repeated_requests_for_permits_count_once", MUTEXES_ONLY),
    ("stored_limit_counts_until_it_is_changed", MUTEXES_ONLY),
    ("force_release_ends_all_shares", MUTEXES_ONLY),
    ("force_release_of_readers_leaves_the_writer", MUTEXES_ONLY),
    ("verify_is_about_the_owners_share", MUTEXES_ONLY),
    ("fair_permits_are_granted_in_order", MUTEXES_ONLY),
    ("fair_and_write_locks_are_kept_after_release", MUTEXES_ONLY),
    ("fair_readers_and_writers_enter_in_order", MUTEXES_ONLY),
    ("readers_behind_a_gone_fair_writer_enter", MUTEXES_ONLY),
    ("fair_writer_becomes_a_reader", MUTEXES_ONLY),
    ("dead_holders_of_a_fair_lock_are_over", MUTEXES_ONLY),
    ("semaphore_and_lock_do_not_share_a_name", MUTEXES_ONLY),
    ("changes_of_a_limit_all_count", MUTEXES_ONLY),
    ("permit_is_released_by_its_identity", MUTEXES_ONLY),
    ("permit_is_extended_by_its_identity", MUTEXES_ONLY),
    ("drain_takes_all_free_permits_once", MUTEXES_ONLY),
];

/// The cases that a store without fair locks cannot run, besides the cases that
/// [need all kinds](NEEDS_ALL_KINDS), each with the reason. A queue of waiters for a mutex is
/// enough. Such a store must run every case that is in none of the lists that apply to it.
pub const NEEDS_A_QUEUE: &[(&str, &str)] = &[
    ("fair_lock_is_granted_in_order", MUTEXES_ONLY),
    ("fair_waiter_that_is_gone_is_skipped", MUTEXES_ONLY),
];

const MUTEXES_ONLY: &str = "it has mutexes only";

/// The cases that a lock of several stores cannot run, besides the cases that
/// [need all kinds](NEEDS_ALL_KINDS), each with the reason. Such a lock must run all other cases.
pub const SINGLE_STORE_ONLY: &[(&str, &str)] = &[
    ("owned_guard_unlocks_on_other_thread", OWNED_MUTEX),
    ("owned_mutex_is_not_reentrant", OWNED_MUTEX),
    ("local_waiters_are_served_in_order", CLIENT),
    ("next_waiter_replaces_interrupted_first", DIRECT),
    ("try_does_not_overtake_local_waiter", DIRECT),
    ("waiter_gives_up_at_deadline", DIRECT),
    ("waiter_takes_lock_whose_lease_ends", DIRECT),
    ("waiter_survives_missed_wakeup", DIRECT),
    ("waiter_takes_lock_freed_before_deadline", DIRECT),
    ("wait_without_interrupt_continues", DIRECT),
    ("verify_detects_other_owner", DIRECT),
    ("fencing_token_grows_after_data_loss", DIRECT),
    ("unreachable_store_is_not_busy", NETWORK),
    ("waiter_survives_outage", NETWORK),
    ("grant_with_lost_reply_is_recognised", NETWORK),
    ("release_with_lost_reply_is_no_loss", NETWORK),
    ("attempt_with_unknown_outcome_is_undone", NETWORK),
    ("late_copy_of_undone_attempt_takes_no_lock", NETWORK),
    ("late_copy_of_released_attempt_takes_no_lock", NETWORK),
    ("outage_within_lease_is_survived", NETWORK),
    ("outage_beyond_lease_is_a_loss", NETWORK),
    ("unlock_that_cannot_be_sent_is_an_error", NETWORK),
    ("release_before_watch_is_not_missed", DIRECT),
    ("ended_wait_leaves_no_watch", NETWORK),
    ("dropped_client_stops_threads", CLIENT),
    ("dropped_client_drops_backend", CLIENT),
    ("acquire_grants_free_name_and_refuses_held", STORE),
    ("granted_lease_is_as_long_as_asked", STORE),
    ("abandoned_lock_is_free_after_lease", STORE),
    ("busy_answer_tells_remaining_lease", STORE),
    ("acquire_never_waits", STORE),
    ("repeated_attempt_is_the_same_grant", STORE),
    ("repeated_attempt_keeps_token", STORE),
    ("repeated_attempt_has_full_lease", STORE),
    ("repeated_attempt_never_shortens_lease", STORE),
    ("names_do_not_collide", STORE),
    ("owner_with_tombstone_is_refused", STORE),
    ("tombstone_is_left_for_owner_without_lock", STORE),
    ("tombstone_lasts_for_one_lease", STORE),
    ("tombstone_blocks_only_its_owner", STORE),
    ("release_frees_lock_and_reports_it", STORE),
    ("repeated_release_reports_gone", STORE),
    ("release_by_other_owner_is_refused", STORE),
    ("release_after_lease_end_reports_gone", STORE),
    ("release_with_tombstone_frees_lock", STORE),
    ("kept_lock_has_no_holder", STORE),
    ("repeated_keeping_release_reports_the_same", STORE),
    ("inspect_changes_nothing", STORE),
    ("inspect_names_holder", STORE),
    ("inspected_remaining_lease_decreases", STORE),
    ("force_release_frees_lock_of_any_owner", STORE),
    ("force_release_of_free_lock_reports_it", STORE),
    ("renewal_extends_lease", STORE),
    ("renewal_never_shortens_lease", STORE),
    ("renewal_never_recreates_lock", STORE),
    ("renewal_of_lost_lock_reports_gone", STORE),
    ("renewal_by_other_owner_is_refused", STORE),
    ("label_is_never_shown_for_another_owner", STORE),
    ("batch_renews_each_lock_independently", STORE),
    ("batch_is_answered_in_order", STORE),
    ("full_batch_renews_every_lock", STORE),
    ("every_grant_has_a_token", STORE),
    ("no_token_unless_asked_for", STORE),
    ("tokens_grow_after_each_kind_of_release", STORE),
    ("tokens_grow_after_data_loss", STORE),
    ("reserved_tokens_are_never_granted_again", STORE),
    ("repeated_attempt_has_same_token_range", STORE),
    ("release_writes_back_last_used_token", STORE),
    ("used_token_is_never_granted_again", STORE),
    ("late_token_write_back_is_ignored", STORE),
    ("refused_attempt_keeps_holders_token", STORE),
    ("release_by_any_client_wakes_watch", STORE),
    ("force_release_wakes_watch", STORE),
    ("every_watcher_is_woken", STORE),
    ("watch_is_active_when_it_returns", STORE),
    ("dropped_watch_is_silent", STORE),
    ("confirmed_grant_is_on_replicas", REPLICAS),
    ("grant_without_enough_replicas_is_reported", REPLICAS),
    ("unconfirmed_grant_is_released_everywhere", REPLICAS),
    ("reported_count_is_confirming_replicas", REPLICAS),
    ("repeated_attempt_is_confirmed_again", REPLICAS),
    ("busy_answer_needs_no_replicas", REPLICAS),
    ("unconfirmed_renewal_is_reported", REPLICAS),
    ("renewal_without_change_is_confirmed", REPLICAS),
    ("batch_confirms_each_lock_independently", REPLICAS),
    ("request_without_policy_asks_no_replica", REPLICAS),
    ("late_replica_within_timeout_is_awaited", REPLICAS),
    ("replica_wait_ends_at_call_deadline", REPLICAS),
    ("all_replicas_means_every_listed_one", REPLICAS),
    ("insufficient_replicas_is_error_without_lock", REPLICAS),
    ("waiter_survives_insufficient_replicas", REPLICAS),
    ("accepted_insufficient_replicas_emits_event", REPLICAS),
    ("busy_lock_with_policy_is_a_value", REPLICAS),
    ("unconfirmed_renewals_end_in_loss", REPLICAS),
    ("renewal_confirmed_again_keeps_lock", REPLICAS),
    ("grant_with_lost_reply_is_confirmed", REPLICAS),
    ("unsupported_replication_policy_is_refused", STORE),
];

const REPLICAS: &str = "it is about the replicas of a store";
const STORE: &str = "it asks the backend of a store";
const DIRECT: &str = "another owner holds it, through the backend";
const NETWORK: &str = "it simulates faults between a client and its one store";
const CLIENT: &str = "it is about a single client";
const OWNED_MUTEX: &str = "locks of several are held by threads only";

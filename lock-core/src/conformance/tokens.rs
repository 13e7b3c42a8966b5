//! What can only be asked of a store that gives fencing tokens.

/// The cases that a store cannot run whose tokens are switched off, each with the reason. All
/// others it must.
pub const NEEDS_TOKENS: &[(&str, &str)] = &[
    ("reentry_keeps_token", OFF),
    ("fencing_token_grows_with_each_grant", OFF),
    ("fencing_token_grows_under_contention", OFF),
    ("late_holder_has_smaller_token", OFF),
    ("fencing_token_grows_after_data_loss", OFF),
    ("every_grant_has_a_token", OFF),
    ("tokens_grow_after_each_kind_of_release", OFF),
    ("tokens_grow_after_data_loss", OFF),
    ("reserved_tokens_are_never_granted_again", OFF),
    ("repeated_attempt_keeps_token", OFF),
    ("repeated_attempt_has_same_token_range", OFF),
    ("release_writes_back_last_used_token", OFF),
    ("used_token_is_never_granted_again", OFF),
    ("late_token_write_back_is_ignored", OFF),
    ("refused_attempt_keeps_holders_token", OFF),
    ("grant_without_enough_replicas_is_reported", OFF),
    ("unconfirmed_grant_is_released_everywhere", OFF),
];

const OFF: &str = "its tokens are switched off";

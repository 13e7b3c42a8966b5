//! What can only be asked of a store that gives fencing tokens.

/// The cases that a store cannot run whose tokens are switched off, each with the reason. All
/// others it must.
pub const NEEDS_TOKENS: &[(&str, &str)] = &[
    ("reentry_keeps_the_token", OFF),
    ("fencing_grows", OFF),
    ("fencing_grows_in_a_crowd", OFF),
    ("a_late_holder_has_the_smaller_token", OFF),
    ("fencing_grows_across_amnesia", OFF),
    ("every_grant_has_a_token", OFF),
    ("tokens_grow_however_the_lock_came_free", OFF),
    ("tokens_grow_across_amnesia", OFF),
    ("a_reserved_range_is_never_given_again", OFF),
    ("a_repeated_attempt_keeps_its_token", OFF),
    ("a_repeated_attempt_has_the_same_range", OFF),
    ("the_last_token_used_is_written_back", OFF),
    ("a_used_token_is_never_given_again", OFF),
    ("a_late_write_back_is_ignored", OFF),
    ("a_refused_attempt_leaves_the_holders_token", OFF),
    ("a_grant_that_too_few_confirm_is_the_owners_and_says_so", OFF),
    ("an_unconfirmed_grant_can_be_taken_back_completely", OFF),
];

const OFF: &str = "its tokens are switched off";

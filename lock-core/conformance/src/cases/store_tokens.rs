//! The fencing tokens that a store grants, tested by direct calls.

use crate::fixture::{
    DirectBackend, eventually, fresh_name, grant, let_pass, long, ms, patience, short,
};
use crate::subject::Subject;
use crate::violation::violated_unless;
use lock_core::backend::{Release, ReleaseOptions, Tokens};
use lock_core::{FencingToken, LockName, OwnerId, TokenRange};

/// A number of reserved tokens: more than the microseconds that a case takes, so that the counter
/// and not the time determines the next token.
const FAR: u32 = 60_000_000;

/// Each grant that requests a token has one.
pub(crate) fn every_grant_has_a_token(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    for _ in 0..3 {
        let (owner, tokens) = hold(&direct, &name, 0);
        assert_eq!(
            tokens.first(),
            tokens.last(),
            "none is reserved unless requested"
        );
        assert_eq!(
            direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
            Release::Freed
        );
    }
}

/// A grant that requests no token has none.
pub(crate) fn no_token_unless_asked_for(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let granted = grant(direct.attempt(&name, direct.owner(), long(), Tokens::None));
    assert_eq!(granted.tokens, None);
}

/// The tokens of a name grow after each kind of release and after the end of a lease, for all
/// clients.
pub(crate) fn tokens_grow_after_each_kind_of_release(subject: &dyn Subject) {
    let (one, other, name) = (
        DirectBackend::open(subject),
        DirectBackend::open(subject),
        fresh_name(),
    );
    let mut seen = Vec::new();
    for round in 0..8 {
        let direct = if round % 2 == 0 { &one } else { &other };
        let lease = if round == 3 { short() } else { long() };
        let (owner, grant) = direct.hold_soon(&name, lease);
        seen.push(grant.tokens.expect("tokens").first());
        match round % 4 {
            0 => assert_eq!(
                direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
                Release::Freed
            ),
            1 => assert!(other.force_release(&name)),
            2 => assert_eq!(
                direct.release_with_tombstone(&name, owner, long()),
                Release::Freed
            ),
            _ if round == 3 => {
                eventually("the lease ends", patience(), || !subject.probe(&name).held);
            }
            _ => {}
        }
    }
    let what = format!("a token did not grow: {seen:?}");
    violated_unless(seen.is_sorted_by(|a, b| a < b), what);
}

/// Tokens still grow after the store lost the lock and its counter.
pub(crate) fn tokens_grow_after_data_loss(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let mut last = FencingToken::new(0);
    for _ in 0..4 {
        let (_, tokens) = hold(&direct, &name, 0);
        assert!(tokens.first() > last, "{:?} after {last:?}", tokens.first());
        last = tokens.first();
        // The new counter starts at the current time, which must have advanced.
        let_pass(ms(5));
        subject.lose(&name);
    }
}

/// Tokens that were reserved for hand-offs are not granted again, unless a release writes the last
/// used token back.
pub(crate) fn reserved_tokens_are_never_granted_again(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let (owner, range) = hold(&direct, &name, FAR);
    assert_eq!(range.last().get() - range.first().get(), u64::from(FAR));
    assert_eq!(
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
    let (_, next) = hold(&direct, &name, 0);
    assert!(next.first() > range.last(), "{next:?} lies in {range:?}");
}

/// A repeated attempt has the token range of the first attempt.
pub(crate) fn repeated_attempt_has_same_token_range(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let (owner, range) = hold(&direct, &name, 7);
    let again = grant(direct.attempt(&name, owner, long(), Tokens::Assign { reserve: 7 }));
    assert_eq!(again.tokens, Some(range));
}

/// The release writes the last used token back, so that the counter does not run ahead of the
/// clock.
pub(crate) fn release_writes_back_last_used_token(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let (owner, range) = hold(&direct, &name, FAR);
    let used = FencingToken::new(range.first().get() + 2);
    assert_eq!(
        direct.release(
            &name,
            owner,
            ReleaseOptions::WITHOUT_TOMBSTONE.last_used(used)
        ),
        Release::Freed
    );
    let (_, next) = hold(&direct, &name, 0);
    assert!(next.first() > used, "{next:?} was used up to {used:?}");
    assert!(
        next.first() < range.last(),
        "the unused rest of {range:?} was not written back"
    );
}

/// Used tokens, up to the last one, are never granted again.
pub(crate) fn used_token_is_never_granted_again(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let (owner, range) = hold(&direct, &name, FAR);
    // The token is so far ahead of the clock that only the stored number determines the next token.
    let used = FencingToken::new(range.last().get() - 10);
    assert_eq!(
        direct.release(
            &name,
            owner,
            ReleaseOptions::WITHOUT_TOMBSTONE.last_used(used)
        ),
        Release::Freed
    );
    let (_, next) = hold(&direct, &name, 0);
    assert!(next.first() > used, "{next:?} was used up to {used:?}");
}

/// An owner that no longer holds the lock writes no token back: the counter is its successor's.
pub(crate) fn late_token_write_back_is_ignored(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let (late, first) = hold(&direct, &name, 10);
    assert!(direct.force_release(&name));
    let (holder, second) = hold(&direct, &name, FAR);
    assert!(second.first() > first.last());
    let options = ReleaseOptions::WITHOUT_TOMBSTONE.last_used(first.first());
    assert_eq!(direct.release(&name, late, options), Release::Gone);
    assert_eq!(
        direct.release(&name, holder, ReleaseOptions::WITHOUT_TOMBSTONE),
        Release::Freed
    );
    let (_, third) = hold(&direct, &name, 0);
    assert!(
        third.first() > second.last(),
        "{third:?} lies in {second:?}"
    );
}

/// A refused attempt does not change the holder's token.
pub(crate) fn refused_attempt_keeps_holders_token(subject: &dyn Subject) {
    let (direct, name) = (DirectBackend::open(subject), fresh_name());
    let (owner, held) = hold(&direct, &name, 0);
    let answer = direct.attempt(
        &name,
        direct.owner(),
        short(),
        Tokens::Assign { reserve: 3 },
    );
    assert!(answer.is_busy());
    assert_eq!(direct.granted(&name, owner, long()).tokens, Some(held));
}

#[track_caller]
fn hold(direct: &DirectBackend, name: &LockName, reserve: u32) -> (OwnerId, TokenRange) {
    let owner = direct.owner();
    let granted = grant(direct.attempt(name, owner, long(), Tokens::Assign { reserve }));
    (owner, granted.tokens.expect("a grant has its tokens"))
}

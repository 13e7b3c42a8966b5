//! Fencing tokens as the store makes them.

use crate::backend::{Release, ReleaseOptions, Tokens};
use crate::conformance::fixture::{
    Line, eventually, fresh_name, grant, let_pass, long, ms, patience, short,
};
use crate::conformance::subject::Subject;
use crate::conformance::violation::violated_unless;
use crate::name::LockName;
use crate::owner::OwnerId;
use crate::token::{FencingToken, TokenRange};

/// More than a clock in microseconds moves on while the case runs, so that the counter, not the
/// time, must answer.
const FAR: u32 = 60_000_000;

/// Every grant that asks for a token has one.
pub(crate) fn every_grant_has_a_token(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    for _ in 0..3 {
        let (owner, tokens) = hold(&line, &name, 0);
        assert_eq!(tokens.first(), tokens.last(), "none is set aside unless asked for");
        assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
    }
}

/// No token where none was asked for.
pub(crate) fn no_token_unless_asked_for(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let granted = grant(line.attempt(&name, line.owner(), long(), Tokens::None));
    assert_eq!(granted.tokens, None);
}

/// Tokens of a name grow, whichever way the lock came free and whoever takes it.
pub(crate) fn tokens_grow_after_each_kind_of_release(subject: &dyn Subject) {
    let (one, other, name) = (Line::open(subject), Line::open(subject), fresh_name());
    let mut seen = Vec::new();
    for round in 0..8 {
        let line = if round % 2 == 0 { &one } else { &other };
        let lease = if round == 3 { short() } else { long() };
        let (owner, grant) = line.hold_soon(&name, lease);
        seen.push(grant.tokens.expect("tokens").first());
        match round % 4 {
            0 => assert_eq!(
                line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE),
                Release::Freed
            ),
            1 => assert!(other.force_release(&name)),
            2 => assert_eq!(line.bury(&name, owner, long()), Release::Freed),
            _ if round == 3 => {
                eventually("the lease ends", patience(), || !subject.probe(&name).held);
            }
            _ => {}
        }
    }
    let what = format!("a token did not grow: {seen:?}");
    violated_unless(seen.is_sorted_by(|a, b| a < b), what);
}

/// Tokens go on growing when the store has forgotten the lock and its counter.
pub(crate) fn tokens_grow_after_data_loss(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let mut last = FencingToken::new(0);
    for _ in 0..4 {
        let (_, tokens) = hold(&line, &name, 0);
        assert!(tokens.first() > last, "{:?} after {last:?}", tokens.first());
        last = tokens.first();
        // Such a counter stands for the time: let it pass.
        let_pass(ms(5));
        subject.lose(&name);
    }
}

/// What was set aside for hand-offs is never given to anybody else.
pub(crate) fn reserved_tokens_are_never_granted_again(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let (owner, range) = hold(&line, &name, FAR);
    assert_eq!(range.last().get() - range.first().get(), u64::from(FAR));
    assert_eq!(line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
    let (_, next) = hold(&line, &name, 0);
    assert!(next.first() > range.last(), "{next:?} lies in {range:?}");
}

/// A repeated attempt has the range of the first, not a second one.
pub(crate) fn repeated_attempt_has_same_token_range(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let (owner, range) = hold(&line, &name, 7);
    let again = grant(line.attempt(&name, owner, long(), Tokens::Assign { reserve: 7 }));
    assert_eq!(again.tokens, Some(range));
}

/// The release writes back the last token used, so that the counter does not run ahead of the
/// clock.
pub(crate) fn release_writes_back_last_used_token(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let (owner, range) = hold(&line, &name, FAR);
    let used = FencingToken::new(range.first().get() + 2);
    assert_eq!(
        line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE.last_used(used)),
        Release::Freed
    );
    let (_, next) = hold(&line, &name, 0);
    assert!(next.first() > used, "{next:?} was used up to {used:?}");
    assert!(next.first() < range.last(), "the unused rest of {range:?} was not given back");
}

/// What was used, up to the last, is never given again.
pub(crate) fn used_token_is_never_granted_again(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let (owner, range) = hold(&line, &name, FAR);
    // So far ahead of the clock that the stored number alone decides what comes next.
    let used = FencingToken::new(range.last().get() - 10);
    assert_eq!(
        line.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE.last_used(used)),
        Release::Freed
    );
    let (_, next) = hold(&line, &name, 0);
    assert!(next.first() > used, "{next:?} was used up to {used:?}");
}

/// An owner that holds nothing any more writes nothing back: the counter is its successor's.
pub(crate) fn late_token_write_back_is_ignored(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let (late, first) = hold(&line, &name, 10);
    assert!(line.force_release(&name));
    let (holder, second) = hold(&line, &name, FAR);
    assert!(second.first() > first.last());
    let closing = ReleaseOptions::WITHOUT_TOMBSTONE.last_used(first.first());
    assert_eq!(line.release(&name, late, closing), Release::Gone);
    assert_eq!(line.release(&name, holder, ReleaseOptions::WITHOUT_TOMBSTONE), Release::Freed);
    let (_, third) = hold(&line, &name, 0);
    assert!(third.first() > second.last(), "{third:?} lies in {second:?}");
}

/// An attempt that is turned down uses up no token of the holder's.
pub(crate) fn refused_attempt_keeps_holders_token(subject: &dyn Subject) {
    let (line, name) = (Line::open(subject), fresh_name());
    let (owner, held) = hold(&line, &name, 0);
    let answer = line.attempt(&name, line.owner(), short(), Tokens::Assign { reserve: 3 });
    assert!(answer.is_busy());
    assert_eq!(line.granted(&name, owner, long()).tokens, Some(held));
}

#[track_caller]
fn hold(line: &Line, name: &LockName, reserve: u32) -> (OwnerId, TokenRange) {
    let owner = line.owner();
    let granted = grant(line.attempt(name, owner, long(), Tokens::Assign { reserve }));
    (owner, granted.tokens.expect("a grant has its tokens"))
}

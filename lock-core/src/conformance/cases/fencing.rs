//! Fencing tokens as holders see them.

use crate::conformance::fixture::{
    Line, Lock, Shown, client, fixed, fresh_name, join, let_pass, long, ms, mutex, mutexes, short,
    shown, spawn, take, take_soon, take_with, take_within,
};
use crate::conformance::subject::Subject;
use crate::conformance::violation::violated_unless;
use parking_lot::Mutex as Cell;
use std::thread;

/// Every holder's token is larger than its predecessor's, however that one went.
pub(crate) fn fencing_token_grows_with_each_grant(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let mut tokens = Vec::new();
    for mutex in [&one, &other, &one] {
        let guard = take(mutex);
        tokens.push(shown(&guard));
        guard.unlock().expect("it is ours");
    }
    let over = take_with(&one, &fixed(short()));
    tokens.push(shown(&over));
    let next = take_soon(&other);
    tokens.push(shown(&next));
    assert!(one.force_unlock().expect("the store answers"));
    drop(over);
    tokens.push(shown(&take(&one)));
    must_grow(&tokens);
}

/// Under contention, too, tokens grow in the order in which the holders were inside.
pub(crate) fn fencing_token_grows_under_contention(subject: &dyn Subject) {
    const ROUNDS: usize = 8;
    let seen: Cell<Vec<Shown>> = Cell::default();
    let clients: [Lock; 2] = mutexes(subject);
    let work = |mutex: &Lock| {
        for _ in 0..ROUNDS {
            let guard = take_within(mutex, ms(10_000));
            seen.lock().push(shown(&guard));
            guard.unlock().expect("it is ours");
        }
    };
    thread::scope(|scope| {
        let each_twice = clients.iter().chain(&clients);
        let threads: Vec<_> = each_twice.map(|mutex| spawn(scope, || work(mutex))).collect();
        threads.into_iter().for_each(join);
    });
    let seen = seen.into_inner();
    assert_eq!(seen.len(), 4 * ROUNDS);
    must_grow(&seen);
}

/// A holder that was paused past its lease has a smaller token than its successor, and cannot know
/// it from the store.
pub(crate) fn late_holder_has_smaller_token(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let late = take_with(&one, &fixed(short()));
    let next = take_soon(&other);
    assert!(!late.is_valid() && next.is_valid());
    must_grow(&[shown(&late), shown(&next)]);
}

/// Tokens go on growing for a store that has forgotten everything.
pub(crate) fn fencing_token_grows_after_data_loss(subject: &dyn Subject) {
    let name = fresh_name();
    Line::open(subject).hold(&name, long());
    subject.lose(&name);
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let client = client(subject);
        tokens.push(shown(&take(&mutex(&client, &name))));
        must_grow(&tokens);
        // Such a counter stands for the time: let it pass.
        let_pass(ms(5));
        subject.lose(&name);
    }
}

/// Each of these is larger than the one before it.
#[track_caller]
fn must_grow(tokens: &[Shown]) {
    let what = format!("a token did not grow: {tokens:?}");
    violated_unless(tokens.is_sorted_by(|one, next| one < next), what);
}

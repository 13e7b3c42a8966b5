//! Fencing tokens as holders see them.

use crate::fixture::{
    DirectBackend, GuardTokens, Lock, client, fixed, fresh_name, join, let_pass, long, ms, mutex,
    mutexes, short, spawn, take, take_soon, take_with, take_within, tokens_of,
};
use crate::subject::Subject;
use crate::violation::violated_unless;
use parking_lot::Mutex as Cell;
use std::thread;

/// Each holder's token is larger than its predecessor's, whether the predecessor unlocked, its
/// lease ended or a forced unlock released its lock.
pub(crate) fn fencing_token_grows_with_each_grant(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let mut tokens = Vec::new();
    for mutex in [&one, &other, &one] {
        let guard = take(mutex);
        tokens.push(tokens_of(&guard));
        guard.unlock().expect("it is ours");
    }
    let over = take_with(&one, &fixed(short()));
    tokens.push(tokens_of(&over));
    let next = take_soon(&other);
    tokens.push(tokens_of(&next));
    assert!(one.force_unlock().expect("the store answers"));
    drop(over);
    tokens.push(tokens_of(&take(&one)));
    must_grow(&tokens);
}

/// Under contention, tokens grow in the order of the holders.
pub(crate) fn fencing_token_grows_under_contention(subject: &dyn Subject) {
    const ROUNDS: usize = 8;
    let seen: Cell<Vec<GuardTokens>> = Cell::default();
    let clients: [Lock; 2] = mutexes(subject);
    let work = |mutex: &Lock| {
        for _ in 0..ROUNDS {
            let guard = take_within(mutex, ms(10_000));
            seen.lock().push(tokens_of(&guard));
            guard.unlock().expect("it is ours");
        }
    };
    thread::scope(|scope| {
        let each_twice = clients.iter().chain(&clients);
        let threads: Vec<_> = each_twice
            .map(|mutex| spawn(scope, || work(mutex)))
            .collect();
        threads.into_iter().for_each(join);
    });
    let seen = seen.into_inner();
    assert_eq!(seen.len(), 4 * ROUNDS);
    must_grow(&seen);
}

/// A holder whose lease has ended has a smaller token than its successor.
pub(crate) fn late_holder_has_smaller_token(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let late = take_with(&one, &fixed(short()));
    let next = take_soon(&other);
    assert!(!late.is_valid() && next.is_valid());
    must_grow(&[tokens_of(&late), tokens_of(&next)]);
}

/// Tokens still grow after the store lost all data.
pub(crate) fn fencing_token_grows_after_data_loss(subject: &dyn Subject) {
    let name = fresh_name();
    DirectBackend::open(subject).hold(&name, long());
    subject.lose(&name);
    let mut tokens = Vec::new();
    for _ in 0..3 {
        let client = client(subject);
        tokens.push(tokens_of(&take(&mutex(&client, &name))));
        must_grow(&tokens);
        // The new counter starts at the current time, which must have advanced.
        let_pass(ms(5));
        subject.lose(&name);
    }
}

/// Fails unless each of these tokens is larger than the token before.
#[track_caller]
fn must_grow(tokens: &[GuardTokens]) {
    let what = format!("a token did not grow: {tokens:?}");
    violated_unless(tokens.is_sorted_by(|one, next| one < next), what);
}

//! Renewals that hang, and the threads that send the others meanwhile.

use super::*;
use crate::guard::LockGuard;

/// Longer than a request may be under way before what is behind it is sent on another connection.
const TOO_LONG: Duration = Duration::from_millis(20);

/// Locks by the names `n0`, `n1` and so on.
fn hold(client: &Client, count: usize) -> Vec<LockGuard> {
    (0..count).map(|n| client.mutex(format!("n{n}")).unwrap().lock().unwrap()).collect()
}

/// How many of them have at least `least` left.
fn with(least: Duration, guards: &[LockGuard]) -> usize {
    guards.iter().filter(|guard| guard.remaining() >= least).count()
}

/// A lock whose renewal is at the gate, due a second before any lock that is taken from now on.
fn stuck(store: &Recorded, client: &Client) -> LockGuard {
    let slow = client.mutex("slow").unwrap().lock().unwrap();
    store.fail_next("renew", Fault::Hangs);
    store.clock.advance(10 * SECOND);
    eventually("it hangs", || store.count("renew") == 1);
    slow
}

/// Waits until only the main worker is left.
fn leave(client: &Client, clock: &ManualClock) {
    eventually("the spares have left", || {
        // One may stand by until it sees that the last request was quick.
        if sleeping(clock) >= 3 {
            clock.advance(TOO_LONG);
        }
        client.0.workers.threads().0 == 1
    });
}

#[test]
fn a_renewal_that_hangs_delays_none_that_comes_later() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let gate = store.gate.lock();
    let slow = client.mutex("slow").unwrap().lock().unwrap();
    clock.advance(SECOND);
    let others = hold(&client, 250);
    store.fail_next("renew", Fault::Hangs);
    clock.advance(9 * SECOND);
    eventually("the first hangs", || store.count("renew") == 1);
    clock.advance(SECOND);
    eventually("the others are renewed", || with(29 * SECOND, &others) == 250);
    assert!(slow.remaining() < 20 * SECOND);
    drop(gate);
    eventually("the first is renewed", || slow.remaining() > 25 * SECOND);
    leave(&client, &clock);
}

#[test]
fn what_is_behind_a_renewal_that_gets_stuck_is_taken_up_without_anything_new() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let gate = store.gate.lock();
    let held = hold(&client, 400);
    for _ in 0..3 {
        store.fail_next("renew", Fault::Hangs);
    }
    parked(&clock, 1);
    clock.advance(10 * SECOND);
    // The main worker, and then one spare after another: each finds that none was answered.
    for stuck in 1..=3 {
        eventually("it hangs", || store.count("renew") == stuck);
        parked(&clock, 2);
        assert_eq!((store.count("renew"), with(25 * SECOND, &held)), (stuck, 0));
        clock.advance(TOO_LONG);
    }
    // At most a hundred in each of the three.
    eventually("the fourth sends all the rest", || !client.0.workers.threads().1);
    eventually("and they are renewed", || with(25 * SECOND, &held) >= 100);
    drop(gate);
    eventually("all are renewed", || with(25 * SECOND, &held) == 400);
    leave(&client, &clock);
}

#[test]
fn four_that_hang_are_all_that_are_sent() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let gate = store.gate.lock();
    let held = hold(&client, 500);
    store.cut("renew", Fault::Hangs);
    parked(&clock, 1);
    clock.advance(10 * SECOND);
    for stuck in 1..=4 {
        eventually("it hangs", || store.count("renew") == stuck);
        eventually("the next worker sleeps", || stuck == 4 || sleeping(&clock) >= 2);
        clock.advance(TOO_LONG);
    }
    parked(&clock, 1);
    clock.advance(SECOND);
    parked(&clock, 1);
    assert_eq!((store.count("renew"), client.0.workers.threads()), (4, (4, true)));
    store.mend();
    drop(gate);
    eventually("all are renewed", || with(25 * SECOND, &held) == 500);
    leave(&client, &clock);
}

#[test]
fn a_lock_that_is_taken_while_a_renewal_hangs_is_kept() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let gate = store.gate.lock();
    let _slow = stuck(&store, &client);
    let short = LockOptions::new().watched(SECOND);
    let guard = client.mutex("short").unwrap().lock_with(&short).unwrap();
    for period in 1..=9 {
        parked(&clock, 1);
        clock.advance(SECOND / 3 + SECOND / 50);
        eventually("it is renewed", || store.count("renew") == 1 + period);
        eventually("and has its lease", || guard.remaining() > SECOND * 9 / 10);
    }
    assert_eq!(guard.state(), GuardState::Held);
    drop(gate);
}

#[test]
fn spare_worker_survives_a_panic_of_the_backend() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let gate = store.gate.lock();
    let _slow = stuck(&store, &client);
    let guard = client.mutex("x").unwrap().lock().unwrap();
    store.fail_next("renew", Fault::Panic);
    parked(&clock, 1);
    clock.advance(10 * SECOND);
    eventually("it failed", || guard.state() == GuardState::Suspended);
    parked(&clock, 1);
    clock.advance(SECOND + SECOND / 50);
    eventually("it is tried again", || guard.state() == GuardState::Held);
    drop(gate);
}

#[test]
fn spare_worker_ends_with_the_client_while_a_call_hangs() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let gate = store.gate.lock();
    let slow = stuck(&store, &client);
    let guard = client.mutex("x").unwrap().lock().unwrap();
    parked(&clock, 1);
    clock.advance(10 * SECOND);
    eventually("it is renewed", || store.count("renew") == 2);
    parked(&clock, 2);
    slow.unlock().unwrap();
    guard.unlock().unwrap();
    drop(client);
    eventually("no thread sleeps any more", || clock.sleepers().is_empty());
    drop(gate);
    eventually("the store is not used any more", || Arc::strong_count(&store.log) == 1);
}

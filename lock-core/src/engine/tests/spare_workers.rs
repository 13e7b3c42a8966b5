//! Hanging renewals, and the spare workers that send the other renewals meanwhile.

use super::*;
use crate::api::guard::LockGuard;

/// The time after which a spare worker sends the renewals that queue behind a hanging request.
const TOO_LONG: Duration = Duration::from_millis(20);

/// Acquires `count` locks named `n0`, `n1` and so on.
fn hold(client: &Client, count: usize) -> Vec<LockGuard> {
    (0..count)
        .map(|n| client.mutex(format!("n{n}")).unwrap().lock().unwrap())
        .collect()
}

/// Returns how many of the guards are valid for at least `least`.
fn with(least: Duration, guards: &[LockGuard]) -> usize {
    guards
        .iter()
        .filter(|guard| guard.remaining() >= least)
        .count()
}

/// Acquires a lock whose renewal hangs until the gate opens.
fn lock_with_hanging_renewal(store: &Recorded, client: &Client) -> LockGuard {
    let slow = client.mutex("slow").unwrap().lock().unwrap();
    store.fail_next("renew", Fault::Hangs);
    store.clock.jump(10 * SECOND);
    eventually("the renewal hangs", || store.count("renew") == 1);
    slow
}

/// Waits until only the main worker is left.
fn wait_for_spares_to_end(client: &Client, clock: &ManualClock) {
    eventually("the spares have ended", || {
        // A spare worker on standby may sleep until the end of its patience, and ends when it wakes
        // up.
        if sleeping(clock) >= 3 {
            clock.jump(TOO_LONG);
        }
        client.0.workers.threads().0 == 1
    });
}

#[test]
fn hanging_renewal_delays_no_later_one() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let gate = store.gate.lock();
    let slow = client.mutex("slow").unwrap().lock().unwrap();
    clock.jump(2 * SECOND); // so that none is sent along with the first
    let others = hold(&client, 250);
    store.fail_next("renew", Fault::Hangs);
    clock.jump(8 * SECOND);
    eventually("the first hangs", || store.count("renew") == 1);
    clock.jump(2 * SECOND);
    eventually("the others are renewed", || {
        with(29 * SECOND, &others) == 250
    });
    assert!(slow.remaining() < 20 * SECOND);
    drop(gate);
    eventually("the first is renewed", || slow.remaining() > 25 * SECOND);
    wait_for_spares_to_end(&client, &clock);
}

#[test]
fn renewals_behind_a_hanging_one_are_sent_by_spares() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let gate = store.gate.lock();
    let held = hold(&client, 400);
    for _ in 0..3 {
        store.fail_next("renew", Fault::Hangs);
    }
    parked(&clock, 1);
    clock.jump(10 * SECOND);
    // The main worker, then one spare worker after another, each when its predecessor has hung for
    // too long.
    for stuck in 1..=3 {
        eventually("the renewal hangs", || store.count("renew") == stuck);
        parked(&clock, 2);
        assert_eq!((store.count("renew"), with(25 * SECOND, &held)), (stuck, 0));
        clock.jump(TOO_LONG);
    }
    // Each of the three hanging workers has at most a hundred of the 400 renewals.
    eventually("the fourth worker sends the rest", || {
        !client.0.workers.threads().1
    });
    eventually("the rest is renewed", || with(25 * SECOND, &held) >= 100);
    drop(gate);
    eventually("all are renewed", || with(25 * SECOND, &held) == 400);
    wait_for_spares_to_end(&client, &clock);
}

#[test]
fn hanging_renewals_occupy_at_most_four_workers() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let gate = store.gate.lock();
    let held = hold(&client, 500);
    store.cut("renew", Fault::Hangs);
    parked(&clock, 1);
    clock.jump(10 * SECOND);
    for stuck in 1..=4 {
        eventually("the renewal hangs", || store.count("renew") == stuck);
        eventually("the next worker sleeps", || {
            stuck == 4 || sleeping(&clock) >= 2
        });
        clock.jump(TOO_LONG);
    }
    parked(&clock, 1);
    clock.jump(SECOND);
    parked(&clock, 1);
    assert_eq!(
        (store.count("renew"), client.0.workers.threads()),
        (4, (4, true))
    );
    store.mend();
    drop(gate);
    eventually("all are renewed", || with(25 * SECOND, &held) == 500);
    wait_for_spares_to_end(&client, &clock);
}

#[test]
fn lock_taken_while_a_renewal_hangs_is_renewed() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let gate = store.gate.lock();
    let _slow = lock_with_hanging_renewal(&store, &client);
    let short = LockOptions::new().watched(SECOND);
    let guard = client.mutex("short").unwrap().lock_with(&short).unwrap();
    for period in 1..=9 {
        parked(&clock, 1);
        clock.jump(SECOND / 3 + SECOND / 50);
        eventually("the lock is renewed", || store.count("renew") == 1 + period);
        eventually("the lock has its full lease", || {
            guard.remaining() > SECOND * 9 / 10
        });
    }
    assert_eq!(guard.state(), GuardState::Held);
    drop(gate);
}

#[test]
fn spare_worker_survives_a_panic_of_the_backend() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let gate = store.gate.lock();
    let _slow = lock_with_hanging_renewal(&store, &client);
    let guard = client.mutex("x").unwrap().lock().unwrap();
    store.fail_next("renew", Fault::Panic);
    parked(&clock, 1);
    clock.jump(10 * SECOND);
    eventually("the renewal fails", || {
        guard.state() == GuardState::Suspended
    });
    parked(&clock, 1);
    clock.jump(SECOND + SECOND / 50);
    eventually("the renewal is repeated", || {
        guard.state() == GuardState::Held
    });
    drop(gate);
}

#[test]
fn spare_worker_ends_with_the_client_while_a_call_hangs() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let gate = store.gate.lock();
    let slow = lock_with_hanging_renewal(&store, &client);
    let guard = client.mutex("x").unwrap().lock().unwrap();
    parked(&clock, 1);
    clock.jump(10 * SECOND);
    eventually("the lock is renewed", || store.count("renew") == 2);
    parked(&clock, 2);
    slow.unlock().unwrap();
    guard.unlock().unwrap();
    drop(client);
    eventually("the threads end", || clock.sleepers().is_empty());
    drop(gate);
    eventually("the client drops the store", || {
        Arc::strong_count(&store.log) == 1
    });
}

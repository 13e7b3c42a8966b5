//! Cleanups of requests with unknown outcome: each is repeated until the store confirms it or the
//! lease has ended.

use super::*;

/// Makes an attempt with unknown outcome: the store has granted the lock to it, and the requests
/// that clean it up fail until [`Recorded::mend`].
fn attempt_with_failing_cleanup(store: &Recorded, client: &Client) {
    store.fail_next("acquire", Fault::Swallowed);
    store.fail_next("acquire", Fault::Swallowed);
    store.cut("close", Fault::NotSent);
    assert!(
        client
            .mutex("x")
            .unwrap()
            .try_lock()
            .unwrap_err()
            .is_unavailable()
    );
    eventually("the cleanup is tried", || store.count("close") == 1);
}

#[test]
fn cleanup_is_retried_at_intervals_until_confirmed() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    attempt_with_failing_cleanup(&store, &client);
    advance(&client, &clock, 10 * SECOND);
    let tries = store.count("close");
    assert!((8..=20).contains(&tries), "{tries} tries in 10 s");
    assert!(client.mutex("x").unwrap().is_locked().unwrap());
    store.mend();
    advance(&client, &clock, SECOND);
    assert!(!client.mutex("x").unwrap().is_locked().unwrap());
    let tries = store.count("close");
    advance(&client, &clock, 10 * SECOND);
    assert_eq!(store.count("close"), tries);
}

#[test]
fn cleanup_ends_when_the_lease_has_ended() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    attempt_with_failing_cleanup(&store, &client);
    advance(&client, &clock, 34 * SECOND);
    let tries = store.count("close");
    advance(&client, &clock, 10 * SECOND);
    assert_eq!(store.count("close"), tries);
}

#[test]
fn cleanup_continues_after_the_client_is_dropped() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let start = clock.now();
    attempt_with_failing_cleanup(&store, &client);
    drop(client);
    let pass = || {
        if sleeping(&clock) == 1 {
            clock.jump(SECOND);
        }
    };
    for tries in 2..=4 {
        eventually("the cleanup is repeated", || {
            pass();
            store.count("close") >= tries
        });
    }
    assert!(store.clock.now() < start + 20 * SECOND);
    store.mend();
    let lock = store.client().mutex("x").unwrap();
    eventually("the lock is free", || {
        pass();
        !lock.is_locked().unwrap()
    });
    assert!(
        store.clock.now() < start + 25 * SECOND,
        "the lock became free before its lease ended"
    );
    eventually("the threads end", || clock.sleepers().is_empty());
}

#[test]
fn cleanup_continues_for_the_longest_requested_lease() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guard = client
        .owned_mutex("x")
        .unwrap()
        .lock_with(&LockOptions::new().lease(SECOND))
        .unwrap();
    guard.extend(100 * SECOND).unwrap();
    store.cut("release", Fault::NotSent);
    let unlocks = thread::spawn(move || guard.unlock());
    advance_until_done(&clock, 2, &unlocks);
    assert!(unlocks.join().unwrap().unwrap_err().is_unavailable());
    advance(&client, &clock, 20 * SECOND);
    store.mend();
    advance(&client, &clock, 2 * SECOND);
    assert!(!client.mutex("x").unwrap().is_locked().unwrap());
}

#[test]
fn client_drop_retries_pending_cleanup_before_it_returns() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    attempt_with_failing_cleanup(&store, &client);
    let free = store.client().mutex("x").unwrap();
    eventually("the worker sleeps until the next try", || {
        sleeping(&clock) >= 1
    });
    let start = crate::SystemClock.now();
    drop(client);
    assert!(
        crate::SystemClock.now().since(start) < SECOND,
        "a refusal is not waited for"
    );
    assert!(store.count("close") >= 2);
    assert!(free.is_locked().unwrap(), "no cleanup reached the store");
    // If the store is reachable, the lock is free when the drop returns.
    let (store, clock) = Recorded::new();
    let client = store.client();
    attempt_with_failing_cleanup(&store, &client);
    let free = store.client().mutex("x").unwrap();
    eventually("the worker sleeps until the next try", || {
        sleeping(&clock) >= 1
    });
    store.mend();
    drop(client);
    assert!(!free.is_locked().unwrap());
}

#[test]
fn client_drop_waits_one_command_timeout_for_a_hung_store() {
    let (store, _clock) = Recorded::new();
    let client = store.impatient_client(SECOND / 5);
    store.fail_next("acquire", Fault::Swallowed);
    store.fail_next("acquire", Fault::Swallowed);
    store.cut("close", Fault::Hangs);
    let gate = store.gate.lock();
    assert!(
        client
            .mutex("x")
            .unwrap()
            .try_lock()
            .unwrap_err()
            .is_unavailable()
    );
    eventually("the cleanup is tried", || store.count("close") == 1);
    let start = crate::SystemClock.now();
    drop(client);
    let took = crate::SystemClock.now().since(start);
    assert!(SECOND / 5 <= took && took < 2 * SECOND, "{took:?}");
    drop(gate);
}

#[test]
fn wait_for_cleanup_returns_once_cleanup_is_confirmed() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    client.wait_for_cleanup(Duration::ZERO).unwrap();
    attempt_with_failing_cleanup(&store, &client);
    let error = client.wait_for_cleanup(Duration::ZERO).unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().starts_with("1 outcome"),
        "{error}"
    );
    let settles = {
        let client = client.clone();
        thread::spawn(move || client.wait_for_cleanup(20 * SECOND))
    };
    parked(&clock, 2);
    store.mend();
    let (start, lock) = (clock.now(), client.mutex("x").unwrap());
    while lock.is_locked().unwrap() {
        eventually("both sleep, or the lock is free", || {
            sleeping(&clock) > 1 || !lock.is_locked().unwrap()
        });
        clock.jump(SECOND / 20);
    }
    assert!(clock.now().since(start) < 10 * SECOND);
    settles.join().unwrap().unwrap();
}

#[test]
fn wait_for_cleanup_fails_when_its_time_is_over() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    attempt_with_failing_cleanup(&store, &client);
    let settles = {
        let client = client.clone();
        thread::spawn(move || client.wait_for_cleanup(5 * SECOND))
    };
    parked(&clock, 2);
    advance_until_done(&clock, 1, &settles);
    assert!(settles.join().unwrap().unwrap_err().is_unavailable());
}

#[test]
fn client_drop_releases_detached_holds_while_timer_hangs() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    client.mutex("x").unwrap().lock().unwrap().detach();
    let closed = store.gate.lock();
    store.fail_next("node", Fault::Hangs);
    parked(&clock, 1);
    clock.jump(11 * SECOND);
    eventually("the timer asks for the node of the lock", || {
        store.count("node") == 1
    });
    let goes = thread::spawn(move || drop(client));
    eventually("the client is dropped", || goes.is_finished());
    let name = LockName::new("x").unwrap();
    let info = store.store.inspect(&name, Moment::NEVER).unwrap();
    assert_eq!(
        info,
        LockInfo::FREE,
        "the process may end now: the lock must be free"
    );
    drop(closed);
}

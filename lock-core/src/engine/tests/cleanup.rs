//! Clean-up: until it is confirmed, or until the lease has ended everything by itself.

use super::*;

/// An acquire that was given up in doubt: it holds the lock in the store, and its clean-up fails.
fn in_doubt(store: &Recorded, client: &Client) {
    store.fail_next("acquire", Fault::Swallowed);
    store.fail_next("acquire", Fault::Swallowed);
    store.cut("close", Fault::NotSent);
    assert!(client.mutex("x").unwrap().try_lock().unwrap_err().is_unavailable());
    eventually("its clean-up is tried", || store.count("close") == 1);
}

#[test]
fn it_is_repeated_with_growing_pauses_until_it_is_confirmed() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    in_doubt(&store, &client);
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
fn it_ends_when_the_lease_has_ended_everything() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    in_doubt(&store, &client);
    advance(&client, &clock, 34 * SECOND);
    let tries = store.count("close");
    advance(&client, &clock, 10 * SECOND);
    assert_eq!(store.count("close"), tries);
}

#[test]
fn it_outlives_its_client() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let start = clock.now();
    in_doubt(&store, &client);
    drop(client);
    let pass = || {
        if sleeping(&clock) == 1 {
            clock.advance(SECOND);
        }
    };
    for tries in 2..=4 {
        eventually("it is tried again", || {
            pass();
            store.count("close") >= tries
        });
    }
    assert!(store.clock.now() < start + 20 * SECOND);
    store.mend();
    let lock = store.client().mutex("x").unwrap();
    eventually("it is free", || {
        pass();
        !lock.is_locked().unwrap()
    });
    assert!(store.clock.now() < start + 25 * SECOND, "and not because its lease was over");
    eventually("and then the threads end", || clock.sleepers().is_empty());
}

#[test]
fn it_goes_on_for_the_longest_lease_that_was_asked_for() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guard =
        client.owned_mutex("x").unwrap().lock_with(&LockOptions::new().lease(SECOND)).unwrap();
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
fn when_the_client_goes_it_is_tried_once_more_before_that_returns() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    in_doubt(&store, &client);
    let free = store.client().mutex("x").unwrap();
    eventually("it waits for its next try", || sleeping(&clock) >= 1);
    let start = crate::SystemClock.now();
    drop(client);
    assert!(crate::SystemClock.now().since(start) < SECOND, "a refusal is not waited for");
    assert!(store.count("close") >= 2);
    assert!(free.is_locked().unwrap(), "the store could not be asked");
    // The same with a store that can be asked: free when the drop has returned, without a pause.
    let (store, clock) = Recorded::new();
    let client = store.client();
    in_doubt(&store, &client);
    let free = store.client().mutex("x").unwrap();
    eventually("it waits for its next try", || sleeping(&clock) >= 1);
    store.mend();
    drop(client);
    assert!(!free.is_locked().unwrap());
}

#[test]
fn a_client_that_goes_waits_for_a_store_that_hangs_for_one_command_only() {
    let (store, _clock) = Recorded::new();
    let client = store.impatient_client(SECOND / 5);
    store.fail_next("acquire", Fault::Swallowed);
    store.fail_next("acquire", Fault::Swallowed);
    store.cut("close", Fault::Hangs);
    let gate = store.gate.lock();
    assert!(client.mutex("x").unwrap().try_lock().unwrap_err().is_unavailable());
    eventually("its clean-up is tried", || store.count("close") == 1);
    let start = crate::SystemClock.now();
    drop(client);
    let took = crate::SystemClock.now().since(start);
    assert!(SECOND / 5 <= took && took < 2 * SECOND, "{took:?}");
    drop(gate);
}

#[test]
fn settling_waits_for_the_confirmation() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    client.wait_for_cleanup(Duration::ZERO).unwrap();
    in_doubt(&store, &client);
    let error = client.wait_for_cleanup(Duration::ZERO).unwrap_err();
    assert!(error.is_unavailable() && error.to_string().starts_with("1 outcome"), "{error}");
    let settles = {
        let client = client.clone();
        thread::spawn(move || client.wait_for_cleanup(20 * SECOND))
    };
    parked(&clock, 2);
    store.mend();
    let (start, lock) = (clock.now(), client.mutex("x").unwrap());
    while lock.is_locked().unwrap() {
        eventually("both sleep, or it is free", || {
            sleeping(&clock) > 1 || !lock.is_locked().unwrap()
        });
        clock.advance(SECOND / 20);
    }
    assert!(clock.now().since(start) < 10 * SECOND);
    settles.join().unwrap().unwrap();
}

#[test]
fn settling_ends_when_its_time_is_over_and_says_what_is_left() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    in_doubt(&store, &client);
    let settles = {
        let client = client.clone();
        thread::spawn(move || client.wait_for_cleanup(5 * SECOND))
    };
    parked(&clock, 2);
    advance_until_done(&clock, 1, &settles);
    assert!(settles.join().unwrap().unwrap_err().is_unavailable());
}

#[test]
fn dropping_the_last_handle_waits_while_the_timer_works() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    client.mutex("x").unwrap().lock().unwrap().detach();
    let closed = store.gate.lock();
    store.fail_next("node", Fault::Hangs);
    parked(&clock, 1);
    clock.advance(11 * SECOND);
    eventually("the watchdog is about to renew it", || store.count("node") == 1);
    let goes = thread::spawn(move || drop(client));
    eventually("the client is gone", || goes.is_finished());
    let name = LockName::new("x").unwrap();
    let info = store.store.inspect(&name, Moment::NEVER).unwrap();
    assert_eq!(info, LockInfo::FREE, "the process may end now, and it is held");
    drop(closed);
}

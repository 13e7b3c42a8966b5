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

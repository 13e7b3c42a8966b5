//! Holds: nested, detached, sent to another thread, counted, and released when their thread or
//! client ends.

use super::*;

#[test]
fn nested_holds_send_a_renewal_only_for_a_longer_lease() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let outer = lock.lock().unwrap();
    let inner = lock.lock().unwrap();
    let shorter = lock.lock_with(&LockOptions::new().lease(SECOND)).unwrap();
    assert_eq!(
        (
            lock.hold_count(),
            store.count("acquire"),
            store.count("renew")
        ),
        (3, 1, 0)
    );
    assert_eq!(inner.fencing_token(), outer.fencing_token());
    let longer = lock
        .lock_with(&LockOptions::new().lease(60 * SECOND))
        .unwrap();
    assert_eq!(store.count("renew"), 1);
    assert!(outer.remaining() > 59 * SECOND);
    drop((longer, shorter, inner));
    assert_eq!((lock.hold_count(), store.count("release")), (1, 0));
    outer.unlock().unwrap();
    assert_eq!((lock.hold_count(), store.count("release")), (0, 1));
}

#[test]
fn nested_hold_of_the_usual_lease_prolongs_a_shorter_outer_one() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    let _outer = lock
        .lock_with(&LockOptions::new().watched(6 * SECOND))
        .unwrap();
    let inner = lock.lock().unwrap();
    assert_eq!(store.count("renew"), 1);
    assert!(inner.remaining() > 29 * SECOND, "{:?}", inner.remaining());
    let _third = lock.lock().unwrap();
    assert_eq!(store.count("renew"), 1);
}

#[test]
fn watched_hold_in_a_fixed_lease_starts_no_watchdog() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let outer = lock
        .lock_with(&LockOptions::new().lease(20 * SECOND))
        .unwrap();
    let inner = lock.lock().unwrap();
    advance(&client, &clock, 19 * SECOND);
    assert!(inner.is_valid());
    advance(&client, &clock, SECOND);
    assert!(!inner.is_valid() && store.count("renew") == 0);
    assert!(
        lock.lock().unwrap_err().is_lost(),
        "a lost lock is refused while a guard is left"
    );
    drop(inner);
    assert!(lock.lock().unwrap_err().is_lost());
    assert!(outer.unlock().unwrap_err().is_lost());
    assert!(lock.lock().is_ok());
}

#[test]
fn hold_beyond_the_limit_is_misuse() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    let guards: Vec<_> = (0..super::super::acquisition::MOST_HOLDS)
        .map(|_| lock.lock().unwrap())
        .collect();
    assert!(lock.lock().unwrap_err().is_misuse());
    drop(guards);
    assert_eq!((lock.hold_count(), store.count("release")), (0, 1));
}

#[test]
fn detached_hold_of_an_ended_thread_is_released() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    thread::spawn({
        let lock = lock.clone();
        move || lock.lock().unwrap().detach()
    })
    .join()
    .unwrap();
    assert!(lock.is_locked().unwrap());
    advance(&client, &clock, 11 * SECOND);
    eventually("the lock is free", || !lock.is_locked().unwrap());
}

#[test]
fn client_drop_releases_detached_holds() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    client.mutex("x").unwrap().lock().unwrap().detach();
    drop(client);
    let other = store.client().mutex("x").unwrap();
    eventually("the lock is free", || !other.is_locked().unwrap());
}

#[test]
fn detached_holds_are_ended_only_by_their_own_thread() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    assert!(lock.unlock().unwrap_err().is_not_held());
    lock.lock().unwrap().detach();
    lock.lock().unwrap().detach();
    let stranger = lock.clone();
    assert!(
        thread::spawn(move || stranger.unlock())
            .join()
            .unwrap()
            .unwrap_err()
            .is_not_held()
    );
    lock.unlock().unwrap();
    assert_eq!((lock.hold_count(), store.count("release")), (1, 0));
    lock.unlock().unwrap();
    assert_eq!((lock.hold_count(), store.count("release")), (0, 1));
    assert!(lock.unlock().unwrap_err().is_not_held());
}

#[test]
fn owned_guard_can_be_sent_and_is_no_hold_of_its_thread() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let (owned, mutex) = (client.owned_mutex("x").unwrap(), client.mutex("x").unwrap());
    let guard = owned.lock().unwrap();
    assert!(owned.try_lock().unwrap().is_none() && mutex.try_lock().unwrap().is_none());
    assert_eq!(
        (mutex.hold_count(), mutex.is_held_by_current_thread()),
        (0, false)
    );
    thread::spawn(move || guard.unlock())
        .join()
        .unwrap()
        .unwrap();
    assert!(mutex.try_lock().unwrap().is_some());
}

#[test]
fn panic_in_run_releases_the_lock() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        lock.run(|_| panic!("on purpose"))
    }));
    assert!(caught.is_err() && !lock.is_locked().unwrap() && lock.hold_count() == 0);
    let dynamic: &dyn DistLock = &lock;
    assert!(dynamic.run(|guard| guard.is_valid()).unwrap());
    store.store.lose(lock.name());
    let lost = lock.run(|guard| store.store.lose(guard.name()));
    assert!(
        lost.unwrap_err().is_lost(),
        "the lock was lost while the closure ran"
    );
}

#[test]
fn unused_names_are_forgotten() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    for n in 0..500 {
        client
            .mutex(format!("n{n}"))
            .unwrap()
            .lock()
            .unwrap()
            .unlock()
            .unwrap();
    }
    assert!(client.names_in_use() <= 500);
    advance(&client, &clock, 11 * SECOND);
    eventually("all names are forgotten", || client.names_in_use() == 0);
}

#[test]
fn nested_hold_gets_its_lease_without_renewals_left() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let few = crate::Lease::Watched {
        ttl: 30 * SECOND,
        renewals: Some(0),
    };
    let options = LockOptions {
        lease: Some(few),
        ..LockOptions::new()
    };
    let _outer = lock.lock_with(&options).unwrap();
    clock.jump(9 * SECOND);
    let nested = lock
        .lock_with(&LockOptions::new().lease(25 * SECOND))
        .unwrap();
    assert!(nested.remaining() > 24 * SECOND, "{:?}", nested.remaining());
}

#[test]
fn released_names_with_a_long_lease_are_forgotten() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let long = LockOptions::new().lease(24 * 60 * 60 * SECOND);
    let held = client.mutex("held").unwrap().lock_with(&long).unwrap();
    for n in 0..500 {
        client
            .mutex(format!("n{n}"))
            .unwrap()
            .lock_with(&long)
            .unwrap()
            .unlock()
            .unwrap();
    }
    assert!(client.names_in_use() <= 501);
    advance(&client, &clock, 11 * SECOND);
    eventually("all names are forgotten but one", || {
        client.names_in_use() == 1
    });
    assert!(held.is_valid());
    held.unlock().unwrap();
}

#[test]
fn names_that_are_used_once_are_kept_for_a_second() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let hour = LockOptions::new().lease(3_600 * SECOND);
    let mut most = 0;
    for n in 0..500 {
        client
            .mutex(format!("n{n}"))
            .unwrap()
            .lock_with(&hour)
            .unwrap()
            .unlock()
            .unwrap();
        advance(&client, &clock, SECOND / 100);
        most = most.max(client.names_in_use());
    }
    assert!(
        (50..=110).contains(&most),
        "a hundred names a second, and {most} are kept"
    );
}

#[test]
fn fixed_lease_outlasts_its_thread_and_leaves_nothing() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let fixed = LockOptions::new().lease(25 * SECOND);
    thread::spawn(move || lock.lock_with(&fixed).unwrap().detach())
        .join()
        .unwrap();
    advance(&client, &clock, 22 * SECOND);
    assert!(store.client().mutex("x").unwrap().is_locked().unwrap());
    assert_eq!(client.names_in_use(), 1);
    advance(&client, &clock, 4 * SECOND);
    eventually("the name is forgotten", || client.names_in_use() == 0);
}

#[test]
fn lost_hold_of_an_ended_thread_leaves_nothing() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let (lost, told) = std::sync::mpsc::channel();
    let (taken, is_taken) = std::sync::mpsc::channel();
    let holder = thread::spawn(move || {
        let guard = lock
            .lock_with(&LockOptions::new().lease(5 * SECOND))
            .unwrap();
        taken.send(()).unwrap();
        told.recv().unwrap();
        assert!(!guard.is_valid());
        guard.detach();
    });
    is_taken.recv().unwrap();
    advance(&client, &clock, 30 * SECOND);
    assert_eq!(client.names_in_use(), 1, "the guard can still be unlocked");
    lost.send(()).unwrap();
    holder.join().unwrap();
    advance(&client, &clock, 11 * SECOND);
    eventually("the name is forgotten", || client.names_in_use() == 0);
}

#[test]
fn detached_hold_unreleased_at_client_drop_is_reported() {
    let (store, _clock) = Recorded::new();
    let (client, told) = store
        .able(Abilities::full().renewable(false))
        .client_with_events();
    let fixed = LockOptions::new().lease(10 * SECOND);
    client
        .mutex("x")
        .unwrap()
        .lock_with(&fixed)
        .unwrap()
        .detach();
    store.fail_next("release", Fault::Final);
    drop(client);
    eventually("failure is reported", || {
        told.lock().iter().any(|name| name == "ReleaseFailed")
    });
    assert_eq!(store.count("release"), 1);
}

#[test]
fn nested_hold_prolongs_the_shortest_time_and_never_shortens_it() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let at_least = |seconds| LockOptions::new().at_least(seconds * SECOND);
    let outer = lock.lock_with(&at_least(2)).unwrap();
    for seconds in [5, 3] {
        drop(lock.lock_with(&at_least(seconds)).unwrap());
    }
    outer.unlock().unwrap();
    let other = store.client().mutex("x").unwrap();
    clock.jump(4 * SECOND);
    assert!(other.try_lock().unwrap().is_none());
    clock.jump(SECOND);
    assert!(other.try_lock().unwrap().is_some());
}

#[test]
fn kept_lock_is_not_handed_to_another_thread() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let guard = lock
        .lock_with(&LockOptions::new().at_least(5 * SECOND))
        .unwrap();
    let waiter = thread::spawn({
        let lock = lock.clone();
        move || {
            let guard = lock.lock().unwrap();
            guard.fencing_token()
        }
    });
    eventually("the waiter queues", || {
        client.queue_length("x").unwrap() == 1
    });
    let granted = clock.now();
    guard.unlock().unwrap();
    advance_until_done(&clock, 0, &waiter);
    assert!(clock.now().since(granted) >= 5 * SECOND);
}

#[test]
fn locks_given_back_by_a_multi_lock_are_not_kept() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let [one, other] = ["a", "b"].map(|name| client.mutex(name).unwrap());
    let both = crate::MultiLock::new([one, other]).unwrap();
    let foreign = store.client();
    let busy = foreign.mutex("b").unwrap().lock().unwrap();
    let at_least = LockOptions::new().at_least(5 * SECOND);
    assert!(both.try_lock_with(&at_least).unwrap().is_none());
    assert!(foreign.mutex("a").unwrap().try_lock().unwrap().is_some());
    busy.unlock().unwrap();
    both.try_lock_with(&at_least)
        .unwrap()
        .unwrap()
        .unlock()
        .unwrap();
    for name in ["a", "b"] {
        assert!(
            foreign.mutex(name).unwrap().try_lock().unwrap().is_none(),
            "{name}"
        );
    }
}

#[test]
fn nested_hold_is_refused_where_the_options_say_so() {
    let client = crate::builder().url("memory://nested_is_refused").unwrap();
    let client = client.connect().unwrap();
    let lock = client.mutex("section").unwrap();
    let options = LockOptions::new().not_nested();
    let outer = lock.lock_with(&options).unwrap();
    for _ in 0..3 {
        let error = lock.lock_with(&options).unwrap_err();
        assert!(
            error.is_misuse() && error.to_string().contains("owned_mutex"),
            "{error}"
        );
    }
    lock.lock().unwrap().unlock().unwrap();
    outer.unlock().unwrap();
    let guard = lock
        .try_lock_with(&options)
        .unwrap()
        .expect("the refused holds have ended");
    guard.unlock().unwrap();
    // The option applies to read-write locks and to several locks as one, too.
    let rw = client.rw_lock("rw").unwrap();
    let several = crate::MultiLock::new(["a", "b"].map(|name| client.mutex(name).unwrap()));
    let several = several.unwrap();
    let write = rw.write().lock_with(&options).unwrap();
    assert!(rw.write().lock_with(&options).unwrap_err().is_misuse());
    write.unlock().unwrap();
    let both = several.lock_with(&options).unwrap();
    assert!(several.lock_with(&options).unwrap_err().is_misuse());
    both.unlock().unwrap();
    assert!(lock.try_lock_with(&options).unwrap().is_some());
}

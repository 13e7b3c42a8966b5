//! Waiters: the local queue, interrupts, stores without notifications, and unreachable stores.

use super::*;

#[test]
fn thousand_waiters_are_served_in_order_by_an_attempt_each() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    // Neighbours in the queue have different leases, so there is no hand-off between them.
    let order = serve(&client, 1_000, |n| {
        LockOptions::new().watched(SECOND * (20 + n as u32 % 2))
    });
    assert_eq!(order, (0..1_000).collect::<Vec<_>>());
    let releases = store.count("release") + store.count("close");
    assert_eq!(
        (store.count("acquire"), releases, store.count("watch")),
        (1_001, 1_001, 0)
    );
}

#[test]
fn interrupt_ends_all_of_its_waits_and_no_other() {
    let (store, _clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let names = ["a", "b", "c"];
    let held: Vec<_> = names
        .iter()
        .map(|name| holder.mutex(*name).unwrap().lock().unwrap())
        .collect();
    let (fired, other) = (Interrupt::new(), Interrupt::new());
    let waiters: Vec<_> = names
        .iter()
        .map(|name| {
            let lock = client.mutex(*name).unwrap();
            let interrupt = if *name == "c" {
                other.clone()
            } else {
                fired.clone()
            };
            let waiter = thread::spawn(move || lock.lock_interruptibly(&interrupt).map(drop));
            eventually("the waiter queues", || {
                client.queue_length(*name).unwrap() == 1
            });
            waiter
        })
        .collect();
    fired.fire();
    let mut waiters = waiters.into_iter();
    for waiter in waiters.by_ref().take(2) {
        assert!(waiter.join().unwrap().unwrap_err().is_interrupted());
    }
    assert!(
        client
            .mutex("a")
            .unwrap()
            .lock_interruptibly(&fired)
            .unwrap_err()
            .is_interrupted(),
        "a fired interrupt refuses waits until its reset"
    );
    assert_eq!(client.queue_length("c").unwrap(), 1);
    drop(held);
    waiters.next().unwrap().join().unwrap().unwrap();
}

#[test]
fn interrupt_ends_a_wait_in_the_local_queue() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let held = lock.lock().unwrap();
    let interrupt = Interrupt::new();
    let waiters: Vec<_> = (0..3)
        .map(|_| {
            let (lock, interrupt) = (lock.clone(), interrupt.clone());
            thread::spawn(move || lock.lock_interruptibly(&interrupt).map(drop))
        })
        .collect();
    eventually("all waiters queue", || {
        client.queue_length("x").unwrap() == 3
    });
    interrupt.fire();
    for waiter in waiters {
        assert!(waiter.join().unwrap().unwrap_err().is_interrupted());
    }
    assert_eq!(
        (client.queue_length("x").unwrap(), store.count("acquire")),
        (0, 1)
    );
    held.unlock().unwrap();
}

#[test]
fn store_that_does_not_publish_is_polled() {
    let (store, clock) = Recorded::new();
    let waking = Waking::Polls {
        interval: SECOND / 10,
        jitter: SECOND / 10,
    };
    let holder = store.client();
    let client = store.able(Abilities::full().waking(waking)).client();
    let held = holder.mutex("x").unwrap().lock().unwrap();
    let waiter = thread::spawn({
        let lock = client.mutex("x").unwrap();
        move || lock.lock().unwrap().fencing_token()
    });
    eventually("the waiter has asked", || store.count("acquire") == 2);
    for _ in 0..100 {
        parked(&clock, 2);
        clock.jump(SECOND / 50);
    }
    let asked = store.count("acquire") - 1;
    assert!(
        (8..=20).contains(&asked),
        "{asked} attempts in 2 s, 100 to 200 ms apart"
    );
    let times = store.times("acquire");
    let pauses: Vec<_> = times[1..]
        .windows(2)
        .map(|two| two[1].since(two[0]))
        .collect();
    // The clock advances in steps of 20 ms, which may lengthen a pause.
    let is_allowed = |pause: &Duration| (SECOND / 10..=SECOND / 5 + SECOND / 50).contains(pause);
    assert!(pauses.iter().all(is_allowed), "{pauses:?}");
    assert!(
        pauses.iter().any(|pause| *pause != pauses[0]),
        "the pauses are random: {pauses:?}"
    );
    assert_eq!(store.count("watch"), 0);
    let token = held.fencing_token();
    held.unlock().unwrap();
    advance_until_done(&clock, 1, &waiter);
    assert!(waiter.join().unwrap() > token);
}

#[test]
fn only_a_lock_that_was_watched_is_watched_before_it_is_asked_for() {
    let polls = Waking::Polls {
        interval: SECOND / 10,
        jitter: SECOND / 10,
    };
    for abilities in [Abilities::full(), Abilities::full().waking(polls)] {
        let (store, _clock) = Recorded::new();
        let holder = store.client();
        let client = store.able(abilities).client();
        let held = holder.mutex("x").unwrap().lock().unwrap();
        let lock = client.mutex("x").unwrap();
        assert!(lock.try_lock().unwrap().is_none());
        held.unlock().unwrap();
        lock.lock().unwrap().unlock().unwrap();
        assert_eq!(store.count("watch"), 0);
    }
}

#[test]
fn attempt_hardly_waits_for_the_watch_before_it() {
    let (store, _clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let held = holder.mutex("x").unwrap().lock().unwrap();
    let lock = client.mutex("x").unwrap();
    let waits = || {
        let lock = lock.clone();
        thread::spawn(move || lock.lock().unwrap().unlock().unwrap())
    };
    let first = waits();
    eventually("the waiter watches", || store.watches() == 1);
    assert!(store.time_given("watch") >= SECOND, "a command timeout");
    held.unlock().unwrap();
    first.join().unwrap();
    waits().join().unwrap();
    assert_eq!(store.count("watch"), 2);
    assert!(
        store.time_given("watch") <= SECOND / 10,
        "{:?}",
        store.time_given("watch")
    );
}

#[test]
fn failing_watch_is_retried_with_back_off() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let held = holder.mutex("x").unwrap().lock().unwrap();
    for _ in 0..1_000 {
        store.fail_next("watch", Fault::NotSent);
    }
    let waiter = thread::spawn({
        let lock = client.mutex("x").unwrap();
        move || lock.lock().unwrap().unlock().unwrap()
    });
    eventually("the waiter has tried to watch", || {
        store.count("watch") >= 1
    });
    for _ in 0..200 {
        parked(&clock, 2);
        clock.jump(SECOND / 50);
    }
    let asked = store.count("watch");
    assert!((6..60).contains(&asked), "{asked} tries in 4 s");
    held.unlock().unwrap();
    advance_until_done(&clock, 1, &waiter);
    waiter.join().unwrap();
}

#[test]
fn unreachable_store_is_unavailable_and_never_busy() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    for _ in 0..10_000 {
        store.fail_next("acquire", Fault::NotSent);
    }
    assert!(lock.try_lock().unwrap_err().is_unavailable());
    let waits = |wait: Option<Duration>| {
        let (lock, clock) = (lock.clone(), clock.clone());
        let start = clock.now();
        let waiter = thread::spawn(move || {
            let taken = lock.acquire(wait, &LockOptions::new());
            taken.map(|guard| guard.is_some())
        });
        advance_until_done(&clock, 0, &waiter);
        (
            waiter.join().unwrap().unwrap_err(),
            clock.now().since(start),
        )
    };
    let (error, after) = waits(Some(3 * SECOND));
    assert!(
        error.is_unavailable() && after >= 3 * SECOND && after < 30 * SECOND,
        "{after:?}"
    );
    let (error, after) = waits(None);
    assert!(
        error.is_unavailable() && after >= 30 * SECOND,
        "one lease of outage: {after:?}"
    );
}

#[test]
fn extreme_durations_are_refused_or_never_reached() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    for lease in [Duration::ZERO, Duration::from_nanos(1), Duration::MAX] {
        let fixed = LockOptions::new().lease(lease);
        assert!(lock.lock_with(&fixed).unwrap_err().is_misuse(), "{lease:?}");
        assert!(
            lock.lock_with(&LockOptions::new().watched(lease))
                .unwrap_err()
                .is_misuse(),
            "{lease:?}"
        );
    }
    let guard = lock.try_lock_for(Duration::MAX).unwrap().unwrap();
    assert!(guard.extend(Duration::MAX).unwrap_err().is_misuse());
    assert!(guard.extend(Duration::ZERO).is_ok());
    assert!(
        guard
            .ensure(Duration::MAX)
            .unwrap_err()
            .is_lease_too_short()
            && guard.ensure(Duration::ZERO).is_ok()
    );
}

//! Waiting for a lock: queue, wake-ups, deadlines, outages and interrupts.

use super::*;

/// Starts a thread of this client that waits for `x`. The thread's result is whether it got the
/// lock.
fn waiter(client: &Client, options: LockOptions) -> thread::JoinHandle<Result<bool, Error>> {
    waiter_with(client, None, options)
}

/// Starts a thread as [`waiter`] does, which waits for at most `wait`.
fn waiter_for(client: &Client, wait: Duration) -> thread::JoinHandle<Result<bool, Error>> {
    waiter_with(client, Some(wait), LockOptions::new())
}

fn waiter_with(
    client: &Client,
    wait: Option<Duration>,
    options: LockOptions,
) -> thread::JoinHandle<Result<bool, Error>> {
    let (lock, queued) = (
        client.mutex("x").unwrap(),
        client.queue_length("x").unwrap(),
    );
    let waiter = thread::spawn(move || lock.acquire(wait, &options).map(|guard| guard.is_some()));
    eventually("it queues", || {
        client.queue_length("x").unwrap() > queued || waiter.is_finished()
    });
    waiter
}

fn is_done<T>(waiter: thread::JoinHandle<T>) -> T {
    eventually("the waiter is done", || waiter.is_finished());
    waiter.join().unwrap()
}

/// Starts a thread that waits for a lock of another client. Returns when the thread has sent an
/// attempt, started a watch, sent a second attempt, and sleeps.
fn sleeper(
    store: &Recorded,
    client: &Client,
    clock: &ManualClock,
    wait: Option<Duration>,
) -> thread::JoinHandle<Result<bool, Error>> {
    let waiter = waiter_with(client, wait, LockOptions::new());
    eventually("the waiter asks again after the watch", || {
        store.count("acquire") == 3
    });
    parked(clock, 2);
    waiter
}

#[test]
fn release_between_attempt_and_watch_is_not_missed() {
    let (store, _clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let held = holder.mutex("x").unwrap().lock().unwrap();
    let gate = store.gate.lock();
    store.fail_next("watch", Fault::Hangs);
    let waiter = waiter(&client, LockOptions::new());
    eventually("the waiter registers", || store.count("watch") == 1);
    held.unlock().unwrap();
    drop(gate);
    assert!(
        is_done(waiter).unwrap(),
        "the waiter asked again before it slept"
    );
}

#[test]
fn release_wakes_the_waiter_of_another_client_at_once() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let held = holder.mutex("x").unwrap().lock().unwrap();
    let waiter = sleeper(&store, &client, &clock, None);
    held.unlock().unwrap();
    assert!(is_done(waiter).unwrap());
    assert_eq!(
        (store.count("acquire"), store.watches()),
        (4, 0),
        "no thread queues: no watch"
    );
}

/// Makes the lock `x` of one client, and another client that has just waited for `x`, held it and
/// released it.
fn wanted_a_moment_ago(store: &Recorded, clock: &ManualClock) -> (crate::Mutex, Client) {
    let (holder, client) = (store.client(), store.client());
    let lock = holder.mutex("x").unwrap();
    let held = lock.lock().unwrap();
    let first = sleeper(store, &client, clock, None);
    held.unlock().unwrap();
    assert!(is_done(first).unwrap());
    (lock, client)
}

#[test]
fn lock_that_was_wanted_a_moment_ago_is_watched_before_it_is_asked_for() {
    let (store, clock) = Recorded::new();
    let (lock, client) = wanted_a_moment_ago(&store, &clock);
    // After a second the store may have ended the subscription, so two attempts are necessary
    // again.
    for (later, attempts) in [(Duration::ZERO, 1), (SECOND, 2)] {
        clock.jump(later);
        let held = lock.lock().unwrap();
        let (asked, watched) = (store.count("acquire"), store.count("watch"));
        let waiter = waiter(&client, LockOptions::new());
        parked(&clock, 3); // the waiter, and a timer of each client
        assert_eq!(store.count("acquire"), asked + attempts, "{later:?}");
        assert_eq!((store.count("watch"), store.watches()), (watched + 1, 1));
        held.unlock().unwrap();
        assert!(is_done(waiter).unwrap());
    }
    // Once no other client wants the lock any more, the next watch before an attempt is the last
    // one.
    let (lone, watched) = (client.mutex("x").unwrap(), store.count("watch"));
    for _ in 0..3 {
        clock.jump(SECOND * 2 / 5);
        lone.lock().unwrap().unlock().unwrap();
    }
    assert_eq!(store.count("watch"), watched + 1);
    // An attempt without a wait needs no watch.
    let (held, watched) = (lock.lock().unwrap(), store.count("watch"));
    assert!(client.mutex("x").unwrap().try_lock().unwrap().is_none());
    assert_eq!(store.count("watch"), watched);
    held.unlock().unwrap();
}

#[test]
fn follower_waits_for_the_attempt_behind_a_slow_watch() {
    for is_answered in [true, false] {
        let (store, clock) = Recorded::new();
        let (lock, client) = wanted_a_moment_ago(&store, &clock);
        let held = lock.lock().unwrap();
        clock.jump(SECOND / 100); // the store's last answer is older than the waits to come
        let gate = store.gate.lock();
        store.fail_next("watch", Fault::Hangs);
        let head = waiter_for(&client, SECOND / 10);
        eventually("the head waits for its watch", || store.count("watch") == 2);
        let follower = waiter_for(&client, SECOND / 20);
        parked(&clock, 3); // the follower, and a timer of each client
        clock.jump(SECOND / 20);
        parked(&clock, 3); // past its deadline it waits for the head's answer
        clock.jump(SECOND / 20);
        parked(&clock, 3);
        if is_answered {
            drop(gate);
            assert!(!is_done(head).unwrap(), "it was busy");
            assert!(
                !is_done(follower).unwrap(),
                "the head was told that it was busy"
            );
        } else {
            clock.jump(2 * SECOND - SECOND / 20); // a command timeout after its deadline
            assert!(
                is_done(follower).unwrap_err().is_unavailable(),
                "it waits for no more"
            );
            drop(gate);
            held.unlock().unwrap();
            is_done(head).unwrap();
        }
    }
}

#[test]
fn head_that_gives_up_leaves_its_watch_to_the_next() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let held = holder.mutex("x").unwrap().lock().unwrap();
    let first = waiter_for(&client, SECOND / 2);
    eventually("the waiter asks again after the watch", || {
        store.count("acquire") == 3
    });
    let second = waiter(&client, LockOptions::new());
    parked(&clock, 3);
    clock.jump(SECOND / 2);
    assert!(
        !is_done(first).unwrap(),
        "the lock was busy until the deadline"
    );
    eventually("the first waiter and the next ask once", || {
        store.count("acquire") == 5
    });
    assert_eq!((store.count("watch"), store.watches()), (1, 1));
    held.unlock().unwrap();
    assert!(is_done(second).unwrap());
}

#[test]
fn waits_of_head_and_follower_end_at_their_deadline() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let _held = holder.mutex("x").unwrap().lock().unwrap();
    let asks = waiter_for(&client, SECOND / 2);
    eventually("the waiter asks again after the watch", || {
        store.count("acquire") == 3
    });
    let queues = waiter_for(&client, SECOND / 2);
    parked(&clock, 3);
    clock.jump(SECOND / 2 - SECOND / 100);
    parked(&clock, 3);
    assert!(!asks.is_finished() && !queues.is_finished());
    clock.jump(SECOND / 100);
    assert!(!is_done(asks).unwrap() && !is_done(queues).unwrap());
    assert_eq!(client.queue_length("x").unwrap(), 0);
}

#[test]
fn wait_behind_a_local_holder_ends_at_its_deadline() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let _held = client.mutex("x").unwrap().lock().unwrap();
    let waiter = waiter_for(&client, SECOND / 2);
    parked(&clock, 2);
    clock.jump(SECOND / 2);
    assert!(!is_done(waiter).unwrap());
    assert_eq!(store.count("acquire"), 1);
}

#[test]
fn lock_freed_without_notice_is_taken_at_the_deadline() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let held = holder.mutex("x").unwrap().lock().unwrap();
    let waiter = sleeper(&store, &client, &clock, Some(SECOND / 2));
    store.store.lose(held.name()); // without a notification
    clock.jump(SECOND / 2);
    assert!(is_done(waiter).unwrap());
}

#[test]
fn waiter_sleeps_at_most_for_the_holders_lease() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let fixed = LockOptions::new().lease(5 * SECOND);
    let held = holder.mutex("x").unwrap().lock_with(&fixed).unwrap();
    let waiter = sleeper(&store, &client, &clock, None);
    clock.jump(5 * SECOND);
    assert!(
        is_done(waiter).unwrap(),
        "the waiter got no notification of the lease end"
    );
    assert!(held.unlock().unwrap_err().is_lost());
}

#[test]
fn waiter_asks_again_within_its_own_lease() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let fixed = LockOptions::new().lease(60 * 60 * SECOND);
    let held = holder.mutex("x").unwrap().lock_with(&fixed).unwrap();
    let waiter = sleeper(&store, &client, &clock, None);
    store.store.lose(held.name()); // without a notification
    clock.jump(30 * SECOND);
    assert!(is_done(waiter).unwrap());
}

#[test]
fn answer_of_the_store_ends_the_outage() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let held = holder
        .mutex("x")
        .unwrap()
        .lock_with(&LockOptions::new().lease(3600 * SECOND))
        .unwrap();
    store.cut("acquire", Fault::NotSent);
    let waiter = waiter(&client, LockOptions::new());
    let pass = |time: Duration| {
        for _ in 0..time.as_millis() / 50 {
            eventually("it sleeps or is done", || {
                waiter.is_finished() || sleeping(&clock) >= 2
            });
            clock.jump(SECOND / 20);
        }
    };
    pass(20 * SECOND);
    store.mend();
    eventually("the waiter finds the lock busy and watches", || {
        if sleeping(&clock) >= 2 {
            clock.jump(SECOND / 20);
        }
        store.watches() == 1
    });
    eventually("the waiter has asked again, and sleeps for a lease", || {
        // The timer wakes every 10 s; the waiter sleeps for the lease of 30 s.
        let later = clock.now() + 11 * SECOND;
        clock
            .sleepers()
            .iter()
            .filter(|until| **until > later)
            .count()
            == 1
    });
    store.cut("acquire", Fault::NotSent);
    pass(45 * SECOND); // a sleep of one lease, and less than the outage limit
    assert!(
        !waiter.is_finished(),
        "two outages, each shorter than the limit"
    );
    store.mend();
    held.unlock().unwrap();
    advance_until_done(&clock, 1, &waiter);
    assert!(waiter.join().unwrap().unwrap());
}

#[test]
fn outage_is_reported_at_the_deadline_of_the_wait() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    store.cut("acquire", Fault::NotSent);
    let start = clock.now();
    let waiter = waiter_for(&client, 3 * SECOND);
    while clock.now().since(start) < 3 * SECOND {
        eventually("the waiter sleeps", || sleeping(&clock) == 1);
        assert!(!waiter.is_finished());
        clock.jump(SECOND / 100);
    }
    assert!(is_done(waiter).unwrap_err().is_unavailable());
}

#[test]
fn try_lock_that_timed_out_is_not_repeated() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    store.fail_next("acquire", Fault::TimedOut(2 * SECOND));
    assert!(
        client
            .mutex("x")
            .unwrap()
            .try_lock()
            .unwrap_err()
            .is_unavailable()
    );
    assert_eq!(
        store.count("acquire"),
        1,
        "try_lock takes one command timeout, not two"
    );
}

#[test]
fn each_acquisition_has_a_new_owner() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    let owner = || {
        let guard = lock.lock().unwrap();
        let owner = lock.inspect().unwrap().holder.unwrap().owner;
        guard.unlock().unwrap();
        owner
    };
    assert_ne!(owner(), owner());
}

#[test]
fn every_request_has_a_deadline() {
    let (store, _clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let held = holder.mutex("x").unwrap().lock().unwrap();
    let waiter = waiter(&client, LockOptions::new());
    eventually("the waiter asks again after the watch", || {
        store.count("acquire") == 3
    });
    held.verify().unwrap();
    held.extend(100 * SECOND).unwrap();
    held.unlock().unwrap();
    assert!(is_done(waiter).unwrap());
    for kind in ["acquire", "watch", "inspect", "renew", "release"] {
        assert_eq!(store.time_given(kind), 2 * SECOND, "{kind}");
    }
    client.mutex("y").unwrap().lock().unwrap().unlock().unwrap();
    assert_eq!(
        store.time_given("release"),
        SECOND,
        "the other half is left for a repetition"
    );
}

#[test]
fn renewal_of_a_short_lease_has_a_third_of_it_as_timeout() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let short = LockOptions::new().watched(SECOND * 3 / 10);
    let guard = client.mutex("x").unwrap().lock_with(&short).unwrap();
    advance(&client, &clock, SECOND / 5);
    assert_eq!(
        store.time_given("renew"),
        SECOND / 10,
        "there is time for a repetition"
    );
    guard.unlock().unwrap();
}

#[test]
fn renewal_timeout_is_not_limited_by_a_shorter_lease() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let long = client.mutex("long").unwrap().lock().unwrap();
    let short = LockOptions::new().watched(SECOND * 3 / 10);
    let short = client.mutex("short").unwrap().lock_with(&short).unwrap();
    advance(&client, &clock, 10 * SECOND - SECOND / 50);
    let extend = |seconds| {
        let before = store.count("renew");
        long.extend(seconds * SECOND).unwrap();
        assert_eq!(store.count("renew"), before + 1);
        store.time_given("renew")
    };
    assert_eq!(
        extend(60),
        2 * SECOND,
        "the short lease has a third of its own"
    );
    short.unlock().unwrap();
    advance(&client, &clock, SECOND / 2);
    assert_eq!(extend(120), 2 * SECOND, "no short lease is left");
}

#[test]
fn fired_interrupt_refuses_a_nested_hold() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    let interrupt = Interrupt::new();
    let held = lock.lock_interruptibly(&interrupt).unwrap();
    interrupt.fire();
    assert!(
        lock.lock_interruptibly(&interrupt)
            .unwrap_err()
            .is_interrupted()
    );
    let tries = LockOptions::new().interrupt(&interrupt);
    assert!(lock.try_lock_with(&tries).unwrap_err().is_interrupted());
    assert_eq!((lock.hold_count(), store.count("acquire")), (1, 1));
    held.unlock().unwrap();
}

#[test]
fn lock_found_lost_goes_to_the_next_local_waiter() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let held = client.mutex("x").unwrap().lock().unwrap();
    let waiter = waiter(&client, LockOptions::new());
    store.store.lose(held.name());
    assert!(held.verify().unwrap_err().is_lost());
    assert!(
        is_done(waiter).unwrap(),
        "the waiter gets the lock without a timeout"
    );
}

#[test]
fn try_lock_does_not_overtake_waiters() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let held = holder.mutex("x").unwrap().lock().unwrap();
    let waiter = sleeper(&store, &client, &clock, None);
    store.store.lose(held.name()); // the lock is free, without a notification
    assert!(client.mutex("x").unwrap().try_lock().unwrap().is_none());
    clock.jump(30 * SECOND);
    assert!(is_done(waiter).unwrap());
}

#[test]
fn contention_is_reported_once_per_wait_and_try_lock() {
    let (store, clock) = Recorded::new();
    let holder = store.client();
    let (client, events) = store.client_with_events();
    let contended = || {
        events
            .lock()
            .iter()
            .filter(|name| *name == "Contended")
            .count()
    };
    let held = holder.mutex("x").unwrap().lock().unwrap();
    let waiter = sleeper(&store, &client, &clock, None);
    assert!(client.mutex("x").unwrap().try_lock().unwrap().is_none());
    held.unlock().unwrap();
    assert!(is_done(waiter).unwrap());
    eventually("all is reported", || {
        events.lock().last().is_some_and(|name| name == "Released")
    });
    assert_eq!(contended(), 2);
}

/// Makes a client with a command timeout of one second and an outage limit of three.
fn with_outage_limit(store: &Recorded) -> Client {
    let configure = |config: crate::Config| {
        config
            .with_command_timeout(SECOND)
            .with_outage_limit(3 * SECOND)
    };
    store.builder().configure(configure).connect().unwrap()
}

/// Starts a thread that waits for `x` without a deadline. Its result is the error that ended the
/// wait, and the time at which the wait ended.
fn gives_up(client: &Client, clock: &ManualClock) -> thread::JoinHandle<(Error, Moment)> {
    let (lock, queued) = (
        client.mutex("x").unwrap(),
        client.queue_length("x").unwrap(),
    );
    let clock = clock.clone();
    let waiter = thread::spawn(move || (lock.lock().unwrap_err(), clock.now()));
    eventually("the waiter queues", || {
        client.queue_length("x").unwrap() > queued
    });
    waiter
}

/// Advances by small steps, while the waiters and the client's threads sleep, until the waiters are
/// done.
fn until_done<T>(client: &Client, clock: &ManualClock, waiters: &[thread::JoinHandle<T>]) {
    let left = || waiters.iter().filter(|it| !it.is_finished()).count();
    while left() > 0 {
        let threads = || left() + client.0.threads();
        eventually("all threads sleep or are done", || {
            threads() <= sleeping(clock)
        });
        clock.jump(SECOND / 100);
    }
}

#[test]
fn waiters_give_up_one_outage_limit_after_the_outage_began() {
    let (store, clock) = Recorded::new();
    let client = with_outage_limit(&store);
    let (gate, start) = (store.gate.lock(), clock.now());
    store.fail_next("acquire", Fault::Unanswered);
    store.cut("acquire", Fault::TimedOut(SECOND));
    let waiters: Vec<_> = (0..12).map(|_| gives_up(&client, &clock)).collect();
    eventually("the head has asked", || store.count("acquire") == 1);
    parked(&clock, 11);
    clock.jump(SECOND);
    drop(gate);
    until_done(&client, &clock, &waiters);
    for waiter in waiters {
        let (error, ended) = waiter.join().unwrap();
        assert!(
            error.is_unavailable() && error.to_string().contains("on purpose"),
            "{error}"
        );
        let after = ended.since(start);
        assert!(after >= 3 * SECOND && after < SECOND * 41 / 10, "{after:?}");
    }
}

/// Several locks as one, acquired without a deadline, wait in this way for each lock: with a
/// deadline of its own, but for no longer than the outage limit during an outage.
#[test]
fn share_of_a_wait_without_an_end_gives_up_at_the_outage_limit() {
    let (store, clock) = Recorded::new();
    let client = with_outage_limit(&store);
    store.cut("acquire", Fault::NotSent);
    let options = LockOptions {
        is_share: true,
        ..LockOptions::new()
    };
    let (lock, start, ended) = (client.owned_mutex("x").unwrap(), clock.now(), clock.clone());
    let share = thread::spawn(move || {
        let refused = lock.try_lock_for_with(60 * SECOND, &options);
        (refused.unwrap_err(), ended.now())
    });
    let share = [share];
    until_done(&client, &clock, &share);
    let [share] = share.map(|share| share.join().unwrap());
    let after = share.1.since(start);
    assert!(
        share.0.is_unavailable() && after < SECOND * 41 / 10,
        "{share:?}"
    );
}

#[test]
fn waiter_that_starts_in_an_outage_gets_the_full_limit() {
    let (store, clock) = Recorded::new();
    let client = with_outage_limit(&store);
    let (gate, start) = (store.gate.lock(), clock.now());
    store.fail_next("acquire", Fault::Unanswered);
    store.cut("acquire", Fault::NotSent);
    let first = gives_up(&client, &clock);
    eventually("the head has asked", || store.count("acquire") == 1);
    clock.jump(2 * SECOND);
    let later = gives_up(&client, &clock);
    drop(gate);
    let waiters = [first, later];
    until_done(&client, &clock, &waiters);
    let ended = waiters.map(|it| it.join().unwrap().1.since(start));
    assert!(
        ended[0] >= 3 * SECOND && ended[0] < SECOND * 31 / 10,
        "{ended:?}"
    );
    assert!(
        ended[1] >= 5 * SECOND && ended[1] < SECOND * 51 / 10,
        "{ended:?}"
    );
}

#[test]
fn waiters_behind_an_unanswered_request_are_not_busy() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let gate = store.gate.lock();
    store.cut("acquire", Fault::Unanswered);
    let waiters: Vec<_> = (0..8)
        .map(|_| waiter_for(&client, SECOND * 3 / 2))
        .collect();
    eventually("the head has asked", || store.count("acquire") == 1);
    parked(&clock, 7);
    clock.jump(SECOND * 3 / 2);
    let answered = || waiters.iter().filter(|it| it.is_finished()).count();
    eventually("all threads sleep or are done", || {
        sleeping(&clock) + answered() >= 7
    });
    assert_eq!(
        answered(),
        0,
        "the store's answer may come within two seconds"
    );
    drop(gate);
    for waiter in waiters {
        assert!(is_done(waiter).unwrap_err().is_unavailable());
    }
}

#[test]
fn waiters_behind_a_request_share_its_busy_answer() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let _held = holder.mutex("x").unwrap().lock().unwrap();
    let gate = store.gate.lock();
    store.fail_next("acquire", Fault::Hangs);
    let waiters: Vec<_> = (0..8)
        .map(|_| waiter_for(&client, SECOND * 3 / 2))
        .collect();
    eventually("the head has asked", || store.count("acquire") == 2);
    parked(&clock, 8); // seven waiters, and the holder's timer
    clock.jump(SECOND * 3 / 2);
    let answered = || waiters.iter().filter(|it| it.is_finished()).count();
    eventually("all threads sleep or are done", || {
        sleeping(&clock) + answered() >= 8
    });
    drop(gate);
    for waiter in waiters {
        assert!(!is_done(waiter).unwrap());
    }
    assert_eq!(
        store.count("acquire"),
        2,
        "only the holder and the head ask"
    );
}

#[test]
fn waiters_behind_a_request_wait_for_its_timeout_at_most() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let gate = store.gate.lock();
    store.cut("acquire", Fault::Unanswered);
    let head = waiter(&client, LockOptions::new());
    eventually("the head has asked", || store.count("acquire") == 1);
    let follower = waiter_for(&client, SECOND * 3 / 2);
    parked(&clock, 1);
    clock.jump(SECOND * 3 / 2);
    eventually("the waiter sleeps or is done", || {
        sleeping(&clock) == 1 || follower.is_finished()
    });
    clock.jump(SECOND / 2);
    let error = is_done(follower).expect_err("the state of the lock is unknown");
    assert!(
        error.is_unavailable() && error.to_string().contains("has not answered"),
        "{error}"
    );
    store.mend();
    drop(gate);
    advance_until_done(&clock, 0, &head);
    assert!(head.join().unwrap().unwrap());
}

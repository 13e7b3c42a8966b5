//! Waiting for a lock: queue, wake-ups, deadlines, outages and interrupts.

use super::*;

/// A thread that waits for `x` of this client, and says whether it got it.
fn waiter(client: &Client, options: LockOptions) -> thread::JoinHandle<Result<bool, Error>> {
    let (lock, queued) = (client.mutex("x").unwrap(), client.queue_length("x").unwrap());
    let waiter = thread::spawn(move || lock.acquire(&options).map(|guard| guard.is_some()));
    eventually("it waits", || client.queue_length("x").unwrap() > queued || waiter.is_finished());
    waiter
}

fn is_done<T>(waiter: thread::JoinHandle<T>) -> T {
    eventually("it is done", || waiter.is_finished());
    waiter.join().unwrap()
}

/// The same where the lock is held by another client: it has looked, watched, looked again, and
/// sleeps.
fn sleeper(
    store: &Recorded,
    client: &Client,
    clock: &ManualClock,
    options: LockOptions,
) -> thread::JoinHandle<Result<bool, Error>> {
    let waiter = waiter(client, options);
    eventually("it looks again after the watch", || store.count("acquire") == 3);
    parked(clock, 2);
    waiter
}

#[test]
fn a_release_between_the_look_and_the_watch_is_not_missed() {
    let (store, _clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let held = holder.mutex("x").unwrap().lock().unwrap();
    let gate = store.gate.lock();
    store.fail_next("watch", Fault::Hangs);
    let waiter = waiter(&client, LockOptions::new());
    eventually("it registers", || store.count("watch") == 1);
    held.unlock().unwrap();
    drop(gate);
    assert!(is_done(waiter).unwrap(), "it looked again before it slept");
}

#[test]
fn a_release_wakes_the_waiter_of_another_client_at_once() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let held = holder.mutex("x").unwrap().lock().unwrap();
    let waiter = sleeper(&store, &client, &clock, LockOptions::new());
    held.unlock().unwrap();
    assert!(is_done(waiter).unwrap());
    assert_eq!((store.count("acquire"), store.watches()), (4, 0), "no thread queues: no watch");
}

#[test]
fn a_head_that_gives_up_leaves_its_turn_and_the_watch_to_the_next() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let held = holder.mutex("x").unwrap().lock().unwrap();
    let first = waiter(&client, LockOptions::new().wait(SECOND / 2));
    eventually("it looks again after the watch", || store.count("acquire") == 3);
    let second = waiter(&client, LockOptions::new());
    parked(&clock, 3);
    clock.advance(SECOND / 2);
    assert!(!is_done(first).unwrap(), "it was busy until its deadline");
    eventually("one last look of the first, and one of the next", || store.count("acquire") == 5);
    assert_eq!((store.count("watch"), store.watches()), (1, 1));
    held.unlock().unwrap();
    assert!(is_done(second).unwrap());
}

#[test]
fn a_wait_ends_at_its_deadline_in_the_store_and_in_the_local_queue() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let _held = holder.mutex("x").unwrap().lock().unwrap();
    let asks = waiter(&client, LockOptions::new().wait(SECOND / 2));
    eventually("it looks again after the watch", || store.count("acquire") == 3);
    let queues = waiter(&client, LockOptions::new().wait(SECOND / 2));
    parked(&clock, 3);
    clock.advance(SECOND / 2 - SECOND / 100);
    parked(&clock, 3);
    assert!(!asks.is_finished() && !queues.is_finished());
    clock.advance(SECOND / 100);
    assert!(!is_done(asks).unwrap() && !is_done(queues).unwrap());
    assert_eq!(client.queue_length("x").unwrap(), 0);
}

#[test]
fn a_wait_behind_another_thread_of_the_client_ends_at_its_deadline() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let _held = client.mutex("x").unwrap().lock().unwrap();
    let waiter = waiter(&client, LockOptions::new().wait(SECOND / 2));
    parked(&clock, 2);
    clock.advance(SECOND / 2);
    assert!(!is_done(waiter).unwrap());
    assert_eq!(store.count("acquire"), 1);
}

#[test]
fn a_lock_that_is_freed_at_the_deadline_is_taken() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let held = holder.mutex("x").unwrap().lock().unwrap();
    let waiter = sleeper(&store, &client, &clock, LockOptions::new().wait(SECOND / 2));
    store.store.lose(held.name()); // and no client is told
    clock.advance(SECOND / 2);
    assert!(is_done(waiter).unwrap());
}

#[test]
fn a_waiter_sleeps_no_longer_than_the_lease_that_is_in_its_way() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let fixed = LockOptions::new().lease(5 * SECOND);
    let held = holder.mutex("x").unwrap().lock_with(&fixed).unwrap();
    let waiter = sleeper(&store, &client, &clock, LockOptions::new());
    clock.advance(5 * SECOND);
    assert!(is_done(waiter).unwrap(), "it was not told that the lease was over");
    assert!(held.unlock().unwrap_err().is_lost());
}

#[test]
fn a_waiter_looks_again_within_a_lease_of_its_own_however_long_the_holders_is() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let fixed = LockOptions::new().lease(60 * 60 * SECOND);
    let held = holder.mutex("x").unwrap().lock_with(&fixed).unwrap();
    let waiter = sleeper(&store, &client, &clock, LockOptions::new());
    store.store.lose(held.name()); // and no client is told
    clock.advance(30 * SECOND);
    assert!(is_done(waiter).unwrap());
}

#[test]
fn an_answer_ends_an_outage() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let held =
        holder.mutex("x").unwrap().lock_with(&LockOptions::new().lease(3600 * SECOND)).unwrap();
    store.cut("acquire", Fault::NotSent);
    let waiter = waiter(&client, LockOptions::new());
    let pass = |time: Duration| {
        for _ in 0..time.as_millis() / 50 {
            eventually("it sleeps, or is done", || waiter.is_finished() || sleeping(&clock) >= 2);
            clock.advance(SECOND / 20);
        }
    };
    pass(20 * SECOND);
    store.mend();
    eventually("it is told that the lock is busy", || {
        if sleeping(&clock) >= 2 {
            clock.advance(SECOND / 20);
        }
        store.watches() == 1
    });
    eventually("it has looked again, and sleeps for a lease", || {
        // The timer looks at what is held every 10 s; the waiter sleeps for the lease of 30 s.
        let later = clock.now() + 11 * SECOND;
        clock.sleepers().iter().filter(|until| **until > later).count() == 1
    });
    store.cut("acquire", Fault::NotSent);
    pass(45 * SECOND); // a sleep of at most one lease, and not all of the outage limit
    assert!(!waiter.is_finished(), "two outages, each shorter than the limit");
    store.mend();
    held.unlock().unwrap();
    advance_until_done(&clock, 1, &waiter);
    assert!(waiter.join().unwrap().unwrap());
}

#[test]
fn an_outage_is_reported_at_the_deadline_and_not_later() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    store.cut("acquire", Fault::NotSent);
    let start = clock.now();
    let waiter = waiter(&client, LockOptions::new().wait(3 * SECOND));
    while clock.now().since(start) < 3 * SECOND {
        eventually("it sleeps", || sleeping(&clock) == 1);
        assert!(!waiter.is_finished());
        clock.advance(SECOND / 100);
    }
    assert!(is_done(waiter).unwrap_err().is_unavailable());
}

#[test]
fn a_try_that_timed_out_is_not_sent_again() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    store.fail_next("acquire", Fault::TimedOut(2 * SECOND));
    assert!(client.mutex("x").unwrap().try_lock().unwrap_err().is_unavailable());
    assert_eq!(store.count("acquire"), 1, "it may take one time-out, not two");
}

#[test]
fn no_owner_asks_in_two_waits() {
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
    eventually("it looks again after the watch", || store.count("acquire") == 3);
    held.verify().unwrap();
    held.extend(100 * SECOND).unwrap();
    held.unlock().unwrap();
    assert!(is_done(waiter).unwrap());
    for kind in ["acquire", "watch", "inspect", "renew", "release"] {
        assert_eq!(store.time_given(kind), 2 * SECOND, "{kind}");
    }
    client.mutex("y").unwrap().lock().unwrap().unlock().unwrap();
    assert_eq!(store.time_given("release"), SECOND, "the other half is for a repetition");
}

#[test]
fn a_renewal_of_a_short_lease_is_given_a_third_of_it() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let short = LockOptions::new().watched(SECOND * 3 / 10);
    let guard = client.mutex("x").unwrap().lock_with(&short).unwrap();
    advance(&client, &clock, SECOND / 5);
    assert_eq!(store.time_given("renew"), SECOND / 10, "there is time to try again");
    guard.unlock().unwrap();
}

#[test]
fn a_renewal_of_a_long_lease_is_given_no_longer_than_the_short_ones_can_wait_for() {
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
    assert_eq!(extend(60), SECOND / 10, "the short one is due any moment");
    short.unlock().unwrap();
    advance(&client, &clock, SECOND / 2);
    assert_eq!(extend(120), 2 * SECOND, "no short lease is in use any more");
}

#[test]
fn a_fired_interrupt_refuses_also_a_nested_hold() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    let interrupt = Interrupt::new();
    let held = lock.lock_interruptibly(&interrupt).unwrap();
    interrupt.fire();
    assert!(lock.lock_interruptibly(&interrupt).unwrap_err().is_interrupted());
    let tries = LockOptions::new().interrupt(&interrupt);
    assert!(lock.try_lock_with(&tries).unwrap_err().is_interrupted());
    assert_eq!((lock.hold_count(), store.count("acquire")), (1, 1));
    held.unlock().unwrap();
}

#[test]
fn a_lock_that_is_lost_to_the_store_goes_to_the_next_in_the_local_queue() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let held = client.mutex("x").unwrap().lock().unwrap();
    let waiter = waiter(&client, LockOptions::new());
    store.store.lose(held.name());
    assert!(held.verify().unwrap_err().is_lost());
    assert!(is_done(waiter).unwrap(), "the clock stood still");
}

#[test]
fn a_try_does_not_overtake_those_who_wait() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let held = holder.mutex("x").unwrap().lock().unwrap();
    let waiter = sleeper(&store, &client, &clock, LockOptions::new());
    store.store.lose(held.name()); // free, and the waiter does not know yet
    assert!(client.mutex("x").unwrap().try_lock().unwrap().is_none());
    clock.advance(30 * SECOND);
    assert!(is_done(waiter).unwrap());
}

#[test]
fn contention_is_told_once_for_each_wait_and_for_each_try() {
    let (store, clock) = Recorded::new();
    let holder = store.client();
    let (client, events) = store.client_with_events();
    let contended = || events.lock().iter().filter(|name| *name == "Contended").count();
    let held = holder.mutex("x").unwrap().lock().unwrap();
    let waiter = sleeper(&store, &client, &clock, LockOptions::new());
    assert!(client.mutex("x").unwrap().try_lock().unwrap().is_none());
    held.unlock().unwrap();
    assert!(is_done(waiter).unwrap());
    eventually("all is told", || events.lock().last().is_some_and(|name| name == "Released"));
    assert_eq!(contended(), 2);
}

/// A client that gives its commands a second, and puts up with an outage of three.
fn with_outage_limit(store: &Recorded) -> Client {
    let configure =
        |config: crate::Config| config.with_command_timeout(SECOND).with_outage_limit(3 * SECOND);
    store.builder().configure(configure).connect().unwrap()
}

/// A thread that waits for `x` without an end, and says when it gave up, and why.
fn gives_up(client: &Client, clock: &ManualClock) -> thread::JoinHandle<(Error, Moment)> {
    let (lock, queued) = (client.mutex("x").unwrap(), client.queue_length("x").unwrap());
    let clock = clock.clone();
    let waiter = thread::spawn(move || (lock.lock().unwrap_err(), clock.now()));
    eventually("it waits", || client.queue_length("x").unwrap() > queued);
    waiter
}

/// Advances by small steps until these are done, each when they and the client's own threads sleep.
fn until_done<T>(client: &Client, clock: &ManualClock, waiters: &[thread::JoinHandle<T>]) {
    let left = || waiters.iter().filter(|it| !it.is_finished()).count();
    while left() > 0 {
        let threads = || left() + client.0.threads();
        eventually("they sleep, or are done", || threads() <= sleeping(clock));
        clock.advance(SECOND / 100);
    }
}

#[test]
fn all_waiters_give_up_an_outage_limit_after_it_began() {
    let (store, clock) = Recorded::new();
    let client = with_outage_limit(&store);
    let (gate, start) = (store.gate.lock(), clock.now());
    store.fail_next("acquire", Fault::Unanswered);
    store.cut("acquire", Fault::TimedOut(SECOND));
    let waiters: Vec<_> = (0..12).map(|_| gives_up(&client, &clock)).collect();
    eventually("the first has asked", || store.count("acquire") == 1);
    parked(&clock, 11);
    clock.advance(SECOND);
    drop(gate);
    until_done(&client, &clock, &waiters);
    for waiter in waiters {
        let (error, ended) = waiter.join().unwrap();
        assert!(error.is_unavailable() && error.to_string().contains("on purpose"), "{error}");
        let after = ended.since(start);
        assert!(after >= 3 * SECOND && after < SECOND * 41 / 10, "{after:?}");
    }
}

#[test]
fn waiter_that_comes_in_an_outage_has_the_whole_limit() {
    let (store, clock) = Recorded::new();
    let client = with_outage_limit(&store);
    let (gate, start) = (store.gate.lock(), clock.now());
    store.fail_next("acquire", Fault::Unanswered);
    store.cut("acquire", Fault::NotSent);
    let first = gives_up(&client, &clock);
    eventually("the first has asked", || store.count("acquire") == 1);
    clock.advance(2 * SECOND);
    let later = gives_up(&client, &clock);
    drop(gate);
    let waiters = [first, later];
    until_done(&client, &clock, &waiters);
    let ended = waiters.map(|it| it.join().unwrap().1.since(start));
    assert!(ended[0] >= 3 * SECOND && ended[0] < SECOND * 31 / 10, "{ended:?}");
    assert!(ended[1] >= 5 * SECOND && ended[1] < SECOND * 51 / 10, "{ended:?}");
}

#[test]
fn waiters_behind_an_unanswered_request_are_not_told_busy() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let gate = store.gate.lock();
    store.cut("acquire", Fault::Unanswered);
    let wait = LockOptions::new().wait(SECOND * 3 / 2);
    let waiters: Vec<_> = (0..8).map(|_| waiter(&client, wait.clone())).collect();
    eventually("the first has asked", || store.count("acquire") == 1);
    parked(&clock, 7);
    clock.advance(SECOND * 3 / 2);
    let answered = || waiters.iter().filter(|it| it.is_finished()).count();
    eventually("they sleep, or are done", || sleeping(&clock) + answered() >= 7);
    assert_eq!(answered(), 0, "the store's answer may come within two seconds");
    drop(gate);
    for waiter in waiters {
        assert!(is_done(waiter).unwrap_err().is_unavailable());
    }
}

#[test]
fn waiters_behind_a_request_are_told_busy_if_it_was() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let _held = holder.mutex("x").unwrap().lock().unwrap();
    let gate = store.gate.lock();
    store.fail_next("acquire", Fault::Hangs);
    let wait = LockOptions::new().wait(SECOND * 3 / 2);
    let waiters: Vec<_> = (0..8).map(|_| waiter(&client, wait.clone())).collect();
    eventually("the first has asked", || store.count("acquire") == 2);
    parked(&clock, 8); // the holder's timer, too
    clock.advance(SECOND * 3 / 2);
    let answered = || waiters.iter().filter(|it| it.is_finished()).count();
    eventually("they sleep, or are done", || sleeping(&clock) + answered() >= 8);
    drop(gate);
    for waiter in waiters {
        assert!(!is_done(waiter).unwrap());
    }
    assert_eq!(store.count("acquire"), 2, "the holder, and the head");
}

#[test]
fn waiters_behind_a_request_wait_for_its_timeout_at_most() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let gate = store.gate.lock();
    store.cut("acquire", Fault::Unanswered);
    let head = waiter(&client, LockOptions::new());
    eventually("it has asked", || store.count("acquire") == 1);
    let follower = waiter(&client, LockOptions::new().wait(SECOND * 3 / 2));
    parked(&clock, 1);
    clock.advance(SECOND * 3 / 2);
    eventually("it sleeps, or is done", || sleeping(&clock) == 1 || follower.is_finished());
    clock.advance(SECOND / 2);
    let error = is_done(follower).expect_err("nothing is known of the lock");
    assert!(error.is_unavailable() && error.to_string().contains("has not answered"), "{error}");
    store.mend();
    drop(gate);
    advance_until_done(&clock, 0, &head);
    assert!(head.join().unwrap().unwrap());
}

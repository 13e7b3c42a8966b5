//! Hand-off: the order of the local waiters, the number of requests, and the time at which the lock
//! returns to the store.

use super::*;
use crate::FencingToken;

pub(super) const BUDGET: Duration = crate::Config::DEFAULT_HAND_OFF;

/// Makes a client that holds the lock with reserved tokens, because a second thread waited when the
/// lock was granted.
pub(super) fn held(store: &Recorded) -> (Client, crate::OwnedGuard) {
    held_after(store, || {})
}

/// Makes a client as [`held`] does. Calls `then` just before the other client releases the lock.
fn held_after(store: &Recorded, then: impl FnOnce()) -> (Client, crate::OwnedGuard) {
    let (client, other) = (store.client(), store.client());
    let (lock, busy) = (
        client.owned_mutex("x").unwrap(),
        other.mutex("x").unwrap().lock().unwrap(),
    );
    let first = {
        let lock = lock.clone();
        thread::spawn(move || lock.lock().unwrap())
    };
    head_sleeps(store);
    // While this waiter queues, the head's attempt reserves tokens. The waiter is interrupted after
    // the grant.
    let interrupt = Interrupt::new();
    let follower = waits(&client, LockOptions::new().interrupt(&interrupt));
    then();
    busy.unlock().unwrap();
    let guard = first.join().unwrap();
    interrupt.fire();
    assert!(follower.join().unwrap().unwrap_err().is_interrupted());
    (client, guard)
}

/// Waits until the head of the queue sleeps until the end of another client's lease. Waiting for
/// the head's watch is not enough: the head sends one more attempt after the watch, and that
/// attempt might be granted with too few tokens.
fn head_sleeps(store: &Recorded) {
    let long = || {
        store
            .clock
            .sleepers()
            .iter()
            .any(|until| *until > store.clock.now() + 20 * SECOND)
    };
    eventually("the head sleeps", || store.watches() == 1 && long());
}

/// Starts a thread that queues for the lock. The thread's result is its guard.
pub(super) fn waits(
    client: &Client,
    options: LockOptions,
) -> thread::JoinHandle<Result<Option<crate::OwnedGuard>, Error>> {
    waits_as("", client, None, options)
}

/// Starts a thread as [`waits`] does, which waits for at most `wait`.
pub(super) fn waits_for(
    client: &Client,
    wait: Duration,
) -> thread::JoinHandle<Result<Option<crate::OwnedGuard>, Error>> {
    waits_as("", client, Some(wait), LockOptions::new())
}

/// Starts a thread as [`waits`] does, with this name and, if `wait` is given, at most this wait.
fn waits_as(
    name: &str,
    client: &Client,
    wait: Option<Duration>,
    options: LockOptions,
) -> thread::JoinHandle<Result<Option<crate::OwnedGuard>, Error>> {
    let (lock, queued) = (
        client.owned_mutex("x").unwrap(),
        client.queue_length("x").unwrap(),
    );
    let thread = thread::Builder::new().name(name.to_owned());
    let waiter = thread.spawn(move || lock.acquire(wait, &options)).unwrap();
    eventually("the waiter queues", || {
        client.queue_length("x").unwrap() > queued
    });
    waiter
}

fn token(guard: &crate::OwnedGuard) -> FencingToken {
    guard.fencing_token().unwrap()
}

/// Returns the numbers of attempts and of releases that were sent so far.
fn asked(store: &Recorded) -> (usize, usize) {
    (
        store.count("acquire"),
        store.count("release") + store.count("close"),
    )
}

#[test]
fn thousand_waiters_are_served_in_order_on_two_grants() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let order = serve(&client, 1_000, |_| LockOptions::new());
    assert_eq!(order, (0..1_000).collect::<Vec<_>>());
    // No thread waited at the first grant, so no tokens were reserved for a hand-off. The lock was
    // released, and granted once more.
    assert_eq!(asked(&store), (2, 2));
}

#[test]
fn hand_off_gives_a_new_token_and_sends_no_request() {
    let (store, _clock) = Recorded::new();
    let (client, guard) = held(&store);
    let (before, first, losses) = (asked(&store), token(&guard), guard.losses());
    let next = waits(&client, LockOptions::new());
    guard.unlock().unwrap();
    let next = next.join().unwrap().unwrap().unwrap();
    assert_eq!(asked(&store), before);
    assert_eq!(token(&next).get(), first.get() + 1);
    assert!(next.is_valid() && next.state() == GuardState::Held);
    assert!(losses.recv().is_err(), "the channel closes without a loss");
    next.unlock().unwrap();
    assert_eq!(asked(&store), (before.0, before.1 + 1));
    assert!(!client.mutex("x").unwrap().is_locked().unwrap());
}

#[test]
fn nested_hold_of_the_usual_lease_prolongs_a_shorter_one_that_was_handed_on() {
    let (store, _clock) = Recorded::new();
    let (client, other) = (store.client(), store.client());
    let busy = other.mutex("x").unwrap().lock().unwrap();
    let lock = client.mutex("x").unwrap();
    let takes = |then: fn(&crate::Mutex)| {
        let lock = lock.clone();
        thread::spawn(move || {
            let guard = lock
                .lock_with(&LockOptions::new().watched(6 * SECOND))
                .unwrap();
            then(&lock);
            guard.unlock().unwrap();
        })
    };
    let first = takes(|_| ());
    head_sleeps(&store);
    let second = takes(|lock| {
        let nested = lock.lock().unwrap().remaining();
        assert!(nested > 29 * SECOND, "{nested:?}");
    });
    eventually("the second queues", || {
        client.queue_length("x").unwrap() == 2
    });
    let before = asked(&store);
    busy.unlock().unwrap();
    first.join().unwrap();
    second.join().unwrap();
    assert_eq!(
        asked(&store),
        (before.0 + 1, before.1 + 2),
        "it was handed on"
    );
}

#[test]
fn unused_tokens_are_given_back() {
    let (store, _clock) = Recorded::new();
    let (client, guard) = held(&store);
    let next = waits(&client, LockOptions::new());
    guard.unlock().unwrap();
    let last = next.join().unwrap().unwrap().unwrap();
    let used = token(&last);
    last.unlock().unwrap();
    // A new token is the time in microseconds or one more than the counter, whichever is larger.
    // The clock stands still, so it is the latter.
    let fresh = client.owned_mutex("x").unwrap().lock().unwrap();
    assert_eq!(token(&fresh).get(), used.get() + 1);
}

#[test]
fn lock_returns_to_the_store_after_the_hand_off_time() {
    let (store, clock) = Recorded::new();
    let (client, guard) = held(&store);
    let next = waits(&client, LockOptions::new());
    let before = asked(&store);
    clock.jump(BUDGET);
    guard.unlock().unwrap();
    next.join().unwrap().unwrap().unwrap().unlock().unwrap(); // the clock stands still
    assert_eq!(
        asked(&store),
        (before.0 + 1, before.1 + 2),
        "the lock went through the store"
    );
}

#[test]
fn hand_off_time_restarts_after_another_client_held_the_lock() {
    let (store, clock) = Recorded::new();
    let (client, guard) = held(&store);
    let unequal = || LockOptions::new().watched(60 * SECOND);
    let next = waits(&client, unequal());
    let last = waits(&client, unequal());
    // The next waiter sends an attempt, but another client acquires the lock before the attempt is
    // applied.
    store.fail_next("acquire", Fault::Hangs);
    let gate = store.gate.lock();
    let before = store.count("acquire");
    guard.unlock().unwrap();
    eventually("the next waiter asks", || {
        store.count("acquire") == before + 1
    });
    let other = store
        .client()
        .owned_mutex("x")
        .unwrap()
        .try_lock()
        .unwrap()
        .unwrap();
    drop(gate);
    parked(&clock, 4); // both waiters, and a timer of each client
    clock.jump(BUDGET);
    other.unlock().unwrap();
    let next = next.join().unwrap().unwrap().unwrap();
    let before = asked(&store);
    next.unlock().unwrap();
    drop(last.join().unwrap().unwrap().unwrap());
    assert_eq!(
        asked(&store),
        (before.0, before.1 + 1),
        "the lock was handed on"
    );
}

#[test]
fn repeated_attempt_requests_the_same_number_of_tokens() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let earlier = client.owned_mutex("x").unwrap().lock().unwrap();
    let before = token(&earlier);
    earlier.unlock().unwrap();
    // The attempt is sent twice and granted, both answers are lost, and a second thread queues.
    store.fail_next("acquire", Fault::Swallowed);
    store.fail_next("acquire", Fault::Swallowed);
    let first = waits(&client, LockOptions::new());
    eventually("the attempt is unanswered", || store.count("acquire") == 3);
    let second = waits(&client, LockOptions::new());
    advance_until_done(&clock, 2, &first);
    let first = first.join().unwrap().unwrap().unwrap();
    assert_eq!(token(&first).get(), before.get() + 1);
    first.unlock().unwrap();
    advance_until_done(&clock, 1, &second);
    let second = second.join().unwrap().unwrap().unwrap();
    assert!(token(&second).get() > before.get() + 1);
}

#[test]
fn hand_off_time_restarts_when_the_last_waiter_gives_up() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.owned_mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    let interrupt = Interrupt::new();
    let gives_up = waits(&client, LockOptions::new().interrupt(&interrupt));
    // The lock returns to the store; the waiter fails to acquire it twice and gives up.
    store.fail_next("acquire", Fault::NotSent);
    store.fail_next("acquire", Fault::NotSent);
    guard.unlock().unwrap();
    eventually("both attempts fail", || store.count("acquire") == 3);
    interrupt.fire();
    assert!(gives_up.join().unwrap().unwrap_err().is_interrupted());
    clock.jump(60 * SECOND);
    // No thread of this client held the lock in between, so the time for hand-offs starts anew.
    let guard = lock.lock().unwrap();
    let next = waits(&client, LockOptions::new());
    guard.unlock().unwrap();
    eventually("the lock is handed to the waiter", || next.is_finished());
    drop(next.join().unwrap().unwrap().unwrap());
}

#[test]
fn waiter_with_a_short_deadline_is_served_by_the_store() {
    let (store, clock) = Recorded::new();
    let (client, guard) = held(&store);
    let next = waits_for(&client, BUDGET + Duration::from_micros(50));
    clock.jump(BUDGET);
    guard.unlock().unwrap();
    assert!(next.join().unwrap().unwrap().is_some(), "the lock was free");
}

#[test]
fn waiter_with_another_lease_is_served_by_the_store() {
    let unequal = [
        LockOptions::new().lease(60 * SECOND),
        LockOptions::new().watched(60 * SECOND),
        LockOptions::new().watched_at_most(30 * SECOND, 5),
    ];
    for options in unequal {
        let (store, _clock) = Recorded::new();
        let (client, guard) = held(&store);
        let next = waits(&client, options.clone());
        let before = asked(&store);
        guard.unlock().unwrap();
        let next = next.join().unwrap().unwrap().unwrap();
        assert_eq!(asked(&store), (before.0 + 1, before.1 + 1), "{options:?}");
        drop(next);
    }
}

#[test]
fn acquisition_with_unknown_outcome_is_not_handed_on() {
    // An unconfirmed extension.
    let (store, _clock) = Recorded::new();
    let (client, guard) = held(&store);
    store.fail_next("renew", Fault::Swallowed);
    assert!(guard.extend(40 * SECOND).is_err());
    assert_goes_back(&store, &client, guard);
    // An attempt without an answer: its owner must be closed with a tombstone.
    let (store, _clock) = Recorded::new();
    let (client, guard) = held_after(&store, || store.fail_next("acquire", Fault::Swallowed));
    assert_goes_back(&store, &client, guard);
    assert!(store.count("close") > 0);
}

#[test]
fn unconfirmed_short_extension_prevents_the_hand_off() {
    let (store, clock) = Recorded::new();
    let configure = |config: crate::Config| config.with_hand_off(SECOND);
    let client = store.builder().configure(configure).connect().unwrap();
    let other = store.client().mutex("x").unwrap().lock().unwrap();
    let first = waits(&client, LockOptions::new());
    head_sleeps(&store);
    let next = waits(&client, LockOptions::new());
    other.unlock().unwrap();
    let guard = first.join().unwrap().unwrap().unwrap();
    clock.jump(SECOND * 9 / 10);
    store.fail_next("renew", Fault::Swallowed);
    assert!(guard.extend(29 * SECOND).unwrap_err().is_unavailable());
    let before = asked(&store);
    guard.unlock().unwrap();
    drop(next.join().unwrap().unwrap().unwrap());
    assert_eq!(
        asked(&store),
        (before.0 + 1, before.1 + 2),
        "the lock went through the store"
    );
}

#[test]
fn tokens_of_a_repeated_attempt_are_not_given_back() {
    let (store, _clock) = Recorded::new();
    let (client, guard) = held_after(&store, || store.fail_next("acquire", Fault::Swallowed));
    let used = token(&guard);
    guard.unlock().unwrap();
    // Between the first request and its repetition, a lock with the same counter may have got
    // tokens of that range, so none are given back: the next token follows all reserved ones.
    let next = client.owned_mutex("x").unwrap().lock().unwrap();
    assert_eq!(token(&next).get(), used.get() + 2_001);
}

fn assert_goes_back(store: &Recorded, client: &Client, guard: crate::OwnedGuard) {
    let next = waits(client, LockOptions::new());
    let before = asked(store);
    guard.unlock().unwrap();
    let stand_back = || store.clock.jump(SECOND / 100);
    eventually("the lock went through the store", || {
        stand_back();
        asked(store) >= (before.0 + 1, before.1 + 1)
    });
    drop(next.join().unwrap().unwrap().unwrap());
}

#[test]
fn hand_off_to_an_interrupted_waiter_goes_to_the_next() {
    for _ in 0..200 {
        let (store, _clock) = Recorded::new();
        let (client, guard) = held(&store);
        let interrupt = Interrupt::new();
        let first = waits(&client, LockOptions::new().interrupt(&interrupt));
        let second = waits(&client, LockOptions::new());
        let fires = thread::spawn(move || interrupt.fire());
        guard.unlock().unwrap();
        fires.join().unwrap();
        match first.join().unwrap() {
            Ok(guard) => guard.unwrap().unlock().unwrap(),
            Err(error) => assert!(error.is_interrupted(), "{error}"),
        }
        second.join().unwrap().unwrap().unwrap().unlock().unwrap();
        assert!(!client.mutex("x").unwrap().is_locked().unwrap());
        assert_eq!(client.queue_length("x").unwrap(), 0);
    }
}

#[test]
fn hand_off_at_the_deadline_is_taken_or_passed_on() {
    for _ in 0..200 {
        let (store, clock) = Recorded::new();
        let (client, guard) = held(&store);
        let first = waits_for(&client, SECOND / 1_000);
        let second = waits(&client, LockOptions::new());
        let late = {
            let clock = clock.clone();
            thread::spawn(move || clock.jump(SECOND / 1_000))
        };
        guard.unlock().unwrap();
        late.join().unwrap();
        if let Some(guard) = first.join().unwrap().unwrap() {
            guard.unlock().unwrap();
        }
        second.join().unwrap().unwrap().unwrap().unlock().unwrap();
        assert!(!client.mutex("x").unwrap().is_locked().unwrap());
    }
}

#[test]
fn lost_lock_is_reported_for_all_holds_of_its_grant() {
    let (store, _clock) = Recorded::new();
    let (told, events) = crossbeam_channel::unbounded();
    let handler = Arc::new(move |event: &Event| told.send(event.clone()).unwrap());
    let client = store.builder().events(handler).connect().unwrap();
    let other = store.client().mutex("x").unwrap().lock().unwrap();
    let mut threads: Vec<_> = (0..4).map(|_| waits(&client, LockOptions::new())).collect();
    head_sleeps(&store);
    other.unlock().unwrap();
    let mut take = || threads.remove(0).join().unwrap().unwrap().unwrap();
    let first = take();
    let tokens = token(&first);
    first.unlock().unwrap();
    take().unlock().unwrap();
    let third = take();
    store.store.lose(&LockName::new("x").unwrap());
    third.unlock().unwrap();
    assert!(take().unlock().unwrap_err().is_lost());
    let lost = events.iter().find_map(|event| match event {
        Event::HandedOnLost {
            holds, first, last, ..
        } => Some((holds, first, last)),
        _ => None,
    });
    let last = FencingToken::new(tokens.get() + 2);
    assert_eq!(lost, Some((3, Some(tokens), Some(last))));
}

/// A manual clock on which the thread named [`LATE`] does not wake up while the mutex is locked.
#[derive(Debug)]
struct Sluggish(ManualClock, Mutex<()>);

const LATE: &str = "late";

impl Clock for Sluggish {
    fn now(&self) -> Moment {
        self.0.now()
    }

    fn wait(&self, signal: &Arc<crate::Signal>, until: Moment) -> crate::Woken {
        let woken = self.0.wait(signal, until);
        if thread::current().name() == Some(LATE) {
            drop(self.1.lock());
        }
        woken
    }
}

/// A holder with reserved tokens on a [`Sluggish`] clock, and the next waiter, which wakes up late.
struct HandoffChain {
    store: Recorded,
    clock: Arc<Sluggish>,
    client: Client,
    guard: crate::OwnedGuard,
    late: thread::JoinHandle<Result<Option<crate::OwnedGuard>, Error>>,
}

fn held_with_late_waiter() -> HandoffChain {
    let (store, clock) = Recorded::new();
    let clock = Arc::new(Sluggish(clock, Mutex::default()));
    let client = store
        .builder()
        .clock(Arc::clone(&clock) as Arc<dyn Clock>)
        .connect()
        .unwrap();
    let other = store.client().mutex("x").unwrap().lock().unwrap();
    let first = waits(&client, LockOptions::new());
    let late = waits_as(LATE, &client, None, LockOptions::new());
    head_sleeps(&store);
    other.unlock().unwrap();
    HandoffChain {
        store,
        clock,
        client,
        guard: first.join().unwrap().unwrap().unwrap(),
        late,
    }
}

#[test]
fn hand_off_lost_before_the_waiter_wakes_is_acquired_anew() {
    let HandoffChain {
        store,
        clock,
        client,
        guard,
        late,
    } = held_with_late_waiter();
    let before = (asked(&store), token(&guard));
    let gate = clock.1.lock();
    guard.unlock().unwrap();
    assert_eq!(asked(&store), before.0, "the lock was handed on");
    clock.0.jump(100 * SECOND);
    drop(gate);
    let next = late.join().unwrap().unwrap().unwrap();
    assert!(
        next.is_valid() && asked(&store).0 == before.0.0 + 1,
        "the lock comes from the store"
    );
    assert!(token(&next).get() > before.1.get() + 1);
    assert_eq!(client.mutex("x").unwrap().hold_count(), 0);
    next.unlock().unwrap();
    assert_eq!(client.queue_length("x").unwrap(), 0);
    assert!(!client.mutex("x").unwrap().is_locked().unwrap());
}

#[test]
fn late_waiter_of_a_lost_hand_off_queues_behind_the_head() {
    let HandoffChain {
        store,
        clock,
        client,
        guard,
        late,
    } = held_with_late_waiter();
    let next = waits(&client, LockOptions::new());
    let before = asked(&store).0;
    let (late_gate, store_gate) = (clock.1.lock(), store.gate.lock());
    guard.unlock().unwrap();
    store.fail_next("acquire", Fault::Hangs);
    clock.0.jump(100 * SECOND);
    eventually("the next waiter asks", || asked(&store).0 == before + 1);
    drop(late_gate);
    let queues = || clock.0.sleepers().contains(&(clock.now() + SECOND));
    eventually("the late waiter queues", || late.is_finished() || queues());
    assert_eq!(asked(&store).0, before + 1, "one thread of a client asks");
    drop(store_gate);
    // A waiter that contends together with the head would miss its hand-off.
    next.join().unwrap().unwrap().unwrap().unlock().unwrap();
    late.join().unwrap().unwrap().unwrap().unlock().unwrap();
    assert!(!client.mutex("x").unwrap().is_locked().unwrap());
}

#[test]
fn late_waiter_of_a_lost_hand_off_is_served_after_others() {
    let HandoffChain {
        store,
        clock,
        client,
        guard,
        late,
    } = held_with_late_waiter();
    let second = waits(&client, LockOptions::new());
    let third = waits(&client, LockOptions::new());
    let gate = clock.1.lock();
    guard.unlock().unwrap();
    clock.0.jump(100 * SECOND);
    let second = second.join().unwrap().unwrap().unwrap();
    let before = asked(&store);
    second.unlock().unwrap();
    let third = third.join().unwrap().unwrap().unwrap();
    assert_eq!(asked(&store), before, "the lock was handed on");
    drop(gate);
    third.unlock().unwrap();
    eventually("the late waiter has the lock", || late.is_finished());
    late.join().unwrap().unwrap().unwrap().unlock().unwrap();
    assert!(!client.mutex("x").unwrap().is_locked().unwrap());
}

#[test]
fn hand_off_to_an_interrupted_waiter_has_complete_events() {
    for is_lost in [false, true] {
        let (store, clock) = Recorded::new();
        let clock = Arc::new(Sluggish(clock, Mutex::default()));
        let (told, events) = crossbeam_channel::unbounded();
        let handler = Arc::new(move |event: &Event| told.send(event.clone()).unwrap());
        let builder = store.builder().clock(Arc::clone(&clock) as Arc<dyn Clock>);
        let client = builder.events(handler).connect().unwrap();
        let other = store.client().mutex("x").unwrap().lock().unwrap();
        let first = waits(&client, LockOptions::new());
        let interrupt = Interrupt::new();
        let late = waits_as(
            LATE,
            &client,
            None,
            LockOptions::new().interrupt(&interrupt),
        );
        head_sleeps(&store);
        other.unlock().unwrap();
        let guard = first.join().unwrap().unwrap().unwrap();
        let gate = clock.1.lock();
        guard.unlock().unwrap();
        if is_lost {
            clock.0.jump(100 * SECOND);
        }
        interrupt.fire();
        drop(gate);
        assert!(late.join().unwrap().unwrap_err().is_interrupted());
        drop(client);
        let told: Vec<Event> = events.iter().collect();
        let count = |which: fn(&Event) -> bool| told.iter().filter(|event| which(event)).count();
        let taken = count(|event| matches!(event, Event::Acquired { .. }));
        let ended = count(|event| matches!(event, Event::Released { .. } | Event::Lost { .. }));
        assert_eq!((taken, ended), (2, 2), "{told:#?}");
    }
}

#[test]
fn hand_off_happens_after_the_last_nested_hold_ends() {
    let (store, _clock) = Recorded::new();
    let (client, guard) = held(&store);
    drop(guard);
    let lock = client.mutex("x").unwrap();
    let outer = lock.lock().unwrap();
    let inner = lock.lock().unwrap();
    let next = waits(&client, LockOptions::new());
    outer.unlock().unwrap();
    assert!(!next.is_finished() && inner.is_valid());
    assert_eq!(client.queue_length("x").unwrap(), 1);
    inner.unlock().unwrap();
    next.join().unwrap().unwrap().unwrap().unlock().unwrap();
}

#[test]
fn without_hand_off_each_waiter_asks_the_store() {
    let (store, _clock) = Recorded::new();
    let configure = |config: crate::Config| config.with_hand_off(Duration::ZERO);
    let client = store.builder().configure(configure).connect().unwrap();
    let threads: Vec<_> = {
        let _busy = client.owned_mutex("x").unwrap().lock().unwrap();
        (0..3).map(|_| waits(&client, LockOptions::new())).collect()
    };
    for thread in threads {
        // Each waiter sends its attempt as soon as the lock is released, so the clock need not
        // advance.
        drop(thread.join().unwrap().unwrap());
    }
    assert_eq!(asked(&store), (4, 4));
}

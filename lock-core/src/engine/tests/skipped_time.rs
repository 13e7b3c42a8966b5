//! A time of day that leaps ahead of the clock, as after a virtual machine and its clocks were
//! paused: held locks are doubtful until the store has confirmed them.

use super::*;
use crate::{LockGuard, MultiLock, OwnedGuard};

/// A leap that is longer than the default lease, so that a lock with this lease may be over.
const LEAP: Duration = Duration::from_secs(60);

fn step(clock: &ManualClock, ahead: Duration) {
    clock.set_unix_time(clock.unix_time() + ahead);
}

/// Makes the next two renewals and the next two verifications hang while the gate is locked.
fn hold_back(store: &Recorded) {
    for kind in ["renew", "renew", "inspect", "inspect"] {
        store.fail_next(kind, Fault::Hangs);
    }
}

/// The names of the locks that [`kinds`] acquires.
const NAMES: [&str; 9] = [
    "watched", "fixed", "fair", "write", "read", "m-1", "m-2", "owned", "permits",
];

/// A guard of either type.
enum Guard {
    OfThread(LockGuard),
    Owned(OwnedGuard),
}

/// Evaluates `$call` with the guard of either variant as `$it`.
macro_rules! of {
    ($guard:expr, $it:ident => $call:expr) => {
        match $guard {
            Guard::OfThread($it) => $call,
            Guard::Owned($it) => $call,
        }
    };
}

impl Guard {
    fn is_valid(&self) -> bool {
        of!(self, it => it.is_valid())
    }
}

/// Acquires locks of all kinds. Returns the guard of each, with a description.
fn kinds(client: &Client) -> Vec<(&'static str, Guard)> {
    let fixed = LockOptions::new().lease(SECOND * 30);
    let lock = |name: &str| client.mutex(name).unwrap();
    let multi = MultiLock::new([lock("m-1"), lock("m-2")]).unwrap();
    let semaphore = client.semaphore("permits", 3).unwrap();
    let (thread, owned) = (Guard::OfThread, Guard::Owned);
    vec![
        ("watched mutex", thread(lock("watched").lock().unwrap())),
        (
            "mutex with a fixed lease",
            thread(lock("fixed").lock_with(&fixed).unwrap()),
        ),
        (
            "fair mutex",
            thread(client.fair_mutex("fair").unwrap().lock().unwrap()),
        ),
        (
            "writer",
            thread(client.rw_lock("write").unwrap().write().lock().unwrap()),
        ),
        (
            "reader",
            thread(client.rw_lock("read").unwrap().read().lock().unwrap()),
        ),
        ("several locks", thread(multi.lock().unwrap())),
        (
            "mutex of no thread",
            owned(client.owned_mutex("owned").unwrap().lock().unwrap()),
        ),
        ("permits", owned(semaphore.acquire_many(2).unwrap())),
    ]
}

#[test]
fn lock_of_each_kind_is_doubtful_until_the_store_has_confirmed_it() {
    let count = kinds(&Recorded::new().0.client()).len();
    for kind in 0..count {
        let (store, clock) = Recorded::new();
        let (what, guard) = kinds(&store.client()).swap_remove(kind);
        let gate = store.gate.lock();
        hold_back(&store);
        step(&clock, LEAP);
        assert!(!guard.is_valid(), "{what}");
        of!(&guard, it => {
            assert!(it.remaining().is_zero() && it.state() == GuardState::Suspended, "{what}");
            assert!(it.ensure(SECOND).unwrap_err().is_lease_too_short(), "{what}");
            assert!(it.loss().is_none(), "{what}");
        });
        drop(gate);
        eventually(what, || guard.is_valid());
        of!(guard, it => {
            eventually(what, || it.state() == GuardState::Held);
            assert!(it.remaining() > SECOND && it.loss().is_none(), "{what}");
            it.unlock().unwrap();
        });
    }
}

#[test]
fn lock_that_passed_to_another_client_is_invalid_at_the_first_look_and_lost() {
    let count = kinds(&Recorded::new().0.client()).len();
    for kind in 0..count {
        let (store, clock) = Recorded::new();
        let (what, guard) = kinds(&store.client()).swap_remove(kind);
        let losses = of!(&guard, it => it.losses());
        let gate = store.gate.lock();
        hold_back(&store);
        for name in NAMES {
            store.store.lose(&LockName::new(name).unwrap());
        }
        step(&clock, SECOND * 29);
        assert!(guard.is_valid(), "29 of 30 seconds may have passed: {what}");
        step(&clock, SECOND);
        assert!(!guard.is_valid(), "{what}");
        drop(gate);
        let loss = losses.recv_timeout(SECOND * 20).unwrap();
        assert_eq!(loss.cause(), LossCause::Gone, "{what}");
        assert!(!guard.is_valid(), "{what}");
    }
}

#[test]
fn pause_is_unseen_until_the_time_of_day_is_set_right() {
    let (store, clock) = Recorded::new();
    let guard = store.client().mutex("x").unwrap().lock().unwrap();
    store.store.lose(guard.name());
    let next = store.client().mutex("x").unwrap().lock().unwrap();
    assert!(
        guard.is_valid() && next.is_valid(),
        "the clocks have missed the pause"
    );
    step(&clock, LEAP);
    assert!(!guard.is_valid());
    eventually("the next holder is confirmed", || next.is_valid());
}

#[test]
fn shorter_leap_costs_only_what_may_have_passed() {
    let (store, clock) = Recorded::new();
    let guard = store.client().mutex("x").unwrap().lock().unwrap();
    let before = guard.remaining();
    let gate = store.gate.lock();
    hold_back(&store);
    step(&clock, SECOND * 5);
    assert!(guard.is_valid());
    assert_eq!(before - guard.remaining(), SECOND * 5);
    assert_eq!(guard.state(), GuardState::Held);
    drop(gate);
    eventually("it is confirmed", || guard.remaining() == before);
}

#[test]
fn steps_back_and_forth_lose_nothing() {
    let (store, clock) = Recorded::new();
    let (client, events) = store.client_with_events();
    let guards: Vec<_> = kinds(&client).into_iter().map(|(_, guard)| guard).collect();
    for _ in 0..50 {
        step(&clock, LEAP);
        let _valid = guards.iter().map(Guard::is_valid).collect::<Vec<_>>();
        eventually("all are confirmed", || guards.iter().all(Guard::is_valid));
        clock.set_unix_time(clock.unix_time() - LEAP);
        assert!(
            guards.iter().all(Guard::is_valid),
            "a step back is no doubt"
        );
    }
    guards
        .into_iter()
        .for_each(|guard| of!(guard, it => it.unlock().unwrap()));
    assert!(!events.lock().iter().any(|event| event == "Lost"));
}

/// The error of an unavailable store is not the answer "gone".
#[test]
fn doubtful_lock_without_a_store_is_lost_at_its_deadline() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guard = client.mutex("x").unwrap().lock().unwrap();
    for _ in 0..1_000 {
        store.fail_next("renew", Fault::NotSent);
        store.fail_next("inspect", Fault::NotSent);
    }
    step(&clock, LEAP);
    assert!(!guard.is_valid());
    eventually("the store was asked", || store.count("renew") > 0);
    assert!(guard.verify().unwrap_err().is_unavailable());
    assert!(!guard.is_valid() && guard.loss().is_none());
    eventually("its end is told", || {
        clock.jump(SECOND / 10);
        guard.loss().is_some()
    });
    assert_eq!(guard.loss().unwrap().cause(), LossCause::Expired);
    assert!(guard.unlock().unwrap_err().is_lost());
}

#[test]
fn verify_confirms_for_what_the_store_keeps_it() {
    let (store, clock) = Recorded::new();
    let options = LockOptions::new().lease(SECOND * 30);
    let guard = store
        .client()
        .mutex("x")
        .unwrap()
        .lock_with(&options)
        .unwrap();
    clock.jump(SECOND * 10);
    let gate = store.gate.lock();
    store.fail_next("inspect", Fault::Hangs);
    step(&clock, LEAP);
    assert!(!guard.is_valid());
    eventually("it is being verified", || store.count("inspect") == 1);
    assert_eq!(guard.verify().unwrap(), SECOND * 20);
    let left = guard.remaining();
    assert!(
        guard.is_valid() && left > SECOND * 19 && left <= SECOND * 20,
        "{left:?}"
    );
    drop(gate);
}

/// A renewal with a shorter lease does not confirm the rest of a longer lease: only a verification
/// can, which hangs here.
#[test]
fn longer_lease_from_before_the_leap_is_shortened_by_it() {
    let (store, clock) = Recorded::new();
    let (client, events) = store.client_with_events();
    let guard = client.mutex("x").unwrap().lock().unwrap();
    guard.extend(SECOND * 100).unwrap();
    let before = guard.remaining();
    let renewals = || {
        events
            .lock()
            .iter()
            .filter(|event| *event == "Renewed")
            .count()
    };
    eventually("the extension is told", || renewals() == 1);
    let gate = store.gate.lock();
    store.fail_next("inspect", Fault::Hangs);
    step(&clock, LEAP);
    assert_eq!(guard.remaining(), before - LEAP);
    eventually("it is renewed", || renewals() == 2);
    assert_eq!(guard.remaining(), before - LEAP);
    drop(gate);
}

/// Acquires a lock. The time of day leaps after the store has granted the lock and before its
/// answer arrives; `during` runs then.
fn lock_over_a_leap(during: impl Fn(&Recorded)) -> (Recorded, Client, Result<(), Error>) {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let fixed = LockOptions::new().lease(SECOND * 3_600);
    let held = client.mutex("held").unwrap().lock_with(&fixed).unwrap();
    let gate = store.gate.lock();
    store.fail_next("acquire", Fault::AnswerHangs);
    let outcome = thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = client.mutex("x").unwrap().lock()?;
            assert!(guard.is_valid());
            guard.unlock()
        });
        let x = LockName::new("x").unwrap();
        let is_granted = || {
            store
                .store
                .inspect(&x, Moment::NEVER)
                .unwrap()
                .holder
                .is_some()
        };
        eventually("it is granted", is_granted);
        clock.jump(Duration::from_millis(1));
        step(&clock, LEAP);
        // This check starts the verification in the background. It covers only `held`, so its one
        // request is sent before `during` makes the next request fail.
        assert!(held.is_valid());
        eventually("the background asks", || store.count("inspect") == 1);
        during(&store);
        drop(gate);
        waiter.join().unwrap()
    });
    drop(client.mutex("x").unwrap().lock().unwrap());
    (store, client, outcome)
}

#[test]
fn grant_in_doubt_is_confirmed_by_the_store() {
    let (store, _, outcome) = lock_over_a_leap(|_| {});
    outcome.unwrap();
    assert_eq!(
        store.count("inspect"),
        2,
        "the background's, and the grant's own"
    );
}

#[test]
fn grant_that_took_longer_than_its_lease_is_given_back() {
    let is_gone = |store: &Recorded| store.store.lose(&LockName::new("x").unwrap());
    let cannot_be_asked = |store: &Recorded| store.fail_next("inspect", Fault::NotSent);
    for during in [&is_gone as &dyn Fn(&Recorded), &cannot_be_asked] {
        let (_, client, outcome) = lock_over_a_leap(during);
        let error = outcome.unwrap_err();
        assert!(
            error.is_unavailable() && error.to_string().contains("60.0s"),
            "{error}"
        );
        eventually("it is free", || {
            client.mutex("x").unwrap().try_lock().unwrap().is_some()
        });
    }
}

#[test]
fn nested_hold_on_a_doubtful_lock_asks_the_store() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    let gate = store.gate.lock();
    // The first requests are the renewal and the verification in the background; the nested hold's
    // own verification follows.
    store.fail_next("renew", Fault::Hangs);
    store.fail_next("inspect", Fault::Hangs);
    step(&clock, LEAP);
    assert!(!guard.is_valid() && !lock.is_held_by_current_thread());
    eventually("it is being verified", || store.count("inspect") == 1);
    let nested = lock.lock().unwrap();
    assert_eq!(store.count("inspect"), 2);
    assert!(guard.is_valid() && nested.is_valid());
    drop(gate);
    nested.unlock().unwrap();
    // The lock is deleted before the leap: otherwise a verification in between would confirm it.
    store.store.lose(&LockName::new("x").unwrap());
    step(&clock, LEAP);
    assert!(lock.lock().unwrap_err().is_lost());
}

#[test]
fn doubtful_lock_is_handed_to_no_thread() {
    for is_doubtful in [false, true] {
        let (store, clock) = Recorded::new();
        let client = store.client();
        let lock = client.mutex("x").unwrap();
        let guard = lock.lock().unwrap();
        let queue = |count| {
            eventually("the waiter queues", || {
                client.queue_length("x").unwrap() == count
            });
        };
        thread::scope(|scope| {
            // The store reserves tokens with this grant, because the second waiter is queued.
            let first = scope.spawn(|| {
                let guard = lock.lock().unwrap();
                let gate = store.gate.lock();
                hold_back(&store);
                if is_doubtful {
                    step(&clock, LEAP);
                }
                guard.unlock().unwrap();
                drop(gate);
            });
            queue(1);
            let second = scope.spawn(|| lock.lock().unwrap().unlock().unwrap());
            queue(2);
            // No hand-off: there was no waiter at the grant, so the store reserved no tokens.
            store.store.lose(guard.name());
            assert!(guard.unlock().unwrap_err().is_lost());
            first.join().unwrap();
            second.join().unwrap();
        });
        // A release that returns reserved tokens is logged as `close`.
        let releases = store.count("release") + store.count("close");
        assert_eq!(releases, if is_doubtful { 3 } else { 2 }, "{is_doubtful}");
    }
}

#[test]
fn doubtful_leader_is_none_until_it_is_confirmed() {
    let (store, clock) = Recorded::new();
    let election = store.client().election("x").unwrap();
    election.campaign().unwrap();
    eventually("it leads", || election.is_leader());
    let term = election.term();
    let gate = store.gate.lock();
    hold_back(&store);
    step(&clock, LEAP);
    assert!(!election.is_leader() && election.term().is_none());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| election.wait_for_leadership(SECOND * 10, None));
        eventually("it waits", || !clock.sleepers().is_empty());
        drop(gate);
        eventually("it leads again", || election.is_leader());
        // The clock advances in small steps, so that the lock can be renewed in time.
        eventually("the wait ends", || {
            clock.jump(SECOND / 100);
            waiter.is_finished()
        });
        assert!(waiter.join().unwrap().unwrap());
    });
    assert_eq!(election.term(), term);
    assert!(election.term().is_some());
}

/// The timer checks a lock with a fixed lease every ten seconds and at the end of the validity. A
/// verification that shortens the validity must schedule an earlier check.
#[test]
fn fixed_lease_shortened_by_a_pause_is_lost_at_its_end() {
    let (store, clock) = Recorded::new();
    let paused = ManualClock::new();
    let client = store
        .builder()
        .clock(Arc::new(paused.clone()))
        .connect()
        .unwrap();
    let options = LockOptions::new().lease(SECOND * 30);
    let guard = client.mutex("x").unwrap().lock_with(&options).unwrap();
    let losses = guard.losses();
    let timer = || paused.sleepers().into_iter().max();
    let first = timer();
    for clock in [&clock, &paused] {
        clock.jump(SECOND * 2);
    }
    eventually("the first check is over", || timer() > first);
    clock.jump(SECOND * 24);
    step(&paused, SECOND * 24);
    assert!(guard.verify().unwrap() <= SECOND * 4);
    assert!(guard.is_valid() && guard.remaining() <= SECOND * 4);
    eventually("it was verified in the background, too", || {
        store.count("inspect") == 2
    });
    eventually("only the timer sleeps", || paused.sleepers().len() == 1);
    paused.jump(SECOND * 5);
    let loss = losses.recv_timeout(SECOND * 20).unwrap();
    assert_eq!(loss.cause(), LossCause::Expired);
}

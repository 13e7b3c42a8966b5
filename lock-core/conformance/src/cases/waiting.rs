//! Waits: woken by a release, ended by the deadline or an interrupt.

use crate::fixture::{
    DirectBackend, Lock, always, assert_within, client, connect, context, eventually, fresh_name,
    is_busy, join, let_pass, long, ms, mutex, mutexes, now, patience, poll, prompt, short, spawn,
    take, take_soon,
};
use crate::lateness::late;
use crate::subject::Subject;
use lock_core::backend::ReleaseOptions;
use lock_core::{Event, Interrupt, LockName, LockOptions};
use parking_lot::Mutex as Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Returns a time that is long enough for a new waiter to fall asleep.
fn asleep() -> Duration {
    ms(150)
}

/// Gives new waiters time to fall asleep, so that the notification wakes them. A waiter that is
/// still awake gets the lock as well, by its last attempt before the sleep, so this only
/// strengthens a case. There is no condition to wait for, because a lock of several stores has no
/// single store to observe.
fn fall_asleep() {
    let_pass(asleep());
}

/// A waiter gets the lock soon after the release, long before the holder's lease ends.
pub(crate) fn release_wakes_waiter_of_other_client(subject: &dyn Subject) {
    let [holder, waiter] = mutexes(subject);
    for _ in 0..3 {
        let guard = take(&holder);
        thread::scope(|scope| {
            let waiting = spawn(scope, || {
                let guard = take_soon(&waiter);
                let inside = now();
                guard.unlock().expect("it is ours");
                inside
            });
            fall_asleep();
            let released = now();
            guard.unlock().expect("it is ours");
            let took = join(waiting).since(released);
            assert_within("woken", took, prompt());
        });
    }
}

/// All waiters of several clients get the lock.
pub(crate) fn every_waiter_gets_the_lock(subject: &dyn Subject) {
    let clients: [Lock; 4] = mutexes(subject);
    let guard = take(&clients[0]);
    thread::scope(|scope| {
        let each_twice = clients[1..].iter().chain(&clients[1..]);
        let waiting: Vec<_> = each_twice
            .map(|mutex| spawn(scope, || drop(take_soon(mutex))))
            .collect();
        fall_asleep();
        let released = now();
        guard.unlock().expect("it is ours");
        waiting.into_iter().for_each(join);
        assert_within("all served", now().since(released), prompt());
    });
    assert!(!subject.probe(clients[0].name()).held);
}

/// A client that counts its waiters.
struct CountedWaiters {
    lock: Lock,
    contended: Arc<AtomicUsize>,
}

impl CountedWaiters {
    fn of(subject: &dyn Subject, name: &LockName) -> Self {
        let contended = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&contended);
        let counting = move |event: &Event| {
            if matches!(event, Event::Contended { .. }) {
                counted.fetch_add(1, Ordering::SeqCst);
            }
        };
        let client = connect(
            subject,
            subject.client(&context()).events(Arc::new(counting)),
        );
        Self {
            lock: mutex(&client, name),
            contended,
        }
    }

    fn wait_for_waiters(&self, number: usize) {
        eventually("it queues", patience(), || {
            self.contended.load(Ordering::SeqCst) >= number
        });
    }
}

/// Threads of one client get the lock in the order of their calls, and not before it is free.
pub(crate) fn local_waiters_are_served_in_order(subject: &dyn Subject) {
    let name = fresh_name();
    let (queue, holder) = (
        CountedWaiters::of(subject, &name),
        mutex(&client(subject), &name),
    );
    let (guard, served) = (take(&holder), Cell::new(Vec::new()));
    let serve = |number| {
        let guard = take_soon(&queue.lock);
        served.lock().push(number);
        drop(guard);
    };
    thread::scope(|scope| {
        let waiting: Vec<_> = (1..=4)
            .map(|number| {
                let serve = &serve;
                let thread = spawn(scope, move || serve(number));
                queue.wait_for_waiters(number);
                thread
            })
            .collect();
        assert!(
            served.lock().is_empty(),
            "a waiter got the lock while it was held"
        );
        guard.unlock().expect("it is ours");
        waiting.into_iter().for_each(join);
    });
    assert_eq!(*served.lock(), [1, 2, 3, 4]);
}

/// The lock passes between threads of a client at once, not at their next poll.
pub(crate) fn release_wakes_local_waiter(subject: &dyn Subject) {
    let [one] = mutexes(subject);
    let guard = take(&one);
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..6)
            .map(|_| spawn(scope, || drop(take_soon(&one))))
            .collect();
        fall_asleep();
        let released = now();
        guard.unlock().expect("it is ours");
        waiting.into_iter().for_each(join);
        assert_within("all served", now().since(released), prompt());
    });
    assert!(!subject.probe(one.name()).held);
}

/// If the first waiter is interrupted, the second replaces it at once.
pub(crate) fn next_waiter_replaces_interrupted_first(subject: &dyn Subject) {
    let name = fresh_name();
    let direct = DirectBackend::open(subject);
    let owner = direct.hold(&name, long());
    let (queue, interrupt) = (CountedWaiters::of(subject, &name), Interrupt::new());
    thread::scope(|scope| {
        let first = spawn(scope, || {
            queue.lock.lock_interruptibly(&interrupt).map(drop)
        });
        queue.wait_for_waiters(1);
        let second = spawn(scope, || drop(take_soon(&queue.lock)));
        queue.wait_for_waiters(2);
        fall_asleep();
        interrupt.fire();
        assert!(
            join(first)
                .expect_err("it was interrupted")
                .is_interrupted()
        );
        let released = now();
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE);
        join(second);
        assert_within("taken", now().since(released), ms(600));
    });
    assert!(!subject.probe(&name).held);
}

/// A try does not overtake waiting threads of the same client.
pub(crate) fn try_does_not_overtake_local_waiter(subject: &dyn Subject) {
    let name = fresh_name();
    DirectBackend::open(subject).hold(&name, ms(2_500));
    let (queue, has_tried) = (CountedWaiters::of(subject, &name), AtomicBool::new(false));
    thread::scope(|scope| {
        let waiting = spawn(scope, || {
            let guard = take_soon(&queue.lock);
            assert!(subject.probe(&name).held);
            // A waiter that was still awake may get here before the try.
            eventually("the try", patience(), || has_tried.load(Ordering::SeqCst));
            drop(guard);
        });
        queue.wait_for_waiters(1);
        fall_asleep();
        // Frees the lock without a notification: an attempt in the store would now be granted.
        subject.lose(&name);
        let is_busy = is_busy(&queue.lock);
        has_tried.store(true, Ordering::SeqCst);
        assert!(is_busy);
        join(waiting);
    });
}

/// A wait without success ends at its deadline: not before, and hardly after.
pub(crate) fn waiter_gives_up_at_deadline(subject: &dyn Subject) {
    let (name, wait) = (fresh_name(), ms(400));
    // Held by a dropped client, so no release will wake the waiter.
    DirectBackend::open(subject).hold(&name, long());
    let lock = mutex(&client(subject), &name);
    let start = now();
    assert!(
        lock.try_lock_for(wait)
            .expect("the store answers")
            .is_none()
    );
    let took = now().since(start);
    assert!(took >= wait, "gave up after {took:?}");
    assert_within("gave up", took, wait + ms(1_000));
}

/// A wait of zero is one attempt.
pub(crate) fn zero_wait_is_one_attempt(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let taken = one.try_lock_for(Duration::ZERO).expect("the store answers");
    let _guard = taken.expect("one attempt is enough for a free lock");
    let start = now();
    assert!(
        other
            .try_lock_for(Duration::ZERO)
            .expect("the store answers")
            .is_none()
    );
    assert_within("answered", now().since(start), ms(1_000));
}

/// A wait for the longest [`Duration`] ends with the release.
pub(crate) fn huge_wait_does_not_overflow(subject: &dyn Subject) {
    let [holder, waiter] = mutexes(subject);
    let guard = holder
        .try_lock_for(Duration::MAX)
        .expect("the store answers")
        .expect("it is free");
    let interrupt = Interrupt::new();
    let options = LockOptions::new().interrupt(&interrupt);
    thread::scope(|scope| {
        let waiting = spawn(scope, || {
            let taken = waiter.try_lock_for_with(Duration::MAX, &options);
            taken.map(|guard| guard.is_some())
        });
        always("it waits", asleep(), || !waiting.is_finished());
        guard.unlock().expect("it is ours");
        let woken = poll(prompt(), || waiting.is_finished().then_some(()));
        // Ends a waiter that was not woken in time.
        interrupt.fire();
        let taken = join(waiting);
        if woken.is_none() {
            late(prompt(), "it was not woken by the release");
        }
        assert!(taken.expect("it was not interrupted"));
    });
}

/// A waiter takes the lock when a dead holder's lease ends, without a notification.
pub(crate) fn waiter_takes_lock_whose_lease_ends(subject: &dyn Subject) {
    let name = fresh_name();
    let start = now();
    DirectBackend::open(subject).hold(&name, short());
    drop(take_soon(&mutex(&client(subject), &name)));
    let took = now().since(start);
    assert!(took >= short(), "taken over after {took:?}");
    assert_within("taken over", took, short() + ms(1_000));
}

/// A waiter that missed a notification polls when the holder's lease must have ended.
pub(crate) fn waiter_survives_missed_wakeup(subject: &dyn Subject) {
    let (name, lease) = (fresh_name(), ms(900));
    let start = now();
    DirectBackend::open(subject).hold(&name, lease);
    let lock = mutex(&client(subject), &name);
    thread::scope(|scope| {
        let waiting = spawn(scope, || drop(take_soon(&lock)));
        fall_asleep();
        subject.lose(&name);
        join(waiting);
    });
    assert_within("looked again", now().since(start), lease + ms(1_000));
}

/// A waiter that missed a notification polls once more at its deadline.
pub(crate) fn waiter_takes_lock_freed_before_deadline(subject: &dyn Subject) {
    let name = fresh_name();
    DirectBackend::open(subject).hold(&name, long());
    let lock = mutex(&client(subject), &name);
    thread::scope(|scope| {
        let waiting = spawn(scope, || {
            lock.try_lock_for(ms(600))
                .map(|guard| guard.is_some())
                .expect("the store answers")
        });
        let_pass(ms(300));
        subject.lose(&name);
        assert!(join(waiting), "it was free at the deadline");
    });
}

/// An interrupt ends the wait at once. After that, the interrupted waiter does not prevent a grant
/// to another client.
pub(crate) fn interrupt_ends_wait(subject: &dyn Subject) {
    let [holder, waiter, third] = mutexes(subject);
    let (guard, interrupt) = (take(&holder), Interrupt::new());
    thread::scope(|scope| {
        let waiting = spawn(scope, || waiter.lock_interruptibly(&interrupt).map(drop));
        always("it waits", asleep(), || !waiting.is_finished());
        let fired = now();
        interrupt.fire();
        assert!(
            join(waiting)
                .expect_err("it was interrupted")
                .is_interrupted()
        );
        assert_within("ended", now().since(fired), ms(1_000));
    });
    assert!(
        waiter
            .lock_interruptibly(&interrupt)
            .expect_err("it is still fired")
            .is_interrupted()
    );
    guard.unlock().expect("it is ours");
    // If the end of the wait reached the store after the release, the release may have granted the
    // lock to the waiter, which then gives it back.
    let free = third.try_lock_for(prompt()).expect("the store answers");
    drop(free.expect("nothing is left of the waiter"));
}

/// An interrupt ends no wait to which it was not passed.
pub(crate) fn wait_without_interrupt_continues(subject: &dyn Subject) {
    let (name, lease) = (fresh_name(), ms(5_000));
    let direct = DirectBackend::open(subject);
    let owner = direct.hold(&name, lease);
    let lock = mutex(&client(subject), &name);
    let interrupt = Interrupt::new();
    thread::scope(|scope| {
        let plain = spawn(scope, || lock.lock().map(drop));
        let interrupted = spawn(scope, || lock.lock_interruptibly(&interrupt).map(drop));
        fall_asleep();
        interrupt.fire();
        assert!(
            join(interrupted)
                .expect_err("it was interrupted")
                .is_interrupted()
        );
        always("it waits on", asleep(), || !plain.is_finished());
        let released = now();
        direct.release(&name, owner, ReleaseOptions::WITHOUT_TOMBSTONE);
        join(plain).expect("it gets the lock");
        assert_within("woken", now().since(released), prompt());
    });
}

/// If an interrupt races with the grant, the result is either a guard or a free lock, and never
/// a lock that is renewed without a guard.
pub(crate) fn interrupt_during_grant_leaves_no_lock(subject: &dyn Subject) {
    let [holder, waiter] = mutexes(subject);
    for round in 0..6 {
        let (guard, interrupt) = (take(&holder), Interrupt::new());
        thread::scope(|scope| {
            let waiting = spawn(scope, || waiter.lock_interruptibly(&interrupt).map(drop));
            let_pass(ms(20));
            let firing = spawn(scope, || interrupt.fire());
            if round % 2 == 0 {
                thread::yield_now();
            }
            guard.unlock().expect("it is ours");
            join(firing);
            if let Err(error) = join(waiting) {
                assert!(error.is_interrupted(), "{error:?}");
            }
        });
        eventually("it is free again", patience(), || {
            !subject.probe(holder.name()).held
        });
    }
    always("it stays free", short(), || {
        !subject.probe(holder.name()).held
    });
    assert!(!is_busy(&holder));
}

//! Requests with unknown outcome, and backends that fail or panic.

use super::{Fault, Recorded, SECOND, advance, advance_until_done, eventually, parked, sleeping};
use crate::backend::{Answer, Attempt, Backend};
use crate::{Clock, Interrupt, LeaseTime, LockGuard, LockOptions, LossCause, Moment, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// Acquires a lock with a lease of ten seconds, and sends an extension to an hour that gets no
/// answer.
fn with_unconfirmed_extension(store: &Recorded, lock: &Mutex) -> LockGuard {
    let guard = lock
        .lock_with(&LockOptions::new().lease(10 * SECOND))
        .unwrap();
    store.fail_next("renew", Fault::Swallowed);
    assert!(guard.extend(3_600 * SECOND).unwrap_err().is_unavailable());
    guard
}

#[test]
fn unconfirmed_extension_is_cleaned_up_after_the_loss() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let guard = with_unconfirmed_extension(&store, &lock);
    assert!(guard.remaining() < 10 * SECOND, "the old deadline stands");
    advance(&client, &clock, 11 * SECOND);
    assert!(guard.unlock().unwrap_err().is_lost());
    eventually("the lock is cleaned up, not kept for an hour", || {
        !lock.is_locked().unwrap()
    });
}

#[test]
fn renewal_pending_at_the_deadline_leaves_no_lock() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    let closed = store.gate.lock();
    store.fail_next("renew", Fault::AnswerHangs);
    clock.jump(11 * SECOND);
    eventually("the renewal is sent", || store.count("renew") == 1);
    clock.jump(18 * SECOND);
    assert!(guard.is_valid());
    clock.jump(5 * SECOND / 10);
    assert!(guard.is_valid() || guard.loss().is_some());
    clock.jump(SECOND);
    assert_eq!(guard.loss().unwrap().cause(), LossCause::Expired);
    drop(closed);
    eventually("the extended lock is cleaned up", || {
        !lock.is_locked().unwrap()
    });
    assert!(
        guard.unlock().unwrap_err().is_lost(),
        "the late renewal does not revive the lock"
    );
}

#[test]
fn renewal_confirmed_after_the_deadline_leaves_no_lock() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    // The lock is valid for 30.193 s, which is no multiple of the timer's tick: the timer checks
    // the lock 7 ms after the end of the validity.
    let guard = lock
        .lock_with(&LockOptions::new().watched(Duration::from_millis(30_500)))
        .unwrap();
    let (end, losses) = (clock.now() + guard.remaining(), guard.losses());
    let closed = store.gate.lock();
    store.fail_next("renew", Fault::AnswerHangs);
    clock.jump(11 * SECOND);
    eventually("the renewal is sent", || store.count("renew") == 1);
    // The timer checks the lock once when the next renewal would be due, and again at the first
    // tick after the end of the validity.
    parked(&clock, 1);
    clock.jump(11 * SECOND);
    parked(&clock, 1);
    clock.jump(end.since(clock.now()) + Duration::from_millis(1));
    drop(closed);
    // No thread checks the guard: the loss is found when the answer arrives.
    assert_eq!(
        losses.recv_timeout(20 * SECOND).unwrap().cause(),
        LossCause::Expired
    );
    advance(&client, &clock, SECOND);
    eventually("the extended lock is cleaned up", || {
        !lock.is_locked().unwrap()
    });
}

#[test]
fn lost_lock_with_unanswered_attempt_gets_a_tombstone() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    store.fail_next("acquire", Fault::Vanished);
    let guard = lock.lock().unwrap();
    store.store.lose(lock.name());
    assert!(guard.verify().unwrap_err().is_lost());
    assert!(guard.unlock().unwrap_err().is_lost());
    eventually("the owner is closed", || store.count("close") == 1);
    let late = Attempt::new(
        lock.name(),
        store.owner.lock().unwrap(),
        LeaseTime::new(30 * SECOND).unwrap(),
    );
    eventually("the late copy is refused", || {
        matches!(
            store.store.acquire(&late, Moment::NEVER),
            Ok(Answer::Busy(_))
        )
    });
    assert!(!lock.is_locked().unwrap());
}

#[test]
fn waiter_behind_a_failing_head_is_unavailable() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    for _ in 0..100 {
        store.fail_next("acquire", Fault::NotSent);
    }
    let head = thread::spawn({
        let lock = lock.clone();
        move || {
            lock.try_lock_for(3_600 * SECOND)
                .map(|guard| guard.is_some())
        }
    });
    eventually("the head has failed and sleeps", || {
        store.count("acquire") >= 2 && !clock.sleepers().is_empty()
    });
    assert!(lock.try_lock().unwrap_err().is_unavailable());
    let behind = thread::spawn({
        let lock = lock.clone();
        move || lock.try_lock_for(SECOND).map(|guard| guard.is_some())
    });
    eventually("the waiter queues", || {
        client.queue_length("x").unwrap() == 2
    });
    advance_until_done(&clock, 1, &behind);
    assert!(behind.join().unwrap().unwrap_err().is_unavailable());
    store.faults.lock().clear();
    advance_until_done(&clock, 0, &head);
    assert!(
        head.join().unwrap().unwrap(),
        "the head gets the lock after the outage"
    );
}

#[test]
fn backend_panic_in_guard_drop_leaves_the_name_usable() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    store.fail_next("release", Fault::Refused);
    store.node_panics.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(guard))).is_ok());
    store.node_panics.store(false, Ordering::SeqCst);
    store.store.lose(lock.name());
    assert!(
        thread::spawn(move || lock.try_lock().unwrap().is_some())
            .join()
            .unwrap()
    );
}

#[test]
fn renewal_node_panic_delays_renewals_and_loses_no_lock() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guard = client.mutex("x").unwrap().lock().unwrap();
    store.node_panics.store(true, Ordering::SeqCst);
    advance(&client, &clock, 11 * SECOND);
    assert_eq!(store.count("renew"), 0);
    store.node_panics.store(false, Ordering::SeqCst);
    advance(&client, &clock, 60 * SECOND);
    assert!(guard.is_valid() && store.count("renew") >= 5);
}

#[test]
fn hanging_cleanup_delays_no_renewal() {
    let (store, clock) = Recorded::new();
    let (client, events) = store.client_with_events();
    let renewed = || {
        events
            .lock()
            .iter()
            .filter(|name| *name == "Renewed")
            .count()
    };
    let kept = client.mutex("kept").unwrap().lock().unwrap();
    let closed = store.gate.lock();
    store.fail_next("acquire", Fault::Vanished);
    store.fail_next("acquire", Fault::Vanished);
    store.fail_next("close", Fault::AnswerHangs);
    assert!(
        client
            .mutex("other")
            .unwrap()
            .try_lock()
            .unwrap_err()
            .is_unavailable()
    );
    eventually("the cleanup hangs", || store.count("close") == 1);
    for renewals in 1..=5 {
        clock.jump(10 * SECOND + SECOND / 10);
        // The event is emitted after the next renewal is scheduled. If the clock advanced before
        // that, the renewal would be overdue and wait for a tick that a manual clock does not
        // reach.
        eventually("the other lock is renewed", || renewed() == renewals);
        assert_eq!(store.count("renew"), renewals);
        assert!(kept.remaining() > 29 * SECOND);
    }
    drop(closed);
}

#[test]
fn detached_holds_of_ended_threads_leave_no_name_in_use() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    for _ in 0..3 {
        let lock = client.mutex("x").unwrap();
        thread::spawn(move || lock.lock().unwrap().detach())
            .join()
            .unwrap();
        advance(&client, &clock, 11 * SECOND);
        eventually("the lock is free", || {
            !client.mutex("x").unwrap().is_locked().unwrap()
        });
    }
    eventually("the name is forgotten", || client.names_in_use() == 0);
}

#[test]
fn lost_detached_hold_is_reported_by_a_new_handle() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    client
        .mutex("x")
        .unwrap()
        .lock_with(&LockOptions::new().lease(SECOND))
        .unwrap()
        .detach();
    store.clock.jump(2 * SECOND);
    let lock = client.mutex("x").unwrap();
    assert!(lock.lock().unwrap_err().is_lost());
    assert!(lock.unlock().unwrap_err().is_lost());
    assert!(lock.unlock().unwrap_err().is_not_held());
    assert!(lock.lock().is_ok());
}

#[test]
fn loss_channel_gets_loss_at_unlock_and_closes_at_release() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    let losses = guard.losses();
    guard.unlock().unwrap();
    assert!(
        losses
            .recv_timeout(20 * SECOND)
            .unwrap_err()
            .is_disconnected()
    );
    let guard = lock.lock().unwrap();
    let losses = guard.losses();
    store.store.lose(lock.name());
    assert!(guard.unlock().unwrap_err().is_lost());
    assert_eq!(
        losses.recv_timeout(20 * SECOND).unwrap().cause(),
        LossCause::Gone
    );
}

#[test]
fn interrupt_that_is_reset_at_once_still_ends_the_wait() {
    let (store, _clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let _held = holder.mutex("x").unwrap().lock().unwrap();
    let interrupt = Interrupt::new();
    let waiter = thread::spawn({
        let (lock, interrupt) = (client.mutex("x").unwrap(), interrupt.clone());
        move || lock.lock_interruptibly(&interrupt).map(drop)
    });
    eventually("the waiter queues", || {
        client.queue_length("x").unwrap() == 1
    });
    interrupt.fire();
    interrupt.reset();
    assert!(waiter.join().unwrap().unwrap_err().is_interrupted());
}

#[test]
fn nested_hold_with_a_failed_extension_changes_nothing() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    store.fail_next("renew", Fault::NotSent);
    let longer = LockOptions::new().watched(300 * SECOND);
    assert!(lock.lock_with(&longer).unwrap_err().is_unavailable());
    assert_eq!(lock.hold_count(), 1);
    let before = store.count("renew");
    advance(&client, &clock, 30 * SECOND);
    assert!(
        store.count("renew") >= before + 2,
        "the watchdog renews every 10 s"
    );
    assert!(guard.remaining() < Duration::from_secs(31));
    guard.unlock().unwrap();
}

#[test]
fn unconfirmed_extension_is_cleaned_up_after_a_shorter_one() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let guard = with_unconfirmed_extension(&store, &lock);
    guard.extend(20 * SECOND).unwrap();
    advance(&client, &clock, 22 * SECOND);
    assert!(guard.unlock().unwrap_err().is_lost());
    eventually("the lock is cleaned up, not kept for an hour", || {
        !lock.is_locked().unwrap()
    });
}

#[test]
fn loss_channel_closes_at_release_during_a_renewal() {
    let (store, clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    let losses = guard.losses();
    let closed = store.gate.lock();
    store.fail_next("renew", Fault::AnswerHangs);
    clock.jump(11 * SECOND);
    eventually("the renewal is sent", || store.count("renew") == 1);
    guard.unlock().unwrap();
    assert!(
        losses
            .recv_timeout(20 * SECOND)
            .unwrap_err()
            .is_disconnected()
    );
    drop(closed);
}

#[test]
fn queued_waiters_give_up_within_the_same_outage_limit() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    for _ in 0..10_000 {
        store.fail_next("acquire", Fault::NotSent);
    }
    let start = clock.now();
    let waiters: Vec<_> = (1..=3)
        .map(|n| {
            let lock = lock.clone();
            let waiter = thread::spawn(move || lock.lock().map(drop));
            eventually("the waiter queues", || {
                client.queue_length("x").unwrap() == n
            });
            waiter
        })
        .collect();
    while clock.now().since(start) < 55 * SECOND {
        let waiting = || {
            waiters
                .iter()
                .filter(|waiter| !waiter.is_finished())
                .count()
        };
        eventually("the remaining waiters sleep", || {
            sleeping(&clock) >= waiting()
        });
        clock.jump(SECOND / 20);
    }
    for waiter in waiters {
        assert!(
            waiter.is_finished(),
            "a waiter waits for a second outage limit"
        );
        assert!(waiter.join().unwrap().unwrap_err().is_unavailable());
    }
}

#[test]
fn watch_request_deadline_is_within_the_wait() {
    let (store, _clock) = Recorded::new();
    let _held = store.client().mutex("x").unwrap().lock().unwrap();
    let client = store.client();
    let start = store.clock.now();
    let waiter = thread::spawn({
        let lock = client.mutex("x").unwrap();
        move || lock.try_lock_for(SECOND).unwrap().is_none()
    });
    eventually("the waiter has subscribed", || store.by("watch").is_some());
    assert!(
        store.by("watch").unwrap() <= start + SECOND,
        "the wait ends before the command timeout of 2 s"
    );
    advance_until_done(&store.clock, 1, &waiter);
    assert!(waiter.join().unwrap());
}

//! Requests with unknown outcome, and stores and callbacks that misbehave.

use super::{Fault, Recorded, SECOND, advance, advance_until_done, eventually, parked, sleeping};
use crate::backend::{Answer, Attempt, Backend};
use crate::{
    Clock, DistLock, Interrupt, LeaseTime, LockGuard, LockOptions, LossCause, Moment, Mutex,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

/// Held for ten seconds, and perhaps for an hour: the answer to that was lost.
fn with_an_extension_in_doubt(store: &Recorded, lock: &Mutex) -> LockGuard {
    let guard = lock.lock_with(&LockOptions::new().lease(10 * SECOND)).unwrap();
    store.fail_next("renew", Fault::Swallowed);
    assert!(guard.extend(3_600 * SECOND).unwrap_err().is_unavailable());
    guard
}

#[test]
fn an_extension_that_is_not_confirmed_leaves_no_lock_behind() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let guard = with_an_extension_in_doubt(&store, &lock);
    assert!(guard.remaining() < 10 * SECOND, "the old deadline stands");
    advance(&client, &clock, 11 * SECOND);
    assert!(guard.unlock().unwrap_err().is_lost());
    eventually("it is given back, not kept for an hour", || !lock.is_locked().unwrap());
}

#[test]
fn a_renewal_that_is_under_way_at_the_deadline_leaves_no_lock_behind() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    let closed = store.gate.lock();
    store.fail_next("renew", Fault::AnswerHangs);
    clock.advance(11 * SECOND);
    eventually("it is under way", || store.count("renew") == 1);
    clock.advance(18 * SECOND);
    assert!(guard.is_valid());
    clock.advance(5 * SECOND / 10);
    assert!(guard.is_valid() || guard.loss().is_some());
    clock.advance(SECOND);
    assert_eq!(guard.loss().unwrap().cause(), LossCause::Expired);
    drop(closed);
    eventually("what it extended is given back", || !lock.is_locked().unwrap());
    assert!(guard.unlock().unwrap_err().is_lost(), "also if the renewal came through at last");
}

#[test]
fn a_renewal_that_is_confirmed_right_after_the_deadline_leaves_no_lock_behind() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    // Good for 30.193 s, which is no multiple of a tick: the timer looks 7 ms later.
    let guard = lock.lock_with(&LockOptions::new().watched(Duration::from_millis(30_500))).unwrap();
    let (end, losses) = (clock.now() + guard.remaining(), guard.losses());
    advance(&client, &clock, 10 * SECOND);
    let closed = store.gate.lock();
    store.fail_next("renew", Fault::AnswerHangs);
    clock.advance(SECOND);
    eventually("it is under way", || store.count("renew") == 1);
    // The timer looks once more, where the next renewal would be due, and then at the end: at its
    // next tick after that.
    parked(&clock, 1);
    clock.advance(11 * SECOND);
    parked(&clock, 1);
    clock.advance(end.since(clock.now()) + Duration::from_millis(1));
    drop(closed);
    // No thread looks at the guard: it is the answer itself that finds it over.
    assert_eq!(losses.recv_timeout(20 * SECOND).unwrap().cause(), LossCause::Expired);
    advance(&client, &clock, SECOND);
    eventually("what it extended is given back", || !lock.is_locked().unwrap());
}

#[test]
fn a_doubtful_lock_that_is_gone_leaves_a_tombstone_for_the_late_copy() {
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
    eventually("the copy that arrives late is turned down", || {
        matches!(store.store.acquire(&late, Moment::NEVER), Ok(Answer::Busy(_)))
    });
    assert!(!lock.is_locked().unwrap());
}

#[test]
fn who_queues_behind_a_head_that_cannot_ask_is_not_told_busy() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    for _ in 0..100 {
        store.fail_next("acquire", Fault::NotSent);
    }
    let head = thread::spawn({
        let lock = lock.clone();
        move || lock.try_lock_for(3_600 * SECOND).map(|guard| guard.is_some())
    });
    eventually("the head has failed, and will try again", || {
        store.count("acquire") >= 2 && !clock.sleepers().is_empty()
    });
    assert!(lock.try_lock().unwrap_err().is_unavailable());
    let behind = thread::spawn({
        let lock = lock.clone();
        move || lock.try_lock_for(SECOND).map(|guard| guard.is_some())
    });
    eventually("it queues", || client.queue_length("x").unwrap() == 2);
    advance_until_done(&clock, 1, &behind);
    assert!(behind.join().unwrap().unwrap_err().is_unavailable());
    store.faults.lock().clear();
    advance_until_done(&clock, 0, &head);
    assert!(head.join().unwrap().unwrap(), "the outage is over");
}

#[test]
fn a_backend_that_panics_neither_panics_in_drop_nor_wedges_the_name() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    store.fail_next("release", Fault::Refused);
    store.node_panics.store(true, Ordering::SeqCst);
    assert!(catch_unwind(AssertUnwindSafe(|| drop(guard))).is_ok());
    store.node_panics.store(false, Ordering::SeqCst);
    store.store.lose(lock.name());
    assert!(thread::spawn(move || lock.try_lock().unwrap().is_some()).join().unwrap());
}

#[test]
fn node_unknown_for_a_while_costs_a_renewal_and_no_lock() {
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
fn a_clean_up_that_hangs_delays_no_renewal() {
    let (store, clock) = Recorded::new();
    let (client, events) = store.client_with_events();
    let renewed = || events.lock().iter().filter(|name| *name == "Renewed").count();
    let kept = client.mutex("kept").unwrap().lock().unwrap();
    let closed = store.gate.lock();
    store.fail_next("acquire", Fault::Vanished);
    store.fail_next("acquire", Fault::Vanished);
    store.fail_next("close", Fault::AnswerHangs);
    assert!(client.mutex("other").unwrap().try_lock().unwrap_err().is_unavailable());
    eventually("the clean-up hangs", || store.count("close") == 1);
    for renewals in 1..=5 {
        clock.advance(10 * SECOND + SECOND / 10);
        // Told when the next renewal is due. To go on before that would make it due in the past: it
        // would come with the wheel's next tick, and this clock stands still until a test moves
        // it.
        eventually("it is renewed all the same", || renewed() == renewals);
        assert_eq!(store.count("renew"), renewals);
        assert!(kept.remaining() > 29 * SECOND);
    }
    drop(closed);
}

#[test]
fn threads_that_end_with_a_detached_hold_leave_nothing() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    for _ in 0..3 {
        let lock = client.mutex("x").unwrap();
        thread::spawn(move || lock.lock().unwrap().detach()).join().unwrap();
        advance(&client, &clock, 11 * SECOND);
        eventually("it is given back", || !client.mutex("x").unwrap().is_locked().unwrap());
    }
    eventually("the name is forgotten", || client.names_in_use() == 0);
}

#[test]
fn a_detached_hold_that_was_lost_says_so_also_through_a_new_handle() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    client.mutex("x").unwrap().lock_with(&LockOptions::new().lease(SECOND)).unwrap().detach();
    store.clock.advance(2 * SECOND);
    let lock = client.mutex("x").unwrap();
    assert!(lock.lock().unwrap_err().is_lost());
    assert!(lock.unlock().unwrap_err().is_lost());
    assert!(lock.unlock().unwrap_err().is_not_held());
    assert!(lock.lock().is_ok());
}

#[test]
fn the_channel_of_losses_tells_a_loss_found_at_unlock_and_closes_at_a_release() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    let losses = guard.losses();
    guard.unlock().unwrap();
    assert!(losses.recv_timeout(20 * SECOND).unwrap_err().is_disconnected());
    let guard = lock.lock().unwrap();
    let losses = guard.losses();
    store.store.lose(lock.name());
    assert!(guard.unlock().unwrap_err().is_lost());
    assert_eq!(losses.recv_timeout(20 * SECOND).unwrap().cause(), LossCause::Gone);
}

#[test]
fn a_wait_ends_also_if_the_interrupt_is_reset_before_it_can_look() {
    let (store, _clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let _held = holder.mutex("x").unwrap().lock().unwrap();
    let interrupt = Interrupt::new();
    let waiter = thread::spawn({
        let (lock, interrupt) = (client.mutex("x").unwrap(), interrupt.clone());
        move || lock.lock_interruptibly(&interrupt).map(drop)
    });
    eventually("it waits", || client.queue_length("x").unwrap() == 1);
    interrupt.fire();
    interrupt.reset();
    assert!(waiter.join().unwrap().unwrap_err().is_interrupted());
}

#[test]
fn a_nested_lock_that_cannot_be_made_longer_takes_nothing_and_changes_nothing() {
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
    assert!(store.count("renew") >= before + 2, "the watchdog keeps its rhythm of 10 s");
    assert!(guard.remaining() < Duration::from_secs(31));
    guard.unlock().unwrap();
}

#[test]
fn a_shorter_extension_does_not_make_up_for_a_longer_one_that_is_not_confirmed() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let guard = with_an_extension_in_doubt(&store, &lock);
    guard.extend(20 * SECOND).unwrap();
    advance(&client, &clock, 22 * SECOND);
    assert!(guard.unlock().unwrap_err().is_lost());
    eventually("it is given back, not kept for an hour", || !lock.is_locked().unwrap());
}

#[test]
fn the_channel_of_losses_closes_at_a_release_also_while_a_renewal_is_under_way() {
    let (store, clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    let losses = guard.losses();
    let closed = store.gate.lock();
    store.fail_next("renew", Fault::AnswerHangs);
    clock.advance(11 * SECOND);
    eventually("it is under way", || store.count("renew") == 1);
    guard.unlock().unwrap();
    assert!(losses.recv_timeout(20 * SECOND).unwrap_err().is_disconnected());
    drop(closed);
}

#[test]
fn all_who_wait_without_end_give_up_one_outage_limit_after_it_began() {
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
            eventually("it queues", || client.queue_length("x").unwrap() == n);
            waiter
        })
        .collect();
    while clock.now().since(start) < 55 * SECOND {
        let waiting = || waiters.iter().filter(|waiter| !waiter.is_finished()).count();
        eventually("who still waits sleeps", || sleeping(&clock) >= waiting());
        clock.advance(SECOND / 20);
    }
    for waiter in waiters {
        assert!(waiter.is_finished(), "the second one waits for another outage limit");
        assert!(waiter.join().unwrap().unwrap_err().is_unavailable());
    }
}

#[test]
fn no_request_of_a_wait_may_take_longer_than_it_has() {
    let (store, _clock) = Recorded::new();
    let _held = store.client().mutex("x").unwrap().lock().unwrap();
    let client = store.client();
    let start = store.clock.now();
    let waiter = thread::spawn({
        let lock = client.mutex("x").unwrap();
        move || lock.try_lock_for(SECOND).unwrap().is_none()
    });
    eventually("it has subscribed", || store.by("watch").is_some());
    assert!(
        store.by("watch").unwrap() <= start + SECOND,
        "the wait ends before the command time-out of 2 s"
    );
    advance_until_done(&store.clock, 1, &waiter);
    assert!(waiter.join().unwrap());
}

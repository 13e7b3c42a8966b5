//! Tests of acquiring several locks: all or none, one time limit for all, and no lock held after a
//! failure.

use super::*;
use crate::api::lock::sealed::Sealed;
use crate::api::parts::Parts;
use crate::backend::{LockInfo, ReplicaSupport};
use crate::{LockGuard, LockName, OnInsufficientReplicas, Replication};

#[test]
fn multi_lock_takes_all_members_or_none() {
    let three = Three::new();
    let lock = three.all();
    let guard = lock.try_lock().unwrap().unwrap();
    assert_eq!(three.held(), [true; 3]);
    guard.unlock().unwrap();
    assert_eq!(three.held(), NONE);
    for (n, other) in three.others_handles().iter().enumerate() {
        let busy = other.lock().unwrap();
        assert!(lock.try_lock().unwrap().is_none());
        let mut only = NONE;
        only[n] = true;
        assert_eq!(three.held(), only, "a failed attempt keeps no member");
        busy.unlock().unwrap();
    }
    assert_eq!(lock.hold_count(), 0);
}

#[test]
fn try_lock_is_one_attempt_at_each_member() {
    let three = Three::new();
    let lock = three.all();
    lock.try_lock().unwrap().unwrap().unlock().unwrap();
    assert_eq!(three.count("acquire"), [1; 3]);
    let busy = three.others_handles()[1].lock().unwrap();
    assert!(lock.try_lock().unwrap().is_none());
    assert_eq!(
        three.count("acquire"),
        [2, 3, 1],
        "no member is asked after a busy one"
    );
    drop(busy);
}

#[test]
fn waiter_for_one_member_holds_no_other() {
    let three = Three::new();
    let busy = three.others_handles()[1].lock().unwrap();
    let lock = three.all();
    let thread = thread::spawn(move || lock.lock().unwrap().unlock().unwrap());
    // The thread acquires the first lock, finds the second busy, releases the first, and pauses.
    // Then it waits for the second.
    three.until_waiting_for(1);
    assert_eq!(
        three.held(),
        [false, true, false],
        "the waiter holds no other member"
    );
    busy.unlock().unwrap();
    thread.join().unwrap();
    assert_eq!(three.held(), NONE);
}

#[test]
fn wait_is_one_deadline_for_all_members() {
    let three = Three::new();
    let [a, _, c] = three.others_handles();
    let (first, second) = (a.lock().unwrap(), c.lock().unwrap());
    let start = three.clock.now();
    let thread = thread::spawn({
        let lock = three.all();
        move || lock.try_lock_for(3 * SECOND).map(|guard| guard.is_some())
    });
    three.until_waiting_for(0);
    three.clock.jump(2 * SECOND);
    first.unlock().unwrap();
    // The thread must have left the first queue: otherwise `until_waiting_for` would count it as
    // sleeping although it is woken and does not run yet.
    eventually("the waiter has the first", || {
        three.clients[0].queue_length("a").unwrap() == 0
    });
    three.until_waiting_for(2);
    assert!(three.clock.now().since(start) < 3 * SECOND && !thread.is_finished());
    three.clock.jump(SECOND);
    eventually("the wait is three seconds in all", || thread.is_finished());
    assert!(!thread.join().unwrap().unwrap());
    drop(second);
    assert_eq!(three.held(), NONE);
}

#[test]
fn unavailable_member_is_an_error_that_names_it() {
    let three = Three::new();
    let lock = three.all();
    three.stores[1].cut("acquire", Fault::Refused);
    let error = lock.try_lock().unwrap_err();
    assert!(error.is_configuration(), "{error}");
    three.stores[1].mend();
    three.stores[1].cut("acquire", Fault::NotSent);
    let error = lock.try_lock().unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert_eq!(letters(&error), "df-");
    assert_eq!(error.members()[1].name(), "b");
    assert!(error.members()[1].error().unwrap().is_unavailable());
    let text = error.to_string();
    assert!(
        text.contains("\"a\" was taken and given back; \"b\" failed: on purpose"),
        "{text}"
    );
    three.stores[1].mend();
    assert_eq!(three.held(), NONE);
    drop(lock.try_lock().unwrap().unwrap());
}

/// A request with a final failure may have acquired the lock. Another attempt would then find the
/// lock held for ever, so the wait must end.
#[test]
fn request_that_must_not_be_repeated_ends_the_wait() {
    let three = Three::new();
    three.stores[1].fail_next("acquire", Fault::Final);
    let error = three.all().lock().unwrap_err();
    assert!(
        error.is_unavailable() && letters(&error) == "df-",
        "{error}"
    );
    assert_eq!(three.count("acquire"), [1, 1, 0], "no other attempt");
}

#[test]
fn wait_survives_outage_and_lock_fails_after_the_limit() {
    let three = Three::new();
    three.stores[1].cut("acquire", Fault::NotSent);
    let lock = three.all();
    let start = three.clock.now();
    let thread = thread::spawn(move || lock.lock().map(drop));
    let since = || three.clock.now().since(start);
    three.until("29 seconds pass", SECOND / 50, || {
        thread.is_finished() || since() > 29 * SECOND
    });
    assert!(!thread.is_finished());
    three.stores[1].mend();
    three.until("the waiter has all members", SECOND / 50, || {
        thread.is_finished()
    });
    assert!(thread.join().unwrap().is_ok());
    three.stores[1].cut("acquire", Fault::NotSent);
    let (lock, start) = (three.all(), three.clock.now());
    let thread = thread::spawn(move || lock.lock().map(drop));
    three.until("the waiter fails", SECOND / 50, || thread.is_finished());
    let error = thread.join().unwrap().unwrap_err();
    assert!(
        error.is_unavailable() && error.members()[1].error().is_some(),
        "{error}"
    );
    assert!(three.clock.now().since(start) >= 30 * SECOND);
    three.stores[1].mend();
    assert_eq!(three.held(), NONE);
}

#[test]
fn member_with_insufficient_replicas_is_retried_by_policy() {
    let three = Three::able(Abilities::full().replication(ReplicaSupport::Listed));
    let confirm = |count| *three.stores[1].replicas.lock() = Some(count);
    let under = |on_insufficient_replicas| {
        let policy = Replication::all().on_insufficient_replicas(on_insufficient_replicas);
        LockOptions::new().replication(policy)
    };
    confirm(1);
    let error = three
        .all()
        .try_lock_for_with(30 * SECOND, &under(OnInsufficientReplicas::Fail))
        .unwrap_err();
    assert!(
        error.is_insufficient_replicas() && letters(&error) == "df-",
        "{error}"
    );
    assert_eq!(three.count("acquire"), [1, 1, 0], "no retry");
    let error = three
        .all()
        .try_lock_with(&under(OnInsufficientReplicas::Retry));
    assert!(
        error.unwrap_err().is_insufficient_replicas(),
        "the kind is neither busy nor unavailable"
    );
    let (lock, options) = (three.all(), under(OnInsufficientReplicas::Retry));
    let thread = thread::spawn(move || {
        let taken = lock.try_lock_for_with(30 * SECOND, &options);
        taken.map(|guard| guard.is_some())
    });
    let attempts = three.count("acquire")[1];
    // Advances the clock only while the thread sleeps: otherwise the wait could end before the
    // thread has checked the replicas.
    let sleep_a_while = || {
        if sleeping(&three.clock) > three.threads() {
            three.clock.jump(SECOND / 50);
        }
    };
    eventually("the attempt is repeated", || {
        sleep_a_while();
        three.count("acquire")[1] > attempts + 3
    });
    assert!(!thread.is_finished());
    confirm(2);
    while !thread.is_finished() {
        sleep_a_while();
        thread::yield_now();
    }
    assert!(thread.join().unwrap().unwrap());
    assert_eq!(three.held(), NONE);
    // A majority is acquired without the member whose replicas do not confirm.
    confirm(0);
    let lock = three.majority();
    drop(
        lock.try_lock_with(&under(OnInsufficientReplicas::Fail))
            .unwrap()
            .expect("two of three are enough"),
    );
    assert_eq!(three.held(), NONE);
}

#[test]
fn interrupt_between_members_leaves_no_lock() {
    let three = Three::new();
    let busy = three.others_handles()[1].lock().unwrap();
    let (lock, interrupt) = (three.all(), Interrupt::new());
    let thread = thread::spawn({
        let interrupt = interrupt.clone();
        move || lock.lock_interruptibly(&interrupt).map(drop)
    });
    three.until_waiting_for(1);
    interrupt.fire();
    eventually("the waiter ends", || thread.is_finished());
    let error = thread.join().unwrap().unwrap_err();
    assert!(
        error.is_interrupted() && error.lock() == Some(three.all().name()),
        "{error}"
    );
    drop(busy);
    assert_eq!(three.held(), NONE);
    assert!(
        three
            .all()
            .lock_interruptibly(&interrupt)
            .unwrap_err()
            .is_interrupted()
    );
}

/// A lock whose `acquire` panics.
#[derive(Debug)]
struct Trap(Mutex);

impl Sealed for Trap {
    fn parts(&self) -> Parts {
        self.0.parts()
    }
}

impl DistLock for Trap {
    fn acquire(&self, _: Option<Duration>, _: &LockOptions) -> Result<Option<LockGuard>, Error> {
        panic!("on purpose")
    }
    fn unlock(&self) -> Result<(), Error> {
        self.0.unlock()
    }
    fn inspect(&self) -> Result<LockInfo, Error> {
        self.0.inspect()
    }
    fn force_unlock(&self) -> Result<bool, Error> {
        self.0.force_unlock()
    }
    fn hold_count(&self) -> u32 {
        self.0.hold_count()
    }
    fn is_held_by_current_thread(&self) -> bool {
        self.0.is_held_by_current_thread()
    }
    fn name(&self) -> &LockName {
        self.0.name()
    }
}

#[test]
fn panic_between_members_leaves_no_lock() {
    let three = Three::new();
    let [a, b, c] = three.locks.clone();
    let trap: Arc<dyn DistLock> = Arc::new(Trap(c));
    let lock = MultiLock::new([a.into(), b.into(), trap]).unwrap();
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lock.lock().map(drop)));
    assert!(caught.is_err());
    assert_eq!(
        three.count("acquire"),
        [1, 1, 0],
        "two members were taken before the panic"
    );
    assert_eq!((three.held(), lock.hold_count()), (NONE, 0));
}

#[test]
fn fixed_lease_is_full_when_the_guard_is_returned() {
    let three = Three::new();
    let lock = three.all();
    let options = LockOptions::new().lease(10 * SECOND);
    let guard = lock.try_lock_with(&options).unwrap().unwrap();
    assert_eq!(
        three.count("renew"),
        [0; 3],
        "a quick acquisition extends no lease"
    );
    drop(guard);
    three.stores[1].fail_next("acquire", Fault::Slow(3 * SECOND));
    let guard = lock.try_lock_with(&options).unwrap().unwrap();
    assert_eq!(
        three.count("renew"),
        [1, 1, 0],
        "a lease is restarted if more than a tenth of it has passed"
    );
    assert!(guard.remaining() > 9 * SECOND, "{:?}", guard.remaining());
    let left = three.others_handles()[0].time_to_live().unwrap().unwrap();
    assert!(
        left > 9 * SECOND && left <= 10 * SECOND,
        "not longer than requested: {left:?}"
    );
    guard.unlock().unwrap();
    assert_eq!(three.held(), NONE);
}

#[test]
fn acquisition_longer_than_its_lease_is_released() {
    let three = Three::new();
    three.stores[1].fail_next("acquire", Fault::Slow(3 * SECOND / 2));
    three.stores[2].fail_next("acquire", Fault::Slow(3 * SECOND / 2));
    let options = LockOptions::new().lease(2 * SECOND);
    let error = three.all().try_lock_with(&options).unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert!(
        error.to_string().contains("3.0s") && error.to_string().contains("2s"),
        "{error}"
    );
    assert_eq!(three.held(), NONE);
}

#[test]
fn majority_takes_all_free_members_and_requires_half() {
    let three = Three::new();
    let lock = three.majority();
    let guard = lock.lock().unwrap();
    assert_eq!(three.held(), [true; 3]);
    guard.unlock().unwrap();
    let [a, b, c] = three.others_handles();
    let busy = a.lock().unwrap();
    let guard = lock.try_lock().unwrap().unwrap();
    assert_eq!(three.held(), [true; 3]);
    assert!(guard.fencing_tokens()[0].1.is_none() && guard.fencing_tokens()[1].1.is_some());
    guard.unlock().unwrap();
    assert_eq!(three.held(), [true, false, false]);
    let more = b.lock().unwrap();
    assert!(lock.try_lock().unwrap().is_none());
    assert_eq!(three.held(), [true, true, false]);
    drop((busy, more, c));
}

#[test]
fn majority_distinguishes_busy_from_unavailable() {
    let three = Three::new();
    // Each attempt uses a new handle, because a handle remembers an unresponsive member and tries
    // it last.
    let cut = |n: usize| three.stores[n].cut("acquire", Fault::NotSent);
    let mend = || three.stores.iter().for_each(Recorded::mend);
    cut(0);
    drop(
        three
            .majority()
            .try_lock()
            .unwrap()
            .expect("two of three are enough"),
    );
    cut(1);
    let error = three.majority().try_lock().unwrap_err();
    assert!(
        error.is_unavailable() && letters(&error) == "ff-",
        "{error}"
    );
    mend();
    let busy = three.others_handles()[2].lock().unwrap();
    cut(0);
    assert!(
        three.majority().try_lock().unwrap().is_none(),
        "the busy member decides"
    );
    cut(1);
    assert_eq!(letters(&three.majority().try_lock().unwrap_err()), "ff-");
    mend();
    drop(busy);
    let busy = three.others_handles()[1].lock().unwrap();
    cut(0);
    let found = three.majority().try_lock().unwrap();
    assert!(
        found.is_none(),
        "the third member is asked, so the result is known"
    );
    mend();
    drop(busy);
    three.stores[0].fail_next("acquire", Fault::Refused);
    drop(
        three
            .majority()
            .try_lock()
            .unwrap()
            .expect("two of three are enough"),
    );
    for store in &three.stores[..2] {
        store.fail_next("acquire", Fault::Refused);
    }
    assert!(three.majority().lock().unwrap_err().is_configuration());
    assert_eq!(three.held(), NONE);
}

#[test]
fn majority_waits_for_each_member_for_its_share() {
    let three = Three::new();
    let [a, b, _] = three.others_handles();
    let (stuck, busy) = (a.lock().unwrap(), b.lock().unwrap());
    let lock = three.majority();
    let thread = thread::spawn(move || lock.try_lock_for(30 * SECOND).map(|guard| guard.is_some()));
    three.until_waiting_for(1);
    assert_eq!(three.held(), [true, true, false]);
    drop(stuck);
    let from = three.clock.now();
    three.until("the waiter has two members", SECOND / 50, || {
        thread.is_finished()
    });
    assert!(
        thread.join().unwrap().unwrap(),
        "the released member completes the majority"
    );
    let took = three.clock.now().since(from);
    assert!(
        took < 2 * SECOND,
        "taken after {took:?}, long before the deadline"
    );
    drop(busy);
    assert_eq!(three.held(), NONE);
}

#[test]
fn majority_avoids_recently_unavailable_member() {
    let three = Three::new();
    let lock = three.majority();
    three.stores[0].fail_next("acquire", Fault::TimedOut(2 * SECOND));
    let start = three.clock.now();
    drop(lock.try_lock().unwrap().expect("two of three"));
    assert_eq!(
        three.clock.now().since(start),
        2 * SECOND,
        "the first attempt costs a time-out"
    );
    drop(lock.try_lock().unwrap().expect("two of three"));
    assert_eq!(
        three.count("acquire"),
        [1, 2, 2],
        "it is not asked again for five seconds"
    );
    let busy = three.others_handles()[1].lock().unwrap();
    drop(
        lock.try_lock()
            .unwrap()
            .expect("the member is asked if needed, and has recovered"),
    );
    drop(busy);
    drop(lock.try_lock().unwrap().unwrap());
    assert_eq!(three.count("acquire"), [3, 5, 4]);
    three.stores[0].fail_next("acquire", Fault::TimedOut(2 * SECOND));
    drop(lock.try_lock().unwrap().unwrap());
    three.advance(6 * SECOND);
    drop(lock.try_lock().unwrap().unwrap());
    assert_eq!(
        three.count("acquire"),
        [5, 7, 6],
        "it is asked again after five seconds"
    );
    assert_eq!(three.held(), NONE);
}

/// Spawns a thread that waits for all members until `interrupt` fires.
fn spawn_interruptible_waiter(
    three: &Three,
    interrupt: &Interrupt,
) -> thread::JoinHandle<Result<(), Error>> {
    let (lock, interrupt) = (three.all(), interrupt.clone());
    thread::spawn(move || lock.lock_interruptibly(&interrupt).map(drop))
}

#[test]
fn interrupt_reset_during_pause_ends_wait() {
    // Repeated, because a waiter that wakes quickly sees the interrupt before the reset, which is
    // not the case to be tested.
    for _ in 0..20 {
        let three = Three::new();
        let busy = three.others_handles()[1].lock().unwrap();
        let interrupt = Interrupt::new();
        let waiter = spawn_interruptible_waiter(&three, &interrupt);
        eventually("the waiter pauses", || {
            sleeping(&three.clock) > three.threads()
        });
        interrupt.fire();
        interrupt.reset();
        eventually("the waiter ends", || waiter.is_finished());
        assert!(waiter.join().unwrap().unwrap_err().is_interrupted());
        drop(busy);
        assert_eq!(three.held(), NONE);
    }
}

#[test]
fn interrupt_reset_during_release_ends_wait() {
    let three = Three::new();
    let busy = three.others_handles()[1].lock().unwrap();
    let interrupt = Interrupt::new();
    let gate = three.stores[0].gate.lock();
    three.stores[0].fail_next("release", Fault::Hangs);
    let waiter = spawn_interruptible_waiter(&three, &interrupt);
    eventually("the waiter releases the first member", || {
        three.count("release")[0] == 1
    });
    interrupt.fire();
    interrupt.reset();
    drop(gate);
    eventually("the waiter ends", || waiter.is_finished());
    assert!(waiter.join().unwrap().unwrap_err().is_interrupted());
    drop(busy);
    assert_eq!(three.held(), NONE);
}

//! Releases: no renewal after the release is sent, and the meaning of the answers.

use super::*;
use crate::{Signal, Woken};
use parking_lot::MutexGuard;
use std::sync::atomic::AtomicUsize;

/// Locks `x`, and unlocks it in a thread; the release hangs until the returned gate is dropped.
fn releasing<'a>(
    store: &'a Recorded,
    client: &Client,
) -> (MutexGuard<'a, ()>, thread::JoinHandle<Result<(), Error>>) {
    let guard = client.owned_mutex("x").unwrap().lock().unwrap();
    let gate = store.gate.lock();
    store.fail_next("release", Fault::Hangs);
    let unlocks = thread::spawn(move || guard.unlock());
    eventually("the release is sent", || store.count("release") == 1);
    (gate, unlocks)
}

#[test]
fn lock_is_not_renewed_once_its_release_is_sent() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let (gate, unlocks) = releasing(&store, &client);
    advance(&client, &clock, 11 * SECOND);
    assert_eq!(store.count("renew"), 0);
    drop(gate);
    unlocks.join().unwrap().unwrap();
}

#[test]
fn try_lock_during_the_release_is_busy_without_request() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let (gate, unlocks) = releasing(&store, &client);
    assert!(client.mutex("x").unwrap().try_lock().unwrap().is_none());
    assert_eq!(store.count("acquire"), 1);
    drop(gate);
    unlocks.join().unwrap().unwrap();
    assert!(client.mutex("x").unwrap().try_lock().unwrap().is_some());
}

/// Locks `x`, and unlocks it while the clock advances.
fn unlocked_in_time(store: &Recorded, client: &Client) -> Result<(), Error> {
    let guard = client.owned_mutex("x").unwrap().lock().unwrap();
    unlock_in_time(store, guard)
}

fn unlock_in_time(store: &Recorded, guard: crate::OwnedGuard) -> Result<(), Error> {
    let unlocks = thread::spawn(move || guard.unlock());
    advance_until_done(&store.clock, 1, &unlocks);
    unlocks.join().unwrap()
}

#[test]
fn unsent_release_of_a_gone_lock_is_a_loss() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let guard = client.owned_mutex("x").unwrap().lock().unwrap();
    store.store.lose(guard.name());
    store.fail_next("release", Fault::NotSent);
    assert!(unlock_in_time(&store, guard).unwrap_err().is_lost());
}

#[test]
fn foreign_value_found_at_release_is_a_loss() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let guard = client.mutex("x").unwrap().lock().unwrap();
    store.fail_next("release", Fault::Foreign);
    assert!(guard.unlock().unwrap_err().is_lost());
    assert_eq!(store.count("release"), 1);
}

#[test]
fn failed_release_is_reported_and_retried_in_background() {
    let (store, clock) = Recorded::new();
    let (client, events) = store.client_with_events();
    store.cut("release", Fault::NotSent);
    assert!(
        unlocked_in_time(&store, &client)
            .unwrap_err()
            .is_unavailable()
    );
    eventually("the failure is reported", || {
        *events.lock() == ["Acquired", "ReleaseFailed"]
    });
    let lock = client.mutex("x").unwrap();
    assert!(lock.is_locked().unwrap());
    store.mend();
    advance(&client, &clock, 2 * SECOND);
    assert!(!lock.is_locked().unwrap());
}

#[test]
fn failed_release_lets_the_next_thread_ask_the_store() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    store.cut("release", Fault::NotSent);
    assert!(
        unlocked_in_time(&store, &client)
            .unwrap_err()
            .is_unavailable()
    );
    let asked = store.count("acquire");
    assert!(client.mutex("x").unwrap().try_lock().unwrap().is_none());
    assert_eq!(store.count("acquire"), asked + 1);
}

#[test]
fn unlock_of_each_hold_on_a_lost_lock_reports_the_loss() {
    let (store, clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    let (outer, inner) = (lock.lock().unwrap(), lock.lock().unwrap());
    clock.jump(60 * SECOND);
    assert_eq!(
        (lock.hold_count(), lock.is_held_by_current_thread()),
        (2, false)
    );
    assert!(inner.unlock().unwrap_err().is_lost());
    assert_eq!(lock.hold_count(), 1);
    assert!(outer.unlock().unwrap_err().is_lost());
    assert_eq!((lock.hold_count(), store.count("release")), (0, 0));
}

#[test]
fn each_unlock_ends_one_hold() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    let guards: Vec<_> = (0..3).map(|_| lock.lock().unwrap()).collect();
    for (ended, guard) in guards.into_iter().enumerate() {
        assert_eq!(
            (lock.hold_count() as usize, store.count("release")),
            (3 - ended, 0)
        );
        guard.unlock().unwrap();
    }
    assert_eq!((lock.hold_count(), store.count("release")), (0, 1));
}

#[test]
fn dropping_the_guard_of_a_lost_lock_does_not_panic() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    clock.jump(60 * SECOND);
    drop(guard);
    let guard = lock.lock().unwrap();
    store.store.lose(lock.name());
    drop(guard);
    assert!(lock.try_lock().unwrap().is_some());
}

/// A clock that leaps by a second at the n-th read by one thread, and to the end of each wait of
/// this thread.
#[derive(Debug, Clone)]
struct Leaping {
    clock: ManualClock,
    thread: thread::ThreadId,
    left: Arc<AtomicUsize>,
}

impl Clock for Leaping {
    fn now(&self) -> Moment {
        let is_ours = thread::current().id() == self.thread;
        if is_ours
            && self.left.load(Ordering::SeqCst) > 0
            && self.left.fetch_sub(1, Ordering::SeqCst) == 1
        {
            self.clock.jump(SECOND);
        }
        self.clock.now()
    }
    fn wait(&self, signal: &Arc<Signal>, until: Moment) -> Woken {
        if thread::current().id() == self.thread {
            self.clock.jump(until.since(self.clock.now()));
        }
        self.clock.wait(signal, until)
    }
}

#[test]
fn lease_end_during_unlock_is_lost_unless_release_was_sent() {
    for read in 1..=12 {
        let (store, clock) = Recorded::new();
        let leaping = Leaping {
            clock,
            thread: thread::current().id(),
            left: Arc::default(),
        };
        let client = crate::builder()
            .backend(Arc::new(store.clone()))
            .clock(Arc::new(leaping.clone()))
            .connect()
            .unwrap();
        let lock = client.mutex("x").unwrap();
        let guard = lock.lock_with(&LockOptions::new().lease(SECOND)).unwrap();
        let deadline = store.clock.now() + guard.remaining();
        store.fail_next("release", Fault::Swallowed);
        leaping.left.store(read, Ordering::SeqCst);
        let result = guard.unlock();
        leaping.left.store(0, Ordering::SeqCst);
        let was_sent_in_time = store
            .times("release")
            .first()
            .is_some_and(|at| *at < deadline);
        match result {
            Ok(()) => assert!(was_sent_in_time, "at read {read}"),
            Err(error) => assert!(
                error.is_lost() && !was_sent_in_time,
                "at read {read}: {error}"
            ),
        }
        assert_eq!(lock.hold_count(), 0, "at read {read}");
        lock.lock().unwrap().unlock().unwrap();
    }
}

#[test]
fn unanswered_release_is_repeated_within_command_timeout() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guard = client.owned_mutex("x").unwrap().lock().unwrap();
    let start = clock.now();
    store.fail_next("release", Fault::TimedOut(SECOND));
    unlock_in_time(&store, guard).unwrap();
    assert_eq!(store.count("release"), 2);
    assert_eq!(store.by("release"), Some(start + 2 * SECOND));
    assert!(!client.mutex("x").unwrap().is_locked().unwrap());
}

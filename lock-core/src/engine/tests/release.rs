//! Releases: nothing renews after they began, and every answer means what the table says.

use super::*;
use crate::{Signal, Woken};
use parking_lot::MutexGuard;
use std::sync::atomic::AtomicUsize;

/// A guard that is being unlocked, and whose release is on its way until the gate opens.
fn releasing<'a>(
    store: &'a Recorded,
    client: &Client,
) -> (MutexGuard<'a, ()>, thread::JoinHandle<Result<(), Error>>) {
    let guard = client.owned_mutex("x").unwrap().lock().unwrap();
    let gate = store.gate.lock();
    store.fail_next("release", Fault::Hangs);
    let unlocks = thread::spawn(move || guard.unlock());
    eventually("the release is on its way", || store.count("release") == 1);
    (gate, unlocks)
}

#[test]
fn nothing_is_renewed_once_the_release_is_on_its_way() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let (gate, unlocks) = releasing(&store, &client);
    advance(&client, &clock, 11 * SECOND);
    assert_eq!(store.count("renew"), 0);
    drop(gate);
    unlocks.join().unwrap().unwrap();
}

#[test]
fn no_thread_asks_while_the_release_is_under_way() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let (gate, unlocks) = releasing(&store, &client);
    assert!(client.mutex("x").unwrap().try_lock().unwrap().is_none());
    assert_eq!(store.count("acquire"), 1);
    drop(gate);
    unlocks.join().unwrap().unwrap();
    assert!(client.mutex("x").unwrap().try_lock().unwrap().is_some());
}

/// Unlocks while time goes on.
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
fn a_release_that_never_left_excuses_nothing() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let guard = client.owned_mutex("x").unwrap().lock().unwrap();
    store.store.lose(guard.name());
    store.fail_next("release", Fault::NotSent);
    assert!(unlock_in_time(&store, guard).unwrap_err().is_lost());
}

#[test]
fn something_else_under_the_key_is_a_loss_at_the_release() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let guard = client.mutex("x").unwrap().lock().unwrap();
    store.fail_next("release", Fault::Foreign);
    assert!(guard.unlock().unwrap_err().is_lost());
    assert_eq!(store.count("release"), 1);
}

#[test]
fn a_release_that_fails_is_told_and_tried_on_in_the_background() {
    let (store, clock) = Recorded::new();
    let (client, events) = store.client_with_events();
    store.cut("release", Fault::NotSent);
    assert!(unlocked_in_time(&store, &client).unwrap_err().is_unavailable());
    eventually("it is told", || *events.lock() == ["Acquired", "ReleaseFailed"]);
    let lock = client.mutex("x").unwrap();
    assert!(lock.is_locked().unwrap());
    store.mend();
    advance(&client, &clock, 2 * SECOND);
    assert!(!lock.is_locked().unwrap());
}

#[test]
fn a_release_that_fails_lets_the_next_of_the_client_ask() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    store.cut("release", Fault::NotSent);
    assert!(unlocked_in_time(&store, &client).unwrap_err().is_unavailable());
    let asked = store.count("acquire");
    assert!(client.mutex("x").unwrap().try_lock().unwrap().is_none());
    assert_eq!(store.count("acquire"), asked + 1);
}

#[test]
fn every_hold_on_a_lost_lock_is_told_at_its_unlock() {
    let (store, clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    let (outer, inner) = (lock.lock().unwrap(), lock.lock().unwrap());
    clock.advance(60 * SECOND);
    assert_eq!((lock.hold_count(), lock.is_held_by_current_thread()), (2, false));
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
        assert_eq!((lock.hold_count() as usize, store.count("release")), (3 - ended, 0));
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
    clock.advance(60 * SECOND);
    drop(guard);
    let guard = lock.lock().unwrap();
    store.store.lose(lock.name());
    drop(guard);
    assert!(lock.try_lock().unwrap().is_some());
}

/// A clock that leaps by a second when it is read for the n-th time by the thread that said so, and
/// goes on from there.
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
            self.clock.advance(SECOND);
        }
        self.clock.now()
    }
    fn wait(&self, signal: &Arc<Signal>, until: Moment) -> Woken {
        if thread::current().id() == self.thread {
            self.clock.advance(until.since(self.clock.now()));
        }
        self.clock.wait(signal, until)
    }
}

#[test]
fn a_lease_that_ends_at_any_point_of_an_unlock_is_told_unless_a_release_was_sent_before() {
    for read in 1..=12 {
        let (store, clock) = Recorded::new();
        let leaping = Leaping { clock, thread: thread::current().id(), left: Arc::default() };
        let client = Client::builder()
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
        let was_sent_in_time = store.times("release").first().is_some_and(|at| *at < deadline);
        match result {
            Ok(()) => assert!(was_sent_in_time, "at read {read}"),
            Err(error) => assert!(error.is_lost() && !was_sent_in_time, "at read {read}: {error}"),
        }
        assert_eq!(lock.hold_count(), 0, "at read {read}");
        lock.lock().unwrap().unlock().unwrap();
    }
}

#[test]
fn an_unanswered_release_is_sent_again_within_the_command_timeout() {
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

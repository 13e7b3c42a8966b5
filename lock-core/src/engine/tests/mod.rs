//! The engine on the in-memory store and a clock that stands still until it is told to go on.

use crate::backend::{
    Abilities, AcquisitionId, Answer, Attempt, Backend, Failure, LockInfo, NodeId, OnReleased,
    Release, ReleaseOptions, Renewal, RenewalRequest, ReplicaSupport, Wake, Waking, Watch,
};
use crate::error::ErrorKind;
use crate::{
    Client, Clock, DistLock, Error, Event, GuardState, InsufficientReplicas, Interrupt, LockName,
    LockOptions, LossCause, ManualClock, MemoryBackend, Moment, OnInsufficientReplicas, Replicas,
    Replication,
};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use crate::OwnerId;

mod answers;
mod async_release;
mod cleanup;
mod doubt;
mod extension;
mod handoff;
mod holds;
mod insufficient_replicas;
mod loss;
mod queue;
pub(crate) mod recorded;
mod release;
mod renewal;
mod rolled_back;
mod settings;
mod spare_workers;
mod thread_life;
mod wait;

use recorded::{Fault, Recorded};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Waits, in real time and with a bound, until `condition` holds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = crate::SystemClock.now();
    while !condition() {
        assert!(crate::SystemClock.now().since(start) < 20 * SECOND, "did not come about: {what}");
        thread::yield_now();
    }
}

impl super::Engine {
    /// Whether all threads are done with what is due.
    pub(crate) fn is_at_rest(&self, sleepers: impl Fn() -> Vec<Moment>) -> bool {
        let parked = |threads| {
            let sleepers = sleepers();
            sleepers.len() >= threads && sleepers.iter().all(|until| *until > self.clock.now())
        };
        let timers = self.timer.threads();
        let (workers, is_due) = self.workers.threads();
        // The timer's thread gives work to the workers, so it is looked at before them.
        parked(timers) && !is_due && !self.workers.threads().1 && parked(timers + workers)
    }

    /// How many threads renew and clean up.
    pub(crate) fn threads(&self) -> usize {
        self.timer.threads() + self.workers.threads().0
    }
}

/// Advances by small steps, and lets each thread that wakes do its work before the next.
fn advance(client: &Client, clock: &ManualClock, by: Duration) {
    let rest =
        || eventually("all threads are at rest", || client.0.is_at_rest(|| clock.sleepers()));
    let end = clock.now() + by;
    rest();
    while clock.now() < end {
        clock.advance(Duration::from_millis(10).min(end.since(clock.now())));
        rest();
    }
}

/// Waits until that many threads sleep on the clock, and none whose time has come.
pub(crate) fn parked(clock: &ManualClock, threads: usize) {
    eventually("all threads sleep", || sleeping(clock) >= threads);
}

/// How many threads sleep on the clock; none if the time of one has come.
pub(crate) fn sleeping(clock: &ManualClock) -> usize {
    let sleepers = clock.sleepers();
    if sleepers.iter().all(|until| *until > clock.now()) { sleepers.len() } else { 0 }
}

/// Lets that many threads wait for a held lock, one after the other, and returns the order in which
/// they get it.
fn serve(client: &Client, count: usize, options: impl Fn(usize) -> LockOptions) -> Vec<usize> {
    let lock = client.mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let threads: Vec<_> = (0..count)
        .map(|n| {
            let (inner, order, options) = (lock.clone(), Arc::clone(&order), options(n));
            let thread = thread::spawn(move || {
                let guard = inner.lock_with(&options).unwrap();
                order.lock().push(n);
                guard.unlock().unwrap();
            });
            eventually("it queues", || client.queue_length("x").unwrap() == n + 1);
            thread
        })
        .collect();
    guard.unlock().unwrap();
    for thread in threads {
        thread.join().unwrap();
    }
    std::mem::take(&mut *order.lock())
}

/// Advances for as long as that thread needs, and only while it and the `others` sleep.
fn advance_until_done<T>(clock: &ManualClock, others: usize, thread: &thread::JoinHandle<T>) {
    while !thread.is_finished() {
        eventually("it sleeps, or is done", || thread.is_finished() || sleeping(clock) > others);
        clock.advance(SECOND / 20);
    }
}

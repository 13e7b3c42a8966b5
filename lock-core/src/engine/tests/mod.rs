//! Unit tests of the engine on the in-memory store and a manual clock.

use crate::backend::{
    Abilities, AcquisitionId, Admin, Answer, Attempt, Backend, Failure, HolderInfo, LockInfo,
    NodeId, OnReleased, PermitChange, PermitOutcome, Release, ReleaseOptions, Renewal,
    RenewalRequest, ReplicaSupport, Replicated, Wake, Waking, Watch,
};
use crate::error::ErrorKind;
use crate::{
    Client, Clock, DistLock, Error, Event, GuardState, InsufficientReplicas, Interrupt, LeaseTime,
    LockName, LockOptions, LossCause, ManualClock, MemoryBackend, Moment, OnInsufficientReplicas,
    Replicas, Replication,
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
mod deadlines;
mod election;
mod extension;
mod handoff;
mod holds;
mod index;
mod insufficient_replicas;
mod kinds;
mod loss;
mod queue;
pub(crate) mod recorded;
mod release;
mod renewal;
mod renewal_time;
mod rolled_back;
mod settings;
mod skipped_time;
mod spare_workers;
mod thread_life;
mod unknown_outcome;
mod wait;

use super::queue::Scope;
use recorded::{Fault, Recorded};

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Waits, in real time and with a bound, until `condition` holds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = crate::SystemClock.now();
    while !condition() {
        assert!(
            crate::SystemClock.now().since(start) < 20 * SECOND,
            "did not come about: {what}"
        );
        thread::yield_now();
    }
}

impl super::Engine {
    /// Returns whether all threads of the client sleep and no work is due.
    pub(crate) fn is_at_rest(&self, sleepers: impl Fn() -> Vec<Moment>) -> bool {
        let parked = |threads| {
            let sleepers = sleepers();
            sleepers.len() >= threads && sleepers.iter().all(|until| *until > self.clock.now())
        };
        let timers = self.timer.threads();
        // The timer's thread passes work to the workers, so it is checked before them.
        let timers_sleep = parked(timers);
        let (workers, is_due) = self.workers.threads();
        // The number of workers must not have changed: otherwise a new spare worker that sleeps
        // would hide a worker that is busy.
        timers_sleep && !is_due && parked(timers + workers) && self.workers.threads().0 == workers
    }

    /// Returns the number of threads of the timer and the workers.
    pub(crate) fn threads(&self) -> usize {
        self.timer.threads() + self.workers.threads().0
    }
}

/// Advances by small steps; the client's threads finish their work before the next step.
fn advance(client: &Client, clock: &ManualClock, by: Duration) {
    let rest = || {
        eventually("all threads are at rest", || {
            client.0.is_at_rest(|| clock.sleepers())
        });
    };
    let end = clock.now() + by;
    rest();
    while clock.now() < end {
        clock.jump(Duration::from_millis(10).min(end.since(clock.now())));
        rest();
    }
}

/// Waits until at least this many threads sleep on the clock and none of them is due.
pub(crate) fn parked(clock: &ManualClock, threads: usize) {
    eventually("all threads sleep", || sleeping(clock) >= threads);
}

/// Returns the number of threads that sleep on the clock, or 0 while one of them is due.
pub(crate) fn sleeping(clock: &ManualClock) -> usize {
    let sleepers = clock.sleepers();
    if sleepers.iter().all(|until| *until > clock.now()) {
        sleepers.len()
    } else {
        0
    }
}

/// Queues `count` threads for a held lock, releases it, and returns the order of their grants.
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
            eventually("the waiter queues", || {
                client.queue_length("x").unwrap() == n + 1
            });
            thread
        })
        .collect();
    guard.unlock().unwrap();
    for thread in threads {
        thread.join().unwrap();
    }
    std::mem::take(&mut *order.lock())
}

/// Advances until `thread` has finished. Before each step, more than `others` threads must sleep
/// and none may be due.
fn advance_until_done<T>(clock: &ManualClock, others: usize, thread: &thread::JoinHandle<T>) {
    while !thread.is_finished() {
        eventually("it sleeps or is done", || {
            thread.is_finished() || sleeping(clock) > others
        });
        clock.jump(SECOND / 20);
    }
}

//! Virtual time: it passes only when the [keeper](keep) task runs.
//!
//! The scheduler of the tests runs the keeper when every other task is blocked, so a task that can
//! run is not late. In half of the executions the scheduler sometimes runs the keeper earlier,
//! which models threads that the operating system runs late.

use shuttle::sync::{Condvar, Mutex};
use std::cell::RefCell;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The time at which an execution begins. Not zero, so that a moment before the beginning differs
/// from the beginning.
const BEGINNING: u64 = 1_000_000_000_000;

struct Time {
    now: u64,
    /// Each sleeper: its number, the time at which it is due, and the condition variable that it
    /// waits on.
    sleepers: Vec<(u64, u64, Arc<Condvar>)>,
    next_sleeper: u64,
    /// The numbers of the sleepers that the last [`advance`](Self::advance) found due.
    woken: Vec<u64>,
    /// True while the keeper notifies the sleepers that are due.
    is_waking: bool,
    /// True while the keeper waits in `work`, because no task sleeps.
    is_idle: bool,
    /// True after [`end`]: the keeper then returns.
    is_over: bool,
    /// The number of threads that this crate has started and that have not ended.
    threads: usize,
    /// Wakes the idle keeper.
    work: Arc<(Mutex<()>, Condvar)>,
}

impl Time {
    fn new() -> Self {
        Self {
            now: BEGINNING,
            sleepers: Vec::new(),
            next_sleeper: 0,
            woken: Vec::new(),
            is_waking: false,
            is_idle: false,
            is_over: false,
            threads: 0,
            work: Arc::default(),
        }
    }

    /// Advances to the next moment at which a sleeper is due, and returns the condition variables
    /// of all sleepers that are due. A woken task that has not run yet does not keep the time from
    /// advancing, and is notified again.
    fn advance(&mut self) -> Vec<Arc<Condvar>> {
        let is_new =
            |(number, until, _): &&(u64, u64, _)| *until > self.now || !self.woken.contains(number);
        let next = self
            .sleepers
            .iter()
            .filter(is_new)
            .map(|(_, until, _)| *until)
            .min();
        self.now = self.now.max(next.unwrap_or(0));
        let due = self
            .sleepers
            .iter()
            .filter(|(_, until, _)| *until <= self.now);
        self.woken = due.clone().map(|(number, ..)| *number).collect();
        due.map(|(.., wake)| Arc::clone(wake)).collect()
    }
}

std::thread_local! {
    static TIME: RefCell<Time> = RefCell::new(Time::new());
}

fn with<R>(look: impl FnOnce(&mut Time) -> R) -> R {
    TIME.with(|time| look(&mut time.borrow_mut()))
}

/// Resets the time, at the beginning of an execution.
pub fn begin() {
    let _past = TIME.with(|time| time.replace(Time::new()));
}

/// Returns the time in nanoseconds. Other tasks may run, and time may pass, before the time is
/// read.
#[must_use]
pub fn nanos() -> u64 {
    shuttle::thread::sleep(Duration::ZERO); // a scheduling point, no more
    with(|time| time.now)
}

/// Returns the time since the beginning of the execution. This is no scheduling point, so a check
/// that reads the time does not change the order of the tasks.
#[must_use]
pub fn peek() -> Duration {
    Duration::from_nanos(with(|time| time.now) - BEGINNING)
}

/// Returns the number of threads that this crate has started and that have not ended.
#[must_use]
pub fn threads() -> usize {
    with(|time| time.threads)
}

pub(super) fn count_thread(change: isize) {
    with(|time| time.threads = time.threads.saturating_add_signed(change));
}

/// Returns whether the scheduler must run the keeper next, so that all sleepers that are due at one
/// moment are notified before one of them runs.
#[must_use]
pub fn is_waking() -> bool {
    with(|time| time.is_waking)
}

/// Advances the time until [`end`], each time to the next moment at which a sleeper is due.
///
/// # Panics
///
/// If the time reaches `limit`, because a task sleeps for ever or waits in a loop.
pub fn keep(limit: Duration) {
    let work = with(|time| Arc::clone(&time.work));
    loop {
        let mut guard = work.0.lock().unwrap_or_else(PoisonError::into_inner);
        while with(|time| {
            time.is_idle = time.sleepers.is_empty() && !time.is_over;
            time.is_idle
        }) {
            guard = work.1.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        let due = with(Time::advance);
        if with(|time| time.is_over) {
            return;
        }
        assert!(
            peek() < limit,
            "a task still waits after {:?} of virtual time",
            peek()
        );
        with(|time| time.is_waking = true);
        due.iter().for_each(|wake| wake.notify_all());
        with(|time| time.is_waking = false);
    }
}

/// Makes the keeper return.
pub fn end() {
    with(|time| time.is_over = true);
    rouse();
}

fn rouse() {
    let work = with(|time| Arc::clone(&time.work));
    drop(work.0.lock().unwrap_or_else(PoisonError::into_inner));
    work.1.notify_one();
}

/// A wait with a deadline. The sleeper stays registered until it is dropped, so that the keeper
/// notifies it again if the first notification came before the task waited.
pub(super) struct Sleeper {
    number: u64,
    until: u64,
}

impl Sleeper {
    pub(super) fn new(wake: &Arc<Condvar>, longest: Duration) -> Self {
        let (sleeper, is_idle) = with(|time| {
            let longest = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
            let (number, until) = (time.next_sleeper, time.now.saturating_add(longest));
            time.next_sleeper += 1;
            time.sleepers.push((number, until, Arc::clone(wake)));
            (Self { number, until }, time.is_idle)
        });
        if is_idle {
            rouse();
        }
        sleeper
    }

    pub(super) fn is_due(&self) -> bool {
        with(|time| time.now >= self.until)
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        with(|time| time.sleepers.retain(|(number, ..)| *number != self.number));
    }
}

//! Virtual time: it passes only when the [keeper](keep) task runs.
//!
//! The scheduler of the tests runs the keeper when every other task is blocked, so a task that can
//! run is not late. Now and then it runs the keeper earlier, which models late threads.

use shuttle::sync::{Condvar, Mutex};
use std::cell::RefCell;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Not zero: an earlier moment must differ from it.
const BEGINNING: u64 = 1_000_000_000_000;

struct Time {
    now: u64,
    /// Each sleeper: its number, until when it sleeps, and the condition variable that wakes it.
    sleepers: Vec<(u64, u64, Arc<Condvar>)>,
    next_sleeper: u64,
    /// Sleepers that were woken and have not left `sleepers` yet.
    woken: Vec<u64>,
    /// Whether the keeper is waking the sleepers that are due.
    is_waking: bool,
    is_idle: bool,
    is_over: bool,
    /// How many threads this crate has started that have not ended.
    threads: usize,
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

    /// Advances to the next moment for which a task sleeps, and returns the condition variables of
    /// the sleepers that are due. A woken task that has not run yet does not stop the time.
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

/// The time in nanoseconds. Other tasks may run, and time may pass, before it is read.
#[must_use]
pub fn nanos() -> u64 {
    shuttle::thread::sleep(Duration::ZERO); // a scheduling point, no more
    with(|time| time.now)
}

/// The time since the beginning, without a scheduling point: for checks that must not change it.
#[must_use]
pub fn peek() -> Duration {
    Duration::from_nanos(with(|time| time.now) - BEGINNING)
}

/// How many threads this crate has started that have not ended.
#[must_use]
pub fn threads() -> usize {
    with(|time| time.threads)
}

pub(super) fn count_thread(change: isize) {
    with(|time| time.threads = time.threads.saturating_add_signed(change));
}

/// Whether the scheduler must run the keeper next: sleepers due at one moment wake together.
#[must_use]
pub fn is_waking() -> bool {
    with(|time| time.is_waking)
}

/// Lets time pass until [`end`], from one moment for which a task sleeps to the next.
///
/// # Panics
///
/// After `limit`: a task sleeps for ever, or waits in a loop.
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

/// Ends the keeper.
pub fn end() {
    with(|time| time.is_over = true);
    rouse();
}

fn rouse() {
    let work = with(|time| Arc::clone(&time.work));
    drop(work.0.lock().unwrap_or_else(PoisonError::into_inner));
    work.1.notify_one();
}

/// A wait with a deadline. It must be woken again if the keeper ran before it was parked.
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

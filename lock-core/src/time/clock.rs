//! [`Clock`]: the current time, and waits until a moment. All waits of this library use a clock.

use crate::sync::{Condvar, Mutex, time};
use std::any::Any;
use std::fmt;
use std::num::NonZeroU64;
use std::ops::Add;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A point in time on a [`Clock`], in nanoseconds since that clock's beginning.
///
/// Moments of different clocks cannot be compared.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(
    /// The nanoseconds plus one, so never zero: `Option<Moment>` then takes no more memory than
    /// `Moment`. Each held lock has several.
    NonZeroU64,
);

impl Moment {
    /// The last possible moment, about 584 years after the clock's beginning: "never".
    pub const NEVER: Self = Self(NonZeroU64::MAX);

    /// Returns the moment this many nanoseconds after the clock's beginning, [`NEVER`](Self::NEVER)
    /// at the latest.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(nanos))
    }

    /// Returns the nanoseconds since the clock's beginning.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0.get() - 1
    }

    /// Returns the time from `earlier` to this moment; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.as_nanos().saturating_sub(earlier.as_nanos()))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Moment").field(&self.as_nanos()).finish()
    }
}

/// Adds a duration. A sum beyond the range is [`Moment::NEVER`]: a very long wait must not panic.
impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        Self(self.0.saturating_add(nanos))
    }
}

/// A flag that one thread waits for and any thread raises.
///
/// The flag stays up until the waiter lowers it, so a raise before the wait ends the wait at once.
#[derive(Debug, Default)]
pub struct Signal {
    raised: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    /// Creates a signal that is down.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Raises the flag and wakes its waiter.
    pub fn raise(&self) {
        *self.raised.lock() = true;
        self.changed.notify_all();
    }

    /// Lowers the flag and returns whether it was up.
    pub fn take(&self) -> bool {
        std::mem::take(&mut *self.raised.lock())
    }

    /// Makes the waiter read its clock again, without raising the flag.
    fn nudge(&self) {
        // With the mutex locked: otherwise a waiter between its check and its sleep would miss
        // this.
        let _raised = self.raised.lock();
        self.changed.notify_all();
    }

    /// Lowers the flag if it is up; otherwise sleeps for at most `longest` and tries once more.
    /// Returns whether the flag was up.
    fn take_or_sleep(&self, longest: Duration) -> bool {
        let mut raised = self.raised.lock();
        if !*raised {
            let _timed_out = self.changed.wait_for(&mut raised, longest);
        }
        std::mem::take(&mut *raised)
    }

    fn is_up(&self) -> bool {
        *self.raised.lock()
    }
}

/// The reason why a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Woken {
    /// The signal was raised; it is down again.
    Signalled,
    /// The given moment has come.
    Due,
}

/// A clock that never goes back, and that threads can wait on.
///
/// Leases are measured by this clock, so it must advance while the machine is suspended. Tests may
/// implement the trait, or use [`ManualClock`].
pub trait Clock: Any + Send + Sync + fmt::Debug {
    /// Returns the current time.
    fn now(&self) -> Moment;

    /// Returns the time of day, counted from 1970, which may jump. Used for tokens, for wire
    /// formats that write a time, and in texts.
    ///
    /// If the time of day leaps ahead of [`now`](Self::now), as after the pause of a virtual
    /// machine, the leap shortens the validity of each held lock until the store has confirmed the
    /// lock. By default, this time of day advances with `now`: it is the machine's time of day,
    /// plus the difference between `now` and [`SystemClock`].
    fn unix_time(&self) -> Duration {
        // In this order, time that passes between the reads never makes the result too late:
        // otherwise it would appear as a leap.
        let (unix, machine) = (SystemClock.unix_time(), SystemClock.now());
        let now = self.now();
        (unix + now.since(machine)).saturating_sub(machine.since(now))
    }

    /// Blocks until `signal` is raised or `until` has come. Returns at once if the signal is up
    /// already. Lowers the signal if the signal ended the wait.
    fn wait(&self, signal: &Arc<Signal>, until: Moment) -> Woken;
}

/// The machine's clock: `CLOCK_BOOTTIME` on Linux and Android, the monotonic clock elsewhere.
///
/// [`std::time::Instant`] stops while a Linux machine is suspended, so a lease would seem to last
/// longer by the time of the suspension. The timeouts of condition variables stop in the same way.
/// A wait therefore consists of slices of at most [`SystemClock::SLICE`], and the clock is read
/// after each slice.
#[derive(Clone, Copy, Debug, Default)]
#[allow(
    clippy::exhaustive_structs,
    reason = "it has nothing in it, and is made by its name"
)]
pub struct SystemClock;

impl SystemClock {
    /// The longest sleep without reading the clock, because the timeouts of condition variables and
    /// sockets stop while a machine is suspended, and leases do not.
    pub const SLICE: Duration = Duration::from_secs(1);
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(time::nanos())
    }

    fn unix_time(&self) -> Duration {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
    }

    fn wait(&self, signal: &Arc<Signal>, until: Moment) -> Woken {
        loop {
            let left = until.since(self.now());
            if signal.take_or_sleep(left.min(Self::SLICE)) {
                return Woken::Signalled;
            }
            if left.is_zero() {
                return Woken::Due;
            }
        }
    }
}

/// A clock for tests of leases and waits, which advances only by two calls:
/// [`advance`](Self::advance), as time passes for a running program, and [`jump`](Self::jump), as
/// after a pause of the program.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::time::{Clock, ManualClock};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.jump(Duration::from_secs(30));
/// assert_eq!(clock.now().since(before), Duration::from_secs(30));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<Mutex<Manual>>);

/// The longest real time for which `advance` waits for threads to act, because a thread may wait
/// for something else than this clock.
const SETTLES: Duration = Duration::from_millis(100);
/// The pause between two reads of the list of sleepers. It is short, so that `advance` notices the
/// end of a renewal in memory at once.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

/// Returns whether no other thread of this process is running or ready to run. Always true except
/// on Linux, where `/proc` shows the state of each thread.
fn others_sleep() -> bool {
    #[cfg(not(target_os = "linux"))]
    return true;
    #[cfg(target_os = "linux")]
    others_sleep_by_proc()
}

#[cfg(target_os = "linux")]
fn others_sleep_by_proc() -> bool {
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    let mut others = tasks.flatten().filter(|task| task.file_name() != *own);
    others.all(|task| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // The file begins with `12 (name, with any characters) R ..`, where `R` is the state.
        let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
        !state.starts_with('R')
    })
}

/// The state that the clones of a [`ManualClock`] share. Lock order: `wait` locks a sleeper's
/// signal before this state, never after it.
#[derive(Debug)]
struct Manual {
    now: Moment,
    unix: Duration,
    sleepers: Vec<Sleeper>,
    /// Changes whenever a sleeper is added or removed, so that `ManualClock::sleepers` detects
    /// this.
    generation: u64,
}

/// A thread that sleeps on the clock.
#[derive(Clone, Debug)]
struct Sleeper {
    /// The generation in which the sleeper was added, which identifies the sleeper.
    number: u64,
    signal: Arc<Signal>,
    until: Moment,
}

impl Default for Manual {
    fn default() -> Self {
        // Not zero: tests need different moments before the start.
        let now = Moment::from_nanos(1_000_000_000_000);
        let unix = Duration::from_secs(1_800_000_000);
        Self {
            now,
            unix,
            sleepers: Vec::new(),
            generation: 0,
        }
    }
}

impl ManualClock {
    /// Creates a clock that shows an arbitrary moment.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether `other` is a clone of this clock, so that both advance together.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Advances the clock and the time of day, and stops at each moment until which a thread
    /// sleeps. At each stop the thread gets real time to act, so that held locks are renewed on the
    /// way.
    ///
    /// At the beginning and at each stop, blocks until no thread is about to act, but for at most
    /// 0.1 s of real time: a thread that does something else may not sleep on this clock again.
    pub fn advance(&self, by: Duration) {
        let end = self.now() + by;
        self.settle(0);
        loop {
            let now = self.now();
            let sleepers = self.sleepers();
            let next = sleepers.iter().copied().find(|until| *until > now);
            let next = next.unwrap_or(end).min(end);
            self.jump(next.since(now));
            self.settle(sleepers.len());
            if next >= end {
                return;
            }
        }
    }

    /// Waits until at least `count` threads sleep on this clock, none of them is due, and no other
    /// thread runs, or until `SETTLES` has passed. A thread that runs may be about to sleep.
    fn settle(&self, count: usize) {
        let bound = SystemClock.now() + SETTLES;
        loop {
            let (now, sleepers) = (self.now(), self.sleepers());
            let is_settled = sleepers.len() >= count && sleepers.iter().all(|it| *it > now);
            if is_settled && others_sleep() || SystemClock.now() >= bound {
                return;
            }
            SystemClock.wait(&Arc::default(), SystemClock.now() + LOOK_AGAIN);
        }
    }

    /// Sets the clock and the time of day ahead at once, and wakes the sleepers that are due. This
    /// is what a program sees after it was paused: leases that end in this time are lost.
    pub fn jump(&self, by: Duration) {
        let mut manual = self.0.lock();
        manual.now = manual.now + by;
        manual.unix += by;
        let is_due = |sleeper: &&Sleeper| sleeper.until <= manual.now;
        let due: Vec<_> = manual
            .sleepers
            .iter()
            .filter(is_due)
            .map(|it| Arc::clone(&it.signal))
            .collect();
        drop(manual);
        due.iter().for_each(|signal| signal.nudge());
    }

    /// Sets the time of day alone, as an operator or a time server does.
    pub fn set_unix_time(&self, unix: Duration) {
        self.0.lock().unix = unix;
    }

    /// Returns the moment until which each thread sleeps on this clock, earliest first. For tests
    /// that must not advance the clock before a thread sleeps.
    ///
    /// For a thread that was signalled but does not run yet, the moment is not later than now.
    #[must_use]
    pub fn sleepers(&self) -> Vec<Moment> {
        loop {
            let manual = self.0.lock();
            let (now, generation) = (manual.now, manual.generation);
            let sleepers = manual.sleepers.clone();
            drop(manual);
            let until = |it: Sleeper| {
                if it.signal.is_up() {
                    now.min(it.until)
                } else {
                    it.until
                }
            };
            let mut moments: Vec<_> = sleepers.into_iter().map(until).collect();
            // A flag that was read as down may have been lowered by its waiter: then the generation
            // has changed.
            if self.0.lock().generation == generation {
                moments.sort_unstable();
                return moments;
            }
        }
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        self.0.lock().now
    }

    fn unix_time(&self) -> Duration {
        self.0.lock().unix
    }

    fn wait(&self, signal: &Arc<Signal>, until: Moment) -> Woken {
        // Added before the clock is read: otherwise a jump in between would not wake this thread.
        let number = self.0.lock().enter(signal, until);
        // Locked from the clock check to the sleep: otherwise a nudge in between would be missed.
        let mut raised = signal.raised.lock();
        loop {
            let mut manual = self.0.lock();
            let woken = match *raised {
                true => Some(Woken::Signalled),
                false => (manual.now >= until).then_some(Woken::Due),
            };
            if let Some(woken) = woken {
                *raised = false;
                manual.leave(number);
                return woken;
            }
            drop(manual);
            signal.changed.wait(&mut raised);
        }
    }
}

impl Manual {
    fn enter(&mut self, signal: &Arc<Signal>, until: Moment) -> u64 {
        self.generation += 1;
        let (number, signal) = (self.generation, Arc::clone(signal));
        self.sleepers.push(Sleeper {
            number,
            signal,
            until,
        });
        number
    }

    fn leave(&mut self, number: u64) {
        self.generation += 1;
        self.sleepers.retain(|sleeper| sleeper.number != number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn signal_raised_before_the_wait_ends_it() {
        let signal = Arc::new(Signal::new());
        signal.raise();
        assert_eq!(SystemClock.wait(&signal, Moment::NEVER), Woken::Signalled);
        assert_eq!(SystemClock.wait(&signal, SystemClock.now()), Woken::Due);
    }

    #[test]
    fn system_clock_waits_until_the_given_moment() {
        let signal = Arc::new(Signal::new());
        let start = SystemClock.now();
        let until = start + Duration::from_millis(30);
        assert_eq!(SystemClock.wait(&signal, until), Woken::Due);
        assert!(SystemClock.now() >= until);
    }

    #[test]
    fn signalled_sleeper_of_manual_clock_is_listed_as_due() {
        let clock = ManualClock::new();
        let until = clock.now() + Duration::from_secs(60);
        for _ in 0..1_000 {
            let signal = Arc::new(Signal::new());
            let sleeper = thread::spawn({
                let (clock, signal) = (clock.clone(), Arc::clone(&signal));
                move || clock.wait(&signal, until)
            });
            while clock.sleepers() != [until] {
                thread::yield_now();
            }
            signal.raise();
            assert!(clock.sleepers().iter().all(|it| *it == clock.now()));
            assert_eq!(sleeper.join().unwrap(), Woken::Signalled);
        }
    }

    #[test]
    fn advanced_manual_clock_wakes_the_sleepers_that_are_due() {
        let clock = ManualClock::new();
        let until = clock.now() + Duration::from_secs(60);
        let sleeper = thread::spawn({
            let clock = clock.clone();
            move || clock.wait(&Arc::new(Signal::new()), until)
        });
        while clock.sleepers() != [until] {
            thread::yield_now();
        }
        clock.jump(Duration::from_secs(59));
        assert!(!sleeper.is_finished());
        clock.jump(Duration::from_secs(1));
        assert_eq!(sleeper.join().unwrap(), Woken::Due);
        assert!(clock.sleepers().is_empty());
    }

    #[test]
    fn moment_plus_longest_duration_is_never() {
        assert_eq!(SystemClock.now() + Duration::MAX, Moment::NEVER);
    }
}

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
    /// The nanoseconds plus one: `Option<Moment>` then takes no more memory, and each held lock has
    /// several of them.
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
/// The flag stays up until the waiter lowers it, so a raise before the wait ends that wait.
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
        // Under the mutex: a waiter between its check and its sleep would miss the notification.
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

/// A clock that never goes back, with waits on it.
///
/// Leases are measured by this clock, so it must run while the machine sleeps. The trait is open
/// for tests: see [`ManualClock`].
pub trait Clock: Any + Send + Sync + fmt::Debug {
    /// Returns the current time.
    fn now(&self) -> Moment;

    /// Returns the time of day since 1970, which may jump. Used for tokens, for wire formats that
    /// write a time, and in texts.
    ///
    /// If it leaps ahead of [`now`](Self::now), as after the pause of a virtual machine, the time
    /// of the leap counts against each lease until the store has confirmed the lock. By default it
    /// advances with `now`: the machine's time of day, plus the lead of `now` over [`SystemClock`].
    fn unix_time(&self) -> Duration {
        // Read in this order: time that passes between the reads is then no leap.
        let (unix, machine) = (SystemClock.unix_time(), SystemClock.now());
        let now = self.now();
        (unix + now.since(machine)).saturating_sub(machine.since(now))
    }

    /// Blocks until `signal` is raised or `until` has come. Returns at once if the signal is up
    /// already. Lowers the signal if it was the cause.
    fn wait(&self, signal: &Arc<Signal>, until: Moment) -> Woken;
}

/// The machine's clock: `CLOCK_BOOTTIME` on Linux and Android, the monotonic clock elsewhere.
///
/// [`std::time::Instant`] stops while a Linux machine is suspended, so a lease would seem to last
/// longer by the time of the suspension. Condition variables stop in the same way; a wait therefore
/// consists of slices of at most [`SystemClock::SLICE`], and the clock is read after each.
#[derive(Clone, Copy, Debug, Default)]
#[allow(
    clippy::exhaustive_structs,
    reason = "it has nothing in it, and is made by its name"
)]
pub struct SystemClock;

impl SystemClock {
    /// The longest sleep without reading the clock, because condition variables and socket timeouts
    /// stop while a machine is suspended, and leases do not.
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

/// A clock that advances only by calls of [`advance`](Self::advance), as time passes for a running
/// program, and of [`jump`](Self::jump), as for one that was paused. For tests of leases and waits.
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

/// The time that threads have to act before the clock goes on, because one of them may wait for
/// something else then.
const SETTLES: Duration = Duration::from_millis(100);
/// The time between two looks at the sleepers, so that a renewal in memory is seen at once.
const LOOK_AGAIN: Duration = Duration::from_micros(100);

/// Returns whether no other thread of this process runs, or is about to. True on a system that does
/// not show it.
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
        // `12 (name, with any characters) R ..`
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
    /// Changes whenever a sleeper is added or removed, which `sleepers` detects by it.
    generation: u64,
}

/// A thread that sleeps on the clock.
#[derive(Clone, Debug)]
struct Sleeper {
    /// The generation in which the sleeper was added, which identifies it.
    number: u64,
    signal: Arc<Signal>,
    until: Moment,
}

impl Default for Manual {
    fn default() -> Self {
        // Not zero: tests need earlier moments that differ from the start.
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

    /// Returns whether both clocks advance together.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Advances the clock and the time of day, and stops at each moment until which a thread
    /// sleeps. There it gives the thread time to act, so that held locks are renewed on the way.
    ///
    /// Blocks until no such thread is about to act, for at most 0.1 s of real time at the beginning
    /// and at each stop: a thread that does something else then does not sleep again.
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

    /// Waits until at least so many threads sleep on this clock, none of them is due, and no other
    /// thread runs: one that was just started is about to sleep.
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

    /// Sets the clock and the time of day ahead at once, and wakes the sleepers that are due: as
    /// for a program that was paused meanwhile, so leases that end in this time are lost.
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

    /// Returns the time until which each sleeper sleeps, earliest first: for tests that must not
    /// advance the clock before a thread is parked. For a signalled thread that does not run yet it
    /// is now.
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
        // Added before the signal is locked: `sleepers` then reads the flag of each listed sleeper.
        let number = self.0.lock().enter(signal, until);
        // Locked from the clock check to the sleep: a nudge cannot come in between.
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

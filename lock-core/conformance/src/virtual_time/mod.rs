//! [`VirtualTime`]: a clock that moves as soon as every thread of this process sleeps.

#[cfg(target_os = "linux")]
mod driver;
#[cfg(target_os = "linux")]
mod threads;

use lock_core::Clock;
use std::sync::Arc;

/// The time of one store in this process, and of all its clients.
///
/// The clock stands still while any thread of this process runs. When all threads sleep, the clock
/// jumps to the earliest moment that a thread waits for on it. So a case takes as long as its
/// threads compute, a wait of an hour costs nothing, and no load of the machine makes a thread
/// late.
///
/// Each value has its own clock, which its clones share; all clocks jump at the same time. A clock
/// stands still while no thread waits on it for a finite moment.
///
/// A thread that waits for another process or for a real timer counts as asleep, so that time
/// passes meanwhile. Use virtual time only in test binaries in which no thread waits in that way:
/// not with real servers.
///
/// Only Linux reports which threads sleep. On other systems, the clock is the machine's.
///
/// # Examples
///
/// ```
/// use lock_conformance::VirtualTime;
/// use lock_core::{LockOptions, MemoryBackend};
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// # fn main() -> Result<(), lock_core::Error> {
/// let time = VirtualTime::new();
/// let store = Arc::new(MemoryBackend::new(time.clock()));
/// let builder = || lock_core::builder().clock(time.clock());
/// let client = || builder().backend(Arc::clone(&store) as _).connect();
/// let (one, other) = (client()?, client()?);
/// let hour = LockOptions::new().lease(Duration::from_secs(3_600));
/// one.mutex("orders")?.lock_with(&hour)?.detach();
/// // An hour passes here, in no time.
/// # #[cfg(target_os = "linux")]
/// let _guard = other.mutex("orders")?.lock()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct VirtualTime {
    clock: Arc<dyn Clock>,
}

impl VirtualTime {
    /// True if this system has virtual time; false if the clock is the machine's.
    pub const IS_AVAILABLE: bool = cfg!(target_os = "linux");

    /// Creates a virtual time with its own clock, which moves from now on.
    ///
    /// # Panics
    ///
    /// If the thread that moves the clocks cannot be started.
    #[must_use]
    pub fn new() -> Self {
        #[cfg(target_os = "linux")]
        let clock = driver::new_clock();
        #[cfg(not(target_os = "linux"))]
        let clock = Arc::new(lock_core::SystemClock);
        Self { clock }
    }

    /// Returns whether this is a clock of virtual time, and not the machine's.
    pub(super) fn is_of(clock: &Arc<dyn Clock>) -> bool {
        #[cfg(target_os = "linux")]
        return driver::is_moved(clock);
        #[cfg(not(target_os = "linux"))]
        return {
            let _machines = clock;
            false
        };
    }

    /// Returns the clock, which moves for as long as any reference to it exists.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }
}

impl Default for VirtualTime {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::threads::{IS_STUCK, pause};
    use super::*;
    use lock_core::{Moment, Signal, SystemClock, Woken};
    use std::os::unix::process::ExitStatusExt;
    use std::thread;
    use std::time::Duration;

    #[test]
    fn sleepers_wake_in_order_of_their_deadlines() {
        let (start, clock) = (SystemClock.now(), VirtualTime::new().clock());
        let begin = clock.now();
        let sleep = |hours: u64| {
            let until = begin + Duration::from_secs(hours * 3_600);
            assert_eq!(clock.wait(&Arc::default(), until), Woken::Due);
            assert_eq!(clock.now(), until, "it jumps from sleeper to sleeper");
        };
        thread::scope(|scope| {
            for hours in [3, 1, 2, 5] {
                scope.spawn(move || sleep(hours));
            }
        });
        let took = SystemClock.now().since(start);
        assert!(took < Duration::from_secs(600), "{took:?}");
    }

    #[test]
    fn time_stands_still_while_a_thread_runs() {
        let clock = VirtualTime::new().clock();
        let (begin, signal) = (clock.now(), Arc::new(Signal::new()));
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| clock.wait(&signal, begin + Duration::from_secs(1)));
            let start = SystemClock.now();
            while SystemClock.now().since(start) < Duration::from_millis(200) {
                assert_eq!(clock.now(), begin);
            }
            signal.raise();
            assert_eq!(sleeper.join().unwrap(), Woken::Signalled);
        });
    }

    #[test]
    fn each_clock_moves_to_its_own_sleepers() {
        let (short, long) = (VirtualTime::new().clock(), VirtualTime::new().clock());
        let wait = |clock: &Arc<dyn Clock>, time| {
            let begin = clock.now();
            clock.wait(&Arc::default(), begin + time);
            assert_eq!(clock.now().since(begin), time);
        };
        thread::scope(|scope| {
            scope.spawn(|| (0..100).for_each(|_| wait(&short, Duration::from_millis(1))));
            scope.spawn(|| wait(&long, Duration::from_secs(60)));
        });
    }

    #[test]
    fn thread_that_never_sleeps_ends_the_process() {
        const NAME: &str = "virtual_time::tests::thread_that_never_sleeps_ends_the_process";
        if std::env::var_os(IS_STUCK).is_some() {
            let clock = VirtualTime::new().clock();
            thread::spawn(|| while !thread::panicking() {});
            clock.wait(&Arc::default(), clock.now() + Duration::from_secs(1));
            return;
        }
        let mut stuck = std::process::Command::new(std::env::current_exe().unwrap());
        stuck
            .args(["--exact", NAME, "--nocapture"])
            .env(IS_STUCK, "1");
        let mut stuck = stuck.stderr(std::process::Stdio::piped()).spawn().unwrap();
        let by = SystemClock.now() + Duration::from_secs(60);
        while stuck.try_wait().unwrap().is_none() && SystemClock.now() < by {
            pause(Duration::from_millis(20));
        }
        let _over = stuck.kill();
        let output = stuck.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(6), "{:?}", output.status);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            said.contains("never sleeps") && said.contains("stands still"),
            "{said}"
        );
    }

    #[test]
    fn sleeper_without_deadline_does_not_move_the_clock() {
        let clock = VirtualTime::new().clock();
        let (begin, signal) = (clock.now(), Arc::new(Signal::new()));
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| clock.wait(&signal, Moment::NEVER));
            pause(Duration::from_millis(50));
            assert_eq!(clock.now(), begin);
            signal.raise();
            assert_eq!(sleeper.join().unwrap(), Woken::Signalled);
        });
    }
}

//! [`TimeOfDay`]: the time of day that a process sees, which a test can change.

use super::probe::Probe;
use super::time::eventually;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// How long a server may take to read its clock. Measured: a millisecond at most.
const BOUND: Duration = Duration::from_secs(60);

/// Moves the clock of one process while it runs. The process preloads a few lines of C, which
/// replace a function of the system's library. They are not in Rust because they would need unsafe
/// code there. A machine that links a test has a C compiler.
pub struct TimeOfDay(TempDir);

impl TimeOfDay {
    /// Makes a clock for a server, at the right time.
    pub fn new() -> Self {
        Self::by(concat!(
            include_str!("moved_by.c"),
            include_str!("time_of_day.c")
        ))
    }

    /// Makes a clock for a client's process, at the right time. Only the time of day is moved, by
    /// whole seconds; the process's other clocks are not.
    pub fn of_client() -> Self {
        Self::by(concat!(
            include_str!("moved_by.c"),
            include_str!("machine_clock.c")
        ))
    }

    fn by(source: &str) -> Self {
        let clock = Self(tempfile::tempdir().unwrap());
        fs::write(clock.file("clock.c"), source).unwrap();
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let compiled = Command::new(&compiler)
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([clock.file("clock.so"), clock.file("clock.c")])
            .output();
        let compiled =
            compiled.unwrap_or_else(|error| panic!("`{compiler}` does not run: {error}"));
        assert!(
            compiled.status.success(),
            "{}",
            String::from_utf8_lossy(&compiled.stderr)
        );
        clock.set(0);
        clock
    }

    /// Sets this clock ahead of the machine's by this many milliseconds, or behind it if negative.
    pub fn set(&self, ahead: i64) {
        // Renamed into place because the server may read the file at any moment.
        fs::write(self.file("new"), ahead.to_string()).unwrap();
        fs::rename(self.file("new"), self.file("ahead")).unwrap();
    }

    /// Sets this clock, and waits until the scripts of this probe's server see the new time: Valkey
    /// 9 updates the time that scripts see only when some time has passed.
    pub fn set_for(&self, probe: &mut Probe, ahead: i64) {
        const TIME: &str = "local time = redis.call('TIME') return time[1] * 1000";
        let mut time = || probe.command(&["EVAL", TIME, "0"]).int();
        let now = fs::read_to_string(self.file("ahead")).expect("it was written");
        let by = ahead - now.parse::<i64>().expect("it is a number");
        let before = time();
        self.set(ahead);
        let has_moved = |by_now: i64| {
            if by < 0 {
                by_now <= by / 2
            } else {
                by_now >= by - 1_000
            }
        };
        eventually("scripts see the time", BOUND, || has_moved(time() - before));
    }

    /// Returns the environment that the process needs.
    pub fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![
            ("LD_PRELOAD", self.file("clock.so")),
            ("TIME_OF_DAY", self.file("ahead")),
        ]
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

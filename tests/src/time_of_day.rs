//! [`TimeOfDay`]: what time of day a server believes that it is, for a test to set.

use super::probe::Probe;
use super::time::eventually;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// How long a server may take to look at its clock. Measured: a millisecond at most.
const BOUND: Duration = Duration::from_secs(60);

/// Moves one server's clock while it runs. It is a few lines of C that the server loads before the
/// system's library (it is not compiled in Rust, because there it would need unsafe code); a
/// machine that links a test has the compiler.
pub struct TimeOfDay(TempDir);

impl TimeOfDay {
    /// The right time, of a server.
    pub fn new() -> Self {
        Self::by(concat!(
            include_str!("moved_by.c"),
            include_str!("time_of_day.c")
        ))
    }

    /// The same of a client's machine, to whole seconds. Its other clocks go on.
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

    /// From here on this clock is ahead of the machine's by so many milliseconds, or behind
    /// it.
    pub fn set(&self, ahead: i64) {
        // In one step: the server looks at any moment.
        fs::write(self.file("new"), ahead.to_string()).unwrap();
        fs::rename(self.file("new"), self.file("ahead")).unwrap();
    }

    /// Does the same, and waits until the scripts of the server of this probe see it: Valkey 9
    /// reads the time anew only when some has passed.
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

    /// What the process must find in its environment.
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

//! [`TimeOfDay`]: what time of day a server believes that it is, for a test to set.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// Moves one server's clock while it runs. It is a few lines of C that the server loads before the
/// system's library (it is not compiled in Rust, because there it would need unsafe code); a
/// machine that links a test has the compiler.
pub struct TimeOfDay(TempDir);

impl TimeOfDay {
    /// The right time.
    pub fn new() -> Self {
        let clock = Self(tempfile::tempdir().unwrap());
        fs::write(clock.file("clock.c"), include_str!("time_of_day.c")).unwrap();
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let compiled = Command::new(&compiler)
            .args(["-shared", "-fPIC", "-O1", "-o"])
            .args([clock.file("clock.so"), clock.file("clock.c")])
            .output();
        let compiled =
            compiled.unwrap_or_else(|error| panic!("`{compiler}` does not run: {error}"));
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        clock.set(0);
        clock
    }

    /// From here on the server's clock is ahead of the machine's by so many milliseconds, or behind
    /// it.
    pub fn set(&self, ahead: i64) {
        // In one step: the server looks at any moment.
        fs::write(self.file("new"), ahead.to_string()).unwrap();
        fs::rename(self.file("new"), self.file("ahead")).unwrap();
    }

    /// What the server must find in its environment.
    pub fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("LD_PRELOAD", self.file("clock.so")), ("TIME_OF_DAY", self.file("ahead"))]
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

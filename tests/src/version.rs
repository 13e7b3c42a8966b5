//! What not every server has that the tests run on.

use std::io::Write;
use std::process::Command;
use std::sync::LazyLock;

/// What the server says of itself, such as `Redis server v=7.2.4 sha=..`.
fn version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let output = Command::new(super::process::binary())
            .arg("--version")
            .output();
        output.map_or_else(
            |_| String::new(),
            |o| String::from_utf8_lossy(&o.stdout).into_owned(),
        )
    });
    &VERSION
}

/// Whether it is Redis 6.
pub fn is_before_7() -> bool {
    version().contains(" v=6.")
}

/// Whether it is Redis 6: then the test is skipped, which lacks this there.
pub fn skipped_before_7(what: &str) -> bool {
    if is_before_7() {
        skip(&format!("{what}: it is since Redis 7"));
    }
    is_before_7()
}

/// Says in the log of the suite what is not tested, and why. What a test prints is seen only where
/// it fails.
pub fn skip(what: &str) {
    let _closed = writeln!(std::io::stderr(), "skipped: {what}");
}

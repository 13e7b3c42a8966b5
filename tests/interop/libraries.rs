//! [`Library`]: what shares a lock with us, and what it can do. A row for each, and the cases mounted on it.

use crate::cases;
use std::time::Duration;

/// One library in one version, as its program in `peers/` shows it.
#[derive(Debug)]
pub(crate) struct Library {
    /// The folder of its program.
    pub(crate) name: &'static str,
    /// What `DISTLOCK_INTEROP_SKIP` calls it.
    pub(crate) language: &'static str,
    /// What it calls itself when it is ready.
    pub(crate) says: &'static str,
    /// What its program is started with.
    pub(crate) arguments: &'static [&'static str],
    /// What stands in our URL to share a lock with it.
    pub(crate) options: &'static str,
    /// What it puts before the name of a lock. Ours is `prefix=`.
    pub(crate) prefix: &'static str,
    /// How its waiters learn of a release.
    pub(crate) theirs: Learns,
    /// How ours learn of one of its.
    pub(crate) ours: Learns,
    /// What its error says when it is to release what it does not hold.
    pub(crate) refusal: &'static str,
    /// Whether it keeps a lock for as long as it lives: then `watchdog=` sets how long that is.
    pub(crate) has_watchdog: bool,
}

/// How a waiter learns that the lock is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Learns {
    /// It is told.
    Told,
    /// It asks again, at the latest after this time.
    Asks(Duration),
}

impl Library {
    /// Whether it was left out on purpose, which is said.
    pub(crate) fn is_skipped(&self) -> bool {
        let skip = std::env::var("DISTLOCK_INTEROP_SKIP").unwrap_or_default();
        let is_skipped = skip.split([',', ' ']).any(|language| language == self.language);
        if is_skipped {
            println!("skipped: {} (DISTLOCK_INTEROP_SKIP={skip})", self.name);
        }
        is_skipped
    }

    /// The key under which this lock is.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

/// Redisson of a version.
const fn redisson(name: &'static str) -> Library {
    Library {
        name,
        language: "java",
        says: "redisson",
        arguments: &[],
        options: "",
        prefix: "",
        theirs: Learns::Told,
        ours: Learns::Told,
        refusal: "IllegalMonitorStateException: attempt to unlock lock, not locked by current thread",
        has_watchdog: true,
    }
}

/// Mounts the cases on a library, each as a test of its own.
macro_rules! sits {
    ($module:ident, $library:expr) => {
        mod $module {
            use super::*;

            static LIBRARY: Library = $library;

            #[test]
            fn no_increment_is_lost_between_their_threads_and_ours() {
                cases::exact::no_increment_is_lost(&LIBRARY);
            }
        }
    };
}

sits!(redisson_3_12, redisson("redisson-3.12.0"));
sits!(redisson_3_17, redisson("redisson-3.17.7"));
sits!(redisson_3_27, redisson("redisson-3.27.2"));
sits!(redisson_3_45, redisson("redisson-3.45.1"));
sits!(redisson_newest, redisson("redisson-4.7.0"));

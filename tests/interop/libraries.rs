//! [`Library`]: what shares a lock with us, and what it can do. A row for each, and the cases mounted on it.

use crate::built;
use crate::cases;
use crate::pins::{self, Pin};
use distlock_tests::time::ms;
use std::time::Duration;

/// One library in one version, as its program in `peers/` shows it.
#[derive(Debug)]
pub(crate) struct Library {
    /// What it is called here.
    pub(crate) name: &'static str,
    /// The folder of its program.
    pub(crate) program: &'static str,
    /// What `DISTLOCK_INTEROP_SKIP` calls it.
    pub(crate) language: &'static str,
    /// What it calls itself when it is ready, and its version.
    pub(crate) pin: Pin,
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
    /// What comes of it when one of its threads is to release what is ours, and never had it.
    pub(crate) never_held: Refusal,
    /// The same for a thread that had it, and comes too late.
    pub(crate) too_late: Refusal,
    /// What each side has at least where both want the lock all the time, in percent.
    pub(crate) share: u64,
    /// How often the lock goes from one side to the other at least, but for the first time, where both count to 2,000 under
    /// it some times.
    pub(crate) crossings: usize,
    /// What makes its waiters ask often, where they ask: so that the two sides meet a thousand times, and not ten.
    pub(crate) eager: &'static [&'static str],
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

/// What a library makes of a release of what it does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// It is an error, which says this.
    Says(&'static str),
    /// It is no error: the library does not tell.
    Silent,
    /// It has nothing that could be asked, and its program says `unsupported`.
    CannotBeAsked,
}

impl Learns {
    /// When a waiter has heard of it at the latest, if that takes so many milliseconds (times the scale) beside its own time.
    pub(crate) fn within(self, millis: u64) -> Duration {
        match self {
            Self::Told => ms(millis),
            Self::Asks(every) => every + ms(millis),
        }
    }
}

impl Library {
    /// Whether it was left out on purpose, which is said.
    pub(crate) fn is_skipped(&self) -> bool {
        let is_skipped = built::is_skipped(self.language);
        if is_skipped {
            say!("skipped: {} ({})", self.name, built::SKIP);
        }
        is_skipped
    }

    /// The key under which this lock is.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

/// What Redisson says to whoever is not the holder.
const NOT_THEIRS: Refusal = Refusal::Says(
    "IllegalMonitorStateException: attempt to unlock lock, not locked by current thread",
);

/// Redisson of a version.
const fn redisson(name: &'static str) -> Library {
    Library {
        name,
        program: name,
        language: "java",
        pin: pins::redisson(name),
        arguments: &[],
        options: "",
        prefix: "",
        theirs: Learns::Told,
        ours: Learns::Told,
        never_held: NOT_THEIRS,
        too_late: NOT_THEIRS,
        share: 10,
        crossings: 100,
        eager: &[],
        has_watchdog: true,
    }
}

/// The versions that are tested, as they stand in `peers/java/versions`. From 3.22 on it publishes on sharded channels where there are
/// some, and from 3.24 to 3.36 an unlock that is sent again is told what the first one did.
pub(crate) const OLDEST: Library = redisson("redisson-3.12.0");
pub(crate) const PLAIN: Library = redisson("redisson-3.17.7");
pub(crate) const WITH_LATCH: Library = redisson("redisson-3.27.2");
pub(crate) const RECENT: Library = redisson("redisson-3.45.1");
/// Must be the last of them.
pub(crate) const NEWEST: Library =
    Library { pin: pins::NEWEST_REDISSON, ..redisson("redisson-4.7.0") };

/// Its lock that is held once. Older versions do not have it.
const NON_REENTRANT: Library =
    Library { name: "redisson-4.7.0, non-reentrant", arguments: &["kind=non-reentrant"], ..NEWEST };

pub(crate) static ALL_REDISSONS: [Library; 5] = [OLDEST, PLAIN, WITH_LATCH, RECENT, NEWEST];

/// Mounts the cases that every library sits, each as a test of its own, and those that are named behind them.
macro_rules! sits {
    ($module:ident, $library:expr $(, $more:ident)*) => {
        $crate::libraries::sits_in_short!($module, $library, leases $(, $more)*);
    };
}

/// The same but for those in which nothing else happens than that a lease ends.
macro_rules! sits_in_short {
    ($module:ident, $library:expr $(, $more:ident)*) => {
        mod $module {
            use super::*;
            use distlock_tests::time::retry_if_late;

            static LIBRARY: Library = $library;

            #[test]
            fn no_increment_is_lost_between_their_threads_and_ours() {
                cases::exact::no_increment_is_lost(&LIBRARY);
            }

            #[test]
            fn both_sides_get_their_share_of_the_lock() {
                cases::exact::both_get_their_share(&LIBRARY);
            }

            #[test]
            fn they_get_what_we_released_at_once() {
                retry_if_late(|| cases::waking::they_get_what_we_released(&LIBRARY));
            }

            #[test]
            fn we_get_what_they_released_at_once() {
                retry_if_late(|| cases::waking::we_get_what_they_released(&LIBRARY));
            }

            #[test]
            fn their_unlock_of_our_lock_is_refused() {
                cases::holding::they_cannot_free_ours(&LIBRARY);
            }

            #[test]
            fn a_late_unlock_leaves_the_other_sides_lock_alone() {
                cases::steadily(|| {
                    cases::holding::a_late_unlock_leaves_the_other_sides_lock_alone(&LIBRARY)
                });
            }

            #[test]
            fn the_watchdogs_of_both_keep_their_locks() {
                cases::steadily(|| cases::leases::the_watchdogs_of_both_keep_their_locks(&LIBRARY));
            }

            $($crate::libraries::more!($more);)*
        }
    };
}

/// What some libraries can do, and what some versions are not asked again.
macro_rules! more {
    (leases) => {
        #[test]
        fn what_a_killed_program_of_ours_held_is_theirs_after_its_lease() {
            cases::steadily(|| {
                cases::leases::what_a_killed_program_of_ours_held_is_theirs_after_its_lease(
                    &LIBRARY,
                )
            });
        }

        #[test]
        fn what_a_killed_program_of_theirs_held_is_ours_after_its_lease() {
            cases::steadily(|| {
                cases::leases::what_a_killed_program_of_theirs_held_is_ours_after_its_lease(
                    &LIBRARY,
                )
            });
        }

        #[test]
        fn a_fixed_lease_ends_for_both_sides() {
            cases::steadily(|| cases::leases::a_fixed_lease_ends_for_both(&LIBRARY));
        }
    };
    (reentrant) => {
        #[test]
        fn nested_holds_are_held_until_the_last() {
            cases::holding::nested_holds_are_held_until_the_last(&LIBRARY);
        }
    };
    (extend) => {
        #[test]
        fn what_they_extend_is_theirs_and_ours_they_cannot_extend() {
            cases::steadily(|| cases::leases::what_they_extend_is_theirs(&LIBRARY));
        }
    };
    (force) => {
        #[test]
        fn a_lock_freed_by_force_is_lost_to_its_holder() {
            cases::steadily(|| {
                cases::holding::a_lock_freed_by_force_is_lost_to_its_holder(&LIBRARY)
            });
        }
    };
}

// A path leads to them also from the modules that stand before.
pub(crate) use {more, sits, sits_in_short};

sits!(redisson_3_12, OLDEST, reentrant, force);
sits!(redisson_3_17, PLAIN, reentrant, force);
sits!(redisson_3_27, WITH_LATCH, reentrant, force);
sits!(redisson_3_45, RECENT, reentrant, force);
sits!(redisson_newest, NEWEST, reentrant, force);
sits_in_short!(redisson_non_reentrant, NON_REENTRANT, force);

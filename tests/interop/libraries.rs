//! [`Library`]: a library that shares locks with us, what it can do, and the cases that are mounted
//! on it.

use crate::built;
use crate::cases::exact::{
    both_sides_get_a_share_of_the_lock, no_increment_is_lost_between_both_sides,
};
use crate::cases::holding::{
    foreign_unlock_of_our_lock_is_refused, late_unlock_leaves_the_next_holders_lock,
    lock_freed_by_force_is_lost_to_its_holder, nested_holds_are_held_until_the_last,
};
use crate::cases::leases::{
    fixed_lease_ends_for_both_sides, foreign_client_extends_its_own_lock_only,
    lock_of_a_killed_foreign_program_is_free_after_its_lease,
    lock_of_our_killed_program_is_free_after_its_lease, watchdogs_of_both_sides_keep_their_locks,
};
use crate::cases::waking::{
    foreign_waiter_gets_our_released_lock_at_once, our_waiter_gets_a_foreign_released_lock_at_once,
};
use crate::peer;
use crate::pins::{self, Pin};
use crate::suite::{Permit, Suite, case};
use distlock_tests::time::ms;
use std::time::Duration;

/// One library in one version, as its program in `peers/` shows it.
#[derive(Debug)]
pub(crate) struct Library {
    /// Its name in what the tests print.
    pub(crate) name: &'static str,
    /// Its name in the names of tests.
    pub(crate) id: &'static str,
    /// The folder of its program.
    pub(crate) program: &'static str,
    /// The language of its program, as `DISTLOCK_INTEROP_SKIP` calls it.
    pub(crate) language: &'static str,
    /// What its program calls the library when it is ready, and the version.
    pub(crate) pin: Pin,
    /// The arguments with which its program starts.
    pub(crate) arguments: &'static [&'static str],
    /// The settings in our URL that let us share a lock with it.
    pub(crate) options: &'static str,
    /// What it puts before the name of a lock. We set the same by `prefix=`.
    pub(crate) prefix: &'static str,
    /// How its waiters learn of a release.
    pub(crate) theirs: Learns,
    /// How our waiters learn of one of its releases.
    pub(crate) ours: Learns,
    /// Its answer when one of its threads unlocks our lock, which it never had.
    pub(crate) never_held: Refusal,
    /// Its answer when one of its threads unlocks our lock, which it had before.
    pub(crate) too_late: Refusal,
    /// The least part of all turns, in percent, that each side gets while both contend without a
    /// break.
    pub(crate) share: u64,
    /// How often the lock must change sides in some rounds in which both sides count under it. The
    /// first change does not count.
    pub(crate) crossings: usize,
    /// The arguments that make its waiters poll often, if they poll: otherwise the two sides would
    /// meet ten times instead of a thousand times.
    pub(crate) eager: &'static [&'static str],
    /// Whether it renews a lock for as long as its program lives. `watchdog=` then sets the lease.
    pub(crate) has_watchdog: bool,
}

/// How a waiter learns that the lock is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Learns {
    /// A release notifies it.
    Told,
    /// It polls, at the latest after this time.
    Asks(Duration),
}

/// What a library answers to an unlock of a lock that it does not hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// An error that contains this.
    Says(&'static str),
    /// No error: the library does not report it.
    Silent,
    /// The library has no such call, so its program answers `unsupported`.
    CannotBeAsked,
}

impl Learns {
    /// Returns the longest time after which a waiter learns of a release: `millis` (times the
    /// scale), after its interval if it polls.
    pub(crate) fn within(self, millis: u64) -> Duration {
        match self {
            Self::Told => ms(millis),
            Self::Asks(every) => every + ms(millis),
        }
    }
}

impl Library {
    /// Returns `true` for the newest Redisson and redis-py, which every run tests.
    pub(crate) fn is_in_default_tier(&self) -> bool {
        self.program == NEWEST.program || self.pin.library == pins::REDIS_PY.library
    }

    /// Whether its program is built.
    pub(crate) fn is_built(&self) -> bool {
        built::is_built(&peer::target(), self.program)
    }

    /// Whether its program can connect again for another test. This saves the start of a JVM;
    /// programs in other languages start quickly.
    pub(crate) fn can_reopen(&self) -> bool {
        self.language == "java"
    }

    /// Whether releases notify both sides, so that the lock changes sides within milliseconds.
    pub(crate) fn is_told(&self) -> bool {
        self.ours == Learns::Told && self.theirs == Learns::Told
    }

    /// Returns the key of this lock.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

/// What Redisson says to a caller that is not the holder.
const NOT_THEIRS: Refusal = Refusal::Says(
    "IllegalMonitorStateException: attempt to unlock lock, not locked by current thread",
);

/// Returns Redisson in the version that its name ends with.
const fn redisson(name: &'static str, id: &'static str) -> Library {
    Library {
        name,
        id,
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

/// The oldest of the tested versions, which `peers/java/versions` lists. From 3.22 on Redisson
/// publishes on sharded channels if the server has them. From 3.24 to 3.36 a repeated unlock is
/// answered with the result of the first one.
pub(crate) const OLDEST: Library = redisson("redisson-3.12.0", "redisson_3_12");
pub(crate) const PLAIN: Library = redisson("redisson-3.17.7", "redisson_3_17");
pub(crate) const WITH_LATCH: Library = redisson("redisson-3.27.2", "redisson_3_27");
pub(crate) const RECENT: Library = redisson("redisson-3.45.1", "redisson_3_45");
/// The newest version, which must be the last one in `peers/java/versions`.
pub(crate) const NEWEST: Library = Library {
    pin: pins::NEWEST_REDISSON,
    ..redisson("redisson-4.7.0", "redisson_newest")
};

/// Redisson's lock that is not reentrant. Older versions do not have it.
static NON_REENTRANT: Library = Library {
    name: "redisson-4.7.0, non-reentrant",
    id: "redisson_non_reentrant",
    arguments: &["kind=non-reentrant"],
    ..NEWEST
};

pub(crate) static ALL_REDISSONS: [Library; 5] = [OLDEST, PLAIN, WITH_LATCH, RECENT, NEWEST];

/// Mounts the cases of every library, and the other cases that `has` allows.
pub(crate) fn mount_cases(suite: &mut Suite, place: &str, library: &'static Library, has: &[Has]) {
    // With a polling side these cases take as long as its interval, also on a busy machine.
    let pace = if library.is_told() {
        Permit::Exclusive
    } else {
        Permit::Shared
    };
    let mut add = |permit, case| suite.mounted(place, permit, library, case);
    add(
        Permit::Exclusive,
        case!(no_increment_is_lost_between_both_sides),
    );
    add(Permit::Exclusive, case!(both_sides_get_a_share_of_the_lock));
    add(pace, case!(foreign_waiter_gets_our_released_lock_at_once));
    add(pace, case!(our_waiter_gets_a_foreign_released_lock_at_once));
    add(Permit::Shared, case!(foreign_unlock_of_our_lock_is_refused));
    add(
        Permit::Shared,
        case!(late_unlock_leaves_the_next_holders_lock),
    );
    add(
        Permit::Shared,
        case!(watchdogs_of_both_sides_keep_their_locks),
    );
    if has.contains(&Has::Leases) {
        add(
            Permit::Shared,
            case!(lock_of_our_killed_program_is_free_after_its_lease),
        );
        add(
            Permit::Shared,
            case!(lock_of_a_killed_foreign_program_is_free_after_its_lease),
        );
        add(Permit::Shared, case!(fixed_lease_ends_for_both_sides));
    }
    if has.contains(&Has::Nesting) {
        add(Permit::Shared, case!(nested_holds_are_held_until_the_last));
    }
    if has.contains(&Has::Force) {
        add(
            Permit::Shared,
            case!(lock_freed_by_force_is_lost_to_its_holder),
        );
    }
    if has.contains(&Has::Extension) {
        add(
            Permit::Shared,
            case!(foreign_client_extends_its_own_lock_only),
        );
    }
}

/// What only some libraries can do, or what some variants of a library need not show again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Has {
    /// The cases in which only a lease ends.
    Leases,
    /// Nested holds.
    Nesting,
    /// A way to free a lock of another holder.
    Force,
    /// A way to extend a lease.
    Extension,
}

pub(crate) fn mount(suite: &mut Suite) {
    for redisson in &ALL_REDISSONS {
        mount_cases(
            suite,
            "libraries",
            redisson,
            &[Has::Leases, Has::Nesting, Has::Force],
        );
    }
    mount_cases(suite, "libraries", &NON_REENTRANT, &[Has::Force]);
}

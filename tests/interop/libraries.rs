//! [`Library`]: what shares a lock with us, and what it can do. A row for each, and the cases
//! mounted on it.

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
    /// What it is called here.
    pub(crate) name: &'static str,
    /// The same in the names of tests.
    pub(crate) id: &'static str,
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
    /// How often the lock goes from one side to the other at least, but for the first time, where
    /// both count under it in some rounds.
    pub(crate) crossings: usize,
    /// What makes its waiters ask often, where they ask: so that the two sides meet a thousand
    /// times, and not ten.
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
    /// When a waiter has heard of it at the latest, if that takes so many milliseconds (times the
    /// scale) beside its own time.
    pub(crate) fn within(self, millis: u64) -> Duration {
        match self {
            Self::Told => ms(millis),
            Self::Asks(every) => every + ms(millis),
        }
    }
}

impl Library {
    /// The newest Redisson and redis-py are tested by every run.
    pub(crate) fn is_in_default_tier(&self) -> bool {
        self.program == NEWEST.program || self.pin.library == pins::REDIS_PY.library
    }

    /// Whether its program is there.
    pub(crate) fn is_built(&self) -> bool {
        built::is_built(&peer::target(), self.program)
    }

    /// Whether its program can connect anew for another test. The others start as quickly.
    pub(crate) fn can_reopen(&self) -> bool {
        self.language == "java"
    }

    /// Whether both sides are told of a release, so that a change of sides is a matter of
    /// milliseconds.
    pub(crate) fn is_told(&self) -> bool {
        self.ours == Learns::Told && self.theirs == Learns::Told
    }

    /// The key under which this lock is.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

/// What Redisson says to a caller that is not the holder.
const NOT_THEIRS: Refusal = Refusal::Says(
    "IllegalMonitorStateException: attempt to unlock lock, not locked by current thread",
);

/// Redisson of a version.
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

/// The versions that are tested, as they stand in `peers/java/versions`. From 3.22 on it publishes
/// on sharded channels where there are some, and from 3.24 to 3.36 an unlock that is sent again is
/// told what the first one did.
pub(crate) const OLDEST: Library = redisson("redisson-3.12.0", "redisson_3_12");
pub(crate) const PLAIN: Library = redisson("redisson-3.17.7", "redisson_3_17");
pub(crate) const WITH_LATCH: Library = redisson("redisson-3.27.2", "redisson_3_27");
pub(crate) const RECENT: Library = redisson("redisson-3.45.1", "redisson_3_45");
/// Must be the last of them.
pub(crate) const NEWEST: Library = Library {
    pin: pins::NEWEST_REDISSON,
    ..redisson("redisson-4.7.0", "redisson_newest")
};

/// Its lock that is held once. Older versions do not have it.
static NON_REENTRANT: Library = Library {
    name: "redisson-4.7.0, non-reentrant",
    id: "redisson_non_reentrant",
    arguments: &["kind=non-reentrant"],
    ..NEWEST
};

pub(crate) static ALL_REDISSONS: [Library; 5] = [OLDEST, PLAIN, WITH_LATCH, RECENT, NEWEST];

/// Mounts on it the cases of every library, and of the others those that it has.
pub(crate) fn mount_cases(suite: &mut Suite, place: &str, library: &'static Library, has: &[Has]) {
    // Who asks now and then takes as long as it waits between two attempts, on a busy machine, too.
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

/// What some libraries can do, and what some versions are not asked again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Has {
    /// The cases in which nothing else happens than that a lease ends.
    Leases,
    /// Holds that are nested.
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

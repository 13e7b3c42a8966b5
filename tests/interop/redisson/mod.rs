//! What only Redisson has: other kinds of locks, its topologies, and its documented defects.

// What becomes of a request whose answer is lost.
mod answers;

// RFencedLock and our tokens.
mod fenced;

// RReadWriteLock.
mod read_write;

// RFairLock, RSpinLock, RReadWriteLock and the one that is held once: what shares our key and what
// only seems to.
mod kinds;

// A waiter that gives up.
mod interrupted;

// RPermitExpirableSemaphore.
mod permits;

// What it does wrong with several locks as one.
mod members;

// What it does wrong, and that our side stays safe then.
mod misbehaves;

// RedissonMultiLock and RedissonRedLock, our several locks and our quorum.
mod several;

// Cluster and Sentinel.
mod topologies;

// Releases that its waiters do not hear of.
mod missed_releases;

use crate::libraries::{Library, NEWEST, OLDEST};
use crate::suite::Suite;

const FENCED: Library = with(NEWEST, &["kind=fenced"]);

/// The versions that are asked most: the newest one and the first one.
static ENDS: [Library; 2] = [NEWEST, OLDEST];

pub(crate) fn mount(suite: &mut Suite) {
    topologies::mount(suite);
    members::mount(suite);
    fenced::mount(suite);
    misbehaves::mount(suite);
    missed_releases::mount(suite);
    kinds::mount(suite);
    permits::mount(suite);
    read_write::mount(suite);
    answers::mount(suite);
    several::mount(suite);
    interrupted::mount(suite);
}

/// The same version with another kind of lock, or another setting.
const fn with(library: Library, arguments: &'static [&'static str]) -> Library {
    Library {
        arguments,
        ..library
    }
}

/// What it throws when it is to unlock what it does not hold, and where a lock that is held once is
/// taken again.
const REFUSED: &str = "IllegalMonitorStateException";

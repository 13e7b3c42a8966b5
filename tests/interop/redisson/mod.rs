//! What only Redisson has: other kinds of locks, its topologies, and its documented defects.

// Requests whose answer is lost.
mod answers;

// RFencedLock and our tokens.
mod fenced;

// RReadWriteLock.
mod read_write;

// RFairLock, RSpinLock, RReadWriteLock and the non-reentrant lock, on the names of our locks.
mod kinds;

// A waiter that is interrupted.
mod interrupted;

// RPermitExpirableSemaphore.
mod permits;

// Defects of the multi-lock and the red lock.
mod members;

// Other defects, which do not affect our locks.
mod misbehaves;

// RedissonMultiLock and RedissonRedLock, with our multi-lock, majority and quorum.
mod several;

// Cluster and Sentinel.
mod topologies;

// Releases that Redisson's waiters miss.
mod missed_releases;

use crate::libraries::{Library, NEWEST, OLDEST};
use crate::suite::Suite;

const FENCED: Library = with(NEWEST, &["kind=fenced"]);

/// The versions on which most defects are tested: the newest one and the oldest one.
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

/// Returns the library with other arguments, such as another kind of lock.
const fn with(library: Library, arguments: &'static [&'static str]) -> Library {
    Library {
        arguments,
        ..library
    }
}

/// The exception for an unlock of a lock that is not held, and for a second lock of a non-reentrant
/// one.
const REFUSED: &str = "IllegalMonitorStateException";

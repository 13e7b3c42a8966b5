//! What only Redisson has: other kinds of locks, its topologies, and its documented defects.

// RFencedLock and our tokens.
mod fenced;

// RFairLock, RSpinLock, RReadWriteLock: what shares our key and what only seems to.
mod kinds;

// What it does wrong, and that our side stays safe then.
mod misbehaves;

// RedissonMultiLock and RedissonRedLock, our several locks and our quorum.
mod several;

// Cluster and Sentinel.
mod topologies;

use crate::libraries::{Library, redisson};

/// The newest version, and the oldest.
static NEWEST: Library = redisson("redisson-4.7.0");
static OLDEST: Library = redisson("redisson-3.12.0");

/// The same version with another kind of lock, or another setting.
const fn with(library: Library, arguments: &'static [&'static str]) -> Library {
    Library { arguments, ..library }
}

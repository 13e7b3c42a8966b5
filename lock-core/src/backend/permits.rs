//! [`PermitChange`]: the changes of a semaphore that a client may make without holding a permit.

use crate::backend::permit::{MAX_PERMITS, PermitId};
use crate::error::Error;
use crate::time::lease::LeaseTime;

/// A change of a semaphore that any client may make, even if it holds no permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PermitChange {
    /// Sets the limit, which is the number of permits. If more permits are held than a smaller
    /// limit allows, the holders keep their permits until these are released or expire. Wakes the
    /// waiters if a permit is free after the change.
    SetLimit(u32),
    /// Atomically adds this number to the limit. If no client has used the semaphore yet, adds the
    /// number to the limit in the [kind](crate::LockKind::Permits) of the name. Refused if
    /// [`added`](Self::added) returns an error. Wakes the waiters if a permit is free after the
    /// change.
    AddLimit(i32),
    /// Releases a permit. Wakes the waiters if a permit is free after the change.
    Release(PermitId),
    /// Extends the lease of a permit to this time from now. Never shortens the lease.
    Extend(PermitId, LeaseTime),
}

impl PermitChange {
    /// Returns the limit that results if [`AddLimit`](Self::AddLimit) adds `more` to the limit
    /// `before`.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if the result is not a valid number of permits.
    pub fn added(before: i64, more: i32) -> Result<u32, Error> {
        let now = before.saturating_add(more.into());
        let limit = u32::try_from(now)
            .ok()
            .filter(|now| (1..=MAX_PERMITS).contains(now));
        limit.ok_or_else(|| {
            Error::misuse(format!(
                "the semaphore has {before} permits, and {more:+} would make {now}: a semaphore \
                 has 1 to {MAX_PERMITS}, and nothing was changed"
            ))
        })
    }
}

/// The outcome of a [`PermitChange`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PermitOutcome {
    /// The limit was set or changed.
    Limit {
        /// The former limit; `None` if no client had used the semaphore before.
        before: Option<u32>,
        /// The limit from now on.
        now: u32,
    },
    /// The permit was held, and was released or extended.
    Changed,
    /// Nothing was changed, because no such permit is held: its lease is over, it was released, or
    /// it never existed.
    NotTaken,
}

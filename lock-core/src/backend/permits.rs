//! [`PermitChange`]: changes of a semaphore that do not concern an acquisition of this client.

use crate::backend::permit::{MAX_PERMITS, PermitId};
use crate::error::Error;
use crate::time::lease::LeaseTime;

/// A change of a semaphore that any client may make, even if it holds no permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PermitChange {
    /// Sets the number of permits. Permits above a smaller limit stay with their holders until they
    /// are released; a larger limit wakes the waiters.
    SetLimit(u32),
    /// Adds this number to the number of permits, atomically. A semaphore that no client has used
    /// yet starts with the number in its [name](crate::LockKind::Permits). Refused where
    /// [`added`](Self::added) returns an error.
    AddLimit(i32),
    /// Frees a permit and wakes the waiters.
    Release(PermitId),
    /// Extends the lease of a permit to this time from now; never shortens the lease.
    Extend(PermitId, LeaseTime),
}

impl PermitChange {
    /// Returns the limit after [`AddLimit`](Self::AddLimit) of `more` to `before`.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if a semaphore cannot have that many permits.
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
    /// The limit is changed.
    Limit {
        /// The former limit; `None` if no client had used the semaphore yet.
        before: Option<u32>,
        /// The limit from now on.
        now: u32,
    },
    /// The permit was held, and is changed.
    Changed,
    /// No such permit is held: its lease is over, it was released, or it never existed.
    NotTaken,
}

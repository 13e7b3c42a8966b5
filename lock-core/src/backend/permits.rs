//! [`PermitChange`]: changes of a semaphore that are no acquisition, renewal or release of what
//! this client holds.

use crate::backend::permit::{MAX_PERMITS, PermitId};
use crate::error::Error;
use crate::time::lease::LeaseTime;

/// A change of a semaphore that any client may make, also one that holds no permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum PermitChange {
    /// Sets how many permits there are. Those above a smaller limit stay with their holders until
    /// they are released; a larger one wakes the waiters.
    SetLimit(u32),
    /// Changes how many permits there are by this number, in one step with reading how many there
    /// were: one of a semaphore that no client has used yet has as many as its
    /// [name](crate::LockKind::Permits) says. Refused where [`added`](Self::added) says so.
    AddLimit(i32),
    /// Frees a permit and wakes the waiters.
    Release(PermitId),
    /// Extends the lease of a permit to this time from now, and never shortens it.
    Extend(PermitId, LeaseTime),
}

impl PermitChange {
    /// Returns the limit after [`AddLimit`](Self::AddLimit) of `more` to `before`.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if a semaphore cannot have so many.
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
    /// The permit was taken, and is changed.
    Changed,
    /// No such permit is taken: its lease is over, it was released, or it never was.
    NotTaken,
}

//! [`Loss`]: the report that a lock was lost, with its cause.

use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use std::fmt;

/// The cause of a loss.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum LossCause {
    /// The validity of the lock ended: no renewal was confirmed in time, or the lease was fixed.
    Expired,
    /// The validity of the lock ended: renewals reached the store, but too few replicas confirmed
    /// them.
    InsufficientReplicas,
    /// The store no longer has the lock for this holder: the lock was deleted, force-unlocked, or
    /// lost by the store.
    Gone,
    /// The caller's maximum number of renewals is reached. The lease still runs, and ends by
    /// itself.
    RenewalsUsedUp,
    /// The holding thread ended without a release, so the watchdog does not renew the lock.
    HolderEnded,
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lease ended without a renewal",
            Self::InsufficientReplicas => {
                "the lease ended without a renewal that enough replicas confirmed"
            }
            Self::Gone => "the store says that the lock is not ours any more",
            Self::RenewalsUsedUp => "the renewals that were allowed are used up",
            Self::HolderEnded => "the thread that held it ended",
        })
    }
}

/// The report that a lock was lost.
#[derive(Clone, Debug)]
pub struct Loss {
    cause: LossCause,
    last_failure: Option<Error>,
    member: Option<LockName>,
}

impl Loss {
    pub(crate) fn new(cause: LossCause, last_failure: Option<Error>) -> Self {
        Self {
            cause,
            last_failure,
            member: None,
        }
    }

    /// Returns the cause.
    #[must_use]
    pub fn cause(&self) -> LossCause {
        self.cause
    }

    /// Returns the error of the last renewal, if that renewal failed, or another error that
    /// explains the loss.
    #[must_use]
    pub fn last_failure(&self) -> Option<&Error> {
        self.last_failure.as_ref()
    }

    /// Returns the member whose loss caused the loss of a composite lock; `None` for a single lock.
    #[must_use]
    pub fn member(&self) -> Option<&LockName> {
        self.member.as_ref()
    }

    /// Sets the member, unless an inner composite lock has already set it.
    pub(crate) fn of(mut self, member: &LockName) -> Self {
        self.member.get_or_insert_with(|| member.clone());
        self
    }

    /// Returns the loss as an error.
    pub(crate) fn to_error(&self) -> Error {
        let error = Error::new(
            ErrorKind::Lost,
            format!("the lock was lost: {}", self.cause),
        );
        match &self.last_failure {
            Some(failure) => error.with_source(failure.clone()),
            None => error,
        }
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(member) = &self.member {
            write!(f, "of lock \"{member}\": ")?;
        }
        self.cause.fmt(f)?;
        if let Some(failure) = &self.last_failure {
            write!(f, " ({failure})")?;
        }
        Ok(())
    }
}

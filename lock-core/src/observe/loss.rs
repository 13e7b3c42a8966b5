//! [`Loss`]: the report that a lock was lost, with its cause.

use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use std::fmt;

/// Why a lock was lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum LossCause {
    /// The local deadline passed: no renewal was confirmed in time, or the lease was a fixed one.
    Expired,
    /// The local deadline passed: renewals reached the store, but too few replicas confirmed them.
    InsufficientReplicas,
    /// The store reports that this holder does not have the lock any more: it was deleted,
    /// force-unlocked, or lost by the store.
    Gone,
    /// The number of renewals that the caller allowed is used up. The lease is still running; it
    /// ends by itself.
    RenewalsUsedUp,
    /// The thread that held it ended without releasing it, so the watchdog does not renew it.
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

    /// Returns the error of the last renewal, if it failed.
    #[must_use]
    pub fn last_failure(&self) -> Option<&Error> {
        self.last_failure.as_ref()
    }

    /// Returns the member whose loss was the loss of a composite lock; `None` for a single lock.
    #[must_use]
    pub fn member(&self) -> Option<&LockName> {
        self.member.as_ref()
    }

    /// Sets the member, unless an inner composite lock has already set it.
    pub(crate) fn of(mut self, member: &LockName) -> Self {
        self.member.get_or_insert_with(|| member.clone());
        self
    }

    /// Makes an error of it.
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

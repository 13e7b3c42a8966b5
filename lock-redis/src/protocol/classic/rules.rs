//! [`ClassicRules`]: the restrictions of a store with locks that do not say who holds them.

use super::commands::StepHook;
use super::settings::read_classic_format;
use crate::protocol::{Format, FormatKind};
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, Failure, Grant, Receipt, Release, ReleaseOptions, call_backend,
};
use lock_core::{Clock, Config, Context, Error, ErrorKind, Moment};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The hint for an attempt without an answer: nothing in the store shows if it got the lock.
const MAY_HOLD: &str = "it may have taken the lock all the same, until the lease ends, or without \
 an end where a command of its own sets that: `inspect` tells, and `force_unlock` frees it";

/// The rules of a store for locks that do not say who holds them.
///
/// A lease cannot be extended. A request without an answer is not sent again. A release is sent
/// only while the lease lasts by our own clock, and is not sent again unless it was certainly not
/// carried out: a late release could free the next holder's lock.
#[derive(Debug)]
pub(crate) struct ClassicRules {
    format: Format,
    clock: Arc<dyn Clock>,
}

/// The data of a grant that its release needs.
struct Held {
    /// The time from which on the lock may be another client's.
    until: Moment,
    /// The receipt that the wire format gave.
    receipt: Receipt,
    is_released: AtomicBool,
    /// The failure of a release that was tried but not carried out.
    failed: Mutex<Option<Error>>,
}

impl ClassicRules {
    /// Reads the format that `config` names, with its rules, if it does not say who holds a lock.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] where there is no such format.
    pub(crate) fn read(
        config: &Config,
        context: &Context,
        hook: Option<Arc<dyn StepHook>>,
    ) -> Result<Option<(Format, Self)>, Error> {
        let format = read_classic_format(config, context, hook)?;
        Ok(format.map(|format| {
            let format = Format(Arc::new(FormatKind::Classic(format)));
            let rules = Self::new(format.clone(), Arc::clone(&context.clock));
            (format, rules)
        }))
    }

    pub(super) fn new(format: Format, clock: Arc<dyn Clock>) -> Self {
        Self { format, clock }
    }

    /// Makes an attempt by `send`, once. `lead` returns by how much earlier than on the master the
    /// lease may end on a replica whose confirmation counts.
    pub(crate) fn acquire(
        &self,
        attempt: &Attempt<'_>,
        send: impl FnOnce() -> Result<Answer, Failure>,
        lead: impl FnOnce() -> Duration,
    ) -> Result<Answer, Failure> {
        let sent = self.clock.now();
        let ask = || call_backend(send);
        match self.format.attempt(attempt.owner, ask) {
            Ok(Answer::Granted(Grant {
                tokens, receipt, ..
            })) => {
                let until = sent + attempt.lease.validity().saturating_sub(lead());
                let now = self.clock.now();
                if now >= until {
                    return Err(Failure::Final(came_late(attempt, now.since(sent))));
                }
                let (is_released, failed) = (AtomicBool::new(false), Mutex::default());
                let held = Held {
                    until,
                    receipt,
                    is_released,
                    failed,
                };
                Ok(Answer::Granted(
                    Grant::new(tokens).receipt(Receipt::new(held)),
                ))
            }
            Err(Failure::Unknown(error)) => Err(Failure::Final(error.with_hint(MAY_HOLD))),
            answer => answer,
        }
    }

    /// Releases a lock by `send`, but not after the end of the lease, and not again unless the
    /// release was certainly not carried out.
    pub(crate) fn release(
        &self,
        acquisition: &AcquisitionId,
        by: Moment,
        send: impl FnOnce(&AcquisitionId, ReleaseOptions, Moment) -> Result<Release, Failure>,
    ) -> Result<Release, Failure> {
        let AcquisitionId {
            name,
            owner,
            lease,
            receipt,
            ..
        } = acquisition;
        let Some(held) = receipt.get::<Held>() else {
            return Ok(Release::Gone);
        };
        if self.clock.now() >= held.until {
            // A release failed while the lease lasted. No reply showed a loss, so this is not
            // `Gone`.
            return match &*held.failed.lock() {
                Some(error) => Err(Failure::Final(self.unconfirmed(held, error))),
                None => Ok(Release::Gone),
            };
        }
        if held.is_released.swap(true, Ordering::SeqCst) {
            return Ok(Release::Gone);
        }
        let below = AcquisitionId::new(name.clone(), *owner, *lease, held.receipt.clone());
        let options = ReleaseOptions::WITHOUT_TOMBSTONE;
        match call_backend(|| send(&below, options, by.min(held.until))) {
            Err(Failure::Unknown(error)) => Err(Failure::Final(self.unconfirmed(held, &error))),
            Err(nothing_happened) => {
                *held.failed.lock() = Some(nothing_happened.error().clone());
                held.is_released.store(false, Ordering::SeqCst);
                Err(nothing_happened)
            }
            released => released,
        }
    }

    /// Returns the refusal of a renewal.
    pub(crate) fn no_renewal() -> Failure {
        unsupported("extended")
    }

    /// Returns the refusal of a verification.
    pub(crate) fn no_verification() -> Failure {
        unsupported("verified")
    }

    fn unconfirmed(&self, held: &Held, cause: &Error) -> Error {
        let left = held.until.since(self.clock.now());
        let then = if left.is_zero() {
            "because the lease is over, and the lock may be another's".to_owned()
        } else {
            format!(
                "because it could free another's lock: that is left to the lease, of which there \
                 are {left:.1?}"
            )
        };
        let message = format!("the release was not confirmed: it is not sent again, {then}");
        Error::new(cause.kind(), message).with_source(cause.clone())
    }
}

/// Returns the failure for a grant that came too late to be used.
fn came_late(attempt: &Attempt<'_>, took: Duration) -> Error {
    let (lease, validity) = (attempt.lease, attempt.lease.validity());
    Error::unavailable(format!(
        "the store granted it, but its answer took {took:.1?}, and a lease of {lease} is good for \
         {validity:.1?} only: it is left to its lease, because it may be another's by now; ask for \
         a longer lease"
    ))
}

/// Returns the refusal of a request that needs an owner in the store.
fn unsupported(what: &str) -> Failure {
    Failure::Refused(Error::new(
        ErrorKind::Unsupported,
        format!("this wire format does not say who holds a lock, so a holding cannot be {what}"),
    ))
}

//! [`ClassicBackend`]: locks of the time before `SET NX EX` and Lua, which do not say who holds
//! them.
//!
//! - `format`: the three algorithms as a wire format
//! - `commands`: commands about one lock, one after the other
//! - [`plain`], [`timestamp`], [`counter`]: one algorithm each
//! - `progress`: how far an attempt of several commands has come
//! - `settings`: what `format=` says of them
//!
//! Each has the races that it is known for (`docs/ALGORITHMS.md`). They are here to meet programs
//! that still use them.

mod commands;
mod counter;
mod format;
mod plain;
mod progress;
mod settings;
#[cfg(test)]
mod tests;
mod timestamp;

pub use commands::StepHook;

use crate::format::Format;
use format::ClassicFormat;
use lock_core::backend::{
    Abilities, AcquisitionId, Admin, Answer, Attempt, Failure, Grant, HolderInfo, LockInfo, NodeId,
    Receipt, Release, ReleaseOptions, Renewal, RenewalRequest, Replicated, Wake, Watch,
    call_backend,
};
use lock_core::{Backend, Clock, Config, Context, Error, ErrorKind, LockName, Moment};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What is said of an attempt without an answer, which nothing in the store can be matched with.
const MAY_HOLD: &str = "it may have taken the lock all the same, until the lease ends, or without \
 an end where a command of its own sets that: `inspect` tells, and `force_unlock` frees it";

/// A store of locks that do not say who holds them, with what follows from that.
///
/// A lease is fixed. A request without an answer is not sent again. A release is sent once, and
/// only while the lease lasts by our own clock: later it could free the next holder's lock.
#[derive(Debug)]
pub(crate) struct ClassicBackend {
    store: Box<dyn Backend>,
    format: Arc<ClassicFormat>,
    clock: Arc<dyn Clock>,
}

/// What a release needs to know of the grant.
struct Held {
    /// From then on the lock may be another client's.
    until: Moment,
    /// The receipt of the store below.
    receipt: Receipt,
    is_released: AtomicBool,
    /// Why a release was not carried out, if one was tried.
    failed: Mutex<Option<Error>>,
}

impl Format {
    /// Opens the store that `build` makes for the format that `config` names: by a `ClassicBackend`
    /// where that is one of this module. `hook` is told of the steps of such a format.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] where there is no such format, and those of `build`.
    pub fn open_store<B: Backend + 'static>(
        config: &Config,
        context: &Context,
        hook: Option<Arc<dyn StepHook>>,
        build: impl FnOnce(Self) -> Result<B, Error>,
    ) -> Result<Arc<dyn Backend>, Error> {
        match settings::read_classic_format(config, context, hook)? {
            None => Ok(Arc::new(build(Self::of(config)?)?)),
            Some(format) => {
                let format = Arc::new(format);
                let store = Box::new(build(Self(Arc::clone(&format) as _))?);
                Ok(Arc::new(ClassicBackend {
                    store,
                    format,
                    clock: Arc::clone(&context.clock),
                }))
            }
        }
    }

    /// The format that `config` names, without the rules of `ClassicBackend`: for showing what they
    /// are for. `hook` is told of the steps of a format of this module.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] where there is no such format.
    pub fn bare(
        config: &Config,
        context: &Context,
        hook: Arc<dyn StepHook>,
    ) -> Result<Self, Error> {
        match settings::read_classic_format(config, context, Some(hook))? {
            Some(format) => Ok(Self(Arc::new(format))),
            None => Self::of(config),
        }
    }
}

impl Backend for ClassicBackend {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        let sent = self.clock.now();
        let ask = || call_backend(|| self.store.acquire(attempt, by));
        match self.format.attempt(attempt.owner, ask) {
            Ok(Answer::Granted(Grant {
                tokens, receipt, ..
            })) => {
                let lead = self.store.replicas().map_or(Duration::ZERO, |replicas| {
                    replicas.replica_lead(attempt.name, attempt.lease, attempt.replication)
                });
                let until = sent + attempt.lease.validity().saturating_sub(lead);
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

    fn renew(
        &self,
        _: NodeId,
        batch: &[RenewalRequest],
        _: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        batch.iter().map(|_| Err(unsupported("extended"))).collect()
    }

    fn release(
        &self,
        acquisition: &AcquisitionId,
        _: ReleaseOptions,
        by: Moment,
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
            // Nothing was heard of a loss: the store could not be asked while the lease lasted.
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
        match call_backend(|| self.store.release(&below, options, by.min(held.until))) {
            Err(Failure::Unknown(error)) => Err(Failure::Final(self.unconfirmed(held, &error))),
            Err(nothing_happened) => {
                *held.failed.lock() = Some(nothing_happened.error().clone());
                held.is_released.store(false, Ordering::SeqCst);
                Err(nothing_happened)
            }
            released => released,
        }
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.store.inspect(name, by)
    }

    fn peek(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.store.peek(name, by)
    }

    fn verify(&self, _: &AcquisitionId, _: Moment) -> Result<Option<HolderInfo>, Failure> {
        Err(unsupported("verified"))
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        self.store.watch(name, wake, by)
    }

    fn renewal_node(&self, name: &LockName) -> NodeId {
        self.store.renewal_node(name)
    }

    fn abilities(&self) -> Abilities {
        self.store.abilities()
    }

    fn close(&self, until: Moment) {
        self.store.close(until);
    }

    fn admin(&self) -> Option<&dyn Admin> {
        self.store.admin()
    }

    fn replicas(&self) -> Option<&dyn Replicated> {
        self.store.replicas()
    }
}

impl ClassicBackend {
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

/// A grant that cannot be used any more.
fn came_late(attempt: &Attempt<'_>, took: Duration) -> Error {
    let (lease, validity) = (attempt.lease, attempt.lease.validity());
    Error::unavailable(format!(
        "the store granted it, but its answer took {took:.1?}, and a lease of {lease} is good for \
         {validity:.1?} only: it is left to its lease, because it may be another's by now; ask for \
         a longer lease"
    ))
}

/// What a lock without an owner cannot be.
fn unsupported(what: &str) -> Failure {
    Failure::Refused(Error::new(
        ErrorKind::Unsupported,
        format!("this wire format does not say who holds a lock, so a holding cannot be {what}"),
    ))
}

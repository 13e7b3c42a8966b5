//! [`Admin`] and [`Replicated`]: extensions of [`Backend`] for features that only some stores have.

use super::replication::Replication;
use super::{Backend, Failure, LockInfo, LockPage, PagePosition, PermitChange, PermitOutcome};
use crate::backend::diagnosis::Finding;
use crate::error::{Error, ErrorKind};
#[cfg(doc)]
use crate::kind::LockKind;
use crate::name::LockName;
use crate::time::Moment;
use crate::time::lease::LeaseTime;
use std::time::Duration;

/// The message of an unsupported [`Admin::list`].
pub const NO_LISTING: &str =
    "this store, in this wire format, cannot list its locks: name those to look at";
/// The message of an unsupported [`Admin::change_permits`].
pub const NO_SEMAPHORES: &str = "this store has no semaphores";
/// The message of an unsupported [`Admin::force_release`].
pub const NO_FORCED_RELEASE: &str = "this store cannot release the lock of another holder";

/// Requests of operators and the administration of semaphores: an extension of [`Backend`].
///
/// A store that has this extension returns it from [`Backend::admin`]. With other stores the
/// client's requests of this kind fail with [`ErrorKind::Unsupported`], except for the inspection
/// of several locks, for which the client calls [`Backend::inspect`], and for a diagnosis, which is
/// empty.
pub trait Admin: Backend {
    /// Releases the lock, whichever owner holds it, wakes the waiters, and returns whether the lock
    /// was held. If the lock is free and the store has a queue for it, removes the first waiter
    /// from the queue instead. If the value under the key is in another format, changes nothing and
    /// fails with [`ErrorKind::ForeignFormat`].
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure>;

    /// Changes a [semaphore](LockKind::Permits), or one of its permits. A request whose outcome is
    /// unknown must not be sent again, because the semaphore could be changed twice. Only
    /// [`PermitChange::SetLimit`] may be repeated.
    ///
    /// The engine calls this only if [`Abilities::all_kinds`](super::Abilities::all_kinds) is true.
    /// The default returns [`ErrorKind::Unsupported`].
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn change_permits(
        &self,
        _name: &LockName,
        _change: PermitChange,
        _by: Moment,
    ) -> Result<PermitOutcome, Failure> {
        Err(unsupported(NO_SEMAPHORES))
    }

    /// Inspects several locks in few requests, and fills in every field of [`LockInfo`] that the
    /// store knows. These fields include the readers of a read-write lock, even if its name is
    /// requested as a mutex. Returns one answer for each name, in the order of `names`.
    ///
    /// The default calls [`inspect`](Backend::inspect) for one name after the other.
    fn inspect_all(&self, names: &[LockName], by: Moment) -> Vec<Result<LockInfo, Failure>> {
        names.iter().map(|name| self.inspect(name, by)).collect()
    }

    /// Returns a page of the held locks whose names match `pattern`, a glob as in Redis' `SCAN ..
    /// MATCH`. Changes nothing. Reads a bounded number of keys, so a page may be empty although
    /// others follow.
    ///
    /// A lock that is held from the request for the first page to the answer with the last is on at
    /// least one page, perhaps on several. A lock that is acquired or released between these may be
    /// missing. A page contains only locks in this client's format, without semaphores; if the
    /// format does not mark its locks, the values that look like one.
    ///
    /// The default returns [`ErrorKind::Unsupported`].
    ///
    /// # Errors
    ///
    /// See [`Failure`]. Also fails if a part of the store cannot be reached.
    fn list(&self, _pattern: &str, _from: &PagePosition, _by: Moment) -> Result<LockPage, Failure> {
        Err(unsupported(NO_LISTING))
    }

    /// Returns the findings about those settings and states of the store that matter for locks,
    /// even if nothing is wrong. Changes nothing in the store. If a value cannot be read, its
    /// finding has the level [`Unknown`](crate::FindingLevel::Unknown).
    ///
    /// The default returns no findings.
    ///
    /// # Errors
    ///
    /// See [`Failure`]. Fails only if no part of the store can be reached.
    fn diagnose(&self, _by: Moment) -> Result<Vec<Finding>, Failure> {
        Ok(Vec::new())
    }
}

/// The differences between the clocks of a store's servers: an extension of [`Backend`], for a
/// store that may replace a failed server by a replica.
pub trait Replicated: Backend {
    /// Returns by how much earlier the lease of this lock may end on a replica than on the master
    /// that grants it, because the clocks of the servers differ. Only replicas that count under the
    /// policy `replication` matter. The engine shortens the validity of the lock by this time.
    /// Called after each grant and renewal that replicas must confirm, so it must be cheap and must
    /// not block. When a store finds that the value has grown, it calls
    /// [`Notices::replica_lead_grew`](crate::Notices::replica_lead_grew).
    fn replica_lead(&self, name: &LockName, lease: LeaseTime, replication: Replication)
    -> Duration;
}

impl dyn Backend + '_ {
    /// Returns the store's [`Admin`] extension, or an error if it has none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] with the message `missing`, if the store has no such extension.
    pub fn require_admin(&self, missing: &'static str) -> Result<&dyn Admin, Failure> {
        self.admin().ok_or_else(|| unsupported(missing))
    }

    /// Inspects several locks by [`Admin::inspect_all`], or one after the other by
    /// [`Backend::inspect`] if the store has no [`Admin`] extension.
    pub fn inspect_many(&self, names: &[LockName], by: Moment) -> Vec<Result<LockInfo, Failure>> {
        match self.admin() {
            Some(admin) => admin.inspect_all(names, by),
            None => names.iter().map(|name| self.inspect(name, by)).collect(),
        }
    }
}

pub(super) fn unsupported(why: &str) -> Failure {
    Failure::NotSent(Error::new(ErrorKind::Unsupported, why))
}

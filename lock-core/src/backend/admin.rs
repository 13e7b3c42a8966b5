//! [`Admin`] and [`Replicated`]: what only some stores can do.

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

/// The refusal of [`Admin::list`].
pub const NO_LISTING: &str =
    "this store, in this wire format, cannot list its locks: name those to look at";
/// The refusal of [`Admin::change_permits`].
pub const NO_SEMAPHORES: &str = "this store has no semaphores";
/// The refusal of [`Admin::force_release`].
pub const NO_FORCED_RELEASE: &str = "this store cannot release the lock of another holder";

/// Requests of operators and of the semaphores' administration: an extension of [`Backend`].
///
/// A store that has it returns it from [`Backend::admin`]. Without it the client's requests of this
/// kind are [`ErrorKind::Unsupported`], or answered by [`Backend::inspect`].
pub trait Admin: Backend {
    /// Releases the lock of any holder, wakes the waiters, and returns whether it was held. A value
    /// in another format is not changed, and reported as
    /// [`ErrorKind::ForeignFormat`].
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure>;

    /// Changes a [semaphore](LockKind::Permits), or one of its permits, once: a request whose
    /// outcome is unknown is not sent again.
    ///
    /// Called only if [`Abilities::all_kinds`](super::Abilities::all_kinds) says so.
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

    /// Like [`inspect`](Backend::inspect), for several locks, in few requests and with all that the
    /// store can tell of [`LockInfo`], also if what a mutex is asked for is a read-write lock.
    /// Returns one answer for each name, in the same order.
    ///
    /// The default asks for one after the other, and for the holder alone.
    fn inspect_all(&self, names: &[LockName], by: Moment) -> Vec<Result<LockInfo, Failure>> {
        names.iter().map(|name| self.inspect(name, by)).collect()
    }

    /// Returns a page of the locks that are held and whose names match `pattern`, a glob as in
    /// Redis' `SCAN .. MATCH`. Changes nothing, and asks for a bounded number of keys, so a page
    /// may be empty.
    ///
    /// A lock that is held from the first page to the last is on at least one of them, perhaps on
    /// several; one that is taken or released meanwhile may be missing. Only what is certainly a
    /// lock in this client's format is returned.
    ///
    /// Unsupported in the default.
    ///
    /// # Errors
    ///
    /// See [`Failure`]: a part of the store cannot be asked.
    fn list(&self, _pattern: &str, _from: &PagePosition, _by: Moment) -> Result<LockPage, Failure> {
        Err(unsupported(NO_LISTING))
    }

    /// Returns what of the store's settings and state matters for locks, the good and the bad.
    /// Changes nothing there. What cannot be looked at is
    /// [`Unknown`](crate::FindingLevel::Unknown).
    ///
    /// Nothing in the default.
    ///
    /// # Errors
    ///
    /// See [`Failure`]: the store cannot be asked at all.
    fn diagnose(&self, _by: Moment) -> Result<Vec<Finding>, Failure> {
        Ok(Vec::new())
    }
}

/// The clocks of a store's replicas: an extension of [`Backend`], for a store that replaces a
/// failed server by a replica.
pub trait Replicated: Backend {
    /// Returns by how much earlier than on the server that grants it the lease of this lock may end
    /// on a replica that counts under this policy, because the clocks of the servers differ: the
    /// lock is trusted for as much less. Called when it was granted or renewed; must be cheap and
    /// not block. A store that learns that it has grown calls
    /// [`Notices::replica_lead_grew`](crate::Notices::replica_lead_grew).
    fn replica_lead(&self, name: &LockName, lease: LeaseTime, replication: Replication)
    -> Duration;
}

impl dyn Backend + '_ {
    /// Returns the store's requests of operators.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`], for the reason that `missing` names, if it has none.
    pub fn require_admin(&self, missing: &'static str) -> Result<&dyn Admin, Failure> {
        self.admin().ok_or_else(|| unsupported(missing))
    }

    /// Inspects several locks by [`Admin::inspect_all`], or one after the other in a store without
    /// it.
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

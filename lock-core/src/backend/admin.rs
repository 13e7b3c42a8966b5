//! [`Admin`] and [`Replicated`]: features that only some stores have.

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
/// A store that has this extension returns it from [`Backend::admin`]. Without it these requests of
/// the client fail with [`ErrorKind::Unsupported`], or are answered by [`Backend::inspect`].
pub trait Admin: Backend {
    /// Releases the lock of any holder, wakes the waiters, and returns whether the lock was held. A
    /// value in another format is not changed, but reported as [`ErrorKind::ForeignFormat`].
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure>;

    /// Changes a [semaphore](LockKind::Permits), or one of its permits. A request whose outcome is
    /// unknown is not sent again, because a repetition could change it twice.
    ///
    /// Called only if [`Abilities::all_kinds`](super::Abilities::all_kinds) is true.
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
    /// store knows. That includes the readers of a read-write lock whose name is requested as a
    /// mutex. Returns one answer for each name, in the order of `names`.
    ///
    /// The default calls [`inspect`](Backend::inspect) for one name after the other.
    fn inspect_all(&self, names: &[LockName], by: Moment) -> Vec<Result<LockInfo, Failure>> {
        names.iter().map(|name| self.inspect(name, by)).collect()
    }

    /// Returns a page of the held locks whose names match `pattern`, a glob as in Redis' `SCAN ..
    /// MATCH`. Changes nothing, and reads a bounded number of keys, so a page may be empty.
    ///
    /// A lock that is held from the first page to the last is on at least one page, perhaps on
    /// several. A lock that is acquired or released meanwhile may be missing. A page contains only
    /// values that are certainly locks in this client's format.
    ///
    /// The default is unsupported.
    ///
    /// # Errors
    ///
    /// See [`Failure`]: a part of the store cannot be reached.
    fn list(&self, _pattern: &str, _from: &PagePosition, _by: Moment) -> Result<LockPage, Failure> {
        Err(unsupported(NO_LISTING))
    }

    /// Returns the findings about the store's settings and state that matter for locks, good and
    /// bad. Changes nothing in the store. A finding about something that cannot be read is
    /// [`Unknown`](crate::FindingLevel::Unknown).
    ///
    /// The default returns no findings.
    ///
    /// # Errors
    ///
    /// See [`Failure`]: no part of the store can be reached.
    fn diagnose(&self, _by: Moment) -> Result<Vec<Finding>, Failure> {
        Ok(Vec::new())
    }
}

/// The clocks of a store's replicas: an extension of [`Backend`], for a store that replaces a
/// failed server by a replica.
pub trait Replicated: Backend {
    /// Returns by how much earlier the lease of this lock may end on a replica that counts under
    /// this policy than on the server that grants it, because the clocks of the servers differ. The
    /// engine shortens the validity of the lock by this time. Called after each grant and renewal;
    /// must be cheap and not block. When a store finds that the value has grown, it calls
    /// [`Notices::replica_lead_grew`](crate::Notices::replica_lead_grew).
    fn replica_lead(&self, name: &LockName, lease: LeaseTime, replication: Replication)
    -> Duration;
}

impl dyn Backend + '_ {
    /// Returns the store's [`Admin`] extension.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Unsupported`] with the message `missing`, if the store has no such extension.
    pub fn require_admin(&self, missing: &'static str) -> Result<&dyn Admin, Failure> {
        self.admin().ok_or_else(|| unsupported(missing))
    }

    /// Inspects several locks by [`Admin::inspect_all`], or one after the other if the store has no
    /// [`Admin`].
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

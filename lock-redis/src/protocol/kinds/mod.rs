//! [`KindFormat`]: the bytes and scripts of the kinds of locks besides the mutex, in
//! `format=redisson`.
//!
//! [`OwnedFormat`] implements what all kinds have in common: the outcome of a release, the wait
//! queue, and reads of labels. The files here implement what differs: the keys, the scripts and the
//! scripts' replies.

/// Creates a script of these files, which publishes on the `CHANNEL` of the module that uses this
/// macro, and has that module's `names_beside`.
macro_rules! script {
    ($name:literal: $($file:literal),+) => {
        $crate::lua::Script::new(
            $name,
            CHANNEL,
            None,
            concat!($(include_str!(concat!("../../lua/", $file, ".lua"))),+),
        )
        .with_names_beside(names_beside)
    };
}

mod permits;
mod read_write;
mod readers;

use super::OwnedFormat;
use super::exchange::Exchange;
use super::label::Labels;
use super::script_call::ScriptCall;
use crate::connection::Text;
use crate::lua::Script;
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, Failure, HolderInfo, LockInfo, PermitChange, PermitOutcome,
    ReleaseOptions,
};
use lock_core::{Error, LockKind, LockName, OwnerId};
use std::fmt;

/// The format of one kind of lock in the store.
pub(crate) trait KindFormat: fmt::Debug + Sync {
    /// Returns the channel on which releases are published.
    fn channel(&self, key: &str) -> String;

    /// Refuses a key whose lock would share its state with another lock, by the rules of the
    /// format.
    fn refuse_shared_state(&self, _key: &str) -> Result<(), Failure> {
        Ok(())
    }

    /// Returns the name under which this owner waits in the queue. The name is derived from the
    /// owner, or from its client; then the threads of the client wait in a local queue.
    fn waiter(&self, kind: LockKind, owner: &Text) -> String;

    /// Returns true if the server also reports changes of the lock's key to its waiters.
    fn is_tracked(&self, kind: LockKind) -> bool;

    /// Returns the companion keys that the kind has in addition to those of a mutex.
    fn names_beside(&self, key: &str) -> Vec<String> {
        self.scripts()
            .first()
            .map_or_else(Vec::new, |script| (script.names_beside)(key))
    }

    /// Returns the scripts that the kind has in addition to those of a mutex.
    fn scripts(&self) -> &'static [&'static Script];

    /// Tries once to acquire the lock. `is_tracked` as for
    /// [`Format::acquire`](super::Format::acquire).
    fn acquire<'a>(
        &'static self,
        format: &'a OwnedFormat,
        attempt: &'a Attempt<'a>,
        is_tracked: &'a dyn Fn(&str, bool) -> bool,
    ) -> Result<Exchange<'a, Answer>, Failure>;

    /// Returns the call that ends a hold, or a wait in a queue of the store. Its reply is that of
    /// `release.lua`.
    fn release(
        &self,
        format: &OwnedFormat,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
    ) -> ScriptCall;

    /// Returns the call that extends one lease. Its reply is 1, or 0 if this owner does not hold
    /// the lock.
    fn renew(&self, format: &OwnedFormat, acquisition: &AcquisitionId) -> ScriptCall;

    /// Reads the holders, and whatever else the store knows of the lock. By default, reads them as
    /// for a mutex.
    fn inspect<'a>(
        &'static self,
        format: &'a OwnedFormat,
        name: &LockName,
        labels: Labels,
    ) -> Exchange<'a, LockInfo> {
        format.inspect_mutex(name, labels)
    }

    /// Returns the holder, if it is the owner of this acquisition. By default, a lock has one
    /// holder.
    fn verify<'a>(
        &'static self,
        format: &'a OwnedFormat,
        acquisition: &'a AcquisitionId,
    ) -> Exchange<'a, Option<HolderInfo>> {
        let info = self.inspect(format, &acquisition.name, Labels::LeftOut);
        info.map(|info| info.held_by(acquisition.owner))
    }

    /// Returns the call that ends all holds; for readers, the holds of all readers only. Its reply
    /// is that of `force.lua`.
    fn force(&self, format: &OwnedFormat, name: &LockName) -> ScriptCall;

    /// Changes the permits of a semaphore. See
    /// [`Admin::change_permits`](lock_core::backend::Admin::change_permits).
    fn change_permits<'a>(
        &'static self,
        _format: &'a OwnedFormat,
        _name: &'a LockName,
        _change: PermitChange,
    ) -> Result<Exchange<'a, PermitOutcome>, Failure> {
        Err(no_semaphore())
    }
}

/// Returns the refusal of a change of permits, for other kinds of locks.
pub(crate) fn no_semaphore() -> Failure {
    Failure::NotSent(Error::misuse("only a semaphore has permits"))
}

/// The formats of all kinds besides the mutex.
pub(crate) static ALL: &[&dyn KindFormat] = &[&PERMITS, &READ, &WRITE];

static PERMITS: permits::PermitFormat = permits::PermitFormat;
static READ: read_write::Read = read_write::Read;
static WRITE: read_write::Write = read_write::Write;

/// Returns the format of a kind; `None` for a mutex.
pub(crate) fn format_of(kind: LockKind) -> Option<&'static dyn KindFormat> {
    match kind {
        LockKind::Read | LockKind::FairRead => Some(&READ),
        LockKind::Write | LockKind::FairWrite => Some(&WRITE),
        LockKind::Permits { .. } | LockKind::FairPermits { .. } => Some(&PERMITS),
        LockKind::Mutex | LockKind::Fair => None,
        // Not treated as a mutex: otherwise two kinds would share a key.
        _ => unreachable!("{kind:?} has no format"),
    }
}

/// The format whose inspection also shows the readers of a read-write lock.
pub(super) const READERS: &dyn KindFormat = &WRITE;

/// Returns the name of a waiter: the owner, if the kind keeps the order of arrival of all threads;
/// otherwise the client, whose threads wait in a local queue.
fn owner_or_client(kind: LockKind, owner: &Text) -> &str {
    let owner = owner.as_str();
    let client = owner.split(':').next().unwrap_or_default();
    if kind.is_queued() { owner } else { client }
}

/// Returns the name under which this owner waits in the queue of a lock of this kind.
pub(super) fn waiter(kind: LockKind, owner: &Text) -> String {
    match format_of(kind) {
        Some(format) => format.waiter(kind, owner),
        None => owner_or_client(kind, owner).to_owned(),
    }
}

/// Returns the owner of an acquisition as [`KindFormat::inspect`] shows the owner.
pub(super) fn shown_owner(kind: LockKind, owner: OwnerId) -> String {
    match kind.permits() {
        Some((_, count)) => permits::shown_owner(owner, count),
        None => Text::owner(owner).as_str().to_owned(),
    }
}

/// Returns the call that extends the lease of a lock whose holder is a field of its hash, like a
/// mutex.
fn renewal(format: &OwnedFormat, acquisition: &AcquisitionId, holder: &[u8]) -> ScriptCall {
    let lease = Text::number(acquisition.lease.as_millis());
    let key = format.keys.lock(&acquisition.name).into_owned();
    ScriptCall::new(
        &format.dialect.scripts.renew,
        vec![key],
        &[lease.as_bytes(), holder],
    )
}

//! [`KindFormat`]: the bytes and scripts of the kinds of locks besides the mutex, in
//! `format=redisson`.
//!
//! What a request is sent on, what a release means and who is woken is the same for all kinds, and
//! stands in [`OwnedFormat`]; here stands what differs: the keys, the scripts, and their replies.

/// A script of these files, which tells on the `CHANNEL` of the module that makes it, and has its
/// `names_beside`.
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

mod fair;
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

/// How one kind of lock stands in the store.
pub(crate) trait KindFormat: fmt::Debug + Sync {
    /// Where its releases are published.
    fn channel(&self, key: &str) -> String;

    /// Refuses a key whose lock would share another's state, as the format names it.
    fn refuse_shared_state(&self, _key: &str) -> Result<(), Failure> {
        Ok(())
    }

    /// The queue of its waiters in the store, where there is one: each client is told which of its
    /// own is next, and of no releases.
    fn queue(&self, _key: &str) -> Option<String> {
        None
    }

    /// Whether changes of the lock's key are reported to its waiters, besides.
    fn is_tracked(&self) -> bool {
        true
    }

    /// The keys that it has beside those of a mutex.
    fn names_beside(&self, key: &str) -> Vec<String> {
        self.scripts()
            .first()
            .map_or_else(Vec::new, |script| (script.names_beside)(key))
    }

    /// All that it runs besides those of a mutex.
    fn scripts(&self) -> &'static [&'static Script];

    /// Tries once to take it. `is_tracked` as for [`Format::acquire`](super::Format::acquire).
    fn acquire<'a>(
        &'static self,
        format: &'a OwnedFormat,
        attempt: &'a Attempt<'a>,
        is_tracked: &'a dyn Fn(&str) -> bool,
    ) -> Result<Exchange<'a, Answer>, Failure>;

    /// What ends a hold, or a wait in a queue of the store. The reply is that of `release.lua`.
    fn release(
        &self,
        format: &OwnedFormat,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
    ) -> ScriptCall;

    /// What extends one lease. The reply is 1, or 0 if this owner does not hold it.
    fn renew(&self, format: &OwnedFormat, acquisition: &AcquisitionId) -> ScriptCall;

    /// The holders, and what the store knows besides. The default is that of a mutex.
    fn inspect<'a>(
        &'static self,
        format: &'a OwnedFormat,
        name: &LockName,
        labels: Labels,
    ) -> Exchange<'a, LockInfo> {
        format.inspect_mutex(name, labels)
    }

    /// This acquisition, if its owner holds it. By default it is the only holder.
    fn verify<'a>(
        &'static self,
        format: &'a OwnedFormat,
        acquisition: &'a AcquisitionId,
    ) -> Exchange<'a, Option<HolderInfo>> {
        let info = self.inspect(format, &acquisition.name, Labels::LeftOut);
        info.map(|info| info.held_by(acquisition.owner))
    }

    /// What ends all holds. The reply is that of `force.lua`.
    fn force(&self, format: &OwnedFormat, name: &LockName) -> ScriptCall;

    /// Changes a semaphore. See
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

/// Why permits of another kind of lock are not set.
pub(crate) fn no_semaphore() -> Failure {
    Failure::NotSent(Error::misuse("only a semaphore has permits"))
}

/// All of them.
pub(crate) static ALL: &[&dyn KindFormat] = &[
    &fair::Fair,
    &PERMITS,
    &FAIR_PERMITS,
    &READ,
    &WRITE,
    &FAIR_READ,
    &FAIR_WRITE,
];

static PERMITS: permits::PermitFormat = permits::PermitFormat { is_fair: false };
static FAIR_PERMITS: permits::PermitFormat = permits::PermitFormat { is_fair: true };
static READ: read_write::Read = read_write::Read { is_fair: false };
static WRITE: read_write::Write = read_write::Write { is_fair: false };
static FAIR_READ: read_write::Read = read_write::Read { is_fair: true };
static FAIR_WRITE: read_write::Write = read_write::Write { is_fair: true };

/// The format of a kind; `None` for a mutex.
pub(crate) fn format_of(kind: LockKind) -> Option<&'static dyn KindFormat> {
    match kind {
        LockKind::Fair => Some(&fair::Fair),
        LockKind::Read => Some(&READ),
        LockKind::Write => Some(&WRITE),
        LockKind::FairRead => Some(&FAIR_READ),
        LockKind::FairWrite => Some(&FAIR_WRITE),
        LockKind::Permits { .. } => Some(&PERMITS),
        LockKind::FairPermits { .. } => Some(&FAIR_PERMITS),
        LockKind::Mutex => None,
        // Never taken for a mutex: then two kinds would share a key.
        _ => unreachable!("{kind:?} has no format"),
    }
}

/// Shows the readers of a read-write lock, too.
pub(super) const READERS: &dyn KindFormat = &WRITE;

/// The owner of an acquisition as [`KindFormat::inspect`] shows it.
pub(super) fn shown_owner(kind: LockKind, owner: OwnerId) -> String {
    match kind.permits() {
        Some((_, count)) => permits::shown_owner(owner, count),
        None => Text::owner(owner).as_str().to_owned(),
    }
}

/// What extends the lease of a lock whose holder is a field of its hash, as for a mutex.
fn renewal(format: &OwnedFormat, acquisition: &AcquisitionId, holder: &[u8]) -> ScriptCall {
    let lease = Text::number(acquisition.lease.as_millis());
    let key = format.keys.lock(&acquisition.name).into_owned();
    ScriptCall::new(
        &format.dialect.scripts.renew,
        vec![key],
        &[lease.as_bytes(), holder],
    )
}

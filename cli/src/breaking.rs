//! `break`: releases the lock of any holder.

use crate::arguments::BreakArguments;
use crate::exit::{self, Failure};
use crate::output::{self, report};
use crate::store::{held_for, named, rounded, short};
use distlock::admin::PermitId;
use distlock::backend::{HolderInfo, LockInfo};
use distlock::{Client, DistLock, Error, LockName, Semaphore};
use std::sync::Arc;

/// Asks for confirmation, and breaks the lock.
pub(crate) fn break_lock(arguments: &BreakArguments) -> Result<u8, Failure> {
    let client = arguments.store.connect_for(&arguments.name)?;
    if let Some(permit) = arguments.permit {
        return break_permit(&client, arguments, permit);
    }
    let lock = Breakable::of(&client, arguments)?;
    let found = lock.inspect()?;
    if found.holder.is_none() {
        report(format_args!("lock {:?} is free", arguments.name));
        return Ok(exit::CONFLICT);
    }
    let who = format!("{:?}, held by {}", arguments.name, described(&found));
    let question = format!("Break lock {who}? Another holder may enter.");
    if !arguments.yes && !output::is_confirmed(&question)? {
        report("nothing was broken");
        return Ok(exit::CONFLICT);
    }
    let now = lock.inspect()?;
    if has_another_holder(&found, &now) {
        report("it has another holder by now, and nothing was broken");
        return Ok(exit::CONFLICT);
    }
    if !lock.release()? {
        report(format_args!(
            "lock {:?} was released meanwhile",
            arguments.name
        ));
        return Ok(exit::CONFLICT);
    }
    output::line(&format!("broke lock {who}"))
}

/// Asks for confirmation, and releases the slot with this permit.
fn break_permit(
    client: &Client,
    arguments: &BreakArguments,
    permit: PermitId,
) -> Result<u8, Failure> {
    // Shows only a part of the ID, because a program that knows the whole ID can release the slot.
    let what = format!("slot {permit:?} of {:?}", arguments.name);
    let question = format!("Take {what} from its holder? Another one may enter.");
    if !arguments.yes && !output::is_confirmed(&question)? {
        report("nothing was broken");
        return Ok(exit::CONFLICT);
    }
    if !client
        .semaphore(&*arguments.name, 1)?
        .release_permit(permit)?
    {
        report(format_args!("{what} is not taken"));
        return Ok(exit::CONFLICT);
    }
    output::line(&format!("broke {what}"))
}

/// The lock or the slots to release.
enum Breakable {
    Lock(Arc<dyn DistLock>),
    Slots(Semaphore),
}

impl Breakable {
    fn of(client: &Client, arguments: &BreakArguments) -> Result<Self, Failure> {
        Ok(match arguments.slots {
            // An inspection ignores the limit.
            true => Self::Slots(client.semaphore(&*arguments.name, 1)?),
            false => Self::Lock(lock_of(client, &arguments.name)?),
        })
    }

    fn inspect(&self) -> Result<LockInfo, Error> {
        match self {
            Self::Lock(lock) => lock.inspect(),
            Self::Slots(slots) => slots.inspect(),
        }
    }

    /// Releases the lock, or all slots. Returns whether there was a holder.
    fn release(&self) -> Result<bool, Error> {
        match self {
            Self::Lock(lock) => lock.force_unlock(),
            Self::Slots(slots) => slots.force_release_all(),
        }
    }
}

/// Returns the lock of this name. For a read-write lock this is its write part, whose release also
/// wakes the waiters for both parts.
fn lock_of(client: &Client, name: &str) -> Result<Arc<dyn DistLock>, Failure> {
    let names = [LockName::new(name)?];
    let is_read_write = |info: &LockInfo| info.readers.is_some();
    // If this inspection fails, the caller's inspection fails, too, and is reported.
    if client
        .inspect_all(&names)
        .iter()
        .flatten()
        .any(is_read_write)
    {
        return Ok(client.rw_lock(name)?.write().into());
    }
    Ok(client.mutex(name)?.into())
}

/// Returns whether the lock has a holder that it did not have before. Returns `false` if a new
/// holder cannot be recognized: the store names only one holder of a semaphore, and may name only
/// some of many readers, different ones each time.
fn has_another_holder(before: &LockInfo, now: &LockInfo) -> bool {
    if before.permits.is_some() {
        return false; // the store names one of them
    }
    let named = |info: &LockInfo| info.readers.as_ref().map_or(0, |it| it.known.len() as u64);
    let has_unnamed = |info: &LockInfo| info.readers.is_some() && info.holders > named(info).max(1);
    if has_unnamed(before) && (named(now) > 0 || has_unnamed(now)) {
        return false;
    }
    holders(now).any(|now| holders(before).all(|before| before.owner != now.owner))
}

/// Returns the holder, and the other readers.
fn holders(info: &LockInfo) -> impl Iterator<Item = &HolderInfo> {
    info.holder
        .iter()
        .chain(info.readers.iter().flat_map(|readers| &readers.known))
}

/// Describes the holders, with their remaining leases.
fn described(info: &LockInfo) -> String {
    /// The maximum number of readers that are described.
    const NAMED: usize = 5;
    let known = info
        .readers
        .as_ref()
        .map_or(&[][..], |readers| &readers.known);
    if info.holders < 2 || known.is_empty() {
        return info.holder.as_ref().map_or_else(String::new, with_lease);
    }
    let shown: Vec<_> = known.iter().take(NAMED).map(with_lease).collect();
    let more = if info.holders > shown.len() as u64 {
        ", .."
    } else {
        ""
    };
    format!("{} readers: {}{more}", info.holders, shown.join(", "))
}

fn with_lease(holder: &HolderInfo) -> String {
    let left = holder
        .remaining
        .map_or_else(|| "no end".to_owned(), rounded);
    let who = match held_for(holder) {
        Some(held) => format!(
            "{} ({}) for {}",
            named(holder),
            short(holder),
            rounded(held)
        ),
        None => short(holder),
    };
    format!("{who} (lease: {left})")
}

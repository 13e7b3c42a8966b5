//! [`LockInfo`]: the state of a lock in a store.

#[cfg(doc)]
use super::{Admin, Backend};
use crate::backend::owner::{OwnerId, OwnerLabel, OwnerText};
use crate::backend::token::FencingToken;
#[cfg(doc)]
use crate::kind::LockKind;
use crate::name::LockName;
use std::cmp::Reverse;
use std::time::Duration;

/// The state of a lock in a store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LockInfo {
    /// The holder; `None` if the lock is free. Of several, the one whose lease ends last.
    pub holder: Option<HolderInfo>,
    /// How many owners hold it: more than one only if its kind
    /// [is shared](LockKind::is_shared).
    pub holders: u64,
    /// How many permits the [semaphore](LockKind::Permits) has, and how many of them are free;
    /// `None` for other kinds, and for a semaphore that no client has used yet.
    pub permits: Option<Permits>,
    /// Who reads, if it is a read-write lock; `None` for other kinds. Of a held one that was asked
    /// for as a mutex, [`Admin::inspect_all`] and [`Admin::list`] tell it, too.
    pub readers: Option<Readers>,
    /// How many clients listen for its release, and so wait for it or did a moment ago. A client
    /// that polls does not listen. `None`: not asked for ([`Backend::inspect`] does not), or the
    /// store does not tell.
    pub waiters: Option<u64>,
    /// The largest token that any holder has got so far, or that was reserved for one: a bound, and
    /// not the present holder's token, which stores do not keep. `None` as for `waiters`.
    pub largest_token: Option<FencingToken>,
}

/// The permits of a semaphore, as the store counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Permits {
    /// How many there are in all.
    pub limit: u32,
    /// How many are free.
    pub free: u32,
}

impl Permits {
    /// Makes the number of permits in all, and of those that are free.
    #[must_use]
    pub fn new(limit: u32, free: u32) -> Self {
        Self { limit, free }
    }
}

/// The readers of a read-write lock, as the store reports them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Readers {
    /// Each with what is left of its own lease, the last to end first. Empty if none reads, and
    /// perhaps of a lock that a writer has. Of very many only some: [`LockInfo::holders`] counts
    /// all.
    pub known: Vec<HolderInfo>,
    /// Whether a writer waits, and keeps new readers out. Not known of a fair lock, whose waiters
    /// are in a queue.
    pub writer_waits: bool,
}

impl Readers {
    /// Makes readers, and says whether a writer waits.
    #[must_use]
    pub fn new(mut known: Vec<HolderInfo>, writer_waits: bool) -> Self {
        known.sort_by_key(|reader| Reverse(reader.remaining.unwrap_or(Duration::MAX)));
        Self {
            known,
            writer_waits,
        }
    }
}

impl LockInfo {
    /// A free lock.
    pub const FREE: Self = Self {
        holder: None,
        holders: 0,
        permits: None,
        readers: None,
        waiters: None,
        largest_token: None,
    };

    /// What is left of the holder's lease: `None` if the lock is free, [`Duration::MAX`] if the
    /// lease has no end.
    pub(crate) fn time_to_live(&self) -> Option<Duration> {
        self.holder
            .as_ref()
            .map(|holder| holder.remaining.unwrap_or(Duration::MAX))
    }

    /// Makes the state of a lock with this holder.
    #[must_use]
    pub fn held(holder: HolderInfo) -> Self {
        Self {
            holder: Some(holder),
            holders: 1,
            ..Self::FREE
        }
    }

    /// Sets how many owners hold it.
    #[must_use]
    pub fn holders(mut self, holders: u64) -> Self {
        self.holders = holders;
        self
    }

    /// Sets the permits of a semaphore.
    #[must_use]
    pub fn permits(mut self, permits: Permits) -> Self {
        self.permits = Some(permits);
        self
    }

    /// Sets the readers of a read-write lock.
    #[must_use]
    pub fn readers(mut self, readers: Readers) -> Self {
        self.readers = Some(readers);
        self
    }

    /// Returns the holder if it is this owner.
    #[must_use]
    pub fn held_by(self, owner: OwnerId) -> Option<HolderInfo> {
        self.holder.filter(|holder| owner.matches(&holder.owner))
    }

    /// Sets how many clients listen for its release.
    #[must_use]
    pub fn waiters(mut self, waiters: Option<u64>) -> Self {
        self.waiters = waiters;
        self
    }

    /// Sets the largest token so far.
    #[must_use]
    pub fn largest_token(mut self, token: Option<FencingToken>) -> Self {
        self.largest_token = token;
        self
    }
}

/// A page of [`Admin::list`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LockPage {
    /// Held locks.
    pub locks: Vec<(LockName, LockInfo)>,
    /// Where the next page begins; `None` behind the last one.
    pub next: Option<PagePosition>,
}

impl LockPage {
    /// Makes a page.
    #[must_use]
    pub fn new(locks: Vec<(LockName, LockInfo)>, next: Option<PagePosition>) -> Self {
        Self { locks, next }
    }
}

/// Where a page of [`Admin::list`] begins; the default is the first page. What it says is the
/// matter of the backend that made it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PagePosition {
    /// The part of the store.
    pub part: String,
    /// The position in that part.
    pub cursor: u64,
}

impl PagePosition {
    /// Makes a position.
    #[must_use]
    pub fn new(part: impl Into<String>, cursor: u64) -> Self {
        Self {
            part: part.into(),
            cursor,
        }
    }
}

/// The holder of a lock, as the store reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HolderInfo {
    /// The holder's identity, of this library or of a foreign client.
    pub owner: OwnerText,
    /// What is left of the lease; `None` if the lock has no lease.
    pub remaining: Option<Duration>,
    /// The hold count, if the format has one (always 1 here: nested holds are counted locally).
    pub holds: u64,
    /// Who that is, for people; `None` if the store has no label of this owner.
    pub label: Option<OwnerLabel>,
}

impl HolderInfo {
    /// Makes a holder.
    #[must_use]
    pub fn new(owner: OwnerText, remaining: Option<Duration>, holds: u64) -> Self {
        Self {
            owner,
            remaining,
            holds,
            label: None,
        }
    }

    /// Sets the owner's label.
    #[must_use]
    pub fn label(mut self, label: Option<OwnerLabel>) -> Self {
        self.label = label;
        self
    }
}

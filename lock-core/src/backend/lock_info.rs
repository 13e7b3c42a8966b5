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
    /// The holder; `None` if the lock is free. If there are several, the holder whose lease ends
    /// last.
    pub holder: Option<HolderInfo>,
    /// The number of owners that hold the lock: more than one only if its kind
    /// [is shared](LockKind::is_shared).
    pub holders: u64,
    /// The number of permits of the [semaphore](LockKind::Permits), in total and free; `None` for
    /// other kinds, and for a semaphore that no client has used yet.
    pub permits: Option<Permits>,
    /// The readers of a read-write lock; `None` for other kinds. [`Admin::inspect_all`] and
    /// [`Admin::list`] fill it in even if the name of a held read-write lock is requested as a
    /// mutex.
    pub readers: Option<Readers>,
    /// The number of clients that are subscribed to releases of the lock: they wait for it, or did
    /// so a moment ago. Clients that poll are not counted. `None`: not requested
    /// ([`Backend::inspect`] does not request it), or unknown to the store.
    pub waiters: Option<u64>,
    /// The largest token that was granted or reserved so far. It is an upper bound for the present
    /// holder's token, which stores do not keep. `None` as for `waiters`.
    pub largest_token: Option<FencingToken>,
}

/// The permits of a semaphore, as the store counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Permits {
    /// The total number of permits.
    pub limit: u32,
    /// The number of free permits.
    pub free: u32,
}

impl Permits {
    /// Makes the numbers of all permits and of the free ones.
    #[must_use]
    pub fn new(limit: u32, free: u32) -> Self {
        Self { limit, free }
    }
}

/// The readers of a read-write lock, as the store reports them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Readers {
    /// The readers, each with the remaining time of its own lease; the lease that ends last comes
    /// first. Empty if there are no readers; may be empty if a writer holds the lock. If there are
    /// very many readers, the list is incomplete: [`LockInfo::holders`] counts all.
    pub known: Vec<HolderInfo>,
    /// True if a writer waits and keeps new readers out. Always false for a fair lock, whose
    /// waiters are in a queue.
    pub writer_waits: bool,
}

impl Readers {
    /// Makes the readers of a lock; `writer_waits` is true if a writer waits.
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

    /// Returns the remaining time of the holder's lease: `None` if the lock is free,
    /// [`Duration::MAX`] if the lease has no end.
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

    /// Sets how many owners hold the lock.
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

    /// Sets how many clients are subscribed to its releases.
    #[must_use]
    pub fn waiters(mut self, waiters: Option<u64>) -> Self {
        self.waiters = waiters;
        self
    }

    /// Sets the largest token that was granted or reserved.
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
    /// The held locks of this page.
    pub locks: Vec<(LockName, LockInfo)>,
    /// The start of the next page; `None` after the last page.
    pub next: Option<PagePosition>,
}

impl LockPage {
    /// Makes a page.
    #[must_use]
    pub fn new(locks: Vec<(LockName, LockInfo)>, next: Option<PagePosition>) -> Self {
        Self { locks, next }
    }
}

/// The start of a page of [`Admin::list`]; the default is the first page. Only the backend that
/// made a position can interpret it.
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
    /// The remaining time of the lease; `None` if the lock has no lease.
    pub remaining: Option<Duration>,
    /// The hold count, if the wire format has one. Locks of this library always show 1, because
    /// nested holds are counted in the client.
    pub holds: u64,
    /// The label that describes the holder to people; `None` if the store has no label of this
    /// owner.
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

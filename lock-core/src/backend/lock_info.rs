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
    /// The number of owners that hold the lock; more than one only for the readers of a read-write
    /// lock. For a semaphore, the number of held permits.
    pub holders: u64,
    /// The total and the free number of permits of the [semaphore](LockKind::Permits); `None` for
    /// other kinds, and for a semaphore that no client has used yet.
    pub permits: Option<Permits>,
    /// The readers of a read-write lock; `None` for other kinds. [`Admin::inspect_all`] and
    /// [`Admin::list`] fill it in even if the name of a held read-write lock is requested as a
    /// mutex.
    pub readers: Option<Readers>,
    /// The number of waiters: clients that are subscribed to releases of the lock, because they
    /// wait for it or did so a moment ago, and waiters in the store's queue. Clients that poll and
    /// do not queue are not counted. `None` if the number was not requested (as by
    /// [`Backend::inspect`]), or if the store does not know it.
    pub waiters: Option<u64>,
    /// The largest token that was granted or reserved so far. The token of the present holder is at
    /// most this one; stores do not keep the exact token. `None` if the token was not requested, or
    /// if the store has none.
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
    /// Makes the permits of a semaphore from their total and their free number.
    #[must_use]
    pub fn new(limit: u32, free: u32) -> Self {
        Self { limit, free }
    }
}

/// The readers of a read-write lock, as the store reports them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Readers {
    /// The readers, each with the remaining time of its own lease. The reader whose lease ends last
    /// is the first. Empty if there are no readers. If a writer holds the lock, the list may lack
    /// the writer's own reads. If there are very many readers, the list is incomplete, but
    /// [`LockInfo::holders`] counts all of them.
    pub known: Vec<HolderInfo>,
    /// True if a writer waits that new readers do not overtake.
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
    /// The state of a free lock.
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

    /// Sets how many clients are subscribed to the releases of the lock.
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

/// The position at which a page of [`Admin::list`] starts. The default is the start of the first
/// page. Only the backend that made a position can interpret it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PagePosition {
    /// The part of the store, for example one of its nodes.
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
    /// The identity of the holder as the store records it. The holder may be a client of this
    /// library or a foreign client.
    pub owner: OwnerText,
    /// The remaining time of the lease; `None` if the lock has no lease.
    pub remaining: Option<Duration>,
    /// The hold count, if the wire format has one, and otherwise 1. It is 1 for mutexes and
    /// read-write locks of this library, because nested holds are counted in the client. For a
    /// semaphore it is 1, and in an answer about one owner (as to [`Backend::verify`]) the number
    /// of that owner's permits.
    pub holds: u64,
    /// The label that describes the holder to people; `None` if the store has no label for this
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

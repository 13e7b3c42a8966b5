//! [`LockKind`]: the kinds of locks, and [`KindProfile`]: the properties of each kind that the
//! engine and the in-memory store read. A new kind is a variant with a row here, and a protocol in
//! each store.

/// The kind of a lock: the rules for its holders. Locks of one name and different kinds are
/// separate locks in a client. In the store the mutexes and read-write locks of one name exclude
/// each other, and a semaphore needs a name of its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
#[non_exhaustive]
pub enum LockKind {
    /// A lock of one holder: [`Client::mutex`](crate::Client::mutex).
    #[default]
    Mutex,
    /// A lock of one holder, granted in the order of arrival over all clients:
    /// [`Client::fair_mutex`](crate::Client::fair_mutex). Excludes the `Mutex` of its name.
    Fair,
    /// A reader of a read-write lock: [`RwLock::read`](crate::RwLock::read).
    Read,
    /// The writer of a read-write lock, which excludes readers and other writers:
    /// [`RwLock::write`](crate::RwLock::write).
    Write,
    /// A reader of the same lock as `Read`, granted in the order of arrival over all clients:
    /// [`Client::fair_rw_lock`](crate::Client::fair_rw_lock).
    FairRead,
    /// The writer of the same lock as `Write`, granted in the order of arrival over all clients:
    /// [`Client::fair_rw_lock`](crate::Client::fair_rw_lock).
    FairWrite,
    /// Permits of a semaphore: [`Client::semaphore`](crate::Client::semaphore).
    Permits {
        /// The number of permits of the semaphore.
        limit: u32,
        /// The number of permits that one acquisition takes. 0 means all free permits, at least
        /// one; [`Grant::count`](crate::backend::Grant::count) is then the granted number.
        count: u32,
    },
    /// Permits of the same semaphore as `Permits`, granted in the order of arrival over all
    /// clients: [`Client::fair_semaphore`](crate::Client::fair_semaphore).
    FairPermits {
        /// The number of permits of the semaphore.
        limit: u32,
        /// The number of permits that one acquisition takes, as in `Permits`.
        count: u32,
    },
}

/// The properties of a kind of lock that the engine and the in-memory store read.
#[derive(PartialEq, Eq, Debug)]
pub(crate) struct KindProfile {
    /// Whether several owners may hold the lock at once.
    pub(crate) shared: bool,
    /// Whether a queue in the store grants the lock in the order of arrival over all clients.
    pub(crate) queued_in_store: bool,
    /// Whether the threads of a client wait in the local queue, and hand the lock off. Otherwise
    /// each thread contends in the store.
    pub(crate) hands_off: bool,
    /// Whether grants carry fencing tokens.
    pub(crate) tokens: bool,
    /// Whether the release of another owner may grant the lock:
    /// [`DirectGrant`](crate::backend::DirectGrant).
    pub(crate) direct_grant: bool,
    /// Whether the threads of a client that want equally many permits contend in the store one at a
    /// time.
    pub(crate) contends_in_line: bool,
    /// Whether the lock excludes the other locks of its name whose kinds have this field set, even
    /// within one thread.
    pub(crate) excludes_kinds: bool,
    /// For the kind of a reader, the kind of the writer whose own thread may also read.
    pub(crate) writer: Option<LockKind>,
    /// For the kind of a writer, the kind of the readers to which it is downgraded.
    pub(crate) readers: Option<LockKind>,
}

const MUTEX: KindProfile = KindProfile {
    shared: false,
    queued_in_store: false,
    hands_off: true,
    tokens: true,
    direct_grant: true,
    contends_in_line: false,
    excludes_kinds: true,
    writer: None,
    readers: None,
};

const FAIR: KindProfile = KindProfile {
    queued_in_store: true,
    hands_off: false,
    ..MUTEX
};

const READ: KindProfile = KindProfile {
    direct_grant: false,
    shared: true,
    hands_off: false,
    writer: Some(LockKind::Write),
    ..MUTEX
};

const WRITE: KindProfile = KindProfile {
    direct_grant: false,
    readers: Some(LockKind::Read),
    ..MUTEX
};

const FAIR_READ: KindProfile = KindProfile {
    queued_in_store: true,
    writer: Some(LockKind::FairWrite),
    ..READ
};

const FAIR_WRITE: KindProfile = KindProfile {
    queued_in_store: true,
    hands_off: false,
    readers: Some(LockKind::FairRead),
    ..WRITE
};

const PERMITS: KindProfile = KindProfile {
    direct_grant: false,
    shared: true,
    hands_off: false,
    tokens: false,
    contends_in_line: true,
    excludes_kinds: false,
    ..MUTEX
};

const FAIR_PERMITS: KindProfile = KindProfile {
    queued_in_store: true,
    contends_in_line: false,
    ..PERMITS
};

impl LockKind {
    /// The kinds that [exclude](KindProfile::excludes_kinds) each other, the mutex first.
    pub(crate) const EXCLUDING: [Self; 6] = [
        Self::Mutex,
        Self::Fair,
        Self::Read,
        Self::Write,
        Self::FairRead,
        Self::FairWrite,
    ];

    /// Returns the properties of this kind.
    pub(crate) const fn profile(self) -> &'static KindProfile {
        match self {
            Self::Mutex => &MUTEX,
            Self::Fair => &FAIR,
            Self::Read => &READ,
            Self::Write => &WRITE,
            Self::FairRead => &FAIR_READ,
            Self::FairWrite => &FAIR_WRITE,
            Self::Permits { .. } => &PERMITS,
            Self::FairPermits { .. } => &FAIR_PERMITS,
        }
    }

    /// Returns whether several owners may hold a lock of this kind at once.
    #[must_use]
    pub fn is_shared(self) -> bool {
        self.profile().shared
    }

    /// Returns whether this is the kind of the readers of a read-write lock.
    #[must_use]
    pub fn is_reader(self) -> bool {
        self.profile().writer.is_some()
    }

    /// Returns whether this is the kind of the writer of a read-write lock.
    #[must_use]
    pub fn is_writer(self) -> bool {
        self.profile().readers.is_some()
    }

    /// Returns whether a queue in the store grants locks of this kind in the order of arrival over
    /// all clients.
    #[must_use]
    pub fn is_queued(self) -> bool {
        self.profile().queued_in_store
    }

    /// Returns the kind of a mutex.
    pub(crate) fn of_mutex(is_fair: bool) -> Self {
        match is_fair {
            true => Self::Fair,
            false => Self::Mutex,
        }
    }

    /// Returns the kinds of a read-write lock: first the kind of its readers, then that of its
    /// writer.
    #[must_use]
    pub fn of_read_write(is_fair: bool) -> [Self; 2] {
        match is_fair {
            true => [Self::FairRead, Self::FairWrite],
            false => [Self::Read, Self::Write],
        }
    }

    /// Returns the kind of a semaphore whose acquisition takes `count` permits.
    pub(crate) fn of_semaphore(is_fair: bool, limit: u32, count: u32) -> Self {
        match is_fair {
            true => Self::FairPermits { limit, count },
            false => Self::Permits { limit, count },
        }
    }

    /// Returns the limit of a semaphore and the number of permits that one acquisition takes;
    /// `None` for other kinds.
    #[must_use]
    pub fn permits(self) -> Option<(u32, u32)> {
        match self {
            Self::Permits { limit, count } | Self::FairPermits { limit, count } => {
                Some((limit, count))
            }
            _ => None,
        }
    }

    /// Returns this kind as it was granted: a request of all free permits becomes one of the
    /// granted number, `permits`.
    pub(crate) fn granted(self, permits: Option<u32>) -> Self {
        match (self, permits) {
            (Self::Permits { limit, count: 0 }, Some(count)) => Self::Permits { limit, count },
            (Self::FairPermits { limit, count: 0 }, Some(count)) => {
                Self::FairPermits { limit, count }
            }
            _ => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> impl Iterator<Item = LockKind> {
        let semaphores = [true, false].map(|is_fair| LockKind::of_semaphore(is_fair, 2, 1));
        LockKind::EXCLUDING.into_iter().chain(semaphores)
    }

    #[test]
    fn rows_of_kinds_are_consistent() {
        for kind in all() {
            let row = kind.profile();
            let is_alone = !row.shared && !row.queued_in_store;
            assert_eq!(row.hands_off, is_alone, "{kind:?}");
            let excludes = LockKind::EXCLUDING.contains(&kind);
            assert_eq!(row.excludes_kinds, excludes, "{kind:?}");
            assert_eq!(row.tokens, kind.permits().is_none(), "{kind:?}");
            assert!(!row.contends_in_line || !row.hands_off, "{kind:?}");
            let writer = row.writer.map(|writer| writer.profile().readers);
            assert!(writer.is_none_or(|it| it == Some(kind)), "{kind:?}");
            let readers = row.readers.map(|readers| readers.profile().writer);
            assert!(readers.is_none_or(|it| it == Some(kind)), "{kind:?}");
        }
    }

    #[test]
    fn fair_kinds_differ_from_the_others_by_the_queue() {
        let of = |is_fair| {
            let [read, write] = LockKind::of_read_write(is_fair);
            let semaphore = LockKind::of_semaphore(is_fair, 3, 2);
            [LockKind::of_mutex(is_fair), read, write, semaphore]
        };
        for (plain, fair) in of(false).into_iter().zip(of(true)) {
            assert!(!plain.is_queued() && fair.is_queued());
            assert_eq!(plain.is_shared(), fair.is_shared());
            assert_eq!(plain.is_reader(), fair.is_reader());
            assert_eq!(plain.is_writer(), fair.is_writer());
            assert_eq!(plain.permits(), fair.permits());
        }
        assert!(of(true).map(LockKind::is_reader) == [false, true, false, false]);
        assert!(of(true).map(LockKind::is_writer) == [false, false, true, false]);
    }
}

//! [`LockName`]: the validated name of a lock, and its [`LockKind`].

use crate::sync::RandomState;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::sync::{Arc, LazyLock};

/// The name of a lock, the same for all programs that share it.
///
/// A name is UTF-8, 1 to [`LockName::MAX_BYTES`] bytes, and otherwise free: colons, spaces and
/// control characters are kept (and escaped when printed). Names are case-sensitive.
///
/// Braces are the one exception. Stores keep further keys beside a lock (its token, its channel),
/// and on Redis Cluster all of them must be in the lock's hash slot. A name may therefore have one
/// well-formed *hash tag*, as in `stock:{item-7}:lock`. Names whose braces would put the further
/// keys into another slot (`{}x`, `a{b`, `a}b`) are refused on every store, so that a program runs
/// unchanged on all of them.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::LockName;
///
/// let name = LockName::new("orders:42")?;
/// assert_eq!(name.as_str(), "orders:42");
/// assert!(LockName::new("").is_err());
/// assert!(LockName::new("{}x").is_err());
/// # Ok::<(), distlock::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LockName(Arc<NameData>);

/// Behind one pointer: each held lock has its name in several places.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct NameData {
    text: Box<str>,
    kind: LockKind,
    /// That of the text, made once: a name is looked up several times for each lock.
    hash: u64,
}

/// Random for each process, so that no names can be chosen to collide.
static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::default);

/// A map by names.
pub(crate) type NameMap<K, V> = HashMap<K, V, BuildHasherDefault<NameHasher>>;

/// Combines the hashes that names bring along with what else is in a key, as rustc's `FxHasher`
/// does.
#[derive(Default)]
pub(crate) struct NameHasher(u64);

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_ne_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Hash for LockName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.hash);
    }
}

/// What a lock of a name lets its holders do. Locks of different kinds and the same name are
/// different to a client; whether they exclude each other in the store is said with each kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
#[non_exhaustive]
pub enum LockKind {
    /// One holder: [`Client::mutex`](crate::Client::mutex).
    #[default]
    Mutex,
    /// One holder, in the order of arrival over all clients:
    /// [`Client::fair_mutex`](crate::Client::fair_mutex). Excludes the `Mutex` of its name.
    Fair,
    /// A reader of a read-write lock: [`RwLock::read`](crate::RwLock::read).
    Read,
    /// The writer of a read-write lock, which excludes readers and other writers:
    /// [`RwLock::write`](crate::RwLock::write).
    Write,
    /// A reader of the same lock as `Read`, in the order of arrival over all clients:
    /// [`Client::fair_rw_lock`](crate::Client::fair_rw_lock).
    FairRead,
    /// The writer of the same lock as `Write`, in the order of arrival over all clients:
    /// [`Client::fair_rw_lock`](crate::Client::fair_rw_lock).
    FairWrite,
    /// Permits of a semaphore: [`Client::semaphore`](crate::Client::semaphore).
    Permits {
        /// How many there are in all.
        limit: u32,
        /// How many one acquisition takes; 0: all that are free, one at least, and
        /// [`Grant::count`](crate::backend::Grant::count) says how many.
        count: u32,
    },
    /// Permits of the same semaphore as `Permits`, in the order of arrival over all clients:
    /// [`Client::fair_semaphore`](crate::Client::fair_semaphore).
    FairPermits {
        /// How many there are in all.
        limit: u32,
        /// As of `Permits`.
        count: u32,
    },
}

impl LockKind {
    /// Whether several owners may hold it at once.
    #[must_use]
    pub fn is_shared(self) -> bool {
        self.is_reader() || self.permits().is_some()
    }

    /// Returns whether it is the lock of the readers of a read-write lock.
    #[must_use]
    pub fn is_reader(self) -> bool {
        matches!(self, Self::Read | Self::FairRead)
    }

    /// Returns whether it is the lock of the writer of a read-write lock.
    #[must_use]
    pub fn is_writer(self) -> bool {
        matches!(self, Self::Write | Self::FairWrite)
    }

    /// Returns the kinds of a read-write lock: of its readers, and of its writer.
    #[must_use]
    pub fn of_read_write(is_fair: bool) -> [Self; 2] {
        match is_fair {
            true => [Self::FairRead, Self::FairWrite],
            false => [Self::Read, Self::Write],
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

    /// The same semaphore, of which an acquisition takes so many permits; other kinds stay.
    pub(crate) fn of_count(self, count: u32) -> Self {
        match self {
            Self::Permits { limit, .. } => Self::Permits { limit, count },
            Self::FairPermits { limit, .. } => Self::FairPermits { limit, count },
            other => other,
        }
    }

    /// Returns whether a queue in the store grants locks of this kind in the order of arrival over
    /// all clients.
    #[must_use]
    pub fn is_queued(self) -> bool {
        matches!(
            self,
            Self::Fair | Self::FairRead | Self::FairWrite | Self::FairPermits { .. }
        )
    }

    /// Whether the store knows who waits for it, and keeps others out.
    pub(crate) fn is_known_to_wait(self) -> bool {
        self.is_queued() || self == Self::Write
    }

    /// Whether each thread of a client asks the store for itself: it shares its hold with others,
    /// or has a position of its own in the store's queue.
    pub(crate) fn is_apart(self) -> bool {
        self.is_shared() || self.is_queued()
    }
}

impl LockName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// The name with this text, which has been validated.
    pub(crate) fn of_valid(text: &str) -> Self {
        let (kind, hash) = (LockKind::Mutex, HASHES.hash_one(text));
        Self(Arc::new(NameData {
            text: text.into(),
            kind,
            hash,
        }))
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// Returns the kind of the lock.
    #[must_use]
    pub fn kind(&self) -> LockKind {
        self.0.kind
    }

    /// Returns the name of the lock of this kind.
    #[must_use]
    pub fn of_kind(&self, kind: LockKind) -> Self {
        if kind == self.0.kind {
            return self.clone();
        }
        let NameData { text, hash, .. } = &*self.0;
        Self(Arc::new(NameData {
            text: text.clone(),
            kind,
            hash: *hash,
        }))
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.text.escape_debug())
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0.text, f)
    }
}

impl From<&LockName> for LockName {
    fn from(name: &LockName) -> Self {
        name.clone()
    }
}

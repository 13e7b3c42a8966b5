//! [`LockName`]: the validated name of a lock, and its [`LockKind`].

use crate::kind::{KindProfile, LockKind};
use crate::sync::RandomState;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher};
use std::sync::{Arc, LazyLock};

/// The name of a lock, equal in all programs that share the lock.
///
/// A name is UTF-8, 1 to [`LockName::MAX_BYTES`] bytes, and otherwise free: colons, spaces and
/// control characters are preserved (and escaped when printed). Names are case-sensitive.
///
/// Braces are the one exception. Stores keep companion keys for a lock (its token, its channel),
/// and on Redis Cluster all of them must be in the lock's hash slot. So a name with braces must
/// contain a *hash tag*, as in `stock:{item-7}:lock`: its first `{` must be followed by text and a
/// `}`. Names whose braces would put the companion keys into another slot (`{}x`, `a{b`, `a}b`) are
/// refused on every store, so that a program runs unchanged on all of them.
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

/// The data of a name, behind one pointer: each held lock has its name in several places.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct NameData {
    text: Box<str>,
    kind: LockKind,
    /// The hash of the text, computed once: each lock needs it several times.
    hash: u64,
}

/// The hash function for names, random for each process so that no names can be chosen to collide.
static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::default);

/// A map whose keys contain lock names.
pub(crate) type NameMap<K, V> = HashMap<K, V, BuildHasherDefault<NameHasher>>;

/// Combines the stored hash of a name with the rest of a key, as rustc's `FxHasher` does.
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

impl LockName {
    /// The longest name, in bytes, so that keys stay short. A program that needs longer names
    /// hashes them.
    pub const MAX_BYTES: usize = 512;

    /// Makes the name of a mutex from this text, which must be valid.
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

    /// Returns the properties of the kind.
    pub(crate) fn profile(&self) -> &'static KindProfile {
        self.0.kind.profile()
    }

    /// Returns the limit of a semaphore and the number of permits that one acquisition takes;
    /// `None` for other kinds.
    pub(crate) fn permits(&self) -> Option<(u32, u32)> {
        self.0.kind.permits()
    }

    /// Returns whether this is the name of a mutex. Such a name is also the common key for the
    /// locks of all kinds with this text.
    pub(crate) fn is_plain(&self) -> bool {
        self.0.kind == LockKind::Mutex
    }

    /// Returns the name without its kind: the mutex's name.
    pub(crate) fn plain(&self) -> Cow<'_, Self> {
        match self.is_plain() {
            true => Cow::Borrowed(self),
            false => Cow::Owned(self.of_kind(LockKind::Mutex)),
        }
    }

    /// Returns the names of this text whose locks [exclude](KindProfile::excludes_kinds) each
    /// other, even within one thread.
    pub(crate) fn excluding(&self) -> impl Iterator<Item = Self> + '_ {
        LockKind::EXCLUDING
            .into_iter()
            .map(|kind| self.of_kind(kind))
    }

    /// Returns this name as it was granted: a request of all free permits becomes one of the
    /// granted number, `count`.
    pub(crate) fn granted(&self, count: Option<u32>) -> Self {
        self.of_kind(self.0.kind.granted(count))
    }

    /// Returns the name with this kind.
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

//! [`Keys`]: the names of a lock's keys and channels.
//!
//! By Redisson's rule, a companion key of the lock `key` is called `prefix:{key}`, or `prefix:key`
//! if `key` contains `{`. Thus all keys of a lock are in one hash slot of a cluster. [`LockName`]
//! refuses names for which the rule does not ensure that. Some names begin with the lock's key
//! instead: `{key}:part`, or `key:part` if `key` contains `{`. For example, the permits of a
//! semaphore are at `{key}:timeout`.
//!
//! By that rule, the locks `x` and `{x}` share the companion keys that Redisson defines. The locks
//! do not share the keys and channels that only this library uses: in those, a key that is one hash
//! tag, perhaps after colons, gets one more colon before it.

use crate::connection::Text;
use lock_core::LockName;
use std::borrow::Cow;

/// The number of hash slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// The mapping between lock names and keys, by the configured prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    /// Creates the mapping for a prefix. The configuration refuses a prefix with braces.
    pub(crate) fn new(prefix: &str) -> Self {
        debug_assert!(
            !prefix.contains(['{', '}']),
            "a brace in the prefix moves keys to another slot"
        );
        Self {
            prefix: prefix.to_owned(),
        }
    }

    /// Returns the key of the lock itself.
    pub(crate) fn lock<'a>(&self, name: &'a LockName) -> Cow<'a, str> {
        if self.prefix.is_empty() {
            Cow::Borrowed(name.as_str())
        } else {
            Cow::Owned([&self.prefix, name.as_str()].concat())
        }
    }
}

impl Keys {
    /// Returns the name of the lock at this key; `None` if the key lacks the prefix, or the rest is
    /// no valid name.
    pub(crate) fn name(&self, key: &str) -> Option<LockName> {
        LockName::new(key.strip_prefix(&*self.prefix)?).ok()
    }

    /// Returns the glob for the keys of all locks whose names match the glob `names`.
    pub(crate) fn glob(&self, names: &str) -> String {
        let is_special = |character| matches!(character, '*' | '?' | '[' | '\\');
        let escaped = self.prefix.chars().flat_map(|character| {
            is_special(character)
                .then_some('\\')
                .into_iter()
                .chain([character])
        });
        escaped.chain(names.chars()).collect()
    }

    /// Returns the key of the marker, which records that a server is a node of a quorum.
    pub(crate) fn marker(&self) -> String {
        [&self.prefix, "distlock_quorum"].concat()
    }
}

/// Returns the name of a release channel or a companion key: this prefix, then `key`, by Redisson's
/// rule.
pub(crate) fn channel(prefix: &str, key: &str) -> String {
    beside(prefix, key, "")
}

/// Returns the key of the counter of the lock's fencing tokens. Redisson's `RFencedLock` uses the
/// same counter.
pub(crate) fn token_counter(key: &str) -> String {
    beside("redisson_lock_token", key, "")
}

/// Returns the key of the tombstone: while the tombstone exists, the scripts refuse all attempts of
/// this owner.
pub(crate) fn tombstone(key: &str, owner: &Text) -> String {
    beside("distlock_closed", key, owner.as_str())
}

/// Returns the key of the lock's wait queue. `lua/queue_of.lua` builds the same name.
pub(crate) fn queue(key: &str) -> String {
    beside("distlock_queue:2", key, "")
}

/// Returns the key of the holder's label.
pub(crate) fn label(key: &str) -> String {
    beside("distlock_owner", key, "")
}

/// Returns the key of the label of one of several holders.
pub(crate) fn label_of(key: &str, owner: &str) -> String {
    beside("distlock_owner", key, owner)
}

/// Returns the key of the taken permits of the semaphore `key`.
pub(crate) fn permits(key: &str) -> String {
    behind(key, "timeout")
}

/// Returns the hash slot of a key by the Redis Cluster specification (appendix A): CRC16-CCITT
/// (XModem) of the text between the first `{` and the next `}`, modulo 16384. If there is no such
/// text, or it is empty, the whole key is hashed.
pub(crate) fn slot(key: &str) -> u16 {
    let tag = key.find('{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.find('}')
            .filter(|length| *length > 0)
            .map(|length| &rest[..length])
    });
    let crc = tag.unwrap_or(key).bytes().fold(0_u16, |crc, byte| {
        (crc << 8) ^ CRC16[usize::from((crc >> 8) ^ u16::from(byte))]
    });
    crc % SLOTS
}

/// The lookup table of the checksum, with an entry for each value of a byte, computed at compile
/// time.
static CRC16: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 {
                crc << 1
            } else {
                (crc << 1) ^ 0x1021
            };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Returns the companion key whose name is the lock's key followed by `part`, by Redisson's rule.
pub(crate) fn behind(key: &str, part: &str) -> String {
    if key.contains('{') {
        [key, ":", part].concat()
    } else {
        ["{", key, "}:", part].concat()
    }
}

/// The prefix of all companion keys and channels that only this library uses.
const OURS: &str = "distlock_";

/// Returns true if the key is one hash tag and nothing else.
pub(crate) fn is_one_tag(key: &str) -> bool {
    let inside = key
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'));
    inside.is_some_and(|tag| !tag.contains(['{', '}']))
}

/// Returns the companion key of `key` with this prefix; `owner`, unless empty, follows. Allocates
/// only once, because each acquire and each release builds several names.
fn beside(prefix: &str, key: &str, owner: &str) -> String {
    let is_braced = key.contains('{');
    let mut text = String::with_capacity(prefix.len() + key.len() + owner.len() + 5);
    text.push_str(prefix);
    text.push_str(if is_braced { ":" } else { ":{" });
    // Without the extra colon, the name for `{x}` would be that for `x`. If only `{x}` got the
    // colon, its name would be that for `:{x}`.
    if is_braced && prefix.starts_with(OURS) && is_one_tag(key.trim_start_matches(':')) {
        text.push(':');
    }
    text.push_str(key);
    if !is_braced {
        text.push('}');
    }
    if !owner.is_empty() {
        text.push(':');
        text.push_str(owner);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::{ClientId, OwnerId};

    #[test]
    fn slot_function_follows_the_cluster_specification() {
        assert_eq!(slot("123456789"), 0x31c3);
        assert_eq!(slot("{user1000}.following"), slot("user1000"));
    }

    #[test]
    fn derived_keys_are_in_the_slot_of_their_lock() {
        let owner = OwnerId::new(ClientId::random(), 1);
        for prefix in ["", "app:", "x"] {
            let keys = Keys::new(prefix);
            for name in [
                "a",
                "orders:42",
                "stock:{7}:x",
                "{a}",
                "a}b{c}d",
                "{a}{",
                " ",
                "ü",
                ":",
                "a{b}c{d}e",
                "{a{b}c}",
                "x{{y}}z",
                "{a}}",
                "redisson_lock__channel:{a}",
                "\u{0}",
            ] {
                let name = LockName::new(name).unwrap();
                let key = keys.lock(&name);
                let (tombstone, permits) = (tombstone(&key, &Text::owner(owner)), permits(&key));
                let beside = [
                    token_counter(&key),
                    tombstone,
                    label(&key),
                    label_of(&key, "0"),
                    permits,
                ];
                for derived in beside.into_iter().chain([channel("c", &key)]) {
                    assert_eq!(slot(&derived), slot(&key), "{derived} of {key}");
                }
            }
        }
    }

    #[test]
    fn derived_key_names_are_those_of_redisson() {
        let owner = OwnerId::new(ClientId::random(), 7);
        assert_eq!(
            channel("redisson_lock__channel", "a:b"),
            "redisson_lock__channel:{a:b}"
        );
        assert_eq!(
            channel("redisson_lock__channel", "a:{b}"),
            "redisson_lock__channel:a:{b}"
        );
        assert_eq!(token_counter("a:b"), "redisson_lock_token:{a:b}");
        assert_eq!(permits("a:b"), "{a:b}:timeout");
        assert_eq!(permits("a:{b}"), "a:{b}:timeout");
        assert_eq!(
            tombstone("a", &Text::owner(owner)),
            format!("distlock_closed:{{a}}:{owner}")
        );
        assert_eq!(
            tombstone("{a}", &Text::owner(owner)),
            format!("distlock_closed::{{a}}:{owner}")
        );
        assert_eq!(label("a:b"), "distlock_owner:{a:b}");
        let name = LockName::new("a").unwrap();
        assert_eq!(Keys::new("app:").lock(&name), "app:a");
    }

    #[test]
    fn prefix_means_itself_in_a_glob() {
        assert_eq!(Keys::new("a*[b]?\\:").glob("x*"), "a\\*\\[b]\\?\\\\:x*");
        assert_eq!(Keys::new("").glob("*"), "*");
    }

    #[test]
    fn name_and_braced_name_are_two_locks_with_one_counter() {
        let (plain, tagged) = (LockName::new("a").unwrap(), LockName::new("{a}").unwrap());
        let keys = Keys::new("");
        assert_ne!(keys.lock(&plain), keys.lock(&tagged));
        // In Redisson, too, both locks use one counter. So the holder of one lock may change the
        // counter of the other, which `close.lua` takes into account.
        assert_eq!(token_counter("a"), token_counter("{a}"));
    }
}

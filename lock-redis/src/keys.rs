//! [`Keys`]: the names of a lock's keys and channels.
//!
//! By Redisson's rule, the companion keys of `name` are called `prefix:{name}`, or `prefix:name` if
//! there is a brace in `name`, so that on a cluster all of them are in one hash slot. [`LockName`]
//! refuses names for which that would not hold.
//!
//! By that rule, `x` and `{x}` share the companion keys that Redisson defines. They do not share
//! the keys and channels that only this library has: in those, a name that is one hash tag has one
//! more colon before it.

use crate::connection::Text;
use lock_core::LockName;
use std::borrow::Cow;

/// The number of hash slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

/// Makes the names of keys.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    /// Creates a maker of key names. `prefix` has no braces: the configuration refuses them.
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
    /// Returns the name of the lock under this key, if this key can be a lock of ours.
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

    /// Returns the key that says that a server is a node of a quorum.
    pub(crate) fn marker(&self) -> String {
        [&self.prefix, "distlock_quorum"].concat()
    }
}

/// Returns the name that consists of this prefix and `key`, of a release channel or a companion
/// key.
pub(crate) fn channel(prefix: &str, key: &str) -> String {
    beside(prefix, key, "")
}

/// Returns the counter of the lock's fencing tokens. Redisson's `RFencedLock` counts there, too.
pub(crate) fn token_counter(key: &str) -> String {
    beside("redisson_lock_token", key, "")
}

/// Returns the tombstone, by which the server refuses further attempts of one owner.
pub(crate) fn tombstone(key: &str, owner: &Text) -> String {
    beside("distlock_closed", key, owner.as_str())
}

/// Returns the queue of those who wait for a lock. `lua/queue_of.lua` makes the same name.
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
/// (XModem) of the text between the first brace and the next closing one, modulo 16384. Without
/// such a text, the whole key counts.
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

/// The change of the checksum by each byte, computed at compile time.
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

/// Returns the key of a part of a lock by Redisson's rule: the part follows the lock's key.
pub(crate) fn behind(key: &str, part: &str) -> String {
    if key.contains('{') {
        [key, ":", part].concat()
    } else {
        ["{", key, "}:", part].concat()
    }
}

/// The beginning of all keys and channels that only this library has.
const OURS: &str = "distlock_";

/// Returns true if the key is one hash tag and nothing else.
pub(crate) fn is_one_tag(key: &str) -> bool {
    let inside = key
        .strip_prefix('{')
        .and_then(|rest| rest.strip_suffix('}'));
    inside.is_some_and(|tag| !tag.contains(['{', '}']))
}

/// Returns the companion of `key` with this prefix. Allocates one string of the right size, because
/// each acquire and each release needs some names.
fn beside(prefix: &str, key: &str, owner: &str) -> String {
    let is_braced = key.contains('{');
    let mut text = String::with_capacity(prefix.len() + key.len() + owner.len() + 5);
    text.push_str(prefix);
    text.push_str(if is_braced { ":" } else { ":{" });
    // Without one more colon, `{x}` would get the name of `x`. If only `{x}` had one, `:{x}` would
    // get the name of `{x}`.
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
        // Redisson shares the counter as well. So the holder of the other lock may move the
        // counter, which `close.lua` takes into account.
        assert_eq!(token_counter("a"), token_counter("{a}"));
    }
}

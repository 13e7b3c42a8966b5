//! [`ClientId`], [`OwnerId`] and [`OwnerLabel`]: the identity of a lock's holder in the store, and
//! its name for people.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// The identity of a client: a random UUID, made when the client is built.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientId(Uuid);

impl ClientId {
    /// Makes a new random identity (122 random bits from the operating system).
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Writes the text that [`Display`](fmt::Display) prints, but faster, because every request
    /// contains it.
    pub fn encode(self, into: &mut [u8; Self::LENGTH]) {
        self.0.as_hyphenated().encode_lower(into);
    }

    /// Returns the 16 bytes of the identity.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// The length of the text, in bytes.
    pub const LENGTH: usize = uuid::fmt::Hyphenated::LENGTH;
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientId({})", Short(&self.to_string()))
    }
}

/// The owner of a lock: a client and a number that is new for every acquisition.
///
/// On the wire it is `UUID:number`, as in Redisson, whose number is the thread ID. Repeated
/// requests of one acquisition use the same number, so that the store recognises them; no later
/// acquisition uses it again.
///
/// Any program that knows an owner can release its lock, so [`fmt::Debug`] shows only the first
/// characters.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerId {
    client: ClientId,
    number: u64,
}

/// The bit that marks the number of an owner as that of a minimum hold. No client makes so many
/// acquisitions.
const MINIMUM_HOLD: u64 = 1 << 62;

impl OwnerId {
    /// Makes the owner `number` of `client`.
    #[must_use]
    pub fn new(client: ClientId, number: u64) -> Self {
        Self { client, number }
    }

    /// Makes this unused owner that of a [minimum hold](crate::LockOptions::at_least), which no
    /// thread is.
    pub(crate) fn of_minimum_hold(self) -> Self {
        Self::new(self.client, self.number | MINIMUM_HOLD)
    }

    /// Returns the client.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// Returns the number of the acquisition.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns whether `text` is this owner as a store wrote it.
    #[must_use]
    pub fn matches(&self, text: &OwnerText) -> bool {
        self.to_string() == text.as_str()
    }
}

/// Prints the owner as on the wire: `UUID:number`.
impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.client, self.number)
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "OwnerId({}:{})",
            Short(&self.client.to_string()),
            self.number
        )
    }
}

/// The text of an owner as a store wrote it, for an owner of this library or of a foreign client.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct OwnerText(Arc<str>);

impl OwnerText {
    /// Makes the owner's text.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the whole text. Any program that has it can release the lock, so keep it out of
    /// logs.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether this is the owner of a [minimum hold](crate::LockOptions::at_least): the
    /// lock was released, and stays busy until the end of its lease.
    #[must_use]
    pub fn is_minimum_hold(&self) -> bool {
        let number = self
            .0
            .rsplit_once(':')
            .map(|(_, number)| number.parse::<u64>());
        matches!(number, Some(Ok(number)) if number & MINIMUM_HOLD != 0)
    }
}

impl fmt::Debug for OwnerText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerText({})", Short(&self.0))
    }
}

/// The name of a lock's holder, for people. No program can release a lock by it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct OwnerLabel {
    /// The text of [`Config::with_owner`](crate::Config::with_owner).
    pub text: Arc<str>,
    /// The time since which the owner holds the lock, by the owner's clock, in whole milliseconds.
    pub since: SystemTime,
}

impl OwnerLabel {
    /// The number of leases for which a store keeps a label that came with a renewal. The engine
    /// sends the label again after two leases and at most a third of one, so the label of a held
    /// lock does not expire before.
    pub const LEASES: u32 = 3;

    /// Makes the label of an owner that holds the lock since this Unix time.
    #[must_use]
    pub fn new(text: Arc<str>, since: Duration) -> Self {
        let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let since = UNIX_EPOCH.checked_add(Duration::from_millis(millis));
        Self {
            text,
            since: since.unwrap_or(UNIX_EPOCH),
        }
    }
}

/// Prints the first eight characters.
struct Short<'a>(&'a str);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars().take(8).flat_map(char::escape_debug) {
            fmt::Write::write_char(f, c)?;
        }
        f.write_str("..")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_only_the_first_characters() {
        let owner = OwnerId::new(ClientId::random(), 7);
        let whole = owner.to_string();
        assert_eq!(whole.len(), 36 + 2);
        assert!(!format!("{owner:?}").contains(&whole[..36]));
        assert!(!format!("{:?}", OwnerText::new(&whole)).contains(&whole[..36]));
        assert!(owner.matches(&OwnerText::new(&whole)));
    }
}

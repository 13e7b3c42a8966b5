//! [`ClientId`], [`OwnerId`] and [`OwnerLabel`]: the identity of a lock's holder in the store, and
//! the holder's label for people.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use uuid::Uuid;

/// The identity of a client: a random UUID, which is made when the client is built.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientId(Uuid);

impl ClientId {
    /// Makes a new random identity (122 random bits from the operating system).
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Writes the text that [`Display`](fmt::Display) prints into a buffer. This is faster than
    /// `Display`, which matters because most requests contain this text.
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

/// The owner of a lock: a client and a number that is new for every wait for a lock.
///
/// In requests it is the text `UUID:number`, as in Redisson, where the number is the thread ID.
/// (Requests about permits contain a `PermitId` instead.) All attempts of one wait, and the
/// requests about its acquisition, contain the same owner, so that the store recognises
/// repetitions. A wait continues with a new owner only after an attempt of the former owner was
/// rolled back. If the client hands the lock off to another of its threads, that thread's
/// acquisition keeps the owner.
///
/// Any program that knows an owner can release the owner's lock, so [`fmt::Debug`] shows only the
/// first characters of the client's UUID.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerId {
    client: ClientId,
    number: u64,
}

/// The bit of an owner's number that marks the owner of a minimum hold. No other owner has this
/// bit, because no client counts to 2^62.
const MINIMUM_HOLD: u64 = 1 << 62;

impl OwnerId {
    /// Makes the owner `number` of `client`.
    #[must_use]
    pub fn new(client: ClientId, number: u64) -> Self {
        Self { client, number }
    }

    /// Converts this owner into the owner of a [minimum hold](crate::LockOptions::at_least). This
    /// owner must be unused, and the result must not be used for an attempt.
    pub(crate) fn of_minimum_hold(self) -> Self {
        Self::new(self.client, self.number | MINIMUM_HOLD)
    }

    /// Returns the client.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// Returns the number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns whether `text`, as a store returned it, denotes this owner.
    #[must_use]
    pub fn matches(&self, text: &OwnerText) -> bool {
        self.to_string() == text.as_str()
    }
}

/// Prints the owner as requests contain it: `UUID:number`.
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

/// The text of an owner as a store returned it. The owner may belong to this library or to a
/// foreign client.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct OwnerText(Arc<str>);

impl OwnerText {
    /// Makes the text of an owner.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Returns the whole text. Any program that knows this text can release the lock, so keep it
    /// out of logs.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether this is the owner of a [minimum hold](crate::LockOptions::at_least): then
    /// the lock was released, and stays busy until the end of its lease.
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

/// The description of a lock's holder for people. A program cannot release the lock by knowing the
/// label.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct OwnerLabel {
    /// The text of [`Config::with_owner`](crate::Config::with_owner).
    pub text: Arc<str>,
    /// The time since which the owner holds the lock, by the owner's clock, in whole milliseconds.
    pub since: SystemTime,
}

impl OwnerLabel {
    /// The number of leases for which a store keeps a label that it got with a renewal. The engine
    /// sends the label again with the first renewal that is at least two leases later. While
    /// renewals succeed, that is at most two and a third leases later, so the label does not
    /// expire.
    pub const LEASES: u32 = 3;

    /// Makes the label of an owner that has held the lock since this Unix time.
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

/// Prints the first eight characters of a text, followed by two dots.
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

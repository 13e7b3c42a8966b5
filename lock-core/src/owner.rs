//! [`OwnerId`]: who holds a lock, as the store sees it.

use std::fmt;
use std::sync::Arc;
use uuid::Uuid;

/// One client: a random UUID, made once when the client is built.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientId(Uuid);

impl ClientId {
    /// A new random identity (122 random bits from the operating system).
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// Writes what [`Display`](fmt::Display) prints, without the machinery for all kinds of
    /// printing: owners stand in every request.
    pub fn encode(self, into: &mut [u8; Self::LENGTH]) {
        self.0.as_hyphenated().encode_lower(into);
    }

    /// The length of its text, in bytes.
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

/// Who holds a lock: a client and a number that is new for every wait.
///
/// On the wire it is `UUID:number`, as Redisson writes it (which puts the thread id there; any
/// number is valid). The number is the same for every re-send within one wait, so that an acquire
/// that is repeated after a lost answer is recognised as our own, and is never used again after it.
///
/// Whoever knows an owner can release its lock, so [`fmt::Debug`] shows only the first characters.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OwnerId {
    client: ClientId,
    number: u64,
}

impl OwnerId {
    /// The owner `number` of `client`.
    #[must_use]
    pub fn new(client: ClientId, number: u64) -> Self {
        Self { client, number }
    }

    /// The client.
    #[must_use]
    pub fn client(&self) -> ClientId {
        self.client
    }

    /// The number of the wait.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether this is the owner that a store wrote as `text`.
    #[must_use]
    pub fn matches(&self, text: &OwnerText) -> bool {
        self.to_string() == text.as_str()
    }
}

/// Prints the owner as it stands on the wire: `UUID:number`.
impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.client, self.number)
    }
}

impl fmt::Debug for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerId({}:{})", Short(&self.client.to_string()), self.number)
    }
}

/// An owner as a store wrote it: ours, or another library's in whatever form it has there.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct OwnerText(Arc<str>);

impl OwnerText {
    /// Takes the text over.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// The whole text. Whoever has it can release the lock: keep it out of logs.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for OwnerText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnerText({})", Short(&self.0))
    }
}

/// The first eight characters of something that should not be printed whole.
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
    fn debug_shows_only_the_beginning() {
        let owner = OwnerId::new(ClientId::random(), 7);
        let whole = owner.to_string();
        assert_eq!(whole.len(), 36 + 2);
        assert!(!format!("{owner:?}").contains(&whole[..36]));
        assert!(!format!("{:?}", OwnerText::new(&whole)).contains(&whole[..36]));
        assert!(owner.matches(&OwnerText::new(&whole)));
    }
}

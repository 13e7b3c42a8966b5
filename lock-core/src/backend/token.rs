//! [`FencingToken`]: a number that grows with every grant of a lock.

use std::fmt;

/// A number that is greater than the tokens of all earlier exclusive acquisitions of the same lock
/// name.
///
/// Pass the token to the protected resource, and let the resource refuse every token that is
/// smaller than the largest it has seen. Then a holder that was paused until after the end of its
/// lease does no harm when it resumes (Martin Kleppmann, "How to do distributed locking", 2016).
/// Nested guards have the same token, because they belong to the same acquisition. Readers of a
/// read-write lock get no token of their own: a reader has the last token of the name, which is at
/// least that of the last writer, or none if the store has no counter for the name.
///
/// Tokens are less than 2^53, so JSON, Lua and JavaScript represent them exactly.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Makes a token of this value.
    #[must_use]
    pub fn new(value: u64) -> Self {
        Self(value)
    }

    /// Returns the value.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FencingToken({})", self.0)
    }
}

/// The tokens of a grant: one, or a range whose further tokens are for hand-offs inside the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenRange {
    first: FencingToken,
    last: FencingToken,
}

impl TokenRange {
    /// Makes the range from `first` to `last`, both included; `None` if `first` is larger than
    /// `last`.
    #[must_use]
    pub fn new(first: FencingToken, last: FencingToken) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// Returns the smallest token, which is the token of the grant itself.
    #[must_use]
    pub fn first(&self) -> FencingToken {
        self.first
    }

    /// Returns the largest token, which is the last one that the store reserved.
    #[must_use]
    pub fn last(&self) -> FencingToken {
        self.last
    }

    /// Returns how many tokens are reserved after the first.
    pub(crate) fn reserved(&self) -> u32 {
        u32::try_from(self.last.0 - self.first.0).unwrap_or(u32::MAX)
    }
}

//! [`FencingToken`]: a number that grows with every grant of a lock.

use std::fmt;

/// A number that is greater than every token handed out before for the same lock name.
///
/// Give it to whatever the lock protects, and let that refuse every token smaller than the largest
/// it has seen: then a holder that was paused past its lease can do no harm when it wakes (Martin
/// Kleppmann, "How to do distributed locking", 2016). Equal tokens are one and the same holding;
/// nested guards carry the same token.
///
/// Tokens stay below 2^53, so they survive a trip through JSON, Lua and JavaScript.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The token of this value.
    #[must_use]
    pub fn new(value: u64) -> Self {
        Self(value)
    }

    /// The value.
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

/// The tokens that a grant came with: one, or a range of them for hand-offs inside the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenRange {
    first: FencingToken,
    last: FencingToken,
}

impl TokenRange {
    /// The tokens from `first` to `last`, both included; `None` if they stand the wrong way round.
    #[must_use]
    pub fn new(first: FencingToken, last: FencingToken) -> Option<Self> {
        (first <= last).then_some(Self { first, last })
    }

    /// The smallest, which the grant itself carries.
    #[must_use]
    pub fn first(&self) -> FencingToken {
        self.first
    }

    /// The largest that the store set aside.
    #[must_use]
    pub fn last(&self) -> FencingToken {
        self.last
    }
}

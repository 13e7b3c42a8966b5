//! [`GrantReceipt`]: what the release of a lock must know of its grant.

use lock_core::backend::{Grant, Receipt};
use lock_core::{FencingToken, TokenRange};

/// The receipt of a grant with more than one token, or of a grant by a release.
pub(crate) struct GrantReceipt {
    /// The last of the tokens that were set aside.
    pub(crate) last: Option<FencingToken>,
    /// The argument `turns` of `lua/let_next_in.lua`, if a release granted the lock.
    pub(crate) turns: Option<Box<str>>,
}

/// Returns a grant of these tokens, of which the last `reserve` are set aside.
pub(crate) fn granted(tokens: Option<TokenRange>, reserve: u32) -> Grant {
    let grant = Grant::new(tokens);
    match tokens {
        Some(tokens) if reserve > 0 => grant.receipt(Receipt::new(GrantReceipt {
            last: Some(tokens.last()),
            turns: None,
        })),
        _ => grant,
    }
}

/// Returns the grant of a release, as its message describes it: the first token, how many are set
/// aside behind it (`None` if there are no tokens), and the argument `turns` for the next release.
/// `None` if no release can have sent these values.
pub(crate) fn granted_by_release(token: i64, reserve: Option<u32>, turns: &str) -> Option<Grant> {
    let tokens = match reserve {
        Some(reserve) => Some(token_range(token, reserve)?),
        None => None,
    };
    let last = tokens.filter(|_| reserve != Some(0)).map(|it| it.last());
    Some(Grant::new(tokens).receipt(Receipt::new(GrantReceipt {
        last,
        turns: Some(turns.into()),
    })))
}

/// Returns the range of the token `first` and the `reserve` tokens behind it; `None` if these
/// cannot be tokens.
pub(crate) fn token_range(first: i64, reserve: u32) -> Option<TokenRange> {
    let first = u64::try_from(first).ok().filter(|first| *first > 0)?;
    let last = first.checked_add(u64::from(reserve))?;
    TokenRange::new(FencingToken::new(first), FencingToken::new(last))
}

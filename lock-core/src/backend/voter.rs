//! [`Voter`]: a store as a node of a quorum.

#[cfg(doc)]
use super::Tokens;
use super::{Answer, Attempt, Backend, Failure};
use crate::backend::token::FencingToken;
use crate::time::Moment;

/// Votes at proposed tokens: an extension of [`Backend`], for a store that can be a node of a
/// quorum.
///
/// No other server may replace the store: one with failover to a replica, which may lack the last
/// writes, returns `None` from [`Backend::voter`].
pub trait Voter: Backend {
    /// Tries once to take the lock for `attempt.owner`, as [`Backend::acquire`] does, at the tokens
    /// of `proposal` in place of [`Attempt::tokens`].
    ///
    /// If the lock is granted, the end of the proposed range is stored, unless a greater token is.
    /// A store that drops unused counters must keep a bound that no dropped token exceeds.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn propose(
        &self,
        attempt: &Attempt<'_>,
        proposal: Proposal,
        by: Moment,
    ) -> Result<ProposalAnswer, Failure>;
}

/// The tokens that a client proposes to a node of a quorum, as a ballot of Paxos.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Proposal {
    /// The token.
    pub first: FencingToken,
    /// The number of tokens beyond the first, for hand-offs inside the client.
    pub reserve: u32,
    /// True if a majority has granted these tokens already. Then a greater stored token is no
    /// reason to refuse.
    pub is_granted: bool,
}

impl Proposal {
    /// Proposes `first` and `reserve` tokens behind it.
    #[must_use]
    pub fn new(first: FencingToken, reserve: u32) -> Self {
        Self {
            first,
            reserve,
            is_granted: false,
        }
    }

    /// Returns the proposal after a majority has granted it.
    #[must_use]
    pub fn granted(mut self) -> Self {
        self.is_granted = true;
        self
    }
}

/// The answer to a proposal.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ProposalAnswer {
    /// The answer to the attempt. Granted with the proposed tokens if the lock is free and the
    /// first token is greater than the stored one, or if this owner has the lock already.
    Answer(Answer),
    /// The lock is free, but the proposed token is not greater than this stored token. A greater
    /// token may be granted.
    Stale(FencingToken),
}

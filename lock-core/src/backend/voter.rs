//! [`Voter`]: a store as a node of a quorum.

#[cfg(doc)]
use super::Tokens;
use super::{Answer, Attempt, Backend, Failure};
use crate::backend::token::FencingToken;
use crate::time::Moment;

/// An extension of [`Backend`] for a store that can be a node of a quorum: it grants locks with
/// tokens that the client proposes.
///
/// A store with failover to a replica returns `None` from [`Backend::voter`]: the replica may lack
/// the last writes, and could vote for a second owner.
pub trait Voter: Backend {
    /// Tries once to acquire the lock for `attempt.owner`, as [`Backend::acquire`] does, but with
    /// the tokens of `proposal` instead of [`Attempt::tokens`].
    ///
    /// If the lock is granted, the store records the last token of the proposed range, unless it
    /// has recorded a greater one. A store that drops the counters of unused names must know a
    /// bound that no dropped token exceeds: otherwise it could accept a token that it has granted
    /// before.
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

/// The tokens that a client proposes to a node of a quorum, like the ballot number of Paxos.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Proposal {
    /// The token of the grant itself, and the smallest of the range.
    pub first: FencingToken,
    /// The number of tokens beyond the first, for hand-offs inside the client.
    pub reserve: u32,
    /// True if a majority has granted these tokens already. Then a greater stored token is no
    /// reason to refuse.
    pub is_granted: bool,
}

impl Proposal {
    /// Makes a proposal of `first` and the next `reserve` tokens.
    #[must_use]
    pub fn new(first: FencingToken, reserve: u32) -> Self {
        Self {
            first,
            reserve,
            is_granted: false,
        }
    }

    /// Returns the proposal, marked as granted by a majority.
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
    /// The answer to the attempt. The lock is granted, with the proposed tokens, if this owner
    /// holds it already. It is also granted if it is free, this owner was not closed, and the first
    /// token is greater than the stored one or [granted by a majority](Proposal::is_granted).
    Answer(Answer),
    /// The lock is free, but the first proposed token is not greater than this stored token. The
    /// client may propose a greater one.
    Stale(FencingToken),
}

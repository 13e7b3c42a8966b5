//! [`AttemptState`]: the state of one owner's attempt on each node, from the first request to the
//! release.

use super::majority::NodeRenewal;
use super::majority::RoundTally;
use super::membership::Membership;
use super::node::Vote;
use super::node_worker::NodeContext;
use super::votes::Votes;
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, Failure, Proposal, ProposalAnswer, Receipt, Release,
    ReleaseOptions, Tombstone,
};
use lock_core::{Clock, Error, Moment, Signal};
use lock_redis::quorum::{NodeView, Response};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The receipt of a quorum's grant.
pub(super) struct QuorumReceipt(pub(super) Arc<AttemptState>);

/// The state of one owner's attempt, and of the acquisition that results from it.
pub(super) struct AttemptState {
    acquisition: AcquisitionId,
    state: Mutex<State>,
    /// Raised by the response to each request of a round.
    pub(super) signal: Arc<Signal>,
    membership: Arc<Membership>,
    clock: Arc<dyn Clock>,
}

struct State {
    /// True if grants must be rolled back: the attempt has failed, or the lock was released or
    /// lost.
    is_abandoned: bool,
    round: u32,
    /// The start of the round.
    began: Moment,
    /// The tokens that the round requests.
    proposal: Option<Proposal>,
    nodes: Vec<NodeProgress>,
    votes: Votes,
}

/// The progress of the attempt on one node.
#[derive(Default)]
struct NodeProgress {
    /// The number of requests without a response.
    pending: u32,
    /// The receipt of the last grant.
    granted: Option<Receipt>,
    /// True if the outcome of a request is unknown.
    is_unknown: bool,
    /// True if the lock was released on this node.
    is_freed: bool,
    /// The last answer, with its round and the node that gave it.
    answer: Option<(u32, NodeAnswer, Option<Arc<NodeView>>)>,
}

/// The answer of a node, without the receipt of a grant.
#[derive(Clone)]
pub(super) enum NodeAnswer {
    Granted {
        with_tokens: bool,
    },
    Busy(Option<Duration>),
    Stale(u64),
    /// The node does not vote before this time has passed.
    Paused(Duration, Option<Arc<NodeView>>),
    /// The server has no valid marker, so it belongs to no quorum.
    Unmarked,
    /// The proposal is ahead of the node's clock by this time, which is more than allowed.
    Ahead(Duration),
    Failed(Failure),
}

/// The nodes that may still have a grant of an abandoned attempt.
#[derive(Default, Debug)]
pub(super) struct Outstanding {
    pub(super) granted: Vec<usize>,
    pub(super) unknown: Vec<usize>,
    /// True if a response of a node is outstanding.
    pub(super) is_open: bool,
}

impl Outstanding {
    pub(super) fn is_none(&self) -> bool {
        self.granted.is_empty() && self.unknown.is_empty() && !self.is_open
    }
}

impl AttemptState {
    pub(super) fn new(
        attempt: &Attempt<'_>,
        nodes: usize,
        membership: Arc<Membership>,
        clock: Arc<dyn Clock>,
    ) -> Arc<Self> {
        let (name, receipt) = (attempt.name.clone(), Receipt::default());
        let acquisition = AcquisitionId::new(name, attempt.owner, attempt.lease, receipt);
        let (began, votes) = (clock.now(), Votes::of(nodes));
        let nodes = (0..nodes).map(|_| NodeProgress::default()).collect();
        let state = State {
            is_abandoned: false,
            round: 0,
            began,
            proposal: None,
            nodes,
            votes,
        };
        let state = Mutex::new(state);
        Arc::new(Self {
            acquisition,
            state,
            signal: Arc::default(),
            membership,
            clock,
        })
    }

    /// Returns the acquisition of this attempt with the receipt of node `at`.
    pub(super) fn acquisition_on(&self, at: usize) -> AcquisitionId {
        self.with_receipt(&self.acquisition, at)
    }

    /// Returns a copy of an acquisition with the receipt of node `at`.
    pub(super) fn with_receipt(&self, acquisition: &AcquisitionId, at: usize) -> AcquisitionId {
        let AcquisitionId {
            name, owner, lease, ..
        } = acquisition;
        AcquisitionId::new(name.clone(), *owner, *lease, self.receipt(at))
    }

    /// Returns the receipt of the last grant of node `at`.
    pub(super) fn receipt(&self, at: usize) -> Receipt {
        self.state.lock().nodes[at]
            .granted
            .clone()
            .unwrap_or_default()
    }

    /// Begins a round of requests to all nodes, with this proposal. Returns the round's number.
    pub(super) fn begin_round(&self, proposal: Option<Proposal>) -> u32 {
        let mut state = self.state.lock();
        state.round += 1;
        (state.began, state.proposal) = (self.clock.now(), proposal);
        state.nodes.iter_mut().for_each(|node| node.pending += 1);
        state.round
    }

    /// Records a response. Returns whether a grant of the node, known or possible, must be rolled
    /// back now, because the attempt is abandoned.
    pub(super) fn note(
        &self,
        at: usize,
        round: u32,
        response: Result<Response<Vote>, Failure>,
    ) -> bool {
        let mut state = self.state.lock();
        let is_abandoned = state.is_abandoned;
        let until = state.began + self.acquisition.lease.validity();
        let State { nodes, votes, .. } = &mut *state;
        let node = &mut nodes[at];
        node.pending -= 1;
        let by = response
            .as_ref()
            .ok()
            .and_then(|response| response.from.clone());
        let answer = match response.map(|response| response.what) {
            Ok(Vote::Paused(left)) => NodeAnswer::Paused(left, by.clone()),
            Ok(Vote::Unmarked) => NodeAnswer::Unmarked,
            Ok(Vote::Ahead(ahead)) => NodeAnswer::Ahead(ahead),
            Ok(Vote::Cast(ProposalAnswer::Answer(Answer::Granted(grant)))) => {
                node.granted = Some(grant.receipt);
                // If another request to the node is pending, this grant may belong to an earlier
                // round, so it does not count as a vote.
                if node.pending == 0 {
                    votes.granted(at, by.clone(), until);
                }
                NodeAnswer::Granted {
                    with_tokens: grant.tokens.is_some(),
                }
            }
            Ok(Vote::Cast(ProposalAnswer::Answer(
                Answer::Busy(left) | Answer::BusyWithoutExpiry(left),
            ))) => NodeAnswer::Busy(left),
            Ok(Vote::Cast(ProposalAnswer::Stale(token))) => NodeAnswer::Stale(token.get()),
            Ok(Vote::Cast(other)) => {
                node.is_unknown = true;
                let why = format!("a node answered {other:?}, which a quorum cannot use");
                NodeAnswer::Failed(Failure::Unknown(Error::unavailable(why)))
            }
            Err(failure) => {
                node.is_unknown |= !matches!(failure, Failure::Refused(_) | Failure::NotSent(_));
                NodeAnswer::Failed(failure)
            }
        };
        if node
            .answer
            .as_ref()
            .is_none_or(|(before, ..)| *before <= round)
        {
            node.answer = Some((round, answer, by));
        }
        let is_left = node.pending == 0 && (node.granted.is_some() || node.is_unknown);
        drop(state);
        self.signal.raise();
        is_abandoned && is_left
    }

    /// Counts the new votes if the older ones are a majority. A renewal calls this at its start and
    /// at its end.
    pub(super) fn count_votes(&self) {
        let quorum = self.membership.known_quorum();
        self.state
            .lock()
            .votes
            .count_new(quorum.as_deref(), self.clock.now());
    }

    /// Returns whether the votes that count are a majority now.
    pub(super) fn stands(&self) -> bool {
        let quorum = self.membership.known_quorum();
        self.state
            .lock()
            .votes
            .stand(quorum.as_deref(), self.clock.now())
    }

    /// Records that a node has extended the lease until this moment.
    pub(super) fn note_extended(
        &self,
        at: usize,
        by: Option<Arc<NodeView>>,
        until: Moment,
    ) -> NodeRenewal {
        let mut state = self.state.lock();
        state.nodes[at].granted.get_or_insert_default();
        state.votes.extended(at, by, until, self.clock.now())
    }

    /// Prepares a request for a new vote to a node that has none for this owner. Returns the
    /// proposal of the request; the inner value is `None` if the lock has no tokens. The caller
    /// must pass the answer to [`note_vote`](Self::note_vote). Returns `None` if the node must not
    /// get this request.
    pub(super) fn plan_vote(
        &self,
        at: usize,
        by: Option<&NodeView>,
        is_durable: bool,
    ) -> Option<Option<Proposal>> {
        let (quorum, now) = (self.membership.known_quorum(), self.clock.now());
        let mut state = self.state.lock();
        let is_ours = |by: &NodeView| {
            by.members.contain(&by.node) && quorum.as_ref().is_none_or(|it| *it == by.quorum)
        };
        let may_vote = state.votes.missing(at, by, is_durable, now)
            && !state.is_abandoned
            && state.nodes[at].pending == 0
            && by.is_none_or(is_ours)
            && state.votes.stand(quorum.as_deref(), now);
        let proposal = state.proposal.map(Proposal::granted);
        may_vote.then(|| {
            state.nodes[at].pending += 1;
            proposal
        })
    }

    /// Records a node's answer to the request for a new vote. `vote` is the receipt of the new
    /// vote, whose lease ends at `until`, or `None` if the node has not voted. Returns whether the
    /// vote must be rolled back, because the attempt is abandoned.
    pub(super) fn note_vote(
        &self,
        at: usize,
        by: Option<Arc<NodeView>>,
        until: Moment,
        vote: &Result<Option<Receipt>, Failure>,
    ) -> bool {
        let mut state = self.state.lock();
        let node = &mut state.nodes[at];
        node.pending -= 1;
        match vote {
            Ok(None) | Err(Failure::Refused(_) | Failure::NotSent(_)) => return false,
            Ok(Some(receipt)) => {
                node.granted = Some(receipt.clone());
                state.votes.voted(at, by, until);
            }
            Err(_) => node.is_unknown = true,
        }
        state.is_abandoned
    }

    /// Counts the responses of the present round. `is_suspect` returns whether a node seems dead.
    pub(super) fn tally(&self, is_suspect: impl Fn(usize) -> bool) -> RoundTally {
        let answers = self.answers();
        let mut tally = RoundTally {
            nodes: answers.len(),
            ..RoundTally::default()
        };
        for (at, answer) in answers.iter().enumerate() {
            match answer {
                Some(NodeAnswer::Granted { .. }) => tally.granted += 1,
                Some(NodeAnswer::Busy(_)) => tally.busy += 1,
                Some(NodeAnswer::Stale(_)) => tally.stale += 1,
                Some(
                    NodeAnswer::Paused(..)
                    | NodeAnswer::Unmarked
                    | NodeAnswer::Ahead(_)
                    | NodeAnswer::Failed(_),
                ) => {}
                None => {
                    tally.waiting += 1;
                    tally.suspects += usize::from(is_suspect(at));
                }
            }
        }
        tally
    }

    /// Returns the answers of the present round. An answer that does not count with the others,
    /// such as that of another quorum, is replaced by a failure.
    pub(super) fn answers(&self) -> Vec<Option<NodeAnswer>> {
        let (answers, views) = self.present();
        let exclusions = self
            .membership
            .exclusions(&views, self.clock.now())
            .into_iter();
        let counted = |(answer, why): (Option<NodeAnswer>, Option<Error>)| {
            let answer = answer?;
            Some(why.map_or(answer, |why| NodeAnswer::Failed(Failure::Refused(why))))
        };
        answers.into_iter().zip(exclusions).map(counted).collect()
    }

    /// Returns the views of the nodes that have answered in the present round.
    pub(super) fn views(&self) -> Vec<Option<Arc<NodeView>>> {
        self.present().1
    }

    fn present(&self) -> (Vec<Option<NodeAnswer>>, Vec<Option<Arc<NodeView>>>) {
        let state = self.state.lock();
        let present = |node: &NodeProgress| match &node.answer {
            Some((round, answer, by)) if *round == state.round => {
                (Some(answer.clone()), by.clone())
            }
            _ => (None, None),
        };
        state.nodes.iter().map(present).unzip()
    }

    /// Abandons the attempt, so that later grants are rolled back. Returns the nodes that may have
    /// a grant, and whether responses are outstanding.
    pub(super) fn abandon(&self) -> Outstanding {
        let mut state = self.state.lock();
        state.is_abandoned = true;
        let mut outstanding = Outstanding::default();
        for (at, node) in state.nodes.iter().enumerate() {
            if node.pending > 0 {
                outstanding.is_open = true;
            } else if node.is_unknown {
                outstanding.unknown.push(at);
            } else if node.granted.is_some() {
                outstanding.granted.push(at);
            }
        }
        outstanding
    }

    /// Abandons the attempt, and returns the options of a release on node `at`. If the node needs
    /// no request, returns the outcome of the release as `Err`.
    pub(super) fn plan_release(
        &self,
        at: usize,
        asked: ReleaseOptions,
    ) -> Result<ReleaseOptions, Release> {
        let mut state = self.state.lock();
        state.is_abandoned = true;
        let node = &state.nodes[at];
        if node.is_unknown || node.pending > 0 || asked.tombstone != Tombstone::None {
            return Ok(ReleaseOptions::WITH_TOMBSTONE.kept(asked.kept));
        }
        let is_granted = node.granted.is_some();
        drop(state);
        if is_granted {
            Ok(asked)
        } else {
            Err(self.note_release(at, Release::Gone))
        }
    }

    /// Releases the lock on this node.
    pub(super) fn release_on(
        &self,
        context: &NodeContext,
        acquisition: &AcquisitionId,
        asked: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        let at = context.number();
        let options = match self.plan_release(at, asked) {
            Ok(options) => options,
            Err(known) => return Ok(known),
        };
        let released = context.release(&self.with_receipt(acquisition, at), options, by);
        released.map(|release| self.note_release(at, release))
    }

    /// Rolls back the grant of the attempt on this node, if there may be one.
    pub(super) fn roll_back_on(&self, context: &NodeContext) {
        let options = ReleaseOptions::WITHOUT_TOMBSTONE;
        // A release without an answer becomes a pending cleanup of the node.
        let _outcome = self.release_on(context, &self.acquisition, options, context.by());
    }

    /// Forgets the outcomes of a decided release, so that they are not combined with the outcomes
    /// of a later release.
    pub(super) fn forget_releases(&self) {
        self.state
            .lock()
            .nodes
            .iter_mut()
            .for_each(|node| node.is_freed = false);
    }

    /// Combines the outcome of a release on this node with earlier outcomes. If an earlier request
    /// freed the lock, the outcome is `Freed`, because the owner held the lock until that request.
    pub(super) fn note_release(&self, at: usize, release: Release) -> Release {
        let node = &mut self.state.lock().nodes[at];
        node.is_freed |= release != Release::Gone;
        if node.is_freed && release == Release::Gone {
            Release::Freed
        } else {
            release
        }
    }
}

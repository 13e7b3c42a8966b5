//! [`Ballot`]: what is known of one owner's holding on each node, from the first request on until it is given back.

use lock_core::backend::{Answer, Failure, Receipt, Release, ReleaseOptions, Tombstone};
use lock_core::{Clock, Signal};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

use super::member::{Reply, Vote};
use super::roll::Roll;
use super::tally::Round;
use lock_redis::parts::Standing;

/// One owner's attempt, and then its holding.
pub(super) struct Ballot {
    state: Mutex<State>,
    /// Raised by every answer.
    pub(super) signal: Arc<Signal>,
    roll: Arc<Roll>,
    clock: Arc<dyn Clock>,
}

struct State {
    phase: Phase,
    round: u32,
    nodes: Vec<Share>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// The attempt goes on, or has won.
    Wanted,
    /// Whatever any node granted, or may grant yet, is to be given back.
    Unwanted,
}

/// How it stands on one node.
#[derive(Default)]
struct Share {
    /// How many requests were not answered yet.
    pending: u32,
    /// The last grant, with what the node wants to be reminded of.
    granted: Option<Receipt>,
    /// Whether a request went without an answer: it may be carried out yet.
    doubt: bool,
    /// Whether it was given back here.
    freed: bool,
    /// The last answer, in which round it was given, and by which node.
    answer: Option<(u32, Said, Option<Arc<Standing>>)>,
}

/// What a node said, without what belongs to the grant.
#[derive(Clone)]
pub(super) enum Said {
    Granted {
        with_tokens: bool,
    },
    Busy(Option<Duration>),
    Stale(u64),
    /// It does not vote for so long.
    Paused(Duration, Option<Arc<Standing>>),
    /// It is no node of any quorum.
    Outside,
    Failed(Failure),
}

impl Ballot {
    pub(super) fn new(nodes: usize, roll: Arc<Roll>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let nodes = (0..nodes).map(|_| Share::default()).collect();
        let state = State { phase: Phase::Wanted, round: 0, nodes };
        Arc::new(Self { state: Mutex::new(state), signal: Arc::default(), roll, clock })
    }

    /// All nodes are going to be asked, once more or for the first time. Returns the number of the round.
    pub(super) fn begin_round(&self) -> u32 {
        let mut state = self.state.lock();
        state.round += 1;
        state.nodes.iter_mut().for_each(|node| node.pending += 1);
        state.round
    }

    /// A node has answered, or not in time. Whether that must be undone there: nobody wants it any more.
    pub(super) fn note(&self, at: usize, round: u32, answer: Result<Reply<Vote>, Failure>) -> bool {
        let mut state = self.state.lock();
        let is_unwanted = state.phase == Phase::Unwanted;
        let node = &mut state.nodes[at];
        node.pending -= 1;
        let by = answer.as_ref().ok().and_then(|reply| reply.by.clone());
        let said = match answer.map(|reply| reply.what) {
            Ok(Vote::Paused(left)) => Said::Paused(left, by.clone()),
            Ok(Vote::Outside) => Said::Outside,
            Ok(Vote::Cast(Answer::Granted(grant))) => {
                node.granted = Some(grant.receipt);
                Said::Granted { with_tokens: grant.tokens.is_some() }
            }
            Ok(Vote::Cast(Answer::Busy(left) | Answer::BusyWithoutExpiry(left))) => {
                Said::Busy(left)
            }
            Ok(Vote::Cast(Answer::Stale(token))) => Said::Stale(token.get()),
            Ok(Vote::Cast(other)) => {
                node.doubt = true;
                let why = format!("a node answered {other:?}, which a quorum cannot use");
                Said::Failed(Failure::Unknown(lock_core::Error::unavailable(why)))
            }
            Err(failure) => {
                node.doubt |= !matches!(failure, Failure::Refused(_) | Failure::NotSent(_));
                Said::Failed(failure)
            }
        };
        if node.answer.as_ref().is_none_or(|(before, ..)| *before <= round) {
            node.answer = Some((round, said, by));
        }
        let is_left = node.pending == 0 && (node.granted.is_some() || node.doubt);
        drop(state);
        self.signal.raise();
        is_unwanted && is_left
    }

    /// How far the present round has come. `is_suspect` says which nodes seem dead.
    pub(super) fn round(&self, is_suspect: impl Fn(usize) -> bool) -> Round {
        let said = self.said();
        let mut round = Round { nodes: said.len(), ..Round::default() };
        for (at, said) in said.iter().enumerate() {
            match said {
                Some(Said::Granted { .. }) => round.granted += 1,
                Some(Said::Busy(_)) => round.busy += 1,
                Some(Said::Stale(_)) => round.stale += 1,
                Some(Said::Paused(..) | Said::Outside | Said::Failed(_)) => {}
                None => {
                    round.waiting += 1;
                    round.suspects += usize::from(is_suspect(at));
                }
            }
        }
        round
    }

    /// What each node said in the present round, if that counts beside what the others said; `None` where it has not yet.
    pub(super) fn said(&self) -> Vec<Option<Said>> {
        let state = self.state.lock();
        let now = state.round;
        let answers = state.nodes.iter().map(|node| {
            node.answer.as_ref().filter(|(when, ..)| *when == now).map(|(_, said, by)| (said, by))
        });
        let answers: Vec<_> = answers.collect();
        let said_by: Vec<_> =
            answers.iter().map(|answer| answer.and_then(|(_, by)| by.clone())).collect();
        let why_not = self.roll.why_not(&said_by, self.clock.now()).into_iter();
        let counted = |(answer, why): (&Option<(&Said, _)>, Option<_>)| {
            let (said, _) = answer.as_ref()?;
            Some(why.map_or_else(|| (*said).clone(), |why| Said::Failed(Failure::Refused(why))))
        };
        answers.iter().zip(why_not).map(counted).collect()
    }

    /// Which nodes have answered in the present round.
    pub(super) fn said_by(&self) -> Vec<Option<Arc<Standing>>> {
        let state = self.state.lock();
        let said_by = |node: &Share| {
            let (_, _, by) = node.answer.as_ref().filter(|(when, ..)| *when == state.round)?;
            by.clone()
        };
        state.nodes.iter().map(said_by).collect()
    }

    /// From now on nobody wants it. Which nodes have granted it, which may have, and whether there is any of which it is
    /// not known yet.
    pub(super) fn withdraw(&self) -> Traces {
        let mut state = self.state.lock();
        state.phase = Phase::Unwanted;
        let mut traces = Traces::default();
        for (at, node) in state.nodes.iter().enumerate() {
            if node.pending > 0 {
                traces.is_open = true;
            } else if node.doubt {
                traces.in_doubt.push(at);
            } else if node.granted.is_some() {
                traces.granted.push(at);
            }
        }
        traces
    }

    /// How it is to be closed on this node, as far as is known now; `None` if there is nothing, and will be nothing.
    pub(super) fn closing(
        &self,
        at: usize,
        asked: ReleaseOptions,
    ) -> Option<(Receipt, ReleaseOptions)> {
        let mut state = self.state.lock();
        state.phase = Phase::Unwanted;
        let node = &state.nodes[at];
        let receipt = node.granted.clone().unwrap_or_default();
        if node.doubt || node.pending > 0 || asked.tombstone != Tombstone::None {
            return Some((receipt, ReleaseOptions::WITH_TOMBSTONE));
        }
        node.granted.is_some().then_some((receipt, asked))
    }

    /// What the node wants to be reminded of.
    pub(super) fn receipt(&self, at: usize) -> Receipt {
        self.state.lock().nodes[at].granted.clone().unwrap_or_default()
    }

    /// A release was answered: the next one is another one.
    pub(super) fn forget_releases(&self) {
        self.state.lock().nodes.iter_mut().for_each(|node| node.freed = false);
    }

    /// What a release at this node came to, seen together with those before: what was freed once was ours until then.
    pub(super) fn note_release(&self, at: usize, release: Release) -> Release {
        let node = &mut self.state.lock().nodes[at];
        node.freed |= release != Release::Gone;
        if node.freed && release == Release::Gone { Release::Freed } else { release }
    }
}

/// What an attempt that failed may have left.
#[derive(Default, Debug)]
pub(super) struct Traces {
    pub(super) granted: Vec<usize>,
    pub(super) in_doubt: Vec<usize>,
    /// Some node has not answered yet.
    pub(super) is_open: bool,
}

impl Traces {
    /// Whether there are none.
    pub(super) fn is_none(&self) -> bool {
        self.granted.is_empty() && self.in_doubt.is_empty() && !self.is_open
    }
}

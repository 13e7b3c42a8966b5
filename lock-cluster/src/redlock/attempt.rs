//! One attempt on all nodes: requests votes, proposes a larger token if needed, and rolls back the
//! grants of a failed attempt.
//!
//! A majority of grants at one token wins. `docs/DESIGN.md`, section Quorum, explains the proposed
//! tokens. Any two majorities share a node, which grants one acquisition after the other, with
//! growing tokens.

use super::attempt_state::{AttemptState, NodeAnswer, Outstanding, QuorumReceipt};
use super::clocks::{WrongClocks, unix_micros};
use super::majority::{Decision, RoundTally, free_in, majority};
use super::node::Vote;
use super::node_worker::{NodeContext, Queue};
use super::quorum::Quorum;
use super::reports::awaited_clock;
use super::responses::Responses;
use lock_core::backend::{Answer, Attempt, Failure, Grant, Proposal, Receipt, RetryCause, Tokens};
use lock_core::{Error, ErrorKind, FencingToken, MemberOutcome, MemberResult, Moment, TokenRange};
use lock_redis::quorum::{NodeView, Response};
use std::sync::Arc;
use std::time::Duration;

/// The most rounds of one attempt; each round after the first proposes a larger token. One round is
/// usual; two are needed, for example, if clocks differ.
const MAX_ROUNDS: u32 = 8;
/// The time that the choice of the first members of a quorum may take, because it needs some round
/// trips, and is repeated if other clients choose at the same time. A longer time means a fault.
const STARTING: Duration = Duration::from_secs(10);
/// The interval at which an attempt that awaits responses checks which nodes count as silent, so
/// that the attempt ends soon after a node has become silent. A response wakes the attempt at once.
const LOOK: Duration = Duration::from_millis(50);

impl Quorum {
    pub(super) fn attempt(
        self: &Arc<Self>,
        attempt: &Attempt<'_>,
        by: Moment,
    ) -> Result<Answer, Failure> {
        self.check_lease(attempt.lease).map_err(Failure::NotSent)?;
        let by = self.by(by);
        let (name, owner) = (attempt.name, attempt.owner);
        let reserve = match attempt.tokens {
            Tokens::Assign { reserve } => Some(reserve),
            _ => None,
        };
        let mut first =
            self.proposals
                .first(name, owner, reserve.unwrap_or(0), self.clock.as_ref());
        let (membership, clock) = (Arc::clone(&self.membership), Arc::clone(&self.clock));
        let state = AttemptState::new(attempt, self.workers.len(), membership, clock);
        for round in 1.. {
            let proposal = reserve.map(|reserve| Proposal::new(first, reserve));
            let decision = self.ask_round(&state, proposal, attempt.waits, by);
            let mut answers = state.answers();
            let mut wrong_clocks = WrongClocks::none();
            if decision == Decision::Outbid && round < MAX_ROUNDS && self.clock.now() < by {
                let next = self
                    .token_to_outbid(&state, &answers)
                    .unwrap_or(first.get())
                    + 1;
                match self.refusal_of_token(next + u64::from(reserve.unwrap_or(0)), by) {
                    Some(wrong) => {
                        // The attempt and the reading of the state use one queue for each node. So
                        // each server whose state was read has answered the attempt, too.
                        answers = state.answers();
                        wrong_clocks = wrong;
                    }
                    None => {
                        first = FencingToken::new(next);
                        continue;
                    }
                }
            }
            self.update_in_background();
            if decision != Decision::Won {
                if answers
                    .iter()
                    .flatten()
                    .any(|it| matches!(it, NodeAnswer::Ahead(_)))
                {
                    self.proposals.forget(name);
                }
                return self.roll_back(&state, &answers, first, &wrong_clocks);
            }
            let has_token =
                |answer: &NodeAnswer| matches!(answer, NodeAnswer::Granted { with_tokens: true });
            let reserve = reserve.filter(|_| answers.iter().flatten().any(has_token));
            let tokens = reserve.and_then(|reserve| {
                self.proposals.won(name, owner, first, reserve);
                TokenRange::new(first, FencingToken::new(first.get() + u64::from(reserve)))
            });
            let receipt = Receipt::new(QuorumReceipt(state));
            return Ok(Answer::Granted(Grant::new(tokens).receipt(receipt)));
        }
        unreachable!("the last round is won or lost")
    }

    /// Returns the smallest token such that a majority can grant a larger one; `None` if no node
    /// requires a larger token. Ignores the larger tokens that nodes beyond this majority require:
    /// a server whose clock is far ahead requires a token that the other servers refuse.
    fn token_to_outbid(&self, state: &AttemptState, answers: &[Option<NodeAnswer>]) -> Option<u64> {
        let stale = answers.iter().flatten().filter_map(|answer| match answer {
            NodeAnswer::Stale(token) => Some(*token),
            _ => None,
        });
        let mut stale: Vec<_> = stale.collect();
        stale.sort_unstable();
        let tally = state.tally(|at| self.workers[at].context().is_suspect());
        let hopeful = tally.granted + tally.waiting - tally.suspects;
        let needed = majority(tally.nodes)
            .saturating_sub(hopeful)
            .clamp(1, stale.len().max(1));
        stale.get(needed - 1).copied()
    }

    /// Sends the attempt to all nodes and waits for a decision. Without a decision at `by`, the
    /// round is lost.
    fn ask_round(
        self: &Arc<Self>,
        state: &Arc<AttemptState>,
        proposal: Option<Proposal>,
        waits: bool,
        by: Moment,
    ) -> Decision {
        let round = state.begin_round(proposal);
        for worker in &self.workers {
            let quorum = Arc::downgrade(self);
            let (state, asked) = (Arc::clone(state), state.acquisition_on(worker.number()));
            let request = move |context: &NodeContext, by| {
                let attempt = Attempt::new(&asked.name, asked.owner, asked.lease).waits(waits);
                let sent = context.now();
                let vote = context
                    .node()
                    .acquire(&attempt.tokens(Tokens::None), proposal, by)?;
                context.note_distance(sent);
                Ok(vote)
            };
            worker.ask(Queue::Attempts, by, request, move |context, response| {
                let is_unmarked = matches!(
                    &response,
                    Ok(Response {
                        what: Vote::Unmarked,
                        ..
                    })
                );
                if state.note(context.number(), round, response) {
                    state.roll_back_on(context);
                }
                // The update is requested here and not only after the round, because a slow node
                // may respond after the majority in every round.
                if is_unmarked && let Some(quorum) = quorum.upgrade() {
                    quorum.membership.request_update();
                    quorum.update_in_background();
                }
            });
        }
        loop {
            let is_suspect = |at: usize| self.workers[at].context().is_suspect();
            if let Some(decision) = state.tally(is_suspect).decision() {
                return decision;
            }
            let now = self.clock.now();
            if now >= by {
                return Decision::Lost;
            }
            self.clock.wait(&state.signal, by.min(now + LOOK));
        }
    }

    /// Rolls back a failed attempt. Returns an answer with the cause, which allows another attempt.
    /// Returns a refusal instead if the cause is an error and no node has granted the attempt or
    /// may still grant it.
    fn roll_back(
        &self,
        state: &Arc<AttemptState>,
        answers: &[Option<NodeAnswer>],
        first: FencingToken,
        wrong_clocks: &WrongClocks,
    ) -> Result<Answer, Failure> {
        let (cause, after) = self.retry_cause(state, answers, first, wrong_clocks);
        let outstanding = state.abandon();
        self.roll_back_on_nodes(state, &outstanding);
        let new_owner = !outstanding.is_none();
        match cause {
            RetryCause::Failed(error) if !new_owner => Err(Failure::Refused(error)),
            cause => Ok(Answer::Retry {
                cause,
                after,
                new_owner,
            }),
        }
    }

    /// Rolls back grants, and waits for that at most for the node timeout, so that the votes of a
    /// failed attempt do not block other clients. Does not wait for nodes with an unknown outcome.
    pub(super) fn roll_back_on_nodes(&self, state: &Arc<AttemptState>, outstanding: &Outstanding) {
        let by = self.by(Moment::NEVER);
        let Outstanding {
            granted, unknown, ..
        } = outstanding;
        let responses = Responses::of(granted.len());
        for (place, at) in granted.iter().chain(unknown).enumerate() {
            let (responses, count) = (Arc::clone(&responses), granted.len());
            let (state, late) = (Arc::clone(state), Arc::clone(state));
            let roll_back = move |context: &NodeContext, _: Moment| {
                state.roll_back_on(context);
                Ok(())
            };
            self.workers[*at].ask(Queue::Attempts, by, roll_back, move |context, outcome| {
                if outcome.is_err() {
                    // The deadline passed while the request was queued.
                    context.release_later(late.acquisition_on(context.number()), None);
                }
                if place < count {
                    responses.put(place, ());
                }
            });
        }
        responses.wait_for_all(self.clock.as_ref(), by);
    }

    /// Returns the cause of a failed attempt, and the pause before a retry, if it is known.
    fn retry_cause(
        &self,
        state: &AttemptState,
        answers: &[Option<NodeAnswer>],
        first: FencingToken,
        wrong_clocks: &WrongClocks,
    ) -> (RetryCause, Option<Duration>) {
        let tally = state.tally(|_| false);
        let nodes = self.workers.len();
        if tally.is_held() {
            let busy = answers.iter().filter_map(|answer| match answer {
                Some(NodeAnswer::Busy(left)) => Some(*left),
                _ => None,
            });
            let free = tally.granted + tally.stale;
            return (RetryCause::Held, free_in(busy.collect(), nodes, free));
        }
        let has_right_clocks = wrong_clocks.servers.is_empty();
        let can_grant = tally.granted + tally.stale >= majority(nodes);
        if tally.is_contended() || can_grant && has_right_clocks {
            return (RetryCause::SplitVote, None);
        }
        let refusals = answers
            .iter()
            .flatten()
            .filter(|it| matches!(it, NodeAnswer::Ahead(_)));
        let most_refuse = refusals.count() >= majority(nodes);
        let outcomes = answers.iter().enumerate().map(|(at, answer)| match answer {
            Some(NodeAnswer::Stale(_)) if wrong_clocks.error(at).is_some() => {
                MemberOutcome::Failed(wrong_clocks.error(at).expect("it was looked at"))
            }
            Some(NodeAnswer::Ahead(ahead)) => {
                MemberOutcome::Failed(self.ahead_error(at, *ahead, first, most_refuse))
            }
            Some(NodeAnswer::Granted { .. } | NodeAnswer::Stale(_)) => MemberOutcome::Done,
            Some(NodeAnswer::Busy(_)) => MemberOutcome::Busy,
            Some(NodeAnswer::Failed(failure)) => MemberOutcome::Failed(failure.error().clone()),
            Some(NodeAnswer::Paused(left, node)) => {
                MemberOutcome::Failed(self.pause_error(*left, node.as_deref()))
            }
            Some(NodeAnswer::Unmarked) => {
                MemberOutcome::Failed(self.membership.unmarked_error(at, &state.views()))
            }
            None => MemberOutcome::Failed(Error::unavailable("no answer in time")),
        });
        let outcomes = outcomes.collect();
        match self.pause(&tally, answers).filter(|_| has_right_clocks) {
            Some((left, why, begins)) => {
                let has_answered = |answer: &Option<NodeAnswer>| {
                    matches!(answer, Some(NodeAnswer::Paused(..) | NodeAnswer::Unmarked))
                };
                // In a new quorum all servers have the same reason, which is reported once.
                let why = match begins && answers.iter().all(has_answered) {
                    true => Error::unavailable(why),
                    false => self.error_of_all(ErrorKind::Unavailable, &why, outcomes),
                };
                let may_end_sooner = can_win_with_silent_nodes(&tally, answers);
                let paused = RetryCause::Paused {
                    why,
                    may_end_sooner,
                };
                (paused, Some(left))
            }
            None => {
                let error = self.unavailable("grant it", outcomes);
                (RetryCause::Failed(error), None)
            }
        }
    }

    fn pause_error(&self, left: Duration, node: Option<&NodeView>) -> Error {
        let is_longer = self.terms.is_some_and(|terms| left > terms.max_lease);
        let why = if node.is_some_and(is_restarted) {
            "was started again"
        } else if is_longer {
            "became a node"
        } else {
            "became a node just now"
        };
        let is_new = !is_longer && !node.is_some_and(is_restarted);
        let clock = match node.and_then(|node| node.clock.as_deref()) {
            _ if is_new => {
                ": in a new quorum, `distlock quorum init` makes it vote at once".to_owned()
            }
            _ if !is_longer => String::new(),
            Some(clock) => format!(": {}", awaited_clock(clock)),
            None => {
                ": its clock was set back, and `distlock quorum init` shortens the wait".to_owned()
            }
        };
        Error::unavailable(format!(
            "it {why}, and does not vote for {left:.1?} yet{clock}"
        ))
    }

    /// Returns the error of a node that refuses a proposal because it is too far ahead of the
    /// node's clock.
    fn ahead_error(
        &self,
        at: usize,
        ahead: Duration,
        first: FencingToken,
        most_refuse: bool,
    ) -> Error {
        let name = self.workers[at].context().node().name();
        let longest = self.terms.map(|terms| terms.max_lease).unwrap_or_default();
        let most = format!("max_lease={longest:?} is the most");
        if first.get() > unix_micros(self.clock.as_ref()) {
            Error::unavailable(format!(
                "the last token of this lock is {ahead:.1?} ahead of the clock of {name}, and \
                 {most}: it was granted by clocks that were ahead"
            ))
        } else if most_refuse {
            Error::configuration(format!(
                "this machine's clock is {ahead:.1?} ahead of the clock of {name}, and {most}: set \
                 this machine's clock right"
            ))
        } else {
            Error::configuration(format!(
                "its clock is behind: this machine's is {ahead:.1?} ahead of it, and {most}: set \
                 it right"
            ))
        }
    }

    /// If the paused nodes would complete a majority, returns the time until enough nodes vote, the
    /// reason of the pause, and whether the quorum is new.
    fn pause(
        &self,
        tally: &RoundTally,
        answers: &[Option<NodeAnswer>],
    ) -> Option<(Duration, String, bool)> {
        let longest = self.terms?.max_lease;
        let votes = tally.granted + tally.stale + tally.busy;
        let is_new = |answer: &Option<NodeAnswer>| match answer {
            Some(NodeAnswer::Paused(_, Some(node))) => node.epoch == 1 && !is_restarted(node),
            Some(NodeAnswer::Granted { .. } | NodeAnswer::Stale(_) | NodeAnswer::Busy(_)) => false,
            _ => true,
        };
        let begins = votes == 0 && answers.iter().all(is_new);
        let has_begun = answers
            .iter()
            .any(|it| matches!(it, Some(NodeAnswer::Paused(..))));
        // Unmarked servers are expected to become nodes within `STARTING`. After that time the end
        // of the pause is unknown.
        let is_starting = begins && self.is_starting(has_begun);
        let left = answers.iter().flatten().filter_map(|answer| match answer {
            NodeAnswer::Paused(left, _) => Some(*left),
            NodeAnswer::Unmarked if is_starting => Some(longest),
            _ => None,
        });
        let mut left: Vec<_> = left.collect();
        left.sort_unstable();
        let needed = majority(answers.len()).checked_sub(votes + 1)?;
        let left = *left.get(needed)?;
        let why = if begins {
            format!(
                "this is a new quorum, or all of its servers were emptied, and it votes in \
                 {left:.1?}; if no lock can have been held there within the last \
                 max_lease={longest:?}, `distlock quorum init` (in a program, `set_up_quorum`) \
                 makes it vote at once"
            )
        } else {
            format!(
                "too few nodes of the quorum vote before {left:.1?} are over: others were started \
                 again, or took a node's place, and wait until every lease that may have been \
                 forgotten is over"
            )
        };
        Some((left, why, begins))
    }

    /// Returns whether unmarked servers are expected to become nodes. That is the case for
    /// [`STARTING`], as long as no server is a node.
    fn is_starting(&self, has_begun: bool) -> bool {
        let mut since = self.starting.lock();
        if has_begun {
            *since = None;
            return false;
        }
        let now = self.clock.now();
        now < *since.get_or_insert(now) + STARTING
    }

    /// Returns the error of a request that was not decided.
    pub(super) fn unavailable(&self, what: &str, outcomes: Vec<MemberOutcome>) -> Error {
        let nodes = self.workers.len();
        let needed = majority(nodes);
        let kind = |outcome: &MemberOutcome| match outcome {
            MemberOutcome::Failed(error) if !error.is_unavailable() => Some(error.kind()),
            _ => None,
        };
        // The kind is `Unavailable` if the nodes without a failure of another kind are a majority,
        // because the request may then succeed once these nodes are available. Otherwise it is the
        // first other kind.
        let kinds: Vec<_> = outcomes.iter().filter_map(kind).collect();
        let is_permanent = nodes - kinds.len() < needed;
        let kind = kinds.first().copied().filter(|_| is_permanent);
        let what = format!("not enough nodes of the quorum {what}: {needed} of {nodes} are needed");
        self.error_of_all(kind.unwrap_or(ErrorKind::Unavailable), &what, outcomes)
    }

    fn error_of_all(&self, kind: ErrorKind, what: &str, outcomes: Vec<MemberOutcome>) -> Error {
        let names = self
            .workers
            .iter()
            .map(|worker| worker.context().node().name());
        let members = names
            .zip(outcomes)
            .map(|(name, it)| MemberResult::new(name, it))
            .collect();
        Error::from_members(kind, what, "did", members)
    }
}

/// Returns whether at least one node votes, and the voting and the silent nodes together are a
/// majority.
fn can_win_with_silent_nodes(tally: &RoundTally, answers: &[Option<NodeAnswer>]) -> bool {
    let is_silent = |answer: &&Option<NodeAnswer>| match answer {
        None => true,
        Some(NodeAnswer::Failed(failure)) => failure.error().is_unavailable(),
        Some(_) => false,
    };
    let silent = answers.iter().filter(is_silent).count();
    let votes = tally.granted + tally.stale + tally.busy;
    votes > 0 && votes + silent >= majority(answers.len())
}

fn is_restarted(node: &NodeView) -> bool {
    node.run_id != node.node
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_may_end_sooner_if_silent_nodes_make_a_majority() {
        let paused = || Some(NodeAnswer::Paused(Duration::from_secs(9), None));
        let refused = || {
            Some(NodeAnswer::Failed(Failure::Refused(Error::configuration(
                "no",
            ))))
        };
        let vote = || Some(NodeAnswer::Granted { with_tokens: true });
        let can_win = |answers: &[Option<NodeAnswer>], granted| {
            let tally = RoundTally {
                nodes: answers.len(),
                granted,
                ..RoundTally::default()
            };
            can_win_with_silent_nodes(&tally, answers)
        };
        assert!(can_win(&[vote(), paused(), None], 1), "one missed answer");
        assert!(
            !can_win(&[vote(), paused(), refused()], 1),
            "it would refuse again"
        );
        assert!(!can_win(&[vote(), paused(), paused()], 1));
        assert!(!can_win(&[None, None, paused()], 0), "no node votes yet");
    }
}

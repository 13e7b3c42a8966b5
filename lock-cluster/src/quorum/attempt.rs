//! One attempt on all nodes at once: ask, outbid, and give back what is not enough.
//!
//! A majority that grants at the same token has won (the protocol of the proposed tokens, see `docs/DESIGN.md`). Two
//! majorities meet at a node, and that node grants in one order, with growing tokens.

use super::backend::Quorum;
use super::ballot::{Ballot, Said, Traces};
use super::gathering::Gathering;
use super::member::{Reply, Vote};
use super::seat::{Core, Task};
use super::tally::{self, Round, Verdict, majority};
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, Failure, Grant, Pause, Receipt, ReleaseOptions, RollbackCause,
    Tokens,
};
use lock_core::{
    Error, ErrorKind, FencingToken, LeaseTime, LockName, MemberOutcome, MemberResult, Moment,
    OwnerId, TokenRange,
};
use lock_redis::parts::Standing;
use std::sync::Arc;
use std::time::Duration;

/// How often all nodes are asked again with a greater token, before others are let go first.
const MOST_ROUNDS: u32 = 8;
/// How long a quorum may take to begin: some round trips, several times if clients get in each other's way.
const BEGINNING: Duration = Duration::from_secs(10);
/// How long a wait for answers goes on without a look at which nodes seem dead.
const LOOK: Duration = Duration::from_millis(50);

/// What a quorum's grant is remembered by.
pub(super) struct Held(pub(super) Arc<Ballot>);

/// What every node is asked in one round.
#[derive(Clone)]
struct Question {
    name: LockName,
    owner: OwnerId,
    lease: LeaseTime,
    tokens: Tokens,
}

impl Question {
    fn of(attempt: &Attempt<'_>, first: FencingToken) -> Self {
        let tokens = match attempt.tokens {
            Tokens::Assign { reserve } | Tokens::Propose { reserve, .. } => {
                Tokens::Propose { first, reserve }
            }
            _ => Tokens::None,
        };
        Self { name: attempt.name.clone(), owner: attempt.owner, lease: attempt.lease, tokens }
    }

    fn acquisition(&self, receipt: Receipt) -> AcquisitionId {
        AcquisitionId::new(self.name.clone(), self.owner, self.lease, receipt)
    }
}

impl Quorum {
    pub(super) fn attempt(
        self: &Arc<Self>,
        attempt: &Attempt<'_>,
        by: Moment,
    ) -> Result<Answer, Failure> {
        self.refuse_beyond_terms(attempt.lease).map_err(Failure::NotSent)?;
        let by = self.by(by);
        let reserve = match attempt.tokens {
            Tokens::Assign { reserve } | Tokens::Propose { reserve, .. } => reserve,
            _ => 0,
        };
        let mut first =
            self.proposals.first(attempt.name, attempt.owner, reserve, self.clock.as_ref());
        if let Tokens::Propose { first: asked, .. } = attempt.tokens {
            first = first.max(asked);
        }
        let (roll, clock) = (Arc::clone(&self.roll), Arc::clone(&self.clock));
        let ballot = Ballot::new(self.seats.len(), roll, clock);
        for round in 1.. {
            let question = Question::of(attempt, first);
            let verdict = self.ask_all(&ballot, &question, by);
            let said = ballot.said();
            self.note_stale(attempt.name, &said);
            match verdict {
                Verdict::Won => {
                    self.tend();
                    return Ok(Answer::Granted(self.won(&question, &ballot, &said)));
                }
                Verdict::Outbid if round < MOST_ROUNDS && self.clock.now() < by => {
                    let largest = said.iter().filter_map(|said| match said {
                        Some(Said::Stale(token)) => Some(*token),
                        _ => None,
                    });
                    first = FencingToken::new(largest.max().unwrap_or(first.get()) + 1);
                }
                Verdict::Outbid | Verdict::Lost => {
                    self.tend();
                    return self.lost(&question, &ballot, &said);
                }
            }
        }
        unreachable!("the last round is won or lost")
    }

    /// Asks all nodes and waits until the answers decide something.
    fn ask_all(self: &Arc<Self>, ballot: &Arc<Ballot>, question: &Question, by: Moment) -> Verdict {
        let round = ballot.begin_round();
        for seat in &self.seats {
            let (quorum, asked) = (Arc::downgrade(self), question.clone());
            let (ballot, asked_again) = (Arc::clone(ballot), question.clone());
            let ask = move |core: &Core, by| {
                let attempt = Attempt::new(&asked.name, asked.owner, asked.lease);
                core.member().acquire(&attempt.tokens(asked.tokens), by)
            };
            seat.ask(Task::Attempt, by, ask, move |core, answer| {
                let is_outside = matches!(&answer, Ok(Reply { what: Vote::Outside, .. }));
                if ballot.note(core.number(), round, answer) {
                    // It came too late: nobody wants it any more.
                    undo(core, &ballot, &asked_again);
                }
                // Also one that is always slower than a majority.
                if is_outside && let Some(quorum) = quorum.upgrade() {
                    quorum.roll.note_untidy();
                    quorum.tend();
                }
            });
        }
        loop {
            let is_suspect = |at: usize| self.seats[at].core().is_suspect();
            if let Some(verdict) = ballot.round(is_suspect).verdict() {
                return verdict;
            }
            let now = self.clock.now();
            if now >= by {
                return Verdict::Lost;
            }
            self.clock.wait(&ballot.signal, by.min(now + LOOK));
        }
    }

    fn won(&self, question: &Question, ballot: &Arc<Ballot>, said: &[Option<Said>]) -> Grant {
        let with_tokens =
            said.iter().flatten().any(|said| matches!(said, Said::Granted { with_tokens: true }));
        let tokens = match question.tokens {
            Tokens::Propose { first, reserve } if with_tokens => {
                self.proposals.won(&question.name, question.owner, first, reserve);
                TokenRange::new(first, FencingToken::new(first.get() + u64::from(reserve)))
            }
            _ => None,
        };
        Grant::new(tokens).receipt(Receipt::new(Held(Arc::clone(ballot))))
    }

    /// Not enough: gives back what there is, and says why.
    fn lost(
        &self,
        question: &Question,
        ballot: &Arc<Ballot>,
        said: &[Option<Said>],
    ) -> Result<Answer, Failure> {
        let why = self.judge(ballot, said);
        let traces = ballot.withdraw();
        self.give_back(question, ballot, &traces);
        if traces.is_none() {
            // No node has anything of this owner, so it may go on.
            return match why {
                RollbackCause::Held(left) => Ok(Answer::Busy(left)),
                RollbackCause::Failed(error) => Err(Failure::Refused(error)),
                why => Ok(Answer::RolledBack(why)),
            };
        }
        Ok(Answer::RolledBack(why))
    }

    /// Waits for what was granted to be given back, so that whoever is told "busy" leaves nothing that is in others' way;
    /// but not for nodes that do not answer.
    fn give_back(&self, question: &Question, ballot: &Arc<Ballot>, traces: &Traces) {
        let by = self.by(Moment::NEVER);
        let gathering = Gathering::of(traces.granted.len());
        for at in &traces.in_doubt {
            self.undo_at(*at, question, ballot, by, || {});
        }
        for (place, at) in traces.granted.iter().enumerate() {
            let gathering = Arc::clone(&gathering);
            self.undo_at(*at, question, ballot, by, move || gathering.put(place, ()));
        }
        let _all: Option<()> = gathering.wait(self.clock.as_ref(), by, |_| None);
    }

    fn undo_at(
        &self,
        at: usize,
        question: &Question,
        ballot: &Arc<Ballot>,
        by: Moment,
        done: impl FnOnce() + Send + 'static,
    ) {
        let (question, ballot) = (question.clone(), Arc::clone(ballot));
        let late = (question.clone(), Arc::clone(&ballot));
        let undo = move |core: &Core, _: Moment| {
            undo(core, &ballot, &question);
            Ok(())
        };
        self.seats[at].ask(Task::Attempt, by, undo, move |core, outcome| {
            if outcome.is_err() {
                // Its turn did not come in time.
                core.remember(late.0.acquisition(late.1.receipt(core.number())));
            }
            done();
        });
    }

    /// Why not enough nodes granted it.
    fn judge(&self, ballot: &Ballot, said: &[Option<Said>]) -> RollbackCause {
        let round = ballot.round(|_| false);
        if round.is_held() {
            let busy = said.iter().filter_map(|said| match said {
                Some(Said::Busy(left)) => Some(*left),
                _ => None,
            });
            let free = round.granted + round.stale;
            return RollbackCause::Held(tally::free_in(busy.collect(), self.seats.len(), free));
        }
        if round.is_contended() || round.granted + round.stale >= majority(self.seats.len()) {
            return RollbackCause::SplitVote;
        }
        let outcomes = said.iter().enumerate().map(|(at, said)| match said {
            Some(Said::Granted { .. } | Said::Stale(_)) => MemberOutcome::Done,
            Some(Said::Busy(_)) => MemberOutcome::Busy,
            Some(Said::Failed(failure)) => MemberOutcome::Failed(failure.error().clone()),
            Some(Said::Paused(left, node)) => {
                MemberOutcome::Failed(pauses(*left, node.as_deref().is_some_and(is_restarted)))
            }
            Some(Said::Outside) => MemberOutcome::Failed(self.roll.outside(at, &ballot.said_by())),
            None => MemberOutcome::Failed(Error::unavailable("no answer in time")),
        });
        let outcomes = outcomes.collect();
        match self.pause(&round, said) {
            Some((left, why)) => {
                let why = self.of_all(ErrorKind::Unavailable, &why, outcomes);
                let may_end_sooner = can_win_with_silent_nodes(&round, said);
                RollbackCause::Paused(Pause::new(left, why).may_end_sooner(may_end_sooner))
            }
            None => RollbackCause::Failed(self.unavailable("grant it", outcomes)),
        }
    }

    /// For how long yet too few nodes vote, and why, where enough of them will.
    fn pause(&self, round: &Round, said: &[Option<Said>]) -> Option<(Duration, String)> {
        let longest = self.terms?.max_lease;
        let votes = round.granted + round.stale + round.busy;
        let is_new = |said: &Option<Said>| match said {
            Some(Said::Paused(_, Some(node))) => node.epoch == 1 && !is_restarted(node),
            Some(Said::Granted { .. } | Said::Stale(_) | Said::Busy(_)) => false,
            _ => true,
        };
        let begins = votes == 0 && said.iter().all(is_new);
        let has_begun = said.iter().any(|said| matches!(said, Some(Said::Paused(..))));
        // Those that are outside become its nodes at once; if they do not, the end is not known.
        let is_beginning = begins && self.is_beginning(has_begun);
        let left = said.iter().flatten().filter_map(|said| match said {
            Said::Paused(left, _) => Some(*left),
            Said::Outside if is_beginning => Some(longest),
            _ => None,
        });
        let mut left: Vec<_> = left.collect();
        left.sort_unstable();
        let needed = majority(said.len()).checked_sub(votes + 1)?;
        let left = *left.get(needed)?;
        let why = if begins {
            format!(
                "this is a new quorum, or all of its servers were emptied, and it votes in {left:.1?}: `set_up_quorum` makes it vote at \
                 once, which is right only if no lock can have been held there within the last max_lease={longest:?}"
            )
        } else {
            format!(
                "too few nodes of the quorum vote before {left:.1?} are over: others were started again, or took a node's place, and wait \
                 until every lease that may have been forgotten is over"
            )
        };
        Some((left, why))
    }

    /// Whether servers without a marker are about to become nodes: for a while, as long as there are none.
    fn is_beginning(&self, has_begun: bool) -> bool {
        let mut since = self.beginning.lock();
        if has_begun {
            *since = None;
            return false;
        }
        let now = self.clock.now();
        now < *since.get_or_insert(now) + BEGINNING
    }

    /// The error of a question that could not be decided.
    pub(super) fn unavailable(&self, what: &str, outcomes: Vec<MemberOutcome>) -> Error {
        let needed = majority(self.seats.len());
        let settled = |outcome: &MemberOutcome| match outcome {
            MemberOutcome::Failed(error) if !error.is_unavailable() => Some(error.kind()),
            _ => None,
        };
        // Only where it would be so even if all others did as they were asked.
        let kinds: Vec<_> = outcomes.iter().filter_map(settled).collect();
        let is_settled = self.seats.len() - kinds.len() < needed;
        let kind = kinds.first().copied().filter(|_| is_settled);
        let nodes = self.seats.len();
        let what = format!("not enough nodes of the quorum {what}: {needed} of {nodes} are needed");
        self.of_all(kind.unwrap_or(ErrorKind::Unavailable), &what, outcomes)
    }

    fn of_all(&self, kind: ErrorKind, what: &str, outcomes: Vec<MemberOutcome>) -> Error {
        let seats = self.seats.iter().map(|seat| seat.core().member().name());
        let members = seats.zip(outcomes).map(|(name, it)| MemberResult::new(name, it)).collect();
        Error::from_members(kind, what, "did", members)
    }

    fn note_stale(&self, name: &LockName, said: &[Option<Said>]) {
        for said in said.iter().flatten() {
            if let Said::Stale(token) = said {
                self.proposals.saw(name, *token);
            }
        }
    }
}

/// Takes back what an attempt may have left on this node.
fn undo(core: &Core, ballot: &Ballot, question: &Question) {
    let by = core.by();
    if let Some((receipt, closing)) =
        ballot.closing(core.number(), ReleaseOptions::WITHOUT_TOMBSTONE)
    {
        // What is not answered is remembered there. What is freed here a release need not find there any more.
        let outcome = core.close(&question.acquisition(receipt), closing, by);
        let _noted = outcome.map(|release| ballot.note_release(core.number(), release));
    }
}

/// Whether the nodes that vote are a majority with those that gave no answer this time.
fn can_win_with_silent_nodes(round: &Round, said: &[Option<Said>]) -> bool {
    let is_silent = |said: &&Option<Said>| match said {
        None => true,
        Some(Said::Failed(failure)) => failure.error().is_unavailable(),
        Some(_) => false,
    };
    let silent = said.iter().filter(is_silent).count();
    let votes = round.granted + round.stale + round.busy;
    votes > 0 && votes + silent >= majority(said.len())
}

fn is_restarted(node: &Standing) -> bool {
    node.run_id != node.node
}

fn pauses(left: Duration, is_restarted: bool) -> Error {
    let why = if is_restarted { "was started again" } else { "became a node just now" };
    Error::unavailable(format!("it {why}, and does not vote for {left:.1?} yet"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_may_end_sooner_if_silent_nodes_make_a_majority() {
        let paused = || Some(Said::Paused(Duration::from_secs(9), None));
        let refused = || Some(Said::Failed(Failure::Refused(Error::configuration("no"))));
        let vote = || Some(Said::Granted { with_tokens: true });
        let can_win = |said: &[Option<Said>], granted| {
            let round = Round { nodes: said.len(), granted, ..Round::default() };
            can_win_with_silent_nodes(&round, said)
        };
        assert!(can_win(&[vote(), paused(), None], 1), "one missed answer");
        assert!(!can_win(&[vote(), paused(), refused()], 1), "it will say the same again");
        assert!(!can_win(&[vote(), paused(), paused()], 1));
        assert!(!can_win(&[None, None, paused()], 0), "nobody votes yet");
    }
}

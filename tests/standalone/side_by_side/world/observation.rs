//! [`Step`]: the state of a world after a command, so that two worlds can be compared.

use super::World;
use crate::side_by_side::actor::{Answer, GuardSeen, Left, LockSeen, Token};
use crate::side_by_side::command::{HandOff, NAMES};
use std::fmt::Debug;

/// The answers to a command, and the state after it.
pub(in crate::side_by_side) struct Step {
    /// The threads that got an answer, in order; none if the command did not apply.
    pub(super) answers: Vec<(usize, Answer)>,
    /// The waiting threads, and their locks.
    pub(super) waiting: Vec<(usize, usize)>,
    pub(super) threads: Vec<[LockSeen; NAMES]>,
    pub(super) owned: Vec<(usize, usize, GuardSeen)>,
    pub(super) store: Vec<Option<Holder>>,
}

impl Step {
    pub(in crate::side_by_side) fn answers(&self) -> &[(usize, Answer)] {
        &self.answers
    }

    /// Whether a lock has the owner that it had before.
    pub(in crate::side_by_side) fn keeps_owner(&self, lock: usize, before: &Self) -> bool {
        let owner = |step: &Self| {
            step.store[lock]
                .as_ref()
                .map(|holder| (holder.client, holder.number.0.clone()))
        };
        owner(self).is_some() && owner(self) == owner(before)
    }

    /// Returns all differences between two steps.
    pub(in crate::side_by_side) fn differences(&self, other: &Self) -> Vec<Difference> {
        let mut all = vec![
            difference(
                "answers (thread, answer)".to_owned(),
                &self.answers,
                &other.answers,
            ),
            difference(
                "waiting (thread, lock)".to_owned(),
                &self.waiting,
                &other.waiting,
            ),
            difference(
                "owned guards (client, lock, guard)".to_owned(),
                &self.owned,
                &other.owned,
            ),
        ];
        for lock in 0..NAMES {
            let holder = format!("holder of lock {lock}");
            all.push(difference(holder, &self.store[lock], &other.store[lock]));
            for (thread, (left, right)) in self.threads.iter().zip(&other.threads).enumerate() {
                let seen = format!("lock {lock} as thread {thread} sees it");
                all.push(difference(seen, &left[lock], &right[lock]));
            }
        }
        all.into_iter().flatten().collect()
    }
}

/// The name of what differs, and its value on either side.
pub(in crate::side_by_side) type Difference = (String, [String; 2]);

fn difference<T: PartialEq + Debug>(what: String, left: &T, right: &T) -> Option<Difference> {
    (left != right).then(|| (what, [left, right].map(|side| format!("{side:?}"))))
}

/// The holder of a lock in the store.
#[derive(PartialEq, Debug)]
pub(super) struct Holder {
    pub(super) client: Option<usize>,
    /// The number of the wait that acquired the lock.
    number: Number,
    left: Option<Left>,
    holds: u64,
}

/// The number of a holder, which is not compared with hand-offs: Redis grants a client's first
/// waiter no tokens for threads that come later. Those are not handed the lock, and have numbers of
/// their own.
#[derive(Clone, Debug)]
struct Number(String, HandOff);

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        matches!(self.1, HandOff::Always) || self.0 == other.0
    }
}

impl World {
    /// Returns what each thread sees. A waiting thread cannot be queried: its last view counts.
    pub(super) fn look(&mut self) -> Result<Vec<[LockSeen; NAMES]>, String> {
        for (who, actor) in self.actors.iter().enumerate() {
            if !self.waiting.contains_key(&who) {
                self.seen[who] = actor.look()?;
            }
        }
        let mut seen = self.seen.clone();
        for (lock, thread) in seen
            .iter_mut()
            .flat_map(|locks| locks.iter_mut().enumerate())
        {
            thread
                .guards
                .iter_mut()
                .for_each(|guard| guard.token = self.rank(lock, guard.token));
        }
        Ok(seen)
    }

    pub(super) fn ranked_shelf(&self) -> Vec<(usize, usize, GuardSeen)> {
        let ranked = |(client, lock, mut seen): (usize, usize, GuardSeen)| {
            seen.token = self.rank(lock, seen.token);
            (client, lock, seen)
        };
        self.shelf.look().into_iter().map(ranked).collect()
    }

    fn rank(&self, lock: usize, token: Option<Token>) -> Option<Token> {
        let rank = |Token(token)| self.tokens[lock].iter().position(|known| *known == token);
        token.map(|token| Token(rank(token).map_or(u64::MAX, |rank| rank as u64)))
    }

    /// Returns the answer with the rank of its token. Fails if a new token is not larger than all
    /// before.
    pub(super) fn ranked(&mut self, lock: usize, answer: Answer) -> Result<Answer, String> {
        let Answer::Took(token) = answer else {
            return Ok(answer);
        };
        if let Some(Token(new)) = token.filter(|token| !self.tokens[lock].contains(&token.0)) {
            if let Some(last) = self.tokens[lock].last().filter(|last| **last >= new) {
                return Err(format!("the token {new} was given after {last}"));
            }
            self.tokens[lock].push(new);
        }
        Ok(Answer::Took(self.rank(lock, token)))
    }

    pub(super) fn holder(&self, lock: usize) -> Result<Option<Holder>, String> {
        let mutex = self.observer.mutex(&self.names[lock]).unwrap();
        let info = mutex.inspect().map_err(|error| format!("{error:?}"))?;
        Ok(info.holder.map(|holder| {
            let owner = holder.owner.as_str();
            let (id, number) = owner.rsplit_once(':').unwrap_or((owner, ""));
            Holder {
                client: self.ids.iter().position(|client| client.to_string() == id),
                number: Number(number.to_owned(), self.hand_off),
                left: holder.remaining.map(Left),
                holds: holder.holds,
            }
        }))
    }
}

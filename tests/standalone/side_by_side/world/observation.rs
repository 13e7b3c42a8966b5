//! What a world looks like after a command, so that two of them can be compared.

use super::World;
use crate::side_by_side::actor::{Answer, GuardSeen, LockSeen, Token, minutes};
use crate::side_by_side::command::NAMES;
use distlock::DistLock;

/// What a command led to.
#[derive(PartialEq, Eq, Debug)]
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
}

/// The holder of a lock in the store.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Holder {
    pub(super) client: Option<usize>,
    /// The number of the wait that got it.
    number: String,
    minutes: u64,
    holds: u64,
}

impl World {
    /// Asks all threads that do not wait.
    pub(super) fn look(&mut self) -> Result<Vec<[LockSeen; NAMES]>, String> {
        for (who, actor) in self.actors.iter().enumerate() {
            if !self.waiting.contains_key(&who) {
                self.seen[who] = actor.look()?;
            }
        }
        let mut seen = self.seen.clone();
        for (lock, thread) in seen.iter_mut().flat_map(|locks| locks.iter_mut().enumerate()) {
            thread.guards.iter_mut().for_each(|guard| guard.token = self.rank(lock, guard.token));
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

    /// The answer with the token's place among all of its lock. A new one is larger than all
    /// before.
    pub(super) fn ranked(&mut self, lock: usize, answer: Answer) -> Result<Answer, String> {
        let Answer::Took(token) = answer else { return Ok(answer) };
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
                number: number.to_owned(),
                minutes: holder.remaining.map_or(u64::MAX, minutes),
                holds: holder.holds,
            }
        }))
    }
}

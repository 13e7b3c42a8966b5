//! [`Several`]: what the guard of several locks has in its hand, and how good it is.

use super::members::{Group, worst};
use crate::clock::Moment;
use crate::engine::Whole;
use crate::engine::acquisition::{GuardState, Listener};
use crate::error::{Error, MemberOutcome, MemberResult};
use crate::guard::{LockGuard, must_be_left};
use crate::lease::LeaseTime;
use crate::loss::Loss;
use crate::name::LockName;
use crate::sync::Mutex;
use crate::token::FencingToken;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The holds on several locks that were taken as one: a tree, whose leaves are holds on single
/// locks.
///
/// It is as good as so many of them as are needed. Which are lost is final, so that is, too.
pub(crate) struct Several {
    group: Arc<Group>,
    /// In the order of the group; `None` for one that was not to be had, and is not needed.
    parts: Vec<Option<LockGuard>>,
}

impl Several {
    pub(crate) fn new(group: Arc<Group>, parts: Vec<Option<LockGuard>>) -> Self {
        debug_assert_eq!(group.parts.len(), parts.len(), "a place for each member");
        Self { group, parts }
    }

    fn held(&self) -> impl Iterator<Item = &LockGuard> {
        self.parts.iter().flatten()
    }

    /// Asks each part that is held; an error if fewer than needed did as they were asked.
    fn ask<T>(
        &self,
        what: &str,
        done: &str,
        mut question: impl FnMut(&LockGuard) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let answers = self.parts.iter().map(|part| part.as_ref().map(&mut question)).collect();
        self.judge(what, done, answers)
    }

    /// What came of a question to each part.
    fn judge<T>(
        &self,
        what: &str,
        done: &str,
        answers: Vec<Option<Result<T, Error>>>,
    ) -> Result<Vec<T>, Error> {
        let mut good = Vec::new();
        let mut results = Vec::new();
        for (part, answer) in self.group.parts.iter().zip(answers) {
            let outcome = match answer {
                None => MemberOutcome::NotAsked,
                Some(Err(error)) => MemberOutcome::Failed(error),
                Some(Ok(answer)) => {
                    good.push(answer);
                    MemberOutcome::Done
                }
            };
            results.push(MemberResult::new(part.name().as_str(), outcome));
        }
        if good.len() >= self.group.need {
            return Ok(good);
        }
        let kind = worst(&results);
        Err(Error::from_members(kind, what, done, results).on(&self.group.name))
    }

    /// What so many of these durations reach as are needed.
    fn needed(&self, mut each: Vec<Duration>) -> Duration {
        each.sort_unstable_by(|a, b| b.cmp(a));
        each.get(self.group.need - 1).copied().unwrap_or_default()
    }

    pub(crate) fn unlock(mut self) -> Result<(), Error> {
        // The last one first. Each is released, whatever became of the others.
        let mut answers: Vec<_> =
            self.parts.iter_mut().rev().map(|part| part.take().map(LockGuard::unlock)).collect();
        answers.reverse();
        self.judge("not all were released as they should be", "was released", answers).map(|_| ())
    }

    pub(crate) fn detach(mut self, whole: Option<Whole>) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let whole = whole.unwrap_or_else(|| Whole {
            of: Arc::clone(self.group.key()),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
        });
        for part in self.parts.iter_mut().filter_map(Option::take) {
            part.detach_as(Some(whole.clone()));
        }
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.group.name
    }

    /// None: nobody orders the grants of several locks.
    #[allow(clippy::unused_self, reason = "the same question as to a single hold")]
    pub(crate) fn fencing_token(&self) -> Option<FencingToken> {
        None
    }

    pub(crate) fn fencing_tokens(&self) -> Vec<(LockName, Option<FencingToken>)> {
        let each = self.group.parts.iter().zip(&self.parts).flat_map(|(what, part)| match part {
            Some(part) => part.fencing_tokens(),
            None => what.leaves().iter().map(|leaf| (leaf.entry.name.clone(), None)).collect(),
        });
        each.collect()
    }

    pub(crate) fn is_valid(&self) -> bool {
        self.held().filter(|part| part.is_valid()).count() >= self.group.need
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.needed(self.held().map(LockGuard::remaining).collect())
    }

    pub(crate) fn ensure(&self, time: Duration) -> Result<(), Error> {
        self.ask("it was lost", "is held", |part| part.ensure(Duration::ZERO))?;
        must_be_left(self.remaining(), time, &self.group.name)
    }

    pub(crate) fn extend(&self, time: Duration) -> Result<(), Error> {
        self.ask("it was not extended", "was extended", |part| part.extend(time)).map(|_| ())
    }

    pub(crate) fn lease_again(&self, lease: LeaseTime) -> Result<(), Error> {
        self.ask("it was not extended", "was extended", |part| part.lease_again(lease)).map(|_| ())
    }

    pub(crate) fn verify(&self) -> Result<Duration, Error> {
        let clock = self.group.clock();
        let verify = |part: &LockGuard| Ok((part.verify()?, clock.now()));
        let answers = self.ask("it is not held as it should be", "is held", verify)?;
        // One that has answered may have ended while the others were asked.
        self.ask("it was lost", "is held", |part| part.ensure(Duration::ZERO))?;
        let now = clock.now();
        let left = |(left, at): (Duration, Moment)| match left {
            Duration::MAX => left,
            _ => left.saturating_sub(now.since(at)),
        };
        Ok(self.needed(answers.into_iter().map(left).collect()))
    }

    pub(crate) fn state(&self) -> GuardState {
        let states: Vec<_> = self.held().map(LockGuard::state).collect();
        let count = |wanted: &[GuardState]| {
            states.iter().filter(|state| wanted.contains(state)).count() >= self.group.need
        };
        match () {
            () if count(&[GuardState::Held]) => GuardState::Held,
            () if count(&[GuardState::Held, GuardState::Suspended]) => GuardState::Suspended,
            () => GuardState::Lost,
        }
    }

    /// How many of those that are held may be lost.
    fn spare(&self) -> usize {
        self.held().count().saturating_sub(self.group.need)
    }

    /// The loss after which fewer than needed are left, as far as the order can be told.
    pub(crate) fn loss(&self) -> Option<Loss> {
        let mut losses = self.held().filter_map(|part| Some(part.loss()?.of(part.name())));
        losses.nth(self.spare())
    }

    pub(crate) fn listen(&self, listener: Listener) {
        let wanted = listener.wanted.clone();
        let tally = Arc::new(Tally(Mutex::new((self.spare(), Some(listener)))));
        for part in self.held() {
            let (tally, name) = (Arc::clone(&tally), part.name().clone());
            let tell = move |loss: Loss| tally.lost(loss.of(&name));
            part.listen(Listener::new(wanted.clone(), tell));
        }
    }
}

#[cfg(test)]
impl Several {
    pub(crate) fn listeners(&self) -> usize {
        self.held().map(LockGuard::listeners).sum()
    }
}

impl Drop for Several {
    fn drop(&mut self) {
        // In the reverse of the order in which they stand, as `unlock` does.
        for part in self.parts.iter_mut().rev() {
            drop(part.take());
        }
    }
}

impl fmt::Debug for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.group.name)
            .field("need", &self.group.need)
            .field("members", &self.held().collect::<Vec<_>>())
            .field("remaining", &self.remaining())
            .finish()
    }
}

/// How many members may yet be lost, and who is told when one more is. It goes when the last
/// member's listener goes, and the one that is to be told with it: that closes its channel.
struct Tally(Mutex<(usize, Option<Listener>)>);

impl Tally {
    fn lost(&self, loss: Loss) {
        let told = {
            let mut state = self.0.lock();
            match state.0.checked_sub(1) {
                Some(left) => {
                    state.0 = left;
                    None
                }
                None => state.1.take(),
            }
        };
        if let Some(listener) = told {
            listener.tell(loss);
        }
    }
}

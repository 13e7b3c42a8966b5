//! [`MemberGuards`]: the guards of the members, which the guard of several locks contains.

use crate::api::guard::{CompositeGuard, LockGuard, require_remaining};
use crate::api::parts::Composite;
use crate::backend::token::FencingToken;
use crate::engine::CompositeHold;
use crate::engine::acquisition::{GuardState, Listener};
use crate::error::{Error, MemberOutcome, MemberResult, worst_kind};
use crate::name::LockName;
use crate::observe::loss::Loss;
use crate::sync::Mutex;
use crate::time::Moment;
use crate::time::lease::LeaseTime;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The guards of several locks that were acquired together. A member's guard may itself be a
/// composite: the guards form a tree whose leaves are holds on single locks.
///
/// The composite is valid while the required number of its guards are. The loss of a member is
/// final, and so is the loss of the composite.
pub(crate) struct MemberGuards {
    composite: Arc<Composite>,
    /// The guards in the order of the members; `None` for a member that a majority did not acquire.
    guards: Vec<Option<LockGuard>>,
}

impl MemberGuards {
    pub(crate) fn new(composite: Arc<Composite>, guards: Vec<Option<LockGuard>>) -> Self {
        debug_assert_eq!(composite.parts.len(), guards.len(), "one for each member");
        Self { composite, guards }
    }

    fn held(&self) -> impl Iterator<Item = &LockGuard> {
        self.guards.iter().flatten()
    }

    /// Calls `request` with each held member. Fails if fewer calls than required succeed.
    fn call<T>(
        &self,
        what: &str,
        done: &str,
        mut request: impl FnMut(&LockGuard) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let answers = self
            .guards
            .iter()
            .map(|part| part.as_ref().map(&mut request))
            .collect();
        self.collect(what, done, answers)
    }

    /// Returns the successful answers of the members. Fails, with the outcome of each member, if
    /// fewer than required succeeded.
    fn collect<T>(
        &self,
        what: &str,
        done: &str,
        answers: Vec<Option<Result<T, Error>>>,
    ) -> Result<Vec<T>, Error> {
        let mut good = Vec::new();
        let mut results = Vec::new();
        for (part, answer) in self.composite.parts.iter().zip(answers) {
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
        if good.len() >= self.composite.required {
            return Ok(good);
        }
        let kind = worst_kind(&results);
        Err(Error::from_members(kind, what, done, results).on(&self.composite.name))
    }

    /// Returns the longest duration that at least the required number of members reach. `each` has
    /// one duration for each held member.
    fn reached(&self, mut each: Vec<Duration>) -> Duration {
        each.sort_unstable_by(|a, b| b.cmp(a));
        each.get(self.composite.required - 1)
            .copied()
            .unwrap_or_default()
    }

    /// Returns how many acquired members may be lost without the loss of the composite.
    fn spare(&self) -> usize {
        self.held().count().saturating_sub(self.composite.required)
    }
}

impl CompositeGuard for MemberGuards {
    fn unlock(mut self: Box<Self>) -> Result<(), Error> {
        // In the reverse order of the members. Each member is released, even if the release of
        // another fails.
        let mut answers: Vec<_> = self
            .guards
            .iter_mut()
            .rev()
            .map(|part| part.take().map(LockGuard::unlock))
            .collect();
        answers.reverse();
        self.collect(
            "not all were released as they should be",
            "was released",
            answers,
        )
        .map(|_| ())
    }

    fn detach(mut self: Box<Self>, composite_hold: Option<CompositeHold>) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let composite_hold = composite_hold.unwrap_or_else(|| CompositeHold {
            of: Arc::clone(&self.composite.key),
            number: NEXT.fetch_add(1, Ordering::Relaxed),
        });
        for part in self.guards.iter_mut().filter_map(Option::take) {
            part.detach_as(Some(composite_hold.clone()));
        }
    }

    fn name(&self) -> &LockName {
        &self.composite.name
    }

    fn fencing_tokens(&self) -> Vec<(LockName, Option<FencingToken>)> {
        let each = self
            .composite
            .parts
            .iter()
            .zip(&self.guards)
            .flat_map(|(part, guard)| match guard {
                Some(guard) => guard.fencing_tokens(),
                None => part
                    .single_locks()
                    .iter()
                    .map(|lock| (lock.name().clone(), None))
                    .collect(),
            });
        each.collect()
    }

    fn is_valid(&self) -> bool {
        self.held().filter(|part| part.is_valid()).count() >= self.composite.required
    }

    fn remaining(&self) -> Duration {
        self.reached(self.held().map(LockGuard::remaining).collect())
    }

    fn ensure(&self, time: Duration) -> Result<(), Error> {
        self.call("it was lost", "is held", |part| part.ensure(Duration::ZERO))?;
        if self.remaining() < time {
            self.held().for_each(|part| drop(part.ensure(time)));
        }
        require_remaining(self.remaining(), time, &self.composite.name)
    }

    fn extend(&self, time: Duration) -> Result<(), Error> {
        self.call("it was not extended", "was extended", |part| {
            part.extend(time)
        })
        .map(|_| ())
    }

    fn restart_lease(&self, lease: LeaseTime) -> Result<(), Error> {
        self.call("it was not extended", "was extended", |part| {
            part.restart_lease(lease)
        })
        .map(|_| ())
    }

    fn keep(&self, time: LeaseTime) {
        self.held().for_each(|part| part.keep(time));
    }

    fn keep_at_least(&self, time: Duration) -> Result<(), Error> {
        self.call("it is not kept", "is kept", |part| part.keep_at_least(time))
            .map(|_| ())
    }

    fn verify(&self) -> Result<Duration, Error> {
        let clock = self.composite.clock();
        let verify = |part: &LockGuard| Ok((part.verify()?, clock.now()));
        let answers = self.call("it is not held as it should be", "is held", verify)?;
        // A lease may have ended during the requests to the other members.
        self.call("it was lost", "is held", |part| part.ensure(Duration::ZERO))?;
        let now = clock.now();
        let left = |(left, at): (Duration, Moment)| match left {
            Duration::MAX => left,
            _ => left.saturating_sub(now.since(at)),
        };
        Ok(self.reached(answers.into_iter().map(left).collect()))
    }

    fn state(&self) -> GuardState {
        let states: Vec<_> = self.held().map(LockGuard::state).collect();
        let count = |wanted: &[GuardState]| {
            states.iter().filter(|state| wanted.contains(state)).count() >= self.composite.required
        };
        match () {
            () if count(&[GuardState::Held]) => GuardState::Held,
            () if count(&[GuardState::Held, GuardState::Suspended]) => GuardState::Suspended,
            () => GuardState::Lost,
        }
    }

    /// Returns the loss of a member if fewer members than required are without one. A member whose
    /// renewals are used up has a loss, too. The members are read in their order, so this need not
    /// be the loss that happened last.
    fn loss(&self) -> Option<Loss> {
        let mut losses = self
            .held()
            .filter_map(|part| Some(part.loss()?.of(part.name())));
        losses.nth(self.spare())
    }

    fn listen(&self, listener: Listener) {
        let wanted = listener.wanted.clone();
        let counter = Arc::new(LossCounter(Mutex::new((self.spare(), Some(listener)))));
        for part in self.held() {
            let (counter, name) = (Arc::clone(&counter), part.name().clone());
            let tell = move |loss: Loss| counter.lost(loss.of(&name));
            part.listen(Listener::new(wanted.clone(), tell));
        }
    }

    #[cfg(test)]
    fn listeners(&self) -> usize {
        self.held().map(LockGuard::listeners).sum()
    }
}

impl Drop for MemberGuards {
    fn drop(&mut self) {
        // In reverse order, as `unlock` does.
        for part in self.guards.iter_mut().rev() {
            drop(part.take());
        }
    }
}

impl fmt::Debug for MemberGuards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.composite.name)
            .field("need", &self.composite.required)
            .field("members", &self.held().collect::<Vec<_>>())
            .field("remaining", &self.remaining())
            .finish()
    }
}

/// The number of members that may still be lost, and the listener to notify of the next loss after
/// these. The members' listeners share this counter. When the last of them is dropped, the
/// composite's listener is dropped, too, which closes the channel of `losses`.
struct LossCounter(Mutex<(usize, Option<Listener>)>);

impl LossCounter {
    fn lost(&self, loss: Loss) {
        let notified = {
            let mut state = self.0.lock();
            match state.0.checked_sub(1) {
                Some(left) => {
                    state.0 = left;
                    None
                }
                None => state.1.take(),
            }
        };
        if let Some(listener) = notified {
            listener.tell(loss);
        }
    }
}

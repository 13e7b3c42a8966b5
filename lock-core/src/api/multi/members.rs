//! [`Members`]: the members of a composite lock, and the requests to them that acquire nothing.

use super::guards::MemberGuards;
use crate::api::guard::LockGuard;
use crate::api::lock::DistLock;
use crate::api::parts::{Composite, Parts};
use crate::backend::LockInfo;
use crate::error::{Error, ErrorKind, MemberOutcome, MemberResult, worst_kind};
use crate::name::LockName;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::time::Moment;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// The members of a [`MultiLock`](super::MultiLock) or [`MajorityLock`](super::MajorityLock).
pub(crate) struct Members {
    composite: Arc<Composite>,
    pub(super) locks: Vec<Arc<dyn DistLock>>,
    /// The indices of the members in the order in which the first round tries them: by name.
    pub(super) order: Vec<usize>,
    /// For each member, the end of the time for which it counts as unresponsive, in nanoseconds of
    /// the clock. Accessed with `Relaxed` order, because a stale value costs at most one request.
    unresponsive: Vec<AtomicU64>,
}

impl Members {
    /// Makes the members of a lock that requires all of them.
    pub(super) fn all(locks: Vec<Arc<dyn DistLock>>) -> Result<Self, Error> {
        if locks.is_empty() {
            return Err(Error::misuse("a lock of no members: give it at least one"));
        }
        Self::new(locks.len(), locks)
    }

    /// Makes the members of a lock that requires more than half of them.
    pub(super) fn majority(locks: Vec<Arc<dyn DistLock>>) -> Result<Self, Error> {
        if locks.len() < 3 {
            return Err(Error::misuse(format!(
                "a majority needs at least three locks, and these are {}: of one or two it is all \
                of them, which is a `MultiLock`",
                locks.len()
            )));
        }
        Self::new(locks.len() / 2 + 1, locks)
    }

    fn new(required: usize, locks: Vec<Arc<dyn DistLock>>) -> Result<Self, Error> {
        let parts: Vec<_> = locks.iter().map(|lock| lock.parts()).collect();
        let mut seen = HashSet::new();
        for lock in parts.iter().flat_map(Parts::single_locks) {
            if !seen.insert((lock.engine.client, lock.name().as_str())) {
                return Err(Error::misuse(
                    "it is given twice: taken twice it protects nothing more, and of a majority it \
                    would be two votes",
                )
                .on(lock.name()));
            }
        }
        let mut order: Vec<_> = (0..locks.len()).collect();
        // The sort is stable: locks of the same name stay in the order in which they were given.
        order.sort_by(|a, b| locks[*a].name().cmp(locks[*b].name()));
        let unresponsive = locks.iter().map(|_| AtomicU64::new(0)).collect();
        Ok(Self {
            composite: Arc::new(Composite::new(required, parts)),
            locks,
            order,
            unresponsive,
        })
    }

    /// Marks the member with this index as unresponsive until `until`; `None` removes the mark.
    pub(super) fn set_unresponsive(&self, at: usize, until: Option<Moment>) {
        self.unresponsive[at].store(until.map_or(0, Moment::as_nanos), Ordering::Relaxed);
    }

    /// Returns whether the member with this index is marked as unresponsive at `now`.
    pub(super) fn is_unresponsive(&self, at: usize, now: Moment) -> bool {
        self.unresponsive[at].load(Ordering::Relaxed) > now.as_nanos()
    }

    pub(super) fn composite(&self) -> &Arc<Composite> {
        &self.composite
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.composite.name
    }

    pub(crate) fn parts(&self) -> Parts {
        Parts::Composite(Arc::clone(&self.composite))
    }

    pub(super) fn required(&self) -> usize {
        self.composite.required
    }

    /// Returns how many members need not be held.
    pub(super) fn spare(&self) -> usize {
        self.locks.len() - self.required()
    }

    /// Returns the members' names, each with its outcome.
    pub(super) fn results(&self, outcomes: Vec<MemberOutcome>) -> Vec<MemberResult> {
        let named = self.locks.iter().zip(outcomes);
        named
            .map(|(lock, outcome)| MemberResult::new(lock.name().as_str(), outcome))
            .collect()
    }

    /// Queries the members, and returns the state of the composite lock. The lock is held if so
    /// many members are held that the others are not enough. Its holder is then that of the last
    /// member whose lease must end before enough members are free. Fails if the members that
    /// answered do not decide whether the lock is held.
    pub(crate) fn inspect(&self) -> Result<LockInfo, Error> {
        let mut holders = Vec::new();
        let mut free = 0;
        let mut outcomes = Vec::new();
        for lock in &self.locks {
            outcomes.push(match lock.inspect() {
                Ok(LockInfo {
                    holder: Some(holder),
                    ..
                }) => {
                    holders.push(holder);
                    MemberOutcome::Done
                }
                Ok(_) => {
                    free += 1;
                    MemberOutcome::Done
                }
                Err(error) => MemberOutcome::Failed(error),
            });
        }
        if holders.len() > self.spare() {
            // The composite is free once only the spare number of members is still held, so the
            // last of the other leases decides.
            holders.sort_by_key(|holder| holder.remaining.unwrap_or(Duration::MAX));
            let last = holders.len() - self.spare() - 1;
            return Ok(LockInfo::held(holders.swap_remove(last)));
        }
        if free >= self.required() {
            return Ok(LockInfo::FREE);
        }
        let what = "not enough of its members could be asked to say who holds it";
        Err(self.failed(what, "answered", outcomes))
    }

    /// Ends this thread's newest detached hold on exactly these locks together.
    pub(crate) fn unlock_detached(&self) -> Result<(), Error> {
        let Composite { name, key, .. } = &*self.composite;
        let locks = self.composite.single_locks();
        for lock in &locks {
            lock.engine
                .refuse_if_forked()
                .map_err(|error| error.on(name))?;
        }
        let newest = locks
            .into_iter()
            .filter_map(|lock| lock.newest_composite(key));
        let parts = self.parts();
        let hold = newest
            .max()
            .and_then(|number| take_detached(&parts, number));
        let message = "this thread has no detached hold on these locks together: a guard unlocks \
                       its own, and what was locked one by one is unlocked one by one";
        hold.ok_or_else(|| Error::new(ErrorKind::NotHeld, message).on(name))?
            .unlock()
    }

    pub(crate) fn force_unlock(&self) -> Result<bool, Error> {
        let mut was_held = false;
        let mut outcomes = Vec::new();
        for lock in &self.locks {
            outcomes.push(match lock.force_unlock() {
                Ok(held) => {
                    was_held |= held;
                    MemberOutcome::Done
                }
                Err(error) => MemberOutcome::Failed(error),
            });
        }
        let done = outcomes
            .iter()
            .filter(|it| matches!(it, MemberOutcome::Done))
            .count();
        if done >= self.required() {
            return Ok(was_held);
        }
        Err(self.failed(
            "not enough of its members could be freed",
            "was freed",
            outcomes,
        ))
    }

    pub(crate) fn hold_count(&self) -> u32 {
        let mut counts: Vec<_> = self.locks.iter().map(|lock| lock.hold_count()).collect();
        counts.sort_unstable();
        // At least the required number of members have this hold count or a larger one.
        counts[self.spare()]
    }

    pub(crate) fn is_held_here(&self) -> bool {
        let held = self
            .locks
            .iter()
            .filter(|lock| lock.is_held_by_current_thread());
        held.count() >= self.required()
    }

    /// Makes the error of a call in which too many members failed.
    fn failed(&self, what: &str, done: &str, outcomes: Vec<MemberOutcome>) -> Error {
        let results = self.results(outcomes);
        Error::from_members(worst_kind(&results), what, done, results).on(&self.composite.name)
    }
}

/// Removes this thread's detached holds on these locks that are parts of the composite hold
/// `number`, and returns a guard of them. `None` if there are none.
fn take_detached(parts: &Parts, number: u64) -> Option<LockGuard> {
    match parts {
        Parts::Single(lock) => lock.take_detached(number),
        Parts::Composite(composite) => {
            let parts = composite
                .parts
                .iter()
                .map(|part| take_detached(part, number));
            let guards: Vec<_> = parts.collect();
            let has_any = guards.iter().any(Option::is_some);
            has_any.then(|| LockGuard::composite(MemberGuards::new(Arc::clone(composite), guards)))
        }
    }
}

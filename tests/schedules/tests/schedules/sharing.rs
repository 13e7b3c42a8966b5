//! [`Sharing`]: checks that readers, writers and permits are never valid together against the
//! rules.

use crate::explore::trace;
use crate::world::{Held, stay};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The share of the lock that a guard holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Claim {
    /// The read lock of the thread with this number.
    Read(usize),
    /// The write lock of the thread with this number, which may also hold the read lock.
    Write(usize),
    Permits {
        count: u32,
        /// The semaphore's limit at the time of the request, provided that the limit has only
        /// fallen since.
        limit: u32,
    },
}

impl Claim {
    fn thread(self) -> Option<usize> {
        match self {
            Self::Read(thread) | Self::Write(thread) => Some(thread),
            Self::Permits { .. } => None,
        }
    }

    /// Returns whether these claims must not be valid at the same time.
    fn are_too_many(claims: &[Self]) -> bool {
        let writer = claims.iter().find(|it| matches!(it, Self::Write(_)));
        let has_other =
            |writer: &Self| claims.iter().any(|claim| claim.thread() != writer.thread());
        let permits = claims.iter().filter_map(|claim| match claim {
            Self::Permits { count, limit } => Some((*count, *limit)),
            _ => None,
        });
        let taken: u32 = permits.clone().map(|(count, _)| count).sum();
        writer.is_some_and(has_other)
            || permits
                .map(|(_, limit)| limit)
                .min()
                .is_some_and(|limit| limit < taken)
    }
}

/// The guards of one execution, and when each was found valid. Recording adds no scheduling point,
/// so it does not change the order of the tasks.
#[derive(Default)]
pub(crate) struct Sharing(Mutex<Record>);

#[derive(Default)]
struct Record {
    /// Counts the beginnings and ends of checks.
    step: u64,
    guards: Vec<Seen>,
}

struct Seen {
    claim: Claim,
    /// The checks that found the guard valid, each as the steps of its beginning and its end.
    valid: Vec<(u64, u64)>,
    /// The step at which the first check that found the guard invalid had ended.
    ended: Option<u64>,
}

impl Seen {
    /// Returns whether the guard was valid during all of this check of another guard: it was found
    /// valid before the check began and after it ended.
    fn was_valid(&self, (began, ended): (u64, u64)) -> bool {
        self.valid.first().is_some_and(|first| first.1 < began)
            && self.valid.last().is_some_and(|last| ended < last.0)
    }
}

impl Sharing {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self) -> u64 {
        let mut record = self.record();
        record.step += 1;
        record.step
    }

    /// Holds a guard for `time`, and checks it several times. Returns whether every check found it
    /// valid.
    pub(crate) fn stay(&self, claim: Claim, guard: &impl Held, time: Duration) -> bool {
        let mut record = self.record();
        let number = record.guards.len();
        record.guards.push(Seen {
            claim,
            valid: Vec::new(),
            ended: None,
        });
        drop(record);
        stay(time, || self.look(number, guard))
    }

    fn look(&self, number: usize, guard: &impl Held) -> bool {
        let began = self.step();
        let is_valid = guard.is_valid();
        let ended = self.step();
        let mut record = self.record();
        let seen = &mut record.guards[number];
        trace(|| format!("guard {number}, {:?}, is valid: {is_valid}", seen.claim));
        if !is_valid {
            seen.ended.get_or_insert(ended);
            return false;
        }
        assert!(
            seen.ended.is_none_or(|it| it > began),
            "it was lost, and is valid again"
        );
        seen.valid.push((began, ended));
        // This guard was valid during each check of another guard between its own checks; more
        // guards may have been valid then, too.
        let seen = &record.guards[number];
        for (other, at) in record
            .guards
            .iter()
            .flat_map(|it| it.valid.iter().map(move |at| (it, at)))
        {
            if !std::ptr::eq(seen, other) && seen.was_valid(*at) {
                let is_valid = |it: &&Seen| std::ptr::eq(*it, other) || it.was_valid(*at);
                let valid = record.guards.iter().filter(is_valid);
                let claims: Vec<_> = valid.map(|it| it.claim).collect();
                assert!(!Claim::are_too_many(&claims), "valid at once: {claims:?}");
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::Claim::{self, Permits, Read, Write};

    #[test]
    fn what_may_be_valid_together_is_told_from_what_may_not() {
        let permits = |count, limit| Permits { count, limit };
        for claims in [
            &[Read(0), Read(1)][..],
            &[Write(0), Read(0)],
            &[permits(1, 3), permits(2, 3)],
        ] {
            assert!(!Claim::are_too_many(claims), "{claims:?}");
        }
        for claims in [
            &[Read(0), Read(1), Write(0)][..],
            &[Write(0), Write(1)],
            &[permits(2, 3), permits(2, 3)],
            &[permits(1, 3), permits(1, 1)],
        ] {
            assert!(Claim::are_too_many(claims), "{claims:?}");
        }
    }
}

//! [`Sharing`]: that guards which may be valid together are never more than that.

use crate::explore::trace;
use crate::world::{Held, stay};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What a guard stands for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Claim {
    /// A reader of this thread.
    Read(usize),
    /// The writer of this thread, which may read as well.
    Write(usize),
    Permits {
        count: u32,
        /// How many there were in all when they were asked for, if that has only fallen since.
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

    /// Whether these may not be valid together.
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

/// The guards of one execution. It has no scheduling points of its own.
#[derive(Default)]
pub(crate) struct Sharing(Mutex<Record>);

#[derive(Default)]
struct Record {
    /// Counts the beginnings and ends of looks.
    step: u64,
    guards: Vec<Seen>,
}

struct Seen {
    claim: Claim,
    /// The looks that found it valid: between which steps.
    valid: Vec<(u64, u64)>,
    /// When a look that found it invalid had ended.
    ended: Option<u64>,
}

impl Seen {
    /// Whether it was valid for all of a look: there were looks before and after.
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

    /// Holds a guard for `time`, with looks at it. Returns whether it was valid all along.
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
        // At each look at another guard meanwhile this one was valid, and perhaps more were.
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

//! [`Board`]: the last sample of the stores, and the holders of each lock in the last minutes.

use crate::exit::Failure;
use crate::rows::{Found, Row};
use crate::store::named;
use distlock::backend::HolderInfo;
use std::collections::{HashMap, VecDeque};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

/// The time for which holders are remembered.
const REMEMBERED: Duration = Duration::from_secs(600);
/// The most holders of one lock that are remembered, because a lock may change hands with each
/// sample.
const HOLDS: usize = 200;

/// What requests are answered with.
pub(super) struct Board {
    interval: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

/// The samples so far.
#[derive(Default)]
pub(super) struct State {
    /// The number of samples.
    pub(super) number: u64,
    /// The rows of the last sample that succeeded, and when it was taken.
    pub(super) found: Found,
    pub(super) taken: Option<SystemTime>,
    /// How long the stores took.
    pub(super) took: Duration,
    /// Why the last sample failed.
    pub(super) failure: Option<String>,
    pub(super) failures: u64,
    pub(super) locks: HashMap<String, Holds>,
}

/// Who held a lock.
#[derive(Default)]
pub(super) struct Holds {
    pub(super) strips: VecDeque<Hold>,
    /// The number of times that another holder, or none, was seen after a holder.
    pub(super) ended: u64,
    /// The number of them whose lease was over before the next sample, because it was not renewed.
    pub(super) expired: u64,
    pub(super) longest: Duration,
}

/// A holder, and from when to when it was seen.
pub(super) struct Hold {
    /// The identity, which is not shown: who knows it can release the lock.
    identity: String,
    pub(super) holder: String,
    pub(super) from: SystemTime,
    pub(super) to: SystemTime,
    pub(super) is_over: bool,
    lease_ends: Option<SystemTime>,
}

fn between(from: SystemTime, to: SystemTime) -> Duration {
    to.duration_since(from).unwrap_or_default()
}

/// Returns since when a holder has had the lock, if that is known and not in the future: the clock
/// of the holder may be ahead.
fn since(holder: &HolderInfo, now: SystemTime) -> Option<SystemTime> {
    let label = holder.label.as_ref()?;
    Some(label.since).filter(|since| *since <= now)
}

impl Board {
    pub(super) fn new(interval: Duration) -> Self {
        Self {
            interval,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Returns the samples so far.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a sample. Returns the time until the next one.
    pub(super) fn take(&self, ask: impl FnOnce() -> Result<Found, Failure>) -> Duration {
        let began = SystemTime::now();
        let found = ask();
        let now = SystemTime::now();
        let took = between(began, now);
        let mut state = self.state();
        state.number += 1;
        state.took = took;
        match found {
            Ok(found) => {
                state.note(&found.rows, now);
                state.found = found;
                state.taken = Some(now);
                state.failure = None;
            }
            Err(failure) => {
                state.failure = Some(failure.to_string());
                state.failures += 1;
            }
        }
        drop(state);
        self.changed.notify_all();
        // A store that is slow is asked for a tenth of the time at most.
        self.interval.max(took * 9)
    }

    /// Waits for a sample with another number. Returns its number.
    pub(super) fn wait_for_another(&self, seen: u64, time: Duration) -> Option<u64> {
        let state = self.state();
        let waited = self
            .changed
            .wait_timeout_while(state, time, |state| state.number == seen);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        Some(state.number).filter(|number| *number != seen)
    }

    /// Returns whether the last sample is good and young, in words.
    pub(super) fn health(&self) -> Result<String, String> {
        let state = self.state();
        let age = state.age();
        let text = match (&state.failure, age) {
            (Some(failure), _) => return Err(format!("the last sample failed: {failure}\n")),
            (None, None) => return Err("no sample yet\n".to_owned()),
            (None, Some(age)) => format!("the last sample is {:.1} s old\n", age.as_secs_f64()),
        };
        match age.is_some_and(|age| age > self.interval * 3 + state.took * 10) {
            true => Err(text),
            false => Ok(text),
        }
    }
}

impl State {
    /// Returns the age of the last sample that succeeded.
    pub(super) fn age(&self) -> Option<Duration> {
        self.taken.map(|taken| between(taken, SystemTime::now()))
    }

    /// Adds what was seen to the holders of each lock.
    fn note(&mut self, rows: &[Row], now: SystemTime) {
        let held = |row: &Row| {
            Some((
                row.name.to_string(),
                row.info.as_ref().ok()?.holder.clone()?,
            ))
        };
        let mut holders: HashMap<_, _> = rows.iter().filter_map(held).collect();
        for (name, holds) in &mut self.locks {
            holds.note(holders.remove(name).as_ref(), now);
        }
        for (name, holder) in holders {
            self.locks.entry(name).or_default().note(Some(&holder), now);
        }
        self.locks.retain(|_, holds| !holds.strips.is_empty());
    }
}

impl Holds {
    fn note(&mut self, holder: Option<&HolderInfo>, now: SystemTime) {
        let identity = holder.map(|it| it.owner.as_str());
        if let Some(last) = self.strips.back_mut().filter(|last| !last.is_over) {
            if Some(last.identity.as_str()) == identity {
                last.to = now;
                // Its label may come later than the grant.
                if let Some(holder) = holder {
                    last.holder = named(holder);
                    last.from = since(holder, now).unwrap_or(last.from);
                }
                last.lease_ends = holder.and_then(|it| Some(now + it.remaining?));
                self.longest = self.longest.max(between(last.from, now));
                return;
            }
            last.is_over = true;
            self.ended += 1;
            self.expired += u64::from(last.lease_ends.is_some_and(|end| end <= now));
        }
        while self
            .strips
            .front()
            .is_some_and(|it| it.is_over && between(it.to, now) > REMEMBERED)
            || self.strips.len() > HOLDS
        {
            self.strips.pop_front();
        }
        if let Some(holder) = holder {
            self.strips.push_back(Hold {
                identity: holder.owner.as_str().to_owned(),
                holder: named(holder),
                from: since(holder, now).unwrap_or(now),
                to: now,
                is_over: false,
                lease_ends: holder.remaining.map(|rest| now + rest),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use distlock::backend::OwnerText;

    fn holder(owner: &str, rest: u64) -> HolderInfo {
        HolderInfo::new(OwnerText::new(owner), Some(Duration::from_secs(rest)), 1)
    }

    #[test]
    fn holders_are_told_apart_and_an_expired_lease_is_counted() {
        let start = SystemTime::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut holds = Holds::default();
        holds.note(Some(&holder("a:1", 30)), at(0));
        holds.note(Some(&holder("a:1", 25)), at(5));
        // Released: the lease would have lasted.
        holds.note(None, at(10));
        holds.note(Some(&holder("b:2", 4)), at(15));
        // Not renewed: the lease was over before this sample.
        holds.note(Some(&holder("c:3", 30)), at(20));
        assert_eq!((holds.ended, holds.expired), (2, 1));
        assert_eq!(holds.longest, Duration::from_secs(5));
        let strips: Vec<_> = holds.strips.iter().map(|it| it.is_over).collect();
        assert_eq!(strips, [true, true, false]);
    }

    #[test]
    fn old_holders_are_forgotten() {
        let start = SystemTime::now();
        let mut holds = Holds::default();
        for n in 0..1_000 {
            let now = start + Duration::from_secs(n);
            holds.note(Some(&holder(&format!("a:{n}"), 30)), now);
        }
        assert!(holds.strips.len() <= HOLDS + 1);
        holds.note(None, start + Duration::from_secs(10_000));
        assert!(holds.strips.is_empty());
    }
}

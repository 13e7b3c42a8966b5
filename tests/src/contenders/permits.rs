//! Contenders for permits of a semaphore, of which several may be held at once.

use super::{LOOK, PATIENCE, STAY, kind};
use crate::claims::{Claim, Log};
use crate::time::let_pass;
use distlock::time::{Clock, SystemClock};
use distlock::{Error, LockOptions, Semaphore};
use std::time::Duration;

/// The separator between the name of a semaphore and its limit.
const LIMIT: char = '#';

/// The suffix of a fair semaphore's limit.
const FAIR: char = '!';

/// Returns the text that makes [`Contenders`](super::Contenders) contend for permits of this
/// semaphore instead of a lock.
pub fn semaphore(name: &str, limit: u32) -> String {
    format!("{name}{LIMIT}{limit}")
}

/// Returns the text that makes contenders contend for permits of this fair semaphore.
pub fn fair_semaphore(name: &str, limit: u32) -> String {
    format!("{}{FAIR}", semaphore(name, limit))
}

/// Returns the semaphore that this text names; `None` if the text names a lock.
pub(super) fn named(client: &distlock::Client, wanted: &str) -> Option<Semaphore> {
    let (name, limit) = wanted.rsplit_once(LIMIT)?;
    Some(match limit.strip_suffix(FAIR) {
        Some(limit) => client.fair_semaphore(name, limit.parse().ok()?).unwrap(),
        None => client.semaphore(name, limit.parse().ok()?).unwrap(),
    })
}

/// Acquires one permit or two, holds them for a moment, and releases them. Returns the kind of the
/// error, if any.
pub(super) fn visit(semaphore: &Semaphore, holder: &str, log: &Log) -> Option<String> {
    try_visit(semaphore, holder, log)
        .err()
        .map(|error| kind(&error))
}

fn try_visit(semaphore: &Semaphore, holder: &str, log: &Log) -> Result<(), Error> {
    let asked = SystemClock.now();
    let (count, options) = (fastrand::u32(1..=2), LockOptions::new());
    let Some(guard) = semaphore.try_acquire_for_with(count, PATIENCE, &options)? else {
        return Ok(());
    };
    let until = SystemClock.now() + Duration::from_millis(fastrand::u64(STAY));
    let mut claimed = None;
    loop {
        // The clock is read first: a guard that is valid afterwards was valid at that time, too.
        let now = SystemClock.now();
        if !guard.is_valid() {
            break;
        }
        claimed = Some((claimed.map_or(now, |(from, _)| from), now));
        if now >= until {
            break;
        }
        let_pass(LOOK);
    }
    if let Some((from, to)) = claimed {
        let (lock, holder) = (semaphore.name().to_string(), holder.to_owned());
        // A semaphore has no tokens, so the claim has the number of permits instead.
        log.write(&Claim {
            lock,
            holder,
            token: count.into(),
            asked,
            from,
            to,
        });
    }
    guard.unlock()
}

/// Returns the largest number of permits that were held at once.
pub fn most_at_once(claims: &[Claim]) -> u64 {
    let ends = claims.iter().flat_map(|claim| {
        let count = i64::try_from(claim.token).expect("a small number");
        [(claim.from, count), (claim.to, -count)]
    });
    let mut ends: Vec<_> = ends.collect();
    // At the same moment an end sorts before a beginning, because a released permit may be acquired
    // at once.
    ends.sort_unstable();
    let mut now = 0;
    let held = ends.into_iter().map(|(_, change)| {
        now += change;
        now
    });
    held.max()
        .and_then(|most| u64::try_from(most).ok())
        .unwrap_or(0)
}

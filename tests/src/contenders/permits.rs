//! The same for permits of a semaphore, of which several are held at once.

use super::{LOOK, PATIENCE, STAY, kind};
use crate::claims::{Claim, Log};
use crate::time::let_pass;
use distlock::time::{Clock, SystemClock};
use distlock::{Error, LockOptions, Semaphore};
use std::time::Duration;

/// What stands between the name of a semaphore and its limit.
const LIMIT: char = '#';

/// What stands behind the limit of a fair one.
const FAIR: char = '!';

/// What the contenders are to want instead of a lock: a permit of this semaphore.
pub fn semaphore(name: &str, limit: u32) -> String {
    format!("{name}{LIMIT}{limit}")
}

/// The same, in the order of arrival.
pub fn fair_semaphore(name: &str, limit: u32) -> String {
    format!("{}{FAIR}", semaphore(name, limit))
}

/// The semaphore that is meant, if it is none of the locks.
pub(super) fn named(client: &distlock::Client, wanted: &str) -> Option<Semaphore> {
    let (name, limit) = wanted.rsplit_once(LIMIT)?;
    Some(match limit.strip_suffix(FAIR) {
        Some(limit) => client.fair_semaphore(name, limit.parse().ok()?).unwrap(),
        None => client.semaphore(name, limit.parse().ok()?).unwrap(),
    })
}

/// Takes one permit or two, stays for a moment, and gives them back. What kind of trouble it met.
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
        // First the clock: a guard that is valid after it was valid then.
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
        // The number of permits takes the place of the token, which there is none of.
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

/// How many permits were held at once at most.
pub fn most_at_once(claims: &[Claim]) -> u64 {
    let ends = claims.iter().flat_map(|claim| {
        let count = i64::try_from(claim.token).expect("a small number");
        [(claim.from, count), (claim.to, -count)]
    });
    let mut ends: Vec<_> = ends.collect();
    // Of one moment the end comes first: the next may have it then.
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

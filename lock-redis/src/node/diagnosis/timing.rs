//! The time of a round trip, and the clocks of servers.

use super::{Asking, Examination, StoreKind};
use crate::node::replica_clocks::{ServerClock, WRONG, read_clock};
use lock_core::FindingLevel::{Danger, Warning};
use lock_core::backend::Failure;
use lock_core::{Finding, FindingLevel};
use std::sync::Arc;
use std::time::Duration;

/// The largest number of round trips that are measured: enough for a 99th percentile.
const ROUND_TRIPS: usize = 50;
/// The time after which no further round trip is measured, so that the diagnosis of a slow server
/// ends.
const MEASURING: Duration = Duration::from_secs(2);
/// A 99th percentile of a tenth of `command_timeout` is a warning, one of half of `command_timeout`
/// a danger.
const PART_OF_TIMEOUT: [u32; 2] = [10, 2];
/// A 99th percentile of a thirtieth of a lease is a warning, one of a tenth a danger, because a
/// renewal starts at a third of the lease and must leave time for a second try.
const PART_OF_LEASE: [u32; 2] = [30, 10];

impl std::fmt::Display for ServerClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let time = Duration::from_micros(self.ahead.unsigned_abs());
        match self.ahead {
            _ if time <= self.uncertainty => {
                return write!(f, "within {:.1?} of this machine's", self.uncertainty);
            }
            ..0 => write!(f, "{time:.1?} behind this machine's")?,
            _ => write!(f, "{time:.1?} ahead of this machine's")?,
        }
        write!(f, ", give or take {:.1?}", self.uncertainty)
    }
}

/// Returns the server's clock, compared with this machine's; `None` if the reply is not a time, as
/// when the user may not read it.
pub(super) fn ask_clock(asking: &mut Asking<'_>) -> Result<Option<ServerClock>, Failure> {
    let Asking { node, link, by } = asking;
    let (clock, timeout) = (
        Arc::clone(node.inner.dialer.clock()),
        node.inner.dialer.command_timeout(),
    );
    let read = read_clock(link, &*clock, || (*by).min(clock.now() + timeout))?;
    let (machine, start) = (clock.unix_time(), clock.now());
    let start = Duration::from_nanos(start.as_nanos());
    let own = ServerClock::read(machine, start, start);
    Ok(read.map(|read| read.beside(own)))
}

/// Returns the times of at least one round trip, sorted by length.
pub(super) fn round_trips(asking: &mut Asking<'_>) -> Result<Vec<Duration>, Failure> {
    let begin = asking.node.inner.dialer.clock().now();
    let mut times = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let sent = asking.node.inner.dialer.clock().now();
        asking.ask(&[b"PING"])?;
        let now = asking.node.inner.dialer.clock().now();
        times.push(now.since(sent));
        if now.since(begin) > MEASURING {
            break;
        }
    }
    times.sort_unstable();
    Ok(times)
}

impl ServerClock {
    /// Compares the clocks of several servers. Returns `None` for fewer than two.
    #[must_use]
    pub fn compare(subject: &str, clocks: &[(String, Self)], store: StoreKind) -> Option<Finding> {
        const ID: &str = "clocks";
        let first = clocks.iter().min_by_key(|(_, clock)| clock.ahead)?;
        let last = clocks.iter().max_by_key(|(_, clock)| clock.ahead)?;
        if clocks.len() < 2 {
            return None;
        }
        let apart = Duration::from_micros(last.1.ahead.abs_diff(first.1.ahead));
        let certain = apart.saturating_sub(first.1.uncertainty + last.1.uncertainty);
        let seen = format!("{} is {apart:.1?} ahead of {}", last.0, first.0);
        let Some((level, why)) = judge(certain, store) else {
            return Some(Finding::ok(
                ID,
                subject,
                format!("at most {apart:.1?} apart"),
            ));
        };
        Some(
            Finding::new(level, ID, subject, seen)
                .why(why)
                .remedy(SYNCHRONISE),
        )
    }
}

pub(super) const SYNCHRONISE: &str =
    "set the clock that is wrong, and run chrony or ntpd on every machine";

/// Returns the consequence of this difference of two clocks; `None` if the difference is harmless.
fn judge(difference: Duration, store: StoreKind) -> Option<(FindingLevel, &'static str)> {
    match store {
        StoreKind::Quorum { max_lease, .. } if difference >= max_lease => Some((
            Danger,
            "a node refuses tokens that are max_lease ahead of its clock",
        )),
        _ if difference > WRONG => Some((
            Warning,
            "fencing tokens begin with the clock: set back, it may make them smaller than before \
             once data is lost",
        )),
        _ => None,
    }
}

impl Examination<'_> {
    pub(super) fn judge_clock(&mut self, clock: Option<ServerClock>) {
        const ID: &str = "clock";
        let Some(clock) = clock else {
            let remedy = "allow it with `+time`, or remove its `rename-command`";
            return self.unknown(ID, "TIME is refused", remedy);
        };
        let seen = clock.to_string();
        let difference = clock.difference();
        if self.format.reads_clients_clock() && difference > WRONG {
            let why = "this format takes the end of a lease from the clients' clocks: one that is \
                       ahead takes a held lock";
            return self.bad(Danger, ID, seen, why, SYNCHRONISE);
        }
        match judge(difference, self.store) {
            Some((level, why)) => self.bad(level, ID, seen, why, SYNCHRONISE),
            None => self.ok(ID, seen),
        }
    }

    /// Judges the round trips, which are sorted by length.
    pub(super) fn judge_latency(&mut self, round_trips: &[Duration]) {
        const ID: &str = "latency";
        let at = |percent: usize| {
            round_trips[(round_trips.len() * percent / 100).min(round_trips.len() - 1)]
        };
        let (half, most) = (at(50), at(99));
        let (timeout, lease) = (
            self.node.inner.dialer.command_timeout(),
            self.node.inner.terms.lease,
        );
        let seen = format!("round trips of {half:.1?} (p50), {most:.1?} (p99)");
        let is_over = |which: usize| {
            most >= timeout / PART_OF_TIMEOUT[which] || most >= lease / PART_OF_LEASE[which]
        };
        let level = match (is_over(0), is_over(1)) {
            (_, true) => Danger,
            (true, false) => Warning,
            _ => return self.ok(ID, seen),
        };
        let why = format!(
            "requests may last for command_timeout={timeout:?}, and a lease of {lease:?} must be \
             renewed in time"
        );
        let remedy =
            "raise `command_timeout` and `watchdog` in the URL, or run nearer to the server";
        self.bad(level, ID, seen, why, remedy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_is_shown_beside_this_machines() {
        let ms = Duration::from_millis;
        let shown = |theirs| ServerClock::read(ms(theirs), ms(1_000), ms(1_000)).to_string();
        assert!(shown(0).contains("1.0s behind") && shown(3_000).contains("2.0s ahead"));
    }

    #[test]
    fn only_certain_differences_of_clocks_count() {
        let clock = |ahead, millis| {
            let uncertainty = Duration::from_millis(millis);
            (format!("h:{ahead}"), ServerClock { ahead, uncertainty })
        };
        let level = |clocks: &[_], store| {
            ServerClock::compare("all", clocks, store).map(|finding| finding.level)
        };
        let alone = StoreKind::Standalone;
        let quorum = StoreKind::Quorum {
            max_lease: Duration::from_secs(3),
            durable: false,
        };
        assert_eq!(level(&[clock(0, 0)], alone), None);
        assert_eq!(
            level(&[clock(0, 0), clock(2_000_000, 0)], alone),
            Some(Warning)
        );
        assert_eq!(
            level(&[clock(0, 600), clock(2_000_000, 600)], alone),
            Some(FindingLevel::Ok)
        );
        assert_eq!(
            level(&[clock(-2_000_000, 0), clock(1_000_000, 0)], quorum),
            Some(Danger)
        );
    }
}

//! [`ServerClock`]: the clock of a server compared with another clock; and [`ListedReplica`], a
//! replica as its master lists it.

use crate::connection::{
    Address, CallError, Connection, ConnectionLike, Reply, Request, info_field,
};
use lock_core::{Clock, Moment};
use std::time::Duration;

/// The difference from which a clock is wrong, because synchronised clocks differ by milliseconds.
pub(in crate::node) const WRONG: Duration = Duration::from_secs(1);
/// The number of reads of a clock: the quickest reply is the most exact one.
const CLOCK_READS: usize = 5;

/// A server's clock, compared with another clock: this machine's, or its master's.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[allow(
    clippy::exhaustive_structs,
    reason = "for the crate of the same workspace"
)]
pub struct ServerClock {
    /// The number of microseconds by which the server's clock is ahead.
    pub ahead: i64,
    /// The possible error of `ahead`: half a round trip; the sum of two such errors if two servers'
    /// clocks are compared.
    pub uncertainty: Duration,
}

impl ServerClock {
    /// Returns the difference of a server's clock that was read between these two times of the
    /// other clock.
    #[must_use]
    pub fn read(theirs: Duration, sent: Duration, received: Duration) -> Self {
        let uncertainty = received.saturating_sub(sent) / 2;
        let micros = |time: Duration| i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
        Self {
            ahead: micros(theirs) - micros(sent + uncertainty),
            uncertainty,
        }
    }

    /// Returns the least possible difference of the clocks.
    #[must_use]
    pub fn difference(&self) -> Duration {
        Duration::from_micros(self.ahead.unsigned_abs()).saturating_sub(self.uncertainty)
    }

    /// Returns the time by which the server's clock is certainly ahead.
    #[must_use]
    pub fn at_least(&self) -> Duration {
        if self.ahead < 0 {
            Duration::ZERO
        } else {
            self.difference()
        }
    }

    /// Returns the time by which the server's clock may be ahead.
    #[must_use]
    pub fn at_most(&self) -> Duration {
        let ahead = Duration::from_micros(self.ahead.unsigned_abs());
        match self.ahead {
            ..0 => self.uncertainty.saturating_sub(ahead),
            _ => self.uncertainty + ahead,
        }
    }

    /// Compares the server's clock with another server's clock. Both were read against the same
    /// third clock.
    pub(in crate::node) fn beside(self, other: Self) -> Self {
        let ahead = self.ahead.saturating_sub(other.ahead);
        Self {
            ahead,
            uncertainty: self.uncertainty + other.uncertainty,
        }
    }
}

/// Reads a server's clock several times against a clock that does not jump, and returns the most
/// exact result. `None` if the reply is not a time, as when the user may not read it. `by` returns
/// the deadline of a request that is sent now.
pub(in crate::node) fn read_clock(
    link: &mut Connection,
    clock: &dyn Clock,
    by: impl Fn() -> Moment,
) -> Result<Option<ServerClock>, CallError> {
    let since_start = |moment: Moment| Duration::from_nanos(moment.as_nanos());
    let mut best: Option<ServerClock> = None;
    for _ in 0..CLOCK_READS {
        let sent = clock.now();
        let reply = link.call(&Request(&[&[b"TIME"]]), by())?;
        let received = clock.now();
        let number = |reply: &Reply| std::str::from_utf8(reply.as_bytes()?).ok()?.parse().ok();
        let Some([seconds, micros]) = reply.as_array() else {
            return Ok(None);
        };
        let Some((seconds, micros)) = number(seconds).zip(number(micros)) else {
            return Ok(None);
        };
        let theirs = Duration::from_secs(seconds) + Duration::from_micros(micros);
        let read = ServerClock::read(theirs, since_start(sent), since_start(received));
        if best.is_none_or(|best| read.uncertainty < best.uncertainty) {
            best = Some(read);
        }
    }
    Ok(best)
}

/// A replica, as its master lists it in `INFO replication`.
pub(in crate::node) struct ListedReplica {
    pub(in crate::node) address: Address,
    pub(in crate::node) is_online: bool,
    /// The number of seconds since the replica acknowledged last.
    pub(in crate::node) lag: u64,
}

impl ListedReplica {
    pub(in crate::node) fn all(info: &str) -> Vec<Self> {
        let line = |number| info_field(info, &format!("slave{number}"));
        (0..)
            .map_while(line)
            .filter_map(|line| Self::read(line.trim()))
            .collect()
    }

    /// Reads `ip=10.0.0.2,port=6379,state=online,offset=1,lag=0`.
    fn read(line: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut pairs = line.split(',').filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        Some(Self {
            address: Address::new(field("ip")?, field("port")?.parse().ok()?),
            is_online: field("state")? == "online",
            lag: field("lag")?.parse().unwrap_or(u64::MAX),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_are_read_as_their_master_lists_them() {
        let all = ListedReplica::all(
            "slave0:ip=::1,port=1,state=online,offset=5,lag=0\r\n\
             slave1:ip=h,port=2,state=wait_bgsave,offset=0,lag=7\r\n",
        );
        let read: Vec<_> = all
            .iter()
            .map(|it| (it.address.to_string(), it.is_online, it.lag))
            .collect();
        assert_eq!(
            read,
            [
                ("[::1]:1".to_owned(), true, 0),
                ("h:2".to_owned(), false, 7)
            ]
        );
    }

    #[test]
    fn clock_is_uncertain_by_half_a_round_trip() {
        let ms = Duration::from_millis;
        let clock = ServerClock::read(ms(5_000), ms(1_000), ms(3_000));
        assert_eq!((clock.ahead, clock.uncertainty), (3_000_000, ms(1_000)));
        assert_eq!(clock.difference(), ms(2_000));
        assert_eq!(
            ServerClock::read(ms(1_500), ms(1_000), ms(3_000)).difference(),
            ms(0)
        );
    }

    #[test]
    fn lead_is_certain_by_both_round_trips_and_possible_by_both() {
        let ms = Duration::from_millis;
        let own = ServerClock::read(ms(9_000), ms(1_000), ms(1_200));
        for (ahead, at_least, at_most) in [
            (5_000, 4_700, 5_300),
            (200, 0, 500),
            (-200, 0, 100),
            (-5_000, 0, 0),
        ] {
            // The replica's clock is read later, with a longer round trip.
            let theirs = ms(u64::try_from(10_000 + ahead).unwrap());
            let replica = ServerClock::read(theirs, ms(1_900), ms(2_300));
            let lead = replica.beside(own);
            assert_eq!(lead.ahead, ahead * 1_000);
            assert_eq!(
                (lead.at_least(), lead.at_most()),
                (ms(at_least), ms(at_most)),
                "{ahead}"
            );
        }
    }
}

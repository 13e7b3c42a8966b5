//! The clocks of the servers: finds wrong clocks, and the earliest start of the pause after which a
//! new member votes.

use super::majority::majority;
use lock_core::{Clock, Error};
use lock_redis::quorum::ServerState;
use std::time::Duration;

/// The difference up to which clocks count as equal, because synchronised clocks differ by
/// milliseconds. A larger difference is reported as the cause of a new member's wait.
pub(super) const CLOCKS_APART: Duration = Duration::from_secs(1);

/// The servers whose clocks differ from the median of all clocks, including this machine's, by more
/// than the longest lease and the tolerance. Each entry has the position of a server, and the time
/// in microseconds by which its clock is ahead of the median; negative if the clock is behind.
pub(super) struct WrongClocks {
    pub(super) servers: Vec<(usize, i64)>,
    max_lease: Duration,
}

impl WrongClocks {
    pub(super) fn none() -> Self {
        Self {
            servers: Vec::new(),
            max_lease: Duration::ZERO,
        }
    }

    /// Finds the wrong clocks. `own` is this machine's clock; correct clocks may seem to differ by
    /// `tolerance`.
    pub(super) fn among(
        states: &[Option<ServerState>],
        own: u64,
        max_lease: Duration,
        tolerance: Duration,
    ) -> Self {
        let mut clocks: Vec<_> = states.iter().flatten().map(|state| state.time).collect();
        clocks.push(own);
        clocks.sort_unstable();
        let middle = clocks[clocks.len() / 2];
        let limit = micros(max_lease + tolerance);
        let wrong = |(at, state): (usize, &Option<ServerState>)| {
            let time = state.as_ref()?.time;
            let ahead = i64::try_from(time.abs_diff(middle)).unwrap_or(i64::MAX);
            let ahead = if time < middle { -ahead } else { ahead };
            (time.abs_diff(middle) > limit).then_some((at, ahead))
        };
        let servers = states.iter().enumerate().filter_map(wrong).collect();
        Self { servers, max_lease }
    }

    /// Returns the error that says how wrong the clock of this server is; `None` if the clock is
    /// right.
    pub(super) fn error(&self, at: usize) -> Option<Error> {
        let (_, ahead) = self.servers.iter().find(|(server, _)| *server == at)?;
        Some(Error::configuration(self.text(*ahead)))
    }

    pub(super) fn text(&self, ahead: i64) -> String {
        let by = Duration::from_micros(ahead.unsigned_abs());
        let way = if ahead < 0 { "behind" } else { "ahead of" };
        format!(
            "its clock is {by:.1?} {way} most of the others, and max_lease={:?} is the most: set \
             it right",
            self.max_lease
        )
    }
}

pub(super) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

pub(super) fn unix_micros(clock: &dyn Clock) -> u64 {
    micros(clock.unix_time())
}

/// Returns the earliest time at which the pause of a new member may start, in microseconds, and the
/// position of the server that determines this time; `None` if `recorded` is empty. The new member
/// votes only after the pause. `recorded` contains the members that have recorded the new member,
/// each with its position.
///
/// A majority of the former members includes at least N = `recorded - (members - majority)` of the
/// members in `recorded`. Each of these members grants no token that is too far ahead of its own
/// clock. So the N-th clock, from the latest to the earliest, limits every granted token. With
/// three members this is the latest clock.
pub(super) fn not_before(
    recorded: &[(usize, &ServerState)],
    members: usize,
    max_lease: Duration,
) -> Option<(u64, usize)> {
    let others = members.saturating_sub(majority(members));
    let granted = recorded.len().saturating_sub(others).max(1);
    // A member that replaced another one also has a bound for the tokens of its predecessor: one
    // longest lease before `votes_from`. The later bound applies.
    let bound = |state: &ServerState| {
        state
            .time
            .max(state.votes_from.saturating_sub(micros(max_lease)))
    };
    let mut bounds: Vec<_> = recorded
        .iter()
        .map(|(at, state)| (bound(state), *at))
        .collect();
    bounds.sort_unstable_by(|one, other| other.cmp(one));
    bounds.get(granted - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn states(times: &[u64]) -> Vec<Option<ServerState>> {
        let state = |time: &u64| {
            Some(ServerState {
                time: *time,
                ..ServerState::of("a")
            })
        };
        times.iter().map(state).collect()
    }

    fn bound(times: &[u64], members: usize) -> Option<(u64, usize)> {
        let states = states(times);
        let recorded: Vec<_> = states.iter().flatten().enumerate().collect();
        not_before(&recorded, members, MINUTE)
    }

    #[test]
    fn pause_counts_from_the_latest_clock_that_a_majority_needs() {
        assert_eq!(
            bound(&[5, 9], 3),
            Some((9, 1)),
            "either may have granted with the third"
        );
        assert_eq!(
            bound(&[5, 9, 7, 6], 5),
            Some((7, 2)),
            "a grant has two of these four"
        );
        assert_eq!(
            bound(&[5, 9, 7], 5),
            Some((9, 1)),
            "a grant may have one of these"
        );
        assert_eq!(bound(&[1, 2, 3, 4, 5, 6], 7), Some((4, 3)));
        assert_eq!(bound(&[5], 3), Some((5, 0)));
        assert_eq!(bound(&[], 3), None);
    }

    #[test]
    fn pause_counts_from_what_a_paused_member_may_have_to_outbid() {
        let mut states = states(&[5, 9]);
        let since = 100 + micros(MINUTE);
        states[0] = states[0].take().map(|state| ServerState {
            votes_from: since,
            ..state
        });
        let recorded: Vec<_> = states.iter().flatten().enumerate().collect();
        assert_eq!(not_before(&recorded, 3, MINUTE), Some((100, 0)));
    }

    #[test]
    fn clock_is_wrong_if_most_say_otherwise() {
        let now = 10 * micros(Duration::from_secs(3_600));
        let hour = micros(Duration::from_secs(3_600));
        let wrong = |times: &[u64], own| {
            WrongClocks::among(&states(times), own, MINUTE, Duration::ZERO).servers
        };
        let ahead = i64::try_from(hour).unwrap();
        assert_eq!(wrong(&[now, now + hour], now), [(1, ahead)]);
        assert_eq!(wrong(&[now - hour, now, now], now), [(0, -ahead)]);
        assert_eq!(
            wrong(&[now, now, now], now - hour),
            [],
            "this machine's is wrong"
        );
        assert_eq!(wrong(&[now, now + micros(MINUTE)], now), []);
    }
}

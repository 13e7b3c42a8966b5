//! [`History`]: which server has the data of the locks, by the identity of its data.
//!
//! A database cluster has a random identifier, which its standbys share, and a timeline, which
//! grows by one at each promotion. So of two servers with one identifier, the one with the greater
//! timeline was promoted later: the other one was left, even if it still takes writes. Two
//! identifiers have nothing in common.
//!
//! A promoted standby continues the data, but may lack the last transactions, unless these waited
//! for it (`synchronous_commit`). So after each change the held locks are verified.

use lock_core::Moment;
use std::time::Duration;

/// The identity of a server's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    pub(super) system: i64,
    pub(super) timeline: u32,
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { system, timeline } = self;
        write!(f, "system {system}, timeline {timeline}")
    }
}

/// What a new connection means for the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The server is the one of before, or the first one.
    Same,
    /// The server is another one, which is used from now on.
    Changed { was: Identity, continues: bool },
    /// The server was left for another one before.
    Left { now: Identity },
}

/// The server in use, and the ones that were left.
#[derive(Debug, Default)]
pub(super) struct History {
    now: Option<Identity>,
    /// The other systems that were left, with the end of the leases that they may have granted.
    left: Vec<(i64, Moment)>,
}

impl History {
    /// Judges a connection at the moment `now`. A lease that a server has granted ends after
    /// `lease` at the latest.
    pub(super) fn judge(&mut self, found: Identity, now: Moment, lease: Duration) -> Verdict {
        let Some(known) = self.now else {
            self.now = Some(found);
            return Verdict::Same;
        };
        if known == found {
            return Verdict::Same;
        }
        self.left.retain(|(_, until)| now < *until);
        let continues = known.system == found.system;
        let is_left = match continues {
            true => found.timeline < known.timeline,
            false => self.left.iter().any(|(system, _)| *system == found.system),
        };
        if is_left {
            return Verdict::Left { now: known };
        }
        if !continues {
            self.left.push((known.system, now + lease));
        }
        self.now = Some(found);
        Verdict::Changed {
            was: known,
            continues,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::{Clock, ManualClock};

    fn at(system: i64, timeline: u32) -> Identity {
        Identity { system, timeline }
    }

    #[test]
    fn later_timeline_wins_and_the_earlier_one_is_left_for_ever() {
        let (clock, lease) = (ManualClock::new(), Duration::from_secs(30));
        let mut history = History::default();
        let mut judge = |found| {
            let verdict = history.judge(found, clock.now(), lease);
            clock.jump(lease * 2);
            verdict
        };
        assert_eq!(judge(at(1, 1)), Verdict::Same);
        assert_eq!(judge(at(1, 1)), Verdict::Same);
        let (was, continues) = (at(1, 1), true);
        assert_eq!(judge(at(1, 2)), Verdict::Changed { was, continues });
        assert_eq!(judge(at(1, 1)), Verdict::Left { now: at(1, 2) });
        let was = at(1, 2);
        assert_eq!(judge(at(1, 4)), Verdict::Changed { was, continues });
        assert_eq!(judge(at(1, 3)), Verdict::Left { now: at(1, 4) });
    }

    #[test]
    fn other_system_that_was_left_is_refused_for_a_lease() {
        let (clock, lease) = (ManualClock::new(), Duration::from_secs(30));
        let mut history = History::default();
        assert_eq!(history.judge(at(1, 7), clock.now(), lease), Verdict::Same);
        let changed = |was| Verdict::Changed {
            was,
            continues: false,
        };
        let verdict = history.judge(at(2, 1), clock.now(), lease);
        assert_eq!(verdict, changed(at(1, 7)));
        let verdict = history.judge(at(1, 8), clock.now(), lease);
        assert_eq!(verdict, Verdict::Left { now: at(2, 1) });
        clock.jump(lease);
        let verdict = history.judge(at(1, 8), clock.now(), lease);
        assert_eq!(verdict, changed(at(2, 1)));
    }
}

//! What must be shown: figures, what they are compared with, and the bounds.

use super::summary::{Spread, Summary};

enum Bound {
    AtLeast(f64),
    AtMost(f64),
}
use Bound::{AtLeast, AtMost};

struct Goal {
    what: &'static str,
    work: &'static str,
    column: &'static str,
    metric: &'static str,
    /// Divided by this column's; or by nothing.
    by: Option<&'static str>,
    bound: Bound,
}

const fn goal(
    what: &'static str,
    [work, column, metric]: [&'static str; 3],
    by: Option<&'static str>,
    bound: Bound,
) -> Goal {
    Goal { what, work, column, metric, by, bound }
}

const GOALS: &[Goal] = &[
    goal(
        "one thread, `unlock()`, of the raw socket",
        ["alone", "ours", "rate"],
        Some("raw"),
        AtLeast(0.95),
    ),
    goal(
        "one thread, dropped guard, of the raw socket",
        ["alone", "ours-drop", "rate"],
        Some("raw"),
        AtLeast(1.3),
    ),
    goal("8 threads, of a raw socket each", ["own-8", "ours", "rate"], Some("raw"), AtLeast(1.0)),
    goal("32 threads, of a raw socket each", ["own-32", "ours", "rate"], Some("raw"), AtLeast(1.0)),
    goal(
        "128 threads, of a raw socket each",
        ["own-128", "ours", "rate"],
        Some("raw"),
        AtLeast(1.0),
    ),
    goal(
        "128 threads, of the pipelined ceiling",
        ["own-128", "ours", "rate"],
        Some("pipeline"),
        AtLeast(0.7),
    ),
    goal(
        "server time, of Redisson's two scripts",
        ["scripts", "ours", "server_us"],
        Some("redisson"),
        AtMost(1.25),
    ),
    goal(
        "8 threads on one lock, changes of owner",
        ["contended", "ours", "changes_per_s"],
        Some("publish-retry"),
        AtLeast(20.0),
    ),
    goal(
        "8 threads on one lock, requests for each",
        ["contended", "ours", "requests_per_change"],
        None,
        AtMost(0.05),
    ),
    goal(
        "8 threads on one lock, distance from a fair share",
        ["contended", "ours", "thread_share"],
        None,
        AtMost(0.2),
    ),
    goal(
        "8 processes on one lock, changes of owner",
        ["processes", "ours", "changes_per_s"],
        Some("publish-retry"),
        AtLeast(1.0),
    ),
    goal(
        "8 processes on one lock, requests for each",
        ["processes", "ours", "requests_per_change"],
        Some("publish-retry"),
        AtMost(0.5),
    ),
    goal(
        "8 processes on one lock, distance from a fair share",
        ["processes", "ours", "process_share"],
        None,
        AtMost(0.3),
    ),
    goal(
        "nested, of `parking_lot::ReentrantMutex`",
        ["nested", "ours", "rate"],
        Some("parking_lot"),
        AtLeast(0.1),
    ),
    goal("nested, requests", ["nested", "ours", "requests_each"], None, AtMost(0.0)),
    goal("100,000 held locks, lost", ["held-100000", "ours", "lost"], None, AtMost(0.0)),
    goal(
        "100,000 held locks, client time",
        ["held-100000", "ours", "client_s_per_min"],
        Some("raw"),
        AtMost(1.3),
    ),
    goal(
        "100,000 held locks, server time",
        ["held-100000", "ours", "server_net_s_per_min"],
        Some("raw"),
        AtMost(1.3),
    ),
    goal(
        "100,000 held locks, another's PING p99",
        ["held-100000", "ours", "ping_p99_us"],
        Some("nobody"),
        AtMost(2.0),
    ),
    goal(
        "10,000 threads waiting for 1,000 locks, failures",
        ["crowd", "ours", "failed"],
        None,
        AtMost(0.0),
    ),
    goal(
        "10,000 threads waiting for 1,000 locks, connections",
        ["crowd", "ours", "connections"],
        None,
        AtMost(4.0),
    ),
];

/// What a goal is, what was measured, and whether that is enough.
pub(super) struct Verdict {
    pub(super) what: &'static str,
    pub(super) bound: String,
    pub(super) measured: Spread,
    pub(super) met: bool,
}

/// Those for which something was measured.
pub(super) fn verdicts(summaries: &[Summary<'_>]) -> Vec<Verdict> {
    let verdict = |goal: &Goal| {
        let summary = summaries.iter().find(|summary| summary.work.name == goal.work)?;
        let measured = match goal.by {
            Some(by) => summary.ratio(goal.column, by, goal.metric)?,
            None => summary.figure(goal.column, goal.metric)?,
        };
        let (bound, met) = match goal.bound {
            AtLeast(least) => (format!("at least {least}"), measured.median >= least),
            AtMost(most) => (format!("at most {most}"), measured.median <= most),
        };
        Some(Verdict { what: goal.what, bound, measured, met })
    };
    GOALS.iter().filter_map(verdict).collect()
}

//! The goals of the benchmarks: figures, the columns with which they are compared, and the bounds.

use super::summary::{Spread, Summary};

enum Bound {
    AtLeast(f64),
    AtMost(f64),
    Exactly(f64),
    /// No bound: the figure is only listed with the goals.
    Nothing,
}
use Bound::{AtLeast, AtMost, Exactly, Nothing};

struct Goal {
    what: &'static str,
    work: &'static str,
    column: &'static str,
    metric: &'static str,
    /// The column by whose figure this one is divided; `None` if the figure itself is compared.
    by: Option<&'static str>,
    bound: Bound,
}

const fn goal(
    what: &'static str,
    [work, column, metric]: [&'static str; 3],
    by: Option<&'static str>,
    bound: Bound,
) -> Goal {
    Goal {
        what,
        work,
        column,
        metric,
        by,
        bound,
    }
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
    goal(
        "8 threads, of a raw socket each",
        ["own-8", "ours", "rate"],
        Some("raw"),
        AtLeast(1.0),
    ),
    goal(
        "32 threads, of a raw socket each",
        ["own-32", "ours", "rate"],
        Some("raw"),
        AtLeast(1.0),
    ),
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
        "32 threads, dropped guard, of rslock",
        ["own-32", "ours-drop", "rate"],
        Some("rslock"),
        AtLeast(1.0),
    ),
    goal(
        "128 threads, dropped guard, of rslock",
        ["own-128", "ours-drop", "rate"],
        Some("rslock"),
        AtLeast(1.0),
    ),
    goal(
        "32 threads without tokens, of rslock",
        ["own-32", "ours-bare", "rate"],
        Some("rslock"),
        AtLeast(1.0),
    ),
    goal(
        "32 threads without tokens, dropped guard, of rslock",
        ["own-32", "ours-bare-drop", "rate"],
        Some("rslock"),
        AtLeast(1.0),
    ),
    goal(
        "128 threads without tokens, of rslock",
        ["own-128", "ours-bare", "rate"],
        Some("rslock"),
        AtLeast(1.0),
    ),
    goal(
        "128 threads without tokens, dropped guard, of rslock",
        ["own-128", "ours-bare-drop", "rate"],
        Some("rslock"),
        AtLeast(1.0),
    ),
    goal(
        "32 threads, `unlock()`, of rslock",
        ["own-32", "ours", "rate"],
        Some("rslock"),
        Nothing,
    ),
    goal(
        "128 threads, `unlock()`, of rslock",
        ["own-128", "ours", "rate"],
        Some("rslock"),
        Nothing,
    ),
    goal(
        "server time, of two scripts that make no tokens",
        ["scripts", "ours", "server_us"],
        Some("lean"),
        AtMost(1.25),
    ),
    goal(
        "the same, four locks in a script",
        ["scripts", "ours-joined-4", "server_us"],
        Some("lean"),
        AtMost(1.25),
    ),
    goal(
        "the same, 16 locks in a script",
        ["scripts", "ours-joined-16", "server_us"],
        Some("lean"),
        AtMost(1.25),
    ),
    goal(
        "server time, of Redisson's two scripts",
        ["scripts", "ours", "server_us"],
        Some("redisson"),
        AtMost(1.25),
    ),
    goal(
        "8 threads on one lock, changes of owner, of `publish-retry`",
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
        "8 processes on one lock, changes of owner between any threads, of `publish-retry`",
        ["processes", "ours", "changes_per_s"],
        Some("publish-retry"),
        AtLeast(1.0),
    ),
    goal(
        "8 processes on one lock, requests for each, of `publish-retry`",
        ["processes", "ours", "requests_per_change"],
        Some("publish-retry"),
        AtMost(0.5),
    ),
    goal(
        "8 processes on one lock, changes of process only, of `publish-retry`",
        ["processes", "ours", "process_changes_per_s"],
        Some("publish-retry"),
        Nothing,
    ),
    goal(
        "8 processes on one lock, requests for each change of process, of `publish-retry`",
        ["processes", "ours", "requests_per_process_change"],
        Some("publish-retry"),
        Nothing,
    ),
    goal(
        "8 processes on one lock, distance from a fair share",
        ["processes", "ours", "process_share"],
        None,
        AtMost(0.3),
    ),
    goal(
        "8 processes of one thread on one lock, changes of process, of `publish-retry`",
        ["order", "ours", "process_changes_per_s"],
        Some("publish-retry"),
        AtLeast(1.0),
    ),
    goal(
        "8 processes of one thread, `order=fair`, changes of process, of `publish-retry`",
        ["order", "ours-fair", "process_changes_per_s"],
        Some("publish-retry"),
        AtLeast(1.0),
    ),
    goal(
        "8 processes of one thread on one lock, distance from a fair share",
        ["order", "ours", "process_share"],
        None,
        AtMost(0.2),
    ),
    goal(
        "8 processes of one thread on one lock, longest wait, in times of 8 visits",
        ["order", "ours", "longest_wait"],
        None,
        AtMost(10.0),
    ),
    goal(
        "8 processes of one thread, `order=fair`, longest wait, in times of 8 visits",
        ["order", "ours-fair", "longest_wait"],
        None,
        AtMost(10.0),
    ),
    goal(
        "from one process to another, p50, of a direct grant",
        ["handoff", "ours", "handoff_p50_us"],
        Some("direct-grant"),
        AtMost(1.5),
    ),
    goal(
        "from one process to another with `order=fair`, p50, of a direct grant",
        ["handoff", "ours-fair", "handoff_p50_us"],
        Some("direct-grant"),
        AtMost(1.5),
    ),
    goal(
        "one thread, of Redisson",
        ["alone", "ours", "rate"],
        Some("redisson"),
        AtLeast(1.0),
    ),
    goal(
        "8 threads, of Redisson",
        ["own-8", "ours", "rate"],
        Some("redisson"),
        AtLeast(1.0),
    ),
    goal(
        "32 threads, of Redisson",
        ["own-32", "ours", "rate"],
        Some("redisson"),
        AtLeast(1.0),
    ),
    goal(
        "128 threads, of Redisson",
        ["own-128", "ours", "rate"],
        Some("redisson"),
        AtLeast(1.0),
    ),
    goal(
        "8 threads on one lock, changes of owner, of Redisson",
        ["contended", "ours", "changes_per_s"],
        Some("redisson"),
        AtLeast(1.0),
    ),
    goal(
        "8 processes on one lock, changes of owner, of Redisson",
        ["processes", "ours", "changes_per_s"],
        Some("redisson"),
        AtLeast(1.0),
    ),
    goal(
        "from one process to another, p50, of Redisson",
        ["handoff", "ours", "handoff_p50_us"],
        Some("redisson"),
        AtMost(1.0),
    ),
    goal(
        "nested, of a free `parking_lot::ReentrantMutex`",
        ["nested", "ours", "rate"],
        Some("parking_lot-free"),
        AtLeast(0.1),
    ),
    goal(
        "nested, of a `parking_lot::ReentrantMutex` that is held already",
        ["nested", "ours", "rate"],
        Some("parking_lot-held"),
        Nothing,
    ),
    goal(
        "nested, requests",
        ["nested", "ours", "requests_each"],
        None,
        AtMost(0.0),
    ),
    goal(
        "100,000 held locks, lost",
        ["held-100000", "ours", "lost"],
        None,
        AtMost(0.0),
    ),
    goal(
        "100,000 held locks, timer threads",
        ["held-100000", "ours", "timer_threads"],
        None,
        Exactly(1.0),
    ),
    goal(
        "100,000 held locks, renewal threads",
        ["held-100000", "ours", "renewal_threads"],
        None,
        Exactly(1.0),
    ),
    goal(
        "100,000 held locks, client time, of a raw loop",
        ["held-100000", "ours", "client_s_per_min"],
        Some("raw"),
        AtMost(1.3),
    ),
    goal(
        "10,000 held locks, client time, of a raw loop",
        ["held-10000", "ours", "client_s_per_min"],
        Some("raw"),
        AtMost(1.3),
    ),
    goal(
        "100,000 held locks, bytes for each",
        ["held-100000", "ours", "memory"],
        None,
        AtMost(300.0),
    ),
    goal(
        "100,000 held locks, server time, of a raw loop",
        ["held-100000", "ours", "server_net_s_per_min"],
        Some("raw"),
        AtMost(1.3),
    ),
    goal(
        "100,000 held locks, another's PING p99, of that with none held",
        ["held-100000", "ours", "ping_p99_us"],
        Some("no-lock"),
        AtMost(2.0),
    ),
    goal(
        "10,000 locks taken in a burst, another's PING p99, of that with none taken",
        ["burst", "ours-burst", "ping_p99_us"],
        Some("no-lock"),
        Nothing,
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

/// A goal, its measured figure, and whether the goal is met.
pub(super) struct Verdict {
    pub(super) what: &'static str,
    pub(super) bound: String,
    pub(super) measured: Spread,
    /// `None` if the goal has no bound.
    pub(super) met: Option<bool>,
}

/// Returns the verdicts on all goals whose figures were measured.
pub(super) fn verdicts(summaries: &[Summary<'_>]) -> Vec<Verdict> {
    let verdict = |goal: &Goal| {
        let summary = summaries
            .iter()
            .find(|summary| summary.work.name == goal.work)?;
        let measured = match goal.by {
            Some(by) => summary.ratio(goal.column, by, goal.metric)?,
            None => summary.figure(goal.column, goal.metric)?,
        };
        let (bound, met) = match goal.bound {
            AtLeast(least) => (format!("at least {least}"), Some(measured.median >= least)),
            AtMost(most) => (format!("at most {most}"), Some(measured.median <= most)),
            Exactly(this) => (
                this.to_string(),
                Some((measured.median - this).abs() < 1e-9),
            ),
            Nothing => ("-".to_owned(), None),
        };
        Some(Verdict {
            what: goal.what,
            bound,
            measured,
            met,
        })
    };
    GOALS.iter().filter_map(verdict).collect()
}

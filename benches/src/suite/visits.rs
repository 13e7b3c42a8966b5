//! Evaluates the logs of visits to one lock: changes of owner, hand-off times, shares, and whether
//! two visits overlapped. A visit is one hold of the lock.

use super::{Sample, figure, sample_of};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

struct Visit {
    entered: u64,
    left: u64,
    process: usize,
    thread: u64,
}

/// Adds to `sample` the figures from the logs of all processes. Panics if two visits overlap.
pub(super) fn add(sample: &mut Sample, logs: &[&Path]) {
    let mut visits: Vec<_> = logs
        .iter()
        .enumerate()
        .flat_map(|(process, log)| read(process, log))
        .collect();
    visits.sort_unstable_by_key(|visit| visit.entered);
    let mut handoffs = Vec::new();
    let (mut changes, mut violations) = (0_u64, 0_u64);
    for pair in visits.windows(2) {
        let [one, next] = pair else { continue };
        violations += u64::from(next.entered < one.left);
        changes += u64::from((one.process, one.thread) != (next.process, next.thread));
        if one.process != next.process {
            handoffs.push(next.entered.saturating_sub(one.left) as f64 / 1e3);
        }
    }
    assert_eq!(violations, 0, "two had the lock at the same time");
    handoffs.sort_unstable_by(f64::total_cmp);
    let at = |part: f64| handoffs.get((handoffs.len().saturating_sub(1) as f64 * part) as usize);
    let seconds = figure(sample, "seconds");
    let threads = figure(sample, "contenders") as usize;
    let longest_wait = longest_wait_nanos(&visits, threads) as f64;
    let more = json!({
        "changes": changes,
        "process_changes": handoffs.len(),
        "changes_per_s": changes as f64 / seconds,
        "process_changes_per_s": handoffs.len() as f64 / seconds,
        "overtaken": overtaken(&visits),
        "handoff_p50_us": at(0.5),
        "handoff_p99_us": at(0.99),
        "longest_wait": longest_wait / mean_round(&visits, threads),
        "longest_wait_ms": longest_wait / 1e6,
        "longest_of_median_round": longest_wait / median_round(&visits, threads),
        "process_least_of_most": least_of_most(&visits, logs.len(), |it| (it.process, 0)),
        "thread_least_of_most": least_of_most(&visits, threads, |it| (it.process, it.thread)),
        "second_half_share": second_half_share(&visits, logs.len()),
        "thread_share": shares(&visits, threads, |visit| (visit.process, visit.thread)),
        "process_share": shares(&visits, logs.len(), |visit| (visit.process, 0)),
    });
    sample.extend(sample_of(more));
    per_change(sample);
}

/// Returns by how many other visits a visit is overtaken on average: they were requested later, but
/// began earlier. A thread is assumed to request its next visit as soon as it leaves. The visits
/// are in the order of their entries.
fn overtaken(visits: &[Visit]) -> f64 {
    let mut last = BTreeMap::new();
    let asked: Vec<Option<u64>> = visits
        .iter()
        .map(|it| last.insert((it.process, it.thread), it.left))
        .collect();
    let (mut count, mut overtakes) = (0_u64, 0);
    for (at, mine) in asked.iter().enumerate() {
        let Some(mine) = mine else { continue };
        let before = visits[..at].iter().zip(&asked).rev();
        let meanwhile = before.take_while(|(visit, _)| visit.entered > *mine);
        overtakes += meanwhile
            .filter(|(_, asked)| asked.is_some_and(|it| it > *mine))
            .count();
        count += 1;
    }
    overtakes as f64 / count.max(1) as f64
}

/// Returns the mean time of as many visits as there are contenders, in nanoseconds; at least one.
fn mean_round(visits: &[Visit], contenders: usize) -> f64 {
    let (Some(first), Some(end)) = (visits.first(), visits.last()) else {
        return 1.0;
    };
    let round = (end.entered - first.entered) as f64 / visits.len() as f64 * contenders as f64;
    round.max(1.0)
}

/// Returns the median time of as many visits in a row as there are contenders, in nanoseconds.
fn median_round(visits: &[Visit], contenders: usize) -> f64 {
    let rounds = visits.windows(contenders + 1);
    let mut rounds: Vec<u64> = rounds
        .filter_map(|round| Some(round.last()?.entered - round.first()?.entered))
        .collect();
    rounds.sort_unstable();
    rounds
        .get(rounds.len() / 2)
        .map_or(f64::NAN, |&it| it as f64)
}

/// Returns the longest time that a contender waited for a visit, or waited in vain until the last
/// entry. A thread is assumed to request its next visit as soon as it leaves.
fn longest_wait_nanos(visits: &[Visit], contenders: usize) -> u64 {
    let (Some(first), Some(end)) = (visits.first(), visits.last()) else {
        return 0;
    };
    let mut last = BTreeMap::new();
    let mut longest = 0;
    for visit in visits {
        let asked = last.insert((visit.process, visit.thread), visit.left);
        longest = longest.max(visit.entered.saturating_sub(asked.unwrap_or(first.entered)));
    }
    // A contender without a visit has waited since the first entry.
    let in_vain = if last.len() < contenders {
        Some(&first.entered)
    } else {
        last.values().min()
    };
    longest.max(in_vain.map_or(0, |since| end.entered.saturating_sub(*since)))
}

fn read(process: usize, log: &Path) -> Vec<Visit> {
    let bytes = std::fs::read(log).expect("the worker wrote it");
    let visit = |chunk: &[u8]| {
        let number = |at: usize| u64::from_le_bytes(chunk[at..at + 8].try_into().expect("eight"));
        Visit {
            entered: number(0),
            left: number(8),
            process,
            thread: number(16),
        }
    };
    bytes.chunks_exact(24).map(visit).collect()
}

/// Adds what each change of owner cost.
pub(super) fn per_change(sample: &mut Sample) {
    let cycles = figure(sample, "cycles");
    for (name, each, changes) in [
        ("requests_per_change", "requests_each", "changes"),
        (
            "requests_per_process_change",
            "requests_each",
            "process_changes",
        ),
        ("server_us_per_change", "server_us", "changes"),
        ("client_us_per_change", "client_us", "changes"),
        ("commands_per_change", "commands_each", "changes"),
    ] {
        let cost = figure(sample, each) * cycles / figure(sample, changes).max(1.0);
        sample.insert(name.to_owned(), json!(cost));
    }
}

/// Returns the largest relative deviation of a contender's share from the fair one: 0 is fair, 1 is
/// no visit at all or twice the fair share.
fn shares(visits: &[Visit], contenders: usize, who: impl Fn(&Visit) -> (usize, u64)) -> f64 {
    let counts = counts(visits, who);
    let fair = visits.len() as f64 / contenders.max(1) as f64;
    let worst = counts
        .values()
        .map(|&count| (count as f64 / fair - 1.0).abs())
        .fold(0.0, f64::max);
    // A contender without a visit is not in the log.
    if counts.len() < contenders {
        worst.max(1.0)
    } else {
        worst
    }
}

/// Returns the smallest share of a contender, divided by the largest.
fn least_of_most(visits: &[Visit], contenders: usize, who: impl Fn(&Visit) -> (usize, u64)) -> f64 {
    let counts = counts(visits, who);
    let least = counts.values().min().copied().unwrap_or(0);
    let most = counts.values().max().copied().unwrap_or(0).max(1);
    if counts.len() < contenders {
        0.0
    } else {
        least as f64 / most as f64
    }
}

fn counts(visits: &[Visit], who: impl Fn(&Visit) -> (usize, u64)) -> BTreeMap<(usize, u64), u64> {
    let mut counts = BTreeMap::new();
    for visit in visits {
        *counts.entry(who(visit)).or_insert(0) += 1;
    }
    counts
}

/// Returns the share of the second half of the processes, which may have a longer round trip.
fn second_half_share(visits: &[Visit], processes: usize) -> f64 {
    let second = visits.iter().filter(|it| it.process >= processes / 2);
    second.count() as f64 / visits.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns one visit per microsecond, by these processes in this order.
    fn visits(processes: &[usize]) -> Vec<Visit> {
        let visit = |(&process, at): (&usize, u64)| Visit {
            entered: at * 1_000,
            left: at * 1_000,
            process,
            thread: 0,
        };
        processes.iter().zip(1..).map(visit).collect()
    }

    #[test]
    fn shares_of_processes_are_compared() {
        let some = visits(&[0, 1, 1, 0, 1, 1]);
        assert!((least_of_most(&some, 2, |it| (it.process, 0)) - 0.5).abs() < 1e-9);
        assert!((second_half_share(&some, 2) - 4.0 / 6.0).abs() < 1e-9);
        assert_eq!(least_of_most(&some, 3, |it| (it.process, 0)), 0.0);
    }

    #[test]
    fn median_round_is_that_of_as_many_visits_as_contenders() {
        assert_eq!(median_round(&visits(&[0, 1, 0, 1, 0]), 2), 2_000.0);
    }

    #[test]
    fn longest_wait_is_counted_in_times_of_a_visit_each() {
        let in_turn: Vec<usize> = (0..8).cycle().take(800).collect();
        let is_near = |times: f64, expected: f64| (times / expected - 1.0).abs() < 0.05;
        let longest_wait = |some: &[Visit], contenders: usize| {
            longest_wait_nanos(some, contenders) as f64 / mean_round(some, contenders)
        };
        assert!(is_near(longest_wait(&visits(&in_turn), 8), 1.0));
        // For about fifty rounds the eighth process has no visit: in the middle, at the end, or in
        // the whole log.
        let absent = |from: usize, to: usize| {
            let others: Vec<usize> = (0..7).cycle().take(400).collect();
            [&in_turn[..from], &others, &in_turn[to..]].concat()
        };
        assert!(is_near(longest_wait(&visits(&absent(200, 600)), 8), 50.0));
        assert!(is_near(longest_wait(&visits(&absent(400, 800)), 8), 50.0));
        assert!(is_near(longest_wait(&visits(&absent(0, 800)), 8), 50.0));
    }
}

//! Reads and writes `docs/performance.jsonl`, which has one line for each figure. The measurements
//! and the count of instructions each replace only their own lines.

use serde_json::Value;
use std::path::Path;

const FILE: &str = "performance.jsonl";

/// Returns all lines, or none if there is no such file.
pub(super) fn read(docs: &Path) -> Vec<Value> {
    text(docs).lines().map(parse).collect()
}

fn text(docs: &Path) -> String {
    std::fs::read_to_string(docs.join(FILE)).unwrap_or_default()
}

fn parse(line: &str) -> Value {
    serde_json::from_str(line).expect("each line is JSON")
}

/// Replaces the lines of the workloads for which `ours` returns true by `lines`.
pub(super) fn rewrite(docs: &Path, ours: impl Fn(&str) -> bool, lines: &str) {
    let old = text(docs);
    // The other lines are copied as text: parsing and writing them could change a figure's last
    // digit.
    let theirs = old
        .lines()
        .filter(|line| !parse(line)["work"].as_str().is_some_and(&ours));
    let kept: String = theirs.map(|line| format!("{line}\n")).collect();
    std::fs::write(docs.join(FILE), kept + lines).unwrap_or_else(|error| panic!("{FILE}: {error}"));
}

/// Returns the median, the least and the most of a metric of a column.
pub(super) fn spread(
    figures: &[Value],
    work: &str,
    column: &str,
    metric: &str,
) -> Option<[f64; 3]> {
    let is_meant = |line: &&Value| {
        line["work"] == work && line["column"] == column && line["metric"] == metric
    };
    let line = figures.iter().find(is_meant)?;
    let [median, least, most] = [0, 1, 2].map(|at| line["median_least_most"][at].as_f64());
    Some([median?, least?, most?])
}

/// Returns the median of a metric of a column.
pub(super) fn median(figures: &[Value], work: &str, column: &str, metric: &str) -> Option<f64> {
    spread(figures, work, column, metric).map(|[median, ..]| median)
}

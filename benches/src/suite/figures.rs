//! `docs/performance.jsonl`: a line for each figure. Two commands write it, each its own lines.

use serde_json::Value;
use std::path::Path;

const FILE: &str = "performance.jsonl";

/// All lines; none if there is no such file.
pub(super) fn read(docs: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(docs.join(FILE)).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")).collect()
}

/// Replaces the lines of the works that are `ours` by `lines`.
pub(super) fn rewrite(docs: &Path, ours: impl Fn(&str) -> bool, lines: &str) {
    let theirs = read(docs).into_iter().filter(|line| !line["work"].as_str().is_some_and(&ours));
    let kept: String = theirs.map(|line| format!("{line}\n")).collect();
    std::fs::write(docs.join(FILE), kept + lines).unwrap_or_else(|error| panic!("{FILE}: {error}"));
}

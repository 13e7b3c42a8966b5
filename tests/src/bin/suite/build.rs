//! Builds all tests and examples, and finds the test binaries.

use crate::job::{Job, Outcome, Priority};
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The test binaries, by the names of their targets.
pub(crate) type Binaries = BTreeMap<String, PathBuf>;

/// Builds everything, and returns the test binaries; `None` if something does not compile.
pub(crate) fn everything() -> (Outcome, Option<Binaries>) {
    let outcome = Job::cargo("build", "test --workspace --all-features --no-run")
        .args(&["--message-format=json-render-diagnostics"])
        .run(Priority::Normal);
    let binaries = outcome.is_ok.then(|| {
        outcome
            .lines()
            .iter()
            .filter_map(|line| binary(line))
            .collect()
    });
    (outcome, binaries)
}

/// Returns the name and the path of the test binary that this message of Cargo is about, if any.
fn binary(line: &str) -> Option<(String, PathBuf)> {
    let message: Json = serde_json::from_str(line).ok()?;
    let is_test = message["profile"]["test"].as_bool()?;
    let name = match message["target"]["name"].as_str()? {
        // The library and the command-line program have the same name.
        "distlock" if message["target"]["kind"][0] == "bin" => "distlock-cli",
        name => name,
    };
    let path = message["executable"].as_str()?;
    is_test.then(|| (name.to_owned(), path.into()))
}

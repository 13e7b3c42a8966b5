//! Tests that a document names are there.

use super::{read, root, table};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The names of all test functions and of all cases of the conformance suite.
pub(crate) fn tests() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for folder in ["tests", "src", "lock-core", "lock-redis", "lock-cluster"] {
        collect(&root().join(folder), &mut names);
    }
    let cases = lock_core::conformance::cases();
    names.extend(cases.iter().map(|case| case.name().to_owned()));
    names
}

fn collect(path: &Path, names: &mut BTreeSet<String>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            collect(&entry.unwrap().path(), names);
        }
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        let text = fs::read_to_string(path).unwrap();
        for (_, after) in text.match_indices("#[test]").map(|(at, it)| text.split_at(at + it.len()))
        {
            let function = after.split_once("fn ").and_then(|(_, name)| name.split('(').next());
            names.extend(function.map(str::to_owned));
        }
    }
}

/// What stands in back-quotes in the last column of a table.
fn named(document: &str, heading: &str) -> Vec<String> {
    let mut named = Vec::new();
    for row in table(&read(document), heading) {
        let quoted: Vec<_> =
            row.last().unwrap().split('`').skip(1).step_by(2).map(str::to_owned).collect();
        assert!(!quoted.is_empty(), "{document}: no test is named for {:?}", row[0]);
        named.extend(quoted);
    }
    named
}

#[test]
fn every_test_that_is_named_is_there() {
    let tests = tests();
    for (document, heading) in [
        ("docs/DEFAULTS.md", "Bad input"),
        ("docs/TESTING.md", "What can go wrong with a connection"),
        ("docs/GUARANTEES.md", "What is promised"),
        ("docs/GUARANTEES.md", "Replicas"),
        ("docs/GUARANTEES.md", "What is promised with Sentinel"),
        ("docs/GUARANTEES.md", "What is promised on Redis Cluster"),
        ("docs/GUARANTEES.md", "What cannot be promised"),
    ] {
        for name in named(document, heading) {
            assert!(tests.contains(&name), "{document} names `{name}`, and there is no such test");
        }
    }
}

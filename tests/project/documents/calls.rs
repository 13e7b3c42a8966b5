//! The lists of calls in DESIGN name files and functions that exist; CONTRIBUTING names files that
//! exist.

use super::{read, root};
use std::fs;
use std::path::PathBuf;

const SECTION: &str = "\n## Four calls\n";
const CRATES: [&str; 2] = ["lock-core/src", "lock-redis/src"];

/// Returns the texts in backticks from the first list item on, except those in bold headings.
fn quoted(section: &str) -> Vec<&str> {
    let lines = section.lines().filter(|line| !line.starts_with("**"));
    let body = lines.skip_while(|line| !line.starts_with("- "));
    body.flat_map(|line| line.split('`').skip(1).step_by(2))
        .collect()
}

/// Returns the paths at which a file may be that is named by its path below a crate's sources.
fn in_crates(file: &str) -> [PathBuf; 2] {
    CRATES.map(|folder| root().join(folder).join(file))
}

/// Returns the source of a file that is named by its path below a crate's sources. If both crates
/// have such a file, returns both sources.
fn source(file: &str) -> String {
    let sources: Vec<_> = in_crates(file)
        .into_iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        .collect();
    assert!(!sources.is_empty(), "there is no {file}");
    sources.concat()
}

#[test]
fn functions_of_the_call_lists_stand_in_the_named_files() {
    let design = read("docs/DESIGN.md");
    let (_, section) = design.split_once(SECTION).expect("the section is there");
    let section = section.split("\n## ").next().unwrap();
    let quoted = quoted(section);
    let (files, functions): (Vec<&str>, Vec<&str>) =
        quoted.into_iter().partition(|text| text.ends_with(".rs"));
    let sources: Vec<_> = files.iter().map(|file| source(file)).collect();
    assert!(
        files.len() > 15 && functions.len() > 30,
        "{files:?} {functions:?}"
    );
    for function in functions {
        let name = function.rsplit("::").next().unwrap();
        let definition = format!("fn {name}");
        let is_defined = |source: &String| {
            source.match_indices(&definition).any(|(at, _)| {
                let next = source[at + definition.len()..].chars().next();
                next.is_some_and(|next| next == '(' || next == '<')
            })
        };
        assert!(
            sources.iter().any(is_defined),
            "no named file has {function}"
        );
    }
}

#[test]
fn files_that_contributing_names_exist() {
    let text = read("CONTRIBUTING.md");
    let is_there = |file: &str| {
        let beside = ["api", "config"].map(|folder| format!("lock-core/src/{folder}/{file}"));
        let mut paths = in_crates(file)
            .into_iter()
            .chain(beside.map(|path| root().join(path)));
        root().join(file).exists() || paths.any(|path| path.exists())
    };
    let named = text.split('`').skip(1).step_by(2);
    let paths: Vec<_> = named
        .filter(|text| text.contains('/') && !text.contains(' ') || text.ends_with(".rs"))
        .collect();
    for path in &paths {
        assert!(is_there(path), "there is no {path}");
    }
    assert!(paths.len() > 15, "{paths:?}");
}

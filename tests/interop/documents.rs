//! The table of `docs/INTEROP.md` names the versions that are tested.

use crate::pins::{FOREIGN_CLIENTS, Pin, redissons};
use crate::suite::{Suite, case};
use std::collections::BTreeSet;

pub(crate) fn mount(suite: &mut Suite) {
    suite.alone(case!(documents_name_the_tested_versions));
}

/// Returns the cells of each row of this document's table of libraries.
fn rows(document: &str) -> impl Iterator<Item = Vec<&str>> {
    let (_, table) = document
        .split_once("| versions tested |")
        .expect("it has a table of libraries");
    let (table, _) = table.split_once("\n\n").expect("it ends");
    // The first two lines are the rest of the head, and the line under it.
    table
        .lines()
        .skip(2)
        .map(|row| row.split('|').map(str::trim).collect())
}

/// Returns what the table in `docs/INTEROP.md` names: libraries as they call themselves, each with
/// a version.
fn documented() -> BTreeSet<String> {
    let says = |row: Vec<&str>| {
        let library = row[1].to_lowercase().replace(' ', "-");
        row[5]
            .split(", ")
            .map(|version| format!("{library} {version}"))
            .collect::<Vec<_>>()
    };
    rows(include_str!("../../docs/INTEROP.md"))
        .flat_map(says)
        .collect()
}

/// Returns the pinned libraries as they call themselves, each with its version.
fn pinned() -> BTreeSet<String> {
    let redissons = redissons().map(|version| format!("redisson {version}"));
    FOREIGN_CLIENTS
        .into_iter()
        .map(Pin::says)
        .chain(redissons)
        .collect()
}

fn documents_name_the_tested_versions() {
    assert_eq!(documented(), pinned());
}

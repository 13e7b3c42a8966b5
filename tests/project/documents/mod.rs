//! The documents agree with the code: numbers, calls, names of tests, style.

mod calls;
mod defaults;
mod metrics;
mod migrating;
mod named;
mod operations;
mod prometheus;
mod prose;

use std::fs;
use std::path::Path;

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

pub(crate) fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// Returns the rows of all tables under this heading as cells, without the head rows.
fn tables(document: &str, heading: &str) -> Vec<Vec<String>> {
    let after = document
        .split_once(&format!("\n## {heading}\n"))
        .map(|(_, after)| after);
    let section = after.unwrap_or_else(|| panic!("there is no section `{heading}`"));
    let section = section.split("\n## ").next().unwrap();
    let cells = |row: &str| {
        let cells = row.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect::<Vec<_>>()
    };
    let (mut rows, mut row_of_table) = (Vec::new(), 0);
    for line in section.lines() {
        row_of_table = if line.starts_with('|') {
            row_of_table + 1
        } else {
            0
        };
        // The head row and the line under it are left out.
        if row_of_table > 2 {
            rows.push(cells(line));
        }
    }
    assert!(!rows.is_empty(), "the table under `{heading}` is empty");
    rows
}

/// Returns the files in these folders that have this extension, as paths from the root.
pub(crate) fn sources<const N: usize>(folders: [&str; N], extension: &str) -> Vec<String> {
    let mut folders: Vec<_> = folders.iter().map(|folder| root().join(folder)).collect();
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|its| its == extension) {
                files.push(path.strip_prefix(root()).unwrap().display().to_string());
            }
        }
    }
    files
}

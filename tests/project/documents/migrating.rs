//! Checks `docs/MIGRATING.md`: the interop programs make the calls on the left, and this library
//! has those on the right. The document's examples are compiled as doc-tests.

use super::{read, root, sources, tables};
use std::fs;
use std::path::Path;

/// The sections of the document, each with the folder of the other library's program.
const SECTIONS: [(&str, &str); 4] = [
    ("From Redisson", "java"),
    ("From redis-py", "python"),
    ("From redsync", "go"),
    ("From ShedLock", "spring"),
];

/// Calls that no program makes, and that were checked by hand in the other libraries' sources.
const ELSEWHERE: [&str; 4] = [
    "WithTries",
    "assertLocked",
    "isHeldByCurrentThread",
    "thread_local",
];

/// Returns the texts of all files in a folder and below, one after the other.
fn text_of(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text += &text_of(&path);
        } else {
            text += &fs::read_to_string(&path).unwrap_or_default();
        }
    }
    text
}

/// Returns the names in a cell of what is called, as in `name(`, or set by name, as in `name=`.
fn called(cell: &str) -> Vec<&str> {
    let code = cell.split('`').skip(1).step_by(2);
    let names = code.flat_map(|code| {
        code.match_indices(['(', '=']).map(|(at, _)| {
            let before = &code[..at];
            let is_part = |c: char| c.is_alphanumeric() || c == '_';
            let start = before.rfind(|c| !is_part(c)).map_or(0, |at| at + 1);
            &before[start..]
        })
    });
    names.filter(|name| !name.is_empty()).collect()
}

/// Returns whether a text contains a name as a whole word.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part)
    })
}

#[test]
fn calls_of_other_libraries_are_made_by_their_programs() {
    let document = read("docs/MIGRATING.md");
    for (section, folder) in SECTIONS {
        let program = text_of(&root().join("tests/interop/peers").join(folder));
        for row in tables(&document, section) {
            for name in called(&row[0])
                .iter()
                .filter(|name| !ELSEWHERE.contains(name))
            {
                assert!(
                    has_word(&program, name),
                    "{section}: {name} is not called in {folder}"
                );
            }
        }
    }
}

#[test]
fn calls_of_this_library_exist() {
    let document = read("docs/MIGRATING.md");
    let sources = sources(["lock-core/src", "src"], "rs");
    let code: String = sources.iter().map(|file| read(file)).collect();
    let settings = read("docs/DEFAULTS.md") + &read("docs/INTEROP.md");
    for (section, _) in SECTIONS {
        let rows = tables(&document, section);
        for name in rows.iter().flat_map(|row| called(&row[1])) {
            let is_there = has_word(&code, &format!("fn {name}")) || has_word(&settings, name);
            assert!(is_there, "{section}: there is no {name}");
        }
    }
}

//! The style of documents and sources, as far as a program can read it.

use super::{read, root, sources};
use std::fs;

/// The number of words that README and the documents may have together, tables included. A change
/// may only lower it, except by the pages of a new kind of store or a new program.
const MOST_WORDS: usize = 27_350;
/// Words that are used where a sentence should name its subject.
const VAGUE: [&str; 5] = ["whoever", "somebody", "nobody", "everybody", "anybody"];
/// The line width of rustfmt, which does not apply it to comments.
const WIDTH: usize = 100;

/// Returns the documents in `docs`.
fn documents() -> Vec<String> {
    let entries = fs::read_dir(root().join("docs")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| name.ends_with(".md"))
        .map(|name| format!("docs/{name}"))
        .collect()
}

/// Returns the lines of a document that the benchmarks have not written.
fn written_lines(text: &str) -> impl Iterator<Item = &str> {
    let mut is_generated = false;
    text.lines().filter(move |line| {
        is_generated = (is_generated || line.contains(": written by the benchmarks"))
            && !line.starts_with("<!-- end of");
        !is_generated
    })
}

/// Counts the words of a text, those in tables and programs included. The lines between cells do
/// not count.
fn words(text: &str) -> usize {
    let words = text.split_whitespace();
    words
        .filter(|word| word.contains(char::is_alphanumeric))
        .count()
}

#[test]
fn documents_together_stay_within_their_words() {
    let files: Vec<_> = std::iter::once("README.md".to_owned())
        .chain(documents())
        .map(|name| (words(&read(&name)), name))
        .collect();
    let total: usize = files.iter().map(|(words, _)| words).sum();
    assert!(
        total <= MOST_WORDS,
        "{total} words, more than {MOST_WORDS}: cut repetition first: {files:?}"
    );
}

#[test]
fn words_in_tables_count() {
    assert_eq!(words("| a | 5 ms |\n|---|---|\n- one `b`, two"), 6);
}

#[test]
fn each_sentence_names_its_subject() {
    let others = ["README.md", "CONTRIBUTING.md", "benches/NOTES.md"].map(str::to_owned);
    for name in others.into_iter().chain(documents()) {
        for line in written_lines(&read(&name)) {
            let words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
            let vague = words
                .map(str::to_lowercase)
                .find(|word| VAGUE.contains(&word.as_str()));
            assert!(
                vague.is_none(),
                "{name} says `{}` in {line:?}",
                vague.unwrap_or_default()
            );
        }
    }
}

/// Returns whether a line is wider than allowed. Lines with text in quotes or with addresses, and
/// rows of tables, may be wider, because they cannot be wrapped.
fn is_too_wide(line: &str) -> bool {
    let is_comment = line.trim_start().starts_with("//");
    let is_row = line.starts_with("//! | ");
    let cannot_wrap = line.contains("://") || is_row || !is_comment && line.contains('"');
    line.chars().count() > WIDTH && !cannot_wrap
}

#[test]
fn lines_are_no_wider_than_rustfmt_allows() {
    let folders = [
        "src",
        "lock-core",
        "lock-redis",
        "lock-cluster",
        "lock-postgres",
        "cli",
        "tests",
        "examples",
        "benches",
    ];
    let mut wide = Vec::new();
    for file in sources(folders, "rs")
        .into_iter()
        .chain(sources(["lock-redis"], "lua"))
    {
        for (number, line) in read(&file).lines().enumerate() {
            if is_too_wide(line) {
                wide.push(format!("{file}:{}", number + 1));
            }
        }
    }
    assert!(wide.is_empty(), "wider than {WIDTH}: {wide:?}");
}

#[test]
fn only_text_and_addresses_may_be_wide() {
    let wide = |begin: &str| is_too_wide(&format!("{begin}{}", "x".repeat(WIDTH)));
    assert!(wide("x") && wide("    // \"quoted\" ") && wide("let it = "));
    assert!(
        !wide("    \"")
            && !wide("// https://")
            && !wide("//! | a | ")
            && !is_too_wide(&"x".repeat(WIDTH))
    );
}

//! The style of documents and sources, as far as a program can read it.

use super::{read, root, sources};
use std::fs;

/// The reading time of an hour, of what users of the library read.
const MOST_WORDS: usize = 16_000;
/// The document of those who use the command, and the words that it may have.
const OF_THE_COMMAND: (&str, usize) = ("docs/COMMAND.md", 800);
/// Words that stand where a sentence should name its subject.
const VAGUE: [&str; 5] = ["whoever", "somebody", "nobody", "everybody", "anybody"];
/// The width that rustfmt is set to, which it does not apply to comments.
const WIDTH: usize = 100;

/// The names of the files in `docs`, without what benchmarks write.
fn documents() -> Vec<String> {
    let entries = fs::read_dir(root().join("docs")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names
        .filter(|name| name.ends_with(".md"))
        .map(|name| format!("docs/{name}"))
        .collect()
}

/// The lines of a document that are written by hand.
fn written_lines(text: &str) -> impl Iterator<Item = &str> {
    let mut is_generated = false;
    text.lines().filter(move |line| {
        is_generated = (is_generated || line.contains(": written by the benchmarks"))
            && !line.starts_with("<!-- end of");
        !is_generated
    })
}

#[test]
fn documents_have_at_most_an_hours_words() {
    let words = |name: &String| {
        let text = read(name);
        let prose = text.lines().filter(|line| !line.starts_with('|'));
        prose.flat_map(str::split_whitespace).count()
    };
    let (of_the_command, most) = OF_THE_COMMAND;
    let in_command = words(&of_the_command.to_owned());
    assert!(
        in_command <= most,
        "{of_the_command} has {in_command} words outside of tables"
    );
    let of_the_library = documents()
        .into_iter()
        .filter(|name| name != of_the_command);
    let total: usize = of_the_library.map(|name| words(&name)).sum();
    assert!(
        total <= MOST_WORDS,
        "{total} words outside of tables: cut repetition first"
    );
}

#[test]
fn each_sentence_names_its_subject() {
    let others = ["README.md", "CONTRIBUTING.md"].map(str::to_owned);
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

/// Whether a line is wider than rustfmt's width. Text in quotes, addresses and rows of tables
/// cannot be wrapped.
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

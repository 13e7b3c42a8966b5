//! Tests that a document names exist, and run in the tier that it says.

use super::{read, root, sources};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The documents that name tests, in text and in tables whose last column has one of [`HEADS`].
const DOCUMENTS: [&str; 7] = [
    "docs/ALGORITHMS.md",
    "docs/DEFAULTS.md",
    "docs/TESTING.md",
    "docs/GUARANTEES.md",
    "docs/DESIGN.md",
    "docs/INTEROP.md",
    "docs/MIGRATING.md",
];
const HEADS: [&str; 3] = ["test", "the test's name", "where it is seen to fail"];
/// The mark behind the name of a test that only `tests/run.sh --all` runs.
const BY_HAND: &str = " (long tier)";
/// Quoted words in a text with as many underscores are names of tests.
const UNDERSCORES: usize = 4;

/// When a test is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Run {
    Always,
    /// It is `#[ignore]`d.
    LongTier,
}

/// The names of all test functions and of all cases of the conformance suite.
pub(crate) fn tests() -> BTreeMap<String, Run> {
    let mut names = BTreeMap::new();
    for folder in ["tests", "src", "lock-core", "lock-redis", "lock-cluster"] {
        collect(&root().join(folder), &mut names);
    }
    let cases = lock_core::conformance::cases();
    names.extend(cases.iter().map(|case| (case.name().to_owned(), Run::Always)));
    names
}

fn collect(path: &Path, names: &mut BTreeMap<String, Run>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            collect(&entry.unwrap().path(), names);
        }
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        let source = fs::read_to_string(path).unwrap();
        names.extend(tests_in(&source));
        names.extend(mounted_in(&source));
    }
}

/// The tests that a source lists at run time: `case!(name)` and `Trial::test(format!("..::name"))`.
fn mounted_in(source: &str) -> impl Iterator<Item = (String, Run)> {
    let cases = source.split("case!(").skip(1).filter_map(|it| it.split(')').next());
    let trials = source.split("Trial::test(format!(\"").skip(1);
    let trials = trials.filter_map(|it| it.split('"').next()?.rsplit("::").next());
    cases.chain(trials).map(|name| (name.trim().to_owned(), Run::Always))
}

/// The test functions in a source, each with its attributes, in whatever order they stand.
fn tests_in(source: &str) -> Vec<(String, Run)> {
    let (mut tests, mut attributes) = (Vec::new(), Vec::new());
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[") {
            attributes.push(line);
        } else if let Some((_, name)) = line.split_once("fn ") {
            if attributes.contains(&"#[test]") {
                let is_ignored = attributes.iter().any(|line| line.contains("ignore"));
                let name = name.split('(').next().unwrap_or_default().to_owned();
                tests.push((name, if is_ignored { Run::LongTier } else { Run::Always }));
            }
            attributes.clear();
        } else if line.ends_with([';', '{', '}']) {
            attributes.clear();
        }
    }
    tests
}

/// A name of a test in a document.
struct Named {
    name: String,
    run: Run,
}

/// The quoted words of a text that `is_name` accepts.
fn quoted(text: &str, is_name: impl Fn(&str) -> bool) -> Vec<Named> {
    let parts: Vec<_> = text.split('`').collect();
    let quoted = parts.iter().skip(1).step_by(2).zip(parts.iter().skip(2).step_by(2));
    let named = quoted.filter(|(name, _)| is_name(name)).map(|(name, behind)| Named {
        name: (*name).to_owned(),
        run: if behind.starts_with(BY_HAND) { Run::LongTier } else { Run::Always },
    });
    named.collect()
}

/// The tests that this document names: all in a column of tests, and what looks like one elsewhere.
fn named(document: &str) -> Vec<Named> {
    let is_long = |name: &str| {
        name.matches('_').count() >= UNDERSCORES
            && name.chars().all(|c| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit())
    };
    let (mut named, mut is_of_tests, mut in_table) = (Vec::new(), false, false);
    for line in read(document).lines() {
        if !line.starts_with('|') {
            in_table = false;
            named.extend(quoted(line, is_long));
            continue;
        }
        let last = line.trim_matches('|').rsplit('|').next().unwrap().trim();
        if !std::mem::replace(&mut in_table, true) {
            is_of_tests = HEADS.contains(&last);
        } else if is_of_tests && !last.starts_with("---") {
            let of_row = quoted(last, |_| true);
            assert!(!of_row.is_empty(), "{document}: no test is named in {line:?}");
            named.extend(of_row);
        } else {
            named.extend(quoted(line, is_long));
        }
    }
    named
}

#[test]
fn named_tests_exist() {
    let (tests, mut count) = (tests(), 0);
    for document in DOCUMENTS {
        for Named { name, run } in named(document) {
            let Some(is_run) = tests.get(&name) else {
                panic!("{document} names `{name}`, and there is no such test");
            };
            assert_eq!(
                *is_run, run,
                "{document} names `{name}`: \"{BY_HAND}\" stands behind those that are ignored, and no others"
            );
            count += 1;
        }
    }
    assert!(count > 200, "only {count} were found");
}

/// The filters of the tests that a command runs, as in `cargo test -p package -- filter`.
fn filters(command: &str) -> Vec<&str> {
    let Some((_, arguments)) = command.split_once("cargo test ") else { return Vec::new() };
    let arguments = arguments.split(" # ").next().unwrap_or_default();
    let mut filters = Vec::new();
    let mut words = arguments.split_whitespace().filter(|word| *word != "...");
    while let Some(word) = words.next() {
        if ["-p", "--test", "--test-threads"].contains(&word) {
            words.next();
        } else if !word.starts_with('-') {
            filters.push(word);
        }
    }
    filters
}

#[test]
fn commands_of_documents_name_existing_tests() {
    let files = sources(["tests", "lock-core"]);
    let texts: Vec<_> = files.iter().map(|file| format!("{file} {}", read(file))).collect();
    let mut count = 0;
    for document in ["docs/TESTING.md", "docs/PERFORMANCE.md"] {
        for line in read(document).lines() {
            for filter in filters(line.trim_matches('`')) {
                for part in filter.split("::") {
                    let is_there = texts.iter().any(|text| text.contains(part));
                    assert!(is_there, "{document}: nothing is called `{part}` in {line:?}");
                    count += 1;
                }
            }
        }
    }
    assert!(count > 10, "only {count} were found");
}

#[test]
fn ignored_tests_are_known_by_their_attribute() {
    let source = "#[test]\nfn runs() {\n}\n#[test]\n#[ignore = \"long\"]\nfn late() {}\n\n    #[ignore]\n    #[test]\n    // why\n    fn \
                  early() {\n}\n#[ignore]\nstruct Odd;\n#[test]\nfn after() {}\nfn helper() {}";
    let known = tests_in(source);
    let names: Vec<_> = known.iter().map(|(name, run)| (name.as_str(), *run)).collect();
    let long_tier = Run::LongTier;
    let all =
        [("runs", Run::Always), ("late", long_tier), ("early", long_tier), ("after", Run::Always)];
    assert_eq!(names, all);
}

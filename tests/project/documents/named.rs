//! The tests that a document names exist, and run in the tier that the document states.

use super::{read, root, sources};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The documents that may name tests in their text.
const DOCUMENTS: [&str; 9] = [
    "docs/ALGORITHMS.md",
    "docs/COMMAND.md",
    "docs/DEFAULTS.md",
    "docs/TESTING.md",
    "docs/GUARANTEES.md",
    "docs/DESIGN.md",
    "docs/INTEROP.md",
    "docs/MANAGED.md",
    "docs/MIGRATING.md",
];
/// The appendix of the documents: for each row of a table that promises something, named by the
/// row's first words, the tests that show that the promise holds.
const PROMISES: &str = "docs/promises.tsv";
/// The document in which each row of a table is a promise.
const OF_PROMISES: &str = "GUARANTEES.md";
/// The mark after the name of a test that `tests/run.sh` runs only with `--all`. `INTEROP` marks a
/// test of which the default tier runs a part.
const LONG_TIER: &str = " (long tier)";
const INTEROP: &str = " (interop)";
/// The document in which tests of the interop suite carry no mark.
const OF_INTEROP: &str = "docs/INTEROP.md";
/// A word in backticks with at least this many underscores is the name of a test.
const UNDERSCORES: usize = 4;

/// When a test runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Run {
    Always,
    /// The test uses other libraries: `tests/run.sh --all` runs all of these, the default tier
    /// some.
    Interop,
    /// The test is `#[ignore]`d.
    LongTier,
}

/// The packages with tests.
const PACKAGES: [&str; 9] = [
    ".",
    "lock-core",
    "lock-core/conformance",
    "lock-redis",
    "lock-cluster",
    "lock-postgres",
    "tests",
    "tests/model",
    "tests/schedules",
];

/// Returns the names of all tests that the packages compile, and of all cases of the conformance
/// suite. If several tests have one name, the one that runs most often counts.
fn tests() -> BTreeMap<String, Run> {
    let mut names = BTreeMap::new();
    let cases = lock_conformance::cases();
    names.extend(
        cases
            .iter()
            .map(|case| (case.name().to_owned(), Run::Always)),
    );
    for target in PACKAGES
        .iter()
        .flat_map(|package| targets(&root().join(package)))
    {
        for source in sources_of(&target.root, true) {
            let source = fs::read_to_string(source).unwrap();
            let tests = if target.has_harness {
                tests_in(&source)
            } else {
                Vec::new()
            };
            for (name, run) in tests.into_iter().chain(mounted_in(&source)) {
                names
                    .entry(name)
                    .and_modify(|other| *other = run.min(*other))
                    .or_insert(run);
            }
        }
    }
    names
}

/// A target that cargo compiles: a library, a program or a test.
struct Target {
    root: PathBuf,
    /// Whether its functions with `#[test]` are run.
    has_harness: bool,
}

/// Returns the targets of a package: its library, its programs and its tests.
fn targets(package: &Path) -> Vec<Target> {
    let manifest = fs::read_to_string(package.join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    let library = manifest.get("lib").and_then(|it| it.get("path")?.as_str());
    let mut targets = vec![Target {
        root: package.join(library.unwrap_or("src/lib.rs")),
        has_harness: true,
    }];
    let named = manifest
        .get("test")
        .and_then(|it| it.as_array())
        .into_iter()
        .flatten();
    targets.extend(named.filter_map(|test| {
        let root = package.join(test.get("path")?.as_str()?);
        let has_harness = test
            .get("harness")
            .and_then(toml::Value::as_bool)
            .unwrap_or(true);
        Some(Target { root, has_harness })
    }));
    let is_auto = manifest["package"]
        .get("autotests")
        .and_then(toml::Value::as_bool)
        != Some(false);
    for folder in ["src/bin", "tests"]
        .iter()
        .filter(|it| is_auto || **it != "tests")
    {
        let entries = fs::read_dir(package.join(folder)).into_iter().flatten();
        let roots = entries.map(|entry| entry.unwrap().path()).map(|path| {
            if path.is_dir() {
                path.join("main.rs")
            } else {
                path
            }
        });
        let roots = roots.filter(|it| it.extension().is_some_and(|it| it == "rs") && it.is_file());
        targets.extend(roots.map(|root| Target {
            root,
            has_harness: true,
        }));
    }
    targets
}

/// Returns this source, and those of the modules that it declares. A file that no source declares
/// is left out, because it is not compiled and its tests never run.
fn sources_of(source: &Path, is_root: bool) -> Vec<PathBuf> {
    let folder = match source.file_stem().unwrap() {
        stem if !is_root && stem != "mod" => source.with_extension(""),
        _ => source.parent().unwrap().to_owned(),
    };
    let mut sources = vec![source.to_owned()];
    for name in declared_in(&fs::read_to_string(source).unwrap()) {
        let files = [
            folder.join(format!("{name}.rs")),
            folder.join(&name).join("mod.rs"),
        ];
        let files = files.iter().filter(|file| file.is_file());
        sources.extend(files.flat_map(|file| sources_of(file, false)));
    }
    sources
}

/// Returns the modules that a source declares and that are in files of their own.
fn declared_in(source: &str) -> Vec<String> {
    let lines = source
        .lines()
        .filter_map(|line| line.trim().strip_suffix(';'));
    let names = lines.filter_map(|line| match line.split_once("mod ") {
        Some((before, name)) if before.is_empty() || before.starts_with("pub") => Some(name),
        _ => None,
    });
    names.map(str::to_owned).collect()
}

/// Returns the tests that a source lists at run time: `case!(name)` of the interop suite and
/// `Trial::test(format!("..::name"))`.
fn mounted_in(source: &str) -> impl Iterator<Item = (String, Run)> {
    let cases = source
        .split("case!(")
        .skip(1)
        .filter_map(|it| it.split(')').next());
    let trials = source.split("Trial::test(format!(\"").skip(1);
    let trials = trials.filter_map(|it| it.split('"').next()?.rsplit("::").next());
    let cases = cases.map(|name| (name, Run::Interop));
    let all = cases.chain(trials.map(|name| (name, Run::Always)));
    all.map(|(name, run)| (name.trim().to_owned(), run))
}

/// Returns the test functions in a source, and when each runs. The attributes of a function may be
/// in any order.
fn tests_in(source: &str) -> Vec<(String, Run)> {
    let (mut tests, mut attributes) = (Vec::new(), Vec::new());
    for line in source.lines().map(str::trim) {
        if line.starts_with("#[") {
            attributes.push(line);
        } else if let Some((_, name)) = line.split_once("fn ") {
            if attributes.contains(&"#[test]") {
                let is_ignored = attributes.iter().any(|line| line.contains("ignore"));
                let name = name.split('(').next().unwrap_or_default().to_owned();
                tests.push((
                    name,
                    if is_ignored {
                        Run::LongTier
                    } else {
                        Run::Always
                    },
                ));
            }
            attributes.clear();
        } else if line.ends_with([';', '{', '}']) {
            attributes.clear();
        }
    }
    tests
}

/// A test that a document names, and when it runs by its mark.
struct Named {
    name: String,
    run: Run,
}

/// Returns the words in backticks that `is_name` accepts.
fn quoted(text: &str, is_name: impl Fn(&str) -> bool) -> Vec<Named> {
    let parts: Vec<_> = text.split('`').collect();
    let quoted = parts
        .iter()
        .skip(1)
        .step_by(2)
        .zip(parts.iter().skip(2).step_by(2));
    let run = |behind: &str| match behind {
        long if long.starts_with(LONG_TIER) => Run::LongTier,
        interop if interop.starts_with(INTEROP) => Run::Interop,
        _ => Run::Always,
    };
    let named = quoted.filter(|(name, _)| is_name(name));
    named
        .map(|(name, behind)| Named {
            name: (*name).to_owned(),
            run: run(behind),
        })
        .collect()
}

/// Returns the rows of all tables of a document, without the head rows.
fn rows(document: &str) -> Vec<String> {
    let (mut rows, mut row_of_table) = (Vec::new(), 0);
    for line in read(document).lines() {
        row_of_table = if line.starts_with('|') {
            row_of_table + 1
        } else {
            0
        };
        // The head row and the line under it are left out.
        if row_of_table > 2 {
            rows.push(line.trim_start_matches("| ").to_owned());
        }
    }
    rows
}

/// Returns the tests that this document names.
fn named(document: &str) -> Vec<Named> {
    let is_name = |name: &str| {
        name.matches('_').count() >= UNDERSCORES
            && name
                .chars()
                .all(|c| c == '_' || c.is_ascii_lowercase() || c.is_ascii_digit())
    };
    quoted(&read(document), is_name)
}

/// A line of [`PROMISES`].
struct Promise {
    document: String,
    row: String,
    tests: Vec<Named>,
}

fn promises() -> Vec<Promise> {
    let text = read(PROMISES);
    let promise = |line: &str| {
        let columns: Vec<_> = line.split('\t').collect();
        let [document, row, tests] = columns[..] else {
            panic!("{PROMISES} has three columns, and not {line:?}");
        };
        let tests = tests.split(", ").map(|test| {
            let name = test.split(' ').next().unwrap_or_default();
            quoted(&test.replacen(name, &format!("`{name}`"), 1), |_| true)
        });
        Promise {
            document: document.to_owned(),
            row: row.to_owned(),
            tests: tests.flatten().collect(),
        }
    };
    text.lines().skip(1).map(promise).collect()
}

fn begins_with(row: &str, words: &str) -> bool {
    row.strip_prefix(words)
        .is_some_and(|rest| rest.starts_with(' '))
}

#[test]
fn each_promise_is_one_row_of_its_document_and_has_a_test() {
    let promises = promises();
    assert!(promises.len() > 200, "{} promises", promises.len());
    for Promise {
        document,
        row,
        tests,
    } in &promises
    {
        let found = rows(&format!("docs/{document}"));
        let count = found.iter().filter(|it| begins_with(it, row)).count();
        assert_eq!(
            count, 1,
            "{PROMISES}: rows of {document} that begin with {row:?}"
        );
        assert!(
            !tests.is_empty(),
            "{PROMISES}: {document}, {row:?} has no test"
        );
    }
    for whole in rows(&format!("docs/{OF_PROMISES}")) {
        let has_tests = promises
            .iter()
            .any(|it| it.document == OF_PROMISES && begins_with(&whole, &it.row));
        assert!(
            has_tests,
            "{PROMISES} has no tests of this row of {OF_PROMISES}: {whole}"
        );
    }
}

/// A document must not name a test that is not compiled, nor one of the long tier without its mark.
#[test]
fn named_tests_exist_and_run_in_the_tier_of_their_mark() {
    let (tests, mut count) = (tests(), 0);
    let in_text = DOCUMENTS.map(|document| (document.to_owned(), named(document)));
    let of_rows = promises()
        .into_iter()
        .map(|it| (format!("docs/{}", it.document), it.tests));
    for (document, named) in in_text.into_iter().chain(of_rows) {
        for Named { name, run: marked } in named {
            let Some(run) = tests.get(&name) else {
                panic!("{document} names `{name}`, and no test of this name is compiled");
            };
            let is_unmarked = document == OF_INTEROP && *run == Run::Interop;
            let expected = if is_unmarked { Run::Always } else { *run };
            assert_eq!(
                marked, expected,
                "{document} marks `{name}` as {marked:?}, and it is {run:?}: the marks are \
                 {LONG_TIER:?} for `#[ignore]` and {INTEROP:?} for `case!`"
            );
            count += 1;
        }
    }
    assert!(count > 200, "only {count} were found");
}

/// Returns the filters of the tests that a command runs, as in `cargo test -p package -- filter`.
fn filters(command: &str) -> Vec<&str> {
    let Some((_, arguments)) = command.split_once("cargo test ") else {
        return Vec::new();
    };
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
    let files = sources(["tests", "lock-core"], "rs");
    let texts: Vec<_> = files
        .iter()
        .map(|file| format!("{file} {}", read(file)))
        .collect();
    let mut count = 0;
    for document in ["docs/TESTING.md", "benches/NOTES.md"] {
        for line in read(document).lines() {
            for filter in filters(line.trim_matches('`')) {
                for part in filter.split("::") {
                    let is_there = texts.iter().any(|text| text.contains(part));
                    assert!(
                        is_there,
                        "{document}: nothing is called `{part}` in {line:?}"
                    );
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
    let names: Vec<_> = known
        .iter()
        .map(|(name, run)| (name.as_str(), *run))
        .collect();
    let long_tier = Run::LongTier;
    let all = [
        ("runs", Run::Always),
        ("late", long_tier),
        ("early", long_tier),
        ("after", Run::Always),
    ];
    assert_eq!(names, all);
}

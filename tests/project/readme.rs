//! Tests of the README: its commands, links, examples and length.

use crate::packages;
use distlock_tests::child::Example;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Returns the commands in the README's shell blocks.
fn commands() -> Vec<String> {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let blocks = readme.split("```sh\n").skip(1);
    blocks
        .flat_map(|block| block.split("```").next().unwrap().lines())
        .map(str::to_owned)
        .collect()
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

#[test]
fn two_commands_are_example_and_test_suite() {
    assert_eq!(
        commands(),
        [
            "cargo run --release --example batch_workers",
            "tests/run.sh"
        ]
    );
    let is_executable = |file: &str| {
        fs::metadata(root().join(file))
            .unwrap()
            .permissions()
            .mode()
            & 0o111
            == 0o111
    };
    assert!(is_executable("tests/run.sh") && is_executable(".ci/run"));
    let ci = fs::read_to_string(root().join(".ci/run")).unwrap();
    assert!(
        ci.contains("\ntests/run.sh\n"),
        "what CI runs is what the README says"
    );
}

#[test]
fn first_command_runs_without_servers_in_a_minute() {
    let mut main_job = Example::new("batch_workers")
        .env("PATH", "/nowhere")
        .spawn();
    assert_eq!(main_job.wait_exit(Duration::from_secs(60)), 0);
}

#[test]
fn length_is_below_a_hundred_lines() {
    let lines = fs::read_to_string(root().join("README.md"))
        .unwrap()
        .lines()
        .count();
    assert!(
        lines <= 99,
        "README.md has {lines} lines: the rest belongs in docs/"
    );
}

/// Returns the documents other than the README. Their links are inline; the README has reference
/// links.
fn other_documents() -> Vec<PathBuf> {
    let files = [
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "benches/README.md",
        "benches/NOTES.md",
    ]
    .map(|it| root().join(it));
    let folder = fs::read_dir(root().join("docs")).unwrap();
    let docs = folder.map(|entry| entry.unwrap().path());
    files
        .into_iter()
        .chain(docs.filter(|it| it.extension().is_some_and(|e| e == "md")))
        .collect()
}

#[test]
fn links_of_documents_lead_to_files_and_headings() {
    for document in other_documents() {
        let text = fs::read_to_string(&document).unwrap();
        let folder = document.parent().unwrap();
        for link in text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            if link.starts_with("http") {
                continue;
            }
            let (file, fragment) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                document.clone()
            } else {
                folder.join(file)
            };
            assert!(
                target.exists(),
                "{}: {link} is not there",
                document.display()
            );
            let leads = fragment.is_empty() || has_heading(&target, fragment);
            assert!(leads, "{}: {link} has no such heading", document.display());
        }
    }
}

/// Returns the definitions of reference links, as in `[label]: target`.
fn definitions(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .filter_map(|line| line.strip_prefix('[')?.split_once("]: "))
        .collect()
}

/// Returns the labels of the reference links in a Markdown text, as in `[label]` and
/// `[words][label]`.
fn references(text: &str) -> BTreeSet<String> {
    let text: String = text.split("```").step_by(2).collect();
    let (mut prose, mut spans) = (String::new(), text.split('`'));
    // A bracket in code does not belong to a link, but code in brackets may be a label.
    while let Some(words) = spans.next() {
        prose += words;
        let code = spans.next().unwrap_or_default();
        if words.ends_with('[') {
            prose += &format!("`{code}`");
        }
    }
    let parts: Vec<_> = prose.split(']').collect();
    let closed = parts
        .windows(2)
        .filter(|pair| !pair[1].starts_with(['(', '[', ':']));
    closed
        .filter_map(|pair| Some(pair[0].rsplit_once('[')?.1.to_owned()))
        .collect()
}

/// Returns whether a Markdown file has a heading that this fragment leads to.
fn has_heading(file: &Path, fragment: &str) -> bool {
    let text = fs::read_to_string(file).unwrap();
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let slugs = headings.map(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase();
        let kept = words
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.collect::<String>().replace(' ', "-")
    });
    slugs.into_iter().any(|slug| slug == fragment)
}

/// `src/lib.rs` includes the README, whose relative links lead nowhere on docs.rs. So `src/lib.rs`
/// defines each link again before the README: of two definitions, the first one counts.
#[test]
fn links_work_on_github_and_docs_rs() {
    const SOURCE: &str = "https://docs.rs/crate/distlock/latest/source/";
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let library = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let (before, _) = library
        .split_once("#![doc = include_str!(\"../README.md\")]")
        .unwrap();
    let before = before.replace("//! ", "");
    let (on_github, on_docs_rs) = (definitions(&readme), definitions(&before));
    let labels = |of: &BTreeMap<&str, &str>| of.keys().map(|label| (*label).to_owned()).collect();
    let (github, docs_rs): (Vec<String>, Vec<String>) = (labels(&on_github), labels(&on_docs_rs));
    assert_eq!(
        references(&readme).into_iter().collect::<Vec<_>>(),
        github,
        "used, and defined"
    );
    assert_eq!(github, docs_rs, "README.md, and src/lib.rs");
    let published = packages::files_of("distlock");
    for (label, target) in on_github {
        let (file, fragment) = target.split_once('#').unwrap_or((target, ""));
        assert!(
            root().join(file).is_file(),
            "[{label}] leads to {file}, which is not there"
        );
        let leads = fragment.is_empty() || has_heading(&root().join(file), fragment);
        assert!(
            leads,
            "[{label}] leads to #{fragment}, which {file} does not have"
        );
        match on_docs_rs[label].strip_prefix(SOURCE) {
            Some(path) => {
                assert_eq!(path, target, "[{label}] in src/lib.rs");
                let is_published = published.lines().any(|published| published == file);
                assert!(is_published, "[{label}]: {file} is not in the package");
            }
            None => assert!(
                on_docs_rs[label].starts_with("crate::"),
                "[{label}] in src/lib.rs"
            ),
        }
    }
    for inline in readme
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
    {
        let leads = inline
            .strip_prefix('#')
            .map_or(inline.starts_with("https://"), |fragment| {
                has_heading(&root().join("README.md"), fragment)
            });
        assert!(
            leads,
            "({inline}) is not good on docs.rs: define it at the end, and in src/lib.rs"
        );
    }
}

#[test]
fn named_examples_exist() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    for name in [
        "batch_workers",
        "reentrancy",
        "scheduler",
        "semaphore",
        "try_with_wait",
        "long_job",
        "give_up",
        "fencing",
        "interrupt",
        "multi_lock",
        "read_write",
    ] {
        assert!(
            readme.contains(&format!("`{name}`")) || readme.contains(&format!("--example {name}")),
            "{name}"
        );
        let examples = root().join("examples");
        assert!(
            examples.join(format!("{name}.rs")).exists() || examples.join(name).is_dir(),
            "{name}"
        );
    }
}

/// The test runs itself once more in another process, with the variable set.
#[test]
fn environment_names_the_store() {
    const NAME: &str = "readme::environment_names_the_store";
    match std::env::var("DISTLOCK_URL") {
        Ok(url) if url == "memory://from-the-environment" => {
            let here = distlock::connect_from_env().unwrap().mutex("x").unwrap();
            let same = distlock::connect(&url).unwrap().mutex("x").unwrap();
            let _guard = here.lock().unwrap();
            assert!(same.is_locked().unwrap(), "one store");
        }
        _ => {
            let run = |set: &str| {
                let mut again = Command::new(std::env::current_exe().unwrap());
                again
                    .args(["--exact", NAME])
                    .env("DISTLOCK_URL", set)
                    .output()
                    .unwrap()
                    .status
            };
            assert!(run("memory://from-the-environment").success());
            if std::env::var_os("DISTLOCK_URL").is_none() {
                let error = distlock::connect_from_env().unwrap_err();
                assert!(
                    error.is_configuration() && error.to_string().contains("DISTLOCK_URL"),
                    "{error}"
                );
            }
        }
    }
}

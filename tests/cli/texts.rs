//! Help, completions and man pages.

use crate::SOON;
use distlock_tests::child::{Example, distlock};
use std::process::Command;

const SUBCOMMANDS: [&str; 14] = [
    "run",
    "check",
    "wait",
    "status",
    "list",
    "watch",
    "bench",
    "break",
    "hold",
    "doctor",
    "config",
    "quorum",
    "completions",
    "man",
];

/// Returns the output of a call that needs no store and must succeed.
fn output(words: &[&str]) -> String {
    let mut child = Example::distlock(words).spawn();
    assert_eq!(child.wait_exit(SOON), 0, "{words:?}: {}", child.errors());
    child.output()
}

#[test]
fn help_and_man_page_of_run_list_all_exit_statuses() {
    for text in [output(&["run", "--help"]), output(&["man", "run"])] {
        for status in ["64", "65", "69", "70", "75", "78", "126", "127"] {
            let is_listed = |line: &str| line.split_whitespace().next() == Some(status);
            assert!(text.lines().any(is_listed), "{status}: {text}");
        }
        for variable in ["DISTLOCK_NAME", "DISTLOCK_TOKEN", "DISTLOCK_DEADLINE"] {
            assert!(text.contains(variable), "{variable}: {text}");
        }
    }
}

#[test]
fn document_names_what_the_help_names() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
    let document = std::fs::read_to_string(format!("{root}/docs/COMMAND.md")).unwrap();
    for name in SUBCOMMANDS {
        let named = [format!("`{name} "), format!("`{name}`")];
        assert!(named.iter().any(|named| document.contains(named)), "{name}");
    }
    let help = output(&["run", "--help"]);
    let words = help.split(|c: char| !c.is_alphanumeric() && c != '-');
    for option in words.filter(|word| word.starts_with("--") && *word != "--help") {
        assert!(option == "--" || document.contains(option), "{option}");
    }
}

#[test]
fn help_lists_the_subcommands() {
    let help = output(&["--help"]);
    assert!(SUBCOMMANDS.iter().all(|name| help.contains(name)), "{help}");
    assert!(!help.contains("supervise"), "{help}");
}

#[test]
fn man_pages_are_generated() {
    let page = output(&["man"]);
    assert!(page.contains(".TH distlock 1"), "{page}");
    assert!(
        page.contains("redlock://") && !page.contains("supervise"),
        "{page}"
    );
    for name in SUBCOMMANDS {
        let page = output(&["man", name]);
        assert!(page.contains(&format!(".TH distlock-{name} 1")), "{page}");
    }
    let mut unknown = Example::distlock(&["man", "fly"]).spawn();
    assert_eq!(unknown.wait_exit(SOON), 64);
}

#[test]
fn completions_are_generated() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = output(&["completions", shell]);
        assert!(
            !script.contains("supervise") && !script.contains("launch"),
            "{shell}"
        );
        for word in ["run", "status", "conflict-exit-code"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), output(&["completions", "bash"])).unwrap();
    assert!(
        Command::new("bash")
            .arg("-n")
            .arg(file.path())
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn closed_output_is_no_panic() {
    let script = r#""$@" | true; echo "${PIPESTATUS[0]}""#;
    let program = distlock();
    let words = ["-c", script, "_", program.to_str().unwrap(), "man"];
    let mut child = Example::program("bash").args(&words).spawn();
    child.wait_exit(SOON);
    assert!(!child.errors().contains("panicked"), "{}", child.errors());
}

/// What is refused before a store is asked, and the words that lead on.
#[test]
fn refusals_lead_on() {
    for (words, says, says_not) in [
        (
            &["run", "nightly"][..],
            "`distlock run NAME -- COMMAND`",
            "--command",
        ),
        (
            &["run", "-w", "-1", "x", "--", "true"],
            "unexpected argument '-1'",
            "-- -1",
        ),
        (
            &["run", "--metrics-file", "x.txt", "x", "--", "true"],
            "must end in .prom",
            "nothing",
        ),
    ] {
        let mut child = Example::distlock(words).spawn();
        assert_eq!(child.wait_exit(SOON), 64, "{words:?}");
        let errors = child.errors();
        assert!(
            errors.contains(says) && !errors.contains(says_not),
            "{errors}"
        );
    }
}

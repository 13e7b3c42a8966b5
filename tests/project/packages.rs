//! The dependencies of a program that uses the crates, and the files that the crates publish.

use std::path::Path;
use std::process::Command;

const SUITE: &str = "lock-conformance";
const PUBLISHED: [&str; 6] = [
    "distlock",
    "lock-core",
    SUITE,
    "lock-redis",
    "lock-cluster",
    "lock-postgres",
];

/// Returns what cargo prints for these arguments, without a network.
fn cargo(words: &[&str]) -> String {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let output = Command::new(cargo)
        .args(words)
        .arg("--offline")
        .current_dir(root)
        .output();
    let output = output.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the files that a package publishes, one per line.
pub(crate) fn files_of(package: &str) -> String {
    cargo(&["package", "--list", "--allow-dirty", "--package", package])
}

/// If the library depended on the crate `ctrlc`, cargo would unite that crate's features: a
/// program's own handler of Ctrl-C would then also run on SIGTERM, which would no longer end the
/// program.
#[test]
fn default_features_install_no_signal_handler() {
    let tree = |features: &[&str]| {
        let words = [
            "tree",
            "--package=distlock",
            "--edges=normal",
            "--prefix=none",
        ];
        cargo(&[&words, features].concat())
    };
    let has = |tree: &str| tree.lines().any(|line| line.starts_with("ctrlc "));
    assert!(!has(&tree(&[])));
    assert!(has(&tree(&["--features=ctrlc"])));
}

/// With such a dependency, the unit tests of a crate on which the suite depends would see two
/// copies of the crate's types.
#[test]
fn no_library_depends_on_the_conformance_suite() {
    for package in PUBLISHED.into_iter().filter(|it| *it != SUITE) {
        let words = ["tree", "--package", package, "--edges=all", "--prefix=none"];
        let tree = cargo(&words);
        let mut lines = tree.lines();
        assert!(lines.any(|line| line.starts_with(package)), "{tree}");
        assert!(!lines.any(|line| line.starts_with(SUITE)), "{tree}");
    }
}

#[test]
fn crates_are_published_with_licences_without_tests() {
    for package in PUBLISHED {
        let files = files_of(package);
        let files: Vec<_> = files.lines().collect();
        for file in ["LICENSE-APACHE", "LICENSE-MIT", "README.md", "src/lib.rs"] {
            assert!(files.contains(&file), "{package} has no {file}: {files:#?}");
        }
        let tests: Vec<_> = files
            .iter()
            .filter(|file| file.starts_with("tests/"))
            .collect();
        assert!(tests.is_empty(), "{package}: {tests:#?}");
    }
}

/// Finds a file that a crate needs and that its package does not contain.
#[test]
#[ignore = "long: tests/run.sh --all"]
fn each_crate_builds_from_its_package() {
    let packages = PUBLISHED.map(|package| format!("--package={package}"));
    let words = packages.iter().map(String::as_str);
    // A new target folder, because cargo would reuse what it unpacked before for the same version.
    let target = tempfile::tempdir().unwrap();
    let folder = format!("--target-dir={}", target.path().display());
    let words = ["package", "--allow-dirty", &folder]
        .into_iter()
        .chain(words);
    cargo(&words.collect::<Vec<_>>());
}

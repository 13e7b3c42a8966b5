//! The README keeps its word: its commands exist and do what it says.

use distlock::DistLock;
use distlock_tests::child::Example;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The commands in the README's shell blocks.
fn commands() -> Vec<String> {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    let blocks = readme.split("```sh\n").skip(1);
    blocks.flat_map(|block| block.split("```").next().unwrap().lines()).map(str::to_owned).collect()
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

#[test]
fn its_two_commands_are_the_main_job_and_all_the_tests() {
    assert_eq!(commands(), ["cargo run --release --example batch_workers", "tests/run.sh"]);
    let is_executable =
        |file: &str| fs::metadata(root().join(file)).unwrap().permissions().mode() & 0o111 == 0o111;
    assert!(is_executable("tests/run.sh") && is_executable(".ci/run"));
    let ci = fs::read_to_string(root().join(".ci/run")).unwrap();
    assert!(ci.contains("exec tests/run.sh"), "what CI runs is what the README says");
}

#[test]
fn its_first_command_needs_nothing_and_is_done_in_a_minute() {
    let mut main_job = Example::new("batch_workers").env("PATH", "/nowhere").spawn();
    assert_eq!(main_job.wait_exit(Duration::from_secs(60)), 0);
}

#[test]
fn every_file_it_links_to_is_there() {
    for file in [
        "README.md",
        "CONTRIBUTING.md",
        "benches/README.md",
        "docs/GUARANTEES.md",
        "docs/INTEROP.md",
    ] {
        let text = fs::read_to_string(root().join(file)).unwrap();
        let folder = root().join(file).parent().unwrap().to_owned();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let link = link.split('#').next().unwrap_or_default();
            if !link.starts_with("http") {
                assert!(folder.join(link).exists(), "{file} links to {link}, which is not there");
            }
        }
    }
}

#[test]
fn every_example_it_names_is_there() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    for name in [
        "batch_workers",
        "hold",
        "reentrancy",
        "try_with_wait",
        "long_job",
        "give_up",
        "fencing",
        "interrupt",
        "multi_lock",
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

/// Runs itself once more, with the variable set.
#[test]
fn the_environment_names_the_store() {
    const NAME: &str = "readme::the_environment_names_the_store";
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
                again.args(["--exact", NAME]).env("DISTLOCK_URL", set).output().unwrap().status
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

//! The small examples check their own results; these tests run them.

use super::SOON;
use distlock_tests::child::Example;
use distlock_tests::process::RedisServer;
use distlock_tests::time::{late, retry_if_late};
use std::path::Path;
use std::time::Duration;

/// The shortest lease in an example, which may end too early on a slow machine.
const LEASE: Duration = Duration::from_millis(300);

/// Returns the names of all examples that are one file, so that a new one is tested without a
/// change here.
fn small_ones() -> Vec<String> {
    let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join("examples");
    let files = std::fs::read_dir(directory)
        .unwrap()
        .map(|file| file.unwrap().path());
    let names = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned());
    let names: Vec<_> = names.collect();
    assert!(names.len() >= 6, "{names:?}");
    names
}

fn run_all(url: &[&str]) {
    // All examples are built before the first one runs. Otherwise builds would slow the running
    // examples down, and end their leases.
    let examples: Vec<_> = small_ones()
        .into_iter()
        .map(|name| Example::new(&name).args(url))
        .collect();
    let started: Vec<_> = examples.into_iter().map(Example::spawn).collect();
    for mut child in started {
        let code = child.wait_exit(SOON);
        let (output, errors) = (child.output(), child.errors());
        if (code, errors.as_str()) != (0, "") {
            late(LEASE, format!("{code}: {output}{errors}"));
        }
        assert!(!output.is_empty());
    }
}

#[test]
fn small_examples_print_what_they_document_in_memory() {
    retry_if_late(|| run_all(&[]));
}

#[test]
fn small_examples_print_what_they_document_on_server() {
    let server = RedisServer::start();
    retry_if_late(|| run_all(&[&server.url()]));
    let left = server.probe().keys("*");
    let stays =
        |key: &String| key.starts_with("redisson_lock_token:") || key == "example:semaphore";
    assert!(left.iter().all(stays), "{left:?}");
}

#[test]
fn own_pool_loses_no_payment() {
    let server = RedisServer::start();
    let mut child = Example::new("own_pool").args(&[&server.url()]).spawn();
    assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
    assert!(
        child.output().contains("the balance is 400"),
        "{}",
        child.output()
    );
}

/// An example that ignored `--url`, which the command accepts, would run in memory instead.
#[test]
fn small_examples_refuse_arguments_that_they_do_not_know() {
    for name in small_ones() {
        for words in [
            &["--url", "redis://127.0.0.1:1"][..],
            &["--help"],
            &["memory://a", "x"],
        ] {
            let mut child = Example::new(&name).args(words).spawn();
            assert_eq!(
                child.wait_exit(SOON),
                64,
                "{name} {words:?}: {}",
                child.errors()
            );
            assert!(
                child.errors().contains("the URL of the store"),
                "{name}: {}",
                child.errors()
            );
            assert_eq!(child.output(), "", "{name}");
        }
    }
}

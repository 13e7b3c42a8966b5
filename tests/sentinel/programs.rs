//! The examples and the command-line tool run on Sentinel with nothing but another URL.

use crate::scene::SOON;
use distlock_tests::child::Example;
use distlock_tests::sentinel::Group;
use distlock_tests::time::{Stopwatch, eventually};
use std::time::Duration;

#[test]
fn batch_workers_and_hold_run_by_their_url_alone() {
    let group = Group::steady();
    let arguments = [
        "--url",
        &group.url(),
        "--processes",
        "2",
        "--workers",
        "4",
        "--jobs",
        "500",
    ];
    let mut workers = Example::new("batch_workers").args(&arguments).spawn();
    let code = workers.wait_exit(Duration::from_secs(120));
    let output = workers.output();
    assert!(
        code == 0 && output.contains("Exact"),
        "{code}: {output} {}",
        workers.errors()
    );

    let mut hold = Example::distlock(&["hold", "--url", &group.url(), "held"]).spawn();
    hold.expect_event("held", SOON);
    assert!(group.probe().exists("held"));
    hold.send("release");
    hold.expect_event("released", SOON);
    assert_eq!(hold.wait_exit(SOON), 0);
}

#[test]
fn batch_workers_stay_exact_over_a_failover_in_the_middle() {
    let group = Group::start();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("counter");
    let sold = || -> u64 {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    let url = format!("{}?replicas=all", group.url());
    let arguments = [
        "--url",
        &url,
        "--processes",
        "2",
        "--workers",
        "8",
        "--jobs",
        "1000000",
        "--counter",
    ];
    let mut workers = Example::new("batch_workers")
        .args(&arguments)
        .arg(file.to_str().unwrap())
        .spawn();
    eventually("they sell", SOON, || sold() > 200);
    let old = group.fail_over();
    group.await_other_than(old);
    let (before, watch) = (sold(), Stopwatch::start());
    eventually("they sell on", SOON, || sold() > before + 200);
    println!(
        "sold {before} until the failover, and 200 more {:?} after it",
        watch.elapsed()
    );
    workers.interrupt();
    let code = workers.wait_exit(SOON);
    let output = workers.output();
    assert!(
        code == 130 && output.contains("exact"),
        "{code}: {output} {}",
        workers.errors()
    );
    assert!(output.contains("tokens   grew with every sale"), "{output}");
}

#[test]
fn hold_command_keeps_its_lock_over_a_failover() {
    let group = Group::start();
    let url = format!("{}?replicas=all&watchdog=8s", group.url());
    let mut hold = Example::distlock(&["hold", "--url", &url, "held"]).spawn();
    hold.expect_event("held", SOON);
    let old = group.fail_over();
    let new = group.await_other_than(old);
    let mut probe = group.servers[new].probe();
    let renewed = probe.command_calls("pexpire");
    eventually("it is renewed on the new master", SOON, || {
        assert!(probe.exists("held"));
        probe.command_calls("pexpire") > renewed
    });
    hold.send("verify");
    assert_eq!(hold.expect_event("verify", SOON)["valid"], true);
    hold.send("release");
    hold.expect_event("released", SOON);
    assert_eq!(hold.wait_exit(SOON), 0);
}

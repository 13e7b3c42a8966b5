//! The examples run on Sentinel by their URL alone.

use crate::harness::child::Example;
use crate::harness::sentinel::Group;
use crate::scene::SOON;
use std::time::Duration;

#[test]
fn batch_workers_and_hold_run_by_their_url_alone() {
    let group = Group::steady();
    let arguments = ["--url", &group.url(), "--processes", "2", "--workers", "4", "--jobs", "500"];
    let mut workers = Example::new("batch_workers").args(&arguments).spawn();
    let code = workers.wait_exit(Duration::from_secs(120));
    let output = workers.output();
    assert!(code == 0 && output.contains("Exact"), "{code}: {output} {}", workers.errors());

    let mut hold = Example::new("hold").args(&["--url", &group.url(), "--name", "held"]).spawn();
    hold.expect_event("held", SOON);
    assert!(group.probe().exists("held"));
    hold.send("release");
    hold.expect_event("released", SOON);
    assert_eq!(hold.wait_exit(SOON), 0);
}

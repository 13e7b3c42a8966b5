//! Locks that are lost while a command runs: whether the command is stopped, and when.

use crate::{SOON, is_alive, run_on, run_script, said_pid};
use distlock_tests::process::RedisServer;
use distlock_tests::time::{always, eventually, late, let_pass, ms, retry_if_late, scaled};
use lock_core::{Clock, Moment, SystemClock};
use std::time::Duration;

/// The lease in these tests: short, because they wait for its end.
const LEASE: Duration = Duration::from_secs(4);

/// Returns a script that prints its process ID and starts a child, by the words `start`, which
/// prints its own. SIGTERM ends neither of the two.
fn stubborn(start: &str) -> String {
    format!(
        r#"trap '' TERM; echo "{{\"pid\": $$}}"
        {start} sh -c 'echo "{{\"pid\": $$}}"; while :; do sleep 1000; done' &
        while :; do sleep 1000; done"#
    )
}

/// Returns the value of the option for this lease.
fn lease() -> String {
    format!("{}ms", scaled(LEASE).as_millis())
}

/// Returns the end of the lease in the store, or a moment before it: the clock is read before the
/// request.
fn lease_end(server: &RedisServer) -> Moment {
    let asked = SystemClock.now();
    asked + server.probe().pttl("it").expect("it has an end")
}

/// Waits for the end of these processes, which must be before `end`.
#[track_caller]
fn must_be_gone_before(end: Moment, pids: &[i32]) {
    eventually("all are gone", SOON, || {
        !pids.iter().any(|pid| is_alive(*pid))
    });
    let now = SystemClock.now();
    if now >= end {
        late(
            scaled(LEASE),
            format!("gone {:?} after the lease", now.since(end)),
        );
    }
}

/// Kills or pauses the store while a command runs, and checks that all processes of the command are
/// gone before the lease ends. Otherwise the next holder could run beside them.
fn nothing_outlives_the_lease(options: &[&str], start: &str, strike: fn(&mut RedisServer)) {
    retry_if_late(|| {
        let mut server = RedisServer::start();
        let lease = lease();
        let options = [&["--lease", &lease], options].concat();
        let mut child = run_script(&server, &options, &stubborn(start));
        let pids = [said_pid(&mut child), said_pid(&mut child)];
        let end = lease_end(&server);
        strike(&mut server);
        must_be_gone_before(end, &pids);
        assert_eq!(child.wait_exit(SOON), 75, "{}", child.errors());
        let errors = child.errors();
        assert!(errors.contains("could not be renewed"), "{errors}");
    });
}

#[test]
fn group_is_gone_before_the_lease_ends_without_a_store() {
    nothing_outlives_the_lease(&[], "", RedisServer::kill);
}

#[test]
fn group_is_gone_before_the_lease_ends_at_a_paused_store() {
    nothing_outlives_the_lease(&[], "", |server| server.pause());
}

#[test]
fn descendants_outside_the_group_are_gone_too() {
    nothing_outlives_the_lease(&[], "timeout 1000", RedisServer::kill);
}

#[test]
fn kill_on_loss_is_in_time() {
    nothing_outlives_the_lease(&["--on-lost", "kill"], "", RedisServer::kill);
}

#[test]
fn command_has_its_grace_before_the_lease_ends() {
    retry_if_late(|| {
        let mut server = RedisServer::start();
        let script = r#"trap 'sleep 0.1; echo "{\"pid\": 15}"; exit 0' TERM
            echo "{\"pid\": 0}"; while :; do sleep 0.02; done"#;
        let options = ["--lease", &lease(), "--kill-after", "1"];
        let mut child = run_script(&server, &options, script);
        assert_eq!(said_pid(&mut child), 0);
        let end = lease_end(&server);
        server.kill();
        assert_eq!(said_pid(&mut child), 15, "it cleans up");
        if SystemClock.now() >= end {
            late(scaled(LEASE), "TERM came too late");
        }
        assert_eq!(child.wait_exit(SOON), 75);
    });
}

#[test]
fn deleted_lock_stops_the_command() {
    let server = RedisServer::start();
    let options = ["--lease", "3", "--kill-after", "0.1"];
    let mut child = run_script(&server, &options, &stubborn(""));
    let pids = [said_pid(&mut child), said_pid(&mut child)];
    assert_eq!(server.probe().command(&["DEL", "it"]).int(), 1);
    assert_eq!(child.wait_exit(SOON), 75);
    assert!(
        !pids.iter().any(|pid| is_alive(*pid)),
        "gone before it ends"
    );
    assert!(
        child.errors().contains("not ours any more"),
        "{}",
        child.errors()
    );
}

#[test]
fn loss_after_the_command_is_reported() {
    let server = RedisServer::start();
    let mut child = run_script(&server, &[], "echo '{\"pid\": 0}'; read -r _; exit 0");
    said_pid(&mut child);
    assert_eq!(server.probe().command(&["DEL", "it"]).int(), 1);
    child.close_input();
    assert_eq!(child.wait_exit(SOON), 75);
    assert!(
        child.errors().contains("another holder may have entered"),
        "{}",
        child.errors()
    );
}

#[test]
fn warning_lets_the_command_go_on() {
    let mut server = RedisServer::start();
    let options = ["--lease", "1", "--on-lost", "warn"];
    let mut child = run_script(&server, &options, "echo '{\"pid\": 0}'; read -r _; exit 5");
    said_pid(&mut child);
    server.kill();
    eventually("it is said", SOON, || {
        child.errors().contains("goes on without it")
    });
    always("the command runs", ms(300), || child.is_running());
    child.close_input();
    assert_eq!(child.wait_exit(SOON), 5);
}

#[test]
fn short_outage_is_ridden_out() {
    retry_if_late(|| {
        let server = RedisServer::start();
        let script = "echo '{\"pid\": 0}'; read -r _; exit 5";
        let url = format!(
            "{}?watchdog={}&command_timeout=300ms",
            server.url(),
            lease()
        );
        let mut child = run_on(&url, &[], &["sh", "-c", script]);
        said_pid(&mut child);
        server.pause();
        // A renewal fails meanwhile.
        let_pass(scaled(LEASE) / 2);
        server.resume();
        let mut probe = server.probe();
        let renewals = probe.command_calls("pexpire");
        eventually("it is renewed", SOON, || {
            probe.command_calls("pexpire") > renewals + 1
        });
        if !child.is_running() {
            late(scaled(LEASE), "the command was stopped");
        }
        child.close_input();
        assert_eq!(child.wait_exit(SOON), 5, "{}", child.errors());
    });
}

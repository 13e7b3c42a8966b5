//! Tests of the test tools: every other test relies on them.

use distlock_tests::child::Example;
use distlock_tests::claims::{Claim, Log, judge};
use distlock_tests::cluster::{Cluster, Failover};
use distlock_tests::process::RedisServer;
use distlock_tests::time::{Stopwatch, always, eventually, let_pass, timed};
use lock_conformance::Late;
use lock_core::{Clock, Moment, SystemClock};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

/// Returns the text of a failure that may be due to a slow machine.
fn late_by(panic: Box<dyn Any + Send>) -> String {
    panic
        .downcast_ref::<Late>()
        .expect("the machine may be late")
        .to_string()
}

fn lives(process: u32) -> bool {
    // A zombie has a directory, but nothing that it runs.
    std::fs::read(Path::new("/proc").join(process.to_string()).join("cmdline"))
        .is_ok_and(|command| !command.is_empty())
}

#[test]
fn server_is_private_and_ends_when_dropped() {
    let (one, other) = (RedisServer::start(), RedisServer::start());
    one.probe().command(&["SET", "who", "one"]);
    assert!(!other.probe().exists("who"));
    let process = one.process_id();
    assert!(lives(process));
    drop(one);
    assert!(!lives(process));
}

#[test]
fn restarted_server_keeps_port_without_data() {
    let mut server = RedisServer::start_with(&["--databases", "3"]);
    let url = server.url();
    let mut probe = server.probe();
    probe.command(&["SET", "a", "1"]);
    server.restart();
    assert!(
        probe.try_command(&["PING"]).is_err(),
        "the old connection is dead"
    );
    let mut probe = server.probe();
    assert!(!probe.exists("a"));
    assert_eq!(server.url(), url);
    assert_eq!(
        probe.command(&["CONFIG", "GET", "databases"]).texts()[1],
        "3"
    );
}

#[test]
fn paused_server_answers_after_resume() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    server.pause();
    let watch = Stopwatch::start();
    std::thread::scope(|scope| {
        let asked = scope.spawn(move || probe.command(&["PING"]).text());
        always(
            "no answer comes while it is paused",
            Duration::from_millis(100),
            || !asked.is_finished(),
        );
        server.resume();
        assert_eq!(asked.join().unwrap(), "PONG");
    });
    assert!(watch.elapsed() >= Duration::from_millis(100));
    assert!(server.cpu_time() > Duration::ZERO);
}

#[test]
fn server_ends_with_its_killed_test() {
    if let Ok(file) = std::env::var("LOCK_TEST_ORPHAN") {
        // In the other process: starts a server, writes the server's process ID, and waits to be
        // killed.
        let server = RedisServer::start();
        std::fs::write(format!("{file}.new"), server.process_id().to_string()).unwrap();
        std::fs::rename(format!("{file}.new"), &file).unwrap();
        eventually("the test kills us", Duration::from_secs(60), || false);
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("server");
    let mut parent = Example::program(std::env::current_exe().unwrap())
        .args(&["--exact", "selfcheck::server_ends_with_its_killed_test"])
        .env("LOCK_TEST_ORPHAN", file.to_str().unwrap())
        .spawn();
    let server: u32 = eventually(
        "the other process has a server",
        Duration::from_secs(20),
        || std::fs::read_to_string(&file).ok()?.parse().ok(),
    );
    assert!(lives(server));
    parent.kill();
    eventually("the server is gone with it", SOON, || !lives(server));
}

#[test]
fn probe_counts_commands_and_connections() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    assert_eq!(probe.command_calls("hset"), 0);
    eventually("the server has seen the first one go", SOON, || {
        probe.connections() == 0
    });
    let mut other = server.probe();
    other.command(&["HSET", "h", "a", "1", "b", "2"]);
    other.command(&["PEXPIRE", "h", "60000"]);
    assert_eq!((probe.command_calls("hset"), probe.connections()), (1, 1));
    assert_eq!(
        probe
            .hgetall("h")
            .into_iter()
            .map(|(f, v)| f + &v)
            .collect::<String>(),
        "a1b2"
    );
    let left = probe.pttl("h").unwrap();
    assert!(left <= Duration::from_secs(60) && left > Duration::from_secs(50));
    assert_eq!(probe.pttl("none"), None);
    assert_eq!(probe.keys("*"), ["h"]);
    assert!(probe.stat("total_connections_received") >= 2);
    probe.reset_stats();
    assert_eq!(probe.command_calls("hset"), 0);
    drop(other);
    eventually("the server has seen it go", SOON, || {
        probe.connections() == 0
    });
}

#[test]
fn child_reports_lines_pause_and_exit_code() {
    let echo = r#"while read -r word; do echo "{\"event\":\"$word\"}"; done; exit 7"#;
    let mut child = Example::program("sh").args(&["-c", echo]).spawn();
    child.send("hello");
    assert_eq!(child.expect_event("hello", SOON)["event"], "hello");
    child.pause();
    child.send("late");
    let asked = catch_unwind(AssertUnwindSafe(|| {
        child.expect_event("late", Duration::from_millis(100));
    }));
    assert!(asked.is_err(), "a paused child says nothing");
    child.resume();
    child.expect_event("late", SOON);
    assert!(child.is_running());
    child.close_input();
    assert_eq!(child.wait_exit(SOON), 7);
    assert_eq!(child.output().lines().count(), 2);
}

#[test]
fn killed_child_ends_its_children() {
    let mut child = Example::program("sh")
        .args(&[
            "-c",
            r#"sleep 600 & echo "{\"event\":\"up\",\"id\":$!}"; wait"#,
        ])
        .spawn();
    let grandchild = child.expect_event("up", SOON)["id"].as_u64().unwrap();
    let grandchild = u32::try_from(grandchild).unwrap();
    eventually("the grandchild lives", SOON, || lives(grandchild));
    child.kill();
    assert_eq!(child.wait_exit(SOON), 128 + 9);
    eventually("the grandchild is gone", SOON, || !lives(grandchild));
}

#[test]
fn eventually_ends_at_its_bound_and_names_it() {
    let watch = Stopwatch::start();
    let waited =
        catch_unwind(|| eventually("the moon is full", Duration::from_millis(50), || false));
    let message = late_by(waited.unwrap_err());
    assert!(message.contains("the moon is full"), "{message}");
    assert!(watch.elapsed() >= Duration::from_millis(50));
    let mut looks = 0;
    let found = eventually("the third look", SOON, || {
        looks += 1;
        (looks == 3).then_some("found")
    });
    assert_eq!((found, looks), ("found", 3));
}

#[test]
fn call_beyond_its_time_is_late() {
    let on_time = timed(0, |by| by);
    let overstayed = catch_unwind(|| timed(10, |_| let_pass(Duration::from_secs(2))));
    let message = late_by(overstayed.unwrap_err());
    assert!(message.contains("too late"), "{message}");
    assert!(on_time < SystemClock.now());
}

#[test]
fn cluster_agrees_fails_over_and_moves_slots() {
    let mut cluster = Cluster::start();
    let slot = cluster.slot("a");
    assert_eq!(slot, cluster.slot("{a}:b"));
    let first = cluster.owner(slot);
    cluster.probe("a").command(&["SET", "a", "1"]);
    let second = (first + 1) % 3;
    cluster.move_slot(slot, first, second);
    assert_eq!(cluster.owner(slot), second);
    assert!(cluster.probe("a").exists("a"), "it moved along");
    let third = cluster.fail_over(second, Failover::Plain);
    assert_eq!(cluster.owner(slot), third);
    assert!(cluster.probe("a").exists("a"), "the replica had it");
    cluster.wait_until_agreed(6);
    cluster.node_mut(third).kill();
    cluster.wait_for_owner(slot, second);
    cluster.node_mut(third).restart();
    cluster.wait_until_agreed(6);
    assert_eq!(cluster.replica_of(second), third);
}

/// A claim of the lock `a`.
fn claim(holder: &str, token: u64, from: u64, to: u64) -> Claim {
    let [asked, from, to] = [0, from, to].map(Moment::from_nanos);
    Claim {
        lock: "a".into(),
        holder: holder.into(),
        token,
        asked,
        from,
        to,
    }
}

#[test]
fn judge_detects_overlap_and_tokens_that_do_not_grow() {
    // Claims that follow each other directly do not overlap, nor do claims of different locks.
    let exact = [
        claim("x", 5, 30, 40),
        claim("y", 3, 10, 20),
        claim("x", 4, 20, 30),
    ];
    judge(exact.clone()).must_be_exact();
    let other = Claim {
        lock: "b".into(),
        ..claim("z", 1, 0, 99)
    };
    judge(exact.iter().cloned().chain([other])).must_be_exact();
    // An overlap of one holder with itself counts, too, and one with a claim that is not adjacent.
    for wrong in [
        claim("z", 6, 39, 41),
        claim("x", 6, 10, 21),
        claim("z", 2, 0, 31),
    ] {
        let verdict = judge(exact.iter().cloned().chain([wrong.clone()]));
        assert!(
            verdict.together.iter().any(|pair| pair.contains(&wrong)),
            "{wrong}"
        );
        assert!(verdict.violation().is_some());
    }
    for token in [5, 4, 1] {
        let verdict = judge(exact.iter().cloned().chain([claim("z", token, 50, 60)]));
        assert_eq!(
            (verdict.together.len(), verdict.backwards.len()),
            (0, 1),
            "{token}"
        );
        assert!(verdict.violation().is_some());
    }
}

#[test]
fn claims_survive_their_file_without_half_lines() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("claims");
    assert_eq!(Log::read(&path), []);
    let (log, claims) = (
        Log::create(&path),
        [claim("x", 5, 30, 40), claim("7.1", 6, 41, 42)],
    );
    claims.iter().for_each(|claim| log.write(claim));
    assert_eq!(Log::read(&path), claims);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &text[..text.len() - 1]).unwrap();
    assert_eq!(Log::read(&path), claims[..1]);
}

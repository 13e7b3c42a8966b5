//! `bench`: its figures, and that it leaves no lock behind.

use crate::{SOON, only_error, signal};
use distlock_tests::child::{Child, Example};
use distlock_tests::process::RedisServer;
use distlock_tests::quorum::{LONGEST, Servers};
use distlock_tests::time::eventually;
use rustix::process::Signal;
use serde_json::Value as Json;

/// The IDs of all figures, in the order of the report.
const FIGURES: [&str; 8] = [
    "uncontended",
    "lock",
    "unlock",
    "threads",
    "contended",
    "two_clients",
    "hand_off",
    "held",
];

fn bench(url: &str, words: &[&str]) -> Child {
    let words = [&["bench", "--url", url], words].concat();
    Example::distlock(&words).spawn()
}

/// Checks that no lock is held, and that the only other keys, the counters of tokens, expire soon.
#[track_caller]
fn must_be_clean(server: &RedisServer) {
    let mut probe = server.probe();
    for key in probe.keys("*") {
        assert!(
            key.starts_with("redisson_lock_token:{distlock:bench:"),
            "{key}"
        );
        let left = probe.pttl(&key).expect("it has an end");
        assert!(left.as_secs() <= 180, "{key}: {left:?}");
    }
}

#[test]
fn all_workloads_are_measured_and_nothing_is_left() {
    let server = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("chart.svg");
    let options = [
        "--seconds",
        "6",
        "--threads",
        "3",
        "--held",
        "40",
        "--json",
        "--svg",
    ];
    let mut child = bench(
        &server.url(),
        &[&options[..], &[svg.to_str().unwrap()]].concat(),
    );
    assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
    assert_eq!(child.errors(), "", "no progress in a pipe");
    let json: Json = serde_json::from_str(&child.output()).unwrap();
    let figures = json["figures"].as_array().unwrap();
    let ids = figures.iter().map(|figure| figure["id"].as_str().unwrap());
    assert!(ids.eq(FIGURES), "{json}");
    for figure in figures {
        assert!(figure["count"].as_u64().unwrap() > 0, "{figure}");
        let number = |name: &str| figure[name].as_f64();
        if figure["id"] == "held" {
            assert_eq!(figure["what"], "renewals of 40 held locks", "{figure}");
        } else {
            let (p50, p99) = (number("p50_us").unwrap(), number("p99_us").unwrap());
            assert!(p50 > 0.0 && p50 <= p99, "{figure}");
        }
        let has_rate = !["lock", "unlock", "hand_off"]
            .map(Json::from)
            .contains(&figure["id"]);
        assert_eq!(
            number("per_second").is_some_and(|rate| rate > 0.0),
            has_rate,
            "{figure}"
        );
    }
    must_be_clean(&server);
    let svg = std::fs::read_to_string(svg).unwrap();
    assert!(
        svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"),
        "{svg}"
    );
    // A rectangle for each of five rates and seven times, and one for the background.
    assert_eq!(svg.matches("<rect ").count(), 5 + 7 + 1, "{svg}");
}

#[test]
fn interrupted_bench_leaves_no_lock_behind() {
    let server = RedisServer::start();
    for phase in ["distlock:bench:*", "distlock:bench:*:held:*"] {
        // Long enough that the bench does not end by itself.
        let options = ["--seconds", "20", "--held", "50"];
        let mut child = bench(&server.url(), &options);
        let mut probe = server.probe();
        eventually("a lock is held", SOON, || !probe.keys(phase).is_empty());
        assert!(child.is_running());
        signal(i32::try_from(child.id()).unwrap(), Signal::INT);
        assert_eq!(child.wait_exit(SOON), 130, "{}", child.errors());
        assert_eq!(child.output(), "");
        must_be_clean(&server);
    }
}

#[test]
fn other_locks_and_a_quorum_are_left_alone() {
    let quorum = Servers::with(3, 0, LONGEST);
    let client = quorum.client();
    let guard = client.owned_mutex("theirs").unwrap().lock().unwrap();
    let mut child = bench(
        &quorum.url,
        &["--seconds", "3", "--held", "20", "--threads", "2"],
    );
    assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
    assert!(guard.verify().is_ok());
    for server in &quorum.servers {
        let left = server.probe().keys("distlock:bench:*");
        assert!(left.is_empty(), "{left:?}");
    }
}

#[test]
fn more_held_locks_than_a_server_should_have_are_refused() {
    let mut child = bench("redis://127.0.0.1:1", &["--held", "100001"]);
    assert_eq!(child.wait_exit(SOON), 64);
    assert!(only_error(&child).contains("100000"), "{}", child.errors());
}

#[test]
fn unreachable_store_and_file_end_the_bench_at_once() {
    let mut child = bench("redis://127.0.0.1:1", &[]);
    assert_eq!(child.wait_exit(SOON), 69);
    assert!(
        only_error(&child).contains("check that the store is up"),
        "{}",
        child.errors()
    );
    let server = RedisServer::start();
    let mut child = bench(&server.url(), &["--svg", "/nowhere/chart.svg"]);
    assert_eq!(child.wait_exit(SOON), 64);
    assert!(
        only_error(&child).contains("/nowhere/chart.svg"),
        "{}",
        child.errors()
    );
    assert_eq!(server.probe().command_calls("hset"), 0, "no lock was taken");
}

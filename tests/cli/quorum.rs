//! `quorum init` and `quorum status`.

use crate::{SOON, only_error};
use distlock_tests::child::Example;
use distlock_tests::process::RedisServer;
use distlock_tests::quorum::{self, Servers};
use distlock_tests::time::eventually;
use serde_json::Value as Json;

/// Runs `distlock quorum` with these words to its end. Returns its exit status and all its output.
fn ask(words: &[&str]) -> (i32, String) {
    let mut child = Example::distlock(&[&["quorum"], words].concat()).spawn();
    let status = child.wait_exit(SOON);
    (status, child.output() + &child.errors())
}

/// Returns what `quorum status --json` prints of each server.
fn nodes(url: &str) -> Vec<Json> {
    let json = ask(&["status", "--json", url]).1;
    let json: Json = serde_json::from_str(&json).unwrap_or_else(|_| panic!("{json}"));
    json["nodes"].as_array().expect("a list").clone()
}

fn new_servers() -> (Vec<RedisServer>, String) {
    let servers: Vec<_> = (0..3).map(|_| quorum::start()).collect();
    let places: Vec<_> = servers
        .iter()
        .map(|server| quorum::place(server.port()))
        .collect();
    let url = quorum::url(&places, quorum::LONGEST);
    (servers, url)
}

#[test]
fn init_needs_a_yes_and_says_what_it_did() {
    let (mut servers, url) = new_servers();
    let (status, said) = ask(&["init", &url]);
    assert!(
        status == 64 && said.contains("add --yes"),
        "{status}: {said}"
    );
    assert!(!servers[0].probe().exists("distlock_quorum"));
    let (status, said) = ask(&["status", &url]);
    assert!(
        status == 1 && said.contains("`distlock quorum init`"),
        "{status}: {said}"
    );

    // The error of the first `run` names `quorum init`, too.
    let mut run = Example::distlock(&["run", "-n", "--url", &url, "it", "--", "true"]).spawn();
    assert_eq!(run.wait_exit(SOON), 69);
    assert!(
        only_error(&run).contains("`distlock quorum init`"),
        "{}",
        run.errors()
    );

    let (servers_of_another, url) = new_servers();
    drop(std::mem::replace(&mut servers, servers_of_another));
    let (status, said) = ask(&["init", "--yes", &url]);
    let done = "the quorum of 3 servers is set up, and all of them vote";
    assert!(status == 0 && said.starts_with(done), "{status}: {said}");
    assert_eq!(ask(&["status", &url]).0, 0);
    let (status, said) = ask(&["init", "--yes", &url]);
    assert!(
        status == 0 && said.starts_with("nothing to do"),
        "{status}: {said}"
    );

    // A server that a restart emptied becomes a member again.
    servers[2].restart();
    quorum::admit(&servers[2]);
    let (status, said) = ask(&["init", "--yes", &url]);
    let done = "the quorum of 3 servers is complete: 2 vote, 1 after a pause";
    assert!(status == 0 && said.starts_with(done), "{status}: {said}");
}

#[test]
fn status_shows_who_votes_since_when_and_who_does_not() {
    let mut quorum = Servers::with(3, 0, quorum::LONGEST);
    for node in nodes(&quorum.url) {
        assert!(node["votes"] == true && node["member"] == true && node["state"] == "votes");
        assert!(
            node["votes_for_ms"]
                .as_u64()
                .is_some_and(|time| time < 60_000),
            "{node}"
        );
        assert!(
            node["clock_ahead_us"]
                .as_i64()
                .is_some_and(|it| it.abs() < 1_000_000),
            "{node}"
        );
        assert_eq!(
            (&node["epoch"], &node["why"]),
            (&Json::from(1), &Json::Null)
        );
    }
    quorum.restart(0);
    quorum.servers[1].kill();
    let seen = nodes(&quorum.url);
    let states: Vec<_> = seen
        .iter()
        .map(|node| node["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["no member", "unreachable", "votes"]);
    assert_eq!(
        (&seen[1]["reachable"], &seen[0]["reachable"]),
        (&false.into(), &true.into())
    );
    let (status, table) = ask(&["status", &quorum.url]);
    assert_eq!(status, 1, "{table}");
    assert!(
        table.starts_with("SERVER ") && table.contains("Connection refused"),
        "{table}"
    );
    assert!(!table.contains("SECRET"), "{table}");
}

#[test]
fn status_shows_how_long_a_server_pauses() {
    let (servers, url) = new_servers();
    // The first client sets the quorum up, whose servers then vote one longest lease later.
    let client = distlock::connect(&url).unwrap();
    let lock = client.mutex("it").unwrap();
    let refused = distlock::DistLock::try_lock(&lock).unwrap_err();
    assert!(refused.is_unavailable(), "{refused:?}");
    // A majority is enough to set it up: the last server may get its marker a moment later.
    let paused = || Some(nodes(&url)).filter(|all| all.iter().all(|it| it["state"] == "pauses"));
    for node in eventually("every server to pause", SOON, paused) {
        assert!(node["votes"] == false, "{node}");
        let left = node["votes_in_ms"].as_u64().unwrap();
        assert!((1..=600_000).contains(&left), "{left}");
    }
    assert_eq!(ask(&["status", &url]).0, 1);
    let (status, said) = ask(&["init", "-y", &url]);
    assert!(
        status == 0 && said.contains("all of them vote"),
        "{status}: {said}"
    );
    drop(servers);
}

#[test]
fn restarted_server_is_shown_with_its_pause() {
    let (servers, url) = new_servers();
    assert_eq!(ask(&["init", "-y", &url]).0, 0);
    // Simulates that the server has been restarted since it voted.
    servers[0]
        .probe()
        .command(&["HSET", "distlock_quorum", "run_id", "0123"]);
    let node = &nodes(&url)[0];
    assert!(
        node["state"] == "restarted" && node["votes_in_ms"] == 600_000,
        "{node}"
    );
    assert_eq!(nodes(&format!("{url}&durable=yes"))[0]["state"], "votes");
}

#[test]
fn what_is_no_quorum_is_refused_with_the_reason() {
    for words in [&["init", "--yes"][..], &["status"]] {
        for (url, says) in [
            ("redis://127.0.0.1", "`redis://` is no quorum"),
            ("redlock://a,b", "at least 3 independent servers"),
        ] {
            let words = [&["quorum"], words, &[url]].concat();
            let mut child = Example::distlock(&words).spawn();
            assert_eq!(child.wait_exit(SOON), 78, "{}", child.errors());
            assert!(only_error(&child).contains(says), "{}", child.errors());
        }
    }
    let (mut servers, url) = new_servers();
    servers[0].kill();
    let (status, said) = ask(&["init", "-y", &url]);
    assert!(
        status == 69 && said.contains("Connection refused"),
        "{status}: {said}"
    );
}

/// Each run takes 0.3 s, much less than the longest lease. The emptied server must become a member
/// again all the same.
#[test]
fn short_runs_get_an_emptied_server_back() {
    let mut quorum = Servers::with(3, 0, "max_lease=5s&watchdog=3s&node_timeout=500ms");
    quorum.restart(0);
    let marker = |quorum: &Servers| quorum.servers[0].probe().hgetall("distlock_quorum");
    let mut runs = 0;
    eventually("it is a member again", SOON, || {
        let run = ["run", "--url", &quorum.url, "job", "--", "sleep", "0.3"];
        let mut child = Example::distlock(&run).spawn();
        assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
        runs += 1;
        !marker(&quorum).is_empty()
    });
    println!("{runs} runs");
}

/// Refused before the command starts: otherwise it would be started, and then killed, on every
/// host.
#[test]
fn minimum_hold_that_the_quorum_cannot_keep_is_refused_before_the_command() {
    let quorum = Servers::with(3, 0, quorum::LONGEST);
    let words = [
        "run",
        "--url",
        &quorum.url,
        "--at-least",
        "1day",
        "it",
        "--",
        "echo",
        "ran",
    ];
    let mut child = Example::distlock(&words).spawn();
    assert_eq!(child.wait_exit(SOON), 64);
    assert_eq!(child.output(), "");
    assert!(
        only_error(&child).contains("--at-least 86400s is too long"),
        "{}",
        child.errors()
    );
}

//! `status`, `check`, `wait` and `break`.

use crate::{SOON, only_error, run, run_script, said_pid, signal};
use distlock_tests::child::{Child, Example};
use distlock_tests::process::RedisServer;
use distlock_tests::replicas::Replicated;
use distlock_tests::time::{eventually, within};
use rustix::process::Signal;
use serde_json::{Value as Json, json};
use std::time::{Duration, SystemTime};

/// Runs `distlock` to its end, and returns its status and its output.
fn ask(server: &RedisServer, words: &[&str]) -> (i32, String) {
    let mut child = start(server, words);
    let status = child.wait_exit(SOON);
    (status, child.output() + &child.errors())
}

fn start(server: &RedisServer, words: &[&str]) -> Child {
    Example::distlock(words)
        .env("DISTLOCK_URL", &server.url())
        .spawn()
}

/// Starts a command that holds the lock until its input ends.
fn holder(server: &RedisServer) -> Child {
    let mut child = run_script(server, &[], "echo '{\"pid\": 0}'; read -r _; exit 0");
    said_pid(&mut child);
    child
}

/// Returns the whole owner ID of the holder.
fn owner(server: &RedisServer) -> String {
    server
        .probe()
        .hgetall("it")
        .into_keys()
        .next()
        .expect("it is held")
}

#[test]
fn check_tells_held_from_free() {
    let server = RedisServer::start();
    assert_eq!(ask(&server, &["check", "it"]), (0, "free".to_owned()));
    let _holder = holder(&server);
    assert_eq!(ask(&server, &["check", "it"]), (1, "held".to_owned()));
    assert_eq!(
        ask(&server, &["check", "-q", "-E", "4", "it"]),
        (4, String::new())
    );
}

#[test]
fn status_shows_the_holder_and_what_is_unknown() {
    let server = RedisServer::start();
    let _holder = holder(&server);
    // A lock without an expiry, of a client that set no lease.
    server.probe().command(&[
        "HSET",
        "endless",
        "01234567-89ab-cdef-0123-456789abcdef:1",
        "1",
    ]);
    let short = format!("{}..", &owner(&server)[..8]);
    let (status, table) = ask(&server, &["status", "it", "other", "endless"]);
    assert_eq!(status, 0, "{table}");
    let rows = cells(&table);
    assert_eq!(
        rows[0],
        ["NAME", "STATE", "HOLDER", "HELD", "REMAINING", "WAITERS"]
    );
    let begin = format!("it held {short} unknown");
    assert_eq!((rows[1][..4].join(" "), rows[1][5]), (begin, "0"));
    let token = server
        .probe()
        .get("redisson_lock_token:{it}")
        .expect("it has a counter");
    assert!(rows[1][4].ends_with(" s"), "{table}");
    assert_eq!(rows[2], ["other", "free", "-", "-", "-", "0"]);
    assert_eq!(
        rows[3],
        ["endless", "held", "01234567..", "unknown", "no end", "0"]
    );
    assert!(table.lines().all(|line| line.len() <= 80), "{table}");

    let (status, lines) = ask(&server, &["status", "--json", "it", "other", "endless"]);
    assert_eq!(status, 0);
    let json: Vec<Json> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        (&json[0]["held"], &json[0]["holder"]),
        (&json!(true), &json!(short))
    );
    assert!(
        (1..=30_000).contains(&json[0]["remaining_ms"].as_u64().unwrap()),
        "{lines}"
    );
    assert_eq!(
        (&json[0]["label"], &json[0]["since"]),
        (&Json::Null, &Json::Null)
    );
    assert_eq!(
        (&json[0]["token"], &json[0]["waiters"]),
        (&Json::Null, &json!(0))
    );
    assert_eq!(json[0]["largest_token"].to_string(), token);
    assert_eq!(
        (&json[1]["held"], &json[1]["holder"]),
        (&json!(false), &Json::Null)
    );
    assert_eq!(
        (&json[2]["expires"], &json[2]["remaining_ms"]),
        (&json!(false), &Json::Null)
    );
}

#[test]
fn status_counts_waiters_unless_the_user_may_not() {
    let server = RedisServer::start();
    let _holder = holder(&server);
    let _waiters = [run(&server, &[], &["true"]), run(&server, &[], &["true"])];
    let waiters = |url: &str| {
        let words = ["status", "--json", "--url", url, "it"];
        let mut child = Example::distlock(&words).spawn();
        assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
        serde_json::from_str::<Json>(&child.output()).unwrap()["waiters"].clone()
    };
    eventually("both wait", SOON, || waiters(&server.url()) == 2);
    let fair = Example::distlock(&["run", "it", "--", "true"]);
    let _fair = fair
        .env("DISTLOCK_URL", &format!("{}?order=fair", server.url()))
        .spawn();
    eventually("one waits in the queue", SOON, || {
        waiters(&server.url()) == 3
    });
    let rule = [
        "ACL", "SETUSER", "blind", "on", ">SECRET", "~*", "&*", "+@all", "-pubsub",
    ];
    assert_eq!(server.probe().command(&rule).text(), "OK");
    assert_eq!(waiters(&server.url_as("blind:SECRET")), Json::Null);
}

/// Returns the cells of a table, row by row.
fn cells(table: &str) -> Vec<Vec<&str>> {
    table
        .lines()
        .map(|line| {
            line.split("  ")
                .map(str::trim)
                .filter(|cell| !cell.is_empty())
                .collect()
        })
        .collect()
}

#[test]
fn status_and_break_show_the_label_of_a_renewed_lock() {
    let server = RedisServer::start();
    let url = format!(
        "{}?watchdog=1500ms&owner=till%207%20%22%C3%BC%22",
        server.url()
    );
    let child = Example::distlock(&["run", "it", "--", "sleep", "1000"]);
    let _holder = child.env("DISTLOCK_URL", &url).spawn();
    let mut probe = server.probe();
    eventually("it is renewed", SOON, || {
        probe.exists("distlock_owner:{it}")
    });
    let before = SystemTime::now();
    let (_, table) = ask(&server, &["status", "it"]);
    let row = &cells(&table)[1];
    assert_eq!(row[..3], ["it", "held", "till 7 \\\"ü\\\""], "{table}");
    assert!(row[3].ends_with(" s"), "{table}");
    let (_, line) = ask(&server, &["status", "--json", "it"]);
    let json: Json = serde_json::from_str(&line).unwrap();
    assert_eq!(json["label"], json!("till 7 \"ü\""), "{line}");
    let since = humantime::parse_rfc3339(json["since"].as_str().unwrap()).unwrap();
    let held = before.duration_since(since).unwrap();
    assert!(held < SOON, "{held:?}");
    let who = format!("held by till 7 \\\"ü\\\" ({}..) for ", &owner(&server)[..8]);
    let (status, said) = ask(&server, &["break", "--yes", "it"]);
    assert!(status == 0 && said.contains(&who), "{status}: {said}");
}

#[test]
fn wait_ends_when_the_lock_is_free() {
    let server = RedisServer::start();
    assert_eq!(ask(&server, &["wait", "it"]), (0, String::new()));
    let mut holder = holder(&server);
    assert_eq!(
        ask(&server, &["wait", "-w", "0.3", "it"]),
        (1, String::new())
    );
    let mut interrupted = start(&server, &["wait", "it"]);
    let mut waiting = start(&server, &["wait", "it"]);
    let mut probe = server.probe();
    let before = probe.command_calls("pttl");
    eventually("they ask", SOON, || {
        probe.command_calls("pttl") > before + 4
    });
    signal(i32::try_from(interrupted.id()).unwrap(), Signal::TERM);
    assert_eq!(interrupted.wait_exit(SOON), 143);
    assert!(waiting.is_running());
    holder.close_input();
    assert_eq!(waiting.wait_exit(SOON), 0);
}

#[test]
fn break_needs_a_yes_and_names_the_holder() {
    let server = RedisServer::start();
    let (status, said) = ask(&server, &["break", "--yes", "it"]);
    assert!(status == 1 && said.contains("is free"), "{status}: {said}");
    let _holder = holder(&server);
    let (status, said) = ask(&server, &["break", "it"]);
    assert!(
        status == 64 && said.contains("add --yes"),
        "{status}: {said}"
    );
    assert!(server.probe().exists("it"));
    let short = owner(&server)[..8].to_owned();
    let (status, said) = ask(&server, &["break", "--yes", "it"]);
    assert!(status == 0 && said.contains(&short), "{status}: {said}");
    assert!(!server.probe().exists("it"));
}

#[test]
fn break_wakes_a_waiter_and_stops_the_holder() {
    let server = RedisServer::start();
    let mut holder = run(&server, &["--lease", "60"], &["sleep", "1000"]);
    eventually("it is held", SOON, || server.probe().exists("it"));
    let mut waiter = run(&server, &["--verbose"], &["true"]);
    eventually("it waits", SOON, || {
        let channels = server
            .probe()
            .command(&["PUBSUB", "CHANNELS", "distlock_queue:2:*"]);
        !channels.texts().is_empty()
    });
    // Without a message the waiter would wait for the end of the lease, for up to a minute.
    within(Duration::from_secs(10), || {
        assert_eq!(ask(&server, &["break", "--yes", "it"]).0, 0);
        assert_eq!(waiter.wait_exit(SOON), 0, "{}", waiter.errors());
    });
    assert_eq!(holder.wait_exit(SOON), 75, "{}", holder.errors());
}

#[test]
fn unreachable_store_is_never_free() {
    for words in [
        &["check", "it"][..],
        &["wait", "it"],
        &["status", "it"],
        &["break", "-y", "it"],
    ] {
        let mut child = Example::distlock(words)
            .env("DISTLOCK_URL", "redis://127.0.0.1:1")
            .spawn();
        assert_eq!(child.wait_exit(SOON), 69, "{words:?}: {}", child.errors());
        assert!(
            only_error(&child).contains("check that the store is up"),
            "{}",
            child.errors()
        );
        assert_eq!(child.output(), "");
    }
}

#[test]
fn failed_row_hides_no_other() {
    let server = RedisServer::start();
    let _holder = holder(&server);
    server.probe().command(&["SADD", "foreign", "x"]);
    let mut child = start(&server, &["status", "it", "foreign", "free"]);
    assert_eq!(child.wait_exit(SOON), 65);
    let (output, line) = (child.output(), only_error(&child));
    let states: Vec<_> = cells(&output).iter().map(|row| row[1]).collect();
    assert_eq!(states, ["STATE", "held", "error", "free"], "{output}");
    assert!(
        line.contains("\"foreign\"") && line.contains("another name"),
        "{line}"
    );
    let (status, lines) = ask(&server, &["status", "--json", "it", "foreign", "free"]);
    assert_eq!(status, 65);
    let rows: Vec<Json> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(
        (&rows[0]["held"], &rows[2]["held"]),
        (&json!(true), &json!(false))
    );
    assert!(
        rows[1]["error"].as_str().unwrap().contains("foreign"),
        "{lines}"
    );
    // `watch` shows such an error, too, and does not fail.
    let (status, shown) = ask(&server, &["watch", "--count", "1", "it", "foreign"]);
    assert!(status == 0 && shown.contains("error"), "{status}: {shown}");
}

/// A replica must say so even if it has never received its master's data.
#[test]
fn replica_says_that_it_is_one() {
    let servers = Replicated::start(1);
    let lonely = RedisServer::start_with(&["--replicaof", "127.0.0.1", "1"]);
    for replica in [&servers.replicas[0], &lonely] {
        for words in [
            &["status", "it"][..],
            &["status", "it", "other"],
            &["list"],
            &["check", "it"],
            &["watch", "--count", "1"],
            &["break", "--yes", "it"],
        ] {
            let mut child = start(replica, words);
            assert_eq!(child.wait_exit(SOON), 69, "{words:?}: {}", child.output());
            let line = only_error(&child);
            assert!(
                line.contains("is a replica of 127.0.0.1:"),
                "{words:?}: {line}"
            );
            assert_eq!(child.output(), "", "{words:?}");
        }
    }
}

#[test]
fn minimum_hold_is_no_holder() {
    let server = RedisServer::start();
    let mut child = run(&server, &["--at-least", "100"], &["true"]);
    assert_eq!(child.wait_exit(SOON), 0);
    let (_, shown) = ask(&server, &["status", "it"]);
    let rows = cells(&shown);
    assert_eq!((rows[1][1], rows[1][3]), ("kept", "unknown"), "{shown}");
    assert!(rows[1][2].starts_with("kept until 2"), "{shown}");
    let (_, json) = ask(&server, &["status", "--json", "it"]);
    let json: Json = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&json["held"], &json["holder"]),
        (&json!(true), &Json::Null)
    );
    assert!(
        json["kept_until"].as_str().unwrap().starts_with('2'),
        "{json}"
    );
    let (_, listed) = ask(&server, &["list"]);
    assert!(listed.contains("kept until"), "{listed}");
}

#[test]
fn slots_are_shown_as_free_or_held() {
    let server = RedisServer::start();
    let script = "echo '{\"pid\": 0}'; read -r _; exit 0";
    let slots = |n: &str| {
        let mut child = run_script(&server, &["--slots", n], script);
        said_pid(&mut child);
        child
    };
    assert_eq!(
        ask(&server, &["check", "--slots", "it"]),
        (0, "free".to_owned())
    );
    let mut first = slots("2");
    assert_eq!(
        ask(&server, &["check", "--slots", "it"]),
        (0, "free".to_owned())
    );
    let (status, shown) = ask(&server, &["status", "--slots", "it"]);
    assert!(status == 0 && shown.contains("1 of 2 free"), "{shown}");
    let mut second = slots("2");
    assert_eq!(
        ask(&server, &["check", "--slots", "it"]),
        (1, "held".to_owned())
    );
    let (_, shown) = ask(&server, &["status", "--slots", "--json", "it"]);
    let shown: Json = serde_json::from_str(&shown).unwrap();
    assert_eq!(
        (&shown["held"], &shown["limit"], &shown["free"]),
        (&json!(true), &json!(2), &json!(0))
    );
    let mut waiting = start(&server, &["wait", "--slots", "it"]);
    first.close_input();
    assert_eq!(waiting.wait_exit(SOON), 0);
    assert_eq!(first.wait_exit(SOON), 0);
    // Without `--slots` the name means a mutex, but it is that of a semaphore.
    for subcommand in [&["check"][..], &["break", "--yes"]] {
        let (status, said) = ask(&server, &[subcommand, &["it"]].concat());
        assert!(
            status == 65 && said.contains("add --slots"),
            "{status}: {said}"
        );
    }
    let client = distlock::connect(&server.url()).unwrap();
    let slots = client.semaphore("it", 2).unwrap();
    let id = slots.acquire().unwrap().permit_ids()[0];
    let taken = slots.acquire().unwrap();
    let break_one = |id: &str| {
        ask(
            &server,
            &["break", "--yes", "--slots", "--permit", id, "it"],
        )
    };
    let whole = taken.permit_ids()[0].to_string();
    let (status, said) = break_one(&whole);
    assert!(
        status == 0 && said.starts_with("broke slot") && !said.contains(&whole),
        "{said}"
    );
    assert!(taken.verify().unwrap_err().is_lost());
    let (status, said) = break_one(&id.to_string());
    assert!(
        status == 1 && said.contains("is not taken"),
        "{status}: {said}"
    );
    let (status, said) = break_one("0001abff");
    assert!(
        status == 64 && said.contains("32 hexadecimal digits"),
        "{status}: {said}"
    );
    let (status, said) = ask(&server, &["break", "--yes", "--slots", "it"]);
    assert!(status == 0 && said.starts_with("broke"), "{status}: {said}");
    assert_eq!(ask(&server, &["check", "--slots", "it"]).1, "free");
    assert_eq!(
        ask(&server, &["break", "--yes", "--slots", "it"]).0,
        1,
        "it is free"
    );
    assert_eq!(second.wait_exit(SOON), 75);
}

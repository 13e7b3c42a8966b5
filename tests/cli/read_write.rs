//! `--shared` and `--exclusive`: the read and the write part of a read-write lock.

use crate::{SOON, only_error, run_on, run_script, said_pid};
use distlock_tests::child::{Child, Example};
use distlock_tests::process::RedisServer;
use distlock_tests::queue;
use distlock_tests::time::{eventually, within};
use serde_json::{Value as Json, json};
use std::time::Duration;

/// A script that prints its process ID and runs until its input ends.
const HOLDER: &str = r#"echo "{\"pid\": $$}"; read -r _; exit 0"#;

/// Starts a command that holds the lock until its input ends.
fn holder(server: &RedisServer, options: &[&str]) -> Child {
    let mut child = run_script(server, options, HOLDER);
    said_pid(&mut child);
    child
}

/// Starts a command, and returns when it waits for the lock.
fn waiter(server: &RedisServer, options: &[&str]) -> Child {
    let child = run_script(server, &[&["--verbose"], options].concat(), "exit 0");
    eventually("it waits", SOON, || child.errors().contains("waiting"));
    child
}

/// Returns the exit status of `run -n`: 0 if its command ran, 1 if the lock is busy.
#[track_caller]
fn tries(server: &RedisServer, options: &[&str]) -> i32 {
    run_script(server, &[&["-n"], options].concat(), "exit 0").wait_exit(SOON)
}

/// Runs `distlock` with these words to its end. Returns its exit status and its output.
fn ask(server: &RedisServer, words: &[&str]) -> (i32, String) {
    let mut child = Example::distlock(words)
        .env("DISTLOCK_URL", &server.url())
        .spawn();
    let status = child.wait_exit(SOON);
    (status, child.output() + &child.errors())
}

#[track_caller]
fn asked_json(server: &RedisServer, words: &[&str]) -> Json {
    let (status, said) = ask(server, words);
    assert_eq!(status, 0, "{said}");
    serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"))
}

/// Closes the inputs of these commands, and expects that each of them then succeeds.
fn end<const N: usize>(children: [Child; N]) {
    for mut child in children {
        child.close_input();
        assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
    }
}

#[test]
fn shared_runs_overlap_and_an_exclusive_one_is_alone() {
    let server = RedisServer::start();
    let readers = [
        holder(&server, &["--shared"]),
        holder(&server, &["-s", "--lease", "5"]),
    ];
    for exclusive in [&["--exclusive"][..], &["-x"], &["-e"]] {
        assert_eq!(tries(&server, exclusive), 1, "{exclusive:?}");
    }
    assert_eq!(tries(&server, &["-s"]), 0);
    // While a writer waits, no new reader gets the lock.
    let mut writer = waiter(&server, &["-x"]);
    assert_eq!(tries(&server, &["-s"]), 1);
    end(readers);
    assert_eq!(writer.wait_exit(SOON), 0, "{}", writer.errors());
    let writer = holder(&server, &["-x", "--at-least", "0.5"]);
    assert_eq!((tries(&server, &["-s"]), tries(&server, &["-x"])), (1, 1));
    end([writer]);
}

#[test]
fn run_without_an_option_excludes_readers_and_is_excluded() {
    let server = RedisServer::start();
    let long = ["--lease", "60"];
    let reader = holder(&server, &[&["-s"], &long[..]].concat());
    assert_eq!(tries(&server, &[]), 1);
    let mut plain = waiter(&server, &[]);
    // The release wakes the waiter: otherwise it would wait for the end of a lease of 60 s.
    within(Duration::from_secs(20), || {
        end([reader]);
        assert_eq!(plain.wait_exit(SOON), 0, "{}", plain.errors());
    });
    let plain = holder(&server, &long);
    assert_eq!((tries(&server, &["-s"]), tries(&server, &["-x"])), (1, 1));
    let mut reader = waiter(&server, &["-s"]);
    within(Duration::from_secs(20), || {
        end([plain]);
        assert_eq!(reader.wait_exit(SOON), 0, "{}", reader.errors());
    });
}

#[test]
fn reader_has_the_token_of_the_last_writer() {
    let server = RedisServer::start();
    let token = |option| {
        let mut child = run_script(&server, &[option], r#"echo "${DISTLOCK_TOKEN-none}""#);
        assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
        child.output()
    };
    assert_eq!(token("-s"), "none", "no writer was there");
    let written = token("-x");
    assert_eq!(
        (token("-s"), token("-s")),
        (written.clone(), written.clone())
    );
    assert!(token("-x").parse::<u64>().unwrap() > written.parse().unwrap());
}

#[test]
fn readers_and_writers_are_in_order_where_that_is_set() {
    let server = RedisServer::start();
    let url = format!("{}?order=fair&writers=equal", server.url());
    let command = ["sh", "-c", HOLDER];
    let mut reader = run_on(&url, &["-s"], &command);
    said_pid(&mut reader);
    let mut writer = run_on(&url, &["-x"], &command);
    eventually("it waits", SOON, || {
        queue::waiting(&mut server.probe(), "it") == 1
    });
    // Without `order=fair`, `writers=equal` would let this reader in before the waiting writer.
    assert_eq!(run_on(&url, &["-n", "-s"], &["true"]).wait_exit(SOON), 1);
    end([reader]);
    said_pid(&mut writer);
    end([writer]);
}

#[test]
fn what_no_reader_can_have_is_refused_by_name() {
    let server = RedisServer::start();
    let refused = |url: &str, options: &[&str], status: i32, what: &[&str]| {
        let mut child = run_on(url, options, &["true"]);
        assert_eq!(
            child.wait_exit(SOON),
            status,
            "{options:?}: {}",
            child.errors()
        );
        let line = only_error(&child);
        assert!(what.iter().all(|what| line.contains(what)), "{line}");
    };
    let url = server.url();
    for (options, named) in [
        (&["-s", "--at-least", "1"][..], ["--shared", "--at-least"]),
        (&["-s", "--slots", "2"], ["--shared", "--slots"]),
        (&["-x", "--slots", "2"], ["--exclusive", "--slots"]),
        (&["-s", "-x"], ["--shared", "--exclusive"]),
    ] {
        refused(&url, options, 64, &named);
    }
    refused(
        &format!("{url}?format=token"),
        &["-s"],
        78,
        &["read-write locks"],
    );
    assert!(!server.probe().exists("it"));
}

#[test]
fn reader_that_is_lost_or_out_of_time_is_stopped() {
    let server = RedisServer::start();
    let mut lost = holder(&server, &["-s", "--lease", "1500ms"]);
    assert_eq!(server.probe().command(&["DEL", "it"]).int(), 1);
    assert_eq!(lost.wait_exit(SOON), 75, "{}", lost.errors());
    let mut over = holder(&server, &["-s", "--max-hold", "0.3"]);
    assert_eq!(over.wait_exit(SOON), 75, "{}", over.errors());
    let mut warned = holder(&server, &["-s", "--lease", "1500ms", "--on-lost=warn"]);
    server.probe().command(&["DEL", "it"]);
    eventually("it is told", SOON, || {
        warned.errors().contains("goes on without it")
    });
    warned.close_input();
    assert_eq!(warned.wait_exit(SOON), 0, "{}", warned.errors());
}

#[test]
fn check_and_wait_tell_what_a_reader_and_a_writer_find() {
    let server = RedisServer::start();
    let check = || ["-s", "-x"].map(|option| ask(&server, &["check", "-q", option, "it"]).0);
    assert_eq!(check(), [0, 0]);
    let reader = holder(&server, &["-s"]);
    assert_eq!(check(), [0, 1]);
    assert_eq!(ask(&server, &["wait", "--shared", "it"]).0, 0);
    assert_eq!(
        ask(&server, &["wait", "--exclusive", "-w", "0.3", "it"]).0,
        1
    );
    let mut writer = waiter(&server, &["-x"]);
    assert_eq!(check(), [1, 1], "a writer waits");
    end([reader]);
    assert_eq!(writer.wait_exit(SOON), 0);
    let writer = holder(&server, &["-x"]);
    assert_eq!(check(), [1, 1]);
    let words = ["wait", "-s", "it"];
    let mut waiting = Example::distlock(&words)
        .env("DISTLOCK_URL", &server.url())
        .spawn();
    end([writer]);
    assert_eq!(waiting.wait_exit(SOON), 0);
    assert_eq!(ask(&server, &["check", "-s", "--slots", "it"]).0, 64);
}

/// Returns the first two cells of each row of a table, without its head.
fn states(table: &str) -> Vec<(String, String)> {
    let cells = |line: &str| {
        let mut cells = line
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty());
        let mut next = || cells.next().unwrap_or_default().to_owned();
        (next(), next())
    };
    table.lines().skip(1).map(cells).collect()
}

#[test]
fn status_shows_each_reader_and_a_waiting_writer() {
    let server = RedisServer::start();
    let state = |words: &[&str]| {
        let (status, table) = ask(&server, words);
        assert_eq!(status, 0, "{table}");
        states(&table)
    };
    let readers = [
        holder(&server, &["-s", "--lease", "60"]),
        holder(&server, &["-s"]),
    ];
    let fields = server.probe().hgetall("it");
    let owners: Vec<_> = fields.into_keys().filter(|it| it != "mode").collect();
    let (_, table) = ask(&server, &["status", "it"]);
    let rows: Vec<_> = table.lines().collect();
    assert!(rows[1].starts_with("it    2 readers  "), "{table}");
    for owner in &owners {
        let short = format!("{}..", &owner[..8]);
        assert_eq!(
            rows[1..].iter().filter(|row| row.contains(&short)).count(),
            1,
            "{table}"
        );
    }
    assert_eq!(rows.len(), 3, "{table}");
    assert!(
        rows[2].starts_with("      ") && rows[2].ends_with(" s"),
        "{table}"
    );

    let json = asked_json(&server, &["status", "--json", "it"]);
    assert_eq!(
        (&json["holders"], &json["writer_waits"]),
        (&json!(2), &json!(false)),
        "{json}"
    );
    let left = |at: usize| json["readers"][at]["remaining_ms"].as_u64().unwrap();
    assert!(
        (30_001..=60_000).contains(&left(0)) && (1..=30_000).contains(&left(1)),
        "{json}"
    );
    assert_eq!(json["readers"][0]["holder"], json["holder"]);

    let mut writer = waiter(&server, &["-x"]);
    let waits = "2 readers, writer waits".to_owned();
    assert_eq!(
        state(&["status", "it"])[0],
        ("it".to_owned(), waits.clone())
    );
    let json = asked_json(&server, &["status", "--json", "it"]);
    assert_eq!(
        (&json["writer_waits"], &json["waiters"]),
        (&json!(true), &json!(1)),
        "{json}"
    );
    // `list` and `watch` print one row for each lock, not for each reader.
    for words in [
        &["list"][..],
        &["watch", "--count", "1", "it"],
        &["watch", "--count", "1"],
    ] {
        assert_eq!(
            state(words),
            [("it".to_owned(), waits.clone())],
            "{words:?}"
        );
    }
    assert_eq!(asked_json(&server, &["list", "--json"])["holders"], 2);
    end(readers);
    assert_eq!(writer.wait_exit(SOON), 0);

    let writer = holder(&server, &["-x"]);
    for words in [&["status", "it"][..], &["list"]] {
        assert_eq!(
            state(words),
            [("it".to_owned(), "1 writer".to_owned())],
            "{words:?}"
        );
    }
    end([writer]);
    assert_eq!(
        state(&["status", "it"]),
        [("it".to_owned(), "free".to_owned())]
    );
}

/// The user has no right to the key of the queue, so it is not known whether a writer waits.
#[test]
fn readers_are_listed_as_held_where_more_may_not_be_asked() {
    let server = RedisServer::start();
    let _reader = holder(&server, &["-s"]);
    let rule = [
        "ACL", "SETUSER", "blind", "on", ">SECRET", "~it", "&*", "+@all",
    ];
    assert_eq!(server.probe().command(&rule).text(), "OK");
    let mut child = Example::distlock(&["list", "--url", &server.url_as("blind:SECRET")]).spawn();
    assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
    assert_eq!(
        states(&child.output()),
        [("it".to_owned(), "held".to_owned())]
    );
}

#[test]
fn break_names_all_readers_and_wakes_the_writer() {
    let server = RedisServer::start();
    let long = ["-s", "--lease", "60"];
    let mut readers = [holder(&server, &long), holder(&server, &long)];
    let mut writer = waiter(&server, &["-x"]);
    within(Duration::from_secs(20), || {
        let (status, said) = ask(&server, &["break", "--yes", "it"]);
        assert!(
            status == 0 && said.contains("held by 2 readers: "),
            "{said}"
        );
        assert_eq!(said.matches("(lease: ").count(), 2, "{said}");
        assert_eq!(writer.wait_exit(SOON), 0, "{}", writer.errors());
    });
    for reader in &mut readers {
        reader.kill();
    }
    assert_eq!(ask(&server, &["break", "--yes", "it"]).0, 1, "it is free");
}

#[test]
fn labels_of_readers_and_slots_are_shown() {
    let server = RedisServer::start();
    let url = |owner: &str| format!("{}?watchdog=1500ms&owner={owner}", server.url());
    let start = |owner: &str, options: &[&str], name: &str| {
        let words = [&["hold", name], options].concat();
        let mut child = Example::distlock(&words)
            .env("DISTLOCK_URL", &url(owner))
            .spawn();
        child.expect_event("held", SOON);
        child
    };
    let holders = [start("till", &["-s"], "it"), start("desk", &["-s"], "it")];
    let slot = start("till", &["--slots", "2"], "slots");
    let mut table = String::new();
    eventually("each is renewed", SOON, || {
        table = ask(&server, &["status", "it"]).1;
        ["till", "desk"]
            .iter()
            .all(|owner| table.contains(&format!("  {owner}  ")))
    });
    assert_eq!(states(&table)[0].1, "2 readers");
    let json = asked_json(&server, &["status", "--json", "it"]);
    let label = |at: usize| json["readers"][at]["label"].as_str().unwrap();
    assert!(label(0) != label(1) && json["label"] == label(0), "{json}");
    let last = ask(&server, &["list"]).1;
    assert!(
        last.contains("  till  ") || last.contains("  desk  "),
        "{last}"
    );
    eventually("it is renewed", SOON, || {
        ask(&server, &["status", "--slots", "slots"])
            .1
            .contains("  till  ")
    });
    let (_, said) = ask(&server, &["break", "--yes", "it"]);
    assert!(said.contains("till (") && said.contains("desk ("), "{said}");
    let [one, other] = holders;
    for mut child in [one, other, slot] {
        child.kill();
    }
}

/// The store returns only about a hundred of these readers at a time, chosen at random. Counting,
/// listing and breaking must cover all of them.
#[test]
fn many_readers_are_counted_listed_and_broken() {
    const MANY: &str = "for i = 1, 1500 do \
         local owner = '01234567-89ab-cdef-0123-456789abcdef:' .. i \
         redis.call('HSET', 'it', owner, '1') \
         redis.call('SET', '{it}:' .. owner .. ':rwlock_timeout:1', '1', 'PX', 3600000) \
         end \
         redis.call('HSET', 'it', 'mode', 'read') \
         return redis.call('PEXPIRE', 'it', 3600000)";
    let server = RedisServer::start();
    assert_eq!(server.probe().command(&["EVAL", MANY, "0"]).int(), 1);
    let many = ("it".to_owned(), "1500 readers".to_owned());
    let (status, table) = ask(&server, &["status", "it"]);
    assert_eq!(
        (status, states(&table)[0].clone()),
        (0, many.clone()),
        "{table}"
    );
    assert_eq!(table.lines().count(), 1 + 100 + 1, "{table}");
    assert!(table.contains(".. and 1400 more"), "{table}");
    let json = asked_json(&server, &["status", "--json", "it"]);
    assert_eq!(
        (&json["holders"], json["readers"].as_array().unwrap().len()),
        (&json!(1500), 100)
    );
    assert_eq!(states(&ask(&server, &["list"]).1), [many]);
    assert_eq!(tries(&server, &["-x"]), 1);
    assert_eq!(tries(&server, &[]), 1);
    assert_eq!(ask(&server, &["check", "it"]), (1, "held".to_owned()));
    let (status, said) = ask(&server, &["break", "--yes", "it"]);
    assert!(
        status == 0 && said.contains("held by 1500 readers: 01234567.."),
        "{said}"
    );
    assert!(!server.probe().exists("it"));
}

#[test]
fn hold_takes_either_part_or_a_slot() {
    let server = RedisServer::start();
    let hold = |name: &str, options: &[&str]| {
        let words = [&["hold", name], options].concat();
        Example::distlock(&words)
            .env("DISTLOCK_URL", &server.url())
            .spawn()
    };
    let held = |mut child: Child| {
        let event = child.expect_event("held", SOON);
        (child, event["token"].clone())
    };
    let is_busy = |name: &str, options: &[&str]| {
        let mut child = hold(name, &[&["-n"], options].concat());
        child.expect_event("busy", SOON);
        assert_eq!(child.wait_exit(SOON), 1);
    };
    let (writer, token) = held(hold("it", &["-x"]));
    is_busy("it", &["-s"]);
    end([writer]);
    let (reader, of_reader) = held(hold("it", &["--shared", "--lease", "10"]));
    assert_eq!(of_reader, token);
    let (other, _) = held(hold("it", &["--shared", "--max-hold", "60"]));
    is_busy("it", &["--exclusive"]);
    end([reader, other]);
    let slots = ["--slots", "1"];
    let (slot, token) = held(hold("slots", &slots));
    assert_eq!(token, Json::Null);
    is_busy("slots", &slots);
    let shown = ask(&server, &["watch", "--slots", "--count", "1", "slots"]);
    assert_eq!(
        states(&shown.1),
        [("slots".to_owned(), "0 of 1 free".to_owned())]
    );
    let refused = ask(&server, &["watch", "--slots", "slots*"]);
    assert!(
        refused.0 == 64 && refused.1.contains("--slots needs names"),
        "{refused:?}"
    );
    end([slot]);
}

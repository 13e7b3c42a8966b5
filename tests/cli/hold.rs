//! `distlock hold`: its protocol, its exit codes, and what follows if a holder loses the lock, is
//! paused or is killed.

use crate::{SOON, only_error, signal, waits_in_line};
use distlock_tests::child::{Child, Example, distlock};
use distlock_tests::process::RedisServer;
use distlock_tests::time::{eventually, let_pass, scaled, within};
use rustix::process::Signal;
use serde_json::Value as Json;
use std::time::Duration;

fn hold(url: &str, arguments: &[&str]) -> Child {
    Example::distlock(&["hold", "--url", url, "it"])
        .args(arguments)
        .spawn()
}

#[track_caller]
fn held(child: &mut Child) -> u64 {
    child.expect_event("held", SOON)["token"]
        .as_u64()
        .expect("a token is a number")
}

/// Sends a question, and returns whether the lock is valid, and for how many milliseconds.
#[track_caller]
fn ask(child: &mut Child, question: &str) -> (bool, u64) {
    child.send(question);
    answer(child, question)
}

#[track_caller]
fn answer(child: &mut Child, question: &str) -> (bool, u64) {
    let answer = child.expect_event(question, SOON);
    (
        answer["valid"].as_bool().unwrap(),
        answer["remaining_ms"].as_u64().unwrap(),
    )
}

#[test]
fn hold_answers_and_releases() {
    let server = RedisServer::start();
    for arguments in [&[][..], &["--lease", "30"], &["--max-hold", "30s"]] {
        let mut child = hold(&server.url(), arguments);
        assert!(
            held(&mut child) > 1_000_000_000_000_000,
            "microseconds since 1970"
        );
        for question in ["check", "verify"] {
            let (valid, remaining) = ask(&mut child, question);
            assert!(
                valid && (20_000..=30_000).contains(&remaining),
                "{question}: {remaining}"
            );
        }
        child.send("sing");
        let answer = child.expect_event("unknown", SOON).to_string();
        for word in ["\"sing\"", "check", "verify", "release"] {
            assert!(answer.contains(word), "{answer}");
        }
        assert!(ask(&mut child, "check").0, "it went on");
        child.send("release");
        child.expect_event("released", SOON);
        assert_eq!(child.wait_exit(SOON), 0);
    }
    assert!(!server.probe().exists("it"));
}

#[test]
fn output_is_the_documented_one() {
    let server = RedisServer::start();
    let mut child = hold(&server.url(), &["--lease", "10"]);
    let token = held(&mut child);
    child.send("check");
    let (_, remaining) = answer(&mut child, "check");
    child.send("release");
    child.expect_event("released", SOON);
    child.wait_exit(SOON);
    let expected = [
        format!(r#"{{"event":"held","token":{token}}}"#),
        format!(r#"{{"event":"check","valid":true,"remaining_ms":{remaining}}}"#),
        r#"{"event":"released"}"#.to_owned(),
    ];
    assert_eq!(child.output(), expected.join("\n"));
}

#[test]
fn end_of_input_and_signals_release() {
    let ends: [fn(&mut Child); 3] = [
        Child::close_input,
        |child| child.interrupt(),
        |child| child.terminate(),
    ];
    let server = RedisServer::start();
    for end in ends {
        let mut child = hold(&server.url(), &[]);
        held(&mut child);
        end(&mut child);
        child.expect_event("released", SOON);
        assert_eq!(child.wait_exit(SOON), 0);
    }
}

/// The bound on a release: far shorter than the lease of thirty seconds, so that the end of the
/// lease cannot pass for a release.
const RELEASED: Duration = Duration::from_secs(10);

/// The holder must notice the end of the other process by itself: its own input stays open.
#[test]
fn end_of_the_parent_or_of_a_named_process_releases() {
    let server = RedisServer::start();
    let program = distlock();
    let start = r#""$0" hold --url "$1" it <&0 & echo "{\"pid\": $!}"; exec sleep 1000"#;
    let words = ["-c", start, program.to_str().unwrap(), &server.url()];
    let mut parent = Example::program("sh").args(&words).spawn();
    held(&mut parent);
    // Only the parent is killed: with its group, the holder would be killed, too.
    signal(i32::try_from(parent.id()).unwrap(), Signal::KILL);
    within(RELEASED, || {
        eventually("it is released", SOON, || !server.probe().exists("it"));
    });

    let mut named = Example::program("sleep").args(&["1000"]).spawn();
    let mut child = hold(&server.url(), &["--with-pid", &named.id().to_string()]);
    held(&mut child);
    assert!(ask(&mut child, "check").0);
    named.kill();
    child.expect_event("released", SOON);
    assert_eq!(child.wait_exit(SOON), 0);
    let mut gone = hold(&server.url(), &["--with-pid", &named.id().to_string()]);
    assert_eq!(gone.wait_exit(SOON), 64);
    assert!(
        only_error(&gone).contains("--with-pid"),
        "{}",
        gone.errors()
    );
}

#[test]
fn busy_lock_is_reported_and_wait_is_interruptible() {
    let server = RedisServer::start();
    let url = server.url();
    let mut holder = hold(&url, &[]);
    let token = held(&mut holder);
    for wait in ["0", "0.2"] {
        let mut child = hold(&url, &["--wait", wait]);
        child.expect_event("busy", SOON);
        assert_eq!(child.wait_exit(SOON), 1);
    }

    let mut waiting = hold(&url, &[]);
    let mut probe = server.probe();
    eventually("it waits", SOON, || {
        !probe
            .command(&["PUBSUB", "CHANNELS", "*"])
            .texts()
            .is_empty()
    });
    waiting.interrupt();
    assert_eq!(waiting.wait_exit(SOON), 130);
    assert_eq!(
        (waiting.output(), waiting.errors()),
        (String::new(), String::new())
    );

    let mut next = hold(&url, &["--wait", "60"]);
    holder.send("release");
    assert!(held(&mut next) > token);
}

#[test]
fn missing_store_is_reported_with_advice() {
    let mut child = Example::distlock(&["hold", "it"]).spawn();
    assert_eq!(child.wait_exit(SOON), 78, "{}", child.errors());
    let line = only_error(&child);
    assert!(
        line.contains("DISTLOCK_URL") && line.contains("--url"),
        "{line}"
    );
}

#[test]
fn environment_names_the_store() {
    let server = RedisServer::start();
    let mut child = Example::distlock(&["hold", "it"])
        .env("DISTLOCK_URL", &server.url())
        .spawn();
    held(&mut child);
    assert!(server.probe().exists("it"));
}

#[test]
fn fixed_lease_ends_without_input() {
    let server = RedisServer::start();
    let mut child = hold(&server.url(), &["--max-hold", "0.3"]);
    held(&mut child);
    let lost = child.expect_event("lost", SOON);
    assert_eq!(lost["cause"], "the lease ended without a renewal");
    assert_eq!(child.wait_exit(SOON), 75);
}

#[test]
fn deleted_lock_is_lost_at_next_renewal() {
    let server = RedisServer::start();
    let mut child = hold(&format!("{}?watchdog=3s", server.url()), &[]);
    held(&mut child);
    assert_eq!(server.probe().command(&["DEL", "it"]).int(), 1);
    let lost = child.expect_event("lost", SOON);
    assert_eq!(
        lost["cause"],
        "the store says that the lock is not ours any more"
    );
    assert_eq!(child.wait_exit(SOON), 75);
}

#[test]
fn verify_and_release_report_loss_in_store() {
    let server = RedisServer::start();
    for command in ["verify", "release"] {
        let mut child = hold(&server.url(), &[]);
        held(&mut child);
        assert_eq!(server.probe().command(&["DEL", "it"]).int(), 1);
        assert!(ask(&mut child, "check").0, "the loss is not known locally");
        child.send(command);
        if command == "verify" {
            assert_eq!(answer(&mut child, "verify"), (false, 0));
        }
        child.expect_event("lost", SOON);
        assert_eq!(child.wait_exit(SOON), 75);
    }
}

#[test]
fn fair_lock_that_was_handed_over_has_its_whole_lease_at_once() {
    let server = RedisServer::start();
    let url = format!("{}?order=fair", server.url());
    let mut first = hold(&url, &[]);
    held(&mut first);
    let mut second = hold(&url, &[]);
    let mut probe = server.probe();
    waits_in_line(&mut probe);
    first.send("release");
    held(&mut second);
    let (valid, remaining) = ask(&mut second, "check");
    assert!(valid && remaining > 20_000, "{remaining}");
}

#[test]
fn lock_of_a_killed_holder_is_free_within_its_lease() {
    let server = RedisServer::start();
    let lease = scaled(Duration::from_secs(3));
    let url = format!("{}?watchdog={}ms", server.url(), lease.as_millis());
    let mut dead = hold(&url, &[]);
    let token = held(&mut dead);
    await_renewals(&server);
    dead.kill();
    let next = || held(&mut hold(&url, &[]));
    assert!(within(lease, next) > token);
}

/// Waits until the lock is renewed twice.
fn await_renewals(server: &RedisServer) {
    let mut probe = server.probe();
    let before = probe.command_calls("pexpire");
    eventually("it is renewed twice", SOON, || {
        assert!(probe.exists("it"));
        probe.command_calls("pexpire") >= before + 2
    });
}

#[test]
fn holder_paused_past_its_lease_reports_loss_at_first_check() {
    let server = RedisServer::start();
    let lease = scaled(Duration::from_millis(500));
    let url = format!("{}?watchdog={}ms", server.url(), lease.as_millis());
    for asked_while_paused in [true, false] {
        let mut paused = hold(&url, &[]);
        let token = held(&mut paused);
        paused.pause();
        // The second holder's lease outlasts the test.
        let mut next = hold(&server.url(), &[]);
        let next_token = held(&mut next);
        assert!(token < next_token);
        if asked_while_paused {
            paused.send("check");
        }
        paused.resume();
        if !asked_while_paused {
            paused.send("check");
        }
        assert_eq!(answer_or_lost(&mut paused), (false, 0));
        paused.send("release");
        assert_eq!(paused.wait_exit(SOON), 75);
        let said = paused.output();
        assert!(
            said.contains("\"lost\"") && !said.contains("\"released\""),
            "{said}"
        );

        // The late release was refused: the store still has the second holder.
        assert!(ask(&mut next, "verify").0);
        next.send("release");
        next.expect_event("released", SOON);
    }
}

/// Returns the answer to a check. The report of the loss may come before or after the answer.
#[track_caller]
fn answer_or_lost(child: &mut Child) -> (bool, u64) {
    child.expect("the first check", SOON, |line: &Json| {
        match line["event"].as_str() {
            Some("check") => Some((
                line["valid"].as_bool().unwrap(),
                line["remaining_ms"].as_u64().unwrap(),
            )),
            Some("lost") => None,
            _ => panic!("neither a check nor a loss: {line}"),
        }
    })
}

#[test]
fn paused_store_costs_only_renewals() {
    let server = RedisServer::start();
    let lease = scaled(Duration::from_secs(4));
    let url = format!(
        "{}?watchdog={}ms&command_timeout=800ms",
        server.url(),
        lease.as_millis()
    );
    let mut child = hold(&url, &[]);
    held(&mut child);
    server.pause();
    let_pass(lease / 2);
    assert!(ask(&mut child, "check").0, "the lease is not over");
    server.resume();
    await_renewals(&server);
    assert!(ask(&mut child, "check").0, "it was renewed again");
    child.send("release");
    child.expect_event("released", SOON);
}

#[test]
fn failure_is_one_line_with_exit_code() {
    let nowhere = "redis://127.0.0.1:1?outage_limit=200ms";
    let troubles: [(&str, &[&str], i32, &str); 6] = [
        (nowhere, &[], 69, "Connection refused"),
        (nowhere, &["--wait", "0"], 69, "Connection refused"),
        ("redis://127.0.0.1?colour=red", &[], 78, "`colour`"),
        (
            nowhere,
            &["--wait", "soon"],
            64,
            "'soon' for '--wait <SECS>'",
        ),
        (
            nowhere,
            &["--max-hold", "1ms"],
            64,
            "a lease of 1ms is too short",
        ),
        (
            nowhere,
            &["--colour", "red"],
            64,
            "unexpected argument '--colour'",
        ),
    ];
    for (url, arguments, code, what) in troubles {
        let mut child = hold(url, arguments);
        assert_eq!(
            child.wait_exit(SOON),
            code,
            "{arguments:?}: {}",
            child.errors()
        );
        let line = only_error(&child);
        assert!(
            line.starts_with("distlock: ") && line.contains(what),
            "{line}"
        );
        assert_eq!(child.output(), "");
    }
}

#[test]
fn server_refusal_is_reported() {
    let server = RedisServer::start();
    server
        .probe()
        .command(&["CONFIG", "SET", "requirepass", "open"]);
    let url = format!("redis://:wrong-password@127.0.0.1:{}", server.port());
    let mut child = hold(&url, &[]);
    assert_eq!(child.wait_exit(SOON), 78, "{}", child.errors());
    let line = only_error(&child);
    assert!(
        line.contains("WRONGPASS") && !line.contains("wrong-password"),
        "{line}"
    );
}

#[test]
fn foreign_data_under_name_is_reported() {
    let server = RedisServer::start();
    server.probe().command(&["SET", "it", "something else"]);
    let mut child = hold(&server.url(), &[]);
    assert_eq!(child.wait_exit(SOON), 65, "{}", child.errors());
    assert!(
        only_error(&child).contains("choose another name"),
        "{}",
        child.errors()
    );
}

#[test]
fn signals_ignored_at_start_are_no_handlers() {
    let server = RedisServer::start();
    let hold = Example::distlock(&["hold", "--url", &server.url(), "it"]);
    let mut child = hold.with_signals_ignored().spawn();
    held(&mut child);
    child.terminate();
    child.expect_event("released", SOON);
    assert_eq!(child.wait_exit(SOON), 0);
}

//! `watch`: its rounds in a pipe, and the terminal, which it restores at its end.

use crate::{SOON, only_error};
use distlock_tests::child::{Child, Example, distlock};
use distlock_tests::process::RedisServer;
use distlock_tests::redis::client;
use distlock_tests::time::{Stopwatch, eventually};
use rustix::process::Signal;
use serde_json::Value as Json;
use std::time::Duration;

fn watch(server: &RedisServer, words: &[&str]) -> Child {
    let words = [&["watch", "-i", "0.05"], words].concat();
    Example::distlock(&words)
        .env("DISTLOCK_URL", &server.url())
        .spawn()
}

/// Returns the names of the locks in a round.
fn names(round: &Json) -> Vec<&str> {
    let locks = round["locks"].as_array().unwrap();
    locks
        .iter()
        .map(|lock| lock["name"].as_str().unwrap())
        .collect()
}

#[test]
fn rounds_in_a_pipe_are_objects_until_the_signal() {
    let server = RedisServer::start();
    let client = client(&server, "");
    let mut child = watch(&server, &["--json", "orders:*"]);
    let round = |child: &mut Child, wanted: &[&str]| {
        child.expect("a round", SOON, |json| {
            (names(json) == wanted).then(|| json.clone())
        })
    };
    assert_eq!(round(&mut child, &[])["round"], 1);
    let guard = client.owned_mutex("orders:1").unwrap().lock().unwrap();
    let _other = client.owned_mutex("stock").unwrap().lock().unwrap();
    assert_eq!(round(&mut child, &["orders:1"])["complete"], true);
    guard.unlock().unwrap();
    round(&mut child, &[]);
    child.terminate();
    assert_eq!(child.wait_exit(SOON), 143);
}

#[test]
fn count_of_rounds_ends_it_with_a_table_each() {
    let server = RedisServer::start();
    let _guard = client(&server, "")
        .owned_mutex("a")
        .unwrap()
        .lock()
        .unwrap();
    let mut child = watch(&server, &["--count", "3", "a", "b"]);
    assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
    let output = child.output();
    let rounds: Vec<_> = output.split("\n\n").collect();
    assert_eq!(rounds.len(), 3, "{output}");
    for round in rounds {
        let states = round
            .lines()
            .map(|line| line.split_whitespace().take(2).collect::<Vec<_>>());
        assert!(
            states.eq([["NAME", "STATE"], ["a", "held"], ["b", "free"]]),
            "{output}"
        );
    }
    assert!(!output.contains('\x1b'), "{output}");
}

#[test]
fn failed_first_round_ends_it_a_later_one_does_not() {
    let mut server = RedisServer::start();
    let mut child = watch(&server, &["--json"]);
    let any = |json: &Json| json["round"].as_u64();
    child.expect("the first round", SOON, any);
    server.kill();
    eventually("the failure is reported", SOON, || {
        child.errors().contains("check that the store is up")
    });
    assert!(child.is_running());
    let mut first = watch(&server, &["--json"]);
    assert_eq!(first.wait_exit(SOON), 69);
    assert_eq!(
        (only_error(&first).lines().count(), first.output()),
        (1, String::new())
    );
    server.restart();
    let last = child.expect("a round after the restart", SOON, |json| {
        json["locks"].as_array().map(Vec::len)
    });
    assert_eq!(last, 0);
    child.terminate();
    assert_eq!(child.wait_exit(SOON), 143);
}

#[test]
fn pattern_beside_names_is_refused() {
    let server = RedisServer::start();
    let mut child = watch(&server, &["a*", "b"]);
    assert_eq!(child.wait_exit(SOON), 64);
    assert!(
        only_error(&child).contains("a pattern stands alone"),
        "{}",
        child.errors()
    );
}

/// Runs `watch` on a terminal of 50 columns and 5 lines until `end` ends it. Returns what it drew,
/// and what the terminal shows after that: its exit status, and `same` if the terminal's modes are
/// as before.
fn on_a_terminal(server: &RedisServer, end: impl FnOnce(&mut Child)) -> (String, String) {
    reading(server, "/dev/tty", |child, _| end(child))
}

/// Does what [`on_a_terminal`] does, with the keys from the terminal `input`. `end` also gets a
/// function that returns the number of the last round.
fn reading(
    server: &RedisServer,
    input: &str,
    end: impl FnOnce(&mut Child, &dyn Fn() -> u64),
) -> (String, String) {
    let folder = tempfile::tempdir().unwrap();
    let drawn = folder.path().join("drawn");
    // The shell gets the terminal's interrupt, too: the trap keeps it alive.
    let script = r#"trap : INT; stty cols 50 rows 5; stty -g > "$MODES"; echo '{"pid": 0}' > /dev/stderr
        "$DISTLOCK" watch -i 0.05 < "$INPUT"; echo "status $?"; stty -g | diff "$MODES" - && echo same"#;
    let words = [
        "--quiet",
        "--flush",
        "--command",
        script,
        drawn.to_str().unwrap(),
    ];
    let mut child = Example::program("script")
        .args(&words)
        .env("DISTLOCK_URL", &server.url())
        .env("DISTLOCK", distlock().to_str().unwrap())
        .env("SHELL", "/bin/sh")
        .env("INPUT", input)
        .env("MODES", folder.path().join("modes").to_str().unwrap())
        .with_default_signals()
        .spawn();
    let read = || std::fs::read(&drawn).map(|it| String::from_utf8_lossy(&it).into_owned());
    let rounds = || {
        let drawn = read().unwrap_or_default();
        let last = drawn
            .rsplit("round ")
            .find_map(|rest| rest.split_once(';')?.0.parse().ok());
        last.unwrap_or(0)
    };
    eventually("it has drawn two rounds", SOON, || rounds() >= 2);
    end(&mut child, &rounds);
    child.wait_exit(SOON);
    let drawn = read().unwrap();
    let (during, after) = drawn
        .split_once("\x1b[?1049l")
        .unwrap_or_else(|| panic!("{drawn:?}"));
    (during.to_owned(), after.to_owned())
}

#[test]
fn terminal_is_drawn_on_within_its_size_and_restored() {
    let server = RedisServer::start();
    let client = client(&server, "");
    let locks = (1..=9).map(|n| client.owned_mutex(format!("orders:{n}")).unwrap());
    let _guards: Vec<_> = locks.map(|lock| lock.lock().unwrap()).collect();
    let (during, after) = on_a_terminal(&server, |child| child.press("q"));
    assert!(
        after.contains("status 0") && after.contains("same"),
        "{after:?}"
    );
    let begin = during
        .split_once("\x1b[?1049h\x1b[?25l\x1b[?7l")
        .expect("the other screen")
        .1;
    assert!(begin.ends_with("\x1b[?7h\x1b[?25h"), "{begin:?}");
    let mut rounds = begin.split("\x1b[H").skip(1);
    let round: Vec<_> = rounds.next().unwrap().split("\r\n").collect();
    assert_eq!(round.len(), 5, "{round:?}");
    assert!(
        round[0].starts_with("9 held, every 0.05 s, round 1; q ends\x1b[K"),
        "{round:?}"
    );
    assert!(round[2].starts_with("orders:1  held   "), "{round:?}");
    assert!(
        round[4].starts_with(".. and 7 more\x1b[K\x1b[J"),
        "{round:?}"
    );
    let width = |line: &&str| line.split('\x1b').next().unwrap().chars().count();
    assert_eq!(round.iter().map(width).max(), Some(50), "{round:?}");
}

#[test]
fn signal_restores_the_terminal_too() {
    let server = RedisServer::start();
    let (_, after) = on_a_terminal(&server, |child| child.press("\x03"));
    assert!(
        after.contains("status 130") && after.contains("same"),
        "{after:?}"
    );
    let (_, after) = on_a_terminal(&server, |_| {
        crate::signal(watching(&server), Signal::TERM);
    });
    assert!(
        after.contains("status 143") && after.contains("same"),
        "{after:?}"
    );
}

/// Returns the process ID of the `watch` on this server.
fn watching(server: &RedisServer) -> i32 {
    let found = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid = entry.ok()?.file_name().to_str()?.parse::<i32>().ok()?;
        let read = |file| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let says = |file, part: &str| String::from_utf8_lossy(&read(file)).contains(part);
        (says("cmdline", "watch\0-i") && says("environ", &server.url())).then_some(pid)
    });
    let found: Vec<_> = found.collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}

/// Returns the processor time that a process has used.
fn cpu_time(pid: i32) -> Duration {
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields = stat
        .rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .skip(11)
        .take(2);
    fields
        .map(|ticks| TICK * ticks.parse::<u32>().unwrap())
        .sum()
}

/// `watch` reads its keys from one terminal and draws on another. The first one goes away, which
/// must neither end `watch` nor make it read in a busy loop.
#[test]
fn end_of_the_input_is_no_key_and_no_busy_loop() {
    let server = RedisServer::start();
    let script = r#"echo "{\"tty\": \"$(tty)\"}"; sleep 1000"#;
    let words = ["--quiet", "--flush", "--command", script, "/dev/null"];
    let other = Example::program("script")
        .args(&words)
        .env("SHELL", "/bin/sh");
    let mut other = other.with_default_signals().spawn();
    let name = |json: &Json| json["tty"].as_str().map(str::to_owned);
    let input = other.expect("the name of a terminal", SOON, name);
    let (_, after) = reading(&server, &input, |child, rounds| {
        other.kill();
        let pid = watching(&server);
        let (before, used, since) = (rounds(), cpu_time(pid), Stopwatch::start());
        eventually("rounds go on", SOON, || rounds() >= before + 40);
        let (used, time) = (cpu_time(pid) - used, since.elapsed());
        assert!(used < time / 8, "{used:?} of the processor in {time:?}");
        child.press("\x03");
    });
    assert!(after.contains("status 130"), "{after:?}");
}

//! The command `distlock`, run as a user runs it, on real servers.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on panics, and says where"
)]

// `bench`: its figures.
mod bench;

// `config check`, and files that name backends and locks.
mod config;

// `doctor`: dangers, and good servers.
mod doctor;

// `serve`: its page, metrics and JSON.
mod serve;

// `hold`: its protocol.
mod hold;

// `list`, on every kind of store.
mod list;

// Locks that are lost while the command runs.
mod loss;

// `status`, `check`, `wait` and `break`.
mod operators;

// Machines that were paused with their clocks, and whose time of day is set.
mod paused_machine;

// `quorum init` and `quorum status`.
mod quorum;

// `--shared` and `--exclusive`.
mod read_write;

// `run`: waits, exit statuses, environment, refusals.
mod run;

// Signals, and the end of distlock itself.
mod signals;

// Shells with job control.
mod terminal;

// Help, completions, man pages.
mod texts;

// `watch`, in a pipe and on a terminal.
mod watch;

use distlock_tests::child::{Child, Example, distlock};
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::time::{eventually, let_pass, ms, scaled};
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;

/// The bound on steps that take no time on an idle machine.
const SOON: Duration = Duration::from_secs(60);

/// Starts `distlock run` for the lock `it` on this server, with these options.
fn run(server: &RedisServer, options: &[&str], command: &[&str]) -> Child {
    run_on(&server.url(), options, command)
}

fn run_on(url: &str, options: &[&str], command: &[&str]) -> Child {
    let words = [&["run"], options, &["it", "--"], command].concat();
    Example::distlock(&words)
        .env("DISTLOCK_URL", url)
        .with_default_signals()
        .spawn()
}

/// Starts `distlock run` for the lock `it` with a script for `sh` as its command.
fn run_script(server: &RedisServer, options: &[&str], script: &str) -> Child {
    run(server, options, &["sh", "-c", script])
}

/// Starts a shell that runs `starts`, whose arguments are the words of a `distlock run` for this
/// lock and script. `starts` ends with `exec "$@"`, which replaces the shell by that run.
fn run_in_place_of_shell(server: &RedisServer, starts: &str, lock: &str, script: &str) -> Child {
    let program = distlock();
    let run = [
        program.to_str().unwrap(),
        "run",
        lock,
        "--",
        "sh",
        "-c",
        script,
    ];
    Example::program("sh")
        .args(&[&["-c", starts, "sh"], &run[..]].concat())
        .env("DISTLOCK_URL", &server.url())
        .spawn()
}

/// Waits until a process leads a group of its own.
#[track_caller]
fn leads_its_group(pid: i32) {
    eventually("it has left the group", SOON, || {
        stat(pid).expect("it runs").2 == pid
    });
}

/// Waits for an error message on standard error and returns it. Panics if it has more than one
/// line.
#[track_caller]
fn only_error(child: &Child) -> String {
    let errors = eventually("a line on standard error", SOON, || {
        let errors = child.errors();
        errors.ends_with('\n').then_some(errors)
    });
    assert_eq!(errors.lines().count(), 1, "{errors}");
    errors
}

/// Waits for `{"pid": ..}` and returns the number.
#[track_caller]
fn said_pid(child: &mut Child) -> i32 {
    let number = |json: &serde_json::Value| json["pid"].as_i64();
    let pid = child.expect("the number of a process", SOON, number);
    i32::try_from(pid).unwrap()
}

/// Waits until a process waits for a fair lock, so that a release hands the lock over to it.
#[track_caller]
fn waits_in_line(probe: &mut Probe) {
    eventually("it listens", SOON, || {
        !probe
            .command(&["PUBSUB", "CHANNELS", "distlock_queue:*"])
            .texts()
            .is_empty()
    });
    // The process tries once more after its subscription.
    let_pass(scaled(ms(300)));
}

/// Returns the state, the parent and the group of a process; `None` if it has ended.
fn stat(pid: i32) -> Option<(char, i32, i32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // "12 (name, with anything in it) S 11 10 .."
    let mut fields = stat.rsplit(')').next()?.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let mut number = || fields.next()?.parse().ok();
    let found = (state, number()?, number()?);
    (state != 'Z' && state != 'X').then_some(found)
}

fn is_alive(pid: i32) -> bool {
    stat(pid).is_some()
}

/// Returns the parent of this process.
fn parent_of(pid: i32) -> i32 {
    stat(pid).expect("it runs").1
}

/// Sends the signal to this process alone.
fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).expect("a process of ours can be told");
}

//! A shell with job control, on a terminal of its own: Ctrl-Z, `fg`, Ctrl-C.

use crate::{SOON, is_alive, parent_of, run_script, said_pid, stat};
use distlock_tests::child::{Child, Example, distlock};
use distlock_tests::process::RedisServer;
use distlock_tests::time::{always, eventually, ms, scaled};
use std::time::Duration;

/// Starts an interactive shell that prints no prompts and does not echo its input.
fn shell(server: &RedisServer) -> Child {
    let words = [
        "--quiet",
        "--flush",
        "--command",
        "bash --norc --noprofile -i",
        "/dev/null",
    ];
    let mut shell = Example::program("script")
        .args(&words)
        .env("DISTLOCK_URL", &server.url())
        .env("DISTLOCK", distlock().to_str().unwrap())
        .with_default_signals()
        .spawn();
    shell.send("PS1=; stty -echo; echo; echo '{\"pid\": 0}'");
    assert_eq!(said_pid(&mut shell), 0);
    shell
}

/// Returns the process group in the foreground of the terminal of this process.
fn foreground(pid: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')')
        .next()
        .unwrap()
        .split_whitespace()
        .nth(5)
        .unwrap()
        .parse()
        .unwrap()
}

/// Waits until the process is in the foreground and sleeps, as it does when it waits for input.
fn await_foreground(pid: i32) {
    eventually("it is in the foreground", SOON, || {
        stat(pid).is_some_and(|(state, _, group)| state == 'S' && foreground(pid) == group)
    });
}

fn said_status(shell: &mut Child) -> i64 {
    shell.expect("a status", SOON, |json| json["status"].as_i64())
}

#[test]
fn ctrl_z_stops_both_and_fg_continues_both() {
    let server = RedisServer::start();
    let mut shell = shell(&server);
    let lease = scaled(Duration::from_secs(1));
    shell.send(&format!(
        r#""$DISTLOCK" run --lease {}ms it -- bash -c 'echo "{{\"pid\": $$}}"; read -r it; echo "{{\"status\": $it}}"; exit 3'; echo "{{\"status\": $?}}""#,
        lease.as_millis()
    ));
    let pid = said_pid(&mut shell);
    let front = parent_of(parent_of(pid));
    await_foreground(pid);
    shell.press("\x1a");
    assert_eq!(
        said_status(&mut shell),
        128 + 20,
        "the shell sees a stopped job"
    );
    let state = |pid| stat(pid).expect("it is there").0;
    assert_eq!((state(pid), state(front)), ('T', 'T'));
    let mut probe = server.probe();
    always("the lock is renewed", lease * 2, || {
        probe.exists("it") && state(pid) == 'T'
    });
    shell.send("fg");
    await_foreground(pid);
    shell.send("42");
    assert_eq!(said_status(&mut shell), 42, "it reads from the terminal");
    shell.send("echo \"{\\\"status\\\": $?}\"");
    assert_eq!(
        said_status(&mut shell),
        3,
        "the shell has the terminal again"
    );
    assert!(!is_alive(pid) && !probe.exists("it"));
}

#[test]
fn ctrl_z_during_the_wait_delays_the_command() {
    let server = RedisServer::start();
    let mut holder = run_script(&server, &[], "echo '{\"pid\": 0}'; read -r _; exit 0");
    said_pid(&mut holder);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ran");
    let mut shell = shell(&server);
    shell.send(&format!(
        r#""$DISTLOCK" run it -- touch {}; echo "{{\"status\": $?}}""#,
        file.display()
    ));
    let mut probe = server.probe();
    eventually("it waits", SOON, || {
        let channels = probe.command(&["PUBSUB", "CHANNELS", "distlock_queue:2:*"]);
        !channels.texts().is_empty()
    });
    shell.press("\x1a");
    assert_eq!(said_status(&mut shell), 128 + 20);
    let of_the_holder = probe.hgetall("it");
    holder.close_input();
    eventually("it has the lock", SOON, || {
        let now = probe.hgetall("it");
        !now.is_empty() && now != of_the_holder
    });
    always("the command waits for `fg`", ms(300), || !file.exists());
    shell.send("fg");
    eventually("the command has run", SOON, || {
        file.exists() && !probe.exists("it")
    });
}

#[test]
fn ctrl_c_reaches_the_command() {
    let server = RedisServer::start();
    let mut shell = shell(&server);
    shell.send(
        r#""$DISTLOCK" run it -- bash -c 'trap "exit 4" INT; echo "{\"pid\": $$}"; while :; do sleep 0.05; done'; echo "{\"status\": $?}""#,
    );
    let pid = said_pid(&mut shell);
    await_foreground(pid);
    shell.press("\x03");
    shell.send("echo \"{\\\"status\\\": $?}\"");
    assert_eq!(said_status(&mut shell), 4);
}

/// A command behind the pipe may read from the terminal, as a pager does.
#[test]
fn rest_of_a_pipeline_keeps_the_terminal() {
    let server = RedisServer::start();
    let mut shell = shell(&server);
    // The reader reads from the terminal only after the command has started.
    let reader = r#"(read -r line; echo "$line"; read -r it < /dev/tty; echo "{\"status\": $it}")"#;
    let command = r#"echo "{\"pid\": $$}"; sleep 600"#;
    shell.send(&format!(
        r#""$DISTLOCK" run it -- bash -c '{command}' | {reader}"#
    ));
    said_pid(&mut shell);
    shell.send("42");
    assert_eq!(said_status(&mut shell), 42, "it reads from the terminal");
    shell.press("\x03");
    shell.send("echo '{\"status\": 5}'");
    assert_eq!(said_status(&mut shell), 5);
    let mut probe = server.probe();
    eventually("the lock is free", SOON, || !probe.exists("it"));
}

//! Signals to `distlock run`, and its end by SIGKILL.

use crate::{
    SOON, is_alive, leads_its_group, parent_of, run, run_in_place_of_shell, run_script, said_pid,
    signal, stat,
};
use distlock_tests::child::{Child, Example};
use distlock_tests::process::RedisServer;
use distlock_tests::time::{always, eventually, ms};
use rustix::process::{Pid, Signal, kill_process_group};

/// A command with two descendants, all of which ignore HUP, INT and TERM: a child in the process
/// group of the command, and a grandchild in another group, below `timeout`. Each prints its
/// process ID.
const STUBBORN: &str = r#"
    trap '' HUP INT TERM
    say() { echo "{\"pid\": $1}"; }
    say $$
    sh -c 'echo "{\"pid\": $$}"; while :; do sleep 1000; done' &
    timeout 1000 sh -c 'echo "{\"pid\": $$}"; while :; do sleep 1000; done' &
    while :; do sleep 1000; done"#;

/// Starts [`STUBBORN`]. Returns the process IDs of the command, of its child in the same group, and
/// of its grandchild in the other group.
fn stubborn(server: &RedisServer, options: &[&str]) -> (Child, [i32; 3]) {
    let mut child = run_script(server, options, STUBBORN);
    let mut pids = [0; 3].map(|_| said_pid(&mut child));
    // The command prints its process ID before it starts the others.
    let command = pids[0];
    pids.sort_by_key(|pid| (*pid != command, stat(*pid).map(|stat| stat.2 != command)));
    let groups = pids.map(|pid| stat(pid).expect("it runs").2);
    assert_eq!(groups[..2], [command; 2]);
    assert_ne!(groups[2], command, "`timeout` leaves the group");
    (child, pids)
}

#[track_caller]
fn all_are_gone(pids: [i32; 3]) {
    eventually("all processes are gone", SOON, || {
        !pids.iter().any(|pid| is_alive(*pid))
    });
}

/// A script that prints 0 when it is ready, and 1 when it gets the signal that `$1` names.
const LISTENER: &str = r#"
    trap 'echo "{\"pid\": 1}"; exit 0' $1
    echo "{\"pid\": 0}"
    while :; do sleep 0.05; done"#;

#[test]
fn signals_reach_grandchildren() {
    let server = RedisServer::start();
    for (name, number) in [
        ("HUP", 1),
        ("INT", 2),
        ("QUIT", 3),
        ("USR1", 10),
        ("USR2", 12),
        ("TERM", 15),
    ] {
        let script = format!("trap 'got=1' {name}; sh -c \"$1\" _ {name}; exit $((got + 10))");
        let mut child = run(&server, &[], &["bash", "-c", &script, "_", LISTENER]);
        assert_eq!(said_pid(&mut child), 0);
        signal(front(&child), Signal::from_named_raw(number).unwrap());
        assert_eq!(said_pid(&mut child), 1, "the grandchild got {name}");
        assert_eq!(child.wait_exit(SOON), 11, "and its parent, too");
    }
}

fn front(child: &Child) -> i32 {
    i32::try_from(child.id()).unwrap()
}

#[test]
fn signal_ends_the_wait() {
    let server = RedisServer::start();
    let mut holder = run_script(&server, &[], "echo '{\"pid\": 0}'; read -r _; exit 0");
    said_pid(&mut holder);
    for (ends, status) in [(Signal::TERM, 143), (Signal::INT, 130), (Signal::USR1, 138)] {
        let mut waiter = run(&server, &["--verbose"], &["echo", "inside"]);
        eventually("it waits", SOON, || waiter.errors().contains("waiting"));
        signal(front(&waiter), ends);
        assert_eq!(waiter.wait_exit(SOON), status);
        assert_eq!(waiter.output(), "");
    }
    // SIGKILL of the front process ends the wait, too: otherwise the supervisor would wait on and
    // take the lock.
    let mut waiter = run(&server, &["--verbose"], &["echo", "inside"]);
    eventually("it waits", SOON, || waiter.errors().contains("waiting"));
    let front = front(&waiter);
    signal(front, Signal::KILL);
    waiter.wait_exit(SOON);
    let mut probe = server.probe();
    eventually("it has gone from the queue", SOON, || {
        probe.connections() == 0 || {
            let waits = probe.command(&["PUBSUB", "CHANNELS", "distlock_queue:2:*"]);
            waits.texts().is_empty()
        }
    });
    holder.close_input();
    assert_eq!(holder.wait_exit(SOON), 0);
    assert_eq!(waiter.output(), "");
}

/// A process that has left the group, as `timeout` does in a script, but not the session.
#[test]
fn signal_also_ends_what_has_left_the_group() {
    let server = RedisServer::start();
    for (ends, options) in [
        (Signal::TERM, &[][..]),
        (Signal::INT, &["--release", "group"]),
    ] {
        let script = r#"timeout 1000 sleep 1000 & echo "{\"pid\": $!}"; wait"#;
        let mut child = run(&server, options, &["bash", "-c", script]);
        let apart = said_pid(&mut child);
        leads_its_group(apart);
        signal(front(&child), ends);
        child.wait_exit(SOON);
        assert!(!is_alive(apart), "{ends:?}");
        assert!(!server.probe().exists("it"), "{ends:?}");
    }
    // While a process that ignores the signal runs, the lock is held.
    let stubborn = r#"trap '' TERM; echo "{\"pid\": $$}"; exec sleep 1000"#;
    let script = r#"timeout 1000 sh -c "$0" & wait"#;
    let mut child = run(&server, &[], &["bash", "-c", script, stubborn]);
    let apart = said_pid(&mut child);
    signal(front(&child), Signal::TERM);
    always("the lock is held", ms(300), || {
        server.probe().exists("it") && is_alive(apart)
    });
    signal(apart, Signal::KILL);
    child.wait_exit(SOON);
    assert!(!server.probe().exists("it"));
}

/// HUP may tell a command to read its settings again. A command that handles HUP decides itself
/// what happens to its processes outside the group.
#[test]
fn hang_up_that_the_command_handles_reaches_its_group_alone() {
    let server = RedisServer::start();
    let script = r#"trap 'echo "{\"pid\": 1}"' HUP
        timeout 1000 sleep 1000 & echo "{\"pid\": $!}"
        while read -r _ || [ $? -gt 128 ]; do :; done; kill %1; exit 0"#;
    let mut child = run(&server, &[], &["bash", "-c", script]);
    let apart = said_pid(&mut child);
    leads_its_group(apart);
    signal(front(&child), Signal::HUP);
    assert_eq!(said_pid(&mut child), 1);
    always("it runs", ms(300), || is_alive(apart));
    child.close_input();
    signal(front(&child), Signal::TERM);
    child.wait_exit(SOON);
    eventually("it is gone", SOON, || !is_alive(apart));
}

/// A stopped process in a group of its own is continued: otherwise it would not act on the signal,
/// and would keep the lock held.
#[test]
fn signal_also_ends_what_is_stopped() {
    let server = RedisServer::start();
    let script = r#"timeout 1000 sleep 1000 & echo "{\"pid\": $!}"; wait"#;
    let mut child = run(&server, &[], &["bash", "-c", script]);
    let apart = said_pid(&mut child);
    leads_its_group(apart);
    signal(apart, Signal::STOP);
    signal(front(&child), Signal::TERM);
    assert_eq!(child.wait_exit(SOON), 143);
    assert!(!is_alive(apart) && !server.probe().exists("it"));
}

/// Process 1 of a container becomes the parent of all processes whose parents have ended. Their
/// exits must be collected, too.
#[test]
fn orphans_leave_no_zombies() {
    let server = RedisServer::start();
    // Gives `run` children that it has not started: `exec` keeps the process, and so its children.
    let starts = r#"for i in 1 2 3; do sleep 0.05 & done; exec "$@""#;
    let mut other = run_in_place_of_shell(&server, starts, "other", "read -r _");
    let parent = i32::try_from(other.id()).unwrap();
    eventually("only the supervisor is left", SOON, || {
        let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        children.is_ok_and(|children| children.split_whitespace().count() == 1)
            && server.probe().exists("other")
    });
    other.close_input();
    other.wait_exit(SOON);
}

#[test]
fn killed_front_takes_all_descendants_with_it() {
    let server = RedisServer::start();
    let (mut child, pids) = stubborn(&server, &["--kill-after", "0.2"]);
    signal(front(&child), Signal::KILL);
    all_are_gone(pids);
    // The lock is released. Otherwise it would be held until its lease of 30 s ends.
    eventually("the lock is free", SOON, || !server.probe().exists("it"));
    assert_eq!(child.wait_exit(SOON), 128 + 9);
}

#[test]
fn killed_supervisor_takes_all_descendants_with_it() {
    let server = RedisServer::start();
    let (mut child, pids) = stubborn(&server, &[]);
    signal(parent_of(pids[0]), Signal::KILL);
    assert_eq!(child.wait_exit(SOON), 75);
    assert!(
        !pids.iter().any(|pid| is_alive(*pid)),
        "gone before it ends"
    );
    assert!(
        child.errors().contains("free when its lease ends"),
        "{}",
        child.errors()
    );
}

#[test]
fn command_dies_with_both_processes_above_it() {
    let server = RedisServer::start();
    let (child, pids) = stubborn(&server, &[]);
    let both = [front(&child), parent_of(pids[0])];
    let groups = pids.map(|pid| Pid::from_raw(stat(pid).expect("it runs").2).unwrap());
    // Both are stopped first, so that neither can react to the end of the other.
    both.iter().for_each(|pid| signal(*pid, Signal::STOP));
    both.iter().for_each(|pid| signal(*pid, Signal::KILL));
    eventually("the command is gone", SOON, || !is_alive(pids[0]));
    // The other processes would outlive the test.
    for group in groups {
        let _gone = kill_process_group(group, Signal::KILL);
    }
    all_are_gone(pids);
}

#[test]
fn supervisor_cannot_be_stopped_for_long() {
    let server = RedisServer::start();
    let (child, pids) = stubborn(&server, &["--lease", "3"]);
    let supervisor = parent_of(pids[0]);
    assert_eq!(parent_of(supervisor), front(&child));
    signal(supervisor, Signal::STOP);
    let mut probe = server.probe();
    let before = probe.command_calls("pexpire");
    eventually("it renews", SOON, || {
        probe.command_calls("pexpire") > before + 1
    });
}

#[test]
fn signals_ignored_at_start_stay_ignored() {
    let server = RedisServer::start();
    let script = "echo '{\"pid\": 0}'; read -r _; exit 6";
    let words = [
        "run",
        "--url",
        &server.url(),
        "it",
        "--",
        "sh",
        "-c",
        script,
    ];
    let mut child = Example::distlock(&words).with_signals_ignored().spawn();
    said_pid(&mut child);
    for ignored in [Signal::HUP, Signal::INT, Signal::TERM] {
        signal(front(&child), ignored);
    }
    child.close_input();
    assert_eq!(child.wait_exit(SOON), 6);
}

//! Which commands are sent: `WAIT` right after a write that replicas must confirm, on the same
//! connection, and nowhere else.

use super::{LONG, client};
use distlock::LockOptions;
use distlock_tests::probe::{Probe, Value};
use distlock_tests::proxy::{Fault, Proxy, Sometimes, Turn};
use distlock_tests::replicas::Replicated;
use distlock_tests::resp::Kind;
use distlock_tests::time::{eventually, ms};
use std::collections::HashMap;
use std::sync::Arc;

/// The commands that the master receives, as its `MONITOR` shows them.
struct Monitor(Probe);

impl Monitor {
    fn start(servers: &Replicated) -> Self {
        let mut probe = servers.master.probe();
        assert_eq!(probe.command(&["MONITOR"]).text(), "OK");
        Self(probe)
    }

    /// Returns the commands since the start as pairs of a connection and a command. Ends the
    /// monitor by a command of its own.
    fn commands(mut self, servers: &Replicated) -> Vec<(String, String)> {
        servers.master.probe().command(&["ECHO", "the end"]);
        let mut commands = Vec::new();
        loop {
            let Value::Text(line) = self.0.read_value().unwrap() else {
                panic!("no line")
            };
            // 1700000000.123456 [0 127.0.0.1:4711] "EVALSHA" "..."
            let (head, words) = line.split_once("] ").unwrap();
            let from = head.split_once("[0 ").unwrap().1.to_owned();
            let words = words.replace('"', "");
            if words == "ECHO the end" {
                return commands;
            }
            if from != "lua" {
                commands.push((from, words));
            }
        }
    }
}

/// Asserts that every `WAIT` directly follows a script on the same connection, and returns how
/// often there is one.
fn waits_behind_writes(commands: &[(String, String)]) -> usize {
    let mut by_connection: HashMap<&str, Vec<&str>> = HashMap::new();
    for (from, command) in commands {
        by_connection.entry(from).or_default().push(command);
    }
    let mut waits = 0;
    for commands in by_connection.values() {
        for (at, _) in commands
            .iter()
            .enumerate()
            .filter(|(_, it)| it.starts_with("WAIT "))
        {
            assert!(commands[at - 1].starts_with("EVAL"), "{commands:?}");
            waits += 1;
        }
    }
    waits
}

#[test]
fn wait_follows_the_write_on_its_connection() {
    let servers = Replicated::start(1);
    let client = client(&servers, "replicas=1");
    let lock = client.mutex("a").unwrap();
    lock.lock().unwrap().unlock().unwrap(); // the server knows the scripts from here on
    let monitor = Monitor::start(&servers);
    for _ in 0..10 {
        lock.lock().unwrap().unlock().unwrap();
    }
    let commands = monitor.commands(&servers);
    assert_eq!(
        waits_behind_writes(&commands),
        10,
        "one for each acquire: {commands:#?}"
    );
    let scripts = commands
        .iter()
        .filter(|(_, command)| command.starts_with("EVALSHA"))
        .count();
    assert_eq!(scripts, 20, "and none for releases");
    assert!(
        commands
            .iter()
            .any(|(_, command)| command.starts_with("WAIT 1 1000"))
    );
}

#[test]
fn write_and_wait_arrive_in_a_single_read() {
    let servers = Replicated::start(1);
    let lock = client(&servers, "replicas=1").mutex("a").unwrap();
    lock.lock().unwrap().unlock().unwrap();
    let mut probe = servers.master.probe();
    let reads = |probe: &mut Probe| probe.stat("total_reads_processed");
    // The replica's acknowledgements count as reads, too. With them and the client's two requests,
    // a round has four reads at most.
    let before = (reads(&mut probe), probe.stat("total_connections_received"));
    for _ in 0..50 {
        lock.lock().unwrap().unlock().unwrap();
    }
    let after = (reads(&mut probe), probe.stat("total_connections_received"));
    assert!(
        after.0 - before.0 < 50 * 4,
        "{} reads for 50 rounds",
        after.0 - before.0
    );
    assert_eq!(after.1, before.1, "no connection was made anew");
}

#[test]
fn request_without_a_policy_sends_no_wait() {
    let servers = Replicated::start(1);
    let lock = client(&servers, "").mutex("a").unwrap();
    let mut probe = servers.master.probe();
    probe.reset_stats();
    let guard = lock
        .lock_with(&LockOptions::new().watched(ms(3_000)))
        .unwrap();
    eventually("it is renewed", LONG, || {
        probe.command_calls("evalsha") + probe.command_calls("eval") > 2
    });
    guard.unlock().unwrap();
    assert_eq!(probe.command_calls("wait"), 0);
}

#[test]
fn single_wait_confirms_a_whole_batch_of_renewals() {
    let servers = Replicated::start(1);
    let client = client(&servers, "replicas=1");
    let guards: Vec<_> = (0..90)
        .map(|n| {
            let lock = client.owned_mutex(format!("many:{n}").as_str()).unwrap();
            lock.lock_with(&LockOptions::new().watched(ms(6_000)))
                .unwrap()
        })
        .collect();
    let mut probe = servers.master.probe();
    probe.reset_stats();
    // Each renewal calls `HEXISTS` once.
    eventually("all are renewed", LONG, || {
        probe.command_calls("hexists") >= 90
    });
    let (waits, batches) = (
        probe.command_calls("wait"),
        probe.command_calls("evalsha") + probe.command_calls("eval"),
    );
    assert!(
        waits > 0 && waits <= batches && waits < 60,
        "{waits} for {batches} batches"
    );
    assert!(guards.iter().all(|guard| guard.is_valid()));
}

/// A dropped guard does not wait for the reply to its release, and an attempt under a policy uses
/// another connection: that attempt must not overtake the release.
#[test]
fn dropped_lock_under_a_policy_is_free_for_the_next_attempt() {
    let servers = Replicated::start(1);
    let slow = Sometimes::new(Some(Kind::Release), Turn::Every(1), Fault::Delay(ms(50)));
    let proxy = Proxy::new(servers.master.port(), Arc::new(slow));
    let client = distlock::connect(&proxy.url()).unwrap();
    let lock = client.mutex("a").unwrap();
    let options = LockOptions::new().replication(distlock::config::Replication::replicas(1));
    for round in 0..10 {
        drop(lock.try_lock().unwrap().expect("it is free"));
        drop(
            lock.try_lock_with(&options)
                .unwrap()
                .unwrap_or_else(|| panic!("busy, round {round}")),
        );
    }
}

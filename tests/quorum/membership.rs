//! The choice of a quorum's members: what a server records, and what a late request must not
//! change.

use distlock_tests::probe::{Probe, Value};
use distlock_tests::process::RedisServer;
use distlock_tests::quorum::{Servers, admit};
use distlock_tests::time::{eventually, scaled};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
const MARK: &str = include_str!("../../lock-redis/src/lua/mark.lua");
const MARKER: &str = "distlock_quorum";

/// A server, to which the tests send the same requests as the library.
struct Member {
    probe: Probe,
    run_id: String,
}

impl Member {
    fn of(server: &RedisServer) -> Self {
        let mut probe = server.probe();
        let run_id = probe.info_field("server", "run_id").unwrap();
        Self { probe, run_id }
    }

    /// Runs `mark.lua` with these arguments, and returns whether the server did what they request.
    fn mark(&mut self, words: &[&str]) -> bool {
        let command = [&["EVAL", MARK, "1", MARKER, &self.run_id], words].concat();
        match self.probe.command(&command) {
            Value::List(state) => state[3] == Value::Int(1),
            other => panic!("{other:?}"),
        }
    }

    /// Makes the server a node in this epoch, in place of the marker `replaced`. Returns whether
    /// the server became one.
    fn is_admitted(&mut self, epoch: &str, replaced: &str, chooses: bool) -> bool {
        let later = if chooses { "0" } else { "1" };
        let members = format!("{}@h:1 b@h:2 c@h:3", self.run_id);
        let words = [
            "record", "q", epoch, &members, "1000", "2000", "1000", "0", replaced, later,
        ];
        self.mark(&words)
    }

    fn promises(&mut self, epoch: &str, ballot: &str) -> bool {
        self.mark(&["promise", "q", epoch, ballot])
    }

    fn accepts(&mut self, epoch: &str, ballot: &str) -> bool {
        self.mark(&["accept", "q", epoch, ballot, "q 1000 2000 a@h:1"])
    }

    fn field(&mut self, name: &str) -> String {
        self.probe.hgetall(MARKER)[name].clone()
    }
}

/// The server may have made a promise before it lost its data. Without this rule it could break
/// that promise.
#[test]
fn readmitted_server_chooses_from_the_next_epoch_on() {
    let server = RedisServer::start();
    let mut member = Member::of(&server);
    assert!(member.is_admitted("1", "", true));
    assert!(member.promises("1", "7") && member.accepts("1", "7"));
    member.probe.command(&["FLUSHALL"]);
    assert!(member.is_admitted("1", "", false));
    assert!(!member.promises("1", "8") && !member.accepts("1", "8"));
    let members = member.field("members");
    assert!(member.mark(&[
        "record", "q", "2", &members, "1000", "2000", "", "", "", "0"
    ]));
    assert!(member.promises("2", "1") && member.accepts("2", "1"));
}

#[test]
fn late_record_does_not_replace_a_later_marker() {
    let server = RedisServer::start();
    let mut member = Member::of(&server);
    assert!(member.is_admitted("1", "", true));
    let seen = format!("1 {} q", member.field("since"));
    let members = member.field("members");
    assert!(member.mark(&[
        "record", "q", "2", &members, "1000", "2000", "", "", "", "0"
    ]));
    assert!(!member.is_admitted("1", &seen, true));
    assert_eq!(member.field("epoch"), "2");
    let seen = format!("2 {} q", member.field("since"));
    assert!(member.is_admitted("5", &seen, true));
    assert!(
        !member.is_admitted("5", &seen, true),
        "the same request once more"
    );
}

/// The readmitted servers must take part in the next choices: otherwise there would be no majority
/// for the last one.
#[test]
fn servers_emptied_one_after_another_are_all_replaced() {
    let options = "max_lease=1s&node_timeout=500ms&watchdog=800ms&command_timeout=1s";
    let mut quorum = Servers::with(3, 0, options);
    let client = quorum.client();
    let lock = client.mutex("a").unwrap();
    for at in 0..3 {
        quorum.servers[at].restart();
        admit(&quorum.servers[at]);
        // If a second server were emptied before that, no majority could readmit it.
        eventually(
            "it is a node again, and takes part in the next choice",
            SOON,
            || {
                let _outcome = lock.try_lock();
                let marker = quorum.servers[at].probe().hgetall(MARKER);
                !marker.is_empty() && marker.get("admitted") != marker.get("epoch")
            },
        );
        drop(
            lock.try_lock_for(scaled(SOON))
                .unwrap()
                .expect("a majority votes"),
        );
    }
}

//! Slots that move between two commands of one attempt, in the early formats that need several
//! commands.

use crate::stage::{Client, Hold};
use distlock::Config;
use distlock::backend::{Answer, ClientId, Context, Failure};
use distlock::time::SystemClock;
use distlock_tests::cluster::Cluster;
use distlock_tests::probe::Probe;
use lock_cluster::ClusterMap;
use lock_redis::servers::Format;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The lease that the clients of the stage ask for.
const LEASE: Duration = Duration::from_secs(60);

/// How far the slot has moved when the attempt continues.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// The keys have moved: the old node answers `ASK` to a request for one of them.
    Keys,
    /// All nodes know the new owner.
    All,
}

/// A format, and the command before which an attempt is stopped.
struct Case {
    format: &'static str,
    step: &'static [&'static str],
    /// Whether an expired lock is stored before the attempt.
    expired: bool,
    /// A command, and how often the nodes must execute it in all, also in a script or a
    /// transaction.
    sent: (&'static str, u64),
}

const fn case(
    format: &'static str,
    step: &'static [&'static str],
    expired: bool,
    sent: (&'static str, u64),
) -> Case {
    Case {
        format,
        step,
        expired,
        sent,
    }
}

/// Every place between two commands of an attempt that is granted.
const CASES: [Case; 6] = [
    case("plain,commands", &["EXPIRE"], false, ("setnx", 1)),
    case("counter,commands", &["EXPIRE"], false, ("incr", 1)),
    case("timestamp", &["GET"], true, ("setnx", 1)),
    case("timestamp", &["GETSET"], true, ("getset", 1)),
    case("timestamp,takeover=delete", &["DEL"], true, ("del", 1)),
    case("timestamp,takeover=delete", &["SETNX"], true, ("setnx", 2)),
];

/// A lock of this format, in a slot of its own, and the nodes that the slot moves from and to.
struct Place<'a> {
    cluster: &'a Cluster,
    format: &'a str,
    prefix: String,
    slot: u16,
    from: usize,
    to: usize,
}

impl<'a> Place<'a> {
    fn new(cluster: &'a Cluster, format: &'a str) -> Self {
        let prefix = format!("{:x}:", fastrand::u64(..));
        let slot = cluster.slot(&format!("{prefix}x"));
        let from = cluster.owner(slot);
        Self {
            cluster,
            format,
            prefix,
            slot,
            from,
            to: (from + 1) % 3,
        }
    }

    fn key(&self) -> String {
        format!("{}x", self.prefix)
    }

    fn client(&self) -> Client {
        self.client_by(&self.cluster.url())
    }

    fn client_by(&self, url: &str) -> Client {
        let url = format!("{url}?format={}&prefix={}", self.format, self.prefix);
        let (hold, id) = (Arc::<Hold>::default(), ClientId::random());
        let context = Context::new(Arc::new(SystemClock), id);
        let config = Config::from_url(&url).unwrap();
        let build = |format| ClusterMap::store(&config, &context, format);
        let backend =
            Format::open_store(&config, &context, Some(Arc::clone(&hold) as _), build).unwrap();
        Client::on(backend, id, hold)
    }

    fn move_away(&self, way: Way) {
        self.cluster.begin_to_move(self.slot, self.from, self.to);
        self.cluster.move_keys(self.slot, self.from, self.to);
        if way == Way::All {
            self.arrive();
        }
    }

    fn arrive(&self) {
        self.cluster.end_to_move(self.slot, self.from, self.to);
        self.cluster.wait_for_owner(self.slot, self.to);
    }

    /// Returns how often the first three nodes, the masters, have executed this command.
    fn calls(&self, command: &str) -> u64 {
        (0..3)
            .map(|node| self.cluster.node(node).probe().command_calls(command))
            .sum()
    }

    fn probe(&self) -> Probe {
        self.cluster.node(self.to).probe()
    }

    /// Returns the key's value and its time to live.
    fn stored(&self) -> (Option<String>, Option<Duration>) {
        let mut probe = self.probe();
        (probe.get(&self.key()), probe.pttl(&self.key()))
    }
}

fn is_granted(outcome: &Result<Answer, Failure>) -> bool {
    matches!(outcome, Ok(Answer::Granted(_)))
}

#[test]
fn attempt_continues_on_the_new_node_between_two_commands() {
    let cluster = Cluster::steady();
    for way in [Way::Keys, Way::All] {
        for Case {
            format,
            step,
            expired,
            sent: (command, times),
        } in CASES
        {
            let told = format!("{format} at {step:?}, {way:?}");
            let place = Place::new(&cluster, format);
            if expired {
                let past = ["SET", &place.key(), "1500000000"];
                assert_eq!(cluster.probe(&place.key()).command(&past).text(), "OK");
            }
            let (one, other) = (place.client(), place.client());
            let before = place.calls(command);
            let attempt = one.until(step, Client::attempt);
            assert!(attempt.is_held_up(), "{told}");
            place.move_away(way);
            let outcome = attempt.go_on();
            assert!(is_granted(&outcome), "{told}: {outcome:?}");
            assert_eq!(place.calls(command) - before, times, "{told}: {command}");
            if way == Way::Keys {
                place.arrive();
            }
            let (value, left) = place.stored();
            // In the timestamp formats the expiry is the value, so the key has no time to live.
            let has_end = !format.starts_with("timestamp");
            assert_eq!(
                left.is_some_and(|left| left <= LEASE),
                has_end,
                "{told}: {left:?}"
            );
            assert!(value.is_some_and(|value| value != "1500000000"), "{told}");
            assert!(!other.take(), "{told}: it is held");
            assert!(one.give_back() && other.take(), "{told}: it is given back");
            assert!(other.give_back(), "{told}");
        }
    }
}

/// A release that is interrupted by the move deletes the key once, on the node that has it.
#[test]
fn release_continues_on_the_new_node_between_two_commands() {
    let cluster = Cluster::steady();
    for way in [Way::Keys, Way::All] {
        for format in ["timestamp,float", "timestamp", "plain", "counter"] {
            let place = Place::new(&cluster, format);
            let client = place.client();
            assert!(client.take());
            let before = place.calls("del");
            let release = client.until(&["DEL"], Client::give_back);
            assert!(release.is_held_up());
            place.move_away(way);
            assert!(release.go_on(), "{format}, {way:?}");
            assert_eq!(place.calls("del") - before, 1, "{format}, {way:?}");
            if way == Way::Keys {
                place.arrive();
            }
            assert_eq!(place.stored(), (None, None), "{format}, {way:?}");
        }
    }
}

/// After it has counted up and lost, the client asks for the time to live. On the new node it must
/// not count up again.
#[test]
fn failed_counter_is_not_counted_again_on_the_new_node() {
    let cluster = Cluster::steady();
    for format in ["counter,commands", "counter,multi", "counter,lua"] {
        let place = Place::new(&cluster, format);
        let (holder, other) = (place.client(), place.client());
        assert!(holder.take());
        let attempt = other.until(&["PTTL"], Client::attempt);
        assert!(attempt.is_held_up());
        place.move_away(Way::All);
        match attempt.go_on() {
            Ok(Answer::Busy(Some(left))) => {
                assert!(left > LEASE / 2 && left <= LEASE, "{format}: {left:?}");
            }
            outcome => panic!("{format}: {outcome:?}"),
        }
        assert_eq!(place.stored().0.as_deref(), Some("2"), "{format}");
    }
}

/// The keys of the slot have moved before the attempt begins. So each command goes to the new node
/// with `ASKING` before it, and a transaction counts as one command.
#[test]
fn transaction_in_a_moving_slot_is_executed_once() {
    let cluster = Cluster::steady();
    for format in [
        "counter,multi",
        "counter,lua",
        "counter,commands",
        "plain,commands",
    ] {
        let place = Place::new(&cluster, format);
        place.move_away(Way::Keys);
        let client = place.client();
        let outcome = client.attempt();
        assert!(is_granted(&outcome), "{format}: {outcome:?}");
        place.arrive();
        let (value, left) = place.stored();
        assert!(left.is_some_and(|left| left <= LEASE), "{format}: {left:?}");
        assert!(
            format.starts_with("plain") || value.as_deref() == Some("1"),
            "{format}"
        );
        assert!(client.give_back(), "{format}");
    }
}

/// The key that the master has created may be lost with it. Then no client has the lock, and the
/// attempt leaves nothing behind.
#[test]
fn expire_without_a_key_on_the_new_master_grants_nothing() {
    thread::scope(|scope| {
        for format in ["plain,commands", "counter,commands"] {
            for replicated in [true, false] {
                scope.spawn(move || expire_on_the_next_master(format, replicated));
            }
        }
    });
}

fn expire_on_the_next_master(format: &str, replicated: bool) {
    let cluster = Cluster::steady();
    let place = Place::new(&cluster, format);
    let (client, replica) = (place.client(), cluster.replica_of(place.from));
    if !replicated {
        cluster.node(replica).pause();
        cluster.cut_off_replicas(place.from);
    }
    let attempt = client.until(&["EXPIRE"], Client::attempt);
    assert!(attempt.is_held_up());
    if replicated {
        cluster.wait_for_replicas(place.from);
    }
    // Paused, so that the old master cannot replicate what the replica has missed.
    cluster.node(place.from).pause();
    cluster.node(replica).resume();
    let taken = cluster
        .node(replica)
        .probe()
        .command(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
    assert_eq!(taken.text(), "OK");
    cluster.node(place.from).resume();
    cluster.wait_for_owner(place.slot, replica);
    let outcome = attempt.go_on();
    let mut probe = cluster.node(replica).probe();
    assert_eq!(is_granted(&outcome), replicated, "{format}: {outcome:?}");
    assert!(
        matches!(outcome, Ok(Answer::Granted(_) | Answer::Busy(_))),
        "{outcome:?}"
    );
    assert_eq!(probe.pttl(&place.key()).is_some(), replicated, "{format}");
    assert_eq!(probe.exists(&place.key()), replicated, "{format}");
}

/// The attempt has created the key, but may not set its expiry on the new node. The algorithm
/// leaves such a key behind, and the caller gets an error.
#[test]
fn attempt_that_cannot_continue_has_an_unknown_outcome() {
    let cluster = Cluster::steady();
    for (format, command) in [("plain,commands", "setnx"), ("counter,commands", "incr")] {
        let place = Place::new(&cluster, format);
        let all = ["on", ">SECRET", "~*", "&*", "+@all"];
        let client = place.client_by(&cluster.url_as("limited:SECRET", &all));
        let before = place.calls(command);
        let attempt = client.until(&["EXPIRE"], Client::attempt);
        assert!(attempt.is_held_up());
        place.move_away(Way::All);
        place
            .probe()
            .command(&["ACL", "SETUSER", "limited", "-expire"]);
        let outcome = attempt.go_on();
        assert!(
            matches!(outcome, Err(Failure::Final(_))),
            "{format}: {outcome:?}"
        );
        assert_eq!(place.calls(command) - before, 1, "{format}");
        assert_eq!(place.stored().1, None, "{format}");
    }
}

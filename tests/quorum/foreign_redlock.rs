//! Foreign clients that lock with plain keys on the same servers. The tests send the requests of
//! the Redlock that most libraries have.

use distlock::connect;
use distlock_tests::probe::Value;
use distlock_tests::process::RedisServer;
use distlock_tests::quorum::Servers;
use distlock_tests::time::{always, eventually};
use std::time::Duration;

/// No test here waits for a silent node, so each node has all the time that a busy machine needs.
const PATIENT: &str = "max_lease=10m&node_timeout=20s&command_timeout=40s";

/// The bound on background work.
const SOON: Duration = Duration::from_secs(60);

/// Formats whose lock key is that of the foreign clients. With tokens, our client has one more key.
const OPTIONS: [&str; 2] = ["format=token", "format=token&tokens=off"];

/// Sets the key as a foreign client with this value does, and returns on how many servers that
/// succeeded.
fn taken(servers: &[RedisServer], value: &str) -> usize {
    let take = ["SET", "shared", value, "NX", "PX", "60000"];
    let asked = servers.iter().map(|server| server.probe().command(&take));
    asked
        .filter(|answer| *answer == Value::Text("OK".to_owned()))
        .count()
}

/// Deletes the key as a foreign client does, only where it has this value, and returns on how many
/// servers it was deleted.
fn freed(servers: &[RedisServer], value: &str) -> i64 {
    let script = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";
    let free = ["EVAL", script, "1", "shared", value];
    servers
        .iter()
        .map(|server| server.probe().command(&free).int())
        .sum()
}

#[test]
fn redlock_of_plain_keys_and_ours_exclude_each_other() {
    for options in OPTIONS {
        let quorum = Servers::with(3, 0, &format!("{PATIENT}&{options}"));
        let (client, servers) = (quorum.client(), &quorum.servers);
        let lock = client.mutex("shared").unwrap();
        // A foreign client has a majority: our client finds the lock busy, and leaves nothing on
        // the third server.
        assert_eq!(taken(&servers[..2], "theirs"), 2, "{options}");
        assert!(lock.try_lock().unwrap().is_none(), "{options}");
        eventually("nothing is left there", SOON, || {
            taken(&servers[2..], "theirs") == 1
        });
        assert_eq!(freed(servers, "theirs"), 3, "{options}");
        // Our client has the lock: a foreign client gets no majority, and its release, which
        // compares the value, does not free the lock.
        let guard = lock.lock().unwrap();
        assert!(taken(servers, "theirs") <= 1, "{options}");
        assert!(freed(servers, "theirs") <= 1, "{options}");
        assert!(
            guard.verify().is_ok() && lock.is_locked().unwrap(),
            "{options}"
        );
        guard.unlock().unwrap();
        let is_free = |server: &RedisServer| !server.probe().exists("shared");
        eventually("it is free again", SOON, || servers.iter().all(is_free));
    }
}

#[test]
fn foreign_client_on_a_minority_blocks_no_client() {
    let quorum = Servers::with(3, 0, &format!("{PATIENT}&format=token"));
    let lock = quorum.client().mutex("shared").unwrap();
    assert_eq!(taken(&quorum.servers[..1], "theirs"), 1);
    let guard = lock.lock().unwrap();
    assert_eq!(taken(&quorum.servers, "others"), 0);
    guard.unlock().unwrap();
    // The release returns when a majority has answered: its request to the first node may come
    // later.
    let mut probe = quorum.servers[0].probe();
    always("what is theirs stays", Duration::from_millis(500), || {
        probe.get("shared").as_deref() == Some("theirs")
    });
}

/// A format that does not store the owner is no use to a quorum: a failed attempt could not release
/// its minority of votes, nor a renewal recognize the votes of its owner.
#[test]
fn format_without_owners_is_refused_by_name() {
    for format in ["plain", "timestamp", "counter"] {
        let error = connect(&format!("redlock://a,b,c?format={format}")).unwrap_err();
        assert!(error.is_configuration(), "{error:?}");
        assert!(
            error.to_string().contains("does not know who holds a lock"),
            "{error}"
        );
    }
}

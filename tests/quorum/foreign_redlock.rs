//! Others who lock with plain keys on the same servers: a Redlock as most libraries have it, by
//! hand.

use distlock::connect;
use distlock_tests::probe::Value;
use distlock_tests::process::RedisServer;
use distlock_tests::quorum::Servers;
use distlock_tests::time::{always, eventually};
use std::time::Duration;

/// Nothing here waits for a node that does not answer, so each has all the time that a busy machine
/// needs.
const PATIENT: &str = "max_lease=10m&node_timeout=20s&command_timeout=40s";

/// The bound of background work.
const SOON: Duration = Duration::from_secs(60);

/// Both are theirs on the wire; with tokens, ours have a key more beside it.
const OPTIONS: [&str; 2] = ["format=token", "format=token&tokens=off"];

/// On how many of these servers a foreign client with this value gets the key.
fn taken(servers: &[RedisServer], value: &str) -> usize {
    let take = ["SET", "shared", value, "NX", "PX", "60000"];
    let asked = servers.iter().map(|server| server.probe().command(&take));
    asked
        .filter(|answer| *answer == Value::Text("OK".to_owned()))
        .count()
}

/// How many of them it frees, only where the value is its own.
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
        // Theirs on a majority: ours is busy, and leaves nothing on the third.
        assert_eq!(taken(&servers[..2], "theirs"), 2, "{options}");
        assert!(lock.try_lock().unwrap().is_none(), "{options}");
        eventually("nothing is left there", SOON, || {
            taken(&servers[2..], "theirs") == 1
        });
        assert_eq!(freed(servers, "theirs"), 3, "{options}");
        // Ours: no majority is theirs, and their release, which compares, does not free it.
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

/// A foreign client on one node costs one vote, and no more.
#[test]
fn foreign_client_on_a_minority_blocks_no_client() {
    let quorum = Servers::with(3, 0, &format!("{PATIENT}&format=token"));
    let lock = quorum.client().mutex("shared").unwrap();
    assert_eq!(taken(&quorum.servers[..1], "theirs"), 1);
    let guard = lock.lock().unwrap();
    assert_eq!(taken(&quorum.servers, "others"), 0);
    guard.unlock().unwrap();
    // Who gives back waits for a majority.
    let mut probe = quorum.servers[0].probe();
    always("what is theirs stays", Duration::from_millis(500), || {
        probe.get("shared").as_deref() == Some("theirs")
    });
}

/// What does not say whose a lock is cannot be given back on a minority, nor renewed on a majority.
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

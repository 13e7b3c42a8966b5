//! A program's own data under the name of a lock: the library does not change the data, and other
//! locks are not affected.

use distlock::{Client, Error};
use distlock_tests::probe::{Probe, Value};
use distlock_tests::process::RedisServer;
use distlock_tests::redis::client;
use distlock_tests::time::within;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const OWNER: &str = "7b6d2f0e-5f55-4c05-9b3a-d3a6a3a8d1a1:5";

fn failures(client: &Client, name: &str) -> Vec<Error> {
    let lock = client.mutex(name).unwrap();
    let tried = within(LONG, || lock.try_lock()).err();
    let inspected = within(LONG, || lock.inspect()).err();
    let forced = within(LONG, || lock.force_unlock()).err();
    [tried, inspected, forced].into_iter().flatten().collect()
}

#[test]
fn force_unlock_deletes_no_hash_but_a_lock() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let client = client(&server, "");
    let many = format!("{OWNER}0");
    for (fields, says) in [
        (
            &["page:1", "42", "page:2", "7", "2026-11-22T10:30", "5"][..],
            "a hash of 3 fields",
        ),
        (&["page:1", "42"], "\"page:1\" is no owner"),
        (
            &["2026-11-22T10:30", "5"],
            "\"2026-11-22T10:30\" is no owner",
        ),
        (
            &["user:7b6d2f0e-5f55-4c05-9b3a-d3a6a3a8d1a1:5", "1"],
            "is no owner",
        ),
        (&[OWNER, "1.5"], "is no owner"),
        (&[OWNER, "0"], "is no owner"),
        (&[OWNER, "1", &many, "1"], "a hash of 2 fields"),
        (&["mode", "dark"], "\"mode\" is no owner"),
        (&["mode", "dark", OWNER, "1"], "\"mode\" is no owner"),
        (
            &["mode", "read", OWNER, "1", "page:1", "42"],
            "\"page:1\" is no owner",
        ),
    ] {
        probe.command(&[&["HSET", "stats"], fields].concat());
        let before = probe.command(&["DUMP", "stats"]);
        let failures = failures(&client, "stats");
        assert_eq!(failures.len(), 3, "{fields:?}");
        for failure in failures {
            assert!(failure.is_foreign_format(), "{fields:?}: {failure}");
            assert!(failure.to_string().contains(says), "{fields:?}: {failure}");
        }
        assert_eq!(probe.command(&["DUMP", "stats"]), before, "{fields:?}");
        probe.command(&["DEL", "stats"]);
    }
}

#[test]
fn force_unlock_frees_every_kind_of_redisson_lock() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let lock = client(&server, "").mutex("x").unwrap();
    let (writer, reader) = (format!("{OWNER}:write"), format!("{OWNER}7"));
    for fields in [
        &[OWNER, "2"][..],
        &["7b6d2f0e-5f55-4c05-9b3a-d3a6a3a8d1a1:-5", "1"],
        &["mode", "read", OWNER, "1", &reader, "3"],
        &["mode", "write", &writer, "1"],
        &["mode", "write", &writer, "1", OWNER, "1"],
    ] {
        probe.command(&[&["HSET", "x"], fields].concat());
        let holder = lock.inspect().unwrap().holder.unwrap();
        assert!(fields.contains(&holder.owner.as_str()) && holder.owner.as_str() != "mode");
        assert!(lock.force_unlock().unwrap(), "{fields:?}");
        assert!(!probe.exists("x"), "{fields:?}");
    }
}

/// Writes a hash of `size` fields, or a string of `size` bytes.
fn fill(probe: &mut Probe, kind: &str, size: &str) {
    const HASH: &str = "for i = 1, ARGV[1], 100 do local fields = {} \
         for j = i, i + 99 do table.insert(fields, 'page:' .. j) table.insert(fields, j) end \
         redis.call('HSET', KEYS[1], unpack(fields)) end return 'done'";
    const TEXT: &str = "redis.call('SETRANGE', KEYS[1], ARGV[1] - 1, 'x') return 'done'";
    let script = if kind == "hash" { HASH } else { TEXT };
    assert_eq!(
        probe.command(&["EVAL", script, "1", "x", size]).text(),
        "done"
    );
}

#[test]
fn large_hash_with_a_mode_is_taken_for_no_lock() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    fill(&mut probe, "hash", "1500");
    probe.command(&["HSET", "x", "mode", "read"]);
    let client = client(&server, "");
    let failures = failures(&client, "x");
    assert!(
        failures.len() == 3 && failures.iter().all(Error::is_foreign_format),
        "{failures:?}"
    );
    let lock = client.rw_lock("x").unwrap();
    assert!(lock.read().inspect().unwrap_err().is_foreign_format());
    assert!(probe.exists("x"));
}

#[test]
fn large_value_under_a_lock_name_is_not_fetched() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    for (format, kind, size) in [
        ("redisson", "hash", "300000"),
        ("redisson", "text", "20000000"),
        ("token", "text", "20000000"),
        ("token&tokens=off", "text", "20000000"),
        ("plain&lease=10s", "text", "20000000"),
        ("timestamp&lease=10s", "text", "20000000"),
        ("counter&lease=10s", "text", "20000000"),
        ("counter,multi&lease=10s", "text", "20000000"),
    ] {
        fill(&mut probe, kind, size);
        let client = client(&server, &format!("format={format}"));
        let other = client.mutex("other").unwrap();
        other.lock().unwrap().unlock().unwrap();
        let [connections, sent] =
            ["total_connections_received", "total_net_output_bytes"].map(|it| probe.stat(it));
        let failures = failures(&client, "x");
        assert!(!failures.is_empty(), "{format}");
        for failure in failures {
            assert!(failure.is_foreign_format(), "{format}: {failure}");
        }
        other.lock().unwrap().unlock().unwrap();
        assert!(
            probe.stat("total_net_output_bytes") - sent < 100_000,
            "{format}"
        );
        // `counter,multi` borrows a connection from the pool.
        let more = probe.stat("total_connections_received") - connections;
        assert!(
            more <= u64::from(format.starts_with("counter,multi")),
            "{format}: {more}"
        );
        assert!(probe.exists("x"), "{format}");
        probe.command(&["DEL", "x"]);
    }
    assert_eq!(probe.command_calls("hgetall"), 0);
}

/// With `replicas=`, requests use another connection than without it: on both, the error must name
/// the same field.
#[test]
fn field_of_any_bytes_is_told_on_both_paths() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    for (bytes, says) in [
        (
            r"('x' .. string.rep('\195\164', 30))",
            "\"xäääääääääääääääääää\"",
        ),
        (r"string.rep('\195\164', 30)", "\"ääääääääääääääääääää\""),
        (
            r"string.rep('\240\159\148\146', 11)",
            "\"🔒🔒🔒🔒🔒🔒🔒🔒🔒🔒\"",
        ),
        (r"('x' .. string.rep('\255', 80))", "is no owner"),
        (r"'a\r\n$5\0'", "is no owner"),
    ] {
        let script = format!("return redis.call('HSET', KEYS[1], {bytes}, '1')");
        assert_eq!(probe.command(&["EVAL", &script, "1", "x"]), Value::Int(1));
        let said = ["", "replicas=1&replication_timeout=50ms"].map(|options| {
            let lock = client(&server, options).mutex("x").unwrap();
            let failure = lock.try_lock().unwrap_err();
            assert!(failure.is_foreign_format(), "{options}: {failure}");
            assert!(failure.to_string().contains(says), "{options}: {failure}");
            failure.to_string()
        });
        assert_eq!(said[0], said[1]);
        probe.command(&["DEL", "x"]);
    }
}

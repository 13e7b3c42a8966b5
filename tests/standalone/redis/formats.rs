//! Wire formats: what each one stores, and how it reads values of other programs.

use distlock::LockOptions;
use distlock_tests::probe::{Probe, Value};
use distlock_tests::process::RedisServer;
use distlock_tests::redis::client;
use std::time::{Duration, SystemTime};

const LEASE: Duration = Duration::from_secs(10);

/// Every format, with a check of the value and the expiry that it stores for a lease of ten
/// seconds.
#[allow(clippy::type_complexity, reason = "a table")]
const WRITTEN: [(&str, fn(&str, Option<Duration>) -> bool); 9] = [
    ("token", |value, left| is_owner(value) && is_about(left, 10)),
    ("token&tokens=off", |value, left| {
        is_owner(value) && is_about(left, 10)
    }),
    ("plain", |value, left| {
        value.strip_prefix("distlock:").is_some_and(is_owner) && is_about(left, 10)
    }),
    ("plain,commands", |value, left| {
        value.strip_prefix("distlock:").is_some_and(is_owner) && is_about(left, 10)
    }),
    ("timestamp", |value, left| {
        left.is_none() && is_due(value, 11, false)
    }),
    ("timestamp,float", |value, left| {
        left.is_none() && is_due(value, 10, true)
    }),
    ("counter", |value, left| value == "1" && is_about(left, 10)),
    ("counter,multi", |value, left| {
        value == "1" && is_about(left, 10)
    }),
    ("counter,lua", |value, left| {
        value == "1" && is_about(left, 10)
    }),
];

fn is_owner(value: &str) -> bool {
    value.split_once(':').is_some_and(|(client, number)| {
        client.len() == 36 && number.bytes().all(|digit| digit.is_ascii_digit())
    })
}

fn is_about(left: Option<Duration>, seconds: u64) -> bool {
    left.is_some_and(|left| left <= Duration::from_secs(seconds) && left.as_secs() + 3 > seconds)
}

/// Returns whether the timestamp lies `seconds` ahead: at most one second more, for rounding, and
/// at most three seconds less, for a slow machine.
fn is_due(value: &str, seconds: u64, has_point: bool) -> bool {
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64();
    let left = value.parse::<f64>().unwrap() - now;
    let most = seconds as f64 + 1.0;
    value.ends_with(".0") == has_point && left <= most && left > most - 4.0
}

#[test]
fn formats_write_what_foreign_clients_read_and_clean_up() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    for (format, is_right) in WRITTEN {
        let client = client(&server, &format!("format={format}&prefix=app:"));
        let lock = client.mutex("x").unwrap();
        let guard = lock.lock_with(&LockOptions::new().lease(LEASE)).unwrap();
        let (value, left) = (probe.get("app:x").unwrap(), probe.pttl("app:x"));
        assert!(is_right(&value, left), "{format}: {value}, {left:?}");
        assert!(
            guard.fencing_token().is_some() == (format == "token"),
            "{format}"
        );
        guard.unlock().unwrap();
        assert!(!probe.exists("app:x"), "{format}");
        probe.command(&["FLUSHALL"]);
    }
}

#[test]
fn value_that_is_no_lock_of_the_format_is_left_alone() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let make: [&[&str]; 3] = [
        &["HSET", "x", "a", "1"],
        &["RPUSH", "x", "a"],
        &["SET", "x", "something else"],
    ];
    for format in ["redisson"]
        .into_iter()
        .chain(WRITTEN.map(|(format, _)| format))
    {
        for words in make {
            // In these formats any text may be an owner.
            if words[0] == "SET" && (format.starts_with("token") || format.starts_with("plain")) {
                continue;
            }
            probe.command(words);
            let before = probe.command(&["DUMP", "x"]);
            let lock = client(&server, &format!("format={format}&lease=10s"))
                .mutex("x")
                .unwrap();
            let refused = lock.try_lock().unwrap_err();
            assert!(
                refused.is_foreign_format(),
                "{format} on {words:?}: {refused:?}"
            );
            assert!(
                refused.to_string().contains("\"x\""),
                "{format} on {words:?}: {refused}"
            );
            assert!(
                lock.inspect().unwrap_err().is_foreign_format(),
                "{format} on {words:?}"
            );
            assert!(
                lock.force_unlock().unwrap_err().is_foreign_format(),
                "{format} on {words:?}"
            );
            assert_eq!(
                probe.command(&["DUMP", "x"]),
                before,
                "{format} on {words:?}"
            );
            assert_eq!(
                probe.pttl("x"),
                None,
                "{format} on {words:?}: it does not end either"
            );
            probe.command(&["DEL", "x"]);
        }
    }
}

#[test]
fn format_without_owners_says_what_it_cannot_do() {
    let server = RedisServer::start();
    for format in ["plain", "timestamp", "counter"] {
        let client = client(&server, &format!("format={format}"));
        let lock = client.mutex("x").unwrap();
        assert!(
            lock.lock().unwrap_err().is_unsupported(),
            "{format}: it cannot be watched"
        );
        let short = LockOptions::new().lease(Duration::from_millis(50));
        let refused = lock.lock_with(&short).unwrap_err();
        assert!(
            refused.is_configuration() && refused.to_string().contains("`poll`"),
            "{refused}"
        );
        let guard = lock.lock_with(&LockOptions::new().lease(LEASE)).unwrap();
        assert!(
            guard.extend(LEASE * 2).unwrap_err().is_unsupported(),
            "{format}"
        );
        assert!(guard.verify().unwrap_err().is_unsupported(), "{format}");
        assert!(
            lock.lock_with(&LockOptions::new().lease(LEASE * 2))
                .is_err(),
            "{format}"
        );
        guard.unlock().unwrap();
        let confirmed = distlock::connect(&format!("{}?format={format}&replicas=1", server.url()));
        assert!(confirmed.unwrap_err().is_unsupported(), "{format}");
    }
}

#[test]
fn lock_without_expiry_is_written_as_the_last_second_plus_1() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    for (format, written) in [
        ("timestamp", "2147483649"),
        ("timestamp,float", "2147483649.0"),
    ] {
        let lock = client(&server, &format!("format={format}"))
            .mutex("x")
            .unwrap();
        let forever = Duration::from_secs(100 * 365 * 24 * 60 * 60);
        let guard = lock.lock_with(&LockOptions::new().lease(forever)).unwrap();
        assert_eq!(probe.get("x").as_deref(), Some(written));
        let holder = lock.inspect().unwrap().holder.unwrap();
        assert_eq!((holder.remaining, holder.owner.as_str()), (None, written));
        guard.unlock().unwrap();
        assert_eq!(probe.command(&["GET", "x"]), Value::Nil);
    }
}

/// A foreign client's `SET NX` makes the lock busy for this library, and fails while this library
/// holds the lock.
#[test]
fn foreign_client_and_ours_exclude_each_other_by_a_token() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let lock = client(&server, "format=token").mutex("x").unwrap();
    let take = |probe: &mut Probe| probe.command(&["SET", "x", "foreign", "NX", "PX", "60000"]);
    assert_eq!(take(&mut probe), Value::Text("OK".to_owned()));
    assert!(lock.try_lock().unwrap().is_none());
    assert_eq!(
        lock.inspect().unwrap().holder.unwrap().owner.as_str(),
        "foreign"
    );
    probe.command(&["DEL", "x"]);
    let guard = lock.lock().unwrap();
    assert_eq!(take(&mut probe), Value::Nil);
    guard.unlock().unwrap();
    assert_eq!(take(&mut probe), Value::Text("OK".to_owned()));
}

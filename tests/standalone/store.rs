//! The stored data of mutexes, and the scripts that read and write it.

use crate::bench::{Bench, LONG, acquisition, granted, lease, name, soon, tokens};
use distlock_tests::probe::Value;
use distlock_tests::process::RedisServer;
use distlock_tests::time::eventually;
use lock_core::backend::{
    Answer, Failure, HolderInfo, LockInfo, Release, ReleaseOptions, Renewal, RenewalRequest, Tokens,
};
use lock_core::{OwnerId, OwnerText};
use std::collections::BTreeMap;
use std::time::Duration;

/// Joins files to a script.
macro_rules! script {
    ($($file:literal),*) => {
        concat!($(include_str!(concat!("../../lock-redis/src/lua/redisson/", $file, ".lua")),)*)
    };
}

const SCRIPTS: [&str; 6] = [
    script!(
        "take",
        "../timestamp",
        "../grant",
        "../acquire",
        "look",
        "tells",
        "../queue",
        "../leave",
        "../enter",
        "../attempt",
        "../endings/busy"
    ),
    script!(
        "look",
        "drop",
        "../tell",
        "../queue_of",
        "../release",
        "take",
        "../timestamp",
        "../grant",
        "../queue",
        "../let_next_in",
        "../endings/next",
        "../leave",
        "../give_up",
        "../endings/waiting"
    ),
    script!(
        "look",
        "drop",
        "gone",
        "take",
        "../timestamp",
        "../grant",
        "../tell",
        "../queue_of",
        "../queue",
        "../let_next_in",
        "../leave",
        "../give_up",
        "../free_first",
        "../pass",
        "../close",
        "../endings/usual"
    ),
    script!("look", "gone", "../renew"),
    script!("holder", "gone", "../inspect"),
    script!(
        "holder",
        "look",
        "drop",
        "gone",
        "take",
        "../timestamp",
        "../grant",
        "../tell",
        "../queue_of",
        "../queue",
        "../let_next_in",
        "../leave",
        "../give_up",
        "../free_first",
        "../force",
        "../endings/usual"
    ),
];

/// A lock's hash with one holder.
fn held_once(owner: OwnerId) -> BTreeMap<String, String> {
    BTreeMap::from([(owner.to_string(), "1".to_owned())])
}

/// How the server confirms a connection's first subscription.
fn subscribed(how: &str, channel: &str) -> Value {
    Value::List(vec![
        Value::Text(how.to_owned()),
        Value::Text(channel.to_owned()),
        Value::Int(1),
    ])
}

/// Makes one call of each operation that has a script.
fn everything(bench: &Bench, lock: &str) {
    let (held, _) = bench.take(lock);
    assert!(
        bench
            .backend
            .inspect(&name(lock), soon())
            .unwrap()
            .holder
            .is_some()
    );
    assert_eq!(
        bench.renew(&[RenewalRequest::new(held.clone())])[0]
            .as_ref()
            .unwrap(),
        &Renewal::Extended
    );
    assert_eq!(bench.release(&held), Release::Freed);
    let (held, _) = bench.take(lock);
    assert_eq!(
        bench
            .backend
            .release(&held, ReleaseOptions::WITH_TOMBSTONE, soon())
            .unwrap(),
        Release::Freed
    );
    bench.take(lock);
    assert!(
        bench
            .backend
            .admin()
            .unwrap()
            .force_release(&name(lock), soon())
            .unwrap()
    );
}

#[test]
fn every_script_loads_and_is_known_by_its_hash() {
    let server = RedisServer::start();
    everything(&Bench::on(&server), "a");
    let mut probe = server.probe();
    let hashes = SCRIPTS.map(|script| probe.command(&["SCRIPT", "LOAD", script]).text());
    server.probe().command(&["SCRIPT", "FLUSH"]);
    server.probe().reset_stats();
    let bench = Bench::on(&server);
    everything(&bench, "a");
    // Each script is sent by `EVAL` only the first time, and by its hash from then on. One more
    // `EVAL` comes at the beginning of each connection.
    let evals = || {
        let mut probe = server.probe();
        probe.command_calls("eval") - probe.command_calls("client|setname")
    };
    assert_eq!(evals(), 6);
    for hash in &hashes {
        assert_eq!(
            probe.command(&["SCRIPT", "EXISTS", hash]),
            Value::List(vec![Value::Int(1)])
        );
    }
    everything(&bench, "a");
    assert_eq!(evals(), 6);
}

#[test]
fn flushed_script_cache_changes_nothing() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let flush = || assert_eq!(server.probe().command(&["SCRIPT", "FLUSH"]).text(), "OK");
    let (held, grant) = bench.take("a");
    flush();
    assert_eq!(
        tokens(&granted(bench.acquire("a", held.owner))),
        tokens(&grant)
    );
    flush();
    assert_eq!(
        bench.renew(&[RenewalRequest::new(held.clone())])[0]
            .as_ref()
            .unwrap(),
        &Renewal::Extended
    );
    flush();
    assert!(
        bench
            .backend
            .inspect(&name("a"), soon())
            .unwrap()
            .holder
            .is_some()
    );
    flush();
    assert_eq!(bench.release(&held), Release::Freed);
    flush();
    assert_eq!(
        bench
            .backend
            .release(&held, ReleaseOptions::WITH_TOMBSTONE, soon())
            .unwrap(),
        Release::Gone
    );
    flush();
    assert!(
        !bench
            .backend
            .admin()
            .unwrap()
            .force_release(&name("a"), soon())
            .unwrap()
    );
}

#[test]
fn uncontended_cycle_is_two_commands() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let (held, _) = bench.take("a");
    bench.release(&held);
    server.probe().reset_stats();
    for _ in 0..100 {
        let (held, _) = bench.take("a");
        assert_eq!(bench.release(&held), Release::Freed);
    }
    assert_eq!(server.probe().command_calls("evalsha"), 200);
    assert_eq!(
        server.probe().command_calls("eval")
            + server.probe().command_calls("ping")
            + server.probe().command_calls("select"),
        0
    );
    // Redis before 7 counts all of CONFIG as one.
    let from_outside = ["evalsha", "info", "config|resetstat", "config"];
    let inside = [
        "exists", "pttl", "pexpire", "get", "time", "set", "hset", "hdel", "publish",
    ];
    let stats = server.probe().all_command_calls();
    assert!(stats.contains_key("evalsha"), "{stats:?}");
    for command in stats.keys().map(String::as_str) {
        assert!(
            from_outside.contains(&command) || inside.contains(&command),
            "{command}"
        );
    }
}

#[test]
fn stored_bytes_are_those_of_redisson() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    for (lock, channel) in [
        ("orders:42", "redisson_lock__channel:{orders:42}"),
        ("orders:{42}", "redisson_lock__channel:orders:{42}"),
    ] {
        eventually("no client listens", LONG, || {
            server.probe().command(&["PUBSUB", "NUMPAT"]) == Value::Int(0)
        });
        let mut ear = server.probe();
        assert_eq!(
            ear.command(&["PSUBSCRIBE", "*"]),
            subscribed("psubscribe", "*")
        );
        let (held, _) = bench.take(lock);
        assert_eq!(server.probe().hgetall(lock), held_once(held.owner));
        assert!((29_000..=30_000).contains(&server.probe().command(&["PTTL", lock]).int()));
        assert_eq!(bench.release(&held), Release::Freed, "a listener counts");
        assert_eq!(
            ear.read_value().unwrap().texts(),
            ["pmessage", "*", channel, "0"]
        );
        assert!(!server.probe().exists(lock));
    }
    let expected = [
        "redisson_lock_token:orders:{42}",
        "redisson_lock_token:{orders:42}",
    ];
    assert_eq!(server.probe().keys("*"), expected);
}

#[test]
fn our_lock_and_redissons_find_each_other_busy() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let theirs = "7f2c3a10-8f8e-4f0e-9a51-0d2b6d2f7c11:57";
    server.probe().command(&["HINCRBY", "a", theirs, "1"]);
    server.probe().command(&["HINCRBY", "a", theirs, "1"]);
    server.probe().command(&["PEXPIRE", "a", "20000"]);
    let Answer::Busy(Some(left)) = bench.try_once("a") else {
        panic!("granted over a stranger's lock")
    };
    assert!(
        left > Duration::from_secs(19) && left <= Duration::from_secs(20),
        "{left:?}"
    );
    let info = bench.backend.inspect(&name("a"), soon()).unwrap();
    let holder = info.holder.unwrap();
    assert_eq!((holder.owner.as_str(), holder.holds), (theirs, 2));
    assert!(holder.remaining.unwrap() > Duration::from_secs(19));
}

#[test]
fn repeated_acquire_by_the_owner_keeps_the_longer_lease() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let owner = bench.owner();
    let one = Tokens::Assign { reserve: 3 };
    let first = granted(bench.acquire_with("a", owner, lease(1_000), one).unwrap());
    let again = granted(bench.acquire_with("a", owner, lease(60_000), one).unwrap());
    assert_eq!(tokens(&first), tokens(&again));
    assert!(
        server.probe().command(&["PTTL", "a"]).int() > 59_000,
        "a full lease is left from then"
    );
    bench.acquire_with("a", owner, lease(1_000), one).unwrap();
    assert!(
        server.probe().command(&["PTTL", "a"]).int() > 59_000,
        "and it is never shortened"
    );
    assert_eq!(
        server.probe().hgetall("a"),
        held_once(owner),
        "and counted once"
    );
}

#[test]
fn lease_ends() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    bench
        .acquire_with("a", bench.owner(), lease(50), Tokens::None)
        .unwrap();
    eventually("the lease has ended", LONG, || {
        matches!(bench.acquire("a", bench.owner()), Answer::Granted(_))
    });
}

#[test]
fn lock_without_expiry_is_busy_without_expiry() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let theirs = "7f2c3a10-8f8e-4f0e-9a51-0d2b6d2f7c11:57";
    server.probe().command(&["HSET", "a", theirs, "1"]);
    assert!(matches!(
        bench.try_once("a"),
        Answer::BusyWithoutExpiry(None)
    ));
    let info = bench.backend.inspect(&name("a"), soon()).unwrap();
    assert_eq!(
        info,
        LockInfo::held(HolderInfo::new(OwnerText::new(theirs), None, 1))
    );
    assert_eq!(
        bench.backend.inspect(&name("b"), soon()).unwrap(),
        LockInfo::FREE
    );
}

#[test]
fn only_the_owner_releases() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let (held, _) = bench.take("a");
    let stranger = acquisition("a", bench.owner(), 30_000);
    assert_eq!(bench.release(&stranger), Release::Gone);
    assert_eq!(
        bench
            .backend
            .release(&stranger, ReleaseOptions::WITH_TOMBSTONE, soon())
            .unwrap(),
        Release::Gone
    );
    assert_eq!(server.probe().command(&["HLEN", "a"]).int(), 1);
    assert_eq!(bench.release(&held), Release::Freed);
    assert_eq!(
        bench.release(&held),
        Release::Gone,
        "the second copy of a release"
    );
}

/// Each call inside a script delays all clients, because the server runs scripts on one thread.
#[test]
fn cycle_on_a_busy_name_costs_eight_calls_in_the_server() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let mut calls = BTreeMap::new();
    eventually("two grants are of the same 100 s", LONG, || {
        let (held, before) = bench.take("a");
        bench.release(&held);
        server.probe().reset_stats();
        let (held, after) = bench.take("a");
        bench.release(&held);
        calls = server.probe().all_command_calls();
        let span = |grant| tokens(grant).0 / 100_000_000;
        span(&before) == span(&after)
    });
    // The test's own commands. Redis before 7 counts `CONFIG` without its subcommand.
    for other in ["config|resetstat", "config", "info", "evalsha"] {
        calls.remove(other);
    }
    // `EXISTS` once for the lock, and once for the queue of waiters.
    let counts = [
        ("exists", 2),
        ("time", 1),
        ("set", 1),
        ("hset", 1),
        ("pexpire", 1),
        ("hdel", 1),
        ("publish", 1),
    ];
    assert_eq!(
        calls,
        counts
            .into_iter()
            .map(|(command, count)| (command.to_owned(), count))
            .collect()
    );
}

#[test]
fn closed_owner_is_granted_nothing() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let (held, _) = bench.take("a");
    assert_eq!(
        bench
            .backend
            .release(&held, ReleaseOptions::WITH_TOMBSTONE, soon())
            .unwrap(),
        Release::Freed
    );
    assert!(
        matches!(bench.acquire("a", held.owner), Answer::Busy(None)),
        "a late copy"
    );
    assert!(!server.probe().exists("a"));
    // An owner whose attempt arrives after its release.
    let late = acquisition("a", bench.owner(), 30_000);
    assert_eq!(
        bench
            .backend
            .release(&late, ReleaseOptions::WITH_TOMBSTONE, soon())
            .unwrap(),
        Release::Gone
    );
    assert!(matches!(bench.acquire("a", late.owner), Answer::Busy(None)));
    let stone = format!("distlock_closed:{{a}}:{}", late.owner);
    assert!((29_000..=30_000).contains(&server.probe().command(&["PTTL", &stone]).int()));
    // An owner that was closed by a release which failed half way, so that it still holds the lock.
    let (held, _) = bench.take("b");
    server
        .probe()
        .command(&["SET", &format!("distlock_closed:{{b}}:{}", held.owner), "1"]);
    assert!(matches!(bench.acquire("b", held.owner), Answer::Busy(None)));
    assert!(
        matches!(bench.acquire("a", bench.owner()), Answer::Granted(_)),
        "another owner"
    );
}

#[test]
fn tombstone_outlives_a_command_under_a_shorter_lease() {
    let server = RedisServer::start();
    let bench = Bench::new(&format!("{}?command_timeout=3s", server.url()));
    let late = acquisition("a", bench.owner(), 10);
    bench
        .backend
        .release(&late, ReleaseOptions::WITH_TOMBSTONE, soon())
        .unwrap();
    let stone = format!("distlock_closed:{{a}}:{}", late.owner);
    assert!((5_000..=6_000).contains(&server.probe().command(&["PTTL", &stone]).int()));
}

#[test]
fn value_of_wrong_type_is_told_and_left_alone() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    server.probe().command(&["SET", "a", "precious"]);
    let owner = bench.owner();
    let held = acquisition("a", owner, 30_000);
    let failures = [
        bench
            .acquire_with("a", owner, lease(100), Tokens::Assign { reserve: 0 })
            .unwrap_err(),
        bench
            .backend
            .release(&held, ReleaseOptions::WITHOUT_TOMBSTONE, soon())
            .unwrap_err(),
        bench
            .backend
            .release(&held, ReleaseOptions::WITH_TOMBSTONE, soon())
            .unwrap_err(),
        bench
            .renew(&[RenewalRequest::new(held)])
            .remove(0)
            .unwrap_err(),
        bench.backend.inspect(&name("a"), soon()).unwrap_err(),
        bench
            .backend
            .admin()
            .unwrap()
            .force_release(&name("a"), soon())
            .unwrap_err(),
    ];
    for failure in failures {
        assert!(matches!(failure, Failure::Refused(_)), "{failure:?}");
        assert!(failure.error().is_foreign_format(), "{failure:?}");
        assert!(
            failure.error().to_string().contains("under the key \"a\""),
            "{failure:?}"
        );
        assert_eq!(failure.error().lock(), Some(&name("a")));
    }
    assert_eq!(server.probe().command(&["GET", "a"]).text(), "precious");
    assert_eq!(server.probe().command(&["PTTL", "a"]).int(), -1);
}

#[test]
fn bad_key_among_a_hundred_prevents_no_renewal() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let batch: Vec<_> = (0..100)
        .map(|number| {
            let (lock, owner) = (format!("lock:{number}"), bench.owner());
            bench
                .acquire_with(&lock, owner, lease(1_000), Tokens::None)
                .unwrap();
            RenewalRequest::new(acquisition(&lock, owner, 60_000 + number))
        })
        .collect();
    server.probe().command(&["SET", "lock:31", "a string"]);
    server.probe().command(&["DEL", "lock:32"]);
    server.probe().reset_stats();
    let answers = bench.renew(&batch);
    let calls = |command| server.probe().command_calls(command);
    let scripts = calls("evalsha") + calls("eval");
    let begins = 32 * calls("client|setname");
    assert_eq!(scripts - begins, 2, "NOSCRIPT, and by its text");
    assert_eq!(answers.len(), 100);
    for (number, answer) in answers.iter().enumerate() {
        match (number, answer) {
            (31, Err(Failure::Refused(error))) => {
                assert!(error.is_foreign_format(), "{error:?}");
                assert_eq!(error.lock(), Some(&name("lock:31")));
            }
            (32, Ok(Renewal::Gone)) => assert!(!server.probe().exists("lock:32")),
            (_, Ok(Renewal::Extended)) if number != 31 && number != 32 => {
                let left = server
                    .probe()
                    .command(&["PTTL", &format!("lock:{number}")])
                    .int();
                assert!(
                    left > 58_000 && left <= 60_000 + number as i64,
                    "{number}: {left}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn renewal_never_shortens_and_restores_a_lost_expiry() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let (held, _) = bench.take("a");
    let short = RenewalRequest::new(acquisition("a", held.owner, 1_000));
    assert_eq!(
        bench.renew(std::slice::from_ref(&short))[0]
            .as_ref()
            .unwrap(),
        &Renewal::Extended
    );
    assert!(server.probe().command(&["PTTL", "a"]).int() > 29_000);
    server.probe().command(&["PERSIST", "a"]);
    assert_eq!(
        bench.renew(&[short])[0].as_ref().unwrap(),
        &Renewal::Extended
    );
    assert!((1..=1_000).contains(&server.probe().command(&["PTTL", "a"]).int()));
    let stranger = RenewalRequest::new(acquisition("a", bench.owner(), 90_000));
    assert_eq!(
        bench.renew(&[stranger])[0].as_ref().unwrap(),
        &Renewal::Gone
    );
    assert!(
        server.probe().command(&["PTTL", "a"]).int() <= 1_000,
        "a stranger's lease is not ours to set"
    );
}

#[test]
fn force_release_frees_any_owner() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    const CHANNEL: &str = "redisson_lock__channel:{a}";
    let mut ear = server.probe();
    assert_eq!(
        ear.command(&["SUBSCRIBE", CHANNEL]),
        subscribed("subscribe", CHANNEL)
    );
    let (held, _) = bench.take("a");
    assert!(
        bench
            .backend
            .admin()
            .unwrap()
            .force_release(&name("a"), soon())
            .unwrap()
    );
    assert_eq!(ear.read_value().unwrap().texts(), ["message", CHANNEL, "0"]);
    assert!(
        !bench
            .backend
            .admin()
            .unwrap()
            .force_release(&name("a"), soon())
            .unwrap()
    );
    assert_eq!(bench.release(&held), Release::Gone);
}

#[test]
fn prefix_and_database_are_used() {
    let server = RedisServer::start();
    let bench = Bench::new(&format!("{}/3?prefix=app:", server.url()));
    let (held, _) = bench.take("a");
    let mut third = server.probe();
    assert_eq!(third.command(&["SELECT", "3"]).text(), "OK");
    assert_eq!(third.command(&["HLEN", "app:a"]).int(), 1);
    assert!(third.exists("redisson_lock_token:{app:a}"));
    assert_eq!(server.probe().command(&["DBSIZE"]).int(), 0);
    assert_eq!(bench.release(&held), Release::Freed);
}

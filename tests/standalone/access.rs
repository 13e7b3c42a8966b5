//! Passwords, databases and access control lists: what is refused, and what the errors say about
//! it.

use crate::bench::{Bench, Counter, LONG, acquisition, lease, name, soon};
use distlock_tests::probe::Value;
use distlock_tests::process::RedisServer;
use distlock_tests::time::{eventually, timed};
use lock_core::Error;
use lock_core::backend::{Answer, Failure, ReleaseOptions, RenewalRequest, Tokens};
use std::error::Error as _;
use std::sync::Arc;

/// Returns the failure of an acquire, which must come at once.
fn refusal(url: &str) -> Failure {
    let bench = Bench::new(url);
    let owner = bench.owner();
    timed(200, |_| {
        bench.acquire_with("a", owner, lease(30_000), Tokens::None)
    })
    .unwrap_err()
}

/// Starts a server that requires this password.
fn server_with_password(password: &str) -> RedisServer {
    let server = RedisServer::start();
    let told = server
        .probe()
        .command(&["CONFIG", "SET", "requirepass", password]);
    assert_eq!(told, Value::Text("OK".to_owned()));
    server
}

/// Returns all texts that an error can show.
fn shown(error: &Error) -> String {
    format!(
        "{error} {error:?} {}",
        error.source().map(ToString::to_string).unwrap_or_default()
    )
}

#[track_caller]
fn is_configuration(failure: &Failure, says: &str) {
    assert!(matches!(failure, Failure::Refused(_)), "{failure:?}");
    assert!(failure.error().is_configuration(), "{failure:?}");
    assert!(failure.error().to_string().contains(says), "{failure:?}");
}

#[test]
fn wrong_or_missing_password_is_told_at_once_never_shown() {
    let server = server_with_password("s3cret");
    let address = format!("127.0.0.1:{}", server.port());
    let missing = refusal(&server.url_as(""));
    is_configuration(&missing, "asks for a password");
    is_configuration(&missing, &address);
    for userinfo in [":wr0ng", "stranger:wr0ng", "default:wr0ng"] {
        let wrong = refusal(&format!("redis://{userinfo}@{address}"));
        is_configuration(&wrong, "does not accept the password");
        is_configuration(&wrong, &address);
        assert!(!shown(wrong.error()).contains("wr0ng"), "{wrong:?}");
    }
    for userinfo in [":s3cret", "default:s3cret"] {
        let bench = Bench::new(&format!("redis://{userinfo}@{address}/2"));
        let (held, _) = bench.take("a");
        bench.release(&held);
    }
}

#[test]
fn password_for_server_without_one_is_told() {
    let server = RedisServer::start();
    let failure = refusal(&format!("redis://:s3cret@127.0.0.1:{}", server.port()));
    is_configuration(&failure, "has no password");
    assert!(!shown(failure.error()).contains("s3cret"), "{failure:?}");
}

#[test]
fn password_is_not_shown_by_server_without_auth_command() {
    let server = RedisServer::start_with(&["--rename-command", "AUTH", ""]);
    let failure = refusal(&format!("redis://me:s3cret@127.0.0.1:{}", server.port()));
    is_configuration(&failure, "lacks a command");
    assert!(!shown(failure.error()).contains("s3cret"), "{failure:?}");
}

#[test]
fn missing_database_is_told() {
    let server = RedisServer::start_with(&["--databases", "4"]);
    is_configuration(
        &refusal(&format!("{}/4", server.url())),
        "no database with this number",
    );
    Bench::new(&format!("{}/3", server.url())).take("a");
}

#[test]
fn client_without_right_to_setname_has_no_name() {
    let server = RedisServer::start();
    server.probe().command(&[
        "ACL", "SETUSER", "me", "on", "nopass", "~*", "&*", "+@all", "-client",
    ]);
    Bench::new(&format!("redis://me@127.0.0.1:{}", server.port())).take("a");
}

#[test]
fn connections_have_the_client_name() {
    let server = RedisServer::start();
    let bench = Bench::new(&format!("{}?client_name=till-7", server.url()));
    bench.take("a");
    let clients = server.probe().clients();
    assert!(
        clients.iter().any(|line| line.contains("name=till-7 ")),
        "{clients:?}"
    );
}

#[test]
fn connections_are_named_after_the_owner() {
    let server = RedisServer::start();
    for (owner, name) in [
        ("owner=till%207%20Łódź", "distlock:till_7___d_"),
        ("owner=off", "distlock"),
    ] {
        let bench = Bench::new(&format!("{}?{owner}", server.url()));
        bench.take("a");
        let clients = server.probe().clients();
        assert!(
            clients
                .iter()
                .any(|line| line.contains(&format!(" name={name} "))),
            "{clients:?}"
        );
        server.probe().command(&["DEL", "a"]);
    }
    let bench = Bench::on(&server);
    bench.take("a");
    let (clients, process) = (server.probe().clients(), std::process::id());
    let is_it = |line: &String| {
        let name = line
            .split(' ')
            .find_map(|field| field.strip_prefix("name=distlock:"));
        name.is_some_and(|name| name.contains(&format!(":{process}:")))
    };
    assert!(clients.iter().any(is_it), "{clients:?}");
}

/// The error names the rule that grants the missing right, and a refused request has changed
/// nothing.
#[test]
fn missing_right_is_named_and_changes_nothing() {
    let server = RedisServer::start();
    let all = [
        "ACL", "SETUSER", "me", "reset", "on", "nopass", "~*", "&*", "+@all",
    ];
    let me = Bench::new(&format!("redis://me@127.0.0.1:{}", server.port()));
    // With tokens set aside, the counter is read before it is written: only then is `GET` needed.
    for (command, reserve) in [
        ("exists", 0),
        ("pttl", 0),
        ("get", 1),
        ("time", 0),
        ("set", 0),
        ("hset", 0),
        ("pexpire", 0),
    ] {
        server
            .probe()
            .command(&["SET", "redisson_lock_token:{a}", "5", "EX", "1000"]);
        server
            .probe()
            .command(&[&all[..], &[&format!("-{command}")]].concat());
        let tokens = Tokens::Assign { reserve };
        let failure = me
            .acquire_with("a", me.owner(), lease(30_000), tokens)
            .unwrap_err();
        is_configuration(&failure, &format!("ACL SETUSER me +{command}`"));
        assert!(!server.probe().exists("a"), "{command}");
    }
    server.probe().command(&all);
    let (held, _) = me.take("a");
    let (plain, closing) = (
        ReleaseOptions::WITHOUT_TOMBSTONE,
        ReleaseOptions::WITH_TOMBSTONE,
    );
    for (rule, says, options) in [
        ("-hdel", "+hdel`", &[plain, closing][..]),
        ("-hexists", "+hexists`", &[closing]),
    ] {
        server.probe().command(&[&all[..], &[rule]].concat());
        for closing in options.iter().copied() {
            let failure = me.backend.release(&held, closing, soon()).unwrap_err();
            is_configuration(&failure, says);
            assert_eq!(server.probe().command(&["HLEN", "a"]).int(), 1, "{rule}");
        }
    }
    server
        .probe()
        .command(&[&all[..], &["resetkeys", "~other:*"]].concat());
    let failure = me.backend.inspect(&name("a"), soon()).unwrap_err();
    is_configuration(&failure, "~a ~redisson_lock_token:*");
    server.probe().command(&[&all[..], &["-evalsha"]].concat());
    is_configuration(
        &me.backend.inspect(&name("a"), soon()).unwrap_err(),
        "ACL SETUSER me +evalsha`",
    );
    server.probe().command(&[&all[..], &["-pexpire"]].concat());
    let longer = RenewalRequest::new(acquisition("a", held.owner, 90_000));
    is_configuration(&me.renew(&[longer])[0].clone().unwrap_err(), "+pexpire");
}

/// Without subscriptions and without tracking, a watch wakes its waiter at an interval: see
/// `redis/publish_rights.rs`.
#[test]
fn watch_without_channel_or_command_right_succeeds() {
    let server = RedisServer::start();
    let me = Bench::new(&format!(
        "redis://me@127.0.0.1:{}?tracking=off",
        server.port()
    ));
    let all = [
        "ACL", "SETUSER", "me", "reset", "on", "nopass", "~*", "+@all",
    ];
    for rule in ["resetchannels", "-subscribe"] {
        server.probe().command(&[&all[..], &[rule]].concat());
        let counter = Arc::new(Counter::default());
        let _watch = me
            .backend
            .watch(&name("a"), Arc::clone(&counter) as _, soon())
            .unwrap();
        eventually("woken again and again", LONG, || counter.count() > 3);
    }
    server.probe().command(&[&all[..], &["&*"]].concat());
    me.backend
        .watch(&name("a"), Arc::new(Counter::default()), soon())
        .unwrap();
}

#[test]
fn password_refused_for_a_watch_is_told_at_once() {
    let server = server_with_password("s3cret");
    let bench = Bench::new(&server.url_as(""));
    let watch = timed(200, |_| {
        bench
            .backend
            .watch(&name("a"), Arc::new(Counter::default()), soon())
    });
    is_configuration(&watch.unwrap_err(), "asks for a password");
}

#[test]
fn server_that_takes_no_writes_says_why() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    for (setting, before, after, says) in [
        ("min-replicas-to-write", "1", "0", "min-replicas-to-write"),
        ("maxmemory", "1", "0", "maxmemory"),
    ] {
        server.probe().command(&["CONFIG", "SET", setting, before]);
        let failure = bench
            .acquire_with(
                "a",
                bench.owner(),
                lease(30_000),
                Tokens::Assign { reserve: 0 },
            )
            .unwrap_err();
        assert!(matches!(failure, Failure::Refused(_)), "{failure:?}");
        assert!(failure.error().is_unavailable(), "{failure:?}");
        assert!(failure.error().to_string().contains(says), "{failure:?}");
        server.probe().command(&["CONFIG", "SET", setting, after]);
        assert_eq!(server.probe().keys("*"), [""; 0]);
    }
    server.probe().command(&["REPLICAOF", "127.0.0.1", "1"]);
    let failure = bench
        .acquire_with("a", bench.owner(), lease(100), Tokens::None)
        .unwrap_err();
    assert!(
        failure.error().to_string().contains("is a replica"),
        "{failure:?}"
    );
    server
        .probe()
        .command(&["CONFIG", "SET", "replica-serve-stale-data", "no"]);
    let failure = bench
        .acquire_with("a", bench.owner(), lease(100), Tokens::None)
        .unwrap_err();
    assert!(
        failure.error().to_string().contains("lost its master"),
        "{failure:?}"
    );
    server.probe().command(&["REPLICAOF", "NO", "ONE"]);
    assert!(matches!(
        bench.acquire("a", bench.owner()),
        Answer::Granted(_)
    ));
}

#[test]
fn full_server_is_reported() {
    let server = RedisServer::start();
    let mut only = server.probe();
    assert_eq!(
        only.command(&["CONFIG", "SET", "maxclients", "1"]),
        Value::Text("OK".to_owned())
    );
    let failure = refusal(&server.url());
    assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
    assert!(failure.error().is_unavailable(), "{failure:?}");
    // The server closes the connection before it reads our greeting, so its reason may or may not
    // arrive.
    let text = failure.error().to_string();
    assert!(
        text.contains("maxclients") || text.contains("broke"),
        "{failure:?}"
    );
}

#[test]
fn cluster_node_says_that_it_is_a_cluster_node() {
    let server = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let bench = Bench::on(&server);
    let failure = bench
        .acquire_with("a", bench.owner(), lease(100), Tokens::None)
        .unwrap_err();
    assert!(failure.error().is_unavailable(), "{failure:?}");
    assert!(
        failure.error().to_string().contains("Redis Cluster"),
        "{failure:?}"
    );
    is_configuration(
        &refusal(&format!("{}/1", server.url())),
        "Redis Cluster has only 0",
    );
}

//! Managed services that withhold commands or databases, or whose passwords expire.

use distlock::admin::FindingLevel;
use distlock::config::Credentials;
use distlock::{Client, Config, Error};
use distlock_tests::authority::Authority;
use distlock_tests::process::RedisServer;
use distlock_tests::time::{Stopwatch, eventually};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// The commands that ElastiCache and MemoryDB document as restricted, without subcommands.
const OF_ELASTICACHE: &[&str] = &[
    "BGREWRITEAOF",
    "BGSAVE",
    "CONFIG",
    "DEBUG",
    "MIGRATE",
    "MODULE",
    "PSYNC",
    "REPLICAOF",
    "SAVE",
    "SHUTDOWN",
    "SLAVEOF",
    "SYNC",
];

/// The commands that Memorystore for Redis documents as blocked.
const OF_MEMORYSTORE: &[&str] = &[
    "ACL",
    "BGREWRITEAOF",
    "BGSAVE",
    "CLIENT",
    "CLUSTER",
    "COMMAND",
    "CONFIG",
    "DEBUG",
    "LASTSAVE",
    "MIGRATE",
    "MONITOR",
    "OBJECT",
    "REPLICAOF",
    "SAVE",
    "SHUTDOWN",
];

/// The commands that Redis Software and Redis Cloud document as not supported, as far as a client
/// could send them.
const OF_REDIS_CLOUD: &[&str] = &["CLUSTER", "DEBUG", "SELECT", "SHUTDOWN", "SYNC", "WAIT"];

/// Starts a server that does not know these commands.
fn without(commands: &[&str]) -> RedisServer {
    let renamed = commands
        .iter()
        .flat_map(|command| ["--rename-command", command, ""]);
    let good = ["--appendonly", "yes", "--appendfsync", "always"];
    RedisServer::start_with(&good.into_iter().chain(renamed).collect::<Vec<_>>())
}

fn client(url: &str) -> Client {
    distlock::connect(url).unwrap()
}

/// Checks that one client holds a lock for longer than its lease, and that another client waits for
/// it and gets it with a larger token.
fn locks_live_on(url: &str) {
    let settings = format!("{url}?watchdog=1s");
    let [one, other] = [(); 2].map(|()| client(&settings));
    let held = one.mutex("it").unwrap().lock().unwrap();
    assert!(other.mutex("it").unwrap().try_lock().unwrap().is_none());
    let token = held.fencing_token();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let guard = other
                .mutex("it")
                .unwrap()
                .try_lock_for(LONG)
                .unwrap()
                .expect("free");
            assert!(guard.fencing_token() > token);
            guard.unlock().unwrap();
        });
        let since = Stopwatch::start();
        eventually("a lease is over", LONG, || {
            since.elapsed() > Duration::from_secs(2)
        });
        assert!(held.verify().unwrap() > Duration::ZERO, "it was renewed");
        held.unlock().unwrap();
        waits.join().unwrap();
    });
}

#[test]
fn locks_work_without_the_commands_that_services_withhold() {
    for withheld in [OF_ELASTICACHE, OF_MEMORYSTORE, OF_REDIS_CLOUD] {
        let server = without(withheld);
        locks_live_on(&server.url());
        let findings = client(&server.url_as("")).diagnose(LONG).unwrap();
        let dangers: Vec<_> = findings
            .iter()
            .filter(|it| it.level >= FindingLevel::Danger)
            .collect();
        assert!(dangers.is_empty(), "{withheld:?}: {dangers:#?}");
        let unknown = findings.iter().any(|it| it.level == FindingLevel::Unknown);
        assert_eq!(
            unknown,
            withheld.contains(&"CONFIG"),
            "{withheld:?}: {findings:#?}"
        );
    }
}

/// Returns the error of an attempt at the lock.
fn refusal(url: &str) -> Error {
    client(url).mutex("it").unwrap().try_lock().unwrap_err()
}

#[test]
fn service_without_wait_refuses_replicas_alone() {
    let server = without(OF_REDIS_CLOUD);
    let error = refusal(&format!("{}?replicas=1", server.url()));
    assert!(
        error.is_configuration() && error.to_string().contains("WAIT"),
        "{error:?}"
    );
    let free = client(&server.url())
        .mutex("it")
        .unwrap()
        .try_lock()
        .unwrap();
    free.expect("nothing is left of the attempt")
        .unlock()
        .unwrap();
}

/// ElastiCache Serverless refuses `TIME` in scripts only; here the server does not know the command
/// at all.
#[test]
fn service_without_time_in_scripts_needs_tokens_off() {
    let server = without(&["TIME"]);
    let error = refusal(&server.url());
    assert!(error.is_configuration(), "{error:?}");
    assert!(error.to_string().contains("`tokens=off`"), "{error}");
    let url = format!("{}?tokens=off", server.url());
    let [one, other] = [(); 2].map(|()| client(&url));
    let held = one.mutex("it").unwrap().lock().unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let guard = other.mutex("it").unwrap().try_lock_for(LONG).unwrap();
            guard.expect("it comes free").unlock().unwrap();
        });
        eventually("it waits", LONG, || {
            server.probe().command_calls("evalsha") > 2
        });
        held.unlock().unwrap();
        waits.join().unwrap();
    });
    let writer = one.rw_lock("rw").unwrap();
    writer.write().lock().unwrap().unlock().unwrap();
    let error = one
        .semaphore("slots", 2)
        .unwrap()
        .try_acquire()
        .unwrap_err();
    assert!(
        error.is_configuration() && error.to_string().contains("TIME"),
        "{error}"
    );
}

#[test]
fn service_without_select_refuses_other_databases_alone() {
    let server = without(OF_REDIS_CLOUD);
    let error = refusal(&format!("{}/1", server.url()));
    assert!(
        error.is_configuration() && error.to_string().contains("database"),
        "{error:?}"
    );
    let url = format!("{}/0", server.url());
    client(&url)
        .mutex("it")
        .unwrap()
        .try_lock()
        .unwrap()
        .expect("free")
        .unlock()
        .unwrap();
}

/// As with IAM or Entra: over TLS, the password is a token that expires, and the service closes
/// connections.
#[test]
fn token_that_expires_is_replaced_over_tls() {
    let authority = Authority::new();
    let (server, port) = authority.server("127.0.0.1", 2090, "no", &[]);
    let mut probe = server.probe();
    probe.command(&[
        "ACL",
        "SETUSER",
        "iam",
        "on",
        ">token-one",
        "~*",
        "&*",
        "+@all",
    ]);
    let token = Arc::new(Mutex::new("token-one".to_owned()));
    let url = format!(
        "rediss://127.0.0.1:{port}?watchdog=10s&tls_ca={}",
        authority.file("ca.crt")
    );
    let current = Arc::clone(&token);
    let provider = move |_: &str| Ok(Credentials::new(current.lock().clone()).with_user("iam"));
    let config = Config::from_url(&url)
        .unwrap()
        .with_credentials(Arc::new(provider));
    let [one, other] = [(); 2].map(|()| {
        distlock::builder()
            .config(config.clone())
            .connect()
            .unwrap()
    });
    let held = one.mutex("it").unwrap().lock().unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let guard = other
                .mutex("it")
                .unwrap()
                .try_lock_for(LONG)
                .unwrap()
                .expect("free");
            guard.unlock().unwrap();
        });
        let waits_again = || server.probe().listeners() > 0;
        eventually("it waits", LONG, waits_again);
        for new in ["token-two", "token-three"] {
            // Both tokens are valid until the connections with the old one are closed.
            probe.command(&["ACL", "SETUSER", "iam", &[">", new].concat()]);
            let old = std::mem::replace(&mut *token.lock(), new.to_owned());
            for kind in ["normal", "pubsub"] {
                probe.command(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
            }
            eventually("the holder is let in again", LONG, || held.verify().is_ok());
            eventually("the waiter is let in again", LONG, waits_again);
            probe.command(&["ACL", "SETUSER", "iam", &["<", &old].concat()]);
        }
        held.unlock().unwrap();
        waits.join().unwrap();
    });
}

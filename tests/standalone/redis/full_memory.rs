//! Servers whose memory is full: held locks can be released, and a policy that evicts keys is
//! reported.

use crate::bench::{Bench, lease, soon, tokens};
use distlock::Event;
use distlock::admin::WarningKind;
use distlock_tests::probe::Value;
use distlock_tests::process::RedisServer;
use distlock_tests::time::eventually;
use lock_core::FencingToken;
use lock_core::backend::{Answer, Release, ReleaseOptions, Tokens};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

pub(super) fn set(server: &RedisServer, setting: &str, value: &str) {
    let told = server.probe().command(&["CONFIG", "SET", setting, value]);
    assert_eq!(told, Value::Text("OK".to_owned()));
}

#[test]
fn full_server_takes_every_kind_of_release() {
    let server = RedisServer::start();
    for options in [
        "",
        "format=token",
        "prefix=lock:&format=token,wakes=python-redis-lock",
        "prefix=registry:&format=token,wakes=spring-integration",
    ] {
        let bench = Bench::new(&format!("{}?{options}", server.url()));
        for name in ["doubt", "tokens", "both"] {
            let owner = bench.owner();
            let set_aside = Tokens::Assign { reserve: 5 };
            let answer = bench
                .acquire_with(name, owner, lease(30_000), set_aside)
                .unwrap();
            let Answer::Granted(grant) = answer else {
                panic!("{answer:?}")
            };
            let (first, _) = tokens(&grant);
            let mut held = crate::bench::acquisition(name, owner, 30_000);
            held.receipt = grant.receipt;
            let closing = if name == "tokens" {
                ReleaseOptions::WITHOUT_TOMBSTONE
            } else {
                ReleaseOptions::WITH_TOMBSTONE
            };
            let closing = match name {
                "doubt" => closing,
                _ => closing.last_used(FencingToken::new(first)),
            };
            set(&server, "maxmemory", "1");
            let released = bench.backend.release(&held, closing, soon()).unwrap();
            assert!(
                matches!(released, Release::Freed),
                "{options} {name}: {released:?}"
            );
            set(&server, "maxmemory", "0");
            if name != "tokens" {
                // A late copy of the attempt finds the owner closed.
                let late = bench
                    .acquire_with(name, owner, lease(30_000), set_aside)
                    .unwrap();
                assert!(
                    matches!(late, Answer::Busy(_)),
                    "{options} {name}: {late:?}"
                );
            }
        }
    }
}

#[test]
fn server_that_may_evict_locks_is_reported() {
    let server = RedisServer::start();
    set(&server, "maxmemory", "100mb");
    for (policy, times) in [("noeviction", 0), ("volatile-lru", 1), ("allkeys-lfu", 1)] {
        set(&server, "maxmemory-policy", policy);
        let warned = Arc::<Mutex<Vec<String>>>::default();
        let heard = Arc::clone(&warned);
        let handler = move |event: &Event| {
            if let Event::Warning {
                kind: WarningKind::Eviction,
                message,
                ..
            } = event
            {
                heard.lock().push(message.clone());
            }
        };
        let client = distlock::builder().url(&server.url()).unwrap();
        let client = client.events(Arc::new(handler)).connect().unwrap();
        let asked = server.probe().command_calls("info");
        for _ in 0..3 {
            client.mutex("x").unwrap().lock().unwrap().unlock().unwrap();
        }
        eventually("it is asked", LONG, || {
            // The test's own reads of the count are `INFO` requests, too, and so is the client's
            // query of the server's identity.
            server.probe().command_calls("info") > asked + 2
        });
        eventually("it is told", LONG, || warned.lock().len() == times);
        for message in &*warned.lock() {
            assert!(message.contains("`maxmemory-policy`") && message.contains(policy));
        }
    }
}

#[test]
fn server_that_may_evict_locks_can_be_refused() {
    let server = RedisServer::start();
    let url = format!("{}?eviction=refuse", server.url());
    let client = distlock::connect(&url).unwrap();
    let lock = client.mutex("x").unwrap();
    set(&server, "maxmemory-policy", "volatile-lru");
    lock.lock().unwrap().unlock().unwrap();
    set(&server, "maxmemory", "100mb");
    let client = distlock::connect(&url).unwrap();
    let lock = client.mutex("x").unwrap();
    for _ in 0..2 {
        let refused = lock.try_lock().unwrap_err();
        assert!(refused.is_configuration(), "{refused}");
        assert!(refused.to_string().contains("volatile-lru"), "{refused}");
    }
    set(&server, "maxmemory-policy", "noeviction");
    eventually("it is mended", LONG, || {
        lock.try_lock().is_ok_and(|guard| guard.is_some())
    });
    let unknown = [
        "ACL", "SETUSER", "me", "on", "nopass", "~*", "&*", "+@all", "-info",
    ];
    server.probe().command(&unknown);
    let client = distlock::connect(&format!("{}?eviction=refuse", server.url_as("me"))).unwrap();
    let refused = client.mutex("x").unwrap().try_lock().unwrap_err();
    assert!(
        refused.is_configuration() && refused.to_string().contains("+info"),
        "{refused}"
    );
    let nonsense = distlock::connect(&format!("{}?eviction=never", server.url())).unwrap_err();
    assert!(
        nonsense.to_string().contains("`warn` and `refuse`"),
        "{nonsense}"
    );
}

//! Late releases in classic formats, and whether they free the next holder's lock.

use crate::stage::Hold;
use distlock::backend::{ClientId, Context};
use distlock::time::SystemClock;
use distlock::{Config, LockOptions};
use distlock_tests::process::RedisServer;
use distlock_tests::redis::client;
use lock_redis::RedisStore;
use lock_redis::servers::Format;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// After a forced release, the former holder's release frees the next holder's lock, unless the
/// format compares values.
#[test]
fn forced_holder_frees_next_lock_unless_release_compares() {
    let formats = [
        ("plain", true),
        ("plain,commands", true),
        ("counter", true),
        ("counter,multi", true),
        ("counter,lua", true),
        ("timestamp", true),
        ("timestamp,takeover=delete", true),
        ("timestamp,float", true),
        ("timestamp,release=compare", false),
        ("timestamp,float,release=compare", false),
    ];
    let server = RedisServer::start();
    for (format, takes_it_along) in formats {
        // Different leases: with equal ones, two clients would write the same timestamp in one
        // second.
        let [a, b, other] = ["30s", "60s", "60s"].map(|lease| {
            client(&server, &format!("format={format}&lease={lease}"))
                .mutex("x")
                .unwrap()
        });
        let first = a.lock().unwrap();
        assert!(other.force_unlock().unwrap(), "{format}");
        let second = b.lock().unwrap();
        let outcome = first.unlock();
        let third = other.try_lock().unwrap();
        assert!(second.is_valid(), "{format}");
        assert_eq!(third.is_some(), takes_it_along, "{format}: {outcome:?}");
        // The client that did it gets no error.
        assert_eq!(outcome.is_ok(), takes_it_along, "{format}: {outcome:?}");
        drop((second, third));
        server.probe().command(&["DEL", "x"]);
    }
}

/// A `DEL` that is held up past the lease must not be sent, because the lock may belong to the next
/// holder by then.
#[test]
fn del_delayed_past_the_lease_is_not_sent() {
    thread::scope(|scope| {
        for format in ["plain", "counter,lua", "timestamp", "timestamp,float"] {
            scope.spawn(move || holds_up_its_del(format));
        }
    });
}

fn holds_up_its_del(format: &str) {
    let server = RedisServer::start();
    let url = format!("{}?format={format},poll=10ms", server.url());
    let (hold, context) = (
        Arc::<Hold>::default(),
        Context::new(Arc::new(SystemClock), ClientId::random()),
    );
    let config = Config::from_url(&url).unwrap();
    let build = |format| RedisStore::standalone(&config, &context, format);
    let backend =
        Format::open_store(&config, &context, Some(Arc::clone(&hold) as _), build).unwrap();
    let first = distlock::builder().backend(backend).connect().unwrap();
    let first = first.owned_mutex("x").unwrap();
    let held = first
        .lock_with(&LockOptions::new().lease(Duration::from_secs(1)))
        .unwrap();
    let mut probe = server.probe();
    probe.reset_stats();
    let unlock = hold.until(&["DEL"], move || held.unlock());
    assert!(unlock.is_held_up(), "{format}");
    let second = distlock::connect(&format!("{url}&lease=60s"))
        .unwrap()
        .mutex("x")
        .unwrap();
    let held = second.lock().unwrap();
    assert!(
        unlock.go_on().is_err(),
        "{format}: it says that it was freed"
    );
    assert_eq!(probe.command_calls("del"), 0, "{format}");
    assert!(probe.exists("x"), "{format}");
    held.unlock().unwrap();
    assert!(!probe.exists("x"), "{format}");
}

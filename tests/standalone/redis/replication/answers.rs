//! Replies to `WAIT` that are lost, cut off or garbage, and servers that refuse `WAIT`.

use super::{LONG, insufficient};
use distlock_tests::proxy::{Fault, Plan, Proxy};
use distlock_tests::replicas::Replicated;
use distlock_tests::resp::Request;
use distlock_tests::time::{eventually, ms};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Strikes the first `left` requests that are `WAIT`.
struct Waits {
    fault: Fault,
    left: AtomicU32,
}

impl Plan for Waits {
    fn fate(&self, request: &mut Request) -> Fault {
        let less = |left: u32| left.checked_sub(1);
        let is_struck = request.is("WAIT")
            && self
                .left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
                .is_ok();
        if is_struck { self.fault } else { Fault::Pass }
    }
}

/// Starts a proxy before a master that knows the scripts: a `WAIT` that is sent with an unknown
/// script says nothing.
fn proxy(servers: &Replicated, fault: Fault, count: u32) -> Proxy {
    drop(
        distlock::connect(&servers.url(""))
            .unwrap()
            .mutex("warm")
            .unwrap()
            .lock()
            .unwrap(),
    );
    Proxy::new(
        servers.master.port(),
        Arc::new(Waits {
            fault,
            left: AtomicU32::new(count),
        }),
    )
}

/// The connection breaks after the reply to the attempt and before the reply to `WAIT`, so it is
/// unknown how many replicas have the grant. The attempt is repeated by the same owner.
#[test]
fn cut_off_wait_is_repeated_by_the_same_owner() {
    for fault in [
        Fault::Cut,
        Fault::CutReply,
        Fault::HalfReply,
        Fault::Garbage,
    ] {
        let servers = Replicated::start(1);
        let proxy = proxy(&servers, fault, 1);
        let url = format!("{}?replicas=1&command_timeout=1s", proxy.url());
        let client = distlock::connect(&url).unwrap();
        let lock = client.mutex("a").unwrap();
        let mut probe = servers.master.probe();
        let guard = lock.try_lock_for(LONG).unwrap().unwrap();
        assert_eq!(probe.hgetall("a").len(), 1, "{fault:?}");
        assert!(guard.is_valid());
        let token = guard.fencing_token().unwrap().to_string();
        assert_eq!(
            probe.command(&["GET", "redisson_lock_token:{a}"]).text(),
            token,
            "{fault:?}"
        );
        guard.unlock().unwrap();
        assert!(!probe.exists("a"), "{fault:?}");
        if fault != Fault::HalfReply {
            let tombstones = probe.keys("distlock_closed:*").len();
            assert_eq!(tombstones, 1, "{fault:?}: a copy may still come");
        }
    }
}

/// Without a reply to `WAIT`, the attempt fails in time with insufficient replicas, and the lock is
/// released.
#[test]
fn unanswered_wait_is_reported_as_insufficient_replicas() {
    let servers = Replicated::start(1);
    let proxy = proxy(&servers, Fault::SwallowReply, 1);
    let url = format!(
        "{}?replicas=1&replication_timeout={}ms&command_timeout={}ms",
        proxy.url(),
        ms(500).as_millis(),
        ms(700).as_millis()
    );
    let lock = distlock::connect(&url).unwrap().mutex("a").unwrap();
    let said = insufficient(lock.try_lock());
    assert!(said.contains("did not say in time how many of 1"), "{said}");
    assert!(!servers.master.probe().exists("a"));
    drop(lock.try_lock().unwrap().expect("the next one is answered"));
}

#[test]
fn missing_right_to_wait_is_named_and_leaves_nothing() {
    let servers = Replicated::start(1);
    let mut probe = servers.master.probe();
    probe.command(&[
        "ACL", "SETUSER", "me", "on", "nopass", "~*", "&*", "+@all", "-wait",
    ]);
    let url = servers.master.url_as("me");
    let client = distlock::connect(&format!("{url}?replicas=1")).unwrap();
    let error = client.mutex("a").unwrap().lock().unwrap_err();
    assert!(error.is_configuration(), "{error:?}");
    assert!(
        error.to_string().contains("`ACL SETUSER me +wait`"),
        "{error}"
    );
    client.wait_for_cleanup(LONG).unwrap();
    assert!(!probe.exists("a"));
    let plain = distlock::connect(&url).unwrap();
    drop(
        plain
            .mutex("a")
            .unwrap()
            .try_lock()
            .unwrap()
            .expect("without a policy there is no wait"),
    );
}

/// The master becomes a replica during `WAIT`: it answers with an error, and the outcome of its
/// grant is unknown.
#[test]
fn master_demoted_during_wait_grants_nothing() {
    let servers = Replicated::start(1);
    servers.replicas[0].pause();
    let client = distlock::connect(&servers.url("replicas=1&replication_timeout=5s")).unwrap();
    let lock = client.mutex("a").unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| lock.try_lock().map(drop));
        let mut probe = servers.master.probe();
        eventually("it waits", LONG, || {
            probe
                .clients()
                .iter()
                .any(|client| client.contains("cmd=wait"))
        });
        probe.command(&["REPLICAOF", "127.0.0.1", "1"]);
        let error = waiting.join().unwrap().unwrap_err();
        assert!(error.is_unavailable(), "{error:?}");
    });
}

//! Read-write locks with lost replies, late requests, forgotten scripts, a full server, replicas,
//! or a format that has no such locks.

use super::*;
use distlock::DistLock;
use distlock_tests::contenders::read_write::ReadersAndWriters;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Proxy, Sometimes, Turn};
use distlock_tests::redis::client;
use distlock_tests::replicas::Replicated;
use distlock_tests::resp::Kind;
use distlock_tests::time::{eventually, let_pass, ms};
use lock_core::backend::Failure;
use std::sync::Arc;
use std::sync::mpsc::channel;

/// Returns faults that sometimes lose the reply to an attempt, a release or a renewal, and
/// sometimes deliver an attempt late.
fn storm() -> Vec<Sometimes> {
    let fault = |kind, fault, of_1000, seed| {
        Sometimes::new(Some(kind), Turn::Chance { of_1000, seed }, fault)
    };
    let late = Fault::Late(Duration::from_millis(300));
    vec![
        fault(Kind::Acquire, Fault::SwallowReply, 20, 1),
        fault(Kind::Acquire, late, 20, 2),
        fault(Kind::Release, Fault::SwallowReply, 20, 3),
        fault(Kind::Close, Fault::CutReply, 50, 4),
        fault(Kind::Renew, Fault::CutReply, 200, 5),
    ]
}

#[test]
fn lost_replies_and_late_requests_let_no_two_in() {
    let server = RedisServer::start();
    let proxy = Proxy::new(server.port(), Arc::new(storm()));
    let url = format!(
        "{}?command_timeout=250ms&watchdog=60s&outage_limit=5m",
        proxy.url()
    );
    let contenders = ReadersAndWriters::start(&url, 3, 3, 2);
    let lost = |kind, fault| proxy.count(kind, fault);
    eventually("enough went wrong", LONG * 2, || {
        lost(Kind::Acquire, Fault::SwallowReply) >= 10
            && lost(Kind::Release, Fault::SwallowReply) >= 10
            && proxy.arrived_late(Kind::Acquire) >= 10
    });
    let account = contenders.stop();
    println!(
        "{} reads, {} writes",
        account.reads.len(),
        account.writes.len()
    );
    println!("{}", proxy.account());
    assert!(account.reads.len() > 20 && account.writes.len() > 20);
    // Pending cleanups free the lock long before the end of a lease of 60 s.
    let asked = Asked(Bench::on(&server));
    let writer = asked.0.owner();
    eventually("it is free", Duration::from_secs(30), || {
        !asked.attempt(&write(), writer, lease(30_000)).is_busy()
    });
}

#[test]
fn scripts_forgotten_between_requests_change_nothing() {
    let server = RedisServer::start();
    let mut contenders =
        ReadersAndWriters::start(&format!("{}?watchdog=1s", server.url()), 2, 3, 2);
    let mut probe = server.probe();
    eventually("they go on", LONG, || {
        probe.command(&["SCRIPT", "FLUSH"]);
        let account = contenders.account();
        account.reads.len() > 300 && account.writes.len() > 100
    });
    assert!(
        contenders
            .children
            .iter_mut()
            .all(|child| child.is_running())
    );
    contenders.stop();
}

#[test]
fn full_server_refuses_and_releases_without_a_trace() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    let (reader, _) = asked.take(&read(), 30_000);
    assert!(asked.is_busy(&write()), "the scripts are known");
    assert_eq!(asked.release(&write(), asked.0.owner()), Release::Gone);
    let before = probe.keys("*");
    probe.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let refused = |name: LockName| {
        let attempt = Attempt::new(&name, asked.0.owner(), lease(30_000));
        let error = asked
            .0
            .backend
            .acquire(&attempt, soon())
            .unwrap_err()
            .into_error();
        assert!(error.is_unavailable(), "{error}");
    };
    refused(read());
    assert!(asked.is_busy(&write()));
    assert_eq!(asked.renew(&read(), reader, 60_000), Renewal::Extended);
    let kept = probe.keys("*rwlock_timeout*");
    assert!(before.contains(&kept[0]) && kept.len() == 1, "{kept:?}");
    let closing = ReleaseOptions::WITH_TOMBSTONE;
    assert!(matches!(
        asked.release_with(&read(), reader, closing),
        Release::Freed
    ));
    assert!(!probe.exists("x"));
    refused(write());
    assert!(!probe.exists("x"));
}

#[test]
fn formats_without_other_kinds_refuse_them_by_name() {
    let server = RedisServer::start();
    for options in [
        "format=token",
        "format=token,wakes=python-redis-lock&prefix=lock:",
    ] {
        let error = client(&server, options).rw_lock("x").unwrap_err();
        assert!(error.is_unsupported(), "{error}");
        assert!(error.to_string().contains("read-write locks"), "{error}");
    }
    let plain = client(&server, "format=plain&lease=5s")
        .rw_lock("x")
        .unwrap_err();
    assert!(plain.is_unsupported(), "{plain}");
}

/// The backend itself refuses these requests, although a client would refuse the kind before it
/// sends one.
#[test]
fn format_of_mutexes_refuses_each_request_for_another_kind() {
    let server = RedisServer::start();
    let semaphore = LockKind::Permits { limit: 2, count: 1 };
    for (options, says_owners) in [("format=token", true), ("format=plain&lease=5s", false)] {
        let bench = Bench::new(&format!("{}?{options}", server.url()));
        let (held, _) = bench.take("x");
        let refused = |what: &str, failure: Failure| {
            let error = failure.into_error();
            let format = options.split('&').next().unwrap().replace('=', " `") + "` has mutexes";
            assert!(
                error.is_unsupported() && error.to_string().contains(&format),
                "{what} {error}"
            );
        };
        // A format with owners has a queue, and so fair mutexes.
        let others = [LockKind::Read, LockKind::Write, semaphore, LockKind::Fair];
        for kind in others.into_iter().take(if says_owners { 3 } else { 4 }) {
            let (name, owner, store) = (name("x").of_kind(kind), bench.owner(), &bench.backend);
            let attempt = Attempt::new(&name, owner, lease(30_000));
            refused("acquire", store.acquire(&attempt, soon()).unwrap_err());
            refused("inspect", store.inspect(&name, soon()).unwrap_err());
            refused(
                "force",
                store
                    .admin()
                    .unwrap()
                    .force_release(&name, soon())
                    .unwrap_err(),
            );
            if !says_owners {
                continue;
            }
            let it = acquisition(&name, owner, 30_000);
            let plain = ReleaseOptions::WITHOUT_TOMBSTONE;
            refused("release", store.release(&it, plain, soon()).unwrap_err());
            let (done, submitted) = channel();
            store.submit_release(&it, plain, soon(), Box::new(move |it| drop(done.send(it))));
            refused(
                "submitted",
                submitted.recv_timeout(LONG).unwrap().unwrap_err(),
            );
            refused("verify", store.verify(&it, soon()).unwrap_err());
            let renewals = [RenewalRequest::new(held.clone()), RenewalRequest::new(it)];
            let [mutex, other] = <[_; 2]>::try_from(bench.renew(&renewals)).unwrap();
            assert_eq!(mutex.unwrap(), Renewal::Extended);
            refused("renew", other.unwrap_err());
        }
        assert!(server.probe().exists("x"));
        assert_ne!(bench.release(&held), Release::Gone);
    }
}

/// A reader's hold is renewed while its thread also writes, and after the write lock's release.
#[test]
fn watchdog_keeps_readers_and_writers_beyond_their_leases() {
    let server = RedisServer::start();
    let client = client(&server, "watchdog=1s");
    let lock = client.rw_lock("x").unwrap();
    let writing = lock.write().lock().unwrap();
    let reading = lock.read().lock().unwrap();
    let_pass(ms(1_500));
    assert!(writing.is_valid() && reading.is_valid());
    writing.unlock().unwrap();
    let_pass(ms(1_500));
    assert!(reading.is_valid());
    reading.verify().unwrap();
    reading.unlock().unwrap();
}

/// Read holds are not tracked, because each reader's renewal changes the lock's key and would be
/// reported to all other readers. A write lock is tracked.
#[test]
fn renewals_of_readers_are_not_tracked() {
    let server = RedisServer::start();
    let client = client(&server, "watchdog=1s");
    let mut probe = server.probe();
    let reading = client.rw_lock("x").unwrap();
    let guard = reading.read().lock().unwrap();
    probe.reset_stats();
    eventually("it is renewed", LONG, || {
        probe.command_calls("pexpire") >= 6
    });
    assert_eq!(probe.stat("tracking_total_keys"), 0);
    assert!(guard.is_valid());
    guard.unlock().unwrap();
    let writing = client.rw_lock("x").unwrap().write().lock().unwrap();
    eventually("a writer's key is tracked", LONG, || {
        probe.stat("tracking_total_keys") == 1
    });
    probe.command(&["DEL", "x"]);
    eventually("the loss is known", LONG, || !writing.is_valid());
}

#[test]
fn replicas_confirm_readers_and_writers() {
    let servers = Replicated::start(1);
    let options = "replicas=1&replication_timeout=300ms&watchdog=20s";
    let client = distlock::connect(&servers.url(options)).unwrap();
    let lock = client.rw_lock("x").unwrap();
    let mut replica = servers.probes().remove(1);
    let writing = lock.write().lock().unwrap();
    assert_eq!(replica.hgetall("x")["mode"], "write");
    let reading = lock.read().lock().unwrap();
    writing.unlock().unwrap();
    assert_eq!(replica.keys("*rwlock_timeout*").len(), 1, "the hold, too");
    reading.unlock().unwrap();
    servers.cut(0);
    for half in [lock.read() as &dyn DistLock, lock.write()] {
        let error = half.try_lock().unwrap_err();
        assert!(error.is_insufficient_replicas(), "{error}");
    }
    client.wait_for_cleanup(LONG).unwrap();
    assert!(!servers.probes().remove(0).exists("x"), "nothing is left");
}

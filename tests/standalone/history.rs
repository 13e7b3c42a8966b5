//! The history of a server's data, as the server shows it, decides whether the client uses the
//! server, and whether the locks that are held count as lost: behind a balancer, after failovers by
//! hand, after restarts.

use crate::bench::LONG;
use distlock::admin::ServerData;
use distlock::{Client, Event, LockGuard, LockOptions, LossCause};
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::Proxy;
use distlock_tests::replicas::Replicated;
use distlock_tests::time::{eventually, within};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A client, and what its events have reported.
struct Told {
    client: Client,
    changes: Arc<Mutex<Vec<ServerData>>>,
    renewals: Arc<AtomicU64>,
}

impl Told {
    fn behind(proxy: &Proxy, settings: &str) -> Self {
        let (changes, renewals) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<AtomicU64>::default());
        let (told, renewed) = (Arc::clone(&changes), Arc::clone(&renewals));
        let handler = move |event: &Event| match event {
            Event::ServerChanged { data, .. } => told.lock().push(*data),
            Event::Renewed { .. } => drop(renewed.fetch_add(1, Ordering::SeqCst)),
            _ => {}
        };
        let builder = distlock::builder()
            .url(&format!("{}?{settings}", proxy.url()))
            .unwrap();
        let client = builder.events(Arc::new(handler)).connect().unwrap();
        Self {
            client,
            changes,
            renewals,
        }
    }

    fn take(&self, name: &str) -> LockGuard {
        self.client
            .mutex(name)
            .unwrap()
            .try_lock_for(LONG)
            .unwrap()
            .expect("it is free")
    }

    /// Waits for a renewal: the client notes the history that the server shows after it.
    fn await_renewal(&self) {
        let before = self.renewals.load(Ordering::SeqCst);
        eventually("it is renewed", LONG, || {
            self.renewals.load(Ordering::SeqCst) > before
        });
    }

    fn await_change(&self, number: usize) -> ServerData {
        eventually("the change is told", LONG, || {
            self.changes.lock().get(number - 1).copied()
        })
    }
}

fn fixed(lease: Duration) -> LockOptions {
    LockOptions::new().lease(lease)
}

fn field(server: &RedisServer, field: &str) -> String {
    server
        .probe()
        .info_field("replication", field)
        .unwrap_or_default()
}

/// Returns whether the server is Redis 7 or later, and so shows after a restart which history its
/// dump belongs to.
fn is_from_7(server: &RedisServer) -> bool {
    !server
        .probe()
        .info_field("server", "redis_version")
        .unwrap()
        .starts_with("6.")
}

/// Makes `replica` the master in place of `master`, with all data.
fn fail_over(master: &RedisServer, replica: &RedisServer) {
    let to = ["FAILOVER", "TO", "127.0.0.1", &replica.port().to_string()];
    eventually("it hands over", LONG, || {
        // Refused as long as the replica is not in sync.
        let _refused = master.probe().command(&to);
        field(replica, "role") == "master"
    });
    eventually("the former master follows", LONG, || {
        field(master, "master_link_status") == "up"
    });
}

#[test]
fn balancer_over_master_and_replicas_costs_no_lock() {
    let group = Replicated::start(2);
    let proxy = Proxy::plain(group.master.port());
    let ports: Vec<_> = group
        .replicas
        .iter()
        .chain([&group.master])
        .map(RedisServer::port)
        .collect();
    proxy.balance_over(&ports);
    // Each new connection leads to another server than the one before.
    let held: Vec<_> = (0..8)
        .map(|number| {
            let told = Told::behind(&proxy, "watchdog=9s&outage_limit=60s");
            let guard = told.take(&format!("of-{number}"));
            (told, guard)
        })
        .collect();
    for _ in 0..3 {
        proxy.cut_all();
        for (told, guard) in &held {
            let renewals = told.renewals.load(Ordering::SeqCst);
            eventually("it is renewed on a new connection", LONG, || {
                assert!(guard.is_valid(), "{:?}", guard.state());
                told.renewals.load(Ordering::SeqCst) > renewals
            });
        }
    }
    for (told, guard) in held {
        assert!(
            told.changes.lock().is_empty(),
            "none but the master was ever used"
        );
        guard.unlock().unwrap();
    }
}

#[test]
fn replica_is_named_with_its_master_and_never_followed() {
    let group = Replicated::start(1);
    let proxy = Proxy::plain(group.replicas[0].port());
    let told = Told::behind(&proxy, "watchdog=60s");
    let lock = told.client.mutex("a").unwrap();
    let error = within(Duration::from_secs(5), || lock.try_lock()).unwrap_err();
    let master = format!("replica of 127.0.0.1:{}", group.master.port());
    assert!(
        error.is_unavailable() && error.to_string().contains(&master),
        "{error}"
    );
    proxy.switch_to(group.master.port());
    let guard = told.take("a");
    // A client that has used the master does not use the replica either.
    proxy.switch_to(group.replicas[0].port());
    let other = told.client.mutex("b").unwrap();
    assert!(other.try_lock().is_err() && guard.is_valid());
    proxy.switch_to(group.master.port());
    eventually("the master is reached again", LONG, || {
        guard.verify().is_ok()
    });
    assert!(told.changes.lock().is_empty());
    guard.unlock().unwrap();
}

#[test]
fn fail_back_is_followed_at_once_and_keeps_the_lock() {
    let mut group = Replicated::start(1);
    let (one, other) = (&group.master, group.replicas.remove(0));
    let proxy = Proxy::plain(one.port());
    let told = Told::behind(&proxy, "watchdog=5m");
    let held = told.take("held");
    for (number, (master, replica)) in [(one, &other), (&other, one)].into_iter().enumerate() {
        fail_over(master, replica);
        proxy.switch_to(replica.port());
        let next = within(Duration::from_secs(20), || {
            told.take(&format!("next-{number}"))
        });
        assert_eq!(told.await_change(number + 1), ServerData::Continued);
        assert!(held.verify().is_ok() && held.is_valid());
        next.unlock().unwrap();
    }
    held.unlock().unwrap();
}

#[test]
fn replica_that_was_behind_is_reported_as_cut_and_its_lost_lock() {
    let group = Replicated::start(1);
    let proxy = Proxy::plain(group.master.port());
    let told = Told::behind(&proxy, "watchdog=5m");
    let kept = told.take("kept");
    group.must_be_in_sync();
    group.cut(0);
    let lost = told.take("lost");
    told.await_renewal();
    let losses = lost.losses();
    group.replicas[0]
        .probe()
        .command(&["REPLICAOF", "NO", "ONE"]);
    proxy.switch_to(group.replicas[0].port());
    told.take("next").unlock().unwrap();
    assert_eq!(told.await_change(1), ServerData::Cut);
    assert_eq!(losses.recv_timeout(LONG).unwrap().cause(), LossCause::Gone);
    assert!(kept.verify().is_ok() && kept.is_valid());
}

/// A master keeps the dump that it wrote for a replica, and a replica keeps the dump that it
/// received: both load it after a restart.
#[test]
fn server_without_snapshots_that_loads_a_dump_is_no_continuation() {
    let mut master = RedisServer::start_with(&["--repl-diskless-sync", "no"]);
    let mut replica = RedisServer::start();
    replica
        .probe()
        .command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    eventually("it is in sync", LONG, || {
        field(&replica, "master_link_status") == "up"
    });
    replica.probe().command(&["REPLICAOF", "NO", "ONE"]);
    for (server, known_before) in [(&mut master, true), (&mut replica, false)] {
        let proxy = Proxy::plain(server.port());
        let told = Told::behind(&proxy, "watchdog=5m");
        let held = told.take("held");
        told.await_renewal();
        let losses = held.losses();
        server.restart();
        told.take("next").unlock().unwrap();
        // The master's dump belongs to the history that the client has noted; the replica's dump
        // does not.
        let is_cut = known_before && is_from_7(server);
        let expected = if is_cut {
            ServerData::Cut
        } else {
            ServerData::Unknown
        };
        assert_eq!(told.await_change(1), expected);
        assert_eq!(losses.recv_timeout(LONG).unwrap().cause(), LossCause::Gone);
    }
}

/// A master that was replaced and has returned reports the role of a master until it is made a
/// replica.
#[test]
fn returned_master_is_no_continuation_and_hides_no_loss() {
    let mut group = Replicated::start(1);
    let proxy = Proxy::plain(group.master.port());
    let told = Told::behind(&proxy, "watchdog=5m");
    let held = told.take("held");
    group.must_be_in_sync();
    group.master.kill();
    group.replicas[0]
        .probe()
        .command(&["REPLICAOF", "NO", "ONE"]);
    proxy.switch_to(group.replicas[0].port());
    told.take("next").unlock().unwrap();
    assert_eq!(told.await_change(1), ServerData::Continued);
    assert!(held.verify().is_ok());
    let losses = held.losses();
    group.master.restart();
    assert_eq!(field(&group.master, "role"), "master");
    proxy.switch_to(group.master.port());
    told.take("next").unlock().unwrap();
    assert_eq!(told.await_change(2), ServerData::Unknown);
    assert_eq!(losses.recv_timeout(LONG).unwrap().cause(), LossCause::Gone);
}

/// Open connections survive the demotion, and a lock with a fixed lease is not renewed: neither
/// shows the loss.
#[test]
fn demotion_and_promotion_on_standing_connections_hide_no_loss() {
    let [server, other] =
        [(); 2].map(|()| RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]));
    let proxy = Proxy::plain(server.port());
    let told = Told::behind(&proxy, "watchdog=9s&tracking=off");
    let renewed = told.take("renewed");
    let lease = Duration::from_secs(600);
    let lost = told
        .client
        .mutex("lost")
        .unwrap()
        .lock_with(&fixed(lease))
        .unwrap();
    let losses = [&lost, &renewed].map(LockGuard::losses);
    told.await_renewal();
    let (owner, count) = server
        .probe()
        .hgetall("renewed")
        .into_iter()
        .next()
        .unwrap();
    other.probe().command(&["HSET", "renewed", &owner, &count]);
    other.probe().command(&["PEXPIRE", "renewed", "60000"]);
    server
        .probe()
        .command(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    eventually("it follows", LONG, || {
        field(&server, "master_link_status") == "up"
    });
    server.probe().command(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(
        losses[0].recv_timeout(LONG).unwrap().cause(),
        LossCause::Gone
    );
    assert!(losses[1].try_recv().is_err() && renewed.verify().is_ok());
}

#[test]
fn locks_on_a_replaced_server_are_settled_in_batches() {
    const LOCKS: usize = 400;
    let [old, new] = [(); 2].map(|()| RedisServer::start());
    let proxy = Proxy::plain(old.port());
    let told = Told::behind(&proxy, "watchdog=5m&tracking=off");
    let held: Vec<_> = (0..LOCKS)
        .map(|number| told.take(&format!("lock-{number}")))
        .collect();
    // The new server knows every second lock, too.
    for guard in held.iter().step_by(2) {
        let name = guard.name().as_str();
        let (owner, count) = old.probe().hgetall(name).into_iter().next().unwrap();
        new.probe().command(&["HSET", name, &owner, &count]);
        new.probe().command(&["PEXPIRE", name, "300000"]);
    }
    proxy.switch_to(new.port());
    told.take("next").unlock().unwrap();
    let is_settled = |(number, guard): (usize, &LockGuard)| {
        let name = guard.name().as_str();
        let is_renewed = || new.probe().pttl(name) > Some(Duration::from_secs(290));
        if number % 2 == 0 {
            guard.is_valid() && is_renewed()
        } else {
            !guard.is_valid()
        }
    };
    eventually("each is settled", LONG, || {
        held.iter().enumerate().all(is_settled)
    });
    let calls: u64 = ["evalsha", "eval"]
        .map(|command| new.probe().command_calls(command))
        .iter()
        .sum();
    println!("{calls} scripts for {LOCKS} locks");
    // Locks that the new server does not know are cleaned up, on a busy machine by one request
    // each.
    assert!(
        calls < LOCKS as u64 * 3 / 4,
        "{calls} scripts for {LOCKS} locks"
    );
}

/// Shows what the query for the history costs the server in addition to the renewals.
#[test]
fn look_behind_each_batch_of_renewals_costs_few_microseconds() {
    const LOCKS: usize = 100;
    let server = RedisServer::start();
    let proxy = Proxy::plain(server.port());
    let told = Told::behind(&proxy, "watchdog=3s");
    let _held: Vec<_> = (0..LOCKS)
        .map(|number| told.take(&format!("lock-{number}")))
        .collect();
    let stats = |command: &str| {
        server
            .probe()
            .info_field("commandstats", &format!("cmdstat_{command}"))
    };
    told.await_renewal();
    server.probe().reset_stats();
    let before = told.renewals.load(Ordering::SeqCst);
    eventually("there were some batches", LONG, || {
        told.renewals.load(Ordering::SeqCst) > before + 10 * LOCKS as u64
    });
    for command in ["evalsha", "exists", "info"] {
        println!("{command}: {}", stats(command).unwrap_or_default());
    }
    // An `INFO` follows each batch and the beginning of each connection; a few others are sent
    // besides.
    let info = stats("info").unwrap();
    let calls: u64 = info.split(['=', ',']).nth(1).unwrap().parse().unwrap();
    assert!((5..100).contains(&calls), "{info}");
}

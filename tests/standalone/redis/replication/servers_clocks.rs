//! Replicas whose clocks differ from their master's. Leases are replicated as times of day, so they
//! end early on a replica whose clock is ahead.

use super::{LONG, builder, client, insufficient};
use distlock::admin::{Counters, WarningKind};
use distlock::{Client, Event, LockGuard, LockOptions, LossCause};
use distlock_tests::guards::deadline;
use distlock_tests::process::RedisServer;
use distlock_tests::replica_clocks::{await_sample, over_a_failover};
use distlock_tests::replicas::Replicated;
use distlock_tests::time::{eventually, let_pass, ms};
use distlock_tests::time_of_day::TimeOfDay;
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Starts a master and replicas, each with a clock that is ahead by so many seconds.
fn started(ahead: &[i64]) -> (Replicated, Vec<TimeOfDay>) {
    let clocks: Vec<_> = ahead.iter().map(|_| TimeOfDay::new()).collect();
    clocks
        .iter()
        .zip(ahead)
        .for_each(|(clock, ahead)| clock.set(ahead * 1_000));
    let servers = Replicated::start_on(&clocks.iter().map(Some).collect::<Vec<_>>());
    (servers, clocks)
}

/// A client that has read the replicas' clocks.
fn informed(servers: &Replicated, settings: &str) -> Client {
    let client = client(servers, settings);
    await_sample(
        &client,
        "sampled",
        &servers.replicas.iter().collect::<Vec<_>>(),
    );
    client
}

fn promote(server: &RedisServer) -> Client {
    server.probe().command(&["REPLICAOF", "NO", "ONE"]);
    distlock::connect(&format!("{}?watchdog=10s", server.url())).unwrap()
}

fn fixed(client: &Client, name: &str, lease: Duration) -> LockGuard {
    client
        .mutex(name)
        .unwrap()
        .lock_with(&LockOptions::new().lease(lease))
        .unwrap()
}

/// The lease is longer than three times the replica's lead, so the replica's confirmation counts.
/// The first holder's validity must end before the promoted replica grants the lock.
#[test]
fn promoted_replica_with_another_clock_grants_no_second_lock() {
    let each = |ahead| {
        move || {
            let (mut servers, _clocks) = started(&[ahead]);
            let first = informed(&servers, "replicas=1");
            let verdict = over_a_failover(&first, "a", ms(9_000), || {
                servers.master.kill();
                promote(&servers.replicas[0])
            });
            println!("a replica {ahead} s ahead:");
            verdict.must_be_exact();
        }
    };
    let threads = [-4, 0, 2].map(|ahead| thread::spawn(each(ahead)));
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}

/// The replica that is furthest ahead limits the validity, because any replica may be promoted.
#[test]
fn lock_is_trusted_no_longer_than_any_replica_keeps_it() {
    let (servers, _clocks) = started(&[18, -5]);
    let client = informed(&servers, "replicas=2&watchdog=60s");
    let must_be_kept = |guard: &LockGuard| {
        for mut probe in servers.probes() {
            let left = guard.remaining();
            let kept = probe.pttl(guard.name().as_str());
            assert!(
                kept.is_some_and(|kept| kept >= left),
                "{kept:?} of {left:?}"
            );
        }
    };
    let guard = fixed(&client, "a", Duration::from_secs(60));
    must_be_kept(&guard);
    let left = guard.remaining();
    assert!(
        left <= Duration::from_secs(42) && left > Duration::from_secs(25),
        "{left:?}"
    );
    let renewed = client.mutex("b").unwrap().lock().unwrap();
    renewed.extend(Duration::from_secs(90)).unwrap();
    assert!(renewed.remaining() > Duration::from_secs(80), "{renewed:?}");
    must_be_kept(&renewed);
}

#[test]
fn replica_far_ahead_confirms_nothing_until_its_clock_is_right() {
    let (servers, clocks) = started(&[40]);
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&warnings);
    let client = builder(
        &servers,
        "replicas=1&watchdog=30s&on_insufficient_replicas=fail",
    )
    .events(Arc::new(move |event: &Event| {
        if let Event::Warning {
            kind: WarningKind::ReplicaClock,
            message,
            ..
        } = event
        {
            told.lock().push(message.clone());
        }
    }))
    .connect()
    .unwrap();
    await_sample(&client, "sampled", &[&servers.replicas[0]]);
    let lock = client.mutex("a").unwrap();
    let said = eventually("it is known that the replica does not count", LONG, || {
        match lock.try_lock() {
            Ok(guard) => drop(guard),
            Err(error) => return Some(insufficient::<()>(Err(error))),
        }
        None
    });
    assert!(
        said.contains("1 of 1") && said.contains("1 with a clock"),
        "{said}"
    );
    // A third of this lease is longer than the replica's lead, so the replica counts.
    let guard = fixed(&client, "long", Duration::from_secs(150));
    assert!(
        guard.remaining() < Duration::from_secs(110),
        "{:?}",
        guard.remaining()
    );
    let replica = format!("127.0.0.1:{}", servers.replicas[0].port());
    eventually("a warning is told", LONG, || !warnings.lock().is_empty());
    let said = warnings.lock().clone();
    assert_eq!(said.len(), 1, "{said:?}");
    assert!(
        [&*replica, "40.", "chrony"]
            .iter()
            .all(|part| said[0].contains(part)),
        "{said:?}"
    );
    // The client reads a clock that is ahead again every few seconds.
    clocks[0].set(0);
    eventually("it counts again", LONG, || {
        lock.try_lock()
            .is_ok_and(|guard| guard.is_some_and(|it| it.remaining() > ms(25_000)))
    });
}

#[test]
fn one_more_replica_must_confirm_for_each_that_is_far_ahead() {
    let (servers, _clocks) = started(&[40, 0]);
    let client = informed(
        &servers,
        "replicas=1&watchdog=30s&on_insufficient_replicas=fail",
    );
    let lock = client.mutex("a").unwrap();
    let guard = eventually("both confirm", LONG, || lock.try_lock().ok().flatten());
    assert!(guard.is_valid());
    guard.unlock().unwrap();
    // Only the replica that is far ahead confirms, and it does not count.
    servers.replicas[1].pause();
    let said = insufficient(lock.try_lock());
    assert!(
        said.contains("1 of 1") && said.contains("1 with a clock"),
        "{said}"
    );
    servers.replicas[1].resume();
    servers.must_be_in_sync();
    eventually("both confirm again", LONG, || {
        lock.try_lock().is_ok_and(|guard| guard.is_some())
    });
}

/// No call waits for the clocks, so the first lock of a client is granted before they are known.
#[test]
fn lock_taken_before_the_clocks_are_known_is_trusted_for_less_at_once() {
    let (servers, _clocks) = started(&[40]);
    let client = client(&servers, "replicas=1&watchdog=30s");
    let guard = client.mutex("a").unwrap().lock().unwrap();
    let losses = guard.losses();
    let loss = losses.recv_timeout(LONG).unwrap();
    assert_eq!(loss.cause(), LossCause::InsufficientReplicas);
    assert!(
        loss.to_string().contains("the clock of a replica is 40."),
        "{loss}"
    );
    eventually("it is given back", LONG, || {
        !servers.master.probe().exists("a")
    });
    assert!(guard.unlock().unwrap_err().is_lost());
}

#[test]
fn lead_of_a_replica_that_comes_back_shortens_what_is_held() {
    let (servers, clocks) = started(&[0]);
    let counters = Arc::new(Counters::new());
    let client = builder(&servers, "replicas=1&watchdog=30s&replication_timeout=3s")
        .events(counters.clone())
        .connect()
        .unwrap();
    await_sample(&client, "sampled", &[&servers.replicas[0]]);
    let second = Duration::from_secs(1);
    let fixed = fixed(&client, "fixed", second * 120);
    let watched = client.mutex("watched").unwrap().lock().unwrap();
    let until = deadline(&fixed);
    servers.cut(0);
    let mut master = servers.master.probe();
    eventually("the master has lost it", LONG, || {
        master
            .info_field("replication", "connected_slaves")
            .unwrap()
            == "0"
    });
    // Long enough for two checks by the client: if it missed the absence, it would read the clock
    // only a minute later.
    let_pass(ms(11_000));
    clocks[0].set(8_000);
    servers.mend(0);
    eventually("it is trusted for less", LONG * 2, || {
        deadline(&fixed) + second * 8 < until
    });
    assert!(fixed.is_valid() && watched.is_valid());
    let renewed = counters.count("renewed");
    eventually("it is renewed as before", LONG, || {
        assert!(watched.is_valid() && watched.remaining() < second * 22);
        counters.count("renewed") > renewed + 1
    });
}

/// A replica whose clock the client cannot read is trusted, and delays no call.
#[test]
fn replica_that_cannot_be_asked_delays_nothing_and_ends_with_the_client() {
    let announced = [
        "--replica-announce-ip",
        "127.0.0.1",
        "--replica-announce-port",
        "1",
    ];
    let master = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let of = ["--replicaof", "127.0.0.1", &master.port().to_string()];
    let replica = RedisServer::start_with(&[&of[..], &announced].concat());
    let servers = Replicated {
        master,
        replicas: vec![replica],
    };
    servers.must_be_in_sync();
    let client = client(&servers, "replicas=1&watchdog=30s");
    let guard = client.mutex("a").unwrap().lock().unwrap();
    let mut probe = servers.master.probe();
    eventually("the client has looked", LONG, || {
        probe.command_calls("time") > 0
    });
    assert!(guard.is_valid() && guard.remaining() > ms(25_000));
    guard.unlock().unwrap();
    drop(client);
    eventually("its connections are gone", LONG, || {
        let list = probe.command(&["CLIENT", "LIST", "TYPE", "normal"]).text();
        list.lines().all(|line| !line.contains("name=distlock"))
    });
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn clock_that_jumps_is_noticed_within_a_minute_and_a_bit() {
    let (servers, clocks) = started(&[0]);
    let client = informed(&servers, "replicas=1&watchdog=30s");
    let watched = client.mutex("a").unwrap().lock().unwrap();
    clocks[0].set(40_000);
    let losses = watched.losses();
    let loss = losses.recv_timeout(Duration::from_secs(150)).unwrap();
    assert_eq!(loss.cause(), LossCause::InsufficientReplicas, "{loss}");
}

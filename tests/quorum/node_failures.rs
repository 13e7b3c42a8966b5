//! Nodes that are dead, frozen or slow, or have lost their data.

use distlock::admin::{Counters, QuorumBackend};
use distlock::backend::{
    Attempt, Backend, ClientId, Context, Failure, LeaseTime, OwnerId, Wake, Watch,
};
use distlock::time::{Clock, Moment, SystemClock};
use distlock::{Config, Error, ErrorKind, GuardState, LockName, LockOptions};
use distlock_tests::guards::await_renewals;
use distlock_tests::probe::Value;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Proxy, Sometimes, Turn};
use distlock_tests::quorum::{Dead, LONGEST, Servers, dead, place, url};
use distlock_tests::resp::Kind;
use distlock_tests::rights::LOGIN;
use distlock_tests::time::{Stopwatch, eventually, let_pass, ms, scaled, within};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
/// Settings with a time-out and a lease that are short enough for tests that wait for their end,
/// and long enough for a busy machine.
const QUICK: &str =
    "max_lease=10m&node_timeout=1s&watchdog=6s&command_timeout=2s&outage_limit=500ms";
/// Settings with a lease that is longer than every test, so a lock that is gone was released.
const STEADY: &str =
    "max_lease=10m&node_timeout=1s&watchdog=5m&command_timeout=3s&outage_limit=500ms";
/// Settings with a short longest lease, so that a restarted node votes again within a test.
const FORGIVING: &str =
    "max_lease=3s&node_timeout=1s&watchdog=2s&command_timeout=2s&outage_limit=200ms";

fn failed(error: &Error) -> usize {
    error
        .members()
        .iter()
        .filter(|member| member.error().is_some())
        .count()
}

#[test]
fn dead_minority_is_unnoticed_and_dead_majority_is_reported() {
    let mut quorum = Servers::with(5, 0, QUICK);
    let client = quorum.client();
    let lock = client.mutex("a").unwrap();
    lock.lock().unwrap().unlock().unwrap();
    let held = client.mutex("held").unwrap().lock().unwrap();
    quorum.servers[0].kill();
    quorum.servers[3].kill();
    lock.lock().unwrap().unlock().unwrap();
    // The renewals of the held lock continue.
    await_renewals(&held);
    assert_eq!(held.state(), GuardState::Held);
    held.unlock().unwrap();
    quorum.servers[1].kill();
    let error = lock.try_lock().unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    assert_eq!((error.members().len(), failed(&error)), (5, 3), "{error}");
    println!("{error}");
    for at in [2, 4] {
        eventually("nothing is left", SOON, || {
            !quorum.servers[at].probe().exists("a")
        });
    }
}

#[test]
fn frozen_minority_delays_no_client_and_keeps_no_lock() {
    let quorum = Servers::with(5, 0, STEADY);
    let client = quorum.client();
    let lock = client.mutex("a").unwrap();
    lock.lock().unwrap().unlock().unwrap();
    quorum.servers[1].pause();
    quorum.servers[2].pause();
    // Far less than five waits for a silent node would take: a second each.
    within(Duration::from_secs(1), || {
        for _ in 0..5 {
            lock.lock().unwrap().unlock().unwrap();
        }
    });
    quorum.servers[1].resume();
    quorum.servers[2].resume();
    for server in &quorum.servers {
        eventually("nothing is left", SOON, || !server.probe().exists("a"));
    }
}

#[test]
fn holder_with_a_frozen_majority_loses_the_lock_by_its_clock() {
    let quorum = Servers::with(3, 0, QUICK);
    let client = quorum.client();
    let guard = client.mutex("a").unwrap().lock().unwrap();
    let losses = guard.losses();
    quorum.servers[0].pause();
    quorum.servers[1].pause();
    within(guard.remaining(), || losses.recv_timeout(scaled(SOON))).expect("it is told");
    assert!(!guard.is_valid());
    quorum.servers[0].resume();
    quorum.servers[1].resume();
    drop(guard);
    let other = quorum.client().mutex("a").unwrap();
    drop(
        other
            .try_lock_for(scaled(SOON))
            .unwrap()
            .expect("it ends by itself"),
    );
}

/// Checks that the last server, once `restart` has restarted or emptied it, does not vote for the
/// longest lease, with an error that contains `says`, and votes again afterwards.
fn voting_again(restart: impl Fn(&mut Servers), says: &str) {
    let mut quorum = Servers::with(3, 0, FORGIVING);
    let client = quorum.client();
    let token = client.mutex("a").unwrap().lock().unwrap().fencing_token();
    let started = Stopwatch::start();
    restart(&mut quorum);
    // One more server is dead, so the vote of the restarted one is needed.
    quorum.servers[0].kill();
    let other = quorum.client();
    let lock = other.mutex("a").unwrap();
    let mut told = Vec::new();
    let guard = eventually("it votes again", SOON, || match lock.try_lock() {
        Ok(guard) => guard,
        Err(error) => {
            assert!(error.is_unavailable(), "{error:?}");
            told.extend(error.members()[2].error().map(ToString::to_string));
            None
        }
    });
    assert!(told.iter().any(|its| its.contains(says)), "{told:?}");
    println!("voted again after {:?}", started.elapsed());
    assert!(
        started.elapsed() > Duration::from_millis(2_900),
        "{:?}",
        started.elapsed()
    );
    assert!(guard.fencing_token() > token);
    guard.unlock().unwrap();
}

/// Waits until a client has made the third server, which has lost its marker, a node again.
fn has_it_marked_again(quorum: &mut Servers) {
    let lock = quorum.client().mutex("b").unwrap();
    eventually("it is marked again", SOON, || {
        lock.lock().unwrap().unlock().unwrap();
        quorum.servers[2].probe().exists("distlock_quorum")
    });
}

#[test]
fn node_restarted_empty_does_not_vote_for_the_longest_lease() {
    voting_again(
        |quorum| {
            quorum.restart(2);
            has_it_marked_again(quorum);
        },
        "became a node just now, and does not vote for",
    );
}

#[test]
fn node_restarted_from_a_snapshot_waits_for_the_longest_lease() {
    voting_again(
        |quorum| {
            quorum.servers[2].probe().command(&["SAVE"]);
            quorum.restart(2);
            assert!(quorum.servers[2].probe().exists("distlock_quorum"));
        },
        "was started again, and does not vote for",
    );
}

#[test]
fn node_emptied_while_running_waits_for_the_longest_lease() {
    voting_again(
        |quorum| {
            quorum.servers[2].probe().command(&["FLUSHALL"]);
            has_it_marked_again(quorum);
        },
        "does not vote for",
    );
}

#[test]
fn emptied_node_slower_than_the_others_is_marked_again() {
    let patient = "max_lease=10m&node_timeout=20s&command_timeout=40s";
    let quorum = Servers::with(3, 0, patient);
    let slow = slow_locks(ms(50));
    let proxy = Proxy::new(quorum.servers[2].port(), Arc::new(slow));
    let places = [
        quorum.servers[0].port(),
        quorum.servers[1].port(),
        proxy.port(),
    ]
    .map(place);
    quorum.servers[2].probe().command(&["FLUSHALL"]);
    let client = distlock::connect(&url(&places, patient)).unwrap();
    client.mutex("a").unwrap().lock().unwrap().unlock().unwrap();
    eventually("it is marked again", SOON, || {
        quorum.servers[2].probe().exists("distlock_quorum")
    });
}

#[test]
fn restarted_node_declared_durable_votes_at_once() {
    let durable = format!("{FORGIVING}&durable=yes");
    let mut quorum = Servers::with(3, 0, &durable);
    quorum
        .client()
        .mutex("a")
        .unwrap()
        .lock()
        .unwrap()
        .unlock()
        .unwrap();
    quorum.servers[2].probe().command(&["SAVE"]);
    quorum.restart(2);
    quorum.servers[0].kill();
    quorum
        .client()
        .mutex("a")
        .unwrap()
        .lock()
        .unwrap()
        .unlock()
        .unwrap();
}

#[test]
fn quorum_without_set_up_waits_for_the_longest_lease() {
    let servers: Vec<_> = (0..3).map(|_| distlock_tests::quorum::start()).collect();
    let places: Vec<_> = servers.iter().map(|server| place(server.port())).collect();
    let client = distlock::connect(&url(&places, FORGIVING)).unwrap();
    let (lock, watch) = (client.mutex("a").unwrap(), Stopwatch::start());
    let error = lock.try_lock().unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("it votes in") && text.contains("`distlock quorum init`"),
        "{text}"
    );
    assert!(text.len() < 300, "{text}");
    let guard = eventually("it votes", SOON, || lock.try_lock().ok().flatten());
    assert!(
        watch.elapsed() > Duration::from_millis(2_900),
        "{:?}",
        watch.elapsed()
    );
    guard.unlock().unwrap();
}

#[test]
fn client_with_another_longest_lease_is_refused() {
    let quorum = Servers::with(3, 0, "max_lease=10m");
    let places: Vec<_> = quorum
        .servers
        .iter()
        .map(|server| place(server.port()))
        .collect();
    let other = distlock::connect(&url(&places, "max_lease=5m")).unwrap();
    let error = other.mutex("a").unwrap().try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error:?}");
    assert!(
        error.to_string().contains("600s") && error.to_string().contains("300s"),
        "{error}"
    );
    let other = distlock::connect(&url(&places, "max_lease=10m&token_retention=2h")).unwrap();
    let error = other.mutex("a").unwrap().try_lock().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Configuration, "{error:?}");
    assert!(
        error.to_string().contains("token_retention=7200s"),
        "{error}"
    );
    // A client with the right settings is served.
    let client = quorum.client();
    let lock = client.mutex("a").unwrap();
    let guard = lock.lock().unwrap();
    let error = guard.extend(Duration::from_secs(3_600)).unwrap_err();
    assert!(error.is_misuse(), "{error:?}");
    for server in &quorum.servers {
        let left = server.probe().pttl("a").unwrap_or_default();
        assert!(
            left <= Duration::from_secs(600),
            "no node has heard of it: {left:?}"
        );
    }
    guard.unlock().unwrap();
    let long = LockOptions::new().lease(Duration::from_secs(601));
    assert!(lock.lock_with(&long).unwrap_err().is_misuse());
}

#[test]
fn late_grant_is_rolled_back() {
    let mut quorum = Servers::with(3, 0, LONGEST);
    // One server is dead, and another answers attempts after its time.
    quorum.servers[2].kill();
    let late = Sometimes::new(
        Some(Kind::Acquire),
        Turn::Every(1),
        Fault::DelayReply(ms(1_500)),
    );
    let proxy = Proxy::new(quorum.servers[1].port(), Arc::new(late));
    let places = [
        quorum.servers[0].port(),
        proxy.port(),
        quorum.servers[2].port(),
    ]
    .map(place);
    let client = distlock::connect(&url(&places, STEADY)).unwrap();
    let error = client.mutex("a").unwrap().try_lock().unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    for server in &quorum.servers[..2] {
        eventually("nothing is left", SOON, || !server.probe().exists("a"));
    }
    assert!(
        proxy.count(Kind::Acquire, Fault::DelayReply(ms(1_500))) > 0,
        "{}",
        proxy.account()
    );
}

/// Returns a plan that delays the answers to all requests about locks, but not the connections.
fn slow_locks(by: Duration) -> Vec<Sometimes> {
    let late = |kind| Sometimes::new(Some(kind), Turn::Every(1), Fault::DelayReply(by));
    [Kind::Acquire, Kind::Release, Kind::Close, Kind::Renew]
        .map(late)
        .into()
}

#[test]
fn slow_node_delays_no_client_and_counts_where_needed() {
    let mut quorum = Servers::with(3, 0, LONGEST);
    let late = ms(400);
    let slow = slow_locks(late);
    let proxy = Proxy::new(quorum.servers[2].port(), Arc::new(slow));
    let (one, other) = (quorum.servers[0].port(), quorum.servers[1].port());
    let places = [one, other, proxy.port()].map(place);
    let patient = "max_lease=10m&node_timeout=5s&watchdog=30s&command_timeout=10s";
    let client = distlock::connect(&url(&places, patient)).unwrap();
    let lock = client.mutex("a").unwrap();
    lock.lock().unwrap().unlock().unwrap();
    // Ten requests, none of which waits for the slow node's answer.
    within(late, || {
        for _ in 0..5 {
            lock.lock().unwrap().unlock().unwrap();
        }
    });
    for server in &quorum.servers {
        eventually("nothing is left", SOON, || !server.probe().exists("a"));
    }
    // Now the slow node's vote is needed. Its answer arrives within the lease, so it is a vote like
    // any other; the lease counts from before the request.
    quorum.servers[0].kill();
    let watch = Stopwatch::start();
    let guard = lock.lock().unwrap();
    let (took, left) = (watch.elapsed(), guard.remaining());
    assert!(took >= late, "{took:?}");
    assert!(left <= Duration::from_secs(30) - late, "{left:?}");
    guard.unlock().unwrap();
}

#[test]
fn node_back_from_the_dead_is_watched_by_present_waiters() {
    let mut quorum = Servers::with(3, 0, STEADY);
    let holder = quorum.client();
    let guard = holder.mutex("a").unwrap().lock().unwrap();
    // All nodes must have granted the lock: if one of only two votes died with its server, there
    // would be no holder, and the waiter would take the lock instead of subscribing.
    for server in &quorum.servers {
        eventually("each node has it", SOON, || server.probe().exists("a"));
    }
    quorum.servers[2].kill();
    // The waiter is the server's default user. The tests' own user gets its rights only after each
    // start, and the waiter sends requests at once.
    let waiter = distlock::connect(&quorum.url.replace(&format!("{LOGIN}@"), "")).unwrap();
    let listeners = |server: &RedisServer| match server.probe().command(&[
        "PUBSUB",
        "NUMSUB",
        "redisson_lock__channel:{a}",
    ]) {
        Value::List(pair) => pair[1].clone().int(),
        other => panic!("{other:?}"),
    };
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let lock = waiter.mutex("a").unwrap();
            lock.try_lock_for(scaled(SOON * 3))
                .unwrap()
                .expect("it is freed")
                .unlock()
                .unwrap();
        });
        eventually("it waits", SOON, || listeners(&quorum.servers[1]) == 1);
        // The dead node's time for an answer passes.
        let_pass(scaled(ms(1_500)));
        quorum.restart(2);
        eventually("it listens there, too", SOON, || {
            listeners(&quorum.servers[2]) == 1
        });
        guard.unlock().unwrap();
        waiting.join().unwrap();
    });
}

#[test]
fn node_that_refuses_the_password_counts_as_dead() {
    let strict = RedisServer::start_without_user();
    let servers = [
        distlock_tests::quorum::start(),
        distlock_tests::quorum::start(),
    ];
    let places: Vec<_> = [&strict, &servers[0], &servers[1]]
        .map(|server| place(server.port()))
        .into();
    // The votes of both other servers are needed each time, so the time-outs are long.
    let patient = "max_lease=10m&node_timeout=2s&watchdog=10s&command_timeout=4s";
    let as_default_user = url(&places, patient).replace(&format!("{LOGIN}@"), "");
    distlock::admin::set_up_quorum(&Config::from_url(&as_default_user).unwrap()).unwrap();
    let client = distlock::connect(&url(&places, patient)).unwrap();
    let lock = client.mutex("a").unwrap();
    // During some of these cycles the first server's refusal has arrived already.
    for _ in 0..20 {
        lock.lock().unwrap().unlock().unwrap();
    }
    servers[0].pause();
    let error = lock.try_lock().unwrap_err();
    assert!(error.is_unavailable() && failed(&error) == 2, "{error:?}");
    servers[0].resume();
}

#[test]
fn clients_with_different_majorities_exclude_each_other() {
    // Nothing here waits for a silent node, so a busy machine has all the time that it needs.
    let patient = "max_lease=10m&node_timeout=5s&command_timeout=10s";
    let quorum = Servers::with(5, 0, patient);
    let seen = |nodes: [usize; 3]| {
        let place_of = |at: usize| {
            let is_seen = nodes.contains(&at);
            place(if is_seen {
                quorum.servers[at].port()
            } else {
                distlock_tests::process::free_port()
            })
        };
        let places: Vec<_> = (0..5).map(place_of).collect();
        distlock::connect(&url(&places, patient)).unwrap()
    };
    let (one, other) = (seen([0, 1, 2]), seen([2, 3, 4]));
    let guard = one.mutex("a").unwrap().lock().unwrap();
    let lock = other.mutex("a").unwrap();
    assert!(lock.try_lock().unwrap().is_none());
    let token = guard.fencing_token();
    guard.unlock().unwrap();
    let next = lock.try_lock_for(scaled(SOON)).unwrap().unwrap();
    assert!(next.fencing_token() > token);
    next.unlock().unwrap();
}

/// While a lock passes from one holder to the next, nodes differ about the holder. If only a bare
/// majority of the nodes is left, no other node can decide: the client must query them again, and
/// not wait for silent nodes.
#[test]
fn holder_is_reported_with_a_bare_majority_of_nodes() {
    // How long a client would wait for a silent node, far longer than any delay of a busy machine.
    const NODE: Duration = Duration::from_secs(10);
    for is_frozen in [false, true] {
        let times = format!(
            "{LONGEST}&node_timeout={}s&command_timeout=40s",
            NODE.as_secs()
        );
        let mut quorum = Servers::with(5, 0, &times);
        let lock = quorum.client().mutex("x").unwrap();
        assert!(!lock.is_locked().unwrap());
        quorum.servers[0].kill();
        if is_frozen {
            quorum.servers[1].pause();
        } else {
            quorum.servers[1].kill();
        }
        let owner = format!("{}:1", ClientId::random());
        for server in &quorum.servers[2..4] {
            server.probe().command(&["HSET", "x", &owner, "1"]);
            server.probe().command(&["PEXPIRE", "x", "600000"]);
        }
        thread::scope(|scope| {
            let asks = scope.spawn(|| lock.is_locked());
            let_pass(ms(500));
            assert!(
                !asks.is_finished(),
                "two of three say that it is held, and are no majority"
            );
            let freed = Stopwatch::start();
            for server in &quorum.servers[2..4] {
                server.probe().command(&["DEL", "x"]);
            }
            assert!(!asks.join().unwrap().unwrap(), "it is free");
            let took = freed.elapsed();
            assert!(
                took < NODE / 2,
                "{took:?}: a node that says nothing was waited for"
            );
        });
    }
}

/// The server is unfit only for a while: it is a replica, or a Sentinel seems to watch it. A client
/// that noticed that must check again.
#[test]
fn refused_server_is_asked_again() {
    for is_replica in [true, false] {
        let mut quorum = Servers::with(3, 0, FORGIVING);
        let (master, mut probe) = (distlock_tests::quorum::start(), quorum.servers[2].probe());
        let mut listener = quorum.servers[2].probe();
        if is_replica {
            probe.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
            eventually("it has the other's data", SOON, || {
                !probe.exists("distlock_quorum")
            });
        } else {
            listener.command(&["SUBSCRIBE", "__sentinel__:hello"]);
        }
        let client = quorum.client();
        let lock = client.mutex("a").unwrap();
        // One unfit node of three makes no lock fail.
        for _ in 0..5 {
            lock.lock().unwrap().unlock().unwrap();
        }
        quorum.servers[0].pause();
        let error = eventually("it is told", SOON, || lock.try_lock().err());
        let text = error.to_string();
        let says = if is_replica {
            "is a replica"
        } else {
            "is watched by a Sentinel"
        };
        assert!(error.is_unavailable() && text.contains(says), "{text}");
        // A server that was a replica has lost its marker: the other members make it a node again.
        quorum.servers[0].resume();
        drop(listener);
        if is_replica {
            probe.command(&["REPLICAOF", "NO", "ONE"]);
        }
        let mended = Stopwatch::start();
        eventually("it has its marker", SOON, || {
            let _told = lock.try_lock();
            quorum.servers[2].probe().exists("distlock_quorum")
        });
        quorum.servers[1].kill();
        let guard = eventually("it votes again", SOON, || lock.try_lock().ok().flatten());
        println!("it voted again after {:?}", mended.elapsed());
        assert!(
            mended.elapsed() < scaled(Duration::from_secs(10)),
            "{:?}",
            mended.elapsed()
        );
        // With its data the replica lost its grants, so it must not vote for the longest lease.
        assert!(
            !is_replica || mended.elapsed() > ms(2_900),
            "{:?}",
            mended.elapsed()
        );
        guard.unlock().unwrap();
    }
}

#[test]
fn former_replica_of_a_node_is_admitted_as_itself() {
    let mut quorum = Servers::with(3, 0, FORGIVING);
    let (mut probe, master) = (
        quorum.servers[2].probe(),
        quorum.servers[1].port().to_string(),
    );
    let run_id = probe.info_field("server", "run_id").unwrap();
    let client = quorum.client();
    let lock = client.mutex("a").unwrap();
    lock.lock().unwrap().unlock().unwrap();
    probe.command(&["REPLICAOF", "127.0.0.1", &master]);
    let node = |probe: &mut distlock_tests::probe::Probe| {
        probe.hgetall("distlock_quorum").get("node").cloned()
    };
    eventually("it has the other's data", SOON, || {
        node(&mut probe).is_some_and(|node| node != run_id)
    });
    probe.command(&["REPLICAOF", "NO", "ONE"]);
    eventually("it is itself again", SOON, || {
        lock.lock().unwrap().unlock().unwrap();
        node(&mut probe).is_some_and(|node| node == run_id)
    });
    quorum.servers[0].kill();
    let guard = eventually("it votes again", SOON, || lock.try_lock().ok().flatten());
    guard.unlock().unwrap();
}

#[test]
fn new_quorum_is_awaited_and_a_short_wait_fails_at_once() {
    let servers: Vec<_> = (0..3).map(|_| distlock_tests::quorum::start()).collect();
    let places: Vec<_> = servers.iter().map(|server| place(server.port())).collect();
    let (counters, pauses) = (
        Arc::new(Counters::new()),
        "max_lease=6s&watchdog=2s&outage_limit=1s",
    );
    let events = Arc::clone(&counters);
    let builder = distlock::builder()
        .url(&url(&places, pauses))
        .unwrap()
        .events(events);
    let client = builder.connect().unwrap();
    let (lock, watch) = (client.mutex("a").unwrap(), Stopwatch::start());
    let error = lock.try_lock_for(Duration::from_secs(3)).unwrap_err();
    let text = error.to_string();
    assert!(
        error.is_unavailable() && text.contains("new quorum"),
        "{text}"
    );
    assert!(text.contains("set_up_quorum"), "{text}");
    // This wait is far longer than the outage limit.
    lock.lock().unwrap().unlock().unwrap();
    assert!(
        watch.elapsed() >= Duration::from_secs(5),
        "{:?}",
        watch.elapsed()
    );
    eventually("it is told", SOON, || counters.count("paused") == 1);
    println!("it voted after {:?}", watch.elapsed());
}

#[test]
fn set_up_beside_clients_that_begin_it_makes_all_nodes_vote() {
    let quorum = Servers::with(3, 0, "max_lease=10m");
    let config = Config::from_url(&quorum.url).unwrap();
    for round in 0..12 {
        for server in &quorum.servers {
            server.probe().command(&["FLUSHALL"]);
        }
        let client = quorum.client();
        let beginner = thread::spawn(move || drop(client.mutex("a").unwrap().try_lock()));
        let_pass(ms(round / 2));
        distlock::admin::set_up_quorum(&config).unwrap();
        beginner.join().unwrap();
        let lock = quorum.client().mutex("a").unwrap();
        lock.try_lock_for(Duration::from_secs(5))
            .unwrap()
            .unwrap()
            .unlock()
            .unwrap();
        for server in &quorum.servers {
            let mut probe = server.probe();
            let votes_from = probe.hgetall("distlock_quorum")["since"].parse().unwrap();
            let time = probe.command(&["TIME"]).texts();
            let seconds: u64 = time[0].parse().unwrap();
            assert!(
                (seconds + 1) * 1_000_000 > votes_from,
                "{time:?} and {votes_from}"
            );
        }
    }
}

/// A quorum that a client begins while a server is down gets a second epoch when that server joins.
#[test]
fn set_up_ends_the_pause_of_a_quorum_joined_by_a_third_server() {
    let quorum = Servers::with(3, 0, "max_lease=10m");
    for server in &quorum.servers {
        server.probe().command(&["FLUSHALL"]);
    }
    quorum.servers[2].pause();
    let client = quorum.client();
    let lock = client.mutex("a").unwrap();
    let epoch = |quorum: &Servers, at: usize| {
        let marker = quorum.servers[at].probe().hgetall("distlock_quorum");
        marker
            .get("epoch")
            .and_then(|epoch| epoch.parse::<u64>().ok())
            .unwrap_or(0)
    };
    eventually("two of them begin it", SOON, || {
        assert!(lock.try_lock().is_err(), "it does not vote");
        epoch(&quorum, 0) == 1 && epoch(&quorum, 1) == 1
    });
    quorum.servers[2].resume();
    eventually("the third joins", SOON, || {
        assert!(lock.try_lock().is_err(), "it does not vote");
        epoch(&quorum, 2) > 0
    });
    println!("epochs {:?}", [0, 1, 2].map(|at| epoch(&quorum, at)));
    distlock::admin::set_up_quorum(&Config::from_url(&quorum.url).unwrap()).unwrap();
    for at in [0, 1] {
        lock.lock().unwrap().unlock().unwrap();
        // With one node paused, the votes of the other two are needed.
        quorum.servers[at].pause();
        lock.lock().unwrap().unlock().unwrap();
        quorum.servers[at].resume();
    }
}

#[test]
fn set_up_ends_the_pause_of_a_new_quorum_only() {
    let mut quorum = Servers::with(3, 0, "max_lease=10m");
    let config = Config::from_url(&quorum.url).unwrap();
    for server in &quorum.servers {
        server.probe().command(&["FLUSHALL"]);
    }
    let lock = quorum.client().mutex("a").unwrap();
    let text = lock.try_lock().unwrap_err().to_string();
    assert!(text.contains("new quorum"), "{text}");
    eventually("it is begun", SOON, || {
        quorum
            .servers
            .iter()
            .all(|server| server.probe().exists("distlock_quorum"))
    });
    distlock::admin::set_up_quorum(&config).unwrap();
    lock.lock().unwrap().unlock().unwrap();
    // Two of three lose their data: they become nodes again, and do not vote at first.
    for at in [0, 1] {
        quorum.restart(at);
    }
    distlock::admin::set_up_quorum(&config).unwrap();
    // A client that knows the former quorum fails for as long as leases of that quorum may last.
    let text = lock.try_lock().unwrap_err().to_string();
    assert!(text.contains("another quorum"), "{text}");
    let text = quorum
        .client()
        .mutex("a")
        .unwrap()
        .try_lock()
        .unwrap_err()
        .to_string();
    assert!(text.contains("it votes in"), "{text}");
}

/// Returns a quorum of three dead nodes, on which a watch has this outcome, and the nodes. Their
/// time-out is longer than a test may take.
fn dead_nodes(watch: fn(Moment) -> Result<Watch, Failure>) -> (QuorumBackend, Vec<Arc<Dead>>) {
    let node = || {
        Arc::new(Dead {
            watch: Some(watch),
            ..Dead::default()
        })
    };
    let nodes: Vec<_> = (0..3).map(|_| node()).collect();
    let stores = nodes.iter().map(|node| Arc::clone(node) as _).collect();
    let context = Context::new(Arc::new(SystemClock), ClientId::random());
    (
        QuorumBackend::new(stores, SOON * 2, &context).unwrap(),
        nodes,
    )
}

struct Deaf;

impl Wake for Deaf {
    fn wake(&self) {}
}

#[test]
fn attempt_does_not_wait_for_a_watch_that_was_given_up() {
    let (quorum, _nodes) = dead_nodes(|by| {
        SystemClock.wait(&Arc::default(), by);
        dead()
    });
    let name = LockName::new("a").unwrap();
    let watched = quorum.watch(&name, Arc::new(Deaf), SystemClock.now() + ms(50));
    assert!(watched.is_err());
    let watch = Stopwatch::start();
    let lease = LeaseTime::new(SOON).unwrap();
    let attempt = Attempt::new(&name, OwnerId::new(ClientId::random(), 1), lease);
    let answer = quorum.acquire(&attempt, Moment::NEVER);
    assert!(
        answer.is_err() && watch.elapsed() < SOON,
        "{answer:?} after {:?}",
        watch.elapsed()
    );
}

#[test]
fn watch_of_subscribed_nodes_does_not_wait_for_their_answers() {
    let (quorum, nodes) = dead_nodes(|_| Ok(Watch::new(())));
    let name = LockName::new("a").unwrap();
    let stuck: Vec<_> = nodes.iter().map(|node| node.stuck.lock()).collect();
    thread::scope(|scope| {
        scope.spawn(|| {
            let lease = LeaseTime::new(SOON).unwrap();
            let attempt = Attempt::new(&name, OwnerId::new(ClientId::random(), 1), lease);
            assert!(quorum.acquire(&attempt, Moment::NEVER).is_err());
        });
        let is_asked = |node: &Arc<Dead>| node.asked.load(Ordering::SeqCst);
        eventually("all nodes are asked", SOON, || nodes.iter().all(is_asked));
        let watched = quorum.watch(&name, Arc::new(Deaf), SystemClock.now() + ms(50));
        drop(stuck);
        assert!(watched.is_ok(), "{:?}", watched.err());
    });
}

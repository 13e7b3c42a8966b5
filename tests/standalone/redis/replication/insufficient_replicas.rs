//! The outcomes of a grant that replicas must confirm: confirmed, rolled back, retried, or
//! accepted.

use super::{LONG, builder, client, impatient, insufficient};
use distlock::config::{InsufficientReplicas, OnInsufficientReplicas, Replication};
use distlock::{Event, GuardState, LockOptions};
use distlock_tests::process::RedisServer;
use distlock_tests::replicas::Replicated;
use distlock_tests::time::{Stopwatch, always, ms, within};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

const COUNTER: &str = "redisson_lock_token:{a}";

/// A fault that keeps the first replica from confirming: its name, how it begins, and how it ends.
type Trouble = (&'static str, fn(&mut Replicated), fn(&mut Replicated));

const TROUBLES: [Trouble; 3] = [
    (
        "paused",
        |it| it.replicas[0].pause(),
        |it| it.replicas[0].resume(),
    ),
    ("cut off", |it| it.cut(0), |it| it.mend(0)),
    (
        "dead",
        |it| it.replicas[0].kill(),
        |it| it.replicas[0].restart(),
    ),
];

/// Runs `check` with each fault, all at the same time.
fn in_each_trouble(check: impl Fn(Trouble) + Copy + Send) {
    thread::scope(|scope| {
        for trouble in TROUBLES {
            scope.spawn(move || check(trouble));
        }
    });
}

#[test]
fn grant_is_on_as_many_replicas_as_asked_for() {
    let servers = Replicated::start(2);
    let lock = client(&servers, "replicas=2&replication_timeout=10s")
        .owned_mutex("a")
        .unwrap();
    drop(lock.lock().unwrap());
    servers.must_be_in_sync();
    servers.replicas[0].pause();
    let _held = thread::scope(|scope| {
        let waiting = scope.spawn(|| lock.try_lock().unwrap().unwrap());
        always("it waits for the replica", ms(300), || {
            !waiting.is_finished()
        });
        assert!(
            servers.replicas[1].probe().exists("a"),
            "the other one has it meanwhile"
        );
        servers.replicas[0].resume();
        waiting.join().unwrap()
    });
    for mut probe in servers.probes() {
        assert_eq!(probe.hgetall("a").len(), 1);
        assert!(probe.exists(COUNTER));
    }
}

#[test]
fn enough_of_more_replicas_suffice_more_than_exist_never() {
    let servers = Replicated::start(2);
    let lock = |policy: &str| client(&servers, &impatient(policy)).mutex("a").unwrap();
    let said = insufficient(lock("3").try_lock());
    assert!(said.contains("2 of 3"), "{said}");
    drop(lock("2").try_lock().unwrap().unwrap());
    servers.cut(0);
    let said = insufficient(lock("2").try_lock());
    assert!(said.contains("1 of 2"), "{said}");
    drop(lock("1").try_lock().unwrap().unwrap());
    servers.cut(1);
    let said = insufficient(lock("1").try_lock());
    assert!(said.contains("0 of 1"), "{said}");
    drop(lock("off").try_lock().unwrap().unwrap());
}

#[test]
fn insufficient_replicas_leaves_nothing_on_any_server() {
    in_each_trouble(|(trouble, begins, ends)| {
        let mut servers = Replicated::start(2);
        let client = client(&servers, &impatient("2"));
        let lock = client.mutex("a").unwrap();
        drop(lock.lock().unwrap());
        servers.must_be_in_sync();
        begins(&mut servers);
        let said = insufficient(within(Duration::from_secs(2), || lock.try_lock()));
        assert!(
            said.contains("1 of 2") && said.contains("given back"),
            "{trouble}: {said}"
        );
        // No outcome was unknown, so there is no tombstone either.
        assert_eq!(
            servers.master.probe().keys("*"),
            [COUNTER],
            "{trouble}, before it is told"
        );
        ends(&mut servers);
        servers.must_be_in_sync();
        for mut probe in servers.probes() {
            assert_eq!(probe.keys("*"), [COUNTER], "{trouble}, when it is over");
        }
        drop(lock.try_lock().unwrap().expect("it is free"));
    });
}

#[test]
fn insufficient_replicas_is_retried_until_replica_is_back() {
    in_each_trouble(|(trouble, begins, ends)| {
        let mut servers = Replicated::start(2);
        let lock = client(&servers, &impatient("2")).mutex("a").unwrap();
        let before = lock.lock().unwrap().fencing_token();
        begins(&mut servers);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| lock.try_lock_for(LONG).unwrap().unwrap().fencing_token());
            always("it waits", ms(1_200), || !waiting.is_finished());
            ends(&mut servers);
            let took = Stopwatch::start();
            assert!(waiting.join().unwrap() > before, "{trouble}");
            println!(
                "{trouble}: held {:?} after the end of the trouble began",
                took.elapsed()
            );
        });
    });
}

#[test]
fn wait_that_ends_in_insufficient_replicas_is_never_busy() {
    let servers = Replicated::start(1);
    servers.cut(0);
    let lock = client(&servers, &impatient("1")).mutex("a").unwrap();
    let took = Stopwatch::start();
    insufficient(within(Duration::from_secs(3), || {
        lock.try_lock_for(ms(1_000))
    }));
    assert!(took.elapsed() >= ms(1_000), "{:?}", took.elapsed());
    let strict = client(
        &servers,
        &format!("{}&on_insufficient_replicas=fail", impatient("1")),
    );
    let lock_strictly = strict.mutex("a").unwrap();
    // One attempt.
    insufficient(within(Duration::from_millis(1_500), || {
        lock_strictly.try_lock_for(LONG)
    }));
    assert!(!lock.is_locked().unwrap());
}

#[test]
fn accepted_insufficient_replicas_emits_event() {
    let servers = Replicated::start(2);
    let (tell, told) = mpsc::channel();
    let tell = parking_lot::Mutex::new(tell);
    let handler = move |event: &Event| {
        if let Event::InsufficientReplicasAccepted {
            token,
            insufficient,
            ..
        } = event
        {
            let _no_receiver = tell.lock().send((*token, *insufficient));
        }
    };
    let settings = format!(
        "{}&on_insufficient_replicas=accept&watchdog=3s",
        impatient("2")
    );
    let client = builder(&servers, &settings)
        .events(Arc::new(handler))
        .connect()
        .unwrap();
    let lock = client.mutex("a").unwrap();
    servers.cut(0);
    let guard = lock.try_lock().unwrap().unwrap();
    for what in ["the grant", "the first renewal", "the second renewal"] {
        let told = told.recv_timeout(LONG).unwrap();
        assert_eq!(
            told,
            (guard.fencing_token(), InsufficientReplicas::new(1, 2)),
            "{what}"
        );
        assert!(
            guard.state() == GuardState::Held && guard.is_valid(),
            "{what}"
        );
    }
    guard.unlock().unwrap();
}

#[test]
fn lock_may_have_a_replication_policy_of_its_own() {
    let servers = Replicated::start(1);
    servers.cut(0);
    let time = ms(200);
    let one = LockOptions::new().replication(Replication::replicas(1).timeout(time));
    let accepted = Replication::replicas(1)
        .timeout(time)
        .on_insufficient_replicas(OnInsufficientReplicas::Accept);
    let lax = client(&servers, "").mutex("a").unwrap();
    drop(lax.try_lock().unwrap().unwrap());
    insufficient(lax.try_lock_with(&one));
    let strict = client(&servers, &impatient("1")).mutex("a").unwrap();
    insufficient(strict.try_lock());
    let off = LockOptions::new().replication(Replication::off());
    drop(strict.try_lock_with(&off).unwrap().unwrap());
    drop(
        strict
            .try_lock_with(&LockOptions::new().replication(accepted))
            .unwrap()
            .unwrap(),
    );
    assert!(!lax.is_locked().unwrap());
}

#[test]
fn policy_of_all_replicas_is_refused_by_name() {
    let server = RedisServer::start();
    let url = format!("{}?replicas=all", server.url());
    for said in [
        distlock::connect(&url).unwrap_err(),
        distlock::connect(&server.url())
            .unwrap()
            .mutex("a")
            .unwrap()
            .lock_with(&LockOptions::new().replication(Replication::all()))
            .unwrap_err(),
    ] {
        assert!(said.is_unsupported(), "{said:?}");
        let said = said.to_string();
        assert!(
            said.contains("replicas=all") && said.contains("`replicas=2`"),
            "{said}"
        );
    }
    let said = distlock::connect("memory://?replicas=1").unwrap_err();
    assert!(
        said.is_unsupported() && said.to_string().contains("replicas=1"),
        "{said:?}"
    );
}

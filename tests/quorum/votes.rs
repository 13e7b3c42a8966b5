//! Votes that a holder has lost, or never got. Its renewals request these votes again, so that the
//! hold survives one failure after another.

use distlock::{Client, GuardState, LockGuard, LossCause};
use distlock_tests::distance::Distance;
use distlock_tests::guards::await_renewals;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy};
use distlock_tests::quorum::{Servers, place, url};
use distlock_tests::reports::STRANGER;
use distlock_tests::resp::{Kind, Request};
use distlock_tests::time::{always, eventually, late, let_pass, ms, retry_if_late, scaled};
use lock_conformance::violated;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
/// Settings with a lease that a busy machine renews in time. A restarted node votes again after the
/// same time.
const SETTINGS: &str =
    "max_lease=6s&node_timeout=1s&watchdog=6s&command_timeout=2s&outage_limit=500ms";
/// Settings for a node whose answers take long. A connection to it takes several answers.
const FAR: &str =
    "max_lease=15s&node_timeout=4s&watchdog=15s&command_timeout=8s&outage_limit=500ms";
/// Settings with a lease that is longer than every test.
const STEADY: &str =
    "max_lease=10m&node_timeout=1s&watchdog=5m&command_timeout=3s&outage_limit=500ms";

fn owner(server: &RedisServer) -> Option<String> {
    server.probe().hgetall("a").into_keys().next()
}

/// Waits until all servers name the same owner of `a`.
fn until_all_have_it<'a>(servers: impl Iterator<Item = &'a RedisServer> + Clone) {
    eventually("all have voted for it", SOON, || {
        let owners: Vec<_> = servers.clone().map(owner).collect();
        owners[0].is_some() && owners.iter().all(|owner| *owner == owners[0])
    });
}

/// Gives the vote of this server to a foreign owner.
fn occupy(server: &RedisServer) {
    let mut probe = server.probe();
    assert_eq!(probe.command(&["HSET", "a", STRANGER, "1"]).int(), 1);
    assert_eq!(probe.command(&["PEXPIRE", "a", "600000"]).int(), 1);
}

/// Takes a lock with the votes of all servers but the last.
fn held_without_the_last(servers: &Servers, client: &Client) -> LockGuard {
    let last = servers.servers.last().unwrap();
    occupy(last);
    let guard = client.mutex("a").unwrap().lock().unwrap();
    assert_eq!(owner(last).as_deref(), Some(STRANGER));
    guard
}

#[test]
fn vote_that_another_owner_had_is_given_by_a_renewal() {
    let quorum = Servers::with(3, 0, SETTINGS);
    let client = quorum.client();
    let guard = held_without_the_last(&quorum, &client);
    let mut last = quorum.servers[2].probe();
    await_renewals(&guard);
    assert_eq!(
        owner(&quorum.servers[2]).as_deref(),
        Some(STRANGER),
        "it is not free there"
    );
    let token = guard.fencing_token().unwrap().get();
    // As if a failed attempt had left a larger token there.
    let larger = (token + 1_000_000).to_string();
    last.command(&["SET", "redisson_lock_token:{a}", &larger, "PX", "600000"]);
    last.command(&["DEL", "a"]);
    until_all_have_it(quorum.servers.iter());
    assert_eq!(last.get("redisson_lock_token:{a}"), Some(larger));
    for server in &quorum.servers[..2] {
        let stored = server.probe().get("redisson_lock_token:{a}").unwrap();
        assert!(stored.parse::<u64>().unwrap() >= token);
    }
    guard.unlock().unwrap();
    for server in &quorum.servers {
        eventually("it is free everywhere", SOON, || {
            !server.probe().exists("a")
        });
    }
    let next = quorum.client().mutex("a").unwrap().lock().unwrap();
    assert!(next.fencing_token().unwrap().get() > token + 1_000_000);
}

#[test]
fn lock_taken_from_another_holder_gets_all_votes() {
    let quorum = Servers::with(3, 0, SETTINGS);
    let clients: Vec<_> = (0..3).map(|_| quorum.client()).collect();
    thread::scope(|scope| {
        for client in &clients {
            let servers = &quorum.servers;
            scope.spawn(move || {
                for _ in 0..4 {
                    let guard = client.mutex("a").unwrap().lock().unwrap();
                    until_all_have_it(servers.iter());
                    guard.unlock().unwrap();
                }
            });
        }
    });
}

#[test]
fn second_failure_is_survived_with_the_vote_that_was_given_again() {
    let mut quorum = Servers::with(3, 0, SETTINGS);
    let client = quorum.client();
    let guard = held_without_the_last(&quorum, &client);
    quorum.servers[2].probe().command(&["DEL", "a"]);
    until_all_have_it(quorum.servers.iter());
    quorum.servers[0].kill();
    await_renewals(&guard);
    await_renewals(&guard);
    guard.unlock().unwrap();
}

/// The hold has two votes of three, and one of these servers dies before a renewal asks the third
/// for its vote. That is still one failure.
#[test]
fn failure_before_the_vote_was_given_again_is_survived() {
    let mut quorum = Servers::with(3, 0, SETTINGS);
    let client = quorum.client();
    let guard = held_without_the_last(&quorum, &client);
    // No renewal comes between these two.
    quorum.servers[1].kill();
    quorum.servers[2].probe().command(&["DEL", "a"]);
    await_renewals(&guard);
    assert_eq!(guard.state(), GuardState::Held);
    assert_eq!(owner(&quorum.servers[2]), owner(&quorum.servers[0]));
    guard.unlock().unwrap();
}

/// A server that is emptied while it runs keeps its `run_id`, and another client makes it a node
/// again before the holder requests its vote.
#[test]
fn vote_of_a_server_that_was_emptied_while_it_ran_counts() {
    let quorum = Servers::with(3, 0, SETTINGS);
    let (client, rival) = (quorum.client(), quorum.client());
    let guard = held_without_the_last(&quorum, &client);
    let mut emptied = quorum.servers[1].probe();
    emptied.command(&["FLUSHALL"]);
    let other = rival.mutex("b").unwrap();
    eventually("it is a node again", SOON, || {
        drop(other.try_lock());
        emptied.exists("distlock_quorum")
    });
    quorum.servers[2].probe().command(&["DEL", "a"]);
    await_renewals(&guard);
    until_all_have_it(quorum.servers.iter());
    await_renewals(&guard);
    guard.unlock().unwrap();
}

/// The lease on a frozen server ends, but the hold must survive.
#[test]
fn vote_of_a_server_that_was_frozen_is_given_again() {
    let quorum = Servers::with(3, 0, SETTINGS);
    let client = quorum.client();
    let guard = client.mutex("a").unwrap().lock().unwrap();
    for server in &quorum.servers {
        until_all_have_it(quorum.servers.iter());
        server.pause();
        let_pass(Duration::from_millis(6_500));
        server.resume();
    }
    until_all_have_it(quorum.servers.iter());
    await_renewals(&guard);
    guard.unlock().unwrap();
}

#[test]
fn lock_removed_on_one_node_after_another_is_lost_and_not_revived() {
    let quorum = Servers::with(3, 0, STEADY);
    let client = quorum.client();
    let guard = client.mutex("a").unwrap().lock().unwrap();
    until_all_have_it(quorum.servers.iter());
    let losses = guard.losses();
    // The client learns of the deletion at once or by a renewal, and does not request the vote
    // again: the deletion may be meant for all nodes.
    quorum.servers[0].probe().command(&["DEL", "a"]);
    let renewed = |lease| guard.extend(Duration::from_secs(lease));
    renewed(301).unwrap();
    assert!(guard.is_valid() && !quorum.servers[0].probe().exists("a"));
    quorum.servers[1].probe().command(&["DEL", "a"]);
    let _lost = renewed(302);
    assert_eq!(losses.recv_timeout(SOON).unwrap().cause(), LossCause::Gone);
    eventually("nothing is left of it", SOON, || {
        quorum
            .servers
            .iter()
            .all(|server| !server.probe().exists("a"))
    });
}

/// Holds back the requests to vote again, and lets them arrive late.
struct LateVotes {
    is_on: AtomicBool,
    time: Duration,
}

impl Plan for LateVotes {
    fn fate(&self, request: &mut Request) -> Fault {
        let strikes = request.kind() == Kind::Acquire && self.is_on.load(Ordering::SeqCst);
        if strikes {
            Fault::Late(self.time)
        } else {
            Fault::Pass
        }
    }
}

#[test]
fn vote_without_an_answer_is_closed_by_the_release() {
    let quorum = Servers::with(3, 0, SETTINGS);
    let late = Arc::new(LateVotes {
        is_on: AtomicBool::new(false),
        time: Duration::from_secs(4),
    });
    let proxy = Proxy::new(quorum.servers[2].port(), Arc::clone(&late) as Arc<dyn Plan>);
    let places = [
        quorum.servers[0].port(),
        quorum.servers[1].port(),
        proxy.port(),
    ]
    .map(place);
    let client = distlock::connect(&url(&places, SETTINGS)).unwrap();
    let guard = held_without_the_last(&quorum, &client);
    late.is_on.store(true, Ordering::SeqCst);
    let mut last = quorum.servers[2].probe();
    last.command(&["DEL", "a"]);
    let is_held_back = || proxy.count(Kind::Acquire, Fault::Late(late.time)) > 0;
    eventually("the vote is under way", SOON, is_held_back);
    guard.unlock().unwrap();
    eventually("the owner is closed there", SOON, || {
        !last.keys("distlock_closed:*").is_empty()
    });
    always(
        "it does not vote late",
        scaled(late.time + ms(1_500)),
        || !last.exists("a"),
    );
}

/// One member is far away, and another is dead: the far one must vote again in time.
#[test]
fn far_node_votes_again_beside_one_that_is_cut_off() {
    let mut quorum = Servers::with(3, 0, FAR);
    let far = Distance::new(quorum.servers[2].port(), ms(250));
    let places = [
        quorum.servers[0].port(),
        quorum.servers[1].port(),
        far.port(),
    ]
    .map(place);
    let client = distlock::connect(&url(&places, FAR)).unwrap();
    let guard = held_without_the_last(&quorum, &client);
    quorum.servers[0].kill();
    quorum.servers[2].probe().command(&["DEL", "a"]);
    // The near server and the far server are the majority from here on.
    await_renewals(&guard);
    assert_eq!(owner(&quorum.servers[2]), owner(&quorum.servers[1]));
    let rival = distlock::connect(&url(&places, FAR)).unwrap();
    let wanted = rival.mutex("a").unwrap();
    // The rival's first request may take longer than a node's time, because it has no connection
    // yet.
    eventually("the rival is told that it is held", SOON, || {
        match wanted.try_lock() {
            Ok(taken) => {
                assert!(taken.is_none(), "two holders");
                true
            }
            Err(error) => {
                assert!(error.is_unavailable(), "{error:?}");
                false
            }
        }
    });
    await_renewals(&guard);
    guard.unlock().unwrap();
    let next = rival
        .mutex("a")
        .unwrap()
        .try_lock_for(scaled(SOON))
        .unwrap();
    next.expect("it is free").unlock().unwrap();
}

/// Checks that one hold survives many failures, one after the other, while a rival keeps trying: a
/// restart with an old snapshot, a freeze for longer than the lease, and an emptied server.
fn long_sequence(rounds: usize, lease: Duration) {
    let settings = format!(
        "max_lease={0}ms&watchdog={0}ms&node_timeout=500ms&command_timeout=1s",
        lease.as_millis()
    );
    let (settings, pause) = (settings.as_str(), lease + ms(500));
    let mut quorum = Servers::with(3, 0, settings);
    // The snapshots with which the servers restart have their marker, and no lock.
    for server in &quorum.servers {
        assert_eq!(server.probe().command(&["SAVE"]).text(), "OK");
    }
    let (client, rival) = (quorum.client(), quorum.client());
    let guard = client.mutex("a").unwrap().lock().unwrap();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        // The rival tries the lock, and makes emptied servers nodes again by taking another lock.
        scope.spawn(|| {
            let (lock, other) = (rival.mutex("a").unwrap(), rival.mutex("b").unwrap());
            while !ended.load(Ordering::SeqCst) {
                if let Some(taken) = lock.try_lock().ok().flatten()
                    && taken.is_valid()
                    && guard.is_valid()
                {
                    violated("two holders");
                }
                drop(other.try_lock());
                let_pass(ms(50));
            }
        });
        for round in 0..rounds {
            until_all_have_it(quorum.servers.iter());
            if guard.state() != GuardState::Held {
                ended.store(true, Ordering::SeqCst);
                late(lease, format!("lost in round {round}: {:?}", guard.loss()));
            }
            let at = round % 3;
            match round / 3 % 3 {
                0 => quorum.restart(at),
                1 => {
                    quorum.servers[at].pause();
                    let_pass(pause);
                    quorum.servers[at].resume();
                }
                _ => {
                    quorum.restart(at);
                    quorum.servers[at].probe().command(&["FLUSHALL"]);
                    quorum.servers[at].probe().command(&["SAVE"]);
                }
            }
            println!("round {round} of {rounds}");
        }
        until_all_have_it(quorum.servers.iter());
        await_renewals(&guard);
        ended.store(true, Ordering::SeqCst);
    });
    let token = guard.fencing_token();
    guard.unlock().unwrap();
    let next = rival
        .mutex("a")
        .unwrap()
        .try_lock_for(scaled(SOON))
        .unwrap()
        .expect("it is free");
    assert!(next.fencing_token() > token);
}

#[test]
fn hold_survives_ten_failures_one_after_the_other() {
    retry_if_late(|| long_sequence(10, Duration::from_secs(4)));
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn hold_survives_many_failures_one_after_the_other() {
    let rounds = std::env::var("DISTLOCK_ROUNDS")
        .ok()
        .and_then(|rounds| rounds.parse().ok());
    retry_if_late(|| long_sequence(rounds.unwrap_or(40), Duration::from_secs(4)));
}

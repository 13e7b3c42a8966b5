//! Cleanup of locks that a client has left on nodes that did not answer in time. The leases here
//! are longer than every test, so a lock that is gone was released.

use distlock::admin::QuorumBackend;
use distlock::backend::{
    AcquisitionId, Answer, Attempt, Backend, ClientId, Context, KeptLock, LeaseTime, MemoryBackend,
    OwnerId, ReleaseOptions,
};
use distlock::time::{Clock, SystemClock};
use distlock::{Client, LockName, LockOptions};
use distlock_tests::probe::Probe;
use distlock_tests::process::{RedisServer, free_port};
use distlock_tests::proxy::{Fault, Proxy, Sometimes, Turn};
use distlock_tests::quorum::{Servers, place, url};
use distlock_tests::resp::Kind;
use distlock_tests::time::{Stopwatch, eventually, let_pass, ms, scaled, within};
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
/// Settings with which a reply that is a second late is still within a node's time.
const PATIENT: &str = "max_lease=10m&node_timeout=20s&watchdog=5m&command_timeout=40s";
const STEADY: &str = "max_lease=10m&node_timeout=1s&watchdog=5m&command_timeout=3s";

/// Returns three servers, a proxy before the last one, and a client of them. The proxy applies this
/// fault to requests of this kind.
fn with_trouble_at_the_last(
    settings: &str,
    kind: Kind,
    turn: Turn,
    fault: Fault,
) -> (Servers, Proxy, Client) {
    let quorum = Servers::with(3, 0, settings);
    let plan = Sometimes::new(Some(kind), turn, fault);
    let proxy = Proxy::new(quorum.servers[2].port(), Arc::new(plan));
    let places = [
        quorum.servers[0].port(),
        quorum.servers[1].port(),
        proxy.port(),
    ]
    .map(place);
    let client = distlock::connect(&url(&places, settings)).unwrap();
    (quorum, proxy, client)
}

/// Waits until the last node has granted `a`, and its answer has had time to arrive. Otherwise the
/// client would not know of the grant at the release, and would end it there instead of keeping the
/// lock.
fn until_held_at_the_last(quorum: &Servers) {
    eventually("it is held there, too", SOON, || {
        quorum.servers[2].probe().exists("a")
    });
    let_pass(scaled(ms(200)));
}

#[test]
fn grant_after_the_decision_is_rolled_back() {
    let quorum = Servers::with(3, 0, PATIENT);
    let [one, other, third] = [0, 1, 2].map(|at| quorum.servers[at].port());
    let holder = distlock::connect(&url(&[one, other, free_port()].map(place), PATIENT)).unwrap();
    let guard = holder.mutex("a").unwrap().lock().unwrap();
    let late = Sometimes::new(
        Some(Kind::Acquire),
        Turn::Every(1),
        Fault::DelayReply(ms(1_000)),
    );
    let proxy = Proxy::new(third, Arc::new(late));
    let rival = distlock::connect(&url(&[one, other, proxy.port()].map(place), PATIENT)).unwrap();
    let lock = rival.mutex("a").unwrap();
    assert!(
        lock.try_lock().unwrap().is_none(),
        "two have said that it is held"
    );
    eventually("the third grants it all the same", SOON, || {
        quorum.servers[2].probe().exists("redisson_lock_token:{a}")
    });
    eventually("it is given back", SOON, || {
        !quorum.servers[2].probe().exists("a")
    });
    guard.unlock().unwrap();
}

#[test]
fn requests_to_frozen_nodes_are_closed_when_they_answer_again() {
    let quorum = Servers::with(5, 0, STEADY);
    let client = quorum.client();
    let lock = client.mutex("a").unwrap();
    lock.lock().unwrap().unlock().unwrap();
    quorum.servers[1].pause();
    quorum.servers[2].pause();
    lock.lock().unwrap().unlock().unwrap();
    // First the nodes' time for these requests passes, then that for the requests to close the
    // owner.
    let_pass(scaled(ms(2_500)));
    quorum.servers[1].resume();
    quorum.servers[2].resume();
    for at in [1, 2] {
        let mut probe = quorum.servers[at].probe();
        eventually("it is closed there", SOON, || {
            !probe.exists("a") && !probe.keys("distlock_closed:*").is_empty()
        });
    }
}

#[test]
fn async_release_that_one_node_missed_is_repeated() {
    let (quorum, proxy, client) =
        with_trouble_at_the_last(STEADY, Kind::Release, Turn::Only(1), Fault::SwallowRequest);
    let guard = client.mutex("a").unwrap().lock().unwrap();
    until_held_at_the_last(&quorum);
    drop(guard);
    // The client sends no other request, so the release is not repeated along with one.
    eventually("it is freed there, too", SOON, || {
        !quorum.servers[2].probe().exists("a")
    });
    assert_eq!(
        proxy.count(Kind::Release, Fault::SwallowRequest),
        1,
        "{}",
        proxy.account()
    );
}

/// Returns the owners of `a` on each server.
fn owners(quorum: &Servers) -> Vec<Vec<String>> {
    let owner = |server: &RedisServer| server.probe().command(&["HKEYS", "a"]).texts();
    quorum.servers.iter().map(owner).collect()
}

#[test]
fn release_that_keeps_the_lock_and_that_one_node_missed_is_repeated() {
    for fault in [Fault::SwallowRequest, Fault::SwallowReply] {
        let (quorum, _proxy, client) =
            with_trouble_at_the_last(STEADY, Kind::Close, Turn::Only(1), fault);
        let options = LockOptions::new().at_least(Duration::from_secs(300));
        let guard = client.mutex("a").unwrap().lock_with(&options).unwrap();
        until_held_at_the_last(&quorum);
        let before = owners(&quorum);
        guard.unlock().unwrap();
        eventually("it is kept on all", SOON, || {
            let now = owners(&quorum);
            now[2] != before[2] && now.iter().all(|owner| *owner == now[0] && owner.len() == 1)
        });
        // The cleanup of the last node has ended, and must not have freed the lock.
        client.wait_for_cleanup(SOON).unwrap();
        assert!(
            quorum
                .servers
                .iter()
                .all(|server| server.probe().exists("a")),
            "{fault:?}"
        );
        assert!(client.mutex("a").unwrap().try_lock().unwrap().is_none());
    }
}

/// The release has no time left, so the cleanup of each node sends the first request. The cleanup
/// must keep the lock, not free it.
#[test]
fn release_that_came_too_late_for_all_nodes_keeps_the_lock() {
    let context = Context::new(Arc::new(SystemClock), ClientId::random());
    let store = || Arc::new(MemoryBackend::new(Arc::new(SystemClock))) as Arc<dyn Backend>;
    let stores = vec![store(), store(), store()];
    let quorum = QuorumBackend::new(stores.clone(), ms(500), &context).unwrap();
    let (name, lease) = (LockName::new("a").unwrap(), LeaseTime::new(SOON).unwrap());
    let [owner, next] = [1, 2].map(|number| OwnerId::new(context.client, number));
    let attempt = Attempt::new(&name, owner, lease);
    let answer = quorum.acquire(&attempt, SystemClock.now() + SOON).unwrap();
    let Answer::Granted(grant) = answer else {
        panic!("{answer:?}")
    };
    eventually("all have it", SOON, || {
        stores.iter().all(|it| has(it, &name, owner))
    });
    let held = AcquisitionId::new(name.clone(), owner, lease, grant.receipt);
    let options = ReleaseOptions::WITHOUT_TOMBSTONE.kept(Some(KeptLock::new(next, lease)));
    quorum
        .release(&held, options, SystemClock.now())
        .unwrap_err();
    eventually("it is kept on all", SOON, || {
        stores.iter().all(|it| has(it, &name, next))
    });
}

/// Returns whether this owner holds the lock in this store.
fn has(store: &Arc<dyn Backend>, name: &LockName, owner: OwnerId) -> bool {
    let info = store.inspect(name, SystemClock.now() + SOON).unwrap();
    info.holder
        .is_some_and(|holder| owner.matches(&holder.owner))
}

#[test]
fn shortest_time_beyond_the_longest_lease_is_refused() {
    let client = Servers::with(3, 0, "max_lease=1m").client();
    let options = LockOptions::new().at_least(Duration::from_secs(61));
    let error = client
        .mutex("a")
        .unwrap()
        .try_lock_with(&options)
        .unwrap_err();
    assert!(error.is_misuse(), "{error}");
}

/// How long a client that is dropped waits for a node.
const GRACE: Duration = Duration::from_millis(100);

/// Drops a client that has left `a` on the probed node, whose request or answer is 50 ms late.
/// Returns whether the lock was there before, and is gone afterwards: on a busy machine it may be
/// gone too early, or the node may be later than the client waits. Fails if the lock is left by a
/// client that has not waited for `GRACE`.
fn leaves_nothing(client: Client, probe: &mut Probe) -> bool {
    let was_there = probe.exists("a");
    let watch = Stopwatch::start();
    drop(client);
    let took = watch.elapsed();
    let is_gone = !probe.exists("a");
    assert!(is_gone || took >= GRACE, "it is left behind after {took:?}");
    was_there && is_gone
}

#[test]
fn dropped_client_releases_on_nodes_beyond_the_majority() {
    eventually("it could be seen", SOON, || {
        // Only the first release is late: the node answers that it lacks the script, which the
        // client then sends.
        let (quorum, _proxy, client) =
            with_trouble_at_the_last(PATIENT, Kind::Release, Turn::Only(1), Fault::Delay(ms(50)));
        let guard = client.mutex("a").unwrap().lock().unwrap();
        let mut probe = quorum.servers[2].probe();
        eventually("it is held there, too", SOON, || probe.exists("a"));
        // This returns when two nodes have answered that the lock is freed.
        guard.unlock().unwrap();
        leaves_nothing(client, &mut probe)
    });
}

#[test]
fn dropped_client_rolls_back_late_grants() {
    eventually("it could be seen", SOON, || {
        let (quorum, _proxy, rival) = with_trouble_at_the_last(
            PATIENT,
            Kind::Acquire,
            Turn::Every(1),
            Fault::DelayReply(ms(50)),
        );
        let [one, other] = [0, 1].map(|at| place(quorum.servers[at].port()));
        let places = [one, other, place(free_port())];
        let guard = distlock::connect(&url(&places, PATIENT))
            .unwrap()
            .mutex("a")
            .unwrap();
        let guard = guard.lock().unwrap();
        let mut probe = quorum.servers[2].probe();
        // From the second attempt on each attempt is one request, because the node knows the
        // script.
        for _ in 0..2 {
            eventually("nothing is left of the last one", SOON, || {
                !probe.exists("a")
            });
            match rival.mutex("a").unwrap().try_lock() {
                Ok(outcome) => assert!(outcome.is_none(), "two say no"),
                // On a busy machine the nodes may seem dead.
                Err(error) if error.is_unavailable() => return false,
                Err(error) => panic!("{error:?}"),
            }
            // The grant lasts until the client rolls it back. On a busy machine that may happen
            // between two looks.
            let (asked, mut is_there) = (Stopwatch::start(), false);
            while !is_there && asked.elapsed() < GRACE * 10 {
                is_there = probe.exists("a");
            }
        }
        let is_seen = leaves_nothing(rival, &mut probe);
        guard.unlock().unwrap();
        is_seen
    });
}

#[test]
fn dropped_client_does_not_wait_for_silent_nodes() {
    let quorum = Servers::with(3, 0, PATIENT);
    let client = quorum.client();
    let lock = client.mutex("a").unwrap();
    lock.lock().unwrap().unlock().unwrap();
    quorum.servers[2].pause();
    lock.lock().unwrap().unlock().unwrap();
    drop(lock);
    within(Duration::from_millis(100), || drop(client));
    quorum.servers[2].resume();
}

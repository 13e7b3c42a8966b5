//! The address of a node leads to a node of another cluster.

use crate::scene::{LONG, client_with, take};
use distlock::{Client, Event};
use distlock_tests::claims::judge;
use distlock_tests::cluster::{Cluster, Failover};
use distlock_tests::contenders::{Contenders, stay};
use distlock_tests::proxy::Proxy;
use distlock_tests::time::{Stopwatch, eventually, let_pass, scaled};
use lock_core::{Clock, SystemClock};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(2);
const SETTINGS: &str = "watchdog=2s&command_timeout=1s&connect_timeout=1s";

/// Starts a proxy in front of each node. Returns the proxies, and the settings of a client that
/// connects through them.
fn behind(cluster: &Cluster) -> (Vec<Proxy>, String) {
    let ports: Vec<_> = (0..cluster.len())
        .map(|node| cluster.node(node).port())
        .collect();
    let proxies: Vec<_> = ports.iter().map(|port| Proxy::plain(*port)).collect();
    let pairs = ports.iter().zip(&proxies);
    let map: Vec<_> = pairs
        .map(|(port, it)| format!("127.0.0.1:{port}=127.0.0.1:{}", it.port()))
        .collect();
    (proxies, format!("{SETTINGS}&address_map={}", map.join(",")))
}

fn epoch(cluster: &Cluster) -> u64 {
    let info = cluster.node(1).probe().command(&["CLUSTER", "INFO"]).text();
    let mut lines = info
        .lines()
        .filter_map(|line| line.strip_prefix("cluster_current_epoch:"));
    lines.next().unwrap().trim().parse().unwrap()
}

type Told = Arc<Mutex<Vec<[String; 3]>>>;

/// Returns a client with two lists that its events fill: of servers that it refused, and of servers
/// that it found changed.
fn listening(url: &str, settings: &str) -> (Client, Told, Told) {
    let (refused, changed) = (Told::default(), Told::default());
    let (to_refused, to_changed) = (Arc::clone(&refused), Arc::clone(&changed));
    let handler = move |event: &Event| match event {
        Event::ServerRefused {
            server,
            expected,
            found,
            ..
        } => {
            to_refused
                .lock()
                .push([server.clone(), expected.clone(), found.clone()]);
        }
        Event::ServerChanged {
            server, was, is, ..
        } => {
            to_changed
                .lock()
                .push([server.clone(), was.clone(), is.clone()]);
        }
        _ => {}
    };
    let builder = distlock::builder()
        .url(&format!("{url}?{settings}"))
        .unwrap();
    (
        builder.events(Arc::new(handler)).connect().unwrap(),
        refused,
        changed,
    )
}

#[test]
fn foreign_node_at_the_address_of_a_dead_one_misleads_no_client() {
    // Without full coverage the other masters continue to serve.
    let mut cluster = Cluster::start_with(&["--cluster-require-full-coverage", "no"]);
    let foreign = Cluster::steady();
    foreign.fail_over(0, Failover::Takeover);
    assert!(epoch(&foreign) > epoch(&cluster));
    let (proxies, behind) = behind(&cluster);
    let name = cluster.name_on(1, "contended");
    let (url, dead) = (cluster.url(), cluster.name_on(0, "dead"));
    // Only the second of the two programs connects through the proxies.
    let contenders = [SETTINGS, &behind]
        .map(|settings| Contenders::start(&format!("{url}?{settings}"), &name, 1, 2));
    let (told, refused, _) = listening(&url, &behind);
    take(&told, &dead).unlock().unwrap();
    let held = take(&told, &cluster.name_on(1, "held"));
    let claimed = || contenders.each_ref().map(|it| it.claims().len());
    eventually("both have had it", LONG, || {
        claimed().iter().all(|claims| *claims > 5)
    });

    let id = cluster.id(0);
    cluster.node_mut(0).kill();
    proxies[0].switch_to(foreign.node(1).port());
    let before = claimed();
    let lock = told.mutex(dead.as_str()).unwrap();
    // On a busy machine this attempt may only notice that its old connection has ended. The next
    // attempt meets the foreign node.
    assert!(lock.try_lock().unwrap_err().is_unavailable());
    let outcome = lock.try_lock().map(drop);
    // The connections to the other nodes break again and again, so the slot map is requested again
    // and again, at each address.
    let watch = Stopwatch::start();
    while watch.elapsed() < scaled(LEASE * 3) {
        let_pass(Duration::from_millis(250));
        proxies[1..].iter().for_each(Proxy::cut_all);
    }
    let after = claimed();
    let claims: Vec<_> = contenders.into_iter().flat_map(Contenders::stop).collect();
    judge(claims).must_be_exact_after_a_switch();
    assert!(
        before
            .iter()
            .zip(after)
            .all(|(before, after)| after > *before + 5),
        "{after:?}"
    );
    assert!(!foreign.probe(&name).exists(&name));
    // The error names the expected and the found node.
    let error = outcome.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    let text = format!("{error} {error:?}");
    assert!(
        [&id, &foreign.id(1)].iter().all(|id| text.contains(*id)),
        "{text}"
    );
    let [_, expected, found] = refused.lock().first().cloned().expect("it is told");
    assert_eq!([expected, found], [id, foreign.id(1)]);
    assert!(
        held.verify().unwrap() > Duration::ZERO,
        "on a node that is well"
    );
    held.unlock().unwrap();
}

#[test]
fn cluster_made_anew_behind_the_same_addresses_is_followed() {
    let mut cluster = Cluster::steady();
    cluster.fail_over(0, Failover::Takeover);
    let later = Cluster::steady();
    assert!(
        epoch(&later) < epoch(&cluster),
        "nothing but its nodes says that it is another one"
    );
    let (proxies, behind) = behind(&cluster);
    let (url, name) = (cluster.url(), cluster.name_on(1, "contended"));
    let contenders = [(); 2].map(|()| Contenders::start(&format!("{url}?{behind}"), &name, 1, 2));
    let (client, _, changed) = listening(&url, &behind);
    let held_name = cluster.name_on(1, "held");
    let other = client_with(&url, &behind);
    // This client learns the nodes now: a client that starts later cannot know that they were
    // others.
    take(&other, &held_name).unlock().unwrap();
    let other = other.mutex(held_name.as_str()).unwrap();
    let asked = SystemClock.now();
    let held = take(&client, &held_name);
    let losses = held.losses();
    let claimed = || contenders.each_ref().map(|it| it.claims().len());
    eventually("both have had it", LONG, || {
        claimed().iter().all(|claims| *claims > 5)
    });

    let was = cluster.id(1);
    (0..cluster.len()).for_each(|node| cluster.node_mut(node).kill());
    let watch = Stopwatch::start();
    // Only five of the six addresses lead to the new cluster; the last one does not answer any
    // more.
    for (node, proxy) in proxies.iter().enumerate().take(5) {
        proxy.switch_to(later.node(node).port());
    }
    let lock = client.mutex("after").unwrap();
    let outcome = lock.try_lock().map(drop);
    // While the first client's guard is valid, no other client may get the lock.
    let mut together: Vec<_> = thread::scope(|scope| {
        let next = scope.spawn(|| {
            let asked = SystemClock.now();
            let guard = other.try_lock_for(LONG).unwrap().expect("it comes free");
            let until = SystemClock.now() + Duration::from_millis(50);
            stay(&guard, "next", asked, || SystemClock.now() >= until)
        });
        let claims = [stay(&held, "first", asked, || false), next.join().unwrap()];
        claims.into_iter().flatten().collect()
    });
    eventually("it is followed", LEASE + Duration::from_secs(10), || {
        lock.try_lock()
            .is_ok_and(|guard| guard.is_some_and(|guard| guard.unlock().is_ok()))
    });
    println!("followed {:?} after the switch", watch.elapsed());
    let before = claimed();
    let all_go_on = || {
        claimed()
            .iter()
            .zip(before)
            .all(|(after, before)| *after > before + 5)
    };
    eventually(
        "so do the others",
        LEASE + Duration::from_secs(10),
        all_go_on,
    );
    let_pass(scaled(LEASE));
    together.extend(contenders.into_iter().flat_map(Contenders::stop));
    judge(together).must_be_exact_after_a_switch();
    let error = outcome.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    // The held lock is lost, and an event names the old and the new nodes.
    assert!(losses.recv_timeout(LONG).is_ok() && held.unlock().unwrap_err().is_lost());
    eventually("it is told", LONG, || !changed.lock().is_empty());
    let [_, old, new] = changed.lock()[0].clone();
    assert!(
        old.contains(&was) && new.contains(&later.id(1)),
        "{old} {new}"
    );
}

#[test]
fn client_that_starts_among_two_clusters_takes_neither_side() {
    let [one, other] = [Cluster::steady(), Cluster::steady()];
    let url = one.url_of(&[0]);
    let both = format!("{url},127.0.0.1:{}", other.node(1).port());
    let error = client_with(&both, SETTINGS)
        .mutex("x")
        .unwrap()
        .try_lock()
        .unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    let text = error.to_string();
    assert!(
        [one.id(0), other.id(1)].iter().all(|id| text.contains(id)),
        "{text}"
    );
    // Two of the three addresses lead to one cluster, which the client then uses.
    let most = format!("{},127.0.0.1:{}", one.url_of(&[0, 1]), other.node(1).port());
    for _ in 0..5 {
        let guard = take(&client_with(&most, SETTINGS), "x");
        assert!(!other.probe("x").exists("x"));
        guard.unlock().unwrap();
    }
}

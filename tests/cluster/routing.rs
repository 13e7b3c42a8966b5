//! Requests that arrive at the wrong node, or while a slot moves.

use crate::scene::{LONG, Load, backend, client, client_with, take};
use distlock::backend::{LeaseTime, OwnerId};
use distlock::config::Credentials;
use distlock::{Client, Config, LockName};
use distlock_tests::cluster::Cluster;
use distlock_tests::guards::await_renewals;
use distlock_tests::probe::Probe;
use distlock_tests::time::{always, eventually, ms, timed, within};
use distlock_tests::version::{is_before_7, skipped_before_7};
use lock_core::backend::{Attempt, Failure, LockInfo};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

#[test]
fn lock_is_on_the_node_of_its_slot() {
    let cluster = Cluster::shared();
    let client = client(&cluster.url());
    for name in ["a", "b", "c", "orders:{7}:x", "{tag}"] {
        let name = format!("routing:{name}");
        let guard = take(&client, &name);
        assert!(cluster.probe(&name).exists(&name));
        guard.unlock().unwrap();
        assert!(!cluster.probe(&name).exists(&name));
    }
}

#[test]
fn label_of_a_holder_is_on_the_node_of_its_slot() {
    let cluster = Cluster::shared();
    let client = client_with(&cluster.url(), "owner=till-7&watchdog=3s");
    for name in ["a", "b", "c"] {
        let name = format!("labelled:{name}");
        let guard = take(&client, &name);
        let key = format!("distlock_owner:{{{name}}}");
        eventually("it is renewed", LONG, || cluster.probe(&name).exists(&key));
        let holder = label_of(&client, &name);
        assert_eq!(holder.as_deref(), Some("till-7"));
        guard.unlock().unwrap();
        let next = take(&client, &name);
        assert_eq!(
            label_of(&client, &name),
            None,
            "that is the former holder's"
        );
        next.unlock().unwrap();
    }
}

#[test]
fn labels_of_readers_and_permits_are_on_the_node_of_their_slot() {
    let cluster = Cluster::shared();
    let client = client_with(&cluster.url(), "owner=till-8&watchdog=3s");
    for name in ["a", "b", "c"] {
        let [read, slots] = ["labelled-read", "labelled-slots"].map(|it| format!("{it}:{name}"));
        let (lock, semaphore) = (client.rw_lock(&read).unwrap(), client.semaphore(&slots, 2));
        let semaphore = semaphore.unwrap();
        let (reader, permit) = (lock.read().lock().unwrap(), semaphore.acquire().unwrap());
        for name in [&read, &slots] {
            let keys = format!("distlock_owner:{{{name}}}:*");
            eventually("it is renewed", LONG, || {
                cluster.probe(name).keys(&keys).len() == 1
            });
        }
        let all = [lock.write().inspect(), semaphore.inspect()];
        for info in all.map(Result::unwrap) {
            assert_eq!(label_in(info).as_deref(), Some("till-8"));
        }
        reader.unlock().unwrap();
        permit.unlock().unwrap();
    }
}

/// Returns the label of the lock's holder.
fn label_of(client: &Client, name: &str) -> Option<String> {
    label_in(client.mutex(name).unwrap().inspect().unwrap())
}

fn label_in(info: LockInfo) -> Option<String> {
    let holder = info.holder.expect("it is held");
    holder.label.map(|label| label.text.to_string())
}

/// The `redis` crate's cluster client gets MOVED for ever when it sends a pipeline by an old map.
#[test]
fn outdated_slot_map_costs_one_redirect() {
    let cluster = Cluster::steady();
    let (from, to) = (0, 1);
    let name = cluster.name_on(from, "old-map");
    // Without renewals, which would be redirected, too.
    let client = client_with(&cluster.url(), "tracking=off&watchdog=10m");
    let first = take(&client, &name);
    let token = first.fencing_token();
    let redirects = || cluster.errors("MOVED") + cluster.errors("ASK") + cluster.errors("TRYAGAIN");
    assert_eq!(
        redirects(),
        0,
        "nothing goes to the wrong node as long as nothing moves"
    );
    let slot = cluster.slot(&name);
    cluster.move_slot(slot, from, to);
    // Otherwise the slot map may be requested from a node that does not know of the move.
    cluster.wait_for_owner(slot, to);
    assert!(first.verify().unwrap() > Duration::ZERO);
    assert_eq!(redirects(), 1);
    first.unlock().unwrap();
    for _ in 0..20 {
        let guard = take(&client, &name);
        assert!(guard.fencing_token() > token, "its tokens went along");
        guard.unlock().unwrap();
    }
    assert_eq!(redirects(), 1, "the map has learnt it");
}

#[test]
fn lock_of_a_moving_slot_is_renewed_released_and_taken_after() {
    let cluster = Cluster::steady();
    let (from, to) = (1, 2);
    let name = cluster.name_on(from, "moving");
    let slot = cluster.slot(&name);
    let [one, other] = [(); 2].map(|()| {
        client_with(
            &cluster.url(),
            "watchdog=6s&command_timeout=2s&outage_limit=60s",
        )
    });
    let held = take(&one, &name);
    cluster.begin_to_move(slot, from, to);
    await_renewals(&held);
    cluster.move_keys(slot, from, to);
    await_renewals(&held);
    assert!(cluster.errors("ASK") > 0);
    assert!(held.verify().unwrap() > Duration::ZERO);
    held.unlock().unwrap();
    let mut probe = cluster.node(to).probe();
    assert_eq!(probe.command(&["ASKING"]).text(), "OK");
    assert!(!probe.exists(&name), "freed where it was");
    // A free lock has no key. A script without any of its keys is answered TRYAGAIN while the slot
    // moves.
    let lock = other.mutex(&name).unwrap();
    let error = timed(2_000, |_| lock.try_lock()).unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    let (backend, context) = backend(&cluster.url());
    let (free, lease) = (LockName::new(&name).unwrap(), LeaseTime::new(LONG).unwrap());
    let attempt = Attempt::new(&free, OwnerId::new(context.client, 1), lease);
    let before = cluster.errors("TRYAGAIN");
    timed(3_000, |by| backend.acquire(&attempt, by)).unwrap_err();
    assert!(
        cluster.errors("TRYAGAIN") > before + 1,
        "one attempt asks again and again"
    );
    thread::scope(|scope| {
        let waits = scope.spawn(|| lock.lock().unwrap().unlock());
        always("it waits", ms(500), || !waits.is_finished());
        cluster.end_to_move(slot, from, to);
        waits.join().unwrap().unwrap();
    });
}

/// The list on which waiters of python-redis-lock sleep is in the same slot and usually does not
/// exist. A script that needs the list and the lock is not executed while the slot moves. Until
/// then the lock is held, and the release that frees it later also wakes these waiters.
#[test]
fn release_with_wakes_in_a_moving_slot_is_finished_after_unlock() {
    let cluster = Cluster::steady();
    let (from, to) = (1, 0);
    let tag = cluster.name_on(from, "signalled");
    let (name, slot) = (format!("{{{tag}}}"), cluster.slot(&tag));
    let (key, list) = (format!("lock:{name}"), format!("lock-signal:{name}"));
    let format = "prefix=lock:&format=token,wakes=python-redis-lock";
    let client = client_with(
        &cluster.url(),
        &format!("{format}&command_timeout=1s&watchdog=5m"),
    );
    let held = take(&client, &name);
    cluster.begin_to_move(slot, from, to);
    cluster.move_keys(slot, from, to);
    let error = timed(1_000, |_| held.unlock()).unwrap_err();
    assert!(!error.is_lost(), "{error}");
    let mut probe = cluster.node(to).probe();
    assert_eq!(probe.command(&["ASKING"]).text(), "OK");
    assert!(probe.exists(&key), "it is where it was");
    cluster.end_to_move(slot, from, to);
    assert_eq!(
        probe.command(&["BLPOP", &list, "15"]).texts(),
        [list, "1".to_owned()]
    );
    assert!(!probe.exists(&key), "freed and told at once");
}

#[test]
fn waiter_is_woken_on_the_new_node_of_its_slot() {
    let cluster = Cluster::steady();
    let (from, to) = (2, 0);
    let sharded = if is_before_7() {
        "CHANNELS"
    } else {
        "SHARDCHANNELS"
    };
    for (channels, listed) in [("auto", sharded), ("plain", "CHANNELS")] {
        let name = cluster.name_on(from, &format!("woken-{channels}"));
        let any = format!("*{name}*");
        let is_watched =
            |probe: &mut Probe| !probe.command(&["PUBSUB", listed, &any]).texts().is_empty();
        let settings = format!("watchdog=5m&command_timeout=1s&channels={channels}");
        let [one, other] = [(); 2].map(|()| client_with(&cluster.url(), &settings));
        let held = take(&one, &name);
        thread::scope(|scope| {
            let waits = scope.spawn(|| take(&other, &name).unlock());
            let mut probe = cluster.node(from).probe();
            eventually("it waits", LONG, || is_watched(&mut probe));
            cluster.move_slot(cluster.slot(&name), from, to);
            // However the waiter learns of the move, the slot's new node must notify it of the
            // release.
            let mut probe = cluster.node(to).probe();
            eventually("it waits there", LONG, || is_watched(&mut probe));
            held.unlock().unwrap();
            // Much sooner than the end of the lease, for which an unnotified waiter would wait.
            within(LONG / 3, || waits.join().unwrap().unwrap());
        });
    }
}

/// Slots move repeatedly while threads take and hold locks in them. No holder loses its lock, and
/// no two threads hold one at once.
#[test]
fn slots_that_move_repeatedly_lose_no_lock() {
    let cluster = Cluster::steady();
    let (from, to) = (0, 1);
    let holder = client_with(&cluster.url(), "watchdog=6s&command_timeout=1s");
    let names: Vec<_> = (0..20)
        .map(|n| cluster.name_on(from, &format!("held-{n}")))
        .collect();
    let held: Vec<_> = names.iter().map(|name| take(&holder, name)).collect();
    let contended: Vec<_> = (0..4)
        .map(|n| cluster.name_on(from, &format!("busy-{n}")))
        .collect();
    let (loads, clients): (Vec<_>, Vec<_>) = contended
        .iter()
        .map(|_| (Load::default(), client(&cluster.url())))
        .unzip();
    thread::scope(|scope| {
        let _stop: Vec<_> = loads.iter().map(Load::until_dropped).collect();
        for (name, load) in contended.iter().zip(&loads) {
            for client in &clients[..2] {
                scope.spawn(|| load.work(client, name));
            }
        }
        let slots: Vec<_> = names
            .iter()
            .chain(&contended)
            .map(|name| cluster.slot(name))
            .collect();
        for _ in 0..3 {
            for (from, to) in [(from, to), (to, from)] {
                slots
                    .iter()
                    .for_each(|slot| cluster.move_slot(*slot, from, to));
                // If a slot moved back before all nodes knew of the first move, the two nodes could
                // be in the same epoch, and either could own the slot.
                slots
                    .iter()
                    .for_each(|slot| cluster.wait_for_owner(*slot, to));
            }
        }
        let enough = || loads.iter().all(|load| load.room.visits() > 50);
        eventually("all had turns enough", LONG, enough);
    });
    for load in &loads {
        assert_eq!(load.room.collisions(), 0);
        assert_eq!(*load.wrong.lock(), [""; 0]);
        println!(
            "{} visits, {:?} times unavailable",
            load.room.visits(),
            load.unavailable
        );
    }
    for guard in held {
        guard.unlock().unwrap();
    }
    for code in ["MOVED", "ASK", "TRYAGAIN"] {
        println!("{code}: {}", cluster.errors(code));
    }
}

/// The `redis` crate's cluster client sends a command again when its answer is late, so that the
/// server executes it many times.
#[test]
fn attempt_without_a_reply_is_sent_once() {
    let cluster = Cluster::steady();
    let name = LockName::new(&cluster.name_on(0, "once")).unwrap();
    let (backend, context) = backend(&cluster.url());
    let lease = LeaseTime::new(Duration::from_secs(5)).unwrap();
    let attempt = |number, milliseconds| {
        let attempt = Attempt::new(&name, OwnerId::new(context.client, number), lease);
        timed(milliseconds, |by| backend.acquire(&attempt, by))
    };
    attempt(1, 2_000).unwrap();
    let server = cluster.node(0);
    let before = server.probe().command_calls("evalsha");
    server.pause();
    let outcome = attempt(2, 300);
    server.resume();
    assert!(matches!(outcome, Err(Failure::Unknown(_))), "{outcome:?}");
    let calls = || server.probe().command_calls("evalsha") - before;
    eventually("it arrives", LONG, || calls() == 1);
    always("and arrives once", ms(500), || calls() == 1);
}

#[test]
fn every_node_uses_the_credentials_of_the_provider() {
    let cluster = Cluster::shared();
    let url = cluster.url().replace("locker:SECRET@", "");
    let lock = |password: &'static str, name: &str| {
        let provider = move |_: &str| Ok(Credentials::new(password).with_user("locker"));
        let config = Config::from_url(&url)
            .unwrap()
            .with_credentials(Arc::new(provider));
        let client = distlock::builder().config(config).connect().unwrap();
        client.mutex(name).unwrap().try_lock()
    };
    for node in 0..3 {
        let name = cluster.name_on(node, "given-credentials");
        lock("SECRET", &name)
            .unwrap()
            .expect("it is free")
            .unlock()
            .unwrap();
        let error = lock("wrong", &name).unwrap_err();
        assert!(error.is_configuration(), "{error:?}");
        assert!(
            error.to_string().contains("does not accept the password"),
            "{error:?}"
        );
    }
}

#[test]
fn server_without_cluster_mode_is_reported() {
    let server = distlock_tests::process::RedisServer::start();
    let url = server.url_as("").replace("redis:", "redis+cluster:");
    let error = distlock::connect(&url)
        .unwrap()
        .mutex("a")
        .unwrap()
        .try_lock()
        .unwrap_err();
    let right = format!("`redis://127.0.0.1:{}`", server.port());
    assert!(
        error.is_configuration() && error.to_string().contains(&right),
        "{error}"
    );
}

#[test]
fn wrong_password_is_reported() {
    let cluster = Cluster::shared();
    let url = cluster.url().replace("SECRET", "WRONG");
    let error = client(&url).mutex("a").unwrap().try_lock().unwrap_err();
    assert!(
        error.is_configuration() && error.to_string().contains("password"),
        "{error}"
    );
}

/// Nodes may announce host names, names that only the cluster can resolve, or no address at all.
#[test]
fn nodes_are_found_by_every_kind_of_announcement() {
    if skipped_before_7("host names that nodes announce") {
        return;
    }
    let cluster = Cluster::steady();
    let announce = |kind: &str, host: &str| {
        for node in 0..cluster.len() {
            let mut probe = cluster.node(node).probe();
            let mut set = |name, value| probe.command(&["CONFIG", "SET", name, value]).text();
            set("cluster-announce-hostname", host);
            set("cluster-preferred-endpoint-type", kind);
        }
        let shown = if host.is_empty() { "?" } else { host };
        // The other nodes learn the name with the next ping.
        eventually("all nodes tell of all others so", LONG, || {
            (0..cluster.len()).all(|node| {
                let told = format!(
                    "{:?}",
                    cluster.node(node).probe().command(&["CLUSTER", "SLOTS"])
                );
                kind != "hostname" || told.matches(&format!("[Text(\"{shown}\"")).count() >= 6
            })
        });
    };
    let works = |settings: &str| {
        let client = client_with(&cluster.url(), settings);
        for node in 0..3 {
            take(&client, &cluster.name_on(node, "announced"))
                .unlock()
                .unwrap();
        }
    };
    announce("hostname", "localhost");
    works("");
    announce("hostname", "node.invalid");
    works("address_map=node.invalid=127.0.0.1");
    // A redirect then has no host either, or says that the host is unknown, and this user may not
    // request the slot map from another node.
    for (kind, sent_on) in [("unknown-endpoint", 1), ("hostname", 2)] {
        announce(kind, "");
        works("");
        let login = "sent-on:SECRET";
        let url = cluster.url_as(login, &["on", ">SECRET", "~*", "&*", "+@all"]);
        let (client, name) = (client(&url), cluster.name_on(0, kind));
        let held = take(&client, &name);
        cluster.url_as(login, &["-cluster", "+cluster|myid"]);
        cluster.move_slot(cluster.slot(&name), 0, 1);
        assert!(held.verify().unwrap() > Duration::ZERO);
        assert_eq!(cluster.errors("MOVED"), sent_on);
        held.unlock().unwrap();
    }
    // A replica as the only address in the URL reports the other nodes, and no client writes to it.
    let client = distlock::connect(&cluster.url_of(&[3])).unwrap();
    let writes = cluster.node(3).probe().command_calls("evalsha");
    for node in 0..3 {
        take(&client, &cluster.name_on(node, "by-replica"))
            .unlock()
            .unwrap();
    }
    assert_eq!(cluster.node(3).probe().command_calls("evalsha"), writes);
}

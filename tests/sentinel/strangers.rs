//! A stranger: a new master that the sentinels name, but that none of them has listed as a replica
//! before.

use crate::fake_sentinel::Liar;
use crate::scene::{SOON, await_move, await_usable, builder, connect, take};
use crate::switch::follow;
use distlock::{Client, Event};
use distlock_tests::process::RedisServer;
use distlock_tests::sentinel::{Group, is_master, keep_a_master};
use distlock_tests::time::{Stopwatch, always, eventually};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(2);

/// An epoch later than that of the group, so that the foreign sentinel's master wins by its epoch.
const LATER: u64 = 100;

/// The recorded events about servers: `true` if the server is used from now on, `false` if it was
/// refused, and its `run_id`.
type Told = Arc<Mutex<Vec<(bool, String)>>>;

fn client(url: &str) -> (Client, Told) {
    let told = Told::default();
    let heard = Arc::clone(&told);
    let handler = move |event: &Event| match event {
        Event::ServerRefused { found, .. } => heard.lock().push((false, found.clone())),
        Event::ServerChanged { is, .. } => heard.lock().push((true, is.clone())),
        _ => {}
    };
    let url = format!("{url}?watchdog={}s", LEASE.as_secs());
    (
        builder(&url).events(Arc::new(handler)).connect().unwrap(),
        told,
    )
}

fn run_id(server: &RedisServer) -> String {
    server.probe().info_field("server", "run_id").unwrap()
}

fn has_clients(server: &RedisServer) -> bool {
    server
        .probe()
        .clients()
        .iter()
        .any(|client| client.contains("name=distlock"))
}

/// Whether the sentinel reports the new master with its `run_id`.
#[derive(Clone, Copy, Debug)]
enum Word {
    /// The sentinel knows the `run_id` of the new master.
    Identified,
    /// The sentinel has not queried the new master yet.
    NotYet,
}

/// The replica that the sentinel has listed before the failover, if any.
#[derive(Clone, Copy, Debug)]
enum Listed {
    /// The server that becomes the new master.
    Successor,
    /// Another server at the address of the new master.
    Other,
    NoServer,
}

#[test]
fn only_a_listed_replica_takes_the_masters_place_at_once() {
    for (listed, word) in [
        (Listed::Successor, Word::Identified),
        (Listed::Successor, Word::NotYet),
        (Listed::Other, Word::Identified),
        (Listed::Other, Word::NotYet),
        (Listed::NoServer, Word::Identified),
        (Listed::NoServer, Word::NotYet),
    ] {
        let what = format!("{listed:?}, {word:?}");
        let [old, new] = [(); 2].map(|()| RedisServer::start());
        let sentinel = Liar::naming(old.port(), 1);
        sentinel.identify(&run_id(&old));
        let replica = match listed {
            Listed::Successor => Some(run_id(&new)),
            Listed::Other => Some(run_id(&new).chars().rev().collect()),
            Listed::NoServer => None,
        };
        sentinel.list_replicas(
            &replica
                .map(|id| (new.port(), id))
                .into_iter()
                .collect::<Vec<_>>(),
        );
        let (client, told) = client(&sentinel.url());
        let lock = client.mutex("named").unwrap();
        take(&lock).unlock().unwrap();
        eventually("it listens", SOON, || sentinel.listeners() == 1);
        let id = match word {
            Word::Identified => run_id(&new),
            Word::NotYet => String::new(),
        };
        sentinel.name_as(new.port(), 2, &id);
        let named = Stopwatch::start();
        sentinel.announce(old.port(), new.port());
        match (listed, word) {
            (Listed::Successor, _) => {
                await_move(&lock, &new);
                assert!(told.lock().is_empty(), "{what}: {told:?}");
            }
            // The server's own `run_id` shows that it is not the listed replica.
            (Listed::Other, Word::NotYet) => {
                eventually(&what, SOON, || told.lock().contains(&(false, run_id(&new))));
                assert!(lock.try_lock().unwrap_err().is_unavailable());
                // The sentinel's knowledge of the `run_id` does not make the server a restarted
                // master: the client follows it only one lease later.
                sentinel.identify(&run_id(&new));
                let identified = Stopwatch::start();
                await_move(&lock, &new);
                assert!(
                    identified.elapsed() >= LEASE,
                    "{what}: {:?}",
                    identified.elapsed()
                );
            }
            _ => {
                eventually(&what, SOON, || !told.lock().is_empty());
                let error = lock.try_lock().unwrap_err();
                assert!(
                    error.is_unavailable() && named.elapsed() < LEASE,
                    "{what}: {error:?}"
                );
                let text = error.to_string();
                assert!(
                    text.contains(&format!("127.0.0.1:{}", new.port())),
                    "{what}: {text}"
                );
                assert!(text.contains("listed as a replica"), "{what}: {text}");
                assert!(!new.probe().exists("named"), "{what}");
                await_move(&lock, &new);
                assert!(named.elapsed() >= LEASE, "{what}: {:?}", named.elapsed());
                // The refusal may be reported a second time when the sentinel reports the `run_id`.
                let mut told = told.lock().clone();
                told.dedup_by_key(|(is_used, _)| *is_used);
                let used: Vec<_> = told.iter().map(|(is_used, _)| *is_used).collect();
                assert_eq!(used, [false, true], "{what}: {told:?}");
            }
        }
    }
}

/// A successor that was promoted before the sentinel listed it is followed at once, because the
/// server itself shows that it continues the master's data. The former master shows the same when
/// it becomes the master again.
#[test]
fn successor_that_continues_the_data_is_followed_at_once() {
    let [old, new] =
        [(); 2].map(|()| RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]));
    follow(&new, Some(&old));
    let sentinel = Liar::naming(old.port(), 1);
    sentinel.identify(&run_id(&old));
    // The lease is far longer than the test, so the client cannot have waited for its end.
    let client = connect(&format!("{}?watchdog=5m", sentinel.url()));
    let held = take(&client.mutex("held").unwrap());
    eventually("it listens", SOON, || sentinel.listeners() == 1);
    for (epoch, from, to) in [(2, &old, &new), (3, &new, &old)] {
        let replicated = || to.probe().exists("held");
        eventually("the replica has the lock", SOON, replicated);
        follow(to, None);
        sentinel.name_as(to.port(), epoch, &run_id(to));
        sentinel.announce(from.port(), to.port());
        await_move(&client.mutex("moved").unwrap(), to);
        held.verify().unwrap();
        follow(from, Some(to));
    }
    held.unlock().unwrap();
}

/// While a lock is held and renewed on the former master, the client does not follow the stranger:
/// a second client could get the same lock there.
#[test]
fn stranger_is_not_followed_while_a_lock_is_held() {
    let [old, new] = [(); 2].map(|()| RedisServer::start());
    let sentinel = Liar::naming(old.port(), 1);
    sentinel.identify(&run_id(&old));
    let (client, told) = client(&sentinel.url());
    let held = take(&client.mutex("held").unwrap());
    let lock = client.mutex("other").unwrap();
    eventually("it listens", SOON, || sentinel.listeners() == 1);
    sentinel.name_as(new.port(), 2, &run_id(&new));
    sentinel.announce(old.port(), new.port());
    let report = (false, run_id(&new));
    eventually("the stranger is reported", SOON, || {
        told.lock().contains(&report)
    });
    always(
        "it is not used, and nothing else is granted",
        LEASE * 3,
        || {
            assert!(lock.try_lock().is_err_and(|error| error.is_unavailable()));
            held.is_valid() && !new.probe().exists("other")
        },
    );
    let reports = told.lock().iter().filter(|it| **it == report).count();
    assert_eq!(reports, 1, "reported once");
    held.unlock().unwrap();
    await_usable(&lock);
    assert!(has_clients(&new) && told.lock().contains(&(true, run_id(&new))));
    // The next grants are made by the new server, and not by the old one.
    let _held = take(&lock);
    assert!(new.probe().exists("other") && !old.probe().exists("other"));
}

/// Real sentinels: a server of another deployment takes over the address of a replica. The other
/// deployment's sentinel publishes its master there under the same name, and all sentinels name
/// that master. The client must not follow it while it holds a lock.
#[test]
fn merged_sentinels_lead_no_client_to_the_other_deployment_at_once() {
    let mut group = Group::steady();
    let foreign = group.namesake(1, LATER);
    let (client, told) = client(&group.url());
    let lock = client.mutex("merged").unwrap();
    let held = take(&client.mutex("held").unwrap());
    take(&lock).unlock().unwrap();
    let old = group.master();
    // Otherwise the sentinels make the old master a replica of the other master, which deletes its
    // locks.
    keep_a_master(&group.servers[old]);
    let (id, other) = (run_id(&foreign.servers[0]), foreign.servers[0].port());
    let reused = (old + 1) % group.servers.len();
    group.servers[reused].restart_as_replica_of(other);
    eventually("all sentinels name the other master", SOON, || {
        (0..3).all(|it| group.named_by_sentinel(it) == Some(other))
    });
    eventually("it is reported", SOON, || {
        told.lock().contains(&(false, id.clone()))
    });
    always("it is not used", LEASE * 2, || {
        assert!(lock.try_lock().is_err_and(|error| error.is_unavailable()));
        held.is_valid() && !foreign.servers[0].probe().exists("merged")
    });
    assert!(is_master(&group.servers[old]) && group.servers[old].probe().exists("held"));
    held.unlock().unwrap();
    await_usable(&lock);
    assert!(told.lock().contains(&(true, id)));
}

/// A replica that was restarted after the client was connected is known by the time of its
/// promotion.
#[test]
fn restarted_replica_takes_the_masters_place_at_once() {
    let mut group = Group::start();
    let (client, told) = client(&group.url());
    let lock = client.mutex("restarted").unwrap();
    take(&lock).unlock().unwrap();
    let old = group.master();
    let chosen = (old + 1) % group.servers.len();
    let port = group.servers[old].port();
    group.servers[chosen].restart_as_replica_of(port);
    group.await_quiet(2);
    group.prefer(chosen);
    group.fail_over();
    assert_eq!(group.await_other_than(old), chosen);
    await_move(&lock, &group.servers[chosen]);
    assert!(told.lock().is_empty(), "{told:?}");
}

/// The sentinels still list the replica's `run_id` from before its restart, and name the new master
/// without a `run_id` for seconds. The client follows it all the same, because the server continues
/// the old master's data.
#[test]
fn replica_restarted_before_the_sentinels_looked_is_followed() {
    let mut group = Group::start_with(1, 3);
    group.look_seldom();
    let (client, told) = client(&group.url());
    let held = take(&client.mutex("held").unwrap());
    let old = group.master();
    let port = group.servers[old].port();
    let new = 1 - old;
    group.servers[new].restart_as_replica_of(port);
    eventually("it is filled", SOON, || {
        group.servers[new].probe().exists("held")
    });
    group.fail_over();
    assert_eq!(group.await_other_than(old), new);
    await_move(&client.mutex("free").unwrap(), &group.servers[new]);
    held.verify().unwrap();
    assert!(told.lock().is_empty(), "{told:?}");
}

//! Locks whose grant was confirmed by a replica, while their renewals are not.

use crate::scene::{LONG, client_with, take};
use distlock::{Client, Event, GuardState};
use distlock_tests::cluster::Cluster;
use distlock_tests::time::{always, eventually};
use distlock_tests::version::skipped_before_7;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(8);

type Told = Arc<Mutex<Vec<&'static str>>>;

/// Returns a client, and a list of the events about its locks: degraded, restored or lost.
fn listening(cluster: &Cluster, replicas: &str) -> (Client, Told) {
    let told = Told::default();
    let heard = Arc::clone(&told);
    let handler = move |event: &Event| {
        let what = match event {
            Event::Degraded { .. } => "degraded",
            Event::Restored { .. } => "restored",
            Event::Lost { .. } => "lost",
            _ => return,
        };
        heard.lock().push(what);
    };
    let settings = format!(
        "replicas={replicas}&replication_timeout=500ms&watchdog={}s&command_timeout=1s",
        LEASE.as_secs()
    );
    let builder = distlock::builder()
        .url(&format!("{}?{settings}", cluster.url()))
        .unwrap();
    (builder.events(Arc::new(handler)).connect().unwrap(), told)
}

#[test]
fn held_lock_survives_the_failover_that_takes_its_only_replica() {
    if skipped_before_7("a list of the replicas that are down") {
        return;
    }
    let mut cluster = Cluster::start();
    let dying = 1;
    let (clients, told): (Vec<_>, Vec<_>) = ["1", "all"]
        .map(|replicas| listening(&cluster, replicas))
        .into_iter()
        .unzip();
    cluster.wait_for_replicas(dying);
    let names: Vec<_> = ["one", "all"]
        .iter()
        .map(|what| cluster.name_on(dying, &format!("held-{what}")))
        .collect();
    let held: Vec<_> = clients
        .iter()
        .zip(&names)
        .map(|(client, name)| take(client, name))
        .collect();
    let (slot, replica) = (cluster.slot(&names[0]), cluster.replica_of(dying));
    cluster.node_mut(dying).kill();
    cluster.wait_for_owner(slot, replica);
    let are_held = || held.iter().all(|guard| guard.is_valid());
    always("the locks are held", LEASE * 5, are_held);
    for (guard, told) in held.iter().zip(&told) {
        assert_eq!(guard.state(), GuardState::Held);
        assert_eq!(*told.lock(), ["degraded"]);
    }
    // A new grant requires the confirmation.
    let strict = clients[0].mutex(cluster.name_on(replica, "new")).unwrap();
    let error = strict.try_lock().unwrap_err();
    assert!(error.is_insufficient_replicas(), "{error:?}");
    cluster.node_mut(dying).restart();
    eventually("the dead node is back as a replica", LONG, || {
        told.iter()
            .all(|told| *told.lock() == ["degraded", "restored"])
    });
    assert!(are_held());
    held.into_iter().for_each(|guard| guard.unlock().unwrap());
}

/// A replica that is down may come back and be promoted, without what it has missed. So while it is
/// listed, renewals that it does not confirm do not count.
#[test]
fn listed_replica_counts_while_it_is_down() {
    let mut cluster = Cluster::start();
    let master = 0;
    cluster.wait_for_replicas(master);
    let (client, told) = listening(&cluster, "1");
    let name = cluster.name_on(master, "strict");
    let held = take(&client, &name);
    let replica = cluster.replica_of(master);
    cluster.node_mut(replica).kill();
    eventually("it is lost when its confirmed lease ends", LONG, || {
        !held.is_valid()
    });
    eventually("that is told", LONG, || *told.lock() == ["lost"]);
}

/// With `unconfirmed_renewals=keep` the lock is held although the replica misses its renewals. When
/// the replica is promoted, the lease has ended there, and the lock is granted again.
#[test]
fn unconfirmed_renewals_let_a_promotion_grant_the_lock_twice() {
    let mut cluster = Cluster::start();
    let master = 2;
    cluster.wait_for_replicas(master);
    let (client, told) = listening(&cluster, "1&unconfirmed_renewals=keep");
    let name = cluster.name_on(master, "kept");
    let held = take(&client, &name);
    let replica = cluster.replica_of(master);
    cluster.node(replica).pause();
    cluster.cut_off_replicas(master);
    eventually("a renewal is not confirmed", LONG, || {
        *told.lock() == ["degraded"]
    });
    always(
        "the lock is held beyond what the replica knows",
        LEASE,
        || held.is_valid(),
    );
    cluster.node_mut(master).kill();
    cluster.node(replica).resume();
    let taken_over = || {
        let answer = cluster
            .node(replica)
            .probe()
            .try_command(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        answer.is_ok() && cluster.find_owner(cluster.slot(&name)) == Some(replica)
    };
    eventually("the replica takes over", LONG, taken_over);
    let other = client_with(&cluster.url(), "command_timeout=1s");
    let second = take(&other, &name);
    assert!(held.is_valid(), "two believe that they have it");
    assert!(
        second.fencing_token() > held.fencing_token(),
        "and fencing tells them apart"
    );
}

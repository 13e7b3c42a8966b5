//! Grants that the replicas of the lock's node confirm.

use crate::scene::{LONG, client_with, take, turn};
use distlock::Client;
use distlock::time::{Clock, SystemClock};
use distlock_tests::claims::{Claim, judge};
use distlock_tests::cluster::Cluster;
use distlock_tests::contenders::{Contenders, stay};
use distlock_tests::time::{always, eventually, ms};
use std::thread;
use std::time::Duration;

fn client(cluster: &Cluster, replicas: &str) -> Client {
    let settings = "watchdog=60s&command_timeout=3s&connect_timeout=2s&outage_limit=60s";
    client_with(&cluster.url(), &format!("{settings}&replicas={replicas}"))
}

/// Each master has one replica. When that is the master, no replica is left to confirm a grant: the
/// next attempt waits until the dead node is back. The lock that was held stays valid.
#[test]
fn lock_on_all_replicas_survives_the_loss_of_its_master() {
    let mut cluster = Cluster::start();
    let name = cluster.name_on(1, "confirmed");
    let slot = cluster.slot(&name);
    let (one, other) = (client(&cluster, "all"), client(&cluster, "all"));
    let held = take(&one, &name);
    let replica = cluster.replica_of(1);
    // The master is killed at once, with no time to replicate anything more.
    cluster.node_mut(1).kill();
    cluster.wait_for_owner(slot, replica);
    eventually("the successor has it", LONG, || held.verify().is_ok());
    let plain = client(&cluster, "off");
    let mut trouble = None;
    let answer = eventually("it is told", LONG, || {
        let answer = plain.mutex(&name).unwrap().try_lock();
        // Printed once, so that a failed test shows the error.
        answer
            .inspect_err(|error| _ = trouble.get_or_insert_with(|| println!("{error}")))
            .ok()
    });
    assert!(answer.is_none(), "no other client gets it");
    held.unlock().unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| turn(&other, &name));
        always("no replica could confirm it", ms(1_000), || {
            !waits.is_finished()
        });
        cluster.node_mut(1).restart();
        assert!(waits.join().unwrap().is_some());
    });
}

/// Without waiting for replicas, the successor grants a lock again whose grant it never received.
/// The judge of the claims must report that.
#[test]
fn lock_on_no_replica_is_granted_twice_after_a_failover() {
    let mut cluster = Cluster::start();
    let name = cluster.name_on(2, "unconfirmed");
    let slot = cluster.slot(&name);
    let (one, other) = (client(&cluster, "off"), client(&cluster, "all"));
    let replica = cluster.replica_of(2);
    cluster.node(replica).pause();
    cluster.cut_off_replicas(2);
    let error = other
        .mutex(&name)
        .unwrap()
        .try_lock_for(Duration::from_secs(2))
        .unwrap_err();
    assert!(
        error.to_string().contains("replica"),
        "not without the replica: {error}"
    );
    let asked = SystemClock.now();
    let held = take(&one, &name);
    // A guard that is valid at some later time has been valid since the grant.
    let from = SystemClock.now();
    let others = Contenders::start(&format!("{}?watchdog=5s", cluster.url()), &name, 2, 2);
    cluster.node_mut(2).kill();
    cluster.node(replica).resume();
    cluster.wait_for_owner(slot, replica);
    let waiting = SystemClock.now();
    let enough = || others.claims().len() >= 4 || SystemClock.now().since(waiting) >= LONG;
    let later = stay(&held, "test", asked, enough).expect("it is valid");
    let mut claims = others.stop();
    claims.push(Claim { from, ..later });
    judge(claims).must_show_a_double_grant();
    eventually("the first is told", LONG, || {
        held.verify().is_err_and(|error| error.is_lost())
    });
}

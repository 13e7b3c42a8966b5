//! A master that has a successor, has not heard of it, and takes writes until it does.

use crate::harness::cluster::Cluster;
use crate::harness::probe::Value;
use crate::scene::{LONG, client_with, take};
use distlock::LossCause;
use std::time::Duration;

/// What it granted meanwhile its successor does not know: two hold the lock. The later one has the larger token, and the
/// earlier one is told at its next renewal. Nobody goes back to the old master.
#[test]
fn what_a_master_on_the_wrong_side_grants_is_granted_twice_and_told() {
    // So that it is long until it asks the others by itself.
    let arguments = ["--enable-debug-command", "local", "--cluster-node-timeout", "15000"];
    let cluster = Cluster::start_with(&arguments);
    let (old, new) = (0, cluster.replica_of(0));
    let name = cluster.name_on(old, "split");
    let slot = cluster.slot(&name);
    let settings = "watchdog=9s&command_timeout=1s";
    let [one, other] = [(); 2].map(|()| client_with(&cluster.url(), settings));
    // Each has a map, and its connections.
    take(&one, &name).unlock().unwrap();
    take(&other, &name).unlock().unwrap();
    let before = cluster.node(old).probe().command_calls("hset");
    let old_id = cluster.id(old);
    let mut probe = cluster.node(new).probe();
    // The successor tells everybody but the old one, which hears nothing of what it is told unasked.
    let mut ask = |words: &[&str]| assert_eq!(probe.command(words), Value::Text("OK".to_owned()));
    let deaf = cluster.node(old).probe().command(&["DEBUG", "DROP-CLUSTER-PACKET-FILTER", "0"]);
    assert_eq!(deaf, Value::Text("OK".to_owned()));
    ask(&["DEBUG", "CLUSTERLINK", "KILL", "ALL", &old_id]);
    ask(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
    let first = take(&one, &name);
    assert_eq!(cluster.node(old).probe().command_calls("hset"), before + 1, "by the old master");
    let second = take(&other, &name);
    assert!(second.fencing_token() > first.fencing_token(), "who came later is known by its token");
    let loss = first.losses().recv_timeout(LONG).unwrap();
    assert_eq!(loss.cause(), LossCause::Gone, "by the successor's word");
    assert_eq!(cluster.owner(slot), new);
    assert!(first.unlock().unwrap_err().is_lost());
    let asked = cluster.node(old).probe().command_calls("evalsha");
    assert!(second.verify().unwrap() > Duration::ZERO);
    second.unlock().unwrap();
    assert_eq!(
        cluster.node(old).probe().command_calls("evalsha"),
        asked,
        "nobody asks the old one"
    );
}

//! What managed services show of a cluster: one endpoint, one shard, fewer commands.

use crate::scene::{SETTINGS, client, client_with, take, turn};
use distlock_tests::cluster::{Cluster, Failover, serve_all_slots};
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::Proxy;
use distlock_tests::rights::LOGIN;
use distlock_tests::version::skipped_before_7;
use std::time::Duration;

fn endpoint(proxy: &Proxy) -> String {
    format!("redis+cluster://{LOGIN}@127.0.0.1:{}", proxy.port())
}

/// No node announces the address of the endpoint, which may lead to another node with each
/// connection.
#[test]
fn configuration_endpoint_alone_is_enough() {
    let cluster = Cluster::start();
    let leads = Proxy::plain(cluster.node(0).port());
    let names: Vec<_> = (0..3)
        .map(|node| cluster.name_on(node, "endpoint"))
        .collect();
    let early = client(&endpoint(&leads));
    for name in &names {
        turn(&early, name);
    }
    let held = take(&early, &names[0]);
    let replica = cluster.replica_of(0);
    for node in [1, replica] {
        leads.switch_to(cluster.node(node).port());
        let late = client(&endpoint(&leads));
        assert!(
            late.mutex(names[0].as_str())
                .unwrap()
                .try_lock()
                .unwrap()
                .is_none()
        );
        for name in &names[1..] {
            turn(&late, name);
        }
    }
    // The node that the endpoint first led to fails over.
    cluster.wait_for_replicas(0);
    cluster.fail_over(0, Failover::Plain);
    assert!(held.verify().unwrap() > Duration::ZERO);
    held.unlock().unwrap();
    for name in &names {
        turn(&early, name);
    }
}

/// A serverless cache shows all slots on one node without replicas, and refuses commands such as
/// `WAIT` and `CONFIG`.
#[test]
fn single_shard_without_wait_and_config_keeps_locks() {
    let withheld = [
        "WAIT",
        "CONFIG",
        "ASKING",
        "REPLICAOF",
        "SYNC",
        "PSYNC",
        "DEBUG",
    ];
    let renamed = withheld
        .iter()
        .flat_map(|command| ["--rename-command", command, ""]);
    let arguments: Vec<_> = ["--cluster-enabled", "yes"]
        .into_iter()
        .chain(renamed)
        .collect();
    let server = RedisServer::start_cluster_node(&arguments);
    serve_all_slots(&server);
    let url = format!("redis+cluster://{LOGIN}@127.0.0.1:{}", server.port());
    let [one, other] = [(); 2].map(|()| client(&url));
    let held = take(&one, "it");
    assert!(other.mutex("it").unwrap().try_lock().unwrap().is_none());
    assert!(held.verify().unwrap() > Duration::ZERO);
    held.unlock().unwrap();
    turn(&other, "it");
    let asking = client_with(&url, &format!("{SETTINGS}&replicas=1"));
    let error = asking.mutex("it").unwrap().try_lock().unwrap_err();
    assert!(
        error.is_configuration() && error.to_string().contains("WAIT"),
        "{error:?}"
    );
}

/// Redis Cloud and Azure Managed Redis document that their clusters lack the command by which a
/// node names itself.
#[test]
fn cluster_that_does_not_name_its_nodes_is_refused() {
    if skipped_before_7("rights for a part of a command") {
        return;
    }
    let cluster = Cluster::shared();
    let rights = [
        "on",
        ">SECRET",
        "~*",
        "&*",
        "+@all",
        "-cluster|myid",
        "-cluster|shards",
    ];
    let url = cluster.url_as("service:SECRET", &rights);
    let error = client(&url).mutex("it").unwrap().try_lock().unwrap_err();
    let says = error.to_string().to_lowercase();
    assert!(
        error.is_configuration() && says.contains("cluster|myid"),
        "{error:?}"
    );
}

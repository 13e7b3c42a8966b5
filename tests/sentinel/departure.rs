//! A dropped client leaves no thread and no connection behind.

use crate::scene::{SOON, client, take};
use distlock_tests::own_process::{alone, own_threads};
use distlock_tests::process::RedisServer;
use distlock_tests::sentinel::Group;
use distlock_tests::time::{eventually, timed};
use std::thread;
use std::time::Duration;

fn connections(server: &RedisServer) -> usize {
    let clients = server.probe().clients();
    clients
        .iter()
        .filter(|client| client.contains("name=distlock"))
        .count()
}

fn all(group: &Group) -> usize {
    let all = group.servers.iter().chain(&group.sentinels);
    all.filter(|server| server.is_running())
        .map(connections)
        .sum()
}

#[test]
fn dropped_sentinel_client_leaves_no_thread_or_connection() {
    alone(
        "departure::dropped_sentinel_client_leaves_no_thread_or_connection",
        nothing_is_left,
    );
}

fn nothing_is_left() {
    let group = Group::steady();
    let holder = client(&group, "");
    let waiter = client(&group, "");
    let guard = take(&holder.mutex("a").unwrap());
    let lock = waiter.mutex("a").unwrap();
    assert!(
        lock.try_lock_for(Duration::from_millis(100))
            .unwrap()
            .is_none()
    );
    guard.unlock().unwrap();
    assert!(
        own_threads().iter().any(|name| name == "distlock-task"),
        "{:?}",
        own_threads()
    );
    // Each client has two connections to each of three sentinels, for queries and for messages, and
    // at least one to the master.
    eventually("all are connected", SOON, || all(&group) >= 2 * (3 * 2 + 1));
    timed(0, |_| drop((lock, holder, waiter)));
    eventually("no thread is left", SOON, || own_threads().is_empty());
    eventually("no connection is left", SOON, || all(&group) == 0);
}

#[test]
fn client_dropped_in_a_failover_leaves_no_thread_or_connection() {
    alone(
        "departure::client_dropped_in_a_failover_leaves_no_thread_or_connection",
        nothing_is_left_mid_failover,
    );
}

fn nothing_is_left_mid_failover() {
    let group = Group::start();
    let client = client(&group, "command_timeout=60s&watchdog=3s");
    let held = take(&client.mutex("held").unwrap());
    let lock = client.mutex("asked").unwrap();
    take(&lock).unlock().unwrap();
    group.servers[0].pause();
    // An attempt hangs on the paused master, and so does a renewal, which is due each second. The
    // lock may be lost or not, depending on how soon there is a new master.
    let asks = thread::spawn(move || drop(lock.try_lock_for(Duration::from_millis(1_200))));
    asks.join().unwrap();
    drop((held, client));
    eventually("no thread is left", SOON, || own_threads().is_empty());
    group.servers[0].resume();
    eventually("no connection is left", SOON, || all(&group) == 0);
}

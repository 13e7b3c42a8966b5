//! Read-write locks on a cluster: all keys of a lock are in one slot.

use crate::scene::{LONG, client};
use distlock_tests::cluster::Cluster;
use distlock_tests::contenders::read_write::ReadersAndWriters;
use distlock_tests::time::{eventually, within};

#[test]
fn readers_and_writers_exclude_each_other_while_their_slot_moves() {
    let cluster = Cluster::steady();
    let url = format!(
        "{}?watchdog=10s&command_timeout=2s&outage_limit=60s",
        cluster.url()
    );
    let contenders = ReadersAndWriters::start(&url, 2, 3, 2);
    let go_on = |what: &str| {
        let count = || {
            let account = contenders.account();
            (account.reads.len(), account.writes.len())
        };
        let before = count();
        eventually(what, LONG, || {
            let now = count();
            now.0 > before.0 + 10 && now.1 > before.1 + 10
        });
    };
    let slot = cluster.slot("x");
    let from = cluster.owner(slot);
    let to = (from + 1) % 3;
    go_on("they read and write");
    cluster.move_slot(slot, from, to);
    go_on("they read and write where the slot is now");
    cluster.begin_to_move(slot, to, from);
    cluster.move_keys(slot, to, from);
    cluster.end_to_move(slot, to, from);
    go_on("they read and write where it was");
    let account = contenders.stop();
    println!(
        "{} reads, {} writes",
        account.reads.len(),
        account.writes.len()
    );
    let lock = client(&cluster.url()).rw_lock("x").unwrap();
    within(LONG, || {
        let writing = lock.write().lock().unwrap();
        let reading = lock.read().lock().unwrap();
        writing.unlock().unwrap();
        reading.verify().unwrap();
        assert_eq!(lock.read().inspect().unwrap().holders, 1);
        reading.unlock().unwrap();
    });
    assert!(!cluster.probe("x").exists("x"));
}

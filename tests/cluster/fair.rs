//! Locks in the order of arrival, in slots that move.

use crate::scene::{LONG, client};
use distlock::DistLock;
use distlock_tests::cluster::Cluster;
use distlock_tests::queue::{self, Line};
use distlock_tests::time::eventually;

#[test]
fn fair_queue_moves_with_its_slot() {
    let cluster = Cluster::steady();
    let (from, to) = (0, 1);
    let name = cluster.name_on(from, "fair");
    let clients = [(); 3].map(|()| client(&cluster.url()));
    let mut probe = cluster.probe(&name);
    let held = clients[0].fair_mutex(&*name).unwrap().lock().unwrap();
    let mut line = Line::default();
    clients.iter().for_each(|client| line.enter(&mut probe, client.fair_mutex(&*name).unwrap()));
    let slot = cluster.slot(&name);
    cluster.move_slot(slot, from, to);
    cluster.wait_for_owner(slot, to);
    let mut probe = cluster.node(to).probe();
    eventually("all wait there", LONG, || queue::waiting(&mut probe, &name) == 3);
    held.unlock().unwrap();
    assert_eq!(line.end(), [0, 1, 2]);
}

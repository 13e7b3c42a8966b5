//! Fair locks whose slot moves to another node.

use crate::scene::{LONG, SETTINGS, client, client_with};
use distlock::LockOptions;
use distlock_tests::cluster::Cluster;
use distlock_tests::queue::{self, Line};
use distlock_tests::time::eventually;
use std::sync::{Arc, Mutex};
use std::thread;

#[test]
fn fair_queue_moves_with_its_slot() {
    let cluster = Cluster::steady();
    let (from, to) = (0, 1);
    let name = cluster.name_on(from, "fair");
    let clients = [(); 3].map(|()| client(&cluster.url()));
    let mut probe = cluster.probe(&name);
    let held = clients[0].fair_mutex(&*name).unwrap().lock().unwrap();
    let mut line = Line::default();
    clients
        .iter()
        .for_each(|client| line.enter(&mut probe, client.fair_mutex(&*name).unwrap()));
    let slot = cluster.slot(&name);
    cluster.move_slot(slot, from, to);
    cluster.wait_for_owner(slot, to);
    let mut probe = cluster.node(to).probe();
    eventually("all wait there", LONG, || {
        queue::waiting(&mut probe, &name) == 3
    });
    held.unlock().unwrap();
    assert_eq!(line.end(), [0, 1, 2]);
}

/// The lock and its queue have moved to the new node, but the token counter has not. A release
/// there must not create a second counter, which would block the move of the first one. Nor may it
/// pass over waiters that have no subscription on the new node yet.
#[test]
fn release_in_a_slot_that_is_moved_makes_no_counter_and_passes_over_no_waiter() {
    let cluster = Cluster::steady();
    for order in ["any", "fair"] {
        let name = cluster.name_on(0, order);
        let slot = cluster.slot(&name);
        let (counter, queue) = (format!("redisson_lock_token:{{{name}}}"), queue::key(&name));
        let settings = format!("order={order}&{SETTINGS}");
        let clients = [(); 3].map(|()| client_with(&cluster.url(), &settings));
        let mut probe = cluster.probe(&name);
        let held = clients[0].mutex(&*name).unwrap().lock().unwrap();
        let mut line = Line::default();
        clients[1..]
            .iter()
            .for_each(|client| line.enter(&mut probe, client.mutex(&*name).unwrap()));
        cluster.begin_to_move(slot, 0, 1);
        cluster.move_some(&[&name, &queue], 0, 1);
        held.unlock().unwrap();
        let mut probe = cluster.node(1).probe();
        let mut there = |words: &[&str]| {
            assert_eq!(probe.command(&["ASKING"]).text(), "OK");
            probe.command(words)
        };
        assert_eq!(there(&["EXISTS", &counter]).int(), 0, "order={order}");
        assert_eq!(there(&["EXISTS", &name]).int(), 0, "order={order}");
        for waiter in [["1", "1"], ["3", "3"]] {
            let [first, last] = waiter;
            let fields = there(&["ZRANGE", &queue, first, last]).texts();
            let attempt = fields[0].split(' ').nth(2);
            assert_ne!(attempt, Some("0"), "order={order}: it is passed over");
        }
        cluster.move_keys(slot, 0, 1);
        cluster.end_to_move(slot, 0, 1);
        cluster.wait_for_owner(slot, 1);
        // The order may change: a waiter without a subscription on the new node yet lets the next
        // one go first.
        assert_eq!(line.end().len(), 2, "order={order}");
    }
}

#[test]
fn fair_read_write_locks_queue_moves_with_its_slot() {
    let cluster = Cluster::steady();
    let (from, to) = (0, 1);
    let name = cluster.name_on(from, "readers-in-order");
    let clients = [(); 3].map(|()| client(&cluster.url()));
    let lock = |number: usize| clients[number].fair_rw_lock(&*name).unwrap();
    let mut probe = cluster.probe(&name);
    let held = lock(0).write().lock().unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let waiters: Vec<_> = (0..3)
        .map(|number| {
            let (lock, order) = (lock(number), Arc::clone(&order));
            let waiter = thread::spawn(move || {
                let guard = match number {
                    1 => lock.read().lock().unwrap(),
                    _ => lock.write().lock().unwrap(),
                };
                order.lock().unwrap().push(number);
                guard.unlock().unwrap();
            });
            let has_position = || queue::waiting(&mut probe, &name) == number as i64 + 1;
            eventually("it has a position", LONG, has_position);
            waiter
        })
        .collect();
    let slot = cluster.slot(&name);
    cluster.move_slot(slot, from, to);
    cluster.wait_for_owner(slot, to);
    let mut probe = cluster.node(to).probe();
    eventually("all wait there", LONG, || {
        queue::waiting(&mut probe, &name) == 3
    });
    held.unlock().unwrap();
    waiters
        .into_iter()
        .for_each(|waiter| waiter.join().unwrap());
    assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
}

#[test]
fn fair_semaphores_queue_moves_with_its_slot() {
    let cluster = Cluster::steady();
    let (from, to) = (0, 1);
    let name = cluster.name_on(from, "in-order");
    let clients = [(); 3].map(|()| client(&cluster.url()));
    let mut probe = cluster.probe(&name);
    let held = clients[0]
        .fair_semaphore(&*name, 3)
        .unwrap()
        .acquire_many(2)
        .unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let waiters: Vec<_> = (0..3)
        .map(|number| {
            let semaphore = clients[number].fair_semaphore(&*name, 3).unwrap();
            let order = Arc::clone(&order);
            let waiter = thread::spawn(move || {
                // One permit is free, and the last waiter needs no more. It must still wait for the
                // waiters before it.
                let count = if number == 2 { 1 } else { 3 };
                let permits = semaphore
                    .try_acquire_for_with(count, LONG, &LockOptions::new())
                    .unwrap()
                    .unwrap();
                order.lock().unwrap().push(number);
                permits.unlock().unwrap();
            });
            let has_position = || queue::waiting(&mut probe, &name) == number as i64 + 1;
            eventually("it has a position", LONG, has_position);
            waiter
        })
        .collect();
    let slot = cluster.slot(&name);
    cluster.move_slot(slot, from, to);
    cluster.wait_for_owner(slot, to);
    let mut probe = cluster.node(to).probe();
    eventually("all wait there", LONG, || {
        queue::waiting(&mut probe, &name) == 3
    });
    held.unlock().unwrap();
    waiters
        .into_iter()
        .for_each(|waiter| waiter.join().unwrap());
    assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
}

//! Mutexes on a network that loses, delays and repeats requests, with too few replicas, and with a
//! backend that panics.

use crate::explore::{explore, is_punctual};
use crate::world::{LEASE, NAME, World, give, give_anyhow, ms, sleep, take, taken, thread, until};
use distlock_schedules::{Client, Interrupt, LockOptions, OnInsufficientReplicas, Replication};
use std::sync::Arc;

/// Acquires and releases the lock twice, each time with a random wait and a random way to release.
fn work(world: &World, client: &Client, stop: &Interrupt) {
    for _ in 0..2 {
        let lock = client.mutex(NAME).expect("a lock");
        let (wait, options) = match fastrand::u8(..4) {
            0 => (ms(150), LockOptions::new()),
            1 => (ms(3_000), LockOptions::new().interrupt(stop)),
            _ => (ms(3_000), LockOptions::new()),
        };
        if let Some(guard) = taken(lock.try_lock_for_with(wait, &options)) {
            world.stay(&guard, ms(fastrand::u64(..4) * 60));
            give_anyhow(guard);
        }
    }
}

/// Repairs the network, and checks that no hold, request, waiter or name in use remains.
fn settled(world: &World, clients: &[Client]) {
    world.settle(clients);
    for client in clients {
        assert_eq!(client.queue_length(NAME).expect("a name"), 0);
    }
    let lock = clients[0].mutex(NAME).expect("a lock");
    give(take(&lock));
    drop(lock);
    let in_use = || clients.iter().map(Client::names_in_use).sum::<usize>();
    until("the name is forgotten", LEASE, || in_use() == 0);
}

#[test]
fn faulty_network() {
    explore("faulty_network", 1_000, |world| {
        let clients = [world.client(), world.client()];
        let stop = Interrupt::new();
        world.net.trouble(4);
        let threads: Vec<_> = (0..4)
            .map(|number| {
                let (client, stop) = (clients[number % 2].clone(), stop.clone());
                let shared = Arc::clone(world);
                thread::spawn(move || work(&shared, &client, &stop))
            })
            .collect();
        sleep(ms(100));
        stop.fire();
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
        settled(world, &clients);
    });
}

#[test]
fn grants_with_too_few_replicas() {
    explore("grants_with_too_few_replicas", 1_000, |world| {
        let policy = match fastrand::u8(..3) {
            0 => OnInsufficientReplicas::Fail,
            1 => OnInsufficientReplicas::Accept,
            _ => OnInsufficientReplicas::Retry,
        };
        let replication = Replication::replicas(1)
            .timeout(ms(20))
            .on_insufficient_replicas(policy);
        let client = || world.client_with(|config| config.with_replication(replication));
        let clients = [client(), client()];
        let stop = Interrupt::new();
        world.net.replicas(true);
        world.net.trouble(if fastrand::bool() { 0 } else { 8 });
        let threads: Vec<_> = (0..3)
            .map(|number| {
                let (client, stop) = (clients[number % 2].clone(), stop.clone());
                let shared = Arc::clone(world);
                thread::spawn(move || work(&shared, &client, &stop))
            })
            .collect();
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
        settled(world, &clients);
    });
}

/// The rollback of a grant with too few replicas has an unknown outcome: its repetition must not
/// release the lock that a later attempt has acquired.
#[test]
fn rollback_with_unknown_outcome() {
    explore("rollback_with_unknown_outcome", 2_000, |world| {
        let replication = Replication::replicas(1)
            .timeout(ms(20))
            .on_insufficient_replicas(OnInsufficientReplicas::Retry);
        let client = world.client_with(|config| config.with_replication(replication));
        world.net.replicas(true);
        world.net.lose_releases(fastrand::usize(2..5));
        let lock = client.mutex(NAME).expect("a lock");
        if let Ok(Some(guard)) = lock.try_lock_for(LEASE * 10) {
            world.net.replicas(false);
            let was_valid = world.stay(&guard, LEASE);
            assert!(
                was_valid || !is_punctual(),
                "the lock was released under its holder"
            );
            world.net.lose_releases(0);
            give(guard);
        }
        drop(lock);
        settled(world, &[client]);
    });
}

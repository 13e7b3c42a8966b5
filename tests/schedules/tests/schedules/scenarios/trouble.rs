//! A network that loses, delays and repeats, replicas that fall short, a backend that panics.

use crate::explore::explore;
use crate::world::{LEASE, NAME, World, in_time, ms, sleep, thread, until};
use distlock_schedules::sync::time;
use distlock_schedules::{Client, DistLock, Interrupt, LockOptions, OnShortfall, Replication};
use std::sync::Arc;

/// A thread that takes the lock in one way or another, and gives it back in one or another.
fn work(world: &World, client: &Client, stop: &Interrupt) {
    for _ in 0..2 {
        let lock = client.mutex(NAME).expect("a lock");
        let options = match fastrand::u8(..4) {
            0 => LockOptions::new().wait(ms(150)),
            1 => LockOptions::new().wait(ms(3_000)).interrupt(stop),
            _ => LockOptions::new().wait(ms(3_000)),
        };
        match lock.try_lock_with(&options) {
            Ok(Some(guard)) => {
                world.judge.stay(&guard, ms(fastrand::u64(..4) * 60));
                let ended = if fastrand::bool() { guard.unlock() } else { Ok(drop(guard)) };
                if let Err(error) = ended {
                    assert!(error.is_lost() || error.is_unavailable(), "{error}");
                }
            }
            Ok(None) => {}
            Err(error) => assert!(
                error.is_unavailable() || error.is_interrupted() || error.is_shortfall(),
                "{error}"
            ),
        }
    }
}

/// Afterwards, on a network that works, nothing is left behind.
fn settled(world: &World, clients: &[Client]) {
    world.net.trouble(0);
    world.net.replicas(false);
    let start = time::peek();
    for client in clients {
        client.settle(LEASE * 4).expect("everything is cleaned up");
        assert_eq!(client.waiting(NAME).expect("a name"), 0);
    }
    in_time("the clean-up", start, ms(1_300));
    until("all requests have arrived", ms(1_000), || world.net.under_way() == 0);
    assert!(!world.is_held(), "the store has a holder that no client knows of");
    let lock = clients[0].mutex(NAME).expect("a lock");
    lock.lock().expect("it is free").unlock().expect("ours");
    drop(lock);
    sleep(LEASE);
    assert_eq!(clients.iter().map(Client::names_in_use).sum::<usize>(), 0);
}

#[test]
fn faulty_network() {
    explore("faulty_network", 400, |world| {
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
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        settled(world, &clients);
    });
}

#[test]
fn replicas_fall_short() {
    explore("replicas_fall_short", 400, |world| {
        let policy = match fastrand::u8(..3) {
            0 => OnShortfall::Fail,
            1 => OnShortfall::Accept,
            _ => OnShortfall::Retry,
        };
        let replication = Replication::replicas(1).timeout(ms(20)).on_shortfall(policy);
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
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        settled(world, &clients);
    });
}

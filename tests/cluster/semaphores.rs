//! Permits of semaphores whose slot moves.

use crate::scene::{LONG, client};
use distlock::{LockOptions, OwnedGuard, Semaphore};
use distlock_tests::cluster::Cluster;
use distlock_tests::contenders::Contenders;
use distlock_tests::contenders::permits::{most_at_once, semaphore};
use distlock_tests::time::{eventually, let_pass, ms};

const LIMIT: u32 = 3;

fn take(semaphore: &Semaphore, count: u32) -> OwnedGuard {
    semaphore
        .try_acquire_for_with(count, LONG, &LockOptions::new())
        .unwrap()
        .expect("so many come free")
}

#[test]
fn permits_are_kept_and_granted_while_their_slot_moves() {
    let cluster = Cluster::steady();
    let name = &cluster.name_on(0, "downloads");
    let slot = cluster.slot(name);
    let mut held = client(&cluster.url()).semaphore(name, LIMIT).unwrap();
    let permit = take(&held, 1);
    let url = format!("{}?watchdog=20s", cluster.url());
    let contenders = Contenders::start(&url, &semaphore(name, LIMIT), 2, 3);
    let visits = || {
        let before = contenders.claims().len();
        eventually("they go on", LONG, || {
            contenders.claims().len() > before + 50
        });
    };
    visits();
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        cluster.begin_to_move(slot, from, to);
        let_pass(ms(50));
        cluster.move_keys(slot, from, to);
        let_pass(ms(50));
        cluster.end_to_move(slot, from, to);
        visits();
        permit.verify().unwrap();
    }
    assert_eq!(held.inspect().unwrap().permits.unwrap().limit, LIMIT);
    let most = most_at_once(&contenders.stop());
    // The test itself holds one permit.
    assert!(
        most < u64::from(LIMIT),
        "{most} besides the one that is held"
    );
    permit.unlock().unwrap();
    take(&held, LIMIT).unlock().unwrap();
    assert_eq!(held.set_limit(LIMIT + 1).unwrap(), Some(LIMIT));
    assert!(held.inspect().unwrap().holder.is_none() && !held.force_release_all().unwrap());
}

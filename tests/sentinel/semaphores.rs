//! Permits of semaphores over a failover.

use crate::scene::{SOON, client};
use distlock::{LockOptions, OwnedGuard, Semaphore};
use distlock_tests::contenders::Contenders;
use distlock_tests::contenders::permits::{most_at_once, semaphore};
use distlock_tests::sentinel::Group;
use distlock_tests::time::eventually;

const NAME: &str = "downloads";
const LIMIT: u32 = 3;

fn take(semaphore: &Semaphore, count: u32) -> OwnedGuard {
    semaphore
        .try_acquire_for_with(count, SOON, &LockOptions::new())
        .unwrap()
        .expect("so many come free")
}

#[test]
fn confirmed_permits_are_kept_over_a_failover() {
    let group = Group::start();
    let options = "replicas=all&watchdog=20s";
    let held = client(&group, options).semaphore(NAME, LIMIT).unwrap();
    let permit = take(&held, 1);
    let url = format!("{}?{options}", group.url());
    let contenders = Contenders::start(&url, &semaphore(NAME, LIMIT), 2, 3);
    let visits = || {
        let before = contenders.claims().len();
        eventually("they go on", SOON, || {
            contenders.claims().len() > before + 50
        });
    };
    visits();
    let old = group.fail_over();
    let new = group.await_other_than(old);
    visits();
    let mut probe = group.servers[new].probe();
    let added = probe.command_calls("zadd");
    eventually("permits are taken on the new master", SOON, || {
        assert!(permit.is_valid(), "{:?}", permit.loss());
        probe.command_calls("zadd") > added
    });
    permit.verify().unwrap();
    let most = most_at_once(&contenders.stop());
    // The test itself holds one more permit.
    assert!(
        most < u64::from(LIMIT),
        "{most} besides the one that is held"
    );
    permit.unlock().unwrap();
    take(&held, LIMIT).unlock().unwrap();
    assert_eq!(probe.get(NAME).unwrap(), LIMIT.to_string());
}

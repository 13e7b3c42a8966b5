//! A replaced master that does not know of its replacement, and clients that got no message of it.

use crate::scene::{client, connect, take};
use distlock_tests::proxy::{Fault, Plan, Proxy};
use distlock_tests::resp::Request;
use distlock_tests::sentinel::{Group, is_master, keep_a_master};
use distlock_tests::time::within;
use std::sync::Arc;
use std::time::Duration;

/// Passes queries, and cuts every connection that subscribes.
struct Deaf;

impl Plan for Deaf {
    fn fate(&self, request: &mut Request) -> Fault {
        if request.word(0) == "SUBSCRIBE" {
            Fault::Cut
        } else {
            Fault::Pass
        }
    }
}

#[test]
fn lock_inspection_does_not_believe_a_replaced_master() {
    let group = Group::start();
    let deaf: Vec<_> = group
        .sentinels
        .iter()
        .map(|it| Proxy::new(it.port(), Arc::new(Deaf)))
        .collect();
    let ports: Vec<_> = deaf.iter().map(Proxy::port).collect();
    let client_of_old = connect(&format!("{}?watchdog=60s", group.url_of(&ports)));
    let lock = client_of_old.mutex("held").unwrap();
    let guard = take(&lock);
    guard.verify().unwrap();

    let old = group.master();
    let mut zombie = group.servers[old].probe();
    keep_a_master(&group.servers[old]);
    assert_eq!(group.fail_over(), old);
    let new = group.await_other_than(old);
    // As if the new master had never received the lock.
    group.servers[new].probe().command(&["DEL", "held"]);
    let next = take(&client(&group, "watchdog=60s").mutex("held").unwrap());
    assert!(next.fencing_token() > guard.fencing_token());
    assert!(guard.is_valid(), "the loss is not known locally");
    assert!(zombie.exists("held") && is_master(&group.servers[old]));

    let seen = lock.inspect().unwrap().holder.expect("it is held");
    let there = group.servers[new]
        .probe()
        .hgetall("held")
        .into_keys()
        .next();
    assert_eq!(there.as_deref(), Some(seen.owner.as_str()));
    assert!(guard.verify().unwrap_err().is_lost() && !guard.is_valid());
    next.verify().unwrap();
    assert!(
        zombie.exists("held") && is_master(&group.servers[old]),
        "it is still a master"
    );
    next.unlock().unwrap();
}

#[test]
fn hanging_sentinel_does_not_delay_verification() {
    let group = Group::start_with(0, 1);
    let lock = client(&group, "command_timeout=10s").mutex("held").unwrap();
    let guard = take(&lock);
    group.sentinels[0].pause();
    within(Duration::from_secs(1), || guard.verify().unwrap());
    group.sentinels[0].resume();
    guard.unlock().unwrap();
}

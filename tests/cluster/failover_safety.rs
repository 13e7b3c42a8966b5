//! Threads of several processes contend for one lock while its master is killed repeatedly, with
//! the lock held. Each thread reports when it held the lock, and a judge checks that no two did at
//! once.

use distlock_tests::cluster::Cluster;
use distlock_tests::contenders::kills::rounds;
use distlock_tests::time::ms;

#[test]
fn cluster_lock_survives_three_kills_or_is_granted_to_none() {
    rounds(Cluster::start(), 3, ms(1_000));
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn cluster_lock_survives_twenty_kills_or_is_granted_to_none() {
    rounds(Cluster::start(), 20, ms(1_000));
}

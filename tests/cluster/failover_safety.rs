//! Many threads of several processes want one lock while its master is killed, again and again,
//! with it held. Each says when it had the lock, and a judge looks whether two had it at once.

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

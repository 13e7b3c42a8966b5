//! Many threads of several processes want one lock while its master is killed, again and again, with it held. Each says
//! when it had the lock, and a judge looks whether two had it at once.

use distlock_tests::cluster::Cluster;
use distlock_tests::contenders::kills::rounds;
use distlock_tests::time::ms;

#[test]
fn over_three_kills_on_a_cluster_nobody_has_it_until_somebody_can_confirm_it() {
    rounds(Cluster::start(), 3, ms(1_000));
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn nor_over_twenty_on_a_cluster() {
    rounds(Cluster::start(), 20, ms(1_000));
}

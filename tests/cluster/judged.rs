//! Many threads of several processes want one lock while its master is killed, again and again, with it held. Each says
//! when it had the lock, and a judge looks whether two had it at once.

use crate::contenders::kills::{Masters, NAME, await_confirmation, rounds};
use crate::harness::cluster::Cluster;
use crate::harness::time::{ms, retry_if_late};

impl Masters for Cluster {
    fn url(&self) -> String {
        Self::url(self)
    }

    fn master(&self) -> usize {
        self.owner_of(NAME)
    }

    fn kill(&mut self, server: usize) {
        self.node_mut(server).kill();
    }

    fn await_successor(&self, killed: usize) -> usize {
        self.await_other_than(killed, self.slot(NAME))
    }

    /// A replica to each master, which is the master now.
    fn has_spare_replicas(&self) -> bool {
        false
    }

    fn bring_back(&mut self, killed: usize) {
        self.node_mut(killed).restart();
    }

    fn await_replica(&self, master: usize) {
        await_confirmation(self.node(master).probe());
        self.await_listing(master);
    }

    fn await_quiet(&self) {
        self.wait_until_agreed(self.len());
    }
}

#[test]
fn over_three_kills_on_a_cluster_nobody_has_it_until_somebody_can_confirm_it() {
    retry_if_late(|| rounds(Cluster::start(), 3, ms(1_000)));
}

#[test]
#[ignore = "two minutes: `cargo test --all-features --test cluster nor_over_twenty -- --ignored --nocapture` runs it"]
fn nor_over_twenty_on_a_cluster() {
    rounds(Cluster::start(), 20, ms(1_000));
}

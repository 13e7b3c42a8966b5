//! Many threads of several processes want one lock while its master is killed, again and again, with it held. Each says
//! when it had the lock, and a judge looks whether two had it at once.

use crate::contenders::kills::{Masters, await_confirmation, rounds};
use crate::harness::sentinel::Group;
use crate::harness::time::{ms, retry_if_late};

impl Masters for Group {
    fn url(&self) -> String {
        Self::url(self)
    }

    fn master(&self) -> usize {
        Self::master(self)
    }

    fn kill(&mut self, server: usize) {
        self.servers[server].kill();
    }

    fn await_successor(&self, killed: usize) -> usize {
        self.await_other_than(killed)
    }

    fn has_spare_replicas(&self) -> bool {
        true
    }

    fn bring_back(&mut self, killed: usize) {
        let port = self.servers[Self::master(self)].port();
        self.servers[killed].restart_as_replica_of(port);
    }

    fn await_replica(&self, master: usize) {
        await_confirmation(self.servers[master].probe());
    }

    fn await_quiet(&self) {
        Self::await_quiet(self, 2);
    }
}

#[test]
fn over_three_kills_with_the_lock_held_nobody_else_has_it_while_a_guard_is_valid() {
    retry_if_late(|| rounds(Group::start(), 3, ms(1_000)));
}

#[test]
#[ignore = "a minute or two: `cargo test --all-features --test sentinel nor_over_twenty -- --ignored --nocapture` runs it"]
fn nor_over_twenty_kills() {
    rounds(Group::start(), 20, ms(1_000));
}

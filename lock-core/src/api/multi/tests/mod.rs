//! Tests of several locks as one, on in-memory stores with a manual clock.

use super::{MajorityLock, MultiLock};
use crate::backend::Abilities;
use crate::engine::tests::recorded::{Fault, Recorded};
use crate::engine::tests::{SECOND, eventually, sleeping};
use crate::{
    Client, Clock, DistLock, Error, GuardState, Interrupt, LockOptions, LossCause, ManualClock,
    MemberOutcome, Mutex,
};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

mod acquire;
mod guards;
mod holds;
mod members;
mod threads;

/// Three stores, with a client of each store and a lock of each client. The names of the locks
/// differ.
struct Three {
    clock: ManualClock,
    stores: [Recorded; 3],
    clients: [Client; 3],
    locks: [Mutex; 3],
    /// A second client of each store, which stands for another process.
    others: [Client; 3],
}

const NAMES: [&str; 3] = ["a", "b", "c"];

impl Three {
    fn new() -> Self {
        Self::able(Abilities::full())
    }

    /// Makes three stores with these abilities.
    fn able(abilities: Abilities) -> Self {
        let clock = ManualClock::new();
        let stores = [(); 3].map(|()| Recorded::on(&clock).able(abilities));
        let clients = stores.each_ref().map(Recorded::client);
        let others = stores.each_ref().map(Recorded::client);
        let locks = [0, 1, 2].map(|n| clients[n].mutex(NAMES[n]).unwrap());
        Self {
            clock,
            stores,
            clients,
            locks,
            others,
        }
    }

    fn all(&self) -> MultiLock {
        MultiLock::new(&self.locks).unwrap()
    }

    fn majority(&self) -> MajorityLock {
        MajorityLock::new(&self.locks).unwrap()
    }

    /// Returns handles of the second clients for the three locks.
    fn others_handles(&self) -> [Mutex; 3] {
        [0, 1, 2].map(|n| self.others[n].mutex(NAMES[n]).unwrap())
    }

    /// Returns for each lock whether it is held in its store.
    fn held(&self) -> [bool; 3] {
        self.others_handles().map(|lock| lock.is_locked().unwrap())
    }

    fn count(&self, kind: &str) -> [usize; 3] {
        self.stores.each_ref().map(|store| store.count(kind))
    }

    fn all_clients(&self) -> impl Iterator<Item = &Client> {
        self.clients.iter().chain(&self.others)
    }

    /// Returns the number of threads that the clients have started. These threads sleep on the
    /// clock when they are idle.
    fn threads(&self) -> usize {
        self.all_clients().map(|client| client.0.threads()).sum()
    }

    /// Advances the clock in small steps. Before each step, waits until all woken threads have
    /// finished their work.
    fn advance(&self, by: Duration) {
        let is_at_rest = || {
            sleeping(&self.clock) >= self.threads()
                && self
                    .all_clients()
                    .all(|it| it.0.is_at_rest(|| self.clock.sleepers()))
        };
        let end = self.clock.now() + by;
        eventually("all threads are at rest", is_at_rest);
        while self.clock.now() < end {
            self.clock
                .jump((SECOND / 20).min(end.since(self.clock.now())));
            eventually("all threads are at rest", is_at_rest);
        }
    }

    /// Advances the clock in steps until the condition holds. Before each step, waits until one
    /// thread more than the clients' own threads sleeps: the thread that the test has spawned.
    fn until(&self, what: &str, step: Duration, mut is_so: impl FnMut() -> bool) {
        loop {
            let mut is_done = false;
            eventually(what, || {
                is_done = is_so();
                is_done || sleeping(&self.clock) > self.threads()
            });
            if is_done {
                return;
            }
            self.clock.jump(step);
        }
    }

    /// Advances the clock until the thread that the test has spawned sleeps in the local queue for
    /// lock `n`. It must also sleep, because a try is briefly in the queue, too.
    fn until_waiting_for(&self, n: usize) {
        self.until("the thread waits for one lock", SECOND / 1000, || {
            let is_queued = self.clients[n].queue_length(NAMES[n]).unwrap() == 1;
            is_queued && sleeping(&self.clock) > self.threads()
        });
    }
}

const NONE: [bool; 3] = [false; 3];

/// Returns one letter for each member: `d` for done, `b` for busy, `f` for failed, `-` for not
/// tried.
fn letters(error: &Error) -> String {
    let letter = |outcome: &MemberOutcome| match outcome {
        MemberOutcome::Done => 'd',
        MemberOutcome::Busy => 'b',
        MemberOutcome::NotAsked => '-',
        MemberOutcome::Failed(_) => 'f',
    };
    error
        .members()
        .iter()
        .map(|it| letter(it.outcome()))
        .collect()
}

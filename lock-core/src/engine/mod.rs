//! The engine: everything about locking that is the same on every store, written once above [`Backend`].
//!
//! [`acquire`] waits and takes, [`keep`] renews and notices losses, [`release`] gives back. An [`entry`] is what this
//! client knows of one name, a [`tenure`] one stretch of holding it.
//!
//! Locks are taken in this order: an entry's, a tenure's, the timer's or a lane's. None is held while the store is
//! asked, an event is told, or a signal's waiter runs.

mod acquire;
pub(crate) mod entry;
mod keep;
mod release;
pub(crate) mod tenure;
#[cfg(test)]
mod tests;

use crate::backend::{Abilities, Backend, Closing, Failure, TenureId};
use crate::clock::{Clock, Moment};
use crate::config::{Config, TokenPolicy};
use crate::error::Error;
use crate::event::Events;
use crate::lease::Lease;
use crate::name::LockName;
use crate::owner::{ClientId, OwnerId};
use crate::watchdog::Timer;
use crate::watchdog::lane::{Cleanup, Lanes};
use entry::{Entry, Registry};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What all handles and guards of a client share.
pub(crate) struct Engine {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) abilities: Abilities,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) client: ClientId,
    events: Events,
    settings: Settings,
    next_owner: AtomicU64,
    registry: Arc<Registry>,
    timer: Arc<Timer>,
    lanes: Arc<Lanes>,
    this: Weak<Self>,
    /// The process that made it. A forked child has our memory, but neither our threads nor a right to our locks.
    process: u32,
}

/// The settings that the engine itself reads.
struct Settings {
    lease: Lease,
    outage_limit: Duration,
    command_timeout: Duration,
    tokens: bool,
}

impl Engine {
    pub(crate) fn new(
        config: &Config,
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        client: ClientId,
        events: Events,
    ) -> Arc<Self> {
        let abilities = backend.abilities();
        let settings = Settings {
            lease: Lease::watched(config.watchdog()),
            outage_limit: config.outage_limit(),
            command_timeout: config.command_timeout(),
            tokens: abilities.tokens && config.tokens() != TokenPolicy::Off,
        };
        let lanes = Lanes::new(Arc::clone(&backend), Arc::clone(&clock), settings.command_timeout);
        Arc::new_cyclic(|this| Self {
            timer: Arc::new(Timer::new(Arc::clone(&clock), Weak::clone(this))),
            backend,
            abilities,
            clock,
            client,
            events,
            settings,
            next_owner: AtomicU64::new(1),
            registry: Arc::default(),
            lanes: Arc::new(lanes),
            this: Weak::clone(this),
            process: std::process::id(),
        })
    }

    /// What we know of this name.
    pub(crate) fn entry(&self, name: &LockName) -> Arc<Entry> {
        self.registry.entry(name)
    }

    /// Whether everybody who is to do something at this moment has done it. For tests on a manual clock.
    #[cfg(test)]
    pub(crate) fn is_at_rest(&self, sleepers: impl Fn() -> Vec<Moment>) -> bool {
        let parked = |threads| {
            let sleepers = sleepers();
            sleepers.len() >= threads && sleepers.iter().all(|until| *until > self.clock.now())
        };
        let timers = self.timer.threads();
        let (lanes, is_due) = self.lanes.threads();
        // The timer's thread gives work to the lanes, so it is looked at before them.
        parked(timers) && !is_due && !self.lanes.threads().1 && parked(timers + lanes)
    }

    /// How many names are in use.
    pub(crate) fn names_in_use(&self) -> usize {
        self.registry.len()
    }

    /// How many threads queue for this name.
    pub(crate) fn waiting(&self, name: &LockName) -> usize {
        self.registry.find(name).map_or(0, |entry| entry.waiting())
    }

    /// An owner that never was.
    fn new_owner(&self) -> OwnerId {
        OwnerId::new(self.client, self.next_owner.fetch_add(1, Ordering::Relaxed))
    }

    /// The moment by which a command that is sent now must be answered.
    pub(crate) fn command_deadline(&self) -> Moment {
        self.clock.now() + self.settings.command_timeout
    }

    /// Asks the store, unless this is a forked child: its copy of our connections must not be touched, because the
    /// parent reads the answers.
    pub(crate) fn ask<T>(
        &self,
        question: impl FnOnce(&dyn Backend) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if self.is_forked() {
            return Err(Failure::NotSent(Error::misuse(
                "this process was forked from the one that made the client: make a client of its own after the fork",
            )));
        }
        ask(|| question(self.backend.as_ref()))
    }

    /// Whether this is a forked child of the process that made the client.
    pub(crate) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    /// Sees to it that what `tenure` may have in the store ends, by release or by itself.
    fn clean_up(&self, tenure: TenureId, closing: Closing) {
        let now = self.clock.now();
        let until = now + tenure.lease.duration() + self.settings.command_timeout;
        // If not even a thread can be had, the lease must do.
        let _started = self.lanes.clean_up(&self.this, Cleanup::new(tenure, closing, now, until));
    }
}

/// Calls a backend; a panic in it is a failure with unknown outcome, not the end of the thread that renews.
pub(crate) fn ask<T>(question: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(question)).unwrap_or_else(|_| {
        Err(Failure::Unknown(Error::unavailable("the store's backend panicked; see its message")))
    })
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.is_forked() {
            return; // Our threads, and whoever held a lock of ours when the process was forked, are not here.
        }
        // Nobody can reach what is still held any more: it was detached and never unlocked. Give it back.
        for entry in self.timer.stop() {
            let current = entry.lock().current().map(Arc::clone);
            if let Some(tenure) =
                current.filter(|tenure| !self.is_forked() && self.give_back(tenure))
            {
                let lease = tenure.lock().lease;
                self.clean_up(tenure.id(lease), tenure.closing());
            }
        }
        self.lanes.stop();
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("id", &self.client)
            .field("backend", &self.backend)
            .field("names_in_use", &self.names_in_use())
            .finish_non_exhaustive()
    }
}

//! The engine: everything about locking that is the same on every store, written once above [`Backend`].
//!
//! [`acquire`] waits and takes, [`keep`] renews and notices losses, [`release`] gives back, [`unheard`] without waiting,
//! [`lack of acknowledgements`] sees to what replicas did not confirm, [`recheck`] verifies all at once. An [`entry`] is what this
//! client knows of one name, a [`acquisition`] one stretch of holding it. [`handoff`] passes it on from thread to thread,
//! and [`turns`] says when other clients go first.
//!
//! Locks are taken in this order: an entry's, an acquisition's, the timer's or a lane's. None is held while the store is
//! asked, an event is told, or a signal's waiter runs.

mod acquire;
pub(crate) mod acquisition;
mod alive;
pub(crate) mod entry;
mod handoff;
mod insufficient_replicas;
mod keep;
mod recheck;
mod release;
#[cfg(test)]
pub(crate) mod tests;
mod turns;
mod unheard;

use crate::backend::{Abilities, AcquisitionId, Backend, Failure, ReleaseOptions};
use crate::clock::{Clock, Moment};
use crate::config::{Config, TokenPolicy};
use crate::error::Error;
use crate::event::Events;
use crate::lease::{Lease, LeaseTime};
use crate::name::LockName;
use crate::owner::{ClientId, OwnerId};
use crate::process::Origin;
use crate::replication::Replication;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::mutant;
use crate::watchdog::Timer;
use crate::watchdog::lane::Lanes;
use acquisition::Acquisition;
pub(crate) use alive::Alive;
use entry::{Entry, Registry};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// What a client does: shared by its handles and guards, as one that is [`Alive`], and by the threads of its watchdog.
pub(crate) struct Engine {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) abilities: Abilities,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) client: ClientId,
    events: Events,
    settings: Settings,
    next_owner: AtomicU64,
    registry: Arc<Registry>,
    /// Holds without a guard, oldest first. They keep their entry alive until their thread ends them.
    detached: Mutex<Vec<Detached>>,
    timer: Arc<Timer>,
    lanes: Arc<Lanes>,
    this: Weak<Self>,
    /// The lock of the last release whose answer nobody waited for.
    unheard: Mutex<Option<LockName>>,
    origin: Arc<Origin>,
}

/// A hold without a guard, and the thread that may end it.
struct Detached {
    thread: u64,
    entry: Arc<Entry>,
    acquisition: Arc<Acquisition>,
    /// The hold on several locks that this is a part of.
    whole: Option<Whole>,
}

/// A hold on several locks that was detached as one.
#[derive(Clone, Debug)]
pub(crate) struct Whole {
    /// Which locks those are: the same for whatever is made of the same ones.
    pub(crate) of: Arc<str>,
    /// Larger than that of every one detached before.
    pub(crate) number: u64,
}

/// The settings that the engine itself reads.
struct Settings {
    lease: Lease,
    lease_time: LeaseTime,
    outage_limit: Duration,
    hand_off: Duration,
    command_timeout: Duration,
    tokens: bool,
    replication: Replication,
}

impl Engine {
    pub(crate) fn open(
        config: &Config,
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        client: ClientId,
        events: Events,
    ) -> Result<Arc<Alive>, Error> {
        let abilities = backend.abilities();
        insufficient_replicas::refuse(&config.replication(), &abilities)?;
        let watched = Lease::watched(config.watchdog());
        let lease = config.lease().map_or(watched, Lease::Fixed);
        let settings = Settings {
            lease,
            lease_time: lease.time()?,
            outage_limit: config.outage_limit(),
            hand_off: config.hand_off(),
            command_timeout: config.command_timeout(),
            tokens: abilities.tokens && config.tokens() != TokenPolicy::Off,
            replication: config.replication(),
        };
        let lanes = Lanes::new(Arc::clone(&backend), Arc::clone(&clock), settings.command_timeout);
        let origin = Arc::new(Origin::here());
        let engine = Arc::new_cyclic(|this| Self {
            timer: Arc::new(Timer::new(Arc::clone(&clock), Weak::clone(this))),
            backend,
            abilities,
            clock,
            client,
            events,
            settings,
            next_owner: AtomicU64::new(1),
            registry: Arc::new(Registry::new(Arc::clone(&origin))),
            detached: Mutex::default(),
            lanes: Arc::new(lanes),
            this: Weak::clone(this),
            unheard: Mutex::default(),
            origin,
        });
        Ok(Arc::new(Alive(engine)))
    }

    /// What we know of this name.
    ///
    /// # Errors
    ///
    /// In a forked child.
    pub(crate) fn entry(&self, name: &LockName) -> Result<Arc<Entry>, Error> {
        self.registry.entry(name).ok_or_else(|| forked().on(name))
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

    /// How many threads look after what is held. For tests on a manual clock.
    #[cfg(test)]
    pub(crate) fn threads(&self) -> usize {
        self.timer.threads() + self.lanes.threads().0
    }

    /// Waits until nothing is in doubt any more.
    pub(crate) fn settle(&self, wait: Duration) -> Result<(), Error> {
        self.refuse_if_forked()?;
        let until = self.clock.now() + wait;
        self.gather_unheard(until.min(self.command_deadline()));
        match self.lanes.settle(until) {
            0 => Ok(()),
            doubts => Err(Error::unavailable(format!(
                "{doubts} outcomes are still in doubt after {wait:.1?}: they are tried on in the background, and leases end whatever is left"
            ))),
        }
    }

    /// Whether the store answers within `wait`.
    pub(crate) fn ping(&self, wait: Duration) -> Result<(), Error> {
        let name = LockName::new("distlock:ping")?;
        let by = self.clock.now() + wait;
        let answer = self.ask(|backend| backend.inspect(&name, by));
        answer.map(drop).map_err(Failure::into_error)
    }

    /// How many names are in use.
    pub(crate) fn names_in_use(&self) -> usize {
        self.registry.len()
    }

    /// How many threads queue for this name.
    pub(crate) fn waiting(&self, name: &LockName) -> usize {
        self.registry.find(name).map_or(0, |entry| entry.waiting())
    }

    /// Leaves a hold with the calling thread, without a guard; by itself, or as a part of a `whole`.
    pub(crate) fn detach(
        &self,
        thread: u64,
        entry: &Arc<Entry>,
        acquisition: &Arc<Acquisition>,
        whole: Option<Whole>,
    ) {
        if self.is_forked() {
            return; // There is nothing that could be unlocked.
        }
        let (entry, acquisition) = (Arc::clone(entry), Arc::clone(acquisition));
        let hold = Detached { thread, entry, acquisition, whole };
        self.detached.lock().push(hold);
    }

    /// Forgets the holds on these holdings: their threads have ended, and no other can end them.
    fn forget_detached(&self, acquisitions: &[Arc<Acquisition>]) {
        let is_left = |it: &mut Detached| {
            acquisitions.iter().any(|acquisition| Arc::ptr_eq(&it.acquisition, acquisition))
        };
        let left_behind: Vec<_> = self.detached.lock().extract_if(.., is_left).collect();
        drop(left_behind); // outside the lock: an entry's end takes others
    }

    /// This thread's newest hold without a guard: of those by themselves, or the part of the `whole` of that number.
    /// Not to be asked in a forked child.
    pub(crate) fn take_detached(
        &self,
        thread: u64,
        entry: &Arc<Entry>,
        whole: Option<u64>,
    ) -> Option<Arc<Acquisition>> {
        let mut detached = self.detached.lock();
        let is_it = |it: &Detached| {
            (it.thread == thread || mutant("unlock_ends_anothers_detached_hold"))
                && Arc::ptr_eq(&it.entry, entry)
                && it.whole.as_ref().map(|whole| whole.number) == whole
        };
        let at = detached.iter().rposition(is_it)?;
        let hold = detached.remove(at);
        drop(detached);
        Some(hold.acquisition)
    }

    /// The number of the newest whole of these locks of which this thread has a part here. Not to be asked in a forked
    /// child.
    pub(crate) fn newest_whole(&self, thread: u64, entry: &Arc<Entry>, of: &str) -> Option<u64> {
        let detached = self.detached.lock();
        let ours =
            detached.iter().filter(|it| it.thread == thread && Arc::ptr_eq(&it.entry, entry));
        let wholes = ours.filter_map(|it| it.whole.as_ref().filter(|whole| *whole.of == *of));
        wholes.map(|whole| whole.number).max()
    }

    /// For how long a wait without an end puts up with a store that cannot be asked.
    pub(crate) fn outage_limit(&self) -> Duration {
        self.settings.outage_limit
    }

    /// How many replicas must confirm a lock where nothing else is asked for.
    pub(crate) fn replication(&self) -> Replication {
        self.settings.replication
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
        self.refuse_if_forked().map_err(Failure::NotSent)?;
        ask(|| question(self.backend.as_ref()))
    }

    /// Refuses to do anything in a forked child.
    pub(crate) fn refuse_if_forked(&self) -> Result<(), Error> {
        if self.is_forked() { Err(forked()) } else { Ok(()) }
    }

    /// Whether this is a forked child of the process that made the client.
    pub(crate) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// Sees to it that what `acquisition` may have in the store ends, by release or by itself.
    fn clean_up(&self, acquisition: AcquisitionId, closing: ReleaseOptions) {
        if self.is_forked() {
            return;
        }
        self.lanes.clean_up(&self.this, acquisition, closing);
    }
}

/// The error of everything that is done in a forked child.
#[cold]
fn forked() -> Error {
    Error::misuse(
        "this process was forked from the one that made the client, which alone holds its locks: make another client in the child, and fork before the program has threads",
    )
}

/// Calls a backend; a panic in it is a failure with unknown outcome, not the end of the thread that renews.
pub(crate) fn ask<T>(question: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(question)).unwrap_or_else(|_| {
        Err(Failure::Unknown(Error::unavailable("the store's backend panicked; see its message")))
    })
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

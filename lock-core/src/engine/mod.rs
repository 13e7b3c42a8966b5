//! The engine: the behaviour of locks that all stores share, written once above [`Backend`].
//!
//! | module | contents |
//! |---|---|
//! | [`handle`] | the shared handle of an engine, and the end of a client |
//! | [`wait`] | waiting for a lock and acquiring it |
//! | [`hold`] | validity, verification, loss and release of a held lock |
//! | [`renew`] | the timer, and the threads that send renewals and cleanups |
//! | [`replicas`] | renewals that too few replicas confirmed |
//! | [`queue`] | the local lock of a name: holder, waiters, hand-off |
//! | [`timer_wheel`] | the data structure that finds due timers |
//! | [`acquisition`] | the state of one stretch of holding |
//! | [`handoff_chain`] | the acquisitions that follow each other on one grant |
//! | [`minimum_hold`] | a lock that stays busy for a time, even after its release |
//! | [`holder`] | the thread or guard that holds a lock |
//! | [`skipped_time`] | time that may have passed while the clock stood still |
//!
//! Mutexes are locked in this order: the local lock, the acquisition, then the timer or a worker.
//! The registry's mutex comes last: no other mutex is locked under it. No mutex is held during a
//! request to the store or while an event is emitted. A waiter's signal may be raised under a
//! mutex, and loss listeners are called under the acquisition's mutex.

pub(crate) mod acquisition;
mod handle;
mod handoff_chain;
mod hold;
pub(crate) mod holder;
mod minimum_hold;
pub(crate) mod queue;
mod renew;
mod replicas;
mod skipped_time;
#[cfg(test)]
pub(crate) mod tests;
mod timer_wheel;
mod wait;

use crate::backend::diagnosis::Finding;
use crate::backend::owner::{ClientId, OwnerId};
use crate::backend::replication::Replication;
use crate::backend::{
    Abilities, AcquisitionId, Backend, Failure, LockInfo, LockPage, NO_LISTING, PagePosition,
    ReleaseOptions, call_backend,
};
use crate::config::{Config, LockOrder, TokenPolicy};
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::observe::event::{Event, WarningKind};
use crate::observe::event_queue::Events;
use crate::observe::metrics::Metrics;
use crate::observe::notices::Notices;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::threads::process::Origin;
use crate::time::lease::{Lease, LeaseTime};
use crate::time::{Clock, Moment};
use acquisition::Acquisition;
pub(crate) use handle::EngineHandle;
pub(crate) use hold::detached::CompositeHold;
use hold::detached::DetachedHolds;
use hold::recheck::Recheck;
use queue::{LocalLock, Registry, Scope};
use renew::{RenewalHandler, Timer, Workers};
use skipped_time::SkippedTime;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
pub(crate) use wait::acquire;

/// The engine of a client. Handles and guards share it through an [`EngineHandle`]; the client's
/// threads share it directly.
pub(crate) struct Engine {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) abilities: Abilities,
    pub(crate) clock: Arc<dyn Clock>,
    skipped: SkippedTime,
    /// The background task that verifies held locks when the store may have lost them, or the clock
    /// may have skipped time.
    recheck: OnceLock<Arc<Recheck>>,
    pub(crate) client: ClientId,
    events: Events,
    settings: Settings,
    next_owner: AtomicU64,
    next_scope: AtomicU64,
    registry: Arc<Registry>,
    /// Holds without a guard, by lock, oldest first. An entry keeps its acquisition alive until its
    /// thread ends the hold.
    detached: Mutex<DetachedHolds>,
    timer: Arc<Timer>,
    workers: Arc<Workers>,
    this: Weak<Self>,
    /// The lock of the last release whose answer no caller waits for.
    async_release: Mutex<Option<LockName>>,
    /// The limits of semaphores in the store that were last reported, by name and by the limit that
    /// the caller requested.
    other_limits: Mutex<HashMap<(LockName, u32), u32>>,
    /// True once a refusal was reported.
    has_reported_refusal: AtomicBool,
    origin: Arc<Origin>,
}

/// The largest number of entries in `other_limits`, which bounds a client's memory. With more
/// semaphores, some limits are reported again.
const OTHER_LIMITS: usize = 1_000;

fn refuse_kind(abilities: &Abilities, what: &str) -> Result<(), Error> {
    if abilities.all_kinds {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unsupported,
        format!("this store, or its wire format, has no {what}: it has mutexes only"),
    ))
}

/// Refuses fair mutexes, unless the store queues all waiters or has all kinds of locks.
fn refuse_fair(abilities: &Abilities, what: &str) -> Result<(), Error> {
    match abilities.queues_waiters {
        true => Ok(()),
        false => refuse_kind(abilities, what),
    }
}

/// The settings that the engine itself reads. The settings of the local queues are in the registry.
struct Settings {
    lease: Lease,
    lease_time: LeaseTime,
    outage_limit: Duration,
    command_timeout: Duration,
    tokens: bool,
    replication: Replication,
    /// The label that describes this client as a holder.
    label: Option<Arc<str>>,
    order: LockOrder,
    fair_presence: Duration,
}

impl Engine {
    pub(crate) fn open(
        config: &Config,
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        client: ClientId,
        events: Events,
    ) -> Result<Arc<EngineHandle>, Error> {
        let abilities = backend.abilities();
        Self::refuse_unsupported(config, &abilities)?;
        let watched = Lease::watched(config.watchdog());
        let lease = config.lease().map_or(watched, Lease::Fixed);
        let settings = Settings {
            lease,
            lease_time: lease.time()?,
            outage_limit: config.outage_limit(),
            command_timeout: config.command_timeout(),
            tokens: abilities.tokens && config.tokens() != TokenPolicy::Off,
            replication: config.replication(),
            label: config.owner().map(|owner| owner.as_ref().into()),
            order: config.order(),
            fair_presence: config.fair_presence(),
        };
        let origin = Arc::new(Origin::here());
        let engine = Arc::new_cyclic(|this: &Weak<Self>| {
            let handler = || Weak::clone(this) as Weak<dyn RenewalHandler>;
            let (store, timeout) = (Arc::clone(&backend), settings.command_timeout);
            let label = settings.label.clone();
            let workers = Workers::new(store, Arc::clone(&clock), timeout, label, handler());
            let workers = Arc::new(workers);
            let timer = Timer::new(Arc::clone(&clock), Arc::downgrade(&workers), handler());
            Self {
                backend,
                abilities,
                skipped: SkippedTime::new(Arc::clone(&clock)),
                recheck: OnceLock::new(),
                clock,
                client,
                events,
                settings,
                next_owner: AtomicU64::new(1),
                next_scope: AtomicU64::new(1),
                registry: Arc::new(Registry::new(Arc::clone(&origin), config.hand_off())),
                detached: Mutex::default(),
                timer: Arc::new(timer),
                workers,
                this: Weak::clone(this),
                async_release: Mutex::default(),
                other_limits: Mutex::default(),
                has_reported_refusal: AtomicBool::new(false),
                origin,
            }
        });
        Ok(Arc::new(EngineHandle(engine)))
    }

    /// Refuses settings that a store with these abilities does not support.
    pub(crate) fn refuse_unsupported(config: &Config, abilities: &Abilities) -> Result<(), Error> {
        if config.order() == LockOrder::Fair {
            refuse_fair(abilities, "fair locks, as `order=fair` needs them")?;
        }
        replicas::refuse_unsupported(&config.replication(), abilities)
    }

    /// Returns the local lock of this name and scope, creating it if needed.
    ///
    /// # Errors
    ///
    /// In a forked child.
    pub(crate) fn local_lock(
        &self,
        name: &LockName,
        scope: Scope,
    ) -> Result<Arc<LocalLock>, Error> {
        self.registry
            .get(name, scope)
            .ok_or_else(|| forked().on(name))
    }

    /// Returns the local lock of this name and scope, if it is in use.
    pub(crate) fn find_local_lock(&self, name: &LockName, scope: Scope) -> Option<Arc<LocalLock>> {
        self.registry.find(name, scope)
    }

    /// Returns a new scope for a single guard.
    pub(crate) fn new_scope(&self) -> Scope {
        Scope::guard(self.next_scope.fetch_add(1, Ordering::Relaxed))
    }

    /// Verifies or renews held locks, or shortens their validity, from now on whenever the backend
    /// requests it.
    pub(crate) fn verify_on(&self, notices: &Notices) {
        let _first = self.recheck.set(Recheck::start_on(notices, self));
        let engine = Weak::clone(&self.this);
        notices.on_change(Arc::new(move |names| {
            if let Some(engine) = engine.upgrade() {
                engine.renew_now(names);
            }
        }));
        let engine = Weak::clone(&self.this);
        notices.on_replica_lead(Arc::new(move || {
            if let Some(engine) = engine.upgrade() {
                engine.shorten_for_replicas();
            }
        }));
    }

    /// Returns every lock that this client holds or is releasing, with its acquisition.
    fn held(&self) -> Vec<(Arc<LocalLock>, Arc<Acquisition>)> {
        let locks = self.registry.all().into_iter();
        let held = locks.filter_map(|lock| {
            let acquisition = lock.lock().current().map(Arc::clone)?;
            Some((lock, acquisition))
        });
        held.collect()
    }

    /// Waits until the cleanup of each request with unknown outcome has ended, for at most `wait`.
    pub(crate) fn settle(&self, wait: Duration) -> Result<(), Error> {
        self.refuse_if_forked()?;
        let until = self.clock.now() + wait;
        self.collect_async_releases(until.min(self.command_deadline()));
        match self.workers.settle(until) {
            0 => Ok(()),
            pending => Err(Error::unavailable(format!(
                "{pending} outcomes are still unknown after {wait:.1?}: the requests are repeated \
                 in the background, and what they left ends with its lease"
            ))),
        }
    }

    /// Queries the store, to check that it answers within `wait`.
    pub(crate) fn ping(&self, wait: Duration) -> Result<(), Error> {
        let name = LockName::new("distlock:ping")?;
        let by = self.clock.now() + wait;
        let answer = call_backend(|| self.store()?.inspect(&name, by));
        answer.map(drop).map_err(Failure::into_error)
    }

    /// Queries the store's settings and state, and returns the findings that matter for locks.
    pub(crate) fn diagnose(&self, wait: Duration) -> Result<Vec<Finding>, Error> {
        let by = self.clock.now() + wait;
        let findings = call_backend(|| match self.store()?.admin() {
            Some(admin) => admin.diagnose(by),
            None => Ok(Vec::new()),
        });
        findings.map_err(Failure::into_error)
    }

    /// Queries the state of these locks. The results are in the order of `names`.
    pub(crate) fn inspect_all(&self, names: &[LockName]) -> Vec<Result<LockInfo, Error>> {
        let by = self.command_deadline();
        let infos = call_backend(|| Ok(self.store()?.inspect_many(names, by)));
        let infos = infos.unwrap_or_else(|failure| vec![Err(failure); names.len()]);
        let named = infos.into_iter().zip(names);
        named
            .map(|(info, name)| info.map_err(|it| it.into_error().on(name)))
            .collect()
    }

    /// Queries one page of the locks that are held.
    pub(crate) fn list(&self, pattern: &str, from: &PagePosition) -> Result<LockPage, Error> {
        let by = self.command_deadline();
        call_backend(|| {
            self.store()?
                .require_admin(NO_LISTING)?
                .list(pattern, from, by)
        })
        .map_err(Failure::into_error)
    }

    /// Returns the metrics, which also count some things that no event reports.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.events.metrics
    }

    /// Returns how many names are in use, counted once for each scope.
    pub(crate) fn names_in_use(&self) -> usize {
        self.registry.len()
    }

    /// Returns how many threads queue for this name.
    pub(crate) fn waiting(&self, name: &LockName) -> usize {
        if name.profile().hands_off {
            return self
                .registry
                .find(name, Scope::CLIENT)
                .map_or(0, |lock| lock.waiting());
        }
        self.registry
            .apart(name)
            .iter()
            .map(|lock| lock.waiting())
            .sum()
    }

    /// Returns for how long a wait without a deadline tolerates an unavailable store.
    pub(crate) fn outage_limit(&self) -> Duration {
        self.settings.outage_limit
    }

    /// Returns the replication policy for requests that set none.
    pub(crate) fn replication(&self) -> Replication {
        self.settings.replication
    }

    /// Emits an event that the semaphore has `stored` permits instead of `asked`. Emits it once for
    /// each `asked` number, until the stored number changes.
    pub(in crate::engine) fn tell_other_limit(&self, name: &LockName, asked: u32, stored: u32) {
        let key = (name.plain().into_owned(), asked);
        let mut told = self.other_limits.lock();
        if told.len() >= OTHER_LIMITS && !told.contains_key(&key) {
            // Evict one entry; its event may then repeat. After clearing the map, all events would
            // repeat.
            let any = told.keys().next().cloned();
            any.map(|any| told.remove(&any));
        }
        let is_known = told.insert(key, stored) == Some(stored);
        drop(told);
        if !is_known {
            self.events.emit(|| Event::LimitDiffers {
                lock: name.clone(),
                asked,
                stored,
            });
        }
    }

    /// Emits an event that a campaign's wait for the lock failed. The campaign continues.
    pub(crate) fn tell_campaign_failed(&self, name: &LockName, error: Error) {
        self.events.emit(|| Event::CampaignFailed {
            lock: name.clone(),
            error: error.on(name),
        });
    }

    /// Refuses a kind of lock other than the mutex, if the store has only mutexes.
    pub(crate) fn refuse_kind(&self, what: &str) -> Result<(), Error> {
        refuse_kind(&self.abilities, what)
    }

    /// Refuses a fair mutex, if this store has none.
    pub(crate) fn refuse_fair(&self) -> Result<(), Error> {
        refuse_fair(&self.abilities, "fair locks")
    }

    /// Returns whether the settings make plain mutexes and semaphores fair.
    pub(crate) fn is_fair(&self) -> bool {
        self.settings.order == LockOrder::Fair
    }

    /// Returns an owner ID that was never used.
    fn new_owner(&self) -> OwnerId {
        OwnerId::new(self.client, self.next_owner.fetch_add(1, Ordering::Relaxed))
    }

    /// Emits a warning for the first call of this client that fails with a configuration error.
    /// Such an error, as with wrong credentials, lasts until a setting or a right is changed.
    pub(crate) fn report_refusal(&self, error: &Error) {
        if error.is_configuration() && !self.has_reported_refusal.swap(true, Ordering::Relaxed) {
            self.events.emit(|| Event::Warning {
                kind: WarningKind::Refused,
                message: error.to_string(),
            });
        }
    }

    /// Sets a minimum hold: the store keeps the lock busy for this time from its grant on, even
    /// after its release.
    pub(crate) fn keep(&self, acquisition: &Acquisition, time: LeaseTime) {
        acquisition.keep(time, || self.new_owner().of_minimum_hold());
    }

    /// Returns the moment by which a command that is sent now must be answered.
    pub(crate) fn command_deadline(&self) -> Moment {
        self.clock.now() + self.settings.command_timeout
    }

    /// Returns the longest time that one request may take.
    pub(crate) fn command_timeout(&self) -> Duration {
        self.settings.command_timeout
    }

    /// Returns the store. In a forked child returns an error, because the parent reads the answers
    /// on the shared connections.
    pub(crate) fn store(&self) -> Result<&dyn Backend, Failure> {
        self.refuse_if_forked().map_err(Failure::NotSent)?;
        Ok(self.backend.as_ref())
    }

    /// Returns whether the waiters for this lock are queued in the store.
    pub(crate) fn queues(&self, name: &LockName) -> bool {
        self.abilities.queues_waiters || name.profile().queued_in_store
    }

    /// Returns an error in a forked child.
    pub(crate) fn refuse_if_forked(&self) -> Result<(), Error> {
        if self.is_forked() {
            Err(forked())
        } else {
            Ok(())
        }
    }

    /// Returns whether this process is a forked child of the process that made the client.
    pub(crate) fn is_forked(&self) -> bool {
        self.origin.is_elsewhere()
    }

    /// Queues the release of an acquisition that may exist in the store.
    fn clean_up(&self, (acquisition, options): (AcquisitionId, ReleaseOptions)) {
        if self.is_forked() {
            return;
        }
        let node = self.workers.renewal_node(&acquisition.name);
        self.workers.clean_up(node, acquisition, options);
    }
}

/// Returns the error of every call in a forked child.
#[cold]
fn forked() -> Error {
    Error::misuse(
        "this process was forked from the one that made the client, which alone holds its locks: \
         make another client in the child, and fork before the program has threads",
    )
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

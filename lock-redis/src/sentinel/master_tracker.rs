//! [`MasterTracker`]: the server that is master now, and the change to another one.
//!
//! Each master has a number and a [`Node`] of its own. When the tracker follows another server that
//! the sentinels name, new requests go to that server, requests under way on the old node fail at
//! once, and waiters are subscribed on the new node and woken. Replies of an old master do not
//! count: see [`SentinelBackend`](super::SentinelBackend).

use super::agreement::Agreement;
use super::diagnosis;
use super::recent_releases::RecentReleases;
use super::sentinel_set::{PresentMaster, SentinelSet};
use super::succession::{Claim, Succession};
use super::watcher_signal::WatcherSignal;
use crate::connection::history::Noted;
use crate::connection::single_flight::{
    Flight, FlightLeader, FlightResult as Outcome, SingleFlight,
};
use crate::connection::{Address, ReplicaCount};
use crate::node::{Granted, Node, NodeSettings, WatchRegistry, WeakNode};
use lock_core::backend::{AcquisitionId, Failure, ReleaseOptions, no_thread};
use lock_core::{Error, Finding, Moment};
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The time for which a failed request, or the confirmation of a read, waits for the sentinels if a
/// master is known, because the sentinels may be down while the master is up.
const PATIENCE: Duration = Duration::from_secs(1);

/// The first pause before failing requests query the sentinels again, so that one failing request
/// queries for all. The pause doubles with each query that leads to no other master. After a new
/// master, or after a time without such queries, the first pause is used again.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause before failing requests query the sentinels again, so that a failover is
/// noticed within a fraction of a lease.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The time for which the number of replicas is still counted after its last use, so that an idle
/// client sends nothing. Clients with `replicas=all` use the number for each lock.
const COUNTED: Duration = Duration::from_secs(5);

/// A master, from the failover that promoted it to the next failover.
pub(super) struct Master {
    pub(super) number: u64,
    pub(super) node: Node,
    address: Address,
    epoch: u64,
    /// True if the server has ever answered.
    has_answered: AtomicBool,
}

/// The master of a set of sentinels; see the [module](self).
pub struct MasterTracker {
    this: Weak<Self>,
    sentinel_set: SentinelSet,
    pub(super) settings: NodeSettings,
    pub(super) watches: WatchRegistry,
    recent: RecentReleases,
    /// The number of the last master on which recent releases were repeated. Set by the watcher;
    /// reset to 0 by any thread if the releases must be repeated once more.
    released_on: AtomicU64,
    state: Mutex<State>,
    /// The number of the present master; 0 before the first. Written while `state` is locked, and
    /// read without that lock.
    number: AtomicU64,
    /// Concurrent queries of the sentinels share one query.
    pub(super) asking: SingleFlight,
    /// The number of messages with a new master that came before the last query of the sentinels.
    settled: AtomicU64,
    pub(super) signal_to_watcher: Arc<WatcherSignal>,
    pace: Mutex<Pace>,
    /// The time at which a request last needed the number of replicas, in nanoseconds; 0: never.
    counted: AtomicU64,
    /// The time at which a master last answered, in nanoseconds.
    heard: AtomicU64,
    pub(super) granted: Granted,
    /// True if the sentinels name a server that is not followed yet. Written while `state` is
    /// locked.
    pub(super) has_stranger: AtomicBool,
}

/// The end of the last query of the sentinels, and the pause before failing requests query them
/// again.
#[derive(Clone, Copy)]
struct Pace {
    asked: Moment,
    pause: Duration,
}

#[derive(Default)]
struct State {
    present: Option<Arc<Master>>,
    /// The last known position in the data history of a former master, and the time at which it was
    /// read.
    former: Option<(Noted, Moment)>,
    replicas: Option<u32>,
    /// True if the sentinels list a replica that they have not reached yet.
    has_unheard: bool,
    succession: Succession,
}

impl MasterTracker {
    pub(super) fn new(
        sentinel_set: SentinelSet,
        settings: NodeSettings,
        signal_to_watcher: Arc<WatcherSignal>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            sentinel_set,
            settings,
            watches: WatchRegistry::default(),
            recent: RecentReleases::default(),
            released_on: AtomicU64::new(0),
            state: Mutex::default(),
            number: AtomicU64::new(0),
            asking: SingleFlight::default(),
            settled: AtomicU64::new(0),
            signal_to_watcher,
            pace: Mutex::new(Pace {
                asked: Moment::from_nanos(0),
                pause: Duration::ZERO,
            }),
            counted: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            granted: Granted::default(),
            has_stranger: AtomicBool::new(false),
        })
    }

    pub(super) fn now(&self) -> Moment {
        self.settings.clock().now()
    }

    /// Records that the master has answered.
    pub(super) fn note_heard(&self, master: &Master) {
        master.has_answered.store(true, Ordering::Relaxed);
        self.heard
            .fetch_max(self.now().as_nanos(), Ordering::Relaxed);
    }

    /// Returns the number of the present master.
    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::SeqCst)
    }

    /// Returns whether this master is still the present one.
    pub(super) fn is_present(&self, master: &Master) -> bool {
        self.number() == master.number
    }

    /// Returns the master, if one is known.
    pub(super) fn known(&self) -> Option<Arc<Master>> {
        self.state.lock().present.clone()
    }

    /// Returns the master, if one is known and no message has named another one since the last
    /// query of the sentinels.
    fn undisputed(&self) -> Option<Arc<Master>> {
        let is_settled =
            self.signal_to_watcher.announcements() == self.settled.load(Ordering::SeqCst);
        self.known().filter(|_| is_settled)
    }

    /// Returns whether this node is the master, no message has named another one since the last
    /// query of the sentinels, and they name no server that is not followed yet.
    pub(super) fn is_undisputed(&self, node: &WeakNode) -> bool {
        !self.has_stranger.load(Ordering::SeqCst)
            && self
                .undisputed()
                .is_some_and(|master| node.is(&master.node))
    }

    /// Returns the master. Queries the sentinels, until `by`, if no master is known yet, or a
    /// message has named another one. If none answers, returns the known master.
    pub(super) fn present(self: &Arc<Self>, by: Moment) -> Result<Arc<Master>, Failure> {
        loop {
            if let Some(master) = self.undisputed() {
                return Ok(master);
            }
            self.start_watcher()?;
            match self.asking.join(&**self.settings.clock(), by) {
                Flight::Lead(doing) => {
                    if self.undisputed().is_none() {
                        let outcome = self.ask(doing, by);
                        // A known master stays the present one while no sentinel answers.
                        outcome.or_else(|failure| self.known().map(drop).ok_or(failure))?;
                    }
                }
                Flight::Finished(Outcome::Retry) if self.now() < by => {}
                Flight::Finished(Outcome::Failed(failure)) => {
                    // Treated as the leader treats its own failure.
                    self.known().map(drop).ok_or(failure)?;
                }
                Flight::Finished(Outcome::Retry) | Flight::TimedOut => {
                    let message = format!(
                        "{:?} have not said in time who is master",
                        self.sentinel_set
                    );
                    return Err(Failure::NotSent(Error::unavailable(message)));
                }
            }
        }
    }

    /// Returns whether another master has replaced this one. Called after a request to this master
    /// has failed in a way that a failover may explain. Queries the sentinels, once for all
    /// requests that fail meanwhile. In the pause after a query, leaves the next one to the
    /// watcher.
    pub(super) fn check_superseded(&self, master: &Master, by: Moment) -> bool {
        let now = self.now();
        if self.is_present(master) {
            let have_answered =
                now < by && now >= self.may_be_asked_at() && self.ask_until(by.min(now + PATIENCE));
            if !have_answered {
                // The watcher queries the sentinels, even if connecting has used up all of the
                // time: otherwise the next request may fail in the same way.
                self.report_failure();
            }
        }
        !self.is_present(master)
    }

    /// Makes the watcher query the sentinels for another master, after a failure of the present
    /// one.
    pub(super) fn report_failure(&self) {
        self.signal_to_watcher.report_failure();
    }

    /// Returns the findings about the sentinels: consequences of their state for locks.
    pub(super) fn diagnose(&self, by: Moment) -> Vec<Finding> {
        let said = self.sentinel_set.survey(&self.settings, by);
        diagnosis::diagnose(&self.sentinel_set.name(), &said, self.settings.lease())
    }

    /// Queries the sentinels.
    pub(super) fn ask_now(&self) {
        let _answered = self.ask_until(self.now() + self.settings.bounds().connect);
    }

    /// Finds out from the sentinels whether another master has replaced the present one, by a query
    /// that begins after this call. If no sentinel answers, the present master stays.
    ///
    /// Does not count among the queries for failing requests, between which there are pauses:
    /// otherwise frequent inspections would delay those queries.
    pub(super) fn confirm(&self, by: Moment) {
        let by = by.min(self.now() + PATIENCE);
        // The answers to a query under way may be older than this call, so a second round waits for
        // a query that begins later.
        for _ in 0..2 {
            match self.asking.join(&**self.settings.clock(), by) {
                Flight::Lead(doing) => {
                    let _as_far_as_they_answer = self.hear(doing, by);
                    return;
                }
                Flight::Finished(_) => {}
                Flight::TimedOut => return,
            }
        }
    }

    /// Queries the sentinels until `by`. Returns whether they have answered a query of this thread.
    fn ask_until(&self, by: Moment) -> bool {
        match self.asking.join(&**self.settings.clock(), by) {
            Flight::Lead(doing) => self.ask(doing, by).is_ok(),
            Flight::Finished(_) | Flight::TimedOut => false,
        }
    }

    pub(super) fn last_asked(&self) -> Moment {
        self.pace.lock().asked
    }

    /// Returns the time from which a failed request may query the sentinels again.
    pub(super) fn may_be_asked_at(&self) -> Moment {
        let pace = *self.pace.lock();
        pace.asked + pace.pause
    }

    /// Returns how many replicas must acknowledge a request that all must acknowledge; `None` as
    /// long as the number is not known.
    pub(super) fn replicas(&self) -> Option<u32> {
        let (now, before) = (self.now().as_nanos(), self.counted.load(Ordering::Relaxed));
        self.counted.store(now, Ordering::Relaxed);
        if !self.wants_count_since(before, self.now()) {
            self.signal_to_watcher.nudge();
        }
        self.state.lock().replicas
    }

    /// Returns whether the number of replicas must be updated regularly.
    pub(super) fn wants_count(&self, now: Moment) -> bool {
        self.wants_count_since(self.counted.load(Ordering::Relaxed), now)
    }

    fn wants_count_since(&self, counted: u64, now: Moment) -> bool {
        counted != 0 && now.since(Moment::from_nanos(counted)) < COUNTED
    }

    /// Returns whether the sentinels must be queried until they have reached all replicas: a
    /// replica without a known `run_id` could not take the master's place at once.
    pub(super) fn wants_replicas(&self) -> bool {
        self.state.lock().has_unheard
    }

    fn ask(&self, doing: FlightLeader<'_>, by: Moment) -> Result<(), Failure> {
        let number = self.number();
        let outcome = self.hear(doing, by);
        self.pace.lock().note(self.now(), self.number() != number);
        outcome
    }

    fn hear(&self, mut doing: FlightLeader<'_>, by: Moment) -> Result<(), Failure> {
        let (announced, number) = (self.signal_to_watcher.announcements(), self.number());
        let agreement = self
            .sentinel_set
            .ask(&self.settings, by, &self.known_of_present());
        let outcome = agreement
            .and_then(|agreement| self.adopt_unless_outdated(number, &self.examine(agreement, by)));
        self.settled.fetch_max(announced, Ordering::SeqCst);
        if let Err(failure) = &outcome
            && self.now() < by
        {
            // A failure after `by` may be due to this caller's short deadline, so other callers do
            // not get it.
            doing.result = Outcome::Failed(failure.clone());
        }
        outcome
    }

    /// Judges the answers of the sentinels that have arrived since the last query was judged, and
    /// follows the master that they name.
    pub(super) fn hear_late(&self) {
        let number = self.number();
        if let Some(agreement) = self
            .sentinel_set
            .hear_late(&self.settings, &self.known_of_present())
        {
            // A failure is ignored: the next query fails in the same way, and reports it.
            let by = self.now() + self.settings.bounds().connect;
            let _followed = self.adopt_unless_outdated(number, &self.examine(agreement, by));
        }
    }

    /// Connects to a named server that no sentinel has listed as a replica, to see if it continues
    /// the data of the known master, or of the former one if the known one never answered. Returns
    /// the agreement with the result. An agreement on any other server is returned unchanged.
    fn examine(&self, agreement: Agreement, by: Moment) -> Agreement {
        let state = self.state.lock();
        let present = state.present.clone().filter(|it| {
            it.is_followed_by(&agreement)
                && !it.is_restarted(&agreement)
                && state.succession.claim(&agreement) == Claim::Unknown
        });
        let noted = present.and_then(|it| it.node.noted().or_else(|| state.former.clone()));
        drop(state);
        let Some(noted) = noted else { return agreement };
        let (at, advice) = self.sentinel_set.reach(&agreement);
        let unused: ReplicaCount = Arc::new(|| Ok(0));
        let run_id = agreement.run_id.as_deref();
        let map = self.sentinel_set.addresses();
        let Ok(found) = self
            .settings
            .master_on(&at, run_id, None, unused, map, advice)
        else {
            return agreement;
        };
        let is_proven = found.succeeds(&noted, by);
        let identity = found
            .identity()
            .map(|id| id.to_string())
            .filter(|_| is_proven);
        found.retire();
        Agreement {
            is_proven,
            run_id: identity.or(agreement.run_id),
            ..agreement
        }
    }

    fn known_of_present(&self) -> PresentMaster {
        let (now, master) = (self.now(), self.known());
        let heard = Moment::from_nanos(self.heard.load(Ordering::Relaxed));
        PresentMaster {
            is_known: master.is_some(),
            run_id: master.and_then(|master| master.node.identity()),
            is_gone: now.since(heard) >= self.settings.lease() && self.granted.are_over(now),
        }
    }

    /// Follows this agreement of the sentinels.
    #[cfg(test)]
    pub(super) fn adopt(&self, agreement: &Agreement) -> Result<(), Failure> {
        self.adopt_unless_outdated(self.number(), agreement)
    }

    /// Follows the master that the sentinels name, if it may replace the present one. The agreement
    /// was made when the present master had this `number`. If another master is followed by now, an
    /// agreement with an older epoch is ignored, even if a majority supports it.
    pub(super) fn adopt_unless_outdated(
        &self,
        number: u64,
        agreement: &Agreement,
    ) -> Result<(), Failure> {
        let mut state = self.state.lock();
        let run_id = match &state.present {
            Some(present) if present.number != number && agreement.epoch < present.epoch => {
                return Ok(());
            }
            Some(present) if !present.is_followed_by(agreement) => {
                // Only a report on the present master counts: a sentinel that was cut off before
                // the last failover lists outdated replicas.
                if present.is_of(agreement) {
                    state.note(agreement);
                    self.has_stranger.store(false, Ordering::SeqCst);
                }
                return Ok(());
            }
            // The data of a restarted server are unknown; the sentinels report its new `run_id`.
            Some(present) if present.is_restarted(agreement) => agreement.run_id.clone(),
            Some(present) => match state.succession.claim(agreement) {
                Claim::Known(run_id) => run_id,
                Claim::Unknown => {
                    let present = Arc::clone(present);
                    if !self.may_follow_stranger(&mut state, &present, agreement) {
                        return Ok(());
                    }
                    agreement.run_id.clone()
                }
            },
            None => agreement.run_id.clone(),
        };
        let (at, advice) = self.sentinel_set.reach(agreement);
        let tracker = Weak::clone(&self.this);
        let count: ReplicaCount = Arc::new(move || {
            let known = tracker.upgrade().and_then(|tracker| tracker.replicas());
            let unknown = "no sentinel has said how many replicas there are";
            known.ok_or_else(|| Error::unavailable(unknown))
        });
        let noted = state
            .present
            .as_ref()
            .and_then(|present| present.node.noted());
        state.former = noted.or_else(|| state.former.take());
        let (run_id, former) = (run_id.as_deref(), state.former.clone());
        let map = self.sentinel_set.addresses();
        let node = self
            .settings
            .master_on(&at, run_id, former, count, map, advice);
        let node = node.map_err(Failure::Refused)?;
        // While a waiter sleeps it sends no request that could fail. The loss of its subscriber's
        // connection reports the failure instead.
        let signal_to_watcher = Arc::clone(&self.signal_to_watcher);
        node.on_trouble(Arc::new(move || signal_to_watcher.report_failure()));
        let master = Arc::new(Master {
            number: self.number() + 1,
            node,
            address: agreement.master.clone(),
            epoch: agreement.epoch,
            has_answered: AtomicBool::new(false),
        });
        let old = state.present.replace(Arc::clone(&master));
        state.note(agreement);
        self.has_stranger.store(false, Ordering::SeqCst);
        self.number.store(master.number, Ordering::SeqCst);
        drop(state);
        // Retired only now, so that a waiter that wakes up finds the new master.
        if let Some(old) = old {
            old.node.retire();
            // Locks that the new master lacks are lost. This verification finds them before the
            // next renewal.
            self.settings.notices().verify_held();
            // The watcher has recent releases to repeat.
            self.signal_to_watcher.nudge();
        }
        self.watches
            .relocate(|_| self.known().map(|it| it.node.clone()));
        Ok(())
    }

    /// Returns whether this server, which no sentinel had listed as a replica, is followed now: one
    /// lease after the sentinels first named it, and not while this client may hold a lock on the
    /// present master.
    fn may_follow_stranger(
        &self,
        state: &mut State,
        present: &Master,
        agreement: &Agreement,
    ) -> bool {
        let now = self.now();
        let (since, is_news) = state.succession.note_stranger(agreement, now);
        self.has_stranger.store(true, Ordering::SeqCst);
        let is_over = now.since(since) >= self.settings.lease() && self.granted.are_over(now);
        let (address, unknown) = (agreement.master.to_string(), "unknown");
        let (was, is) = (present.node.identity(), agreement.run_id.as_deref());
        let (was, is) = (was.as_deref().unwrap_or(unknown), is.unwrap_or(unknown));
        if is_over {
            self.settings.notices().server_changed(&address, was, is);
        } else if is_news {
            self.settings.notices().server_refused(&address, was, is);
        }
        is_over
    }

    /// Refuses all attempts while the sentinels name a server that is not followed yet, because
    /// that server may grant the same locks as the present master.
    pub(super) fn check_strangers(&self, node: &Node) -> Result<(), Failure> {
        if !self.has_stranger.load(Ordering::SeqCst) {
            return Ok(());
        }
        // By now the sentinels may name another server, or the named one can be followed, so the
        // watcher queries them.
        self.report_failure();
        let state = self.state.lock();
        let Some(stranger) = state.succession.stranger() else {
            return Ok(());
        };
        let present = node.server().to_string();
        Err(Failure::NotSent(stranger.refusal(
            &present,
            self.settings.lease(),
            self.now(),
        )))
    }

    /// Records a release of this acquisition that was requested when the present master had this
    /// `number`.
    ///
    /// Must be called only when the release is confirmed. Otherwise it would be repeated on a new
    /// master while it is under way, and the second reply would be "gone".
    ///
    /// Records nothing if the format does not store the owner: on the new master the lock may have
    /// another owner by then.
    pub(super) fn note_release(&self, acquisition: &AcquisitionId, number: u64) {
        if !self.settings.format().knows_owners() {
            return;
        }
        self.recent.note(acquisition, self.now());
        if self.number() != number {
            // Another master has been followed since. If recent releases were already repeated
            // there, this one was not among them.
            self.released_on.store(0, Ordering::SeqCst);
            self.signal_to_watcher.nudge();
        }
    }

    /// Repeats recent releases on a new master: see [`RecentReleases`]. Waits for a connection, for
    /// at most the command timeout, and for no replies.
    pub(super) fn release_again(&self) {
        let Some(master) = self.known() else { return };
        let number = master.number;
        if self.released_on.swap(number, Ordering::SeqCst) == number || number == 1 {
            return;
        }
        let now = self.now();
        let by = now + self.settings.bounds().command;
        for acquisition in self.recent.lately(now) {
            // The outcome does not matter: a lock that is not released now ends with its lease.
            let ignored = Box::new(|_| ());
            let options = ReleaseOptions::WITHOUT_TOMBSTONE;
            master
                .node
                .submit_release(&acquisition, options, by, ignored);
        }
    }

    /// Starts the watcher, unless it runs.
    pub(super) fn start_watcher(self: &Arc<Self>) -> Result<(), Failure> {
        let tracker = Arc::downgrade(self);
        // A turn keeps the tracker alive, but not for long: each query has a time limit.
        let turn = move || Some(tracker.upgrade()?.watch_for_failovers());
        let started = self
            .signal_to_watcher
            .task
            .start(self.settings.clock(), turn);
        started.map_err(|error| {
            Failure::NotSent(no_thread(
                "could not start the thread that hears of failovers",
                error,
            ))
        })?;
        self.sentinel_set.listen();
        Ok(())
    }
}

/// Ends the watcher with the last user of the tracker. Woken any earlier, the watcher would find
/// the tracker alive, and continue to sleep forever.
impl Drop for MasterTracker {
    fn drop(&mut self) {
        self.signal_to_watcher.nudge();
    }
}

impl State {
    /// Records that the sentinels name the present master.
    fn note(&mut self, agreement: &Agreement) {
        self.replicas = Some(agreement.replicas);
        self.has_unheard = agreement.has_unheard;
        self.succession.note(agreement);
    }
}

impl Pace {
    /// Records a query of the sentinels. `is_new` is true if it has led to another master.
    fn note(&mut self, now: Moment, is_new: bool) {
        let is_quiet = now.since(self.asked) > LONGEST_PAUSE * 2;
        self.pause = if is_new || is_quiet {
            FIRST_PAUSE
        } else {
            (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE)
        };
        self.asked = now;
    }
}

impl Master {
    /// Returns whether the sentinels name a new master that may replace this one.
    ///
    /// The epoch counts the failovers. So the same server with a larger epoch was replaced and is
    /// master again, and may have lost data. A smaller epoch comes from a sentinel that was cut off
    /// from the others; another address with the same epoch, from a sentinel that uses other names
    /// for the servers. Neither is followed, unless a majority agrees: then the deployment was set
    /// up anew.
    ///
    /// Another `run_id` at the same address is another server, or the same one after a restart.
    fn is_followed_by(&self, agreement: &Agreement) -> bool {
        let is_there = self.is_at(agreement);
        !self.is_of(agreement)
            && (agreement.epoch > self.epoch || agreement.by_majority || is_there)
    }

    /// Returns whether the sentinels name this master.
    fn is_of(&self, agreement: &Agreement) -> bool {
        let identity = self.node.identity();
        let is_another = |run_id: &String| identity.as_deref().is_some_and(|it| it != run_id);
        self.is_at(agreement) && !agreement.run_id.as_ref().is_some_and(is_another)
    }

    /// Returns whether a new `run_id` at the known address is taken for that of the same server
    /// after a restart: the server has answered before, or is the first master. At the address of a
    /// new master that has never answered, there may be another server by now, which no sentinel
    /// has listed.
    fn is_restarted(&self, agreement: &Agreement) -> bool {
        let was_there = self.has_answered.load(Ordering::Relaxed) || self.number == 1;
        was_there && self.is_at(agreement)
    }

    /// Returns whether this master has the agreed address and epoch.
    fn is_at(&self, agreement: &Agreement) -> bool {
        (&self.address, self.epoch) == (&agreement.master, agreement.epoch)
    }
}

impl fmt::Debug for MasterTracker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MasterTracker")
            .field("sentinel_set", &self.sentinel_set)
            .field("number", &self.number())
            .field("present", &self.known().map(|it| it.address.to_string()))
            .finish_non_exhaustive()
    }
}

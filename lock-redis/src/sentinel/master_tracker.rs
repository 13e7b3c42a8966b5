//! [`MasterTracker`]: which server is master now, and what follows when it is another one.
//!
//! Each master has a number and a [`Node`] of its own. When the sentinels name another one, new
//! requests go there, requests under way on the old node fail at once, and waiters are subscribed
//! there and woken. What an old master answers is not believed: see
//! [`SentinelBackend`](super::SentinelBackend).

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
use crate::node::{Granted, Node, NodeSettings, WatchRegistry};
use lock_core::backend::{AcquisitionId, Failure, ReleaseOptions, no_thread};
use lock_core::{Error, Finding, Moment};
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The time for which a failed request, or `verify`, waits for the sentinels where a master is
/// known, because they may be down while the master is well.
const PATIENCE: Duration = Duration::from_secs(1);

/// The first pause before failing requests have the sentinels queried again, so that one failing
/// request queries for all. It doubles while the answers stay the same.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest such pause, so that a failover is noticed within a fraction of a lease.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The time for which after the last use the number of replicas is counted, so that an idle client
/// sends nothing. Clients with `replicas` use it with each lock.
const COUNTED: Duration = Duration::from_secs(5);

/// A master, from the failover that made it one to the next.
pub(super) struct Master {
    pub(super) number: u64,
    pub(super) node: Node,
    address: Address,
    epoch: u64,
    /// Whether it has ever answered.
    has_answered: AtomicBool,
}

/// See the [module's text](self).
pub struct MasterTracker {
    this: Weak<Self>,
    sentinel_set: SentinelSet,
    pub(super) settings: NodeSettings,
    pub(super) watches: WatchRegistry,
    recent: RecentReleases,
    /// The number of the last master on which recent releases were repeated. Written by the
    /// watcher; 0, written by any thread: they are to be repeated once more.
    released_on: AtomicU64,
    state: Mutex<State>,
    /// The number of the present master; 0 before the first. Written under the lock of the
    /// state, read by all.
    number: AtomicU64,
    /// Concurrent questions to the sentinels share one.
    pub(super) asking: SingleFlight,
    /// How many of the messages that named a new master the sentinels were asked about.
    settled: AtomicU64,
    pub(super) signal_to_watcher: Arc<WatcherSignal>,
    pace: Mutex<Pace>,
    /// When a request last needed the number of replicas, in nanoseconds; 0: never.
    counted: AtomicU64,
    /// When a master last answered, in nanoseconds.
    heard: AtomicU64,
    pub(super) granted: Granted,
    /// Whether a server is named that is not followed yet. Written under the lock of the state.
    has_stranger: AtomicBool,
}

/// When the sentinels were last asked, and how long they are then left alone.
#[derive(Clone, Copy)]
struct Pace {
    asked: Moment,
    pause: Duration,
}

#[derive(Default)]
struct State {
    present: Option<Arc<Master>>,
    /// What the last master before it showed that was met.
    former: Option<(Noted, Moment)>,
    replicas: Option<u32>,
    /// Whether the sentinels have yet to hear a replica.
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

    /// The master has answered.
    pub(super) fn note_heard(&self, master: &Master) {
        master.has_answered.store(true, Ordering::Relaxed);
        self.heard
            .fetch_max(self.now().as_nanos(), Ordering::Relaxed);
    }

    /// The number of the present master.
    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::SeqCst)
    }

    /// Whether this master is still the present one.
    pub(super) fn is_present(&self, master: &Master) -> bool {
        self.number() == master.number
    }

    /// The master, if one is known.
    pub(super) fn known(&self) -> Option<Arc<Master>> {
        self.state.lock().present.clone()
    }

    /// The master, if one is known, and no message has named another one since the sentinels were
    /// asked.
    fn undisputed(&self) -> Option<Arc<Master>> {
        let is_settled =
            self.signal_to_watcher.announcements() == self.settled.load(Ordering::SeqCst);
        self.known().filter(|_| is_settled)
    }

    /// The master. Has the sentinels asked, until `by`, if none is known yet, or a message has
    /// named another one.
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
                        // One that is known stays what it is while no sentinel answers.
                        outcome.or_else(|failure| self.known().map(drop).ok_or(failure))?;
                    }
                }
                Flight::Finished(Outcome::Retry) if self.now() < by => {}
                Flight::Finished(Outcome::Failed(failure)) => {
                    // As for the leader.
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

    /// Finds out whether another master has replaced this one, after a request to it failed in a
    /// way that may mean so. Queries the sentinels, once for all requests that fail meanwhile.
    pub(super) fn check_superseded(&self, master: &Master, by: Moment) -> bool {
        let now = self.now();
        if self.is_present(master) {
            let have_answered =
                now < by && now >= self.may_be_asked_at() && self.ask_until(by.min(now + PATIENCE));
            if !have_answered {
                // Also without time left, because connecting took all of it: the next request may
                // meet the same.
                self.report_failure();
            }
        }
        !self.is_present(master)
    }

    /// Something went wrong with the master: the watcher shall see whether there is another one.
    pub(super) fn report_failure(&self) {
        self.signal_to_watcher.report_failure();
    }

    /// What the sentinels, and what they say, mean for locks.
    pub(super) fn diagnose(&self, by: Moment) -> Vec<Finding> {
        let said = self.sentinel_set.survey(&self.settings, by);
        diagnosis::diagnose(&self.sentinel_set.name(), &said, self.settings.lease())
    }

    /// Has the sentinels asked.
    pub(super) fn ask_now(&self) {
        let _answered = self.ask_until(self.now() + self.settings.bounds().connect);
    }

    /// Has the sentinels asked whether the present master is still the last one: by a question
    /// that begins from now on. If none of them answers, it stays what it is.
    ///
    /// It does not count among the questions of failing requests, which are spaced: frequent looks
    /// must not keep these from being asked.
    pub(super) fn confirm(&self, by: Moment) {
        let by = by.min(self.now() + PATIENCE);
        // What is under way may have been answered before now; not what has begun when that has
        // ended.
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

    /// Whether they have answered a question that has begun since, until `by`.
    fn ask_until(&self, by: Moment) -> bool {
        match self.asking.join(&**self.settings.clock(), by) {
            Flight::Lead(doing) => self.ask(doing, by).is_ok(),
            Flight::Finished(_) | Flight::TimedOut => false,
        }
    }

    pub(super) fn last_asked(&self) -> Moment {
        self.pace.lock().asked
    }

    /// When a failed request may have the sentinels asked again.
    pub(super) fn may_be_asked_at(&self) -> Moment {
        let pace = *self.pace.lock();
        pace.asked + pace.pause
    }

    /// How many replicas must acknowledge now if all are to; `None` as long as that is not known.
    pub(super) fn replicas(&self) -> Option<u32> {
        let (now, before) = (self.now().as_nanos(), self.counted.load(Ordering::Relaxed));
        self.counted.store(now, Ordering::Relaxed);
        if !self.wants_count_since(before, self.now()) {
            self.signal_to_watcher.nudge();
        }
        self.state.lock().replicas
    }

    /// Whether the number of replicas is to be kept fresh.
    pub(super) fn wants_count(&self, now: Moment) -> bool {
        self.wants_count_since(self.counted.load(Ordering::Relaxed), now)
    }

    fn wants_count_since(&self, counted: u64, now: Moment) -> bool {
        counted != 0 && now.since(Moment::from_nanos(counted)) < COUNTED
    }

    /// Whether the sentinels are asked again until they have heard all replicas: a replica that is
    /// not known by its `run_id` could not take the master's place at once.
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
            // Otherwise it may have failed only because the patience of this caller was too short.
            doing.result = Outcome::Failed(failure.clone());
        }
        outcome
    }

    /// Follows what was answered after the last question had been judged.
    pub(super) fn hear_late(&self) {
        let number = self.number();
        if let Some(agreement) = self
            .sentinel_set
            .hear_late(&self.settings, &self.known_of_present())
        {
            // Refused only where the next question is, too.
            let by = self.now() + self.settings.bounds().connect;
            let _followed = self.adopt_unless_outdated(number, &self.examine(agreement, by));
        }
    }

    /// Finds out whether a server that no sentinel has listed as a replica was one of the known
    /// master, or, where that was never met, of the one before it, by what it shows itself.
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

    /// Follows what the sentinels say now.
    #[cfg(test)]
    pub(super) fn adopt(&self, agreement: &Agreement) -> Result<(), Failure> {
        self.adopt_unless_outdated(self.number(), agreement)
    }

    /// Follows what the sentinels say. The answers were judged when the present master had this
    /// `number`: if a later one is followed since, a majority that has not heard of it leads no one
    /// back.
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
                // Not by one that was cut off before the last failover: it counts what was.
                if present.is_of(agreement) {
                    state.note(agreement);
                    self.has_stranger.store(false, Ordering::SeqCst);
                }
                return Ok(());
            }
            // What it has is not known, and the sentinels say which one it is.
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
        // A waiter asks for nothing that could fail.
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
        // Only now: a waiter that wakes up finds the new one.
        if let Some(old) = old {
            old.node.retire();
            // What the new one lacks is lost, and known to be so before the next renewal is due.
            self.settings.notices().verify_held();
            // It has something to give back there.
            self.signal_to_watcher.nudge();
        }
        self.watches
            .relocate(|_| self.known().map(|it| it.node.clone()));
        Ok(())
    }

    /// Whether this server, which no sentinel had listed as a replica, is followed: one lease after
    /// it was named first, and not while a lock may be held on the present master.
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

    /// Refuses to grant anything while the sentinels name a server that is not followed yet: what
    /// the former master grants may be granted there, too.
    pub(super) fn check_strangers(&self, node: &Node) -> Result<(), Failure> {
        if !self.has_stranger.load(Ordering::SeqCst) {
            return Ok(());
        }
        // They may name another one by now, or it may be followed.
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

    /// This was given back: it was asked for when the present master had this `number`.
    ///
    /// Not noted before that is sure: what is still being given back would be given back twice on a
    /// new master, and the second answer would be "gone".
    ///
    /// Not noted at all where the format does not say whose a lock is: on the new master it may be
    /// another's by then.
    pub(super) fn note_release(&self, acquisition: &AcquisitionId, number: u64) {
        if !self.settings.format().knows_owners() {
            return;
        }
        self.recent.note(acquisition, self.now());
        if self.number() != number {
            // There is a new one since. If that has been told what to give back, this was not among
            // it.
            self.released_on.store(0, Ordering::SeqCst);
            self.signal_to_watcher.nudge();
        }
    }

    /// Gives back on a new master what was given back on the ones before: see [`RecentReleases`].
    /// Waits for a connection, no longer than a request may take, and for no answers.
    pub(super) fn release_again(&self) {
        let Some(master) = self.known() else { return };
        let number = master.number;
        if self.released_on.swap(number, Ordering::SeqCst) == number || number == 1 {
            return;
        }
        let now = self.now();
        let by = now + self.settings.bounds().command;
        for acquisition in self.recent.lately(now) {
            // Whatever comes of it: what is not freed now ends with its lease.
            let ignored = Box::new(|_| ());
            let options = ReleaseOptions::WITHOUT_TOMBSTONE;
            master
                .node
                .submit_release(&acquisition, options, by, ignored);
        }
    }

    /// Sees to it that there is a watcher.
    pub(super) fn start_watcher(self: &Arc<Self>) -> Result<(), Failure> {
        let tracker = Arc::downgrade(self);
        // Kept for as long as a turn takes: asking the sentinels has a bound.
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

/// With the last user the watcher ends. Woken any earlier, it would find that user there still, and
/// sleep on for ever.
impl Drop for MasterTracker {
    fn drop(&mut self) {
        self.signal_to_watcher.nudge();
    }
}

impl State {
    /// The sentinels name the present master.
    fn note(&mut self, agreement: &Agreement) {
        self.replicas = Some(agreement.replicas);
        self.has_unheard = agreement.has_unheard;
        self.succession.note(agreement);
    }
}

impl Pace {
    /// The sentinels have been asked, and have said something new or not.
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
    /// Whether there is a new master, by what the sentinels say.
    ///
    /// The epoch counts the failovers: so the same server with a larger one was replaced and is
    /// back, and may have lost something. One with a smaller epoch is what a sentinel says that was
    /// cut off from the others, and another address with the same epoch one that calls the servers
    /// by other names; unless most of them say so: then they were set up anew.
    ///
    /// Another `run_id` at the same address is another server, or the same one that was started
    /// again.
    fn is_followed_by(&self, agreement: &Agreement) -> bool {
        let is_there = self.is_at(agreement);
        !self.is_of(agreement)
            && (agreement.epoch > self.epoch || agreement.by_majority || is_there)
    }

    /// Whether it is the one that the sentinels speak of.
    fn is_of(&self, agreement: &Agreement) -> bool {
        let identity = self.node.identity();
        let is_another = |run_id: &String| identity.as_deref().is_some_and(|it| it != run_id);
        self.is_at(agreement) && !agreement.run_id.as_ref().is_some_and(is_another)
    }

    /// Whether the other `run_id` is that of the same server after a restart. Where a successor
    /// never answered, its address may be another server's by now, which was never listed.
    fn is_restarted(&self, agreement: &Agreement) -> bool {
        let was_there = self.has_answered.load(Ordering::Relaxed) || self.number == 1;
        was_there && self.is_at(agreement)
    }

    /// Whether it is at that address, by that failover.
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

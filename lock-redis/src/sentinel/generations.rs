//! [`Generations`]: which server is master now, and what follows when it is another one.
//!
//! Each master is a generation, with a number and a [`Node`] of its own. When the sentinels say that there is another
//! one, everything new goes there, whoever waits on the old node's connections is told at once, and those who wait for
//! locks are subscribed there and woken. What an old generation has answered is not believed: see
//! [`SentinelBackend`](super::SentinelBackend).

use super::council::{Council, Present, Verdict};
use super::freed::Freed;
use super::lookout::{self, Alarm};
use crate::address::Address;
use crate::confirm::Listing;
use crate::deployment::Granted;
use crate::format::Format;
use crate::node::{Node, NodeSettings};
use crate::single_flight::{Flight, FlightLeader, FlightResult as Outcome, SingleFlight};
use crate::watch_registry::WatchRegistry;
use lock_core::backend::{AcquisitionId, Failure, ReleaseOptions, no_thread};
use lock_core::{Error, Moment};
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long a request that failed waits for the sentinels, where a master is known: it may be that they are down, and
/// the master is not.
const PATIENCE: Duration = Duration::from_millis(500);

/// How soon after the last time requests that fail have the sentinels asked again; it doubles as long as these say the
/// same.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// For how long after the last question how many replicas there are the number is kept fresh.
const COUNTED: Duration = Duration::from_secs(5);

/// A master, from the failover that made it one to the next.
pub(super) struct Generation {
    pub(super) number: u64,
    pub(super) node: Arc<Node>,
    address: Address,
    epoch: u64,
}

/// See the [module's text](self).
pub(super) struct Generations {
    this: Weak<Self>,
    council: Council,
    settings: NodeSettings,
    pub(super) format: Format,
    pub(super) watches: WatchRegistry,
    freed: Freed,
    /// The last generation that was told what had been given back before. Written by the lookout; 0, by anybody: it is to be
    /// told once more.
    freed_on: AtomicU64,
    state: Mutex<State>,
    /// The number of the present generation; 0 before the first. Written under the lock of the state, read by all.
    number: AtomicU64,
    /// Who needs the sentinels asked.
    asking: SingleFlight,
    alarm: Arc<Alarm>,
    pace: Mutex<Pace>,
    /// When somebody last wanted the number of replicas, in nanoseconds; 0: never.
    counted: AtomicU64,
    /// When a master last answered, in nanoseconds.
    heard: AtomicU64,
    pub(super) granted: Granted,
}

/// When the sentinels were last asked, and how long they are then left alone.
#[derive(Clone, Copy)]
struct Pace {
    asked: Moment,
    pause: Duration,
}

#[derive(Default)]
struct State {
    present: Option<Arc<Generation>>,
    replicas: Option<u32>,
    has_lookout: bool,
}

impl Generations {
    pub(super) fn new(
        council: Council,
        settings: NodeSettings,
        format: Format,
        alarm: Arc<Alarm>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            council,
            settings,
            format,
            watches: WatchRegistry::default(),
            freed: Freed::default(),
            freed_on: AtomicU64::new(0),
            state: Mutex::default(),
            number: AtomicU64::new(0),
            asking: SingleFlight::default(),
            alarm,
            pace: Mutex::new(Pace { asked: Moment::from_nanos(0), pause: Duration::ZERO }),
            counted: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            granted: Granted::default(),
        })
    }

    pub(super) fn now(&self) -> Moment {
        self.settings.clock().now()
    }

    /// The master has answered.
    pub(super) fn note_heard(&self) {
        self.heard.fetch_max(self.now().as_nanos(), Ordering::Relaxed);
    }

    /// The number of the present generation.
    pub(super) fn number(&self) -> u64 {
        self.number.load(Ordering::SeqCst)
    }

    /// Whether this generation is still the present one.
    pub(super) fn is_present(&self, generation: &Generation) -> bool {
        self.number() == generation.number
    }

    /// The master, if one is known.
    fn known(&self) -> Option<Arc<Generation>> {
        self.state.lock().present.clone()
    }

    /// The master. Has the sentinels asked if none is known yet, until `by`.
    pub(super) fn present(self: &Arc<Self>, by: Moment) -> Result<Arc<Generation>, Failure> {
        loop {
            if let Some(generation) = self.known() {
                return Ok(generation);
            }
            self.look_out()?;
            match self.asking.join(&**self.settings.clock(), by) {
                Flight::Lead(doing) => {
                    if self.known().is_none() {
                        self.ask(doing, by)?;
                    }
                }
                Flight::Finished(Outcome::Retry) if self.now() < by => {}
                Flight::Finished(Outcome::Failed(failure)) => return Err(failure),
                Flight::Finished(Outcome::Retry) | Flight::TimedOut => {
                    let message = format!("{:?} have not said in time who is master", self.council);
                    return Err(Failure::NotSent(Error::unavailable(message)));
                }
            }
        }
    }

    /// A request to this generation failed in a way that may mean that it is over: whether there is a newer one. Has the
    /// sentinels asked; one who fails does so for all.
    pub(super) fn is_over(&self, generation: &Generation, by: Moment) -> bool {
        let now = self.now();
        if self.is_present(generation) {
            let have_answered =
                now < by && now >= self.may_be_asked_at() && self.ask_until(by.min(now + PATIENCE));
            if !have_answered {
                // Also who has no time left, because it took all of it to connect, say: so does the next one, perhaps.
                self.doubt();
            }
        }
        !self.is_present(generation)
    }

    /// Something went wrong with the master: the lookout shall see whether there is another one.
    pub(super) fn doubt(&self) {
        self.alarm.doubt();
    }

    /// Has the sentinels asked.
    pub(super) fn ask_now(&self) {
        let _whoever_answers = self.ask_until(self.now() + self.settings.bounds().connect);
    }

    /// Has the sentinels asked whether the present generation is still the last one: by a question that begins from now
    /// on. If none of them answers, it stays what it is.
    ///
    /// It does not count among those that failing requests have them asked by, which are spaced: who looks often must not
    /// keep these from being asked.
    pub(super) fn confirm(&self, by: Moment) {
        let by = by.min(self.now() + PATIENCE);
        // What is under way may have been answered before now; not what has begun when that has ended.
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

    /// How many replicas must acknowledge now if all are to; `None` as long as nobody knows.
    pub(super) fn replicas(&self) -> Option<u32> {
        let (now, before) = (self.now().as_nanos(), self.counted.load(Ordering::Relaxed));
        self.counted.store(now, Ordering::Relaxed);
        if !self.wants_count_since(before, self.now()) {
            self.alarm.nudge();
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

    fn ask(&self, doing: FlightLeader<'_>, by: Moment) -> Result<(), Failure> {
        let number = self.number();
        let outcome = self.hear(doing, by);
        self.pace.lock().note(self.now(), self.number() != number);
        outcome
    }

    fn hear(&self, mut doing: FlightLeader<'_>, by: Moment) -> Result<(), Failure> {
        let now = self.now();
        let heard = Moment::from_nanos(self.heard.load(Ordering::Relaxed));
        let present = Present {
            run_id: self.known().and_then(|generation| generation.node.identity()),
            is_gone: now.since(heard) >= self.settings.lease() && self.granted.are_over(now),
        };
        let verdict = self.council.ask(&self.settings, by, &present);
        let outcome = verdict.and_then(|verdict| self.adopt(&verdict));
        if let Err(failure) = &outcome
            && self.now() < by
        {
            // Otherwise it may have failed only because the patience of this caller was too short.
            doing.result = Outcome::Failed(failure.clone());
        }
        outcome
    }

    /// Follows what the sentinels say.
    pub(super) fn adopt(&self, verdict: &Verdict) -> Result<(), Failure> {
        let mut state = self.state.lock();
        if let Some(present) = &state.present
            && !present.is_followed_by(verdict)
        {
            // Not by one that was cut off before the last failover: it counts what was.
            if present.is_of(verdict) {
                state.replicas = Some(verdict.replicas);
            }
            return Ok(());
        }
        let Address { host, port } = &verdict.master;
        let run_id = verdict.run_id.as_deref();
        let node = self.settings.master_on(host, *port, run_id).map_err(Failure::Refused)?;
        let node = node.with_listing(Arc::new(Known(Weak::clone(&self.this))));
        // Whoever only waits asks for nothing that could fail.
        let alarm = Arc::clone(&self.alarm);
        node.on_trouble(Arc::new(move || alarm.doubt()));
        let generation = Arc::new(Generation {
            number: self.number() + 1,
            node: Arc::new(node),
            address: verdict.master.clone(),
            epoch: verdict.epoch,
        });
        let old = state.present.replace(Arc::clone(&generation));
        state.replicas = Some(verdict.replicas);
        self.number.store(generation.number, Ordering::SeqCst);
        drop(state);
        // Only now: whoever wakes up finds the new one.
        if let Some(old) = old {
            old.node.retire();
            // It has something to give back there.
            self.alarm.nudge();
        }
        self.watches.relocate(&self.format, |_| self.known().map(|it| Arc::clone(&it.node)));
        Ok(())
    }

    /// This was given back: it was asked for when the present generation had this `number`.
    ///
    /// Not noted before that is sure: what is still being given back would be given back twice on a new master, and the second
    /// answer would be "gone".
    ///
    /// Not noted at all where the format does not say whose a lock is: on the new master it may be another's by then.
    pub(super) fn gave_back(&self, acquisition: &AcquisitionId, number: u64) {
        if !self.format.knows_owners() {
            return;
        }
        self.freed.note(acquisition, self.now());
        if self.number() != number {
            // There is a new one since. If that has been told what to give back, this was not among it.
            self.freed_on.store(0, Ordering::SeqCst);
            self.alarm.nudge();
        }
    }

    /// Gives back on a new master what was given back on the ones before: see [`Freed`]. Waits for a connection, no longer
    /// than a request may take, and for no answers.
    pub(super) fn give_back_again(&self) {
        let Some(generation) = self.known() else { return };
        let number = generation.number;
        if self.freed_on.swap(number, Ordering::SeqCst) == number || number == 1 {
            return;
        }
        let now = self.now();
        let by = now + self.settings.bounds().command;
        for acquisition in self.freed.lately(now) {
            // Whatever comes of it: what is not freed now ends with its lease.
            let nobody_asks = Box::new(|_| ());
            let node = &generation.node;
            node.submit_release(
                &self.format,
                &acquisition,
                ReleaseOptions::WITHOUT_TOMBSTONE,
                by,
                nobody_asks,
            );
        }
    }

    /// Sees to it that there is a lookout.
    pub(super) fn look_out(self: &Arc<Self>) -> Result<(), Failure> {
        let mut state = self.state.lock();
        if state.has_lookout {
            return Ok(());
        }
        let clock = Arc::clone(self.settings.clock());
        lookout::start(Arc::downgrade(self), Arc::clone(&self.alarm), clock).map_err(|error| {
            Failure::NotSent(no_thread("could not start the thread that hears of failovers", error))
        })?;
        state.has_lookout = true;
        drop(state);
        self.council.listen();
        Ok(())
    }
}

/// The last user is gone, perhaps somebody to whom an answer came late: so is the lookout. Told any earlier, it would find
/// that user there still, and sleep on for ever.
impl Drop for Generations {
    fn drop(&mut self) {
        self.alarm.nudge();
    }
}

/// How many replicas there are, by what the sentinels said last.
struct Known(Weak<Generations>);

impl Listing for Known {
    fn replicas(&self, _: Moment) -> Result<u32, Error> {
        let known = self.0.upgrade().and_then(|generations| generations.replicas());
        known.ok_or_else(|| Error::unavailable("no sentinel has said how many replicas there are"))
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

impl Generation {
    /// Whether there is a new generation, by what the sentinels say.
    ///
    /// The epoch counts the failovers: so the same server with a larger one was replaced and is back, and may have lost
    /// something. One with a smaller epoch is what a sentinel says that was cut off from the others, and another address
    /// with the same epoch one that calls the servers by other names; unless most of them say so: then somebody has set
    /// them up anew.
    ///
    /// Another `run_id` at the same address is another server, or the same one that was started
    /// again.
    fn is_followed_by(&self, verdict: &Verdict) -> bool {
        let is_there = self.is_at(verdict);
        !self.is_of(verdict) && (verdict.epoch > self.epoch || verdict.by_majority || is_there)
    }

    /// Whether it is the one that the sentinels speak of.
    fn is_of(&self, verdict: &Verdict) -> bool {
        let identity = self.node.identity();
        let is_another = |run_id: &String| identity.as_deref().is_some_and(|it| it != run_id);
        self.is_at(verdict) && !verdict.run_id.as_ref().is_some_and(is_another)
    }

    /// Whether it is at that address, by that failover.
    fn is_at(&self, verdict: &Verdict) -> bool {
        (&self.address, self.epoch) == (&verdict.master, verdict.epoch)
    }
}

impl fmt::Debug for Generations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generations")
            .field("council", &self.council)
            .field("number", &self.number())
            .field("present", &self.known().map(|it| it.address.to_string()))
            .finish_non_exhaustive()
    }
}

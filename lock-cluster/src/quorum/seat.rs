//! [`Seat`]: one node's place in a quorum. A thread for attempts and releases, which it sends in the order they come; one
//! for renewals, which shall not stand behind those; and what is still to be closed on a node that does not answer.

use super::member::Member;
use super::watches::Unhung;
use lock_core::backend::{AcquisitionId, Backend, Failure, Release, ReleaseOptions};
use lock_core::{Clock, Error, Moment, Signal};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// One node.
pub(super) struct Seat {
    core: Arc<Core>,
    /// The ends of its two lines. Whoever drops the seat closes them.
    attempts: Arc<Line>,
    renewals: Arc<Line>,
}

/// What its threads need. They do not keep the quorum alive, but end with it.
pub(super) struct Core {
    number: usize,
    member: Member,
    clock: Arc<dyn Clock>,
    node_timeout: Duration,
    /// Whether it gave no answer the last time.
    silent: AtomicBool,
    /// Since when an attempt or a release is under way there.
    asked: Mutex<Option<Moment>>,
    /// How many of those there are, with those that wait for their turn.
    open: AtomicUsize,
    /// What is to be closed there as soon as it answers again.
    unsettled: Mutex<VecDeque<Unsettled>>,
    /// The watches that are to begin there as soon as it answers again.
    unhung: Mutex<Vec<Unhung>>,
    /// Wakes the thread for attempts, which looks after all of that, too. Raised by whoever has something for it.
    attention: Arc<Signal>,
}

/// A holding that may be left behind on a node.
struct Unsettled {
    acquisition: AcquisitionId,
    /// When the lease has ended whatever there was.
    until: Moment,
}

/// Jobs for one thread, in their order.
struct Line {
    name: String,
    work: Mutex<Work>,
    /// Raised when there is one more, and when there will be none.
    signal: Arc<Signal>,
}

#[derive(Default)]
struct Work {
    jobs: VecDeque<Job>,
    running: bool,
    closing: bool,
}

type Job = Box<dyn FnOnce(&Core) + Send>;

/// Which of a node's threads is to do something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    Attempt,
    Renewal,
}

/// How many holdings may be waiting to be closed on a node that does not answer. Beyond that their leases end them.
const MOST_UNSETTLED: usize = 10_000;
/// How often a node is tried that does not answer, where something is to be closed there.
const RETRY: Duration = Duration::from_secs(1);
/// How long a node may leave a request unanswered until others are not kept waiting for it.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);

impl Seat {
    pub(super) fn new(
        number: usize,
        member: Member,
        clock: Arc<dyn Clock>,
        node_timeout: Duration,
    ) -> Self {
        let core = Core {
            number,
            member,
            clock,
            node_timeout,
            silent: AtomicBool::new(false),
            asked: Mutex::new(None),
            open: AtomicUsize::new(0),
            unsettled: Mutex::default(),
            unhung: Mutex::default(),
            attention: Arc::default(),
        };
        let line = |what, signal| Arc::new(Line::new(format!("distlock-{what}{number}"), signal));
        let attempts = line("node", Arc::clone(&core.attention));
        Self { core: Arc::new(core), attempts, renewals: line("keep", Arc::default()) }
    }

    pub(super) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Whether a request that is sent from here overtakes nothing, and is not held up: the node answers, and nobody asks it
    /// anything at the moment.
    pub(super) fn is_free(&self) -> bool {
        self.core.open.load(Ordering::Acquire) == 0 && !self.core.is_suspect()
    }

    /// Tells when what it was to be asked until now is asked, and what came of it dealt with.
    pub(super) fn when_done(&self, tell: impl FnOnce() + Send + 'static) {
        let job: Job = Box::new(move |_| tell());
        if let Err(job) = self.attempts.add_behind(job) {
            job(&self.core);
        }
    }

    /// Asks the node something, on its own thread, and tells `done` what came of it: there, or here if not even a thread can
    /// be had. What is overdue when its turn comes is not asked any more.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        task: Task,
        by: Moment,
        question: impl FnOnce(&Core, Moment) -> Result<T, Failure> + Send + 'static,
        done: impl FnOnce(&Core, Result<T, Failure>) + Send + 'static,
    ) {
        let is_attempt = task == Task::Attempt;
        let open = usize::from(is_attempt);
        self.core.open.fetch_add(open, Ordering::AcqRel);
        let job: Job = Box::new(move |core| {
            if is_attempt {
                *core.asked.lock() = Some(core.clock.now());
            }
            let outcome = core.ask(by, |by| question(core, by));
            if is_attempt {
                *core.asked.lock() = None;
            }
            // Before it is told: whoever hears of it may send the next request at once.
            core.open.fetch_sub(open, Ordering::AcqRel);
            done(core, outcome);
        });
        let line = match task {
            Task::Attempt => &self.attempts,
            Task::Renewal => &self.renewals,
        };
        if let Err(job) = line.add(&self.core, job) {
            job(&self.core);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.attempts.close();
        self.renewals.close();
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.core.member.fmt(f)
    }
}

impl Core {
    pub(super) fn number(&self) -> usize {
        self.number
    }

    pub(super) fn member(&self) -> &Member {
        &self.member
    }

    pub(super) fn store(&self) -> &dyn Backend {
        self.member.store()
    }

    /// By when something that is asked now must be answered.
    pub(super) fn by(&self) -> Moment {
        self.clock.now() + self.node_timeout
    }

    /// Whether it seems dead: it gave no answer the last time, or not yet for long.
    pub(super) fn is_suspect(&self) -> bool {
        let is_late = |asked: Moment| self.clock.now() >= asked + PATIENCE;
        self.silent.load(Ordering::Relaxed) || self.asked.lock().is_some_and(is_late)
    }

    fn ask<T>(
        &self,
        by: Moment,
        question: impl FnOnce(Moment) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let now = self.clock.now();
        if now >= by {
            return Err(Failure::NotSent(Error::unavailable(format!(
                "{} has not answered what it was asked before",
                self.member.name()
            ))));
        }
        let outcome = catch_unwind(AssertUnwindSafe(|| question(by))).unwrap_or_else(|_| {
            let why = format!("{} panicked; see its message", self.member.name());
            Err(Failure::Unknown(Error::unavailable(why)))
        });
        let is_silent = outcome.as_ref().is_err_and(|failure| {
            failure.error().is_unavailable() && !matches!(failure, Failure::Refused(_))
        });
        self.silent.store(is_silent, Ordering::Relaxed);
        outcome
    }

    /// Closes a holding there; if that is not answered, it is tried on until it is, or the lease is over.
    pub(super) fn close(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        let outcome = self.store().release(acquisition, closing, by);
        if matches!(&outcome, Err(failure) if failure.error().is_unavailable()) {
            self.remember(acquisition.clone());
        }
        outcome
    }

    /// To be closed when it answers again: with a tombstone, because something may be under way.
    pub(super) fn remember(&self, acquisition: AcquisitionId) {
        let until = self.clock.now() + acquisition.lease.duration() + self.node_timeout;
        let mut unsettled = self.unsettled.lock();
        if unsettled.iter().any(|other| other.acquisition.owner == acquisition.owner) {
            return;
        }
        if unsettled.len() >= MOST_UNSETTLED {
            unsettled.pop_front();
        }
        unsettled.push_back(Unsettled { acquisition, until });
        drop(unsettled);
        // What nobody waited for is told by whoever reads the connection, while the node's own thread sleeps.
        self.attention.raise();
    }

    /// This watch could not begin there: it is tried again while somebody waits.
    pub(super) fn hang_later(&self, watch: Unhung) {
        let mut unhung = self.unhung.lock();
        unhung.retain(Unhung::is_wanted);
        unhung.push(watch);
    }

    /// Whether something is left to be done there.
    fn has_errands(&self) -> bool {
        !self.unsettled.lock().is_empty() || !self.unhung.lock().is_empty()
    }

    /// Does it, as long as the node answers. When to try again.
    fn run_errands(&self) -> Moment {
        match self.settle() {
            Moment::NEVER => self.hang(),
            again => again,
        }
    }

    /// Begins the watches that could not begin before, as long as the node answers. When to try again.
    fn hang(&self) -> Moment {
        loop {
            let Some(watch) = self.unhung.lock().pop() else { return Moment::NEVER };
            match self.ask(self.by(), |by| watch.hang(self, by)) {
                Ok(()) => watch.look_again(),
                Err(failure) if failure.error().is_unavailable() => {
                    self.hang_later(watch);
                    return self.clock.now() + RETRY;
                }
                // It says no, and would say so again.
                Err(_) => {}
            }
        }
    }

    /// Tries to close what is left to be closed, as long as the node answers. When to try again.
    fn settle(&self) -> Moment {
        loop {
            let now = self.clock.now();
            let mut unsettled = self.unsettled.lock();
            unsettled.retain(|one| now < one.until);
            let Some(first) = unsettled.pop_front() else { return Moment::NEVER };
            drop(unsettled);
            let by = now + self.node_timeout;
            let outcome = self.ask(by, |by| {
                self.store().release(&first.acquisition, ReleaseOptions::WITH_TOMBSTONE, by)
            });
            if matches!(&outcome, Err(failure) if failure.error().is_unavailable()) {
                self.unsettled.lock().push_front(first);
                return self.clock.now() + RETRY;
            }
        }
    }
}

impl Line {
    fn new(name: String, signal: Arc<Signal>) -> Self {
        Self { name, work: Mutex::default(), signal }
    }

    /// Puts a job at the end. It comes back if there is no thread to do it.
    fn add(self: &Arc<Self>, core: &Arc<Core>, job: Job) -> Result<(), Job> {
        let mut work = self.work.lock();
        if !work.running {
            let (line, core) = (Arc::clone(self), Arc::clone(core));
            let spawned =
                thread::Builder::new().name(self.name.clone()).spawn(move || line.run(&core));
            if spawned.is_err() {
                return Err(job);
            }
            work.running = true;
        }
        self.push(work, job);
        Ok(())
    }

    /// Puts a job behind those that there are. It comes back if nobody ever asked for any.
    fn add_behind(&self, job: Job) -> Result<(), Job> {
        let work = self.work.lock();
        if !work.running {
            return Err(job);
        }
        self.push(work, job);
        Ok(())
    }

    fn push(&self, mut work: MutexGuard<'_, Work>, job: Job) {
        work.jobs.push_back(job);
        drop(work);
        self.signal.raise();
    }

    fn close(&self) {
        self.work.lock().closing = true;
        self.signal.raise();
    }

    /// Does what there is, and ends when nobody is left to ask for more.
    fn run(&self, core: &Arc<Core>) {
        // `NEVER` while nothing is left to be done there: what comes to be left then is tried at once.
        let mut settle_at = Moment::NEVER;
        loop {
            let mut work = self.work.lock();
            let job = work.jobs.pop_front();
            if job.is_none() && work.closing {
                return;
            }
            drop(work);
            if let Some(job) = job {
                // What the job does with the answer is not ours, and must not end this thread.
                let _reported = catch_unwind(AssertUnwindSafe(|| job(core)));
                // One that does not answer is not asked twice as often as it would be anyway.
                let now = core.clock.now();
                let is_silent = core.silent.load(Ordering::Relaxed);
                settle_at = if is_silent { settle_at.min(now + RETRY) } else { now };
                continue;
            }
            let has_errands = core.has_errands();
            if has_errands && (settle_at == Moment::NEVER || core.clock.now() >= settle_at) {
                settle_at = catch_unwind(AssertUnwindSafe(|| core.run_errands()))
                    .unwrap_or_else(|_| core.clock.now() + RETRY);
                continue;
            }
            let until = if has_errands { settle_at } else { Moment::NEVER };
            core.clock.wait(&self.signal, until);
        }
    }
}

//! Lanes: for each node one thread that renews what is held there, and, when there is something to be cleaned up after an
//! unknown outcome, one that does that.
//!
//! A node that is slow or dead holds up its own lane only, a clean-up that hangs holds up no renewal, and while a renewal
//! hangs, [reliefs](super::relief) send the next ones. Clean-up outlives whoever caused it: it goes on until it is
//! confirmed, or until the lease has ended everything by itself.

use super::doubts::Doubts;
pub(crate) use super::doubts::InDoubt;
use super::queue::{Queue, Step, Work};
use super::relief::{Call, Sender};
use crate::backend::{
    AcquisitionId, Backend, Failure, NodeId, ReleaseOptions, Renewal, RenewalRequest, no_thread,
};
use crate::clock::{Clock, Moment, Signal, SystemClock, Woken};
use crate::engine::acquisition::Acquisition;
use crate::engine::entry::Entry;
use crate::engine::{Engine, ask};
use crate::error::Error;
use crate::lease::LeaseTime;
use crate::name::LockName;
use crate::sync::mutant;
use crate::sync::thread;
use crate::sync::{HashMap, Mutex};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The pause before the first repetition of a clean-up; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// All lanes of a client.
pub(crate) struct Lanes {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    command_timeout: Duration,
    state: Mutex<State>,
    /// What is to be cleaned up and is not confirmed yet.
    doubts: Arc<Doubts>,
}

#[derive(Default)]
struct State {
    queues: HashMap<(NodeId, Task), Arc<Queue>>,
    stopping: bool,
}

/// What a thread is there for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Task {
    Renew,
    /// Renewals that replicas must confirm: they wait, and must not make the others wait.
    RenewConfirmed,
    CleanUp,
}

/// One renewal to be sent.
pub(crate) struct RenewJob {
    pub(crate) entry: Arc<Entry>,
    pub(crate) acquisition: Arc<Acquisition>,
    pub(crate) lease: LeaseTime,
    /// Who waits for it; nobody if the watchdog asked.
    pub(crate) reply: Option<Arc<Reply>>,
}

impl RenewJob {
    /// Which threads send it.
    fn task(&self) -> Task {
        let waits = !self.acquisition.replication.is_off();
        if waits { Task::RenewConfirmed } else { Task::Renew }
    }
}

/// Where a thread waits for its renewal.
#[derive(Default)]
pub(crate) struct Reply {
    pub(crate) signal: Arc<Signal>,
    pub(crate) result: Mutex<Option<Result<(), Error>>>,
}

impl Reply {
    pub(crate) fn answer(&self, result: Result<(), Error>) {
        *self.result.lock() = Some(result);
        self.signal.raise();
    }
}

/// A holding to be released, or an attempt to be taken back, until that is confirmed.
pub(crate) struct Cleanup {
    pub(crate) acquisition: AcquisitionId,
    pub(crate) closing: ReleaseOptions,
    /// When the lease has ended whatever there was.
    pub(crate) until: Moment,
    pub(super) next: Moment,
    pause: Duration,
    /// `None` once nobody waits for this one any more.
    in_doubt: Option<InDoubt>,
}

impl Lanes {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        command_timeout: Duration,
    ) -> Self {
        let (state, doubts) = (Mutex::default(), Arc::default());
        Self { backend, clock, command_timeout, state, doubts }
    }

    /// Has holdings renewed, and leaves `jobs` empty. Returns those for which that cannot be begun, and why.
    pub(crate) fn renew(
        self: &Arc<Self>,
        engine: &Weak<Engine>,
        jobs: &mut Vec<RenewJob>,
    ) -> Vec<(RenewJob, Error)> {
        let mut failed = Vec::new();
        while let Some(job) = jobs.pop() {
            let lane = match self.renewal_node(&job.acquisition.name) {
                Ok(lane) => lane,
                Err(error) => {
                    failed.push((job, error));
                    continue;
                }
            };
            let task = job.task();
            let is_there = |job: &RenewJob| {
                job.task() == task
                    && self.renewal_node(&job.acquisition.name).is_ok_and(|its| its == lane)
            };
            // With one node, which is the rule, these are all.
            let mut together = if jobs.iter().all(is_there) {
                std::mem::take(jobs)
            } else {
                jobs.extract_if(.., |job| is_there(job)).collect()
            };
            together.push(job);
            let queued = self.submit(engine, lane, task, |work| {
                work.renewals.extend(together.drain(..));
            });
            match queued {
                Ok(queue) => self.call_relief(&queue, engine),
                Err(error) => {
                    failed.extend(together.drain(..).map(|job| (job, error.clone())));
                }
            }
            if jobs.capacity() == 0 {
                *jobs = together; // empty, and its memory is used again
            }
        }
        failed
    }

    /// Which lane this name's node has now.
    pub(crate) fn renewal_node(&self, name: &LockName) -> Result<NodeId, Error> {
        ask(|| Ok(self.backend.renewal_node(name))).map_err(Failure::into_error)
    }

    /// Has a holding cleaned up: until that is confirmed, or until the lease has ended whatever there was.
    pub(crate) fn clean_up(
        self: &Arc<Self>,
        engine: &Weak<Engine>,
        acquisition: AcquisitionId,
        closing: ReleaseOptions,
    ) {
        let lane = self.renewal_node(&acquisition.name);
        self.clean_up_in(lane, engine, acquisition, closing);
    }

    /// The same in a lane that was asked for before. It may be another node's by now: that costs time, no more, because
    /// the lane is only who waits, and the backend finds the node.
    pub(crate) fn clean_up_in(
        self: &Arc<Self>,
        lane: Result<NodeId, Error>,
        engine: &Weak<Engine>,
        acquisition: AcquisitionId,
        closing: ReleaseOptions,
    ) {
        let now = self.clock.now();
        let until = now + acquisition.lease.duration() + self.command_timeout;
        let cleanup = Cleanup {
            acquisition,
            closing,
            until,
            next: now,
            pause: FIRST_PAUSE,
            in_doubt: Some(self.doubts.one_more()),
        };
        // If not even a thread can be had, the lease must do.
        let _started = lane.and_then(|lane| {
            self.submit(engine, lane, Task::CleanUp, |work| work.cleanups.push(cleanup))
        });
    }

    fn submit(
        self: &Arc<Self>,
        engine: &Weak<Engine>,
        lane: NodeId,
        task: Task,
        add: impl FnOnce(&mut Work),
    ) -> Result<Arc<Queue>, Error> {
        // Until the work is in the queue, or a thread that ends just now might take the queue away.
        let mut state = self.state.lock();
        let new = || Arc::new(Queue::new(lane));
        let queue = Arc::clone(state.queues.entry((lane, task)).or_insert_with(new));
        let mut work = queue.work.lock();
        if !work.running {
            let (lanes, queue, engine) =
                (Arc::clone(self), Arc::clone(&queue), Weak::clone(engine));
            thread::Builder::new()
                .name(match task {
                    Task::Renew => format!("distlock-lane{}", lane.number()),
                    Task::RenewConfirmed => format!("distlock-repl{}", lane.number()),
                    Task::CleanUp => format!("distlock-tidy{}", lane.number()),
                })
                .spawn(move || lanes.run(&queue, &engine))
                .map_err(|failure| no_thread("could not start a lane's thread", failure))?;
            work.running = true;
        }
        add(&mut work);
        drop((work, state));
        queue.signal.raise();
        Ok(queue)
    }

    /// Sees to it that what is queued is taken up if whoever is asking gets no answer.
    ///
    /// Called after every change that leaves something in the queue while the lane's thread asks: when it is added, and
    /// when a batch is taken that was not all. So whatever lies behind a batch when that gets stuck has a relief already
    /// that will look.
    fn call_relief(self: &Arc<Self>, queue: &Arc<Queue>, engine: &Weak<Engine>) {
        let mut work = queue.work.lock();
        if work.renewals.is_empty() {
            return;
        }
        match work.reliefs.call() {
            Call::Nobody => {}
            Call::Wake => {
                drop(work);
                queue.relief.raise();
            }
            Call::Start(sender) => {
                let (lanes, ours, engine) =
                    (Arc::clone(self), Arc::clone(queue), Weak::clone(engine));
                let spawned = thread::Builder::new()
                    .name(format!("distlock-relief{}", queue.lane.number()))
                    .spawn(move || lanes.relieve(&ours, sender, &engine));
                if spawned.is_err() {
                    work.reliefs.left(sender); // what is queued waits for the lane's own thread, and is not lost
                }
            }
        }
    }

    /// Something is in doubt until this is dropped.
    pub(crate) fn in_doubt(&self) -> InDoubt {
        self.doubts.one_more()
    }

    /// Whether anything is in doubt.
    pub(crate) fn has_doubts(&self) -> bool {
        self.doubts.are_there()
    }

    /// Waits until nothing is left to be cleaned up, at most until `until`. Returns how much is.
    pub(crate) fn settle(&self, until: Moment) -> usize {
        self.doubts.wait(self.clock.as_ref(), until)
    }

    /// Ends the lanes as soon as nothing is left to be cleaned up.
    ///
    /// The process may end next, and its threads with it. So whatever is to be cleaned up is tried at once, and this
    /// waits until each was tried once more, at most until `until` on the machine's clock: nobody may be left to advance
    /// another one. A store that refuses connections is not waited for.
    pub(crate) fn stop(&self, until: Moment) {
        let mut state = self.state.lock();
        state.stopping = true;
        let queues: Vec<_> = state.queues.values().map(Arc::clone).collect();
        drop(state);
        for queue in queues {
            queue.hurry(self.clock.now());
        }
        self.doubts.wait(&SystemClock, until);
    }

    /// How many threads there are, and whether any has work that is due.
    #[cfg(test)]
    pub(crate) fn threads(&self) -> (usize, bool) {
        let (now, state) = (self.clock.now(), self.state.lock());
        state.queues.values().fold((0, false), |(threads, due), queue| {
            let work = queue.work.lock();
            let is_due = !work.renewals.is_empty()
                || work.cleanups.iter().any(|cleanup| cleanup.next <= now);
            (threads + usize::from(work.running) + work.reliefs.threads(), due || is_due)
        })
    }

    fn run(self: &Arc<Self>, queue: &Arc<Queue>, engine: &Weak<Engine>) {
        let mut idle_since = None;
        loop {
            let now = self.clock.now();
            let stopping = self.state.lock().stopping;
            let step = queue.next_step(now, stopping, &mut idle_since);
            if matches!(step, Step::End) {
                return self.forget(queue);
            }
            // A panic, of a backend's receipt perhaps, must not end the renewals of all other locks of this node.
            let _reported = catch_unwind(AssertUnwindSafe(|| match step {
                Step::Renew(batch) => {
                    self.call_relief(queue, engine);
                    self.renew_batch(queue, batch, engine);
                }
                Step::CleanUp(cleanup) => self.try_to_clean_up(queue, cleanup),
                Step::Sleep(until) => {
                    let _woken: Woken = self.clock.wait(&queue.signal, until);
                }
                Step::End => {}
            }));
        }
    }

    /// Takes the queue of a thread that has ended away, unless there is another thread already: where lanes come and go,
    /// as with failovers, that of an old one is not used any more.
    fn forget(&self, queue: &Arc<Queue>) {
        let mut state = self.state.lock();
        if !queue.work.lock().running || mutant("lane_forgets_a_new_queue") {
            state.queues.retain(|_, other| !Arc::ptr_eq(other, queue));
        }
    }

    /// How many queues there are.
    #[cfg(test)]
    pub(crate) fn queues(&self) -> usize {
        self.state.lock().queues.len()
    }

    /// Stands by for as long as the lane's thread asks, and does its work while that is stuck.
    fn relieve(self: &Arc<Self>, queue: &Arc<Queue>, sender: Sender, engine: &Weak<Engine>) {
        loop {
            let now = self.clock.now();
            let stopping = self.state.lock().stopping;
            match queue.next_relief(sender, now, stopping) {
                Some(Step::Renew(batch)) => {
                    let _reported = catch_unwind(AssertUnwindSafe(|| {
                        self.call_relief(queue, engine);
                        self.renew_batch(queue, batch, engine);
                    }));
                }
                Some(Step::Sleep(until)) => {
                    let _woken: Woken = self.clock.wait(&queue.relief, until);
                }
                _ => return,
            }
        }
    }

    fn renew_batch(&self, queue: &Queue, mut batch: Vec<RenewJob>, engine: &Weak<Engine>) {
        batch.retain(|job| {
            let may_be_renewed = !job.acquisition.has_ended();
            if !may_be_renewed {
                match &job.reply {
                    Some(reply) => reply.answer(Err(job.acquisition.lost_error())),
                    None => job.acquisition.lock().renewing = false,
                }
            }
            may_be_renewed
        });
        if batch.is_empty() {
            return;
        }
        let sent = self.clock.now();
        let patience = batch.iter().map(|job| job.acquisition.replication.patience()).max();
        let most = self.command_timeout + patience.unwrap_or_default();
        let by = sent + queue.recent.lock().time_for(&batch, sent, most);
        let renewing = |job: &RenewJob| {
            RenewalRequest::new(job.acquisition.id(job.lease))
                .replication(job.acquisition.replication)
        };
        let renewing: Vec<_> = batch.iter().map(renewing).collect();
        let answers = ask(|| Ok(self.backend.renew(queue.lane, &renewing, by)));
        let Some(engine) = engine.upgrade() else { return };
        let mut answers = match answers {
            Ok(answers) => {
                answers.into_iter().map(|answer| answer.map_err(|f| f.into_error())).collect()
            }
            Err(failure) => vec![Err(failure.into_error()); batch.len()],
        };
        answers.resize_with(batch.len(), || {
            Err(Error::unavailable("the store gave no answer for this renewal"))
        });
        for (job, answer) in batch.into_iter().zip(answers) {
            engine.renewed(&job, sent, answer);
        }
    }

    fn try_to_clean_up(&self, queue: &Queue, mut cleanup: Cleanup) {
        let is_last = self.state.lock().stopping;
        let by = self.clock.now() + self.command_timeout;
        match ask(|| self.backend.release(&cleanup.acquisition, cleanup.closing, by)) {
            Ok(_) => return,
            // It has answered, and will answer the same again: something else is there, or we may not.
            Err(Failure::Refused(error)) if !error.is_unavailable() => return,
            Err(Failure::Final(_)) => return,
            Err(_) => {}
        }
        let now = self.clock.now();
        if now >= cleanup.until {
            return; // The lease has ended by now whatever there was.
        }
        cleanup.next = now + cleanup.pause;
        cleanup.pause = (cleanup.pause * 2).min(LONGEST_PAUSE);
        if is_last {
            cleanup.in_doubt = None;
        }
        queue.work.lock().cleanups.push(cleanup);
        if !is_last && self.state.lock().stopping && !mutant("stop_misses_what_is_tried") {
            queue.hurry(now); // whoever stops us may have come by while this one was not in the queue
        }
    }
}

/// What a renewal came to, for the engine.
pub(crate) type RenewalAnswer = Result<Renewal, Error>;

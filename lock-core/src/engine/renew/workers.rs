//! [`Workers`]: the threads that send renewals, and the threads that clean up after unknown
//! outcomes.
//!
//! Each node has one main thread for each task, started by the first work, so a cleanup that hangs
//! delays no renewal. A cleanup continues after the call that caused it, until the store has
//! confirmed or refused it, or the lease has ended.

use super::node_queue::{Cleanup, NodeQueue, Step, Work};
use super::pending_cleanups::{PendingCleanup, PendingCleanups};
use super::renewal_time::TimeClass;
use super::spare_workers::{Call, WorkerId};
use super::{RenewalHandler, RenewalJob};
use crate::backend::owner::OwnerLabel;
use crate::backend::replication::Replicas;
use crate::backend::{
    AcquisitionId, Backend, Failure, NodeId, ReleaseOptions, Renewal, RenewalRequest, call_backend,
};
use crate::error::Error;
use crate::name::LockName;
use crate::panics::contain;
use crate::sync::thread;
use crate::sync::{HashMap, Mutex};
use crate::time::backoff::Backoff;
use crate::time::{Clock, Moment, SystemClock, Woken};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The first pause between two attempts of a cleanup. It may be long, because no caller waits for a
/// cleanup.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest such pause, so that several attempts fit into the lease plus the command timeout.
/// After that time a cleanup ends, because the lease has ended by then.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// All workers of a client.
pub(in crate::engine) struct Workers {
    backend: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    command_timeout: Duration,
    /// The label that describes this client as a holder.
    label: Option<Arc<str>>,
    handler: Weak<dyn RenewalHandler>,
    state: Mutex<State>,
    cleanups: Arc<PendingCleanups>,
}

#[derive(Default)]
struct State {
    queues: HashMap<(NodeId, Task), Arc<NodeQueue>>,
    stopping: bool,
}

impl State {
    /// Returns the queue of this task, creating it if needed. A new queue shares the recent
    /// duration of renewals with the queues of this node whose renewals equally many replicas must
    /// confirm.
    fn queue(&mut self, node: NodeId, task: Task) -> Arc<NodeQueue> {
        if let Some(queue) = self.queues.get(&(node, task)) {
            return Arc::clone(queue);
        }
        let is_like =
            |(its_node, its_task): &(NodeId, Task)| *its_node == node && its_task.is_like(task);
        let like = self.queues.iter().find(|(key, _)| is_like(key));
        let time = like.map_or_else(Arc::default, |(_, queue)| Arc::clone(&queue.time));
        let queue = Arc::new(NodeQueue::new(node, time));
        self.queues.insert((node, task), Arc::clone(&queue));
        queue
    }
}

/// The task of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Task {
    /// Renewals that this many replicas must confirm, in one time class. Renewals that need no
    /// replica must not wait for the confirmations of others.
    Renew(Replicas, TimeClass),
    CleanUp,
}

impl Task {
    /// Returns whether both tasks are renewals that equally many replicas must confirm: their
    /// requests take about equally long.
    fn is_like(self, other: Self) -> bool {
        matches!((self, other), (Self::Renew(one, _), Self::Renew(two, _)) if one == two)
    }

    fn thread_name(self, node: NodeId) -> String {
        let what = match self {
            Self::Renew(Replicas::Off, _) => "renew",
            Self::Renew(..) => "confirm",
            Self::CleanUp => "cleanup",
        };
        format!("distlock-{what}{}", node.number())
    }
}

impl Workers {
    pub(in crate::engine) fn new(
        backend: Arc<dyn Backend>,
        clock: Arc<dyn Clock>,
        command_timeout: Duration,
        label: Option<Arc<str>>,
        handler: Weak<dyn RenewalHandler>,
    ) -> Self {
        let (state, cleanups) = (Mutex::default(), Arc::default());
        Self {
            backend,
            clock,
            command_timeout,
            label,
            handler,
            state,
            cleanups,
        }
    }

    /// Queues these jobs for their nodes, and leaves `jobs` empty. Jobs of one node and one task
    /// are queued together, so that a batch costs one wake-up. A job fails if its node cannot be
    /// determined or no thread can be started.
    pub(in crate::engine) fn renew(self: &Arc<Self>, jobs: &mut Vec<RenewalJob>) {
        while let Some(job) = jobs.pop() {
            let node = match self.renewal_node(&job.acquisition.name) {
                Ok(node) => node,
                Err(error) => {
                    jobs.extend(self.tell_renewed([(job, Err(error))], self.clock.now()));
                    continue;
                }
            };
            let task = self.task_of(&job);
            let is_there = |job: &RenewalJob| {
                self.task_of(job) == task
                    && self
                        .renewal_node(&job.acquisition.name)
                        .is_ok_and(|its| its == node)
            };
            // With a single node and leases of similar length, as is usual, these are all jobs.
            let mut together = if jobs.iter().all(is_there) {
                std::mem::take(jobs)
            } else {
                jobs.extract_if(.., |job| is_there(job)).collect()
            };
            together.push(job);
            match self.submit(node, task, |work| work.renewals.extend(together.drain(..))) {
                Ok(queue) => self.call_spare(&queue),
                Err(error) => {
                    let failed = together.drain(..).map(|job| (job, Err(error.clone())));
                    jobs.extend(self.tell_renewed(failed, self.clock.now()));
                }
            }
            if jobs.capacity() == 0 {
                *jobs = together; // empty: reuse the memory
            }
        }
    }

    fn task_of(&self, job: &RenewalJob) -> Task {
        let class = TimeClass::of(job, self.command_timeout);
        Task::Renew(job.acquisition.replication.count(), class)
    }

    /// Reports the answers to renewals sent at `sent`. Returns the renewals that must be sent next.
    fn tell_renewed(
        &self,
        answers: impl IntoIterator<Item = (RenewalJob, Result<Renewal, Error>)>,
        sent: Moment,
    ) -> Vec<RenewalJob> {
        let Some(handler) = self.handler.upgrade() else {
            return Vec::new();
        };
        // A panic, for example in a backend's receipt, must not lose the other answers.
        let tell = |(job, answer)| contain(|| handler.renewal_answered(&job, sent, answer));
        answers.into_iter().filter_map(tell).flatten().collect()
    }

    /// Returns the node that renews this name now.
    pub(in crate::engine) fn renewal_node(&self, name: &LockName) -> Result<NodeId, Error> {
        call_backend(|| Ok(self.backend.renewal_node(name))).map_err(Failure::into_error)
    }

    /// Queues the release of an acquisition. A worker repeats it until the store has confirmed or
    /// refused it, or the lease has ended.
    ///
    /// `node` only selects the thread: the name may have moved to another node.
    pub(in crate::engine) fn clean_up(
        self: &Arc<Self>,
        node: Result<NodeId, Error>,
        acquisition: AcquisitionId,
        options: ReleaseOptions,
    ) {
        let now = self.clock.now();
        let until = now + acquisition.lease.duration() + self.command_timeout;
        let backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let pending = Some(self.cleanups.add());
        let cleanup = Cleanup {
            acquisition,
            options,
            since: now,
            until,
            next: now,
            backoff,
            pending,
        };
        // If no thread can be started, the acquisition ends only with its lease.
        let _started = node
            .and_then(|node| self.submit(node, Task::CleanUp, |work| work.cleanups.push(cleanup)));
    }

    fn submit(
        self: &Arc<Self>,
        node: NodeId,
        task: Task,
        add: impl FnOnce(&mut Work),
    ) -> Result<Arc<NodeQueue>, Error> {
        // Locked until the work is queued, because a thread that is ending would otherwise remove
        // the queue.
        let mut state = self.state.lock();
        let queue = state.queue(node, task);
        let mut work = queue.work.lock();
        let (workers, ours) = (Arc::clone(self), Arc::clone(&queue));
        work.thread.start(
            || task.thread_name(node),
            move || {
                workers.run(&ours, WorkerId::MAIN);
                workers.forget(&ours);
            },
        )?;
        add(&mut work);
        drop((work, state));
        queue.signal.raise();
        Ok(queue)
    }

    /// Calls a spare worker for queued work while all sending workers wait for answers.
    ///
    /// Called after every change that leaves work behind a sending worker: new work, and a batch
    /// that did not take all work. So a spare worker always checks whether that batch hangs.
    fn call_spare(self: &Arc<Self>, queue: &Arc<NodeQueue>) {
        let mut work = queue.work.lock();
        if work.renewals.is_empty() {
            return;
        }
        match work.spares.call() {
            Call::None => {}
            Call::Wake => {
                drop(work);
                queue.spare.raise();
            }
            Call::Start(worker) => {
                let (workers, ours) = (Arc::clone(self), Arc::clone(queue));
                let spawned = thread::Builder::new()
                    .name(format!("distlock-spare{}", queue.node.number()))
                    .spawn(move || workers.run(&ours, worker));
                if spawned.is_err() {
                    work.spares.left(worker); // the queued work waits for the main worker
                }
            }
        }
    }

    /// Adds a pending cleanup for a request whose outcome is unknown. The cleanup ends when the
    /// returned value is dropped.
    pub(in crate::engine) fn pending_cleanup(&self) -> PendingCleanup {
        self.cleanups.add()
    }

    pub(in crate::engine) fn has_pending_cleanups(&self) -> bool {
        self.cleanups.any()
    }

    /// Waits until no cleanup is pending, at most until `until`. Returns the number of cleanups
    /// that are pending at `until`; 0 if none was pending at some earlier moment.
    pub(in crate::engine) fn settle(&self, until: Moment) -> usize {
        self.cleanups.wait(self.clock.as_ref(), until)
    }

    /// Ends the workers once no cleanup is left.
    ///
    /// The process may exit next. So each cleanup is repeated at once, and this call waits for the
    /// results until `until` on the system clock, because any other clock may not advance any more.
    pub(in crate::engine) fn stop(&self, until: Moment) {
        let mut state = self.state.lock();
        state.stopping = true;
        let queues: Vec<_> = state.queues.values().map(Arc::clone).collect();
        drop(state);
        for queue in queues {
            queue.retry_cleanups_now(self.clock.now());
        }
        self.cleanups.wait(&SystemClock, until);
    }

    /// Returns the number of threads, and whether any of them has work that is due.
    #[cfg(test)]
    pub(in crate::engine) fn threads(&self) -> (usize, bool) {
        let (now, state) = (self.clock.now(), self.state.lock());
        state
            .queues
            .values()
            .fold((0, false), |(threads, due), queue| {
                let work = queue.work.lock();
                let is_due =
                    !work.renewals.is_empty() || work.cleanups.next().is_some_and(|due| due <= now);
                let running = usize::from(work.thread.is_running());
                (threads + running + work.spares.threads(), due || is_due)
            })
    }

    /// Returns the number of queues.
    #[cfg(test)]
    pub(in crate::engine) fn queues(&self) -> usize {
        self.state.lock().queues.len()
    }

    fn run(self: &Arc<Self>, queue: &Arc<NodeQueue>, worker: WorkerId) {
        loop {
            let stopping = self.state.lock().stopping;
            let step = queue.next_step(worker, self.clock.now(), stopping);
            if matches!(step, Step::End) {
                return;
            }
            // A panic, for example in a backend's receipt, must not end the renewals of all other
            // locks.
            contain(|| match step {
                Step::Renew(batch) => {
                    self.call_spare(queue);
                    self.renew_batch(queue, batch);
                }
                Step::CleanUp(cleanup) => self.try_to_clean_up(queue, cleanup),
                Step::Sleep(until) => {
                    let _woken: Woken = self.clock.wait(queue.signal_of(worker), until);
                }
                Step::End => {}
            });
        }
    }

    /// Removes the queue of an ended thread, unless a new thread runs. Without this, the queues of
    /// nodes that are gone, for example after failovers, would remain.
    fn forget(&self, queue: &Arc<NodeQueue>) {
        let mut state = self.state.lock();
        let is_running = queue.work.lock().thread.is_running();
        if !is_running {
            state.queues.retain(|_, other| !Arc::ptr_eq(other, queue));
        }
    }

    fn renew_batch(self: &Arc<Self>, queue: &NodeQueue, mut batch: Vec<RenewalJob>) {
        batch.retain(RenewalJob::is_wanted);
        if batch.is_empty() {
            return;
        }
        let sent = self.clock.now();
        let by = sent + queue.time.time_for(&batch, self.command_timeout);
        let unix_time = self.clock.unix_time();
        let label = |job: &RenewalJob| {
            let text = self
                .label
                .as_ref()
                .filter(|_| job.acquisition.renews_label(sent, job.lease))?;
            let held_for = sent.since(job.acquisition.since);
            Some(OwnerLabel::new(
                Arc::clone(text),
                unix_time.saturating_sub(held_for),
            ))
        };
        let request = |job: &RenewalJob| {
            RenewalRequest::new(job.acquisition.id(job.lease))
                .replication(job.acquisition.replication)
                .label(label(job))
        };
        let requests: Vec<_> = batch.iter().map(request).collect();
        let answers = call_backend(|| Ok(self.backend.renew(queue.node, &requests, by)));
        let took = self.clock.now().since(sent);
        match &answers {
            Ok(answers) if answers.iter().any(Result::is_ok) => queue.time.succeeded(took),
            _ => queue.time.failed(took),
        }
        let mut answers = match answers {
            Ok(answers) => answers
                .into_iter()
                .map(|answer| answer.map_err(Failure::into_error))
                .collect(),
            Err(failure) => vec![Err(failure.into_error()); batch.len()],
        };
        answers.resize_with(batch.len(), || {
            Err(Error::unavailable(
                "the store gave no answer for this renewal",
            ))
        });
        let mut next = self.tell_renewed(batch.into_iter().zip(answers), sent);
        self.renew(&mut next);
    }

    fn try_to_clean_up(&self, queue: &NodeQueue, mut cleanup: Cleanup) {
        let is_last = self.state.lock().stopping;
        let now = self.clock.now();
        let (options, by) = (
            cleanup.options.after(now.since(cleanup.since)),
            now + self.command_timeout,
        );
        match call_backend(|| self.backend.release(&cleanup.acquisition, options, by)) {
            Ok(_) => return,
            // The store has refused the release, and will refuse it again.
            Err(Failure::Refused(error)) if !error.is_unavailable() => return,
            Err(Failure::Final(error)) => {
                if let Some(handler) = self.handler.upgrade() {
                    handler.cleanup_failed(&cleanup.acquisition.name, error);
                }
                return;
            }
            Err(_) => {}
        }
        let now = self.clock.now();
        if now >= cleanup.until {
            return; // The lease has ended in any case.
        }
        cleanup.next = now + cleanup.backoff.next();
        if is_last {
            cleanup.pending = None;
        }
        queue.work.lock().cleanups.push(cleanup);
        if !is_last && self.state.lock().stopping {
            // `stop` may have run while this cleanup was not in the queue.
            queue.retry_cleanups_now(now);
        }
    }
}

impl RenewalJob {
    /// Returns whether the job must still be sent. If not, ends the renewal, or answers the
    /// extension.
    fn is_wanted(&self) -> bool {
        let is_wanted = !self.acquisition.has_ended();
        match &self.extension {
            _ if is_wanted => {}
            Some(extension) => extension.answer(Err(self.acquisition.lost_error())),
            None => self.acquisition.lock().renewing = false,
        }
        is_wanted
    }
}

//! [`NodeWorker`]: the threads of one quorum node, and its pending cleanups and watches.
//!
//! One thread sends attempts and releases in their order. Another one sends renewals, which must
//! not wait behind those.

use super::node::QuorumNode;
use super::watch::PendingWatch;
use lock_core::backend::{AcquisitionId, Failure, Release, ReleaseOptions, contain};
use lock_core::{Clock, Error, Moment, Signal};
use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// One node and its task queues, which are closed when the worker is dropped.
pub(super) struct NodeWorker {
    context: Arc<NodeContext>,
    attempts: Arc<TaskQueue>,
    renewals: Arc<TaskQueue>,
}

/// The state that the threads of a node share. They do not keep the quorum alive.
pub(super) struct NodeContext {
    number: usize,
    node: QuorumNode,
    clock: Arc<dyn Clock>,
    node_timeout: Duration,
    /// Whether the last request got no answer.
    is_silent: AtomicBool,
    /// The start of the attempt or release under way.
    busy_since: Mutex<Option<Moment>>,
    /// The number of attempts and releases under way or queued.
    open: AtomicUsize,
    /// The acquisitions to close when the node answers again.
    cleanups: Mutex<VecDeque<PendingCleanup>>,
    /// The watches to begin when the node answers again.
    watches: Mutex<Vec<PendingWatch>>,
    /// Wakes the thread for attempts, which also does the pending work.
    signal: Arc<Signal>,
}

/// An acquisition that may be left on a node.
struct PendingCleanup {
    acquisition: AcquisitionId,
    /// The end of any lease that it may have there.
    until: Moment,
}

/// The tasks of one thread, in their order.
struct TaskQueue {
    name: String,
    state: Mutex<QueueState>,
    /// Raised for each task, and when the queue is closed.
    signal: Arc<Signal>,
}

#[derive(Default)]
struct QueueState {
    tasks: VecDeque<Task>,
    is_running: bool,
    is_closed: bool,
}

type Task = Box<dyn FnOnce(&NodeContext) + Send>;

/// The queue of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Queue {
    Attempts,
    Renewals,
}

/// The most pending cleanups of a node that does not answer. Others end with their leases.
const MAX_CLEANUPS: usize = 10_000;
/// The pause between attempts to reach a silent node for its pending work.
const RETRY: Duration = Duration::from_secs(1);
/// The time after which a node without an answer seems dead.
pub(super) const SUSPECT_AFTER: Duration = Duration::from_millis(100);

impl NodeWorker {
    pub(super) fn new(
        number: usize,
        node: QuorumNode,
        clock: Arc<dyn Clock>,
        node_timeout: Duration,
    ) -> Self {
        let context = NodeContext {
            number,
            node,
            clock,
            node_timeout,
            is_silent: AtomicBool::new(false),
            busy_since: Mutex::new(None),
            open: AtomicUsize::new(0),
            cleanups: Mutex::default(),
            watches: Mutex::default(),
            signal: Arc::default(),
        };
        let queue = |what, signal| {
            let (name, state) = (format!("distlock-{what}{number}"), Mutex::default());
            Arc::new(TaskQueue { name, state, signal })
        };
        let attempts = queue("node", Arc::clone(&context.signal));
        Self { context: Arc::new(context), attempts, renewals: queue("keep", Arc::default()) }
    }

    pub(super) fn number(&self) -> usize {
        self.context.number
    }

    pub(super) fn context(&self) -> &Arc<NodeContext> {
        &self.context
    }

    /// Whether a request that bypasses the queue overtakes none and is not delayed.
    pub(super) fn is_idle(&self) -> bool {
        self.context.open.load(Ordering::Acquire) == 0 && !self.context.is_suspect()
    }

    /// Calls `tell` when the present attempts and releases are done.
    pub(super) fn when_done(&self, tell: impl FnOnce() + Send + 'static) {
        let queue = self.attempts.state.lock();
        if queue.is_running {
            self.attempts.push(queue, Box::new(move |_| tell()));
        } else {
            drop(queue);
            tell();
        }
    }

    /// Sends a request on the thread of the node and passes the outcome to `done`: on that thread,
    /// or here if no thread can be started. A request whose turn comes after `by` is not sent.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        queue: Queue,
        by: Moment,
        request: impl FnOnce(&NodeContext, Moment) -> Result<T, Failure> + Send + 'static,
        done: impl FnOnce(&NodeContext, Result<T, Failure>) + Send + 'static,
    ) {
        let is_attempt = queue == Queue::Attempts;
        let open = usize::from(is_attempt);
        self.context.open.fetch_add(open, Ordering::AcqRel);
        let task: Task = Box::new(move |context| {
            if is_attempt {
                *context.busy_since.lock() = Some(context.clock.now());
            }
            let outcome = context.ask(by, |by| request(context, by));
            if is_attempt {
                *context.busy_since.lock() = None;
            }
            // Before `done`: the thread that it wakes may send the next request at once.
            context.open.fetch_sub(open, Ordering::AcqRel);
            done(context, outcome);
        });
        let queue = if is_attempt { &self.attempts } else { &self.renewals };
        if let Err(task) = queue.add(&self.context, task) {
            task(&self.context);
        }
    }
}

impl Drop for NodeWorker {
    fn drop(&mut self) {
        self.attempts.close();
        self.renewals.close();
    }
}

impl fmt::Debug for NodeWorker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.context.node.fmt(f)
    }
}

impl NodeContext {
    pub(super) fn number(&self) -> usize {
        self.number
    }

    pub(super) fn node(&self) -> &QuorumNode {
        &self.node
    }

    /// The deadline of a request that is sent now.
    pub(super) fn by(&self) -> Moment {
        self.clock.now() + self.node_timeout
    }

    /// Whether the node seems dead.
    pub(super) fn is_suspect(&self) -> bool {
        let is_late = |since: Moment| self.clock.now() >= since + SUSPECT_AFTER;
        self.is_silent.load(Ordering::Relaxed) || self.busy_since.lock().is_some_and(is_late)
    }

    fn ask<T>(
        &self,
        by: Moment,
        request: impl FnOnce(Moment) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        if self.clock.now() >= by {
            return Err(Failure::NotSent(Error::unavailable(format!(
                "{} has not answered what it was asked before",
                self.node.name()
            ))));
        }
        let outcome = contain(|| request(by)).unwrap_or_else(|| {
            let why = format!("{} panicked; see its message", self.node.name());
            Err(Failure::Unknown(Error::unavailable(why)))
        });
        let is_silent = is_unavailable(&outcome) && !matches!(outcome, Err(Failure::Refused(_)));
        self.is_silent.store(is_silent, Ordering::Relaxed);
        outcome
    }

    /// Releases an acquisition; without an answer, again until there is one or the lease is over.
    pub(super) fn release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        let outcome = self.node.release(acquisition, options, by);
        if is_unavailable(&outcome) {
            self.release_later(acquisition.clone());
        }
        outcome
    }

    /// Releases an acquisition when the node answers again, with a tombstone: a request may be
    /// under way.
    pub(super) fn release_later(&self, acquisition: AcquisitionId) {
        let until = self.clock.now() + acquisition.lease.duration() + self.node_timeout;
        let mut cleanups = self.cleanups.lock();
        if cleanups.iter().any(|other| other.acquisition.owner == acquisition.owner) {
            return;
        }
        if cleanups.len() >= MAX_CLEANUPS {
            cleanups.pop_front();
        }
        cleanups.push_back(PendingCleanup { acquisition, until });
        drop(cleanups);
        // An asynchronous release fails on another thread, while that of the node sleeps.
        self.signal.raise();
    }

    /// Begins a watch when the node answers again, if it is still wanted.
    pub(super) fn watch_later(&self, watch: PendingWatch) {
        let mut watches = self.watches.lock();
        watches.retain(PendingWatch::is_wanted);
        watches.push(watch);
    }

    fn has_pending(&self) -> bool {
        !self.cleanups.lock().is_empty() || !self.watches.lock().is_empty()
    }

    /// Does the pending work while the node answers. Returns the time of the next try.
    fn do_pending(&self) -> Moment {
        match self.clean_up() {
            Moment::NEVER => self.begin_watches(),
            retry_at => retry_at,
        }
    }

    fn begin_watches(&self) -> Moment {
        loop {
            let Some(watch) = self.watches.lock().pop() else { return Moment::NEVER };
            let outcome = self.ask(self.by(), |by| watch.start(self.number, &self.node, by));
            if is_unavailable(&outcome) {
                self.watch_later(watch);
                return self.clock.now() + RETRY;
            }
            // A refusal would be repeated.
            if outcome.is_ok() {
                watch.wake();
            }
        }
    }

    fn clean_up(&self) -> Moment {
        loop {
            let now = self.clock.now();
            let mut cleanups = self.cleanups.lock();
            cleanups.retain(|one| now < one.until);
            let Some(first) = cleanups.pop_front() else { return Moment::NEVER };
            drop(cleanups);
            let options = ReleaseOptions::WITH_TOMBSTONE;
            let by = now + self.node_timeout;
            let outcome = self.ask(by, |by| self.node.release(&first.acquisition, options, by));
            if is_unavailable(&outcome) {
                self.cleanups.lock().push_front(first);
                return self.clock.now() + RETRY;
            }
        }
    }
}

fn is_unavailable<T>(outcome: &Result<T, Failure>) -> bool {
    outcome.as_ref().is_err_and(|failure| failure.error().is_unavailable())
}

impl TaskQueue {
    /// Adds a task. Returns it if there is no thread to do it.
    fn add(self: &Arc<Self>, context: &Arc<NodeContext>, task: Task) -> Result<(), Task> {
        let mut state = self.state.lock();
        if !state.is_running {
            let (queue, context) = (Arc::clone(self), Arc::clone(context));
            let thread = thread::Builder::new().name(self.name.clone());
            if thread.spawn(move || queue.run(&context)).is_err() {
                return Err(task);
            }
            state.is_running = true;
        }
        self.push(state, task);
        Ok(())
    }

    fn push(&self, mut state: MutexGuard<'_, QueueState>, task: Task) {
        state.tasks.push_back(task);
        drop(state);
        self.signal.raise();
    }

    fn close(&self) {
        self.state.lock().is_closed = true;
        self.signal.raise();
    }

    /// Does the tasks and the pending work, until the queue is closed and empty.
    fn run(&self, context: &Arc<NodeContext>) {
        // `NEVER` without pending work: what is added then is tried at once.
        let mut retry_at = Moment::NEVER;
        loop {
            let mut state = self.state.lock();
            let task = state.tasks.pop_front();
            if task.is_none() && state.is_closed {
                return;
            }
            drop(state);
            if let Some(task) = task {
                // The callback of a task may panic, and must not end this thread.
                contain(|| task(context));
                let now = context.clock.now();
                let is_silent = context.is_silent.load(Ordering::Relaxed);
                retry_at = if is_silent { retry_at.min(now + RETRY) } else { now };
                continue;
            }
            let has_pending = context.has_pending();
            if has_pending && (retry_at == Moment::NEVER || context.clock.now() >= retry_at) {
                retry_at =
                    contain(|| context.do_pending()).unwrap_or_else(|| context.clock.now() + RETRY);
                continue;
            }
            let until = if has_pending { retry_at } else { Moment::NEVER };
            context.clock.wait(&self.signal, until);
        }
    }
}

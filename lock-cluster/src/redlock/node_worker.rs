//! [`NodeWorker`]: the two background tasks of a quorum node, its pending cleanups and watches.
//!
//! One task sends attempts, releases and all other requests except renewals in their order, and
//! does the pending work in between. The other task sends renewals, which must not wait behind
//! attempts.

use super::node::QuorumNode;
use super::watch::PendingWatch;
use lock_core::backend::{
    AcquisitionId, BackgroundTask, Failure, KeptLock, Release, ReleaseOptions, contain,
};
use lock_core::{Clock, Error, Moment};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// One node and its request queues, which are closed when the worker is dropped.
pub(super) struct NodeWorker {
    context: Arc<NodeContext>,
    attempts: Arc<RequestQueue>,
    renewals: Arc<RequestQueue>,
}

/// The state that the tasks of a node share. It does not keep the quorum alive.
pub(super) struct NodeContext {
    number: usize,
    node: QuorumNode,
    clock: Arc<dyn Clock>,
    node_timeout: Duration,
    /// True if the last request got no answer.
    is_unanswered: AtomicBool,
    /// True if the last request got no answer. A request that got none because its own deadline was
    /// short is ignored.
    is_silent: AtomicBool,
    /// The shortest recent time to an answer, in nanoseconds, as a measure of the node's distance.
    fastest: AtomicU64,
    /// True if a request ever got no answer.
    has_failed: AtomicBool,
    /// The start of the request (except renewals) or of the piece of pending work in progress.
    busy_since: Mutex<Option<Moment>>,
    /// The number of requests in progress or queued, except renewals.
    open: AtomicUsize,
    /// The acquisitions to release when the node answers again.
    cleanups: Mutex<VecDeque<PendingCleanup>>,
    /// The watches to start when the node answers again.
    watches: Mutex<Vec<PendingWatch>>,
    /// The task that sends the attempts and does the pending work.
    attempts: BackgroundTask,
}

/// An acquisition that may still exist on a node.
struct PendingCleanup {
    acquisition: AcquisitionId,
    options: ReleaseOptions,
    /// The time at which the options were determined.
    since: Moment,
    /// The end of any lease that the acquisition may have on the node.
    until: Moment,
}

/// The requests of one background task, in their order.
struct RequestQueue {
    state: Mutex<QueueState>,
    task: BackgroundTask,
}

#[derive(Default)]
struct QueueState {
    requests: VecDeque<Request>,
    is_closed: bool,
}

type Request = Box<dyn FnOnce(&NodeContext) + Send>;

/// The queue of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Queue {
    Attempts,
    Renewals,
}

/// The maximum number of pending cleanups of a node that does not answer. An acquisition whose
/// cleanup is dropped ends with its lease.
const MAX_CLEANUPS: usize = 10_000;
/// The pause between attempts to reach a silent node for its pending releases and subscriptions, so
/// that a dead server costs little. The attempts continue until the leases have ended and no waiter
/// is left.
const RETRY: Duration = Duration::from_secs(1);
/// The shortest time after which a node without an answer counts as silent, because an attempt with
/// rivals must not wait for it. The time is four times the node's fastest answer if that is longer,
/// but at most `node_timeout`. A dropped client waits at most this time for its nodes: otherwise
/// their votes would stay until the lease ends.
pub(super) const SUSPECT_AFTER: Duration = Duration::from_millis(100);
/// The time after which a node that has neither answered nor failed counts as silent, because it
/// may be far away, and the connection must be opened first. `node_timeout` is used if it is
/// shorter.
const SUSPECT_AT_FIRST: Duration = Duration::from_secs(2);
/// The value of `fastest` before the first answer.
const NO_ANSWER: u64 = u64::MAX;

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
            is_unanswered: AtomicBool::new(false),
            is_silent: AtomicBool::new(false),
            fastest: AtomicU64::new(NO_ANSWER),
            has_failed: AtomicBool::new(false),
            busy_since: Mutex::new(None),
            open: AtomicUsize::new(0),
            cleanups: Mutex::default(),
            watches: Mutex::default(),
            attempts: BackgroundTask::default(),
        };
        let queue = |task| {
            Arc::new(RequestQueue {
                state: Mutex::default(),
                task,
            })
        };
        let attempts = queue(context.attempts.clone());
        Self {
            context: Arc::new(context),
            attempts,
            renewals: queue(BackgroundTask::default()),
        }
    }

    pub(super) fn number(&self) -> usize {
        self.context.number
    }

    pub(super) fn context(&self) -> &Arc<NodeContext> {
        &self.context
    }

    /// Returns whether a request that bypasses the queue overtakes no other request and is not
    /// delayed.
    pub(super) fn is_idle(&self) -> bool {
        self.context.open.load(Ordering::Acquire) == 0 && !self.context.is_suspect()
    }

    /// Calls `tell` when the requests queued so far, except renewals, are done.
    pub(super) fn when_done(&self, tell: impl FnOnce() + Send + 'static) {
        if self.attempts.task.is_running() {
            self.attempts.push(Box::new(move |_| tell()));
        } else {
            tell();
        }
    }

    /// Sends a request on a thread of the node and passes the outcome to `done`, on that thread. If
    /// no thread can be started, the request and `done` run on the caller's thread. A request that
    /// is still queued at `by` is not sent, and `done` receives [`Failure::NotSent`].
    pub(super) fn ask<T: Send + 'static>(
        &self,
        queue: Queue,
        by: Moment,
        request: impl FnOnce(&NodeContext, Moment) -> Result<T, Failure> + Send + 'static,
        done: impl FnOnce(&NodeContext, Result<T, Failure>) + Send + 'static,
    ) {
        self.ask_unless(queue, by, |_| None, request, done);
    }

    /// Sends a request as [`ask`](Self::ask) does. `known` is called when the request reaches the
    /// head of the queue. If `known` returns the outcome, nothing is sent, and nothing is recorded
    /// about the node.
    pub(super) fn ask_unless<T: Send + 'static>(
        &self,
        queue: Queue,
        by: Moment,
        known: impl FnOnce(&NodeContext) -> Option<T> + Send + 'static,
        request: impl FnOnce(&NodeContext, Moment) -> Result<T, Failure> + Send + 'static,
        done: impl FnOnce(&NodeContext, Result<T, Failure>) + Send + 'static,
    ) {
        let is_attempt = queue == Queue::Attempts;
        let open = usize::from(is_attempt);
        self.context.open.fetch_add(open, Ordering::AcqRel);
        let time = by.since(self.context.now());
        let send: Request = Box::new(move |context| {
            let ask = || match known(context) {
                Some(known) => Ok(known),
                None => context.ask(by, time, |by| request(context, by)),
            };
            let outcome = if is_attempt { context.busy(ask) } else { ask() };
            // Counted down before `done`, because the thread that `done` wakes may send the next
            // request at once.
            context.open.fetch_sub(open, Ordering::AcqRel);
            done(context, outcome);
        });
        let queue = if is_attempt {
            &self.attempts
        } else {
            &self.renewals
        };
        let (runs, context) = (Arc::clone(queue), Arc::clone(&self.context));
        // `NEVER` while there is no pending work, so that new work is tried at once.
        let mut retry_at = Moment::NEVER;
        let turn = move || match runs.send_next(&context) {
            Sent::Closed => None,
            Sent::One if !is_attempt => Some(context.now()),
            Sent::None if !is_attempt => Some(Moment::NEVER),
            sent => Some(context.next_turn(&mut retry_at, matches!(sent, Sent::One))),
        };
        match queue.task.start(&self.context.clock, turn) {
            Ok(()) => queue.push(send),
            Err(_) => send(&self.context),
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

    pub(super) fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Records in `busy_since` that requests other than renewals must wait for this call.
    fn busy<T>(&self, call: impl FnOnce() -> T) -> T {
        *self.busy_since.lock() = Some(self.clock.now());
        let outcome = call();
        *self.busy_since.lock() = None;
        outcome
    }

    /// Returns the deadline of a request that is sent now.
    pub(super) fn by(&self) -> Moment {
        self.clock.now() + self.node_timeout
    }

    /// Returns whether the node seems dead.
    pub(super) fn is_suspect(&self) -> bool {
        let is_late = |since: Moment| self.clock.now() >= since + self.suspect_after();
        self.is_silent.load(Ordering::Relaxed) || self.busy_since.lock().is_some_and(is_late)
    }

    /// Returns the time after which the node seems dead. A distant node gets more time, because
    /// otherwise its answers would always arrive too late.
    fn suspect_after(&self) -> Duration {
        let patience = match self.fastest.load(Ordering::Relaxed) {
            NO_ANSWER if self.has_failed.load(Ordering::Relaxed) => SUSPECT_AFTER,
            NO_ANSWER => SUSPECT_AT_FIRST,
            fastest => Duration::from_nanos(fastest) * 4,
        };
        patience.min(self.node_timeout).max(SUSPECT_AFTER)
    }

    /// Records the time to an answer as the distance of the node. Only for requests that are always
    /// sent: watches and releases may need no request, and a refusal may be cached.
    pub(super) fn note_distance(&self, asked: Moment) {
        let took = self.clock.now().since(asked).as_nanos();
        let took = u64::try_from(took).unwrap_or(NO_ANSWER - 1);
        // A longer time raises the value in steps, so that a more distant node soon has enough
        // time.
        let next = |old: u64| match old {
            NO_ANSWER => Some(took),
            old => Some(took.min(old + old / 8 + 1)),
        };
        let _updated = self
            .fastest
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }

    /// Sends a request, and records whether the node answered. The caller waits for the answer for
    /// `time`, until `by`.
    fn ask<T>(
        &self,
        by: Moment,
        time: Duration,
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
        let is_unanswered =
            is_unavailable(&outcome) && !matches!(outcome, Err(Failure::Refused(_)));
        self.is_unanswered.store(is_unanswered, Ordering::Relaxed);
        let is_cut_short = time < self.node_timeout / 2 && self.clock.now() >= by;
        if !(is_unanswered && is_cut_short) {
            self.is_silent.store(is_unanswered, Ordering::Relaxed);
            self.has_failed.fetch_or(is_unanswered, Ordering::Relaxed);
        }
        outcome
    }

    /// Releases an acquisition. If there is no answer, the release is repeated until there is an
    /// answer or the lease has ended.
    pub(super) fn release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        let outcome = self.node.release(acquisition, options, by);
        if is_unavailable(&outcome) {
            self.release_later(acquisition.clone(), options.kept);
        }
        outcome
    }

    /// Releases an acquisition when the node answers again. Leaves a tombstone, because a request
    /// may still be in progress.
    pub(super) fn release_later(&self, acquisition: AcquisitionId, kept: Option<KeptLock>) {
        let since = self.clock.now();
        let options = ReleaseOptions::WITH_TOMBSTONE.kept(kept);
        let until = since + acquisition.lease.duration() + self.node_timeout;
        let mut cleanups = self.cleanups.lock();
        if cleanups
            .iter()
            .any(|other| other.acquisition.owner == acquisition.owner)
        {
            return;
        }
        if cleanups.len() >= MAX_CLEANUPS {
            cleanups.pop_front();
        }
        cleanups.push_back(PendingCleanup {
            acquisition,
            options,
            since,
            until,
        });
        drop(cleanups);
        // An asynchronous release fails on another thread, while the thread of the node sleeps.
        self.attempts.wake();
    }

    /// Starts a watch when the node answers again, if the watch is still wanted.
    pub(super) fn watch_later(&self, watch: PendingWatch) {
        let mut watches = self.watches.lock();
        watches.retain(PendingWatch::is_wanted);
        watches.push(watch);
    }

    fn has_pending(&self) -> bool {
        !self.cleanups.lock().is_empty() || !self.watches.lock().is_empty()
    }

    /// Does one item of the pending work, if it is due and no request was just sent. Returns the
    /// start of the next turn.
    fn next_turn(&self, retry_at: &mut Moment, was_sent: bool) -> Moment {
        let now = self.clock.now();
        if was_sent {
            let is_unanswered = self.is_unanswered.load(Ordering::Relaxed);
            *retry_at = if is_unanswered {
                (*retry_at).min(now + RETRY)
            } else {
                now
            };
            return now;
        }
        if !self.has_pending() {
            *retry_at = Moment::NEVER;
        } else if *retry_at == Moment::NEVER || now >= *retry_at {
            let answered = self.busy(|| contain(|| self.do_pending()).unwrap_or(false));
            // One item in each turn, so that requests go first.
            *retry_at = if answered {
                now
            } else {
                self.clock.now() + RETRY
            };
        }
        *retry_at
    }

    /// Does one item of the pending work. Returns whether the node answered.
    fn do_pending(&self) -> bool {
        let now = self.clock.now();
        let mut cleanups = self.cleanups.lock();
        cleanups.retain(|one| now < one.until);
        let Some(first) = cleanups.pop_front() else {
            drop(cleanups);
            return self.begin_watch();
        };
        drop(cleanups);
        let options = first.options.after(now.since(first.since));
        let outcome = self.ask(self.by(), self.node_timeout, |by| {
            self.node.release(&first.acquisition, options, by)
        });
        let answered = !is_unavailable(&outcome);
        if !answered {
            self.cleanups.lock().push_front(first);
        }
        answered
    }

    fn begin_watch(&self) -> bool {
        let Some(watch) = self.watches.lock().pop() else {
            return true;
        };
        if !watch.is_wanted() {
            return true;
        }
        let outcome = self.ask(self.by(), self.node_timeout, |by| {
            watch.start(self.number, &self.node, by)
        });
        let answered = !is_unavailable(&outcome);
        if !answered {
            self.watch_later(watch);
        } else if outcome.is_ok() {
            // A refused watch is not repeated, because it would be refused again.
            watch.wake();
        }
        answered
    }
}

pub(super) fn is_unavailable<T>(outcome: &Result<T, Failure>) -> bool {
    outcome
        .as_ref()
        .is_err_and(|failure| failure.error().is_unavailable())
}

impl RequestQueue {
    fn push(&self, request: Request) {
        self.state.lock().requests.push_back(request);
        self.task.wake();
    }

    fn close(&self) {
        self.state.lock().is_closed = true;
        self.task.wake();
    }

    /// Sends the next request.
    fn send_next(&self, context: &NodeContext) -> Sent {
        let mut state = self.state.lock();
        let (request, is_closed) = (state.requests.pop_front(), state.is_closed);
        drop(state);
        match request {
            Some(request) => {
                // The callback of a request may panic, which must not delay the next request.
                contain(|| request(context));
                Sent::One
            }
            None if is_closed => Sent::Closed,
            None => Sent::None,
        }
    }
}

/// The result of a queue's turn.
enum Sent {
    One,
    None,
    /// No request was sent, and none will be sent.
    Closed,
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::{ManualClock, MemoryBackend};

    #[test]
    fn caller_with_a_short_deadline_makes_no_node_suspect() {
        const NODE_TIMEOUT: Duration = Duration::from_secs(1);
        let is_suspect = |time: Duration, until_failure: Duration| {
            let clock = ManualClock::new();
            let node =
                QuorumNode::of_store(1, Arc::new(MemoryBackend::new(Arc::new(clock.clone()))));
            let worker = NodeWorker::new(0, node, Arc::new(clock.clone()), NODE_TIMEOUT);
            let fails = |_| {
                clock.jump(until_failure);
                Err::<(), _>(Failure::Unknown(Error::unavailable("no answer")))
            };
            let _outcome = worker.context().ask(clock.now() + time, time, fails);
            worker.context().is_suspect()
        };
        assert!(is_suspect(NODE_TIMEOUT, NODE_TIMEOUT));
        assert!(!is_suspect(NODE_TIMEOUT / 5, NODE_TIMEOUT / 5));
        assert!(is_suspect(NODE_TIMEOUT / 5, Duration::ZERO), "it refused");
    }

    #[test]
    fn what_needs_no_request_makes_no_silent_node_seem_alive() {
        const LONG: Duration = Duration::from_secs(60);
        let clock: Arc<dyn Clock> = Arc::new(lock_core::SystemClock);
        let node = QuorumNode::of_store(1, Arc::new(MemoryBackend::new(Arc::clone(&clock))));
        let worker = NodeWorker::new(0, node, Arc::clone(&clock), LONG);
        let silent = |_| Err::<(), _>(Failure::Unknown(Error::unavailable("no answer")));
        let _outcome = worker.context().ask(clock.now() + LONG, LONG, silent);
        for is_known in [true, false] {
            let (told, outcome) = std::sync::mpsc::channel();
            worker.ask_unless(
                Queue::Attempts,
                clock.now() + LONG,
                move |_| is_known.then_some(()),
                |_, _| Ok(()),
                move |_, outcome| told.send(outcome.is_ok()).unwrap(),
            );
            assert!(outcome.recv_timeout(LONG).unwrap());
            assert_eq!(worker.context().is_suspect(), is_known);
        }
    }
}

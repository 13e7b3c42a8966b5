//! [`Rounds`]: the queries of all sentinels together: the wait for their answers, and the handling
//! of answers that arrive after the wait.

use super::instance::SentinelInstance;
use super::report::SentinelReply;
use super::watcher_signal::WatcherSignal;
use lock_core::{Clock, Moment, Signal};
use parking_lot::Mutex;
use std::sync::Arc;

/// The reply of every sentinel, by its index among the members.
pub(super) type Said = Vec<Option<SentinelReply>>;

/// How many of the sentinels have answered with a report that counts: none, some, or a majority.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answered {
    None,
    Some,
    Most,
}

/// The rounds of queries; see the [module](self).
#[derive(Default)]
pub(super) struct Rounds {
    state: Mutex<State>,
    signal_to_watcher: Arc<WatcherSignal>,
}

struct State {
    /// The start of the round under way, or else of the last one.
    since: Moment,
    is_under_way: bool,
    /// True if an answer has arrived since the answers were judged.
    is_unjudged: bool,
    waiting: Vec<Arc<Signal>>,
}

impl Default for State {
    fn default() -> Self {
        let (since, waiting) = (Moment::from_nanos(0), Vec::new());
        Self {
            since,
            is_under_way: false,
            is_unjudged: false,
            waiting,
        }
    }
}

impl Rounds {
    /// Returns rounds that wake this watcher for late answers.
    pub(super) fn new(signal_to_watcher: Arc<WatcherSignal>) -> Self {
        Self {
            signal_to_watcher,
            state: Mutex::default(),
        }
    }

    /// Begins a round, whose answers are judged at its end. Rounds do not overlap.
    pub(super) fn begin(&self, now: Moment) {
        let mut state = self.state.lock();
        (state.since, state.is_under_way) = (now, true);
    }

    /// Ends the round. The caller reads and judges the answers after this call. An answer that
    /// arrives after this call wakes the watcher.
    pub(super) fn end(&self) {
        let mut state = self.state.lock();
        (state.is_under_way, state.is_unjudged) = (false, false);
    }

    /// Records that a sentinel has answered, and wakes the threads that wait for answers. After the
    /// end of the round, also wakes the watcher.
    pub(super) fn answered(&self) {
        let mut state = self.state.lock();
        state.is_unjudged = true;
        state.waiting.iter().for_each(|signal| signal.raise());
        if !state.is_under_way {
            self.signal_to_watcher.nudge();
        }
    }

    /// Returns the start of the round whose late answers must be judged, if there are any.
    pub(super) fn take_late(&self) -> Option<Moment> {
        let mut state = self.state.lock();
        let is_late = state.is_unjudged && !state.is_under_way;
        state.is_unjudged &= state.is_under_way;
        is_late.then_some(state.since)
    }

    /// Waits, at most until `by`, for the answers that are worth waiting for: see
    /// [`Answers::awaited_until`].
    ///
    /// [`Answers::awaited_until`]: super::answers::Answers::awaited_until
    pub(super) fn wait(
        &self,
        members: &[Arc<SentinelInstance>],
        (start, by): (Moment, Moment),
        clock: &dyn Clock,
        answered: impl Fn(&Said) -> Answered,
    ) {
        let signal = Arc::new(Signal::new());
        self.state.lock().waiting.push(Arc::clone(&signal));
        let mut first = None;
        loop {
            let said: Said = members
                .iter()
                .map(|it| it.answers.reply_since(start))
                .collect();
            let now = clock.now();
            let counted = answered(&said);
            if first.is_none() && counted != Answered::None {
                first = Some(now);
            }
            let are_most = counted == Answered::Most;
            let missing = members.iter().zip(&said).filter(|(_, said)| said.is_none());
            let awaited = missing.map(|(member, _)| match first {
                Some(first) => member
                    .answers
                    .awaited_until((start, by), first, are_most)
                    .min(by),
                None => by,
            });
            let until = awaited.max().unwrap_or(start);
            if now >= until {
                break;
            }
            clock.wait(&signal, until);
        }
        self.state
            .lock()
            .waiting
            .retain(|other| !Arc::ptr_eq(other, &signal));
    }
}

//! [`Election`]: one leader among all participating clients, based on an [`OwnedMutex`].
//!
//! A campaign has one thread, which waits for the mutex and then, as the leader, for the end of the
//! mutex's validity. The thread runs no code of the caller. It ends with [`Election::resign`] and
//! with the last handle.

use crate::api::guard::OwnedGuard;
use crate::api::mutex::OwnedMutex;
use crate::backend::token::FencingToken;
use crate::call::interrupt::Interrupt;
use crate::call::notification::Wanted;
use crate::call::options::{LockOptions, Progress};
use crate::engine::EngineHandle;
use crate::engine::acquisition::{GuardState, Listener};
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::observe::loss::LossCause;
use crate::panics::contain;
use crate::sync::channel::{Receiver, Sender, unbounded};
use crate::sync::{Mutex, MutexGuard, thread};
use crate::threads::limits::no_thread;
use crate::time::backoff::Backoff;
use crate::time::{Clock, Moment, Signal, SystemClock, Woken};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The pauses after a failed wait for the leadership, before the next wait. Not shorter, because
/// the wait itself has usually retried for an `outage_limit`, or the store has refused the request
/// and would refuse it again at once.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// The pause between two reads of the state after the clock may have skipped time, because no
/// thread is notified when the store confirms that the lock is still held.
const DOUBT_LOOK: Duration = Duration::from_millis(100);

/// An election of one leader among all clients that campaign under a name.
///
/// The leader holds the [mutex](crate::Client::owned_mutex) of the name, and the leader's
/// [`term`](Self::term) is the mutex's fencing token. The watchdog renews the mutex, unless the
/// settings have a fixed `lease`. The guarantees of a mutex apply: the leadership ends by the local
/// clock before another client can become the leader. If a former leader continues to work after
/// that, a resource that compares terms refuses its requests.
///
/// Clones are the same election. A [campaign](Self::campaign) has a thread, and so has each
/// callback. Dropping the last handle gives up the leadership, as dropping a guard unlocks, and
/// ends the threads; it waits for the campaign's request under way, at most for the command
/// timeout.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// use std::time::Duration;
///
/// let client = distlock::builder().url("memory://")?.connect()?;
/// let election = client.election("scheduler")?;
/// election.campaign()?;
/// assert!(election.wait_for_leadership(Duration::from_secs(10), None)?);
/// if election.is_leader() {
///     // One step of the work, with `election.term()` for the resource.
/// }
/// election.resign()?;
/// # Ok::<(), distlock::Error>(())
/// ```
#[derive(Clone)]
pub struct Election(Arc<Handle>);

/// A change of one client's leadership.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum LeadershipChange {
    /// This client became the leader.
    Gained {
        /// The token of this term; `None` on a store without tokens, or with `tokens=off`.
        term: Option<FencingToken>,
    },
    /// This client lost the leadership. Its campaign continues, unless it has resigned meanwhile.
    Lost {
        /// The cause of the loss.
        cause: LossCause,
    },
    /// This client gave up the leadership.
    Resigned,
}

/// The data that the clones of an election share. Its drop gives up the leadership and ends the
/// campaign. The thread of a campaign owns only the [`Core`], and so does not prevent this drop.
struct Handle(Arc<Core>);

struct Core {
    engine: Arc<EngineHandle>,
    lock: OwnedMutex,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    campaign: Option<Campaign>,
    /// The number of the newest campaign.
    last_number: u64,
    /// Raised when the thread of the newest campaign has ended, and from then on; `None` before the
    /// first campaign.
    ended: Option<Arc<Signal>>,
    /// Wakes the thread of the newest campaign from every wait except the wait for the lock. Each
    /// campaign has its own signal: the thread of a former campaign may still sleep, and would
    /// consume a shared signal.
    signal: Arc<Signal>,
    leadership: Option<OwnedGuard>,
    /// The number of leaderships so far.
    terms: u64,
    /// The reason why the campaign cannot determine whether it could lead; `None` after an answer.
    last_error: Option<Error>,
    /// The number of waits for the lock that ended with a refusal.
    refusals: u64,
    /// The error with which the last wait ended; `None` after an answer of the store. The next
    /// error is reported as an event if it is of another kind.
    told: Option<Error>,
    consumers: Vec<Sender<LeadershipChange>>,
    /// The signals of threads that wait until this client leads.
    waiting: Vec<Arc<Signal>>,
    has_ended: bool,
}

/// The handle to a campaigning thread.
struct Campaign {
    number: u64,
    /// Ends the thread's wait for the lock.
    interrupt: Interrupt,
}

impl Election {
    pub(crate) fn new(engine: Arc<EngineHandle>, name: &LockName) -> Result<Self, Error> {
        let lock = OwnedMutex::new(Arc::clone(&engine), name)?;
        let state = Mutex::default();
        Ok(Self(Arc::new(Handle(Arc::new(Core {
            engine,
            lock,
            state,
        })))))
    }

    fn core(&self) -> &Core {
        &self.0.0
    }

    /// Starts the campaign: a thread that waits for the leadership, keeps it, and waits again after
    /// a loss. Does nothing during a campaign. Does not block.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if the system has no thread left. [`Error::is_misuse`] in a forked
    /// child.
    pub fn campaign(&self) -> Result<(), Error> {
        self.begin_campaign().map(drop)
    }

    /// Starts the campaign. Returns `false`, and changes nothing, if there is one already.
    fn begin_campaign(&self) -> Result<bool, Error> {
        let core = &self.0.0;
        core.engine
            .refuse_if_forked()
            .map_err(|error| error.on(core.lock.name()))?;
        let mut state = core.state.lock();
        if state.campaign.is_some() {
            return Ok(false);
        }
        state.signal = Arc::default();
        let (number, interrupt) = (state.last_number + 1, Interrupt::new());
        let ended = Arc::<Signal>::default();
        let thread = Thread {
            core: Arc::clone(core),
            number,
            interrupt: interrupt.clone(),
            signal: Arc::clone(&state.signal),
            _ended: RaisedOnDrop(Arc::clone(&ended)),
        };
        let started = thread::Builder::new()
            .name("distlock-elect".to_owned())
            .spawn(move || thread.run())
            .map_err(|error| no_thread("cannot start the thread of an election", error));
        started.map_err(|error| error.on(core.lock.name()))?;
        (state.last_number, state.ended) = (number, Some(ended));
        // The errors of the former campaign do not apply to this campaign.
        (state.last_error, state.told) = (None, None);
        state.campaign = Some(Campaign { number, interrupt });
        Ok(true)
    }

    /// Gives up the leadership, if this client has it, and ends the campaign until
    /// [`campaign`](Self::campaign) is called again.
    ///
    /// # Blocking
    ///
    /// Until the store has answered the release and the campaign's request under way, at most for
    /// the command timeout each. After that, nothing of the campaign remains in the store if the
    /// store has answered both.
    ///
    /// # Errors
    ///
    /// The errors of [`OwnedGuard::unlock`], if this client leads or has lost the leadership only a
    /// moment ago. The leadership is given up in any case. [`Error::is_misuse`] in a forked child.
    pub fn resign(&self) -> Result<(), Error> {
        let core = self.core();
        core.engine
            .refuse_if_forked()
            .map_err(|error| error.on(core.lock.name()))?;
        // The guard is taken out before the release is sent: from here on this client does not
        // lead.
        let (leadership, ended) = core.stop(&mut core.state.lock());
        let released = leadership.map_or(Ok(()), OwnedGuard::unlock);
        core.wait_for_end(ended);
        released
    }

    /// Starts a campaign, waits until this client is the leader, runs `work`, and resigns when
    /// `work` has returned or panicked. Returns `None` if this client did not become the leader
    /// within `wait`.
    ///
    /// To shut down, let `work` return: [`resign`](Self::resign) in the middle of a step would let
    /// the next leader start while the step continues. Before each step, `work` calls
    /// [`ensure`](Self::ensure).
    ///
    /// # Blocking
    ///
    /// At most for `wait`, for `work`, and as [`resign`](Self::resign) blocks.
    ///
    /// # Errors
    ///
    /// Before `work` runs, the errors of [`campaign`](Self::campaign) and
    /// [`wait_for_leadership`](Self::wait_for_leadership), and [`Error::is_misuse`] if this
    /// election already has a campaign, which then continues. After `work` has run,
    /// [`Error::is_lost`] if the leadership was lost meanwhile, and the errors of
    /// [`resign`](Self::resign). An error after `work` drops the result of `work`, because another
    /// client may have led. The campaign that this call has started ends in any case.
    ///
    /// # Examples
    ///
    /// ```
    /// # extern crate lock_core as distlock;
    /// use std::time::Duration;
    ///
    /// # let client = distlock::builder().url("memory://")?.connect()?;
    /// # let steps = 0..3;
    /// let election = client.election("scheduler")?;
    /// let done = election.lead(Duration::from_secs(10), None, |election| {
    ///     let mut done = 0;
    ///     for _step in steps {
    ///         if election.ensure(Duration::from_secs(5)).is_err() {
    ///             break;
    ///         }
    ///         done += 1; // the step, with `election.term()` for the resource
    ///     }
    ///     done
    /// })?;
    /// assert_eq!(done, Some(3));
    /// # Ok::<(), distlock::Error>(())
    /// ```
    pub fn lead<R>(
        &self,
        wait: Duration,
        interrupt: Option<&Interrupt>,
        work: impl FnOnce(&Self) -> R,
    ) -> Result<Option<R>, Error> {
        if !self.begin_campaign()? {
            let error = Error::misuse(
                "this election has a campaign already: only one thread can lead; end it by \
                 `resign`, or wait by `wait_for_leadership`",
            );
            return Err(error.on(self.name()));
        }
        let resigns = Resigns(self);
        if !self.wait_for_leadership(wait, interrupt)? {
            return Ok(None);
        }
        let term = self.core().term_number();
        let result = work(self);
        let is_same_term = term.is_some() && self.core().term_number() == term;
        std::mem::forget(resigns);
        self.resign()?;
        if !is_same_term {
            let error = Error::new(ErrorKind::Lost, "the leadership was lost during the work");
            return Err(error.on(self.name()));
        }
        Ok(Some(result))
    }

    /// Returns whether this client is the leader, by the local clock. Sends no request. The answer
    /// is correct even in the first call after this process was paused until after the end of the
    /// lease.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.core().look(|guard| guard.is_valid()).unwrap_or(false)
    }

    /// Returns the token of this client's leadership: larger than the token of every earlier
    /// leader, and smaller than the token of every later leader. Pass it to each resource that the
    /// leader changes, and let the resource refuse tokens that are smaller than one it has seen.
    ///
    /// `None` if this client is not the leader. Always `None` on a store without tokens, or with
    /// `tokens=off`: then a leader that was paused cannot be distinguished from its successor.
    #[must_use]
    pub fn term(&self) -> Option<FencingToken> {
        let term = |guard: &OwnedGuard| guard.fencing_token().filter(|_| guard.is_valid());
        self.core().look(term).flatten()
    }

    /// Returns how long this client stays the leader without a renewal; zero if it is not the
    /// leader. Sends no request.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.core().look(OwnedGuard::remaining).unwrap_or_default()
    }

    /// Fails unless this client stays the leader for at least `time`. Sends no request. Call it
    /// before a step of the leader's work that takes that long.
    ///
    /// # Errors
    ///
    /// [`Error::is_not_held`] if this client is not the leader, [`Error::is_lost`] if it has just
    /// lost the leadership, [`Error::is_lease_too_short`] if less time remains.
    pub fn ensure(&self, time: Duration) -> Result<(), Error> {
        self.core()
            .look(|guard| guard.ensure(time))
            .unwrap_or_else(|| {
                let error = Error::new(ErrorKind::NotHeld, "this client is not the leader");
                Err(error.on(self.name()))
            })
    }

    /// Returns a channel of all changes from now on. Its first message is
    /// [`Gained`](LeadershipChange::Gained) if this client is the leader. Each call makes a new
    /// channel, which uses memory until the first change after its receiver is dropped: do not call
    /// this in a loop. The channel is unbounded, and closed when the last handle is dropped.
    ///
    /// A loss is reported when the validity ends by the local clock, or earlier if the store
    /// reports that the lock is gone. If the process is paused then, the report comes late: call
    /// [`ensure`](Self::ensure) before each step of the work.
    #[must_use]
    pub fn changes(&self) -> Receiver<LeadershipChange> {
        let (sender, receiver) = unbounded();
        // In a forked child the mutex may stay locked: a thread of the parent may have held it at
        // the fork.
        if self.core().engine.is_forked() {
            return receiver;
        }
        let mut state = self.core().state.lock();
        if let Some(guard) = &state.leadership {
            // Cannot fail: the receiver exists.
            let _sent = sender.try_send(LeadershipChange::Gained {
                term: guard.fencing_token(),
            });
        }
        if !state.has_ended {
            state.consumers.push(sender);
        }
        receiver
    }

    /// Calls `callback` with each change that [`changes`](Self::changes) reports, one after the
    /// other, on a separate thread. A panic of the callback does not end the calls.
    ///
    /// The callback must not own a handle of this election. Otherwise that handle is never dropped,
    /// and the election does not end.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`] if the system has no thread left.
    pub fn on_change(
        &self,
        mut callback: impl FnMut(LeadershipChange) + Send + 'static,
    ) -> Result<(), Error> {
        let changes = self.changes();
        let run = move || {
            while let Ok(change) = changes.recv() {
                contain(|| callback(change));
            }
        };
        let thread = thread::Builder::new()
            .name("distlock-leader".to_owned())
            .spawn(run);
        thread.map(drop).map_err(|error| {
            no_thread("cannot start the thread of a callback", error).on(self.name())
        })
    }

    /// Waits until this client is the leader, and returns whether it is.
    ///
    /// # Blocking
    ///
    /// At most for `wait`. The wait ends earlier if `interrupt` fires, if the campaign ends, or if
    /// the store refuses the campaign's request. An outage does not end the wait early;
    /// [`last_error`](Self::last_error) and [`CampaignFailed`](crate::Event::CampaignFailed) report
    /// it.
    ///
    /// # Errors
    ///
    /// - [`Error::is_interrupted`] if `interrupt` has fired.
    /// - [`Error::is_misuse`] without a [campaign](Self::campaign), even if it ends during the
    ///   wait, and in a forked child.
    /// - [`Error::is_configuration`], [`Error::is_foreign_format`], [`Error::is_unsupported`] or
    ///   [`Error::is_misuse`] if the campaign's request was refused during the wait, for example
    ///   because of a wrong password. The campaign continues, so this may be called again.
    /// - At the end of the wait, the campaign's [`last_error`](Self::last_error) if it has one,
    ///   such as [`Error::is_unavailable`].
    pub fn wait_for_leadership(
        &self,
        wait: Duration,
        interrupt: Option<&Interrupt>,
    ) -> Result<bool, Error> {
        let core = self.core();
        let until = core.engine.clock.now() + wait;
        let waiting = Waiting::of(core);
        let refusals = core.look_at_state(|state| state.refusals);
        let interrupt = interrupt.map(|interrupt| interrupt.register(&waiting.signal));
        loop {
            if let Some(interrupt) = &interrupt {
                interrupt.check().map_err(|error| error.on(self.name()))?;
            }
            if self.is_leader() {
                return Ok(true);
            }
            core.engine
                .refuse_if_forked()
                .map_err(|error| error.on(self.name()))?;
            let state = core.state.lock();
            if state.campaign.is_none() {
                let error = Error::misuse("this election has no campaign: start it first");
                return Err(error.on(self.name()));
            }
            let now = core.engine.clock.now();
            let is_over = now >= until;
            if is_over || Some(state.refusals) != refusals {
                // An unanswered request does not mean that another client leads, so the error is
                // returned. If the store has answered since its refusal, the wait continues.
                let error = state
                    .last_error
                    .clone()
                    .filter(|it| is_over || is_refusal(it));
                if let Some(error) = error {
                    return Err(error.on(self.name()));
                }
            }
            drop(state);
            if is_over {
                return Ok(false);
            }
            // The store's confirmation after skipped time raises no signal, so the state is polled.
            let is_doubtful = core.look(|guard| guard.state()) == Some(GuardState::Suspended);
            let next = if is_doubtful {
                now + DOUBT_LOOK
            } else {
                Moment::NEVER
            };
            core.engine.clock.wait(&waiting.signal, until.min(next));
        }
    }

    /// Returns why the campaign cannot determine whether it could lead: the store is unavailable,
    /// refuses the request, or has too few replicas that confirm it. `None` after an answer. The
    /// campaign continues after an error, with pauses of up to five seconds.
    #[must_use]
    pub fn last_error(&self) -> Option<Error> {
        self.core()
            .look_at_state(|state| state.last_error.clone())?
    }

    /// Returns the name of the election, which is also the name of its mutex.
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.core().lock.name()
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Election").field(self.name()).finish()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // In a forked child the mutex may stay locked: a thread of the parent may have held it at
        // the fork.
        if self.0.engine.is_forked() {
            return;
        }
        let mut state = self.0.state.lock();
        state.has_ended = true;
        let (leadership, ended) = self.0.stop(&mut state);
        state.consumers.clear();
        drop(state);
        drop(leadership); // sends the release, outside the mutex
        self.0.wait_for_end(ended);
    }
}

/// Resigns from the election when it is dropped, also by a panic.
struct Resigns<'a>(&'a Election);

impl Drop for Resigns<'_> {
    fn drop(&mut self) {
        // After an error the leadership is given up as well, and the lock is free when its lease
        // ends.
        let _unreleased = self.0.resign();
    }
}

/// Returns whether no wait resolves this error: a setting, the code or the stored value is wrong.
fn is_refusal(error: &Error) -> bool {
    use ErrorKind::{Configuration, ForeignFormat, Misuse, Unsupported};
    matches!(
        error.kind(),
        Configuration | ForeignFormat | Misuse | Unsupported
    )
}

impl Core {
    fn look_at_state<T>(&self, look: impl FnOnce(&State) -> T) -> Option<T> {
        (!self.engine.is_forked()).then(|| look(&self.state.lock()))
    }

    /// Calls `question` with the guard of the present leadership. Returns `None` if there is none,
    /// and in a forked child.
    fn look<T>(&self, question: impl FnOnce(&OwnedGuard) -> T) -> Option<T> {
        self.look_at_state(|state| state.leadership.as_ref().map(question))?
    }

    /// Returns the number of the present leadership, which no other leadership of this election
    /// has; `None` if this client is not the leader.
    fn term_number(&self) -> Option<u64> {
        let number = |state: &State| {
            let guard = state.leadership.as_ref()?;
            guard.is_valid().then_some(state.terms)
        };
        self.look_at_state(number)?
    }

    /// Ends the campaign. Returns the leadership, which the caller releases after it has unlocked
    /// the state, and the end of the thread, which the caller then waits for.
    fn stop(&self, state: &mut State) -> (Option<OwnedGuard>, Option<Arc<Signal>>) {
        if let Some(campaign) = state.campaign.take() {
            campaign.interrupt.fire();
        }
        state.wake_waiting();
        let lost = state.take_lost();
        if lost.is_none() && state.leadership.is_some() {
            state.tell(LeadershipChange::Resigned);
        }
        state.signal.raise();
        let leadership = lost.or_else(|| state.leadership.take());
        (leadership, state.ended.clone())
    }

    /// Waits until the thread of a stopped campaign has ended, at most for the command timeout, and
    /// then for the answers to requests that were sent without waiting. Otherwise a process that
    /// ends now could leave a grant, or a place in the queue, in the store.
    fn wait_for_end(&self, ended: Option<Arc<Signal>>) {
        let Some(ended) = ended else { return };
        // The machine's time, because no test may have to advance a clock for this.
        let by = SystemClock.now() + self.engine.command_timeout();
        if SystemClock.wait(&ended, by) == Woken::Signalled {
            // For another thread that waits, too.
            ended.raise();
            self.engine
                .collect_async_releases(self.engine.command_deadline());
        }
    }

    /// Locks the state if the present campaign has this number; otherwise returns `None`.
    fn lock_for(&self, number: u64) -> Option<MutexGuard<'_, State>> {
        let state = self.state.lock();
        let is_present = state
            .campaign
            .as_ref()
            .is_some_and(|it| it.number == number);
        is_present.then_some(state)
    }
}

impl State {
    fn tell(&mut self, change: LeadershipChange) {
        self.consumers
            .retain(|consumer| consumer.try_send(change).is_ok());
    }

    fn wake_waiting(&self) {
        self.waiting.iter().for_each(|waiting| waiting.raise());
    }

    /// Removes a lost leadership, reports the loss, and returns the guard.
    fn take_lost(&mut self) -> Option<OwnedGuard> {
        let lost = self
            .leadership
            .take_if(|guard| guard.state() == GuardState::Lost)?;
        let cause = lost.loss().map_or(LossCause::Expired, |loss| loss.cause());
        self.tell(LeadershipChange::Lost { cause });
        Some(lost)
    }
}

/// The thread of a campaign.
struct Thread {
    core: Arc<Core>,
    number: u64,
    interrupt: Interrupt,
    signal: Arc<Signal>,
    _ended: RaisedOnDrop,
}

/// Raises a signal when it is dropped, also by a panic.
struct RaisedOnDrop(Arc<Signal>);

impl Drop for RaisedOnDrop {
    fn drop(&mut self) {
        self.0.raise();
    }
}

impl Thread {
    /// Campaigns until this is no longer the present campaign.
    fn run(&self) {
        let clock = &self.core.engine.clock;
        let mut backoff = BACKOFF;
        while self.core.lock_for(self.number).is_some() {
            let turn = contain(|| self.wait_and_lead()).unwrap_or_else(|| {
                Err(Error::unavailable("the campaign panicked; see its message"))
            });
            let Err(error) = turn else {
                backoff.reset();
                continue;
            };
            let Some(mut state) = self.core.lock_for(self.number) else {
                return;
            };
            state.refusals += u64::from(is_refusal(&error));
            let is_news = state
                .told
                .as_ref()
                .is_none_or(|told| told.kind() != error.kind());
            state.last_error = Some(error.clone());
            state.told = Some(error.clone());
            state.wake_waiting();
            drop(state);
            if is_news {
                self.core
                    .engine
                    .tell_campaign_failed(self.core.lock.name(), error);
            }
            clock.wait(&self.signal, clock.now() + backoff.next());
        }
    }

    /// Waits until the lock is granted, and then until it is lost or given up.
    fn wait_and_lead(&self) -> Result<(), Error> {
        let (core, number) = (Arc::clone(&self.core), self.number);
        let progress = Progress::new(move |error| {
            let Some(mut state) = core.lock_for(number) else {
                return;
            };
            state.last_error = error.cloned();
            if error.is_none() {
                state.told = None;
            }
        });
        let options = LockOptions::new()
            .interrupt(&self.interrupt)
            .progress(progress);
        let guard = self.core.lock.lock_with(&options)?;
        if self.core.lock_for(self.number).is_none() {
            let _unconfirmed = guard.unlock(); // waits for the answer, as `resign` waits for this
            return Ok(());
        }
        // Extends a short lease, as after a direct grant, to its full length before the leadership
        // is visible, so that no query of the state has to wait for that request.
        if let Err(error) = guard.begin_lease() {
            let _unconfirmed = guard.unlock();
            return Err(error);
        }
        let signal = Arc::clone(&self.signal);
        guard.on_loss(Listener::new(Wanted::always(), move |_| signal.raise()));
        let Some(mut state) = self.core.lock_for(self.number) else {
            let _unconfirmed = guard.unlock(); // waits for the answer, as `resign` waits for this
            return Ok(());
        };
        (state.last_error, state.told) = (None, None);
        state.tell(LeadershipChange::Gained {
            term: guard.fencing_token(),
        });
        state.leadership = Some(guard);
        state.terms += 1;
        state.wake_waiting();
        drop(state);
        while let Some(until) = self.leads_until() {
            self.core.engine.clock.wait(&self.signal, until);
        }
        Ok(())
    }

    /// Returns the end of this campaign's leadership without a further renewal; `None` if this
    /// client does not lead, or the campaign has ended. Removes a lost leadership.
    fn leads_until(&self) -> Option<Moment> {
        let mut state = self.core.lock_for(self.number)?;
        let lost = state.take_lost();
        // Not computed from the remaining validity, which is zero while the clock may have skipped
        // time: the thread would not sleep then.
        let deadline = state.leadership.as_ref().map(OwnedGuard::deadline);
        drop(state);
        drop(lost); // sends the release, outside the mutex
        deadline
    }
}

/// A thread that waits until this client leads.
struct Waiting<'a> {
    core: &'a Core,
    signal: Arc<Signal>,
}

impl<'a> Waiting<'a> {
    fn of(core: &'a Core) -> Self {
        let signal = Arc::<Signal>::default();
        if !core.engine.is_forked() {
            core.state.lock().waiting.push(Arc::clone(&signal));
        }
        Self { core, signal }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.core.engine.is_forked() {
            self.core
                .state
                .lock()
                .waiting
                .retain(|it| !Arc::ptr_eq(it, &self.signal));
        }
    }
}

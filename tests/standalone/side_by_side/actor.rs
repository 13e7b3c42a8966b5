//! [`Actor`]: a thread that runs jobs. Threads own locks, so the test needs real threads.

use super::command::{NAMES, Terms};
use crossbeam_channel::{Receiver, Sender, unbounded};
use distlock::{
    Error, ErrorKind, FencingToken, GuardState, Interrupt, LockGuard, Loss, LossCause, Mutex,
    Notification, OwnedGuard, OwnedMutex,
};
use distlock_tests::time::scaled;
use std::cell::Cell;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The time limit for an answer.
const BOUND: Duration = Duration::from_secs(60);

/// The outcome of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Took(Option<Token>),
    Busy,
    Done,
    Says(bool),
    Counts(u32),
    Failed(ErrorKind),
}

/// A token of the store or, in a comparison, its rank among the tokens of its lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Token(pub(super) u64);

impl From<FencingToken> for Token {
    fn from(token: FencingToken) -> Self {
        Self(token.get())
    }
}

/// The state of a guard, all of it local.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct GuardSeen {
    pub(super) token: Option<Token>,
    state: GuardState,
    is_valid: bool,
    left: Left,
    cause: Option<LossCause>,
    /// The loss that the guard's channel reported. The channel was opened right after the grant.
    told: Option<LossCause>,
}

/// The remaining time of a lease. Two values are equal if they differ by less than the tolerance,
/// because one side may be late. Leases of different lengths differ by more than twice the
/// tolerance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left(pub(super) Duration);

impl Left {
    const TOLERANCE: Duration = Duration::from_secs(25);
}

impl PartialEq for Left {
    fn eq(&self, other: &Self) -> bool {
        self.0.abs_diff(other.0) < Self::TOLERANCE
    }
}

/// A guard, and the channel that reports its loss.
pub(super) struct Kept<G> {
    guard: G,
    losses: Notification<Loss>,
    told: Cell<Option<LossCause>>,
}

impl<G> Kept<G> {
    fn new(guard: G, losses: Notification<Loss>) -> Self {
        Self {
            guard,
            losses,
            told: Cell::default(),
        }
    }

    /// Returns the cause that the channel reported. Panics unless it is the one that the guard
    /// knows: a known loss must be reported, and no other.
    fn told(&self, known: Option<LossCause>) -> Option<LossCause> {
        if self.told.get().is_none() {
            let bound = if known.is_some() {
                scaled(BOUND)
            } else {
                Duration::ZERO
            };
            self.told.set(
                self.losses
                    .recv_timeout(bound)
                    .ok()
                    .map(|loss| loss.cause()),
            );
        }
        assert_eq!(
            self.told.get(),
            known,
            "what the channel told, and what the guard says"
        );
        self.told.get()
    }
}

macro_rules! look_at {
    ($kept:expr) => {{
        let guard = &$kept.guard;
        let cause = guard.loss().map(|loss| loss.cause());
        GuardSeen {
            token: guard.fencing_token().map(Token::from),
            state: guard.state(),
            is_valid: guard.is_valid(),
            left: Left(guard.remaining()),
            cause,
            told: $kept.told(cause),
        }
    }};
}

/// The state of one lock as a thread sees it, all of it local.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct LockSeen {
    pub(super) holds: u32,
    pub(super) is_held: bool,
    pub(super) guards: Vec<GuardSeen>,
}

/// The locks and guards of the thread.
pub(super) struct Own {
    pub(super) locks: [Mutex; NAMES],
    pub(super) guards: [Vec<Kept<LockGuard>>; NAMES],
}

impl Own {
    fn look(&self) -> [LockSeen; NAMES] {
        std::array::from_fn(|lock| LockSeen {
            holds: self.locks[lock].hold_count(),
            is_held: self.locks[lock].is_held_by_current_thread(),
            guards: self.guards[lock]
                .iter()
                .map(|kept| look_at!(kept))
                .collect(),
        })
    }

    pub(super) fn keep(&mut self, lock: usize, taken: Result<Option<LockGuard>, Error>) -> Answer {
        match taken {
            Ok(Some(guard)) => {
                let token = guard.fencing_token().map(Token::from);
                let losses = guard.losses();
                self.guards[lock].push(Kept::new(guard, losses));
                Answer::Took(token)
            }
            Ok(None) => Answer::Busy,
            Err(error) => Answer::Failed(error.kind()),
        }
    }

    pub(super) fn lock(&mut self, lock: usize, terms: Terms, interrupt: &Interrupt) -> Answer {
        let taken = self.locks[lock].lock_with(&terms.options().interrupt(interrupt));
        self.keep(lock, taken.map(Some))
    }

    pub(super) fn newest_guard(&self, lock: usize) -> Option<&LockGuard> {
        self.guards[lock].last().map(|kept| &kept.guard)
    }

    /// One of the guards, if there are any.
    pub(super) fn guard(&self, lock: usize, which: usize) -> Option<&LockGuard> {
        let guards = &self.guards[lock];
        guards
            .get(which.checked_rem(guards.len())?)
            .map(|kept| &kept.guard)
    }

    pub(super) fn take_guard(&mut self, lock: usize, which: usize) -> Option<LockGuard> {
        let guards = &mut self.guards[lock];
        let at = which.checked_rem(guards.len())?;
        Some(guards.remove(at).guard)
    }
}

/// Returns whether a call succeeded, if it has no other result.
pub(super) fn done<T>(result: Result<T, Error>) -> Answer {
    result.map_or_else(|error| Answer::Failed(error.kind()), |_| Answer::Done)
}

type Job = Box<dyn FnOnce(&mut Own) -> Answer + Send>;

/// A thread that does jobs, one after the other.
pub(super) struct Actor {
    jobs: Sender<Task>,
    answers: Receiver<Answer>,
    looks: Receiver<[LockSeen; NAMES]>,
}

enum Task {
    Do(Job),
    Look,
}

impl Actor {
    pub(super) fn start(locks: [Mutex; NAMES]) -> Self {
        let (jobs, tasks) = unbounded();
        let (tell, answers) = unbounded();
        let (show, looks) = unbounded();
        thread::spawn(move || {
            let mut own = Own {
                locks,
                guards: std::array::from_fn(|_| Vec::new()),
            };
            for task in tasks {
                let goes_on = match task {
                    Task::Do(job) => tell.send(job(&mut own)).is_ok(),
                    Task::Look => show.send(own.look()).is_ok(),
                };
                if !goes_on {
                    return;
                }
            }
        });
        Self {
            jobs,
            answers,
            looks,
        }
    }

    /// Begins a job.
    pub(super) fn begin(&self, job: impl FnOnce(&mut Own) -> Answer + Send + 'static) {
        self.jobs
            .send(Task::Do(Box::new(job)))
            .expect("the thread is there");
    }

    /// Waits for the answer to the job that was begun.
    pub(super) fn answer(&self) -> Result<Answer, String> {
        self.answers
            .recv_timeout(scaled(BOUND))
            .map_err(|why| format!("a call that must come back did not: {why}"))
    }

    pub(super) fn answers(&self) -> &Receiver<Answer> {
        &self.answers
    }

    pub(super) fn look(&self) -> Result<[LockSeen; NAMES], String> {
        self.jobs
            .send(Task::Look)
            .map_err(|_| "the thread has panicked".to_owned())?;
        self.looks
            .recv_timeout(scaled(BOUND))
            .map_err(|why| format!("no look: {why}"))
    }
}

/// Owned guards, which belong to no thread, in a list that all threads share.
#[derive(Clone)]
pub(super) struct Shelf(Arc<parking_lot::Mutex<Vec<Shelved>>>);

pub(super) struct Shelved {
    pub(super) client: usize,
    pub(super) lock: usize,
    kept: Kept<OwnedGuard>,
}

impl Shelf {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    /// Acquires an owned lock by `take`, and puts the guard in the list.
    pub(super) fn put(
        &self,
        client: usize,
        lock: usize,
        from: &OwnedMutex,
        take: impl FnOnce(&OwnedMutex) -> Result<Option<OwnedGuard>, Error>,
    ) -> Answer {
        match take(from) {
            Ok(Some(guard)) => {
                let token = guard.fencing_token().map(Token::from);
                let losses = guard.losses();
                self.0.lock().push(Shelved {
                    client,
                    lock,
                    kept: Kept::new(guard, losses),
                });
                Answer::Took(token)
            }
            Ok(None) => Answer::Busy,
            Err(error) => Answer::Failed(error.kind()),
        }
    }

    pub(super) fn take(&self, lock: usize, which: usize) -> Option<OwnedGuard> {
        let mut shelved = self.0.lock();
        let of_lock: Vec<_> = (0..shelved.len())
            .filter(|at| shelved[*at].lock == lock)
            .collect();
        let at = of_lock[which.checked_rem(of_lock.len())?];
        Some(shelved.remove(at).kept.guard)
    }

    /// Calls `look` with one of the guards, which stays in the list.
    pub(super) fn with<T>(
        &self,
        lock: usize,
        which: usize,
        look: impl FnOnce(&OwnedGuard) -> T,
    ) -> Option<T> {
        let shelved = self.0.lock();
        let of_lock: Vec<_> = shelved.iter().filter(|it| it.lock == lock).collect();
        Some(look(&of_lock[which.checked_rem(of_lock.len())?].kept.guard))
    }

    pub(super) fn is_held(&self, client: usize, lock: usize) -> bool {
        self.0
            .lock()
            .iter()
            .any(|it| it.client == client && it.lock == lock && it.kept.guard.is_valid())
    }

    pub(super) fn look(&self) -> Vec<(usize, usize, GuardSeen)> {
        self.0
            .lock()
            .iter()
            .map(|it| (it.client, it.lock, look_at!(it.kept)))
            .collect()
    }

    pub(super) fn clear(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        drop(all); // unlocked: it asks the store
    }
}

//! [`LocalLock`]: what this client knows of one name: the thread that holds it, and the waiters.
//!
//! Of all threads of a client, only the head of the queue contends in the store, and only while no
//! thread of this client holds the lock. All others wait locally, first in, first out. Nothing here
//! asks a store: what it needs of the engine is a [`QueueOwner`].

mod fairness;
mod handoff;
mod registry;
mod wait_queue;
mod waiter;

use super::acquisition::Acquisition;
use super::timer_wheel::TimerKey;
use crate::backend::Watch;
use crate::backend::replication::Replication;
use crate::engine::holder::Holder;
use crate::error::Error;
use crate::name::{LockName, NameHasher};
use crate::sync::{Mutex, MutexGuard};
use crate::time::lease::LeaseTime;
use crate::time::{Clock, Moment, Signal};
use fairness::FairnessPolicy;
use std::hash::{BuildHasher, BuildHasherDefault};
use std::sync::Arc;
use std::time::Duration;
use wait_queue::WaitQueue;

pub(crate) use fairness::ReleaseTiming;
pub(crate) use registry::{Registry, Scope};
pub(crate) use waiter::{Known, Turn, WaiterGuard};

/// What a queue needs of its engine.
pub(crate) trait QueueOwner {
    fn clock(&self) -> &dyn Clock;

    fn command_timeout(&self) -> Duration;

    /// A waiter that came at `since` was handed this acquisition.
    fn tell_acquired(&self, acquisition: &Acquisition, since: Moment);

    /// A waiter left with a hold that it does not want: an interrupt, or a panic.
    fn decline(&self, lock: &Arc<LocalLock>, acquisition: &Arc<Acquisition>);
}

/// How the locks of a client are shared.
#[derive(Clone, Copy)]
pub(crate) struct Sharing {
    /// For how long a lock passes from thread to thread before other clients get a turn.
    pub(crate) hand_off: Duration,
    /// Whether the store counts all clients that wait.
    pub(crate) counts_waiters: bool,
}

/// One lock name of one client.
pub(crate) struct LocalLock {
    pub(crate) name: LockName,
    pub(crate) scope: Scope,
    registry: Arc<Registry>,
    state: Mutex<LocalLockState>,
}

/// The first renewal comes earlier by less than this part of the lease, by a number that looks
/// random for each name of a client: very many locks taken together are not renewed together for
/// ever.
const SPREAD: u32 = 12;

/// All of it is read and written under the mutex, which is never held while the store is asked.
#[derive(Default)]
pub(crate) struct LocalLockState {
    /// Held, or just being released. While there is one, no thread of this client asks the store.
    current: Option<Arc<Acquisition>>,
    queue: WaitQueue,
    /// When the store last answered a head, or granted it the lock, or took it back.
    answered: Option<Moment>,
    /// The timer of this name in the wheel, and when it is due. Written by the
    /// [timer](super::renew).
    pub(crate) timer: Option<(TimerKey, Moment)>,
    fairness: FairnessPolicy,
    rare: Option<Box<RareState>>,
}

/// What most locks never have, apart: a client may hold very many.
#[derive(Default)]
struct RareState {
    /// Lost acquisitions whose guards are not all dropped yet.
    lost: Vec<Arc<Acquisition>>,
    /// Written by the head, inherited by the next one.
    outage: Option<StoreOutage>,
    /// Waiters whose deadline has passed, and that wait for the end of the head's request.
    overdue: Vec<Arc<Signal>>,
    /// Kept while a thread queues and the store was found busy once.
    watch: Option<Watch>,
    /// Whether another client had the lock while these threads queued.
    was_busy: bool,
    /// When the last watch ended during which another client had it.
    watch_ended: Option<Moment>,
}

/// Why the head cannot take the lock from the store, although no other client has it.
#[derive(Clone)]
pub(crate) struct StoreOutage {
    pub(crate) since: Moment,
    pub(crate) error: Error,
    /// When it ends, and not before: a [pause](crate::backend::RetryCause::Paused).
    pub(crate) ends: Option<Moment>,
}

/// What a waiter wants.
#[derive(Clone)]
pub(crate) struct LockRequest {
    pub(crate) holder: Holder,
    pub(crate) signal: Arc<Signal>,
    pub(crate) since: Moment,
    /// The lease that a handed-off acquisition must have; `None` if only one from the store will
    /// do.
    pub(crate) watched: Option<LeaseTime>,
    /// How many replicas must have confirmed it.
    pub(crate) replication: Replication,
}

/// What a caller that wants the lock finds.
pub(crate) enum Entered<'a> {
    /// This thread holds it: one hold more.
    Nested(Arc<Acquisition>),
    /// Another thread of this client has it or waits for it, and the caller does not want to wait.
    Busy,
    /// In the queue.
    Queued(WaiterGuard<'a>),
}

impl LocalLock {
    fn new(name: LockName, scope: Scope, registry: Arc<Registry>) -> Self {
        Self {
            name,
            scope,
            registry,
            state: Mutex::default(),
        }
    }

    fn sharing(&self) -> Sharing {
        let sharing = self.registry.sharing;
        match self.scope == Scope::CLIENT {
            true => sharing,
            // There is no other thread to hand it to, and the store alone says who is next.
            false => Sharing {
                hand_off: Duration::ZERO,
                ..sharing
            },
        }
    }

    /// How much earlier the first renewal with this lease is due. As good as random, so that very
    /// many locks taken together are not renewed together for ever; and constant for a name, so
    /// that the timer of one that is taken again and again is where it was.
    ///
    /// Nothing in this crate's own tests: they say to the millisecond when what happens.
    pub(crate) fn earlier(&self, lease: LeaseTime) -> Duration {
        let what = (self.registry.phase, &self.name, self.scope);
        let hash = BuildHasherDefault::<NameHasher>::default().hash_one(what);
        let part = if cfg!(test) { 0 } else { (hash >> 56) as u32 }; // in 256ths
        lease.duration() / SPREAD * part / 256
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LocalLockState> {
        self.registry.note_visits(1);
        self.state.lock()
    }

    /// Brings all of them from memory before each is locked in turn: plain reads do not wait for
    /// each other, as locks do, and of very many most are in no cache when they are due.
    pub(crate) fn fetch<'a>(locks: impl IntoIterator<Item = &'a Arc<Self>>) {
        for lock in locks {
            std::hint::black_box(lock.state.is_locked());
        }
    }

    /// One hold more if that `thread` has the lock, otherwise a position in the queue.
    ///
    /// # Errors
    ///
    /// If the thread holds it too often, or lost it and still has guards of it; or if it would be
    /// busy because other threads of this client cannot ask the store.
    pub(crate) fn enter<'a>(
        self: &Arc<Self>,
        owner: &'a dyn QueueOwner,
        thread: Option<u64>,
        will_wait: bool,
        request: impl FnOnce() -> LockRequest,
    ) -> Result<Entered<'a>, Error> {
        let mut state = self.lock();
        if let Some(thread) = thread {
            if let Some(acquisition) = state
                .current
                .as_ref()
                .filter(|it| it.holder.is_thread(thread))
            {
                acquisition.nest()?;
                return Ok(Entered::Nested(Arc::clone(acquisition)));
            }
            if let Some(lost) = state.lost().iter().find(|it| it.holder.is_thread(thread)) {
                return Err(lost.lost_error());
            }
        }
        if !will_wait && (state.current.is_some() || !state.queue.is_empty()) {
            return state.why_not().map_or(Ok(Entered::Busy), Err);
        }
        let request = request();
        let since = request.since;
        if state.current.is_none() && state.queue.is_empty() {
            state.fairness.begin(since);
        }
        let ticket = state.queue.push(request);
        Ok(Entered::Queued(WaiterGuard {
            owner,
            lock: Arc::clone(self),
            ticket,
            since,
        }))
    }

    /// Ends a hold. After the last one the acquisition stays here until the store was told, so that
    /// no thread of this client asks before.
    pub(crate) fn end_hold(&self, acquisition: &Arc<Acquisition>) {
        let mut state = self.lock();
        if let (0, Some(rare)) = (acquisition.end_hold(), &mut state.rare) {
            rare.lost.retain(|lost| !Arc::ptr_eq(lost, acquisition));
        }
    }

    /// The store was told: the head of the queue may contend, unless this client has had the lock
    /// for long enough and leaves it to others first.
    pub(crate) fn released(&self, acquisition: &Arc<Acquisition>, timing: ReleaseTiming) {
        let mut state = self.lock();
        if let Some(told) = timing.told {
            self.note_told(&mut state, told);
        }
        if !state.is_watched() && self.leaves_turns() {
            state.fairness.release_heard(); // a client that watches hears of its own release, too
        }
        if state
            .current
            .take_if(|it| Arc::ptr_eq(it, acquisition))
            .is_some()
        {
            self.registry.free(self);
            let Sharing {
                hand_off,
                counts_waiters,
            } = self.sharing();
            state.fairness.released(timing, hand_off, counts_waiters);
            // It was held until then. A wait that began since does not know that it is.
            state.answered = Some(Moment::from_nanos(timing.at.as_nanos().saturating_sub(1)));
            state.wake_head();
        }
    }

    /// Keeps a lost acquisition apart, so that other threads may ask the store for the lock.
    pub(crate) fn set_lost(&self, state: &mut LocalLockState, acquisition: &Arc<Acquisition>) {
        if let Some(lost) = state.current.take_if(|it| Arc::ptr_eq(it, acquisition)) {
            self.registry.free(self);
            if lost.holds() > 0 && !lost.holder.has_ended() {
                state.rare().lost.push(lost);
            }
            state.fairness.forget();
            state.wake_head();
        }
    }

    /// The store told so many clients of the last release.
    pub(crate) fn told(&self, clients: u32) {
        self.note_told(&mut self.lock(), clients);
    }

    fn note_told(&self, state: &mut LocalLockState, clients: u32) {
        // Beside a writer, readers are told, too, and they do not contend for its turn.
        if self.leaves_turns() && !self.name.profile().notifies_other_kinds {
            state.told(clients);
        }
    }

    /// Whether the client's fairness policy is for it: where threads ask for themselves, the store
    /// orders them, or there is room for several.
    fn leaves_turns(&self) -> bool {
        self.scope == Scope::CLIENT && self.name.profile().hands_off
    }

    /// How many threads queue, the head included.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().queue.len()
    }

    /// How many holds this thread has, lost ones too, and on which acquisition.
    pub(crate) fn holds_of(&self, thread: u64) -> Option<(u32, Arc<Acquisition>)> {
        let state = self.lock();
        let mut acquisitions = state.current.iter().chain(state.lost());
        let acquisition = acquisitions.find(|it| it.holder.is_thread(thread))?;
        Some((acquisition.holds(), Arc::clone(acquisition)))
    }
}

impl LocalLockState {
    /// The acquisition of the thread of this client that holds the lock.
    pub(crate) fn current(&self) -> Option<&Arc<Acquisition>> {
        self.current.as_ref()
    }

    /// Takes out lost acquisitions of threads that have ended: no other thread can end their holds.
    pub(crate) fn take_abandoned(&mut self) -> Vec<Arc<Acquisition>> {
        let Some(rare) = &mut self.rare else {
            return Vec::new();
        };
        rare.lost
            .extract_if(.., |it| it.holder.has_ended())
            .collect()
    }

    /// The shortest lease of the lost acquisitions whose holds have not ended.
    pub(crate) fn shortest_lost(&self) -> Option<LeaseTime> {
        self.lost().iter().map(|it| it.lock().lease).min()
    }

    /// Why no thread of this client can ask the store, if that is so. Then "busy" would be a guess.
    fn why_not(&self) -> Option<Error> {
        self.outage().map(|outage| outage.error.clone())
    }

    fn outage(&self) -> Option<&StoreOutage> {
        self.rare
            .as_ref()?
            .outage
            .as_ref()
            .filter(|_| self.current.is_none())
    }

    fn lost(&self) -> &[Arc<Acquisition>] {
        self.rare.as_ref().map_or(&[], |rare| &rare.lost)
    }

    /// Whether the store tells its releases.
    fn is_watched(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.watch.is_some())
    }

    fn rare(&mut self) -> &mut RareState {
        self.rare.get_or_insert_default()
    }

    /// The head's request has ended; at `answered`, if the store has answered it.
    fn request_ended(&mut self, answered: Option<Moment>) {
        if let Some(head) = self.queue.head_mut() {
            head.asks_until = None;
        }
        self.answered = answered.or(self.answered);
        if let Some(rare) = &mut self.rare {
            rare.overdue.drain(..).for_each(|signal| signal.raise());
        }
    }

    /// See [`FairnessPolicy::waiting`].
    fn told(&mut self, clients: u32) {
        // We were among them if we watch.
        self.fairness
            .waiting(clients.saturating_add(u32::from(!self.is_watched())));
    }

    /// It is held for long: frees what only waiting needs.
    pub(crate) fn free_unused(&mut self) {
        self.queue.free_unused();
        self.rare.take_if(|rare| {
            let RareState {
                lost,
                outage,
                overdue,
                watch,
                ..
            } = &**rare;
            lost.is_empty() && outage.is_none() && overdue.is_empty() && watch.is_none()
        });
    }

    fn wake_head(&self) {
        if let Some(head) = self.queue.head() {
            head.request.signal.raise();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::LockKind;
    use crate::threads::process::Origin;

    /// A client may hold very many locks, each with these two.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn states_of_a_held_lock_are_small() {
        assert!(size_of::<LocalLock>() <= 152);
        assert!(size_of::<Acquisition>() <= 208 + size_of::<crate::observe::metrics::Counted>());
    }

    /// Beside a writer, those that were told are mostly readers.
    #[test]
    fn client_gives_way_to_told_clients_but_for_a_writer() {
        let sharing = Sharing {
            hand_off: Duration::from_millis(5),
            counts_waiters: false,
        };
        let registry = Arc::new(Registry::new(Arc::new(Origin::here()), sharing));
        for (kind, gives_way) in [(LockKind::Mutex, true), (LockKind::Write, false)] {
            let name = LockName::new("x").unwrap().of_kind(kind);
            let lock = LocalLock::new(name, Scope::CLIENT, Arc::clone(&registry));
            lock.told(8);
            assert_eq!(
                !lock.lock().fairness.delay().is_zero(),
                gives_way,
                "{kind:?}"
            );
        }
    }
}

//! [`Entry`]: what this client knows of one lock name - who holds it here, and who queues for it.
//!
//! Of all threads of a client, only the head of the queue asks the store, and only while no thread of this client holds
//! the lock. Everybody else waits locally, first in, first out.

mod place;
mod registry;

use super::Engine;
use super::acquisition::Acquisition;
use super::turns::{Returned, Turns};
use crate::backend::Watch;
use crate::clock::{Clock, Moment, Signal};
use crate::error::Error;
use crate::holder::Holder;
use crate::lease::LeaseTime;
use crate::name::LockName;
use crate::replication::Replication;
use crate::sync::mutant;
use crate::sync::{Mutex, MutexGuard};
use crate::watchdog::wheel::TimerKey;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub(crate) use place::{EntryWake, Known, Place, Turn};
pub(crate) use registry::Registry;

/// One lock name of one client.
pub(crate) struct Entry {
    pub(crate) name: LockName,
    registry: Weak<Registry>,
    /// How much earlier the first renewal of a holding is due, in parts of [`SPREAD`]. At random, so that locks that were
    /// taken at once are not all renewed at once for ever; and of each the same every time, so that the timer of one that is
    /// taken again and again is where it was.
    phase: u8,
    state: Mutex<EntryState>,
}

/// A first renewal comes earlier by less than this part of the lease.
const SPREAD: u32 = 12;

/// All of it is read and written under the entry's lock, which is never held while the store is asked.
#[derive(Default)]
pub(crate) struct EntryState {
    /// Who holds the lock, or is just giving it back. While there is one, nobody of this client asks the store.
    current: Option<Arc<Acquisition>>,
    /// Holdings that were lost and whose guards are not all gone yet.
    lost: Vec<Arc<Acquisition>>,
    queue: VecDeque<Waiter>,
    next_ticket: u64,
    /// Written by the head, inherited by the next one.
    outage: Option<StoreOutage>,
    /// When the store last answered a head, or granted it the lock.
    answered: Option<Moment>,
    /// Waiters whose deadline has passed, and that wait for the end of the head's request.
    overdue: Vec<Arc<Signal>>,
    /// The timer of this name in the wheel, and when it is due. Written by the watchdog.
    pub(crate) timer: Option<(TimerKey, Moment)>,
    /// Alive while somebody queues and the store was found busy once.
    watch: Option<Watch>,
    /// Holdings that were handed to somebody in the queue who has not come for it yet, and that one's ticket. The newest
    /// may be the current one; the others were lost meanwhile, and were others' since.
    handed: Vec<(u64, Arc<Acquisition>)>,
    turns: Turns,
}

/// Why the head cannot take the lock from the store, although no other client has it.
#[derive(Clone)]
pub(crate) struct StoreOutage {
    pub(crate) since: Moment,
    pub(crate) error: Error,
    /// When it ends, and not before: a [pause](crate::backend::Pause).
    pub(crate) ends: Option<Moment>,
}

/// Somebody in the queue.
struct Waiter {
    ticket: u64,
    wanted: Wanted,
    /// The head that asks the store: wake-ups from the store are for it.
    contending: bool,
    /// By when its request that is under way must be answered.
    asks_until: Option<Moment>,
}

/// What somebody in the queue wants.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub(crate) holder: Holder,
    pub(crate) signal: Arc<Signal>,
    pub(crate) since: Moment,
    /// The lease that a holding must have to be taken over from another thread; `None` if only one from the store will do.
    pub(crate) watched: Option<LeaseTime>,
    /// How many replicas must have confirmed it.
    pub(crate) replication: Replication,
}

/// What somebody finds who wants the lock.
pub(crate) enum Entered<'a> {
    /// This thread holds it: one hold more.
    Nested(Arc<Acquisition>),
    /// This thread holds it too often.
    TooDeep,
    /// This thread held it, lost it, and still has guards of it.
    Lost(Arc<Acquisition>),
    /// Somebody of this client has it or waits for it, and the caller does not want to wait.
    Busy,
    /// Somebody of this client waits for it because the store cannot be asked.
    Unavailable(Error),
    /// In the queue.
    Queued(Place<'a>),
}

impl Entry {
    fn new(name: LockName, registry: Weak<Registry>) -> Self {
        Self { name, registry, phase: Self::phase(), state: Mutex::default() }
    }

    /// None in this crate's own tests: they say to the millisecond when what happens.
    fn phase() -> u8 {
        if cfg!(test) { 0 } else { fastrand::u8(..) }
    }

    /// How much earlier the first renewal of a holding with this lease is due.
    pub(crate) fn earlier(&self, lease: LeaseTime) -> Duration {
        lease.duration() / SPREAD * u32::from(self.phase) / (u32::from(u8::MAX) + 1)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, EntryState> {
        self.state.lock()
    }

    /// Brings all of them from memory before each is locked in turn. Plain reads do not wait for each other, as locks do, and
    /// of very many entries most are in no cache when their time has come.
    pub(crate) fn fetch<'a>(entries: impl IntoIterator<Item = &'a Arc<Self>>) {
        for entry in entries {
            std::hint::black_box(entry.state.is_locked());
        }
    }

    /// Goes in: one hold more if that `thread` has it, otherwise into the queue.
    pub(crate) fn enter<'a>(
        self: &Arc<Self>,
        engine: &'a Engine,
        thread: Option<u64>,
        will_wait: bool,
        wanted: impl FnOnce() -> Wanted,
    ) -> Entered<'a> {
        let mut state = self.lock();
        if let Some(thread) = thread {
            if let Some(acquisition) =
                state.current.as_ref().filter(|it| it.holder.is_thread(thread))
            {
                return if acquisition.nest() {
                    Entered::Nested(Arc::clone(acquisition))
                } else {
                    Entered::TooDeep
                };
            }
            if let Some(lost) = state.lost.iter().find(|it| it.holder.is_thread(thread)) {
                return Entered::Lost(Arc::clone(lost));
            }
        }
        if !will_wait && (state.current.is_some() || !state.queue.is_empty()) {
            return state.why_not().map_or(Entered::Busy, Entered::Unavailable);
        }
        let waiter = state.new_waiter(wanted());
        let (ticket, since) = (waiter.ticket, waiter.wanted.since);
        if state.current.is_none() && state.queue.is_empty() {
            state.turns.begin(since);
        }
        state.queue.push_back(waiter);
        Entered::Queued(Place { engine, entry: Arc::clone(self), ticket, since })
    }

    /// Passes the lock on to the head of the queue: `acquisition`, whose last hold has ended, is followed by what `follow`
    /// makes of it for the head, now. Returns when that was; `None` if it must go back to the store: nobody waits, the
    /// time is used up in which this client may keep it, or `follow` makes nothing.
    pub(crate) fn hand_on(
        &self,
        acquisition: &Arc<Acquisition>,
        clock: &dyn Clock,
        budget: Duration,
        follow: impl FnOnce(&Wanted, Moment) -> Option<Acquisition>,
    ) -> Option<Moment> {
        let mut state = self.lock();
        state.queue.front()?;
        // Read under the lock: the watchdog, which takes it, too, cannot have come by since.
        let now = clock.now();
        let is_current = state.current().is_some_and(|current| Arc::ptr_eq(current, acquisition));
        if !is_current || state.turns.is_over(now, budget) {
            return None;
        }
        let next = Arc::new(follow(&state.queue.front()?.wanted, now)?);
        let head = state.queue.pop_front().expect("the queue has a head");
        state.current = Some(Arc::clone(&next));
        state.handed.retain(|_| !mutant("handed_over_is_overwritten"));
        state.handed.push((head.ticket, next));
        drop(state);
        head.wanted.signal.raise();
        Some(now)
    }

    /// Takes back the hold that [`Entered::Nested`] gave, or ends any other hold on `acquisition`. After the last one it stays
    /// here until the store was told, so that nobody of this client asks before.
    pub(crate) fn end_hold(&self, acquisition: &Arc<Acquisition>) {
        let mut state = self.lock();
        if acquisition.end_hold() == 0 {
            state.lost.retain(|lost| !Arc::ptr_eq(lost, acquisition));
        }
    }

    /// Nobody of this client holds it any more: the head of the queue may ask the store. If this client has had it for
    /// long enough, the head leaves it to others first, also one that comes only then.
    pub(crate) fn vacate(
        &self,
        engine: &Engine,
        acquisition: &Arc<Acquisition>,
        returned: Returned,
    ) {
        let mut state = self.lock();
        if let Some(told) = returned.told {
            state.told(told);
        }
        if state.watch.is_none() {
            state.turns.heard(); // where we watch, the store tells us of our own release as of any other
        }
        if state.current.take_if(|it| Arc::ptr_eq(it, acquisition)).is_some() {
            let (budget, counts) = (engine.settings.hand_off, engine.abilities.counts_waiters);
            state.turns.released(returned, budget, counts);
            state.wake_head();
        }
    }

    /// The store told so many clients of the last release.
    pub(crate) fn told(&self, clients: u32) {
        self.lock().told(clients);
    }

    /// How many threads queue, the head included.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().queue.len()
    }

    /// How many holds this thread has, lost ones too, and on which holding.
    pub(crate) fn holds_of(&self, thread: u64) -> Option<(u32, Arc<Acquisition>)> {
        let state = self.lock();
        let mut acquisitions = state.current.iter().chain(&state.lost);
        let acquisition = acquisitions.find(|it| it.holder.is_thread(thread))?;
        Some((acquisition.holds(), Arc::clone(acquisition)))
    }
}

impl EntryState {
    /// The holding that somebody of this client has.
    pub(crate) fn current(&self) -> Option<&Arc<Acquisition>> {
        self.current.as_ref()
    }

    /// Sets a lost holding aside, so that others of this client may ask the store for the lock.
    pub(crate) fn set_aside(&mut self, acquisition: &Arc<Acquisition>) {
        if let Some(lost) = self.current.take_if(|it| Arc::ptr_eq(it, acquisition)) {
            if (lost.holds() > 0 || mutant("ended_hold_is_set_aside")) && !lost.holder.has_ended() {
                self.lost.push(lost);
            }
            self.turns.forget();
            self.wake_head();
        }
    }

    /// Takes out the lost holdings of threads that have ended: no other thread can end their holds.
    pub(crate) fn take_left_behind(&mut self) -> Vec<Arc<Acquisition>> {
        self.lost.extract_if(.., |it| it.holder.has_ended()).collect()
    }

    /// The shortest lease of the lost holdings whose holds have not ended.
    pub(crate) fn shortest_lost(&self) -> Option<LeaseTime> {
        self.lost.iter().map(|it| it.lock().lease).min()
    }

    fn new_waiter(&mut self, wanted: Wanted) -> Waiter {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        Waiter { ticket, wanted, contending: false, asks_until: None }
    }

    /// What was handed to the one with this ticket.
    fn take_handed(&mut self, ticket: u64) -> Option<Arc<Acquisition>> {
        let at = self.handed.iter().position(|(to, _)| *to == ticket)?;
        Some(self.handed.swap_remove(at).1)
    }

    /// Why nobody of this client can ask the store, if that is so. Then "busy" would be a guess.
    fn why_not(&self) -> Option<Error> {
        self.outage().map(|outage| outage.error.clone())
    }

    fn outage(&self) -> Option<&StoreOutage> {
        self.outage.as_ref().filter(|_| self.current.is_none())
    }

    /// The head's request has ended; at `answered`, if the store has answered it.
    fn request_ended(&mut self, answered: Option<Moment>) {
        if let Some(head) = self.queue.front_mut() {
            head.asks_until = None;
        }
        self.answered = answered.or(self.answered);
        self.overdue.drain(..).for_each(|waiter| waiter.raise());
    }

    /// See [`Turns::waiting`].
    fn told(&mut self, clients: u32) {
        // We were among them if we watch.
        self.turns.waiting(clients.saturating_add(u32::from(self.watch.is_none())));
    }

    fn wake_head(&self) {
        if let Some(head) = self.queue.front() {
            head.wanted.signal.raise();
        }
    }
}

//! [`Entry`]: what this client knows of one lock name - who holds it here, and who queues for it.
//!
//! Of all threads of a client, only the head of the queue asks the store, and only while no thread of this client holds
//! the lock. Everybody else waits locally, first in, first out.

use super::Engine;
use super::tenure::Tenure;
use super::turns::Turns;
use crate::backend::{Wake, Watch};
use crate::clock::{Clock, Moment, Signal};
use crate::error::Error;
use crate::holder::Holder;
use crate::lease::LeaseTime;
use crate::name::LockName;
use crate::watchdog::wheel::TimerKey;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// One lock name of one client.
pub(crate) struct Entry {
    pub(crate) name: LockName,
    registry: Weak<Registry>,
    state: Mutex<EntryState>,
}

/// All of it is read and written under the entry's lock, which is never held while the store is asked.
#[derive(Default)]
pub(crate) struct EntryState {
    /// Who holds the lock, or is just giving it back. While there is one, nobody of this client asks the store.
    current: Option<Occupant>,
    /// Holdings that were lost and whose guards are not all gone yet.
    lost: Vec<Occupant>,
    queue: VecDeque<Waiter>,
    next_ticket: u64,
    /// Why the head cannot ask the store, and since when. Written by the head, inherited by the next one.
    outage: Option<(Moment, Error)>,
    /// The timer of this name in the wheel, and when it is due. Written by the watchdog.
    pub(crate) timer: Option<(TimerKey, Moment)>,
    /// Alive while somebody queues and the store was found busy once.
    watch: Option<Watch>,
    /// Holdings that were handed to somebody in the queue who has not come for it yet, and that one's ticket. The newest
    /// may be the current one; the others were lost meanwhile, and were others' since.
    handed: Vec<(u64, Arc<Tenure>)>,
    turns: Turns,
}

/// A holding and how many holds there are on it.
struct Occupant {
    tenure: Arc<Tenure>,
    holds: u32,
}

/// Somebody in the queue.
struct Waiter {
    ticket: u64,
    wanted: Wanted,
    /// The head that asks the store: wake-ups from the store are for it.
    contending: bool,
}

/// What somebody in the queue wants.
#[derive(Clone)]
pub(crate) struct Wanted {
    pub(crate) holder: Holder,
    pub(crate) signal: Arc<Signal>,
    pub(crate) since: Moment,
    /// The lease that a holding must have to be taken over from another thread; `None` if only one from the store will do.
    pub(crate) watched: Option<LeaseTime>,
}

/// The most holds on one holding, as in Java's `ReentrantReadWriteLock`: more are a runaway recursion.
pub(crate) const MOST_HOLDS: u32 = 65_535;

/// What somebody finds who wants the lock.
pub(crate) enum Entered<'a> {
    /// This thread holds it: one hold more.
    Nested(Arc<Tenure>),
    /// This thread holds it too often.
    TooDeep,
    /// This thread held it, lost it, and still has guards of it.
    Lost(Arc<Tenure>),
    /// Somebody of this client has it or waits for it, and the caller does not want to wait.
    Busy,
    /// Somebody of this client waits for it because the store cannot be asked.
    Unavailable(Error),
    /// In the queue.
    Queued(Place<'a>),
}

/// What is left to do after a hold ended.
pub(crate) enum Ended {
    /// There are more holds.
    Nested,
    /// It was the last one.
    Last,
}

impl Entry {
    fn new(name: LockName, registry: Weak<Registry>) -> Self {
        Self { name, registry, state: Mutex::default() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, EntryState> {
        self.state.lock()
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
            if let Some(occupant) =
                state.current.as_mut().filter(|it| it.tenure.holder.is_thread(thread))
            {
                if occupant.holds >= MOST_HOLDS {
                    return Entered::TooDeep;
                }
                occupant.holds += 1;
                return Entered::Nested(Arc::clone(&occupant.tenure));
            }
            if let Some(lost) = state.lost.iter().find(|it| it.tenure.holder.is_thread(thread)) {
                return Entered::Lost(Arc::clone(&lost.tenure));
            }
        }
        if !will_wait && (state.current.is_some() || !state.queue.is_empty()) {
            return state.why_not().map_or(Entered::Busy, Entered::Unavailable);
        }
        let waiter = state.new_waiter(wanted());
        let (ticket, since) = (waiter.ticket, waiter.wanted.since);
        state.queue.push_back(waiter);
        Entered::Queued(Place { engine, entry: Arc::clone(self), ticket, since })
    }

    /// Passes the lock on to the head of the queue: `tenure`, whose last hold has ended, is followed by what `follow`
    /// makes of it for the head, now. Returns when that was; `None` if it must go back to the store: nobody waits, the
    /// time is used up in which this client may keep it, or `follow` makes nothing.
    pub(crate) fn hand_on(
        &self,
        tenure: &Arc<Tenure>,
        clock: &dyn Clock,
        budget: Duration,
        follow: impl FnOnce(&Wanted, Moment) -> Option<Tenure>,
    ) -> Option<Moment> {
        let mut state = self.lock();
        state.queue.front()?;
        // Read under the lock: the watchdog, which takes it, too, cannot have come by since.
        let now = clock.now();
        let is_current = state.current().is_some_and(|current| Arc::ptr_eq(current, tenure));
        if !is_current || state.turns.is_over(now, budget) {
            return None;
        }
        let next = Arc::new(follow(&state.queue.front()?.wanted, now)?);
        let head = state.queue.pop_front().expect("the queue has a head");
        state.current = Some(Occupant { tenure: Arc::clone(&next), holds: 1 });
        state.handed.push((head.ticket, next));
        drop(state);
        head.wanted.signal.raise();
        Some(now)
    }

    /// Takes back the hold that [`Entered::Nested`] gave, or ends any other hold on `tenure`.
    pub(crate) fn end_hold(&self, tenure: &Arc<Tenure>) -> Ended {
        let mut state = self.lock();
        if let Some(occupant) = state.current.as_mut().filter(|it| Arc::ptr_eq(&it.tenure, tenure))
        {
            occupant.holds -= 1;
            // The last one stays here until the store was told, so that nobody of this client asks before.
            return if occupant.holds == 0 { Ended::Last } else { Ended::Nested };
        }
        let Some(at) = state.lost.iter().position(|it| Arc::ptr_eq(&it.tenure, tenure)) else {
            return Ended::Last;
        };
        state.lost[at].holds -= 1;
        if state.lost[at].holds > 0 {
            return Ended::Nested;
        }
        state.lost.swap_remove(at);
        Ended::Last
    }

    /// Nobody of this client holds it any more: the head of the queue may ask the store. If this client has had it for
    /// long enough, the head leaves it to others first. The release `took` so long, if its
    /// answer was waited for.
    pub(crate) fn vacate(
        &self,
        tenure: &Arc<Tenure>,
        now: Moment,
        took: Option<Duration>,
        budget: Duration,
    ) {
        let mut state = self.lock();
        if state.current.as_ref().is_some_and(|it| Arc::ptr_eq(&it.tenure, tenure)) {
            state.current = None;
            if state.queue.is_empty() {
                state.turns.forget();
            } else {
                state.turns.released(now, took, budget);
            }
            state.wake_head();
        }
    }

    /// How many threads queue, the head included.
    pub(crate) fn waiting(&self) -> usize {
        self.lock().queue.len()
    }

    /// How many holds this thread has, lost ones too, and on which holding.
    pub(crate) fn holds_of(&self, thread: u64) -> Option<(u32, Arc<Tenure>)> {
        let state = self.lock();
        let mut occupants = state.current.iter().chain(&state.lost);
        let occupant = occupants.find(|it| it.tenure.holder.is_thread(thread))?;
        Some((occupant.holds, Arc::clone(&occupant.tenure)))
    }
}

impl EntryState {
    /// The holding that somebody of this client has.
    pub(crate) fn current(&self) -> Option<&Arc<Tenure>> {
        self.current.as_ref().map(|occupant| &occupant.tenure)
    }

    /// Sets a lost holding aside, so that others of this client may ask the store for the lock.
    pub(crate) fn set_aside(&mut self, tenure: &Arc<Tenure>) {
        if let Some(occupant) = self.current.take_if(|it| Arc::ptr_eq(&it.tenure, tenure)) {
            // Nobody will end the holds of a thread that is gone.
            self.lost.retain(|it| !it.tenure.holder.has_ended());
            if occupant.holds > 0 && !tenure.holder.has_ended() {
                self.lost.push(occupant);
            }
            self.turns.forget();
            self.wake_head();
        }
    }

    fn new_waiter(&mut self, wanted: Wanted) -> Waiter {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        Waiter { ticket, wanted, contending: false }
    }

    /// What was handed to the one with this ticket.
    fn take_handed(&mut self, ticket: u64) -> Option<Arc<Tenure>> {
        let at = self.handed.iter().position(|(to, _)| *to == ticket)?;
        Some(self.handed.swap_remove(at).1)
    }

    /// Why nobody of this client can ask the store, if that is so. Then "busy" would be a guess.
    fn why_not(&self) -> Option<Error> {
        self.outage.as_ref().filter(|_| self.current.is_none()).map(|(_, error)| error.clone())
    }

    fn wake_head(&self) {
        if let Some(head) = self.queue.front() {
            head.wanted.signal.raise();
        }
    }
}

/// Where somebody stands in the queue. Leaves it when dropped, wakes whoever comes to the head by that, and gives back
/// what it was handed and did not come for.
pub(crate) struct Place<'a> {
    engine: &'a Engine,
    entry: Arc<Entry>,
    ticket: u64,
    since: Moment,
}

/// Whose turn it is.
pub(crate) enum Turn {
    /// Ours: we are the head, nobody of this client holds the lock, and wake-ups from the store come to us.
    Mine,
    /// The lock was handed to us: one hold on this holding.
    Handed(Arc<Tenure>),
    /// Ours at that moment: until then other clients go first.
    StandBack(Moment),
    /// Not ours yet. The holding that is in the way, if it is one, ends by itself at its deadline.
    Wait(Option<Arc<Tenure>>),
}

impl Place<'_> {
    pub(crate) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// Looks whether it is our turn to ask the store, and takes it if so; or what we were handed. Whoever must be done
    /// by `deadline` does not stand back beyond it.
    pub(crate) fn turn(&self, deadline: Option<Moment>) -> Turn {
        let mut state = self.entry.lock();
        if let Some(tenure) = state.take_handed(self.ticket) {
            drop(state);
            self.engine.tell_acquired(&tenure, self.since);
            return Turn::Handed(tenure);
        }
        if let Some(tenure) = state.current() {
            return Turn::Wait(Some(Arc::clone(tenure)));
        }
        let stand_back = state.turns.stand_back(deadline);
        match state.queue.front_mut() {
            Some(head) if head.ticket == self.ticket => {
                if let Some(until) = stand_back.filter(|until| self.engine.clock.now() < *until) {
                    return Turn::StandBack(until);
                }
                head.contending = true;
                state.turns.goes();
                Turn::Mine
            }
            _ => Turn::Wait(None),
        }
    }

    /// Goes to the head of the queue: what we were handed was lost before we came for it. But not before somebody who
    /// asks the store since: of two who ask one would be handed the lock by the other, and never look for it here.
    pub(crate) fn again(&mut self, wanted: Wanted) {
        let mut state = self.entry.lock();
        let waiter = state.new_waiter(wanted);
        self.ticket = waiter.ticket;
        let at = usize::from(state.queue.front().is_some_and(|head| head.contending));
        state.queue.insert(at, waiter);
    }

    /// Leaves the queue, or takes what we were handed in this very moment.
    pub(crate) fn leave(&self) -> Option<Arc<Tenure>> {
        let mut state = self.entry.lock();
        let handed = state.take_handed(self.ticket);
        let at = state.queue.iter().position(|waiter| waiter.ticket == self.ticket);
        if let Some(at) = at {
            state.queue.remove(at);
        }
        let mut ended = None;
        if state.queue.is_empty() {
            ended = state.watch.take();
            state.outage = None;
            state.turns.goes();
        }
        if at == Some(0) && state.current.is_none() {
            // Whatever woke us may have been meant for whoever is next: pass it on.
            state.wake_head();
        }
        drop(state);
        drop(ended);
        if let Some(tenure) = &handed {
            // Also if it is given back at once, or was lost before: its end is told, too.
            self.engine.tell_acquired(tenure, self.since);
        }
        handed
    }

    /// Whether others of this client wait behind us.
    pub(crate) fn has_followers(&self) -> bool {
        self.entry.lock().queue.len() > 1
    }

    /// Another client has the lock.
    pub(crate) fn found_busy(&self) {
        self.entry.lock().turns.found_busy();
    }

    /// How long to leave a lock that was just released to those who have waited for longer.
    pub(crate) fn delay(&self) -> Duration {
        self.entry.lock().turns.delay()
    }

    /// Whether the store tells this name's releases already.
    pub(crate) fn is_watched(&self) -> bool {
        self.entry.lock().watch.is_some()
    }

    /// Keeps a watch until nobody queues any more.
    pub(crate) fn keep_watch(&self, watch: Watch) {
        let previous = self.entry.lock().watch.replace(watch);
        drop(previous); // ends outside the lock
    }

    /// Since when the store cannot be asked.
    pub(crate) fn outage_since(&self) -> Option<Moment> {
        self.entry.lock().outage.as_ref().map(|(since, _)| *since)
    }

    /// The store cannot be asked; or `None`, it has answered.
    pub(crate) fn set_outage(&self, outage: Option<(Moment, Error)>) {
        self.entry.lock().outage = outage;
    }

    /// Why nobody of this client could ask the store; `None` if somebody could.
    pub(crate) fn why_not(&self) -> Option<Error> {
        self.entry.lock().why_not()
    }

    /// Leaves the queue as the holder, with one hold. The next in the queue becomes its head and waits for the release.
    /// `then` runs before anybody can see it.
    pub(crate) fn occupy<R>(
        self,
        tenure: &Arc<Tenure>,
        sent: Moment,
        now: Moment,
        then: impl FnOnce(&mut EntryState) -> R,
    ) -> R {
        let mut state = self.entry.lock();
        state.current = Some(Occupant { tenure: Arc::clone(tenure), holds: 1 });
        state.turns.granted(sent, now);
        let result = then(&mut state);
        drop(state);
        result // dropping `self` takes us out of the queue, and wakes nobody, because the lock is occupied
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(tenure) = self.leave() {
            // We do not want it any more: an interrupt, or a panic.
            self.engine.drop_hold(&self.entry, &tenure);
        }
    }
}

/// How the store wakes the head of a name's queue.
pub(crate) struct EntryWake(pub(crate) Weak<Entry>);

impl Wake for EntryWake {
    fn wake(&self) {
        let Some(entry) = self.0.upgrade() else { return };
        let mut state = entry.lock();
        state.turns.heard();
        if let Some(head) = state.queue.front().filter(|head| head.contending) {
            head.wanted.signal.raise();
        }
    }
}

/// The entries in use. One that nobody has a handle, a guard, a timer or a place of is gone.
#[derive(Default)]
pub(crate) struct Registry(Mutex<HashMap<LockName, Weak<Entry>>>);

impl Registry {
    /// The entry of this name.
    pub(crate) fn entry(self: &Arc<Self>, name: &LockName) -> Arc<Entry> {
        let mut entries = self.0.lock();
        if let Some(entry) = entries.get(name).and_then(Weak::upgrade) {
            return entry;
        }
        let entry = Arc::new(Entry::new(name.clone(), Arc::downgrade(self)));
        entries.insert(name.clone(), Arc::downgrade(&entry));
        entry
    }

    /// The entry of this name, if it is in use.
    pub(crate) fn find(&self, name: &LockName) -> Option<Arc<Entry>> {
        self.0.lock().get(name).and_then(Weak::upgrade)
    }

    /// How many names are in use.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let Some(registry) = self.registry.upgrade() else { return };
        let mut entries = registry.0.lock();
        // Between our last handle and here somebody may have made a new entry of this name: that one stays.
        if entries.get(&self.name).is_some_and(|entry| std::ptr::eq(entry.as_ptr(), self)) {
            entries.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_goes_late_leaves_its_successor_in_place() {
        let registry = Arc::new(Registry::default());
        let name = LockName::new("x").unwrap();
        let late = Entry::new(name.clone(), Arc::downgrade(&registry));
        let successor = registry.entry(&name);
        drop(late);
        assert!(registry.find(&name).is_some_and(|found| Arc::ptr_eq(&found, &successor)));
        drop(successor);
        assert_eq!(registry.len(), 0);
    }
}

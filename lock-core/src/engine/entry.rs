//! [`Entry`]: what this client knows of one lock name - who holds it here, and who queues for it.
//!
//! Of all threads of a client, only the head of the queue asks the store, and only while no thread of this client holds
//! the lock. Everybody else waits locally, first in, first out.

use super::tenure::Tenure;
use crate::backend::{Wake, Watch};
use crate::clock::{Moment, Signal};
use crate::error::Error;
use crate::name::LockName;
use crate::watchdog::wheel::TimerKey;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Weak};

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
}

/// A holding and how many holds there are on it.
struct Occupant {
    tenure: Arc<Tenure>,
    holds: u32,
}

/// Somebody in the queue.
struct Waiter {
    ticket: u64,
    signal: Arc<Signal>,
    /// The head that asks the store: wake-ups from the store are for it.
    contending: bool,
}

/// The most holds on one holding, as in Java's `ReentrantReadWriteLock`: more are a runaway recursion.
pub(crate) const MOST_HOLDS: u32 = 65_535;

/// What somebody finds who wants the lock.
pub(crate) enum Entered {
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
    Queued(Place),
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

    /// Goes in as `holder`: one hold more if that thread has it, otherwise into the queue.
    pub(crate) fn enter(
        self: &Arc<Self>,
        thread: Option<u64>,
        signal: &Arc<Signal>,
        will_wait: bool,
    ) -> Entered {
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
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.queue.push_back(Waiter { ticket, signal: Arc::clone(signal), contending: false });
        Entered::Queued(Place { entry: Arc::clone(self), ticket })
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

    /// Nobody of this client holds it any more: the head of the queue may ask the store.
    pub(crate) fn vacate(&self, tenure: &Arc<Tenure>) {
        let mut state = self.lock();
        if state.current.as_ref().is_some_and(|it| Arc::ptr_eq(&it.tenure, tenure)) {
            state.current = None;
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
            self.wake_head();
        }
    }

    /// Why nobody of this client can ask the store, if that is so. Then "busy" would be a guess.
    fn why_not(&self) -> Option<Error> {
        self.outage.as_ref().filter(|_| self.current.is_none()).map(|(_, error)| error.clone())
    }

    fn wake_head(&self) {
        if let Some(head) = self.queue.front() {
            head.signal.raise();
        }
    }
}

/// Where somebody stands in the queue. Leaves it when dropped, and wakes whoever comes to the head by that.
pub(crate) struct Place {
    entry: Arc<Entry>,
    ticket: u64,
}

/// Whose turn it is.
pub(crate) enum Turn {
    /// Ours: we are the head, nobody of this client holds the lock, and wake-ups from the store come to us.
    Mine,
    /// Not ours yet. The holding that is in the way, if it is one, ends by itself at its deadline.
    Wait(Option<Arc<Tenure>>),
}

impl Place {
    pub(crate) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// Looks whether it is our turn to ask the store, and takes it if so.
    pub(crate) fn turn(&self) -> Turn {
        let mut state = self.entry.lock();
        if let Some(tenure) = state.current() {
            return Turn::Wait(Some(Arc::clone(tenure)));
        }
        match state.queue.front_mut() {
            Some(head) if head.ticket == self.ticket => {
                head.contending = true;
                Turn::Mine
            }
            _ => Turn::Wait(None),
        }
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
        then: impl FnOnce(&mut EntryState) -> R,
    ) -> R {
        let mut state = self.entry.lock();
        state.current = Some(Occupant { tenure: Arc::clone(tenure), holds: 1 });
        let result = then(&mut state);
        drop(state);
        result // dropping `self` takes us out of the queue, and wakes nobody, because the lock is occupied
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.entry.lock();
        let Some(at) = state.queue.iter().position(|waiter| waiter.ticket == self.ticket) else {
            return;
        };
        state.queue.remove(at);
        let mut ended = None;
        if state.queue.is_empty() {
            ended = state.watch.take();
            state.outage = None;
        }
        if at == 0 && state.current.is_none() {
            // Whatever woke us may have been meant for whoever is next: pass it on.
            state.wake_head();
        }
        drop(state);
        drop(ended);
    }
}

/// How the store wakes the head of a name's queue.
pub(crate) struct EntryWake(pub(crate) Weak<Entry>);

impl Wake for EntryWake {
    fn wake(&self) {
        let Some(entry) = self.0.upgrade() else { return };
        let state = entry.lock();
        if let Some(head) = state.queue.front().filter(|head| head.contending) {
            head.signal.raise();
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

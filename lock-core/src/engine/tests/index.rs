//! The cost of a report, renewal, loss, wake-up or release of one lock: the number of visited locks
//! does not grow with the other held locks or the waiting threads.

use super::*;
use crate::engine::queue::LocalLock;
use crate::{LockGuard, LockKind, Mutex as DistMutex};
use std::slice;

/// The number of locks that a client visits for each kind of event.
#[derive(PartialEq, Eq, Debug)]
struct Visits(Vec<(&'static str, usize)>);

/// A client that holds many locks, some of them without guards, and has used a fair lock.
struct Holder {
    others: Vec<LockGuard>,
    client: Client,
    other: Client,
    store: Recorded,
    clock: ManualClock,
    visits: Visits,
}

impl Holder {
    fn new(others: usize) -> Self {
        let (store, clock) = Recorded::new();
        let (client, other) = (store.client(), store.client());
        client
            .fair_mutex("once")
            .unwrap()
            .lock()
            .unwrap()
            .unlock()
            .unwrap();
        let long = LockOptions::new().lease(3_600 * SECOND);
        let take = |number| {
            client
                .mutex(format!("other:{number}"))
                .unwrap()
                .lock_with(&long)
        };
        let mut others: Vec<_> = (0..others).map(|number| take(number).unwrap()).collect();
        others
            .drain(..others.len() / 50)
            .for_each(LockGuard::detach);
        // Then the timer's first checks of these locks are over, and its next checks follow after
        // the counted events.
        clock.jump(2 * SECOND);
        Self {
            others,
            client,
            other,
            store,
            clock,
            visits: Visits(Vec::new()),
        }
    }

    fn rest(&self) {
        let at_rest = || self.client.0.is_at_rest(|| self.clock.sleepers());
        eventually("all threads are at rest", at_rest);
    }

    /// Counts the visits from the call of `event` until `is_over` returns true and all threads are
    /// at rest. They must be at rest before `event`, too.
    fn count(&mut self, what: &'static str, event: impl FnOnce(), is_over: impl Fn() -> bool) {
        let visits = &self.client.0.registry.visits;
        let at_rest = || self.client.0.is_at_rest(|| self.clock.sleepers());
        let before = visits.load(Ordering::Relaxed);
        event();
        // The condition must not visit a lock, because the visit would be counted.
        eventually(what, || is_over() && at_rest());
        let count = visits.load(Ordering::Relaxed) - before;
        self.visits.0.push((what, count));
    }

    fn count_all(&mut self, lock: &DistMutex) {
        self.rest();
        let (client, other) = (self.client.clone(), self.other.clone());
        let (store, clock) = (self.store.clone(), self.clock.clone());
        let name = lock.name().clone();
        let renewals = || store.count("renew");
        let watched = LockOptions::new().watched(3 * SECOND);
        let guard = lock.lock_with(&watched).unwrap();
        let first = renewals();
        let report = || client.0.renew_now(Some(slice::from_ref(&name)));
        self.count("report", report, || renewals() > first);
        let second = renewals();
        self.count("renewal", || clock.jump(SECOND), || renewals() > second);
        assert!(other.mutex(name.as_str()).unwrap().force_unlock().unwrap());
        let third = renewals();
        self.count("loss", report, || renewals() > third);
        assert_eq!(guard.state(), GuardState::Lost);
        drop(guard);
        let guard = lock.lock_with(&watched).unwrap();
        self.count("release", || guard.unlock().unwrap(), || true);
        lock.lock_with(&watched).unwrap().detach();
        self.count("detached release", || lock.unlock().unwrap(), || true);
    }

    /// Counts the visits when the store reports a change of each lock of a batch during the batch's
    /// renewal: the locks are renewed once more, together.
    fn count_changes(&mut self) {
        let (client, store) = (self.client.clone(), self.store.clone());
        let names: Vec<_> = (0..20)
            .map(|n| LockName::new(&format!("x{n}")).unwrap())
            .collect();
        let take = |name: &LockName| client.mutex(name.as_str()).unwrap().lock().unwrap();
        let guards: Vec<_> = names.iter().map(take).collect();
        let before = store.count("renew");
        store.fail_next("renew", Fault::Hangs);
        let gate = store.gate.lock();
        client.0.renew_now(Some(&names));
        eventually("the batch is sent", || store.count("renew") > before);
        let changes = || {
            client.0.renew_now(Some(&names));
            drop(gate);
        };
        self.count("changes during a batch", changes, || {
            store.count("renew") > before + 1
        });
        assert_eq!(store.count("renew"), before + 2);
        assert!(guards.iter().all(|guard| guard.is_valid()));
    }

    /// Counts the visits for a waiter: from the release by another client until the waiter has
    /// released the lock in turn.
    fn count_waking(&mut self) {
        self.rest();
        let (client, other) = (self.client.clone(), self.other.clone());
        let (store, clock) = (self.store.clone(), self.clock.clone());
        let held = other.mutex("awaited").unwrap().lock().unwrap();
        let asked = store.count("acquire");
        let waiter = thread::spawn(move || {
            client
                .mutex("awaited")
                .unwrap()
                .lock()
                .unwrap()
                .unlock()
                .unwrap();
        });
        // The timers and workers of both clients sleep on the clock, too.
        let others = || self.client.0.threads() + self.other.0.threads();
        eventually("it waits", || {
            store.count("acquire") >= asked + 2 && sleeping(&clock) > others()
        });
        self.count(
            "wake-up",
            || held.unlock().unwrap(),
            || waiter.is_finished(),
        );
    }
}

/// Makes the local locks that `count` threads have while they wait for a fair lock.
fn waiters_of(client: &Client, name: &LockName, count: usize) -> Vec<Arc<LocalLock>> {
    let of_thread = |number| {
        client
            .0
            .local_lock(name, Scope::thread(number as u64 + 1_000_000))
    };
    (0..count)
        .map(|number| of_thread(number).unwrap())
        .collect()
}

fn visits(others: usize, waiters: usize) -> Visits {
    let mut holder = Holder::new(others);
    let fair = LockName::new("fair").unwrap().of_kind(LockKind::Fair);
    let _waiting = waiters_of(&holder.client, &fair, waiters);
    for lock in [
        holder.client.mutex("x").unwrap(),
        holder.client.fair_mutex("fair").unwrap(),
    ] {
        holder.count_all(&lock);
    }
    holder.count_changes();
    holder.count_waking();
    assert_eq!(holder.others.len(), others - others / 50);
    holder.visits
}

#[test]
fn no_event_of_one_lock_looks_at_the_others() {
    let few = visits(10, 10);
    assert_eq!(visits(100_000, 10), few, "other locks are held");
    assert_eq!(visits(10, 5_000), few, "threads wait for a fair lock");
    println!("{few:?}");
}

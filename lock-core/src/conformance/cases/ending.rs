//! What a client leaves behind: nothing.

use crate::backend::Backend;
use crate::client::Client;
use crate::clock::{Clock, Moment, Signal, Woken};
use crate::conformance::fixture::{
    client, clock, connect, context, elsewhere, eventually, fresh_name, in_time, is_busy, join,
    kept, let_pass, ms, mutex, mutexes, now, patience, spawn, take, take_soon, take_with, watched,
};
use crate::conformance::subject::Subject;
use crate::event::Event;
use crate::name::LockName;
use crate::owner::ClientId;
use crate::scheme::Context;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// When the last handle is gone, so are the threads: the engine's, and the backend's own.
pub(crate) fn dropped_client_stops_threads(subject: &dyn Subject) {
    let (clock, name) = (Roll::new(clock()), fresh_name());
    elsewhere(|| {
        let context = Context::new(Arc::new(clock.clone()), ClientId::random());
        let signing = clock.clone();
        let events = Arc::new(move |_: &Event| signing.sign());
        let client = connect(subject, subject.client(&context).events(events));
        lead_a_life(subject, &client, &name);
        assert!(clock.present() > 0, "the threads of a living client are seen");
    });
    eventually("its threads have ended", patience(), || clock.present() == 0);
}

/// When the last handle is gone, the backend is dropped: nothing of its own keeps it alive.
pub(crate) fn dropped_client_drops_backend(subject: &dyn Subject) {
    let name = fresh_name();
    let context = context();
    let backend = subject.backend(&context);
    let alive: Weak<dyn Backend> = Arc::downgrade(&backend);
    let client = connect(subject, Client::builder().clock(context.clock).backend(backend));
    lead_a_life(subject, &client, &name);
    assert!(alive.upgrade().is_some());
    drop(client);
    eventually("the backend is dropped", patience(), || alive.upgrade().is_none());
}

/// What was left with a thread and never unlocked is given back when the client goes.
pub(crate) fn dropped_client_releases_detached_hold(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    take(&one).detach();
    assert!(is_busy(&other));
    drop(one);
    drop(take_soon(&other));
}

/// A thread that ends with a lock still detached does not have it renewed: it is given back when it
/// would be.
pub(crate) fn detached_hold_of_ended_thread_is_released(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let lease = ms(3_000);
    let start = now();
    elsewhere(|| take_with(&one, &watched(lease)).detach());
    drop(take_soon(&other));
    in_time("given back", now().since(start), lease * 2 / 3);
}

/// Holds, renews, waits, is woken: everything that starts a thread.
fn lead_a_life(subject: &dyn Subject, ours: &Client, name: &LockName) {
    let (lock, other) = (mutex(ours, name), mutex(&client(subject), name));
    let held = take_with(&lock, &watched(kept()));
    let_pass(kept() / 2);
    held.unlock().expect("it is ours");
    let held = take(&other);
    thread::scope(|scope| {
        let waiting = spawn(scope, || drop(take_soon(&lock)));
        let_pass(ms(100));
        held.unlock().expect("it is ours");
        join(waiting);
    });
}

/// A clock that keeps a roll of the threads that look at it, and strikes off those that have ended.
/// Every thread of ours looks at its clock, so it knows them all, also among those of other tests
/// in this process.
#[derive(Clone, Debug)]
struct Roll {
    clock: Arc<dyn Clock>,
    signatures: Arc<Mutex<Vec<Weak<()>>>>,
}

thread_local! {
    /// Which rolls this thread has signed; goes when the thread ends, and its signatures with it.
    static SIGNED: RefCell<Vec<(usize, Arc<()>)>> = const { RefCell::new(Vec::new()) };
}

impl Roll {
    fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, signatures: Arc::default() }
    }

    fn sign(&self) {
        let roll = Arc::as_ptr(&self.signatures) as usize;
        // A thread that is ending has no place for it any more, and needs none.
        let _ended = SIGNED.try_with(|signed| {
            let mut signed = signed.borrow_mut();
            if signed.iter().all(|(other, _)| *other != roll) {
                let signature = Arc::new(());
                self.signatures.lock().push(Arc::downgrade(&signature));
                signed.push((roll, signature));
            }
        });
    }

    fn present(&self) -> usize {
        self.signatures.lock().iter().filter(|signature| signature.strong_count() > 0).count()
    }
}

impl Clock for Roll {
    fn now(&self) -> Moment {
        self.sign();
        self.clock.now()
    }

    fn unix_time(&self) -> Duration {
        self.clock.unix_time()
    }

    fn wait(&self, signal: &Arc<Signal>, until: Moment) -> Woken {
        self.sign();
        self.clock.wait(signal, until)
    }
}

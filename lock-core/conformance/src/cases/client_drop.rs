//! A dropped client ends its threads, drops its backend and releases its locks.

use crate::fixture::{
    assert_within, client, clock, connect, context, elsewhere, eventually, fresh_name, is_busy,
    join, kept, let_pass, ms, mutex, mutexes, now, patience, spawn, take, take_soon, take_with,
    watched,
};
use crate::subject::Subject;
use lock_core::backend::Backend;
use lock_core::{Client, ClientId, Clock, Context, Event, LockName, Moment, Signal, Woken};
use parking_lot::Mutex;
use std::cell::RefCell;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// The threads of the engine and of the backend end with the last handle.
pub(crate) fn dropped_client_stops_threads(subject: &dyn Subject) {
    let (clock, name) = (ThreadCountingClock::new(clock()), fresh_name());
    elsewhere(|| {
        let context = Context::new(Arc::new(clock.clone()), ClientId::random());
        let counting = clock.clone();
        let events = Arc::new(move |_: &Event| counting.register());
        let client = connect(subject, subject.client(&context).events(events));
        use_all_threads(subject, &client, &name);
        assert!(
            clock.live_threads() > 0,
            "the threads of a client in use are counted"
        );
    });
    eventually("its threads have ended", patience(), || {
        clock.live_threads() == 0
    });
}

/// The backend is dropped with the last handle: it does not keep itself alive.
pub(crate) fn dropped_client_drops_backend(subject: &dyn Subject) {
    let name = fresh_name();
    let context = context();
    let backend = subject.backend(&context);
    let alive: Weak<dyn Backend> = Arc::downgrade(&backend);
    let client = connect(
        subject,
        lock_core::builder().clock(context.clock).backend(backend),
    );
    use_all_threads(subject, &client, &name);
    assert!(alive.upgrade().is_some());
    drop(client);
    eventually("the backend is dropped", patience(), || {
        alive.upgrade().is_none()
    });
}

/// A detached hold that was never unlocked is released when the client is dropped.
pub(crate) fn dropped_client_releases_detached_hold(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    take(&one).detach();
    assert!(is_busy(&other));
    drop(one);
    drop(take_soon(&other));
}

/// A detached hold of an ended thread is not renewed but released.
pub(crate) fn detached_hold_of_ended_thread_is_released(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let lease = ms(3_000);
    let start = now();
    elsewhere(|| take_with(&one, &watched(lease)).detach());
    drop(take_soon(&other));
    assert_within("released", now().since(start), lease * 2 / 3);
}

/// Holds the lock until it is renewed, and then waits for it until another client releases it. This
/// starts all threads of the client.
fn use_all_threads(subject: &dyn Subject, ours: &Client, name: &LockName) {
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

/// A clock that counts the live threads that have read it or waited on it. Every thread of the
/// library uses the clock of its client. The threads of other tests in this process use other
/// clocks, and are not counted.
#[derive(Clone, Debug)]
struct ThreadCountingClock {
    clock: Arc<dyn Clock>,
    threads: Arc<Mutex<Vec<Weak<()>>>>,
}

thread_local! {
    /// The clocks that count this thread. The end of the thread drops the entries, so that the
    /// clocks no longer count it.
    static REGISTERED: RefCell<Vec<(usize, Arc<()>)>> = const { RefCell::new(Vec::new()) };
}

impl ThreadCountingClock {
    fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            threads: Arc::default(),
        }
    }

    fn register(&self) {
        let clock = Arc::as_ptr(&self.threads) as usize;
        // Fails in a thread that is ending, which need not be counted.
        let _ended = REGISTERED.try_with(|registered| {
            let mut registered = registered.borrow_mut();
            if registered.iter().all(|(other, _)| *other != clock) {
                let thread = Arc::new(());
                self.threads.lock().push(Arc::downgrade(&thread));
                registered.push((clock, thread));
            }
        });
    }

    fn live_threads(&self) -> usize {
        self.threads
            .lock()
            .iter()
            .filter(|thread| thread.strong_count() > 0)
            .count()
    }
}

impl Clock for ThreadCountingClock {
    fn now(&self) -> Moment {
        self.register();
        self.clock.now()
    }

    fn unix_time(&self) -> Duration {
        self.clock.unix_time()
    }

    fn wait(&self, signal: &Arc<Signal>, until: Moment) -> Woken {
        self.register();
        self.clock.wait(signal, until)
    }
}

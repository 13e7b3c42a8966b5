//! Threads that wait for a fair lock, and the order in which they are served.

use crate::probe::Probe;
use crate::time::{eventually, let_pass};
use distlock::Mutex;
use parking_lot::Mutex as Shared;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// How long a waiter may take to get its position in the queue.
const SOON: Duration = Duration::from_secs(60);

/// Threads that wait for one fair lock, in the order in which they got a position.
#[derive(Default)]
pub struct Line {
    threads: Vec<JoinHandle<()>>,
    /// The number of each thread that has been served, with its token.
    served: Arc<Shared<Vec<(usize, u64)>>>,
}

/// Returns the key of the queue of this lock, whose name has no braces.
pub fn key(lock: &str) -> String {
    format!("distlock_queue:2:{{{lock}}}")
}

/// Returns how many clients listen for grants to their waiters.
pub fn listeners(probe: &mut Probe, lock: &str) -> usize {
    let inboxes = format!("{}:*", key(lock));
    probe
        .command(&["PUBSUB", "CHANNELS", &inboxes])
        .texts()
        .len()
}

/// Returns the number of waiters: each has two members in the queue, its name and its fields.
pub fn waiting(probe: &mut Probe, lock: &str) -> i64 {
    probe.command(&["ZCARD", &key(lock)]).int() / 2
}

/// Waits until a client listens and has a place in the queue. The pause after that is usually long
/// enough for the waiter's next attempt, and for the server to track the lock's key for it.
pub fn until_one_waits(probe: &mut Probe, lock: &str) {
    eventually("a waiter is in the queue", SOON, || {
        listeners(probe, lock) > 0 && waiting(probe, lock) > 0
    });
    let_pass(Duration::from_millis(12));
}

/// Returns the fields of the first waiter, as `queue.lua` describes them.
pub fn first_fields(probe: &mut Probe, lock: &str) -> Vec<String> {
    let found = probe.command(&["ZRANGE", &key(lock), "1", "1"]);
    let fields = found.texts().pop().expect("there is one");
    fields.split(' ').map(str::to_owned).collect()
}

impl Line {
    /// Starts one more thread that waits for the lock; returns when the thread has a position.
    pub fn enter(&mut self, probe: &mut Probe, lock: Mutex) {
        let name = lock.name().to_string();
        let (before, number) = (waiting(probe, &name), self.threads.len());
        let served = Arc::clone(&self.served);
        self.threads.push(thread::spawn(move || {
            let guard = lock.lock().unwrap();
            served
                .lock()
                .push((number, guard.fencing_token().unwrap().get()));
            guard.unlock().unwrap();
        }));
        eventually("it has a position", SOON, || waiting(probe, &name) > before);
    }

    /// Waits until all threads are served, and returns them in the order in which they were. Checks
    /// that each has a larger token than the one before.
    pub fn end(self) -> Vec<usize> {
        self.threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
        let served = self.served.lock();
        assert!(served.is_sorted_by_key(|it| it.1), "{served:?}");
        served.iter().map(|it| it.0).collect()
    }
}

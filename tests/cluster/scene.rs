//! Helpers of these tests: clients, and a check that no two threads hold a lock at once.

use distlock::backend::{Backend, ClientId, Context};
use distlock::time::SystemClock;
use distlock::{Client, Config, Error, FencingToken, LockGuard, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Longer than any awaited step takes on a busy machine, so that only a step that never happens
/// fails.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A lease that outlives a failover, and short time-outs of requests and connections.
pub(crate) const SETTINGS: &str = "watchdog=20s&command_timeout=3s&connect_timeout=2s";

pub(crate) fn client(url: &str) -> Client {
    client_with(url, SETTINGS)
}

pub(crate) fn client_with(url: &str, settings: &str) -> Client {
    distlock::connect(&format!("{url}?{settings}")).unwrap()
}

/// Opens the backend alone, for calls that no client makes in this way.
pub(crate) fn backend(url: &str) -> (Arc<dyn Backend>, Context) {
    let context = Context::new(Arc::new(SystemClock), ClientId::random());
    let config = Config::from_url(url).unwrap();
    (
        distlock::schemes().open(&config, &context).unwrap(),
        context,
    )
}

/// Takes a lock that must become free.
#[track_caller]
pub(crate) fn take(client: &Client, name: &str) -> LockGuard {
    client
        .mutex(name)
        .unwrap()
        .try_lock_for(LONG)
        .unwrap()
        .expect("it comes free")
}

/// Takes a lock that must become free, releases it, and returns its token.
#[track_caller]
pub(crate) fn turn(client: &Client, name: &str) -> Option<FencingToken> {
    let guard = take(client, name);
    let token = guard.fencing_token();
    guard.unlock().unwrap();
    token
}

/// A critical section that counts its violations: two threads inside at once, or a token that is
/// not larger than the one before.
#[derive(Debug, Default)]
pub(crate) struct Room {
    taken: AtomicBool,
    visits: AtomicU64,
    last_token: AtomicU64,
    collisions: AtomicU64,
}

impl Room {
    /// Enters and leaves the section.
    pub(crate) fn visit(&self, token: Option<FencingToken>) {
        let collided = self.taken.swap(true, Ordering::SeqCst);
        // Not atomic on purpose: two threads inside at once lose a visit.
        let visits = self.visits.load(Ordering::SeqCst);
        std::thread::yield_now();
        self.visits.store(visits + 1, Ordering::SeqCst);
        let token = token.expect("a grant has a token").get();
        let grows = self.last_token.swap(token, Ordering::SeqCst) < token;
        self.taken.store(false, Ordering::SeqCst);
        self.collisions
            .fetch_add(u64::from(collided || !grows), Ordering::SeqCst);
    }

    pub(crate) fn visits(&self) -> u64 {
        self.visits.load(Ordering::SeqCst)
    }

    /// Returns how often two threads were inside at once, or a token did not grow.
    pub(crate) fn collisions(&self) -> u64 {
        self.collisions.load(Ordering::SeqCst)
    }
}

/// Threads that take and release a lock until they are stopped.
#[derive(Debug, Default)]
pub(crate) struct Load {
    stop: AtomicBool,
    pub(crate) room: Room,
    /// How often the store was unavailable.
    pub(crate) unavailable: AtomicU64,
    /// All other errors, such as a lost lock.
    pub(crate) wrong: parking_lot::Mutex<Vec<String>>,
}

impl Load {
    /// Returns a value that stops the threads when it is dropped, also in a panic: otherwise
    /// joining them would never end.
    pub(crate) fn until_dropped(&self) -> impl Drop {
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        Stop(&self.stop)
    }

    pub(crate) fn work(&self, client: &Client, name: &str) {
        self.take_turns(&client.mutex(name).unwrap());
    }

    pub(crate) fn take_turns(&self, lock: &Mutex) {
        while !self.stop.load(Ordering::SeqCst) {
            match lock.try_lock_for(Duration::from_secs(20)) {
                Ok(Some(guard)) => {
                    self.room.visit(guard.fencing_token());
                    if let Err(error) = guard.unlock() {
                        self.note(&error);
                    }
                }
                Ok(None) => self.wrong.lock().push("busy for 20 s".to_owned()),
                Err(error) => self.note(&error),
            }
        }
    }

    fn note(&self, error: &Error) {
        if error.is_unavailable() {
            self.unavailable.fetch_add(1, Ordering::SeqCst);
        } else {
            self.wrong.lock().push(error.to_string());
        }
    }
}

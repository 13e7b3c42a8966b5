//! What the tests here have in common: clients, and proof that no two were inside.

use distlock::backend::{Backend, ClientId, Context};
use distlock::time::SystemClock;
use distlock::{Client, Config, Error, FencingToken, LockGuard, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Longer than whatever is to happen without an end of its own.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A lease that outlives a failover; a request and a connection that end soon.
pub(crate) const SETTINGS: &str = "watchdog=20s&command_timeout=3s&connect_timeout=2s";

pub(crate) fn client(url: &str) -> Client {
    client_with(url, SETTINGS)
}

pub(crate) fn client_with(url: &str, settings: &str) -> Client {
    distlock::connect(&format!("{url}?{settings}")).unwrap()
}

/// The store alone, for what no client asks of it so.
pub(crate) fn backend(url: &str) -> (Arc<dyn Backend>, Context) {
    let context = Context::new(Arc::new(SystemClock), ClientId::random());
    let config = Config::from_url(url).unwrap();
    (
        distlock::schemes().open(&config, &context).unwrap(),
        context,
    )
}

/// Takes a lock that must come free.
#[track_caller]
pub(crate) fn take(client: &Client, name: &str) -> LockGuard {
    client
        .mutex(name)
        .unwrap()
        .try_lock_for(LONG)
        .unwrap()
        .expect("it comes free")
}

/// Takes a lock that must come free, and gives it back. Its token.
#[track_caller]
pub(crate) fn turn(client: &Client, name: &str) -> Option<FencingToken> {
    let guard = take(client, name);
    let token = guard.fencing_token();
    guard.unlock().unwrap();
    token
}

/// Something that only one may be inside at a time, and tokens that only grow.
#[derive(Debug, Default)]
pub(crate) struct Room {
    taken: AtomicBool,
    visits: AtomicU64,
    last_token: AtomicU64,
    collisions: AtomicU64,
}

impl Room {
    /// Goes in and out.
    pub(crate) fn visit(&self, token: Option<FencingToken>) {
        let collided = self.taken.swap(true, Ordering::SeqCst);
        // Not atomic on purpose: two at a time lose a visit.
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

    /// How often two were inside, or a token did not grow.
    pub(crate) fn collisions(&self) -> u64 {
        self.collisions.load(Ordering::SeqCst)
    }
}

/// Threads that take a lock and give it back until they are told to stop.
#[derive(Debug, Default)]
pub(crate) struct Load {
    stop: AtomicBool,
    pub(crate) room: Room,
    /// How often the store could not be asked.
    pub(crate) unavailable: AtomicU64,
    /// How often it was lost, or something else went wrong.
    pub(crate) wrong: parking_lot::Mutex<Vec<String>>,
}

impl Load {
    /// Stops the threads on drop, also in a panic: otherwise joining them never ends.
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

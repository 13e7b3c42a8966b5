//! Helpers for clients and holders during a failover.

use distlock::{Client, ClientBuilder, LockGuard, Mutex};
use distlock_tests::guards::deadline;
use distlock_tests::process::RedisServer;
use distlock_tests::sentinel::{self, Group};
use distlock_tests::time::eventually;
use std::time::Duration;

/// The bound on a wait that includes a failover, so that a hanging test ends.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Makes a client of the group with these options of the URL.
pub(crate) fn client(group: &Group, options: &str) -> Client {
    connect(&format!("{}?{options}", group.url()))
}

pub(crate) fn connect(url: &str) -> Client {
    builder(url).connect().unwrap()
}

pub(crate) fn builder(url: &str) -> ClientBuilder {
    distlock::builder().url(url).unwrap()
}

/// Acquires the free lock; the master may be being replaced meanwhile.
#[track_caller]
pub(crate) fn take(lock: &Mutex) -> LockGuard {
    lock.try_lock_for(SOON).unwrap().expect("the lock is free")
}

/// Waits until this client acquires its locks on this server.
#[track_caller]
pub(crate) fn await_move(lock: &Mutex, to: &RedisServer) {
    sentinel::await_move(lock, lock.name().as_str(), to);
}

/// Waits until this client can acquire and release this lock.
#[track_caller]
pub(crate) fn await_usable(lock: &Mutex) {
    eventually("the lock can be taken again", SOON, || {
        let guard = lock.try_lock().ok().flatten();
        guard.is_some_and(|guard| guard.unlock().is_ok())
    });
}

/// Waits until the lock is renewed on this server, the new master. Checks that the guard is valid
/// all the time.
#[track_caller]
pub(crate) fn await_renewal_on(guard: &LockGuard, master: &RedisServer) {
    let mut probe = master.probe();
    let (before, renewed) = (deadline(guard), probe.command_calls("pexpire"));
    eventually("it is renewed on the new master", SOON, || {
        assert!(guard.is_valid(), "{:?}", guard.loss());
        probe.command_calls("pexpire") > renewed && deadline(guard) > before
    });
}

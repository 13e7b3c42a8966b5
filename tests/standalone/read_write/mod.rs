//! Read-write locks on a real server: what is stored, which kinds exclude each other, and which
//! waiters are notified.

mod contention;
mod fair;
mod faults;
mod shares;
mod waiting;

use crate::bench::{Bench, granted, lease, name, soon};
use distlock::{Error, LockName};
use distlock_tests::probe::Probe;
use distlock_tests::queue;
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, Grant, Receipt, Release, ReleaseOptions, Renewal,
    RenewalRequest,
};
use lock_core::{LeaseTime, LockKind, OwnerId};
use std::num::NonZeroU64;
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// How late a machine may be between two requests.
const LATE: Duration = Duration::from_secs(4);

/// The longest time from a release to the grant to a notified waiter, on a machine that is not
/// late.
const WOKEN: Duration = Duration::from_millis(500);

/// Runs `call` on another thread, which has holds of its own, and returns the result.
fn elsewhere<T: Send>(call: impl FnOnce() -> Result<T, Error> + Send) -> T {
    thread::scope(|scope| scope.spawn(call).join().unwrap()).unwrap()
}

fn read() -> LockName {
    name("x").of_kind(LockKind::Read)
}

fn write() -> LockName {
    name("x").of_kind(LockKind::Write)
}

/// The key of a reader's hold.
fn hold(owner: OwnerId) -> String {
    format!("{{x}}:{owner}:rwlock_timeout:1")
}

/// The fields of the lock's hash, `field=value`, in order.
fn fields(probe: &mut Probe) -> Vec<String> {
    probe
        .hgetall("x")
        .into_iter()
        .map(|(field, value)| format!("{field}={value}"))
        .collect()
}

/// Sends attempts, releases and renewals through the backend of one client.
struct Asked(Bench);

impl Asked {
    fn attempt(&self, name: &LockName, owner: OwnerId, lease: LeaseTime) -> Answer {
        self.0
            .backend
            .acquire(&Attempt::new(name, owner, lease), soon())
            .unwrap()
    }

    fn is_busy(&self, name: &LockName) -> bool {
        let attempt = Attempt::new(name, self.0.owner(), lease(30_000)).waits(false);
        self.0.backend.acquire(&attempt, soon()).unwrap().is_busy()
    }

    /// Makes an attempt of a new owner, which waits if the lock is busy. Returns whether it is
    /// busy.
    fn waits(&self, name: &LockName) -> bool {
        self.wait(name, self.0.owner()).is_busy()
    }

    /// Makes a numbered attempt: the owner queues, and a release may grant it the lock.
    fn wait(&self, name: &LockName, owner: OwnerId) -> Answer {
        let attempt = Attempt::new(name, owner, lease(30_000)).direct(NonZeroU64::new(1));
        self.0.backend.acquire(&attempt, soon()).unwrap()
    }

    /// Acquires the lock for a new owner, and panics if it is busy.
    fn take(&self, name: &LockName, milliseconds: u64) -> (OwnerId, Grant) {
        let owner = self.0.owner();
        (
            owner,
            granted(self.attempt(name, owner, lease(milliseconds))),
        )
    }

    fn release(&self, name: &LockName, owner: OwnerId) -> Release {
        self.release_with(name, owner, ReleaseOptions::WITHOUT_TOMBSTONE)
    }

    fn release_with(&self, name: &LockName, owner: OwnerId, options: ReleaseOptions) -> Release {
        self.0
            .backend
            .release(&acquisition(name, owner, 30_000), options, soon())
            .unwrap()
    }

    fn renew(&self, name: &LockName, owner: OwnerId, milliseconds: u64) -> Renewal {
        let request = RenewalRequest::new(acquisition(name, owner, milliseconds));
        self.0.renew(&[request]).pop().unwrap().unwrap()
    }

    fn verifies(&self, name: &LockName, owner: OwnerId) -> bool {
        self.0
            .backend
            .verify(&acquisition(name, owner, 30_000), soon())
            .unwrap()
            .is_some()
    }
}

fn acquisition(name: &LockName, owner: OwnerId, milliseconds: u64) -> AcquisitionId {
    AcquisitionId::new(name.clone(), owner, lease(milliseconds), Receipt::default())
}

//! Renewal: a timer that knows when a held lock is due, and threads that send what is due.
//!
//! From the top down: what is renewed when (`policy`), the `timer`, and the threads (`workers`),
//! each with a queue for its node (`node_queue`), with `spare_workers` and `pending_cleanups`, and
//! with the time that a request usually takes (`renewal_time`).
//!
//! The timer asks no store, so no store can hold it up. For each node the backend has a
//! [worker](workers) for leases of about one length, so a node that is slow holds up its own only,
//! and [spare workers] send the next renewals while one hangs. What is due, and what an answer
//! means, says a [`RenewalHandler`].
//!
//! [spare workers]: spare_workers

mod node_queue;
mod pending_cleanups;
mod policy;
mod renewal_time;
mod spare_workers;
mod timer;
mod workers;

use super::acquisition::Acquisition;
use super::queue::LocalLock;
use crate::backend::Renewal;
use crate::error::Error;
use crate::name::LockName;
use crate::sync::Mutex;
use crate::time::lease::LeaseTime;
use crate::time::{Moment, Signal};
use std::sync::Arc;
use std::time::Duration;

pub(super) use pending_cleanups::PendingCleanup;
pub(super) use timer::{FIRST_LOOK, TICK, Timer};
pub(super) use workers::Workers;

/// What is to be renewed, and what a renewal means. Implemented in `policy`.
pub(super) trait RenewalHandler: Send + Sync {
    /// The timer of this name has fired. Returns the renewal that is due.
    fn check(&self, lock: Arc<LocalLock>, now: Moment) -> Option<RenewalJob>;

    /// A renewal that was sent at `sent` came back, or could not be sent. Returns the one that is
    /// to follow at once.
    fn renewal_answered(
        &self,
        job: &RenewalJob,
        sent: Moment,
        answer: Result<Renewal, Error>,
    ) -> Option<RenewalJob>;

    /// A cleanup failed, and must not be tried again.
    fn cleanup_failed(&self, lock: &LockName, error: Error);
}

/// One renewal to be sent.
pub(super) struct RenewalJob {
    pub(super) lock: Arc<LocalLock>,
    pub(super) acquisition: Arc<Acquisition>,
    pub(super) lease: LeaseTime,
    /// How much before they are due others may be sent along, to fill the batch.
    pub(super) slack: Duration,
    /// The extension that a thread asked for and waits for; `None` if the timer asked.
    pub(super) extension: Option<Arc<PendingExtension>>,
}

/// Where a thread waits for the extension for which it asked.
#[derive(Default)]
pub(super) struct PendingExtension {
    pub(super) signal: Arc<Signal>,
    pub(super) result: Mutex<Option<Result<(), Error>>>,
}

impl PendingExtension {
    pub(super) fn answer(&self, result: Result<(), Error>) {
        *self.result.lock() = Some(result);
        self.signal.raise();
    }
}

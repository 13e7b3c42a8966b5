//! Renewal: a timer that knows when a held lock must be checked, and threads that send the due
//! renewals.
//!
//! From the top down: the rules for renewals (`policy`), the `timer`, and the threads (`workers`).
//! Each worker takes its work from a queue of a node (`node_queue`). The queues use
//! `spare_workers`, `pending_cleanups` and the usual duration of a request (`renewal_time`).
//!
//! The timer sends no requests, so no store can delay it. Each node of the backend has its own
//! [workers](workers), so a slow node delays only its own renewals: one worker for cleanups, and
//! one for each class of renewals (equal number of replicas that must confirm, leases of similar
//! length). [Spare workers] send the next renewals while a worker hangs. A [`RenewalHandler`]
//! decides which renewals are due and what an answer means.
//!
//! [Spare workers]: spare_workers

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

/// The rules for renewals: which of them are due, and the meaning of an answer. Implemented in
/// `policy`.
pub(super) trait RenewalHandler: Send + Sync {
    /// Checks a lock whose timer has fired, or was taken early to fill a batch. Returns the renewal
    /// of the lock, if the renewal may be sent now.
    fn check(&self, lock: Arc<LocalLock>, now: Moment) -> Option<RenewalJob>;

    /// Handles the answer to a renewal sent at `sent`, or the failure to send it. Returns a renewal
    /// that must be sent at once, if there is one.
    fn renewal_answered(
        &self,
        job: &RenewalJob,
        sent: Moment,
        answer: Result<Renewal, Error>,
    ) -> Option<RenewalJob>;

    /// Reports a cleanup that failed and must not be repeated.
    fn cleanup_failed(&self, lock: &LockName, error: Error);
}

/// One renewal to be sent.
pub(super) struct RenewalJob {
    pub(super) lock: Arc<LocalLock>,
    pub(super) acquisition: Arc<Acquisition>,
    pub(super) lease: LeaseTime,
    /// The remaining validity, if the lock has not had its full lease yet: see
    /// [`Acquisition::left_of_short_lease`].
    pub(super) left: Option<Duration>,
    /// The time by which other renewals may be sent before they are due, to fill the batch of this
    /// renewal.
    pub(super) slack: Duration,
    /// The extension for which a thread waits; `None` for a renewal by the watchdog.
    pub(super) extension: Option<Arc<PendingExtension>>,
}

/// The result of an extension, for which a thread waits.
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

//! [`RenewalSlots`]: the connections for renewals, and what the server reports of what is renewed.
//!
//! The keys are read when they are written, and the server reports their next change to the
//! subscriber: so a loss is known long before the next renewal. What a connection has read is
//! tracked for as long as it stands.

use super::Node;
use crate::connection::{BorrowedConnection, PoolSlot, ServerError};
use crate::keys::Keys;
use crate::wakeups::{ChangeListener, NotTracked, warn_of_tracking};
use lock_core::backend::Failure;
use lock_core::{Clock, Moment, Notices};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::time::Duration;

/// As many calls that renew are under way at a time, where none waits for replicas.
const SLOTS: usize = 4;

/// The time for which a connection for renewals stays idle, but for the first, because the server
/// may have no room for others. Slow replies open up to three.
const IDLE: Duration = Duration::from_secs(5);

/// The connections for renewals. All but the first are for those that find the ones before in use,
/// because the server is far or hangs.
#[derive(Default)]
pub(super) struct RenewalSlots {
    slots: [Mutex<PoolSlot>; SLOTS],
    reports: Mutex<Reports>,
}

impl RenewalSlots {
    /// The first that is not in use. Idle connections behind it are closed.
    pub(super) fn free_slot(&self) -> Option<MutexGuard<'_, PoolSlot>> {
        let mut free = self.slots.iter().filter_map(Mutex::try_lock);
        let first = free.next();
        free.for_each(|mut slot| slot.close_if_idle(IDLE));
        first
    }

    /// Whether a connection that had changes reported is gone since the last look. Does not wait.
    fn has_lost_reports(&self) -> bool {
        let mut is_lost = false;
        // One that is in use is dialled anew if it is broken.
        for mut slot in self.slots.iter().filter_map(Mutex::try_lock) {
            is_lost |= slot.has_lost_reports();
        }
        is_lost
    }
}

/// Where changes are reported, and when that fails.
#[derive(Default)]
struct Reports {
    /// The subscriber's connection to which the server refused to report; 0: none.
    refused: u64,
    /// When all held locks were renewed last, because a connection was replaced.
    renewed_all: Option<Moment>,
    /// Whether they are to be renewed as soon as that may be.
    owes_all: bool,
}

/// The shortest time between two renewals of all held locks after a connection was replaced,
/// because a server that is too slow for its renewals loses one connection after the other.
const RENEW_ALL: Duration = Duration::from_secs(5);

impl Reports {
    /// A connection that had changes reported is gone, or is another one now: whether all held
    /// locks are to be renewed.
    fn replaced(&mut self, now: Moment) -> bool {
        let is_time = self.renewed_all.is_none_or(|last| now >= last + RENEW_ALL);
        if is_time {
            self.renewed_all = Some(now);
        }
        self.owes_all = !is_time;
        is_time
    }
}

impl Node {
    /// Has changes of what is renewed on `connection` reported to the subscriber.
    ///
    /// # Errors
    ///
    /// If the connection cannot be used any more. Nothing was renewed.
    pub(super) fn report_changes(
        &self,
        connection: &mut BorrowedConnection<'_>,
        by: Moment,
    ) -> Result<(), Failure> {
        let Some(subscriber) = self.inner.subscriber.reports_to(|| self.listener()) else {
            return Ok(());
        };
        if connection.reports_to == subscriber
            || self.inner.renewals.reports.lock().refused == subscriber
        {
            return Ok(());
        }
        let refusal = connection.report_to(subscriber, by);
        match refusal.map_err(|error| Failure::NotSent(Failure::from(error).into_error()))? {
            Some(error) => self.reports_are_refused(subscriber, error),
            None if connection.replaces_one_that_reported_to(subscriber) => {
                let now = self.inner.dialer.clock().now();
                if self.inner.renewals.reports.lock().replaced(now) {
                    self.inner.dialer.server().notices().changed(None);
                }
            }
            None => {}
        }
        Ok(())
    }

    /// Losses are known at the next renewal then.
    pub(super) fn reports_are_refused(&self, subscriber: u64, error: ServerError) {
        self.inner.renewals.reports.lock().refused = subscriber;
        // The subscriber may have reconnected meanwhile, with another number.
        if !error.detail.contains("client ID") {
            warn_of_tracking(self.inner.dialer.server(), &NotTracked::Refused(error));
        }
    }

    /// What is done when keys have changed.
    fn listener(&self) -> Arc<dyn ChangeListener> {
        Arc::new(HeldLocks {
            notices: self.inner.dialer.server().notices().clone(),
            keys: self.inner.format.keys().clone(),
            renewals: Arc::clone(&self.inner.renewals),
            clock: Arc::clone(self.inner.dialer.clock()),
        })
    }
}

/// The locks that are held, and the connections that renew them.
struct HeldLocks {
    notices: Notices,
    keys: Keys,
    renewals: Arc<RenewalSlots>,
    clock: Arc<dyn Clock>,
}

impl ChangeListener for HeldLocks {
    fn changed(&self, changed: Option<&[String]>) {
        match changed {
            Some(changed) => {
                let names: Vec<_> = changed
                    .iter()
                    .filter_map(|key| self.keys.name(key))
                    .collect();
                self.notices.changed(Some(&names));
            }
            None => self.notices.changed(None),
        }
    }

    /// Without the connection that has read it a loss would stay unknown until the next regular
    /// renewal.
    fn look(&self) {
        let is_lost = self.renewals.has_lost_reports();
        let mut reports = self.renewals.reports.lock();
        if (is_lost || reports.owes_all) && reports.replaced(self.clock.now()) {
            drop(reports);
            self.notices.changed(None);
        }
    }
}

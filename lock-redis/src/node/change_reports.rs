//! [`RenewalSlots`]: the connections for renewals, and the server's reports of changes of renewed
//! keys.
//!
//! After each renewal, the same connection reads the renewed keys with `CLIENT TRACKING`: the
//! server reports the next change of each key to the subscriber. So the client notices a lost lock
//! long before the next renewal. The server stops tracking a key when the connection that has read
//! it is closed.

use super::Node;
use crate::connection::{BorrowedConnection, PoolSlot, ServerError};
use crate::keys::Keys;
use crate::wakeups::{ChangeListener, NotTracked, warn_of_tracking};
use lock_core::backend::Failure;
use lock_core::{Clock, Moment, Notices};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The number of connections for renewals. While all are in use, a renewal borrows a connection of
/// the pool.
const SLOTS: usize = 4;

/// The time after which an idle connection for renewals is closed, except the first one. Otherwise
/// the connections that slow replies made necessary, up to three, would stay open, and the server
/// may be near its limit of connections.
const IDLE: Duration = Duration::from_secs(5);

/// The connections for renewals. Each connection is used only while all before it are in use, which
/// happens if the server is distant or hangs.
#[derive(Default)]
pub(super) struct RenewalSlots {
    slots: [Mutex<PoolSlot>; SLOTS],
    reports: Mutex<Reports>,
    /// True once the application's pool has lent a connection for renewals.
    has_lent: AtomicBool,
}

impl RenewalSlots {
    pub(super) fn has_lent(&self) -> bool {
        self.has_lent.load(Ordering::Relaxed)
    }

    pub(super) fn note_lent(&self) {
        self.has_lent.store(true, Ordering::Relaxed);
    }

    /// Returns the slot of the first connection that is not in use. Closes the idle ones among the
    /// connections after it.
    pub(super) fn free_slot(&self) -> Option<MutexGuard<'_, PoolSlot>> {
        let mut free = self.slots.iter().filter_map(Mutex::try_lock);
        let first = free.next();
        free.for_each(|mut slot| slot.close_if_idle(IDLE));
        first
    }

    /// Returns the slot of the one connection for renewals that the application's pool lends, which
    /// stays there. Waits for at most this time while it is in use.
    pub(super) fn lent_slot(&self, time: Duration) -> Option<MutexGuard<'_, PoolSlot>> {
        let mut slot = self.slots[0].try_lock_for(time)?;
        slot.keep_lent();
        Some(slot)
    }

    /// Returns whether a connection with tracked keys has been lost since the last call. Does not
    /// wait.
    fn has_lost_reports(&self) -> bool {
        let mut is_lost = false;
        // Connections in use are skipped: the thread that uses a broken one dials it anew.
        for mut slot in self.slots.iter().filter_map(Mutex::try_lock) {
            is_lost |= slot.has_lost_reports();
        }
        is_lost
    }
}

/// The state of the server's reports of changes.
#[derive(Default)]
struct Reports {
    /// The number of the subscriber's connection to which the server refused to report; 0: none.
    refused: u64,
    /// The time of the last renewal of all held locks after a connection was lost or replaced.
    renewed_all: Option<Moment>,
    /// True if all held locks must be renewed again as soon as [`RENEW_ALL`] has passed.
    owes_all: bool,
}

/// The shortest time between two renewals of all held locks after a connection was lost or
/// replaced. Otherwise a server that is too slow for its renewals, and so loses one connection
/// after the other, would get even more renewals.
const RENEW_ALL: Duration = Duration::from_secs(5);

impl Reports {
    /// Records that a connection with tracked keys was lost or replaced. Returns whether all held
    /// locks must be renewed now.
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
    /// Makes the server report changes of the keys renewed on `connection` to the subscriber.
    ///
    /// # Errors
    ///
    /// If the connection can no longer be used. Nothing was renewed.
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

    /// Records that the server refuses the reports. A lost lock is then not noticed before its next
    /// renewal.
    pub(super) fn reports_are_refused(&self, subscriber: u64, error: ServerError) {
        self.inner.renewals.reports.lock().refused = subscriber;
        // An unknown client ID is no reason to warn: the subscriber has reconnected meanwhile, with
        // another ID.
        if !error.detail.contains("client ID") {
            warn_of_tracking(self.inner.dialer.server(), &NotTracked::Refused(error));
        }
    }

    /// Returns the listener for changed keys.
    fn listener(&self) -> Arc<dyn ChangeListener> {
        Arc::new(HeldLocks {
            notices: self.inner.dialer.server().notices().clone(),
            keys: self.inner.format.keys().clone(),
            renewals: Arc::clone(&self.inner.renewals),
            clock: Arc::clone(self.inner.dialer.clock()),
        })
    }
}

/// The listener for reported changes of held locks. Owns parts of the node, but not the node, which
/// owns the subscriber and thus this listener.
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

    /// Renews all held locks if a connection that has read their keys was lost, or if such a
    /// renewal was postponed. The server no longer tracks those keys, so a lost lock would go
    /// unnoticed until its next regular renewal. Postpones the renewal if the last one of this kind
    /// was less than [`RENEW_ALL`] ago.
    fn look(&self) {
        let is_lost = self.renewals.has_lost_reports();
        let mut reports = self.renewals.reports.lock();
        if (is_lost || reports.owes_all) && reports.replaced(self.clock.now()) {
            drop(reports);
            self.notices.changed(None);
        }
    }
}

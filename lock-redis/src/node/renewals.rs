//! Renewals: a batch in one request, on a connection of their own, with replicas waited for
//! where they are to be.
//!
//! The keys are read when they are written, and the server reports their next change to the
//! subscriber: so a loss is known long before the next renewal.

use super::connections::RenewalConnection;
use super::{Node, RENEWED, RequestMode, on};
use crate::connection::{AcknowledgedConnection, Connection, ConnectionLike, PoolSlot};
use crate::format::Format;
use crate::keys::Keys;
use crate::pubsub::{ChangeListener, NotTracked, warn_of_tracking};
use lock_core::backend::{Failure, Renewal, RenewalRequest};
use lock_core::{Clock, LockName, Moment, Notices};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

impl Node {
    /// See [`Backend::renew`](lock_core::Backend::renew).
    pub fn renew(
        &self,
        mode: RequestMode,
        format: &Format,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let is_off = |one: &RenewalRequest| one.replication.is_off();
        let plainly = |batch: &[RenewalRequest]| {
            self.renew_on_any_connection(mode, format, batch, by, |link| {
                format.owned(RENEWED)?.renew(link, batch, by)
            })
        };
        let renewals = if batch.iter().all(is_off) {
            plainly(batch)
        } else {
            // Those that do not need replicas go first, and do not wait along.
            let (plain, confirmed): (Vec<_>, Vec<_>) = batch.iter().cloned().partition(is_off);
            let mut plain = plainly(&plain).into_iter();
            let renewed = self.renew_with_replicas(mode, format, &confirmed, by);
            let mut confirmed = of_each(&confirmed, renewed).into_iter();
            let next = |one| if is_off(one) { plain.next() } else { confirmed.next() };
            batch.iter().map(next).map(|answer| answer.expect("an answer for each")).collect()
        };
        if renewals.iter().any(Result::is_ok) {
            self.look_for_eviction();
        }
        renewals
    }

    /// Where no connection for renewals is to be had, because the server takes no more, the
    /// password is another one by now or no descriptor is left, the one that all share may stand:
    /// what is held is worth more than the wait of the requests behind it.
    pub(super) fn renew_on_any_connection<T>(
        &self,
        mode: RequestMode,
        format: &Format,
        batch: &[RenewalRequest],
        by: Moment,
        renew: impl FnOnce(&mut dyn ConnectionLike) -> Result<Vec<Result<T, Failure>>, Failure>,
    ) -> Vec<Result<T, Failure>> {
        if batch.is_empty() {
            return Vec::new();
        }
        let stands = mode == RequestMode::Direct && self.link.is_connected();
        // Then there shall be time left for it.
        let now = self.dialer.clock().now();
        let first_by = if stands { now + by.since(now) / 2 } else { by };
        let renewals = match self.renewal_connection(mode, format, first_by) {
            Ok(mut link) => {
                let renewals = renew(link.connection.get());
                self.renew_unread(link, if renewals.is_ok() { batch } else { &[] });
                renewals
            }
            Err(none) if stands => {
                let renewals = self.link.connection(by).and_then(|mut link| renew(&mut link));
                renewals.map_err(|failure| match failure {
                    Failure::NotSent(_) => none,
                    Failure::Unknown(_) => Failure::Unknown(none.into_error()),
                    refused => refused,
                })
            }
            Err(none) => Err(none),
        };
        of_each(batch, renewals)
    }

    /// One `WAIT` for all of them, behind the last write: replicas apply what they get in its
    /// order.
    fn renew_with_replicas(
        &self,
        mode: RequestMode,
        format: &Format,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Result<Vec<Result<Renewal, Failure>>, Failure> {
        let needs = batch.iter().map(|one| self.needed(one.replication, by));
        let needs: Vec<_> = needs.collect::<Result<_, _>>()?;
        let most = needs.iter().copied().max().unwrap_or(0);
        let time = batch.iter().map(|one| one.replication.time()).max().unwrap_or_default();
        let mut borrowed = self.renewal_connection(mode, format, by)?;
        let clock = self.dialer.clock().as_ref();
        let mut link = AcknowledgedConnection::new(borrowed.connection.get(), clock, most, time);
        let renewals = format.owned(RENEWED)?.renew(&mut link, batch, by)?;
        let weighed = |(renewal, needed)| match renewal {
            Ok(Renewal::Extended) => {
                Ok(link.weigh(needed)?.map_or(Renewal::Extended, Renewal::Unacknowledged))
            }
            renewal => renewal,
        };
        let renewals = renewals.into_iter().zip(needs).map(weighed).collect();
        self.renew_unread(borrowed, batch);
        Ok(renewals)
    }

    /// Renews once more what was not read behind its renewal, or has changed before: the next
    /// change would not be reported. Where another renewal uses the connection it does so.
    fn renew_unread(&self, used: RenewalConnection<'_>, batch: &[RenewalRequest]) {
        let RenewalConnection { connection, is_second } = used;
        let has_missed_change = connection.has_missed_change();
        drop(connection);
        let mut reported = self.reported_to.lock();
        if has_missed_change || (is_second && !reported.is_refused) {
            reported.unread.extend(batch.iter().map(|one| one.acquisition.name.clone()));
        }
        if reported.unread.is_empty() || self.renewals.is_locked() {
            return;
        }
        let unread = std::mem::take(&mut reported.unread);
        drop(reported);
        self.dialer.server().notices().changed(Some(&unread));
    }
}

/// To which of our connections changes are reported of what is renewed.
#[derive(Default)]
pub(super) struct Reported {
    /// The last one that was asked for; 0: none was.
    subscriber: u64,
    /// Whether the server refused it.
    is_refused: bool,
    /// When all held locks were renewed last, because a connection was replaced.
    renewed_all: Option<Moment>,
    /// Whether they are to be renewed as soon as that may be.
    owes_all: bool,
    /// Locks that were renewed without being read.
    unread: Vec<LockName>,
}

/// After a connection was replaced all held locks are renewed, but not more often: a server that is
/// too slow for its renewals loses one connection after the other.
const RENEW_ALL: Duration = Duration::from_secs(5);

impl Reported {
    /// The connection that had changes reported is gone, or is another one now: whether all held
    /// locks are to be renewed.
    fn replaced(&mut self, now: Moment) -> bool {
        let is_time = self.renewed_all.is_none_or(|last| now >= last + RENEW_ALL);
        if is_time {
            self.renewed_all = Some(now);
        }
        self.owes_all = !is_time;
        is_time
    }

    /// Whether changes are reported as far as is known.
    fn is_wanted(&self) -> bool {
        self.subscriber != 0 && !self.is_refused
    }
}

impl Node {
    /// Has changes of what is renewed on `connection` reported to the subscriber.
    pub(super) fn report_changes(&self, connection: &mut Connection, format: &Format, by: Moment) {
        let Some(subscriber) = self.subscriber.reports_to(|| self.listener(format)) else {
            return;
        };
        if connection.reports_to == subscriber {
            return;
        }
        let mut reported = self.reported_to.lock();
        if reported.subscriber == subscriber && reported.is_refused {
            return;
        }
        // Where that fails the next renewal tells of a loss.
        match connection.report_to(subscriber, by) {
            Ok(Some(error)) => {
                (reported.subscriber, reported.is_refused) = (subscriber, true);
                // The subscriber may have reconnected meanwhile, with another number.
                if !error.detail.contains("client ID") {
                    warn_of_tracking(self.dialer.server(), &NotTracked::Refused(error));
                }
            }
            Ok(None) => {
                let is_another = reported.subscriber == subscriber;
                (reported.subscriber, reported.is_refused) = (subscriber, false);
                let renews_all = is_another && reported.replaced(self.dialer.clock().now());
                drop(reported);
                if renews_all {
                    self.dialer.server().notices().changed(None);
                }
            }
            Err(_) => {}
        }
    }

    /// What is done when keys have changed.
    fn listener(&self, format: &Format) -> Arc<dyn ChangeListener> {
        Arc::new(HeldLocks {
            notices: self.dialer.server().notices().clone(),
            keys: format.0.keys().clone(),
            renewals: Arc::clone(&self.renewals),
            reported_to: Arc::clone(&self.reported_to),
            clock: Arc::clone(self.dialer.clock()),
        })
    }
}

/// The locks that are held, and the connection that renews them.
struct HeldLocks {
    notices: Notices,
    keys: Keys,
    renewals: Arc<Mutex<PoolSlot>>,
    reported_to: Arc<Mutex<Reported>>,
    clock: Arc<dyn Clock>,
}

impl ChangeListener for HeldLocks {
    fn changed(&self, changed: Option<&[String]>) {
        match changed {
            Some(changed) => {
                let names: Vec<_> = changed.iter().filter_map(|key| self.keys.name(key)).collect();
                self.notices.changed(Some(&names));
            }
            None => self.notices.changed(None),
        }
    }

    /// What the connection has read is tracked for as long as it stands. Without it a loss would
    /// stay unknown until the next regular renewal.
    fn look(&self) {
        // In use: it is dialled anew if it is broken.
        let Some(mut slot) = self.renewals.try_lock() else { return };
        let is_reported = slot.has_changes_reported();
        drop(slot);
        let mut reported = self.reported_to.lock();
        let is_lost = reported.is_wanted() && !is_reported;
        if (is_lost || reported.owes_all) && reported.replaced(self.clock.now()) {
            if is_lost {
                reported.subscriber = 0;
            }
            drop(reported);
            self.notices.changed(None);
        } else if !reported.unread.is_empty() {
            // This look may have been what used the connection.
            let unread = std::mem::take(&mut reported.unread);
            drop(reported);
            self.notices.changed(Some(&unread));
        }
    }
}

/// The outcome of each renewal of a batch; a failure of the request is that of all.
fn of_each<T>(
    batch: &[RenewalRequest],
    renewals: Result<Vec<Result<T, Failure>>, Failure>,
) -> Vec<Result<T, Failure>> {
    let all = |failure: Failure| batch.iter().map(|_| Err(failure.clone())).collect();
    let renewals = renewals.unwrap_or_else(all).into_iter().zip(batch);
    renewals.map(|(renewal, one)| renewal.map_err(on(&one.acquisition.name))).collect()
}

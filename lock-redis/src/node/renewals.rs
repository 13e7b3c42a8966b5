//! Renewals of batches of locks, on separate connections, with a wait for replicas for those locks
//! that require it.

use super::{Node, RENEWED, RequestMode, on};
use crate::connection::{ConnectionLike, FramedConnection};
use crate::protocol::driver::drive;
use lock_core::Moment;
use lock_core::backend::{Failure, Renewal, RenewalRequest};

/// The meaning of this server's answer for a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AnswerWeight {
    /// The only answer: a lock that the server no longer has is lost, and is not renewed again.
    Sole,
    /// One vote of several: another owner may have this server's vote while the lock is still held.
    Vote,
}

impl Node {
    /// Renews a batch; see [`Backend::renew`](lock_core::Backend::renew).
    pub fn renew_batch(
        &self,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let is_off = |one: &RenewalRequest| one.replication.is_off();
        let plainly = |batch: &[RenewalRequest]| {
            self.renew_on_any_connection(batch, by, AnswerWeight::Sole, |link| {
                let owned = self.inner.format.owned(RENEWED)?;
                drive(owned.renew(batch, link.is_one_store()), link, by)
            })
        };
        let renewals = if batch.iter().all(is_off) {
            plainly(batch)
        } else {
            // Renewals that need no replicas are sent first, and do not wait for any.
            let (plain, confirmed): (Vec<_>, Vec<_>) = batch.iter().cloned().partition(is_off);
            let mut plain = plainly(&plain).into_iter();
            let renewed = self.renew_with_replicas(&confirmed, by);
            let mut confirmed = of_each(&confirmed, renewed).into_iter();
            let next = |one| {
                if is_off(one) {
                    plain.next()
                } else {
                    confirmed.next()
                }
            };
            batch
                .iter()
                .map(next)
                .map(|answer| answer.expect("an answer for each"))
                .collect()
        };
        if renewals.iter().any(Result::is_ok) {
            self.look_behind();
        }
        renewals
    }

    /// Renews on a connection for renewals. If none can be made (the server accepts no more, the
    /// password has changed, or no file descriptor is left), renews on the shared connection if
    /// that is open and needs no `ASKING`: a held lock matters more than the delay of the requests
    /// behind the renewal.
    pub(super) fn renew_on_any_connection<T>(
        &self,
        batch: &[RenewalRequest],
        by: Moment,
        weight: AnswerWeight,
        renew: impl FnOnce(&mut dyn ConnectionLike) -> Result<Vec<Result<T, Failure>>, Failure>,
    ) -> Vec<Result<T, Failure>> {
        if batch.is_empty() {
            return Vec::new();
        }
        let stands = self.mode == RequestMode::Direct && self.inner.link.is_connected();
        // Half of the time is reserved for the shared connection.
        let now = self.inner.dialer.clock().now();
        let first_by = if stands { now + by.since(now) / 2 } else { by };
        let renewals = match self.renewal_connection(first_by) {
            Ok(connection) => {
                let mut connection = connection.noting(&self.inner.dialer);
                let renewals = renew(&mut connection);
                self.check_reports(&connection, batch, weight);
                renewals
            }
            Err(none) if stands => {
                let renewals = self
                    .inner
                    .link
                    .connection(by)
                    .and_then(|mut link| renew(&mut link));
                let explained = |failure: Failure| match failure {
                    Failure::NotSent(_) => none.clone(),
                    Failure::Unknown(_) => Failure::Unknown(none.clone().into_error()),
                    refused => refused,
                };
                let each = |all: Vec<Result<T, Failure>>| {
                    all.into_iter().map(|one| one.map_err(explained)).collect()
                };
                renewals.map(each).map_err(explained)
            }
            Err(none) => Err(none),
        };
        of_each(batch, renewals)
    }

    /// Renews a batch with one `WAIT` for all, after the last write: replicas apply writes in the
    /// order of the master.
    fn renew_with_replicas(
        &self,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Result<Vec<Result<Renewal, Failure>>, Failure> {
        let needs = batch
            .iter()
            .map(|one| self.needed(one.replication, one.acquisition.lease));
        let needs: Vec<_> = needs.collect::<Result<_, _>>()?;
        let most = needs.iter().map(|needed| needed.awaited).max().unwrap_or(0);
        let clocks = &self.inner.replica_clocks;
        batch
            .iter()
            .map(|one| one.acquisition.lease)
            .max()
            .inspect(|it| clocks.note_use(*it));
        let time = batch
            .iter()
            .map(|one| one.replication.time())
            .max()
            .unwrap_or_default();
        let connection = self.renewal_connection(by)?;
        let connection = connection.noting(&self.inner.dialer);
        let mut connection = connection.waiting(self.clock(), most, time);
        let owned = self.inner.format.owned(RENEWED)?;
        let renewal = owned.renew(batch, connection.is_one_store());
        let renewals = drive(renewal, &mut connection, by)?;
        clocks.note_confirmed(connection.confirmed());
        let weighed = |(renewal, needed)| match renewal {
            Ok(Renewal::Extended) => Ok(connection
                .weigh(needed)?
                .map_or(Renewal::Extended, Renewal::Unacknowledged)),
            renewal => renewal,
        };
        let renewals = renewals.into_iter().zip(needs).map(weighed).collect();
        self.check_reports(&connection, batch, AnswerWeight::Sole);
        Ok(renewals)
    }

    /// Renews these locks again if one of them may have changed after its renewal and before the
    /// server read its key for tracking: the server does not report such a change. If the answers
    /// are votes, does so only if a lock has certainly changed.
    fn check_reports(
        &self,
        connection: &FramedConnection<'_>,
        batch: &[RenewalRequest],
        weight: AnswerWeight,
    ) {
        let Some(tracking) = connection.tracking() else {
            return;
        };
        if let Some(error) = &tracking.refusal {
            self.reports_are_refused(connection.reports_to(), error.clone());
        }
        let is_unclear = weight == AnswerWeight::Sole && tracking.may_have_missed_change;
        if tracking.has_missed_change || is_unclear {
            let names: Vec<_> = batch
                .iter()
                .map(|one| one.acquisition.name.clone())
                .collect();
            self.inner.dialer.server().notices().changed(Some(&names));
        }
    }
}

/// Returns the outcome of each renewal of a batch. If the request failed, each renewal has that
/// failure.
fn of_each<T>(
    batch: &[RenewalRequest],
    renewals: Result<Vec<Result<T, Failure>>, Failure>,
) -> Vec<Result<T, Failure>> {
    let all = |failure: Failure| batch.iter().map(|_| Err(failure.clone())).collect();
    let renewals = renewals.unwrap_or_else(all).into_iter().zip(batch);
    renewals
        .map(|(renewal, one)| renewal.map_err(on(&one.acquisition.name)))
        .collect()
}

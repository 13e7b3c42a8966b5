//! Renewals: many at a time, in batches, on a connection of their own, with replicas waited for
//! where they are to be.

use super::{Node, RENEWED, RequestMode, on};
use crate::connection::ConnectionLike;
use crate::format::Format;
use crate::replica_ack::AcknowledgedConnection;
use lock_core::Moment;
use lock_core::backend::{Failure, RENEW_BATCH, Renewal, RenewalRequest};

impl Node {
    /// See [`Backend::renew`](lock_core::Backend::renew).
    pub fn renew(
        &self,
        mode: RequestMode,
        format: &Format,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let renewals = if batch.iter().all(|one| one.replication.is_off()) {
            self.renew_in_chunks(batch, |chunk| self.renew_plainly(mode, format, chunk, by))
        } else {
            self.renew_confirmed(mode, format, batch, by)
        };
        if renewals.iter().any(Result::is_ok) {
            self.look_for_eviction();
        }
        let renewals = renewals.into_iter().zip(batch);
        renewals.map(|(renewal, one)| renewal.map_err(on(&one.acquisition.name))).collect()
    }

    /// Where replicas are waited for: those of `batch` that do not need them go first, and do not
    /// wait along.
    fn renew_confirmed(
        &self,
        mode: RequestMode,
        format: &Format,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let is_off = |one: &RenewalRequest| one.replication.is_off();
        let (plain, confirmed): (Vec<_>, Vec<_>) = batch.iter().cloned().partition(is_off);
        let mut plain = self
            .renew_in_chunks(&plain, |chunk| self.renew_plainly(mode, format, chunk, by))
            .into_iter();
        let mut confirmed = self
            .renew_in_chunks(&confirmed, |chunk| self.renew_with_replicas(mode, format, chunk, by))
            .into_iter();
        let next = |one| if is_off(one) { plain.next() } else { confirmed.next() };
        batch.iter().map(next).map(|answer| answer.expect("an answer for each")).collect()
    }

    fn renew_plainly(
        &self,
        mode: RequestMode,
        format: &Format,
        chunk: &[RenewalRequest],
        by: Moment,
    ) -> Result<Vec<Result<Renewal, Failure>>, Failure> {
        self.on_lane_or_shared(mode, by, |link| format.owned(RENEWED)?.renew(link, chunk, by))
    }

    /// Where no connection for renewals is to be had, because the server takes no more, the
    /// password is another one by now or no descriptor is left, the one that all share may stand:
    /// what is held is worth more than the wait of the requests behind it.
    pub(super) fn on_lane_or_shared<T>(
        &self,
        mode: RequestMode,
        by: Moment,
        exchange: impl Fn(&mut dyn ConnectionLike) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let stands = mode == RequestMode::Direct && self.link.is_connected();
        // Then there shall be time left for it.
        let now = self.dialer.clock().now();
        let link_by = if stands { now + by.since(now) / 2 } else { by };
        match self.on_lane(mode, link_by, &exchange) {
            Err(none) if stands => {
                let renewals = self.link.exchange(by, |link| exchange(link));
                renewals.map_err(|failure| match failure {
                    Failure::NotSent(_) => none,
                    Failure::Unknown(_) => Failure::Unknown(none.into_error()),
                    refused => refused,
                })
            }
            outcome => outcome?,
        }
    }

    /// One `WAIT` for all of them, behind the last write: replicas apply what they get in its
    /// order.
    fn renew_with_replicas(
        &self,
        mode: RequestMode,
        format: &Format,
        chunk: &[RenewalRequest],
        by: Moment,
    ) -> Result<Vec<Result<Renewal, Failure>>, Failure> {
        let needs = chunk.iter().map(|one| self.needed(one.replication, by));
        let needs: Vec<_> = needs.collect::<Result<_, _>>()?;
        let most = needs.iter().copied().max().unwrap_or(0);
        let time = chunk.iter().map(|one| one.replication.time()).max().unwrap_or_default();
        let renewed = self.on_lane(mode, by, |link| {
            let mut link =
                AcknowledgedConnection::new(link, self.dialer.clock().as_ref(), most, time);
            let renewals = format.owned(RENEWED)?.renew(&mut link, chunk, by)?;
            let weighed = |(renewal, needed)| match renewal {
                Ok(Renewal::Extended) => {
                    Ok(link.weigh(needed)?.map_or(Renewal::Extended, Renewal::Unacknowledged))
                }
                renewal => renewal,
            };
            Ok(renewals.into_iter().zip(needs).map(weighed).collect())
        });
        renewed?
    }

    pub(super) fn renew_in_chunks<T>(
        &self,
        batch: &[RenewalRequest],
        renew: impl Fn(&[RenewalRequest]) -> Result<Vec<Result<T, Failure>>, Failure>,
    ) -> Vec<Result<T, Failure>> {
        let answers = |chunk: &[RenewalRequest]| match renew(chunk) {
            Ok(renewals) => renewals,
            Err(failure) => chunk.iter().map(|_| Err(failure.clone())).collect(),
        };
        batch.chunks(RENEW_BATCH).flat_map(answers).collect()
    }

    /// On the link of the lane, or a borrowed one where the renewal before hangs. Fails where there
    /// is none to be had until `by`.
    fn on_lane<T>(
        &self,
        mode: RequestMode,
        by: Moment,
        exchange: impl FnOnce(&mut dyn ConnectionLike) -> T,
    ) -> Result<T, Failure> {
        match (mode, self.renewals.try_lock()) {
            (RequestMode::Direct, Some(mut slot)) => {
                slot.on_connection(&self.dialer, by, |link| exchange(link))
            }
            _ => self.on_borrowed(mode, by, exchange),
        }
    }
}

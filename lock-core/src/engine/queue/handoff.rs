//! Hand-off: passing the lock to the next thread of this client without a request to the store.
//!
//! The store sees one grant and one release for any number of hand-offs. Each holder gets its own
//! token from those that the store reserved with the grant. A hand-off does not query the store. If
//! the store later reports the lock as gone, one event reports all earlier holds on the grant.
//!
//! A lock is handed off only to a waiter that requests an equal lease and replication policy, and
//! only while no request about the lock is pending or has an unknown outcome. Hand-offs end after a
//! configured time, because waiters in other clients are not notified.

use super::{LocalLock, LockRequest};
use crate::backend::Tokens;
use crate::engine::acquisition::{Acquisition, GuardState, RenewalPlan};
use crate::time::{Clock, Moment};
use std::sync::Arc;

/// The number of tokens reserved for hand-offs while threads of this client wait. That is more than
/// the hand-offs in the default time of 5 ms. The counter counts microseconds of the server's
/// clock, so a holder that dies leaves it 2 ms ahead.
const RESERVE: u32 = 2_000;

impl LocalLock {
    /// Returns the tokens to request, with reserved ones if waiters behind the holder may get
    /// hand-offs.
    pub(crate) fn tokens(&self, has_followers: bool) -> Tokens {
        let hands_off = has_followers && !self.hand_off_budget().is_zero();
        Tokens::Assign {
            reserve: if hands_off { RESERVE } else { 0 },
        }
    }

    /// Hands `acquisition`, whose last hold has ended, off to the head of the queue. Returns the
    /// time of the hand-off; `None` if the lock must be released to the store.
    pub(crate) fn hand_off(
        &self,
        acquisition: &Arc<Acquisition>,
        clock: &dyn Clock,
    ) -> Option<Moment> {
        let mut state = self.lock();
        state.queue.head()?;
        // Read under the mutex. The timer locks this mutex, too, so it cannot have ended the
        // acquisition since the reading.
        let now = clock.now();
        let is_current = state
            .current()
            .is_some_and(|current| Arc::ptr_eq(current, acquisition));
        let is_over = |since| now >= since + self.hand_off_budget();
        if !is_current || state.turn_since.is_none_or(is_over) {
            return None;
        }
        let next = Arc::new(successor(acquisition, &state.queue.head()?.request, now)?);
        let signal = state.queue.grant(Arc::clone(&next))?;
        state.current = Some(next);
        drop(state);
        signal.raise();
        Some(now)
    }
}

/// Makes the next acquisition for this request and ends `acquisition`, if a hand-off is allowed.
fn successor(acquisition: &Acquisition, request: &LockRequest, now: Moment) -> Option<Acquisition> {
    let mut inner = acquisition.lock();
    let Some(RenewalPlan {
        ttl,
        left: None,
        due,
        ..
    }) = inner.renewal
    else {
        return None;
    };
    // If a longer lease was requested, or an extension is unconfirmed, only the store knows the end
    // of the lease. An owner with an unanswered request must be closed by a release soon.
    let is_open = inner.lease != ttl || inner.overlong || acquisition.has_unknown_outcome();
    let are_equal = request.watched == Some(ttl) && request.replication == acquisition.replication;
    if is_open || !are_equal {
        return None;
    }
    // The answer to a renewal would go to the former holder. With the default time for hand-offs
    // usually no renewal is due yet, because even the first renewal of the shortest watched lease
    // is due later.
    let is_due = now >= due || inner.renewing;
    if is_due || acquisition.recorded_state() != GuardState::Held {
        return None;
    }
    // If too few replicas confirmed the last renewal, a new holder needs a grant that replicas
    // confirm. A minimum hold applies to its own holder only.
    if inner.degraded || inner.minimum_hold().is_some() {
        return None;
    }
    let position = acquisition.chain.next(acquisition.token)?;
    let next = acquisition.followed_by(&inner, &request.holder, now, position);
    acquisition.set_released(&mut inner);
    Some(next)
}

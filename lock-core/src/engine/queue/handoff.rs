//! Hand-off: passing the lock to the next thread of this client without asking the store.
//!
//! The store sees one grant and one release, however many threads have their turn in between; each
//! has a token of its own, from those that the store reserved with the grant. Handing on proves
//! nothing about the store: if it says later that the lock was gone, an event tells of all holds.
//!
//! It is passed on only on equal terms, while nothing about it is open, and for a setting's time at
//! a stretch, because waiters in other processes hear nothing of it.

use super::{LocalLock, LockRequest};
use crate::backend::Tokens;
use crate::engine::acquisition::{Acquisition, GuardState, RenewalPlan};
use crate::time::{Clock, Moment};
use std::sync::Arc;

/// The number of tokens reserved for hand-offs while threads of this client wait: more than can
/// take their turns in the 5 ms for which a client hands a lock on by default. A token is a
/// microsecond of the counter, so a dead holder leaves it 2 ms ahead.
const RESERVE: u32 = 2_000;

impl LocalLock {
    /// The tokens to ask the store for: further ones for those that wait behind a holder that may
    /// hand it off.
    pub(crate) fn tokens(&self, has_followers: bool) -> Tokens {
        let hands_off = has_followers && !self.sharing().hand_off.is_zero();
        Tokens::Assign {
            reserve: if hands_off { RESERVE } else { 0 },
        }
    }

    /// Passes `acquisition`, whose last hold has ended, on to the head of the queue. Returns when
    /// that was; `None` if it must go back to the store.
    pub(crate) fn hand_off(
        &self,
        acquisition: &Arc<Acquisition>,
        clock: &dyn Clock,
    ) -> Option<Moment> {
        let mut state = self.lock();
        state.queue.head()?;
        // Read under the mutex: the timer, which takes it, too, cannot have come by since.
        let now = clock.now();
        let is_current = state
            .current()
            .is_some_and(|current| Arc::ptr_eq(current, acquisition));
        if !is_current || state.fairness.is_over(now, self.sharing().hand_off) {
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

/// What follows `acquisition` for this request, if it may be handed off. From here on `acquisition`
/// is released.
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
    // After a longer lease was asked for, or an extension that was not confirmed, only the store
    // knows for how long it keeps it; an owner with an unanswered request is to be closed soon.
    let is_open = inner.lease != ttl || inner.overlong || acquisition.has_unknown_outcome();
    let are_equal = request.watched == Some(ttl) && request.replication == acquisition.replication;
    if is_open || !are_equal {
        return None;
    }
    // The answer to a renewal would come to a former holder. By default none is due yet: a third of
    // the shortest watched lease is longer than the time for which a lock is handed on.
    let is_due = now >= due || inner.renewing;
    if is_due || acquisition.recorded_state() != GuardState::Held {
        return None;
    }
    // A new holder needs replicas that have confirmed; and a minimum hold is that of its holder.
    if inner.degraded || inner.minimum_hold().is_some() {
        return None;
    }
    let position = acquisition.chain.next(acquisition.token)?;
    let next = acquisition.followed_by(&inner, &request.holder, now, position);
    acquisition.set_released(&mut inner);
    Some(next)
}

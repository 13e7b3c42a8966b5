//! Hand-off: passing the lock to the next thread of this client without asking the store.
//!
//! The store sees one grant and one release, however many threads have their turn in between; each has a token of its
//! own, from those that the store set aside with the grant. What one learns by handing on is local knowledge: that the
//! lease was good. If the store says later that the lock was gone, an event tells of all that had it on this grant.
//!
//! It is passed on only on equal terms and while nothing about it is open, and for a setting's time at a
//! stretch, because whoever waits in another process hears nothing of it.

use super::Engine;
use super::acquisition::{Acquisition, GuardState, Watched};
use super::entry::{Entry, Wanted};
use super::release::tell_released;
use crate::clock::Moment;
use crate::sync::mutant;
use std::sync::Arc;

impl Engine {
    /// Passes the lock, whose last hold here has ended, on to the thread that has waited for it longest. False if it must
    /// go back to the store.
    pub(super) fn hand_on(&self, entry: &Arc<Entry>, acquisition: &Arc<Acquisition>) -> bool {
        let Some(since) =
            entry.hand_on(acquisition, &*self.clock, self.settings.hand_off, |wanted, now| {
                follow(acquisition, wanted, now)
            })
        else {
            return false;
        };
        acquisition.close_listeners();
        tell_released(&self.events, acquisition, since);
        true
    }
}

/// What follows `acquisition` for whoever is next, if that may take it over as it is. From here on `acquisition` is released.
fn follow(acquisition: &Acquisition, wanted: &Wanted, now: Moment) -> Option<Acquisition> {
    let mut inner = acquisition.lock();
    let Some(Watched { ttl, left: None, renew_at }) = inner.watch else { return None };
    // After a longer lease was asked for, or an extension that was not confirmed, only the store knows for how long it
    // keeps it, and a number that has an unanswered request is to be closed soon.
    let is_open = inner.lease != ttl || inner.overlong || acquisition.is_doubtful();
    let are_equal = wanted.watched == Some(ttl) && wanted.replication == acquisition.replication;
    if is_open || !are_equal {
        return None;
    }
    // The answer to a renewal would come back to one who has it no more. By default none is due yet: a third of the
    // shortest watched lease is longer than the time for which a lock is handed on.
    let is_due = (now >= renew_at || inner.renewing) && !mutant("hand_off_beside_renewal");
    if is_due || acquisition.recorded_state() != GuardState::Held {
        return None;
    }
    let next = acquisition.successor(&inner, &wanted.holder, now)?;
    acquisition.set_released(&mut inner);
    Some(next)
}

//! Nested holds: acquiring a lock that the thread already holds, usually without a request.

use super::Plan;
use super::replicas::refuse_more_replicas;
use crate::engine::Engine;
use crate::engine::acquisition::Acquisition;
use crate::engine::queue::LocalLock;
use crate::error::Error;
use crate::time::Clock;
use crate::time::lease::{Lease, LeaseTime};
use std::sync::Arc;

/// Completes a nested hold that was just counted. A shorter lease changes nothing; a longer lease
/// costs a renewal. A nested hold with the watchdog does not change the outer hold's fixed lease.
pub(super) fn nest(
    engine: &Engine,
    lock: &Arc<LocalLock>,
    acquisition: Arc<Acquisition>,
    plan: &Plan,
) -> Result<Arc<Acquisition>, Error> {
    // The time at which the call began is enough: a new reading would be no more current for the
    // caller.
    let is_held = acquisition.is_valid_at(plan.start) || engine.still_holds(lock, &acquisition);
    if is_held && !engine.is_valid(&acquisition) {
        // The clock may have skipped the end of the lease, so only the store knows if the lock is
        // held.
        if let Err(error) = engine.verify(lock, &acquisition) {
            lock.end_hold(&acquisition);
            return Err(error);
        }
    }
    let result = match is_held {
        true => refuse_more_replicas(&acquisition, plan).and_then(|()| {
            let Some(lease) = needs_longer(engine.clock.as_ref(), &acquisition, plan) else {
                return Ok(());
            };
            engine.extend(lock, &acquisition, lease)?;
            renew_longer(&acquisition, plan);
            Ok(())
        }),
        false => Err(acquisition.lost_error()),
    };
    match result {
        Ok(()) => Ok(acquisition),
        Err(error) => {
            // The caller gets no guard, so end this hold. The outer holds remain.
            lock.end_hold(&acquisition);
            Err(error)
        }
    }
}

/// Returns the error of a nested hold that the options refuse.
pub(super) fn refused() -> Error {
    Error::misuse(
        "this thread holds the lock already, and `not_nested` refuses a nested hold: does a \
         work-stealing pool run another task in this thread? An `owned_mutex` waits for its guard",
    )
}

fn needs_longer(clock: &dyn Clock, acquisition: &Acquisition, plan: &Plan) -> Option<LeaseTime> {
    if !plan.is_lease_asked && !acquisition.is_lease_asked {
        return None; // the lease is that of the settings, or longer
    }
    match (acquisition.lock().renewal, plan.lease) {
        // An unlimited watchdog covers a fixed lease that is no longer than its own lease. If
        // renewals are limited, the fixed lease is compared with the remaining validity below.
        (Some(outer), Lease::Fixed(_)) if outer.left.is_none() && plan.time <= outer.ttl => None,
        (Some(outer), Lease::Watched { .. }) => (plan.time > outer.ttl).then_some(plan.time),
        (None, Lease::Watched { .. }) => None,
        // The fixed lease is only that of the settings, so the outer lease is enough.
        (_, Lease::Fixed(_)) if !plan.is_lease_asked => None,
        (_, Lease::Fixed(_)) => {
            let wanted = clock.now() + plan.time.validity();
            (wanted > acquisition.valid_until()).then_some(plan.time)
        }
    }
}

/// Makes the watchdog renew with the longer lease of a nested hold.
fn renew_longer(acquisition: &Acquisition, plan: &Plan) {
    if let (Some(outer), Lease::Watched { .. }) = (&mut acquisition.lock().renewal, plan.lease) {
        outer.ttl = outer.ttl.max(plan.time);
    }
}

//! Taking what the thread has already: counted here, without a request.

use super::Plan;
use super::replicas::refuse_more_replicas;
use crate::engine::Engine;
use crate::engine::acquisition::Acquisition;
use crate::engine::queue::LocalLock;
use crate::error::Error;
use crate::time::Clock;
use crate::time::lease::{Lease, LeaseTime};
use std::sync::Arc;

/// This thread holds the lock and took one hold more. A shorter lease never shortens it, a longer
/// one costs a renewal; a hold that asks for the watchdog inside a fixed lease leaves that as it
/// is.
pub(super) fn nest(
    engine: &Engine,
    lock: &Arc<LocalLock>,
    acquisition: Arc<Acquisition>,
    plan: &Plan,
) -> Result<Arc<Acquisition>, Error> {
    // By the clock as it was a moment ago; another look would be no newer for the caller.
    let is_held = acquisition.is_valid_at(plan.start) || engine.still_holds(lock, &acquisition);
    if is_held && !engine.is_valid(&acquisition) {
        // The clock may have skipped its end: only the store knows.
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
            // Our caller gets no guard, so the hold must go; the outer ones are still there.
            lock.end_hold(&acquisition);
            Err(error)
        }
    }
}

fn needs_longer(clock: &dyn Clock, acquisition: &Acquisition, plan: &Plan) -> Option<LeaseTime> {
    if !plan.is_lease_asked && !acquisition.is_lease_asked {
        return None; // the outer one's is not shorter than the settings', which this one asks for
    }
    match (acquisition.lock().renewal, plan.lease) {
        // Where renewals run out, a lease that ends by itself is compared with what is left.
        (Some(outer), Lease::Fixed(_)) if outer.left.is_none() && plan.time <= outer.ttl => None,
        (Some(outer), Lease::Watched { .. }) => (plan.time > outer.ttl).then_some(plan.time),
        (None, Lease::Watched { .. }) => None,
        // It was not asked for here: what the outer one got will do.
        (_, Lease::Fixed(_)) if !plan.is_lease_asked => None,
        (_, Lease::Fixed(_)) => {
            let wanted = clock.now() + plan.time.validity();
            (wanted > acquisition.valid_until()).then_some(plan.time)
        }
    }
}

/// From here on the watchdog renews with the longer lease that a nested hold asked for.
fn renew_longer(acquisition: &Acquisition, plan: &Plan) {
    if let (Some(outer), Lease::Watched { .. }) = (&mut acquisition.lock().renewal, plan.lease) {
        outer.ttl = outer.ttl.max(plan.time);
    }
}

//! Taking what the thread has already: counted here, without a request.

use super::Plan;
use crate::engine::Engine;
use crate::engine::acquisition::Acquisition;
use crate::engine::entry::Entry;
use crate::error::Error;
use crate::lease::{Lease, LeaseTime};
use std::sync::Arc;

impl Engine {
    /// This thread holds the lock and took one hold more. A shorter lease never shortens the holding, a longer one
    /// costs a renewal; a hold that asks for the watchdog inside a fixed lease leaves that as it is.
    pub(super) fn nest(
        &self,
        entry: &Arc<Entry>,
        acquisition: Arc<Acquisition>,
        plan: &Plan,
    ) -> Result<Arc<Acquisition>, Error> {
        // By the clock as it was a moment ago; another look would be no newer for whoever gets the answer.
        let result = if acquisition.is_valid_at(plan.start) || self.still_holds(entry, &acquisition)
        {
            self.refuse_more_replicas(&acquisition, plan).and_then(|()| {
                match self.needs_longer(&acquisition, plan) {
                    Some(lease) => self
                        .extend(entry, &acquisition, lease)
                        .map(|()| watch_longer(&acquisition, plan)),
                    None => Ok(()),
                }
            })
        } else {
            Err(acquisition.lost_error())
        };
        match result {
            Ok(()) => Ok(acquisition),
            Err(error) => {
                // Our caller gets no guard, so the hold must go; the outer ones are still there.
                entry.end_hold(&acquisition);
                Err(error)
            }
        }
    }

    fn needs_longer(&self, acquisition: &Acquisition, plan: &Plan) -> Option<LeaseTime> {
        match (acquisition.lock().watch, plan.lease) {
            // Where renewals run out, a lease that ends by itself is compared with what is left.
            (Some(watch), Lease::Fixed(_)) if watch.left.is_none() && plan.time <= watch.ttl => {
                None
            }
            (Some(watch), Lease::Watched { .. }) => (plan.time > watch.ttl).then_some(plan.time),
            (None, Lease::Watched { .. }) => None,
            // Nobody asked for it here: what the outer one got will do.
            (_, Lease::Fixed(_)) if !plan.is_asked => None,
            (_, Lease::Fixed(_)) => {
                let wanted = self.clock.now() + plan.time.validity();
                (wanted > acquisition.valid_until()).then_some(plan.time)
            }
        }
    }
}

/// From here on the watchdog renews with the longer lease that a nested hold asked for.
fn watch_longer(acquisition: &Acquisition, plan: &Plan) {
    if let (Some(watch), Lease::Watched { .. }) = (&mut acquisition.lock().watch, plan.lease) {
        watch.ttl = watch.ttl.max(plan.time);
    }
}

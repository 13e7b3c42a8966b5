//! Taking what the thread has already: counted here, without a request.

use super::Plan;
use crate::engine::Engine;
use crate::engine::entry::Entry;
use crate::engine::tenure::Tenure;
use crate::error::Error;
use crate::lease::{Lease, LeaseTime};
use std::sync::Arc;

impl Engine {
    /// This thread holds the lock and took one hold more. A shorter lease never shortens the holding, a longer one
    /// costs a renewal; a hold that asks for the watchdog inside a fixed lease leaves that as it is.
    pub(super) fn nest(
        &self,
        entry: &Arc<Entry>,
        tenure: Arc<Tenure>,
        plan: &Plan,
    ) -> Result<Arc<Tenure>, Error> {
        // By the clock as it was a moment ago; another look would be no newer for whoever gets the answer.
        let result = if tenure.is_valid_at(plan.start) || self.still_holds(entry, &tenure) {
            self.refuse_more_replicas(&tenure, plan).and_then(|()| {
                match self.needs_longer(&tenure, plan) {
                    Some(lease) => {
                        self.extend(entry, &tenure, lease).map(|()| watch_longer(&tenure, plan))
                    }
                    None => Ok(()),
                }
            })
        } else {
            Err(tenure.lost_error())
        };
        match result {
            Ok(()) => Ok(tenure),
            Err(error) => {
                // Our caller gets no guard, so the hold must go; the outer ones are still there.
                entry.end_hold(&tenure);
                Err(error)
            }
        }
    }

    fn needs_longer(&self, tenure: &Tenure, plan: &Plan) -> Option<LeaseTime> {
        match (tenure.lock().watch, plan.lease) {
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
                (wanted > tenure.valid_until()).then_some(plan.time)
            }
        }
    }
}

/// From here on the watchdog renews with the longer lease that a nested hold asked for.
fn watch_longer(tenure: &Tenure, plan: &Plan) {
    if let (Some(watch), Lease::Watched { .. }) = (&mut tenure.lock().watch, plan.lease) {
        watch.ttl = watch.ttl.max(plan.time);
    }
}

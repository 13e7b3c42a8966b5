//! The reaction to a grant that too few replicas confirmed.
//!
//! Unless the policy accepts such a grant, no caller may rely on it: if the master fails now, the
//! promoted replica may grant the lock again. So the client revokes the grant by a release before
//! the caller gets an answer. The owner ID of a revoked grant is not used again.

use super::attempt::Next;
use super::{Plan, Wait};
use crate::backend::replication::{InsufficientReplicas, OnInsufficientReplicas};
use crate::backend::{AcquisitionId, Grant};
use crate::engine::acquisition::Acquisition;
use crate::engine::handoff_chain::HandoffChain;
use crate::engine::queue::{StoreOutage, WaiterGuard};
use crate::engine::replicas::insufficient_replicas;
use crate::error::Error;
use crate::observe::event::Event;
use crate::time::Moment;

impl Wait<'_> {
    /// Accepts or revokes a grant that too few replicas confirmed, according to the policy.
    pub(super) fn weigh_grant(
        &mut self,
        waiter: &WaiterGuard<'_>,
        grant: Grant,
        insufficient: InsufficientReplicas,
        sent: Moment,
    ) -> Result<Next, Error> {
        let lock = self.lock.name.clone();
        let policy = self.plan.replication.on_insufficient_replicas;
        if policy == OnInsufficientReplicas::Accept {
            let token = grant.tokens.map(|tokens| tokens.first());
            let events = &self.engine.events;
            events.emit(|| Event::InsufficientReplicasAccepted {
                lock,
                token,
                insufficient,
            });
            self.end_outage(waiter);
            return Ok(Next::Take(self.granted(grant, sent)));
        }
        let error = self.revoke(grant, insufficient);
        self.engine
            .events
            .emit(|| Event::InsufficientReplicasTakenBack { lock, insufficient });
        if policy == OnInsufficientReplicas::Fail {
            return Err(error);
        }
        let since = *self.outage.since.get_or_insert(sent);
        // No thread of this client can acquire the lock, but the lock is not "busy".
        let why = error.clone().on(&self.lock.name);
        self.has_outage(
            waiter,
            StoreOutage {
                since,
                error: why,
                ends: None,
            },
        );
        let (now, limit) = (self.engine.clock.now(), self.limit(since));
        if now >= limit {
            return Err(error);
        }
        Ok(Next::Sleep((now + self.outage.backoff.next()).min(limit)))
    }

    /// Releases a grant that too few replicas confirmed, and returns the error for the caller.
    fn revoke(&mut self, grant: Grant, insufficient: InsufficientReplicas) -> Error {
        let engine = self.engine;
        // No caller has seen a token. So the release gives back all reserved tokens but the first,
        // unless the outcome of an attempt is unknown.
        let first = grant.tokens.map(|tokens| tokens.first());
        let options = HandoffChain::of(grant.tokens).release_options(self.unknown_outcome, first);
        let (name, time) = (self.lock.name.clone(), self.plan.time);
        let id = AcquisitionId::new(name, self.owner, time, grant.receipt);
        // The owner of the revoked grant must not make another attempt, even if the store has no
        // tombstone for this owner.
        self.owner = engine.new_owner();
        self.unconfirmed = None;
        self.unknown_outcome = false;
        let now = engine.clock.now();
        let by = now + engine.settings.command_timeout;
        let (outcome, _) = engine.send_release(&id, options, now, by);
        match outcome {
            Ok(_) => insufficient_replicas(format!(
                "too few replicas confirmed it ({insufficient}): it was given back"
            )),
            Err(failure) => {
                engine.clean_up((id, options));
                insufficient_replicas(format!(
                    "too few replicas confirmed it ({insufficient}), and that it was given back \
                     was not confirmed either: that is repeated in the background unless the \
                     store refuses it, and the lease ends it"
                ))
                .with_source(failure.into_error())
            }
        }
    }
}

/// Refuses a nested hold that requests more replicas than the policy of the outer hold.
pub(super) fn refuse_more_replicas(acquisition: &Acquisition, plan: &Plan) -> Result<(), Error> {
    match &plan.asked_replication {
        Some(asked) if !acquisition.replication.covers(asked) => Err(Error::misuse(format!(
            "this thread holds it with replicas={}, and asks for replicas={} inside: ask for that \
             in the outer one",
            acquisition.replication.replicas, asked.replicas
        ))),
        _ => Ok(()),
    }
}

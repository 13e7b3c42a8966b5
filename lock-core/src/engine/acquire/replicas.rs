//! Replicas that do not confirm: what becomes of a grant, and of a renewal, that too few have.
//!
//! The store has granted it, and still it must not count: if the master is lost now, its successor
//! may grant it again. So it is revoked, by the same request as every release, before the caller is
//! told anything. The owner is not used again: to the store it is closed.

use super::attempt::Next;
use super::{Plan, Wait};
use crate::backend::replication::{
    InsufficientReplicas, OnInsufficientReplicas, Replicas, Replication,
};
use crate::backend::{Abilities, AcquisitionId, Grant, Renewal, ReplicaSupport};
use crate::config::wrong_timeout;
use crate::engine::acquisition::{Acquisition, release_options};
use crate::engine::local_queue::{StoreOutage, WaiterGuard};
use crate::error::{Error, ErrorKind};
use crate::observe::event::Event;
use crate::observe::event_queue::Events;
use crate::time::Moment;

impl Wait<'_> {
    /// The store granted it, and too few replicas confirmed that: by the policy, it counts or is
    /// revoked.
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
        // No thread of this client could take it, and that is not "busy".
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

    /// Releases a grant that does not count, and returns what to say when it is given up.
    fn revoke(&mut self, grant: Grant, insufficient: InsufficientReplicas) -> Error {
        let engine = self.engine;
        // None of the tokens was seen; the counter goes back to the first of them, and no further.
        let first = grant.tokens.map(|tokens| tokens.first());
        let reserved = grant.tokens.map_or(0, |tokens| tokens.reserved());
        let options = release_options(self.unknown_outcome, first, reserved);
        let (name, time) = (self.lock.name.clone(), self.plan.time);
        let id = AcquisitionId::new(name, self.owner, time, grant.receipt);
        // An owner that is closed, with a tombstone or without, must not make another attempt.
        self.owner = engine.new_owner();
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
                     was not confirmed either: it is tried on in the background, and the lease \
                     ends it"
                ))
                .with_source(failure.into_error())
            }
        }
    }
}

pub(in crate::engine) fn insufficient_replicas(message: String) -> Error {
    Error::new(ErrorKind::InsufficientReplicas, message)
}

/// What a renewal counts as, by what the replicas said of it.
pub(in crate::engine) fn weigh_renewal(
    events: &Events,
    acquisition: &Acquisition,
    renewal: Renewal,
) -> Result<Renewal, Error> {
    let lock = || acquisition.name.clone();
    let insufficient = match renewal {
        Renewal::Gone => return Ok(renewal),
        Renewal::Extended => {
            if std::mem::take(&mut acquisition.lock().degraded) {
                events.emit(|| Event::Restored { lock: lock() });
            }
            return Ok(renewal);
        }
        Renewal::Unacknowledged(insufficient) => {
            let policy = &acquisition.replication;
            if policy.on_insufficient_replicas == OnInsufficientReplicas::Accept {
                let (lock, token) = (lock(), acquisition.token);
                events.emit(|| Event::InsufficientReplicasAccepted {
                    lock,
                    token,
                    insufficient,
                });
                return Ok(Renewal::Extended);
            }
            if !policy.keeps_unconfirmed_renewals() {
                // The store has extended it, and a promoted replica may not: only the old validity
                // is sure.
                return Err(insufficient_replicas(format!(
                    "too few replicas confirmed the renewal ({insufficient}): the validity stays \
                     as it was"
                )));
            }
            insufficient
        }
        Renewal::Unreplicated(insufficient) => insufficient,
    };
    if !std::mem::replace(&mut acquisition.lock().degraded, true) {
        events.emit(|| Event::Degraded {
            lock: lock(),
            insufficient,
        });
    }
    Ok(Renewal::Extended)
}

/// A nested hold cannot have more replicas than the outer one: that was granted under its own
/// policy.
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

/// Refuses a policy that makes no sense, or that the store has no replicas for.
pub(in crate::engine) fn refuse_unsupported(
    policy: &Replication,
    abilities: &Abilities,
) -> Result<(), Error> {
    if policy.is_off() {
        return Ok(());
    }
    let wrong_time = || wrong_timeout("replication_timeout", policy.time());
    if let Some(wrong) = policy.wrong_count().or_else(wrong_time) {
        return Err(Error::misuse(wrong));
    }
    let replicas = policy.replicas;
    let why = match (abilities.replication, replicas) {
        (ReplicaSupport::Listed, _) | (ReplicaSupport::Counted, Replicas::AtLeast(_)) => {
            return Ok(());
        }
        (ReplicaSupport::Counted, _) => {
            "this store counts the replicas that confirm, and does not know how many there should \
             be: give their number, as in `replicas=2`"
        }
        (ReplicaSupport::Never, _) => "this store has no replicas: say `replicas=off`",
    };
    Err(Error::new(
        ErrorKind::Unsupported,
        format!("replicas={replicas}: {why}"),
    ))
}

//! Replicas that do not confirm: what becomes of a grant, and of a renewal, that too few of them have.
//!
//! The store has granted it, so the lock is ours there, and still must not count: if the master is lost now, whoever takes
//! over may grant it again. So it is taken back, by the same request as every release, and nobody is told anything before
//! the store has said that it is free. The owner's number is not used again: to the store it is closed.

use super::Engine;
use super::acquire::asking::{Next, Outage, pause};
use super::acquire::{Plan, Wait};
use super::acquisition::{Acquisition, closing};
use super::entry::{Entry, Place, StoreOutage};
use crate::backend::{Abilities, AcquisitionId, Grant, Renewal, ReplicaSupport};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::replication::{InsufficientReplicas, OnInsufficientReplicas, Replicas, Replication};
use crate::sync::mutant;

/// What becomes of a grant that too few replicas have.
pub(super) enum Weighed {
    /// It counts, by the policy.
    Accepted(Grant),
    /// It was taken back.
    TakenBack(Next),
}

impl Wait<'_> {
    /// The store granted it, and too few replicas confirmed that.
    pub(super) fn fell_short(
        &mut self,
        place: &Place<'_>,
        grant: Grant,
        insufficient: InsufficientReplicas,
        sent: Moment,
        outage: &mut Outage,
    ) -> Result<Weighed, Error> {
        let entry = place.entry();
        if self.plan.replication.on_insufficient_replicas == OnInsufficientReplicas::Accept {
            let token = grant.tokens.map(|tokens| tokens.first());
            let lock = entry.name.clone();
            self.engine.events.emit(|| Event::InsufficientReplicasAccepted {
                lock,
                token,
                insufficient,
            });
            return Ok(Weighed::Accepted(grant));
        }
        let error = self.take_back(entry, grant, insufficient);
        let lock = entry.name.clone();
        self.engine.events.emit(|| Event::InsufficientReplicasTakenBack { lock, insufficient });
        if self.plan.replication.on_insufficient_replicas == OnInsufficientReplicas::Fail {
            return Err(error);
        }
        let since = *outage.since.get_or_insert(sent);
        // Nobody of this client could take it, and that is not "busy".
        let why = error.clone().on(&entry.name);
        place.set_outage(Some(StoreOutage { since, error: why, ends: None }));
        outage.attempts += 1;
        let (now, limit) = (self.engine.clock.now(), self.limit(since));
        if now >= limit {
            return Err(error);
        }
        Ok(Weighed::TakenBack(Next::Sleep((now + pause(outage.attempts)).min(limit))))
    }

    /// Gives a grant back that does not count, and returns what to say when it is given up.
    fn take_back(
        &mut self,
        entry: &Entry,
        grant: Grant,
        insufficient: InsufficientReplicas,
    ) -> Error {
        let engine = self.engine;
        // Of the tokens nobody has seen any; the counter goes back to the first of them, and no further.
        let first = grant.tokens.map(|tokens| tokens.first());
        let closing = closing(self.doubt, first, grant.tokens.map(|tokens| tokens.last()));
        let id = AcquisitionId::new(entry.name.clone(), self.owner, self.plan.time, grant.receipt);
        // A number that is closed, with a tombstone or without, must not be used for another attempt.
        if !mutant("taken_back_owner_is_used_again") {
            self.owner = engine.new_owner();
        }
        self.doubt = false;
        let (outcome, _) = engine.ask_to_release(&id, closing, engine.command_deadline());
        match outcome {
            Ok(_) => {
                told(format!("too few replicas confirmed it ({insufficient}): it was given back"))
            }
            Err(failure) => {
                engine.clean_up(id, closing);
                told(format!(
                    "too few replicas confirmed it ({insufficient}), and that it was given back was not confirmed either: it is tried on in the background, and the lease ends it"
                ))
                .with_source(failure.into_error())
            }
        }
    }
}

fn told(message: String) -> Error {
    Error::new(ErrorKind::InsufficientReplicas, message)
}

impl Engine {
    /// What a renewal counts as, by what the replicas said of it.
    pub(super) fn weigh_renewal(
        &self,
        acquisition: &Acquisition,
        renewal: Renewal,
    ) -> Result<Renewal, Error> {
        let lock = || acquisition.name.clone();
        let insufficient = match renewal {
            Renewal::Gone => return Ok(renewal),
            Renewal::Extended => {
                if std::mem::take(&mut acquisition.lock().degraded) {
                    self.events.emit(|| Event::Restored { lock: lock() });
                }
                return Ok(renewal);
            }
            Renewal::Unacknowledged(insufficient) => {
                let policy = &acquisition.replication;
                if policy.on_insufficient_replicas == OnInsufficientReplicas::Accept {
                    let token = acquisition.token;
                    self.events.emit(|| Event::InsufficientReplicasAccepted {
                        lock: lock(),
                        token,
                        insufficient,
                    });
                    return Ok(Renewal::Extended);
                }
                if !policy.keeps_unconfirmed_renewals() {
                    // The store has extended it, and whoever takes over may not: only the old validity is sure.
                    return Err(told(format!(
                        "too few replicas confirmed the renewal ({insufficient}): the validity stays as it was"
                    )));
                }
                insufficient
            }
            Renewal::Unreplicated(insufficient) => insufficient,
        };
        if !std::mem::replace(&mut acquisition.lock().degraded, true) {
            self.events.emit(|| Event::Degraded { lock: lock(), insufficient });
        }
        Ok(Renewal::Extended)
    }

    /// A nested hold cannot have more replicas than its holding: that was granted under its own policy.
    pub(super) fn refuse_more_replicas(
        &self,
        acquisition: &Acquisition,
        plan: &Plan,
    ) -> Result<(), Error> {
        match &plan.asked_replication {
            Some(asked) if !acquisition.replication.covers(asked) => Err(Error::misuse(format!(
                "this thread holds it with replicas={}, and asks for replicas={} inside: ask for that in the outer one",
                acquisition.replication.replicas, asked.replicas
            ))),
            _ => Ok(()),
        }
    }
}

/// Refuses a policy that cannot be kept: one that makes no sense, or that the store knows no replicas for.
pub(super) fn refuse(policy: &Replication, abilities: &Abilities) -> Result<(), Error> {
    if policy.is_off() {
        return Ok(());
    }
    if let Some(wrong) = policy.wrong_count().or_else(|| policy.wrong_time()) {
        return Err(Error::misuse(wrong));
    }
    let replicas = policy.replicas;
    let why = match (abilities.replication, replicas) {
        (ReplicaSupport::Listed, _) | (ReplicaSupport::Counted, Replicas::AtLeast(_)) => {
            return Ok(());
        }
        (ReplicaSupport::Counted, _) => {
            "this store counts the replicas that confirm, and does not know how many there should be: give their number, as in `replicas=2`"
        }
        (ReplicaSupport::Never, _) => "this store has no replicas: say `replicas=off`",
    };
    Err(Error::new(ErrorKind::Unsupported, format!("replicas={replicas}: {why}")))
}

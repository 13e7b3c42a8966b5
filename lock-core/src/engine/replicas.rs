//! Replication: the meaning of renewals that too few replicas confirmed, and the refusal of
//! policies that a store does not support.

use super::acquisition::Acquisition;
use crate::backend::replication::{OnInsufficientReplicas, Replicas, Replication};
use crate::backend::{Abilities, Renewal, ReplicaSupport};
use crate::config::wrong_timeout;
use crate::error::{Error, ErrorKind};
use crate::observe::event::Event;
use crate::observe::event_queue::Events;

pub(super) fn insufficient_replicas(message: String) -> Error {
    Error::new(ErrorKind::InsufficientReplicas, message)
}

/// Decides by the replication policy whether a renewal that too few replicas confirmed extends the
/// validity. If it does, emits the matching event and returns [`Renewal::Extended`]; otherwise
/// returns an error. Passes other results on, and emits [`Event::Restored`] when enough replicas
/// confirm a renewal again.
pub(super) fn weigh_renewal(
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
                // The store extended the lease, but a replica that is promoted may lack this
                // renewal: only the old validity is certain.
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

/// Refuses a replication policy that is invalid or that the store does not support.
pub(super) fn refuse_unsupported(policy: &Replication, abilities: &Abilities) -> Result<(), Error> {
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

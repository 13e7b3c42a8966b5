//! The number of replicas that must confirm a write, and the server's answer about them.

use crate::connection::error_mapping::{self, Asked};
use crate::connection::{Server, ServerError};
use lock_core::backend::Failure;
use lock_core::{Error, InsufficientReplicas};
use std::sync::Arc;

/// Returns how many replicas of a node are not marked as down, for the policy "all". Fails if that
/// is unknown; then nothing is sent.
///
/// Called at every attempt and every batch of renewals under that policy, so it must answer from
/// known state, without a query.
pub(crate) type ReplicaCount = Arc<dyn Fn() -> Result<u32, Error> + Send + Sync>;

/// The replicas that must confirm a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NeededReplicas {
    /// The number that the policy requires.
    pub(crate) count: u32,
    /// The number of replicas that do not count, because their clocks are ahead: so many more must
    /// confirm.
    pub(crate) ahead: u32,
    /// The number that is waited for: `count` and `ahead`, but not more than the known replicas,
    /// unless `count` is larger than these.
    pub(crate) awaited: u32,
}

/// The server's answer about the replicas of the last request.
pub(crate) enum Acknowledgement {
    /// This number of replicas has the write.
    By(u32),
    /// No answer before the deadline.
    Late,
    /// The server refused to answer.
    Refused(ServerError),
    /// The connection ended, or the answer was invalid.
    Lost(Error),
}

impl Acknowledgement {
    /// Checks if the write counts for a request with this need. Returns the shortage, or `None`.
    pub(crate) fn weigh(
        &self,
        server: &Server,
        needed: NeededReplicas,
    ) -> Result<Option<InsufficientReplicas>, Failure> {
        let NeededReplicas {
            count: needed,
            ahead,
            ..
        } = needed;
        let insufficient = |it: InsufficientReplicas| Ok(Some(it.clocks_ahead(ahead)));
        match self {
            // It is unknown which replicas have confirmed: they may be those that do not count.
            Self::By(count) if needed > 0 && *count >= needed.saturating_add(ahead) => Ok(None),
            Self::By(count) => insufficient(InsufficientReplicas::new(*count, needed)),
            Self::Late => insufficient(InsufficientReplicas::unanswered(needed)),
            // The write was carried out, but must not count as it is: the caller has to treat the
            // outcome as unknown.
            Self::Refused(error) => Err(Failure::Unknown(error_mapping::explain(
                server,
                error,
                &Asked::Confirmation,
            ))),
            Self::Lost(error) => Err(Failure::Unknown(error.clone())),
        }
    }

    /// Returns how many replicas have the write, according to the server; 0 if that is unknown.
    pub(crate) fn count(&self) -> u32 {
        match self {
            Self::By(count) => *count,
            _ => 0,
        }
    }
}

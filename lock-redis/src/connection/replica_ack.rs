//! How many replicas must confirm a write, and what the server said of them.

use crate::connection::error_mapping::{self, Asked};
use crate::connection::{Server, ServerError};
use lock_core::backend::Failure;
use lock_core::{Error, InsufficientReplicas};
use std::sync::Arc;

/// Says how many replicas a node has now that are not held for down: for the policy "all". An
/// error if that is not known; nothing is sent then.
///
/// Asked at every attempt and every batch of renewals under that policy, so it answers from what it
/// knows.
pub(crate) type ReplicaCount = Arc<dyn Fn() -> Result<u32, Error> + Send + Sync>;

/// How many replicas must confirm a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NeededReplicas {
    /// By the policy.
    pub(crate) count: u32,
    /// How many do not count: so many more must confirm.
    pub(crate) ahead: u32,
    /// How many are waited for: no more than there are.
    pub(crate) awaited: u32,
}

/// What the server said of the last request.
pub(crate) enum Acknowledgement {
    /// So many replicas have it.
    By(u32),
    /// Nothing until the deadline.
    Late,
    /// It would not say.
    Refused(ServerError),
    /// The connection ended, or made no sense.
    Lost(Error),
}

impl Acknowledgement {
    /// Whether the write counts for a request that needs so many replicas: if not, what is missing.
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
            // Which ones have confirmed it is not known: it may be those that do not count.
            Self::By(count) if needed > 0 && *count >= needed.saturating_add(ahead) => Ok(None),
            Self::By(count) => insufficient(InsufficientReplicas::new(*count, needed)),
            Self::Late => insufficient(InsufficientReplicas::unanswered(needed)),
            // It was carried out, and is not to be kept like this: the caller must take it for
            // unknown.
            Self::Refused(error) => Err(Failure::Unknown(error_mapping::explain(
                server,
                error,
                &Asked::Confirmation,
            ))),
            Self::Lost(error) => Err(Failure::Unknown(error.clone())),
        }
    }

    /// How many replicas have the write, as far as the server has said.
    pub(crate) fn count(&self) -> u32 {
        match self {
            Self::By(count) => *count,
            _ => 0,
        }
    }
}

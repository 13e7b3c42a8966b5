//! [`Known`]: what a client knows of an open connection.

use super::ServerGeneration;
use crate::lua::ScriptSet;
use lock_core::Moment;

/// What a client knows of an open connection. With one of the application's pool it is kept while
/// the pool has the connection.
pub(super) struct Known {
    /// The generation of the endpoint's server to which the connection leads.
    pub(super) generation: ServerGeneration,
    /// True if the server has reported its identity, and the mode `standalone`: it is not a node of
    /// a cluster.
    pub(super) is_standalone: bool,
    /// True if scripts have proven that all keys are in one store.
    pub(super) is_one_store: bool,
    /// The scripts that were sent on the connection.
    pub(super) sent_scripts: ScriptSet,
    pub(super) last_used: Moment,
}

impl Known {
    /// Returns the knowledge of a connection that was opened or borrowed `now`.
    pub(super) fn nothing(now: Moment) -> Self {
        Self {
            generation: ServerGeneration::default(),
            is_standalone: false,
            is_one_store: false,
            sent_scripts: ScriptSet::default(),
            last_used: now,
        }
    }
}

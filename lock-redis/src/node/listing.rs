//! Requests to a node about many locks. On a borrowed connection: locks that are taken and released
//! meanwhile do not wait behind them.

use super::{Node, RequestMode};
use crate::format::{Format, NodePage};
use lock_core::backend::{Failure, LockInfo};
use lock_core::{LockName, Moment};

/// What only a format that says who holds a lock can do.
const LISTED: &str = "tell locks from other keys";

impl Node {
    /// The held locks among the next keys of this server, from `cursor` on.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub fn list(
        &self,
        format: &Format,
        pattern: &str,
        cursor: u64,
        by: Moment,
    ) -> Result<NodePage, Failure> {
        let owned = format.owned(LISTED)?;
        owned.list_locks(self.borrow(RequestMode::Direct, by)?.get(), pattern, cursor, by)
    }

    /// The state of these locks, each with all that the server tells.
    ///
    /// # Errors
    ///
    /// See [`Failure`]: the server cannot be asked.
    pub fn inspect_all(
        &self,
        format: &Format,
        names: &[LockName],
        by: Moment,
    ) -> Result<Vec<Result<LockInfo, Failure>>, Failure> {
        let mut connection = self.borrow_behind_releases(RequestMode::Direct, by)?;
        match format.0.owned() {
            Some(owned) => owned.inspect_all(connection.get(), names, by),
            None => {
                let each = names.iter().map(|name| format.0.inspect(connection.get(), name, by));
                Ok(each.collect())
            }
        }
    }
}

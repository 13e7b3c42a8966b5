//! Requests to a node about many locks. They use a borrowed connection, so that requests for single
//! locks do not wait behind them.

use super::Node;
use crate::protocol::NodePage;
use crate::protocol::driver::drive;
use lock_core::backend::{Failure, LockInfo};
use lock_core::{LockName, Moment};

/// The ability that only formats with recorded holders have, as an error message names it.
const LISTED: &str = "tell locks from other keys";

impl Node {
    /// Returns the held locks among the next keys of this server that match `pattern`, starting at
    /// `cursor`.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub fn list_page(&self, pattern: &str, cursor: u64, by: Moment) -> Result<NodePage, Failure> {
        let owned = self.inner.format.owned(LISTED)?;
        drive(owned.list_locks(pattern, cursor), &mut self.borrow(by)?, by)
    }

    /// Returns the state of each of these locks, with all details that the server has.
    ///
    /// # Errors
    ///
    /// See [`Failure`]: returned as a whole if the server cannot be queried.
    pub fn inspect_each(
        &self,
        names: &[LockName],
        by: Moment,
    ) -> Result<Vec<Result<LockInfo, Failure>>, Failure> {
        let mut connection = self.borrow_behind_releases(by)?;
        let (link, format) = (&mut connection, &self.inner.format);
        match format.as_owned() {
            Some(owned) => drive(owned.inspect_all(names), link, by),
            None => Ok(names
                .iter()
                .map(|name| drive(format.inspect(name), link, by))
                .collect()),
        }
    }
}

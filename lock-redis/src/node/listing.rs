//! Requests to a node about many locks. On a borrowed connection: locks that are taken and released
//! meanwhile do not wait behind them.

use super::Node;
use crate::protocol::NodePage;
use crate::protocol::driver::drive;
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
    pub fn list_page(&self, pattern: &str, cursor: u64, by: Moment) -> Result<NodePage, Failure> {
        let owned = self.inner.format.owned(LISTED)?;
        drive(owned.list_locks(pattern, cursor), &mut self.borrow(by)?, by)
    }

    /// The state of these locks, each with all that the server tells.
    ///
    /// # Errors
    ///
    /// See [`Failure`]: the server cannot be asked.
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
                .map(|name| drive(format.peek(name), link, by))
                .collect()),
        }
    }
}

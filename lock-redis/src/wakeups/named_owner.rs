//! [`NamedOwner`]: the message by which a release names the owner that is next.

use lock_core::backend::{DirectGrant, NextOwner};
use lock_core::{FencingToken, OwnerText};

/// The message of a fair lock's release: the next owner. If the release has granted the lock to
/// that owner, the number of the owner's attempt, the token and the lock's key follow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NamedOwner {
    owner: OwnerText,
    granted: Option<(String, DirectGrant)>,
}

impl NamedOwner {
    pub(super) fn read(message: &str) -> Self {
        let mut words = message.splitn(4, ' ');
        let [owner, attempt, token, lock] = [(); 4].map(|()| words.next().unwrap_or_default());
        let granted = match (attempt.parse(), token.parse().map(FencingToken::new)) {
            (Ok(attempt), Ok(token)) => Some((lock.to_owned(), DirectGrant { attempt, token })),
            _ => None,
        };
        // A writer waits in a fair read-write lock's queue with the suffix that it has as the
        // holder.
        let owner = owner.strip_suffix(":write").unwrap_or(owner);
        Self {
            owner: OwnerText::new(owner),
            granted,
        }
    }

    /// Returns the next owner for waiters of the lock with this key. A grant is dropped if it names
    /// another lock, or none: the owner's next attempt finds it.
    pub(super) fn of_lock(self, key: Option<&str>) -> NextOwner {
        let next = NextOwner::new(self.owner);
        match self.granted {
            Some((lock, grant)) if key == Some(lock.as_str()) => next.granted(grant),
            _ => next,
        }
    }
}

//! [`NamedOwner`]: the message by which a release names the owner that is next.

use lock_core::backend::{DirectGrant, NextOwner};
use lock_core::{FencingToken, OwnerText};

/// What a release of a fair lock says: the owner that is next, and behind it the number of its
/// attempt, the token and the lock if it was granted that.
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
        // A writer of a fair read-write lock is in the queue as it would be in the lock.
        let owner = owner.strip_suffix(":write").unwrap_or(owner);
        Self {
            owner: OwnerText::new(owner),
            granted,
        }
    }

    /// To the waiters of the lock of this key, a grant of which is none if it names another, or
    /// none: their next attempt finds out.
    pub(super) fn of_lock(self, key: Option<&str>) -> NextOwner {
        let next = NextOwner::new(self.owner);
        match self.granted {
            Some((lock, grant)) if key == Some(lock.as_str()) => next.granted(grant),
            _ => next,
        }
    }
}

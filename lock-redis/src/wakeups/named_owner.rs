//! [`NamedOwner`]: the message by which a release names the owner that is next.

use crate::receipt::granted_by_release;
use lock_core::OwnerText;
use lock_core::backend::{DirectGrant, NextOwner};
use std::sync::Arc;

/// The message of a release to the client of the waiter that is next: the next owner. If the
/// release has granted the lock to that owner, five words follow: the number of the owner's
/// attempt, the token, how many tokens are set aside ("-" if the grant has no tokens), the argument
/// `turns` for the release by that owner, and the lock's key.
#[derive(Clone, Debug)]
pub(super) struct NamedOwner {
    owner: OwnerText,
    granted: Option<(String, DirectGrant)>,
}

impl NamedOwner {
    pub(super) fn read(message: &str) -> Self {
        let mut words = message.splitn(6, ' ');
        let owner = words.next().unwrap_or_default();
        let granted = Self::read_grant(words);
        // A waiting writer has the suffix `:write` in the queue, as a writer that holds the lock
        // has it under the key.
        let owner = owner.strip_suffix(":write").unwrap_or(owner);
        Self {
            owner: OwnerText::new(owner),
            granted,
        }
    }

    fn read_grant<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<(String, DirectGrant)> {
        let attempt = words.next()?.parse().ok()?;
        let token = words.next()?.parse().ok()?;
        let reserve = match words.next()? {
            "-" => None,
            reserve => Some(reserve.parse().ok()?),
        };
        let grant = granted_by_release(token, reserve, words.next()?)?;
        Some((words.next()?.to_owned(), DirectGrant::new(attempt, grant)))
    }

    /// Adds a condition to the grant, if there is one.
    pub(super) fn only_while(mut self, condition: &Arc<dyn Fn() -> bool + Send + Sync>) -> Self {
        let granted = self.granted.take();
        self.granted = granted.map(|(lock, grant)| (lock, grant.only_while(Arc::clone(condition))));
        self
    }

    /// Returns the next owner for waiters of the lock with this key; `None` if messages grant
    /// nothing. A grant of any other lock is ignored: the owner's next attempt finds it.
    pub(super) fn of_lock(self, key: Option<&str>) -> NextOwner {
        let next = NextOwner::new(self.owner);
        match self.granted {
            Some((lock, grant)) if key == Some(lock.as_str()) => next.granted(grant),
            _ => next,
        }
    }
}

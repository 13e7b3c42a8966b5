//! [`Locks`]: the held locks of a store, page by page.

use crate::backend::{LockInfo, PagePosition};
use crate::engine::EngineHandle;
use crate::error::Error;
use crate::name::LockName;
use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::sync::Arc;

/// The held locks of a store: see [`Client::locks`](crate::Client::locks).
///
/// The value stores the names that it has returned, to return each name once, and nothing about
/// other keys.
pub struct Locks {
    engine: Arc<EngineHandle>,
    pattern: String,
    /// The position of the next page; `None` after the last page, and after an error.
    next: Option<PagePosition>,
    returned: HashSet<LockName>,
    /// The unread part of the last page, for the iterator.
    rest: VecDeque<(LockName, LockInfo)>,
}

impl Locks {
    pub(super) fn new(engine: Arc<EngineHandle>, pattern: &str) -> Self {
        Self {
            engine,
            pattern: pattern.to_owned(),
            next: Some(PagePosition::default()),
            returned: HashSet::new(),
            rest: VecDeque::new(),
        }
    }

    /// Returns the next page, which may be empty; `None` after the last page and after an error.
    /// For a caller that must be able to stop soon: the iterator requests pages until it has found
    /// a lock.
    ///
    /// # Blocking
    ///
    /// For at most the command timeout.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::locks`](crate::Client::locks). No page follows an error.
    pub fn next_page(&mut self) -> Result<Option<Vec<(LockName, LockInfo)>>, Error> {
        let Some(from) = self.next.take() else {
            return Ok(None);
        };
        let mut page = self.engine.list(&self.pattern, &from)?;
        self.next = page.next;
        page.locks
            .retain(|(name, _)| self.returned.insert(name.clone()));
        Ok(Some(page.locks))
    }
}

impl Iterator for Locks {
    type Item = Result<(LockName, LockInfo), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(lock) = self.rest.pop_front() {
                return Some(Ok(lock));
            }
            match self.next_page().transpose()? {
                Ok(page) => self.rest.extend(page),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks")
            .field("pattern", &self.pattern)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use crate::LockName;
    use crate::engine::tests::eventually;
    use std::collections::HashSet;

    #[test]
    fn held_locks_that_match_are_each_listed_once() {
        let client = crate::builder()
            .url("memory://listed")
            .unwrap()
            .connect()
            .unwrap();
        let locks: Vec<_> = (0..2_500)
            .map(|n| client.mutex(format!("a:{n}")).unwrap())
            .collect();
        let held: Vec<_> = locks.iter().map(|lock| lock.lock().unwrap()).collect();
        let other = client.mutex("b:1").unwrap();
        let guard = other.lock().unwrap();
        let free = client.mutex("a:free").unwrap();
        free.lock().unwrap().unlock().unwrap();

        let listed: Vec<_> = client.locks("a:*").map(|lock| lock.unwrap().0).collect();
        assert_eq!(listed.len(), held.len());
        assert_eq!(listed.iter().collect::<HashSet<_>>().len(), held.len());
        assert!(listed.iter().all(|name| name.as_str().starts_with("a:")));
        let (name, info) = client.locks("b*").next().unwrap().unwrap();
        assert_eq!((name.as_str(), info.waiters), ("b:1", Some(0)));
        assert!(
            info.holder
                .unwrap()
                .owner
                .as_str()
                .starts_with(&client.id().to_string())
        );
        assert_eq!(info.largest_token, guard.fencing_token());
        let both = client.rw_lock("b:read").unwrap();
        let _reader = both.read().lock().unwrap();
        assert_eq!(client.locks("b:*").count(), 2);
        assert_eq!(client.locks("c*").count(), 0);
        // A page may contain no lock: the caller can stop between pages.
        let (mut pages, mut found) = (client.locks("a:?"), 0);
        while let Some(page) = pages.next_page().unwrap() {
            found += page.len();
        }
        assert_eq!(found, 10);
    }

    #[test]
    fn named_locks_are_looked_at_with_their_waiters() {
        let client = crate::builder()
            .url("memory://looked-at")
            .unwrap()
            .connect()
            .unwrap();
        let waiting = crate::builder()
            .url("memory://looked-at")
            .unwrap()
            .connect()
            .unwrap();
        let names = ["a", "b"].map(|name| LockName::new(name).unwrap());
        let state = || client.inspect_all(&names).into_iter().map(Result::unwrap);
        assert!(state().all(|info| info.holder.is_none() && info.waiters == Some(0)));
        let lock = client.mutex("a").unwrap();
        let guard = lock.lock().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                waiting
                    .mutex("a")
                    .unwrap()
                    .lock()
                    .unwrap()
                    .unlock()
                    .unwrap();
            });
            eventually("it waits", || state().next().unwrap().waiters == Some(1));
            guard.unlock().unwrap();
        });
    }
}

//! [`Registry`]: the entries of a client, by name.

use super::Entry;
use crate::name::LockName;
use crate::process::Origin;
use crate::sync::mutant;
use crate::sync::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// The entries in use. One that nobody has a handle, a guard, a timer or a place of is gone.
///
/// In a forked child there are none: whoever of our process had the lock at the fork has it there for ever.
pub(crate) struct Registry {
    entries: Mutex<HashMap<LockName, Weak<Entry>>>,
    origin: Arc<Origin>,
}

impl Registry {
    pub(crate) fn new(origin: Arc<Origin>) -> Self {
        Self { entries: Mutex::default(), origin }
    }

    /// The lock over the entries; `None` in a forked child.
    fn lock(&self) -> Option<MutexGuard<'_, HashMap<LockName, Weak<Entry>>>> {
        (!self.origin.is_elsewhere()).then(|| self.entries.lock())
    }

    /// The entry of this name; `None` in a forked child.
    pub(crate) fn entry(self: &Arc<Self>, name: &LockName) -> Option<Arc<Entry>> {
        let mut entries = self.lock()?;
        if let Some(entry) = entries.get(name).and_then(Weak::upgrade) {
            return Some(entry);
        }
        let entry = Arc::new(Entry::new(name.clone(), Arc::downgrade(self)));
        entries.insert(name.clone(), Arc::downgrade(&entry));
        Some(entry)
    }

    /// The entry of this name, if it is in use.
    pub(crate) fn find(&self, name: &LockName) -> Option<Arc<Entry>> {
        self.lock()?.get(name).and_then(Weak::upgrade)
    }

    /// All entries in use; none in a forked child.
    pub(crate) fn all(&self) -> Vec<Arc<Entry>> {
        let Some(entries) = self.lock() else { return Vec::new() };
        // All are kept until the lock is free: one that goes takes it.
        entries.values().filter_map(Weak::upgrade).collect()
    }

    /// How many names are in use.
    pub(crate) fn len(&self) -> usize {
        self.lock().map_or(0, |entries| entries.len())
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let Some(registry) = self.registry.upgrade() else { return };
        let Some(mut entries) = registry.lock() else { return };
        // Between our last handle and here somebody may have made a new entry of this name: that one stays.
        let is_ours = |entry: &Weak<Self>| std::ptr::eq(entry.as_ptr(), self);
        if entries.get(&self.name).is_some_and(is_ours) || mutant("late_entry_removes_successor") {
            entries.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_goes_late_leaves_its_successor_in_place() {
        let registry = Arc::new(Registry::new(Arc::new(Origin::here())));
        let name = LockName::new("x").unwrap();
        let late = Entry::new(name.clone(), Arc::downgrade(&registry));
        let successor = registry.entry(&name).unwrap();
        drop(late);
        assert!(registry.find(&name).is_some_and(|found| Arc::ptr_eq(&found, &successor)));
        drop(successor);
        assert_eq!(registry.len(), 0);
    }
}

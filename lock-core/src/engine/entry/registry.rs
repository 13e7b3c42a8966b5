//! [`Registry`]: the entries of a client, by name.

use super::Entry;
use crate::name::LockName;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// The entries in use. One that nobody has a handle, a guard, a timer or a place of is gone.
#[derive(Default)]
pub(crate) struct Registry(Mutex<HashMap<LockName, Weak<Entry>>>);

impl Registry {
    /// The entry of this name.
    pub(crate) fn entry(self: &Arc<Self>, name: &LockName) -> Arc<Entry> {
        let mut entries = self.0.lock();
        if let Some(entry) = entries.get(name).and_then(Weak::upgrade) {
            return entry;
        }
        let entry = Arc::new(Entry::new(name.clone(), Arc::downgrade(self)));
        entries.insert(name.clone(), Arc::downgrade(&entry));
        entry
    }

    /// The entry of this name, if it is in use.
    pub(crate) fn find(&self, name: &LockName) -> Option<Arc<Entry>> {
        self.0.lock().get(name).and_then(Weak::upgrade)
    }

    /// How many names are in use.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let Some(registry) = self.registry.upgrade() else { return };
        let mut entries = registry.0.lock();
        // Between our last handle and here somebody may have made a new entry of this name: that one stays.
        if entries.get(&self.name).is_some_and(|entry| std::ptr::eq(entry.as_ptr(), self)) {
            entries.remove(&self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_goes_late_leaves_its_successor_in_place() {
        let registry = Arc::new(Registry::default());
        let name = LockName::new("x").unwrap();
        let late = Entry::new(name.clone(), Arc::downgrade(&registry));
        let successor = registry.entry(&name);
        drop(late);
        assert!(registry.find(&name).is_some_and(|found| Arc::ptr_eq(&found, &successor)));
        drop(successor);
        assert_eq!(registry.len(), 0);
    }
}

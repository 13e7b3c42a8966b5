//! The stores that sit the exam here.

use lock_core::conformance::{Seen, Subject};
use lock_core::{Backend, Context, LockName, MemoryBackend, SystemClock};
use std::sync::Arc;

/// A store in this process's memory.
pub(super) struct MemorySubject(MemoryBackend);

impl MemorySubject {
    pub(super) fn new() -> Self {
        Self(MemoryBackend::new(Arc::new(SystemClock)))
    }
}

impl Subject for MemorySubject {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn backend(&self, _: &Context) -> Arc<dyn Backend> {
        Arc::new(self.0.clone())
    }

    fn probe(&self, lock: &LockName) -> Seen {
        Seen::of(&self.0, lock)
    }

    fn lose(&self, lock: &LockName) {
        self.0.lose(lock);
    }
}

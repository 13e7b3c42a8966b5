//! The macros run the core cases on a store outside of the suite, as in the crate of a store.
//!
//! A separate test binary, because its time is virtual.

use lock_conformance::{NEEDS_REPLICAS, Seen, Subject, VirtualTime};
use lock_core::{Backend, Clock, Context, LockName, MemoryBackend};
use std::sync::Arc;

struct Memory {
    store: MemoryBackend,
    clock: Arc<dyn Clock>,
}

impl Memory {
    fn start() -> Self {
        let clock = VirtualTime::new().clock();
        let store = MemoryBackend::new(Arc::clone(&clock));
        Self { store, clock }
    }
}

impl Subject for Memory {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    fn backend(&self, _: &Context) -> Arc<dyn Backend> {
        Arc::new(self.store.clone())
    }

    fn probe(&self, lock: &LockName) -> Seen {
        Seen::of(&self.store, lock)
    }

    fn lose(&self, lock: &LockName) {
        self.store.lose(lock);
    }

    fn cannot(&self) -> &[(&str, &str)] {
        NEEDS_REPLICAS
    }
}

mod conformance {
    lock_conformance::conformance_core_tests!(super::Memory::start());
}

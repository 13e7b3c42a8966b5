//! The stores that sit the exam here.

use crate::harness::process::RedisServer;
use distlock::{
    Backend, ClientBuilder, Config, Context, LockName, MemoryBackend, SystemClock, builder, schemes,
};
use lock_core::conformance::{Seen, Subject};
use std::sync::Arc;

/// A store in this process's memory.
pub(crate) struct MemorySubject(MemoryBackend);

impl MemorySubject {
    pub(crate) fn new() -> Self {
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

/// One Redis server of its own, reached by its URL.
pub(crate) struct RedisSubject(RedisServer);

impl RedisSubject {
    pub(crate) fn start() -> Self {
        Self(RedisServer::start())
    }
}

impl Subject for RedisSubject {
    fn name(&self) -> String {
        "redis".to_owned()
    }

    fn backend(&self, context: &Context) -> Arc<dyn Backend> {
        let config = Config::from_url(&self.0.url()).unwrap();
        schemes().open(&config, context).unwrap()
    }

    fn client(&self, context: &Context) -> ClientBuilder {
        builder().clock(Arc::clone(&context.clock)).url(&self.0.url()).unwrap()
    }

    /// As Redisson stores it: a hash with one field, whose TTL is the lease.
    fn probe(&self, lock: &LockName) -> Seen {
        let mut probe = self.0.probe();
        let holders = probe.hgetall(lock.as_str());
        assert!(holders.len() <= 1, "a lock with several holders: {holders:?}");
        // Between the two requests the lease may end.
        match (holders.len(), probe.pttl(lock.as_str())) {
            (1, Some(left)) => Seen::held(Some(left)),
            (1, None) => {
                assert!(!probe.exists(lock.as_str()), "a lock that never ends");
                Seen::FREE
            }
            _ => Seen::FREE,
        }
    }

    fn lose(&self, lock: &LockName) {
        let mut probe = self.0.probe();
        let counter = match lock.as_str() {
            tagged if tagged.contains('{') => format!("redisson_lock_token:{tagged}"),
            plain => format!("redisson_lock_token:{{{plain}}}"),
        };
        probe.command(&["DEL", lock.as_str(), &counter]);
    }
}

//! [`Subject`]: a store under test, and its replicas.

use lock_core::backend::Backend;
use lock_core::{
    Client, ClientBuilder, Clock, Config, Context, DistLock, LockName, Moment, SystemClock,
};
use std::sync::Arc;
use std::time::Duration;

/// A store under test: how to open it, and how to inspect it without the backend.
///
/// A value represents *one* store. Each case gets a new value, which may start a server, or share
/// a server with other values, because each case uses unique lock names.
pub trait Subject: Send + Sync {
    /// Returns the name of the store in reports.
    fn name(&self) -> String;

    /// Returns the clock of the store and its cases: the machine's, or that of a
    /// [`VirtualTime`](super::VirtualTime). Every call must return the same clock.
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    /// Opens the store as a separate process would: two such backends share nothing but the store.
    fn backend(&self, context: &Context) -> Arc<dyn Backend>;

    /// Returns a builder for a client with its own backend. Override this method if a scheme and
    /// a URL open the client.
    fn client(&self, context: &Context) -> ClientBuilder {
        lock_core::builder()
            .clock(Arc::clone(&context.clock))
            .backend(self.backend(context))
    }

    /// Applies settings that all clients of this store need, such as a fixed lease.
    fn settings(&self, config: Config) -> Config {
        config
    }

    /// Returns the builders of one process's clients, each with its own backend: more than one only
    /// if a lock consists of locks in several stores.
    fn clients(&self, context: &Context) -> Vec<ClientBuilder> {
        vec![self.client(context)]
    }

    /// Returns the lock of this name, which consists of the locks of these clients. Override this
    /// method together with [`clients`](Self::clients).
    fn lock(&self, clients: &[Client], name: &LockName) -> Arc<dyn DistLock> {
        let [client] = clients else {
            panic!("several clients need their own `lock`")
        };
        client.mutex(name).expect("a good name").into()
    }

    /// Inspects the lock without the backend: over a separate connection, with a separate parser. A
    /// store with no other access uses [`Seen::of`].
    fn probe(&self, lock: &LockName) -> Seen;

    /// Deletes everything that the store keeps of this lock, its token counter included, as a
    /// restart without persistence does. The deletion need not wake waiters.
    fn lose(&self, lock: &LockName);

    /// Returns whether the suite uses lock names with hash tags. A store with slots runs the suite
    /// twice, once with hash tags and once without.
    fn has_tags(&self) -> bool {
        false
    }

    /// Returns the replicas of the store; `None` if it has none. Such a store must return the cases
    /// in [`NEEDS_REPLICAS`](super::NEEDS_REPLICAS) from [`cannot`](Self::cannot).
    fn replicas(&self) -> Option<&dyn ReplicaSet> {
        None
    }

    /// Returns the cases that this store cannot run, each with the reason, which is printed.
    fn cannot(&self) -> &[(&str, &str)] {
        &[]
    }
}

/// The replicas of a store under test.
pub trait ReplicaSet {
    /// Returns the number of replicas, at least one.
    fn count(&self) -> u32;

    /// Pauses the first `replicas` replicas: when this method returns, these apply and confirm no
    /// writes. The other replicas resume, and catch up soon. The store must still count the paused
    /// replicas as its replicas.
    fn hold_back(&self, replicas: u32);

    /// Inspects the lock on this replica, counted from zero, which must not be paused.
    fn probe(&self, replica: u32, lock: &LockName) -> Seen;
}

/// The state of a lock as a [`Subject::probe`] sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Seen {
    /// True if the lock is held.
    pub held: bool,
    /// The remaining lease; `None` if the lock is free or does not expire.
    pub remaining: Option<Duration>,
}

impl Seen {
    /// A free lock.
    pub const FREE: Self = Self {
        held: false,
        remaining: None,
    };

    /// Inspects the lock through the backend, for a store with no other access, such as memory.
    ///
    /// # Panics
    ///
    /// If the store does not answer.
    #[must_use]
    pub fn of(backend: &dyn Backend, lock: &LockName) -> Self {
        let info = backend
            .inspect(lock, Moment::NEVER)
            .expect("the store answers");
        info.holder
            .map_or(Self::FREE, |holder| Self::held(holder.remaining))
    }

    /// Returns a held lock with this remaining lease.
    #[must_use]
    pub fn held(remaining: Option<Duration>) -> Self {
        Self {
            held: true,
            remaining,
        }
    }
}

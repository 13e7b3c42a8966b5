//! [`Subject`]: a store under test, and its replicas.

use lock_core::backend::Backend;
use lock_core::{
    Client, ClientBuilder, Clock, Config, Context, DistLock, LockName, Moment, SystemClock,
};
use std::sync::Arc;
use std::time::Duration;

/// A store under test: how to open it, and how to inspect it without the backend.
///
/// A value stands for *one* store. It is made for each case, and may start a server of its own or
/// share one; each case uses unique lock names.
pub trait Subject: Send + Sync {
    /// Returns its name in reports.
    fn name(&self) -> String;

    /// Returns the clock of the store and its cases: the machine's, or that of a
    /// [`VirtualTime`](super::VirtualTime). Always the same one.
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    /// Opens the store as a separate process would: two of these backends share the store alone.
    fn backend(&self, context: &Context) -> Arc<dyn Backend>;

    /// Returns a builder for a client on a backend of its own. Override it for a client by scheme
    /// and URL.
    fn client(&self, context: &Context) -> ClientBuilder {
        lock_core::builder()
            .clock(Arc::clone(&context.clock))
            .backend(self.backend(context))
    }

    /// Applies settings that all clients of this store need, such as a fixed lease.
    fn settings(&self, config: Config) -> Config {
        config
    }

    /// Returns the clients of one process, each on a backend of its own: more than one only for
    /// locks of several stores.
    fn clients(&self, context: &Context) -> Vec<ClientBuilder> {
        vec![self.client(context)]
    }

    /// Returns the lock of this name, made of those clients. Override it together with
    /// [`clients`](Self::clients).
    fn lock(&self, clients: &[Client], name: &LockName) -> Arc<dyn DistLock> {
        let [client] = clients else {
            panic!("several clients need their own `lock`")
        };
        client.mutex(name).expect("a good name").into()
    }

    /// Inspects the lock without the backend: over its own connection, with its own parser.
    fn probe(&self, lock: &LockName) -> Seen;

    /// Deletes everything that the store keeps of this lock, its token counter included, as a
    /// restart without persistence does. It need not wake waiters.
    fn lose(&self, lock: &LockName);

    /// Returns whether the suite uses lock names with hash tags. A store with slots runs it with
    /// and without.
    fn has_tags(&self) -> bool {
        false
    }

    /// Returns its replicas. Without any, it [cannot](Self::cannot) run the cases in
    /// [`NEEDS_REPLICAS`](super::NEEDS_REPLICAS).
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
    /// Returns their number, at least one.
    fn count(&self) -> u32;

    /// Pauses the first `replicas` of them: when this returns they apply and confirm no writes. The
    /// others resume, and catch up soon. The store must still count paused ones as replicas.
    fn hold_back(&self, replicas: u32);

    /// Inspects the lock on this replica, counted from zero, which must not be paused.
    fn probe(&self, replica: u32, lock: &LockName) -> Seen;
}

/// The state of a lock as a [`Subject::probe`] sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Seen {
    /// Whether the lock is held.
    pub held: bool,
    /// The remaining lease.
    pub remaining: Option<Duration>,
}

impl Seen {
    /// A free lock.
    pub const FREE: Self = Self {
        held: false,
        remaining: None,
    };

    /// Inspects through the backend: for a store without another access, as memory.
    ///
    /// # Panics
    ///
    /// If it does not answer.
    #[must_use]
    pub fn of(backend: &dyn Backend, lock: &LockName) -> Self {
        let info = backend
            .inspect(lock, Moment::NEVER)
            .expect("the store answers");
        info.holder
            .map_or(Self::FREE, |holder| Self::held(holder.remaining))
    }

    /// A held lock with this remaining lease.
    #[must_use]
    pub fn held(remaining: Option<Duration>) -> Self {
        Self {
            held: true,
            remaining,
        }
    }
}

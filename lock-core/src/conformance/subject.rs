//! [`Subject`]: a store that runs the suite.

use super::replicas::ReplicaSet;
use crate::backend::Backend;
use crate::client::{Client, ClientBuilder};
use crate::clock::{Clock, Moment, SystemClock};
use crate::config::Config;
use crate::lock::DistLock;
use crate::name::LockName;
use crate::scheme::Context;
use std::sync::Arc;
use std::time::Duration;

/// A store that runs the suite: how to get to it, and how to look at it without going through the
/// backend.
///
/// A value of it stands for *one* store. It is made anew for every case, and may start a server of
/// its own or share one; every case takes lock names that nobody else has.
pub trait Subject: Send + Sync {
    /// What it is called in reports.
    fn name(&self) -> String;

    /// The clock of the store, on which its cases run: that of the machine, or that of a
    /// [`VirtualTime`](super::VirtualTime). Always the same one.
    fn clock(&self) -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    /// Opens the store, as another process would: what two of these share is the store alone.
    fn backend(&self, context: &Context) -> Arc<dyn Backend>;

    /// A client on a backend of its own. Override it where there is more between the two, such as a
    /// scheme and its URL.
    fn client(&self, context: &Context) -> ClientBuilder {
        Client::builder().clock(Arc::clone(&context.clock)).backend(self.backend(context))
    }

    /// Settings that all clients need on this store, as a fixed lease where there is no other.
    fn settings(&self, config: Config) -> Config {
        config
    }

    /// The clients of one process, on backends of their own: one, but where the suite runs on locks
    /// that are made of others.
    fn clients(&self, context: &Context) -> Vec<ClientBuilder> {
        vec![self.client(context)]
    }

    /// The lock of this name, of those clients. Override it together with
    /// [`clients`](Self::clients).
    fn lock(&self, clients: &[Client], name: &LockName) -> Arc<dyn DistLock> {
        let [client] = clients else { panic!("several clients, and nothing said of their locks") };
        client.mutex(name).expect("a good name").into()
    }

    /// Looks at the lock with other eyes than the backend's: its own connection, its own reading of
    /// the format.
    fn probe(&self, lock: &LockName) -> Seen;

    /// Takes away everything that the store keeps of this lock, its token counter too, behind
    /// everybody's back and without waking anybody, as a restart without persistence does. (Waking
    /// somebody by accident is no harm.)
    fn lose(&self, lock: &LockName);

    /// Whether the locks of the suite have hash tags in their names. A store that keeps locks by
    /// their slots runs it with them and without.
    fn has_tags(&self) -> bool {
        false
    }

    /// Its replicas; without any, the cases in [`NEEDS_REPLICAS`](super::NEEDS_REPLICAS) are among
    /// those that it [cannot](Self::cannot) run.
    fn replicas(&self) -> Option<&dyn ReplicaSet> {
        None
    }

    /// The cases that this store cannot run, each with the reason; they are printed, never left out
    /// in silence.
    fn cannot(&self) -> &[(&str, &str)] {
        &[]
    }
}

/// What a [`Subject::probe`] saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Seen {
    /// Whether anybody holds the lock.
    pub held: bool,
    /// What is left of its lease.
    pub remaining: Option<Duration>,
}

impl Seen {
    /// Nobody holds it.
    pub const FREE: Self = Self { held: false, remaining: None };

    /// What the backend itself says: for a store that nothing else can look at, as memory.
    ///
    /// # Panics
    ///
    /// If it does not answer.
    #[must_use]
    pub fn of(backend: &dyn Backend, lock: &LockName) -> Self {
        let info = backend.inspect(lock, Moment::NEVER).expect("the store answers");
        info.holder.map_or(Self::FREE, |holder| Self::held(holder.remaining))
    }

    /// Somebody holds it, for this long yet.
    #[must_use]
    pub fn held(remaining: Option<Duration>) -> Self {
        Self { held: true, remaining }
    }
}

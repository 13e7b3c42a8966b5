//! Stores in this process: one store, locks over several stores, and quorums.

use super::quorum::majority_of;
use crate::quorum::Dead;
use distlock::admin::QuorumBackend;
use distlock::backend::{Backend, Context, MemoryBackend};
use distlock::time::{Clock, Moment};
use distlock::{Client, ClientBuilder, DistLock, LockName, MajorityLock, MultiLock, Mutex};
use lock_conformance::{Seen, Subject, VirtualTime};
use std::sync::Arc;
use std::time::Duration;

/// A store in this process's memory.
pub struct MemorySubject {
    store: MemoryBackend,
    clock: Arc<dyn Clock>,
}

impl MemorySubject {
    pub fn on(clock: Arc<dyn Clock>) -> Self {
        Self {
            store: MemoryBackend::new(Arc::clone(&clock)),
            clock,
        }
    }
}

impl Subject for MemorySubject {
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
}

/// Locks with the same name in three stores, acquired as one lock.
pub struct SeveralSubject {
    name: &'static str,
    time: VirtualTime,
    stores: [MemoryBackend; 3],
    make: fn(Vec<Mutex>) -> Arc<dyn DistLock>,
}

impl SeveralSubject {
    /// A lock that is held if all three locks are.
    pub fn all() -> Self {
        Self::new("all of three", |members| {
            MultiLock::new(members).unwrap().into()
        })
    }

    /// A lock that is held if a majority of the three locks is.
    pub fn majority() -> Self {
        Self::new("a majority of three", |members| {
            MajorityLock::new(members).unwrap().into()
        })
    }

    /// A lock over a lock over two stores and the third store.
    pub fn nested() -> Self {
        Self::new("one of a lock of two", |mut members| {
            let last = members.pop().unwrap();
            let inner: Arc<dyn DistLock> = MultiLock::new(members).unwrap().into();
            MultiLock::new([inner, last.into()]).unwrap().into()
        })
    }

    fn new(name: &'static str, make: fn(Vec<Mutex>) -> Arc<dyn DistLock>) -> Self {
        let time = VirtualTime::new();
        let stores = [(); 3].map(|()| MemoryBackend::new(time.clock()));
        Self {
            name,
            time,
            stores,
            make,
        }
    }
}

impl Subject for SeveralSubject {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.time.clock()
    }

    fn backend(&self, _: &Context) -> Arc<dyn Backend> {
        panic!("several locks have no one store")
    }

    fn clients(&self, context: &Context) -> Vec<ClientBuilder> {
        let client = |store: &MemoryBackend| {
            distlock::builder()
                .clock(Arc::clone(&context.clock))
                .backend(Arc::new(store.clone()))
        };
        self.stores.iter().map(client).collect()
    }

    fn lock(&self, clients: &[Client], name: &LockName) -> Arc<dyn DistLock> {
        (self.make)(
            clients
                .iter()
                .map(|client| client.mutex(name).unwrap())
                .collect(),
        )
    }

    /// Held if any of the three locks is: a case that expects a free lock finds one that was left
    /// over.
    fn probe(&self, lock: &LockName) -> Seen {
        let seen = self.stores.each_ref().map(|store| Seen::of(store, lock));
        let held = seen.iter().filter(|it| it.held);
        held.min_by_key(|it| it.remaining)
            .copied()
            .unwrap_or(Seen::FREE)
    }

    fn lose(&self, lock: &LockName) {
        self.stores.iter().for_each(|store| store.lose(lock));
    }
}

/// A quorum of stores in this process's memory.
pub struct MemoryQuorum {
    time: VirtualTime,
    alive: Vec<MemoryBackend>,
    dead: usize,
}

impl MemoryQuorum {
    pub fn new(alive: usize, dead: usize) -> Self {
        let time = VirtualTime::new();
        let alive = (0..alive)
            .map(|_| MemoryBackend::new(time.clock()))
            .collect();
        Self { time, alive, dead }
    }

    fn nodes(&self) -> usize {
        self.alive.len() + self.dead
    }
}

impl Subject for MemoryQuorum {
    fn name(&self) -> String {
        format!("a quorum of {} in memory, {} dead", self.nodes(), self.dead)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.time.clock()
    }

    fn backend(&self, context: &Context) -> Arc<dyn Backend> {
        let alive = self
            .alive
            .iter()
            .map(|store| Arc::new(store.clone()) as Arc<dyn Backend>);
        let dead = (0..self.dead).map(|_| Arc::new(Dead::default()) as Arc<dyn Backend>);
        let stores = dead.chain(alive).collect();
        Arc::new(QuorumBackend::new(stores, Duration::from_secs(2), context).unwrap())
    }

    fn probe(&self, lock: &LockName) -> Seen {
        let holders = self.alive.iter().filter_map(|store| {
            let holder = store
                .inspect(lock, Moment::NEVER)
                .expect("it is in memory")
                .holder?;
            Some((holder.owner.as_str().to_owned(), holder.remaining))
        });
        majority_of(holders.collect(), self.nodes())
    }

    fn lose(&self, lock: &LockName) {
        self.alive.iter().for_each(|store| store.lose(lock));
    }
}

//! The whole suite on a store with only the methods of `Backend` that have no default, as the first
//! step to a backend of one's own.
//!
//! A separate test binary, because its time is virtual.

use lock_conformance::{
    NEEDS_A_QUEUE, NEEDS_ADMIN, NEEDS_ALL_KINDS, NEEDS_NOTIFICATION, NEEDS_REPLICAS, NEEDS_TOKENS,
    Seen, Subject, VirtualTime,
};
use lock_core::backend::{
    Abilities, AcquisitionId, Answer, Attempt, Backend, Failure, Grant, HolderInfo, LockInfo,
    NodeId, OwnerId, OwnerText, Release, ReleaseOptions, Renewal, RenewalRequest, Tombstone,
    Waking,
};
use lock_core::{Clock, Context, LockName, Moment};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// The state of one lock: its holder, and the closed owners, each with the end of its tombstone.
#[derive(Default, Debug)]
struct Lock {
    holder: Option<(OwnerId, Moment)>,
    closed: HashMap<OwnerId, Moment>,
}

/// A store of mutexes without tokens, notifications and commands for operators.
#[derive(Clone, Debug)]
struct SmallStore {
    locks: Arc<Mutex<HashMap<LockName, Lock>>>,
    clock: Arc<dyn Clock>,
}

impl SmallStore {
    fn start() -> Self {
        let clock = VirtualTime::new().clock();
        Self {
            locks: Arc::default(),
            clock,
        }
    }

    fn update<T>(&self, name: &LockName, change: impl FnOnce(&mut Lock, Moment) -> T) -> T {
        let (mut locks, now) = (self.locks.lock(), self.clock.now());
        let lock = locks.entry(name.clone()).or_default();
        lock.holder = lock.holder.filter(|(_, end)| now < *end);
        lock.closed.retain(|_, end| now < *end);
        change(lock, now)
    }
}

impl Backend for SmallStore {
    fn acquire(&self, attempt: &Attempt<'_>, _: Moment) -> Result<Answer, Failure> {
        Ok(self.update(attempt.name, |lock, now| {
            if lock.closed.contains_key(&attempt.owner) {
                return Answer::Busy(None);
            }
            let mut until = now + attempt.lease.duration();
            match lock.holder {
                Some((owner, end)) if owner != attempt.owner => {
                    return Answer::Busy(Some(end.since(now)));
                }
                Some((_, end)) => until = until.max(end),
                None => {}
            }
            lock.holder = Some((attempt.owner, until));
            Answer::Granted(Grant::new(None))
        }))
    }

    fn renew(
        &self,
        _: NodeId,
        batch: &[RenewalRequest],
        _: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let renew = |AcquisitionId {
                         name, owner, lease, ..
                     }: &AcquisitionId| {
            self.update(name, |lock, now| match &mut lock.holder {
                Some((holder, until)) if holder == owner => {
                    *until = (now + lease.duration()).max(*until);
                    Renewal::Extended
                }
                _ => Renewal::Gone,
            })
        };
        batch.iter().map(|it| Ok(renew(&it.acquisition))).collect()
    }

    fn release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        _: Moment,
    ) -> Result<Release, Failure> {
        let AcquisitionId {
            name, owner, lease, ..
        } = acquisition;
        let kept = options.kept;
        Ok(self.update(name, |lock, now| {
            if options.tombstone == Tombstone::Leave {
                lock.closed.insert(*owner, now + lease.duration());
            }
            match lock.holder {
                Some((holder, _)) if holder == *owner => {
                    lock.holder = kept.map(|it| (it.owner, now + it.time.duration()));
                    Release::Freed
                }
                Some((holder, _)) if kept.is_some_and(|it| it.owner == holder) => Release::Freed,
                _ => Release::Gone,
            }
        }))
    }

    fn inspect(&self, name: &LockName, _: Moment) -> Result<LockInfo, Failure> {
        Ok(self.update(name, |lock, now| match lock.holder {
            Some((owner, until)) => {
                let owner = OwnerText::new(&owner.to_string());
                LockInfo::held(HolderInfo::new(owner, Some(until.since(now)), 1))
            }
            None => LockInfo::FREE,
        }))
    }

    fn abilities(&self) -> Abilities {
        let (interval, jitter) = (Duration::from_millis(50), Duration::from_millis(10));
        Abilities::full()
            .tokens(false)
            .waking(Waking::Polls { interval, jitter })
    }
}

/// The store as a subject of the suite.
struct Small {
    store: SmallStore,
    cannot: Vec<(&'static str, &'static str)>,
}

impl Small {
    fn start() -> Self {
        let lists = [
            NEEDS_REPLICAS,
            NEEDS_TOKENS,
            NEEDS_ALL_KINDS,
            NEEDS_A_QUEUE,
            NEEDS_NOTIFICATION,
            NEEDS_ADMIN,
        ];
        Self {
            store: SmallStore::start(),
            cannot: lists.concat(),
        }
    }
}

impl Subject for Small {
    fn name(&self) -> String {
        "a small store".to_owned()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.store.clock)
    }

    fn backend(&self, _: &Context) -> Arc<dyn Backend> {
        Arc::new(self.store.clone())
    }

    fn probe(&self, lock: &LockName) -> Seen {
        Seen::of(&self.store, lock)
    }

    fn lose(&self, lock: &LockName) {
        self.store.locks.lock().remove(lock);
    }

    fn cannot(&self) -> &[(&str, &str)] {
        &self.cannot
    }
}

mod conformance {
    lock_conformance::conformance_tests!(super::Small::start());
}

//! [`MemoryBackend`]: the in-memory store, for tests and single processes, and as the reference for
//! other stores.
//!
//! All operations run under one mutex. An expired lease has no effect; a later operation replaces
//! or removes it.

mod glob;
mod kinds;
mod scheme;

pub use scheme::MemoryScheme;

use crate::backend::owner::{OwnerId, OwnerLabel};
use crate::backend::token::{FencingToken, TokenRange};
use crate::backend::{
    Abilities, AcquisitionId, Admin, Answer, Attempt, Backend, Failure, Grant, HolderInfo,
    KeptLock, LockInfo, LockPage, NextOwner, NodeId, PagePosition, PermitChange, PermitOutcome,
    Proposal, ProposalAnswer, Readers, Release, ReleaseOptions, Renewal, RenewalRequest, Tokens,
    Tombstone, Voter, Wake, Watch,
};
use crate::config::{Config, WriterPriority};
use crate::kind::KindProfile;
use crate::name::{LockName, NameMap};
use crate::sync::{Mutex, MutexGuard};
use crate::time::{Clock, Moment};
use kinds::{Share, Shares};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A store in the memory of this process. Clones share one store.
#[derive(Clone)]
pub struct MemoryBackend(Arc<Store>, WriterPriority);

struct Store {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    locks: NameMap<LockName, Share>,
    /// The last token of each name. Counters of names that were unused for [`RETENTION`] are
    /// dropped, and `forgotten` replaces them.
    tokens: NameMap<LockName, Counter>,
    /// The largest dropped token. New counters start above it, so tokens grow even if the clock is
    /// set back.
    forgotten: u64,
    /// The end of each tombstone. Until then the store grants the owner nothing.
    tombstones: NameMap<(LockName, OwnerId), Moment>,
    watches: NameMap<LockName, Vec<Watcher>>,
    next_watch: u64,
    /// Shared holders and waiters; most names have none.
    shares: NameMap<LockName, Shares>,
    /// The number of entries at which the maps are next swept.
    sweep_at: usize,
}

/// A watch on a name, for a lock of this kind.
struct Watcher {
    id: u64,
    kind: &'static KindProfile,
    wake: Arc<dyn Wake>,
}

struct Counter {
    last: u64,
    used: Moment,
}

/// The time for which the token counter of an unused name is kept, as in stores on Redis by
/// default.
const RETENTION: Duration = Config::DEFAULT_TOKEN_RETENTION;

/// The largest number of locks on a page of a list.
const PAGE: usize = 1000;

/// The number of entries at which the maps are first swept. Each later sweep follows at twice the
/// number of entries that the sweep before left, and at twice this number at least, so that the
/// cost of a sweep is spread over as many insertions.
const SWEEP: usize = 1024;

impl MemoryBackend {
    /// Creates an empty store that measures leases by this clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let state = Mutex::new(State {
            sweep_at: SWEEP,
            ..State::default()
        });
        Self(Arc::new(Store { clock, state }), WriterPriority::default())
    }

    /// Deletes a lock without waking its watchers, as an operator can do in a real store. For
    /// tests.
    pub fn lose(&self, name: &LockName) {
        let name = name.plain();
        let mut state = self.0.state.lock();
        state.locks.remove(&*name);
        state.shares.remove(&*name);
    }

    /// Wakes all watchers of a name outside the mutex, and returns their number. The watchers of
    /// kinds that queue are notified of the next owner. If `name` is not a shared lock, that owner
    /// may get the lock at once: see [`State::may_grant`] and [`State::grant_next`].
    fn wake(&self, mut state: MutexGuard<'_, State>, name: &LockName) -> u32 {
        let now = self.0.clock.now();
        let may_grant = !name.profile().shared && state.may_grant(name, now);
        let next = match may_grant {
            true => state.grant_next(name, now, self.0.clock.unix_time()),
            false => state.next_in_queue(name, now),
        };
        // As on Redis, where a grant is followed by a search for the next waiter: the waiters
        // before it whose presence has ended leave the queue.
        let _second = state.next_in_queue(name, now);
        self.wake_with(state, name, next)
    }

    /// Wakes all watchers of a name, and returns their number. The watchers of kinds that queue are
    /// notified of `next`, the next owner.
    fn wake_with(
        &self,
        state: MutexGuard<'_, State>,
        name: &LockName,
        next: Option<NextOwner>,
    ) -> u32 {
        let Some(watches) = state.watches.get(&*name.plain()) else {
            return 0;
        };
        let wakes: Vec<_> = watches
            .iter()
            .map(|watch| (watch.kind, Arc::clone(&watch.wake)))
            .collect();
        drop(state);
        for (kind, wake) in &wakes {
            match &next {
                Some(next) if kind.queued_in_store => wake.wake_next(next),
                _ => wake.wake(),
            }
        }
        u32::try_from(wakes.len()).unwrap_or(u32::MAX)
    }
}

impl State {
    /// Returns the holder of an exclusive lock, if its lease has not ended.
    fn holder(&self, name: &LockName, now: Moment) -> Option<&Share> {
        self.locks
            .get(&*name.plain())
            .filter(|held| now < held.until)
    }

    /// Returns the state of a lock: its exclusive holder, or its shared holders.
    fn look(&mut self, name: &LockName, now: Moment) -> LockInfo {
        let profile = name.profile();
        let holder = self.holder(name, now);
        let holder = holder.map(|held| (LockInfo::held(held.info(now)), held.is_writer));
        let (info, is_writer) = match holder {
            Some(holder) if !profile.shared => holder,
            _ if profile.shared || !self.shares.is_empty() => {
                return self.inspect_shares(name, now);
            }
            _ => (LockInfo::FREE, false),
        };
        if is_writer || profile.readers.is_some() {
            return info.readers(Readers::new(Vec::new(), self.writer_waits(name, now)));
        }
        info
    }

    /// Returns the state of a lock with its number of waiters and its largest token.
    fn info(&mut self, name: &LockName, now: Moment) -> LockInfo {
        let plain = name.plain();
        let waiters = self.watches.get(&*plain).map_or(0, Vec::len);
        let token = self
            .tokens
            .get(&*plain)
            .map(|counter| FencingToken::new(counter.last));
        self.look(name, now)
            .waiters(u64::try_from(waiters).ok())
            .largest_token(token)
    }

    fn is_owned(&self, name: &LockName, owner: OwnerId, now: Moment) -> bool {
        self.holder(name, now)
            .is_some_and(|held| held.owner == owner)
    }

    /// Stores an exclusive holder, or extends its lease. A `label` replaces the former one.
    fn hold(&mut self, name: &LockName, owner: OwnerId, until: Moment, label: Option<OwnerLabel>) {
        let is_writer = name.profile().readers.is_some();
        let name = name.plain();
        match self
            .locks
            .get_mut(&*name)
            .filter(|held| held.owner == owner)
        {
            Some(held) => held.extend(until, label),
            None => {
                let held = Share::new(owner, until, label, is_writer);
                self.locks.insert(name.into_owned(), held);
            }
        }
    }

    /// Grants `max(stored + 1, Unix time in microseconds)` and reserves `reserve` more tokens.
    fn next_tokens(
        &mut self,
        name: &LockName,
        reserve: u32,
        now: Moment,
        unix: Duration,
    ) -> Option<TokenRange> {
        let stored = self
            .tokens
            .get(name)
            .map_or(self.forgotten, |counter| counter.last);
        let first = u64::try_from(unix.as_micros())
            .unwrap_or(u64::MAX)
            .max(stored + 1);
        let last = first + u64::from(reserve);
        self.tokens
            .insert(name.clone(), Counter { last, used: now });
        TokenRange::new(FencingToken::new(first), FencingToken::new(last))
    }

    /// Returns the stored token, if the lock is free, the proposed token is not larger, and no
    /// majority has granted the proposed token already.
    fn stale_against(&self, name: &LockName, proposal: Proposal, now: Moment) -> Option<u64> {
        let stored = self
            .tokens
            .get(name)
            .map_or(self.forgotten, |counter| counter.last);
        let is_stale = !proposal.is_granted && proposal.first.get() <= stored;
        (self.holder(name, now).is_none() && is_stale).then_some(stored)
    }

    /// Grants the proposed tokens.
    fn grant_proposed(
        &mut self,
        name: &LockName,
        Proposal { first, reserve, .. }: Proposal,
        now: Moment,
    ) -> Option<TokenRange> {
        let last = first.get() + u64::from(reserve);
        let stored = self.tokens.get(name).map_or(0, |counter| counter.last);
        self.tokens.insert(
            name.clone(),
            Counter {
                last: last.max(stored),
                used: now,
            },
        );
        TokenRange::new(first, FencingToken::new(last))
    }

    /// Removes expired entries, once in about as many insertions as there are entries.
    fn sweep(&mut self, now: Moment) {
        if self.entries() < self.sweep_at {
            return;
        }
        self.shares.retain(|_, shares| !shares.is_idle(now));
        self.locks.retain(|_, held| now < held.until);
        self.tombstones.retain(|_, until| now < *until);
        let forgotten = &mut self.forgotten;
        let locks = &self.locks;
        self.tokens.retain(|name, counter| {
            let keep = now < counter.used + RETENTION || locks.contains_key(name);
            if !keep {
                *forgotten = counter.last.max(*forgotten);
            }
            keep
        });
        self.sweep_at = 2 * self.entries().max(SWEEP);
    }

    fn entries(&self) -> usize {
        self.locks.len() + self.tokens.len() + self.tombstones.len() + self.shares.len()
    }
}

impl MemoryBackend {
    /// Tries once to acquire a lock, with proposed tokens or with new ones.
    fn attempt(
        &self,
        attempt: &Attempt<'_>,
        proposal: Option<Proposal>,
    ) -> Result<ProposalAnswer, Failure> {
        let Attempt {
            name,
            owner,
            lease,
            tokens,
            replication,
            label,
            ..
        } = *attempt;
        debug_assert!(
            replication.is_off(),
            "the engine asks for what the store is able to do"
        );
        let busy = |left| Ok(ProposalAnswer::Answer(Answer::Busy(left)));
        let unix = self.0.clock.unix_time();
        let mut state = self.0.state.lock();
        let now = self.0.clock.now();
        state.sweep(now);
        state.refuse_other_use(name, now)?;
        let is_closed = |until: &Moment| now < *until;
        if !state.tombstones.is_empty()
            && state
                .tombstones
                .get(&(name.clone(), owner))
                .is_some_and(is_closed)
        {
            return busy(None);
        }
        let label = label.map(|text| OwnerLabel::new(Arc::clone(text), unix));
        if name.profile().shared {
            let (answer, lets_in) = state.acquire_share(attempt, label, self.1, now)?;
            let next = match answer {
                _ if !lets_in => None,
                Answer::Busy(_) => state.grant_next(name, now, unix),
                _ => state.next_in_queue(name, now),
            };
            if next.is_some() {
                self.wake_with(state, name, next);
            }
            return Ok(ProposalAnswer::Answer(answer));
        }
        let next = state.let_head_in(attempt, now, unix);
        if let Some(answer) = state.kept_out(attempt, self.1, now)? {
            if next.is_some() {
                self.wake_with(state, name, next);
            }
            return Ok(ProposalAnswer::Answer(answer));
        }
        let name = &*name.plain();
        if let Some(stored) = proposal.and_then(|it| state.stale_against(name, it, now)) {
            return Ok(ProposalAnswer::Stale(FencingToken::new(stored)));
        }
        let mut is_repeated = false;
        if let Some(held) = state.holder(name, now) {
            if held.owner != owner {
                return busy(Some(held.until.since(now)));
            }
            is_repeated = true;
        }
        state.hold(attempt.name, owner, now + lease.duration(), label);
        let range = match (proposal, tokens) {
            (Some(proposal), _) => state.grant_proposed(name, proposal, now),
            (None, Tokens::None) => None,
            // The lock was granted to no other owner since this owner's first request, so the
            // counter still has this owner's last token.
            (None, Tokens::Assign { reserve }) if is_repeated => {
                state.tokens.get(name).and_then(|counter| {
                    let first = counter.last.saturating_sub(u64::from(reserve));
                    TokenRange::new(FencingToken::new(first), FencingToken::new(counter.last))
                })
            }
            (None, Tokens::Assign { reserve }) => state.next_tokens(name, reserve, now, unix),
        };
        Ok(ProposalAnswer::Answer(Answer::Granted(Grant::new(range))))
    }
}

impl Voter for MemoryBackend {
    fn propose(
        &self,
        attempt: &Attempt<'_>,
        proposal: Proposal,
        _by: Moment,
    ) -> Result<ProposalAnswer, Failure> {
        self.attempt(attempt, Some(proposal))
    }
}

impl Backend for MemoryBackend {
    fn acquire(&self, attempt: &Attempt<'_>, _by: Moment) -> Result<Answer, Failure> {
        match self.attempt(attempt, None)? {
            ProposalAnswer::Answer(answer) => Ok(answer),
            ProposalAnswer::Stale(_) => unreachable!("nothing was proposed"),
        }
    }

    fn renew(
        &self,
        _node: NodeId,
        batch: &[RenewalRequest],
        _by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let mut state = self.0.state.lock();
        let now = self.0.clock.now();
        let renew = |RenewalRequest {
                         acquisition, label, ..
                     }: &RenewalRequest| {
            let AcquisitionId {
                name, owner, lease, ..
            } = acquisition;
            let until = now + lease.duration();
            let is_owned = if name.profile().shared {
                state.renew_share(name, *owner, until, label.clone(), now)
            } else {
                state.is_owned(name, *owner, now)
            };
            if !is_owned {
                return Ok(Renewal::Gone);
            }
            if !name.profile().shared {
                state.hold(name, *owner, until, label.clone());
            }
            Ok(Renewal::Extended)
        };
        batch.iter().map(renew).collect()
    }

    fn release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        _by: Moment,
    ) -> Result<Release, Failure> {
        let AcquisitionId {
            name, owner, lease, ..
        } = acquisition;
        let mut state = self.0.state.lock();
        let now = self.0.clock.now();
        if options.tombstone == Tombstone::Leave {
            state
                .tombstones
                .insert((name.clone(), *owner), now + lease.duration());
            state.sweep(now);
        }
        state.refuse_other_use(name, now)?;
        if name.profile().shared {
            let (release, lets_in) = state.release_share(name, *owner, now);
            if lets_in {
                self.wake(state, name);
            }
            return Ok(release);
        }
        let lets_in = state.stop_waiting(name, *owner, now);
        if !state.is_owned(name, *owner, now) {
            let is_repeated = options
                .kept
                .is_some_and(|it| state.is_owned(name, it.owner, now));
            if lets_in {
                self.wake(state, name);
            }
            return Ok(if is_repeated {
                Release::Freed
            } else {
                Release::Gone
            });
        }
        let plain = name.plain();
        state.locks.remove(&*plain);
        if let Some(KeptLock { owner, time, .. }) = options.kept {
            state.hold(name, owner, now + time.duration(), None);
        }
        if let (Some(used), Some(counter)) = (options.last_used, state.tokens.get_mut(&*plain)) {
            counter.last = counter.last.min(used.get());
        }
        self.wake(state, name);
        Ok(Release::Freed)
    }

    fn inspect(&self, name: &LockName, _by: Moment) -> Result<LockInfo, Failure> {
        let mut state = self.0.state.lock();
        let now = self.0.clock.now();
        state.refuse_other_use(name, now)?;
        Ok(state.look(name, now))
    }

    fn verify(
        &self,
        acquisition: &AcquisitionId,
        by: Moment,
    ) -> Result<Option<HolderInfo>, Failure> {
        let AcquisitionId { name, owner, .. } = acquisition;
        if name.profile().shared {
            let mut state = self.0.state.lock();
            let now = self.0.clock.now();
            state.refuse_other_use(name, now)?;
            return Ok(state.share_of(name, *owner, now));
        }
        Ok(self.inspect(name, by)?.held_by(*owner))
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, _by: Moment) -> Result<Watch, Failure> {
        let mut state = self.0.state.lock();
        let id = state.next_watch;
        state.next_watch += 1;
        let (kind, name) = (name.profile(), name.plain().into_owned());
        state
            .watches
            .entry(name.clone())
            .or_default()
            .push(Watcher { id, kind, wake });
        Ok(Watch::new(MemoryWatch {
            store: Arc::downgrade(&self.0),
            name,
            id,
        }))
    }

    fn renewal_node(&self, _name: &LockName) -> NodeId {
        NodeId::new(0)
    }

    fn abilities(&self) -> Abilities {
        Abilities::full().all_kinds(true)
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }

    fn voter(&self) -> Option<&dyn Voter> {
        Some(self)
    }
}

impl Admin for MemoryBackend {
    fn inspect_all(&self, names: &[LockName], _by: Moment) -> Vec<Result<LockInfo, Failure>> {
        let mut state = self.0.state.lock();
        let now = self.0.clock.now();
        let info = |name| {
            state
                .refuse_other_use(name, now)
                .map(|()| state.info(name, now))
        };
        names.iter().map(info).collect()
    }

    fn list(&self, pattern: &str, from: &PagePosition, _by: Moment) -> Result<LockPage, Failure> {
        let mut state = self.0.state.lock();
        let now = self.0.clock.now();
        let is_next = |name: &&LockName| {
            name.as_str() > from.part.as_str() && glob::matches(pattern, name.as_str())
        };
        let names = state
            .locks
            .keys()
            .chain(state.shares.keys())
            .filter(is_next)
            .cloned();
        let names: BTreeSet<_> = names.collect();
        let mut infos = names.into_iter().map(|name| {
            let info = state.info(&name, now);
            (name, info)
        });
        let held = infos.by_ref().filter(|(_, info)| info.holder.is_some());
        let locks: Vec<_> = held.take(PAGE).collect();
        let next = locks.last().filter(|_| locks.len() == PAGE);
        let next = next.map(|(last, _)| PagePosition::new(last.as_str(), 0));
        Ok(LockPage::new(locks, next))
    }

    fn change_permits(
        &self,
        name: &LockName,
        change: PermitChange,
        _by: Moment,
    ) -> Result<PermitOutcome, Failure> {
        let mut state = self.0.state.lock();
        let (outcome, lets_in) = state.change_permits(name, change, self.0.clock.now())?;
        if lets_in {
            self.wake(state, name);
        }
        Ok(outcome)
    }

    fn force_release(&self, name: &LockName, _by: Moment) -> Result<bool, Failure> {
        let mut state = self.0.state.lock();
        let now = self.0.clock.now();
        state.refuse_other_use(name, now)?;
        let is_free = state.holder(name, now).is_none();
        // While a writer holds the lock, its own reads end with a forced release of the write lock,
        // but not with a forced release of the read lock.
        let ends_shares = is_free || name.profile().writer.is_none();
        let is_shared = !state.shares.is_empty() && ends_shares;
        let mut was_held = is_shared && state.force_shares(name, now);
        let ended_wait = state.force_wait(name, is_free && !was_held, now);
        if !name.profile().shared {
            was_held |= !is_free;
            state.locks.remove(&*name.plain());
        }
        if ended_wait || was_held && state.may_let_in(name, now) {
            self.wake(state, &name.plain());
        }
        Ok(was_held)
    }
}

/// A registered watch, removed on drop.
struct MemoryWatch {
    store: Weak<Store>,
    name: LockName,
    id: u64,
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        let Some(store) = self.store.upgrade() else {
            return;
        };
        let mut state = store.state.lock();
        let Some(watches) = state.watches.get_mut(&self.name) else {
            return;
        };
        let ended = watches
            .iter()
            .position(|watch| watch.id == self.id)
            .map(|at| watches.swap_remove(at));
        if watches.is_empty() {
            state.watches.remove(&self.name);
        }
        drop(state);
        drop(ended); // outside the mutex: the drop may drop a part of the engine
    }
}

impl fmt::Debug for MemoryBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("memory")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockOptions;
    use crate::backend::owner::ClientId;
    use crate::time::lease::LeaseTime;
    use crate::time::{ManualClock, SystemClock};
    use std::slice;

    fn tokens(store: &MemoryBackend, name: &str) -> FencingToken {
        let name = LockName::new(name).unwrap();
        let owner = OwnerId::new(ClientId::random(), 1);
        let lease = LeaseTime::new(Duration::from_millis(10)).unwrap();
        match store.acquire(&Attempt::new(&name, owner, lease), Moment::NEVER) {
            Ok(Answer::Granted(grant)) => grant.tokens.unwrap().first(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn readers_are_told_of_a_name_without_a_kind_too() {
        let client = crate::builder()
            .url("memory://")
            .unwrap()
            .connect()
            .unwrap();
        let lock = client.rw_lock("readers of a name").unwrap();
        let name = lock.read().name().plain().into_owned();
        let of_name = || {
            client
                .inspect_all(slice::from_ref(&name))
                .remove(0)
                .unwrap()
        };
        assert_eq!(of_name().readers, None);
        let read = || {
            lock.read()
                .acquire_owned(None, &LockOptions::new())
                .unwrap()
        };
        let reading = [read(), read()];
        let readers = of_name().readers.unwrap();
        assert_eq!((readers.known.len(), of_name().holders), (2, 2));
        let listed = client
            .locks(name.as_str())
            .next()
            .unwrap()
            .unwrap()
            .1
            .readers
            .unwrap();
        assert_eq!(listed.known.len(), 2);
        drop(reading);
        let writing = lock.write().lock().unwrap();
        assert_eq!(of_name().readers, Some(Readers::default()));
        drop(writing);
        let _mutex = client.mutex(&name).unwrap().lock().unwrap();
        assert_eq!((of_name().holders, of_name().readers), (1, None));
    }

    #[test]
    fn unused_names_are_forgotten_and_tokens_still_grow() {
        let clock = ManualClock::new();
        let store = MemoryBackend::new(Arc::new(clock.clone()));
        let first = tokens(&store, "again");
        for n in 0..20_000 {
            tokens(&store, &format!("n{n}"));
            clock.jump(Duration::from_secs(60));
        }
        let state = store.0.state.lock();
        assert!(
            state.tokens.len() + state.locks.len() < 8 * SWEEP,
            "{}",
            state.tokens.len()
        );
        assert!(!state.tokens.contains_key(&LockName::new("again").unwrap()));
        drop(state);
        clock.set_unix_time(Duration::from_secs(1));
        assert!(
            tokens(&store, "again") > first,
            "also when the time of day was set back"
        );
    }

    #[test]
    fn named_store_refuses_a_second_clock() {
        let open = |clock: Arc<dyn Clock>| {
            crate::builder()
                .url("memory://one-clock")
                .unwrap()
                .clock(clock)
                .connect()
        };
        let manual = ManualClock::new();
        let first = open(Arc::new(manual.clone())).unwrap();
        let error = open(Arc::new(SystemClock)).unwrap_err();
        assert!(error.is_configuration(), "{error}");
        assert!(error.to_string().contains("memory://one-clock"), "{error}");
        assert!(
            open(Arc::new(ManualClock::new()))
                .unwrap_err()
                .is_configuration(),
            "another manual clock at the same time"
        );
        drop(open(Arc::new(manual)).unwrap());
        drop(first);
        let system = open(Arc::new(SystemClock)).unwrap();
        drop(open(Arc::new(SystemClock)).unwrap());
        drop(system.with_option("watchdog", "2s").unwrap());
        assert!(
            open(Arc::new(ManualClock::new()))
                .unwrap_err()
                .is_configuration()
        );
    }

    #[test]
    fn holder_has_its_label_from_the_grant_on() {
        let (clock, start) = (ManualClock::new(), Duration::from_secs(1_000));
        clock.set_unix_time(start);
        let client = |owner: &str| {
            let clock = Arc::new(clock.clone());
            let builder = crate::builder()
                .url("memory://labels")
                .unwrap()
                .clock(clock);
            builder.owner(owner).connect().unwrap().mutex("a").unwrap()
        };
        let [till, desk, hidden] = ["till 7", "desk", "off"].map(client);
        let label = || till.inspect().unwrap().holder.unwrap().label;
        let guard = till.lock().unwrap();
        assert_eq!(label(), Some(OwnerLabel::new("till 7".into(), start)));
        guard.unlock().unwrap();
        clock.jump(Duration::from_secs(5));
        let guard = desk.lock().unwrap();
        let since = start + Duration::from_secs(5);
        assert_eq!(label(), Some(OwnerLabel::new("desk".into(), since)));
        clock.jump(Duration::from_secs(1));
        guard.extend(Duration::from_secs(60)).unwrap();
        assert_eq!(label(), Some(OwnerLabel::new("desk".into(), since)));
        guard.unlock().unwrap();
        let _guard = hidden.lock().unwrap();
        assert_eq!(label(), None);
    }

    #[test]
    fn readers_and_permits_have_labels() {
        let client = |owner: &str| {
            let builder = crate::builder().url("memory://labels-of-shares").unwrap();
            builder.owner(owner).connect().unwrap()
        };
        let [till, desk, hidden] = ["till 7", "desk", "off"].map(client);
        let text = |holder: &HolderInfo| holder.label.as_ref().map(|it| it.text.to_string());
        let locks = [&till, &desk, &hidden].map(|it| it.rw_lock("a").unwrap());
        let _guards = locks.each_ref().map(|lock| lock.read().lock().unwrap());
        let readers = locks[0].read().inspect().unwrap().readers.unwrap();
        let mut labels: Vec<_> = readers.known.iter().map(text).collect();
        labels.sort_unstable();
        assert_eq!(
            labels,
            [None, Some("desk".to_owned()), Some("till 7".to_owned())]
        );
        let slots = till.semaphore("s", 2).unwrap();
        let _permit = slots.acquire().unwrap();
        assert_eq!(
            slots.inspect().unwrap().holder.as_ref().map(text),
            Some(Some("till 7".into()))
        );
    }

    #[test]
    fn old_tombstones_and_ended_watches_are_removed() {
        struct NoOp;
        impl Wake for NoOp {
            fn wake(&self) {}
        }
        let clock = ManualClock::new();
        let store = MemoryBackend::new(Arc::new(clock.clone()));
        let lease = LeaseTime::new(Duration::from_millis(10)).unwrap();
        for n in 0..20_000 {
            let name = LockName::new(&format!("n{n}")).unwrap();
            let watch = store.watch(&name, Arc::new(NoOp), Moment::NEVER).unwrap();
            let owner = OwnerId::new(ClientId::random(), 1);
            let acquisition = AcquisitionId::new(name, owner, lease, Default::default());
            store
                .release(&acquisition, ReleaseOptions::WITH_TOMBSTONE, Moment::NEVER)
                .unwrap();
            drop(watch);
            clock.jump(Duration::from_millis(1));
        }
        let state = store.0.state.lock();
        assert!(
            state.tombstones.len() < 8 * SWEEP,
            "{}",
            state.tombstones.len()
        );
        assert!(state.watches.is_empty());
    }
}

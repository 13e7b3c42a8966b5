//! The backend of a mutant, which checks for the mutation wherever a store can fail.

use super::mutation::Mutation;
use super::store::{Held, MutantState, MutantStore, MutantWatch, Watcher};
use crate::scale::ms;
use lock_core::backend::{
    Abilities, AcquisitionId, Admin, Answer, Attempt, Backend, Failure, Grant, HolderInfo,
    KeptLock, LockInfo, NodeId, PermitChange, PermitOutcome, Readers, Release, ReleaseOptions,
    Renewal, RenewalRequest, ReplicaSupport, Tokens, Tombstone, Wake, Watch,
};
use lock_core::{
    Clock, Error, ErrorKind, FencingToken, LockKind, LockName, Moment, OwnerId, OwnerText, Signal,
    TokenRange,
};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The mutant as one client has opened it.
#[derive(Debug)]
pub(super) struct MutantBackend {
    pub(super) store: Arc<MutantStore>,
    pub(super) mutation: Option<Mutation>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) number: u64,
    pub(super) me: Weak<MutantBackend>,
}

impl MutantBackend {
    pub(super) fn has(&self, mutation: Mutation) -> bool {
        self.mutation == Some(mutation)
    }

    pub(super) fn key(&self, name: &LockName) -> String {
        if self.has(Mutation::KindsApart) && name.kind() == LockKind::Fair {
            return format!("fair:{}", name.as_str());
        }
        if self.has(Mutation::NamesCollide) {
            return name.as_str().trim().to_lowercase();
        }
        name.as_str().to_owned()
    }

    /// Runs `work` on the current state, without expired entries.
    pub(super) fn with<R>(&self, work: impl FnOnce(&mut MutantState, Moment) -> R) -> R {
        let mut state = self.store.state.lock();
        let now = self.clock.now();
        state.held.retain(|_, held| held.until > now);
        state.tombstones.retain(|_, until| *until > now);
        work(&mut state, now)
    }

    /// Waits for a few milliseconds, before the next poll.
    pub(super) fn pause(&self) {
        let until = self.clock.now() + Duration::from_millis(5);
        let _due = self.clock.wait(&Arc::new(Signal::new()), until);
    }

    fn end_of(&self, lease: Duration, now: Moment) -> Moment {
        now + match self.mutation {
            Some(Mutation::NeverExpires) => Duration::from_secs(3_600),
            Some(Mutation::ShortLease) => lease / 10,
            _ => lease,
        }
    }

    pub(super) fn is_closed(&self, state: &MutantState, key: &str, owner: OwnerId) -> bool {
        if self.has(Mutation::TombstoneClosesAll) {
            return state.tombstones.keys().any(|(closed, _)| closed == key);
        }
        state.tombstones.contains_key(&(key.to_owned(), owner))
    }

    /// Assigns the next tokens of a name.
    pub(super) fn tokens(
        &self,
        state: &mut MutantState,
        key: &str,
        asked: Tokens,
    ) -> Option<TokenRange> {
        let reserve = match asked {
            Tokens::Assign { reserve } => reserve,
            Tokens::None if self.has(Mutation::TokensUnasked) => 0,
            _ => return None,
        };
        let stored = state.counters.get(key).copied();
        let time = u64::try_from(self.clock.unix_time().as_micros()).unwrap_or(0);
        let first = match self.mutation {
            Some(Mutation::TokensMissing) => return None,
            Some(Mutation::TokenRepeats) => stored.unwrap_or(time),
            Some(Mutation::TokensFromOne) => stored.unwrap_or(0) + 1,
            _ => time.max(stored.unwrap_or(0) + 1),
        };
        let last = first + u64::from(reserve);
        let kept = if self.has(Mutation::ReserveForgotten) {
            first
        } else {
            last
        };
        state.counters.insert(key.to_owned(), kept);
        TokenRange::new(FencingToken::new(first), FencingToken::new(last))
    }

    fn resend(
        &self,
        state: &mut MutantState,
        key: &str,
        attempt: &Attempt<'_>,
        now: Moment,
    ) -> Answer {
        let lease = attempt.lease.duration();
        let full = self.end_of(lease, now);
        let fresh = self.has(Mutation::ResendGetsNewToken);
        let tokens = if fresh {
            self.tokens(state, key, attempt.tokens)
        } else {
            None
        };
        let held = state.held.get_mut(key).expect("looked up by the caller");
        match self.mutation {
            Some(Mutation::ResendIsBusy) => return Answer::Busy(Some(held.until.since(now))),
            Some(Mutation::ResendKeepsOldLease) => {}
            Some(Mutation::ResendShortens) => held.until = full,
            _ => held.until = held.until.max(full),
        }
        if fresh {
            held.tokens = tokens;
        }
        held.lease = lease;
        Answer::Granted(Grant::new(held.tokens))
    }

    fn try_acquire(&self, attempt: &Attempt<'_>) -> Result<Answer, Failure> {
        let key = self.key(attempt.name);
        let lease = attempt.lease.duration();
        self.with(|state, now| {
            if self.has(Mutation::NeverGrants) {
                return Ok(Answer::Busy(Some(Duration::from_millis(50))));
            }
            if self.is_closed(state, &key, attempt.owner) {
                return Ok(Answer::Busy(Some(lease)));
            }
            if self.is_kept_out(state, &key, attempt, now)? && !self.has(Mutation::AlwaysGrants) {
                let left = state.held.get(&key).map(|held| held.until.since(now));
                if left.is_none() {
                    return Ok(Answer::Busy(left));
                }
            }
            match state.held.get(&key) {
                Some(held) if held.owner == attempt.owner => {
                    Ok(self.resend(state, &key, attempt, now))
                }
                Some(held) if !self.has(Mutation::AlwaysGrants) => match self.mutation {
                    Some(Mutation::BusyIsAFailure) => Err(Failure::Refused(Error::new(
                        ErrorKind::Unavailable,
                        "another owner holds it",
                    ))),
                    Some(Mutation::BusyExaggerates) => {
                        Ok(Answer::Busy(Some(Duration::from_secs(3_600))))
                    }
                    _ => Ok(Answer::Busy(Some(held.until.since(now)))),
                },
                _ => {
                    let tokens = self.tokens(state, &key, attempt.tokens);
                    let until = self.end_of(lease, now);
                    state.held.insert(
                        key,
                        Held {
                            owner: attempt.owner,
                            lease,
                            until,
                            tokens,
                        },
                    );
                    Ok(Answer::Granted(Grant::new(tokens)))
                }
            }
        })
    }

    fn renew_one(
        &self,
        state: &mut MutantState,
        acquisition: &AcquisitionId,
        now: Moment,
    ) -> Renewal {
        if acquisition.name.kind().is_shared() {
            return self.renew_share(state, acquisition, now);
        }
        let key = self.key(&acquisition.name);
        let lease = acquisition.lease.duration();
        let full = self.end_of(lease, now);
        let any_owner = self.has(Mutation::RenewsForOtherOwners);
        match state.held.get_mut(&key) {
            Some(held) if held.owner == acquisition.owner || any_owner => {
                match self.mutation {
                    Some(Mutation::RenewalDoesNothing) => {}
                    Some(Mutation::RenewalShortens) => held.until = full,
                    _ => held.until = held.until.max(full),
                }
                if self.has(Mutation::RenewalSaysGone) {
                    Renewal::Gone
                } else {
                    Renewal::Extended
                }
            }
            None if self.has(Mutation::RenewalRevives) => {
                let held = Held {
                    owner: acquisition.owner,
                    lease,
                    until: full,
                    tokens: None,
                };
                state.held.insert(key, held);
                Renewal::Extended
            }
            _ if self.has(Mutation::RenewalClaimsExtended) => Renewal::Extended,
            _ => Renewal::Gone,
        }
    }

    fn write_back(&self, state: &mut MutantState, key: &str, options: ReleaseOptions) {
        let less = match self.mutation {
            Some(Mutation::WriteBackIgnored) => return,
            Some(Mutation::WriteBackTooLow) => 1,
            _ => 0,
        };
        if let Some(last) = options.last_used {
            state.counters.insert(key.to_owned(), last.get() - less);
        }
    }

    fn leave_tombstone(
        &self,
        state: &mut MutantState,
        key: &str,
        acquisition: &AcquisitionId,
        now: Moment,
    ) {
        let holds = state
            .held
            .get(key)
            .is_some_and(|held| held.owner == acquisition.owner);
        let lease = acquisition.lease.duration();
        let life = match self.mutation {
            Some(Mutation::TombstoneIgnored) => return,
            Some(Mutation::TombstoneOnlyIfHeld) if !holds => return,
            Some(Mutation::TombstoneFades) => lease / 10,
            _ => lease,
        };
        state
            .tombstones
            .insert((key.to_owned(), acquisition.owner), now + life);
    }

    /// Passes a lock that is released with a minimum hold to the owner of that hold.
    fn keep(
        &self,
        state: &mut MutantState,
        key: &str,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        now: Moment,
    ) {
        let is_mutex = acquisition.name.kind() == LockKind::Mutex;
        let is_freed = self.has(Mutation::KeptLockFreed)
            || (!is_mutex && self.has(Mutation::KeptLockOfKindFreed));
        let kept = options.kept.filter(|_| !is_freed);
        if let Some(KeptLock { owner, time, .. }) = kept {
            let stays = self.has(Mutation::KeptLockKeepsOwner);
            let owner = if stays { acquisition.owner } else { owner };
            let lease = time.duration();
            let held = Held {
                owner,
                lease,
                until: now + lease,
                tokens: None,
            };
            state.held.insert(key.to_owned(), held);
        }
    }

    /// Wakes the watchers of `key`, after the state is unlocked.
    pub(super) fn wake(&self, key: &str) {
        let mut called: Vec<_> = self.with(|state, now| {
            let wanted = |w: &&Watcher| {
                let deaf = self.has(Mutation::WatchStartsLate) && w.since > now;
                let foreign = self.has(Mutation::WakesOnlyItsOwn) && w.client != self.number;
                w.key == key && !deaf && !foreign
            };
            state
                .watchers
                .iter()
                .filter(wanted)
                .map(|w| Arc::clone(&w.wake))
                .collect()
        });
        if self.has(Mutation::WakesOnlyOne) {
            called.truncate(1);
        }
        for wake in called {
            wake.wake();
        }
    }
}

impl Backend for MutantBackend {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        if attempt.name.kind().is_shared() {
            return self.acquire_share(attempt);
        }
        let key = self.key(attempt.name);
        let is_repeated = self.with(|state, _| {
            state
                .held
                .get(&key)
                .is_some_and(|held| held.owner == attempt.owner)
        });
        loop {
            let answer = self.try_acquire(attempt)?;
            let busy = answer.is_busy();
            if !busy || !self.has(Mutation::AcquireWaits) || self.clock.now() >= by {
                return self.confirm(attempt, answer, is_repeated, by);
            }
            self.pause();
        }
    }

    fn renew(
        &self,
        _node: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let (mut answers, mut changed) = (Vec::new(), Vec::new());
        self.with(|state, now| {
            for (at, renewing) in batch.iter().enumerate() {
                let key = self.key(&renewing.acquisition.name);
                let until = |state: &MutantState| state.held.get(&key).map(|held| held.until);
                let before = until(state);
                let gone = answers.last() == Some(&Renewal::Gone);
                answers.push(match self.mutation {
                    Some(Mutation::BatchTruncated) if at >= 10 => Renewal::Extended,
                    Some(Mutation::BatchAborts) if gone => Renewal::Gone,
                    _ => self.renew_one(state, &renewing.acquisition, now),
                });
                if answers.last() == Some(&Renewal::Extended) {
                    let label = (renewing.acquisition.owner, renewing.label.clone());
                    state.labels.insert(key.clone(), label);
                }
                changed.push(until(state) != before);
            }
        });
        let mut answers = self.confirm_renewals(batch, answers, &changed, by);
        if self.has(Mutation::BatchOutOfOrder) {
            answers.reverse();
        }
        answers.into_iter().map(Ok).collect()
    }

    fn release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        _by: Moment,
    ) -> Result<Release, Failure> {
        if acquisition.name.kind().is_shared() {
            return Ok(self.release_share(acquisition, options));
        }
        let key = self.key(&acquisition.name);
        let tombstone = options.tombstone == Tombstone::Leave;
        let (answer, freed) = self.with(|state, now| {
            let lets_in = self.stop_waiting(state, &key, acquisition);
            if tombstone {
                self.leave_tombstone(state, &key, acquisition, now);
            }
            match state.held.get(&key) {
                Some(held) if held.owner == acquisition.owner => {
                    self.write_back(state, &key, options);
                    let holding = (key.clone(), acquisition.owner);
                    let keeps = self.has(Mutation::ReleaseForgets)
                        || state.unconfirmed.contains(&holding)
                        || tombstone && self.has(Mutation::TombstoneKeepsTheLock);
                    if !keeps {
                        state.held.remove(&key);
                        self.keep(state, &key, acquisition, options, now);
                    }
                    let denies = self.has(Mutation::ReleaseDenies);
                    (
                        if denies {
                            Release::Gone
                        } else {
                            Release::Freed
                        },
                        !keeps,
                    )
                }
                Some(held) if options.kept.is_some_and(|it| it.owner == held.owner) => {
                    let denied = self.has(Mutation::RepeatedKeepDenied);
                    (
                        if denied {
                            Release::Gone
                        } else {
                            Release::Freed
                        },
                        false,
                    )
                }
                Some(_) if self.has(Mutation::ReleasesForOtherOwners) => {
                    state.held.remove(&key);
                    (Release::Freed, true)
                }
                _ => {
                    if self.has(Mutation::WriteBackByOtherOwners) {
                        self.write_back(state, &key, options);
                    }
                    let lies = self.has(Mutation::ReleaseAlwaysFreed);
                    (if lies { Release::Freed } else { Release::Gone }, lets_in)
                }
            }
        });
        if freed && !self.has(Mutation::ReleaseWakesNoWaiter) {
            self.wake(&key);
        }
        Ok(answer)
    }

    fn inspect(&self, name: &LockName, _by: Moment) -> Result<LockInfo, Failure> {
        if name.kind().is_shared() {
            return Ok(self.inspect_shares(name));
        }
        let key = self.key(name);
        let held = self.with(|state, now| match state.held.get_mut(&key) {
            Some(held) if !self.has(Mutation::InspectSaysFree) => {
                if self.has(Mutation::InspectExtends) {
                    held.until = held.until.max(now + held.lease);
                }
                let still = self.has(Mutation::RemainingStandsStill);
                let left = if still {
                    held.lease
                } else {
                    held.until.since(now)
                };
                let misnamed = self.has(Mutation::InspectMisnames);
                let owner = if misnamed {
                    "another owner".to_owned()
                } else {
                    held.owner.to_string()
                };
                let shows_any = self.has(Mutation::LabelOfFormerOwner);
                let label = state
                    .labels
                    .get(&key)
                    .filter(|(of, _)| shows_any || *of == held.owner);
                let label = label.and_then(|(_, label)| label.clone());
                let owner = OwnerText::new(&owner);
                LockInfo::held(HolderInfo::new(owner, Some(left), 1).label(label))
            }
            _ => LockInfo::FREE,
        });
        Ok(match name.kind() {
            kind if kind.is_writer() && held.holder.is_some() => held.readers(Readers::default()),
            kind if kind.is_writer() => self.inspect_shares(name),
            _ => held,
        })
    }

    fn verify(
        &self,
        acquisition: &AcquisitionId,
        by: Moment,
    ) -> Result<Option<HolderInfo>, Failure> {
        let AcquisitionId { name, owner, .. } = acquisition;
        if name.kind().is_shared() {
            return Ok(self.share_of(name, *owner));
        }
        let holder = self.inspect(name, by)?.holder;
        Ok(holder.filter(|holder| owner.matches(&holder.owner)))
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, _by: Moment) -> Result<Watch, Failure> {
        let number = self.store.next.fetch_add(1, Ordering::Relaxed);
        let (client, key) = (self.number, self.key(name));
        self.with(|state, now| {
            let since = now + ms(300);
            state.watchers.push(Watcher {
                number,
                client,
                key,
                since,
                wake,
            });
        });
        let registration = MutantWatch {
            store: Arc::clone(&self.store),
            number,
        };
        match self.mutation {
            Some(Mutation::WatchNeverEnds) => {
                std::mem::forget(registration);
                return Ok(Watch::new(()));
            }
            Some(Mutation::WatchKeepsTheBackend) => std::mem::forget(self.me.upgrade()),
            Some(Mutation::LeaksAThread) => leak_a_thread(Arc::clone(&self.clock)),
            _ => {}
        }
        Ok(Watch::new(registration))
    }

    fn renewal_node(&self, _name: &LockName) -> NodeId {
        NodeId::new(0)
    }

    fn abilities(&self) -> Abilities {
        let denies = self.has(Mutation::ReplicasDenied);
        let replication = if denies {
            ReplicaSupport::Never
        } else {
            ReplicaSupport::Listed
        };
        Abilities::full().replication(replication).all_kinds(true)
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }
}

impl Admin for MutantBackend {
    fn change_permits(
        &self,
        name: &LockName,
        change: PermitChange,
        _by: Moment,
    ) -> Result<PermitOutcome, Failure> {
        self.change(name, change)
    }

    fn force_release(&self, name: &LockName, _by: Moment) -> Result<bool, Failure> {
        let ends_writer = self.has(Mutation::ForceOfReadersEndsWriter);
        if name.kind().is_shared() && !ends_writer {
            return Ok(self.force_shares(name));
        }
        let key = self.key(name);
        let was_held = self.with(|state, _| match self.mutation {
            Some(Mutation::ForceKeeps) => state.held.contains_key(&key),
            _ => state.held.remove(&key).is_some(),
        });
        if was_held && !self.has(Mutation::ForceWakesNoWaiter) {
            self.wake(&key);
        }
        Ok(was_held || self.has(Mutation::ForceAlwaysTrue))
    }
}

/// Starts a thread that runs long enough for the case to notice it.
fn leak_a_thread(clock: Arc<dyn Clock>) {
    let _detached = std::thread::spawn(move || {
        let until = clock.now() + ms(30_000);
        let _due = clock.wait(&Arc::new(Signal::new()), until);
    });
}

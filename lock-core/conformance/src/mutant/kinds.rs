//! The kinds of locks besides the mutex, with their mutations.

use super::backend::MutantBackend;
use super::mutation::Mutation;
use super::store::{Kinds, MutantState};
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, Failure, Grant, HolderInfo, LockInfo, PermitChange,
    PermitOutcome, Permits, Readers, Release, ReleaseOptions, Renewal, Tombstone, WAITER_PRESENCE,
};
use lock_core::{
    Error, ErrorKind, FencingToken, LockKind, LockName, Moment, OwnerId, OwnerText, PermitId,
    TokenRange,
};

const SEMAPHORE: &str = "a semaphore has this name, or a lock";

impl MutantBackend {
    /// Removes expired entries, and returns the readers, permits and waiters of a name.
    fn kinds_of<'a>(&self, state: &'a mut MutantState, key: &str, now: Moment) -> &'a mut Kinds {
        let kinds = state.kinds.entry(key.to_owned()).or_default();
        let stays = match kinds.limit {
            Some(_) => self.has(Mutation::PermitsNeverExpire),
            None => self.has(Mutation::ReadersNeverExpire),
        };
        kinds.shares.retain(|(_, until, _)| stays || *until > now);
        let waits = self.has(Mutation::DeadWaiterStays);
        kinds.waiters.retain(|(_, until)| waits || *until > now);
        kinds.writer_waits = kinds.writer_waits.filter(|(_, until)| *until > now);
        kinds
    }

    fn foreign(&self) -> Result<(), Failure> {
        if self.has(Mutation::SemaphoreBesideLock) {
            return Ok(());
        }
        Err(Failure::Refused(Error::new(
            ErrorKind::ForeignFormat,
            SEMAPHORE,
        )))
    }

    /// Returns whether another holder, readers or earlier waiters keep this owner of an exclusive
    /// lock out. If so, queues the owner of a queued lock, and records that a writer waits if no
    /// other writer does.
    pub(super) fn is_kept_out(
        &self,
        state: &mut MutantState,
        key: &str,
        attempt: &Attempt<'_>,
        now: Moment,
    ) -> Result<bool, Failure> {
        let (kind, owner) = (attempt.name.kind(), attempt.owner);
        let holder = state.held.get(key).map(|held| held.owner);
        let kinds = self.kinds_of(state, key, now);
        if kinds.limit.is_some() {
            self.foreign()?;
        }
        if holder == Some(owner) {
            return Ok(false);
        }
        let ignores = kind.is_writer() && self.has(Mutation::WriterIgnoresReaders);
        let is_busy = holder.is_some() || (!kinds.shares.is_empty() && !ignores);
        let is_first = kinds
            .waiters
            .first()
            .is_none_or(|(first, _)| *first == owner);
        let is_first = is_first || self.has(Mutation::QueueIgnored);
        match kind {
            LockKind::Write if is_busy => {
                let first = kinds.writer_waits.map_or(owner, |(first, _)| first);
                if first == owner {
                    kinds.writer_waits = Some((owner, now + WAITER_PRESENCE));
                }
            }
            LockKind::Write => kinds.writer_waits = None,
            kind if kind.is_queued() && (is_busy || !is_first) => {
                kinds.enqueue(owner, now + attempt.presence);
            }
            _ => kinds.waiters.retain(|(waiter, _)| *waiter != owner),
        }
        Ok(is_busy || (kind.is_queued() && !is_first))
    }

    pub(super) fn acquire_share(&self, attempt: &Attempt<'_>) -> Result<Answer, Failure> {
        let Attempt {
            name,
            owner,
            lease,
            tokens,
            beside,
            ..
        } = *attempt;
        let key = self.key(name);
        self.with(|state, now| {
            if self.is_closed(state, &key, owner) {
                return Ok(Answer::Busy(None));
            }
            let writer = state.held.get(&key).map(|held| held.owner);
            let kinds = self.kinds_of(state, &key, now);
            let until = now + lease.duration();
            let repeated = kinds
                .shares
                .iter_mut()
                .find(|(holder, ..)| *holder == owner);
            let is_repeated = repeated.is_some();
            if let Some((named, count)) = name.kind().permits() {
                if let Some((_, end, taken)) = repeated {
                    *end = until.max(*end);
                    if self.has(Mutation::PermitResendCounts) {
                        *taken += count;
                    }
                }
                if writer.is_some() || (kinds.limit.is_none() && !kinds.shares.is_empty()) {
                    self.foreign()?;
                }
                let stored = *kinds.limit.get_or_insert(named);
                let limit = if self.has(Mutation::LimitOfEachClient) {
                    named
                } else {
                    stored
                };
                let taken: u32 = kinds.shares.iter().map(|(_, _, count)| count).sum();
                let count = match count {
                    0 if self.has(Mutation::DrainTakesOne) => 1,
                    0 => limit.saturating_sub(taken).max(1),
                    count => count,
                };
                let is_full = taken + count > limit && !self.has(Mutation::LimitIgnored);
                let is_next = kinds
                    .waiters
                    .first()
                    .is_none_or(|(first, _)| *first == owner);
                let is_queued = name.kind().is_queued();
                let is_next = is_next || !is_queued || self.has(Mutation::PermitsOvertaken);
                if !is_repeated && (is_full || !is_next) {
                    if is_queued {
                        kinds.enqueue(owner, now + attempt.presence);
                    }
                    return Ok(Answer::Busy(None));
                }
                kinds.waiters.retain(|(waiter, _)| *waiter != owner);
                if !is_repeated {
                    kinds.shares.push((owner, until, count));
                }
                let own = kinds.shares.iter().find(|(holder, ..)| *holder == owner);
                let count = own.map_or(count, |(_, _, count)| *count);
                return Ok(Answer::Granted(Grant::new(None).limit(limit).count(count)));
            }
            if kinds.limit.is_some() {
                self.foreign()?;
            }
            let is_beside = beside.is_some() && beside == writer;
            let is_queued = name.kind().is_queued();
            let is_first = kinds.waiters.first().is_none_or(|(it, _)| *it == owner);
            let waits = match is_queued {
                true => !is_first && !self.has(Mutation::ReaderOvertakesWriter),
                false => kinds.writer_waits.is_some(),
            };
            let waits = waits && writer.is_none() && !is_repeated;
            let keeps_out = writer.is_some() && !is_beside;
            if (keeps_out && !self.has(Mutation::ReaderIgnoresWriter))
                || (waits && !self.has(Mutation::WaitingWriterIgnored))
            {
                if is_queued {
                    kinds.enqueue(owner, now + attempt.presence);
                }
                return Ok(Answer::Busy(None));
            }
            kinds.waiters.retain(|(waiter, _)| *waiter != owner);
            match repeated {
                Some((_, end, _)) => *end = until.max(*end),
                None => kinds.shares.push((owner, until, 1)),
            }
            let last = state.counters.get(&key).copied();
            let range = match last.map(FencingToken::new) {
                _ if self.has(Mutation::ReaderGetsNewToken) => self.tokens(state, &key, tokens),
                Some(last) => TokenRange::new(last, last),
                None => None,
            };
            Ok(Answer::Granted(Grant::new(range)))
        })
    }

    pub(super) fn renew_share(
        &self,
        state: &mut MutantState,
        acquisition: &AcquisitionId,
        now: Moment,
    ) -> Renewal {
        let all = self.has(Mutation::ReaderRenewsAll);
        let kinds = self.kinds_of(state, &self.key(&acquisition.name), now);
        let until = now + acquisition.lease.duration();
        let mut renewal = Renewal::Gone;
        for (owner, end, taken) in &mut kinds.shares {
            let is_whole = wanted(acquisition.name.kind()) <= *taken;
            if *owner == acquisition.owner && is_whole {
                renewal = Renewal::Extended;
            }
            if all || *owner == acquisition.owner {
                *end = until.max(*end);
            }
        }
        renewal
    }

    pub(super) fn release_share(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
    ) -> Release {
        let key = self.key(&acquisition.name);
        let is_freed = self.with(|state, now| {
            if options.tombstone == Tombstone::Leave && !self.has(Mutation::ShareIgnoresTombstone) {
                let life = acquisition.lease.duration();
                state
                    .tombstones
                    .insert((key.clone(), acquisition.owner), now + life);
            }
            let kinds = self.kinds_of(state, &key, now);
            kinds
                .waiters
                .retain(|(waiter, _)| *waiter != acquisition.owner);
            let is_own = |(owner, ..): &&(OwnerId, _, _)| *owner == acquisition.owner;
            let held: u32 = kinds
                .shares
                .iter()
                .filter(is_own)
                .map(|(_, _, count)| count)
                .sum();
            kinds.shares.retain(|share| !is_own(&share));
            held > 0 && held >= wanted(acquisition.name.kind())
        });
        if is_freed && !self.has(Mutation::ShareWakesNoWaiter) {
            self.wake(&key);
        }
        if is_freed {
            Release::Freed
        } else {
            Release::Gone
        }
    }

    /// Ends the wait of an owner that releases an exclusive lock or gives up. A writer that holds
    /// the lock also ends the recorded wait of another writer. Returns whether a wait was ended, so
    /// that other owners may enter.
    pub(super) fn stop_waiting(
        &self,
        state: &mut MutantState,
        key: &str,
        acquisition: &AcquisitionId,
    ) -> bool {
        let Some(kinds) = state.kinds.get_mut(key) else {
            return false;
        };
        let before = kinds.waiters.len();
        kinds
            .waiters
            .retain(|(owner, _)| *owner != acquisition.owner);
        let is_writer = acquisition.name.kind().is_writer();
        let is_holder = state
            .held
            .get(key)
            .is_some_and(|held| held.owner == acquisition.owner);
        let any = is_holder || self.has(Mutation::WriterEndsAnothersWait);
        if is_writer && self.has(Mutation::WriterEndsReaders) {
            kinds.shares.clear();
        }
        let stays = !is_writer || self.has(Mutation::WaitingWriterStays);
        let is_it = |(first, _): &mut (OwnerId, Moment)| any || *first == acquisition.owner;
        let ends = !stays && kinds.writer_waits.take_if(is_it).is_some();
        ends || kinds.waiters.len() < before
    }

    pub(super) fn inspect_shares(&self, name: &LockName) -> LockInfo {
        self.with(|state, now| {
            let kinds = self.kinds_of(state, &self.key(name), now);
            let last = kinds.shares.iter().max_by_key(|(_, until, _)| *until);
            let info = last.map_or(LockInfo::FREE, |share| {
                LockInfo::held(info(share, now)).holders(kinds.shares.len() as u64)
            });
            let taken: u32 = kinds.shares.iter().map(|(_, _, count)| count).sum();
            match kinds.limit {
                Some(limit) => info.permits(Permits::new(limit, limit.saturating_sub(taken))),
                None => info.readers(self.readers(kinds, now)),
            }
        })
    }

    fn readers(&self, kinds: &Kinds, now: Moment) -> Readers {
        let shown = if self.has(Mutation::InspectHidesReaders) {
            1
        } else {
            usize::MAX
        };
        let known = kinds.shares.iter().map(|share| info(share, now)).collect();
        let mut readers = Readers::new(known, kinds.writer_waits.is_some());
        readers.known.truncate(shown);
        readers
    }

    pub(super) fn share_of(&self, name: &LockName, owner: OwnerId) -> Option<HolderInfo> {
        self.with(|state, now| {
            let any = self.has(Mutation::VerifiesAnyShare);
            let kinds = self.kinds_of(state, &self.key(name), now);
            let is_it = |share: &&(OwnerId, Moment, u32)| any || share.0 == owner;
            kinds
                .shares
                .iter()
                .find(is_it)
                .map(|share| info(share, now))
        })
    }

    /// Ends all shares, and returns whether there were any.
    pub(super) fn force_shares(&self, name: &LockName) -> bool {
        self.with(|state, now| {
            let kinds = self.kinds_of(state, &self.key(name), now);
            let had_any = !kinds.shares.is_empty();
            if !self.has(Mutation::ForceKeepsShares) {
                kinds.shares.clear();
            }
            had_any
        })
    }

    pub(super) fn change(
        &self,
        name: &LockName,
        change: PermitChange,
    ) -> Result<PermitOutcome, Failure> {
        let Some((named, _)) = name.kind().permits() else {
            return Err(Failure::NotSent(Error::misuse(
                "only a semaphore has permits",
            )));
        };
        let key = self.key(name);
        let outcome = self.with(|state, now| {
            let kinds = self.kinds_of(state, &key, now);
            let before = kinds.limit;
            let limit = match change {
                PermitChange::SetLimit(limit) => limit,
                PermitChange::AddLimit(more) if self.has(Mutation::AddedLimitIsSet) => {
                    more.unsigned_abs()
                }
                PermitChange::AddLimit(more) => {
                    let before = before.unwrap_or(named).into();
                    PermitChange::added(before, more).map_err(Failure::Refused)?
                }
                PermitChange::Release(id) => return Ok(self.release_one(kinds, id)),
                PermitChange::Extend(id, lease) => {
                    let until = now + lease.duration();
                    return Ok(self.extend_one(kinds, id, until));
                }
                other => {
                    let message = format!("this store cannot do {other:?}");
                    let error = Error::new(ErrorKind::Unsupported, message);
                    return Err(Failure::NotSent(error));
                }
            };
            kinds.limit = Some(limit);
            Ok(PermitOutcome::Limit { before, now: limit })
        });
        self.wake(&key);
        outcome
    }

    /// Releases the permit with this ID. The permits of one acquisition are only counted, so their
    /// IDs are not distinguished.
    fn release_one(&self, kinds: &mut Kinds, id: PermitId) -> PermitOutcome {
        let at = kinds
            .shares
            .iter()
            .position(|(owner, ..)| is_of(id, *owner));
        let Some(at) = at else {
            return PermitOutcome::NotTaken;
        };
        if !self.has(Mutation::PermitOfIdIsKept) {
            kinds.shares[at].2 -= 1;
            kinds.shares.retain(|(_, _, count)| *count > 0);
        }
        PermitOutcome::Changed
    }

    fn extend_one(&self, kinds: &mut Kinds, id: PermitId, until: Moment) -> PermitOutcome {
        let is_it = |(owner, ..): &&mut (OwnerId, Moment, u32)| is_of(id, *owner);
        let Some((_, end, _)) = kinds.shares.iter_mut().find(is_it) else {
            return PermitOutcome::NotTaken;
        };
        if !self.has(Mutation::PermitOfIdIsNotExtended) {
            *end = until.max(*end);
        }
        PermitOutcome::Changed
    }
}

/// Returns whether the permit belongs to this owner.
fn is_of(id: PermitId, owner: OwnerId) -> bool {
    let common = |id: PermitId| id.as_bytes()[..PermitId::COMMON_BYTES].to_vec();
    common(id) == common(PermitId::new(owner, 0))
}

/// Returns the number of permits that an acquisition of this kind has; 1 for a reader.
fn wanted(kind: LockKind) -> u32 {
    kind.permits().map_or(1, |(_, count)| count)
}

fn info((owner, until, count): &(OwnerId, Moment, u32), now: Moment) -> HolderInfo {
    HolderInfo::new(
        OwnerText::new(&owner.to_string()),
        Some(until.since(now)),
        u64::from(*count),
    )
}

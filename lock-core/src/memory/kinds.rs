//! The shared holders (readers and permits) of a name in the memory store, and the waiters that the
//! store queues.

use super::State;
use crate::backend::owner::{OwnerId, OwnerLabel, OwnerText};
use crate::backend::permit::PermitId;
use crate::backend::token::{FencingToken, TokenRange};
use crate::backend::{
    Answer, Attempt, DirectGrant, Failure, Grant, HolderInfo, LockInfo, NextOwner, PermitChange,
    PermitOutcome, Permits, Readers, Release, Tokens,
};
use crate::config::WriterPriority;
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::time::Moment;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::time::Duration;

/// The shared holders of a name, and its waiters.
#[derive(Default)]
pub(super) struct Shares {
    readers: Vec<Share>,
    permits: Vec<Share>,
    /// The number of permits, once a client has used the name as a semaphore.
    limit: Option<u32>,
    /// Waiters in the order of arrival.
    queue: VecDeque<Position>,
    /// The first waiting writer, and the time until which it keeps new readers out.
    waiting_writer: Option<(OwnerId, Moment)>,
}

/// A holder's part of a lock: the whole of an exclusive lock, or the share of a reader or of
/// permits.
pub(super) struct Share {
    pub(super) owner: OwnerId,
    pub(super) until: Moment,
    /// The number of the first of `count` consecutive permits.
    first: u32,
    count: u32,
    label: Option<OwnerLabel>,
    pub(super) is_writer: bool,
}

struct Position {
    owner: OwnerId,
    until: Moment,
    /// The number of the waiter's last attempt, if a release may grant the lock to that attempt.
    direct: Option<NonZeroU64>,
    /// The lease of a direct grant.
    lease: Duration,
    has_tokens: bool,
    is_reader: bool,
    is_writer: bool,
}

impl Position {
    fn next_owner(&self) -> NextOwner {
        NextOwner::new(OwnerText::new(&self.owner.to_string()))
    }
}

impl Shares {
    /// Removes shares and a waiting writer whose time has ended.
    fn purge(&mut self, now: Moment) {
        self.readers.retain(|share| now < share.until);
        self.permits.retain(|share| now < share.until);
        self.waiting_writer = self.waiting_writer.filter(|(_, until)| now < *until);
    }

    /// Returns the first waiter whose presence has not ended or that is `own`, and removes the
    /// waiters before it. A waiter whose presence has ended keeps its position if it sends an
    /// attempt before another request calls this method.
    fn next_or(&mut self, own: Option<OwnerId>, now: Moment) -> Option<&Position> {
        let is_gone = |first: &Position| first.until <= now && Some(first.owner) != own;
        while self.queue.front().is_some_and(is_gone) {
            self.queue.pop_front();
        }
        self.queue.front()
    }

    fn next(&mut self, now: Moment) -> Option<&Position> {
        self.next_or(None, now)
    }

    /// Returns the end of the presence of the queue's head, if the head is not the attempt's owner.
    /// `None` if the attempt's kind is not queued.
    fn before(&mut self, attempt: &Attempt<'_>, now: Moment) -> Option<Moment> {
        let is_queued = attempt.name.profile().queued_in_store;
        let own = Some(attempt.owner);
        let next = is_queued.then(|| self.next_or(own, now)).flatten();
        next.filter(|next| next.owner != attempt.owner)
            .map(|next| next.until)
    }

    /// Returns until when a waiter keeps out the readers that do not queue. Such a waiter is the
    /// waiting writer, or, while readers hold the lock, the head of the queue unless it is a
    /// reader.
    fn first_writer(&mut self, now: Moment) -> Option<Moment> {
        let waiting = self.waiting_writer.map(|(_, until)| until);
        let is_read = !self.readers.is_empty();
        let first = self.next(now).filter(|first| is_read && !first.is_reader);
        waiting.or(first.map(|first| first.until))
    }

    /// Returns whether a writer waits.
    fn writer_waits(&self, now: Moment) -> bool {
        let mut queue = self.queue.iter();
        self.waiting_writer.is_some() || queue.any(|it| it.is_writer && now < it.until)
    }

    /// Returns whether the entry can be dropped, because nothing is held, awaited or configured.
    pub(super) fn is_idle(&mut self, now: Moment) -> bool {
        self.purge(now);
        let is_unused = self.readers.is_empty() && self.permits.is_empty();
        let is_queue = self.queue.iter().any(|position| now < position.until);
        let is_awaited = is_queue || self.waiting_writer.is_some();
        is_unused && !is_awaited && self.limit.is_none()
    }

    fn of(&mut self, name: &LockName) -> &mut Vec<Share> {
        match name.permits() {
            Some(_) => &mut self.permits,
            None => &mut self.readers,
        }
    }

    fn enqueue(&mut self, attempt: &Attempt<'_>, now: Moment) {
        let Attempt {
            owner,
            presence,
            direct,
            ..
        } = *attempt;
        let profile = attempt.name.profile();
        let new = Position {
            owner,
            until: now + presence,
            // A release grants a lock directly only if the profile of its kind allows it.
            direct: direct.filter(|_| profile.direct_grant),
            lease: attempt.direct_lease.min(attempt.lease.duration()),
            has_tokens: attempt.tokens != Tokens::None,
            is_reader: profile.writer.is_some(),
            is_writer: profile.readers.is_some(),
        };
        let mut queue = self.queue.iter_mut();
        let known = queue.find(|position| position.owner == owner);
        // As on Redis, a new waiter for an exclusive lock does not check which waiter is first, so
        // the waiters whose presence has ended stay in the queue.
        let looks = known.is_some() || profile.shared;
        match known {
            Some(position) => *position = new,
            None => self.queue.push_back(new),
        }
        if looks {
            self.next_or(Some(owner), now);
        }
    }

    /// Removes an owner from the queue. Returns whether the owner was in it.
    fn leave_queue(&mut self, owner: OwnerId) -> bool {
        let before = self.queue.len();
        self.queue.retain(|position| position.owner != owner);
        self.queue.len() < before
    }

    /// Removes an owner from the queue. Returns whether that may admit the next waiter: if the
    /// owner was in the queue, and either was its head or the lock is free.
    fn give_up(&mut self, owner: OwnerId, is_free: bool, now: Moment) -> bool {
        let first = self.next(now);
        let was_first = first.is_some_and(|first| first.owner == owner);
        self.leave_queue(owner) && (is_free || was_first)
    }

    /// Acquires permits. If they are not free, queues the owner of an attempt that waits, if the
    /// semaphore is fair. Also returns whether the next waiter may now be admitted.
    fn take_permits(
        &mut self,
        attempt: &Attempt<'_>,
        (until, label): (Moment, Option<OwnerLabel>),
        limit: u32,
        now: Moment,
    ) -> (Answer, bool) {
        let (owner, is_queued) = (attempt.owner, attempt.name.profile().queued_in_store);
        let own = || self.permits.iter().filter(|share| share.owner == owner);
        let had: u32 = own().map(|share| share.count).sum();
        let free = limit.saturating_sub(self.taken());
        let count = match attempt.name.permits().map_or(1, |(_, count)| count) {
            0 if had > 0 => own()
                .map(|share| share.first + share.count)
                .max()
                .unwrap_or(0),
            0 => free.max(1),
            count => count,
        };
        // A repeated request finds all its permits, unless an operator has released some.
        let missing = count.saturating_sub(had);
        let first = self.permits.iter().map(|share| share.until).min();
        let busy = |until: Option<Moment>| Answer::Busy(until.map(|until| until.since(now)));
        let others = if missing > 0 {
            self.before(attempt, now)
        } else {
            None
        };
        if missing > 0 && count > limit {
            // At the head of the queue this owner would block all other waiters until the limit
            // rises, so it leaves the queue.
            return (busy(others.or(first)), is_queued && self.leave_queue(owner));
        }
        if missing > free || others.is_some() {
            if is_queued && attempt.waits {
                self.enqueue(attempt, now);
            }
            return (busy(others.or(first)), false);
        }
        self.leave_queue(owner);
        for share in self.permits.iter_mut().filter(|share| share.owner == owner) {
            share.extend(until, label.clone());
        }
        if had == 0 {
            let share = Share::new(owner, until, label, false);
            self.permits.push(Share { count, ..share });
        } else if missing > 0 {
            let is_there = |it| self.permits.iter().any(|s| s.owner == owner && s.has(it));
            let lost: Vec<_> = (0..count).filter(|number| !is_there(*number)).collect();
            let again = |first| Share {
                first,
                ..Share::new(owner, until, label.clone(), false)
            };
            self.permits.extend(lost.into_iter().map(again));
        }
        let grant = Grant::new(None).limit(limit).count(count);
        let lets_in = is_queued && missing > 0 && self.taken() < limit;
        (Answer::Granted(grant), lets_in)
    }

    /// Removes one permit from the share that contains it. Returns the permit as a share of its
    /// own.
    fn split_off(&mut self, id: PermitId) -> Option<Share> {
        let number_of = |share: &Share| id.number_of(share.owner).filter(|it| share.has(*it));
        let at = self
            .permits
            .iter()
            .position(|share| number_of(share).is_some())?;
        let share = self.permits.swap_remove(at);
        let number = number_of(&share)?;
        let part = |first, count| Share {
            first,
            count,
            label: share.label.clone(),
            ..share
        };
        let (before, behind) = (number - share.first, share.first + share.count - number - 1);
        let others = [part(share.first, before), part(number + 1, behind)];
        self.permits
            .extend(others.into_iter().filter(|others| others.count > 0));
        Some(part(number, 1))
    }

    fn has_free_permits(&self) -> bool {
        self.limit.is_none_or(|limit| self.taken() < limit)
    }

    fn taken(&self) -> u32 {
        self.permits.iter().map(|share| share.count).sum()
    }
}

/// Returns the state of a semaphore of which `taken` permits are held: each counts as a holder.
fn each_permit(mut held: LockInfo, taken: u32) -> LockInfo {
    if let Some(holder) = &mut held.holder {
        holder.holds = 1;
    }
    held.holders(taken.into())
}

/// Returns the share whose lease ends last.
fn longest(shares: &[Share]) -> Option<&Share> {
    shares.iter().max_by_key(|share| share.until)
}

/// Adds a share, or extends its owner's existing share without shortening that lease.
fn hold(shares: &mut Vec<Share>, new: Share) {
    match shares.iter_mut().find(|share| share.owner == new.owner) {
        Some(share) => share.extend(new.until, new.label),
        None => shares.push(new),
    }
}

fn foreign(found: &str) -> Failure {
    Failure::Refused(Error::new(
        ErrorKind::ForeignFormat,
        format!("the name is in use for {found}: choose another one"),
    ))
}

impl State {
    /// Returns the shares of a name without the expired ones; creates an empty entry if there is
    /// none.
    fn shares(&mut self, name: &LockName, now: Moment) -> &mut Shares {
        let shares = self.shares.entry(name.plain().into_owned()).or_default();
        shares.purge(now);
        shares
    }

    /// Fails if `name` is a lock and the stored value a semaphore, or the reverse.
    pub(super) fn refuse_other_use(&mut self, name: &LockName, now: Moment) -> Result<(), Failure> {
        let is_semaphore = name.permits().is_some();
        if self.shares.is_empty() && !is_semaphore {
            return Ok(());
        }
        let is_locked = self.holder(name, now).is_some();
        let Some(shares) = self.shares.get_mut(&*name.plain()) else {
            return if is_semaphore && is_locked {
                Err(foreign("a lock"))
            } else {
                Ok(())
            };
        };
        shares.purge(now);
        match is_semaphore {
            true if is_locked || !shares.readers.is_empty() => Err(foreign("a lock")),
            false if shares.limit.is_some() => Err(foreign("a semaphore")),
            _ => Ok(()),
        }
    }

    /// Returns the answer that refuses an attempt at an exclusive lock because of a holder, readers
    /// or earlier waiters. If it refuses an attempt that waits, records the owner as a waiter: in
    /// the queue of a fair kind, or as the waiting writer if writers have priority and no other
    /// writer waits. After `None` the caller must still check the holder.
    pub(super) fn kept_out(
        &mut self,
        attempt: &Attempt<'_>,
        writers: WriterPriority,
        now: Moment,
    ) -> Result<Option<Answer>, Failure> {
        let (name, owner) = (attempt.name, attempt.owner);
        let profile = name.profile();
        let is_ordered = profile.queued_in_store;
        let is_writer = profile.readers.is_some() && !is_ordered;
        if self.shares.is_empty() && !is_ordered && !is_writer {
            return Ok(None);
        }
        let holder = self.holder(name, now).map(|held| (held.owner, held.until));
        if holder.is_some_and(|(holder, _)| holder == owner) {
            return Ok(None); // a repetition
        }
        let shares = self.shares(name, now);
        let readers = longest(&shares.readers).map(|share| share.until);
        let busy = holder.map(|(_, until)| until).or(readers);
        // A free lock is reserved for the head of the queue until the head's presence ends.
        let Some(until) = busy.or_else(|| shares.before(attempt, now)) else {
            shares.leave_queue(owner);
            if is_writer && attempt.waits {
                shares.waiting_writer = None; // readers compete with the next writer
            }
            return Ok(None);
        };
        let is_first = |first: Option<(OwnerId, _)>| first.is_none_or(|(first, _)| first == owner);
        if attempt.waits && is_ordered {
            shares.enqueue(attempt, now);
        } else if attempt.waits
            && is_writer
            && writers == WriterPriority::First
            && is_first(shares.waiting_writer)
        {
            shares.waiting_writer = Some((owner, now + attempt.presence));
        }
        Ok(Some(Answer::Busy(Some(until.since(now)))))
    }

    /// Grants a share if the lock admits it. Also returns whether the next waiter in the queue may
    /// now be admitted.
    pub(super) fn acquire_share(
        &mut self,
        attempt: &Attempt<'_>,
        label: Option<OwnerLabel>,
        writers: WriterPriority,
        now: Moment,
    ) -> Result<(Answer, bool), Failure> {
        let Attempt {
            name,
            owner,
            lease,
            tokens,
            beside,
            ..
        } = *attempt;
        let until = now + lease.duration();
        let writer = self.holder(name, now).map(|held| (held.owner, held.until));
        let last = self.tokens.get(&*name.plain()).map(|counter| counter.last);
        let shares = self.shares(name, now);
        if let Some((named, _)) = name.permits() {
            let limit = *shares.limit.get_or_insert(named);
            return Ok(shares.take_permits(attempt, (until, label), limit, now));
        }
        let is_repeated = shares.of(name).iter().any(|share| share.owner == owner);
        let is_queued = name.profile().queued_in_store;
        let other = writer.filter(|(writer, _)| !is_repeated && beside != Some(*writer));
        let gives_way = !is_repeated && writer.is_none();
        let waiting = match is_queued {
            _ if !gives_way => None,
            true => shares.before(attempt, now),
            false => shares
                .first_writer(now)
                .filter(|_| writers == WriterPriority::First),
        };
        if let Some(until) = other.map(|(_, until)| until).or(waiting) {
            let is_free = other.is_none() && shares.readers.is_empty();
            if is_queued && attempt.waits {
                shares.enqueue(attempt, now);
            }
            let lets_in = is_queued && attempt.waits && is_free;
            return Ok((Answer::Busy(Some(until.since(now))), lets_in));
        }
        if is_queued && !is_repeated {
            shares.leave_queue(owner);
        }
        let lets_in = gives_way && shares.next(now).is_some_and(|next| next.is_reader);
        let reads = Share::new(owner, until, label, false);
        hold(&mut shares.readers, reads);
        let token = last
            .filter(|_| tokens != Tokens::None)
            .map(FencingToken::new);
        let range = token.and_then(|token| TokenRange::new(token, token));
        Ok((Answer::Granted(Grant::new(range)), lets_in))
    }

    /// Extends an owner's share. Returns false if the share, or a part of it, is gone.
    pub(super) fn renew_share(
        &mut self,
        name: &LockName,
        owner: OwnerId,
        until: Moment,
        label: Option<OwnerLabel>,
        now: Moment,
    ) -> bool {
        let shares = self.shares(name, now).of(name);
        let is_whole = held_of(shares, name, owner).is_whole;
        for share in shares
            .iter_mut()
            .filter(|share| is_whole && share.owner == owner)
        {
            share.extend(until, label.clone());
        }
        is_whole
    }

    /// Ends an owner's share, or the part of it that is left. Unless the share was whole, also ends
    /// the owner's wait. Also returns whether this may admit other waiters.
    pub(super) fn release_share(
        &mut self,
        name: &LockName,
        owner: OwnerId,
        now: Moment,
    ) -> (Release, bool) {
        let is_writing = self.holder(name, now).is_some();
        let all = self.shares(name, now);
        let profile = name.profile();
        let is_reader = profile.writer.is_some();
        let is_free = is_reader && !is_writing && all.readers.is_empty();
        let Held {
            is_whole, is_any, ..
        } = held_of(all.of(name), name, owner);
        let is_left = !is_whole && all.give_up(owner, is_free, now);
        let shares = all.of(name);
        shares.retain(|share| share.owner != owner);
        let is_freed = match is_reader {
            true => !is_writing && shares.is_empty(),
            false => all.has_free_permits(),
        };
        let lets_in = is_left || is_any && is_freed;
        (
            if is_whole {
                Release::Freed
            } else {
                Release::Gone
            },
            lets_in,
        )
    }

    /// Ends an owner's wait. If the owner is a writer that holds the lock, ends the precedence of
    /// the waiting writer instead, so that readers may compete. Returns whether other waiters may
    /// be admitted.
    pub(super) fn stop_waiting(&mut self, name: &LockName, owner: OwnerId, now: Moment) -> bool {
        if self.shares.is_empty() {
            return false;
        }
        let is_holder = self.is_owned(name, owner, now);
        let is_free = self.holder(name, now).is_none();
        let Some(shares) = self.shares.get_mut(&*name.plain()) else {
            return false;
        };
        let is_free = is_free && shares.readers.is_empty();
        let is_left = !is_holder && shares.give_up(owner, is_free, now);
        let is_writer = name.profile().readers.is_some();
        let ends = |first: &mut (OwnerId, Moment)| is_writer && (is_holder || first.0 == owner);
        shares.waiting_writer.take_if(ends).is_some() || is_left
    }

    /// Returns the first waiter in the store's queue.
    pub(super) fn next_in_queue(&mut self, name: &LockName, now: Moment) -> Option<NextOwner> {
        self.shares(name, now).next(now).map(Position::next_owner)
    }

    /// Returns the head of the queue of a free fair lock, if this attempt waits and its owner is
    /// not the head. Grants the lock to the head if the head's attempt allows a direct grant.
    pub(super) fn let_head_in(
        &mut self,
        attempt: &Attempt<'_>,
        now: Moment,
        unix: Duration,
    ) -> Option<NextOwner> {
        let name = attempt.name;
        let is_queued = attempt.waits && name.profile().queued_in_store;
        if !is_queued || self.holder(name, now).is_some() {
            return None;
        }
        let shares = self.shares.get_mut(&*name.plain())?;
        shares.purge(now);
        if !shares.readers.is_empty() {
            return None;
        }
        let first = shares.next_or(Some(attempt.owner), now)?;
        let is_other = first.owner != attempt.owner;
        is_other.then(|| self.grant_next(name, now, unix))?
    }

    /// Returns whether a release may grant a lock of this name to the first waiter in its queue:
    /// the lock is free, and all watches of the name are for kinds that queue. The waiters of other
    /// kinds would compete for the lock.
    pub(super) fn may_grant(&mut self, name: &LockName, now: Moment) -> bool {
        let watches = self.watches.get(&*name.plain()).into_iter().flatten();
        let mut kinds = watches.map(|watch| watch.kind);
        kinds.all(|kind| kind.queued_in_store)
            && self.holder(name, now).is_none()
            && self.shares(name, now).readers.is_empty()
    }

    /// Returns the first waiter in the queue of a free fair lock, and grants the lock to it if its
    /// attempt allows a direct grant.
    pub(super) fn grant_next(
        &mut self,
        name: &LockName,
        now: Moment,
        unix: Duration,
    ) -> Option<NextOwner> {
        let shares = self.shares.get_mut(&*name.plain())?;
        let first = shares.next(now)?;
        let (owner, lease, next) = (first.owner, first.lease, first.next_owner());
        let has_tokens = first.has_tokens;
        let Some(attempt) = first.direct else {
            return Some(next);
        };
        let tokens = match has_tokens {
            true => Some(self.next_tokens(&name.plain(), 0, now, unix)?),
            false => None,
        };
        self.shares.get_mut(&*name.plain())?.leave_queue(owner);
        self.hold(&name.plain(), owner, now + lease, None);
        let grant = Grant::new(tokens);
        Some(next.granted(DirectGrant::new(attempt, grant)))
    }

    /// Returns an owner's share, if all of it is left.
    pub(super) fn share_of(
        &mut self,
        name: &LockName,
        owner: OwnerId,
        now: Moment,
    ) -> Option<HolderInfo> {
        let shares = self.shares(name, now).of(name);
        let Held {
            is_whole,
            first_end,
            ..
        } = held_of(shares, name, owner);
        let first = shares
            .iter()
            .find(|it| it.owner == owner && Some(it.until) == first_end);
        let count: u32 = shares
            .iter()
            .filter(|it| it.owner == owner)
            .map(|it| it.count)
            .sum();
        let info = first.filter(|_| is_whole)?.info(now);
        Some(HolderInfo {
            holds: count.into(),
            ..info
        })
    }

    /// Returns the shared holders of a name, as an inspection reports them.
    pub(super) fn inspect_shares(&mut self, name: &LockName, now: Moment) -> LockInfo {
        let shares = self.shares(name, now);
        let (taken, limit) = (shares.taken(), shares.limit);
        let profile = name.profile();
        let is_read_write = profile.writer.is_some() || profile.readers.is_some();
        let readers = (is_read_write || !shares.readers.is_empty()).then(|| {
            let known = shares.readers.iter().map(|share| share.info(now)).collect();
            Readers::new(known, shares.writer_waits(now))
        });
        let of_kind = shares.of(name);
        let held = longest(of_kind).map_or(LockInfo::FREE, |share| {
            LockInfo::held(share.info(now)).holders(of_kind.len() as u64)
        });
        match limit.filter(|_| name.permits().is_some()) {
            Some(limit) => {
                each_permit(held, taken).permits(Permits::new(limit, limit.saturating_sub(taken)))
            }
            None => readers.map_or(held.clone(), |readers| held.readers(readers)),
        }
    }

    /// Returns whether a writer waits.
    pub(super) fn writer_waits(&mut self, name: &LockName, now: Moment) -> bool {
        self.shares.get_mut(&*name.plain()).is_some_and(|shares| {
            shares.purge(now);
            shares.writer_waits(now)
        })
    }

    /// Returns false if this is a semaphore without a free permit.
    pub(super) fn may_let_in(&mut self, name: &LockName, now: Moment) -> bool {
        name.permits().is_none() || self.shares(name, now).has_free_permits()
    }

    /// Ends all shares of the name's kind. Returns whether there were any.
    pub(super) fn force_shares(&mut self, name: &LockName, now: Moment) -> bool {
        let shares = self.shares(name, now).of(name);
        !std::mem::take(shares).is_empty()
    }

    /// If the lock is free and has a queue, ends the wait of the queue's head. Otherwise ends the
    /// wait of the waiting writer, if `name` is a write lock. Returns whether there was such a
    /// wait.
    pub(super) fn force_wait(&mut self, name: &LockName, is_free: bool, now: Moment) -> bool {
        let Some(shares) = self.shares.get_mut(&*name.plain()) else {
            return false;
        };
        if is_free && shares.next(now).is_some() {
            return shares.queue.pop_front().is_some();
        }
        name.profile().readers.is_some() && shares.waiting_writer.take().is_some()
    }

    /// Changes a semaphore's limit, or one of its permits. Also returns whether this may admit
    /// waiters.
    pub(super) fn change_permits(
        &mut self,
        name: &LockName,
        change: PermitChange,
        now: Moment,
    ) -> Result<(PermitOutcome, bool), Failure> {
        let Some((named, _)) = name.permits() else {
            return Err(Failure::NotSent(Error::misuse(
                "only a semaphore has permits",
            )));
        };
        // An `Extend` never finds its permit under the name of a lock, so it needs no check.
        if !matches!(change, PermitChange::Extend(..)) {
            self.refuse_other_use(name, now)?;
        }
        let shares = self.shares(name, now);
        let before = shares.limit;
        let limit = match change {
            PermitChange::SetLimit(limit) => limit,
            PermitChange::AddLimit(more) => {
                let before = before.unwrap_or(named).into();
                PermitChange::added(before, more).map_err(Failure::Refused)?
            }
            PermitChange::Release(id) => {
                let Some(_freed) = shares.split_off(id) else {
                    return Ok((PermitOutcome::NotTaken, false));
                };
                return Ok((PermitOutcome::Changed, shares.has_free_permits()));
            }
            PermitChange::Extend(id, lease) => {
                let Some(mut share) = shares.split_off(id) else {
                    return Ok((PermitOutcome::NotTaken, false));
                };
                share.extend(now + lease.duration(), None);
                shares.permits.push(share);
                return Ok((PermitOutcome::Changed, false));
            }
        };
        shares.limit = Some(limit);
        let outcome = PermitOutcome::Limit { before, now: limit };
        Ok((outcome, shares.has_free_permits()))
    }
}

/// A summary of the shares that one owner holds.
struct Held {
    is_whole: bool,
    is_any: bool,
    first_end: Option<Moment>,
}

fn held_of(shares: &[Share], name: &LockName, owner: OwnerId) -> Held {
    let own = || shares.iter().filter(|share| share.owner == owner);
    let count: u32 = own().map(|share| share.count).sum();
    let wanted = name.permits().map_or(1, |(_, count)| count);
    let first_end = own().map(|share| share.until).min();
    Held {
        is_whole: count > 0 && count == wanted,
        is_any: count > 0,
        first_end,
    }
}

impl Share {
    pub(super) fn new(
        owner: OwnerId,
        until: Moment,
        label: Option<OwnerLabel>,
        is_writer: bool,
    ) -> Self {
        let (first, count) = (0, 1);
        Self {
            owner,
            until,
            first,
            count,
            label,
            is_writer,
        }
    }

    /// Returns whether the share contains the permit of this number.
    fn has(&self, number: u32) -> bool {
        (self.first..self.first + self.count).contains(&number)
    }

    /// Extends the share, and never shortens it. A `label` replaces the former one.
    pub(super) fn extend(&mut self, until: Moment, label: Option<OwnerLabel>) {
        self.until = self.until.max(until);
        self.label = label.or(self.label.take());
    }

    pub(super) fn info(&self, now: Moment) -> HolderInfo {
        let owner = OwnerText::new(&self.owner.to_string());
        let left = Some(self.until.since(now));
        HolderInfo::new(owner, left, self.count.into()).label(self.label.clone())
    }
}

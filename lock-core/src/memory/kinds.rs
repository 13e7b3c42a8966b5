//! What a name of the memory store has besides one holder: readers, permits, and waiters that the
//! store knows.

use super::{State, plain};
use crate::backend::{
    Answer, Attempt, DirectGrant, Failure, Grant, HolderInfo, LockInfo, NextOwner, Permits,
    Readers, Release, Tokens, WAITER_PRESENCE,
};
use crate::clock::Moment;
use crate::config::WriterPriority;
use crate::error::{Error, ErrorKind};
use crate::name::{LockKind, LockName};
use crate::owner::{OwnerId, OwnerLabel, OwnerText};
use crate::token::{FencingToken, TokenRange};
use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::time::Duration;

/// Holders of a name that share it, and waiters.
#[derive(Default)]
pub(super) struct Shares {
    readers: Vec<Share>,
    permits: Vec<Share>,
    /// Of a semaphore that a client has used.
    limit: Option<u32>,
    /// Waiters in the order of arrival.
    queue: VecDeque<Position>,
    /// The first waiting writer, and until when it keeps new readers out.
    waiting_writer: Option<(OwnerId, Moment)>,
}

struct Share {
    owner: OwnerId,
    until: Moment,
    /// How many permits.
    count: u32,
    label: Option<OwnerLabel>,
}

struct Position {
    owner: OwnerId,
    until: Moment,
    /// For how long from its last attempt on, and so of what a release grants it.
    presence: Duration,
    /// The number of its last attempt, if a release may grant it the lock.
    direct: Option<NonZeroU32>,
}

impl Position {
    fn next_owner(&self) -> NextOwner {
        NextOwner::new(OwnerText::new(&self.owner.to_string()))
    }
}

impl Shares {
    /// Forgets what is over.
    fn purge(&mut self, now: Moment) {
        self.readers.retain(|share| now < share.until);
        self.permits.retain(|share| now < share.until);
        self.waiting_writer = self.waiting_writer.filter(|(_, until)| now < *until);
    }

    /// The first waiter that is there; dead ones before it go. One behind it that comes back in
    /// time keeps its position.
    fn next(&mut self, now: Moment) -> Option<&Position> {
        while self.queue.front().is_some_and(|first| first.until <= now) {
            self.queue.pop_front();
        }
        self.queue.front()
    }

    /// Until when another owner counts as waiting that goes before this attempt.
    fn before(&mut self, attempt: &Attempt<'_>, now: Moment) -> Option<Moment> {
        let next = attempt.name.kind().is_queued().then(|| self.next(now)).flatten();
        next.filter(|next| next.owner != attempt.owner).map(|next| next.until)
    }

    /// Whether nothing would be lost with it.
    pub(super) fn is_idle(&mut self, now: Moment) -> bool {
        self.purge(now);
        let is_unused = self.readers.is_empty() && self.permits.is_empty();
        let is_queue = self.queue.iter().any(|position| now < position.until);
        let is_awaited = is_queue || self.waiting_writer.is_some();
        is_unused && !is_awaited && self.limit.is_none()
    }

    fn of(&mut self, kind: LockKind) -> &mut Vec<Share> {
        match kind {
            kind if kind.permits().is_some() => &mut self.permits,
            _ => &mut self.readers,
        }
    }

    fn enqueue(&mut self, attempt: &Attempt<'_>, now: Moment) {
        let Attempt { owner, presence, direct, .. } = *attempt;
        let new = Position { owner, until: now + presence, presence, direct };
        match self.queue.iter_mut().find(|position| position.owner == owner) {
            Some(position) => *position = new,
            None => self.queue.push_back(new),
        }
    }

    /// Whether it was in the queue.
    fn leave_queue(&mut self, owner: OwnerId) -> bool {
        let before = self.queue.len();
        self.queue.retain(|position| position.owner != owner);
        self.queue.len() < before
    }

    /// Takes permits, or waits for them in a fair semaphore. Whether that may let the next one in.
    fn take_permits(
        &mut self,
        attempt: &Attempt<'_>,
        new: Share,
        limit: u32,
        now: Moment,
    ) -> (Answer, bool) {
        let (owner, is_queued) = (new.owner, attempt.name.kind().is_queued());
        let is_repeated = self.permits.iter().any(|share| share.owner == owner);
        let first = self.permits.iter().map(|share| share.until).min();
        let busy = |until: Option<Moment>| Answer::Busy(until.map(|until| until.since(now)));
        if !is_repeated && new.count > limit {
            // It would keep all others out until the limit rises.
            return (busy(first), is_queued && self.leave_queue(owner));
        }
        let others = self.before(attempt, now).filter(|_| !is_repeated);
        let is_full = !is_repeated && self.taken().saturating_add(new.count) > limit;
        if is_full || others.is_some() {
            if is_queued && attempt.waits {
                self.enqueue(attempt, now);
            }
            return (busy(others.or(first)), false);
        }
        self.leave_queue(owner);
        hold(&mut self.permits, new);
        (Answer::Granted(Grant::new(None).limit(limit)), is_queued && self.taken() < limit)
    }

    fn taken(&self) -> u32 {
        self.permits.iter().map(|share| share.count).sum()
    }
}

/// The one of these that ends last.
fn longest(shares: &[Share]) -> Option<&Share> {
    shares.iter().max_by_key(|share| share.until)
}

/// Grants this share, and never shortens the lease that its owner has.
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
    /// The shares of a name; made if there are none.
    fn shares(&mut self, name: &LockName, now: Moment) -> &mut Shares {
        let shares = self.shares.entry(name.of_kind(LockKind::Mutex)).or_default();
        shares.purge(now);
        shares
    }

    /// Fails if the name is a semaphore's and this is a lock, or the other way round.
    pub(super) fn refuse_other_use(&mut self, name: &LockName, now: Moment) -> Result<(), Failure> {
        let is_semaphore = name.kind().permits().is_some();
        if self.shares.is_empty() && !is_semaphore {
            return Ok(());
        }
        let is_locked = self.holder(name, now).is_some();
        let Some(shares) = self.shares.get_mut(&name.of_kind(LockKind::Mutex)) else {
            return if is_semaphore && is_locked { Err(foreign("a lock")) } else { Ok(()) };
        };
        shares.purge(now);
        match is_semaphore {
            true if is_locked || !shares.readers.is_empty() => Err(foreign("a lock")),
            false if shares.limit.is_some() => Err(foreign("a semaphore")),
            _ => Ok(()),
        }
    }

    /// What keeps an attempt of one owner out besides another such owner, if something does.
    pub(super) fn kept_out(
        &mut self,
        attempt: &Attempt<'_>,
        writers: WriterPriority,
        now: Moment,
    ) -> Result<Option<Answer>, Failure> {
        let (name, owner) = (attempt.name, attempt.owner);
        let kind = name.kind();
        if self.shares.is_empty() && kind == LockKind::Mutex {
            return Ok(None);
        }
        let holder = self.holder(name, now).map(|held| (held.owner, held.until));
        if holder.is_some_and(|(holder, _)| holder == owner) {
            return Ok(None); // a repetition
        }
        let shares = self.shares(name, now);
        let readers = longest(&shares.readers).map(|share| share.until);
        let busy = holder.map(|(_, until)| until).or(readers);
        let other = shares.before(attempt, now);
        // A lock that is free is the next one's for as long as that counts as waiting.
        let Some(until) = busy.or(other) else {
            shares.leave_queue(owner);
            if kind == LockKind::Write && attempt.waits {
                shares.waiting_writer = None; // readers compete with the next one
            }
            return Ok(None);
        };
        match kind {
            _ if !attempt.waits => {}
            LockKind::Fair => shares.enqueue(attempt, now),
            LockKind::Write if writers == WriterPriority::First => {
                let is_other = |(first, _): &(OwnerId, Moment)| *first != owner;
                if !shares.waiting_writer.is_some_and(|first| is_other(&first)) {
                    shares.waiting_writer = Some((owner, now + WAITER_PRESENCE));
                }
            }
            _ => {}
        }
        Ok(Some(Answer::Busy(Some(until.since(now)))))
    }

    /// Grants a share, if there is room. Whether that may let the next one in a queue in.
    pub(super) fn acquire_share(
        &mut self,
        attempt: &Attempt<'_>,
        label: Option<OwnerLabel>,
        writers: WriterPriority,
        now: Moment,
    ) -> Result<(Answer, bool), Failure> {
        let Attempt { name, owner, lease, tokens, beside, .. } = *attempt;
        let until = now + lease.duration();
        let writer = self.holder(name, now).map(|held| (held.owner, held.until));
        let last = self.tokens.get(&name.of_kind(LockKind::Mutex)).map(|counter| counter.last);
        let shares = self.shares(name, now);
        if let Some((named, count)) = name.kind().permits() {
            let limit = *shares.limit.get_or_insert(named);
            let new = Share { owner, until, count, label };
            return Ok(shares.take_permits(attempt, new, limit, now));
        }
        let is_repeated = shares.of(name.kind()).iter().any(|share| share.owner == owner);
        let other = writer.filter(|(writer, _)| !is_repeated && beside != Some(*writer));
        let gives_way = writers == WriterPriority::First && !is_repeated && writer.is_none();
        let waiting = shares.waiting_writer.map(|(_, until)| until).filter(|_| gives_way);
        if let Some(until) = other.map(|(_, until)| until).or(waiting) {
            return Ok((Answer::Busy(Some(until.since(now))), false));
        }
        hold(&mut shares.readers, Share { owner, until, count: 1, label });
        let token = last.filter(|_| tokens != Tokens::None).map(FencingToken::new);
        let range = token.and_then(|token| TokenRange::new(token, token));
        Ok((Answer::Granted(Grant::new(range)), false))
    }

    /// Extends a share. False if it is gone.
    pub(super) fn renew_share(
        &mut self,
        name: &LockName,
        owner: OwnerId,
        until: Moment,
        label: Option<OwnerLabel>,
        now: Moment,
    ) -> bool {
        let shares = self.shares(name, now).of(name.kind());
        let share = shares.iter_mut().find(|share| share.owner == owner);
        share.map(|share| share.extend(until, label)).is_some()
    }

    /// Ends a share, and the wait for one. Also tells whether that lets others in.
    pub(super) fn release_share(
        &mut self,
        name: &LockName,
        owner: OwnerId,
        now: Moment,
    ) -> (Release, bool) {
        let all = self.shares(name, now);
        let is_left = name.kind().is_queued() && all.leave_queue(owner);
        let shares = all.of(name.kind());
        let before = shares.len();
        shares.retain(|share| share.owner != owner);
        match shares.len() < before {
            true => (Release::Freed, true),
            false => (Release::Gone, is_left),
        }
    }

    /// An owner does not wait any more; or a writer has released, and readers may compete. Whether
    /// that lets others in.
    pub(super) fn stop_waiting(&mut self, name: &LockName, owner: OwnerId, now: Moment) -> bool {
        if self.shares.is_empty() {
            return false;
        }
        let is_holder = self.is_owned(name, owner, now);
        let is_free = self.holder(name, now).is_none();
        match (name.kind(), self.shares.get_mut(&name.of_kind(LockKind::Mutex))) {
            (LockKind::Fair, Some(shares)) => {
                let is_left = shares.leave_queue(owner);
                shares.purge(now);
                is_left && is_free && shares.readers.is_empty()
            }
            (LockKind::Write, Some(shares)) => {
                shares.waiting_writer.take_if(|(first, _)| is_holder || *first == owner).is_some()
            }
            _ => false,
        }
    }

    /// The first of the waiters that the store knows.
    pub(super) fn next_in_queue(&mut self, name: &LockName, now: Moment) -> Option<NextOwner> {
        self.shares(name, now).next(now).map(Position::next_owner)
    }

    /// Grants a free fair lock to the first waiter that the store knows, if a release may.
    pub(super) fn grant_next(
        &mut self,
        name: &LockName,
        now: Moment,
        unix: Duration,
    ) -> Option<NextOwner> {
        let shares = self.shares.get_mut(&*plain(name))?;
        let first = shares.next(now)?;
        let (owner, presence, next) = (first.owner, first.presence, first.next_owner());
        let Some(attempt) = first.direct else { return Some(next) };
        shares.leave_queue(owner);
        let token = self.next_tokens(&plain(name), 0, now, unix)?.first();
        self.hold(name, owner, now + presence, None);
        Some(next.granted(DirectGrant { attempt, token }))
    }

    /// What is left of this owner's share.
    pub(super) fn share_of(
        &mut self,
        name: &LockName,
        owner: OwnerId,
        now: Moment,
    ) -> Option<HolderInfo> {
        let shares = self.shares(name, now).of(name.kind());
        shares.iter().find(|share| share.owner == owner).map(|share| share.info(now))
    }

    /// The holders that share a name.
    pub(super) fn inspect_shares(&mut self, name: &LockName, now: Moment) -> LockInfo {
        let shares = self.shares(name, now);
        let (taken, limit) = (shares.taken(), shares.limit);
        let is_read_write = matches!(name.kind(), LockKind::Read | LockKind::Write);
        let readers = (is_read_write || !shares.readers.is_empty()).then(|| {
            let known = shares.readers.iter().map(|share| share.info(now)).collect();
            Readers::new(known, shares.waiting_writer.is_some())
        });
        let of_kind = shares.of(name.kind());
        let held = longest(of_kind).map_or(LockInfo::FREE, |share| {
            LockInfo::held(share.info(now)).holders(of_kind.len() as u64)
        });
        match (name.kind(), limit) {
            (kind, Some(limit)) if kind.permits().is_some() => {
                held.permits(Permits::new(limit, limit.saturating_sub(taken)))
            }
            _ => readers.map_or(held.clone(), |readers| held.readers(readers)),
        }
    }

    /// Whether a writer waits.
    pub(super) fn writer_waits(&mut self, name: &LockName, now: Moment) -> bool {
        self.shares.get_mut(&name.of_kind(LockKind::Mutex)).is_some_and(|shares| {
            shares.purge(now);
            shares.waiting_writer.is_some()
        })
    }

    /// Ends all shares of the kind; whether there were any.
    pub(super) fn force_shares(&mut self, name: &LockName, now: Moment) -> bool {
        let shares = self.shares(name, now).of(name.kind());
        !std::mem::take(shares).is_empty()
    }

    /// Ends the wait of a writer; of a lock that `is_free` that of the head of the queue. Whether
    /// there was one.
    pub(super) fn force_wait(&mut self, name: &LockName, is_free: bool, now: Moment) -> bool {
        let Some(shares) = self.shares.get_mut(&*plain(name)) else { return false };
        match name.kind() {
            LockKind::Write => shares.waiting_writer.take().is_some(),
            LockKind::Fair if is_free => {
                shares.next(now).is_some() && shares.queue.pop_front().is_some()
            }
            _ => false,
        }
    }

    /// Sets the limit of a semaphore, and returns the former one.
    pub(super) fn set_permits(
        &mut self,
        name: &LockName,
        limit: u32,
        now: Moment,
    ) -> Result<Option<u32>, Failure> {
        self.refuse_other_use(name, now)?;
        Ok(self.shares(name, now).limit.replace(limit))
    }
}

impl Share {
    /// Never shortens it. A `label` replaces the former one.
    fn extend(&mut self, until: Moment, label: Option<OwnerLabel>) {
        self.until = self.until.max(until);
        self.label = label.or(self.label.take());
    }

    fn info(&self, now: Moment) -> HolderInfo {
        let owner = OwnerText::new(&self.owner.to_string());
        let left = Some(self.until.since(now));
        HolderInfo::new(owner, left, self.count.into()).label(self.label.clone())
    }
}

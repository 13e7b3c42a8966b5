//! [`Members`]: of which locks a lock of several is made, and what it asks them without taking them.

use super::held::Several;
use crate::backend::LockInfo;
use crate::clock::{Clock, Moment};
use crate::engine::Alive;
use crate::engine::entry::Entry;
use crate::error::{Error, ErrorKind, MemberOutcome, MemberResult};
use crate::guard::{Hold, LockGuard};
use crate::holder::thread_id;
use crate::lock::DistLock;
use crate::name::LockName;
use crate::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What a lock is made of, down to the names of single clients.
#[derive(Clone)]
pub enum Parts {
    /// One name of one client.
    One(Leaf),
    /// Several locks.
    Several(Arc<Group>),
}

/// One name of one client.
#[derive(Clone)]
pub struct Leaf {
    pub(crate) engine: Arc<Alive>,
    pub(crate) entry: Arc<Entry>,
}

/// Several locks, of which so many are needed.
pub struct Group {
    pub(crate) name: LockName,
    pub(crate) need: usize,
    pub(crate) parts: Vec<Parts>,
    /// The same for every group of the same locks, in whatever order they were given.
    key: Arc<str>,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name().fmt(f)
    }
}

impl fmt::Debug for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.entry.name.fmt(f)
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl Parts {
    pub(super) fn name(&self) -> &LockName {
        match self {
            Self::One(leaf) => &leaf.entry.name,
            Self::Several(group) => &group.name,
        }
    }

    fn key(&self) -> String {
        match self {
            // Quoted, so that no name can look like two.
            Self::One(leaf) => format!("{}/{:?}", leaf.engine.client, leaf.entry.name),
            Self::Several(group) => group.key.to_string(),
        }
    }

    /// All single locks, in the order in which they were given.
    pub(super) fn leaves(&self) -> Vec<&Leaf> {
        match self {
            Self::One(leaf) => vec![leaf],
            Self::Several(group) => group.leaves(),
        }
    }

    /// What of the detached hold of that number this thread has here.
    fn take_detached(&self, number: u64) -> Option<LockGuard> {
        match self {
            Self::One(Leaf { engine, entry }) => {
                let acquisition = engine.take_detached(thread_id(), entry, Some(number))?;
                Some(LockGuard::new(Hold::new(Arc::clone(engine), Arc::clone(entry), acquisition)))
            }
            Self::Several(group) => {
                let parts: Vec<_> =
                    group.parts.iter().map(|part| part.take_detached(number)).collect();
                let has_any = parts.iter().any(Option::is_some);
                has_any.then(|| LockGuard::several(Several::new(Arc::clone(group), parts)))
            }
        }
    }
}

impl Group {
    fn new(need: usize, parts: Vec<Parts>) -> Self {
        let mut keys: Vec<_> = parts.iter().map(Parts::key).collect();
        keys.sort_unstable();
        let key = format!("{need} of ({})", keys.join(", ")).into();
        Self { name: name_of(need, &parts), need, parts, key }
    }

    pub(super) fn leaves(&self) -> Vec<&Leaf> {
        self.parts.iter().flat_map(Parts::leaves).collect()
    }

    /// The clock of the first.
    pub(super) fn clock(&self) -> Arc<dyn Clock> {
        let leaves = self.leaves();
        Arc::clone(&leaves.first().expect("a lock is made of locks").engine.clock)
    }

    /// What is the same for every group of the same locks.
    pub(super) fn key(&self) -> &Arc<str> {
        &self.key
    }

    /// Ends this thread's newest detached hold on these locks.
    pub(super) fn unlock_detached(self: &Arc<Self>) -> Result<(), Error> {
        for leaf in self.leaves() {
            leaf.engine.refuse_if_forked().map_err(|error| error.on(&self.name))?;
        }
        let newest = self.leaves().into_iter().filter_map(|Leaf { engine, entry }| {
            engine.newest_whole(thread_id(), entry, &self.key)
        });
        let hold = newest.max().and_then(|it| Parts::Several(Arc::clone(self)).take_detached(it));
        let hold = hold.ok_or_else(|| {
            Error::new(
                ErrorKind::NotHeld,
                "this thread has no detached hold on these locks together: a guard unlocks its \
                own, and what was locked one by one is unlocked one by one",
            )
            .on(&self.name)
        })?;
        hold.unlock()
    }
}

/// What several locks are called together: by their names, as many as a name has room for.
fn name_of(need: usize, parts: &[Parts]) -> LockName {
    /// What is left free for a frame around the names.
    const ROOM: usize = 64;
    let mut text = String::new();
    let mut named = 0;
    for part in parts {
        let name = match part {
            Parts::Several(group) if group.need == group.parts.len() => {
                format!("({})", group.name.as_str())
            }
            _ => part.name().as_str().to_owned(),
        };
        if text.len() + name.len() + ROOM > LockName::MAX_BYTES {
            break;
        }
        if named > 0 {
            text.push_str(if need == parts.len() { " + " } else { ", " });
        }
        text.push_str(&name);
        named += 1;
    }
    let left_out = match parts.len() - named {
        0 => String::new(),
        left if named > 0 => format!(" and {left} more"),
        left => format!("{left} locks"),
    };
    let text = if need == parts.len() {
        format!("{text}{left_out}")
    } else {
        format!("{need} of {} ({text}{left_out})", parts.len())
    };
    // The first brace of a sound name opens a tag that is closed in the same name.
    LockName::new(&text)
        .expect("sound names, whole and within the limit, are a sound name together")
}

/// The locks that one is made of.
pub(super) struct Members {
    group: Arc<Group>,
    pub(super) locks: Vec<Arc<dyn DistLock>>,
    /// In which order they are tried.
    pub(super) order: Vec<usize>,
    /// Until when each of them counts as ailing, in nanoseconds of the clock: it could not be asked
    /// a while ago. Written and read by whoever takes the lock; nothing hangs on its being exact.
    ailing: Vec<AtomicU64>,
}

impl Members {
    /// All of these.
    pub(super) fn all(locks: Vec<Arc<dyn DistLock>>) -> Result<Self, Error> {
        if locks.is_empty() {
            return Err(Error::misuse("a lock of no locks: give it at least one"));
        }
        Self::new(locks.len(), locks)
    }

    /// More than half of these.
    pub(super) fn majority(locks: Vec<Arc<dyn DistLock>>) -> Result<Self, Error> {
        if locks.len() < 3 {
            return Err(Error::misuse(format!(
                "a majority needs at least three locks, and these are {}: of one or two it is all \
                of them, which is a `MultiLock`",
                locks.len()
            )));
        }
        Self::new(locks.len() / 2 + 1, locks)
    }

    fn new(need: usize, locks: Vec<Arc<dyn DistLock>>) -> Result<Self, Error> {
        let parts: Vec<_> = locks.iter().map(|lock| lock.parts()).collect();
        let mut seen = HashSet::new();
        for leaf in parts.iter().flat_map(Parts::leaves) {
            if !seen.insert((leaf.engine.client, &leaf.entry.name)) {
                return Err(Error::misuse(
                    "it is given twice: taken twice it protects nothing more, and of a majority it \
                    would be two votes",
                )
                .on(&leaf.entry.name));
            }
        }
        let mut order: Vec<_> = (0..locks.len()).collect();
        // A stable sort: the same name on several servers stays in the order that it was given in.
        order.sort_by(|a, b| locks[*a].name().cmp(locks[*b].name()));
        let ailing = locks.iter().map(|_| AtomicU64::new(0)).collect();
        Ok(Self { group: Arc::new(Group::new(need, parts)), locks, order, ailing })
    }

    /// Notes that this member could not be asked, or that it has answered again.
    pub(super) fn set_ailing(&self, at: usize, until: Option<Moment>) {
        self.ailing[at].store(until.map_or(0, Moment::as_nanos), Ordering::Relaxed);
    }

    /// Whether this member could not be asked a while ago.
    pub(super) fn is_ailing(&self, at: usize, now: Moment) -> bool {
        self.ailing[at].load(Ordering::Relaxed) > now.as_nanos()
    }

    pub(super) fn group(&self) -> &Arc<Group> {
        &self.group
    }

    pub(super) fn need(&self) -> usize {
        self.group.need
    }

    /// How many may fail.
    pub(super) fn spare(&self) -> usize {
        self.locks.len() - self.need()
    }

    /// The members' names, each with what it came to.
    pub(super) fn results(&self, outcomes: Vec<MemberOutcome>) -> Vec<MemberResult> {
        let named = self.locks.iter().zip(outcomes);
        named.map(|(lock, outcome)| MemberResult::new(lock.name().as_str(), outcome)).collect()
    }

    /// Who keeps it from being taken now.
    pub(super) fn inspect(&self) -> Result<LockInfo, Error> {
        let mut holders = Vec::new();
        let mut free = 0;
        let mut outcomes = Vec::new();
        for lock in &self.locks {
            outcomes.push(match lock.inspect() {
                Ok(LockInfo { holder: Some(holder), .. }) => {
                    holders.push(holder);
                    MemberOutcome::Done
                }
                Ok(_) => {
                    free += 1;
                    MemberOutcome::Done
                }
                Err(error) => MemberOutcome::Failed(error),
            });
        }
        if holders.len() > self.spare() {
            // It can be taken when so many of these leases have ended that few enough are left.
            holders.sort_by_key(|holder| holder.remaining.unwrap_or(Duration::MAX));
            let last = holders.len() - self.spare() - 1;
            return Ok(LockInfo::held(holders.swap_remove(last)));
        }
        if free >= self.need() {
            return Ok(LockInfo::FREE);
        }
        let what = "not enough of its members could be asked to say who holds it";
        Err(self.failed(what, "answered", outcomes))
    }

    pub(super) fn force_unlock(&self) -> Result<bool, Error> {
        let mut was_held = false;
        let mut outcomes = Vec::new();
        for lock in &self.locks {
            outcomes.push(match lock.force_unlock() {
                Ok(held) => {
                    was_held |= held;
                    MemberOutcome::Done
                }
                Err(error) => MemberOutcome::Failed(error),
            });
        }
        let done = outcomes.iter().filter(|it| matches!(it, MemberOutcome::Done)).count();
        if done >= self.need() {
            return Ok(was_held);
        }
        Err(self.failed("not enough of its members could be freed", "was freed", outcomes))
    }

    pub(super) fn hold_count(&self) -> u32 {
        let mut counts: Vec<_> = self.locks.iter().map(|lock| lock.hold_count()).collect();
        counts.sort_unstable();
        // So many of them have that many, or more.
        counts[self.spare()]
    }

    pub(super) fn is_held_by_current_thread(&self) -> bool {
        let held = self.locks.iter().filter(|lock| lock.is_held_by_current_thread());
        held.count() >= self.need()
    }

    /// The error of a call in which too many failed.
    fn failed(&self, what: &str, done: &str, outcomes: Vec<MemberOutcome>) -> Error {
        let results = self.results(outcomes);
        Error::from_members(worst(&results), what, done, results).on(&self.group.name)
    }
}

/// What kind of failure several failures are together: a loss if there is one among them, because
/// that is news of safety; otherwise the first.
pub(super) fn worst(results: &[MemberResult]) -> ErrorKind {
    let mut kinds = results.iter().filter_map(MemberResult::error).map(Error::kind);
    let first = kinds.next().unwrap_or(ErrorKind::Unavailable);
    if kinds.any(|kind| kind == ErrorKind::Lost) { ErrorKind::Lost } else { first }
}

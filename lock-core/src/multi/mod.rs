//! [`MultiLock`] and [`MajorityLock`]: several locks as one, whatever each of them is and wherever it lives.
//!
//! # How several locks are taken without a deadlock
//!
//! Nobody waits for one lock while he holds another. Whoever wants several waits for *one*, holding
//! nothing; once he has it he *tries* the others; if one of them is not to be had, he lets go of
//! everything and waits for *that* one next. Then A and B can be spelled in any order, here and in
//! every other program. It is what C++ has in `std::lock` (the standard asks for it in
//! \[thread.lock.algorithm\]); Howard Hinnant measured it against sorting and against holding on,
//! and called it "smart and polite" ("Dining Philosophers Rebooted", 2013). Redisson's
//! `RedissonMultiLock` waits for each lock with those before it in its hand: two that are spelled
//! the other way round wait for each other until both give up.
//!
//! Two that each hold one, try the other's and let go, both at the same pace, could go on like that
//! for ever. So whoever let go of something pauses before he waits for the next, for a random time
//! that grows with the number of failures ([`take`]). And of the same locks everybody begins with
//! the same one, the first by name: those who want the same meet at its queue, and its holder finds
//! the others free. That is for speed alone; where names say nothing, as with the same name on
//! several servers, it is as they were given.
//!
//! A mutex of a single process is free for a moment between two holders, and a try may find it so.
//! Ours is handed on to whoever queues, and a try overtakes nobody: among threads that want one
//! lock each and never leave its queue empty, whoever tries two would try for ever (seen: not once
//! in 20 s). So after three rounds in vain a try becomes a short wait in the queue, for a random
//! moment that doubles up to a tenth of a second. That is waiting with a lock in hand, but never
//! for long, and of two that do it crosswise one gives up first.
//!
//! # What is different with a majority
//!
//! A [`MajorityLock`] needs more than half. It goes on trying where a [`MultiLock`] has failed
//! already, and takes what it can get, because each lock more than needed is one that may be lost.
//! It waits for no lock longer than its share of what is left of the wait, because the next one may
//! come free sooner.
//!
//! # Where it stands
//!
//! Above everything else, on the verbs that every program has: each member queues, renews, hands on
//! and cleans up as ever. A guard of several ([`held`]) has the guards of its members in its hand.
//! What is needed to tell locks apart and to end detached holds is in [`members`].

mod held;
mod members;
mod take;
#[cfg(test)]
mod tests;

pub(crate) use held::Several;
pub(crate) use members::{Leaf, Parts};

use crate::backend::LockInfo;
use crate::error::Error;
use crate::guard::LockGuard;
use crate::lock::{DistLock, sealed};
use crate::name::LockName;
use crate::options::LockOptions;
use members::Members;
use std::fmt;
use std::sync::Arc;

/// Several locks as one: all of them, or none.
///
/// They may be of different clients, on different servers, and of different kinds; a member may be
/// a `MultiLock` or a [`MajorityLock`] itself. Two programs that name the same locks in another
/// order do not block each other for ever: no lock is waited for while another is held, but for a
/// tenth of a second at most (the algorithm of C++'s `std::lock`). That is so for what *this* lock
/// takes. A thread that holds one of them already, by a guard of its own, has it in its hand while
/// it waits for the others; then the order matters as ever.
///
/// It is what Redisson calls `RedissonMultiLock`, and has all verbs of [`DistLock`]:
///
/// - A wait is one deadline for all of it. Whatever ends the attempt - the deadline, an interrupt,
///   an error, a panic - gives back what was taken.
/// - Each member has the lease that was asked for, and the watchdog keeps each. A lease that ends
///   by itself counts from when the guard is handed out: where taking the last member took more
///   than a tenth of it, the earlier ones are extended first.
/// - The guard is as good as its worst member: lost when one is lost, and
///   [remaining](LockGuard::remaining) for as long as the first to end.
///   [`LockGuard::fencing_tokens`] has the token of each.
/// - Its members stay locks of their own. Whoever holds some of them already takes one hold more of
///   each. [`hold_count`](DistLock::hold_count) is how often this thread holds *all* of them, and
///   it [holds](DistLock::is_held_by_current_thread) it if it holds all, however it got them.
/// - It [is locked](DistLock::is_locked) if it could not be taken now: when anybody holds any of
///   them. [`inspect`](DistLock::inspect) names the one of these holders whose lease ends last.
/// - [`force_unlock`](DistLock::force_unlock) frees all of them, and says whether anybody held any.
/// - [`unlock`](DistLock::unlock) ends the newest detached hold on the same locks, also through
///   another handle, made of them in another order.
///
/// # Blocking
///
/// The members are asked one after the other: one round trip for each. The wait that was asked for
/// can be overstepped by one command time-out of each member, where all of their servers are about
/// to fall silent.
///
/// # Errors
///
/// What went wrong with which member stands in the text, and in [`Error::members`].
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::{Client, DistLock, MultiLock};
///
/// let (here, there) = (
///     Client::builder().url("memory://here")?.connect()?,
///     Client::builder().url("memory://there")?.connect()?,
/// );
/// let both = MultiLock::new([here.mutex("account:1")?, there.mutex("account:2")?])?;
/// let guard = both.lock()?;
/// for (name, token) in guard.fencing_tokens() {
///     println!("{name} under token {token:?}");
/// }
/// guard.unlock()?;
/// # Ok::<(), distlock::Error>(())
/// ```
#[derive(Clone)]
pub struct MultiLock(Arc<Members>);

/// A majority of several locks as one: it is held while more than half of them are.
///
/// This is what Redisson calls `RedissonRedLock`: the same lock on several servers that know
/// nothing of each other, so that it outlives the loss of some. What it cannot have is one [fencing
/// token](LockGuard::fencing_token), because nobody orders the grants of its members; each member's
/// own are in [`LockGuard::fencing_tokens`].
///
/// It has all verbs of [`DistLock`], as [`MultiLock`] has them, but:
///
/// - It takes every member that it can get, and is content with more than half.
/// - It waits for a member that is busy for at most its share: what is left of the wait divided by
///   the number of members, and never more than a second at a time. Then it looks at the others
///   again.
/// - A member that cannot be asked costs whoever asks it a command time-out; so for five seconds
///   after that, this lock asks it last, and only if the others are not enough.
/// - A member that cannot be asked counts as one that cannot be had. Where so many could not be
///   asked that it is not known whether it would have been free, that is an
///   [unavailable](Error::is_unavailable) lock and not a busy one.
/// - The guard is lost when fewer than needed are left, and [remaining](LockGuard::remaining) for
///   as long as enough of them are. [`LockGuard::unlock`] is content when enough of them say that
///   they were ours until then; what failed on the others is told by the events of their clients.
/// - [`hold_count`](DistLock::hold_count), [`is_locked`](DistLock::is_locked) and the like follow
///   from that: held often enough on enough of them; locked if it could not be taken now.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::{Client, DistLock, MajorityLock};
///
/// let clients = ["memory://a", "memory://b", "memory://c"]
///     .map(|url| Client::builder().url(url)?.connect());
/// let mut members = Vec::new();
/// for client in clients {
///     members.push(client?.mutex("orders:42")?);
/// }
/// let lock = MajorityLock::new(members)?;
/// let guard = lock.lock()?;
/// guard.unlock()?;
/// # Ok::<(), distlock::Error>(())
/// ```
#[derive(Clone)]
pub struct MajorityLock(Arc<Members>);

impl MultiLock {
    /// All of these locks as one. Asks no store.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if there is none, or one of them (the same name of the same client) is
    /// among them twice, here or inside another. It would be held twice and protect nothing more,
    /// so whoever wrote that meant something else.
    ///
    /// The same name on the same server by two *clients* cannot be told from here: those are two
    /// strangers, and wait for each other.
    pub fn new<I>(members: I) -> Result<Self, Error>
    where
        I: IntoIterator,
        I::Item: Into<Arc<dyn DistLock>>,
    {
        let members = members.into_iter().map(Into::into).collect();
        Ok(Self(Arc::new(Members::all(members)?)))
    }
}

impl MajorityLock {
    /// The majority of these locks as one. Asks no store.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if there are fewer than three (the majority of one or two is all of
    /// them: a [`MultiLock`]), or one of them is there twice, as with [`MultiLock::new`]. It would
    /// count twice.
    pub fn new<I>(members: I) -> Result<Self, Error>
    where
        I: IntoIterator,
        I::Item: Into<Arc<dyn DistLock>>,
    {
        let members = members.into_iter().map(Into::into).collect();
        Ok(Self(Arc::new(Members::majority(members)?)))
    }
}

/// A lock that is made of others.
macro_rules! of_several {
    ($kind:ident) => {
        impl $kind {
            /// Runs `work` under the lock, and releases it afterwards, also when `work` panics.
            ///
            /// # Errors
            ///
            /// Those of [`DistLock::lock`], before `work` runs, and of [`LockGuard::unlock`], after
            /// it has run: then its result is dropped, because others may have been inside
            /// meanwhile.
            pub fn run<R>(&self, work: impl FnOnce(&LockGuard) -> R) -> Result<R, Error> {
                let lock: &dyn DistLock = self;
                lock.run(work)
            }
        }

        impl sealed::Sealed for $kind {
            fn parts(&self) -> Parts {
                Parts::Several(Arc::clone(self.0.group()))
            }
        }

        impl DistLock for $kind {
            fn acquire(&self, options: &LockOptions) -> Result<Option<LockGuard>, Error> {
                take::take(&self.0, options).map_err(|error| error.on(self.name()))
            }

            fn unlock(&self) -> Result<(), Error> {
                self.0.group().unlock_detached()
            }

            fn inspect(&self) -> Result<LockInfo, Error> {
                self.0.inspect()
            }

            fn force_unlock(&self) -> Result<bool, Error> {
                self.0.force_unlock()
            }

            fn hold_count(&self) -> u32 {
                self.0.hold_count()
            }

            fn is_held_by_current_thread(&self) -> bool {
                self.0.is_held_by_current_thread()
            }

            fn name(&self) -> &LockName {
                &self.0.group().name
            }
        }

        impl From<$kind> for Arc<dyn DistLock> {
            fn from(lock: $kind) -> Self {
                Arc::new(lock)
            }
        }

        impl From<&$kind> for Arc<dyn DistLock> {
            fn from(lock: &$kind) -> Self {
                Arc::new(lock.clone())
            }
        }

        impl fmt::Debug for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($kind)).field(self.name()).finish()
            }
        }
    };
}

of_several!(MultiLock);
of_several!(MajorityLock);

//! [`MultiLock`] and [`MajorityLock`]: several locks as one.
//!
//! # How several locks are taken without a deadlock
//!
//! A thread waits for *one* lock while it holds none, and then *tries* the others. If one of those
//! is busy, it releases all of them and waits for that one next. So programs may name the locks in
//! any order. This is the algorithm of C++'s `std::lock` (Howard Hinnant, "Dining Philosophers
//! Rebooted", 2013). Redisson's `RedissonMultiLock` waits for each lock while it holds those
//! before, and two that name them in opposite orders block each other until both time out.
//!
//! Two threads that each hold one lock and try the other's could fail in step for ever. So a thread
//! pauses after a failed round, for a random time that grows with the number of failures
//! ([`acquire`]). All threads start with the first lock by name, for speed alone: they meet at its
//! queue, and its holder finds the others free.
//!
//! A try does not overtake waiters, so a try of a lock whose queue is never empty never succeeds
//! (seen: not once in 20 s). After three failed rounds each try therefore waits for a moment
//! ([`patience`]). Where a lock is a fair one, all are waited for, with those before held, for up
//! to twice as long as earlier waits for the lock took: a limit would starve it where a queue needs
//! more. The lock with the longest wait comes first, while none is held. Similar ones come in the
//! order of their names, so that threads do not wait for each other; where they do, because the
//! names are equal, the one that gives up first is decided at random. Positions in all queues at
//! once would not hold a lock for less: a fair lock whose head does not take it is kept from the
//! others, too.
//!
//! # Differences of a majority
//!
//! A [`MajorityLock`] requires more than half of its members, but takes as many as it can get,
//! because each spare one may be lost. It waits for no member longer than its share of the
//! remaining wait, because another may become free sooner. Of a fair lock that share grows: with
//! each wait that is too short for the queue its position is lost.
//!
//! # Layers
//!
//! It uses the public methods of its members only: each queues, renews, hands off and cleans up as
//! a single lock does. The guard of several locks ([`guards`]) holds the guards of its members.
//! [`members`] tells locks apart and ends detached holds.

mod acquire;
mod guards;
mod members;
mod patience;
#[cfg(test)]
mod tests;

#[cfg(doc)]
use crate::api::guard::LockGuard;
use crate::api::lock::DistLock;
use crate::error::Error;
use members::Members;
use std::sync::Arc;

/// Several locks as one: all of them are held, or none.
///
/// The members may belong to different clients, servers and kinds; a member may itself be a
/// `MultiLock` or a [`MajorityLock`]. Programs may name the same locks in different orders without
/// a deadlock: the lock waits for a member while it holds no other, and tries the others (the
/// algorithm of C++'s `std::lock`). After three rounds in vain it waits for the others as well, for
/// at most 100 ms, or beside a [fair](crate::Client::fair_mutex) lock for at most twice as long as
/// it has waited for them before (with a fixed lease, for at most half of it), and then gives all
/// back. A thread that already holds a member by a guard of its own keeps it while it waits for the
/// others; then the order matters.
///
/// It corresponds to Redisson's `RedissonMultiLock`, and has all methods of [`DistLock`]:
///
/// - The wait is one deadline for all members. An attempt that ends by the deadline, an interrupt,
///   an error or a panic releases what was taken.
/// - Each member has the requested lease, and the watchdog renews each. A fixed lease counts from
///   when the guard is returned: if taking the last member took more than a tenth of it, the
///   earlier ones are extended first.
/// - The guard is lost when one member is lost, and [remains](LockGuard::remaining) until the first
///   lease ends. [`LockGuard::fencing_tokens`] returns the token of each.
/// - Its members stay locks of their own. A thread that holds a member takes one more hold of it.
///   [`hold_count`](DistLock::hold_count) is the number of times that this thread holds *all* of
///   them, and it [holds](DistLock::is_held_by_current_thread) the lock if it holds all members,
///   however it got them.
/// - It [is locked](DistLock::is_locked) while any member is held. [`inspect`](DistLock::inspect)
///   returns the holder whose lease ends last.
/// - [`force_unlock`](DistLock::force_unlock) frees all members, and returns whether any was held.
/// - [`unlock`](DistLock::unlock) ends the newest detached hold on the same locks, also through
///   another handle with the members in another order.
///
/// # Blocking
///
/// The members are asked one after the other, one round trip each. The wait may be exceeded by one
/// command timeout for each member, if all their servers stop answering.
///
/// # Errors
///
/// The text and [`Error::members`] contain the result of each member.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::MultiLock;
///
/// let (here, there) = (
///     distlock::builder().url("memory://here")?.connect()?,
///     distlock::builder().url("memory://there")?.connect()?,
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
pub struct MultiLock(pub(crate) Arc<Members>);

/// A majority of several locks as one: held while more than half of them are.
///
/// It corresponds to Redisson's `RedissonRedLock`: the same lock on several independent servers, so
/// that it survives the loss of some. It has no common [fencing token](LockGuard::fencing_token),
/// because the grants of its members have no common order; each member's own are in
/// [`LockGuard::fencing_tokens`].
///
/// It has all methods of [`DistLock`], as [`MultiLock`] has them, but:
///
/// - It takes every member that it can get, and succeeds with more than half.
/// - It waits for a busy member for at most its share: the remaining wait divided by the number of
///   members, and never more than a second at a time (ten for a fair lock whose queue needs more).
///   Then it tries the others again.
/// - A member that does not answer costs a command timeout; for five seconds after that, this lock
///   asks it last, and only if the others are not enough.
/// - A member that does not answer counts as not taken. If so many do not answer that the lock may
///   or may not be free, it is [unavailable](Error::is_unavailable) and not busy.
/// - The guard is lost when fewer than required are left, and [remains](LockGuard::remaining) for
///   as long as enough of them do. [`LockGuard::unlock`] succeeds if enough members were held until
///   then; failures of the others are reported by the events of their clients.
/// - [`hold_count`](DistLock::hold_count), [`is_locked`](DistLock::is_locked) and the other queries
///   follow from that: held often enough on enough members; locked if it could not be taken now.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::MajorityLock;
///
/// let clients = ["memory://a", "memory://b", "memory://c"]
///     .map(|url| distlock::builder().url(url)?.connect());
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
pub struct MajorityLock(pub(crate) Arc<Members>);

impl MultiLock {
    /// Makes one lock of all these locks. Sends no request.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] without members, or if one of them (the same name of the same client)
    /// is given twice, here or inside another: holding it twice protects nothing more.
    ///
    /// The same name on the same server by two *clients* is not detected: the two wait for each
    /// other.
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
    /// Makes one lock of the majority of these locks. Sends no request.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] with fewer than three members (the majority of one or two is all of
    /// them: a [`MultiLock`]), or if one of them is given twice, as with [`MultiLock::new`].
    pub fn new<I>(members: I) -> Result<Self, Error>
    where
        I: IntoIterator,
        I::Item: Into<Arc<dyn DistLock>>,
    {
        let members = members.into_iter().map(Into::into).collect();
        Ok(Self(Arc::new(Members::majority(members)?)))
    }
}

//! [`MultiLock`] and [`MajorityLock`]: several locks as one.
//!
//! # Acquiring several locks without a deadlock
//!
//! A thread waits for *one* lock while it holds none, and then *tries* the other ones. If a try
//! finds a lock busy, the thread releases all locks and waits for the busy one next. So programs
//! may name the locks in any order. This is the algorithm of C++'s `std::lock` (Howard Hinnant,
//! "Dining Philosophers Rebooted", 2013). Redisson's `RedissonMultiLock` waits for each lock while
//! it holds the ones before, so two programs that name them in opposite orders block each other
//! until both time out.
//!
//! Two threads that each hold one lock and try the other's could fail in step for ever. So a thread
//! pauses after a failed round, for a random time that grows with the number of failures
//! ([`acquire`]). All threads start with the first lock by name, only for speed: they meet at its
//! queue, and its holder finds the others free.
//!
//! A try does not overtake waiters, so it never succeeds on a lock whose queue is never empty
//! (measured: not once in 20 s). After three failed rounds each try therefore waits for a short
//! time ([`patience`]). If the waiters of a member queue in the store, every second round waits for
//! each member while it holds the ones before, for up to twice as long as earlier waits for that
//! lock took: a fixed limit would starve it where a queue needs longer. The lock with the longest
//! wait comes first, while none is held. Locks with similar waits are ordered by name, so that
//! threads do not wait for each other; if equal names make them do so, it is random which thread
//! gives up first. The rounds between only try: a client of another library may hold the lock that
//! this thread waits for, and wait for the ones that this thread holds. Waiting in all queues at
//! once would not shorten any hold: a fair lock whose head does not acquire it is unavailable to
//! other waiters, too.
//!
//! # Differences of a majority
//!
//! A [`MajorityLock`] requires more than half of its members, but acquires as many as it can,
//! because each spare one may be lost. It waits for no member longer than that member's share of
//! the remaining wait, because another may become free sooner. The share of a fair lock grows: each
//! wait that is too short for its queue loses the position.
//!
//! # Layers
//!
//! This module uses only the public methods of the members: each member queues, renews, hands off
//! and cleans up as a single lock does. The guard of several locks ([`guards`]) holds the guards of
//! its members. [`members`] detects duplicate locks and ends detached holds.

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
/// algorithm of C++'s `std::lock`). After three failed rounds it also waits for the others while it
/// holds some, in every second round where those that wait for a member queue in the store, and
/// releases all if the wait fails. Such a wait lasts up to twice as long as earlier waits for that
/// member (with a fixed lease, at most half of the lease). A thread that already holds a
/// member by a separate guard keeps it while it waits for the others; then the order matters.
///
/// It corresponds to Redisson's `RedissonMultiLock`, and has all methods of [`DistLock`]:
///
/// - The wait is one deadline for all members. An attempt that ends by the deadline, an interrupt,
///   an error or a panic releases the locks acquired so far.
/// - Each member has the requested lease, and the watchdog renews each. A fixed lease counts from
///   when the guard is returned: if acquiring the last member took more than a tenth of it, the
///   earlier ones are extended first.
/// - The guard is lost when one member is lost. Its [`remaining`](LockGuard::remaining) time is the
///   shortest of the members. [`LockGuard::fencing_tokens`] returns the token of each.
/// - The members remain usable as single locks. A thread that holds a member gets one more hold of
///   it. [`hold_count`](DistLock::hold_count) is the number of times that this thread holds *all*
///   of them, and it [holds](DistLock::is_held_by_current_thread) the lock if it holds all members,
///   however it acquired them.
/// - It [is locked](DistLock::is_locked) while any member is held. [`inspect`](DistLock::inspect)
///   returns the holder whose lease ends last.
/// - [`force_unlock`](DistLock::force_unlock) frees all members, and returns whether any was held.
/// - [`unlock`](DistLock::unlock) ends the newest detached hold on the same locks, even through
///   another handle with the members in another order.
///
/// # Blocking
///
/// Requests go to the members one after the other, one round trip each. The wait may be exceeded by
/// one command timeout for each member, if all their servers stop answering.
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
/// because the grants of its members have no common order; [`LockGuard::fencing_tokens`] returns
/// the token of each member.
///
/// It has all methods of [`DistLock`], as [`MultiLock`] has them, with these differences:
///
/// - It acquires every member that it can, and succeeds with more than half.
/// - It waits for a busy member for at most its share: the remaining wait divided by the number of
///   members, and never more than a second at a time (ten for a fair lock whose queue needs more).
///   Then it tries the others again.
/// - A member that does not answer costs a command timeout. For five seconds after that, this lock
///   tries it last, and only if the others are not enough.
/// - A member that does not answer counts as not acquired. If so many do not answer that the lock
///   may or may not be free, it is [unavailable](Error::is_unavailable) and not busy.
/// - The guard is lost when fewer than the required members are held. Its
///   [`remaining`](LockGuard::remaining) time ends when fewer than required would be valid.
///   [`LockGuard::unlock`] succeeds if enough members were held until then; the other members'
///   clients report failures as events.
/// - [`hold_count`](DistLock::hold_count), [`is_locked`](DistLock::is_locked) and the other queries
///   follow the same rule: this thread holds it as often as enough members; it is locked if it
///   could not be acquired now.
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
    /// is given twice, directly or inside another member: holding it twice protects nothing more.
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
    /// [`Error::is_misuse`] with fewer than three members (a majority of one or two is all of them:
    /// use a [`MultiLock`]), or if one of them is given twice, as with [`MultiLock::new`].
    pub fn new<I>(members: I) -> Result<Self, Error>
    where
        I: IntoIterator,
        I::Item: Into<Arc<dyn DistLock>>,
    {
        let members = members.into_iter().map(Into::into).collect();
        Ok(Self(Arc::new(Members::majority(members)?)))
    }
}

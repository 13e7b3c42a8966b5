//! [`MultiLock`] and [`MajorityLock`]: several locks as one.
//!
//! # Acquiring several locks without a deadlock
//!
//! A thread waits for *one* lock while it holds none, and then *tries* the other locks. If a try
//! finds a lock busy, the thread releases all locks and waits for the busy lock next. So programs
//! may name the locks in any order. This is the algorithm of C++'s `std::lock` (Howard Hinnant,
//! "Dining Philosophers Rebooted", 2013). Redisson's `RedissonMultiLock` waits for each lock while
//! it holds the earlier locks, so two programs that name the locks in opposite orders block each
//! other until both time out.
//!
//! Two threads that each hold one lock and try the lock of the other could fail in step for ever.
//! So a thread pauses after a failed round, for a random time that grows with the number of
//! failures ([`acquire`]). All threads start with the first lock by name. This only saves time: the
//! threads wait in the queue of this lock, and its holder finds the other locks free.
//!
//! A try does not enter the queue of a lock. So it never succeeds while each release passes the
//! lock to a queued waiter (measured: not once in 20 s). Therefore a thread also waits for the
//! other locks after three failed rounds, each time for a limited time ([`patience`]).
//!
//! If the waiters of a member are queued in the store, every second round after these waits for
//! each member while it holds the earlier ones. Such a wait grows from round to round, up to twice
//! the time that earlier waits suggest: with a fixed limit the thread would never reach the head of
//! a long queue. If all members are required, the member with the longest wait comes first, because
//! no lock is held during the first wait. Members with similar waits are ordered by name, so that
//! threads do not wait for each other. If they still do, for example because the names are equal,
//! random times decide which thread gives up first. The rounds between these only try, because a
//! client of another library may hold the lock that this thread waits for, while that client waits
//! for a lock that this thread holds.
//!
//! A thread does not wait in all queues at once, because that would shorten no hold: while the head
//! of a queue does not acquire its lock, no other waiter gets it, either.
//!
//! # Differences of a majority
//!
//! A [`MajorityLock`] requires more than half of its members, but acquires as many as it can: each
//! member beyond the majority may be lost without losing the lock. While it holds no member, it
//! waits for one of them no longer than that member's share of the remaining wait, because another
//! member may become free sooner. The share of a fair lock grows with the time that its queue
//! needs, because a wait that ends too soon loses its position in the queue.
//!
//! # Layers
//!
//! This module acquires and releases the members only by their public methods and guards: each
//! member queues, renews, hands off and cleans up as a single lock does. The guard of several locks
//! ([`guards`]) contains the guards of its members. [`members`] refuses duplicate locks and ends
//! detached holds.

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

/// Several locks as one lock, which is held while all of them are.
///
/// The members may belong to different clients, servers and kinds; a member may itself be a
/// `MultiLock` or a [`MajorityLock`].
///
/// Programs may name the same locks in different orders without a deadlock. The acquisition waits
/// for one member while it holds no other, and then tries the other members (the algorithm of C++'s
/// `std::lock`). After three failed rounds it also waits for the other members, and releases all
/// members if such a wait fails. If the waiters of a member are queued in the store, it does so in
/// every second round only. Such a wait lasts for at most twice the longest earlier wait for a
/// member, or for a tenth of a second if that is longer; with a fixed lease, for at most half of
/// the lease.
///
/// A deadlock is possible if a thread already holds a member by a separate guard: the thread keeps
/// this hold while it waits for the other members, so two such threads can wait for each other.
///
/// The `MultiLock` corresponds to Redisson's `RedissonMultiLock`, and has all methods of
/// [`DistLock`]:
///
/// - The wait is one time limit for all members together. If the wait ends by the time limit, an
///   interrupt, an error or a panic, the locks acquired so far are released.
/// - Each member has the requested lease. The watchdog renews each member, unless the lease is
///   fixed. A fixed lease of the options counts from the return of the guard: if more than a tenth
///   of a member's lease has passed by then, this lease is extended first, where the store can
///   extend leases.
/// - The guard is lost when one member is lost. Its [`remaining`](LockGuard::remaining) time is the
///   shortest of the members. [`LockGuard::fencing_tokens`] returns the token of each member.
/// - The members remain usable as single locks. A thread that already holds a member gets one more
///   hold of that member. [`hold_count`](DistLock::hold_count) is the number of times that this
///   thread holds *all* members. The thread [holds](DistLock::is_held_by_current_thread) the lock
///   if it holds all members, in whatever way it acquired them.
/// - The lock [is locked](DistLock::is_locked) while any member is held.
///   [`inspect`](DistLock::inspect) returns the holder whose lease ends last.
/// - [`force_unlock`](DistLock::force_unlock) frees all members, and returns whether any was held.
/// - [`unlock`](DistLock::unlock) ends the newest detached hold on the same locks, even through
///   another handle with the members in another order.
///
/// # Blocking
///
/// The members are acquired and released one after the other, with one round trip for each. If all
/// their servers stop answering, a call may exceed the wait by one command timeout for each member.
///
/// # Errors
///
/// An error that members cause contains the result of each member, in its text and in
/// [`Error::members`].
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

/// Several locks as one lock, which is held while more than half of them are.
///
/// It corresponds to Redisson's `RedissonRedLock`: the same lock on several independent servers, so
/// that the lock survives the loss of some servers. It has no common [fencing
/// token](LockGuard::fencing_token), because the grants of its members have no common order;
/// [`LockGuard::fencing_tokens`] returns the token of each member.
///
/// It has all methods of [`DistLock`], with the properties that are listed for [`MultiLock`] and
/// these differences:
///
/// - An acquisition acquires every member that it can, and succeeds with more than half of them.
/// - While no member is held, the wait for a busy member lasts for at most its share, which is the
///   remaining wait divided by the number of members, but at least ten milliseconds and at most a
///   second (ten seconds for a fair lock whose queue needs that long). Then the other members are
///   tried again.
/// - A member that does not answer costs a command timeout. For five seconds after that, this lock
///   tries that member last, and only if the other members are not enough.
/// - A member that does not answer counts as not acquired. If so many members do not answer that
///   the lock may or may not be free, the result is the error [unavailable](Error::is_unavailable)
///   and not "busy".
/// - The guard is lost when fewer than the required members are held. Its
///   [`remaining`](LockGuard::remaining) time ends when fewer than the required members would be
///   valid. [`LockGuard::unlock`] succeeds if the required number of members were held until then
///   and released. The client of each other member reports the failure as an event.
/// - [`hold_count`](DistLock::hold_count), [`is_locked`](DistLock::is_locked) and the other queries
///   also require more than half: the hold count of this thread is the number of times that it
///   holds a majority, and the lock is locked if so many members are held that no majority is free.
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
    /// Makes one lock that requires all of these locks. Sends no request.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if there are no members. Also if a member is given twice, directly or
    /// inside another member, because holding a lock twice protects nothing more. Two locks count
    /// as one if they have the same name and the same client, even if their kinds differ.
    ///
    /// Two members of the same name on the same server that belong to two *clients* are not
    /// detected: the acquisition of one waits for the release of the other, and never succeeds,
    /// unless both are shared locks, such as read locks.
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
    /// Makes one lock that requires more than half of these locks. Sends no request.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if there are fewer than three members, because a majority of one or two
    /// is all of them: use a [`MultiLock`]. Also if a member is given twice, as with
    /// [`MultiLock::new`].
    pub fn new<I>(members: I) -> Result<Self, Error>
    where
        I: IntoIterator,
        I::Item: Into<Arc<dyn DistLock>>,
    {
        let members = members.into_iter().map(Into::into).collect();
        Ok(Self(Arc::new(Members::majority(members)?)))
    }
}

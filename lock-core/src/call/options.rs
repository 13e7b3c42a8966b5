//! [`LockOptions`]: the options of one acquisition, such as its lease and its interrupt.

use crate::backend::replication::Replication;
use crate::call::interrupt::Interrupt;
use crate::error::Error;
use crate::time::lease::Lease;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The options of one acquisition. The maximum wait is not among them: the methods that wait for a
/// limited time have an argument for it.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// # let client = distlock::builder().url("memory://")?.connect()?;
/// # let lock = client.mutex("orders:42")?;
/// use distlock::LockOptions;
/// use std::time::Duration;
///
/// let options = LockOptions::new().lease(Duration::from_secs(10));
/// if let Some(guard) = lock.try_lock_for_with(Duration::from_secs(3), &options)? {
///     guard.unlock()?;
/// }
/// # Ok::<(), distlock::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct LockOptions {
    pub(crate) lease: Option<Lease>,
    pub(crate) interrupt: Option<Interrupt>,
    pub(crate) replication: Option<Replication>,
    pub(crate) at_least: Option<Duration>,
    pub(crate) progress: Option<Progress>,
    pub(crate) is_not_nested: bool,
    /// True if this wait has a time limit only as a part of a wait that has none. Such a wait also
    /// fails when the store has been unreachable for `outage_limit`.
    pub(crate) is_share: bool,
}

/// The callback for the outcome of each request of a wait. Its argument is `None` if the store
/// answered, otherwise the error.
#[derive(Clone)]
pub(crate) struct Progress(Arc<Told>);

type Told = dyn Fn(Option<&Error>) + Send + Sync;

impl Progress {
    pub(crate) fn new(tell: impl Fn(Option<&Error>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(tell))
    }

    pub(crate) fn tell(&self, error: Option<&Error>) {
        (self.0)(error);
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Progress")
    }
}

impl LockOptions {
    /// Creates the default options: a lease that the watchdog renews (or the fixed `lease` of the
    /// settings), and no interrupt.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a fixed lease: it ends after this time, and the watchdog does not renew it.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(Lease::Fixed(lease));
        self
    }

    /// Sets a lease of `ttl` that the watchdog renews, instead of the client's default.
    #[must_use]
    pub fn watched(mut self, ttl: Duration) -> Self {
        self.lease = Some(Lease::watched(ttl));
        self
    }

    /// Sets a lease of `ttl` that the watchdog renews at most `renewals` times. After the last
    /// renewal the lock ends with its lease. A third of the lease after that renewal, the holder is
    /// notified that the lock will be lost: two thirds of the lease are left to roll back its work.
    #[must_use]
    pub fn watched_at_most(mut self, ttl: Duration, renewals: u32) -> Self {
        self.lease = Some(Lease::Watched {
            ttl,
            renewals: Some(renewals),
        });
        self
    }

    /// Sets a minimum hold: the store does not grant the lock again before this time has passed
    /// since its acquisition.
    ///
    /// If the lock is released earlier, it stays busy in the store, without a holder, for the rest
    /// of the time. Neither `unlock` nor the drop of the guard waits for that. Meant for jobs that
    /// several hosts start at about the same time, by clocks that differ: if the minimum hold
    /// exceeds the difference, only one host runs the job.
    ///
    /// A nested hold can only prolong the minimum hold. The lock is not handed off to another
    /// thread of this client. A failover to a replica that lacks the last writes may end the
    /// minimum hold early. If the release does not reach the store, the lock ends with its lease,
    /// as without this option. Not available for wire formats without owners, shared locks, and a
    /// writer whose thread also reads.
    #[must_use]
    pub fn at_least(mut self, time: Duration) -> Self {
        self.at_least = Some(time);
        self
    }

    /// Refuses a nested hold as [misuse](crate::Error::is_misuse), instead of counting it.
    ///
    /// A thread of a work-stealing pool, such as rayon's, may run a second task while a first one
    /// holds the lock and waits. If the second task acquires the same lock, it gets a nested hold,
    /// because both tasks run on one thread: they are not excluded from each other. An
    /// [`OwnedMutex`](crate::OwnedMutex) is never nested.
    #[must_use]
    pub fn not_nested(mut self) -> Self {
        self.is_not_nested = true;
        self
    }

    /// Returns the options for a member of a composite lock. `is_share` is true if the wait for the
    /// composite lock has no time limit. The minimum hold is left out: it is set once all members
    /// are acquired, because members are released again if another one cannot be acquired.
    pub(crate) fn of_member(&self, is_share: bool) -> Self {
        Self {
            at_least: None,
            is_share: is_share || self.is_share,
            ..self.clone()
        }
    }

    /// Sets how many replicas must confirm the lock, instead of the client's setting. A nested hold
    /// cannot require more replicas than the outermost hold.
    #[must_use]
    pub fn replication(mut self, replication: Replication) -> Self {
        self.replication = Some(replication);
        self
    }

    /// Sets an interrupt that ends the wait with
    /// [`Error::is_interrupted`](crate::Error::is_interrupted).
    #[must_use]
    pub fn interrupt(mut self, interrupt: &Interrupt) -> Self {
        self.interrupt = Some(interrupt.clone());
        self
    }

    /// Sets the callback for the outcome of each request of the wait.
    pub(crate) fn progress(mut self, progress: Progress) -> Self {
        self.progress = Some(progress);
        self
    }
}

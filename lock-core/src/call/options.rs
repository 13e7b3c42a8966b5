//! [`LockOptions`]: lease, replication and interrupt of one acquisition.

use crate::backend::replication::Replication;
use crate::call::interrupt::Interrupt;
use crate::error::Error;
use crate::time::lease::Lease;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The options of one acquisition. How long to wait is an argument of the methods that wait for a
/// time, because the others take none.
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
    /// Whether the wait is a part of one without an end, and so has its limit on outages.
    pub(crate) is_share: bool,
}

/// Told of each answer to the requests of a wait: why the store cannot be asked, or `None` where it
/// says whether the lock is free.
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
    /// Makes the default options: a lease that the watchdog renews (or the fixed `lease` of the
    /// settings), no interrupt.
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

    /// Sets a lease of `ttl` that the watchdog renews at most `renewals` times.
    ///
    /// After that the lock is given up: the holder is informed while two thirds of the last lease
    /// are left, to roll its work back.
    #[must_use]
    pub fn watched_at_most(mut self, ttl: Duration, renewals: u32) -> Self {
        self.lease = Some(Lease::Watched {
            ttl,
            renewals: Some(renewals),
        });
        self
    }

    /// Keeps the lock for at least this time, counted from its acquisition, also if it is released
    /// earlier: `unlock` and the drop of the guard return at once, and the store keeps the rest
    /// without a holder. For jobs that several hosts start at about the same time, by clocks that
    /// differ: with a time above the difference only one of them runs.
    ///
    /// A nested hold can only prolong it. The lock is not handed to another thread of this client
    /// without asking the store. After a failover without confirmation by replicas, and if the
    /// release does not reach the store, the lease ends as it would have. Not for wire formats
    /// without owners, for what is shared, and for a writer whose thread reads.
    #[must_use]
    pub fn at_least(mut self, time: Duration) -> Self {
        self.at_least = Some(time);
        self
    }

    /// Returns the options for a member of several locks, whose wait may be a share of one without
    /// an end. A minimum hold begins only once all members are taken: otherwise they are given
    /// back.
    pub(crate) fn of_member(&self, is_share: bool) -> Self {
        Self {
            at_least: None,
            is_share: is_share || self.is_share,
            ..self.clone()
        }
    }

    /// Sets how many replicas must confirm the lock, instead of the client's setting. A nested hold
    /// cannot ask for more than the outermost one has.
    #[must_use]
    pub fn replication(mut self, replication: Replication) -> Self {
        self.replication = Some(replication);
        self
    }

    /// Lets `interrupt` end the wait with [`Error::is_interrupted`](crate::Error::is_interrupted).
    #[must_use]
    pub fn interrupt(mut self, interrupt: &Interrupt) -> Self {
        self.interrupt = Some(interrupt.clone());
        self
    }

    /// Has this told how the wait goes on.
    pub(crate) fn progress(mut self, progress: Progress) -> Self {
        self.progress = Some(progress);
        self
    }
}

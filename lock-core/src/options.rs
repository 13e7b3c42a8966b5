//! [`LockOptions`]: wait, lease, replication and interrupt of one acquisition.

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::lease::Lease;
use crate::replication::Replication;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The options of one acquisition.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::LockOptions;
/// use std::time::Duration;
///
/// let options = LockOptions::new().wait(Duration::from_secs(3)).lease(Duration::from_secs(10));
/// # let _ = options;
/// ```
#[derive(Clone, Debug, Default)]
pub struct LockOptions {
    pub(crate) wait: Option<Duration>,
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
    /// Makes the default options: wait for ever (`lock_with`) or not at all (`try_lock_with`), a
    /// lease that the watchdog renews (or the fixed `lease` of the settings), no interrupt.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long to wait for the lock. Zero is one attempt. For the `try_` methods only.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
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

    /// These options, for a method that waits for ever.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if a wait is set.
    pub(crate) fn without_deadline(&self) -> Result<&Self, Error> {
        match self.wait {
            None => Ok(self),
            Some(wait) => Err(Error::misuse(format!(
                "`lock` waits for ever and takes no wait ({wait:?}): use `try_lock_with`, which \
                says when it was busy"
            ))),
        }
    }

    /// These options, for a method that does not wait by default.
    pub(crate) fn with_deadline(&self) -> Self {
        Self {
            wait: Some(self.wait.unwrap_or_default()),
            ..self.clone()
        }
    }
}

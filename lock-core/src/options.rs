//! [`LockOptions`]: how long to wait, for how long to hold, and what may end the wait.

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::lease::Lease;
use crate::replication::Replication;
use std::time::Duration;

/// What an acquire is to do. Everything has a default; a duration is never taken for another,
/// because each has a name.
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
}

impl LockOptions {
    /// Wait for ever (`lock_with`) or not at all (`try_lock_with`), keep the lock by the watchdog,
    /// not interruptible.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How long to wait for the lock. Zero is one attempt. For the `try_` verbs only.
    #[must_use]
    pub fn wait(mut self, wait: Duration) -> Self {
        self.wait = Some(wait);
        self
    }

    /// Hold the lock for at most this long: it ends by itself, and the watchdog leaves it alone.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = Some(Lease::Fixed(lease));
        self
    }

    /// Let the watchdog keep the lock, with a lease of `ttl` instead of the client's default.
    #[must_use]
    pub fn watched(mut self, ttl: Duration) -> Self {
        self.lease = Some(Lease::watched(ttl));
        self
    }

    /// Let the watchdog keep the lock with a lease of `ttl`, but renew it `renewals` times at most.
    /// After that the lock is given up: the holder is told while two thirds of the last lease are
    /// still left, to roll its work back.
    #[must_use]
    pub fn watched_at_most(mut self, ttl: Duration, renewals: u32) -> Self {
        self.lease = Some(Lease::Watched { ttl, renewals: Some(renewals) });
        self
    }

    /// How many replicas must confirm the lock, instead of the client's setting. It is the
    /// holding's: a hold inside another one cannot ask for more than that has.
    #[must_use]
    pub fn replication(mut self, replication: Replication) -> Self {
        self.replication = Some(replication);
        self
    }

    /// Ends the wait with [`Error::is_interrupted`](crate::Error::is_interrupted) when `interrupt`
    /// fires.
    #[must_use]
    pub fn interrupt(mut self, interrupt: &Interrupt) -> Self {
        self.interrupt = Some(interrupt.clone());
        self
    }

    /// The same for a verb that waits for ever.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if there is a wait in it.
    pub(crate) fn for_ever(&self) -> Result<&Self, Error> {
        match self.wait {
            None => Ok(self),
            Some(wait) => Err(Error::misuse(format!(
                "`lock` waits for ever and takes no wait ({wait:?}): use `try_lock_with`, which \
                says when it was busy"
            ))),
        }
    }

    /// The same for a verb that does not wait unless it is told to.
    pub(crate) fn for_a_while(&self) -> Self {
        Self { wait: Some(self.wait.unwrap_or_default()), ..self.clone() }
    }
}

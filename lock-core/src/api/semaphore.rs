//! [`Semaphore`]: a limited number of permits, over all clients.

use crate::api::guard::OwnedGuard;
use crate::api::lock::UNBOUNDED;
use crate::api::parts::SingleLock;
use crate::backend::permit::{MAX_PERMITS, PermitId};
use crate::backend::{LockInfo, PermitChange, PermitOutcome};
use crate::call::interrupt::Interrupt;
use crate::call::options::LockOptions;
use crate::engine::EngineHandle;
use crate::error::Error;
use crate::kind::LockKind;
use crate::name::LockName;
use crate::time::lease::LeaseTime;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A semaphore: at most `limit` permits are held at once, over all clients that use its name.
///
/// A permit is held by an [`OwnedGuard`]: the watchdog renews the permit, and the guard has a
/// validity, reports a loss, and can be sent to other threads. The permits of a holder that dies
/// are free again when their lease ends. Permits have no fencing tokens and are not reentrant: a
/// thread that holds a permit and requests one acquires a second permit.
///
/// The first client that uses the name stores the limit. If a later client specifies a different
/// limit, the stored limit applies, and the later client emits
/// [`Event::LimitDiffers`](crate::Event::LimitDiffers). [`set_limit`](Self::set_limit) and
/// [`add_permits`](Self::add_permits) change the stored limit.
///
/// A waiter for many permits may be overtaken again and again by callers that acquire single
/// permits: in memory by all of them, on Redis only by attempts that do not wait. A [fair
/// semaphore](crate::Client::fair_semaphore) serves all callers in the order of arrival, whatever
/// number of permits they want.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// let client = distlock::builder().url("memory://")?.connect()?;
/// let downloads = client.semaphore("downloads", 3)?;
/// let permit = downloads.acquire()?;
/// let two = downloads.acquire_many(2)?;
/// assert!(downloads.try_acquire()?.is_none());
/// permit.unlock()?;
/// two.unlock()?;
/// # Ok::<(), distlock::Error>(())
/// ```
#[derive(Clone)]
pub struct Semaphore {
    engine: Arc<EngineHandle>,
    name: LockName,
    limit: u32,
    is_fair: bool,
}

impl Semaphore {
    /// The largest limit. A store may grant fewer permits in one acquisition: Redis grants at most
    /// 1,000, because it serves no other client while the script runs.
    pub const MAX_LIMIT: u32 = MAX_PERMITS;

    pub(crate) fn new(
        engine: Arc<EngineHandle>,
        name: &LockName,
        limit: u32,
        is_fair: bool,
    ) -> Result<Self, Error> {
        engine
            .refuse_kind("semaphores")
            .map_err(|error| error.on(name))?;
        engine.refuse_if_forked().map_err(|error| error.on(name))?;
        check_limit(limit).map_err(|error| error.on(name))?;
        Ok(Self {
            engine,
            name: name.of_kind(LockKind::of_semaphore(is_fair, limit, 1)),
            limit,
            is_fair,
        })
    }

    /// Waits for a permit.
    ///
    /// # Blocking
    ///
    /// As [`Mutex::acquire`](crate::Mutex::acquire) with a `wait` of `None`.
    ///
    /// # Errors
    ///
    /// As [`DistLock`](crate::DistLock#errors).
    pub fn acquire(&self) -> Result<OwnedGuard, Error> {
        self.acquire_many(1)
    }

    /// Waits for a permit until `interrupt` fires.
    ///
    /// # Errors
    ///
    /// As [`DistLock`](crate::DistLock#errors).
    pub fn acquire_interruptibly(&self, interrupt: &Interrupt) -> Result<OwnedGuard, Error> {
        self.acquire_with(1, &LockOptions::new().interrupt(interrupt))
    }

    /// Waits for `count` permits and returns them in one guard: all of them are acquired at once,
    /// or none.
    ///
    /// # Errors
    ///
    /// As [`DistLock`](crate::DistLock#errors); [`Error::is_misuse`] if `count` is zero, more than
    /// the limit of this handle or of the store, or more than the store grants in one acquisition.
    pub fn acquire_many(&self, count: u32) -> Result<OwnedGuard, Error> {
        self.acquire_with(count, &LockOptions::new())
    }

    /// Waits for `count` permits with these options.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Self::acquire_many).
    pub fn acquire_with(&self, count: u32, options: &LockOptions) -> Result<OwnedGuard, Error> {
        Ok(self.take(count, None, options)?.expect(UNBOUNDED))
    }

    /// Acquires a permit if one is free now.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> Result<Option<OwnedGuard>, Error> {
        self.try_acquire_with(1, &LockOptions::new())
    }

    /// Acquires `count` permits with these options if they are free now.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Self::acquire_many).
    pub fn try_acquire_with(
        &self,
        count: u32,
        options: &LockOptions,
    ) -> Result<Option<OwnedGuard>, Error> {
        self.try_acquire_for_with(count, Duration::ZERO, options)
    }

    /// Waits for a permit for at most `wait`. Returns `None` if no permit was granted by then.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire_for(&self, wait: Duration) -> Result<Option<OwnedGuard>, Error> {
        self.try_acquire_for_with(1, wait, &LockOptions::new())
    }

    /// Waits for `count` permits for at most `wait`, with these options.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Self::acquire_many).
    pub fn try_acquire_for_with(
        &self,
        count: u32,
        wait: Duration,
        options: &LockOptions,
    ) -> Result<Option<OwnedGuard>, Error> {
        self.take(count, Some(wait), options)
    }

    /// Acquires all permits that are free now, in one guard. Returns `None` if no permit is free.
    /// Redis grants at most 1,000 permits at once: call this again for more.
    /// [`permit_ids`](OwnedGuard::permit_ids) returns the ID of each permit.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn drain(&self) -> Result<Option<OwnedGuard>, Error> {
        self.drain_with(&LockOptions::new())
    }

    /// Acquires all permits that are free now, as [`drain`](Self::drain) does, with these options.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn drain_with(&self, options: &LockOptions) -> Result<Option<OwnedGuard>, Error> {
        self.drain_for_with(Duration::ZERO, options)
    }

    /// Waits until a permit is free, for at most `wait`, and then acquires all free permits, with
    /// these options.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire).
    pub fn drain_for_with(
        &self,
        wait: Duration,
        options: &LockOptions,
    ) -> Result<Option<OwnedGuard>, Error> {
        self.lock(0)?.acquire_owned(Some(wait), options)
    }

    fn take(
        &self,
        count: u32,
        wait: Option<Duration>,
        options: &LockOptions,
    ) -> Result<Option<OwnedGuard>, Error> {
        if count == 0 || count > self.limit {
            return Err(Error::misuse(format!(
                "{count} permits cannot be taken at once: ask for one at least, and for {} at most",
                self.limit
            ))
            .on(&self.name));
        }
        self.lock(count)?.acquire_owned(wait, options)
    }

    fn lock(&self, count: u32) -> Result<SingleLock, Error> {
        let name = self
            .name
            .of_kind(LockKind::of_semaphore(self.is_fair, self.limit, count));
        SingleLock::new(Arc::clone(&self.engine), &name)
    }

    /// Returns the limit of this handle: the number that the client specified, or the limit that
    /// the last change by this handle has set.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Sets the limit in the store and of this handle. Returns the former limit in the store;
    /// `None` if no client had used the semaphore yet.
    ///
    /// If more permits are held than the new limit allows, they stay valid until their holders
    /// release them, and no permit is granted until fewer than the limit are held. If a caller
    /// already waits for more permits than the new limit, its wait continues, because the limit may
    /// rise again. A fair semaphore removes this waiter from its queue, and appends it to the end
    /// of the queue after the limit has risen.
    ///
    /// # Blocking
    ///
    /// One request, at most for the command timeout.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`], [`Error::is_foreign_format`]; [`Error::is_misuse`] if the limit
    /// is zero or more than [`MAX_LIMIT`](Self::MAX_LIMIT).
    pub fn set_limit(&mut self, limit: u32) -> Result<Option<u32>, Error> {
        check_limit(limit).map_err(|error| error.on(&self.name))?;
        match self.change(PermitChange::SetLimit(limit))? {
            PermitOutcome::Limit { before, now } => {
                self.name_limit(now);
                Ok(before)
            }
            _ => Err(self.unexpected()),
        }
    }

    /// Adds `more`, which may be negative, to the limit in the store. The store reads and changes
    /// the limit in one step, so concurrent changes by several programs add up. Returns the new
    /// limit, which also becomes the limit of this handle. If no client has used the semaphore yet,
    /// `more` is added to the limit of this handle.
    ///
    /// Held permits and waiters are affected as by [`set_limit`](Self::set_limit).
    ///
    /// # Blocking
    ///
    /// One request, at most for the command timeout.
    ///
    /// # Errors
    ///
    /// - [`Error::is_misuse`]: the new limit would be below one or above
    ///   [`MAX_LIMIT`](Self::MAX_LIMIT). Nothing was changed.
    /// - [`Error::is_unavailable`]: the change may or may not have been applied. It is never
    ///   applied twice. Call [`inspect`](Self::inspect) before you repeat it.
    /// - [`Error::is_foreign_format`].
    pub fn add_permits(&mut self, more: i32) -> Result<u32, Error> {
        match self.change(PermitChange::AddLimit(more))? {
            PermitOutcome::Limit { now, .. } => {
                self.name_limit(now);
                Ok(now)
            }
            _ => Err(self.unexpected()),
        }
    }

    /// Releases one permit, whichever program acquired it, and returns whether it was held.
    ///
    /// If a guard of this library holds the permit, this counts as a loss of the guard. The guard's
    /// client detects the loss at the next renewal, [`verify`](OwnedGuard::verify) or `unlock`, and
    /// then also releases the guard's other permits.
    ///
    /// # Blocking
    ///
    /// One request, at most for the command timeout.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`], [`Error::is_foreign_format`].
    pub fn release_permit(&self, id: PermitId) -> Result<bool, Error> {
        self.change_permit(PermitChange::Release(id))
    }

    /// Extends the lease of one permit, whichever program acquired it, to at least `lease` from
    /// now. Returns whether the permit is held. Never shortens the lease.
    ///
    /// The validity of a guard that holds the permit does not change. If the guard's process ends
    /// without a release, the permit stays held until the end of this lease.
    ///
    /// # Blocking
    ///
    /// One request, at most for the command timeout.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`], [`Error::is_foreign_format`]; [`Error::is_misuse`] for an invalid
    /// lease.
    pub fn extend_permit(&self, id: PermitId, lease: Duration) -> Result<bool, Error> {
        let lease = LeaseTime::new(lease).map_err(|error| error.on(&self.name))?;
        self.change_permit(PermitChange::Extend(id, lease))
    }

    fn change_permit(&self, change: PermitChange) -> Result<bool, Error> {
        match self.change(change)? {
            PermitOutcome::Changed => Ok(true),
            PermitOutcome::NotTaken => Ok(false),
            PermitOutcome::Limit { .. } => Err(self.unexpected()),
        }
    }

    fn change(&self, change: PermitChange) -> Result<PermitOutcome, Error> {
        self.lock(1)?.change_permits(change)
    }

    fn name_limit(&mut self, limit: u32) {
        self.limit = limit;
        self.name = self
            .name
            .of_kind(LockKind::of_semaphore(self.is_fair, limit, 1));
    }

    fn unexpected(&self) -> Error {
        Error::unavailable("the store gave the answer to another question").on(&self.name)
    }

    /// Returns the state of the semaphore in the store. The field [`permits`](LockInfo::permits)
    /// contains the limit and the number of free permits; it is `None` if no client has used the
    /// semaphore yet.
    ///
    /// # Blocking
    ///
    /// One request, at most for the command timeout.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`], [`Error::is_foreign_format`].
    pub fn inspect(&self) -> Result<LockInfo, Error> {
        self.lock(1)?.inspect()
    }

    /// Releases all permits of all holders, and returns whether any were held. For operators: every
    /// holder loses its permits, and detects the loss. The limit does not change. If no permit is
    /// held but waiters are queued in the store, the first waiter is removed from the queue
    /// instead, because it may be dead and block the other waiters.
    ///
    /// # Blocking
    ///
    /// One request, at most for the command timeout.
    ///
    /// # Errors
    ///
    /// [`Error::is_unavailable`], [`Error::is_foreign_format`].
    pub fn force_release_all(&self) -> Result<bool, Error> {
        self.lock(1)?.force_unlock()
    }

    /// Returns the name of the semaphore.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.name
    }
}

fn check_limit(limit: u32) -> Result<(), Error> {
    if limit == 0 || limit > Semaphore::MAX_LIMIT {
        return Err(Error::misuse(format!(
            "a semaphore has 1 to {} permits, not {limit}",
            Semaphore::MAX_LIMIT
        )));
    }
    Ok(())
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("name", &self.name)
            .field("limit", &self.limit)
            .finish()
    }
}

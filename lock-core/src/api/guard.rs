//! [`LockGuard`] and [`OwnedGuard`]: the guards of held locks.

use crate::backend::permit::PermitId;
use crate::backend::token::FencingToken;
use crate::call::notification::{Notification, notification};
use crate::engine::acquisition::{Acquisition, GuardState, Listener};
use crate::engine::holder::thread_id;
use crate::engine::queue::LocalLock;
use crate::engine::{CompositeHold, EngineHandle};
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::observe::loss::Loss;
use crate::time::Moment;
use crate::time::lease::LeaseTime;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// One hold on the acquisition of a single lock.
pub(crate) struct Hold {
    engine: Arc<EngineHandle>,
    local: Arc<LocalLock>,
    /// `None` after `unlock` and `detach`: then `Drop` does nothing.
    acquisition: Option<Arc<Acquisition>>,
}

/// The holds on several locks that were acquired together, with the methods of [`Hold`].
pub(crate) trait CompositeGuard: fmt::Debug + Sync {
    fn unlock(self: Box<Self>) -> Result<(), Error>;
    fn detach(self: Box<Self>, composite: Option<CompositeHold>);
    fn name(&self) -> &LockName;
    fn fencing_tokens(&self) -> Vec<(LockName, Option<FencingToken>)>;
    /// Returns `None`: the grants of several locks have no common order.
    fn fencing_token(&self) -> Option<FencingToken> {
        None
    }
    fn is_valid(&self) -> bool;
    fn remaining(&self) -> Duration;
    fn ensure(&self, time: Duration) -> Result<(), Error>;
    fn extend(&self, time: Duration) -> Result<(), Error>;
    fn restart_lease(&self, lease: LeaseTime) -> Result<(), Error>;
    fn keep(&self, time: LeaseTime);
    fn keep_at_least(&self, time: Duration) -> Result<(), Error>;
    fn verify(&self) -> Result<Duration, Error>;
    fn state(&self) -> GuardState;
    fn loss(&self) -> Option<Loss>;
    fn listen(&self, listener: Listener);
    #[cfg(test)]
    fn listeners(&self) -> usize;
}

impl Hold {
    pub(crate) fn new(
        engine: Arc<EngineHandle>,
        local: Arc<LocalLock>,
        acquisition: Arc<Acquisition>,
    ) -> Self {
        Self {
            engine,
            local,
            acquisition: Some(acquisition),
        }
    }

    fn acquisition(&self) -> &Arc<Acquisition> {
        self.acquisition
            .as_ref()
            .expect("`unlock` and `detach` consume the hold")
    }

    fn take(&mut self) -> Arc<Acquisition> {
        self.acquisition
            .take()
            .expect("`unlock` and `detach` consume the hold")
    }

    pub(crate) fn keep(&self, time: LeaseTime) {
        self.engine.keep(self.acquisition(), time);
    }

    fn keep_at_least(&self, time: Duration) -> Result<(), Error> {
        let time = self
            .engine
            .minimum_hold(self.name(), time)
            .map_err(|error| error.on(self.name()))?;
        self.engine.must_hold(&self.local, self.acquisition())?;
        self.keep(time);
        Ok(())
    }

    fn unlock(mut self) -> Result<(), Error> {
        let acquisition = self.take();
        self.engine.end_hold(&self.local, &acquisition)
    }

    fn detach(mut self, composite: Option<CompositeHold>) {
        let acquisition = self.take();
        self.engine
            .detach(thread_id(), &self.local, &acquisition, composite);
    }

    fn name(&self) -> &LockName {
        &self.acquisition().name
    }

    fn fencing_token(&self) -> Option<FencingToken> {
        self.acquisition().token
    }

    fn is_valid(&self) -> bool {
        self.engine.is_valid(self.acquisition())
    }

    fn remaining(&self) -> Duration {
        self.engine.remaining(self.acquisition())
    }

    fn ensure(&self, time: Duration) -> Result<(), Error> {
        self.engine.must_hold(&self.local, self.acquisition())?;
        if self.remaining() < time {
            // The result shows in the remaining validity.
            let _outcome = self.begin_lease();
            self.engine.must_hold(&self.local, self.acquisition())?;
        }
        require_remaining(self.remaining(), time, &self.acquisition().name)
    }

    fn extend(&self, time: Duration) -> Result<(), Error> {
        self.engine.must_hold(&self.local, self.acquisition())?;
        if self.remaining() >= time {
            return Ok(());
        }
        // At least `time` must remain when this returns, so the lease is a little longer.
        let Acquisition {
            name, replication, ..
        } = &**self.acquisition();
        let lease = time
            .saturating_add(time / 50)
            .saturating_add(Duration::from_millis(10));
        let checked = |lease| LeaseTime::new(lease).map_err(|error| error.on(name));
        let lead = self
            .engine
            .replica_lead(name, checked(lease)?, *replication);
        self.restart_lease(checked(lease.saturating_add(lead))?)
    }

    /// Extends a direct grant, which has a shorter lease, to the requested lease.
    fn begin_lease(&self) -> Result<(), Error> {
        self.acquisition()
            .lease_to_come()
            .map_or(Ok(()), |lease| self.restart_lease(lease))
    }

    /// Extends the lease to its full length from now.
    fn restart_lease(&self, lease: LeaseTime) -> Result<(), Error> {
        self.engine.extend(&self.local, self.acquisition(), lease)
    }

    fn verify(&self) -> Result<Duration, Error> {
        self.engine.verify(&self.local, self.acquisition())
    }

    fn loss(&self) -> Option<Loss> {
        self.current_state()?;
        self.acquisition().loss()
    }

    fn listen(&self, listener: Listener) {
        if self.current_state().is_some() {
            self.acquisition().listen(listener);
        }
    }

    fn state(&self) -> GuardState {
        match self.current_state().unwrap_or(GuardState::Lost) {
            GuardState::Held if !self.is_valid() => GuardState::Suspended,
            state => state,
        }
    }

    /// Returns the state. A passed deadline counts as a loss even before the watchdog records it.
    /// `None` in a forked child, which must not lock a mutex that a thread of the parent may hold.
    fn current_state(&self) -> Option<GuardState> {
        match self.engine.must_hold(&self.local, self.acquisition()) {
            Err(error) if error.is_misuse() => None,
            _ => Some(self.acquisition().recorded_state()),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(acquisition) = &self.acquisition {
            self.engine.end_hold_async(&self.local, acquisition);
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.acquisition().name)
            .field("token", &self.acquisition().token)
            .field("state", &self.acquisition().recorded_state())
            .field("remaining", &self.remaining())
            .finish()
    }
}

/// The hold of a thread's guard. A single lock needs no allocation.
enum Held {
    Single(Hold),
    Composite(Box<dyn CompositeGuard>),
}

/// Calls the method of the variant.
macro_rules! either {
    ($held:expr, $hold:ident => $call:expr) => {
        match $held {
            Held::Single($hold) => $call,
            Held::Composite($hold) => $call,
        }
    };
}

/// Calls the method of a guard that always has a single hold.
macro_rules! single {
    ($held:expr, $hold:ident => $call:expr) => {{
        let $hold = $held;
        $call
    }};
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        either!(self, hold => hold.fmt(f))
    }
}

/// Fails if less than `time` remains of the lease.
pub(crate) fn require_remaining(
    left: Duration,
    time: Duration,
    lock: &LockName,
) -> Result<(), Error> {
    if left >= time {
        return Ok(());
    }
    let message = format!(
        "{left:.1?} are left of the lease, and {time:.1?} are needed: extend it, or stop here"
    );
    Err(Error::new(ErrorKind::LeaseTooShort, message).on(lock))
}

/// The methods of both guards; `$dispatch` calls those of their holds.
macro_rules! guard_methods {
    ($dispatch:ident) => {
        /// Ends this hold; the last one releases the lock in the store.
        ///
        /// # Blocking
        ///
        /// Until the store has answered, at most for the command timeout. A nested hold sends no
        /// request.
        ///
        /// # Errors
        ///
        /// - [`Error::is_lost`]: the lock was lost before. Another holder may have entered while
        ///   this guard was held; treat the work done under it as suspect.
        /// - [`Error::is_unavailable`]: the release was not confirmed. The client retries it in the
        ///   background, and the lease ends the lock in any case.
        pub fn unlock(self) -> Result<(), Error> {
            $dispatch!(self.0, hold => hold.unlock())
        }

        /// Sets a minimum hold: the lock stays busy for at least this time, counted from its
        /// acquisition. Like [`LockOptions::at_least`](crate::LockOptions::at_least), for a job
        /// that has begun.
        ///
        /// # Errors
        ///
        /// [`Error::is_misuse`] or [`ErrorKind::Unsupported`]: the store does not keep a released
        /// lock for so long, or not at all; [`Error::is_lost`] if the lock is lost.
        pub fn keep_at_least(&self, time: Duration) -> Result<(), Error> {
            $dispatch!(&self.0, hold => hold.keep_at_least(time))
        }

        /// Returns the name of the lock.
        #[must_use]
        pub fn name(&self) -> &LockName {
            $dispatch!(&self.0, hold => hold.name())
        }

        /// Returns the token of this acquisition, even after the lock was lost.
        ///
        /// Nested guards have the same token. `None` if the store or its wire format has no tokens,
        /// if they are switched off, or for the guard of several locks, even of one name on several
        /// servers: their grants have no common order, so a single number could let an old holder
        /// pass. [`LockGuard::fencing_tokens`] returns the token of each lock.
        ///
        /// Pass it to the protected resource, and let the resource refuse smaller tokens than it
        /// has seen.
        #[must_use]
        pub fn fencing_token(&self) -> Option<FencingToken> {
            $dispatch!(&self.0, hold => hold.fencing_token())
        }

        /// Returns whether the lock is still held, by the local clock. Sends no request. The answer
        /// is correct even in the first call after this process was paused past its lease.
        ///
        /// If the time of day was set ahead, as after a pause of a virtual machine with its clocks,
        /// that much time may have passed. A lock that would have expired by then is not valid
        /// until the store confirms it, which starts at once in the background.
        #[must_use]
        pub fn is_valid(&self) -> bool {
            $dispatch!(&self.0, hold => hold.is_valid())
        }

        /// Returns a `tracing` span of level debug for the work under the lock, with the lock's
        /// name and token. Each call makes a new one; enter it as in
        /// `let _entered = guard.span().entered();`.
        #[cfg(feature = "tracing")]
        #[must_use]
        pub fn span(&self) -> tracing::Span {
            crate::observe::trace::held(self.name(), self.fencing_token())
        }

        /// Returns how long the lock stays held without a renewal; zero if it is lost. Sends no
        /// request.
        #[must_use]
        pub fn remaining(&self) -> Duration {
            $dispatch!(&self.0, hold => hold.remaining())
        }

        /// Fails unless at least `time` remains of the lease. Call it before a step that takes that
        /// long.
        ///
        /// # Blocking
        ///
        /// Sends no request, except for a lock that the release of another client has just
        /// granted: its whole lease begins with its first renewal, within a second. That renewal is
        /// sent at once, and may take twice the command timeout.
        ///
        /// # Errors
        ///
        /// [`Error::is_lost`] if the lock is lost, [`Error::is_lease_too_short`] if less time
        /// remains.
        pub fn ensure(&self, time: Duration) -> Result<(), Error> {
            $dispatch!(&self.0, hold => hold.ensure(time))
        }

        /// Queries the store whether the lock is still held, and returns a lower bound of the lease
        /// that remains there ([`Duration::MAX`] if it has no end).
        ///
        /// If another holder or none has the lock, or the answer arrives after the guard's own
        /// deadline, the guard is lost from here on.
        ///
        /// The answer never comes from a replica. With Sentinel, the sentinels are also queried
        /// whether the server that answered is still the master. An isolated master is believed if
        /// no reachable sentinel knows of its successor, and the state may change after the answer:
        /// use the fencing token against both.
        ///
        /// # Blocking
        ///
        /// One request, at most for the command timeout; with Sentinel a second one to the
        /// sentinels, within it.
        ///
        /// # Errors
        ///
        /// [`Error::is_lost`] if the lock is not held, [`Error::is_unavailable`] if the store did
        /// not answer, [`Error::is_unsupported`] if the wire format does not record the holder.
        pub fn verify(&self) -> Result<Duration, Error> {
            $dispatch!(&self.0, hold => hold.verify())
        }

        /// Extends the lease to at least `time` from now. Sends no request if as much remains;
        /// never shortens the lease.
        ///
        /// # Blocking
        ///
        /// One request, at most for twice the command timeout; with `replicas`, twice the sum of it
        /// and the replication timeout.
        ///
        /// # Errors
        ///
        /// [`Error::is_lost`] if the lock is lost, [`Error::is_unavailable`] if the store did not
        /// confirm, or [`Error::is_insufficient_replicas`] if too few replicas did (the old
        /// deadline then remains), [`Error::is_misuse`] for an invalid lease,
        /// [`Error::is_unsupported`] if the wire format does not record the holder.
        pub fn extend(&self, time: Duration) -> Result<(), Error> {
            $dispatch!(&self.0, hold => hold.extend(time))
        }

        /// Returns the state of the lock. Sends no request.
        #[must_use]
        pub fn state(&self) -> GuardState {
            $dispatch!(&self.0, hold => hold.state())
        }

        /// Returns why the lock was lost, or will be lost because no renewals are left. Sends no
        /// request.
        #[must_use]
        pub fn loss(&self) -> Option<Loss> {
            $dispatch!(&self.0, hold => hold.loss())
        }

        /// Returns a channel that gets one message when the lock is lost or will not be renewed any
        /// more, at once if that has happened.
        ///
        /// The channel is closed without a message when the lock is released. Any thread may
        /// receive from it. Each call makes a new channel.
        #[must_use]
        pub fn losses(&self) -> Notification<Loss> {
            let (sender, wanted, notification) = notification();
            let listener = Listener::new(wanted, move |loss| {
                // The receiver may have been dropped.
                let _sent = sender.try_send(loss);
            });
            $dispatch!(&self.0, hold => hold.listen(listener));
            notification
        }
    };
}

/// A hold on a lock that belongs to the thread that acquired it. Dropping it unlocks.
///
/// `Drop` stops the renewal first, so that the lease ends in any case. Then it sends the release
/// without waiting for the answer, where the store supports that. When `drop` returns, the request
/// has been sent or is queued with those of other threads, and another client may still find the
/// lock held. A program that exits without dropping its client, for example by
/// [`std::process::exit`], may exit before the request is sent: then the lock stays held until its
/// lease ends. [`unlock`](Self::unlock) waits for the answer. `Drop` blocks for at most the command
/// timeout, if the store accepts no requests. It never panics. A failed release is reported as an
/// event and retried in the background. There is no poisoning: a panic releases.
///
/// A leaked guard ([`std::mem::forget`]) leaves the lock held, and renewed, until its thread or the
/// program ends.
///
/// The thread that locked must unlock, as in Java: the guard is not `Send`, and the compiler prints
/// `GuardStaysOnItsThreadUseOwnedMutexToSendOne`. The guard of an [`OwnedMutex`](crate::OwnedMutex)
/// can be sent.
///
/// ```compile_fail,E0277
/// # extern crate lock_core as distlock;
/// # let client = distlock::builder().url("memory://")?.connect()?;
/// let guard = client.mutex("orders:42")?.lock()?;
/// std::thread::spawn(move || guard.unlock()); // does not compile
/// # Ok::<(), distlock::Error>(())
/// ```
///
/// ```
/// # extern crate lock_core as distlock;
/// # let client = distlock::builder().url("memory://")?.connect()?;
/// let guard = client.owned_mutex("orders:42")?.lock()?;
/// std::thread::spawn(move || guard.unlock()); // with an `OwnedMutex` it does
/// # Ok::<(), distlock::Error>(())
/// ```
///
/// A guard unlocks once:
///
/// ```compile_fail,E0382
/// # extern crate lock_core as distlock;
/// fn twice(guard: distlock::LockGuard) {
///     let _ = guard.unlock();
///     let _ = guard.unlock();
/// }
/// ```
#[must_use = "a guard that is not kept unlocks at once: write `let _guard = ...`"]
#[clippy::has_significant_drop]
pub struct LockGuard(
    Held,
    PhantomData<dyn GuardStaysOnItsThreadUseOwnedMutexToSendOne>,
);

/// Makes a guard `Sync` and not `Send`. The compiler prints its name where a guard is sent.
trait GuardStaysOnItsThreadUseOwnedMutexToSendOne: Sync {}

impl LockGuard {
    pub(crate) fn new(hold: Hold) -> Self {
        Self(Held::Single(hold), PhantomData)
    }

    /// Makes the guard of several locks that were acquired together.
    pub(crate) fn composite(composite: impl CompositeGuard + 'static) -> Self {
        Self(Held::Composite(Box::new(composite)), PhantomData)
    }

    guard_methods!(either);

    /// Returns the name and the token of each lock of this guard, in the order in which the locks
    /// were given. For a single lock the token is [`fencing_token`](Self::fencing_token).
    ///
    /// Several locks have no common token: each protected resource compares the token of *its* lock
    /// with those that it has seen. A lock that a [`MajorityLock`](crate::MajorityLock) did not
    /// acquire is listed with `None`.
    #[must_use]
    pub fn fencing_tokens(&self) -> Vec<(LockName, Option<FencingToken>)> {
        match &self.0 {
            Held::Single(hold) => vec![(hold.name().clone(), hold.fencing_token())],
            Held::Composite(composite) => composite.fencing_tokens(),
        }
    }

    /// Sets a minimum hold: the store keeps the lock busy for this time, even after its release.
    pub(crate) fn keep(&self, time: LeaseTime) {
        either!(&self.0, hold => hold.keep(time));
    }

    pub(crate) fn restart_lease(&self, lease: LeaseTime) -> Result<(), Error> {
        either!(&self.0, hold => hold.restart_lease(lease))
    }

    pub(crate) fn listen(&self, listener: Listener) {
        either!(&self.0, hold => hold.listen(listener));
    }

    pub(crate) fn detach_as(self, composite: Option<CompositeHold>) {
        either!(self.0, hold => hold.detach(composite));
    }

    /// Returns how many listeners wait for a loss.
    #[cfg(test)]
    pub(crate) fn listeners(&self) -> usize {
        match &self.0 {
            Held::Single(hold) => hold.acquisition().listeners(),
            Held::Composite(composite) => composite.listeners(),
        }
    }

    /// Detaches the hold from its guard: it stays with this thread until
    /// [`DistLock::unlock`](crate::DistLock::unlock) ends it. For code that locks in one place and
    /// unlocks in another.
    ///
    /// The watchdog renews the hold for as long as the thread lives. A fixed lease lasts until its
    /// end, even if the thread ends before. Dropping the last handle of the client releases the
    /// lock.
    pub fn detach(self) {
        self.detach_as(None);
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A hold on a lock that belongs to no thread and can be sent to another one. Dropping it unlocks.
///
/// It behaves like a [`LockGuard`], but is never reentrant. If the thread that acquired it ends,
/// the guard and its lock continue.
#[must_use = "a guard that is not kept unlocks at once: write `let _guard = ...`"]
#[clippy::has_significant_drop]
pub struct OwnedGuard(Hold);

impl OwnedGuard {
    pub(crate) fn new(hold: Hold) -> Self {
        Self(hold)
    }

    /// Returns the end of the validity without a renewal, by the clock alone.
    pub(crate) fn deadline(&self) -> Moment {
        self.0.acquisition().valid_until()
    }

    /// Extends a direct grant, which has a shorter lease, to the requested lease. Blocks for at
    /// most twice the command timeout; for other grants it sends no request.
    pub(crate) fn begin_lease(&self) -> Result<(), Error> {
        self.0.begin_lease()
    }

    /// Adds a listener for a loss, and calls it at once after a loss.
    pub(crate) fn on_loss(&self, listener: Listener) {
        self.0.listen(listener);
    }

    /// Returns the permits of a [semaphore](crate::Semaphore) that this guard holds, as other
    /// programs name them; empty for another kind of lock. Sends no request.
    ///
    /// Any program that knows a permit's ID can release it.
    #[must_use]
    pub fn permit_ids(&self) -> Vec<PermitId> {
        let Acquisition { name, owner, .. } = &**self.0.acquisition();
        let (_, count) = name.permits().unwrap_or_default();
        (0..count)
            .map(|number| PermitId::new(*owner, number))
            .collect()
    }

    guard_methods!(single);
}

impl fmt::Debug for OwnedGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

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
    /// `None` after `unlock` or `detach`. Then `Drop` does nothing.
    acquisition: Option<Arc<Acquisition>>,
}

/// The guard of several locks that were acquired together. Most methods are those of [`Hold`].
pub(crate) trait CompositeGuard: fmt::Debug + Sync {
    fn unlock(self: Box<Self>) -> Result<(), Error>;
    fn detach(self: Box<Self>, composite: Option<CompositeHold>);
    fn name(&self) -> &LockName;
    fn fencing_tokens(&self) -> Vec<(LockName, Option<FencingToken>)>;
    /// Returns `None`, because the grants of several locks have no common order.
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
            // The outcome is ignored: the validity that remains below shows whether the extension
            // worked.
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
        // The requested lease is a little longer than `time`: otherwise less than `time` would
        // remain when this function returns.
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

    /// Extends the lease to its full length if the lock has not had it yet, because another
    /// client's release granted the lock or another thread of this client handed it off. Otherwise
    /// sends no request.
    fn begin_lease(&self) -> Result<(), Error> {
        self.acquisition()
            .lease_to_come()
            .map_or(Ok(()), |lease| self.restart_lease(lease))
    }

    /// Extends the lease to at least `lease`, counted from now.
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

    /// Returns the state, and records a loss if the deadline has passed. Returns `None` in a forked
    /// child: a thread of the parent may have held the mutex of the acquisition at the fork, and in
    /// the child that mutex stays locked for ever.
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

/// The content of a [`LockGuard`]: the hold on one lock, without an allocation, or the guard of
/// several locks.
enum Held {
    Single(Hold),
    Composite(Box<dyn CompositeGuard>),
}

/// Runs `$call` on the content of either variant of [`Held`].
macro_rules! either {
    ($held:expr, $hold:ident => $call:expr) => {
        match $held {
            Held::Single($hold) => $call,
            Held::Composite($hold) => $call,
        }
    };
}

/// Runs `$call` on the hold of an [`OwnedGuard`], which has no variants.
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

/// Returns an error if `left`, the rest of the lease, is shorter than `time`.
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

/// Defines the methods that [`LockGuard`] and [`OwnedGuard`] have in common. `$dispatch` is the
/// macro that calls the method of the hold.
macro_rules! guard_methods {
    ($dispatch:ident) => {
        /// Ends this hold. The last hold releases the lock in the store, or hands it to a waiting
        /// thread of this client.
        ///
        /// # Blocking
        ///
        /// Until the store has answered, at most for the command timeout; for several locks one
        /// request for each, in turn. Ending a nested hold and handing the lock to another thread
        /// send no request.
        ///
        /// # Errors
        ///
        /// - [`Error::is_lost`]: the lock was lost before this call. Another holder may have
        ///   entered while this guard was held, so treat the work done under it as suspect.
        /// - [`Error::is_unavailable`]: the store did not confirm the release. The client retries
        ///   the release in the background, unless the wire format does not record the holder. The
        ///   lease ends the lock in any case.
        /// - [`Error::is_configuration`]: the store refuses this client's release, for example
        ///   because a right is missing. The lease ends the lock.
        pub fn unlock(self) -> Result<(), Error> {
            $dispatch!(self.0, hold => hold.unlock())
        }

        /// Sets a minimum hold: the lock stays busy in the store for at least `time` after its
        /// acquisition, even if it is released earlier.
        ///
        /// Has the effect of [`LockOptions::at_least`](crate::LockOptions::at_least), but can be
        /// called after the acquisition, when a job finds that it needs the minimum hold.
        ///
        /// # Errors
        ///
        /// - [`ErrorKind::Unsupported`]: the wire format does not record the holder, or the lock is
        ///   shared.
        /// - [`Error::is_misuse`]: `time` is shorter or longer than the store's leases may be, or
        ///   the lock is a write lock and this thread also holds the read lock of the same name.
        /// - [`Error::is_lost`]: the lock is lost.
        pub fn keep_at_least(&self, time: Duration) -> Result<(), Error> {
            $dispatch!(&self.0, hold => hold.keep_at_least(time))
        }

        /// Returns the name of the lock.
        #[must_use]
        pub fn name(&self) -> &LockName {
            $dispatch!(&self.0, hold => hold.name())
        }

        /// Returns the fencing token of this acquisition, even after the lock was lost.
        ///
        /// Nested guards have the same token. The result is `None` if the store or its wire format
        /// has no tokens, if tokens are switched off, for a semaphore, and for a reader if the
        /// store knows no token of a writer.
        ///
        /// The result is also `None` for the guard of several locks, even if the locks have one
        /// name on several servers: their grants have no common order, so a single number could let
        /// an old holder pass. [`LockGuard::fencing_tokens`] returns the token of each lock.
        ///
        /// Pass the token to the protected resource, and let the resource refuse a token that is
        /// smaller than the largest it has seen.
        #[must_use]
        pub fn fencing_token(&self) -> Option<FencingToken> {
            $dispatch!(&self.0, hold => hold.fencing_token())
        }

        /// Returns whether the lock is still held, according to the local clock. Sends no request.
        /// If this process was paused until after the end of the lease, the first call after the
        /// pause already returns `false`.
        ///
        /// If the time of day jumps ahead, the lease may have ended unnoticed: a virtual machine
        /// that is paused stops its clocks, and sets the time of day afterwards. A lock whose
        /// remaining lease is not longer than the jump is then not valid until the store confirms
        /// it. The client queries the store at once, in the background.
        #[must_use]
        pub fn is_valid(&self) -> bool {
            $dispatch!(&self.0, hold => hold.is_valid())
        }

        /// Returns a new `tracing` span of level debug for the work under the lock, with the lock's
        /// name and token. Enter the span as in `let _entered = guard.span().entered();`.
        #[cfg(feature = "tracing")]
        #[must_use]
        pub fn span(&self) -> tracing::Span {
            crate::observe::trace::held(self.name(), self.fencing_token())
        }

        /// Returns how long the lock stays valid without a renewal; zero if it is not
        /// [valid](Self::is_valid). Sends no request.
        #[must_use]
        pub fn remaining(&self) -> Duration {
            $dispatch!(&self.0, hold => hold.remaining())
        }

        /// Returns an error if less than `time` remains of the lease. Call this before a step that
        /// takes that long.
        ///
        /// # Blocking
        ///
        /// Sends no request, with one exception. A lock that another client's release has just
        /// granted has a short lease until its first renewal (by default for a second). A lock that
        /// another thread of this client has just handed off has the rest of that thread's lease
        /// until its next renewal. If less than `time` remains of such a lease, the lock is renewed
        /// at once, which may take as long as [`extend`](Self::extend).
        ///
        /// # Errors
        ///
        /// [`Error::is_lost`] if the lock is lost, [`Error::is_lease_too_short`] if less time
        /// remains.
        pub fn ensure(&self, time: Duration) -> Result<(), Error> {
            $dispatch!(&self.0, hold => hold.ensure(time))
        }

        /// Queries the store to check that the lock is still held. Returns a lower bound of the
        /// lease that remains in the store ([`Duration::MAX`] if it has no end).
        ///
        /// If another owner or none holds the lock in the store, or if the answer arrives after the
        /// end of the guard's validity, the guard counts as lost from now on.
        ///
        /// The answer never comes from a replica. With Sentinel, the client also queries the
        /// sentinels to check that the server that answered is still the master. The answer may
        /// still be wrong in two cases: a master was replaced and no reachable sentinel knows its
        /// successor, or the state changed after the answer. The fencing token protects in both
        /// cases.
        ///
        /// # Blocking
        ///
        /// One request, at most for the command timeout; for several locks one for each, in turn.
        /// The time for the query of the sentinels is included.
        ///
        /// # Errors
        ///
        /// [`Error::is_lost`] if the lock is not held, [`Error::is_unavailable`] if the store did
        /// not answer or the time of day was set ahead meanwhile, [`Error::is_unsupported`] if the
        /// wire format does not record the holder.
        pub fn verify(&self) -> Result<Duration, Error> {
            $dispatch!(&self.0, hold => hold.verify())
        }

        /// Extends the lease to at least `time` from now. Sends no request if `time` or more
        /// remains already. Never shortens the lease.
        ///
        /// # Blocking
        ///
        /// One request, at most for twice the command timeout; with `replicas`, for twice the sum
        /// of the command timeout and the replication timeout. For several locks one request for
        /// each, in turn.
        ///
        /// # Errors
        ///
        /// - [`Error::is_lost`]: the lock is lost.
        /// - [`Error::is_unavailable`]: the store did not confirm the extension.
        /// - [`Error::is_insufficient_replicas`]: too few replicas confirmed it.
        /// - [`Error::is_misuse`]: the lease would be too short or too long.
        /// - [`Error::is_unsupported`]: the wire format does not record the holder.
        ///
        /// After an error the lock stays valid at least until its old deadline, unless it is lost.
        pub fn extend(&self, time: Duration) -> Result<(), Error> {
            $dispatch!(&self.0, hold => hold.extend(time))
        }

        /// Returns the state of the lock. Sends no request.
        #[must_use]
        pub fn state(&self) -> GuardState {
            $dispatch!(&self.0, hold => hold.state())
        }

        /// Returns why the lock was lost, or that it will be lost because its limited number of
        /// renewals is used up. `None` if neither is the case. Sends no request.
        #[must_use]
        pub fn loss(&self) -> Option<Loss> {
            $dispatch!(&self.0, hold => hold.loss())
        }

        /// Returns a channel that gets one message when the lock is lost, or when its limited
        /// number of renewals is used up. If this has already happened, the message is sent at
        /// once.
        ///
        /// If the lock is released instead, the channel is closed without a message. Any thread may
        /// receive from the channel. Each call makes a new channel.
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
/// The drop of the last hold hands the lock to a waiting thread of this client, or releases it. For
/// a release it first stops the renewal, so that the lease ends in any case. Then it sends the
/// release; where the store supports it, without waiting for the answer. In that case the request
/// has been sent, or is queued behind requests of other threads, when `drop` returns. Another
/// client may then still find the lock held. A program that exits without dropping its client, for
/// example by [`std::process::exit`], may exit before the request is sent: then the lock stays held
/// until its lease ends. To wait for the answer, call [`unlock`](Self::unlock).
///
/// `Drop` blocks for at most the command timeout (for several locks, for each of them), and only if
/// the store accepts no requests, or if the release cannot be sent without waiting for its answer.
/// It never panics. A failed release is reported as an event and, if the wire format records the
/// holder, retried in the background. There is no poisoning: a panic releases the lock.
///
/// A leaked guard ([`std::mem::forget`]) leaves the lock held: with a fixed lease until the lease
/// ends, otherwise until its thread or the program ends.
///
/// The thread that locked must unlock, as in Java: the guard is not `Send`. If a program sends it
/// to another thread, the compiler's error names `GuardStaysOnItsThreadUseOwnedMutexToSendOne`. The
/// guard of an [`OwnedMutex`](crate::OwnedMutex) can be sent.
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
/// A guard can be unlocked only once:
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

/// Makes a guard `Sync` and not `Send`. If a program sends a guard, the compiler prints the name of
/// this trait.
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
    /// were given. The guard of a single lock returns one pair, with its
    /// [`fencing_token`](Self::fencing_token).
    ///
    /// Several locks have no common token: each protected resource compares the token of *its* lock
    /// with the tokens of that lock that it has seen. A lock that a
    /// [`MajorityLock`](crate::MajorityLock) did not acquire is listed with `None`.
    #[must_use]
    pub fn fencing_tokens(&self) -> Vec<(LockName, Option<FencingToken>)> {
        match &self.0 {
            Held::Single(hold) => vec![(hold.name().clone(), hold.fencing_token())],
            Held::Composite(composite) => composite.fencing_tokens(),
        }
    }

    /// Sets a minimum hold: the lock stays busy in the store for `time` after its acquisition, even
    /// if it is released earlier.
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

    /// Returns the number of listeners for a loss.
    #[cfg(test)]
    pub(crate) fn listeners(&self) -> usize {
        match &self.0 {
            Held::Single(hold) => hold.acquisition().listeners(),
            Held::Composite(composite) => composite.listeners(),
        }
    }

    /// Detaches the hold from its guard: this thread keeps the hold until it calls
    /// [`DistLock::unlock`](crate::DistLock::unlock). For code that locks in one place and unlocks
    /// in another.
    ///
    /// The watchdog renews the lock for as long as the thread lives. A lock with a fixed lease
    /// stays held until the lease ends, even if the thread ends earlier. Dropping the last clone,
    /// handle and guard of the client releases the lock.
    pub fn detach(self) {
        self.detach_as(None);
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A hold on a lock that belongs to no thread, so that it can be sent to another thread. Dropping
/// it unlocks.
///
/// It behaves like a [`LockGuard`], but is never reentrant. The lock stays held, and the watchdog
/// renews it as before, after the thread that acquired it has ended.
#[must_use = "a guard that is not kept unlocks at once: write `let _guard = ...`"]
#[clippy::has_significant_drop]
pub struct OwnedGuard(Hold);

impl OwnedGuard {
    pub(crate) fn new(hold: Hold) -> Self {
        Self(hold)
    }

    /// Returns the time at which the validity ends unless the lock is renewed. Does not take into
    /// account time that the clock may have skipped.
    pub(crate) fn deadline(&self) -> Moment {
        self.0.acquisition().valid_until()
    }

    /// Extends the lease to its full length if the lock has not had it yet, because another
    /// client's release granted the lock or another thread of this client handed it off. Otherwise
    /// sends no request. Blocks as [`extend`](Self::extend) does.
    pub(crate) fn begin_lease(&self) -> Result<(), Error> {
        self.0.begin_lease()
    }

    /// Adds a listener for a loss. If the lock is already lost, calls the listener at once.
    pub(crate) fn on_loss(&self, listener: Listener) {
        self.0.listen(listener);
    }

    /// Returns the IDs of the [semaphore](crate::Semaphore) permits that this guard acquired, by
    /// which other programs can name the permits; empty for another kind of lock. Sends no request.
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

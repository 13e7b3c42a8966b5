//! [`LockGuard`] and [`OwnedGuard`]: what a holder has in its hand.

use crate::engine::acquisition::{Acquisition, GuardState, Listener};
use crate::engine::entry::Entry;
use crate::engine::{Alive, Whole};
use crate::error::{Error, ErrorKind};
use crate::holder::thread_id;
use crate::lease::LeaseTime;
use crate::loss::Loss;
use crate::multi::Several;
use crate::name::LockName;
use crate::notification::{Notification, notification};
use crate::sync::mutant;
use crate::token::FencingToken;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// One hold on a holding.
pub(crate) struct Hold {
    engine: Arc<Alive>,
    entry: Arc<Entry>,
    acquisition: Arc<Acquisition>,
    /// Ended by `unlock` or left with the thread: nothing is left for `Drop`.
    done: bool,
}

impl Hold {
    pub(crate) fn new(
        engine: Arc<Alive>,
        entry: Arc<Entry>,
        acquisition: Arc<Acquisition>,
    ) -> Self {
        Self { engine, entry, acquisition, done: false }
    }

    fn unlock(mut self) -> Result<(), Error> {
        self.done = true;
        self.engine.end_hold(&self.entry, &self.acquisition)
    }

    fn detach(mut self, whole: Option<Whole>) {
        self.done = true;
        self.engine.detach(thread_id(), &self.entry, &self.acquisition, whole);
    }

    fn name(&self) -> &LockName {
        &self.acquisition.name
    }

    fn fencing_token(&self) -> Option<FencingToken> {
        self.acquisition.token
    }

    fn is_valid(&self) -> bool {
        self.engine.is_valid(&self.acquisition)
    }

    fn remaining(&self) -> Duration {
        self.engine.remaining(&self.acquisition)
    }

    fn ensure(&self, time: Duration) -> Result<(), Error> {
        self.engine.must_hold(&self.entry, &self.acquisition)?;
        must_be_left(self.remaining(), time, &self.acquisition.name)
    }

    fn extend(&self, time: Duration) -> Result<(), Error> {
        self.engine.must_hold(&self.entry, &self.acquisition)?;
        if self.remaining() >= time {
            return Ok(());
        }
        // What is asked for is what shall be left when this returns, so the lease is a little
        // longer.
        let lease = time.saturating_add(time / 50).saturating_add(Duration::from_millis(10));
        let lease = LeaseTime::new(lease).map_err(|error| error.on(&self.acquisition.name))?;
        self.lease_again(lease)
    }

    /// Makes the lease a full one from now.
    fn lease_again(&self, lease: LeaseTime) -> Result<(), Error> {
        self.engine.extend(&self.entry, &self.acquisition, lease)
    }

    fn verify(&self) -> Result<Duration, Error> {
        self.engine.verify(&self.entry, &self.acquisition)
    }

    fn loss(&self) -> Option<Loss> {
        self.look()?;
        self.acquisition.loss()
    }

    fn listen(&self, listener: Listener) {
        if self.look().is_some() {
            self.acquisition.listen(listener);
        }
    }

    fn state(&self) -> GuardState {
        self.look().unwrap_or(GuardState::Lost)
    }

    /// How it stands: a deadline that has passed is a loss, also before the watchdog comes by.
    /// `None` in a forked child: the parent holds it, and the child may ask it nothing, because a
    /// thread that is not there may have its lock.
    fn look(&self) -> Option<GuardState> {
        match self.engine.must_hold(&self.entry, &self.acquisition) {
            Err(error) if error.is_misuse() => None,
            _ => Some(self.acquisition.recorded_state()),
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if mutant("panic_keeps_it") && std::thread::panicking() {
            return;
        }
        if !self.done {
            self.engine.drop_hold(&self.entry, &self.acquisition);
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.acquisition.name)
            .field("token", &self.acquisition.token)
            .field("state", &self.acquisition.recorded_state())
            .field("remaining", &self.remaining())
            .finish()
    }
}

/// What a thread's guard has: a hold on one lock, or those on several that were taken as one.
///
/// One lock needs no memory of its own for it, and its guard is no larger for there being others.
enum Held {
    One(Hold),
    Several(Box<Several>),
}

/// Asks whichever of the two it is.
macro_rules! either {
    ($held:expr, $it:ident => $asked:expr) => {
        match $held {
            Held::One($it) => $asked,
            Held::Several($it) => $asked,
        }
    };
}

impl Held {
    fn unlock(self) -> Result<(), Error> {
        either!(self, it => it.unlock())
    }

    fn detach(self, whole: Option<Whole>) {
        either!(self, it => it.detach(whole));
    }

    fn name(&self) -> &LockName {
        either!(self, it => it.name())
    }

    fn fencing_token(&self) -> Option<FencingToken> {
        either!(self, it => it.fencing_token())
    }

    fn is_valid(&self) -> bool {
        either!(self, it => it.is_valid())
    }

    fn remaining(&self) -> Duration {
        either!(self, it => it.remaining())
    }

    fn ensure(&self, time: Duration) -> Result<(), Error> {
        either!(self, it => it.ensure(time))
    }

    fn extend(&self, time: Duration) -> Result<(), Error> {
        either!(self, it => it.extend(time))
    }

    fn lease_again(&self, lease: LeaseTime) -> Result<(), Error> {
        either!(self, it => it.lease_again(lease))
    }

    fn verify(&self) -> Result<Duration, Error> {
        either!(self, it => it.verify())
    }

    fn state(&self) -> GuardState {
        either!(self, it => it.state())
    }

    fn loss(&self) -> Option<Loss> {
        either!(self, it => it.loss())
    }

    fn listen(&self, listener: Listener) {
        either!(self, it => it.listen(listener));
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        either!(self, it => it.fmt(f))
    }
}

/// Refuses where less than `time` is left.
pub(crate) fn must_be_left(left: Duration, time: Duration, lock: &LockName) -> Result<(), Error> {
    if left < time {
        return Err(Error::new(
            ErrorKind::LeaseTooShort,
            format!(
                "{left:.1?} are left of the lease, and {time:.1?} are needed: extend it, or \
                stop here"
            ),
        )
        .on(lock));
    }
    Ok(())
}

/// The methods that both guards have.
macro_rules! guard_methods {
    () => {
        /// Ends this hold; the last one gives the lock back to the store.
        ///
        /// # Blocking
        ///
        /// Until the store has answered, at most for the command time-out. A nested hold ends
        /// without asking it.
        ///
        /// # Errors
        ///
        /// - [`Error::is_lost`]: the lock was lost before. Others may have been inside while this
        ///   guard was held; treat what was done under it as suspect.
        /// - [`Error::is_unavailable`]: the release was not confirmed. It is tried on in the
        ///   background, and the lease ends the lock in any case.
        pub fn unlock(self) -> Result<(), Error> {
            self.0.unlock()
        }

        /// The name of the lock.
        #[must_use]
        pub fn name(&self) -> &LockName {
            self.0.name()
        }

        /// This grant's own token, also after the lock was lost; nested guards have the same one.
        /// `None` where the store or its wire format has none, they are switched off, or this is
        /// the guard of several locks.
        ///
        /// Give it to what the lock protects, and let that refuse smaller ones than it has seen.
        #[must_use]
        pub fn fencing_token(&self) -> Option<FencingToken> {
            self.0.fencing_token()
        }

        /// Whether the lock is still ours, by a look at the clock alone: no request, and right also
        /// at the first call after this process was paused past its lease.
        #[must_use]
        pub fn is_valid(&self) -> bool {
            self.0.is_valid()
        }

        /// A span for what is done under the lock, level debug, with its name and its token. Each
        /// call makes a new one; it lasts for as long as it is kept, as in
        /// `let _held = guard.span().entered();`.
        #[cfg(feature = "tracing")]
        #[must_use]
        pub fn span(&self) -> tracing::Span {
            crate::trace::held(self.name(), self.fencing_token())
        }

        /// For how long the lock is still ours if it is not renewed; zero if it is lost. Local.
        #[must_use]
        pub fn remaining(&self) -> Duration {
            self.0.remaining()
        }

        /// Refuses to go on unless at least `time` is left. Local. Call it before a step that takes
        /// that long.
        ///
        /// # Errors
        ///
        /// [`Error::is_lost`] if the lock is lost, [`Error::is_lease_too_short`] if less is left.
        pub fn ensure(&self, time: Duration) -> Result<(), Error> {
            self.0.ensure(time)
        }

        /// Asks the store whether the lock is still ours, and says what is left of the lease there
        /// when this returns, at least ([`Duration::MAX`] if it has no end). If it is not ours, or
        /// the answer comes after the guard's own deadline, the guard is lost from here on.
        ///
        /// Never by the word of a replica. With Sentinel the sentinels are asked, too, whether the
        /// master that answered is still the last one. What cannot be known is what no sentinel
        /// that we reach has heard of: then a master that was cut off and replaced is believed. And
        /// what was true when the store answered may be over when this returns: the fencing token
        /// is for that.
        ///
        /// # Blocking
        ///
        /// One request, at most for the command time-out; with Sentinel another one to the
        /// sentinels, within it.
        ///
        /// # Errors
        ///
        /// [`Error::is_lost`] if it is not ours, [`Error::is_unavailable`] if the store could not
        /// be asked.
        pub fn verify(&self) -> Result<Duration, Error> {
            self.0.verify()
        }

        /// Makes the lock last for at least `time` from now. A lock that lasts that long anyway is
        /// left as it is; it is never shortened.
        ///
        /// # Blocking
        ///
        /// One request, at most for twice the command time-out.
        ///
        /// # Errors
        ///
        /// [`Error::is_lost`] if the lock is lost, [`Error::is_unavailable`] if the store did not
        /// confirm (the old deadline stands then), [`Error::is_misuse`] for a time that no lease
        /// can have.
        pub fn extend(&self, time: Duration) -> Result<(), Error> {
            self.0.extend(time)
        }

        /// How the lock stands. Local.
        #[must_use]
        pub fn state(&self) -> GuardState {
            self.0.state()
        }

        /// Why the lock was lost, or will be when its lease ends because the renewals are used up.
        /// Local.
        #[must_use]
        pub fn loss(&self) -> Option<Loss> {
            self.0.loss()
        }

        /// A channel that gets one message when the lock is lost or will not be renewed any more,
        /// at once if that was before; it is closed without one when the lock is given back. Any
        /// thread may wait on it. Each call makes a channel of its own, which is forgotten when it
        /// is dropped.
        #[must_use]
        pub fn losses(&self) -> Notification<Loss> {
            let (sender, wanted, notification) = notification();
            self.0.listen(Listener::new(wanted, move |loss| {
                // The channel may be gone.
                let _told = sender.try_send(loss);
            }));
            notification
        }
    };
}

/// A hold on a lock, of the thread that took it. Dropping it unlocks.
///
/// `Drop` stops the renewal first, so that the lease ends by itself whatever follows; then it sends
/// the release, where the store can, without waiting for the answer: the request has left when it
/// returns, but another client that asks at that very moment may still find the lock held.
/// [`unlock`](Self::unlock) waits. `Drop` blocks for at most the command time-out, if the store
/// takes no requests. It never panics, also not during a panic; that a release failed is told as an
/// event only, and what is not confirmed is tried on in the background. There is no poisoning: a
/// panic releases.
///
/// A guard that is leaked ([`std::mem::forget`]) leaves the lock held, and renewed, until its
/// thread or the program ends.
///
/// The thread that locked must unlock, as in Java: the guard cannot leave it. For a guard that can,
/// see [`OwnedMutex`](crate::OwnedMutex).
///
/// ```compile_fail,E0277
/// # extern crate lock_core as distlock;
/// fn send<T: Send>(_: T) {}
/// fn check(guard: distlock::LockGuard) {
///     send(guard);
/// }
/// ```
///
/// And it unlocks once:
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
pub struct LockGuard(Held, PhantomData<std::sync::MutexGuard<'static, ()>>);

impl LockGuard {
    pub(crate) fn new(hold: Hold) -> Self {
        Self(Held::One(hold), PhantomData)
    }

    /// The guard of several locks as one.
    pub(crate) fn several(several: Several) -> Self {
        Self(Held::Several(Box::new(several)), PhantomData)
    }

    guard_methods!();

    /// The tokens of all locks that this guard stands for, each with the name of its lock, in the
    /// order in which they were given. For a single lock that is the one of
    /// [`fencing_token`](Self::fencing_token).
    ///
    /// Several locks that were taken as one have no token together: each protects something of its
    /// own, and that compares the token of *its* lock with those it has seen. A lock that a
    /// [`MajorityLock`](crate::MajorityLock) has not got stands there with `None`.
    #[must_use]
    pub fn fencing_tokens(&self) -> Vec<(LockName, Option<FencingToken>)> {
        match &self.0 {
            Held::One(hold) => vec![(hold.name().clone(), hold.fencing_token())],
            Held::Several(several) => several.fencing_tokens(),
        }
    }

    pub(crate) fn lease_again(&self, lease: LeaseTime) -> Result<(), Error> {
        self.0.lease_again(lease)
    }

    pub(crate) fn listen(&self, listener: Listener) {
        self.0.listen(listener);
    }

    pub(crate) fn detach_as(self, whole: Option<Whole>) {
        self.0.detach(whole);
    }

    /// How many are to be told of a loss, as far as they are not forgotten.
    #[cfg(test)]
    pub(crate) fn listeners(&self) -> usize {
        match &self.0 {
            Held::One(hold) => hold.acquisition.listeners(),
            Held::Several(several) => several.listeners(),
        }
    }

    /// Leaves the hold with this thread, without a guard:
    /// [`DistLock::unlock`](crate::DistLock::unlock) ends it. For code that locks in one place and
    /// unlocks in another.
    ///
    /// The watchdog goes on renewing it for as long as the thread lives. A fixed lease lasts until
    /// its end, also where the thread ends before. If every handle of the client is dropped before,
    /// the lock is released.
    pub fn detach(self) {
        self.detach_as(None);
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A hold on a lock that belongs to no thread: it can be sent to another one. Dropping it unlocks.
///
/// Everything said of [`LockGuard`] holds, but it is never reentrant. If the thread that took it
/// ends, the guard, and with it the lock, lives on wherever it was sent.
#[must_use = "a guard that is not kept unlocks at once: write `let _guard = ...`"]
#[clippy::has_significant_drop]
pub struct OwnedGuard(Hold);

impl OwnedGuard {
    pub(crate) fn new(hold: Hold) -> Self {
        Self(hold)
    }

    guard_methods!();
}

impl fmt::Debug for OwnedGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

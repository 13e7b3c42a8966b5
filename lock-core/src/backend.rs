//! [`Backend`]: the interface that a store implements.
//!
//! # The contract
//!
//! A backend is mechanism: each call makes **one attempt** and returns its outcome. A backend never
//! waits for a lock, retries an attempt, renews without a request, counts nested holds or starts
//! timers. That is policy, written once in the engine above it: the local queue, the wait loop,
//! deadlines, re-entry, interrupts, renewal and loss.
//!
//! **What the engine does.**
//!
//! - It calls every method from several threads at once.
//! - It has at most one [`acquire`](Backend::acquire) under way for each name (one contender per
//!   client), and repeats it *with the same owner* when the reply was lost. It never uses an owner
//!   again after that wait has ended.
//! - It calls [`release`](Backend::release) once, and again if the reply was lost. It closes an
//!   owner that has an unanswered request with [`Tombstone::Leave`].
//! - It calls [`renew`](Backend::renew) with at most [`RENEW_BATCH`] acquisitions, and with one
//!   call at a time for each [node](NodeId) that the backend named, while replies are quick. While
//!   a reply is late, other threads renew *other* acquisitions of that node, with at most four
//!   calls under way. A call that waits for another one delays the renewals in it.
//! - Renewals that replicas must confirm have calls of their own, at most four more: a replica that
//!   lags delays no renewal that does not need it. An acquisition is in two calls at once only if
//!   its holder extends it, too.
//! - It stops renewing before it releases. Its last call, made once, is [`leave`](Backend::leave).
//!
//! **What the engine does not do.** It holds no mutex of its own while it calls a backend. It does
//! not ask what kind of store this is: it reads [`Abilities`]. It does not trust a grant for longer
//! than the lease less the drift allowance, counted from before the call.
//!
//! **Time.** Every call carries an absolute moment, `by`, on the clock that the backend was opened
//! with. The call must return by then, with what is known at that moment. It may return a little
//! later (a scheduler's slice), but must not wait for longer.
//!
//! **Replicas.** If [`Abilities::replication`] says so, a backend waits until as many replicas have
//! confirmed an attempt or a renewal as its [`Replication`] asks for, at most until `by`, and
//! reports if fewer did. The owner then has the lock in the store all the same: whether to roll it
//! back is policy.
//!
//! **What must hold in the store.** Only one owner holds a name at a time. A lease that is not
//! renewed ends. No request shortens a lease. A renewal never restores an acquisition that has
//! ended. A release frees only its own owner's acquisition. Tokens of a name grow strictly. A
//! closed owner is granted nothing for at least a lease.
//!
//! **Kinds.** A [`LockName`] says of which [kind](LockKind) the lock is. A store that has all kinds
//! ([`Abilities::all_kinds`]) grants a *shared* one to several owners, each with its own lease:
//! what follows holds for each owner, and "one owner" is "no more than the kind allows". Owners in
//! the order of arrival ([`LockKind::Fair`]): an attempt that finds the lock busy enters the queue,
//! if its caller [waits](Attempt::waits); repeated attempts of that owner keep its position, and a
//! release of an owner that does not hold the lock ends it. While a writer waits, no new reader is
//! granted, except [beside](Attempt::beside) the writer of its own thread; the end of a write lock
//! lets both compete. Both count as waiting for [`WAITER_PRESENCE`] after their last attempt.
//!
//! **Failures** say what is known, because the engine acts on it: [`Failure::Refused`] is a reply
//! (nothing happened), [`Failure::NotSent`] means that nothing can have happened, and
//! [`Failure::Unknown`] that the request may have been applied. When in doubt, return `Unknown`.
//!
//! The conformance suite (feature `conformance`) checks all of this against a real store. Run it
//! before you release a backend.

use crate::clock::Moment;
use crate::diagnosis::Finding;
use crate::error::{Error, ErrorKind};
use crate::lease::LeaseTime;
#[cfg(doc)]
use crate::name::LockKind;
use crate::name::LockName;
use crate::owner::{OwnerId, OwnerLabel, OwnerText};
use crate::replication::{InsufficientReplicas, Replication};
use crate::token::{FencingToken, TokenRange};
use std::any::Any;
use std::cmp::Reverse;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

pub use crate::background::{BackgroundTask, run_in_background};
pub use crate::backoff::Backoff;
pub use crate::limits::{no_descriptor, no_thread};
pub use crate::panics::contain;

/// The largest number of acquisitions in one call of [`Backend::renew`].
///
/// A script that renews a hundred keys keeps a Redis server busy for about 0.2 ms; ten thousand at
/// once stalled other clients for 11 ms.
pub const RENEW_BATCH: usize = 100;

/// How often a waiter asks, so that the store knows that it still waits: of a
/// [fair lock](LockKind::Fair), to keep its position, and of a [write lock](LockKind::Write), to
/// keep new readers out.
pub const WAITER_ATTEMPTS: Duration = Duration::from_secs(1);

/// How long the store takes such a waiter to be there after its last attempt: a dead one delays the
/// others for so long.
pub const WAITER_PRESENCE: Duration = Duration::from_secs(3);

/// A store for locks. See the [module's text](self) for the contract.
pub trait Backend: Send + Sync + fmt::Debug {
    /// Tries once to take the lock for `attempt.owner`.
    ///
    /// If that owner holds it already, the request repeats one whose reply was lost: grant it again
    /// with the same token, and make sure that at least a full lease is left from now. If that
    /// owner was closed with a tombstone, return [`Answer::Busy`].
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure>;

    /// Extends the leases of `batch`, each on its own: the failure of one must not affect the
    /// others.
    ///
    /// Returns one answer for each request, in the same order. An acquisition is extended only if
    /// its owner still holds it, to its own lease counted from now, and is never shortened.
    ///
    /// A call must not wait for another call of the same node: the engine makes a second call
    /// because the first hangs.
    fn renew(
        &self,
        node: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>>;

    /// Releases the lock if this acquisition's owner still holds it, and wakes the waiters. With
    /// [`ReleaseOptions::kept`] it is another owner's then.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn release(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure>;

    /// Like [`release`](Backend::release), for a caller that does not wait for the reply: returns
    /// when the request has been sent, and calls `done` with its result exactly once.
    ///
    /// A backend that can have several pending requests overrides this. The default waits for the
    /// reply and calls `done` before it returns. An override may call `done` later, on a thread of
    /// the backend or of another caller, during that caller's call; and at `by` or soon after with
    /// [`Failure::Unknown`] if no reply came. So `done` must be short, must not wait, and must not
    /// call the backend.
    ///
    /// A later request for the same name never overtakes this one, unless it repeats it.
    fn submit_release(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
        done: OnReleased,
    ) {
        done(self.release(acquisition, closing, by));
    }

    /// Returns the holder with its label and what is left of its lease, the readers of a read-write
    /// lock and the permits of a semaphore, and changes nothing. Never answered from a replica.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure>;

    /// Like [`inspect`](Backend::inspect), for a waiter, which asks often and takes no decision
    /// about safety: one request to the server that is known to keep the lock, and no label. A
    /// backend whose `inspect` asks for more overrides this.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn peek(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.inspect(name, by)
    }

    /// The longest time after which a waiter asks again, although the store tells it of releases:
    /// a foreign client may not publish its own. `None`: not before the holder's lease can be over.
    fn poll_pause(&self, _name: &LockName, _found_by: FoundBusyBy) -> Option<Duration> {
        None
    }

    /// Returns the holder as [`inspect`](Backend::inspect) does, if it is this acquisition's owner.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn verify(
        &self,
        acquisition: &AcquisitionId,
        by: Moment,
    ) -> Result<Option<HolderInfo>, Failure> {
        Ok(self.inspect(&acquisition.name, by)?.held_by(acquisition.owner))
    }

    /// Releases the lock of any holder, wakes the waiters, and returns whether it was held. A value
    /// in another format is not changed, and reported as
    /// [`ErrorKind::ForeignFormat`].
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure>;

    /// Sets how many permits a [semaphore](LockKind::Permits) has, and returns how many it had;
    /// `None` if there was none yet. Permits above a smaller limit stay with their holders until
    /// they are released; a larger one wakes the waiters.
    ///
    /// Called only if [`Abilities::all_kinds`] says so.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn set_permits(&self, _name: &LockName, _by: Moment) -> Result<Option<u32>, Failure> {
        Err(Failure::NotSent(Error::new(ErrorKind::Unsupported, "this store has no semaphores")))
    }

    /// Calls `wake` at every release of `name` by any client, and once whenever releases may have
    /// been missed (after a reconnect), from the return of this call until the [`Watch`] is
    /// dropped. Spurious calls are allowed.
    ///
    /// Never called if [`Abilities::waking`] says [`Waking::Polls`].
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure>;

    /// Returns the node that renews this name *now*. Called for each renewal; must be cheap and not
    /// block. A slow or dead node delays only its own renewals.
    fn renewal_node(&self, name: &LockName) -> NodeId;

    /// Returns what this store supports in its wire format. Must not change while it is open.
    fn abilities(&self) -> Abilities;

    /// Returns what of the store's settings and state matters for locks, the good and the bad.
    /// Changes nothing there. What cannot be looked at is [`Unknown`](crate::FindingLevel::Unknown).
    ///
    /// Nothing in the default.
    ///
    /// # Errors
    ///
    /// See [`Failure`]: the store cannot be asked at all.
    fn diagnose(&self, _by: Moment) -> Result<Vec<Finding>, Failure> {
        Ok(Vec::new())
    }

    /// Like [`inspect`](Self::inspect), for several locks, in few requests and with all that the
    /// store can tell of [`LockInfo`], also if what a mutex is asked for is a read-write lock.
    /// Returns one answer for each name, in the same order.
    ///
    /// The default asks for one after the other, and for the holder alone.
    fn inspect_all(&self, names: &[LockName], by: Moment) -> Vec<Result<LockInfo, Failure>> {
        names.iter().map(|name| self.inspect(name, by)).collect()
    }

    /// Returns a page of the locks that are held and whose names match `pattern`, a glob as in
    /// Redis' `SCAN .. MATCH`. Changes nothing, and asks for a bounded number of keys, so a page
    /// may be empty.
    ///
    /// A lock that is held from the first page to the last is on at least one of them, perhaps on
    /// several; one that is taken or released meanwhile may be missing. Only what is certainly a
    /// lock in this client's format is returned.
    ///
    /// Unsupported in the default.
    ///
    /// # Errors
    ///
    /// See [`Failure`]: a part of the store cannot be asked.
    fn list(&self, _pattern: &str, _from: &PagePosition, _by: Moment) -> Result<LockPage, Failure> {
        Err(Failure::NotSent(Error::new(
            ErrorKind::Unsupported,
            "this store, in this wire format, cannot list its locks: name those to look at",
        )))
    }

    /// Called when the client is dropped, perhaps at the end of the process: waits for requests
    /// that are not sent yet and that no caller waits for, at most until this moment of the system
    /// clock. Most stores have none.
    fn leave(&self, until: Moment) {
        let _no_wait = until;
    }
}

/// Calls a backend, and returns a panic in it as a failure with unknown outcome.
///
/// For backends that consist of others. The engine calls every backend this way.
///
/// # Errors
///
/// Those of the request.
pub fn call_backend<T>(request: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(request)).unwrap_or_else(|_| {
        Err(Failure::Unknown(Error::unavailable("the store's backend panicked; see its message")))
    })
}

/// The callback with the result of a release that no caller waits for: see
/// [`Backend::submit_release`].
pub type OnReleased = Box<dyn FnOnce(Result<Release, Failure>) + Send>;

/// One attempt to take a lock.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Attempt<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// The owner that will hold it. New for every wait, the same for every repetition within it.
    pub owner: OwnerId,
    /// The lease to grant.
    pub lease: LeaseTime,
    /// The fencing tokens to grant with it.
    pub tokens: Tokens,
    /// How many replicas must confirm it. Always off if [`Abilities::replication`] is
    /// [`ReplicaSupport::Never`].
    pub replication: Replication,
    /// The owner of a write lock of the same name, held by the same thread, beside which a
    /// [reader](LockKind::Read) is granted. `None` for other kinds.
    pub beside: Option<OwnerId>,
    /// Whether the caller waits if the lock is busy. A store that keeps others out for its waiters
    /// does so only then.
    pub waits: bool,
    /// The text of the owner's [label](RenewalRequest::label), for a store that can keep it with
    /// the grant at no cost. Other stores ignore it.
    pub label: Option<&'a Arc<str>>,
}

impl<'a> Attempt<'a> {
    /// Makes an attempt with one token, which no replica needs to confirm.
    #[must_use]
    pub fn new(name: &'a LockName, owner: OwnerId, lease: LeaseTime) -> Self {
        let (tokens, replication) = (Tokens::Assign { reserve: 0 }, Replication::off());
        let (beside, label) = (None, None);
        Self { name, owner, lease, tokens, replication, beside, waits: true, label }
    }

    /// Sets the tokens.
    #[must_use]
    pub fn tokens(mut self, tokens: Tokens) -> Self {
        self.tokens = tokens;
        self
    }

    /// Sets how many replicas must confirm it.
    #[must_use]
    pub fn replication(mut self, replication: Replication) -> Self {
        self.replication = replication;
        self
    }

    /// Sets the owner of the thread's write lock.
    #[must_use]
    pub fn beside(mut self, writer: Option<OwnerId>) -> Self {
        self.beside = writer;
        self
    }

    /// Sets whether the caller waits if the lock is busy.
    #[must_use]
    pub fn waits(mut self, waits: bool) -> Self {
        self.waits = waits;
        self
    }

    /// Sets the text of the owner's label.
    #[must_use]
    pub fn label(mut self, label: Option<&'a Arc<str>>) -> Self {
        self.label = label;
        self
    }
}

/// The fencing tokens to grant with a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Tokens {
    /// None: the store keeps no counter for this lock.
    None,
    /// The store assigns a token greater than all before it for this name, and reserves `reserve`
    /// more behind it for hand-offs inside the client. It stores the *end* of that range.
    Assign {
        /// How many tokens beyond the first.
        reserve: u32,
    },
    /// The caller proposes a token and `reserve` more behind it, as a ballot of Paxos does: for a
    /// node of a quorum.
    ///
    /// The lock is granted if it is free and `first` is greater than the stored token, or if this
    /// owner has it already. In both cases the end of the range is stored, unless a greater token
    /// is. Otherwise the answer is [`Answer::Stale`]. A store that drops unused counters must keep
    /// a bound that no dropped token exceeds.
    Propose {
        /// The token.
        first: FencingToken,
        /// How many tokens beyond it.
        reserve: u32,
    },
}

/// The outcome of an attempt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Answer {
    /// This owner has the lock, and as many replicas as requested have confirmed it.
    Granted(Grant),
    /// This owner has the lock in the store, but too few replicas confirmed it in time.
    Unacknowledged(Grant, InsufficientReplicas),
    /// Another owner has it; its lease ends after this time unless it is renewed (`None`: unknown).
    Busy(Option<Duration>),
    /// Another owner has it without a lease: a foreign client's lock without an expiry, or one
    /// whose expiry was never set. A waiter asks again after this time (`None`: the store publishes
    /// the release).
    BusyWithoutExpiry(Option<Duration>),
    /// The lock is free, but the [proposed](Tokens::Propose) token is not greater than this stored
    /// token: propose a greater one.
    Stale(FencingToken),
    /// The attempt was rolled back; some nodes may have granted it, or may still do so. Retry with
    /// a new owner.
    RolledBack(RollbackCause),
}

impl Answer {
    /// Returns whether other owners hold the lock, or contend for it.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(
            self,
            Self::Busy(_)
                | Self::BusyWithoutExpiry(_)
                | Self::RolledBack(RollbackCause::Held(_) | RollbackCause::SplitVote)
        )
    }
}

/// Why an attempt on several nodes was [rolled back](Answer::RolledBack).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RollbackCause {
    /// Another owner holds too many nodes; its lease ends after this time unless it is renewed
    /// (`None`: unknown).
    Held(Option<Duration>),
    /// No owner has a majority: several attempts collided, and each got some nodes. Each contender
    /// retries after a random pause, so that they do not collide again.
    SplitVote,
    /// Too many nodes grant nothing until a known time.
    Paused(Pause),
    /// Too many nodes could not be asked, or refused.
    Failed(Error),
}

/// A time for which a store grants nothing, because it is new or may have lost its data: until
/// every lease that it may have granted before is over. It is no outage: a wait that is long enough
/// continues after it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Pause {
    /// How long it still lasts.
    pub left: Duration,
    /// The error for a caller whose wait ends before the pause.
    pub why: Error,
    /// Whether it may end at any time: enough other nodes can grant the lock, but did not answer
    /// this time.
    pub may_end_sooner: bool,
}

impl Pause {
    /// Makes a pause of this length, with its reason.
    #[must_use]
    pub fn new(left: Duration, why: Error) -> Self {
        Self { left, why, may_end_sooner: false }
    }

    /// Sets whether it may end at any time.
    #[must_use]
    pub fn may_end_sooner(mut self, may_end_sooner: bool) -> Self {
        self.may_end_sooner = may_end_sooner;
        self
    }
}

/// A granted lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Grant {
    /// The tokens; `None` if none were requested.
    pub tokens: Option<TokenRange>,
    /// Data of the backend that the engine returns when this acquisition is renewed and released.
    pub receipt: Receipt,
    /// How many permits the [semaphore](LockKind::Permits) has in the store; `None` for other
    /// kinds.
    pub limit: Option<u32>,
}

impl Grant {
    /// Makes a grant with these tokens and an empty receipt.
    #[must_use]
    pub fn new(tokens: Option<TokenRange>) -> Self {
        Self { tokens, receipt: Receipt::default(), limit: None }
    }

    /// Sets how many permits the semaphore has in the store.
    #[must_use]
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Sets the receipt.
    #[must_use]
    pub fn receipt(mut self, receipt: Receipt) -> Self {
        self.receipt = receipt;
        self
    }
}

/// Data of the backend that the engine keeps with an acquisition.
#[derive(Clone, Default)]
pub struct Receipt(Option<Arc<dyn Any + Send + Sync>>);

impl Receipt {
    /// Makes a receipt of `value`.
    #[must_use]
    pub fn new<T: Any + Send + Sync>(value: T) -> Self {
        Self(Some(Arc::new(value)))
    }

    /// Returns the value, if there is one of this type.
    #[must_use]
    pub fn get<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.0.as_ref()?.downcast_ref()
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Receipt(..)" } else { "Receipt" })
    }
}

/// The identity of an acquisition: name, owner, lease, and the receipt of its grant.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquisitionId {
    /// The lock.
    pub name: LockName,
    /// The owner that holds it.
    pub owner: OwnerId,
    /// The lease that was last requested. A tombstone must exist for at least this long.
    pub lease: LeaseTime,
    /// The receipt of the [`Grant`]; empty if there was none (an attempt without a reply).
    pub receipt: Receipt,
}

impl AcquisitionId {
    /// Makes the identity of `owner`'s acquisition of `name`.
    #[must_use]
    pub fn new(name: LockName, owner: OwnerId, lease: LeaseTime, receipt: Receipt) -> Self {
        Self { name, owner, lease, receipt }
    }
}

/// One acquisition to be renewed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewalRequest {
    /// The acquisition. Its `lease` is the new lease, counted from now.
    pub acquisition: AcquisitionId,
    /// How many replicas must confirm it.
    pub replication: Replication,
    /// What [`Backend::inspect`] shows of this owner while it holds the lock, never of another one.
    /// Only in some renewals, to be kept for [`OwnerLabel::LEASES`] leases. For people: a store
    /// that cannot keep it renews all the same.
    pub label: Option<OwnerLabel>,
}

impl RenewalRequest {
    /// Makes a request that no replica needs to confirm.
    #[must_use]
    pub fn new(acquisition: AcquisitionId) -> Self {
        Self { acquisition, replication: Replication::off(), label: None }
    }

    /// Sets how many replicas must confirm it.
    #[must_use]
    pub fn replication(mut self, replication: Replication) -> Self {
        self.replication = replication;
        self
    }

    /// Sets the owner's label.
    #[must_use]
    pub fn label(mut self, label: Option<OwnerLabel>) -> Self {
        self.label = label;
        self
    }
}

/// The outcome of a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Renewal {
    /// At least a full lease is left from now, and as many replicas as requested have confirmed it.
    Extended,
    /// The store has answered, and the lease is extended there, but too few replicas confirmed it
    /// in time: the old validity remains. A missing answer is [`Failure::Unknown`].
    Unacknowledged(InsufficientReplicas),
    /// The lease is extended on a server without replicas. Most of the servers that would have to
    /// agree to a promotion say so: no replica without this renewal can be promoted.
    Unreplicated(InsufficientReplicas),
    /// This owner does not hold the lock any more.
    Gone,
}

/// How a release closes its owner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ReleaseOptions {
    /// The largest token that was used of a reserved range: the store's counter is set back to it
    /// if the owner still holds the lock. `None` does not change the counter.
    pub last_used: Option<FencingToken>,
    /// Whether a request of this owner may still arrive.
    pub tombstone: Tombstone,
    /// To whom the lock passes; `None`: it is free.
    pub kept: Option<KeptLock>,
}

/// A lock that is kept after its release, so that it was held for the shortest time that was asked
/// for. A release passes it to an owner that no client is, so that no late renewal or release of
/// the former one finds it, and notifies the waiters, because it may end earlier than the lease
/// that they know. If that owner has it already, the release repeats one whose reply was lost, and
/// answers as that did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct KeptLock {
    /// The owner, used for this once.
    pub owner: OwnerId,
    /// What is left of the shortest time. It is not renewed.
    pub time: LeaseTime,
}

impl KeptLock {
    /// Keeps a lock for `owner` and for `time`.
    #[must_use]
    pub fn new(owner: OwnerId, time: LeaseTime) -> Self {
        Self { owner, time }
    }

    /// The same for a release that is sent so much later; `None` if nothing is left.
    fn after(self, passed: Duration) -> Option<Self> {
        let left = self.time.duration().checked_sub(passed)?;
        LeaseTime::new(left).ok().map(|time| Self { time, ..self })
    }
}

impl ReleaseOptions {
    /// For an owner whose requests were all answered.
    pub const WITHOUT_TOMBSTONE: Self =
        Self { last_used: None, tombstone: Tombstone::None, kept: None };

    /// For an owner with a request that may still arrive.
    pub const WITH_TOMBSTONE: Self =
        Self { last_used: None, tombstone: Tombstone::Leave, kept: None };

    /// Sets the last token that was used.
    #[must_use]
    pub fn last_used(mut self, token: FencingToken) -> Self {
        self.last_used = Some(token);
        self
    }

    /// Returns the options of a release that is sent so much later.
    #[must_use]
    pub fn after(mut self, passed: Duration) -> Self {
        self.kept = self.kept.and_then(|kept| kept.after(passed));
        self
    }

    /// Keeps the lock instead of freeing it.
    #[must_use]
    pub fn kept(mut self, kept: Option<KeptLock>) -> Self {
        self.kept = kept;
        self
    }
}

/// Whether a request of an owner may still arrive after its release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Tombstone {
    /// All were answered.
    None,
    /// One was not answered: leave a mark for a lease, so that the store refuses later requests of
    /// this owner. Also if the owner holds nothing now: the late request may have been granted and
    /// have ended, or may not have arrived yet.
    Leave,
}

/// The outcome of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Release {
    /// This owner held the lock, which is free now, or [kept](ReleaseOptions::kept).
    Freed,
    /// Like `Freed`, from a store that counts the clients it notified, this one included if it
    /// watches. The engine derives from it for how long a client leaves a free lock to the others.
    FreedFor(u32),
    /// This owner did not hold the lock (any more).
    Gone,
}

/// Why a request failed, and what may have happened in the store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The store replied with a refusal: nothing happened.
    Refused(Error),
    /// The request was not sent: nothing can have happened.
    NotSent(Error),
    /// The request was sent, and no reply came: it may have been applied, or may still be.
    Unknown(Error),
    /// The outcome is unknown, and the request can be neither repeated nor rolled back, because the
    /// store cannot tell this owner's lock from another's: the engine gives up.
    Final(Error),
}

impl Failure {
    /// Returns the error.
    #[must_use]
    pub fn error(&self) -> &Error {
        match self {
            Self::Refused(error)
            | Self::NotSent(error)
            | Self::Unknown(error)
            | Self::Final(error) => error,
        }
    }

    /// Returns the error.
    #[must_use]
    pub fn into_error(self) -> Error {
        match self {
            Self::Refused(error)
            | Self::NotSent(error)
            | Self::Unknown(error)
            | Self::Final(error) => error,
        }
    }
}

/// The state of a lock in a store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LockInfo {
    /// The holder; `None` if the lock is free. Of several, the one whose lease ends last.
    pub holder: Option<HolderInfo>,
    /// How many owners hold it: more than one only if its kind
    /// [is shared](LockKind::is_shared).
    pub holders: u64,
    /// How many permits the [semaphore](LockKind::Permits) has, and how many of them are free;
    /// `None` for other kinds, and for a semaphore that no client has used yet.
    pub permits: Option<Permits>,
    /// Who reads, if it is a read-write lock; `None` for other kinds. Of a held one that was asked
    /// for as a mutex, [`Backend::inspect_all`] and [`Backend::list`] tell it, too.
    pub readers: Option<Readers>,
    /// How many clients listen for its release, and so wait for it or did a moment ago. A client
    /// that polls does not listen. `None`: not asked for ([`Backend::inspect`] does not), or the
    /// store does not tell.
    pub waiters: Option<u64>,
    /// The largest token that any holder has got so far, or that was reserved for one: a bound, and
    /// not the present holder's token, which stores do not keep. `None` as for `waiters`.
    pub largest_token: Option<FencingToken>,
}

/// The permits of a semaphore, as the store counts them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Permits {
    /// How many there are in all.
    pub limit: u32,
    /// How many are free.
    pub free: u32,
}

impl Permits {
    /// Makes the number of permits in all, and of those that are free.
    #[must_use]
    pub fn new(limit: u32, free: u32) -> Self {
        Self { limit, free }
    }
}

/// The readers of a read-write lock, as the store reports them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Readers {
    /// Each with what is left of its own lease, the last to end first. Empty if none reads, and
    /// perhaps of a lock that a writer has. Of very many only some: [`LockInfo::holders`] counts
    /// all.
    pub known: Vec<HolderInfo>,
    /// Whether a writer waits, and keeps new readers out.
    pub writer_waits: bool,
}

impl Readers {
    /// Makes readers, and says whether a writer waits.
    #[must_use]
    pub fn new(mut known: Vec<HolderInfo>, writer_waits: bool) -> Self {
        known.sort_by_key(|reader| Reverse(reader.remaining.unwrap_or(Duration::MAX)));
        Self { known, writer_waits }
    }
}

impl LockInfo {
    /// A free lock.
    pub const FREE: Self = Self {
        holder: None,
        holders: 0,
        permits: None,
        readers: None,
        waiters: None,
        largest_token: None,
    };

    /// Makes the state of a lock with this holder.
    #[must_use]
    pub fn held(holder: HolderInfo) -> Self {
        Self { holder: Some(holder), holders: 1, ..Self::FREE }
    }

    /// Sets how many owners hold it.
    #[must_use]
    pub fn holders(mut self, holders: u64) -> Self {
        self.holders = holders;
        self
    }

    /// Sets the permits of a semaphore.
    #[must_use]
    pub fn permits(mut self, permits: Permits) -> Self {
        self.permits = Some(permits);
        self
    }

    /// Sets the readers of a read-write lock.
    #[must_use]
    pub fn readers(mut self, readers: Readers) -> Self {
        self.readers = Some(readers);
        self
    }

    /// Returns the holder if it is this owner.
    #[must_use]
    pub fn held_by(self, owner: OwnerId) -> Option<HolderInfo> {
        self.holder.filter(|holder| owner.matches(&holder.owner))
    }

    /// Sets how many clients listen for its release.
    #[must_use]
    pub fn waiters(mut self, waiters: Option<u64>) -> Self {
        self.waiters = waiters;
        self
    }

    /// Sets the largest token so far.
    #[must_use]
    pub fn largest_token(mut self, token: Option<FencingToken>) -> Self {
        self.largest_token = token;
        self
    }
}

/// A page of [`Backend::list`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LockPage {
    /// Held locks.
    pub locks: Vec<(LockName, LockInfo)>,
    /// Where the next page begins; `None` behind the last one.
    pub next: Option<PagePosition>,
}

impl LockPage {
    /// Makes a page.
    #[must_use]
    pub fn new(locks: Vec<(LockName, LockInfo)>, next: Option<PagePosition>) -> Self {
        Self { locks, next }
    }
}

/// Where a page of [`Backend::list`] begins; the default is the first page. What it says is the
/// matter of the backend that made it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct PagePosition {
    /// The part of the store.
    pub part: String,
    /// The position in that part.
    pub cursor: u64,
}

impl PagePosition {
    /// Makes a position.
    #[must_use]
    pub fn new(part: impl Into<String>, cursor: u64) -> Self {
        Self { part: part.into(), cursor }
    }
}

/// The holder of a lock, as the store reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HolderInfo {
    /// The holder's identity, of this library or of a foreign client.
    pub owner: OwnerText,
    /// What is left of the lease; `None` if the lock has no lease.
    pub remaining: Option<Duration>,
    /// The hold count, if the format has one (always 1 here: nested holds are counted locally).
    pub holds: u64,
    /// Who that is, for people; `None` if the store has no label of this owner.
    pub label: Option<OwnerLabel>,
}

impl HolderInfo {
    /// Makes a holder.
    #[must_use]
    pub fn new(owner: OwnerText, remaining: Option<Duration>, holds: u64) -> Self {
        Self { owner, remaining, holds, label: None }
    }

    /// Sets the owner's label.
    #[must_use]
    pub fn label(mut self, label: Option<OwnerLabel>) -> Self {
        self.label = label;
        self
    }
}

/// The node of a backend that renews a lock. The engine has one renewal worker for each, and spare
/// ones while a reply is late.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NodeId(u64);

impl NodeId {
    /// Makes the node of this number. The backend chooses the numbers.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the number.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// How a waiter found that a lock is busy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::exhaustive_enums, reason = "there is no third request of a waiter")]
pub enum FoundBusyBy {
    /// An attempt: its answer takes into account whether the holder publishes its release.
    Attempt,
    /// [`Backend::peek`].
    Peek,
}

/// The callback for releases. The engine implements it; it is cheap and never blocks.
pub trait Wake: Send + Sync {
    /// Called when the lock may have been released.
    fn wake(&self);

    /// Called in its place if the release names the owner that is next in the queue of a
    /// [fair lock](LockKind::Fair): the others need not ask before their usual time.
    fn wake_next(&self, _next: &OwnerText) {
        self.wake();
    }
}

/// A running [`Backend::watch`]; ends when dropped.
pub struct Watch(#[allow(dead_code, reason = "held for its Drop")] Box<dyn Any + Send + Sync>);

impl Watch {
    /// Makes a watch of a registration whose `Drop` ends it. That `Drop` must not block.
    #[must_use]
    pub fn new<T: Any + Send + Sync>(registration: T) -> Self {
        Self(Box::new(registration))
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watch(..)")
    }
}

/// What a store supports in its wire format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Abilities {
    /// Whether a lease can be renewed. If not, locks have fixed leases only.
    pub renewable: bool,
    /// Whether grants carry fencing tokens.
    pub tokens: bool,
    /// How a waiter is notified of a release.
    pub waking: Waking,
    /// When a held lock is renewed first, if that is before a third of its lease and no replicas
    /// must confirm it: from then on the store [reports](crate::Notices::changed) changes of it.
    pub first_renewal: Option<Duration>,
    /// Whether [`Release::FreedFor`] counts all clients that wait. A server counts only its own
    /// subscribers.
    pub counts_waiters: bool,
    /// Whether replicas can be asked to confirm a grant.
    pub replication: ReplicaSupport,
    /// The longest lease that it grants. `None`: no limit of its own.
    pub longest_lease: Option<Duration>,
    /// Whether it can be a node of a quorum: it grants by [proposal](Tokens::Propose), and no other
    /// server can replace it. A store with failover to a replica, which may lack the last writes,
    /// cannot.
    pub independent: bool,
    /// Whether it has all [kinds](LockKind) of locks, and not only the mutex.
    pub all_kinds: bool,
}

impl Abilities {
    /// Makes abilities with renewal, tokens and published releases; without replicas, not for a
    /// quorum, and for mutexes only.
    #[must_use]
    pub fn full() -> Self {
        let (waking, replication) = (Waking::Publishes, ReplicaSupport::Never);
        Self {
            renewable: true,
            tokens: true,
            waking,
            first_renewal: None,
            counts_waiters: false,
            longest_lease: None,
            replication,
            independent: false,
            all_kinds: false,
        }
    }

    /// Sets whether the store has all kinds of locks.
    #[must_use]
    pub fn all_kinds(mut self, all_kinds: bool) -> Self {
        self.all_kinds = all_kinds;
        self
    }

    /// Sets whether the store can be a node of a quorum.
    #[must_use]
    pub fn independent(mut self, independent: bool) -> Self {
        self.independent = independent;
        self
    }

    /// Sets the longest lease.
    #[must_use]
    pub fn longest_lease(mut self, longest: Option<Duration>) -> Self {
        self.longest_lease = longest;
        self
    }

    /// Sets whether leases can be renewed.
    #[must_use]
    pub fn renewable(mut self, renewable: bool) -> Self {
        self.renewable = renewable;
        self
    }

    /// Sets whether grants carry fencing tokens.
    #[must_use]
    pub fn tokens(mut self, tokens: bool) -> Self {
        self.tokens = tokens;
        self
    }

    /// Sets how a waiter is notified of a release.
    #[must_use]
    pub fn waking(mut self, waking: Waking) -> Self {
        self.waking = waking;
        self
    }

    /// Sets when a held lock is renewed first.
    #[must_use]
    pub fn first_renewal(mut self, after: Option<Duration>) -> Self {
        self.first_renewal = after;
        self
    }

    /// Sets whether releases count all clients that wait.
    #[must_use]
    pub fn counts_waiters(mut self, counts_waiters: bool) -> Self {
        self.counts_waiters = counts_waiters;
        self
    }

    /// Sets whether replicas can be asked to confirm a grant.
    #[must_use]
    pub fn replication(mut self, replication: ReplicaSupport) -> Self {
        self.replication = replication;
        self
    }
}

/// Whether replicas can be asked to confirm a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReplicaSupport {
    /// The store has no replicas.
    Never,
    /// The store counts confirmations, but does not know how many replicas there should be, so
    /// "all" is refused.
    Counted,
    /// The store knows how many there are.
    Listed,
}

/// How a waiter is notified of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Waking {
    /// The store publishes releases: [`Backend::watch`].
    Publishes,
    /// The waiter asks again after `interval`, plus a random part of up to `jitter`.
    Polls {
        /// The time between two attempts.
        interval: Duration,
        /// The largest random addition to it.
        jitter: Duration,
    },
}

#[cfg(test)]
fn _object_safe(_: &dyn Backend) {}

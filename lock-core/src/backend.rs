//! [`Backend`]: what a store must do, and nothing else.
//!
//! # The contract
//!
//! A backend is mechanism. It makes **one attempt** and says what came of it. It never waits for a
//! lock, never retries for one, never renews by itself, counts no nested locks and starts no
//! timers. All of that is policy, and written once, in the engine above it: the local queue, the
//! wait loop, deadlines, re-entry, interrupts, renewal and loss.
//!
//! **What the engine will do.** It calls every method from several threads at once. It calls
//! [`acquire`](Backend::acquire) at most once at a time for each name (one contender per client), and repeats it *with
//! the same owner* when an answer was lost. It never uses an owner again once that wait has ended.
//! It calls
//! [`release`](Backend::release) once, and again if an answer was lost; an owner that has any unanswered request is
//! closed with [`Tombstone::Leave`]. It calls [`renew`](Backend::renew) with at most
//! [`RENEW_BATCH`] holdings at a time, once at a time for each [node](NodeId) that the backend
//! itself named, for as long as it is answered quickly. While an answer does not come it calls it
//! for *other* holdings of that node, from other threads: four calls are under way at most, and a
//! call that waits for another one delays what it renews. Renewals that replicas must confirm have
//! calls of their own, four at most besides: a replica that lags delays no renewal that does not
//! need it. A holding is in two of them only if its holder extends it, too. It stops renewing
//! before it releases. The last thing that it calls, once, is
//! [`leave`](Backend::leave).
//!
//! **What the engine will not do.** It holds no mutex of its own while it calls a backend. It does
//! not ask what kind of store this is: it reads [`Abilities`]. It does not trust a grant for longer
//! than the lease less the drift allowance, counted from before the call.
//!
//! **Time.** Every call carries an absolute moment, `by`, on the clock that the backend was opened
//! with. The call must return by then, with whatever it knows. It may return a little later (a
//! scheduler's slice), never wait for longer.
//!
//! **Replicas.** Where [`Abilities::replication`] says that it can, a backend sees to it that an
//! attempt and a renewal are confirmed by as many replicas as their [`Replication`] asks for, and
//! says if they are not: the lock is the owner's in the store all the same. To take it back, or
//! not, is policy. It never returns before it knows, and never later than `by`.
//!
//! **What must hold in the store.** Only one owner holds a name at a time. A lease that is not
//! renewed ends. No request shortens a lease. A renewal never brings back a holding that is gone. A
//! release frees only its own owner's holding. Tokens of a name grow strictly. A closed owner is
//! never granted anything again, for at least a lease.
//!
//! **Failures** say what is known, because the engine acts on it: [`Failure::Refused`] is an answer
//! (nothing happened),
//! [`Failure::NotSent`] means that nothing can have happened, and [`Failure::Unknown`] that it may have. When in doubt,
//! it is `Unknown`.
//!
//! The conformance suite (feature `conformance`) checks all of this against a real store; run it
//! before you ship.

use crate::clock::Moment;
use crate::error::Error;
use crate::lease::LeaseTime;
use crate::name::LockName;
use crate::owner::{OwnerId, OwnerText};
use crate::replication::{InsufficientReplicas, Replication};
use crate::token::{FencingToken, TokenRange};
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

pub use crate::background::{BackgroundTask, run_in_background};
pub use crate::backoff::Backoff;
pub use crate::limits::{no_descriptor, no_thread};
pub use crate::panics::contain;

/// The largest number of holdings that [`Backend::renew`] is given at once.
///
/// A script that renews a hundred keys keeps a Redis server busy for about 0.2 ms; ten thousand at
/// once stalled other clients for 11 ms.
pub const RENEW_BATCH: usize = 100;

/// A store that locks can live in. See the [module's text](self) for the contract.
pub trait Backend: Send + Sync + fmt::Debug {
    /// Tries once to take the lock for `attempt.owner`.
    ///
    /// If that owner holds it already, this is the repetition of a request whose answer was lost:
    /// grant it again, with the same token, and make sure that at least a full lease is left from
    /// now. If that owner was closed with a tombstone, answer [`Answer::Busy`].
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure>;

    /// Extends the leases of `batch`, each on its own: what goes wrong with one must not touch the
    /// others.
    ///
    /// The answers stand in the order of the batch and are as many. Only a holding that is still
    /// its owner's is extended, to its own lease counted from now, and never shortened.
    ///
    /// A call must not wait for another one of the same node: the engine makes a second one because
    /// the first hangs.
    fn renew(
        &self,
        node: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>>;

    /// Releases the lock if this acquisition's owner still has it, and wakes the waiters.
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

    /// The same as [`release`](Backend::release) for a caller that does not wait for the answer:
    /// returns when the request has left, and tells `done` what came of it, exactly once.
    ///
    /// A backend that can have several requests under way overrides this. The default asks on the
    /// spot, and `done` has run when this returns. Otherwise it runs later, on a thread of the
    /// backend's or of any other caller of it, in the middle of that one's call; and it runs at
    /// `by` or soon after, with [`Failure::Unknown`], if no answer came. So `done` must be short,
    /// must not wait for anything, and must not call the backend.
    ///
    /// A request for the same name that is made after this has returned never overtakes it, unless
    /// it is a repetition of this one.
    fn submit_release(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
        done: OnReleased,
    ) {
        done(self.release(acquisition, closing, by));
    }

    /// Looks, without changing anything, who holds the lock and for how long yet. Never answered
    /// from a replica.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure>;

    /// The same as [`inspect`](Backend::inspect) for a waiter, which looks often and acts on
    /// nothing it sees: one request to the server that is known to keep the lock. A backend that
    /// asks others as well before it answers overrides this.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn peek(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.inspect(name, by)
    }

    /// The holder as in [`inspect`](Backend::inspect), if that is this acquisition's owner.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn verify(
        &self,
        acquisition: &AcquisitionId,
        by: Moment,
    ) -> Result<Option<HolderInfo>, Failure> {
        let holder = self.inspect(&acquisition.name, by)?.holder;
        Ok(holder.filter(|holder| acquisition.owner.matches(&holder.owner)))
    }

    /// Frees the lock for any holder, wakes the waiters, and says whether it was held. A value in
    /// another format is left alone and reported as
    /// [`ErrorKind::ForeignFormat`](crate::ErrorKind::ForeignFormat).
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure>;

    /// From the moment this returns until the [`Watch`] is dropped, calls `wake` at every release
    /// of `name` by any client, and once whenever releases may have been missed (after a
    /// reconnect). Spurious calls are allowed.
    ///
    /// Never called if [`Abilities::waking`] says [`Waking::Polls`].
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure>;

    /// Which node renews this name *now*. Asked anew for each renewal; a node that is slow or dead
    /// delays only its own renewals. Must be cheap and not block.
    fn renewal_node(&self, name: &LockName) -> NodeId;

    /// What this store can do, in its present wire format. Must not change while the backend lives.
    fn abilities(&self) -> Abilities;

    /// The client goes, and perhaps the process with it: waits, until this moment on the machine's
    /// own clock at the latest, for requests that are still to be sent and that no caller waits
    /// for. Most stores have none.
    fn leave(&self, until: Moment) {
        let _no_wait = until;
    }
}

/// Calls a backend; a panic in it is a failure with unknown outcome.
///
/// For backends that are made of others; the engine calls every backend like this.
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
    /// Who will hold it. New for every wait, the same for every repetition within one.
    pub owner: OwnerId,
    /// How long the store shall keep it.
    pub lease: LeaseTime,
    /// Which tokens to hand out with it.
    pub tokens: Tokens,
    /// How many replicas must confirm it. Never on, where [`Abilities::replication`] says that it
    /// cannot be.
    pub replication: Replication,
}

impl<'a> Attempt<'a> {
    /// An attempt with one token, which no replica needs to confirm.
    #[must_use]
    pub fn new(name: &'a LockName, owner: OwnerId, lease: LeaseTime) -> Self {
        let (tokens, replication) = (Tokens::Assign { reserve: 0 }, Replication::off());
        Self { name, owner, lease, tokens, replication }
    }

    /// The same with other tokens.
    #[must_use]
    pub fn tokens(mut self, tokens: Tokens) -> Self {
        self.tokens = tokens;
        self
    }

    /// The same, confirmed by replicas.
    #[must_use]
    pub fn replication(mut self, replication: Replication) -> Self {
        self.replication = replication;
        self
    }
}

/// The fencing tokens that go with a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Tokens {
    /// None: the store keeps no counter for this lock.
    None,
    /// The store makes one that is greater than all before it for this name, and sets aside
    /// `reserve` more behind it for hand-offs inside the client. It stores the *end* of that range.
    Assign {
        /// How many beyond the first.
        reserve: u32,
    },
    /// The caller proposes one, and `reserve` more behind it, as a ballot of Paxos does: for one of
    /// several stores that are asked together.
    ///
    /// The lock is granted if it is free and `first` is greater than the stored token; or if this
    /// owner has it already. In both cases the end of the range is stored, unless a greater token
    /// is. Otherwise the answer is
    /// [`Answer::Stale`]. Where the store has forgotten its token, it must know one that no forgotten token was greater
    /// than.
    Propose {
        /// The token.
        first: FencingToken,
        /// How many beyond it.
        reserve: u32,
    },
}

/// What came of an attempt.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Answer {
    /// The lock is this owner's, and confirmed by as many replicas as were asked for.
    Granted(Grant),
    /// The lock is this owner's in the store, and too few replicas confirmed it in time.
    Unacknowledged(Grant, InsufficientReplicas),
    /// Another owner has it, for this long yet unless it is renewed (`None`: the store cannot say).
    Busy(Option<Duration>),
    /// Another owner has it, and no lease ends that: another library's lock without an expiry, or
    /// one whose expiry was never set. A waiter looks again after this long (`None`: the store
    /// tells).
    BusyWithoutExpiry(Option<Duration>),
    /// It is free, and the token that was [proposed](Tokens::Propose) is not greater than this one:
    /// propose a greater one.
    Stale(FencingToken),
    /// Not granted, and this owner is used up: some of several stores that were asked together may
    /// have granted it, or may yet, and all of that is being given back. The next attempt must be
    /// another owner's.
    RolledBack(RollbackCause),
}

impl Answer {
    /// Whether it was refused because others have the lock, or want it.
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

/// Why an attempt on several stores was [withdrawn](Answer::RolledBack).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RollbackCause {
    /// Another owner has too many of them, for this long yet unless it is renewed (`None`:
    /// unknown).
    Held(Option<Duration>),
    /// No owner has enough of them: several asked at the same time, and each got a part. Each waits
    /// for a random moment, or they would ask together again.
    SplitVote,
    /// Too many of them grant nothing until a time that is known.
    Paused(Pause),
    /// Too many of them could not be asked, or refused.
    Failed(Error),
}

/// A time for which a store grants nothing, because it is new or may have forgotten what it
/// granted: until every lease that it may have forgotten is over. It is no outage: a wait that is
/// long enough waits it out.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Pause {
    /// For how long yet.
    pub left: Duration,
    /// Why, for a caller that does not wait so long.
    pub why: Error,
    /// Whether it may end at any time: enough others can grant it that only gave no answer this
    /// time.
    pub may_end_sooner: bool,
}

impl Pause {
    /// For so long yet, and for this reason.
    #[must_use]
    pub fn new(left: Duration, why: Error) -> Self {
        Self { left, why, may_end_sooner: false }
    }

    /// The same, which may end at any time.
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
    /// The tokens; `None` where they were not asked for.
    pub tokens: Option<TokenRange>,
    /// What the backend wants to be reminded of when this holding is renewed and released.
    pub receipt: Receipt,
}

impl Grant {
    /// A grant with these tokens and an empty receipt.
    #[must_use]
    pub fn new(tokens: Option<TokenRange>) -> Self {
        Self { tokens, receipt: Receipt::default() }
    }

    /// The same with a receipt.
    #[must_use]
    pub fn receipt(mut self, receipt: Receipt) -> Self {
        self.receipt = receipt;
        self
    }
}

/// Something of the backend's own that the engine keeps with a holding and hands back.
#[derive(Clone, Default)]
pub struct Receipt(Option<Arc<dyn Any + Send + Sync>>);

impl Receipt {
    /// Keeps `value`.
    #[must_use]
    pub fn new<T: Any + Send + Sync>(value: T) -> Self {
        Self(Some(Arc::new(value)))
    }

    /// The value, if there is one of this type.
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

/// Which acquisition: a name and its owner, and what the backend said when it granted it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquisitionId {
    /// The lock.
    pub name: LockName,
    /// Who holds it.
    pub owner: OwnerId,
    /// The lease that was last asked for. A tombstone must live for at least this long.
    pub lease: LeaseTime,
    /// From the [`Grant`]; empty if there was none (an attempt whose answer never came).
    pub receipt: Receipt,
}

impl AcquisitionId {
    /// The holding of `owner` on `name`.
    #[must_use]
    pub fn new(name: LockName, owner: OwnerId, lease: LeaseTime, receipt: Receipt) -> Self {
        Self { name, owner, lease, receipt }
    }
}

/// One acquisition to be renewed.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RenewalRequest {
    /// Which holding. Its `lease` is the one to extend to, counted from now.
    pub acquisition: AcquisitionId,
    /// How many replicas must confirm it.
    pub replication: Replication,
}

impl RenewalRequest {
    /// Renew this holding. No replica needs to confirm it.
    #[must_use]
    pub fn new(acquisition: AcquisitionId) -> Self {
        Self { acquisition, replication: Replication::off() }
    }

    /// The same, confirmed by replicas.
    #[must_use]
    pub fn replication(mut self, replication: Replication) -> Self {
        self.replication = replication;
        self
    }
}

/// What came of a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Renewal {
    /// At least a full lease is left from now, and as many replicas as were asked for have it.
    Extended,
    /// The same in the store, and too few replicas confirmed it in time: the old validity stands.
    Unacknowledged(InsufficientReplicas),
    /// The same, because the server has no replica, by the word of most servers that would have to
    /// agree to the promotion of one: none can take over that does not have it.
    Unreplicated(InsufficientReplicas),
    /// The holding is not this owner's any more.
    Gone,
}

/// How an owner is to be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ReleaseOptions {
    /// The largest token that was used of a reserved range: the store's counter goes back to it, if
    /// the lock is still ours. `None` leaves the counter as it is.
    pub last_used: Option<FencingToken>,
    /// Whether a request of this owner may still be under way.
    pub tombstone: Tombstone,
}

impl ReleaseOptions {
    /// Every request of this owner was answered.
    pub const WITHOUT_TOMBSTONE: Self = Self { last_used: None, tombstone: Tombstone::None };

    /// A request of this owner may still arrive.
    pub const WITH_TOMBSTONE: Self = Self { last_used: None, tombstone: Tombstone::Leave };

    /// The same, and writes back the last token used.
    #[must_use]
    pub fn last_used(mut self, token: FencingToken) -> Self {
        self.last_used = Some(token);
        self
    }
}

/// Whether a request of an owner may still be under way when it is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Tombstone {
    /// All were answered.
    None,
    /// One was not: leave a mark, for a lease, that makes the store turn down whatever still
    /// arrives from this owner - also if it holds nothing now, because the late request may have
    /// been granted and ended, or not have come yet.
    Leave,
}

/// What came of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Release {
    /// It was this owner's, and is free.
    Freed,
    /// The same, and so many clients that watch it were told, this one included if it watches:
    /// where a store can say that. It says for how long each may leave a free lock to the others.
    FreedFor(u32),
    /// It was not this owner's (any more).
    Gone,
}

/// Why a backend could not answer, and what may have happened in the store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Failure {
    /// The store answered, and refused: nothing happened.
    Refused(Error),
    /// The request never left: nothing can have happened.
    NotSent(Error),
    /// It left, and no answer came: it may have happened, or happen yet.
    Unknown(Error),
    /// The same, and it is neither to be repeated nor to be taken back, because the store cannot
    /// tell this owner's lock from another's: the engine gives up.
    Final(Error),
}

impl Failure {
    /// The error inside.
    #[must_use]
    pub fn error(&self) -> &Error {
        match self {
            Self::Refused(error)
            | Self::NotSent(error)
            | Self::Unknown(error)
            | Self::Final(error) => error,
        }
    }

    /// The error inside.
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

/// What a store says about a lock.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct LockInfo {
    /// Who holds it; `None` if it is free.
    pub holder: Option<HolderInfo>,
}

impl LockInfo {
    /// It is free.
    pub const FREE: Self = Self { holder: None };

    /// This one holds it.
    #[must_use]
    pub fn held(holder: HolderInfo) -> Self {
        Self { holder: Some(holder) }
    }
}

/// Who holds a lock, as the store says it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HolderInfo {
    /// The holder's identity: ours or another library's.
    pub owner: OwnerText,
    /// What is left of the lease; `None` if it never ends by itself.
    pub remaining: Option<Duration>,
    /// How often it holds it, where the format counts (ours always 1: nesting is counted locally).
    pub holds: u64,
}

impl HolderInfo {
    /// A holder.
    #[must_use]
    pub fn new(owner: OwnerText, remaining: Option<Duration>, holds: u64) -> Self {
        Self { owner, remaining, holds }
    }
}

/// Which of a backend's nodes renews a lock: the engine keeps one thread for each, and some more
/// while that one waits for an answer too long.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NodeId(u64);

impl NodeId {
    /// The node of this number, in whatever way the backend numbers its nodes.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// The callback for releases. Implemented by the engine; must be cheap, and never blocks.
pub trait Wake: Send + Sync {
    /// Something may have been released.
    fn wake(&self);
}

/// A running [`Backend::watch`]; ends when dropped.
pub struct Watch(#[allow(dead_code, reason = "held for its Drop")] Box<dyn Any + Send + Sync>);

impl Watch {
    /// Wraps whatever ends the watch in its `Drop`, which must not block.
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

/// What a store can do in its present wire format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Abilities {
    /// Whether a lease can be renewed. Where not, locks have a fixed lease only.
    pub renewable: bool,
    /// Whether grants carry fencing tokens.
    pub tokens: bool,
    /// How a waiter learns of a release.
    pub waking: Waking,
    /// After how long at the latest a waiter looks again, although releases are published: other
    /// libraries may not publish theirs. `None`: not before the holder's lease can be over.
    pub max_poll_interval: Option<Duration>,
    /// Whether [`Release::FreedFor`] counts all clients that wait. A server counts those that
    /// listen to itself.
    pub counts_waiters: bool,
    /// Whether replicas can be asked to confirm a grant.
    pub replication: ReplicaSupport,
    /// Whether it can be one of a quorum: it grants by [proposal](Tokens::Propose), and nothing but
    /// itself makes it forget what it has answered. A store in which a replica may take over,
    /// without the last writes, is none.
    pub independent: bool,
}

impl Abilities {
    /// Renewable, with tokens, and releases are published; without replicas, and not one of a
    /// quorum.
    #[must_use]
    pub fn full() -> Self {
        let (waking, replication) = (Waking::Publishes, ReplicaSupport::Never);
        Self {
            renewable: true,
            tokens: true,
            waking,
            max_poll_interval: None,
            counts_waiters: false,
            replication,
            independent: false,
        }
    }

    /// The same as one that can be of a quorum, or not.
    #[must_use]
    pub fn independent(mut self, independent: bool) -> Self {
        self.independent = independent;
        self
    }

    /// The same with leases that can be renewed, or not.
    #[must_use]
    pub fn renewable(mut self, renewable: bool) -> Self {
        self.renewable = renewable;
        self
    }

    /// The same with or without tokens.
    #[must_use]
    pub fn tokens(mut self, tokens: bool) -> Self {
        self.tokens = tokens;
        self
    }

    /// The same with this way of waking.
    #[must_use]
    pub fn waking(mut self, waking: Waking) -> Self {
        self.waking = waking;
        self
    }

    /// The same where who waits looks again after this long at the latest.
    #[must_use]
    pub fn max_poll_interval(mut self, after: Option<Duration>) -> Self {
        self.max_poll_interval = after;
        self
    }

    /// The same where all that wait are counted, or not.
    #[must_use]
    pub fn counts_waiters(mut self, counts_waiters: bool) -> Self {
        self.counts_waiters = counts_waiters;
        self
    }

    /// The same with replicas that can be asked.
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
    /// There are none.
    Never,
    /// Those that confirm are counted. How many there should be the store does not know, so "all"
    /// means nothing to it.
    Counted,
    /// The store knows how many there are.
    Listed,
}

/// How a waiter learns of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Waking {
    /// The store tells: [`Backend::watch`].
    Publishes,
    /// It does not: the waiter asks again after `interval`, plus a random part of up to `jitter`.
    Polls {
        /// How long to wait between two attempts.
        interval: Duration,
        /// The most that is added to it, at random.
        jitter: Duration,
    },
}

#[cfg(test)]
fn _object_safe(_: &dyn Backend) {}

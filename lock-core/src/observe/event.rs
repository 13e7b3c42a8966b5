//! [`Event`] and [`EventHandler`]: what happened, delivered on a thread of its own.

use crate::backend::replication::InsufficientReplicas;
use crate::backend::token::FencingToken;
use crate::error::Error;
use crate::name::LockName;
use crate::observe::loss::Loss;
use std::time::Duration;

/// Something that happened to a lock of this client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A lock was acquired: from the store, or by hand-off from another thread of this client. A
    /// nested hold is local and emits no event.
    #[non_exhaustive]
    Acquired {
        /// The lock.
        lock: LockName,
        /// Its token.
        token: Option<FencingToken>,
        /// The time from the call to the grant.
        waited: Duration,
    },
    /// An attempt found the lock held by another owner. Emitted once for each wait.
    #[non_exhaustive]
    Contended {
        /// The lock.
        lock: LockName,
    },
    /// An attempt found the lock held without a lease: only its holder's release or
    /// [`force_unlock`](crate::DistLock::force_unlock) frees it. Emitted once for each wait.
    #[non_exhaustive]
    BusyWithoutExpiry {
        /// The lock.
        lock: LockName,
    },
    /// A semaphore has another number of permits in the store than this client named, and that
    /// number counts: see [`Semaphore::set_limit`](crate::Semaphore::set_limit). Emitted once for
    /// each number that is named, and again when the stored one changes.
    #[non_exhaustive]
    LimitDiffers {
        /// The semaphore.
        lock: LockName,
        /// What this client named.
        asked: u32,
        /// How many permits there are.
        stored: u32,
    },
    /// The store grants nothing until a known time, and the wait continues until then. Emitted once
    /// for each wait.
    #[non_exhaustive]
    Paused {
        /// The lock.
        lock: LockName,
        /// How long the pause still lasts.
        left: Duration,
        /// The reason, and what ends the pause sooner.
        why: Error,
    },
    /// The lease was extended, by the watchdog or on demand.
    #[non_exhaustive]
    Renewed {
        /// The lock.
        lock: LockName,
        /// What was left of the validity when the renewal was sent.
        left: Duration,
    },
    /// A renewal failed. It is retried until the local deadline; the lock is still valid until
    /// then. Emitted once for each cause, not for each retry, until a renewal succeeds.
    #[non_exhaustive]
    RenewalFailed {
        /// The lock.
        lock: LockName,
        /// The cause.
        error: Error,
        /// What is left of the validity.
        left: Duration,
    },
    /// The number of renewals that the caller allowed is used up. The lock is still held for the
    /// rest of the lease, and then it is lost.
    #[non_exhaustive]
    RenewalsUsedUp {
        /// The lock.
        lock: LockName,
        /// What is left of the validity.
        left: Duration,
    },
    /// Too few replicas confirmed a grant in time, and it was rolled back. The attempt is repeated
    /// if the policy and the wait allow it.
    #[non_exhaustive]
    InsufficientReplicasTakenBack {
        /// The lock.
        lock: LockName,
        /// How many confirmed.
        insufficient: InsufficientReplicas,
    },
    /// Too few replicas confirmed a grant or a renewal in time, and the
    /// [policy](crate::OnInsufficientReplicas::Accept) accepts that: if the master is lost now, the
    /// lock may be granted again.
    #[non_exhaustive]
    InsufficientReplicasAccepted {
        /// The lock.
        lock: LockName,
        /// Its token.
        token: Option<FencingToken>,
        /// How many confirmed.
        insufficient: InsufficientReplicas,
    },
    /// A renewal counts although too few replicas confirmed it: the server has no replica that
    /// could be promoted without it, or the
    /// [policy](crate::Replication::keep_unconfirmed_renewals) says so. The lock is held as without
    /// replicas. Emitted once until [`Restored`](Self::Restored).
    #[non_exhaustive]
    Degraded {
        /// The lock.
        lock: LockName,
        /// How many confirmed.
        insufficient: InsufficientReplicas,
    },
    /// As many replicas as requested have confirmed a renewal again.
    #[non_exhaustive]
    Restored {
        /// The lock.
        lock: LockName,
    },
    /// The lock was lost. Stop what it protects.
    #[non_exhaustive]
    Lost {
        /// The lock.
        lock: LockName,
        /// Its token.
        token: Option<FencingToken>,
        /// The cause.
        loss: Loss,
    },
    /// The store no longer has a lock that was handed from thread to thread inside this client.
    /// The release of each earlier holder was reported as a success, but that holder may have lost
    /// the lock before. The present holder gets [`Lost`](Self::Lost).
    #[non_exhaustive]
    HandedOnLost {
        /// The lock.
        lock: LockName,
        /// How many holds there were before the last.
        holds: u32,
        /// The token of the first of them.
        first: Option<FencingToken>,
        /// The token of the last of them.
        last: Option<FencingToken>,
    },
    /// The lock was released to the store, or handed off to the next waiter of this client.
    #[non_exhaustive]
    Released {
        /// The lock.
        lock: LockName,
        /// How long it was held.
        held: Duration,
    },
    /// A release was repeated after a lost reply, and this holder no longer had the lock: almost
    /// certainly the first request freed it, but it may also have been deleted just before.
    #[non_exhaustive]
    ReleaseUnconfirmed {
        /// The lock.
        lock: LockName,
    },
    /// A release failed, also one in a guard's `Drop`, which returns nothing. If the outcome is
    /// unknown it is retried in the background; the lease ends the lock in any case.
    #[non_exhaustive]
    ReleaseFailed {
        /// The lock.
        lock: LockName,
        /// The cause.
        error: Error,
    },
    /// A campaign of an [`Election`](crate::Election) could not ask the store for as long as
    /// `outage_limit`, or was refused. It goes on, with pauses. Emitted once for each kind of
    /// error, until the store answers.
    #[non_exhaustive]
    CampaignFailed {
        /// The name of the election.
        lock: LockName,
        /// The cause.
        error: Error,
    },
    /// Locks work, but something about the store or the settings should be corrected. Emitted once
    /// for each server and cause; the [kind](WarningKind) says if it is repeated.
    #[non_exhaustive]
    Warning {
        /// The kind.
        kind: WarningKind,
        /// The problem, its consequence, and how to correct it. Contains no secret.
        message: String,
    },
    /// Another server than before answers at an address, and the client uses it from now on: the
    /// old one was restarted or replaced, or has lost a part of its data. Locks held on Redis
    /// servers are verified at once.
    /// Another Sentinel deployment or cluster is used only after the locks held in the old one have
    /// ended.
    #[non_exhaustive]
    ServerChanged {
        /// The address, or the name of the deployment.
        server: String,
        /// The identity until now: a server's `run_id`, a Sentinel's or a cluster node's ID.
        was: String,
        /// The identity from now on.
        is: String,
        /// What it has of the data of the one before.
        data: ServerData,
    },
    /// Another server than expected answers at an address, and the client does not use it. Emitted
    /// once for each identity that is found there.
    #[non_exhaustive]
    ServerRefused {
        /// The address.
        server: String,
        /// The identity that was expected.
        expected: String,
        /// The identity that was found.
        found: String,
    },
    /// The handler was too slow: this many events were dropped before the next one.
    #[non_exhaustive]
    Missed {
        /// How many.
        count: u64,
    },
}

/// What a server has of the data of the one that it [replaces](Event::ServerChanged), by its
/// replication IDs and offsets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ServerData {
    /// All that the client knows to have been there: it is a replica that was promoted, or the same
    /// server with the data that it saved.
    Continued,
    /// Not the last writes that were answered: it is a replica that was behind, or was restarted
    /// with older data. Locks that were granted last may be lost, and granted again.
    Cut,
    /// It does not show that: most restarts, and any other server, look the same.
    Unknown,
}

/// What an [`Event::Warning`] is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum WarningKind {
    /// The store does not publish this client's releases (`PUBLISH` is not allowed, or does not
    /// exist): waiters of other clients poll.
    NotPublished,
    /// The store does not notify this client of releases (`SUBSCRIBE` is not allowed, or does not
    /// exist): its waiters poll.
    NotSubscribed,
    /// The store does not report changes of locks to this client (client tracking is refused, or
    /// the server tracks fewer keys than are watched): a release that is not published is noticed
    /// some seconds later.
    NotTracked,
    /// Connections on which the store reports releases are closed soon after they were made, by it
    /// or by something between: waiters learn of a release about once a second.
    ShortConnections,
    /// The store may evict a held lock when its memory is full. Emitted every few minutes while
    /// that is so.
    Eviction,
    /// The clock of a replica is ahead of its master's: leases end so much earlier there once it is
    /// promoted. Locks under a policy for replicas are trusted for as much less; for leases of
    /// which that is more than a third, the replica does not count.
    ReplicaClock,
    /// A file of TLS certificates cannot be read any more: connections use its last content.
    TlsFile,
    /// An environment variable has the prefix of this library, but no setting has that name.
    UnknownVariable,
    /// A quorum has other members than this client knew, or one that its URL does not name.
    QuorumMembers,
    /// The clock of a quorum's server is wrong by more than `max_lease`, so its vote does not
    /// count; or a server waits for a clock that was ahead.
    QuorumClock,
}

/// The callback for events.
///
/// Called on one thread of the client's own, one event after the other, never on a thread that
/// renews or waits. A slow handler delays only later events: beyond 4,096 queued events, all but
/// [`Event::Lost`] and [`Event::HandedOnLost`] are dropped and counted. A panic in it is caught,
/// and the next event is delivered.
pub trait EventHandler: Send + Sync {
    /// Called for each event.
    fn on_event(&self, event: &Event);
}

/// A function is a handler.
impl<F: Fn(&Event) + Send + Sync> EventHandler for F {
    fn on_event(&self, event: &Event) {
        self(event);
    }
}

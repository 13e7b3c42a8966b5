//! [`Event`] and [`EventHandler`]: changes of locks and servers, reported on a separate thread.

use crate::backend::replication::InsufficientReplicas;
use crate::backend::token::FencingToken;
use crate::error::Error;
use crate::name::LockName;
use crate::observe::loss::Loss;
use std::time::Duration;

/// An event of a lock or a server that this client uses.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A lock was acquired from the store, or by hand-off from another thread of this client. A
    /// nested hold is local and emits no event.
    #[non_exhaustive]
    Acquired {
        /// The lock.
        lock: LockName,
        /// The fencing token of the acquisition.
        token: Option<FencingToken>,
        /// The time from the call to the grant.
        waited: Duration,
    },
    /// A call could not acquire the lock at once: another owner held it, or other owners or other
    /// threads of this client contended for it. Emitted once for each call.
    #[non_exhaustive]
    Contended {
        /// The lock.
        lock: LockName,
    },
    /// An attempt found the lock held without a lease: only the holder's release or
    /// [`force_unlock`](crate::DistLock::force_unlock) frees it. Emitted once for each wait.
    #[non_exhaustive]
    BusyWithoutExpiry {
        /// The lock.
        lock: LockName,
    },
    /// A semaphore has another number of permits in the store than this client named. The stored
    /// number applies: see [`Semaphore::set_limit`](crate::Semaphore::set_limit). Emitted once for
    /// each number that this client names, and again when the stored number changes.
    #[non_exhaustive]
    LimitDiffers {
        /// The semaphore.
        lock: LockName,
        /// The number of permits that this client named.
        asked: u32,
        /// The number of permits in the store.
        stored: u32,
    },
    /// The store grants nothing until a known time, and the wait continues until then. Emitted once
    /// for each wait.
    #[non_exhaustive]
    Paused {
        /// The lock.
        lock: LockName,
        /// The remaining time of the pause.
        left: Duration,
        /// The reason, and the action that ends the pause sooner.
        why: Error,
    },
    /// The lease was extended, by the watchdog or on demand.
    #[non_exhaustive]
    Renewed {
        /// The lock.
        lock: LockName,
        /// The validity that was left when the renewal was sent.
        left: Duration,
    },
    /// A renewal failed, and is retried until the validity of the lock ends. Emitted once for each
    /// cause, not for each retry, until a renewal succeeds.
    #[non_exhaustive]
    RenewalFailed {
        /// The lock.
        lock: LockName,
        /// The cause.
        error: Error,
        /// The validity that is left.
        left: Duration,
    },
    /// The caller's maximum number of renewals is reached. The lock is held for the rest of the
    /// lease, and then lost.
    #[non_exhaustive]
    RenewalsUsedUp {
        /// The lock.
        lock: LockName,
        /// The validity that is left.
        left: Duration,
    },
    /// Too few replicas confirmed a grant in time, and the client releases it again, if necessary
    /// in the background. The attempt is repeated if the policy and the wait allow it.
    #[non_exhaustive]
    InsufficientReplicasTakenBack {
        /// The lock.
        lock: LockName,
        /// The number of replicas that confirmed, and the number required.
        insufficient: InsufficientReplicas,
    },
    /// Too few replicas confirmed a grant or a renewal in time, and the
    /// [policy](crate::OnInsufficientReplicas::Accept) accepts that: if the master is lost now, the
    /// lock may be granted to another owner.
    #[non_exhaustive]
    InsufficientReplicasAccepted {
        /// The lock.
        lock: LockName,
        /// The fencing token of the acquisition.
        token: Option<FencingToken>,
        /// The number of replicas that confirmed, and the number required.
        insufficient: InsufficientReplicas,
    },
    /// A renewal is accepted although too few replicas confirmed it: the server has no replica that
    /// could be promoted without the renewal, or the
    /// [policy](crate::Replication::keep_unconfirmed_renewals) accepts that. The lock is held as
    /// without replicas. Emitted once until [`Restored`](Self::Restored).
    #[non_exhaustive]
    Degraded {
        /// The lock.
        lock: LockName,
        /// The number of replicas that confirmed, and the number required.
        insufficient: InsufficientReplicas,
    },
    /// As many replicas as required confirmed a renewal, for the first time since
    /// [`Degraded`](Self::Degraded).
    #[non_exhaustive]
    Restored {
        /// The lock.
        lock: LockName,
    },
    /// The lock was lost. Stop the work that it protects.
    #[non_exhaustive]
    Lost {
        /// The lock.
        lock: LockName,
        /// The fencing token of the acquisition.
        token: Option<FencingToken>,
        /// The cause.
        loss: Loss,
    },
    /// The store no longer has a lock that was handed off between threads of this client. Each
    /// earlier holder's release was reported as a success, but the lock may have been lost before
    /// that release. For the present holder [`Lost`](Self::Lost) is emitted.
    #[non_exhaustive]
    HandedOnLost {
        /// The lock.
        lock: LockName,
        /// The number of earlier holds: all holds on the grant but the present one.
        holds: u32,
        /// The fencing token of the first of these holds.
        first: Option<FencingToken>,
        /// The fencing token of the last of these holds.
        last: Option<FencingToken>,
    },
    /// The lock was released to the store, or handed off to the next waiter of this client.
    #[non_exhaustive]
    Released {
        /// The lock.
        lock: LockName,
        /// The time from the grant to the release.
        held: Duration,
    },
    /// A release was repeated after a lost reply, and its holder no longer had the lock. Almost
    /// certainly the first request freed the lock, but the lock may also have been deleted just
    /// before.
    #[non_exhaustive]
    ReleaseUnconfirmed {
        /// The lock.
        lock: LockName,
    },
    /// A release failed. A guard's `Drop`, which returns nothing, also reports its failure here. A
    /// release with an unknown outcome is retried in the background; in any case the lock ends with
    /// its lease.
    #[non_exhaustive]
    ReleaseFailed {
        /// The lock.
        lock: LockName,
        /// The cause.
        error: Error,
    },
    /// A campaign of an [`Election`](crate::Election) got no answer from the store for as long as
    /// `outage_limit`, or was refused. The campaign continues, with pauses. Emitted once for each
    /// kind of error, until the store answers.
    #[non_exhaustive]
    CampaignFailed {
        /// The name of the election.
        lock: LockName,
        /// The cause.
        error: Error,
    },
    /// The store or the settings should be corrected, although locks work. Emitted once for each
    /// server and cause, and again if the cause ends and returns; the [kind](WarningKind) documents
    /// exceptions.
    #[non_exhaustive]
    Warning {
        /// The kind.
        kind: WarningKind,
        /// The problem, its consequence, and the correction. Contains no secret.
        message: String,
    },
    /// Another server than before answers at an address, and the client uses it from now on: the
    /// old server was restarted or replaced, or has lost a part of its data. Locks held on Redis
    /// servers are verified at once. Another Sentinel deployment or cluster is used only after the
    /// locks held in the old one have ended.
    #[non_exhaustive]
    ServerChanged {
        /// The address, or the name of the deployment.
        server: String,
        /// The previous identity: a server's `run_id`, or the ID of a Sentinel or a cluster node.
        was: String,
        /// The new identity.
        is: String,
        /// The part of the previous server's data that the new server has.
        data: ServerData,
    },
    /// Another server than expected answers at an address, and the client does not use it. Emitted
    /// once for each identity found at the address.
    #[non_exhaustive]
    ServerRefused {
        /// The address.
        server: String,
        /// The identity that was expected.
        expected: String,
        /// The identity that was found.
        found: String,
    },
    /// Events were dropped because the handler was too slow. Delivered before the next event.
    #[non_exhaustive]
    Missed {
        /// The number of dropped events.
        count: u64,
    },
}

/// The part of the [previous](Event::ServerChanged) server's data that a server has, by its
/// replication IDs and offsets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ServerData {
    /// The server has all data that the client knows of: it is a promoted replica, or the same
    /// server with its saved data.
    Continued,
    /// The last acknowledged writes are missing: the server is a replica that was behind, or was
    /// restarted with older data. The most recently granted locks may be lost, and granted again.
    Cut,
    /// The server's data cannot be compared, as after most restarts, and with any unrelated server.
    Unknown,
}

/// The subject of an [`Event::Warning`].
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
    /// The store does not say which server it is (`INFO` is refused, or does not exist): a restart
    /// or a replacement of the server is noticed at the next renewal only.
    UnknownServer,
    /// The store or a device in between closes the connections for notifications of releases soon
    /// after they open: waiters notice a release about once a second.
    ShortConnections,
    /// The store may evict a held lock when its memory is full. Emitted every few minutes while
    /// this is the case.
    Eviction,
    /// The clock of a replica is ahead of its master's, so leases end earlier by the difference
    /// once the replica is promoted. The validity of locks under a policy for replicas is shortened
    /// by the difference; if the difference exceeds a third of the lease, the replica's
    /// confirmations are ignored.
    ReplicaClock,
    /// The store refuses this client: wrong credentials, a missing right, a wrong setting. Emitted
    /// once for a client, with the first such error of a call that acquires a lock.
    Refused,
    /// A file of TLS certificates can no longer be read: connections use its last content.
    TlsFile,
    /// An environment variable has the prefix of this library, but no setting has that name.
    UnknownVariable,
    /// A quorum has members that this client did not know, or that its URL does not name.
    QuorumMembers,
    /// The clock of a quorum's server is wrong by more than `max_lease`, so the server's vote does
    /// not count. Or a new node votes later than usual, because the clock of another server was
    /// ahead when the node joined the quorum.
    QuorumClock,
}

/// The callback for events.
///
/// Called on one thread of the client, one event after the other, never on a thread that renews or
/// waits. A slow handler delays only later events: beyond 4,096 queued events, all but
/// [`Event::Lost`] and [`Event::HandedOnLost`] are dropped and counted. A panic of the handler is
/// caught, and the next event is delivered.
pub trait EventHandler: Send + Sync {
    /// Handles an event.
    fn on_event(&self, event: &Event);
}

/// Implements the callback for functions.
impl<F: Fn(&Event) + Send + Sync> EventHandler for F {
    fn on_event(&self, event: &Event) {
        self(event);
    }
}

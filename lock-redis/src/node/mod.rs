//! [`Node`]: one server, with all connections of this client to that server. A node makes one
//! attempt for each request. A standalone server is one node. Where several servers make a store,
//! each writable server is a node.
//!
//! The wire format decides how a lock is stored. All nodes of a client have the same wire format.
//!
//! - `settings`: the settings that all nodes of a client have in common
//! - `connections`: the choice of the connection for a request
//! - `renewals`: requests that renew, on connections of their own
//! - `change_reports`: the connections for renewals, and the server's reports of changes of the
//!   renewed keys
//! - `replica_clocks`: by how much the clocks of the server's replicas are ahead of the server's
//!   clock
//! - `eviction`: the check that the server does not evict locks
//! - `heartbeat`: the check that the server is still a master, with the data it had before
//! - `listing`: requests about many locks
//! - `restart_grace`: no grants on a server that was started a moment ago
//! - [`cluster`]: the server as a node of a cluster: its slots and its redirects
//! - [`quorum`]: the server as a node of a quorum: its marker and its votes
//! - `diagnosis`: the consequences that the server's settings and state have for locks
//! - `deployment`: groups of servers that list each other, and the choice of the group that a URL
//!   means
//! - `watch_registry`: watches that move to another node together with their locks

mod change_reports;
pub(crate) mod cluster;
mod connections;
mod deployment;
pub(crate) mod diagnosis;
pub(crate) mod eviction;
mod heartbeat;
mod listing;
pub(crate) mod quorum;
mod renewals;
mod replica_clocks;
mod restart_grace;
mod settings;
mod watch_registry;

pub use deployment::{Account, Deployment, Granted};
pub use diagnosis::StoreKind;
pub use replica_clocks::ServerClock;
pub use settings::NodeSettings;
pub use watch_registry::WatchRegistry;

use crate::connection::history::Noted;
use crate::connection::{
    ConnectionLike, ConnectionPool, Dialer, FramedConnection, Identity, NeededReplicas,
    ReplicaCount, SharedConnection,
};
use crate::protocol::Format;
use crate::protocol::driver::{self, drive};
use crate::wakeups::Subscriber;
use change_reports::RenewalSlots;
use cluster::{Port, Shards};
use diagnosis::NodeTerms;
use eviction::Eviction;
use heartbeat::Heartbeat;
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, Failure, HolderInfo, LockInfo, OnReleased, PermitChange,
    PermitOutcome, Release, ReleaseOptions, Tombstone, Wake, Waking, Watch,
};
use lock_core::{
    ClientId, Clock, Error, ErrorKind, LeaseTime, LockName, Moment, Replicas, Replication,
};
use replica_clocks::ReplicaClocks;
use restart_grace::RestartGrace;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The mode in which requests are sent to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum RequestMode {
    /// Requests are sent without `ASKING`. In a cluster, this server is then the master of the
    /// lock's slot.
    Direct,
    /// Requests are for a slot that a cluster is moving to this server. `ASKING` precedes each
    /// request, on a connection that sends no other request between the two.
    Asking,
    /// The application's pool lends a connection for each request.
    Lent,
}

/// The abilities that only formats with recorded holders have, as an error message names them after
/// "it cannot".
const QUORUM: &str = "stand on a quorum";
const RENEWED: &str = "be renewed";
const SHARED: &str = "count permits";

/// One server, with the connections that [`RedisScheme`](crate::RedisScheme) lists. Clones share
/// these connections.
///
/// Dropping the last clone ends the node's threads and connections, without waiting for them.
#[derive(Clone)]
pub struct Node {
    inner: Arc<NodeInner>,
    mode: RequestMode,
}

/// The state that the clones of a node share.
struct NodeInner {
    format: Format,
    /// The client that uses this node.
    client: ClientId,
    /// The connection for all requests except renewals and requests that use `pool`. All threads
    /// share this connection, so that the requests of a lock stay in order. Two shared connections
    /// were no faster than one, neither with 8 threads nor with 128.
    link: SharedConnection,
    /// The connections for requests that need a connection of their own, such as clean-ups, scans,
    /// transactions, waits for replicas, and requests after `ASKING`.
    pool: ConnectionPool,
    dialer: Arc<Dialer>,
    renewals: Arc<RenewalSlots>,
    subscriber: Subscriber,
    /// The eviction policy of the server, as far as known.
    eviction: Eviction,
    heartbeat: Heartbeat,
    restart_grace: RestartGrace,
    /// The function that returns the number of replicas. Without it, the policy "all" is refused.
    replica_count: Option<ReplicaCount>,
    replica_clocks: ReplicaClocks,
    terms: NodeTerms,
    /// The way in which waiters are notified, if it is not that of the wire format.
    waking: Option<Waking>,
}

/// Ends the dials under way, including the subscriber's, and the exclusive connections. The other
/// threads and connections end with the fields that own them.
impl Drop for NodeInner {
    fn drop(&mut self) {
        self.dialer.retire();
    }
}

/// A reference to a node that does not keep the node alive.
#[derive(Debug)]
pub struct WeakNode(Weak<NodeInner>);

impl WeakNode {
    /// Returns whether this is a reference to `node`.
    #[must_use]
    pub fn is(&self, node: &Node) -> bool {
        self.0.as_ptr() == Arc::as_ptr(&node.inner)
    }
}

impl Node {
    /// Returns a copy of this node that sends `ASKING` before each request, for a slot that is
    /// being moved to this node.
    #[must_use]
    pub fn asking(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            mode: RequestMode::Asking,
        }
    }

    /// Returns whether `ASKING` precedes each request.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        self.mode == RequestMode::Asking
    }

    pub(crate) fn downgrade(&self) -> WeakNode {
        WeakNode(Arc::downgrade(&self.inner))
    }

    /// Queries from time to time whether the server may evict locks, and whether it is still a
    /// master with the data that it had before. Sends the queries behind the requests that were
    /// sent before, without waiting for the replies.
    fn look_behind(&self) {
        if self.is_lent() {
            return; // there is no connection that all threads share
        }
        let by = self.clock().now() + self.inner.dialer.command_timeout();
        self.inner.eviction.look_behind(&self.inner.link, by);
        self.inner.heartbeat.look_behind(&self.inner.link, by);
    }

    /// Returns the answer to an attempt if the server was started too recently to grant locks, and
    /// `None` otherwise. Fails under `eviction=refuse` if the server may evict locks or does not
    /// state its policy, and under `restart_grace` if it does not state its age.
    pub(super) fn refusal(
        &self,
        link: &mut dyn ConnectionLike,
        by: Moment,
    ) -> Result<Option<Answer>, Failure> {
        self.inner.eviction.refuse(link, by)?;
        self.inner.restart_grace.refusal()
    }

    fn acquire_confirmed(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        let needed = self.needed(attempt.replication, attempt.lease)?;
        self.inner.replica_clocks.note_use(attempt.lease);
        let time = attempt.replication.time();
        let mut connection = self.borrow_behind_releases(by)?;
        if let Some(refusal) = self.refusal(&mut connection, by)? {
            return Ok(refusal);
        }
        let mut link = connection.waiting(self.clock(), needed.awaited, time);
        let tracking = self.tracking();
        let exchange = self.inner.format.acquire(attempt, &tracking)?;
        let answer = drive(exchange, &mut link, by)?;
        self.inner.replica_clocks.note_confirmed(link.confirmed());
        let answer = match answer {
            Answer::Granted(grant) => match link.weigh(needed)? {
                None => Answer::Granted(grant),
                Some(insufficient) => Answer::Unacknowledged(grant, insufficient),
            },
            answer => answer,
        };
        drop(link);
        if self.inner.eviction.is_new() {
            let by = self.clock().now() + self.inner.dialer.command_timeout();
            if let Ok(mut connection) = self.borrow(by) {
                self.inner.eviction.look(&mut connection, by);
            }
        }
        Ok(answer)
    }

    /// Queries whether the server may evict locks, after the first attempt: without waiting for the
    /// reply, if this is the connection that all threads share.
    fn look_at_eviction(&self, link: &mut FramedConnection<'_>) {
        let by = self.clock().now() + self.inner.dialer.command_timeout();
        match link.is_shared() {
            true => self.inner.eviction.look_behind(&self.inner.link, by),
            false => self.inner.eviction.look(link, by),
        }
    }

    /// Returns the number of replicas that must confirm a lease.
    fn needed(
        &self,
        replication: Replication,
        lease: LeaseTime,
    ) -> Result<NeededReplicas, Failure> {
        let count = match (replication.count(), &self.inner.replica_count) {
            (Replicas::Off, _) => 0,
            (Replicas::AtLeast(count), _) => count,
            (Replicas::All, Some(count)) => count().map_err(Failure::NotSent)?,
            (count, _) => {
                return Err(Failure::NotSent(Error::new(
                    ErrorKind::Unsupported,
                    format!(
                        "replicas={count}: it is not known how many replicas this server should \
                         have"
                    ),
                )));
            }
        };
        Ok(self.inner.replica_clocks.needed(count, lease, replication))
    }

    /// Returns the wire format.
    #[must_use]
    pub fn format(&self) -> &Format {
        &self.inner.format
    }

    /// Returns whether `other` is a clone of this node with the same request mode.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner) && self.mode == other.mode
    }

    /// Returns whether the connections are those of the application's pool.
    pub(crate) fn is_lent(&self) -> bool {
        self.mode == RequestMode::Lent
    }

    /// Returns the way in which waiters are notified, if it is not that of the wire format.
    pub(crate) fn waking(&self) -> Option<Waking> {
        self.inner.waking
    }

    /// Returns the clock of all deadlines, as a shared reference that can be stored.
    pub(crate) fn shared_clock(&self) -> &Arc<dyn Clock> {
        self.inner.dialer.clock()
    }

    /// Returns the clock of all deadlines.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        self.inner.dialer.clock().as_ref()
    }

    /// Returns a function that requests that the waiters of a key are woken after every release.
    /// The arguments are the key, and whether the waiter is the first in its queue; for any other
    /// waiter, the function ends such a request. The function returns whether the waiters are
    /// already woken after every release.
    pub(crate) fn tracking(&self) -> impl Fn(&str, bool) -> bool {
        |key, is_first| self.inner.subscriber.track(key, is_first)
    }

    /// Watches the releases of a lock without waiting for the server's confirmation, for a watch
    /// that moves to this node from another node. `wake` is also called when the subscription is
    /// confirmed, because releases may have been missed until then.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub fn follow(&self, name: &LockName, wake: Arc<dyn Wake>) -> Result<Watch, Failure> {
        if self.is_lent() && self.waking().is_some() {
            let error =
                "without `with_waking`, a pool of the application does not tell of releases";
            return Err(Failure::Final(Error::new(ErrorKind::Unsupported, error)));
        }
        let channel = self.inner.format.watched_channel(name, self.inner.client)?;
        self.inner
            .subscriber
            .follow_releases(&channel, wake)
            .map_err(on(name))
    }

    /// Sets the function that is called whenever the subscriber's connection is lost or cannot be
    /// made. The function must be short. Only the first call has an effect.
    pub fn on_trouble(&self, tell: Arc<dyn Fn() + Send + Sync>) {
        self.inner.subscriber.on_trouble(tell);
    }

    /// Returns the cluster that this node belongs to, as the server lists it. `host` is the host by
    /// which this client addresses the server.
    ///
    /// # Errors
    ///
    /// See [`Failure`]. A server that is no node of a cluster refuses the request.
    pub fn shards(&self, host: &str, tls: bool, by: Moment) -> Result<Shards, Failure> {
        let port = if tls { Port::Tls } else { Port::Plain };
        cluster::ask(&mut *self.inner.pool.borrow(by)?, host, port, by)
    }

    /// Resolves the server's host name to IP addresses, until `by`. Returns no addresses if that
    /// fails.
    #[must_use]
    pub fn resolve(&self, by: Moment) -> Vec<SocketAddr> {
        self.inner.dialer.resolve(by)
    }

    /// Ends the shared connection and the exclusive connections, because the server is no longer
    /// the master or no longer used. Requests under way fail now, and new dials fail. The
    /// subscriber's connection and all threads end when the last clone is dropped.
    pub fn retire(&self) {
        self.inner.dialer.retire();
        self.inner.link.end(&self.inner.dialer.retired());
    }

    /// Returns the ID that the server must have. Returns `None` if the ID is not known yet, or if
    /// the server's identity is not checked.
    #[must_use]
    pub fn identity(&self) -> Option<Arc<str>> {
        self.inner.dialer.identity()?.known()
    }

    /// Returns the last known position in the history of the server's data, and the time at which
    /// the server reported that position.
    pub(crate) fn noted(&self) -> Option<(Noted, Moment)> {
        self.inner.dialer.identity().and_then(Identity::noted)
    }

    /// Connects, at most until `by`, and returns whether this server has at least a part of this
    /// history. If so, this server was a replica of the server with this history, or is that
    /// server.
    pub(crate) fn succeeds(&self, noted: &(Noted, Moment), by: Moment) -> bool {
        self.inner.dialer.succeeds(noted, by)
    }

    /// Returns the server's name for messages.
    pub fn server(&self) -> impl fmt::Display {
        Arc::clone(self.inner.dialer.server())
    }
}

/// Methods that make one attempt on this server for each request, as
/// [`Backend`](lock_core::Backend) describes the requests.
impl Node {
    /// Refuses a fair lock where waiters are not notified: the queue passes over a waiter that does
    /// not receive the message that grants the lock.
    fn refuse_fair(&self, name: &LockName) -> Result<(), Failure> {
        let kind = name.kind();
        if self.waking().is_none() || !kind.is_queued() || kind.permits().is_some() {
            return Ok(());
        }
        let why = "over the application's pool a fair lock needs notifications: name the server by \
                   `with_waking`";
        Err(Failure::NotSent(Error::new(ErrorKind::Unsupported, why)))
    }

    /// Makes one attempt to acquire a lock.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        let format = &self.inner.format;
        if self.is_lent() {
            self.refuse_fair(attempt.name)?;
            self.reserve_renewal_connection(by)
                .map_err(on(attempt.name))?;
        }
        let outcome = if attempt.replication.is_off() {
            let is_apart = format.needs_own_connection();
            let connection = if is_apart {
                self.borrow(by)
            } else {
                self.connection(by)
            };
            connection.and_then(|mut link| {
                if let Some(refusal) = self.refusal(&mut link, by)? {
                    return Ok(refusal);
                }
                let tracking = self.tracking();
                let answer = drive(format.acquire(attempt, &tracking)?, &mut link, by)?;
                if self.inner.eviction.is_new() {
                    self.look_at_eviction(&mut link);
                }
                Ok(answer)
            })
        } else {
            self.acquire_confirmed(attempt, by)
        };
        outcome.map_err(on(attempt.name))
    }

    /// Releases a lock, and waits for the reply.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub fn release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        let NodeInner {
            format,
            eviction,
            heartbeat,
            ..
        } = &*self.inner;
        // A clean-up must not wait behind the unanswered request whose effect it removes. If the
        // clean-up overtakes that request, the tombstone makes the server refuse the request.
        let cleans_up = options.tombstone != Tombstone::None;
        let connection = if cleans_up && !self.is_lent() {
            self.borrow(by)
        } else {
            self.release_connection(by)
        };
        let outcome = connection.and_then(|mut link| {
            let release = driver::release(format, &mut link, acquisition, options, by)?;
            if !cleans_up {
                eviction.look(&mut link, by);
                heartbeat.look(&mut link, by);
            }
            Ok(release)
        });
        outcome.map_err(on(&acquisition.name))
    }

    /// Releases a lock without waiting for the reply, unless the release needs `ASKING` or the
    /// format records no holders. `done` gets the outcome.
    pub fn submit_release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
        done: OnReleased,
    ) {
        // `ASKING` needs a blocking call, and so does a format that records no holders.
        let owned = self
            .inner
            .format
            .as_owned()
            .filter(|_| self.mode == RequestMode::Direct);
        let Some(owned) = owned else {
            return done(self.release(acquisition, options, by));
        };
        let name = acquisition.name.clone();
        let done = move |outcome: Result<_, _>| done(outcome.map_err(on(&name)));
        match owned.release(acquisition, options) {
            Ok(call) => driver::submit_release(call, &self.inner.link, by, done),
            Err(failure) => done(Err(failure)),
        }
        self.look_behind();
    }

    /// Returns the state of a lock, with the holder's label.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        let format = &self.inner.format;
        let connection = self.connection(by);
        connection
            .and_then(|mut link| drive(format.inspect(name), &mut link, by))
            .map_err(on(name))
    }

    /// Returns the holder of a lock if the holder is the owner of this acquisition.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub fn verify(
        &self,
        acquisition: &AcquisitionId,
        by: Moment,
    ) -> Result<Option<HolderInfo>, Failure> {
        let format = &self.inner.format;
        let connection = self.connection(by);
        let holder =
            connection.and_then(|mut link| drive(format.verify(acquisition)?, &mut link, by));
        holder.map_err(on(&acquisition.name))
    }

    /// Changes a semaphore, or one of its permits.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub fn change_permits(
        &self,
        name: &LockName,
        change: PermitChange,
        by: Moment,
    ) -> Result<PermitOutcome, Failure> {
        let format = &self.inner.format;
        let connection = self.connection(by);
        let outcome = connection.and_then(|mut link| {
            let exchange = format.owned(SHARED)?.change_permits(name, change)?;
            drive(exchange, &mut link, by)
        });
        outcome.map_err(on(name))
    }

    /// Releases a lock of any holder. Returns whether it was held.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        let format = &self.inner.format;
        let connection = self.connection(by);
        connection
            .and_then(|mut link| drive(format.force(name)?, &mut link, by))
            .map_err(on(name))
    }

    /// Subscribes to the releases of a lock, and waits for the confirmation.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub fn watch(
        &self,
        name: &LockName,
        wake: Arc<dyn Wake>,
        by: Moment,
    ) -> Result<Watch, Failure> {
        let channel = self.inner.format.watched_channel(name, self.inner.client)?;
        self.inner
            .subscriber
            .watch(&channel, wake, by)
            .map_err(on(name))
    }

    /// Returns by how much earlier than on the master a lease may end on a replica whose
    /// confirmation counts under this policy.
    #[must_use]
    pub fn replica_lead(&self, lease: LeaseTime, replication: Replication) -> Duration {
        self.inner.replica_clocks.lead(lease, replication)
    }

    /// Sets the lead of the only known replica's clock.
    #[cfg(test)]
    pub(crate) fn set_replica_lead(&self, lead: Duration) {
        self.inner.replica_clocks.set_lead(lead);
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("server", &format_args!("{}", self.inner.dialer.server()))
            .field("format", &self.inner.format.name())
            .field("pool", &self.inner.pool)
            .finish_non_exhaustive()
    }
}

/// Returns a function that adds the lock's name to a failure.
pub(crate) fn on(name: &LockName) -> impl FnOnce(Failure) -> Failure {
    move |failure| match failure {
        Failure::Refused(error) => Failure::Refused(error.on(name)),
        Failure::NotSent(error) => Failure::NotSent(error.on(name)),
        Failure::Unknown(error) => Failure::Unknown(error.on(name)),
        other => other,
    }
}

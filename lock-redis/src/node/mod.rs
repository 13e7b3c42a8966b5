//! [`Node`]: one server and all our connections to it: one attempt for each request. A standalone
//! server is one node; where several servers make a store, each that may be written to is one.
//!
//! The format decides how a lock is stored: each client has one, for all of its nodes.
//!
//! - `settings`: what all nodes of a client have in common
//! - `connections`: which connection a request goes on
//! - `renewals`: requests that renew, on connections of their own
//! - `change_reports`: those connections, and what the server reports of what they renew
//! - `replica_clocks`: by how much the clocks of its replicas are ahead
//! - `eviction`: whether the server may evict locks
//! - `heartbeat`: whether it is still the same, with the same data, and a master
//! - `listing`: requests about many locks
//! - `restart_grace`: no grants on a server that was started a moment ago
//! - [`cluster`]: the server as a node of a cluster: its slots and its redirects
//! - [`quorum`]: the server as a node of a quorum: its marker and its votes
//! - `diagnosis`: what the server's settings and state mean for locks
//! - `deployment`: which servers belong together, and which of several deployments a URL means
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
    ConnectionPool, Dialer, Identity, NeededReplicas, ReplicaCount, SharedConnection,
};
use crate::protocol::driver::{self, drive};
use crate::protocol::{Format, without_own_subscription};
use crate::wakeups::Subscriber;
use change_reports::RenewalSlots;
use cluster::{Port, Shards};
use diagnosis::NodeTerms;
use eviction::Eviction;
use heartbeat::Heartbeat;
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, Failure, FoundBusyBy, HolderInfo, LockInfo, OnReleased,
    PermitChange, PermitOutcome, Release, ReleaseOptions, Tombstone, Wake, Watch,
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
    /// As the master of the lock's slot.
    Direct,
    /// For a slot of a cluster that is just moving to it: `ASKING` goes before each request, on a
    /// connection where nothing comes in between.
    Asking,
}

/// The abilities of the formats that record the holder, as their refusals name them.
const QUORUM: &str = "stand on a quorum";
const RENEWED: &str = "be renewed";
const SHARED: &str = "count permits";

/// One server, with the connections that [`RedisScheme`](crate::RedisScheme) lists. Clones are the
/// same one.
///
/// Dropping the last clone ends its threads and connections, without waiting for them.
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
    /// The way of all requests but the renewals: one for all threads, so that the requests of a
    /// lock keep their order. Two were no faster, neither with 8 threads nor with 128.
    link: SharedConnection,
    /// The connections for requests that must not wait behind one that takes too long.
    pool: ConnectionPool,
    dialer: Arc<Dialer>,
    renewals: Arc<RenewalSlots>,
    subscriber: Subscriber,
    /// The eviction policy of the server, as far as known.
    eviction: Eviction,
    heartbeat: Heartbeat,
    restart_grace: RestartGrace,
    /// Knows how many replicas there are. Without it the policy "all" is refused.
    replica_count: Option<ReplicaCount>,
    replica_clocks: ReplicaClocks,
    terms: NodeTerms,
}

/// Ends the dials under way, also the subscriber's: the rest ends with what it belongs to.
impl Drop for NodeInner {
    fn drop(&mut self) {
        self.dialer.retire();
    }
}

/// A node that may be gone.
struct WeakNode(Weak<NodeInner>);

impl WeakNode {
    /// Returns whether it refers to this node.
    fn is(&self, node: &Node) -> bool {
        self.0.as_ptr() == Arc::as_ptr(&node.inner)
    }
}

impl Node {
    /// Returns this node as the one that a slot of a cluster is just moving to: `ASKING` goes
    /// before each request.
    #[must_use]
    pub fn asking(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            mode: RequestMode::Asking,
        }
    }

    /// Returns whether `ASKING` goes before each request.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        self.mode == RequestMode::Asking
    }

    fn downgrade(&self) -> WeakNode {
        WeakNode(Arc::downgrade(&self.inner))
    }

    /// From time to time the server is asked whether it may evict locks, and whether it is still
    /// the same: behind what was sent to it.
    fn look_behind(&self) {
        let by = self.clock().now() + self.inner.dialer.command_timeout();
        self.inner.eviction.look_behind(&self.inner.link, by);
        self.inner.heartbeat.look_behind(&self.inner.link, by);
    }

    fn acquire_confirmed(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        let needed = self.needed(attempt.replication, attempt.lease)?;
        self.inner.replica_clocks.note_use(attempt.lease);
        let time = attempt.replication.time();
        let mut connection = self.borrow_behind_releases(by)?;
        self.inner.eviction.refuse(&mut connection, by)?;
        if let Some(paused) = self.inner.restart_grace.refusal()? {
            return Ok(paused);
        }
        let mut link = connection.waiting(self.clock(), needed.awaited, time);
        let tracking = self.tracking();
        let exchange = self.inner.format.acquire(attempt, &tracking)?;
        let answer = drive(exchange, &mut link, by)?;
        self.inner.replica_clocks.note_confirmed(link.confirmed());
        Ok(match answer {
            Answer::Granted(grant) => match link.weigh(needed)? {
                None => Answer::Granted(grant),
                Some(insufficient) => Answer::Unacknowledged(grant, insufficient),
            },
            answer => answer,
        })
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

    /// Returns whether both are one node, asked in one way.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner) && self.mode == other.mode
    }

    /// The clock of all deadlines, to be kept.
    pub(crate) fn shared_clock(&self) -> &Arc<dyn Clock> {
        self.inner.dialer.clock()
    }

    /// The clock of all deadlines.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        self.inner.dialer.clock().as_ref()
    }

    /// Returns a function that returns whether the waiters of a key are woken after every release.
    pub(crate) fn tracking(&self) -> impl Fn(&str) -> bool {
        |key| self.inner.subscriber.is_tracked(key)
    }

    /// A watch without waiting for the server, where it comes from another node: `wake` is called
    /// when it stands, too, because releases may have been missed until then.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub fn follow(&self, name: &LockName, wake: Arc<dyn Wake>) -> Result<Watch, Failure> {
        let channel = self.inner.format.watched_channel(name, self.inner.client)?;
        self.inner
            .subscriber
            .follow_releases(&channel, wake)
            .map_err(on(name))
    }

    /// From now on `tell`, which must be short, is called whenever the subscriber's connection was
    /// lost, or could not be made.
    pub fn on_trouble(&self, tell: Arc<dyn Fn() + Send + Sync>) {
        self.inner.subscriber.on_trouble(tell);
    }

    /// The cluster that this node belongs to, as it says. `host` is where it was asked.
    ///
    /// # Errors
    ///
    /// See [`Failure`]. A server that is no node of a cluster refuses.
    pub fn shards(&self, host: &str, tls: bool, by: Moment) -> Result<Shards, Failure> {
        let port = if tls { Port::Tls } else { Port::Plain };
        cluster::ask(&mut *self.inner.pool.borrow(by)?, host, port, by)
    }

    /// The IP addresses that the server's host name leads to, by `by`; none where that is unknown.
    #[must_use]
    pub fn resolve(&self, by: Moment) -> Vec<SocketAddr> {
        self.inner.dialer.resolve(by)
    }

    /// This server is a master no longer: requests under way fail now, and all connections to it
    /// end. The rest goes when the last user has left.
    pub fn retire(&self) {
        self.inner.dialer.retire();
        self.inner.link.end(&self.inner.dialer.retired());
    }

    /// Returns the identity that the server must have, as far as known, where that is checked.
    #[must_use]
    pub fn identity(&self) -> Option<Arc<str>> {
        self.inner.dialer.identity()?.known()
    }

    /// Returns the part of its data's history that the server showed last, and when.
    pub(crate) fn noted(&self) -> Option<(Noted, Moment)> {
        self.inner.dialer.identity().and_then(Identity::noted)
    }

    /// Finds out until `by` if this server was a replica of the one that has shown this history.
    pub(crate) fn succeeds(&self, noted: &(Noted, Moment), by: Moment) -> bool {
        self.inner.dialer.succeeds(noted, by)
    }

    /// The server, as it is called in messages.
    pub fn server(&self) -> impl fmt::Display {
        Arc::clone(self.inner.dialer.server())
    }
}

/// One attempt on this server for each request, as
/// [`Backend`](lock_core::Backend) describes it.
impl Node {
    /// Makes one attempt to take a lock.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        let NodeInner {
            format,
            eviction,
            restart_grace,
            ..
        } = &*self.inner;
        let outcome = if attempt.replication.is_off() {
            let is_apart = format.needs_own_connection();
            let connection = if is_apart {
                self.borrow(by)
            } else {
                self.connection(by)
            };
            connection.and_then(|mut link| {
                eviction.refuse(&mut link, by)?;
                if let Some(paused) = restart_grace.refusal()? {
                    return Ok(paused);
                }
                let tracking = self.tracking();
                drive(format.acquire(attempt, &tracking)?, &mut link, by)
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
            subscriber,
            ..
        } = &*self.inner;
        // A clean-up must not wait behind the request without an answer that it cleans up after. It
        // may overtake that one: the tombstone refuses what comes later.
        let cleans_up = options.tombstone != Tombstone::None;
        let connection = if cleans_up {
            self.borrow(by)
        } else {
            self.connection(by)
        };
        let outcome = connection.and_then(|mut link| {
            let release = driver::release(format, &mut link, acquisition, options, by)?;
            if !cleans_up {
                eviction.look(&mut link, by);
                heartbeat.look(&mut link, by);
            }
            Ok(release)
        });
        let name = &acquisition.name;
        let told_on = || format.as_owned().map(|format| format.channel(name));
        let lingers = || told_on().is_some_and(|channel| subscriber.lingering()(&channel));
        outcome
            .map(|release| without_own_subscription(release, lingers))
            .map_err(on(name))
    }

    /// Releases a lock without waiting for the reply. `done` gets the outcome.
    pub fn submit_release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
        done: OnReleased,
    ) {
        // `ASKING` goes with a call only.
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
        let lingers = self.inner.subscriber.lingering();
        match owned.release(acquisition, options) {
            Ok(call) => driver::submit_release(call, &self.inner.link, by, lingers, done),
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

    /// Returns the state of a lock, without the label.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub fn peek(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        let format = &self.inner.format;
        let connection = self.connection(by);
        connection
            .and_then(|mut link| drive(format.peek(name), &mut link, by))
            .map_err(on(name))
    }

    /// Returns the holder of a lock, if it is this acquisition's owner.
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

    /// Returns the longest time after which a waiter asks again.
    #[must_use]
    pub fn poll_pause(&self, name: &LockName, found_by: FoundBusyBy) -> Option<Duration> {
        let owned = self.inner.format.as_owned()?;
        let is_tracked = self.inner.subscriber.is_tracked(&owned.keys.lock(name));
        owned.poll_pause(found_by == FoundBusyBy::Attempt, is_tracked)
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

    /// Returns by how much earlier a lease may end on a replica that counts.
    #[must_use]
    pub fn replica_lead(&self, lease: LeaseTime, replication: Replication) -> Duration {
        self.inner.replica_clocks.lead(lease, replication)
    }

    /// Makes the clock of the only known replica this far ahead.
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

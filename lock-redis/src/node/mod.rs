//! [`Node`]: one server, all our connections to it, and what can be asked of it. A standalone
//! server is one node; where several servers make a store, each that may be written to is one.
//!
//! What a lock looks like in the store is not a node's matter but the format's, which every request
//! is made by: there is one for each client, whatever the number of nodes.
//!
//! - `settings`: what all nodes of a client have in common
//! - `connections`: which connection a request goes on
//! - `renewals`: requests that renew, on connections of their own
//! - `change_reports`: those connections, and what the server reports of what they renew
//! - `eviction`: whether the server may evict locks
//! - `listing`: requests about many locks
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
mod listing;
pub(crate) mod quorum;
mod renewals;
mod settings;
mod watch_registry;

pub use deployment::{Account, Deployment, Granted, deployments};
pub use diagnosis::{NodeDiagnosis, ServerClock, StoreKind, compare_clocks};
pub use settings::NodeSettings;
pub use watch_registry::{RelocatableWatch, WatchRegistry};

use crate::connection::{
    AcknowledgedConnection, ConnectionPool, Dialer, Listing, PoolThread, SharedConnection, Timeouts,
};
use crate::format::{Format, without_own_subscription};
use crate::pubsub::Subscriber;
use change_reports::RenewalSlots;
use cluster::{Port, Shards};
use diagnosis::NodeTerms;
use eviction::{Eviction, OnEviction};
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, Failure, FoundBusyBy, HolderInfo, LockInfo, OnReleased,
    Release, ReleaseOptions, Tombstone, Wake, Watch,
};
use lock_core::{Clock, Error, ErrorKind, LockName, Moment, Replicas, Replication};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How a node is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::exhaustive_enums, reason = "for the crate of the same workspace")]
pub enum RequestMode {
    /// As the master of the lock's slot.
    Direct,
    /// For a slot of a cluster that is just moving to it: `ASKING` goes before each request, on a
    /// connection where nothing comes in between.
    Asking,
}

/// What only a format that says who holds a lock can do.
const QUORUM: &str = "stand on a quorum";
const RENEWED: &str = "be renewed";
const SHARED: &str = "count permits";

/// One server.
///
/// Attempts and releases of all threads share one connection, and wait on it for their answers
/// only; renewals have one of their own, so that traffic cannot starve them, others while a renewal
/// hangs, and go over the shared one where none can be had; what cleans up after a lost answer
/// borrows one of at most `pool`; and one more hears of releases, from the first
/// watch on. Nothing is dialled before it is needed.
///
/// Dropping it ends its threads and connections, without waiting for them.
pub struct Node {
    /// The way of all requests but the renewals: one for all threads, so that the requests of a
    /// lock keep their order. Two were no faster, neither with 8 threads nor with 128.
    link: SharedConnection,
    /// For what must not stand behind a request that takes too long.
    pool: ConnectionPool,
    dialer: Arc<Dialer>,
    renewals: Arc<RenewalSlots>,
    subscriber: Subscriber,
    /// Whether it may evict locks.
    eviction: Eviction,
    /// Knows how many replicas there are.
    listing: Option<Arc<dyn Listing>>,
    terms: NodeTerms,
}

impl Node {
    fn new(
        dialer: Arc<Dialer>,
        pool: u32,
        thread: &PoolThread,
        bounds: Timeouts,
        eviction: OnEviction,
        terms: NodeTerms,
    ) -> Result<Self, Error> {
        Ok(Self {
            link: SharedConnection::new(Arc::clone(&dialer)),
            pool: ConnectionPool::new(pool, thread, Arc::clone(&dialer))?,
            renewals: Arc::default(),
            subscriber: Subscriber::new(Arc::clone(&dialer), bounds.command, terms.tracking),
            eviction: Eviction::new(eviction, Arc::clone(&dialer)),
            dialer,
            listing: None,
            terms,
        })
    }

    /// The same with a source of the number of its replicas: without, the policy "all" is refused.
    #[must_use]
    pub fn with_listing(mut self, listing: Arc<dyn Listing>) -> Self {
        self.listing = Some(listing);
        self
    }

    /// See [`Backend::acquire`](lock_core::Backend::acquire).
    ///
    /// # Errors
    ///
    /// See [`Failure`]; so with all that follow.
    pub fn acquire(
        &self,
        mode: RequestMode,
        format: &Format,
        attempt: &Attempt<'_>,
        by: Moment,
    ) -> Result<Answer, Failure> {
        let outcome = if attempt.replication.is_off() {
            let connection = if format.0.needs_own_link() {
                self.borrow(mode, by)
            } else {
                self.connection(mode, by)
            };
            connection.and_then(|mut link| {
                self.eviction.refuse(link.get(), by)?;
                format.0.acquire(link.get(), attempt, &self.tracking(), by)
            })
        } else {
            self.acquire_confirmed(mode, format, attempt, by)
        };
        outcome.map_err(on(attempt.name))
    }

    /// Whether the server may evict locks is asked from time to time: behind what was sent to it.
    fn look_for_eviction(&self) {
        let by = self.dialer.clock().now() + self.dialer.command_timeout();
        self.eviction.look_behind(&self.link, by);
    }

    fn acquire_confirmed(
        &self,
        mode: RequestMode,
        format: &Format,
        attempt: &Attempt<'_>,
        by: Moment,
    ) -> Result<Answer, Failure> {
        let needed = self.needed(attempt.replication, by)?;
        let time = attempt.replication.time();
        let mut connection = self.borrow_behind_releases(mode, by)?;
        self.eviction.refuse(connection.get(), by)?;
        let clock = self.dialer.clock().as_ref();
        let mut link = AcknowledgedConnection::new(connection.get(), clock, needed, time);
        Ok(match format.0.acquire(&mut link, attempt, &self.tracking(), by)? {
            Answer::Granted(grant) => match link.weigh(needed)? {
                None => Answer::Granted(grant),
                Some(insufficient) => Answer::Unacknowledged(grant, insufficient),
            },
            answer => answer,
        })
    }

    /// How many replicas must confirm.
    fn needed(&self, replication: Replication, by: Moment) -> Result<u32, Failure> {
        match (replication.count(), &self.listing) {
            (Replicas::Off, _) => Ok(0),
            (Replicas::AtLeast(count), _) => Ok(count),
            (Replicas::All, Some(listing)) => listing.replicas(by).map_err(Failure::NotSent),
            (count, _) => Err(Failure::NotSent(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "replicas={count}: it is not known how many replicas this server should have"
                ),
            ))),
        }
    }

    /// The clock of all deadlines.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        self.dialer.clock().as_ref()
    }

    /// See [`Backend::release`](lock_core::Backend::release).
    pub fn release(
        &self,
        mode: RequestMode,
        format: &Format,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        // A clean-up must not wait behind the request without an answer that it cleans up after. It
        // may overtake that one: the tombstone refuses what comes later.
        let cleans_up = options.tombstone != Tombstone::None;
        let connection = if cleans_up { self.borrow(mode, by) } else { self.connection(mode, by) };
        let outcome = connection.and_then(|mut link| {
            let release = format.0.release(link.get(), acquisition, options, by)?;
            if !cleans_up {
                self.eviction.look(link.get(), by);
            }
            Ok(release)
        });
        let name = &acquisition.name;
        let lingers = || format.channel(name).is_ok_and(|it| self.subscriber.lingering()(&it.name));
        outcome.map(|release| without_own_subscription(release, lingers)).map_err(on(name))
    }

    /// See [`Backend::submit_release`](lock_core::Backend::submit_release).
    pub fn submit_release(
        &self,
        format: &Format,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
        done: OnReleased,
    ) {
        let Some(owned) = format.0.owned() else {
            return done(self.release(RequestMode::Direct, format, acquisition, options, by));
        };
        let name = acquisition.name.clone();
        let done = move |outcome: Result<_, _>| done(outcome.map_err(on(&name)));
        let lingers = self.subscriber.lingering();
        owned.submit_release(&self.link, acquisition, options, by, lingers, done);
        self.look_for_eviction();
    }

    /// See [`Backend::inspect`](lock_core::Backend::inspect).
    pub fn inspect(
        &self,
        mode: RequestMode,
        format: &Format,
        name: &LockName,
        by: Moment,
    ) -> Result<LockInfo, Failure> {
        let connection = self.connection(mode, by);
        connection
            .and_then(|mut link| format.0.inspect_with_label(link.get(), name, by))
            .map_err(on(name))
    }

    /// See [`Backend::peek`](lock_core::Backend::peek).
    pub fn peek(
        &self,
        mode: RequestMode,
        format: &Format,
        name: &LockName,
        by: Moment,
    ) -> Result<LockInfo, Failure> {
        let connection = self.connection(mode, by);
        connection.and_then(|mut link| format.0.inspect(link.get(), name, by)).map_err(on(name))
    }

    /// See [`Backend::verify`](lock_core::Backend::verify).
    pub fn verify(
        &self,
        mode: RequestMode,
        format: &Format,
        acquisition: &AcquisitionId,
        by: Moment,
    ) -> Result<Option<HolderInfo>, Failure> {
        let connection = self.connection(mode, by);
        let holder = connection.and_then(|mut link| format.0.verify(link.get(), acquisition, by));
        holder.map_err(on(&acquisition.name))
    }

    /// See [`Backend::set_permits`](lock_core::Backend::set_permits).
    pub fn set_permits(
        &self,
        mode: RequestMode,
        format: &Format,
        name: &LockName,
        by: Moment,
    ) -> Result<Option<u32>, Failure> {
        let connection = self.connection(mode, by);
        let before =
            connection.and_then(|mut link| format.owned(SHARED)?.set_permits(link.get(), name, by));
        before.map_err(on(name))
    }

    /// See [`Backend::poll_pause`](lock_core::Backend::poll_pause).
    pub fn poll_pause(
        &self,
        format: &Format,
        name: &LockName,
        found_by: FoundBusyBy,
    ) -> Option<Duration> {
        let owned = format.0.owned()?;
        let is_tracked = self.subscriber.is_tracked(&owned.keys.lock(name));
        owned.poll_pause(found_by == FoundBusyBy::Attempt, is_tracked)
    }

    /// Whether waiters of a key are woken after every release.
    pub(crate) fn tracking(&self) -> impl Fn(&str) -> bool {
        |key| self.subscriber.is_tracked(key)
    }

    /// See [`Backend::force_release`](lock_core::Backend::force_release).
    pub fn force_release(
        &self,
        mode: RequestMode,
        format: &Format,
        name: &LockName,
        by: Moment,
    ) -> Result<bool, Failure> {
        let connection = self.connection(mode, by);
        connection.and_then(|mut link| format.0.force(link.get(), name, by)).map_err(on(name))
    }

    /// See [`Backend::watch`](lock_core::Backend::watch).
    pub fn watch(
        &self,
        format: &Format,
        name: &LockName,
        wake: Arc<dyn Wake>,
        by: Moment,
    ) -> Result<Watch, Failure> {
        self.subscriber.watch(&format.channel(name)?, wake, by).map_err(on(name))
    }

    /// The same without waiting for the server, for a watch that comes from another node: `wake` is
    /// called when it stands, too, because releases may have been missed until then.
    pub fn follow(
        &self,
        format: &Format,
        name: &LockName,
        wake: Arc<dyn Wake>,
    ) -> Result<Watch, Failure> {
        self.subscriber.follow_releases(&format.channel(name)?, wake).map_err(on(name))
    }

    /// From now on `tell`, which must be short, is called whenever the subscriber's connection was
    /// lost, or could not be made.
    pub fn on_trouble(&self, tell: Arc<dyn Fn() + Send + Sync>) {
        self.subscriber.on_trouble(tell);
    }

    /// The cluster that this node belongs to, as it says. `host` is where it was asked.
    ///
    /// # Errors
    ///
    /// See [`Failure`]. A server that is no node of a cluster refuses.
    pub fn shards(&self, host: &str, tls: bool, by: Moment) -> Result<Shards, Failure> {
        let port = if tls { Port::Tls } else { Port::Plain };
        cluster::ask(&mut *self.pool.borrow(by)?, host, port, by)
    }

    /// This server is a master no longer: requests under way fail now, and all connections to it
    /// end. The rest goes when the last user has left.
    pub fn retire(&self) {
        self.dialer.retire();
        self.link.end(&self.dialer.retired());
    }

    /// Which server belongs there, as far as is known, where that is asked.
    #[must_use]
    pub fn identity(&self) -> Option<Arc<str>> {
        self.dialer.identity()?.known()
    }

    /// The server, as it is called in messages.
    pub fn server(&self) -> impl fmt::Display {
        Arc::clone(self.dialer.server())
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("server", &format_args!("{}", self.dialer.server()))
            .field("pool", &self.pool)
            .finish_non_exhaustive()
    }
}

/// The same failure, said of this lock.
pub(crate) fn on(name: &LockName) -> impl FnOnce(Failure) -> Failure {
    move |failure| match failure {
        Failure::Refused(error) => Failure::Refused(error.on(name)),
        Failure::NotSent(error) => Failure::NotSent(error.on(name)),
        Failure::Unknown(error) => Failure::Unknown(error.on(name)),
        other => other,
    }
}

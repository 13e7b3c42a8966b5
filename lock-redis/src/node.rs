//! [`Node`]: one server, all our connections to it, and what can be asked of it. A standalone server is one node; where
//! several servers make a store, each that may be written to is one.
//!
//! What a lock looks like in the store is not a node's matter but the format's, which every request is made by: there
//! is one for each client, whatever the number of nodes.

use crate::confirm::{Confirming, Listing};
use crate::format::Redisson;
use crate::link::{Ask, Asking, Bounds, Dialer, Login, Place, Server, SharedLink, TlsSettings};
use crate::pool::{LinkPool, PoolThread, Slot};
use crate::propose::{self, Introduction, Mark, Vote, Voting};
use crate::scheme;
use crate::shards::{self, Port, Shards};
use crate::subscriber::Subscriber;
use lock_core::backend::{
    Answer, Attempt, Closing, Doubt, Failure, LockInfo, RENEW_BATCH, Release, Released, Renewal,
    Renewing, TenureId, Wake, Watch,
};
use lock_core::{
    Clock, Config, Context, Error, ErrorKind, LockName, Moment, Replicas, Replication, Secret,
};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What all nodes of a client have in common.
#[derive(Debug)]
pub struct NodeSettings {
    login: Login,
    tls: Option<TlsSettings>,
    bounds: Bounds,
    pool: u32,
    /// Makes the slots of all pools.
    thread: PoolThread,
    clock: Arc<dyn Clock>,
}

impl NodeSettings {
    /// Those in `config`, with the database of this number. Reads the files of TLS, if the scheme has it.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if a setting contradicts another, or a file cannot be read.
    pub fn new(config: &Config, database: u32, context: &Context) -> Result<Self, Error> {
        let login = Login {
            user: config.user().map(str::to_owned),
            password: config.password().cloned(),
            database,
            client_name: config.client_name().to_owned(),
        };
        let bounds =
            Bounds { connect: config.connect_timeout(), command: config.command_timeout() };
        Ok(Self {
            login,
            tls: scheme::tls(config)?,
            bounds,
            pool: config.pool(),
            thread: PoolThread::start()?,
            clock: Arc::clone(&context.clock),
        })
    }

    /// The node on this host and port. Does not talk to it.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if no certificate can be for a host of this name.
    pub fn node_on(&self, host: &str, port: u16) -> Result<Node, Error> {
        self.node(Place::tcp(host, port))
    }

    /// The same, where the server is a master for as long as others hold it for one: each connection begins with the
    /// question whether it is, and [`Node::retire`] ends them all.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn master_on(&self, host: &str, port: u16) -> Result<Node, Error> {
        let dialer = self.dialer(Place::tcp(host, port))?.for_a_master();
        Node::new(Arc::new(dialer), self.pool, &self.thread, self.bounds)
    }

    /// The same for any place.
    pub(crate) fn node(&self, place: Place) -> Result<Node, Error> {
        Node::new(Arc::new(self.dialer(place)?), self.pool, &self.thread, self.bounds)
    }

    /// The same servers for another user, in the first database: the sentinels have users of their own.
    pub(crate) fn dialer_for(
        &self,
        place: Place,
        user: Option<&str>,
        password: Option<Secret>,
    ) -> Result<Dialer, Error> {
        let client_name = self.login.client_name.clone();
        let login = Login { user: user.map(str::to_owned), password, database: 0, client_name };
        self.dialer_with(place, login)
    }

    /// How long making a connection and one request may take.
    pub(crate) fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// The clock that all deadlines are on.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// Whether it is TLS that is spoken.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    fn dialer(&self, place: Place) -> Result<Dialer, Error> {
        self.dialer_with(place, self.login.clone())
    }

    fn dialer_with(&self, place: Place, login: Login) -> Result<Dialer, Error> {
        let tls = match (&self.tls, &place) {
            (Some(tls), Place::Tcp { host, .. }) => Some(tls.of(host)?),
            _ => None,
        };
        let server = Server::new(place, login.user.as_deref());
        Ok(Dialer::new(server, tls, login, self.bounds, Arc::clone(&self.clock)))
    }
}

/// One server.
///
/// Attempts and releases of all threads share one connection, and wait on it for their answers only; renewals have one
/// of their own, so that traffic cannot starve them; what cleans up after a lost answer, and what renews while another
/// renewal hangs, borrows one of at most `pool`; and one more hears of releases, from the first watch on. Nothing is
/// dialled before it is needed.
///
/// Dropping it ends its threads and connections, without waiting for them.
pub struct Node {
    /// The way of all requests but the renewals: one for all threads, so that the requests of a lock keep their order. Two
    /// were no faster, neither with 8 threads nor with 128.
    link: SharedLink,
    /// For what must not stand behind a request that takes too long.
    pool: LinkPool,
    dialer: Arc<Dialer>,
    /// The link of the lane. Whoever finds it taken, because the renewal before hangs, borrows one of the pool.
    renewals: Mutex<Slot>,
    subscriber: Subscriber,
    /// Who knows how many replicas there are.
    listing: Option<Arc<dyn Listing>>,
}

impl Node {
    fn new(
        dialer: Arc<Dialer>,
        pool: u32,
        thread: &PoolThread,
        bounds: Bounds,
    ) -> Result<Self, Error> {
        Ok(Self {
            link: SharedLink::new(Arc::clone(&dialer)),
            pool: LinkPool::new(pool, thread, Arc::clone(&dialer))?,
            renewals: Mutex::default(),
            subscriber: Subscriber::new(Arc::clone(&dialer), bounds.command),
            dialer,
            listing: None,
        })
    }

    /// The same with somebody who knows how many replicas it has: without, the policy "all" is refused.
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
        format: &Redisson,
        attempt: &Attempt<'_>,
        by: Moment,
    ) -> Result<Answer, Failure> {
        let outcome = if attempt.replication.is_off() {
            self.link.exchange(by, |link| format.acquire(link, attempt, by))
        } else {
            self.acquire_confirmed(How::Plainly, format, attempt, by)
        };
        outcome.map_err(on(attempt.name))
    }

    fn acquire_confirmed(
        &self,
        how: How,
        format: &Redisson,
        attempt: &Attempt<'_>,
        by: Moment,
    ) -> Result<Answer, Failure> {
        let needed = self.needed(attempt.replication, by)?;
        let time = attempt.replication.time();
        // On another connection than the releases, it must not come before one that has left already.
        self.link.let_errands_go_first(by)?;
        self.aside(how, by, |link| {
            let mut link = Confirming::new(link, self.dialer.clock().as_ref(), needed, time);
            Ok(match format.acquire(&mut link, attempt, by)? {
                Answer::Granted(grant) => match link.weigh(needed)? {
                    None => Answer::Granted(grant),
                    Some(shortfall) => Answer::Unacknowledged(grant, shortfall),
                },
                answer => answer,
            })
        })
    }

    /// On a borrowed link.
    fn aside<T>(
        &self,
        how: How,
        by: Moment,
        exchange: impl FnOnce(&mut dyn Ask) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.pool.exchange(by, |link| match how {
            How::Plainly => exchange(link),
            How::Asking => exchange(&mut Asking(link)),
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
                format!("replicas={count}: nobody knows how many replicas this server should have"),
            ))),
        }
    }

    /// An attempt as one of a quorum's nodes.
    pub(crate) fn propose(
        &self,
        format: &Redisson,
        attempt: &Attempt<'_>,
        voting: &Voting<'_>,
        by: Moment,
    ) -> Result<Vote, Failure> {
        let vote = self.link.exchange(by, |link| format.propose(link, attempt, Some(voting), by));
        vote.map_err(on(attempt.name))
    }

    /// Who the server says it is.
    pub(crate) fn introduction(&self, by: Moment) -> Result<Introduction, Failure> {
        self.link.exchange(by, |link| propose::introduction(link, by))
    }

    /// Makes the server one of a quorum's nodes, unless it is one; or looks whether it is, without a `pause`.
    pub(crate) fn mark(
        &self,
        format: &Redisson,
        voting: &Voting<'_>,
        pause: Option<Duration>,
        by: Moment,
    ) -> Result<Mark, Failure> {
        self.link.exchange(by, |link| format.mark(link, voting, pause, by))
    }

    /// See [`Backend::renew`](lock_core::Backend::renew).
    pub fn renew(
        &self,
        format: &Redisson,
        batch: &[Renewing],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        self.renew_as(How::Plainly, format, batch, by)
    }

    fn renew_as(
        &self,
        how: How,
        format: &Redisson,
        batch: &[Renewing],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let renewals = if batch.iter().all(|one| one.replication.is_off()) {
            self.renew_in_chunks(batch, |chunk| {
                self.on_lane(how, by, |link| format.renew(link, chunk, by))
            })
        } else {
            self.renew_confirmed(how, format, batch, by)
        };
        let renewals = renewals.into_iter().zip(batch);
        renewals.map(|(renewal, one)| renewal.map_err(on(&one.tenure.name))).collect()
    }

    /// Where replicas are waited for: those of `batch` that do not need them go first, and do not wait along.
    fn renew_confirmed(
        &self,
        how: How,
        format: &Redisson,
        batch: &[Renewing],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let is_off = |one: &Renewing| one.replication.is_off();
        let (plain, confirmed): (Vec<_>, Vec<_>) = batch.iter().cloned().partition(is_off);
        let mut plain = self
            .renew_in_chunks(&plain, |chunk| {
                self.on_lane(how, by, |link| format.renew(link, chunk, by))
            })
            .into_iter();
        let mut confirmed = self
            .renew_in_chunks(&confirmed, |chunk| self.renew_with_replicas(how, format, chunk, by))
            .into_iter();
        let next = |one| if is_off(one) { plain.next() } else { confirmed.next() };
        batch.iter().map(next).map(|answer| answer.expect("an answer for each")).collect()
    }

    /// One `WAIT` for all of them, behind the last write: replicas apply what they get in its order.
    fn renew_with_replicas(
        &self,
        how: How,
        format: &Redisson,
        chunk: &[Renewing],
        by: Moment,
    ) -> Result<Vec<Result<Renewal, Failure>>, Failure> {
        let needs = chunk.iter().map(|one| self.needed(one.replication, by));
        let needs: Vec<_> = needs.collect::<Result<_, _>>()?;
        let most = needs.iter().copied().max().unwrap_or(0);
        let time = chunk.iter().map(|one| one.replication.time()).max().unwrap_or_default();
        self.on_lane(how, by, |link| {
            let mut link = Confirming::new(link, self.dialer.clock().as_ref(), most, time);
            let renewals = format.renew(&mut link, chunk, by)?;
            let weighed = |(renewal, needed)| match renewal {
                Ok(Renewal::Extended) => {
                    Ok(link.weigh(needed)?.map_or(Renewal::Extended, Renewal::Unacknowledged))
                }
                renewal => renewal,
            };
            Ok(renewals.into_iter().zip(needs).map(weighed).collect())
        })
    }

    fn renew_in_chunks(
        &self,
        batch: &[Renewing],
        renew: impl Fn(&[Renewing]) -> Result<Vec<Result<Renewal, Failure>>, Failure>,
    ) -> Vec<Result<Renewal, Failure>> {
        let answers = |chunk: &[Renewing]| match renew(chunk) {
            Ok(renewals) => renewals,
            Err(failure) => chunk.iter().map(|_| Err(failure.clone())).collect(),
        };
        batch.chunks(RENEW_BATCH).flat_map(answers).collect()
    }

    /// On the link of the lane, or a borrowed one where the renewal before hangs.
    fn on_lane<T>(
        &self,
        how: How,
        by: Moment,
        exchange: impl FnOnce(&mut dyn Ask) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        match (how, self.renewals.try_lock()) {
            (How::Plainly, Some(mut slot)) => {
                slot.exchange(&self.dialer, by, |link| exchange(link))
            }
            _ => self.aside(how, by, exchange),
        }
    }

    /// See [`Backend::release`](lock_core::Backend::release).
    pub fn release(
        &self,
        format: &Redisson,
        tenure: &TenureId,
        closing: Closing,
        by: Moment,
    ) -> Result<Release, Failure> {
        // What cleans up after a request without an answer shall not stand behind that one. It may overtake it: that is
        // what the tombstone is for.
        let outcome = if closing.doubt != Doubt::Clean {
            self.pool.exchange(by, |link| format.release(link, tenure, closing, by))
        } else {
            self.link.exchange(by, |link| format.release(link, tenure, closing, by))
        };
        outcome.map_err(on(&tenure.name))
    }

    /// See [`Backend::submit_release`](lock_core::Backend::submit_release).
    pub fn submit_release(
        &self,
        format: &Redisson,
        tenure: &TenureId,
        closing: Closing,
        by: Moment,
        done: Released,
    ) {
        let name = tenure.name.clone();
        let done = Box::new(move |outcome: Result<_, _>| done(outcome.map_err(on(&name))));
        format.submit_release(&self.link, tenure, closing, by, done);
    }

    /// See [`Backend::inspect`](lock_core::Backend::inspect).
    pub fn inspect(
        &self,
        format: &Redisson,
        name: &LockName,
        by: Moment,
    ) -> Result<LockInfo, Failure> {
        self.link.exchange(by, |link| format.inspect(link, name, by)).map_err(on(name))
    }

    /// See [`Backend::force_release`](lock_core::Backend::force_release).
    pub fn force_release(
        &self,
        format: &Redisson,
        name: &LockName,
        by: Moment,
    ) -> Result<bool, Failure> {
        self.link.exchange(by, |link| format.force(link, name, by)).map_err(on(name))
    }

    /// See [`Backend::watch`](lock_core::Backend::watch).
    pub fn watch(
        &self,
        format: &Redisson,
        name: &LockName,
        wake: Arc<dyn Wake>,
        by: Moment,
    ) -> Result<Watch, Failure> {
        let (kind, channel) = (format.channels(), format.channel(name));
        self.subscriber.watch(kind, &channel, wake, by).map_err(on(name))
    }

    /// The same without waiting for the server, for a watch that comes from another node: `wake` is called when it
    /// stands, too, because releases may have been missed until then.
    pub fn follow(
        &self,
        format: &Redisson,
        name: &LockName,
        wake: Arc<dyn Wake>,
    ) -> Result<Watch, Failure> {
        let (kind, channel) = (format.channels(), format.channel(name));
        self.subscriber.follow(kind, &channel, wake).map_err(on(name))
    }

    /// From now on `tell`, which must be short, is called whenever the connection that hears of releases was lost, or there
    /// was none to be had.
    pub fn on_trouble(&self, tell: Arc<dyn Fn() + Send + Sync>) {
        self.subscriber.on_trouble(tell);
    }

    /// The same node, asked for a slot that is just moving to it.
    #[must_use]
    pub fn asking(&self) -> AskingNode<'_> {
        AskingNode(self)
    }

    /// The cluster that this node belongs to, by its word. `host` is where it was asked.
    ///
    /// # Errors
    ///
    /// See [`Failure`]. A server that is no node of a cluster refuses.
    pub fn shards(&self, host: &str, tls: bool, by: Moment) -> Result<Shards, Failure> {
        let port = if tls { Port::Tls } else { Port::Plain };
        self.pool.exchange(by, |link| shards::ask(link, host, port, by))
    }

    /// This server is the master no longer: whoever waits for its answer is told so now, and nobody is connected to it
    /// any more. The rest goes when the last user has left.
    pub fn retire(&self) {
        self.dialer.retire();
        let server = self.dialer.server();
        self.link.end(&Error::unavailable(format!("{server} is not the master any more")));
    }

    /// The server, as it is called in messages.
    pub fn server(&self) -> impl fmt::Display {
        Arc::clone(self.dialer.server())
    }
}

/// How a node is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    Plainly,
    /// For a slot of a cluster that is just moving to it.
    Asking,
}

/// A node of a cluster, asked for a slot that is just moving to it. Over connections to borrow: that it is asked for such a
/// slot is said anew before each request, and nothing may come between the two.
#[derive(Debug)]
pub struct AskingNode<'a>(&'a Node);

impl AskingNode<'_> {
    /// See [`Backend::acquire`](lock_core::Backend::acquire).
    ///
    /// # Errors
    ///
    /// See [`Failure`]; so with all that follow.
    pub fn acquire(
        &self,
        format: &Redisson,
        attempt: &Attempt<'_>,
        by: Moment,
    ) -> Result<Answer, Failure> {
        let outcome = if attempt.replication.is_off() {
            self.exchange(by, |link| format.acquire(link, attempt, by))
        } else {
            self.0.acquire_confirmed(How::Asking, format, attempt, by)
        };
        outcome.map_err(on(attempt.name))
    }

    /// See [`Backend::renew`](lock_core::Backend::renew).
    pub fn renew(
        &self,
        format: &Redisson,
        batch: &[Renewing],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        self.0.renew_as(How::Asking, format, batch, by)
    }

    /// See [`Backend::release`](lock_core::Backend::release).
    pub fn release(
        &self,
        format: &Redisson,
        tenure: &TenureId,
        closing: Closing,
        by: Moment,
    ) -> Result<Release, Failure> {
        self.exchange(by, |link| format.release(link, tenure, closing, by))
            .map_err(on(&tenure.name))
    }

    /// See [`Backend::inspect`](lock_core::Backend::inspect).
    pub fn inspect(
        &self,
        format: &Redisson,
        name: &LockName,
        by: Moment,
    ) -> Result<LockInfo, Failure> {
        self.exchange(by, |link| format.inspect(link, name, by)).map_err(on(name))
    }

    /// See [`Backend::force_release`](lock_core::Backend::force_release).
    pub fn force_release(
        &self,
        format: &Redisson,
        name: &LockName,
        by: Moment,
    ) -> Result<bool, Failure> {
        self.exchange(by, |link| format.force(link, name, by)).map_err(on(name))
    }

    fn exchange<T>(
        &self,
        by: Moment,
        exchange: impl FnOnce(&mut dyn Ask) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.0.aside(How::Asking, by, exchange)
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

//! [`ClusterBackend`]: a Redis Cluster as a store of locks.

use crate::address_map::AddressMap;
use crate::again::{Again, Job};
use crate::map::{Makers, Member, Trouble};
use crate::route::{Router, over};
use crate::topology::{Channels, Desk, Topology};
use lock_core::backend::{
    Abilities, AcquisitionId, Answer, Attempt, Failure, LockInfo, NodeId, OnReleased, Release,
    ReleaseOptions, Renewal, RenewalRequest, ReplicaSupport, Wake, Watch,
};
use lock_core::{Backend, Config, Context, Error, LockName, Moment};
use lock_redis::parts::{Address, Format, NodeSettings, Redirect, RequestMode};
use std::fmt;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// The port where a URL names none.
const PORT: u16 = 6379;

/// A Redis Cluster. Every request goes to the master of its lock's slot, and never to a replica.
///
/// What a node says instead of an answer is followed: `MOVED` by the slot map learning it, `ASK` with `ASKING` in the same
/// write, `TRYAGAIN` until the deadline - so an attempt on a free lock whose slot is just moving may have to wait until it
/// has moved. Renewals and plain releases name the lock's own key and nothing else, and go on meanwhile. A request that
/// got no answer is not sent again here: its outcome is unknown, and the engine knows what to do about that.
///
/// To each master there are as many connections as [`RedisBackend`](lock_redis::RedisBackend) has to its server, none of
/// them before it is needed; one more, now and then, asks a node for the cluster.
///
/// Dropping it ends its threads and connections, without waiting for them.
pub struct ClusterBackend {
    format: Arc<Format>,
    topology: Topology,
    router: Router,
    again: Again,
}

/// How often a renewal goes on from node to node within one call.
const HOPS: usize = 3;

impl ClusterBackend {
    /// The cluster that `config` names some nodes of. Does not talk to them.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if the URL names no node, or a database other than 0, or a setting contradicts another.
    pub fn new(config: &Config, context: &Context) -> Result<Self, Error> {
        Self::with_format(config, context, Format::of(config)?)
    }

    /// The same with a format that was read already.
    ///
    /// # Errors
    ///
    /// The same.
    #[doc(hidden)]
    pub fn with_format(config: &Config, context: &Context, format: Format) -> Result<Self, Error> {
        config.check()?;
        let seeds = seeds(config)?;
        let option = |name| config.scheme_option(name);
        let channels = match option("channels") {
            None | Some("auto") => Channels::Auto,
            Some("plain") => Channels::Plain,
            Some("sharded") => Channels::Sharded,
            Some(other) => {
                return Err(Error::configuration(format!(
                    "`channels={}` is not one of `auto`, `plain` and `sharded`",
                    other.escape_debug()
                )));
            }
        };
        let addresses =
            option("address_map").map(AddressMap::read).transpose()?.unwrap_or_default();
        let desk = Arc::<Desk>::default();
        let trouble = Arc::clone(&desk);
        let makers = Makers {
            settings: NodeSettings::new(config, 0, context)?,
            addresses,
            trouble: Trouble(Arc::new(move || trouble.ask())),
        };
        let channels = match (channels, format.needs_plain_channels()) {
            (Channels::Sharded, true) => {
                return Err(Error::configuration(
                    "`channels=sharded`: whom `wakes=` in `format=` names listens on plain channels; leave `channels=` out",
                ));
            }
            (_, true) => Channels::Plain,
            (channels, false) => channels,
        };
        let format = Arc::new(format);
        let bound = config.connect_timeout();
        let topology = Topology::new(makers, desk, seeds, bound, Arc::clone(&format), channels);
        let router = Router(Arc::clone(topology.shared()));
        Ok(Self { format, again: Again::default(), router, topology })
    }

    /// Renews those of a batch that `member` is to renew; `place` says where each stands in the batch.
    fn renew_on(
        &self,
        group: &Group,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let own: Vec<RenewalRequest>;
        let mine = if group.places.len() == batch.len() {
            batch
        } else {
            own = group.places.iter().map(|place| batch[*place].clone()).collect();
            &own
        };
        group.member.node.renew(group.mode, &self.format, mine, by)
    }

    /// Replicas that have not confirmed matter only where there are some.
    fn weigh(&self, group: &Group, outcomes: &mut [Result<Renewal, Failure>], by: Moment) {
        let mut short: Vec<_> =
            outcomes.iter_mut().filter(|it| matches!(it, Ok(Renewal::Unacknowledged(_)))).collect();
        if short.is_empty() || !self.router.0.has_no_replica(&group.member, by) {
            return;
        }
        for outcome in &mut short {
            if let Ok(Renewal::Unacknowledged(insufficient)) = **outcome {
                **outcome = Ok(Renewal::Unreplicated(insufficient));
            }
        }
    }
}

/// Renewals of one node.
struct Group {
    member: Arc<Member>,
    mode: RequestMode,
    places: Vec<usize>,
}

fn add(groups: &mut Vec<Group>, member: Arc<Member>, mode: RequestMode, place: usize) {
    let is_same = |group: &&mut Group| Arc::ptr_eq(&group.member, &member) && group.mode == mode;
    match groups.iter_mut().find(is_same) {
        Some(group) => group.places.push(place),
        None => groups.push(Group { member, mode, places: vec![place] }),
    }
}

fn seeds(config: &Config) -> Result<Vec<Address>, Error> {
    if config.hosts().is_empty() {
        return Err(Error::configuration(format!(
            "`{0}://` needs one node of the cluster, or better some, as in `{0}://10.0.0.1:7000,10.0.0.2:7000`",
            config.scheme()
        )));
    }
    if !matches!(config.path(), "" | "0") {
        return Err(Error::configuration(format!(
            "`/{}` in the URL: a Redis Cluster has no database but 0",
            config.path().escape_debug()
        )));
    }
    let address = |host: &lock_core::Host| Address::new(&host.name, host.port.unwrap_or(PORT));
    Ok(config.hosts().iter().map(address).collect())
}

/// A slot that kept moving is no matter of the configuration.
fn settled<T>(outcome: Result<T, Failure>) -> Result<T, Failure> {
    outcome.map_err(|failure| match Redirect::of(&failure) {
        Some(_) if !failure.error().is_unavailable() => {
            let error = Error::unavailable("the lock's slot is moving from node to node");
            Failure::Refused(error.with_source(failure.into_error()))
        }
        _ => failure,
    })
}

impl Router {
    /// See [`Backend::release`]; for whoever has the backend no more, too.
    pub(crate) fn release(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        let format = &*self.0.format;
        let slot = format.slot(&acquisition.name);
        let released =
            self.route(slot, by, |node, mode| node.release(mode, format, acquisition, closing, by));
        settled(released.and_then(|released| released.believed(slot, &self.0)))
    }
}

impl Backend for ClusterBackend {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        let slot = self.format.slot(attempt.name);
        let answer =
            self.router.route(slot, by, |node, mode| node.acquire(mode, &self.format, attempt, by));
        let answer = answer.and_then(|answer| answer.believed(slot, &self.router.0));
        if matches!(answer, Ok(Answer::Unacknowledged(..))) {
            self.router.0.ask();
        }
        if matches!(answer, Ok(Answer::Granted(_) | Answer::Unacknowledged(..))) {
            self.router.0.granted.note(self.router.0.clock().now(), attempt.lease);
        }
        settled(answer)
    }

    fn renew(
        &self,
        _: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let nobody = Error::unavailable("no node of the cluster serves the lock's slot");
        let mut renewals = vec![Err(Failure::NotSent(nobody)); batch.len()];
        let mut groups = Vec::new();
        for (place, one) in batch.iter().enumerate() {
            match self.router.0.look(self.format.slot(&one.acquisition.name)) {
                Some(owner) => add(&mut groups, owner, RequestMode::Direct, place),
                // Somebody may serve it by the next time.
                None => self.router.0.ask(),
            }
        }
        for _ in 0..HOPS {
            let mut next = Vec::new();
            for group in &groups {
                let mut outcomes = self.renew_on(group, batch, by);
                self.weigh(group, &mut outcomes, by);
                let mut failed = false;
                for (place, mut outcome) in group.places.iter().zip(outcomes) {
                    let slot = self.format.slot(&batch[*place].acquisition.name);
                    let owner = self.router.0.look(slot);
                    if outcome.is_ok()
                        && group.mode == RequestMode::Direct
                        && owner.is_none_or(|owner| !Arc::ptr_eq(&owner, &group.member))
                    {
                        outcome = Err(Failure::Unknown(over(&group.member)));
                    }
                    let redirect = outcome.as_ref().err().and_then(Redirect::of);
                    let said = |to: Address| to.said_by(&group.member.address.host);
                    if matches!(outcome, Ok(Renewal::Unacknowledged(_) | Renewal::Unreplicated(_)))
                    {
                        self.router.0.ask();
                    }
                    if outcome.is_ok() {
                        let now = self.router.0.clock().now();
                        self.router.0.granted.note(now, batch[*place].acquisition.lease);
                    }
                    failed |= matches!(outcome, Err(Failure::NotSent(_) | Failure::Unknown(_)))
                        || matches!(redirect, Some(Redirect::Down));
                    renewals[*place] = outcome;
                    match redirect {
                        Some(Redirect::Moved(to)) => {
                            if let Ok(owner) =
                                self.router.0.moved(slot, &group.member, &said(to), by)
                            {
                                add(&mut next, owner, RequestMode::Direct, *place);
                            }
                        }
                        Some(Redirect::Ask(to)) => {
                            if let Ok(target) = self.router.0.member(&group.member, &said(to), by) {
                                add(&mut next, target, RequestMode::Asking, *place);
                            }
                        }
                        _ => {}
                    }
                }
                if failed {
                    self.router.0.suspect(&group.member);
                }
            }
            if next.is_empty() || self.router.0.clock().now() >= by {
                break;
            }
            groups = next;
        }
        renewals.into_iter().map(settled).collect()
    }

    fn release(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        self.router.release(acquisition, closing, by)
    }

    fn submit_release(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
        done: OnReleased,
    ) {
        let slot = self.format.slot(&acquisition.name);
        let Some(owner) = self.router.0.look(slot) else {
            return done(self.release(acquisition, closing, by));
        };
        let (again, id, number) = (self.again.clone(), acquisition.clone(), owner.number);
        // Neither the cluster itself nor the node: what waits for an answer on one of its connections must not keep it.
        let (shared, member) = (Arc::downgrade(&self.router.0), Arc::downgrade(&owner));
        let heard = Box::new(move |outcome: Result<Release, Failure>| {
            let Some(shared) = shared.upgrade() else { return done(settled(outcome)) };
            // By its number: the node itself may be forgotten already when its answer comes.
            let is_over = || shared.look(slot).is_some_and(|now| now.number != number);
            // Not sent on from here: this is in the middle of another's call.
            let redirected = outcome.as_ref().err().and_then(Redirect::of).is_some();
            if redirected || (outcome.is_ok() && is_over()) {
                let router = Router(shared);
                return again.send(Job {
                    router,
                    acquisition: id,
                    closing,
                    by,
                    done,
                    said: outcome,
                });
            }
            if let Err(Failure::NotSent(_) | Failure::Unknown(_)) = &outcome
                && let Some(member) = member.upgrade()
            {
                shared.suspect(&member);
            }
            done(outcome);
        });
        owner.node.submit_release(&self.format, acquisition, closing, by, heard);
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        let slot = self.format.slot(name);
        let ask = || {
            let info = self
                .router
                .route(slot, by, |node, mode| node.inspect(mode, &self.format, name, by));
            settled(info.and_then(|info| info.believed(slot, &self.router.0)))
        };
        match ask() {
            // It changes nothing, so it may be asked again where the node went away: its successor may be known by now.
            Err(Failure::Unknown(_)) if self.router.0.clock().now() < by => {
                self.router.0.refreshed(by)?;
                ask()
            }
            answer => answer,
        }
    }

    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        let slot = self.format.slot(name);
        let freed = self
            .router
            .route(slot, by, |node, mode| node.force_release(mode, &self.format, name, by));
        settled(freed.and_then(|freed| freed.believed(slot, &self.router.0)))
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        let shared = &self.router.0;
        let moving = shared.watches.register(name, wake);
        let watched = self.router.route(self.format.slot(name), by, |node, mode| match mode {
            RequestMode::Direct => moving.subscribe_on(node, &self.format, by),
            // No client is sent elsewhere for a channel while its slot moves.
            RequestMode::Asking => Err(Failure::NotSent(Error::unavailable("the slot is moving"))),
        });
        settled(watched.map(|watched| watched.answer))?;
        // It may have moved between the two. The others that wait are none of this one's business.
        if let Some(home) = shared.look(self.format.slot(name)) {
            moving.follow(&home.node, &self.format);
        }
        Ok(Watch::new(moving))
    }

    fn renewal_node(&self, name: &LockName) -> NodeId {
        NodeId::new(self.router.0.look(self.format.slot(name)).map_or(0, |owner| owner.number))
    }

    fn abilities(&self) -> Abilities {
        self.format.abilities(ReplicaSupport::Listed)
    }
}

impl fmt::Debug for ClusterBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterBackend").field("topology", &self.topology).finish_non_exhaustive()
    }
}

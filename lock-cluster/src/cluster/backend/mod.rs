//! [`ClusterBackend`]: a Redis Cluster as a store of locks.

use super::redirect::superseded;
use super::redirect_queue::{RedirectQueue, RedirectedRelease};
use super::slot_map::{ClusterNode, NodeFactory};
use super::topology::{Channels, RefreshState, Topology};
use lock_core::backend::{
    Abilities, AcquisitionId, Answer, Attempt, Failure, FoundBusyBy, HolderInfo, LockInfo,
    LockPage, NodeId, OnReleased, PagePosition, PermitChange, PermitOutcome, Release,
    ReleaseOptions, Renewal, RenewalRequest, ReplicaSupport, Wake, Watch,
};
use lock_core::{
    Backend, Config, Context, Error, Finding, LeaseTime, LockName, Moment, Replication,
};
use lock_redis::servers::{Address, AddressMap, Format, Node, NodeSettings, Redirect, RequestMode};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

#[cfg(test)]
mod tests;

/// The default port.
const PORT: u16 = 6379;

/// A Redis Cluster. Each request goes to the master of its lock's slot, and never to a replica.
///
/// `MOVED` updates the slot map, `ASK` is followed with `ASKING` in the same write, and `TRYAGAIN`
/// is repeated until the deadline, so an attempt on a free lock of a moving slot may wait until it
/// has moved. Renewals and plain releases name one key only, and succeed meanwhile. A request
/// without an answer is not sent again: its outcome is unknown.
///
/// Each master has as many connections as a [standalone server](lock_redis::RedisScheme), each made
/// when it is needed; one more asks a node for the slot map.
///
/// Dropping it ends its threads and connections, without waiting for them.
pub struct ClusterBackend {
    topology: Arc<Topology>,
    redirect_queue: RedirectQueue,
}

/// The rounds in which a batch of renewals is sent: each but the first sends what was redirected.
const RENEWAL_ROUNDS: usize = 3;

impl ClusterBackend {
    /// The cluster of which `config` names some nodes. Connects to none.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if the URL names no node, or a database other than 0, or a
    /// setting contradicts another.
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
        format.use_slots();
        let seeds = seeds(config)?;
        let words = [
            ("auto", Channels::Auto),
            ("plain", Channels::Plain),
            ("sharded", Channels::Sharded),
        ];
        let channels = config.scheme_word(Channels::OPTION, &words)?;
        let addresses = AddressMap::of(config)?;
        let refresh_state = Arc::<RefreshState>::default();
        let trouble = Arc::clone(&refresh_state);
        let factory = NodeFactory {
            settings: NodeSettings::new(config, 0, context, format.clone())?,
            addresses,
            trouble: Arc::new(move || trouble.ask()),
        };
        let channels = match (channels, format.needs_plain_channels()) {
            (Channels::Sharded, true) => {
                return Err(Error::configuration(
                    "`channels=sharded`: whom `wakes=` in `format=` names listens on plain \
                     channels; leave `channels=` out",
                ));
            }
            (_, true) => Channels::Plain,
            (channels, false) => channels,
        };
        let bound = config.connect_timeout();
        let topology = Topology::new(factory, refresh_state, seeds, bound, channels);
        Ok(Self {
            redirect_queue: RedirectQueue::default(),
            topology,
        })
    }

    /// Renews the part of a batch that belongs to one node.
    fn renew_on(
        &self,
        group: &NodeGroup,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let own: Vec<RenewalRequest>;
        let mine = if group.places.len() == batch.len() {
            batch
        } else {
            own = group
                .places
                .iter()
                .map(|place| batch[*place].clone())
                .collect();
            &own
        };
        group.node.node.asked(group.mode).renew_batch(mine, by)
    }

    /// Missing acknowledgements of a master without replicas are no loss.
    fn accept_without_replicas(
        &self,
        group: &NodeGroup,
        outcomes: &mut [Result<Renewal, Failure>],
        by: Moment,
    ) {
        let mut short: Vec<_> = outcomes
            .iter_mut()
            .filter(|it| matches!(it, Ok(Renewal::Unacknowledged(_))))
            .collect();
        if short.is_empty() || !self.topology.has_no_replica(&group.node, by) {
            return;
        }
        for outcome in &mut short {
            if let Ok(Renewal::Unacknowledged(insufficient)) = **outcome {
                **outcome = Ok(Renewal::Unreplicated(insufficient));
            }
        }
    }
}

/// What is asked of one node.
struct NodeGroup {
    node: Arc<ClusterNode>,
    mode: RequestMode,
    places: Vec<usize>,
}

fn add(groups: &mut Vec<NodeGroup>, node: Arc<ClusterNode>, mode: RequestMode, place: usize) {
    let is_same = |group: &&mut NodeGroup| Arc::ptr_eq(&group.node, &node) && group.mode == mode;
    match groups.iter_mut().find(is_same) {
        Some(group) => group.places.push(place),
        None => groups.push(NodeGroup {
            node,
            mode,
            places: vec![place],
        }),
    }
}

fn seeds(config: &Config) -> Result<Vec<Address>, Error> {
    if config.hosts().is_empty() {
        return Err(Error::configuration(format!(
            "`{0}://` needs one node of the cluster, or better some, as in \
             `{0}://10.0.0.1:7000,10.0.0.2:7000`",
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

/// A redirect that was followed until the deadline is unavailability, not configuration.
fn settled<T>(outcome: Result<T, Failure>) -> Result<T, Failure> {
    outcome.map_err(|failure| match Redirect::of(&failure) {
        Some(_) if !failure.error().is_unavailable() => {
            let error = Error::unavailable("the lock's slot is moving from node to node");
            Failure::Refused(error.with_source(failure.into_error()))
        }
        _ => failure,
    })
}

impl Topology {
    /// See [`Backend::release`]. It works without the backend.
    pub(super) fn release(
        self: &Arc<Self>,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        let slot = self.slot(&acquisition.name);
        let released = self.route(slot, by, |node| node.release(acquisition, options, by));
        settled(released.and_then(|released| released.if_still_owner(slot, self)))
    }
}

impl ClusterBackend {
    /// Asks the master of a lock's slot, if it still has it when the reply comes.
    fn ask_owner<T>(
        &self,
        name: &LockName,
        by: Moment,
        request: impl Fn(&Node) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let slot = self.topology.slot(name);
        let answer = self.topology.route(slot, by, request);
        settled(answer.and_then(|answer| answer.if_still_owner(slot, &self.topology)))
    }

    /// The same for what changes nothing, and so may be sent again: the successor may be known by
    /// then.
    fn look<T>(
        &self,
        name: &LockName,
        by: Moment,
        request: impl Fn(&Node) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        match self.ask_owner(name, by, &request) {
            Err(Failure::Unknown(_)) if self.topology.clock().now() < by => {
                self.topology.refreshed(by)?;
                self.ask_owner(name, by, &request)
            }
            answer => answer,
        }
    }
}

impl Backend for ClusterBackend {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        let slot = self.topology.slot(attempt.name);
        self.topology
            .granted
            .note_attempt(self.topology.clock().now(), attempt);
        let answer = self
            .topology
            .route(slot, by, |node| node.acquire(attempt, by));
        let answer = answer.and_then(|answer| answer.if_still_owner(slot, &self.topology));
        if matches!(answer, Ok(Answer::Unacknowledged(..))) {
            self.topology.ask();
        }
        if matches!(answer, Ok(Answer::Granted(_) | Answer::Unacknowledged(..))) {
            self.topology
                .granted
                .note(self.topology.clock().now(), attempt.lease);
        }
        settled(answer)
    }

    fn renew(
        &self,
        _: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let no_owner = Error::unavailable("no node of the cluster serves the lock's slot");
        let mut renewals = vec![Err(Failure::NotSent(no_owner)); batch.len()];
        let mut groups = Vec::new();
        for (place, one) in batch.iter().enumerate() {
            match self
                .topology
                .look(self.topology.slot(&one.acquisition.name))
            {
                Some(owner) => add(&mut groups, owner, RequestMode::Direct, place),
                // A node may serve it by the next time.
                None => self.topology.ask(),
            }
        }
        for _ in 0..RENEWAL_ROUNDS {
            let mut next = Vec::new();
            for group in &groups {
                let mut outcomes = self.renew_on(group, batch, by);
                self.accept_without_replicas(group, &mut outcomes, by);
                let mut failed = false;
                for (place, mut outcome) in group.places.iter().zip(outcomes) {
                    let slot = self.topology.slot(&batch[*place].acquisition.name);
                    let owner = self.topology.look(slot);
                    if outcome.is_ok()
                        && group.mode == RequestMode::Direct
                        && owner.is_none_or(|owner| !Arc::ptr_eq(&owner, &group.node))
                    {
                        outcome = Err(Failure::Unknown(superseded(&group.node)));
                    }
                    let redirect = outcome.as_ref().err().and_then(Redirect::of);
                    let said = |to| self.topology.destination(&group.node, to);
                    if matches!(
                        outcome,
                        Ok(Renewal::Unacknowledged(_) | Renewal::Unreplicated(_))
                    ) {
                        self.topology.ask();
                    }
                    if outcome.is_ok() {
                        let now = self.topology.clock().now();
                        self.topology
                            .granted
                            .note(now, batch[*place].acquisition.lease);
                    }
                    failed |= matches!(outcome, Err(Failure::NotSent(_) | Failure::Unknown(_)))
                        || matches!(redirect, Some(Redirect::Down));
                    renewals[*place] = outcome;
                    match redirect {
                        Some(Redirect::Moved(to)) => {
                            if let Ok(owner) = self.topology.moved(slot, &group.node, &said(to), by)
                            {
                                add(&mut next, owner, RequestMode::Direct, *place);
                            }
                        }
                        Some(Redirect::Ask(to)) => {
                            if let Ok(target) = self.topology.node(&group.node, &said(to), by) {
                                add(&mut next, target, RequestMode::Asking, *place);
                            }
                        }
                        _ => {}
                    }
                }
                if failed {
                    self.topology.suspect(&group.node);
                }
            }
            if next.is_empty() || self.topology.clock().now() >= by {
                break;
            }
            groups = next;
        }
        renewals.into_iter().map(settled).collect()
    }

    fn release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        self.topology.release(acquisition, options, by)
    }

    fn submit_release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
        done: OnReleased,
    ) {
        let slot = self.topology.slot(&acquisition.name);
        let Some(owner) = self.topology.look(slot) else {
            return done(self.release(acquisition, options, by));
        };
        let (queue, id, number) = (
            self.redirect_queue.clone(),
            acquisition.clone(),
            owner.number,
        );
        // Weak: a request that awaits its answer must not keep the cluster or the node.
        let (topology, node) = (Arc::downgrade(&self.topology), Arc::downgrade(&owner));
        let done = Box::new(move |outcome: Result<Release, Failure>| {
            let Some(topology) = topology.upgrade() else {
                return done(settled(outcome));
            };
            // By its number: the node may be removed before its answer arrives.
            let is_over = || topology.look(slot).is_some_and(|now| now.number != number);
            // Not sent from this thread: it is that of another request.
            let redirected = outcome.as_ref().err().and_then(Redirect::of).is_some();
            if redirected || (outcome.is_ok() && is_over()) {
                return queue.send(RedirectedRelease {
                    topology,
                    acquisition: id,
                    options,
                    by,
                    done,
                    first_outcome: outcome,
                });
            }
            if let Err(Failure::NotSent(_) | Failure::Unknown(_)) = &outcome
                && let Some(node) = node.upgrade()
            {
                topology.suspect(&node);
            }
            done(outcome);
        });
        owner.node.submit_release(acquisition, options, by, done);
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.look(name, by, |node| node.inspect(name, by))
    }

    fn peek(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.look(name, by, |node| node.peek(name, by))
    }

    fn verify(
        &self,
        acquisition: &AcquisitionId,
        by: Moment,
    ) -> Result<Option<HolderInfo>, Failure> {
        self.look(&acquisition.name, by, |node| node.verify(acquisition, by))
    }

    fn change_permits(
        &self,
        name: &LockName,
        change: PermitChange,
        by: Moment,
    ) -> Result<PermitOutcome, Failure> {
        self.ask_owner(name, by, |node| node.change_permits(name, change, by))
    }

    fn inspect_all(&self, names: &[LockName], by: Moment) -> Vec<Result<LockInfo, Failure>> {
        let topology = &self.topology;
        let mut groups = Vec::new();
        for (place, name) in names.iter().enumerate() {
            if let Ok(owner) = topology.owner(self.topology.slot(name), by) {
                add(&mut groups, owner, RequestMode::Direct, place);
            }
        }
        let mut infos: Vec<_> = names.iter().map(|_| None).collect();
        for group in groups {
            let own: Vec<_> = group
                .places
                .iter()
                .map(|place| names[*place].clone())
                .collect();
            // A node that hangs takes half of what is left, and leaves the rest to the others.
            let now = topology.clock().now();
            let share = now + by.since(now) / 2;
            let Ok(answers) = group.node.node.inspect_each(&own, share) else {
                continue;
            };
            for (place, answer) in group.places.into_iter().zip(answers) {
                let owner = topology.look(self.topology.slot(&names[place]));
                let is_owner = owner.is_some_and(|owner| Arc::ptr_eq(&owner, &group.node));
                let is_final = is_owner && answer.as_ref().err().and_then(Redirect::of).is_none();
                infos[place] = Some(answer).filter(|_| is_final);
            }
        }
        // The rest alone: redirects are followed, and a failed node may have a successor.
        let each = infos.into_iter().zip(names);
        each.map(|(info, name)| info.unwrap_or_else(|| self.inspect(name, by)))
            .collect()
    }

    fn list(&self, pattern: &str, from: &PagePosition, by: Moment) -> Result<LockPage, Failure> {
        let topology = &self.topology;
        // The masters by their numbers: one that is made a master meanwhile comes last.
        let first = from.part.parse().unwrap_or(0);
        if first == 0 {
            topology.refreshed(by)?;
        }
        let masters = topology.masters();
        let mut left = masters.iter().filter(|master| master.number >= first);
        let Some(master) = left.next() else {
            return Ok(LockPage::default());
        };
        let cursor = if master.number == first {
            from.cursor
        } else {
            0
        };
        let page = master
            .node
            .list_page(pattern, cursor, by)
            .inspect_err(|failure| {
                if !matches!(failure, Failure::Refused(_)) {
                    topology.suspect(master);
                }
            })?;
        let mut locks = Vec::with_capacity(page.locks.len());
        for (name, info) in page.locks {
            match info {
                // Its slot is moving, or has moved.
                Err(failure) if Redirect::of(&failure).is_some() => match self.inspect(&name, by) {
                    Ok(info) if topology.format().is_lock(&info) => locks.push((name, info)),
                    Err(failure) if !failure.error().is_foreign_format() => {
                        return Err(failure);
                    }
                    _ => {}
                },
                info => locks.push((name, info?)),
            }
        }
        let next = match page.next {
            0 => left
                .next()
                .map(|next| PagePosition::new(next.number.to_string(), 0)),
            cursor => Some(PagePosition::new(master.number.to_string(), cursor)),
        };
        Ok(LockPage::new(locks, next))
    }

    fn poll_pause(&self, name: &LockName, found_by: FoundBusyBy) -> Option<Duration> {
        let owner = self.topology.look(self.topology.slot(name))?;
        owner.node.poll_pause(name, found_by)
    }

    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        self.ask_owner(name, by, |node| node.force_release(name, by))
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        let topology = &self.topology;
        let moving = topology.watches.register(name, wake);
        let watched = self
            .topology
            .route(self.topology.slot(name), by, |node| match node.mode() {
                RequestMode::Direct => moving.subscribe_on(node, by),
                // A channel is not redirected while its slot moves.
                RequestMode::Asking => {
                    Err(Failure::NotSent(Error::unavailable("the slot is moving")))
                }
            });
        settled(watched.map(|watched| watched.answer))?;
        // The slot may have moved meanwhile. Only this watch moves.
        if let Some(home) = topology.look(self.topology.slot(name)) {
            moving.follow(&home.node);
        }
        Ok(Watch::new(moving))
    }

    fn renewal_node(&self, name: &LockName) -> NodeId {
        NodeId::new(
            self.topology
                .look(self.topology.slot(name))
                .map_or(0, |owner| owner.number),
        )
    }

    fn diagnose(&self, by: Moment) -> Result<Vec<Finding>, Failure> {
        self.topology.diagnose(by)
    }

    fn replica_lead(
        &self,
        name: &LockName,
        lease: LeaseTime,
        replication: Replication,
    ) -> Duration {
        let owner = self.topology.look(self.topology.slot(name));
        owner.map_or(Duration::ZERO, |it| {
            it.node.replica_lead(name, lease, replication)
        })
    }

    fn abilities(&self) -> Abilities {
        self.topology.format().abilities(ReplicaSupport::Listed)
    }
}

/// Requests that are under way may keep the topology, but its task ends.
impl Drop for ClusterBackend {
    fn drop(&mut self) {
        self.topology.close();
    }
}

impl fmt::Debug for ClusterBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterBackend")
            .field("topology", &self.topology)
            .finish_non_exhaustive()
    }
}

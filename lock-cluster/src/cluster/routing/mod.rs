//! A Redis Cluster as a [`Topology`]: every request goes to the master of its lock's slot, by the
//! [`ClusterMap`].
//!
//! - `redirect`: the next hop of a request that a node did not execute

mod redirect;
#[cfg(test)]
mod tests;

use super::cluster_map::{Channels, ClusterMap, RefreshState};
use super::slot_map::{ClusterNode, NodeFactory};
use lock_core::backend::{
    Abilities, AcquisitionId, Backoff, Failure, NodeId, Release, ReplicaSupport,
};
use lock_core::{Config, Context, Error, Finding, LockName, Moment};
use lock_redis::RedisStore;
use lock_redis::servers::{Address, AddressMap, Format, NodeSettings, Redirect, WatchRegistry};
use lock_redis::topology::{Effect, Hop, JudgeSubmitted, RoutedRequest, Topology, Verdict};
use std::sync::Arc;
use std::time::Duration;

/// The default port.
const PORT: u16 = 6379;

/// The first pause before a request to a moving slot is sent again, because a slot with few keys
/// moves in milliseconds. The pause doubles, with jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause before a request to a moving slot is sent again, so that a moved slot is used
/// soon.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// A store of locks on a Redis Cluster. Each request goes to the master of its lock's slot, and
/// never to a replica.
///
/// `MOVED` updates the slot map. `ASK` is followed, with `ASKING` in the same write. After
/// `TRYAGAIN` a request is repeated until the deadline, so an attempt for a free lock may wait
/// until its slot has moved. Renewals and plain releases succeed meanwhile, because they name one
/// key only. A request without an answer is not sent again, because its outcome is unknown; only a
/// read is repeated once.
///
/// Each master has as many connections as a [standalone server](lock_redis::RedisScheme), each made
/// when it is needed; another connection is used to query a node for the slot map.
pub type ClusterBackend = RedisStore<ClusterMap>;

/// The state of a request that may be sent from node to node.
#[derive(Clone, Debug)]
pub struct SlotRoute {
    slot: u16,
    owner: Arc<ClusterNode>,
    /// The number of redirects so far.
    redirects: u32,
    backoff: Backoff,
    /// Set for a request that changes nothing and is sent for the second time.
    is_repeated: bool,
}

impl SlotRoute {
    fn new(slot: u16, owner: Arc<ClusterNode>) -> Self {
        Self {
            slot,
            owner,
            redirects: 0,
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            is_repeated: false,
        }
    }

    /// Returns the state of this request for a hop to another node.
    fn at(&self, owner: Arc<ClusterNode>) -> Self {
        Self {
            owner,
            ..self.clone()
        }
    }

    /// Returns the hop to `owner` as the master of the slot.
    fn direct(self) -> Hop<Self> {
        Hop {
            node: self.owner.node.clone(),
            number: self.owner.number,
            state: self,
        }
    }

    /// Returns the hop to `owner` for a slot that is being moved to it.
    fn asking(self) -> Hop<Self> {
        Hop {
            node: self.owner.node.asking(),
            number: self.owner.number,
            state: self,
        }
    }
}

impl ClusterMap {
    /// Creates the store of the cluster of which `config` names some nodes. Connects to none.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if the URL names no node, or a database other than 0, or a
    /// setting is invalid or contradicts another.
    pub fn store(
        config: &Config,
        context: &Context,
        format: Format,
    ) -> Result<ClusterBackend, Error> {
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
        let cluster_map = ClusterMap::new(factory, refresh_state, seeds, bound, channels);
        Ok(RedisStore::with_topology(cluster_map))
    }

    /// Returns whether this node still owns the slot. A replaced master may have been isolated, and
    /// its writes may be lost. A node that was asked with `ASKING` counts as the owner, although
    /// the slot is still moving to it.
    fn is_owner(&self, hop: &Hop<SlotRoute>) -> bool {
        let SlotRoute { slot, owner, .. } = &hop.state;
        hop.node.is_asking() || self.look(*slot).is_some_and(|now| Arc::ptr_eq(&now, owner))
    }

    /// Returns the next hop of a read that failed with an unknown outcome, on a node or in the
    /// search for one. A read changes nothing, so it may be sent a second time, to the owner that a
    /// refresh finds.
    ///
    /// # Errors
    ///
    /// The given failure for any other request or failure, or after `by`; otherwise the failure of
    /// the refresh.
    fn repeat_read(
        self: &Arc<Self>,
        request: &RoutedRequest<'_>,
        slot: u16,
        failure: Failure,
        by: Moment,
    ) -> Result<Hop<SlotRoute>, Failure> {
        let is_unknown = matches!(failure, Failure::Unknown(_));
        if !is_unknown || !changes_nothing(request) || self.clock().now() >= by {
            return Err(failure);
        }
        self.refreshed(by)?;
        let mut next = SlotRoute::new(slot, self.owner(slot, by)?);
        next.is_repeated = true;
        Ok(next.direct())
    }

    /// Records the lease that began or was extended, if any. Requests a refresh if too few replicas
    /// have confirmed that.
    fn note(&self, request: &RoutedRequest<'_>, effect: Effect) {
        let lease = match request {
            RoutedRequest::Acquire(attempt) => attempt.lease,
            RoutedRequest::Renew(renewal) => renewal.acquisition.lease,
            _ => return,
        };
        if effect == Effect::Unconfirmed {
            self.ask();
        }
        if matches!(effect, Effect::Granted | Effect::Unconfirmed) {
            self.granted.note(self.clock().now(), lease);
        }
    }
}

impl Topology for ClusterMap {
    type RouteState = SlotRoute;

    const IS_SPREAD: bool = true;

    fn abilities(&self) -> Abilities {
        self.format().abilities(ReplicaSupport::Listed)
    }

    fn known(&self, name: &LockName) -> Option<Hop<SlotRoute>> {
        let slot = self.slot(name);
        let owner = self.look(slot)?;
        Some(SlotRoute::new(slot, owner).direct())
    }

    fn renewal_node(&self, name: &LockName) -> NodeId {
        let owner = self.look(self.slot(name));
        NodeId::new(owner.map_or(0, |owner| owner.number))
    }

    fn route(
        self: &Arc<Self>,
        request: &RoutedRequest<'_>,
        by: Moment,
    ) -> Result<Hop<SlotRoute>, Failure> {
        let unavailable = |why| Failure::NotSent(Error::unavailable(why));
        let Some(name) = request.name() else {
            // Listings are not routed here: their nodes come from `nodes_from`, and a diagnosis
            // examines each master.
            return Err(unavailable("a request about no lock has no slot"));
        };
        let slot = self.slot(name);
        let owner = match request {
            RoutedRequest::Renew(_) => self.look(slot).ok_or_else(|| {
                // The refresh may find a node before the next renewal.
                self.ask();
                unavailable("no node of the cluster serves the lock's slot")
            }),
            _ => self.owner(slot, by),
        };
        let hop = owner.map(|owner| SlotRoute::new(slot, owner).direct());
        hop.or_else(|failure| self.repeat_read(request, slot, failure, by))
            .map_err(not_sent)
    }

    fn nodes_from(
        self: &Arc<Self>,
        number: u64,
        by: Moment,
    ) -> Result<Vec<Hop<SlotRoute>>, Failure> {
        if number == 0 {
            self.refreshed(by).map_err(not_sent)?;
        }
        let masters = self.masters().into_iter();
        let rest = masters.filter(|master| master.number >= number);
        Ok(rest
            .map(|master| SlotRoute::new(0, master).direct())
            .collect())
    }

    fn judge(
        &self,
        request: &RoutedRequest<'_>,
        hop: &Hop<SlotRoute>,
        outcome: Result<Effect, &Failure>,
    ) -> Verdict {
        let state = &hop.state;
        let is_renewal = matches!(request, RoutedRequest::Renew(_));
        let may_repeat = changes_nothing(request) && !state.is_repeated;
        if let RoutedRequest::Acquire(attempt) = request {
            let now = self.clock().now();
            self.granted.note_attempt(now, attempt, &outcome);
        }
        let failure = match outcome {
            // A watch moves with its lock, and a listing is about the node, so their answers always
            // count.
            Ok(_) if is_about_node(request) => return Verdict::Believe,
            Ok(effect) if self.is_owner(hop) => {
                self.note(request, effect);
                return Verdict::Believe;
            }
            Ok(_) if may_repeat => return Verdict::Reroute,
            Ok(_) => {
                if is_renewal {
                    self.suspect(&state.owner);
                }
                return Verdict::Instead(superseded(&state.owner));
            }
            Err(failure) => failure,
        };
        let is_listing = request.name().is_none();
        let redirect = Redirect::of(failure).filter(|_| !is_listing);
        let has_failed = matches!(failure, Failure::NotSent(_) | Failure::Unknown(_));
        if has_failed || redirect == Some(Redirect::Down) {
            self.suspect(&state.owner);
        }
        let is_sent_on = match (&redirect, failure) {
            (Some(Redirect::Moved(_) | Redirect::Ask(_)), _) => true,
            (Some(_), _) | (None, Failure::NotSent(_)) => !is_renewal && !is_listing,
            (None, Failure::Unknown(_)) => may_repeat,
            (None, _) => false,
        };
        if is_sent_on {
            Verdict::Reroute
        } else {
            Verdict::Believe
        }
    }

    fn judge_submitted(
        self: &Arc<Self>,
        hop: &Hop<SlotRoute>,
        _: &AcquisitionId,
    ) -> Option<JudgeSubmitted> {
        let (slot, number) = (hop.state.slot, hop.number);
        // Weak, so that a request without an answer keeps neither the cluster nor the node alive.
        let (map, owner) = (Arc::downgrade(self), Arc::downgrade(&hop.state.owner));
        Some(Box::new(move |outcome: Result<&Release, &Failure>| {
            let Some(map) = map.upgrade() else {
                return Verdict::Believe;
            };
            // Compares numbers, because the node may be removed before its answer arrives.
            let is_over = || map.look(slot).is_some_and(|now| now.number != number);
            match outcome {
                Ok(_) if is_over() => Verdict::Reroute,
                Err(failure) if Redirect::of(failure).is_some() => Verdict::Reroute,
                Err(Failure::NotSent(_) | Failure::Unknown(_)) => {
                    owner.upgrade().inspect(|owner| map.suspect(owner));
                    Verdict::Believe
                }
                _ => Verdict::Believe,
            }
        }))
    }

    fn reroute(
        self: &Arc<Self>,
        request: &RoutedRequest<'_>,
        hop: Hop<SlotRoute>,
        failure: Option<Failure>,
        by: Moment,
    ) -> Result<Hop<SlotRoute>, Failure> {
        let state = hop.state;
        let failure = failure.unwrap_or_else(|| superseded(&state.owner));
        let (slot, is_repeated) = (state.slot, state.is_repeated);
        // After any failure but `Unknown` the node did nothing. If no next node is found then, the
        // request counts as not sent.
        let may_have_effect = matches!(failure, Failure::Unknown(_));
        let next = match request {
            RoutedRequest::Renew(_) => self.next_hop_of_renewal(&state, failure, by),
            _ => self.next_hop(state, failure, by),
        };
        let next = match next {
            Err(failure) if !is_repeated => self.repeat_read(request, slot, failure, by),
            next => next,
        };
        next.map_err(|failure| {
            if may_have_effect {
                failure
            } else {
                not_sent(failure)
            }
        })
    }

    /// Turns a redirect that was not followed before the deadline into an unavailability. Otherwise
    /// it would be reported as a refusal, like a misconfiguration.
    fn settle(failure: Failure) -> Failure {
        match Redirect::of(&failure) {
            Some(_) if !failure.error().is_unavailable() => {
                let error = Error::unavailable("the lock's slot is moving from node to node");
                Failure::Refused(error.with_source(failure.into_error()))
            }
            _ => failure,
        }
    }

    fn check_unreplicated(&self, hop: &Hop<SlotRoute>, by: Moment) -> bool {
        self.has_no_replica(&hop.state.owner, by)
    }

    fn watches(&self) -> Option<&WatchRegistry> {
        Some(&self.watches)
    }

    fn diagnose(self: &Arc<Self>, by: Moment) -> Result<Vec<Finding>, Failure> {
        Self::diagnose(self, by)
    }

    fn end_background_work(&self) {
        self.close();
    }
}

fn changes_nothing(request: &RoutedRequest<'_>) -> bool {
    matches!(request, RoutedRequest::Inspect(_))
}

/// Returns whether the answer counts even if another node owns the slot by now.
fn is_about_node(request: &RoutedRequest<'_>) -> bool {
    matches!(request, RoutedRequest::Watch(_)) || request.name().is_none()
}

/// Replaces an unknown outcome in the search for a node: a query for the slot map, even without an
/// answer, has not changed the lock.
fn not_sent(failure: Failure) -> Failure {
    match failure {
        Failure::Unknown(error) => Failure::NotSent(error),
        failure => failure,
    }
}

/// Returns the failure of a request that was answered by a node that no longer serves the slot.
fn superseded(node: &ClusterNode) -> Failure {
    Failure::Unknown(Error::unavailable(format!(
        "{} has answered, and serves the slot no longer",
        node.address
    )))
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

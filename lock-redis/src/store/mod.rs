//! [`RedisStore`]: Redis servers of any [`Topology`] as a store of locks.
//!
//! A request about one lock is sent by [`send`](mod@send): the topology names a node, the node
//! makes one attempt, the topology judges the outcome, and the request continues on another node or
//! ends. Renewals are grouped by node, sent to one node after the other, and judged one by one. So
//! are reads of many locks if the locks are spread over several nodes; otherwise, such a read is
//! one request. A submitted release makes its first attempt without waiting for the reply, except
//! in a format that does not say who holds a lock.
//!
//! - `send`: one request, from node to node
//! - `resend_queue`: submitted releases that must go to another node

mod resend_queue;
mod send;
#[cfg(test)]
mod tests;

pub(crate) use send::send;

use crate::node::cluster::Redirect;
use crate::protocol::Format;
use crate::protocol::classic::{ClassicRules, StepHook};
use crate::topology::{Effect, Hop, RoutedRequest, Topology, Verdict};
use lock_core::backend::{
    Abilities, AcquisitionId, Admin, Answer, Attempt, Failure, HolderInfo, LockInfo, LockPage,
    NodeId, OnReleased, PagePosition, PermitChange, PermitOutcome, Proposal, ProposalAnswer,
    Release, ReleaseOptions, Renewal, RenewalRequest, Replicated, RetryCause, Voter, Wake, Watch,
};
use lock_core::{
    Backend, Config, Context, Error, Finding, LeaseTime, LockName, Moment, Replication,
};
use resend_queue::{Resend, ResendQueue};
use send::{release, settled_on};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The most rounds of a batch of renewals. Each round but the first sends the renewals that were
/// judged [`Verdict::Reroute`] in the round before.
const RENEWAL_ROUNDS: usize = 3;

/// A store of locks on Redis servers.
///
/// Dropping it ends its threads and connections, without waiting for them.
pub struct RedisStore<T: Topology> {
    topology: Arc<T>,
    resend_queue: ResendQueue<T>,
    /// The rules of a format that does not say who holds a lock; `None` for other formats.
    rules: Option<ClassicRules>,
}

impl<T: Topology> RedisStore<T> {
    /// Makes the store of this topology.
    #[must_use]
    pub fn with_topology(topology: Arc<T>) -> Self {
        Self {
            topology,
            resend_queue: ResendQueue::default(),
            rules: None,
        }
    }

    /// Returns the topology.
    #[must_use]
    pub fn topology(&self) -> &Arc<T> {
        &self.topology
    }

    /// Adds the rules for a format that does not say who holds a lock.
    pub(crate) fn with_rules(mut self, rules: ClassicRules) -> Self {
        self.rules = Some(rules);
        self
    }

    /// Sends a request to its first node, and to further nodes as the topology decides.
    fn request<A>(
        &self,
        request: &RoutedRequest<'_>,
        by: Moment,
        attempt: impl FnMut(&Hop<T::RouteState>) -> Result<A, Failure>,
        effect: impl Fn(&A) -> Effect,
    ) -> Result<A, Failure> {
        let first = self.topology.route(request, by);
        send(&self.topology, request, by, first, attempt, effect)
    }

    /// Returns the node to which each renewal is sent first.
    fn renewal_hops(
        &self,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Hop<T::RouteState>, Failure>> {
        let route = |one| self.topology.route(&RoutedRequest::Renew(one), by);
        match batch {
            [] => Vec::new(),
            batch if T::IS_SPREAD => batch.iter().map(route).collect(),
            [first, ..] => vec![route(first); batch.len()],
        }
    }

    /// Renews the part of a batch that goes to one node.
    fn renew_on(
        &self,
        group: &NodeGroup<T::RouteState>,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let own: Vec<RenewalRequest>;
        let part = if group.is_whole(batch.len()) {
            batch
        } else {
            own = group.places().map(|place| batch[place].clone()).collect();
            &own
        };
        let hop = group.hop();
        let mut renewals = hop.node.renew_batch(part, by);
        let is_unconfirmed =
            |renewal: &Result<_, _>| matches!(renewal, Ok(Renewal::Unacknowledged(_)));
        if renewals.iter().any(is_unconfirmed) && self.topology.check_unreplicated(hop, by) {
            for renewal in &mut renewals {
                if let Ok(Renewal::Unacknowledged(insufficient)) = *renewal {
                    *renewal = Ok(Renewal::Unreplicated(insufficient));
                }
            }
        }
        renewals
    }

    /// Inspects many locks, node by node. A lock without a final answer from its node is inspected
    /// alone: that request follows redirects, and reaches the successor of a failed node.
    fn inspect_on_nodes(&self, names: &[LockName], by: Moment) -> Vec<Result<LockInfo, Failure>> {
        let mut groups = Vec::new();
        for (place, name) in names.iter().enumerate() {
            if let Ok(hop) = self.topology.route(&RoutedRequest::Inspect(name), by) {
                add(&mut groups, place, hop);
            }
        }
        let mut infos: Vec<_> = names.iter().map(|_| None).collect();
        for group in groups {
            let own: Vec<_> = group.places().map(|place| names[place].clone()).collect();
            let node = &group.hop().node;
            // A node that hangs uses half of the time that is left, so that some is left for the
            // others.
            let now = node.clock().now();
            let Ok(answers) = node.inspect_each(&own, now + by.since(now) / 2) else {
                continue;
            };
            for ((place, hop), answer) in group.items.iter().zip(answers) {
                let request = RoutedRequest::Inspect(&names[*place]);
                let counts = |outcome| {
                    matches!(
                        self.topology.judge(&request, hop, outcome),
                        Verdict::Believe
                    )
                };
                let is_final = counts(Ok(Effect::None))
                    && answer.as_ref().err().is_none_or(|it| counts(Err(it)));
                infos[*place] = is_final.then_some(answer);
            }
        }
        let each = infos.into_iter().zip(names);
        each.map(|(info, name)| info.unwrap_or_else(|| self.inspect(name, by)))
            .collect()
    }
}

impl Format {
    /// Opens the store of the format that `config` names, made by `build`. If the format does not
    /// say who holds a lock, the store gets `ClassicRules`, and `hook` is notified between the
    /// commands of an attempt.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if there is no such format, and the errors of `build`.
    pub fn open_store<T: Topology>(
        config: &Config,
        context: &Context,
        hook: Option<Arc<dyn StepHook>>,
        build: impl FnOnce(Self) -> Result<RedisStore<T>, Error>,
    ) -> Result<Arc<dyn Backend>, Error> {
        Ok(Arc::new(match ClassicRules::read(config, context, hook)? {
            None => build(Self::of(config)?)?,
            Some((format, rules)) => build(format)?.with_rules(rules),
        }))
    }
}

/// The parts of a request about many locks that go to one node, by their places in the request.
struct NodeGroup<P> {
    items: Vec<(usize, Hop<P>)>,
}

impl<P> NodeGroup<P> {
    /// Returns the hop to the node.
    fn hop(&self) -> &Hop<P> {
        &self.items[0].1
    }

    fn places(&self) -> impl Iterator<Item = usize> {
        self.items.iter().map(|(place, _)| *place)
    }

    /// Returns true if the group is a whole request of this many parts, in their order.
    fn is_whole(&self, count: usize) -> bool {
        self.items.len() == count && self.places().eq(0..count)
    }
}

fn add<P>(groups: &mut Vec<NodeGroup<P>>, place: usize, hop: Hop<P>) {
    let group = groups
        .iter_mut()
        .find(|group| group.hop().node.is_same(&hop.node));
    match group {
        Some(group) => group.items.push((place, hop)),
        None => groups.push(NodeGroup {
            items: vec![(place, hop)],
        }),
    }
}

/// Returns the effect of the answer to an attempt.
fn acquired(answer: &Answer) -> Effect {
    match answer {
        Answer::Busy(_)
        | Answer::BusyWithoutExpiry(_)
        | Answer::Retry {
            cause: RetryCause::Paused { .. },
            ..
        } => Effect::None,
        Answer::Granted(_) => Effect::Granted,
        Answer::Unacknowledged(..) => Effect::Unconfirmed,
        _ => Effect::Changed,
    }
}

/// Returns the text that stands for the node of this number in a [`PagePosition`].
fn part(number: u64) -> String {
    if number == 0 {
        String::new()
    } else {
        number.to_string()
    }
}

impl<T: Topology> Backend for RedisStore<T> {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        let acquire = || {
            let acquire = |hop: &Hop<_>| hop.node.acquire(attempt, by);
            self.request(&RoutedRequest::Acquire(attempt), by, acquire, acquired)
        };
        match &self.rules {
            None => acquire(),
            Some(rules) => rules.acquire(attempt, acquire, || {
                self.replica_lead(attempt.name, attempt.lease, attempt.replication)
            }),
        }
    }

    fn renew(
        &self,
        _: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        if self.rules.is_some() {
            return batch
                .iter()
                .map(|_| Err(ClassicRules::no_renewal()))
                .collect();
        }
        let mut renewals = Vec::with_capacity(batch.len());
        let mut groups = Vec::new();
        for (place, hop) in self.renewal_hops(batch, by).into_iter().enumerate() {
            renewals.push(Err(match hop {
                Ok(hop) => {
                    add(&mut groups, place, hop);
                    // Replaced in the first round, which sends every renewal that has a node.
                    Failure::NotSent(Error::unavailable("the renewal was not sent"))
                }
                Err(failure) => failure,
            }));
        }
        for _ in 0..RENEWAL_ROUNDS {
            let mut next = Vec::new();
            for group in &groups {
                let outcomes = self.renew_on(group, batch, by);
                for ((place, hop), outcome) in group.items.iter().zip(outcomes) {
                    let request = RoutedRequest::Renew(&batch[*place]);
                    let effect = outcome.as_ref().map(|renewal| match renewal {
                        Renewal::Unacknowledged(_) | Renewal::Unreplicated(_) => {
                            Effect::Unconfirmed
                        }
                        Renewal::Extended => Effect::Granted,
                        // `Gone` is treated as a grant, too: the lease is over, and it is safe to
                        // count the lock as held for longer.
                        _ => Effect::Granted,
                    });
                    renewals[*place] = match self.topology.judge(&request, hop, effect) {
                        Verdict::Believe => outcome,
                        Verdict::Instead(failure) => Err(failure),
                        Verdict::Reroute => {
                            let failure = outcome.as_ref().err().cloned();
                            let to = self.topology.reroute(&request, hop.clone(), failure, by);
                            if let Ok(to) = to {
                                add(&mut next, *place, to);
                            }
                            outcome
                        }
                    };
                }
            }
            let is_over = |group: &NodeGroup<_>| group.hop().node.clock().now() >= by;
            if next.first().is_none_or(is_over) {
                break;
            }
            groups = next;
        }
        let each = renewals.into_iter().zip(batch);
        each.map(|(renewal, one)| {
            renewal.map_err(|failure| settled_on::<T>(&one.acquisition.name, failure))
        })
        .collect()
    }

    fn release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        match &self.rules {
            None => release(&self.topology, acquisition, options, by),
            Some(rules) => rules.release(acquisition, by, |acquisition, options, by| {
                release(&self.topology, acquisition, options, by)
            }),
        }
    }

    fn submit_release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
        done: OnReleased,
    ) {
        if self.rules.is_some() {
            return done(self.release(acquisition, options, by));
        }
        let hop = match self
            .topology
            .route(&RoutedRequest::Release(acquisition), by)
        {
            Ok(hop) => hop,
            Err(failure) => return done(Err(settled_on::<T>(&acquisition.name, failure))),
        };
        let Some(judge) = self.topology.judge_submitted(&hop, acquisition) else {
            return hop.node.submit_release(acquisition, options, by, done);
        };
        // Weak, because a release that awaits its first reply must not keep the topology alive.
        let topology = Arc::downgrade(&self.topology);
        let clock = Arc::clone(hop.node.shared_clock());
        let (queue, id) = (self.resend_queue.clone(), acquisition.clone());
        let name = acquisition.name.clone();
        let judged = Box::new(move |outcome: Result<Release, Failure>| {
            let outcome = match judge(outcome.as_ref()) {
                Verdict::Believe => outcome,
                Verdict::Instead(failure) => Err(failure),
                // Queued, because this thread reads replies, and must not wait for another request.
                Verdict::Reroute => match topology.upgrade() {
                    Some(topology) => {
                        let resend = Resend {
                            topology,
                            acquisition: id,
                            options,
                            by,
                            done,
                            first_outcome: outcome,
                        };
                        return queue.send(resend, &clock);
                    }
                    // The client is gone, and no request goes to another node.
                    None => outcome,
                },
            };
            done(outcome.map_err(|failure| settled_on::<T>(&name, failure)));
        });
        hop.node.submit_release(acquisition, options, by, judged);
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        let inspect = |hop: &Hop<_>| hop.node.inspect(name, by);
        self.request(&RoutedRequest::Inspect(name), by, inspect, |_| Effect::None)
    }

    fn verify(
        &self,
        acquisition: &AcquisitionId,
        by: Moment,
    ) -> Result<Option<HolderInfo>, Failure> {
        if self.rules.is_some() {
            return Err(ClassicRules::no_verification());
        }
        let request = RoutedRequest::Inspect(&acquisition.name);
        let verify = |hop: &Hop<_>| hop.node.verify(acquisition, by);
        self.request(&request, by, verify, |_| Effect::None)
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        let request = RoutedRequest::Watch(name);
        let Some(watches) = self.topology.watches() else {
            let watch = |hop: &Hop<_>| hop.node.watch(name, Arc::clone(&wake), by);
            return self.request(&request, by, watch, |_| Effect::None);
        };
        // Weak, because the topology owns the registry, and the registry owns this closure.
        let topology = Arc::downgrade(&self.topology);
        let moving = watches.register(name, wake, move |name, node| {
            let topology = topology.upgrade();
            topology.is_some_and(|topology| topology.counts(name, node))
        });
        let subscribe = |hop: &Hop<_>| {
            // Servers do not redirect a subscription while its slot moves.
            if hop.node.is_asking() {
                return Err(Failure::NotSent(Error::unavailable("the slot is moving")));
            }
            moving.subscribe_on(&hop.node, by)
        };
        // A subscription has no effect on the lock, so it may be made again on another node.
        self.request(&request, by, subscribe, |()| Effect::None)?;
        // The lock may have moved to another node before this watch was subscribed. Then the watch
        // is moved now.
        moving.follow(|| self.topology.known(name).map(|home| home.node));
        Ok(Watch::new(moving))
    }

    fn renewal_node(&self, name: &LockName) -> NodeId {
        self.topology.renewal_node(name)
    }

    fn abilities(&self) -> Abilities {
        self.topology.abilities()
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }

    fn replicated(&self) -> Option<&dyn Replicated> {
        Some(self)
    }

    fn voter(&self) -> Option<&dyn Voter> {
        T::IS_INDEPENDENT.then_some(self)
    }
}

impl<T: Topology> Admin for RedisStore<T> {
    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        let effect = |freed: &bool| {
            if *freed {
                Effect::Changed
            } else {
                Effect::None
            }
        };
        let force = |hop: &Hop<_>| hop.node.force_release(name, by);
        self.request(&RoutedRequest::Change(name), by, force, effect)
    }

    fn change_permits(
        &self,
        name: &LockName,
        change: PermitChange,
        by: Moment,
    ) -> Result<PermitOutcome, Failure> {
        // A change on a former master may be lost. It is sent to the next master only if it changed
        // nothing, or has the same result when repeated.
        let effect = |outcome: &PermitOutcome| match (outcome, change) {
            (PermitOutcome::NotTaken, _) | (_, PermitChange::SetLimit(_)) => Effect::None,
            _ => Effect::Changed,
        };
        let change = |hop: &Hop<_>| hop.node.change_permits(name, change, by);
        self.request(&RoutedRequest::Change(name), by, change, effect)
    }

    fn inspect_all(&self, names: &[LockName], by: Moment) -> Vec<Result<LockInfo, Failure>> {
        if T::IS_SPREAD {
            return self.inspect_on_nodes(names, by);
        }
        let inspect = |hop: &Hop<_>| hop.node.inspect_each(names, by);
        let infos = self.request(&RoutedRequest::InspectAll, by, inspect, |_| Effect::None);
        infos.unwrap_or_else(|failure| vec![Err(failure); names.len()])
    }

    fn list(&self, pattern: &str, from: &PagePosition, by: Moment) -> Result<LockPage, Failure> {
        let first = from.part.parse().unwrap_or(0);
        let mut nodes = self.topology.nodes_from(first, by)?.into_iter();
        let Some(hop) = nodes.next() else {
            return Ok(LockPage::default());
        };
        let format = hop.node.format().clone();
        let list = |hop: &Hop<_>| {
            // Another node has other keys in another order, so a listing there starts from the
            // beginning.
            let part = part(hop.number);
            let cursor = if from.part == part { from.cursor } else { 0 };
            let page = hop.node.list_page(pattern, cursor, by)?;
            match page.locks.iter().find_map(|(_, info)| info.as_ref().err()) {
                Some(failure) if !T::IS_SPREAD => Err(failure.clone()),
                _ => Ok((part, page)),
            }
        };
        let effect = |_: &_| Effect::None;
        let (part_listed, page) = send(
            &self.topology,
            &RoutedRequest::List,
            by,
            Ok(hop),
            list,
            effect,
        )?;
        let mut locks = Vec::with_capacity(page.locks.len());
        for (name, info) in page.locks {
            match info {
                // The lock is moving, or has moved.
                Err(failure) if Redirect::of(&failure).is_some() => match self.inspect(&name, by) {
                    Ok(info) if format.is_lock(&info) => locks.push((name, info)),
                    Err(failure) if !failure.error().is_foreign_format() => return Err(failure),
                    _ => {}
                },
                info => locks.push((name, info?)),
            }
        }
        let next = match page.next {
            0 => nodes
                .next()
                .map(|next| PagePosition::new(part(next.number), 0)),
            cursor => Some(PagePosition::new(part_listed, cursor)),
        };
        Ok(LockPage::new(locks, next))
    }

    fn diagnose(&self, by: Moment) -> Result<Vec<Finding>, Failure> {
        self.topology.diagnose(by)
    }
}

impl<T: Topology> Voter for RedisStore<T> {
    fn propose(
        &self,
        attempt: &Attempt<'_>,
        proposal: Proposal,
        by: Moment,
    ) -> Result<ProposalAnswer, Failure> {
        let propose = |hop: &Hop<_>| hop.node.propose_without_terms(attempt, proposal, by);
        self.request(
            &RoutedRequest::Acquire(attempt),
            by,
            propose,
            |answer| match answer {
                ProposalAnswer::Answer(answer) => acquired(answer),
                _ => Effect::None,
            },
        )
    }
}

impl<T: Topology> Replicated for RedisStore<T> {
    fn replica_lead(
        &self,
        name: &LockName,
        lease: LeaseTime,
        replication: Replication,
    ) -> Duration {
        let hop = self.topology.known(name);
        hop.map_or(Duration::ZERO, |hop| {
            hop.node.replica_lead(lease, replication)
        })
    }
}

/// Ends the topology's background work. A release in the resend queue may keep the topology itself
/// alive.
impl<T: Topology> Drop for RedisStore<T> {
    fn drop(&mut self) {
        self.topology.end_background_work();
    }
}

impl<T: Topology> fmt::Debug for RedisStore<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("topology", &self.topology)
            .finish_non_exhaustive()
    }
}

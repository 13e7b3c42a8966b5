//! A master with its replicas and sentinels as a [`Topology`]: every request goes to the present
//! master, by the [`MasterTracker`].

use super::master_tracker::{Master, MasterTracker};
use super::sentinel_set::SentinelSet;
use super::watcher_signal::WatcherSignal;
use crate::connection::{Address, ServerError};
use crate::node::{NodeSettings, StoreKind, WatchRegistry, WeakNode};
use crate::protocol::Format;
use crate::store::{RedisStore, send};
use crate::topology::{Effect, Hop, JudgeSubmitted, RoutedRequest, Topology, Verdict};
use crate::url;
use lock_core::backend::{Abilities, AcquisitionId, Failure, NodeId, Release, ReplicaSupport};
use lock_core::{Config, Context, Error, Finding, LockName, Moment};
use std::fmt;
use std::sync::Arc;

/// The store on the master that the sentinels name, now and after each failover.
///
/// The sentinels are queried when the master is first needed, when one of them announces a
/// failover, when a request fails, and once a second while the number of replicas is needed or a
/// listed replica has not been reached. Each master has connections of its own. The reply of a
/// master after its replacement does not count: a grant or a renewal there may be lost with the
/// master, so the outcome is unknown, and the engine queries the new master. Watches move to the
/// new master, waiters make another attempt there, and recent releases are repeated there.
///
/// `inspect`, `inspect_all`, `verify` and listings also query the sentinels, after the master has
/// answered, for one second at most. If no sentinel answers, the master's reply counts.
pub type SentinelBackend = RedisStore<MasterTracker>;

/// The largest number of times that a request is sent on to the next master, if the master changes
/// each time.
const MOVES: usize = 3;

/// The state of a request that may be sent on from one master to the next.
#[derive(Clone)]
pub struct MasterRoute {
    master: Arc<Master>,
    /// The time just before the request was sent.
    sent: Moment,
    /// The number of times that the request was sent on to the next master.
    moves: usize,
}

impl fmt::Debug for MasterRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MasterRoute")
            .field("number", &self.master.number)
            .field("moves", &self.moves)
            .finish_non_exhaustive()
    }
}

impl RedisStore<MasterTracker> {
    /// Creates the store on the master that `config` names, by the sentinels in it. Does not
    /// connect to them.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if the URL names no sentinels, or no master, or if a setting is
    /// invalid or contradicts another, or a file cannot be read. [`Error::is_unavailable`] if a
    /// thread cannot be started.
    pub fn new(config: &Config, context: &Context) -> Result<Self, Error> {
        Self::sentinel(config, context, Format::of(config)?)
    }

    /// Creates the store for a format that was parsed already.
    pub(crate) fn sentinel(
        config: &Config,
        context: &Context,
        format: Format,
    ) -> Result<Self, Error> {
        config.check()?;
        let address = url::sentinels(config)?;
        let settings = NodeSettings::new(config, address.database, context, format)?;
        let signal_to_watcher = Arc::new(WatcherSignal::default());
        let given = address
            .sentinels
            .into_iter()
            .map(|(host, port)| Address::new(&host, port));
        let sentinel_set = SentinelSet::new(
            &address.master,
            given,
            address.addresses,
            &settings,
            Arc::clone(&signal_to_watcher),
        )?;
        Ok(Self::with_topology(MasterTracker::new(
            sentinel_set,
            settings,
            signal_to_watcher,
        )))
    }

    /// Returns how many replicas must acknowledge a request that all must acknowledge: the replicas
    /// that at least one sentinel has reached and does not consider down. `None` before the first
    /// answer of a sentinel.
    ///
    /// Never waits: returns the last known number. The sentinels are queried once a second until
    /// five seconds after the last call, and whenever one of them announces a change.
    #[must_use]
    pub fn replicas(&self) -> Option<u32> {
        self.topology().replicas()
    }
}

impl Topology for MasterTracker {
    type RouteState = MasterRoute;

    const IS_SPREAD: bool = false;

    fn abilities(&self) -> Abilities {
        self.settings.format().abilities(ReplicaSupport::Listed)
    }

    fn known(&self, _: &LockName) -> Option<Hop<MasterRoute>> {
        Some(self.hop(Self::known(self)?, 0))
    }

    /// Returns false while the sentinels may name another master: no attempt is sent to the known
    /// master then, and no grant by it counts.
    fn counts(&self, _: &LockName, node: &WeakNode) -> bool {
        self.is_undisputed(node)
    }

    /// Each master is a node of its own: a master that hangs must not delay renewals on the next
    /// one.
    fn renewal_node(&self, _: &LockName) -> NodeId {
        NodeId::new(self.number())
    }

    fn route(
        self: &Arc<Self>,
        request: &RoutedRequest<'_>,
        by: Moment,
    ) -> Result<Hop<MasterRoute>, Failure> {
        let hop = self.hop(self.present(by)?, 0);
        self.admit(request, hop, by)
    }

    fn judge(
        &self,
        request: &RoutedRequest<'_>,
        hop: &Hop<MasterRoute>,
        outcome: Result<Effect, &Failure>,
    ) -> Verdict {
        let master = &hop.state.master;
        if outcome.is_ok() {
            self.note_heard(master);
        }
        if let RoutedRequest::Acquire(attempt) = request {
            self.granted.note_attempt(hop.state.sent, attempt, &outcome);
        }
        if matches!(outcome, Ok(Effect::Granted | Effect::Unconfirmed)) {
            self.note_granted(request, hop);
        }
        // A renewal is not sent on to the next master: the thread that waited for a master that
        // hangs must not wait for the next one, too. The engine repeats the renewal.
        let is_sent_on = !matches!(request, RoutedRequest::Renew(_));
        let is_present = self.is_present(master);
        match outcome {
            Ok(Effect::None) if is_sent_on && !is_present => Verdict::Reroute,
            Err(failure @ (Failure::Refused(_) | Failure::NotSent(_)))
                if is_sent_on && (!is_present || may_be_over(failure)) =>
            {
                Verdict::Reroute
            }
            outcome => {
                let verdict = believe(self, master, is_present, outcome.map(drop));
                if let (Verdict::Believe, Ok(Effect::Freed), RoutedRequest::Release(acquisition)) =
                    (&verdict, outcome, request)
                {
                    self.note_release(acquisition, master.number);
                }
                verdict
            }
        }
    }

    fn judge_submitted(
        self: &Arc<Self>,
        hop: &Hop<MasterRoute>,
        acquisition: &AcquisitionId,
    ) -> Option<JudgeSubmitted> {
        let (tracker, master) = (Arc::downgrade(self), Arc::clone(&hop.state.master));
        let acquisition = acquisition.clone();
        Some(Box::new(move |outcome: Result<&Release, &Failure>| {
            // The tracker is dropped only with the client.
            let Some(tracker) = tracker.upgrade() else {
                return Verdict::Believe;
            };
            let is_present = tracker.is_present(&master);
            let verdict = believe(&tracker, &master, is_present, outcome.map(drop));
            let is_freed = matches!(outcome, Ok(Release::Freed));
            if is_freed && matches!(verdict, Verdict::Believe) {
                tracker.note_release(&acquisition, master.number);
            }
            verdict
        }))
    }

    fn reroute(
        self: &Arc<Self>,
        request: &RoutedRequest<'_>,
        hop: Hop<MasterRoute>,
        failure: Option<Failure>,
        by: Moment,
    ) -> Result<Hop<MasterRoute>, Failure> {
        let MasterRoute { master, moves, .. } = hop.state;
        if let Some(failure) = failure
            && !self.check_superseded(&master, by)
        {
            return Err(failure);
        }
        let next = self.present(by)?;
        if moves == MOVES {
            return Err(Failure::NotSent(Error::unavailable(
                "the master changes faster than it can be asked",
            )));
        }
        self.admit(request, self.hop(next, moves + 1), by)
    }

    /// Queries the sentinels: a replaced master that does not know of its replacement replies with
    /// old data, and this client may not know of it either, if both were paused.
    fn confirm(self: &Arc<Self>, request: &RoutedRequest<'_>, by: Moment) {
        if let RoutedRequest::Inspect(_) | RoutedRequest::InspectAll | RoutedRequest::List = request
        {
            Self::confirm(self, by);
        }
    }

    fn watches(&self) -> Option<&WatchRegistry> {
        Some(&self.watches)
    }

    fn diagnose(self: &Arc<Self>, by: Moment) -> Result<Vec<Finding>, Failure> {
        let request = RoutedRequest::Diagnose;
        let examine = |hop: &Hop<_>| hop.node.examine(StoreKind::Sentinel, by);
        let first = self.route(&request, by);
        let master = send(self, &request, by, first, examine, |_| Effect::None)?;
        let mut findings = Self::diagnose(self, by);
        findings.extend(master.findings);
        Ok(findings)
    }
}

impl MasterTracker {
    fn hop(&self, master: Arc<Master>, moves: usize) -> Hop<MasterRoute> {
        Hop {
            node: master.node.clone(),
            number: master.number,
            state: MasterRoute {
                master,
                sent: self.now(),
                moves,
            },
        }
    }

    /// Returns the hop if the request may be sent to its master. While the sentinels name a server
    /// that is not followed yet, an attempt is refused, or sent to the master that is followed
    /// meanwhile.
    fn admit(
        self: &Arc<Self>,
        request: &RoutedRequest<'_>,
        hop: Hop<MasterRoute>,
        by: Moment,
    ) -> Result<Hop<MasterRoute>, Failure> {
        if !matches!(request, RoutedRequest::Acquire(_)) {
            return Ok(hop);
        }
        match self.check_strangers(&hop.node) {
            Ok(()) => Ok(hop),
            Err(failure) => self.reroute(request, hop, Some(failure), by),
        }
    }

    fn note_granted(&self, request: &RoutedRequest<'_>, hop: &Hop<MasterRoute>) {
        let lease = match request {
            RoutedRequest::Acquire(attempt) => attempt.lease,
            RoutedRequest::Renew(renewal) => renewal.acquisition.lease,
            _ => return,
        };
        self.granted.note(hop.state.sent, lease);
    }
}

/// Returns whether this failure may mean that another server is master by now.
fn may_be_over(failure: &Failure) -> bool {
    let error = failure.error();
    match (failure, ServerError::behind(error)) {
        (Failure::Refused(_), Some(answer)) => {
            // `NOREPLICAS`: the master has too few replicas, because it is cut off from them or was
            // replaced.
            matches!(
                answer.code.as_str(),
                "READONLY" | "MASTERDOWN" | "LOADING" | "NOREPLICAS"
            )
        }
        (Failure::Refused(_), None) => false,
        _ => error.is_unavailable(),
    }
}

/// Judges an outcome. No reply of a replaced master counts, not even "gone", because the state of
/// the lock on that master does not matter any more.
fn believe(
    tracker: &MasterTracker,
    master: &Master,
    is_present: bool,
    outcome: Result<(), &Failure>,
) -> Verdict {
    if outcome.is_err_and(may_be_over) {
        tracker.report_failure();
    }
    match outcome {
        Ok(()) | Err(Failure::Refused(_)) if !is_present => Verdict::Instead(over(master)),
        _ => Verdict::Believe,
    }
}

/// The failure of a request that a replaced master answered: its effect may be lost.
fn over(master: &Master) -> Failure {
    Failure::Unknown(Error::unavailable(format!(
        "{} answered, and was not the master any more by then",
        master.node.server()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::single_flight::{Flight, FlightResult};
    use crate::node::Node;
    use crate::sentinel::agreement::Agreement;
    use lock_core::{ClientId, Clock, SystemClock};
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    /// Returns a store whose master is on this port. No sentinel runs.
    fn named(port: u16, epoch: u64) -> SentinelBackend {
        let context = Context::new(Arc::new(SystemClock), ClientId::random());
        let config = Config::from_url("redis+sentinel://127.0.0.1:1/m").unwrap();
        let backend = SentinelBackend::new(&config, &context).unwrap();
        name(&backend, port, epoch);
        backend
    }

    fn name(backend: &SentinelBackend, port: u16, epoch: u64) {
        say(backend, port, epoch, false);
    }

    fn say(backend: &SentinelBackend, port: u16, epoch: u64, by_majority: bool) {
        backend
            .topology()
            .adopt(&agreement(port, epoch, by_majority))
            .unwrap();
    }

    fn agreement(port: u16, epoch: u64, by_majority: bool) -> Agreement {
        let master = Address::new("127.0.0.1", port);
        Agreement {
            said_by: master.clone(),
            master,
            epoch,
            run_id: None,
            by_majority,
            are_others: false,
            is_proven: false,
            replicas: 0,
            replica_ids: None,
            has_unheard: false,
        }
    }

    fn soon() -> Moment {
        SystemClock.now() + Duration::from_secs(5)
    }

    fn refused() -> Failure {
        Failure::Refused(Error::configuration("no"))
    }

    /// Sends a request with this effect.
    fn ask<T>(
        backend: &SentinelBackend,
        mut request: impl FnMut(&Node) -> Result<T, Failure>,
        effect: Effect,
    ) -> Result<T, Failure> {
        let (tracker, name) = (backend.topology(), LockName::new("a").unwrap());
        let change = RoutedRequest::Change(&name);
        let first = tracker.route(&change, soon());
        let request = |hop: &Hop<_>| request(&hop.node);
        send(tracker, &change, soon(), first, request, |_| effect)
    }

    /// Sends a request during which the master changes once. Returns the outcome and the number of
    /// servers that received the request.
    fn ask_during_a_switch(
        outcome: &Result<u8, Failure>,
        effect: Effect,
    ) -> (Result<u8, Failure>, usize) {
        let backend = named(2, 1);
        let mut asked = Vec::new();
        let request = |node: &Node| {
            asked.push(node.server().to_string());
            if asked.len() > 1 {
                return Ok(2);
            }
            name(&backend, 3, 2);
            outcome.clone()
        };
        let outcome = ask(&backend, request, effect);
        assert_eq!(asked[0], "127.0.0.1:2");
        assert!(
            asked.get(1).is_none_or(|second| second == "127.0.0.1:3"),
            "{asked:?}"
        );
        (outcome, asked.len())
    }

    #[test]
    fn request_during_a_switch_is_repeated_unless_it_had_effect() {
        let unknown = |outcome: (Result<u8, Failure>, usize)| {
            assert!(
                matches!(outcome, (Err(Failure::Unknown(_)), 1)),
                "{outcome:?}"
            );
        };
        unknown(ask_during_a_switch(&Ok(1), Effect::Changed));
        let lost = Failure::Unknown(Error::unavailable("no answer"));
        unknown(ask_during_a_switch(&Err(lost), Effect::Changed));
        let not_sent = Failure::NotSent(Error::unavailable("no way"));
        for (outcome, effect) in [
            (Ok(1), Effect::None),
            (Err(refused()), Effect::Changed),
            (Err(not_sent), Effect::Changed),
        ] {
            let (outcome, asked) = ask_during_a_switch(&outcome, effect);
            assert!(
                matches!((&outcome, asked), (Ok(2), 2)),
                "{outcome:?}, {asked} asked"
            );
        }
    }

    /// A message named another master, and no sentinel answers.
    #[test]
    fn followers_of_a_failed_question_keep_the_known_master() {
        let backend = named(2, 1);
        let tracker = backend.topology();
        tracker.signal_to_watcher.note_announcement();
        let Flight::Lead(mut leader) = tracker.asking.join(&SystemClock, soon()) else {
            panic!("there is a question already")
        };
        std::thread::scope(|scope| {
            let follower = scope.spawn(|| tracker.present(soon()).map(|it| it.number));
            let by = soon();
            while tracker.asking.followers() == 0 {
                assert!(SystemClock.now() < by, "it has not asked");
                std::thread::yield_now();
            }
            leader.result = FlightResult::Failed(refused());
            drop(leader);
            assert_eq!(follower.join().unwrap().unwrap(), 1);
        });
    }

    #[test]
    fn replies_of_a_replaced_master_have_unknown_outcome() {
        let backend = named(2, 1);
        let tracker = backend.topology();
        let old = tracker.present(soon()).unwrap();
        let refused = refused();
        for outcome in [Ok(()), Err(&refused)] {
            let verdict = believe(tracker, &old, tracker.is_present(&old), outcome);
            assert!(matches!(verdict, Verdict::Believe));
        }
        name(&backend, 3, 2);
        // Either outcome would otherwise be reported as a loss: "gone", or foreign data.
        for outcome in [Ok(()), Err(&refused)] {
            let verdict = believe(tracker, &old, tracker.is_present(&old), outcome);
            assert!(
                matches!(verdict, Verdict::Instead(Failure::Unknown(_))),
                "{verdict:?}"
            );
        }
    }

    /// On a replaced master, the release of a client that does not know of the failover may grant
    /// the lock.
    #[test]
    fn grant_of_a_disputed_or_replaced_master_does_not_count() {
        let lock = LockName::new("a").unwrap();
        let backend = named(2, 1);
        let tracker = backend.topology();
        let old = tracker.present(soon()).unwrap().node.downgrade();
        assert!(tracker.counts(&lock, &old));
        tracker.has_stranger.store(true, Ordering::SeqCst);
        assert!(!tracker.counts(&lock, &old), "a server is not followed");
        tracker.has_stranger.store(false, Ordering::SeqCst);
        name(&backend, 3, 2);
        assert!(!tracker.counts(&lock, &old), "another is followed");
        let new = tracker.present(soon()).unwrap().node.downgrade();
        assert!(tracker.counts(&lock, &new));
        tracker.signal_to_watcher.note_announcement();
        assert!(!tracker.counts(&lock, &new), "a message named another");
    }

    #[test]
    fn endless_switches_fail_after_a_bounded_number_of_moves() {
        let backend = named(2, 1);
        let mut asked = 0;
        let request = |_: &Node| {
            asked += 1;
            name(&backend, 2, 1 + asked);
            Ok(())
        };
        let failure = ask(&backend, request, Effect::None).unwrap_err();
        assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
        assert_eq!(asked, 1 + MOVES as u64);
    }

    #[test]
    fn later_epoch_or_sentinel_majority_is_followed() {
        let backend = named(2, 5);
        for (port, epoch, by_majority, follows) in [
            (2, 5, true, false),
            (3, 4, false, false),
            // One sentinel uses another address for the same server, such as its host name.
            (3, 5, false, false),
            (3, 5, true, true),
            (2, 6, false, true),
            // The same server was replaced, and is master again: it may have lost data.
            (2, 7, false, true),
            // The deployment was set up again.
            (3, 0, true, true),
        ] {
            let before = backend.topology().number();
            say(&backend, port, epoch, by_majority);
            let followed = backend.topology().number() != before;
            assert_eq!(
                followed, follows,
                "port {port}, epoch {epoch}, {by_majority}"
            );
        }
    }

    /// Two threads may judge a late answer and a query at the same time.
    #[test]
    fn majority_of_before_a_followed_failover_leads_no_client_back() {
        let backend = named(2, 5);
        let number = backend.topology().number();
        name(&backend, 3, 6);
        let outdated = agreement(2, 5, true);
        backend
            .topology()
            .adopt_unless_outdated(number, &outdated)
            .unwrap();
        assert_eq!(backend.topology().number(), number + 1);
        backend
            .topology()
            .adopt_unless_outdated(number, &agreement(4, 7, false))
            .unwrap();
        assert_eq!(
            backend.topology().number(),
            number + 2,
            "a later one is followed all the same"
        );
        backend.topology().adopt(&outdated).unwrap();
        assert_eq!(
            backend.topology().number(),
            number + 3,
            "they were set up anew"
        );
    }

    #[test]
    fn new_run_id_at_the_same_address_is_a_new_master() {
        let backend = named(2, 5);
        let say = |port, epoch, run_id: Option<&str>| {
            let before = backend.topology().number();
            let run_id = run_id.map(str::to_owned);
            // The server on port 3 is known as a replica.
            let replica_ids = Some(vec![(Address::new("127.0.0.1", 3), "a".to_owned())]);
            let agreement = Agreement {
                run_id,
                replica_ids,
                ..agreement(port, epoch, false)
            };
            backend.topology().adopt(&agreement).unwrap();
            backend.topology().number() != before
        };
        assert!(
            !say(2, 5, Some("a")),
            "no connection has found another `run_id` yet"
        );
        assert!(say(3, 6, Some("a")));
        assert!(!say(3, 6, Some("a")) && !say(3, 6, None));
        assert!(
            !say(3, 6, Some("b")),
            "a successor that has never answered, at a reused address"
        );
        // A restarted or another server: its data are unknown.
        backend
            .topology()
            .note_heard(&backend.topology().known().unwrap());
        assert!(say(3, 6, Some("b")));
        assert!(
            !say(3, 5, Some("c")),
            "an outdated sentinel is not followed"
        );
    }

    #[test]
    fn replica_count_is_that_of_the_latest_epoch() {
        let backend = named(2, 5);
        for (epoch, said, known) in [(5, 2, 2), (4, 1, 2), (5, 1, 1), (6, 3, 3)] {
            let agreement = Agreement {
                replicas: said,
                ..agreement(2, epoch, false)
            };
            backend.topology().adopt(&agreement).unwrap();
            assert_eq!(backend.replicas(), Some(known), "{agreement:?}");
        }
    }
}

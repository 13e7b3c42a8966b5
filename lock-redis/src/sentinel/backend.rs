//! [`SentinelBackend`]: a master with replicas, as a store of locks: every request goes to the
//! present master.

use super::master_tracker::{Master, MasterTracker};
use super::sentinel_set::SentinelSet;
use super::watcher_signal::WatcherSignal;
use crate::connection::{Address, ServerError};
use crate::format::Format;
use crate::node::{Node, NodeSettings, StoreKind, on};
use crate::url;
use lock_core::backend::{
    Abilities, AcquisitionId, Answer, Attempt, Failure, FoundBusyBy, HolderInfo, LockInfo,
    LockPage, NodeId, OnReleased, PagePosition, PermitChange, PermitOutcome, Release,
    ReleaseOptions, Renewal, RenewalRequest, ReplicaSupport, RetryCause, Wake, Watch,
};
use lock_core::{
    Backend, Config, Context, Error, Finding, LeaseTime, LockName, Moment, Replication,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The master that the sentinels name, now and after each failover.
///
/// The sentinels are asked when the master is first needed, when one of them tells of a failover,
/// and when a request fails. Each master has connections of its own. What a master answers after it
/// was replaced is not believed: a grant or a renewal there may be lost with it, so its outcome is
/// unknown, and the engine asks the new master. Watches move there, waiters look again, and recent
/// releases are repeated there.
///
/// `inspect` and `verify` also ask the sentinels, after the master has answered: for half a second
/// at most. If they do not answer, the master's reply stands.
///
/// Dropping it ends its threads and connections, without waiting for them.
pub struct SentinelBackend {
    tracker: Arc<MasterTracker>,
}

/// What an answer has done in the store.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Nothing,
    Something,
}

impl SentinelBackend {
    /// The most moves of one request to a next master, each to another one.
    const MOVES: usize = 3;

    /// The master that `config` names, by the sentinels in it. Does not talk to them.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if the URL names no sentinels, or no master, or a setting
    /// contradicts another.
    pub fn new(config: &Config, context: &Context) -> Result<Self, Error> {
        Self::with_format(config, context, Format::of(config)?)
    }

    pub(crate) fn with_format(
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
        Ok(Self {
            tracker: MasterTracker::new(sentinel_set, settings, signal_to_watcher),
        })
    }

    /// How many replicas must acknowledge now if all are to: those that the sentinels know and do
    /// not all hold for down. `None` as long as no sentinel has been heard.
    ///
    /// Never waits: it is what they said last, and they are asked once a second while this is
    /// called, and whenever one of them tells of a change.
    #[must_use]
    pub fn replicas(&self) -> Option<u32> {
        self.tracker.replicas()
    }

    /// Asks the present master. If there is another one by then, or, after a failure, is found to
    /// be, and nothing has happened in the store, asks that one.
    fn ask<T>(
        &self,
        by: Moment,
        mut request: impl FnMut(&Node) -> Result<T, Failure>,
        effect: impl Fn(&T) -> Effect,
    ) -> Result<T, Failure> {
        let mut master = self.tracker.present(by)?;
        for _ in 0..=Self::MOVES {
            let outcome = request(&master.node);
            if outcome.is_ok() {
                self.tracker.note_heard(&master);
            }
            let is_present = self.tracker.is_present(&master);
            match outcome {
                Ok(answer) if is_present => return Ok(answer),
                Ok(answer) if effect(&answer) == Effect::Nothing => {}
                Err(Failure::Refused(_) | Failure::NotSent(_)) if !is_present => {}
                Err(failure @ (Failure::Refused(_) | Failure::NotSent(_))) => {
                    if !may_be_over(&failure) || !self.tracker.is_over(&master, by) {
                        return Err(failure);
                    }
                }
                outcome => return believe(&self.tracker, &master, outcome),
            }
            master = self.tracker.present(by)?;
        }
        Err(Failure::NotSent(Error::unavailable(
            "the master changes faster than it can be asked",
        )))
    }
}

impl SentinelBackend {
    /// Asks the master, and then the sentinels whether it still is. A master that was replaced, and
    /// has not been told so, says what was; and its clients may not have heard of it yet either,
    /// because they were paused as well.
    fn ask_confirmed<T>(
        &self,
        name: &LockName,
        by: Moment,
        request: impl Fn(&Node) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let look = |node: &Node| {
            let answer = request(node)?;
            self.tracker.confirm(by);
            Ok(answer)
        };
        self.ask(by, look, |_| Effect::Nothing).map_err(on(name))
    }
}

impl Backend for SentinelBackend {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        let effect = |answer: &Answer| match answer {
            Answer::Busy(_)
            | Answer::BusyWithoutExpiry(_)
            | Answer::Retry {
                cause: RetryCause::Paused { .. },
                ..
            } => Effect::Nothing,
            _ => Effect::Something,
        };
        let acquire = |node: &Node| {
            self.tracker.check_strangers(node)?;
            let sent = self.tracker.now();
            self.tracker.granted.note_attempt(sent, attempt);
            let answer = node.acquire(attempt, by)?;
            if matches!(answer, Answer::Granted(_) | Answer::Unacknowledged(..)) {
                self.tracker.granted.note(sent, attempt.lease);
            }
            Ok(answer)
        };
        self.ask(by, acquire, effect).map_err(on(attempt.name))
    }

    fn renew(
        &self,
        _: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        // Once, and not on to the next master: what hangs here shall not hang there, too. The
        // engine comes again.
        let master = match self.tracker.present(by) {
            Ok(master) => master,
            Err(failure) => {
                let each = batch
                    .iter()
                    .map(|one| Err(on(&one.acquisition.name)(failure.clone())));
                return each.collect();
            }
        };
        let sent = self.tracker.now();
        let renewals = master.node.renew_batch(batch, by).into_iter();
        let noted = renewals.zip(batch).map(|(renewal, one)| {
            if renewal.is_ok() {
                self.tracker.note_heard(&master);
                self.tracker.granted.note(sent, one.acquisition.lease);
            }
            believe(&self.tracker, &master, renewal)
        });
        noted.collect()
    }

    fn release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        let number = self.tracker.number();
        let outcome = self.ask(
            by,
            |node| node.release(acquisition, options, by),
            |_| Effect::Something,
        );
        if outcome.as_ref().is_ok_and(is_freed) {
            self.tracker.note_release(acquisition, number);
        }
        outcome.map_err(on(&acquisition.name))
    }

    fn submit_release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
        done: OnReleased,
    ) {
        let master = match self.tracker.present(by) {
            Ok(master) => master,
            Err(failure) => return done(Err(on(&acquisition.name)(failure))),
        };
        let (tracker, node) = (Arc::downgrade(&self.tracker), master.node.clone());
        let id = acquisition.clone();
        let heard = Box::new(move |outcome: Result<Release, Failure>| {
            // If it is gone, so is the client, and no request goes to another master.
            let Some(tracker) = tracker.upgrade() else {
                return done(outcome);
            };
            let outcome = believe(&tracker, &master, outcome);
            if outcome.as_ref().is_ok_and(is_freed) {
                tracker.note_release(&id, master.number);
            }
            done(outcome);
        });
        node.submit_release(acquisition, options, by, heard);
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.ask_confirmed(name, by, |node| node.inspect(name, by))
    }

    fn verify(
        &self,
        acquisition: &AcquisitionId,
        by: Moment,
    ) -> Result<Option<HolderInfo>, Failure> {
        self.ask_confirmed(&acquisition.name, by, |node| node.verify(acquisition, by))
    }

    fn change_permits(
        &self,
        name: &LockName,
        change: PermitChange,
        by: Moment,
    ) -> Result<PermitOutcome, Failure> {
        // On a former master it may count, or not: what is not the same when repeated is not sent
        // to the next one.
        let effect = |outcome: &PermitOutcome| match (outcome, change) {
            (PermitOutcome::NotTaken, _) | (_, PermitChange::SetLimit(_)) => Effect::Nothing,
            _ => Effect::Something,
        };
        let outcome = self.ask(by, |node| node.change_permits(name, change, by), effect);
        outcome.map_err(on(name))
    }

    fn peek(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.ask(by, |node| node.peek(name, by), |_| Effect::Nothing)
            .map_err(on(name))
    }

    fn inspect_all(&self, names: &[LockName], by: Moment) -> Vec<Result<LockInfo, Failure>> {
        let look = |node: &Node| {
            let infos = node.inspect_each(names, by)?;
            self.tracker.confirm(by);
            Ok(infos)
        };
        let infos = self.ask(by, look, |_| Effect::Nothing);
        infos.unwrap_or_else(|failure| vec![Err(failure); names.len()])
    }

    fn list(&self, pattern: &str, from: &PagePosition, by: Moment) -> Result<LockPage, Failure> {
        let list = |node: &Node| {
            // The next master has other keys in another order: from the beginning.
            let master = self.tracker.number().to_string();
            let cursor = if from.part == master { from.cursor } else { 0 };
            let page = node.list_page(pattern, cursor, by)?;
            self.tracker.confirm(by);
            page.into_page(&master)
        };
        self.ask(by, list, |_| Effect::Nothing)
    }

    fn poll_pause(&self, name: &LockName, found_by: FoundBusyBy) -> Option<Duration> {
        self.tracker.known()?.node.poll_pause(name, found_by)
    }

    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        let effect = |freed: &bool| {
            if *freed {
                Effect::Something
            } else {
                Effect::Nothing
            }
        };
        self.ask(by, |node| node.force_release(name, by), effect)
            .map_err(on(name))
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        let moving = self.tracker.watches.register(name, wake);
        // That it was asked for where the master is no longer is as good as if it had not been.
        self.ask(
            by,
            |node| moving.subscribe_on(node, by),
            |()| Effect::Nothing,
        )
        .map_err(on(name))?;
        Ok(Watch::new(moving))
    }

    /// One for each master: a master that hangs must not delay what is renewed on the next.
    fn renewal_node(&self, _: &LockName) -> NodeId {
        NodeId::new(self.tracker.number())
    }

    fn replica_lead(
        &self,
        name: &LockName,
        lease: LeaseTime,
        replication: Replication,
    ) -> Duration {
        let master = self.tracker.known();
        master.map_or(Duration::ZERO, |it| {
            it.node.replica_lead(name, lease, replication)
        })
    }

    fn abilities(&self) -> Abilities {
        self.tracker
            .settings
            .format()
            .abilities(ReplicaSupport::Listed)
    }

    fn diagnose(&self, by: Moment) -> Result<Vec<Finding>, Failure> {
        let ask = |node: &Node| node.examine(StoreKind::Sentinel, by);
        let master = self.ask(by, ask, |_| Effect::Nothing)?;
        let mut findings = self.tracker.diagnose(by);
        findings.extend(master.findings);
        Ok(findings)
    }
}

impl fmt::Debug for SentinelBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentinelBackend")
            .field("tracker", &self.tracker)
            .finish_non_exhaustive()
    }
}

fn is_freed(release: &Release) -> bool {
    matches!(release, Release::Freed | Release::FreedFor(_))
}

/// Whether this failure may mean that another server is master by now.
fn may_be_over(failure: &Failure) -> bool {
    let error = failure.error();
    match (failure, ServerError::behind(error)) {
        (Failure::Refused(_), Some(answer)) => {
            // The last: it has too few replicas left, because it is cut off from them, or has been
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

/// What came of a request, if it is to be believed: what a master has said that is over by now,
/// whatever it is, does not count. Also "gone": gone there, where it does not matter any more.
fn believe<T>(
    tracker: &MasterTracker,
    master: &Master,
    outcome: Result<T, Failure>,
) -> Result<T, Failure> {
    if outcome.as_ref().is_err_and(may_be_over) {
        tracker.report_failure();
    }
    match outcome {
        Ok(_) | Err(Failure::Refused(_)) if !tracker.is_present(master) => Err(over(master)),
        outcome => outcome,
    }
}

/// What was done there may be lost with it.
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
    use crate::sentinel::agreement::Agreement;
    use lock_core::{ClientId, Clock, SystemClock};
    use std::time::Duration;

    /// A store whose master is on this port, without any sentinel.
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
            .tracker
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

    /// Sends a request during which the master changes once. Returns the outcome and the number of
    /// servers that were asked.
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
        let outcome = backend.ask(soon(), request, |_| effect);
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
        unknown(ask_during_a_switch(&Ok(1), Effect::Something));
        let lost = Failure::Unknown(Error::unavailable("no answer"));
        unknown(ask_during_a_switch(&Err(lost), Effect::Something));
        let not_sent = Failure::NotSent(Error::unavailable("no way"));
        for (outcome, effect) in [
            (Ok(1), Effect::Nothing),
            (Err(refused()), Effect::Something),
            (Err(not_sent), Effect::Something),
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
        let tracker = &backend.tracker;
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
        let old = backend.tracker.present(soon()).unwrap();
        assert!(matches!(believe(&backend.tracker, &old, Ok(1)), Ok(1)));
        assert!(matches!(
            believe::<u8>(&backend.tracker, &old, Err(refused())),
            Err(Failure::Refused(_))
        ));
        name(&backend, 3, 2);
        // Each outcome would otherwise be reported as a loss: "gone", and foreign data.
        for outcome in [Ok(1), Err(refused())] {
            let outcome = believe(&backend.tracker, &old, outcome);
            assert!(matches!(outcome, Err(Failure::Unknown(_))), "{outcome:?}");
        }
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
        let failure = backend
            .ask(soon(), request, |()| Effect::Nothing)
            .unwrap_err();
        assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
        assert_eq!(asked, 1 + SentinelBackend::MOVES as u64);
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
            // The same server was replaced, and is back: it may have lost something.
            (2, 7, false, true),
            // The deployment was set up again.
            (3, 0, true, true),
        ] {
            let before = backend.tracker.number();
            say(&backend, port, epoch, by_majority);
            let followed = backend.tracker.number() != before;
            assert_eq!(
                followed, follows,
                "port {port}, epoch {epoch}, {by_majority}"
            );
        }
    }

    /// A late answer and a question are judged by two threads.
    #[test]
    fn majority_of_before_a_followed_failover_leads_no_client_back() {
        let backend = named(2, 5);
        let number = backend.tracker.number();
        name(&backend, 3, 6);
        let outdated = agreement(2, 5, true);
        backend
            .tracker
            .adopt_unless_outdated(number, &outdated)
            .unwrap();
        assert_eq!(backend.tracker.number(), number + 1);
        backend
            .tracker
            .adopt_unless_outdated(number, &agreement(4, 7, false))
            .unwrap();
        assert_eq!(
            backend.tracker.number(),
            number + 2,
            "a later one is followed all the same"
        );
        backend.tracker.adopt(&outdated).unwrap();
        assert_eq!(
            backend.tracker.number(),
            number + 3,
            "they were set up anew"
        );
    }

    #[test]
    fn new_run_id_at_the_same_address_is_a_new_master() {
        let backend = named(2, 5);
        let say = |port, epoch, run_id: Option<&str>| {
            let before = backend.tracker.number();
            let run_id = run_id.map(str::to_owned);
            // Known, as the replicas were by which it was replaced.
            let replica_ids = Some(vec![(Address::new("127.0.0.1", 3), "a".to_owned())]);
            let agreement = Agreement {
                run_id,
                replica_ids,
                ..agreement(port, epoch, false)
            };
            backend.tracker.adopt(&agreement).unwrap();
            backend.tracker.number() != before
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
            .tracker
            .note_heard(&backend.tracker.known().unwrap());
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
            backend.tracker.adopt(&agreement).unwrap();
            assert_eq!(backend.replicas(), Some(known), "{agreement:?}");
        }
    }
}

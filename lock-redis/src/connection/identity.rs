//! [`Identity`]: the server that answers at an endpoint, compared with the server that answered
//! before.
//!
//! Every new connection is checked before the first request is sent on it. So is every later report
//! on an open connection, because the server may have lost its role meanwhile.

use crate::connection::Reply;
use crate::connection::Server;
use crate::connection::error_mapping;
use crate::connection::history::{Judgement, Noted, Shown, judge};
use lock_core::{Error, Moment, ServerData};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The property by which the servers of an endpoint are distinguished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IdentityKind {
    /// The `run_id` of a server, which changes with each start.
    Run,
    /// The ID of a cluster node, which does not change.
    Node,
}

/// The reaction when another server than before answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum IdentityPolicy {
    /// Connections to the other server are refused. [`Identity::former`] describes an exception.
    Keep,
    /// The other server is followed: it is used from now on. The replaced server is not used again
    /// for this time, unless it is proven to continue the data.
    Follow(Duration),
}

/// The identity of an endpoint's server. See the [module's text](self).
#[derive(Debug)]
pub(crate) struct Identity {
    kind: IdentityKind,
    policy: IdentityPolicy,
    /// The last report of the server that the expected one has replaced. Until a server has
    /// reported its history here, any server with at least a part of the replaced server's history
    /// is accepted.
    former: Option<(Noted, Moment)>,
    state: Mutex<State>,
    /// The number of times that open connections became invalid: another server was followed, the
    /// server lost its role as master, or the server reported its ID for the first time, after
    /// connections without an ID. Written under the lock of the state, read by every connection.
    latest: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct State {
    known: Option<Arc<str>>,
    /// The servers that were used before, and the time at which each was replaced.
    left: Vec<(Arc<str>, Moment)>,
    /// The last server that was refused.
    refused: Option<String>,
    /// The last report, and the time of its arrival.
    noted: Option<(Noted, Moment)>,
    running: Option<Running>,
    /// True if a connection was accepted whose server did not report its ID.
    has_unknown: bool,
}

/// The time for which a server's process had run at its first report. Not updated, because the
/// server's clock may be set meanwhile.
#[derive(Debug)]
struct Running {
    run_id: String,
    at: Moment,
    uptime: Duration,
}

/// The generation of an endpoint's server to which a connection leads.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerGeneration {
    own: u64,
    latest: Option<Arc<AtomicU64>>,
    /// True if the server reports the history of its data.
    pub(crate) shows_history: bool,
}

/// A server's report about itself, with the times of the query and of the answer.
#[derive(Debug)]
pub(crate) struct Introduction {
    pub(crate) shown: Shown,
    pub(crate) asked: Moment,
    pub(crate) answered: Moment,
}

impl Introduction {
    /// Reads the reply to [`HISTORY`](super::HISTORY).
    pub(crate) fn of(reply: &Reply, asked: Moment, answered: Moment) -> Option<Self> {
        let shown = Shown::read(&String::from_utf8_lossy(reply.as_bytes()?));
        Some(Self {
            shown,
            asked,
            answered,
        })
    }
}

/// The consequence of a judgement, carried out after the state is unlocked.
enum Report {
    Nothing,
    /// Held locks are verified.
    Verify,
    /// Held locks are verified, and an event reports the change.
    Changed {
        was: String,
        is: String,
        data: ServerData,
    },
}

impl ServerGeneration {
    /// Returns `true` if the server of this connection was accepted.
    pub(crate) fn is_judged(&self) -> bool {
        self.latest.is_some()
    }

    /// Returns `true` if this connection became invalid after it was made, for one of the reasons
    /// at [`Identity::latest`]: then its replies no longer count.
    pub(crate) fn is_over(&self) -> bool {
        self.latest
            .as_ref()
            .is_some_and(|latest| latest.load(Ordering::SeqCst) != self.own)
    }
}

impl Identity {
    /// Returns the identity of an endpoint that belongs to the expected server alone or, if
    /// `expected` is `None`, to the first server that answers.
    pub(crate) fn of(kind: IdentityKind, expected: Option<&str>) -> Self {
        let state = State {
            known: expected.map(Arc::from),
            ..State::default()
        };
        Self::new(kind, IdentityPolicy::Keep, state)
    }

    /// Returns the identity of an endpoint whose server may change. A new server is followed; the
    /// replaced server is not followed again for `rest` without a proof that it continues the data.
    pub(crate) fn followed(rest: Duration) -> Self {
        Self::new(
            IdentityKind::Run,
            IdentityPolicy::Follow(rest),
            State::default(),
        )
    }

    fn new(kind: IdentityKind, policy: IdentityPolicy, state: State) -> Self {
        Self {
            kind,
            policy,
            former: None,
            state: Mutex::new(state),
            latest: Arc::default(),
        }
    }

    /// Returns this identity with the last report of the server that was replaced. By this report,
    /// a server with another ID than the expected one may be recognised as a successor: the new
    /// master has a new ID if it was restarted after its ID was announced.
    pub(crate) fn after(self, former: Option<(Noted, Moment)>) -> Self {
        Self { former, ..self }
    }

    pub(crate) fn kind(&self) -> IdentityKind {
        self.kind
    }

    /// Returns the server that belongs at the endpoint, if it is known.
    pub(crate) fn known(&self) -> Option<Arc<str>> {
        self.state.lock().known.clone()
    }

    /// Returns the last report of the server, and the time of its arrival.
    pub(crate) fn noted(&self) -> Option<(Noted, Moment)> {
        self.state.lock().noted.clone()
    }

    /// Returns how often open connections became invalid. See [`Identity::latest`].
    pub(super) fn changes(&self) -> u64 {
        self.latest.load(Ordering::SeqCst)
    }

    /// Returns `true` if a connection may be used whose server does not report its ID.
    pub(super) fn is_optional(&self) -> bool {
        matches!(self.policy, IdentityPolicy::Follow(_)) || self.known().is_none()
    }

    /// Returns `true` if a connection may be used although its server closes connections instead of
    /// reporting its ID, or refuses to report it in unknown words: no server has reported an ID
    /// here.
    pub(super) fn is_never_reported(&self) -> bool {
        self.kind == IdentityKind::Run && self.known().is_none()
    }

    /// Returns the shortest time for which the server can have run, if it reports its uptime.
    pub(crate) fn age(&self, now: Moment) -> Option<Duration> {
        let state = self.state.lock();
        let Running { at, uptime, .. } = state.running.as_ref()?;
        Some(*uptime + now.since(*at))
    }

    fn is_succeeded_by(
        &self,
        Introduction {
            shown, answered, ..
        }: &Introduction,
    ) -> bool {
        let Some((noted, at)) = &self.former else {
            return false;
        };
        judge(noted, shown, answered.since(*at)).is_of_same_history()
    }

    fn generation(&self, shown: &Shown) -> ServerGeneration {
        let own = self.latest.load(Ordering::SeqCst);
        let shows_history = shown.noted().is_some();
        ServerGeneration {
            own,
            latest: Some(Arc::clone(&self.latest)),
            shows_history,
        }
    }

    /// Judges the server `found` at a new connection by its report.
    ///
    /// # Errors
    ///
    /// If the server is not the one that belongs there, or cannot grant locks now.
    pub(super) fn admit(
        &self,
        server: &Server,
        found: Option<&str>,
        introduction: &Introduction,
    ) -> Result<ServerGeneration, Refusal> {
        let Introduction {
            shown,
            answered: now,
            ..
        } = introduction;
        let mut state = self.state.lock();
        // Refuses as the server would refuse a write. A cluster node is accepted: it redirects
        // requests to the node to use instead.
        if let Some(error) = error_mapping::unready(server, shown)
            && self.kind == IdentityKind::Run
        {
            let is_known = found.is_some() && state.known.as_deref() == found;
            return Err(if is_known {
                Refusal::Here(error)
            } else {
                Refusal::Elsewhere(error)
            });
        }
        let judgement = state.judge(introduction);
        let (found, known) = match (found, state.known.clone()) {
            (None, _) => {
                state.has_unknown = true;
                return Ok(self.generation(shown));
            }
            (Some(found), None) => {
                state.known = Some(found.into());
                state.note(introduction);
                if std::mem::take(&mut state.has_unknown) {
                    // Earlier connections may lead to another server.
                    self.latest.fetch_add(1, Ordering::SeqCst);
                }
                return Ok(self.generation(shown));
            }
            (Some(found), Some(known)) => (found, known),
        };
        if *known == *found {
            let report = state.report(judgement, shown);
            state.note(introduction);
            drop(state);
            report.send(server);
            return Ok(self.generation(shown));
        }
        if state.noted.is_none() && self.is_succeeded_by(introduction) {
            state.known = Some(found.into());
            state.note(introduction);
            return Ok(self.generation(shown));
        }
        let is_proven = judgement == Judgement::Continued;
        let is_back = |rest| {
            let is_it = |(left, at): &(Arc<str>, Moment)| **left == *found && now.since(*at) < rest;
            !is_proven && state.left.iter().any(is_it)
        };
        let error = match self.policy {
            IdentityPolicy::Follow(rest) if !is_back(rest) => {
                state
                    .left
                    .retain(|(left, at)| now.since(*at) < rest && **left != *found);
                state.left.push((Arc::clone(&known), *now));
                state.known = Some(found.into());
                state.noted = None;
                state.note(introduction);
                self.latest.fetch_add(1, Ordering::SeqCst);
                let generation = self.generation(shown);
                drop(state);
                let (was, is) = (known.to_string(), found.to_owned());
                Report::Changed {
                    was,
                    is,
                    data: judgement.data(),
                }
                .send(server);
                return Ok(generation);
            }
            IdentityPolicy::Follow(rest) => Error::unavailable(format!(
                "{server} leads to the {kind} {known} now, and a new connection to {found}, which \
                 was left less than {rest:.0?} ago and does not continue its data: does something \
                 balance connections over several servers there? A lock needs one",
                kind = self.kind,
            )),
            IdentityPolicy::Keep => Error::unavailable(format!(
                "another server answers at {server}: the {kind} {found}, where {known} belongs; \
                 nothing was asked of it",
                kind = self.kind,
            )),
        };
        let is_news = state.refused.as_deref() != Some(found);
        if is_news {
            state.refused = Some(found.to_owned());
        }
        drop(state);
        if is_news {
            server
                .notices
                .server_refused(&server.to_string(), &known, found);
        }
        Err(Refusal::Here(error))
    }

    /// Judges a report that a server has sent on an open connection. If the server is no longer a
    /// master, and no cluster node, its connections end, so that new connections find the server
    /// that replaced it.
    pub(crate) fn note(
        &self,
        server: &Server,
        generation: &ServerGeneration,
        mut introduction: Introduction,
    ) {
        let mut state = self.state.lock();
        if generation.is_over() {
            return;
        }
        let shown = &mut introduction.shown;
        // The report may lack the ID, but the same connection leads to the same process.
        shown.run_id = shown
            .run_id
            .take()
            .or_else(|| state.noted_process().map(str::to_owned));
        let is_master = shown.is_master != Some(false);
        if !is_master && self.kind == IdentityKind::Run {
            self.latest.fetch_add(1, Ordering::SeqCst);
            return;
        }
        let judgement = state.judge(&introduction);
        let report = state.report(judgement, &introduction.shown);
        if is_master {
            state.note(&introduction);
        }
        drop(state);
        report.send(server);
    }
}

impl State {
    fn noted_process(&self) -> Option<&str> {
        self.noted.as_ref().map(|(noted, _)| noted.run_id.as_str())
    }

    fn judge(
        &self,
        Introduction {
            shown,
            asked,
            answered,
        }: &Introduction,
    ) -> Judgement {
        let Some((noted, at)) = &self.noted else {
            return Judgement::NotShown;
        };
        if shown.run_id.as_ref() == Some(&noted.run_id) && asked < at {
            // This query was sent before the noted answer arrived, so a smaller offset is no loss.
            return Judgement::Same;
        }
        judge(noted, shown, answered.since(*at))
    }

    /// Returns the consequence of a judgement of a server that is still used.
    fn report(&self, judgement: Judgement, shown: &Shown) -> Report {
        let was = self.noted_process().unwrap_or_default().to_owned();
        let is = shown.run_id.clone().unwrap_or_default();
        match judgement {
            Judgement::NotShown | Judgement::Same | Judgement::Loading | Judgement::Replica => {
                Report::Nothing
            }
            Judgement::Continued | Judgement::Unknown(_) if was == is => Report::Verify,
            Judgement::Continued | Judgement::Unknown(_) | Judgement::Cut => Report::Changed {
                was,
                is,
                data: judgement.data(),
            },
        }
    }

    fn note(
        &mut self,
        Introduction {
            shown,
            asked,
            answered,
        }: &Introduction,
    ) {
        if let Some(run_id) = &shown.run_id
            && self
                .running
                .as_ref()
                .is_none_or(|running| running.run_id != *run_id)
        {
            self.running = shown.uptime.map(|uptime| {
                // One second less, because the uptime is the difference of two times in whole
                // seconds. Counted from the answer, because the uptime may have been read just
                // before it.
                let uptime = u64::try_from(uptime.saturating_sub(1)).unwrap_or(0);
                let uptime = Duration::from_secs(uptime);
                Running {
                    run_id: run_id.clone(),
                    at: *answered,
                    uptime,
                }
            });
        }
        let is_older = self.noted.as_ref().is_some_and(|(_, at)| asked < at);
        if let Some(noted) = shown.noted().filter(|_| !is_older) {
            self.noted = Some((noted, *answered));
        }
    }
}

impl Report {
    fn send(self, server: &Server) {
        match self {
            Self::Nothing => {}
            Self::Verify => server.notices.verify_held(),
            Self::Changed { was, is, data } => {
                server
                    .notices
                    .server_replaced(&server.to_string(), &was, &is, data);
                server.notices.verify_held();
            }
        }
    }
}

impl Judgement {
    /// Returns the judgement as the event reports it.
    fn data(self) -> ServerData {
        match self {
            Self::Same | Self::Continued => ServerData::Continued,
            Self::Cut => ServerData::Cut,
            Self::NotShown | Self::Loading | Self::Replica | Self::Unknown(_) => {
                ServerData::Unknown
            }
        }
    }
}

/// The reasons why a new connection is not used.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The server cannot grant locks now, and is not the known server. A new connection may lead to
    /// the known server.
    Elsewhere(Error),
    Here(Error),
}

impl fmt::Display for IdentityKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Run => "server with run_id",
            Self::Node => "cluster node",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Endpoint;

    const REST: Duration = Duration::from_secs(30);

    fn server() -> Server {
        Server::new(Endpoint::tcp("host", 1), None)
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1) + Duration::from_secs(seconds)
    }

    /// Admits a server that reports only its ID.
    fn admit(identity: &Identity, found: &str, seconds: u64) -> Result<ServerGeneration, Error> {
        let (asked, answered) = (at(seconds), at(seconds));
        let introduction = Introduction {
            shown: Shown::default(),
            asked,
            answered,
        };
        identity
            .admit(&server(), Some(found), &introduction)
            .map_err(|refusal| match refusal {
                Refusal::Elsewhere(error) | Refusal::Here(error) => error,
            })
    }

    #[test]
    fn kept_endpoint_refuses_strangers_and_names_both() {
        for identity in [
            Identity::of(IdentityKind::Node, Some("aaa")),
            Identity::of(IdentityKind::Node, None),
        ] {
            let first = admit(&identity, "aaa", 0).unwrap();
            let error = admit(&identity, "bbb", 1).unwrap_err();
            assert!(error.is_unavailable(), "{error:?}");
            let told = error.to_string();
            assert!(
                ["aaa", "bbb", "host:1"]
                    .iter()
                    .all(|part| told.contains(part)),
                "{told}"
            );
            assert!(!first.is_over() && !admit(&identity, "aaa", 2).unwrap().is_over());
        }
    }

    #[test]
    fn followed_endpoint_ends_connections_to_the_former_server() {
        let identity = Identity::followed(REST);
        let first = admit(&identity, "aaa", 0).unwrap();
        let second = admit(&identity, "bbb", 1).unwrap();
        assert!(first.is_over() && !second.is_over());
        assert_eq!(identity.known().as_deref(), Some("bbb"));
    }

    #[test]
    fn server_that_was_left_is_not_followed_until_its_leases_end() {
        let identity = Identity::followed(REST);
        admit(&identity, "aaa", 0).unwrap();
        let second = admit(&identity, "bbb", 1).unwrap();
        assert!(admit(&identity, "aaa", 2).is_err());
        let told = admit(&identity, "aaa", 30).unwrap_err().to_string();
        assert!(
            told.contains("aaa") && told.contains("bbb") && told.contains("balance"),
            "{told}"
        );
        assert!(!second.is_over());
        assert!(!admit(&identity, "aaa", 31).unwrap().is_over() && second.is_over());
    }

    /// Returns the report of a master with these IDs and offsets, answered at once.
    fn master(
        run_id: &str,
        id: &str,
        offset: i64,
        former: (&str, i64),
        at: Moment,
    ) -> Introduction {
        let shown = Shown {
            run_id: Some(run_id.to_owned()),
            is_master: Some(true),
            id: Some(id.to_owned()),
            offset: Some(offset),
            former_id: Some(former.0.to_owned()),
            former_end: Some(former.1),
            has_backlog: Some(true),
            ..Shown::default()
        };
        Introduction {
            shown,
            asked: at,
            answered: at,
        }
    }

    const NONE: (&str, i64) = ("0000000000000000000000000000000000000000", -1);

    fn meet(identity: &Identity, introduction: &Introduction) -> Result<ServerGeneration, Refusal> {
        identity.admit(
            &server(),
            introduction.shown.run_id.as_deref(),
            introduction,
        )
    }

    #[test]
    fn expected_server_may_be_another_replica_of_the_one_before() {
        // The common history ends after or before the noted offset, or there is none.
        for (history, is_met) in [(("X", 101), true), (("X", 74), true), (("W", 101), false)] {
            let noted = (
                master("old", "X", 100, NONE, at(0)).shown.noted().unwrap(),
                at(0),
            );
            let identity = Identity::of(IdentityKind::Run, Some("listed")).after(Some(noted));
            let met = meet(&identity, &master("found", "Y", 200, history, at(1)));
            assert_eq!(met.is_ok(), is_met, "{history:?}");
            let belongs = if is_met { "found" } else { "listed" };
            assert_eq!(identity.known().as_deref(), Some(belongs));
            // If the server was accepted, no other server is accepted after it.
            let other = meet(&identity, &master("third", "Z", 200, ("X", 101), at(2)));
            assert_eq!(other.is_err(), is_met, "{history:?}");
        }
    }

    #[test]
    fn former_server_is_followed_at_once_if_it_continues_the_data() {
        for (former, follows) in [(("Y", 301), true), (("Y", 300), false), (NONE, false)] {
            let identity = Identity::followed(REST);
            meet(&identity, &master("aaa", "X", 100, NONE, at(0))).unwrap();
            meet(&identity, &master("bbb", "Y", 200, ("X", 101), at(1))).unwrap();
            let generation = meet(&identity, &master("bbb", "Y", 300, ("X", 101), at(2))).unwrap();
            let back = meet(&identity, &master("aaa", "Z", 400, former, at(3)));
            assert_eq!(back.is_ok(), follows, "{former:?}");
            assert_eq!(generation.is_over(), follows);
        }
    }

    #[test]
    fn unready_server_is_refused_and_known_to_be_elsewhere() {
        for kind in [IdentityKind::Run, IdentityKind::Node] {
            let identity = Identity::new(kind, IdentityPolicy::Follow(REST), State::default());
            let replica = |run_id: &str| {
                let mut introduction = master(run_id, "X", 100, NONE, at(1));
                introduction.shown.is_master = Some(false);
                introduction.shown.master = Some("10.0.0.7:6379".to_owned());
                introduction
            };
            let mut loading = replica("aaa");
            loading.shown.is_loading = Some(true);
            for (unready, says) in [(replica("aaa"), "of 10.0.0.7:6379"), (loading, "reading")] {
                let met = meet(&identity, &unready);
                if kind == IdentityKind::Node {
                    // A cluster node redirects to its master itself.
                    met.unwrap();
                    continue;
                }
                let Err(Refusal::Elsewhere(error)) = met else {
                    panic!("{met:?}")
                };
                assert!(
                    error.is_unavailable() && error.to_string().contains(says),
                    "{error}"
                );
                assert_eq!(identity.known(), None);
            }
            if kind == IdentityKind::Run {
                meet(&identity, &master("aaa", "X", 100, NONE, at(2))).unwrap();
                assert!(matches!(
                    meet(&identity, &replica("aaa")),
                    Err(Refusal::Here(_))
                ));
                assert!(matches!(
                    meet(&identity, &replica("bbb")),
                    Err(Refusal::Elsewhere(_))
                ));
                assert_eq!(identity.known().as_deref(), Some("aaa"));
            }
        }
    }

    #[test]
    fn standing_connections_end_when_their_server_becomes_a_replica() {
        let identity = Identity::followed(REST);
        let first = meet(&identity, &master("aaa", "X", 100, NONE, at(0))).unwrap();
        let mut replica = master("aaa", "Y", 100, NONE, at(1));
        replica.shown.is_master = Some(false);
        identity.note(&server(), &first, replica);
        assert!(first.is_over());
        // A late report on an old connection does not end the new one.
        let second = meet(&identity, &master("aaa", "Z", 100, ("Y", 101), at(2))).unwrap();
        let mut late = master("aaa", "Y", 100, NONE, at(2));
        late.shown.is_master = Some(false);
        identity.note(&server(), &first, late);
        assert!(!second.is_over());
    }

    #[test]
    fn answers_that_cross_are_no_loss() {
        let identity = Identity::followed(REST);
        let generation = meet(&identity, &master("aaa", "X", 100, NONE, at(0))).unwrap();
        identity.note(&server(), &generation, master("aaa", "X", 200, NONE, at(5)));
        let mut older = master("aaa", "X", 150, NONE, at(6));
        older.asked = at(4);
        assert_eq!(identity.state.lock().judge(&older), Judgement::Same);
        identity.note(&server(), &generation, older);
        let noted = identity
            .state
            .lock()
            .noted
            .as_ref()
            .map(|(noted, _)| noted.offset);
        assert_eq!(noted, Some(200));
        // A report that was queried later counts.
        let later = master("aaa", "X", 150, NONE, at(6));
        assert_eq!(identity.state.lock().judge(&later), Judgement::Cut);
    }

    #[test]
    fn age_is_counted_from_the_first_meeting() {
        let identity = Identity::followed(REST);
        assert_eq!(identity.age(at(0)), None);
        let running = |run_id: &str, uptime: i64, when: u64| {
            let mut introduction = master(run_id, "X", 100, NONE, at(when));
            introduction.shown.uptime = Some(uptime);
            meet(&identity, &introduction).unwrap();
        };
        for (run_id, uptime, when, age) in [
            ("aaa", 5, 10, 4),
            ("aaa", 16, 20, 14),
            // The server's clock was set forwards, then backwards.
            ("aaa", 116, 21, 15),
            ("aaa", -80, 22, 16),
            ("bbb", -80, 60, 0),
            ("bbb", 0, 61, 1),
        ] {
            running(run_id, uptime, when);
            assert_eq!(
                identity.age(at(when)),
                Some(Duration::from_secs(age)),
                "at {when}"
            );
        }
    }

    #[test]
    fn slow_answer_makes_no_server_older() {
        let identity = Identity::followed(REST);
        let mut introduction = master("aaa", "X", 100, NONE, at(20));
        (introduction.asked, introduction.shown.uptime) = (at(10), Some(i64::MIN));
        meet(&identity, &introduction).unwrap();
        assert_eq!(identity.age(at(21)), Some(Duration::from_secs(1)));
    }
}

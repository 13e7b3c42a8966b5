//! Changes of a quorum's members: servers that become nodes, or replace a missing member.
//!
//! The members of an epoch choose those of the next by single-decree Paxos, with the ballots in
//! their markers. The reasons are in `docs/DESIGN.md`, section Quorum.

use super::clocks::{CLOCKS_APART, WrongClocks, micros, not_before, unix_micros};
use super::majority::majority;
use super::membership::{Identity, preferred_twin};
use super::missing::{Absence, absent};
use super::node::QuorumTerms;
use super::node_worker::{NodeContext, Queue};
use super::quorum::Quorum;
use super::responses::Responses;
use lock_core::backend::{Failure, contain, run_in_background};
use lock_core::{ClientId, Error, Moment};
use lock_redis::parts::{
    Admission, Agreement, MarkerRequest, Member, Members, NodeView, ServerState,
};
use std::sync::Arc;
use std::time::Duration;

/// The most changes of one update: every server may record an epoch, and become a node.
const MAX_CHANGES: usize = 32;

/// How often within a longest lease a client in use reads the servers: a member that it reaches is
/// not replaced by others that miss it.
const SURVEYS: u32 = 3;

/// One change of the membership.
#[derive(Clone, PartialEq, Debug)]
enum Change {
    /// This server records the members; with an admission, it becomes a node.
    Record { at: usize, epoch: u64, agreed: Agreement, admission: Option<Admission> },
    /// The members of this epoch choose the next ones.
    Choose { epoch: u64, agreed: Agreement },
}

/// The states of all servers, and what the client knows besides.
struct Survey<'a> {
    states: &'a [Option<ServerState>],
    names: &'a [String],
    absence: Absence,
    known_quorum: Option<Arc<str>>,
    terms: QuorumTerms,
}

impl Quorum {
    /// Updates the membership in the background, if that was requested and is due. Now and then it
    /// looks unasked: other clients may miss a member that this one reaches.
    pub(super) fn update_in_background(self: &Arc<Self>) {
        let Some(terms) = self.terms else { return };
        let (now, interval) = (self.clock.now(), terms.max_lease / SURVEYS);
        let mut update = self.update.lock();
        let is_due = now >= *update.next_survey.get_or_insert(now + interval);
        if update.is_running || !is_due && now < update.not_before {
            return;
        }
        let is_requested = self.membership.take_update_request();
        if !is_requested && !is_due {
            return;
        }
        let quorum = Arc::clone(self);
        let work = move || {
            let absence = Absence::Noted(terms.max_lease);
            let changes = match contain(|| quorum.update_membership(absence)) {
                Some(Ok(changes)) => changes,
                // Failed, or panicked.
                Some(Err(_)) | None => {
                    quorum.membership.request_update();
                    0
                }
            };
            let mut update = quorum.update.lock();
            if changes > 0 {
                update.backoff.reset();
            }
            let now = quorum.clock.now();
            if is_requested {
                update.not_before = now + update.backoff.next();
            }
            update.next_survey = Some(now + interval);
            update.is_running = false;
            drop(update);
            quorum.update_ended.raise();
        };
        match run_in_background(work) {
            Ok(()) => update.is_running = true,
            Err(_) => self.membership.request_update(),
        }
    }

    /// Makes changes until none is left or one fails. Returns their number.
    pub(super) fn update_membership(&self, absence: Absence) -> Result<usize, Error> {
        let Some(terms) = self.terms else { return Ok(0) };
        let names = self.names();
        for changes in 0..MAX_CHANGES {
            let states = self.survey();
            let known_quorum = self.membership.known_quorum();
            let survey = Survey { states: &states, names: &names, absence, known_quorum, terms };
            let view = survey.latest().map(|(_, view)| view);
            let noted = view.filter(|_| absence != Absence::Declared).map(|view| {
                self.report(&states, &names, &view);
                self.note_missing(&states, &view)
            });
            let survey = Survey { states: noted.as_deref().unwrap_or(&states), ..survey };
            match survey.next_change() {
                None => return Ok(changes),
                Some(Change::Record { at, epoch, agreed, admission }) => {
                    let request = move |context: &NodeContext, run_id: &str, by| {
                        let request = MarkerRequest::Record(epoch, &agreed, admission.as_ref());
                        mark(context, run_id, &request, by)
                    };
                    if self.ask_nodes(&states, &[at], request).is_empty() {
                        let error = format!("{} did not record it", names[at]);
                        return Err(Error::unavailable(error));
                    }
                }
                Some(Change::Choose { epoch, agreed }) => self.choose(&states, epoch, agreed)?,
            }
        }
        Ok(MAX_CHANGES)
    }

    /// Reports what the survey shows of the members and the clocks.
    fn report(&self, states: &[Option<ServerState>], names: &[String], view: &NodeView) {
        let Some(terms) = self.terms else { return };
        self.reports.members(view, names, states);
        // They were read within a time-out of each other.
        let (own, tolerance) = (unix_micros(self.clock.as_ref()), self.node_timeout() * 2);
        let wrong = WrongClocks::among(states, own, terms.max_lease, tolerance);
        self.reports.clocks(names, states, &wrong, terms.max_lease);
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.workers.iter().map(|worker| worker.context().node().name().to_owned()).collect()
    }

    /// The states of all servers, each member once.
    pub(super) fn survey(&self) -> Vec<Option<ServerState>> {
        let states = self.read_states(Moment::NEVER, |_| false);
        distinct(states)
    }

    /// Asks these servers, if they are still those of the survey. Returns the states of those that
    /// did what they were asked, or knew of it.
    pub(super) fn ask_nodes(
        &self,
        states: &[Option<ServerState>],
        nodes: &[usize],
        request: impl Fn(&NodeContext, &str, Moment) -> Result<ServerState, Failure>
        + Clone
        + Send
        + 'static,
    ) -> Vec<ServerState> {
        let by = self.by(Moment::NEVER);
        let responses = Responses::of(nodes.len());
        for (place, at) in nodes.iter().enumerate() {
            let Some(state) = &states[*at] else { continue };
            let (run_id, request) = (Arc::clone(&state.run_id), request.clone());
            let responses = Arc::clone(&responses);
            let ask = move |context: &NodeContext, by| request(context, &run_id, by);
            let done = move |_: &NodeContext, response| responses.put(place, response);
            self.workers[*at].ask(Queue::Attempts, by, ask, done);
        }
        responses.wait_for_all(self.clock.as_ref(), by);
        responses.read(|responses| {
            let states = responses.iter().flatten();
            states
                .filter_map(|state: &Result<ServerState, _>| state.as_ref().ok().cloned())
                .collect()
        })
    }

    /// Has the members of this epoch choose the next ones; with epoch 0, servers without a marker
    /// the first ones.
    fn choose(
        &self,
        states: &[Option<ServerState>],
        epoch: u64,
        agreed: Agreement,
    ) -> Result<(), Error> {
        let quorum: Arc<str> = if epoch == 0 { "".into() } else { Arc::clone(&agreed.quorum) };
        let is_chooser = |state: &ServerState| match &state.marker {
            None => epoch == 0,
            Some((_, node)) => {
                (&node.quorum, node.epoch) == (&quorum, epoch)
                    && node.members.contain(&node.node)
                    && state.admitted != epoch
            }
        };
        let choosers = states.iter().enumerate();
        let choosers: Vec<_> = choosers
            .filter(|(_, state)| state.as_ref().is_some_and(is_chooser))
            .map(|(at, _)| at)
            .collect();
        let needed = majority(self.workers.len());
        let largest = states.iter().flatten().map(|state| state.ballot).max().unwrap_or(0);
        // It need not be unique: each server promises it once, so one client gets a majority.
        let ballot = largest + 1 + fastrand::u64(..1_000);
        let too_few = |what: &str| {
            Error::unavailable(format!("too few nodes of the quorum {what}: others may have"))
        };
        let of = Arc::clone(&quorum);
        let promised = self.ask_nodes(states, &choosers, move |context, run_id, by| {
            done(mark(context, run_id, &MarkerRequest::Promise(&of, epoch, ballot), by)?)
        });
        if promised.len() < needed {
            return Err(too_few("promised to choose the next members"));
        }
        // An accepted choice may have been chosen, and stays.
        let accepted = promised.into_iter().filter_map(|state| state.accepted);
        let choice = accepted.max_by_key(|(ballot, _)| *ballot).map_or(agreed, |(_, its)| its);
        let its = choice.clone();
        let accepted = self.ask_nodes(states, &choosers, move |context, run_id, by| {
            done(mark(context, run_id, &MarkerRequest::Accept(&quorum, epoch, ballot, &its), by)?)
        });
        if accepted.len() < needed {
            return Err(too_few("chose the next members"));
        }
        let pause = choice.max_lease.max(self.terms.map_or(Duration::ZERO, |it| it.max_lease));
        // The first members become nodes by recording the choice.
        self.ask_nodes(states, &choosers, move |context, run_id, by| {
            let admission = Admission::at_once(pause, "");
            let is_first = epoch == 0 && choice.members.contain(run_id);
            let admission = is_first.then_some(&admission);
            mark(context, run_id, &MarkerRequest::Record(epoch + 1, &choice, admission), by)
        });
        Ok(())
    }
}

pub(super) fn mark(
    context: &NodeContext,
    run_id: &str,
    request: &MarkerRequest<'_>,
    by: Moment,
) -> Result<ServerState, Failure> {
    match context.node().server() {
        Some(server) => server.mark(run_id, request, by),
        None => Err(other_choice()),
    }
}

fn done(state: ServerState) -> Result<ServerState, Failure> {
    if state.is_done { Ok(state) } else { Err(other_choice()) }
}

fn other_choice() -> Failure {
    Failure::Refused(Error::unavailable("it knows of another choice"))
}

/// The same states with each member once.
fn distinct(mut states: Vec<Option<ServerState>>) -> Vec<Option<ServerState>> {
    let identity = |state: &ServerState| -> Identity {
        let node = state.marker.as_ref().map_or(&state.run_id, |(_, node)| &node.node);
        (Arc::clone(node), Arc::clone(&state.run_id))
    };
    let identities: Vec<_> = states.iter().map(|state| state.as_ref().map(identity)).collect();
    for (at, state) in states.iter_mut().enumerate() {
        if preferred_twin(at, &identities).is_some() {
            *state = None;
        }
    }
    states
}

/// A new quorum of the present servers; the places of the others are vacant.
pub(super) fn new_quorum(
    states: &[Option<ServerState>],
    names: &[String],
    terms: &QuorumTerms,
) -> Agreement {
    let member = |(state, name): (&Option<ServerState>, &String)| {
        let id = state.as_ref().map(|state| Arc::clone(&state.run_id));
        Member { id, address: name.as_str().into() }
    };
    Agreement {
        quorum: ClientId::random().to_string().into(),
        members: states.iter().zip(names).map(member).collect(),
        max_lease: terms.max_lease,
        keep: terms.keep,
    }
}

impl Survey<'_> {
    /// The next change; `None` if none is needed, or too few servers are present for it.
    fn next_change(&self) -> Option<Change> {
        let needed = majority(self.states.len());
        let markers = || self.states.iter().flatten().filter_map(|state| state.marker.as_ref());
        let Some(quorum) = self.quorum() else {
            let unmarked = self.states.iter().flatten().filter(|state| state.marker.is_none());
            let is_new = markers().next().is_none() && unmarked.count() >= needed;
            let agreed = || new_quorum(self.states, self.names, &self.terms);
            return is_new.then(|| Change::Choose { epoch: 0, agreed: agreed() });
        };
        let (agreed, last) = self.latest()?;
        if last.members.count() != self.states.len() {
            return None;
        }
        let epoch = last.epoch;
        let recorded = recorded(self.states, &last);
        let choosers = recorded.iter().filter(|(_, state)| state.admitted != epoch).count();
        let record =
            |at, admission| Some(Change::Record { at, epoch, agreed: agreed.clone(), admission });
        for (at, state) in self.states.iter().enumerate() {
            let Some(state) = state else { continue };
            match &state.marker {
                Some((_, node)) => {
                    let is_behind = node.quorum == quorum && node.epoch < epoch;
                    if is_behind && agreed.members.contain(&node.node) {
                        return record(at, None);
                    }
                }
                None if agreed.members.contain(&state.run_id) => {
                    // A first member that accepted the choice and has not recorded it; or a
                    // majority of the others refuses earlier votes.
                    let chose = |(_, its): &(u64, Agreement)| epoch == 1 && *its == agreed;
                    let chose = state.accepted.as_ref().is_some_and(chose);
                    if recorded.len() >= needed || chose {
                        return record(at, Some(self.admission(state, &recorded, chose)));
                    }
                }
                None if choosers >= needed => {
                    if let Some(place) = self.replaced_place(&agreed.members, at, &recorded) {
                        let id = Some(Arc::clone(&state.run_id));
                        let member = Member { id, address: self.names[at].as_str().into() };
                        let members = agreed.members.with(place, member);
                        let agreed = Agreement { members, ..agreed };
                        return Some(Change::Choose { epoch, agreed });
                    }
                }
                None => {}
            }
        }
        // An epoch of the same members, so that the nodes admitted in this one become choosers.
        (choosers >= needed && choosers < recorded.len())
            .then_some(Change::Choose { epoch, agreed })
    }

    /// The last members of the quorum, and a node that knows them.
    fn latest(&self) -> Option<(Agreement, NodeView)> {
        let quorum = self.quorum()?;
        let markers = self.states.iter().flatten().filter_map(|state| state.marker.as_ref());
        let members = markers
            .filter(|(agreed, node)| node.quorum == quorum && agreed.members.contain(&node.node));
        members.max_by_key(|(_, node)| node.epoch).cloned()
    }

    /// The terms on which a server becomes a node.
    fn admission(&self, state: &ServerState, recorded: &Recorded<'_>, chooses: bool) -> Admission {
        let pause = self.terms.max_lease;
        let bound = not_before(recorded, self.states.len(), pause);
        let (not_before, whose) = bound.unwrap_or_default();
        let is_ahead = not_before > state.time.saturating_add(micros(CLOCKS_APART));
        let clock = if is_ahead { self.names[whose].as_str().into() } else { "".into() };
        let replaces = Arc::clone(&state.version);
        Admission { pause, not_before, clock, replaces, chooses }
    }

    /// The known quorum, if one of its nodes is present; for a new client that of most servers.
    fn quorum(&self) -> Option<Arc<str>> {
        let markers = self.states.iter().flatten().filter_map(|state| state.marker.as_ref());
        let quorums: Vec<_> = markers.map(|(_, node)| &node.quorum).collect();
        let count = |quorum: &Arc<str>| quorums.iter().filter(|other| **other == quorum).count();
        if let Some(known) = &self.known_quorum {
            return Some(Arc::clone(known)).filter(|known| count(known) > 0);
        }
        quorums.iter().max_by_key(|quorum| count(quorum)).map(|quorum| Arc::clone(quorum))
    }

    /// The place that a server takes: that of the missing member of its address, or of the only
    /// missing member. Two clients must miss that one: the URL of one may be a mistake.
    fn replaced_place(
        &self,
        members: &Members,
        at: usize,
        recorded: &Recorded<'_>,
    ) -> Option<usize> {
        let absent = absent(members, self.states);
        let is_absent = |member: &Member| member.id.as_ref().is_none_or(|id| absent.contains(id));
        let recorded: Vec<_> = recorded.iter().map(|(_, state)| *state).collect();
        let is_replaceable = |member: &Member, clients| {
            member
                .id
                .as_ref()
                .is_none_or(|id| self.absence.is_agreed(id, clients, &recorded, members.count()))
        };
        let missing: Vec<_> =
            members.iter().enumerate().filter(|(_, member)| is_absent(member)).collect();
        let at_address = missing.iter().find(|(_, member)| *member.address == *self.names[at]);
        let is_only = missing.len() == 1 && self.states.iter().all(Option::is_some);
        let (replaced, clients) = match at_address {
            Some(replaced) => (replaced, 1),
            None => (missing.first().filter(|_| is_only)?, 2),
        };
        is_replaceable(replaced.1, clients).then_some(replaced.0)
    }
}

/// The members that have recorded a view, with their places among the servers.
type Recorded<'a> = Vec<(usize, &'a ServerState)>;

pub(super) fn recorded<'a>(states: &'a [Option<ServerState>], view: &NodeView) -> Recorded<'a> {
    let has_recorded = |state: &ServerState| {
        state.marker.as_ref().is_some_and(|(_, node)| {
            (&node.quorum, node.epoch, &node.members) == (&view.quorum, view.epoch, &view.members)
                && view.members.contain(&node.node)
        })
    };
    let present = |(at, state): (usize, &'a Option<ServerState>)| Some((at, state.as_ref()?));
    let present = states.iter().enumerate().filter_map(present);
    present.filter(|(_, state)| has_recorded(state)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_redis::parts::MissingMember;

    const TERMS: QuorumTerms = QuorumTerms {
        max_lease: Duration::from_secs(60),
        keep: Duration::from_secs(3_600),
        durable: false,
    };

    fn agreed(ids: [&str; 3]) -> Agreement {
        let member = |(at, id): (usize, &str)| Member {
            id: Some(id).filter(|id| !id.is_empty()).map(Arc::from),
            address: format!("h:{}", at + 1).into(),
        };
        Agreement {
            quorum: "q".into(),
            members: ids.into_iter().enumerate().map(member).collect(),
            max_lease: TERMS.max_lease,
            keep: TERMS.keep,
        }
    }

    fn unmarked(run_id: &str) -> Option<ServerState> {
        Some(ServerState { time: 5, ..ServerState::of(run_id) })
    }

    fn node(run_id: &str, epoch: u64, ids: [&str; 3]) -> Option<ServerState> {
        let agreed = agreed(ids);
        let view = NodeView {
            quorum: Arc::clone(&agreed.quorum),
            epoch,
            members: agreed.members.clone(),
            node: run_id.into(),
            run_id: run_id.into(),
            clock: None,
        };
        unmarked(run_id).map(|state| ServerState { marker: Some((agreed, view)), ..state })
    }

    fn change_at(
        states: &[Option<ServerState>],
        names: &[&str],
        absence: Absence,
    ) -> Option<Change> {
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        Survey { states, names: &names, absence, known_quorum: None, terms: TERMS }.next_change()
    }

    fn change(states: &[Option<ServerState>]) -> Option<Change> {
        change_at(states, &["h:1", "h:2", "h:3"], Absence::Declared)
    }

    /// The same states a longest lease later; these clients miss this member.
    fn noting(
        states: &[Option<ServerState>],
        id: &str,
        clients: &[&str],
    ) -> Vec<Option<ServerState>> {
        let clients: Vec<_> = clients.iter().map(|client| Arc::from(*client)).collect();
        let note = MissingMember { id: id.into(), since: 5, clients };
        let noting = |state: &ServerState| ServerState {
            time: 5 + micros(TERMS.max_lease),
            missing: vec![note.clone()],
            ..state.clone()
        };
        states.iter().map(|state| state.as_ref().map(noting)).collect()
    }

    fn noted(states: &[Option<ServerState>], names: &[&str; 3]) -> Option<Change> {
        change_at(states, names, Absence::Noted(TERMS.max_lease))
    }

    fn admission(chooses: bool) -> Admission {
        let (not_before, replaces) = (5, "".into());
        Admission { pause: TERMS.max_lease, not_before, clock: "".into(), replaces, chooses }
    }

    const FIRST: [&str; 3] = ["a", "b", "c"];
    const SECOND: [&str; 3] = ["a", "d", "c"];

    fn is_choice(change: Option<Change>, of_epoch: u64, says: &str) {
        match change {
            Some(Change::Choose { epoch, agreed }) => {
                assert_eq!((epoch, agreed.members.to_string().as_str()), (of_epoch, says));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn new_quorum_is_chosen_by_a_majority_of_empty_servers() {
        is_choice(change(&[unmarked("a"), None, unmarked("c")]), 0, "a@h:1 @h:2 c@h:3");
        assert_eq!(change(&[unmarked("a"), None, None]), None);
        assert_eq!(
            change(&[node("a", 1, FIRST), unmarked("x"), unmarked("y")]),
            None,
            "too few know it"
        );
    }

    #[test]
    fn empty_server_replaces_the_member_of_its_address() {
        let [a, c] = ["a", "c"].map(|id| node(id, 1, FIRST));
        is_choice(change(&[a.clone(), unmarked("d"), c.clone()]), 1, "a@h:1 d@h:2 c@h:3");
        is_choice(change(&[unmarked("d"), a.clone(), c]), 1, "a@h:1 d@h:1 c@h:3");
        assert_eq!(change(&[unmarked("d"), a, None]), None, "one node cannot change it");
    }

    #[test]
    fn new_member_is_admitted_when_a_majority_has_recorded_it() {
        let behind = [node("a", 2, SECOND), unmarked("d"), node("c", 1, FIRST)];
        let recorded = |at, admission| {
            Some(Change::Record { at, epoch: 2, agreed: agreed(SECOND), admission })
        };
        assert_eq!(change(&behind), recorded(2, None));
        assert_eq!(change(&[node("a", 2, SECOND), unmarked("d"), None]), None);
        let both = [node("a", 2, SECOND), unmarked("d"), node("c", 2, SECOND)];
        assert_eq!(change(&both), recorded(1, Some(admission(false))));
        let done = [node("a", 2, SECOND), node("d", 2, SECOND), node("c", 2, SECOND)];
        assert_eq!(change(&done), None);
        // A replaced server keeps its marker.
        assert_eq!(
            change(&[node("a", 2, SECOND), node("b", 1, FIRST), node("c", 2, SECOND)]),
            None
        );
    }

    #[test]
    fn first_member_that_forgot_its_choice_waits_for_a_majority() {
        let chose =
            unmarked("b").map(|state| ServerState { accepted: Some((1, agreed(FIRST))), ..state });
        let recorded = |chooses| {
            let admission = Some(admission(chooses));
            Some(Change::Record { at: 1, epoch: 1, agreed: agreed(FIRST), admission })
        };
        assert_eq!(change(&[node("a", 1, FIRST), chose, None]), recorded(true));
        assert_eq!(change(&[node("a", 1, FIRST), unmarked("b"), None]), None);
        assert_eq!(
            change(&[node("a", 1, FIRST), unmarked("b"), node("c", 1, FIRST)]),
            recorded(false)
        );
    }

    #[test]
    fn two_memberships_of_one_epoch_admit_no_server() {
        let other = node("c", 2, ["a", "x", "c"]);
        assert_eq!(change(&[other, unmarked("d"), node("a", 2, SECOND)]), None);
    }

    #[test]
    fn admitted_member_chooses_from_the_next_epoch_on() {
        let admitted = node("d", 2, SECOND).map(|state| ServerState { admitted: 2, ..state });
        let states = [node("a", 2, SECOND), admitted.clone(), node("c", 2, SECOND)];
        is_choice(change(&states), 2, "a@h:1 d@h:2 c@h:3");
        assert_eq!(change(&[node("a", 2, SECOND), admitted, unmarked("e")]), None);
    }

    #[test]
    fn member_is_replaced_after_missing_for_a_longest_lease() {
        let states = [node("a", 1, FIRST), unmarked("d"), node("c", 1, FIRST)];
        let names = ["h:1", "h:2", "h:3"];
        assert_eq!(noted(&states, &names), None);
        assert_eq!(noted(&noting(&states, "a", &["one"]), &names), None);
        is_choice(noted(&noting(&states, "b", &["one"]), &names), 1, "a@h:1 d@h:2 c@h:3");
    }

    #[test]
    fn member_at_an_address_of_no_server_is_replaced_by_two_clients() {
        let states = [node("a", 1, FIRST), unmarked("d"), node("c", 1, FIRST)];
        let names = ["h:1", "h:4", "h:3"];
        assert_eq!(noted(&noting(&states, "b", &["one"]), &names), None);
        let change = noted(&noting(&states, "b", &["one", "two"]), &names);
        is_choice(change, 1, "a@h:1 d@h:4 c@h:3");
    }

    #[test]
    fn new_member_is_told_whose_clock_it_waits_for() {
        let hour = 3_600_000_000;
        let ahead = node("c", 2, SECOND).map(|state| ServerState { time: hour, ..state });
        match change(&[node("a", 2, SECOND), unmarked("d"), ahead]) {
            Some(Change::Record { admission: Some(its), .. }) => {
                assert_eq!((its.not_before, &*its.clock), (hour, "h:3"));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn server_with_a_copied_marker_is_no_second_member() {
        let copy = node("a", 1, FIRST).map(|state| ServerState { run_id: "x".into(), ..state });
        let states = distinct(vec![copy, node("a", 1, FIRST), node("a", 1, FIRST), unmarked("d")]);
        assert_eq!(states, [None, node("a", 1, FIRST), None, unmarked("d")]);
    }
}

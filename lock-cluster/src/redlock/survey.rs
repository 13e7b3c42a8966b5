//! [`Survey`]: computes the next change of a quorum's members from the states of all servers.

use super::clocks::{CLOCKS_APART, micros, not_before};
use super::majority::majority;
use super::membership::{Identity, preferred_twin};
use super::missing::{Absence, absent};
use super::node::QuorumTerms;
use lock_core::ClientId;
use lock_redis::quorum::{Admission, Agreement, Member, Members, NodeView, ServerState};
use std::sync::Arc;

/// One change of the membership.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Change {
    /// The server at this position records the members. With an admission, it also gets its marker
    /// and becomes a node.
    Record {
        at: usize,
        epoch: u64,
        agreed: Agreement,
        admission: Option<Admission>,
    },
    /// The members of this epoch choose the members of the next epoch. In epoch 0, servers without
    /// a marker choose the first members.
    Choose { epoch: u64, agreed: Agreement },
}

/// The states of all servers, and the facts that only the client knows.
pub(super) struct Survey<'a> {
    pub(super) states: &'a [Option<ServerState>],
    pub(super) names: &'a [String],
    pub(super) absence: Absence,
    pub(super) known_quorum: Option<Arc<str>>,
    pub(super) terms: QuorumTerms,
}

/// Removes the states of copied data and of second addresses, so that each member has one state.
pub(super) fn distinct(mut states: Vec<Option<ServerState>>) -> Vec<Option<ServerState>> {
    let identity = |state: &ServerState| -> Identity {
        let node = state
            .marker
            .as_ref()
            .map_or(&state.run_id, |(_, node)| &node.node);
        (Arc::clone(node), Arc::clone(&state.run_id))
    };
    let identities: Vec<_> = states
        .iter()
        .map(|state| state.as_ref().map(identity))
        .collect();
    for (at, state) in states.iter_mut().enumerate() {
        if preferred_twin(at, &identities).is_some() {
            *state = None;
        }
    }
    states
}

/// Returns the agreement of a new quorum: its members are the servers that have answered, and the
/// places of the other servers are vacant.
pub(super) fn new_quorum(
    states: &[Option<ServerState>],
    names: &[String],
    terms: &QuorumTerms,
) -> Agreement {
    let member = |(state, name): (&Option<ServerState>, &String)| {
        let id = state.as_ref().map(|state| Arc::clone(&state.run_id));
        Member {
            id,
            address: name.as_str().into(),
        }
    };
    Agreement {
        quorum: ClientId::random().to_string().into(),
        members: states.iter().zip(names).map(member).collect(),
        max_lease: terms.max_lease,
        keep: terms.keep,
    }
}

impl Survey<'_> {
    /// Returns the next change; `None` if none is needed or possible now. For example, too few
    /// servers may be present, or the URL may name more or fewer servers than the quorum has.
    pub(super) fn next_change(&self) -> Option<Change> {
        let needed = majority(self.states.len());
        let markers = || {
            self.states
                .iter()
                .flatten()
                .filter_map(|state| state.marker.as_ref())
        };
        let Some(quorum) = self.quorum() else {
            let unmarked = self
                .states
                .iter()
                .flatten()
                .filter(|state| state.marker.is_none());
            let is_new = markers().next().is_none() && unmarked.count() >= needed;
            let agreed = || new_quorum(self.states, self.names, &self.terms);
            return is_new.then(|| Change::Choose {
                epoch: 0,
                agreed: agreed(),
            });
        };
        let (agreed, last) = self.latest()?;
        if last.members.count() != self.states.len() {
            return None;
        }
        let epoch = last.epoch;
        let recorded = recorded(self.states, &last);
        let choosers = recorded
            .iter()
            .filter(|(_, state)| state.admitted != epoch)
            .count();
        let record = |at, admission| {
            Some(Change::Record {
                at,
                epoch,
                agreed: agreed.clone(),
                admission,
            })
        };
        let present = self.states.iter().enumerate();
        let present = present.filter_map(|(at, state)| Some((at, state.as_ref()?)));
        let mut servers: Vec<_> = present.collect();
        // Servers with a marker come first, to record this epoch if they lack it. The more nodes
        // have recorded a new member, the more clocks may be ahead without delaying its first vote.
        servers.sort_by_key(|(_, state)| state.marker.is_none());
        for (at, state) in servers {
            match &state.marker {
                Some((_, node)) => {
                    let is_behind = node.quorum == quorum && node.epoch < epoch;
                    if is_behind && agreed.members.contain(&node.node) {
                        return record(at, None);
                    }
                }
                None if agreed.members.contain(&state.run_id) => {
                    // Admits the server in two cases. It accepted the choice of the first members
                    // but has not recorded that choice; or a majority has recorded these members,
                    // and no longer votes under the members of an earlier epoch.
                    let chose = |(_, its): &(u64, Agreement)| epoch == 1 && *its == agreed;
                    let chose = state.accepted.as_ref().is_some_and(chose);
                    if recorded.len() >= needed || chose {
                        return record(at, Some(self.admission(state, &recorded, chose)));
                    }
                }
                None if choosers >= needed => {
                    if let Some(place) = self.replaced_place(&agreed.members, at, &recorded) {
                        let id = Some(Arc::clone(&state.run_id));
                        let member = Member {
                            id,
                            address: self.names[at].as_str().into(),
                        };
                        let members = agreed.members.with(place, member);
                        let agreed = Agreement { members, ..agreed };
                        return Some(Change::Choose { epoch, agreed });
                    }
                }
                None => {}
            }
        }
        // A node that was admitted in this epoch does not choose in it. The next epoch has the same
        // members, and all of them choose.
        (choosers >= needed && choosers < recorded.len())
            .then_some(Change::Choose { epoch, agreed })
    }

    /// Returns the latest members of the quorum, and a node that has recorded them.
    pub(super) fn latest(&self) -> Option<(Agreement, NodeView)> {
        let quorum = self.quorum()?;
        let markers = self
            .states
            .iter()
            .flatten()
            .filter_map(|state| state.marker.as_ref());
        let members = markers
            .filter(|(agreed, node)| node.quorum == quorum && agreed.members.contain(&node.node));
        members.max_by_key(|(_, node)| node.epoch).cloned()
    }

    /// Returns the terms on which a server becomes a node.
    fn admission(&self, state: &ServerState, recorded: &Recorded<'_>, chooses: bool) -> Admission {
        let pause = self.terms.max_lease;
        let bound = not_before(recorded, self.states.len(), pause);
        let (not_before, whose) = bound.unwrap_or_default();
        let is_ahead = not_before > state.time.saturating_add(micros(CLOCKS_APART));
        let clock = if is_ahead {
            self.names[whose].as_str().into()
        } else {
            "".into()
        };
        let replaces = Arc::clone(&state.version);
        Admission {
            pause,
            not_before,
            clock,
            replaces,
            chooses,
        }
    }

    /// Returns the known quorum, if one of its nodes is present. If the client knows no quorum,
    /// returns the quorum that the most markers name.
    fn quorum(&self) -> Option<Arc<str>> {
        let markers = self
            .states
            .iter()
            .flatten()
            .filter_map(|state| state.marker.as_ref());
        let quorums: Vec<_> = markers.map(|(_, node)| &node.quorum).collect();
        let count = |quorum: &Arc<str>| quorums.iter().filter(|other| **other == quorum).count();
        if let Some(known) = &self.known_quorum {
            return Some(Arc::clone(known)).filter(|known| count(known) > 0);
        }
        quorums
            .iter()
            .max_by_key(|quorum| count(quorum))
            .map(|quorum| Arc::clone(quorum))
    }

    /// Returns the place that this server takes: that of the missing member with the server's
    /// address or, if all servers have answered, that of the only missing member. A vacant place
    /// counts as a missing member. The absence of a member must be agreed; in the second case by
    /// two clients, because the URL of one client may be wrong.
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
            member.id.as_ref().is_none_or(|id| {
                self.absence
                    .is_agreed(id, clients, &recorded, members.count())
            })
        };
        let missing: Vec<_> = members
            .iter()
            .enumerate()
            .filter(|(_, member)| is_absent(member))
            .collect();
        let at_address = missing
            .iter()
            .find(|(_, member)| *member.address == *self.names[at]);
        let is_only = missing.len() == 1 && self.states.iter().all(Option::is_some);
        let (replaced, clients) = match at_address {
            Some(replaced) => (replaced, 1),
            None => (missing.first().filter(|_| is_only)?, 2),
        };
        is_replaceable(replaced.1, clients).then_some(replaced.0)
    }
}

/// The members that have recorded a view, with their positions among the servers.
pub(super) type Recorded<'a> = Vec<(usize, &'a ServerState)>;

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
    use lock_redis::quorum::MissingMember;
    use std::time::Duration;

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
        Some(ServerState {
            time: 5,
            ..ServerState::of(run_id)
        })
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
            is_paused: false,
        };
        unmarked(run_id).map(|state| ServerState {
            marker: Some((agreed, view)),
            ..state
        })
    }

    fn change_at(
        states: &[Option<ServerState>],
        names: &[&str],
        absence: Absence,
    ) -> Option<Change> {
        let names: Vec<_> = names.iter().map(ToString::to_string).collect();
        Survey {
            states,
            names: &names,
            absence,
            known_quorum: None,
            terms: TERMS,
        }
        .next_change()
    }

    fn change(states: &[Option<ServerState>]) -> Option<Change> {
        change_at(states, &["h:1", "h:2", "h:3"], Absence::Declared)
    }

    /// Returns the states one `max_lease` later, in which these clients have noted that this member
    /// is missing.
    fn noting(
        states: &[Option<ServerState>],
        id: &str,
        clients: &[&str],
    ) -> Vec<Option<ServerState>> {
        let clients: Vec<_> = clients.iter().map(|client| Arc::from(*client)).collect();
        let note = MissingMember {
            id: id.into(),
            since: 5,
            clients,
        };
        let noting = |state: &ServerState| ServerState {
            time: 5 + micros(TERMS.max_lease),
            missing: vec![note.clone()],
            ..state.clone()
        };
        states
            .iter()
            .map(|state| state.as_ref().map(noting))
            .collect()
    }

    fn noted(states: &[Option<ServerState>], names: &[&str; 3]) -> Option<Change> {
        change_at(states, names, Absence::Noted(TERMS.max_lease))
    }

    fn admission(chooses: bool) -> Admission {
        let (not_before, replaces) = (5, "".into());
        Admission {
            pause: TERMS.max_lease,
            not_before,
            clock: "".into(),
            replaces,
            chooses,
        }
    }

    const FIRST: [&str; 3] = ["a", "b", "c"];
    const SECOND: [&str; 3] = ["a", "d", "c"];

    fn is_choice(change: Option<Change>, of_epoch: u64, says: &str) {
        match change {
            Some(Change::Choose { epoch, agreed }) => {
                assert_eq!(
                    (epoch, agreed.members.to_string().as_str()),
                    (of_epoch, says)
                );
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn new_quorum_is_chosen_by_a_majority_of_empty_servers() {
        is_choice(
            change(&[unmarked("a"), None, unmarked("c")]),
            0,
            "a@h:1 @h:2 c@h:3",
        );
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
        is_choice(
            change(&[a.clone(), unmarked("d"), c.clone()]),
            1,
            "a@h:1 d@h:2 c@h:3",
        );
        is_choice(
            change(&[unmarked("d"), a.clone(), c]),
            1,
            "a@h:1 d@h:1 c@h:3",
        );
        assert_eq!(
            change(&[unmarked("d"), a, None]),
            None,
            "one node cannot change it"
        );
    }

    #[test]
    fn new_member_is_admitted_when_a_majority_has_recorded_it() {
        let behind = [node("a", 2, SECOND), unmarked("d"), node("c", 1, FIRST)];
        let recorded = |at, admission| {
            Some(Change::Record {
                at,
                epoch: 2,
                agreed: agreed(SECOND),
                admission,
            })
        };
        assert_eq!(change(&behind), recorded(2, None));
        assert_eq!(change(&[node("a", 2, SECOND), unmarked("d"), None]), None);
        let both = [node("a", 2, SECOND), unmarked("d"), node("c", 2, SECOND)];
        assert_eq!(change(&both), recorded(1, Some(admission(false))));
        let done = [
            node("a", 2, SECOND),
            node("d", 2, SECOND),
            node("c", 2, SECOND),
        ];
        assert_eq!(change(&done), None);
        // A replaced server keeps its marker.
        assert_eq!(
            change(&[
                node("a", 2, SECOND),
                node("b", 1, FIRST),
                node("c", 2, SECOND)
            ]),
            None
        );
    }

    #[test]
    fn first_member_that_forgot_its_choice_waits_for_a_majority() {
        let chose = unmarked("b").map(|state| ServerState {
            accepted: Some((1, agreed(FIRST))),
            ..state
        });
        let recorded = |chooses| {
            let admission = Some(admission(chooses));
            Some(Change::Record {
                at: 1,
                epoch: 1,
                agreed: agreed(FIRST),
                admission,
            })
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
        let admitted = node("d", 2, SECOND).map(|state| ServerState {
            admitted: 2,
            ..state
        });
        let states = [node("a", 2, SECOND), admitted.clone(), node("c", 2, SECOND)];
        is_choice(change(&states), 2, "a@h:1 d@h:2 c@h:3");
        assert_eq!(
            change(&[node("a", 2, SECOND), admitted, unmarked("e")]),
            None
        );
    }

    #[test]
    fn member_is_replaced_after_missing_for_a_longest_lease() {
        let states = [node("a", 1, FIRST), unmarked("d"), node("c", 1, FIRST)];
        let names = ["h:1", "h:2", "h:3"];
        assert_eq!(noted(&states, &names), None);
        assert_eq!(noted(&noting(&states, "a", &["one"]), &names), None);
        is_choice(
            noted(&noting(&states, "b", &["one"]), &names),
            1,
            "a@h:1 d@h:2 c@h:3",
        );
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
        let ahead = node("c", 2, SECOND).map(|state| ServerState {
            time: hour,
            ..state
        });
        match change(&[node("a", 2, SECOND), unmarked("d"), ahead]) {
            Some(Change::Record {
                admission: Some(its),
                ..
            }) => {
                assert_eq!((its.not_before, &*its.clock), (hour, "h:3"));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn server_with_a_copied_marker_is_no_second_member() {
        let copy = node("a", 1, FIRST).map(|state| ServerState {
            run_id: "x".into(),
            ..state
        });
        let states = distinct(vec![
            copy,
            node("a", 1, FIRST),
            node("a", 1, FIRST),
            unmarked("d"),
        ]);
        assert_eq!(states, [None, node("a", 1, FIRST), None, unmarked("d")]);
    }
}

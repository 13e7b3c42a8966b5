//! Members that clients cannot reach. The other members note in their markers since when no client
//! has reached a missing member. The notes outlive the client that caused them, and a client that
//! reaches the member deletes them.

use super::majority::majority;
use lock_redis::quorum::{Members, MissingMember, ServerState};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// The condition under which a missing member may be replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Absence {
    /// The member has been noted as missing for this time.
    Noted(Duration),
    /// No condition: an operator declares the members missing.
    Declared,
}

impl Absence {
    /// Returns whether a member may be replaced: because an operator declares it missing, or
    /// because a majority of the members has noted it as missing for long enough, and these notes
    /// name at least `clients` clients. `recorded` contains the servers that have recorded the
    /// present members.
    pub(super) fn is_agreed(
        self,
        id: &str,
        clients: usize,
        recorded: &[&ServerState],
        members: usize,
    ) -> bool {
        let Self::Noted(time) = self else { return true };
        let is_long = |state: &&ServerState| {
            missing_for(state, id).is_some_and(|(missing, _)| missing >= time)
        };
        let noted: Vec<_> = recorded.iter().copied().filter(is_long).collect();
        let names = noted.iter().filter_map(|state| missing_for(state, id));
        let names: HashSet<_> = names.flat_map(|(_, note)| &note.clients).collect();
        noted.len() >= majority(members) && names.len() >= clients
    }
}

/// Returns for how long a server has noted a member as missing, and the note.
pub(super) fn missing_for<'a>(
    state: &'a ServerState,
    id: &str,
) -> Option<(Duration, &'a MissingMember)> {
    let note = state.missing.iter().find(|note| *note.id == *id)?;
    Some((
        Duration::from_micros(state.time.saturating_sub(note.since)),
        note,
    ))
}

/// Returns the IDs of the members that are not among these servers.
pub(super) fn absent(members: &Members, states: &[Option<ServerState>]) -> Vec<Arc<str>> {
    let states = || states.iter().flatten();
    let nodes = states().filter_map(|state| Some(&state.marker.as_ref()?.1.node));
    let present: HashSet<_> = nodes.chain(states().map(|state| &state.run_id)).collect();
    let ids = members.iter().filter_map(|member| member.id.as_ref());
    ids.filter(|id| !present.contains(id)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noting(since: u64, clients: &[&str]) -> ServerState {
        let clients = clients.iter().map(|client| Arc::from(*client)).collect();
        let missing = vec![MissingMember {
            id: "b".into(),
            since,
            clients,
        }];
        ServerState {
            time: 70_000_000,
            missing,
            ..ServerState::of("a")
        }
    }

    #[test]
    fn member_is_missing_when_a_majority_has_noted_it_for_long_enough() {
        let minute = Absence::Noted(Duration::from_secs(60));
        let agreed = |states: &[&ServerState], clients| minute.is_agreed("b", clients, states, 3);
        let (old, new) = (noting(0, &["one"]), noting(20_000_000, &["one"]));
        assert!(agreed(&[&old, &old], 1));
        assert!(
            !agreed(&[&old, &old], 2),
            "one client may have the wrong address"
        );
        assert!(!agreed(&[&old, &new], 1), "a client reached it there since");
        assert!(!agreed(&[&old], 1));
        let two = noting(0, &["two"]);
        assert!(agreed(&[&old, &two], 2));
        assert!(Absence::Declared.is_agreed("b", 2, &[], 3));
        let ahead = noting(90_000_000, &["one"]);
        assert!(!agreed(&[&old, &ahead], 1), "its clock was set back");
    }
}

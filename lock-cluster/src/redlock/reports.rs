//! [`QuorumReports`]: a client's warnings about members and clocks, each emitted once for as long
//! as it applies.

use super::clocks::WrongClocks;
use super::missing::absent;
use lock_core::{Notices, WarningKind};
use lock_redis::quorum::{Member, Members, NodeView, ServerState};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

/// The warnings about a quorum that still apply, and the last known members.
#[derive(Default)]
pub(super) struct QuorumReports {
    notices: Notices,
    reported: Mutex<HashSet<String>>,
    members: Mutex<Option<(Arc<str>, Members)>>,
}

impl QuorumReports {
    pub(super) fn new(notices: Notices) -> Self {
        Self {
            notices,
            ..Self::default()
        }
    }

    /// Emits a warning about a subject, once for as long as the warning applies. A `message` of
    /// `None` says that the warning no longer applies.
    fn warn(&self, kind: WarningKind, about: String, message: Option<String>) {
        let mut reported = self.reported.lock();
        match message {
            None => drop(reported.remove(&about)),
            Some(message) => {
                let is_new = reported.insert(about);
                drop(reported);
                if is_new {
                    self.notices.warn(kind, || message);
                }
            }
        }
    }

    /// Reports changed members, and members that the URL does not name.
    pub(super) fn members(
        &self,
        view: &NodeView,
        names: &[String],
        states: &[Option<ServerState>],
    ) {
        let known = (Arc::clone(&view.quorum), view.members.clone());
        let before = self.members.lock().replace(known.clone());
        if let Some(before) = before.filter(|before| *before != known) {
            self.notices.warn(WarningKind::QuorumMembers, || {
                format!(
                    "the quorum has other members since epoch {} of {}: {}, and it had {}. If no \
                     server was replaced, compare the URLs of all clients",
                    view.epoch,
                    view.quorum,
                    addresses(&known.1),
                    addresses(&before.1)
                )
            });
        }
        for member in unlisted(view, names, states) {
            let message = || {
                format!(
                    "the server at {} (run_id {}) is a member of the quorum {}, and the URL names \
                     it not: it names {}. Name all members, or the locks of this client survive \
                     fewer failures",
                    member.address,
                    member.id.as_deref().unwrap_or_default(),
                    view.quorum,
                    names.join(", ")
                )
            };
            let about = format!("unlisted {}", member.id.as_deref().unwrap_or_default());
            self.warn(WarningKind::QuorumMembers, about, Some(message()));
        }
    }

    /// Reports the wrong clocks, and the servers whose votes are delayed by a wrong clock.
    pub(super) fn clocks(
        &self,
        names: &[String],
        states: &[Option<ServerState>],
        wrong: &WrongClocks,
        max_lease: Duration,
    ) {
        for (at, (name, state)) in names.iter().zip(states).enumerate() {
            let Some(state) = state else { continue };
            let ahead = wrong.servers.iter().find(|(server, _)| *server == at);
            let message = ahead.map(|(_, ahead)| {
                format!("the vote of {name} does not count: {}", wrong.text(*ahead))
            });
            self.warn(WarningKind::QuorumClock, format!("clock {name}"), message);
            let left = Duration::from_micros(state.votes_from.saturating_sub(state.time));
            let message = state.view().and_then(|view| view.clock.clone());
            let message = message
                .filter(|_| left > max_lease)
                .map(|clock| format!("{name} votes in {left:.0?}: {}", awaited_clock(&clock)));
            self.warn(WarningKind::QuorumClock, format!("pause {name}"), message);
        }
    }
}

/// Returns the reason why a server's pause is longer than the longest lease.
pub(super) fn awaited_clock(clock: &str) -> String {
    format!(
        "it took a member's place when the clock of {clock} was ahead, and tokens may have been \
         granted by that clock; set it right, and `distlock quorum init` shortens the wait"
    )
}

/// Returns the members that are not among these servers and have none of these names. Returns no
/// members while a server does not answer, because that server may be the member under another
/// name.
pub(super) fn unlisted<'a>(
    view: &'a NodeView,
    names: &[String],
    states: &[Option<ServerState>],
) -> Vec<&'a Member> {
    if states.iter().any(Option::is_none) {
        return Vec::new();
    }
    let absent = absent(&view.members, states);
    let is_unlisted = |member: &&Member| {
        let is_absent = member.id.as_ref().is_some_and(|id| absent.contains(id));
        is_absent && !names.iter().any(|name| **name == *member.address)
    };
    view.members.iter().filter(is_unlisted).collect()
}

fn addresses(members: &Members) -> String {
    let addresses: Vec<_> = members.iter().map(|member| &*member.address).collect();
    addresses.join(", ")
}

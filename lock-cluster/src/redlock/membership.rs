//! [`Membership`]: selects the responses that count together. They come from different members of
//! one quorum with equal views.

use super::majority::majority;
use lock_core::backend::Failure;
use lock_core::{Error, Moment};
use lock_redis::quorum::{NodeView, Response};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The quorum of this client, and the rules by which responses of its nodes count.
pub(super) struct Membership {
    /// The names of the nodes, by node number.
    names: Vec<String>,
    /// The key of the marker.
    marker: String,
    /// The time for which the client remembers its quorum without a response of any of its nodes.
    memory: Duration,
    known_quorum: Mutex<Option<KnownQuorum>>,
    /// True if a node has not recorded the latest epoch, or a server could become a node.
    needs_update: AtomicBool,
}

/// A quorum that the client knows.
struct KnownQuorum {
    quorum: Arc<str>,
    /// The time of the last response of one of its nodes.
    seen: Moment,
}

impl Membership {
    pub(super) fn new(names: Vec<String>, marker: String, memory: Duration) -> Self {
        Self {
            names,
            marker,
            memory,
            known_quorum: Mutex::new(None),
            needs_update: AtomicBool::new(false),
        }
    }

    /// Returns the quorum of this client, if it is known.
    pub(super) fn known_quorum(&self) -> Option<Arc<str>> {
        self.known_quorum
            .lock()
            .as_ref()
            .map(|known| Arc::clone(&known.quorum))
    }

    /// Requests an update of the membership.
    pub(super) fn request_update(&self) {
        self.needs_update.store(true, Ordering::Relaxed);
    }

    /// Returns whether an update was requested since the last call.
    pub(super) fn take_update_request(&self) -> bool {
        self.needs_update.swap(false, Ordering::Relaxed)
    }

    /// Returns the answers that count together, and the other answers as failures with the reasons.
    /// If no response has a view, all responses count.
    pub(super) fn counted<T: Clone>(
        &self,
        responses: &[Option<Result<Response<T>, Failure>>],
        now: Moment,
    ) -> Vec<Option<Result<T, Failure>>> {
        let view = |response: &Option<Result<Response<T>, Failure>>| {
            response.as_ref()?.as_ref().ok()?.from.clone()
        };
        let views: Vec<_> = responses.iter().map(view).collect();
        let exclusions = self.exclusions(&views, now);
        let has_nodes = views.iter().any(Option::is_some);
        let counted = |(at, response): (usize, &Option<Result<Response<T>, Failure>>)| {
            Some(match (response.as_ref()?, &exclusions[at]) {
                (Err(failure), _) => Err(failure.clone()),
                (Ok(_), Some(why)) => Err(Failure::Refused(why.clone())),
                (Ok(response), None) if response.from.is_none() && has_nodes => {
                    Err(Failure::Refused(self.unmarked_error(at, &views)))
                }
                (Ok(response), None) => Ok(response.what.clone()),
            })
        };
        responses.iter().enumerate().map(counted).collect()
    }

    /// Returns for each node the reason why its response does not count with the others; `None` if
    /// it counts, or the node has not responded.
    pub(super) fn exclusions(
        &self,
        views: &[Option<Arc<NodeView>>],
        now: Moment,
    ) -> Vec<Option<Error>> {
        let Some((quorum, view)) = self.view(views, now) else {
            return vec![None; views.len()];
        };
        let identity = |node: &Arc<NodeView>| (Arc::clone(&node.node), Arc::clone(&node.run_id));
        let identities: Vec<_> = views
            .iter()
            .map(|node| node.as_ref().map(identity))
            .collect();
        let exclusion = |(at, node): (usize, &Option<Arc<NodeView>>)| {
            let why = self.exclusion(at, node.as_ref()?, &identities, &quorum, view.as_deref());
            why.map(Error::unavailable)
        };
        views.iter().enumerate().map(exclusion).collect()
    }

    /// Returns the reason why a node does not count together with the other nodes of this quorum
    /// and view.
    fn exclusion(
        &self,
        at: usize,
        node: &NodeView,
        identities: &[Option<Identity>],
        quorum: &str,
        view: Option<&NodeView>,
    ) -> Option<String> {
        let (name, run_id) = (&self.names[at], &node.run_id);
        Some(if *node.quorum != *quorum {
            format!(
                "{name} is a node of another quorum (run_id {run_id}, quorum {}), and this \
                 client's is {quorum}: if that one is given up, {}",
                node.quorum,
                self.give_up(at)
            )
        } else if let Some(twin) = preferred_twin(at, identities) {
            let (first, other) = (&self.names[twin], identities[twin].as_ref());
            match other
                .map(|(_, other)| other)
                .filter(|other| *other != run_id)
            {
                None => format!(
                    "{first} and {name} are one and the same server (run_id {run_id}): its vote \
                     counts once"
                ),
                Some(other) => format!(
                    "{name} (run_id {run_id}) has a copy of the data of {first} (run_id {other}): \
                     empty the one that is wrong"
                ),
            }
        } else if view.is_none_or(|view| !view.members.contain(&node.node)) {
            format!(
                "{name} (run_id {run_id}) is no member of this quorum any more: empty it if it is \
                 to be one again"
            )
        } else if view.is_none_or(|view| !is_same(view, node)) {
            self.request_update();
            format!(
                "{name} (run_id {run_id}) knows other members of this quorum than others do, those \
                 of epoch {}",
                node.epoch
            )
        } else if node.members.count() != identities.len() {
            format!(
                "{name} belongs to a quorum of {} servers, and the URL names {}",
                node.members.count(),
                identities.len()
            )
        } else {
            return None;
        })
    }

    /// Returns the quorum that counts, and the view on which most of its nodes agree; `None` in
    /// place of the view if none of its nodes has responded. The quorum that counts is the known
    /// quorum, until none of its nodes has responded for `memory`. Without a known quorum, it is
    /// the quorum of the view on which the most nodes agree.
    fn view(
        &self,
        views: &[Option<Arc<NodeView>>],
        now: Moment,
    ) -> Option<(Arc<str>, Option<Arc<NodeView>>)> {
        let mut known = self.known_quorum.lock();
        let nodes: Vec<_> = views.iter().flatten().collect();
        let count = |view: &NodeView| {
            let agrees =
                |node: &&&Arc<NodeView>| is_same(view, node) && view.members.contain(&node.node);
            let agree = nodes.iter().filter(agrees).map(|node| &node.node);
            agree.collect::<HashSet<_>>().len()
        };
        let best = |quorum: Option<&Arc<str>>| {
            let of_it = nodes
                .iter()
                .filter(|node| quorum.is_none_or(|it| node.quorum == *it));
            of_it
                .max_by_key(|node| (count(node), node.epoch))
                .map(|node| Arc::clone(node))
        };
        if let Some(known) = known.as_mut() {
            if let Some(view) = best(Some(&known.quorum)) {
                known.seen = now;
                return Some((Arc::clone(&known.quorum), Some(view)));
            }
            // After this time every acquisition of the known quorum has ended.
            if now < known.seen + self.memory {
                return Some((Arc::clone(&known.quorum), None));
            }
        }
        let view = best(None)?;
        let quorum = Arc::clone(&view.quorum);
        if count(&view) >= majority(views.len()) {
            *known = Some(KnownQuorum {
                quorum: Arc::clone(&quorum),
                seen: now,
            });
        }
        Some((quorum, Some(view)))
    }

    /// Returns the error of a server without a valid marker, given the views of the nodes, and
    /// requests an update.
    pub(super) fn unmarked_error(&self, at: usize, views: &[Option<Arc<NodeView>>]) -> Error {
        self.request_update();
        let name = &self.names[at];
        let nodes = views.iter().enumerate();
        let nodes: Vec<_> = nodes
            .filter_map(|(at, node)| Some((at, node.as_ref()?)))
            .collect();
        let leftover = nodes
            .first()
            .filter(|_| nodes.len() < majority(views.len()));
        Error::unavailable(match leftover {
            None => format!(
                "{name} has no marker that counts: it is new, was emptied, or came back from a dump \
                 or as a promoted replica. It does not vote until a majority of the others has \
                 recorded it, which is when no client has reached a member for max_lease; two \
                 clients must miss it if its address is another one"
            ),
            Some((at, node)) => format!(
                "{name} has no marker that counts, and too few nodes of the quorum {} are here to record it \
                 ({} is one of them): if that quorum is given up, {}; if not, `set_up_quorum` \
                 begins it anew",
                node.quorum,
                self.names[*at],
                self.give_up(*at)
            ),
        })
    }

    /// Returns instructions to remove this server from its quorum.
    fn give_up(&self, at: usize) -> String {
        format!("delete the key `{}` on {}", self.marker, self.names[at])
    }
}

/// Returns whether both nodes have recorded the same members.
fn is_same(one: &NodeView, other: &NodeView) -> bool {
    one.epoch == other.epoch && one.quorum == other.quorum && one.members == other.members
}

/// The `node` and the `run_id` of a server.
pub(super) type Identity = (Arc<str>, Arc<str>);

/// Returns the position of the server that counts instead of this one, if two addresses lead to one
/// server, or if a server has a copy of another server's data. A node counts instead of its copy;
/// otherwise the first server counts.
pub(super) fn preferred_twin(at: usize, identities: &[Option<Identity>]) -> Option<usize> {
    let (node, run_id) = identities[at].as_ref()?;
    let rank = |at: usize, (node, run_id): &Identity| (node != run_id, at);
    identities.iter().enumerate().position(|(place, other)| {
        other.as_ref().is_some_and(|other| {
            (other.0 == *node || other.1 == *run_id) && rank(place, other) < (node != run_id, at)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::{Clock, ManualClock};
    use lock_redis::quorum::Member;

    fn node(quorum: &str, epoch: u64, members: [&str; 3], run_id: &str) -> Option<Arc<NodeView>> {
        let member = |id: &str| Member {
            id: Some(id.into()),
            address: "h:1".into(),
        };
        Some(Arc::new(NodeView {
            quorum: quorum.into(),
            epoch,
            members: members.map(member).into_iter().collect(),
            node: run_id.into(),
            run_id: run_id.into(),
            clock: None,
            is_paused: false,
        }))
    }

    const FIRST: [&str; 3] = ["a", "b", "c"];
    const SECOND: [&str; 3] = ["a", "d", "c"];

    fn membership() -> (Membership, ManualClock) {
        let names = ["one:1", "two:2", "three:3"].map(str::to_owned).into();
        (
            Membership::new(names, "distlock_quorum".to_owned(), Duration::from_secs(60)),
            ManualClock::new(),
        )
    }

    fn exclusions(
        membership: &Membership,
        views: &[Option<Arc<NodeView>>],
        now: Moment,
    ) -> Vec<String> {
        let exclusions = membership.exclusions(views, now).into_iter();
        exclusions
            .map(|why| why.map_or(String::new(), |why| why.to_string()))
            .collect()
    }

    #[test]
    fn server_at_two_addresses_counts_once_and_both_are_named() {
        let (membership, clock) = membership();
        let [a, b] = ["a", "b"].map(|it| node("q", 1, FIRST, it));
        let why = exclusions(&membership, &[b.clone(), b, a], clock.now());
        assert!(why[0].is_empty() && why[2].is_empty(), "{why:?}");
        assert!(
            why[1].contains("one:1 and two:2") && why[1].contains("run_id b"),
            "{why:?}"
        );
    }

    /// The first server was a replica of the second for a moment, and has been restarted since.
    #[test]
    fn copy_of_a_node_does_not_displace_the_node() {
        let (membership, clock) = membership();
        let a = node("q", 1, FIRST, "a");
        let copy = NodeView {
            run_id: "b1".into(),
            ..NodeView::clone(a.as_ref().unwrap())
        };
        let answers = [Some(Arc::new(copy)), a, node("q", 1, FIRST, "c")];
        let why = exclusions(&membership, &answers, clock.now());
        assert!(why[0].contains("copy of the data of two:2"), "{why:?}");
        assert!(why[1..].concat().is_empty(), "{why:?}");
    }

    #[test]
    fn nodes_of_different_views_do_not_count_together() {
        let (membership, clock) = membership();
        let answers = [
            node("q", 2, SECOND, "a"),
            node("q", 1, FIRST, "b"),
            node("q", 2, SECOND, "c"),
        ];
        let why = exclusions(&membership, &answers, clock.now());
        assert!(
            why[0].is_empty() && why[1].contains("no member") && why[2].is_empty(),
            "{why:?}"
        );
        assert!(!membership.take_update_request());
        let late = [
            node("q", 2, SECOND, "a"),
            node("q", 2, SECOND, "d"),
            node("q", 1, FIRST, "c"),
        ];
        let why = exclusions(&membership, &late, clock.now());
        assert!(
            why[2].contains("epoch 1") && why[..2].concat().is_empty(),
            "{why:?}"
        );
        assert!(membership.take_update_request(), "it is to be told");
    }

    #[test]
    fn other_quorum_is_followed_after_a_longest_lease_without_ours() {
        let (membership, clock) = membership();
        let known_quorum = FIRST.map(|it| node("q", 1, FIRST, it));
        let others = ["x", "y", "z"];
        let theirs = others.map(|it| node("r", 1, others, it));
        assert_eq!(
            exclusions(&membership, &known_quorum, clock.now()).concat(),
            ""
        );
        // Two addresses lead to another quorum. A single node of `known_quorum` is enough to detect
        // that.
        let mixed = [
            theirs[0].clone(),
            theirs[1].clone(),
            known_quorum[2].clone(),
        ];
        for _ in 0..3 {
            let why = exclusions(&membership, &mixed, clock.now());
            assert!(
                why[0].contains("another quorum") && why[0].contains("run_id x"),
                "{why:?}"
            );
            assert!(why[2].is_empty(), "{why:?}");
            clock.jump(Duration::from_secs(59));
        }
        assert!(
            exclusions(&membership, &theirs, clock.now())
                .iter()
                .all(|why| !why.is_empty())
        );
        clock.jump(Duration::from_secs(2));
        assert_eq!(exclusions(&membership, &theirs, clock.now()).concat(), "");
        assert!(!exclusions(&membership, &mixed, clock.now())[2].is_empty());
    }

    #[test]
    fn leftover_marker_is_named_with_what_to_delete() {
        let (membership, _) = membership();
        let views = [None, node("old", 1, FIRST, "b"), None];
        let text = membership.unmarked_error(0, &views).to_string();
        let parts = [
            "one:1",
            "two:2",
            "quorum old",
            "delete the key `distlock_quorum` on two:2",
        ];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }

    #[test]
    fn url_with_another_number_of_servers_is_reported() {
        let (membership, clock) = membership();
        let answers = FIRST.map(|it| node("q", 1, FIRST, it));
        let why = exclusions(&membership, &answers[..2], clock.now());
        assert!(why[0].contains("3 servers, and the URL names 2"), "{why:?}");
    }

    #[test]
    fn response_of_an_unmarked_server_counts_without_nodes_only() {
        let (membership, clock) = membership();
        let answers = |from: Option<Arc<NodeView>>| Some(Ok(Response { what: 1, from }));
        let failed = |answers: &[_]| {
            let counted = membership.counted(answers, clock.now());
            counted
                .iter()
                .map(|it| matches!(it, Some(Err(_))))
                .collect::<Vec<_>>()
        };
        assert_eq!(failed(&[answers(None), answers(None), None]), [false; 3]);
        let mixed = [answers(None), answers(node("q", 1, FIRST, "b")), None];
        assert_eq!(failed(&mixed), [true, false, false]);
    }
}

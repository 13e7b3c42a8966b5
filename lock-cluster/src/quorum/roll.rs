//! [`Roll`]: which answers count together: those of different servers that are members of the same quorum by the same view.

use super::member::Reply;
use super::tally::majority;
use lock_core::backend::Failure;
use lock_core::{Error, Moment};
use lock_redis::parts::{Sight, Standing};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What this client knows of its quorum beyond single answers.
pub(super) struct Roll {
    /// What the nodes are called, in their order.
    names: Vec<String>,
    /// The key of the marker on each of them.
    marker: String,
    /// For how long a quorum of which no node answers any more is still this client's.
    memory: Duration,
    ours: Mutex<Option<Ours>>,
    /// The members that were not there when this client looked last, and since when.
    missing: Mutex<HashMap<Arc<str>, Moment>>,
    /// Some node knows less than others, or a server is outside that could be a node.
    is_untidy: AtomicBool,
}

/// The quorum that this client belongs to.
struct Ours {
    quorum: Arc<str>,
    /// When one of its nodes answered last.
    seen: Moment,
}

impl Roll {
    pub(super) fn new(names: Vec<String>, marker: String, memory: Duration) -> Self {
        Self {
            names,
            marker,
            memory,
            ours: Mutex::new(None),
            missing: Mutex::default(),
            is_untidy: AtomicBool::new(false),
        }
    }

    /// The quorum that this client belongs to, once it is known.
    pub(super) fn ours(&self) -> Option<Arc<str>> {
        self.ours.lock().as_ref().map(|ours| Arc::clone(&ours.quorum))
    }

    /// The members that these servers do not know to be there, and have not for so long.
    pub(super) fn missing_for(
        &self,
        time: Duration,
        sights: &[Option<Sight>],
        now: Moment,
    ) -> HashSet<Arc<str>> {
        let seen = || sights.iter().flatten();
        let markers = || seen().filter_map(|sight| sight.marker.as_ref());
        let present: HashSet<_> = markers()
            .map(|(_, node)| &node.node)
            .chain(seen().map(|sight| &sight.run_id))
            .collect();
        let members = markers().flat_map(|(agreed, _)| agreed.members.iter());
        let absent: HashSet<_> =
            members.filter_map(|it| it.id.as_ref()).filter(|id| !present.contains(id)).collect();
        let mut missing = self.missing.lock();
        missing.retain(|id, _| absent.contains(id));
        for id in absent {
            missing.entry(Arc::clone(id)).or_insert(now);
        }
        let long = missing.iter().filter(|(_, since)| now >= **since + time);
        long.map(|(id, _)| Arc::clone(id)).collect()
    }

    /// There is something to be put in order.
    pub(super) fn note_untidy(&self) {
        self.is_untidy.store(true, Ordering::Relaxed);
    }

    /// Whether there was something to be put in order since this was asked last.
    pub(super) fn take_untidy(&self) -> bool {
        self.is_untidy.swap(false, Ordering::Relaxed)
    }

    /// The answers of those that count together; the others' are failures, which say why. Stores that say nothing of
    /// themselves count, and so do servers as long as none of them is a node.
    pub(super) fn counted<T: Clone>(
        &self,
        answers: &[Option<Result<Reply<T>, Failure>>],
        now: Moment,
    ) -> Vec<Option<Result<T, Failure>>> {
        let by = |answer: &Option<Result<Reply<T>, Failure>>| match answer {
            Some(Ok(said)) => said.by.clone(),
            _ => None,
        };
        let said_by: Vec<_> = answers.iter().map(by).collect();
        let why_not = self.why_not(&said_by, now);
        let has_nodes = said_by.iter().any(Option::is_some);
        let counted = |(at, answer): (usize, &Option<Result<Reply<T>, Failure>>)| {
            Some(match (answer.as_ref()?, &why_not[at]) {
                (Err(failure), _) => Err(failure.clone()),
                (Ok(_), Some(why)) => Err(Failure::Refused(why.clone())),
                (Ok(said), None) if said.by.is_none() && has_nodes => {
                    Err(Failure::Refused(self.outside(at, &said_by)))
                }
                (Ok(said), None) => Ok(said.what.clone()),
            })
        };
        answers.iter().enumerate().map(counted).collect()
    }

    /// For each node why its answer does not count beside the others; `None` if it counts, or there is none.
    pub(super) fn why_not(
        &self,
        said_by: &[Option<Arc<Standing>>],
        now: Moment,
    ) -> Vec<Option<Error>> {
        let mut missing = self.missing.lock();
        if !missing.is_empty() {
            missing.retain(|id, _| !said_by.iter().flatten().any(|node| node.node == *id));
        }
        drop(missing);
        let Some((quorum, view)) = self.view(said_by, now) else {
            return vec![None; said_by.len()];
        };
        let why_not = |(at, node): (usize, &Option<Arc<Standing>>)| {
            let node = node.as_ref()?;
            // Of several the one that is the node itself, and no copy of its data; else the first.
            let rank = |at: usize, it: &Standing| (it.run_id != it.node, at);
            let before = said_by.iter().enumerate().position(|(place, other)| {
                other.as_ref().is_some_and(|other| {
                    (other.node == node.node || other.run_id == node.run_id)
                        && rank(place, other) < rank(at, node)
                })
            });
            let name = &self.names[at];
            Some(Error::unavailable(if node.quorum != quorum {
                format!(
                    "{name} is a node of another quorum (run_id {}, quorum {}), and this client's is {quorum}: if that one is \
                     given up, {}",
                    node.run_id,
                    node.quorum,
                    self.give_up(at)
                )
            } else if let Some(twin) = before {
                let (first, run_id) = (&self.names[twin], &node.run_id);
                let other = said_by[twin].as_ref().map_or(run_id, |twin| &twin.run_id);
                if other == run_id {
                    format!(
                        "{first} and {name} are one and the same server (run_id {run_id}): its vote counts once"
                    )
                } else {
                    format!(
                        "{name} (run_id {run_id}) has a copy of the data of {first} (run_id {other}): empty the one that is wrong"
                    )
                }
            } else if view.as_ref().is_none_or(|view| !view.members.contain(&node.node)) {
                format!(
                    "{name} (run_id {}) is no member of this quorum any more: empty it if it is to be one again",
                    node.run_id
                )
            } else if view.as_ref().is_none_or(|view| !is_same(view, node)) {
                self.note_untidy();
                format!(
                    "{name} (run_id {}) knows other members of this quorum than others do, those of epoch {}",
                    node.run_id, node.epoch
                )
            } else if node.members.count() != said_by.len() {
                format!(
                    "{name} belongs to a quorum of {} servers, and the URL names {}",
                    node.members.count(),
                    said_by.len()
                )
            } else {
                return None;
            }))
        };
        said_by.iter().enumerate().map(why_not).collect()
    }

    /// The quorum that counts: this client's, once that is known, and the one that most nodes are of; and a node that has the view of
    /// it which most nodes have.
    fn view(
        &self,
        said_by: &[Option<Arc<Standing>>],
        now: Moment,
    ) -> Option<(Arc<str>, Option<Arc<Standing>>)> {
        let mut ours = self.ours.lock();
        let nodes: Vec<_> = said_by.iter().flatten().collect();
        let count = |view: &Standing| {
            let agrees =
                |node: &&&Arc<Standing>| is_same(view, node) && view.members.contain(&node.node);
            let mut agree: Vec<_> = nodes.iter().filter(agrees).map(|node| &node.node).collect();
            agree.sort_unstable();
            agree.dedup();
            agree.len()
        };
        let best = |quorum: Option<&Arc<str>>| {
            let of_it = nodes.iter().filter(|node| quorum.is_none_or(|it| node.quorum == *it));
            of_it.max_by_key(|node| (count(node), node.epoch)).map(|node| Arc::clone(node))
        };
        if let Some(known) = ours.as_mut() {
            if let Some(view) = best(Some(&known.quorum)) {
                known.seen = now;
                return Some((Arc::clone(&known.quorum), Some(view)));
            }
            // What was held of it is over by then.
            if now < known.seen + self.memory {
                return Some((Arc::clone(&known.quorum), None));
            }
        }
        let view = best(None)?;
        let quorum = Arc::clone(&view.quorum);
        if count(&view) >= majority(said_by.len()) {
            *ours = Some(Ours { quorum: Arc::clone(&quorum), seen: now });
        }
        Some((quorum, Some(view)))
    }

    /// The error of a server that is no node, beside these that are.
    pub(super) fn outside(&self, at: usize, said_by: &[Option<Arc<Standing>>]) -> Error {
        self.note_untidy();
        let name = &self.names[at];
        let nodes = said_by.iter().enumerate();
        let nodes: Vec<_> = nodes.filter_map(|(at, node)| Some((at, node.as_ref()?))).collect();
        // One that counts for another reason is told of there.
        let left = nodes.first().filter(|_| nodes.len() < majority(said_by.len()));
        Error::unavailable(match left {
            None => format!(
                "{name} has no marker: it is new, or was emptied, and does not vote until a majority of the others has \
                 recorded it, which is when a member has been missing for max_lease"
            ),
            Some((at, node)) => format!(
                "{name} has no marker, and too few nodes of the quorum {} are here to record it ({} is one of them): if that \
                 quorum is given up, {}; if not, `set_up_quorum` begins it anew",
                node.quorum,
                self.names[*at],
                self.give_up(*at)
            ),
        })
    }

    /// How an operator makes this server one that is a node of nothing.
    fn give_up(&self, at: usize) -> String {
        format!("delete the key `{}` on {}", self.marker, self.names[at])
    }
}

/// Whether both know the same members.
fn is_same(one: &Standing, other: &Standing) -> bool {
    one.epoch == other.epoch && one.quorum == other.quorum && one.members == other.members
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::{Clock, ManualClock};
    use lock_redis::parts::{Agreed, Member};

    fn node(quorum: &str, epoch: u64, members: [&str; 3], run_id: &str) -> Option<Arc<Standing>> {
        let member = |id: &str| Member { id: Some(id.into()), address: "h:1".into() };
        Some(Arc::new(Standing {
            quorum: quorum.into(),
            epoch,
            members: members.map(member).into_iter().collect(),
            node: run_id.into(),
            run_id: run_id.into(),
        }))
    }

    const FIRST: [&str; 3] = ["a", "b", "c"];
    const SECOND: [&str; 3] = ["a", "d", "c"];

    fn roll() -> (Roll, ManualClock) {
        let names = ["one:1", "two:2", "three:3"].map(str::to_owned).into();
        (
            Roll::new(names, "distlock_quorum".to_owned(), Duration::from_secs(60)),
            ManualClock::new(),
        )
    }

    fn why_not(roll: &Roll, said_by: &[Option<Arc<Standing>>], now: Moment) -> Vec<String> {
        let why_not = roll.why_not(said_by, now).into_iter();
        why_not.map(|why| why.map_or(String::new(), |why| why.to_string())).collect()
    }

    #[test]
    fn server_at_two_addresses_counts_once_and_both_are_named() {
        let (roll, clock) = roll();
        let [a, b] = ["a", "b"].map(|it| node("q", 1, FIRST, it));
        let why = why_not(&roll, &[b.clone(), b, a], clock.now());
        assert!(why[0].is_empty() && why[2].is_empty(), "{why:?}");
        assert!(why[1].contains("one:1 and two:2") && why[1].contains("run_id b"), "{why:?}");
    }

    /// It was a replica of that node for a moment, and was started again since.
    #[test]
    fn copy_of_a_node_does_not_displace_the_node() {
        let (roll, clock) = roll();
        let a = node("q", 1, FIRST, "a");
        let copy = Standing { run_id: "b1".into(), ..Standing::clone(a.as_ref().unwrap()) };
        let said = [Some(Arc::new(copy)), a, node("q", 1, FIRST, "c")];
        let why = why_not(&roll, &said, clock.now());
        assert!(why[0].contains("copy of the data of two:2"), "{why:?}");
        assert!(why[1..].concat().is_empty(), "{why:?}");
    }

    #[test]
    fn nodes_of_different_views_do_not_count_together() {
        let (roll, clock) = roll();
        let said = [node("q", 2, SECOND, "a"), node("q", 1, FIRST, "b"), node("q", 2, SECOND, "c")];
        let why = why_not(&roll, &said, clock.now());
        assert!(why[0].is_empty() && why[1].contains("no member") && why[2].is_empty(), "{why:?}");
        assert!(!roll.take_untidy());
        let late = [node("q", 2, SECOND, "a"), node("q", 2, SECOND, "d"), node("q", 1, FIRST, "c")];
        let why = why_not(&roll, &late, clock.now());
        assert!(why[2].contains("epoch 1") && why[..2].concat().is_empty(), "{why:?}");
        assert!(roll.take_untidy(), "it is to be told");
    }

    #[test]
    fn other_quorum_is_followed_after_a_longest_lease_without_ours() {
        let (roll, clock) = roll();
        let ours = FIRST.map(|it| node("q", 1, FIRST, it));
        let others = ["x", "y", "z"];
        let theirs = others.map(|it| node("r", 1, others, it));
        assert_eq!(why_not(&roll, &ours, clock.now()).concat(), "");
        // Two addresses lead elsewhere: one node of ours is enough to know that.
        let mixed = [theirs[0].clone(), theirs[1].clone(), ours[2].clone()];
        for _ in 0..3 {
            let why = why_not(&roll, &mixed, clock.now());
            assert!(why[0].contains("another quorum") && why[0].contains("run_id x"), "{why:?}");
            assert!(why[2].is_empty(), "{why:?}");
            clock.advance(Duration::from_secs(59));
        }
        assert!(why_not(&roll, &theirs, clock.now()).iter().all(|why| !why.is_empty()));
        clock.advance(Duration::from_secs(2));
        assert_eq!(why_not(&roll, &theirs, clock.now()).concat(), "");
        assert!(!why_not(&roll, &mixed, clock.now())[2].is_empty());
    }

    #[test]
    fn missing_member_is_present_again_when_it_answers() {
        let (roll, clock) = roll();
        let [a, c] = ["a", "c"].map(|it| node("q", 1, FIRST, it).unwrap());
        let sight = |node: &Arc<Standing>| {
            let members = node.members.clone();
            let (max_lease, keep) = (Duration::ZERO, Duration::ZERO);
            let agreed = Agreed { quorum: Arc::clone(&node.quorum), members, max_lease, keep };
            Some(Sight::of(&node.run_id).with_marker(agreed, Standing::clone(node)))
        };
        let sights = [sight(&a), None, sight(&c)];
        let minute = Duration::from_secs(60);
        let missing = || roll.missing_for(minute, &sights, clock.now()).into_iter().collect();
        let none: Vec<Arc<str>> = Vec::new();
        assert_eq!(
            (missing(), roll.missing_for(Duration::ZERO, &sights, clock.now()).len()),
            (none.clone(), 1)
        );
        clock.advance(minute / 2);
        why_not(&roll, &[None, node("q", 1, FIRST, "b"), None], clock.now());
        clock.advance(minute / 2);
        assert_eq!(missing(), none, "it has answered meanwhile");
        clock.advance(minute);
        assert_eq!(missing(), [Arc::from("b")]);
    }

    #[test]
    fn leftover_marker_is_named_with_what_to_delete() {
        let (roll, _) = roll();
        let said_by = [None, node("old", 1, FIRST, "b"), None];
        let text = roll.outside(0, &said_by).to_string();
        let parts = ["one:1", "two:2", "quorum old", "delete the key `distlock_quorum` on two:2"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }

    #[test]
    fn url_with_another_number_of_servers_is_reported() {
        let (roll, clock) = roll();
        let said = FIRST.map(|it| node("q", 1, FIRST, it));
        let why = why_not(&roll, &said[..2], clock.now());
        assert!(why[0].contains("3 servers, and the URL names 2"), "{why:?}");
    }

    #[test]
    fn response_of_an_unmarked_server_counts_without_nodes_only() {
        let (roll, clock) = roll();
        let said = |by: Option<Arc<Standing>>| Some(Ok(Reply { what: 1, by }));
        let failed = |answers: &[_]| {
            let counted = roll.counted(answers, clock.now());
            counted.iter().map(|it| matches!(it, Some(Err(_)))).collect::<Vec<_>>()
        };
        assert_eq!(failed(&[said(None), said(None), None]), [false; 3]);
        let mixed = [said(None), said(node("q", 1, FIRST, "b")), None];
        assert_eq!(failed(&mixed), [true, false, false]);
    }
}

//! [`Votes`]: the nodes that have granted a lock to its owner, and the end of the lease on each
//! node, as far as the client knows.

use super::majority::{NodeRenewal, majority};
use lock_core::Moment;
use lock_redis::quorum::NodeView;
use std::sync::Arc;

/// The votes of one acquisition, by node number.
///
/// A renewal may find nodes without a vote for the acquisition, and request a new vote. A new vote
/// does not count before a time at which the older votes are a majority: then no other owner, with
/// a larger token, can have held the lock since the grant.
pub(super) struct Votes(Vec<Option<Vote>>);

struct Vote {
    /// The node; `None` for a store that keeps no record of a quorum.
    by: Option<Arc<NodeView>>,
    /// The end of the lease that the node has confirmed.
    until: Moment,
    weight: Weight,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Weight {
    Counted,
    /// The vote counts once the older votes are found to be a majority.
    New,
    /// The node no longer has its vote, although the lease has not ended: another client deleted
    /// the lock there, and may be deleting it on all nodes. No new vote is requested before the end
    /// of the lease.
    Removed,
}

impl Votes {
    pub(super) fn of(nodes: usize) -> Self {
        Self((0..nodes).map(|_| None).collect())
    }

    /// Records the node's grant of the attempt.
    pub(super) fn granted(&mut self, at: usize, by: Option<Arc<NodeView>>, until: Moment) {
        self.0[at] = Some(Vote {
            by,
            until,
            weight: Weight::Counted,
        });
    }

    /// Records a new vote of the node.
    pub(super) fn voted(&mut self, at: usize, by: Option<Arc<NodeView>>, until: Moment) {
        self.0[at] = Some(Vote {
            by,
            until,
            weight: Weight::New,
        });
    }

    /// Records that the node has extended the lease. Returns [`NodeRenewal::Extended`] if the
    /// node's vote counted already. Otherwise records a new vote, which does not count before
    /// [`count_new`](Self::count_new), and returns [`NodeRenewal::Voted`].
    pub(super) fn extended(
        &mut self,
        at: usize,
        by: Option<Arc<NodeView>>,
        until: Moment,
        now: Moment,
    ) -> NodeRenewal {
        match &mut self.0[at] {
            Some(vote) if vote.counts(now) && is_same_node(&vote.by, &by) => {
                (vote.by, vote.until) = (by, until.max(vote.until));
                NodeRenewal::Extended
            }
            _ => {
                self.voted(at, by, until);
                NodeRenewal::Voted
            }
        }
    }

    /// Records that the node has no vote. Returns whether a new vote may be requested.
    pub(super) fn missing(
        &mut self,
        at: usize,
        by: Option<&NodeView>,
        is_durable: bool,
        now: Moment,
    ) -> bool {
        let Some(vote) = self.0[at].as_mut().filter(|vote| now < vote.until) else {
            self.0[at] = None;
            return true;
        };
        // A server that lost its data, or was emptied and became a node again, may vote again:
        // until the lease has ended, it grants nothing to rivals, as if it still had the vote.
        let is_paused = by.is_some_and(|view| view.is_paused);
        let has_forgotten = is_paused || !is_durable && !is_same_run(vote.by.as_deref(), by);
        if !has_forgotten {
            vote.weight = Weight::Removed;
        }
        has_forgotten
    }

    /// Returns whether the votes that count are a majority. Of servers, only the members in the
    /// newest view count, and each server counts once. `quorum` is the quorum of the client; `None`
    /// admits the views of all quorums.
    pub(super) fn stand(&self, quorum: Option<&str>, now: Moment) -> bool {
        let is_ours = |by: &NodeView| quorum.is_none_or(|quorum| *by.quorum == *quorum);
        let lasting = || self.0.iter().flatten().filter(|vote| now < vote.until);
        let views = lasting()
            .filter_map(|vote| vote.by.as_deref())
            .filter(|by| is_ours(by));
        let newest = views.max_by_key(|view| view.epoch);
        let mut nodes: Vec<&str> = Vec::new();
        let is_member = |by: &Arc<NodeView>| {
            is_ours(by) && newest.is_some_and(|view| view.members.contain(&by.node))
        };
        let counted = lasting().filter(|vote| vote.weight == Weight::Counted);
        let counted = counted.filter(|vote| match &vote.by {
            None => true,
            // Two addresses may lead to one server, whose vote counts once.
            Some(by) => {
                let is_first = !nodes.contains(&&*by.node);
                nodes.push(&by.node);
                is_first && is_member(by)
            }
        });
        counted.count() >= majority(self.0.len())
    }

    /// Counts the new votes if the older ones are a majority.
    pub(super) fn count_new(&mut self, quorum: Option<&str>, now: Moment) {
        let is_new = |vote: &Vote| vote.weight == Weight::New && now < vote.until;
        if self.0.iter().flatten().any(is_new) && self.stand(quorum, now) {
            let new = self.0.iter_mut().flatten().filter(|vote| is_new(vote));
            new.for_each(|vote| vote.weight = Weight::Counted);
        }
    }
}

impl Vote {
    fn counts(&self, now: Moment) -> bool {
        self.weight == Weight::Counted && now < self.until
    }
}

fn is_same_node(one: &Option<Arc<NodeView>>, other: &Option<Arc<NodeView>>) -> bool {
    one.as_ref().map(|view| &view.node) == other.as_ref().map(|view| &view.node)
}

/// Returns whether both views are of one server, without a restart in between.
fn is_same_run(one: Option<&NodeView>, other: Option<&NodeView>) -> bool {
    one.map(|view| &view.run_id) == other.map(|view| &view.run_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_redis::quorum::Member;
    use std::time::Duration;

    const QUORUM: Option<&str> = Some("q");

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(0) + Duration::from_secs(seconds)
    }

    fn view(node: &str, run_id: &str, epoch: u64, members: [&str; 3]) -> Option<Arc<NodeView>> {
        let member = |id: &str| Member {
            id: Some(id.into()),
            address: "h:1".into(),
        };
        Some(Arc::new(NodeView {
            quorum: "q".into(),
            epoch,
            members: members.map(member).into_iter().collect(),
            node: node.into(),
            run_id: run_id.into(),
            clock: None,
            is_paused: false,
        }))
    }

    const FIRST: [&str; 3] = ["a", "b", "c"];

    fn node(id: &str) -> Option<Arc<NodeView>> {
        view(id, id, 1, FIRST)
    }

    /// Returns the votes of `a` and `b`, granted for ten seconds.
    fn of_two() -> Votes {
        let mut votes = Votes::of(3);
        votes.granted(0, node("a"), at(10));
        votes.granted(1, node("b"), at(10));
        votes
    }

    /// Counts new votes at this time, and returns whether the vote of `c` counts then.
    fn count_third(votes: &mut Votes, seconds: u64) -> bool {
        votes.count_new(QUORUM, at(seconds));
        votes.0[2].as_ref().unwrap().counts(at(seconds))
    }

    #[test]
    fn new_vote_counts_while_the_older_ones_are_a_majority() {
        let mut votes = of_two();
        assert!(votes.missing(2, node("c").as_deref(), false, at(3)));
        votes.voted(2, node("c"), at(13));
        assert!(count_third(&mut votes, 4));
        assert_eq!(
            votes.extended(0, node("a"), at(14), at(4)),
            NodeRenewal::Extended
        );
        // The lease of `b` has ended: `a` and `c` are enough.
        assert!(votes.stand(QUORUM, at(11)));
        assert!(
            votes.missing(1, node("b").as_deref(), false, at(11)),
            "it is asked again"
        );
        assert!(!votes.stand(QUORUM, at(13)));
    }

    #[test]
    fn new_vote_does_not_count_when_the_older_ones_had_lapsed() {
        let mut votes = of_two();
        votes.voted(2, node("c"), at(19));
        assert!(!count_third(&mut votes, 10));
        assert_eq!(
            votes.extended(0, node("a"), at(20), at(10)),
            NodeRenewal::Voted,
            "it had ended"
        );
        assert_eq!(
            votes.extended(2, node("c"), at(20), at(11)),
            NodeRenewal::Voted
        );
        assert!(!count_third(&mut votes, 11));
    }

    #[test]
    fn vote_that_was_removed_does_not_stand_and_comes_back_after_its_lease() {
        let mut votes = of_two();
        votes.granted(2, node("c"), at(10));
        assert!(!votes.missing(1, node("b").as_deref(), false, at(3)));
        assert!(votes.stand(QUORUM, at(3)), "two are left");
        votes.voted(2, node("c"), at(12));
        assert!(
            !count_third(&mut votes, 3),
            "only one of the older ones is left"
        );
        assert!(votes.missing(1, node("b").as_deref(), false, at(10)));
    }

    #[test]
    fn vote_of_a_server_that_lost_its_data_stands_until_its_lease_ends() {
        let started_again = view("b", "b2", 1, FIRST);
        let mut votes = of_two();
        assert!(votes.missing(1, started_again.as_deref(), false, at(3)));
        votes.voted(2, node("c"), at(12));
        assert!(count_third(&mut votes, 4), "`b` grants nothing yet");
        assert!(
            !of_two().missing(1, started_again.as_deref(), true, at(3)),
            "it keeps all writes"
        );
    }

    #[test]
    fn vote_of_a_server_that_was_emptied_while_it_ran_stands_until_its_lease_ends() {
        let again = NodeView {
            is_paused: true,
            ..NodeView::clone(node("b").as_ref().unwrap())
        };
        let mut votes = of_two();
        assert!(votes.missing(1, Some(&again), true, at(3)));
        assert!(votes.stand(QUORUM, at(4)) && !votes.stand(QUORUM, at(10)));
    }

    #[test]
    fn votes_of_one_server_or_of_no_member_are_not_added_up() {
        let mut votes = of_two();
        votes.granted(1, node("a"), at(10));
        assert!(!votes.stand(QUORUM, at(1)), "one server, by two addresses");
        let mut votes = of_two();
        votes.granted(0, view("a", "a", 2, ["a", "d", "c"]), at(10));
        assert!(!votes.stand(QUORUM, at(1)), "`b` was replaced");
        assert!(!of_two().stand(Some("other"), at(1)));
        assert!(of_two().stand(None, at(1)));
    }
}

//! The decisions of a majority, as functions of the responses.

use lock_core::OwnerText;
use lock_core::backend::{HolderInfo, LockInfo, Release, Renewal};
use std::time::Duration;

/// The answer of a node to a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NodeRenewal {
    /// The node has extended a vote that counted before.
    Extended,
    /// The node has given a new vote, or extended one that did not count before.
    Voted,
    /// The node has no vote for the owner.
    Missing,
}

/// Returns the size of a majority of this many nodes.
pub(super) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// The number of responses of each kind in one round of an attempt.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RoundTally {
    pub(super) nodes: usize,
    pub(super) granted: usize,
    pub(super) busy: usize,
    /// Nodes on which the lock is free, but which require a larger token.
    pub(super) stale: usize,
    /// Nodes without a response so far.
    pub(super) waiting: usize,
    /// Nodes without a response that seem dead.
    pub(super) suspects: usize,
}

/// The decision on a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Decision {
    Won,
    /// A majority may grant a larger token, in another round.
    Outbid,
    Lost,
}

impl RoundTally {
    /// Returns the decision; `None` while the attempt must wait for further responses.
    ///
    /// The attempt does not wait for nodes that seem dead if a larger token can win without them,
    /// or if rivals have grants, because its own grants would block the rivals meanwhile.
    pub(super) fn decision(&self) -> Option<Decision> {
        let needed = majority(self.nodes);
        let hopeful = self.granted + self.waiting - self.suspects;
        if self.granted >= needed {
            return Some(Decision::Won);
        }
        if hopeful < needed && self.stale > 0 && hopeful + self.stale >= needed {
            return Some(Decision::Outbid);
        }
        let possible = self.granted + self.waiting;
        let is_lost = possible < needed || (self.busy > 0 && hopeful < needed);
        // A lost round waits until the cause is clear: pending responses may show that the lock is
        // held, or that too few nodes answer.
        let is_clear = self.is_held() || self.waiting == self.suspects;
        (is_lost && is_clear).then_some(Decision::Lost)
    }

    /// Returns whether rivals hold so many nodes that the others are no majority.
    pub(super) fn is_held(&self) -> bool {
        self.nodes - self.busy < majority(self.nodes)
    }

    /// Returns whether rivals are the cause of a failure: some nodes are busy, and enough nodes
    /// vote.
    pub(super) fn is_contended(&self) -> bool {
        self.busy > 0 && self.granted + self.busy + self.stale >= majority(self.nodes)
    }
}

/// Returns the time until enough nodes are free if their leases are not renewed; `free` nodes are
/// free already. `None` if the time is unknown or infinite.
pub(super) fn free_in(
    mut left: Vec<Option<Duration>>,
    nodes: usize,
    free: usize,
) -> Option<Duration> {
    left.sort_unstable_by_key(|left| left.unwrap_or(Duration::MAX));
    let needed = majority(nodes)
        .saturating_sub(free)
        .clamp(1, left.len().max(1));
    left.get(needed - 1).copied().flatten()
}

/// Decides a release: freed if a majority held the lock until the release; gone if the nodes that
/// may have held it are no majority; `None` if undecided.
pub(super) fn released(answers: &[Option<Release>]) -> Option<Release> {
    let needed = majority(answers.len());
    let (mut freed, mut gone) = (0, 0);
    for answer in answers.iter().flatten() {
        match answer {
            Release::Freed => freed += 1,
            Release::Gone => gone += 1,
            _ => {}
        }
    }
    if freed >= needed {
        Some(Release::Freed)
    } else if answers.len() - gone < needed {
        Some(Release::Gone)
    } else {
        None
    }
}

/// Decides a renewal; `None` if undecided.
///
/// The lock is extended if a majority of the nodes extended an older vote. If the older votes are a
/// majority, new votes count as well, but only once all responses `are_known`, because a missing
/// response may report a removed vote. The lock is gone if the older votes are no majority, and the
/// nodes that may have extended one are no majority.
pub(super) fn renewed(
    answers: &[Option<NodeRenewal>],
    stands: impl FnOnce() -> bool,
    are_known: bool,
) -> Option<Renewal> {
    let count = |which| {
        answers
            .iter()
            .filter(|answer| **answer == Some(which))
            .count()
    };
    let needed = majority(answers.len());
    let (extended, new) = (count(NodeRenewal::Extended), count(NodeRenewal::Voted));
    let lacking = count(NodeRenewal::Missing) + new;
    if extended >= needed {
        return Some(Renewal::Extended);
    }
    let (is_enough, is_too_few) = (extended + new >= needed, answers.len() - lacking < needed);
    match (is_enough && are_known || is_too_few) && stands() {
        true => (is_enough && are_known).then_some(Renewal::Extended),
        false => is_too_few.then_some(Renewal::Gone),
    }
}

/// Decides whether a lock that was freed by force was held on a majority before; `None` if
/// undecided.
pub(super) fn forced(answers: &[Option<bool>]) -> Option<bool> {
    decided(answers, true, false)
}

/// Returns `yes` if a majority answered `yes`, and `no` if a majority of `yes` has become
/// impossible; otherwise `None`.
fn decided<T: Copy + PartialEq>(answers: &[Option<T>], yes: T, no: T) -> Option<T> {
    let count = |which| {
        answers
            .iter()
            .filter(|answer| **answer == Some(which))
            .count()
    };
    let needed = majority(answers.len());
    if count(yes) >= needed {
        Some(yes)
    } else {
        (answers.len() - count(no) < needed).then_some(no)
    }
}

/// Returns the state of a lock: held by the owner that has a majority, or free if no owner can have
/// a majority; `None` if undecided.
pub(super) fn holder(answers: &[Option<LockInfo>]) -> Option<LockInfo> {
    let needed = majority(answers.len());
    let unknown = answers.iter().filter(|answer| answer.is_none()).count();
    let holders: Vec<&HolderInfo> = answers
        .iter()
        .flatten()
        .filter_map(|info| info.holder.as_ref())
        .collect();
    let mut most = 0;
    for one in &holders {
        let same: Vec<_> = holders
            .iter()
            .filter(|other| other.owner == one.owner)
            .collect();
        most = most.max(same.len());
        if same.len() < needed {
            continue;
        }
        // The lock ends when so many leases have ended that the other nodes are no majority.
        let mut left: Vec<_> = same
            .iter()
            .map(|it| it.remaining.unwrap_or(Duration::MAX))
            .collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        let remaining = Some(left[needed - 1]).filter(|left| *left < Duration::MAX);
        let owner: OwnerText = one.owner.clone();
        let holds = same.iter().map(|it| it.holds).max().unwrap_or(1);
        let label = same.iter().find_map(|it| it.label.clone());
        return Some(LockInfo::held(
            HolderInfo::new(owner, remaining, holds).label(label),
        ));
    }
    (most + unknown < needed).then_some(LockInfo::FREE)
}

/// Returns the state of a lock, with its waiters and its token. The number of waiters is the
/// largest that a node reports, because a waiter watches all nodes that it can reach; the token is
/// the largest of all nodes. `None` if undecided.
pub(super) fn state(answers: &[Option<LockInfo>]) -> Option<LockInfo> {
    let info = holder(answers)?;
    let known = || answers.iter().flatten();
    let waiters = known().filter_map(|info| info.waiters).max();
    let token = known().filter_map(|info| info.largest_token).max();
    Some(info.waiters(waiters).largest_token(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREED: Option<Release> = Some(Release::Freed);
    const GONE: Option<Release> = Some(Release::Gone);

    fn round(
        granted: usize,
        busy: usize,
        stale: usize,
        waiting: usize,
        suspects: usize,
    ) -> RoundTally {
        RoundTally {
            nodes: 5,
            granted,
            busy,
            stale,
            waiting,
            suspects,
        }
    }

    #[test]
    fn round_is_won_by_a_majority_and_lost_without_one() {
        assert_eq!(round(3, 0, 0, 2, 0).decision(), Some(Decision::Won));
        assert_eq!(round(2, 0, 0, 3, 0).decision(), None);
        assert_eq!(round(2, 2, 0, 1, 0).decision(), None);
        assert_eq!(round(2, 3, 0, 0, 0).decision(), Some(Decision::Lost));
        assert_eq!(
            round(0, 0, 0, 2, 2).decision(),
            Some(Decision::Lost),
            "three cannot be asked"
        );
        assert_eq!(
            round(0, 1, 0, 2, 0).decision(),
            None,
            "it may be held, or unavailable"
        );
    }

    #[test]
    fn round_with_rivals_does_not_wait_for_suspects() {
        assert_eq!(round(2, 2, 0, 1, 1).decision(), Some(Decision::Lost));
        assert_eq!(round(2, 0, 0, 1, 1).decision(), None, "there are no rivals");
    }

    #[test]
    fn stale_token_is_outbid_where_a_majority_is_possible() {
        assert_eq!(round(2, 0, 3, 0, 0).decision(), Some(Decision::Outbid));
        assert_eq!(
            round(2, 0, 1, 2, 0).decision(),
            None,
            "a majority is possible without it"
        );
        assert_eq!(round(2, 0, 1, 2, 2).decision(), Some(Decision::Outbid));
        assert_eq!(round(1, 3, 1, 0, 0).decision(), Some(Decision::Lost));
        assert_eq!(round(1, 2, 2, 0, 0).decision(), Some(Decision::Outbid));
    }

    #[test]
    fn contended_round_is_told_from_an_unreachable_one() {
        assert!(round(2, 3, 0, 0, 0).is_held() && !round(2, 2, 0, 0, 0).is_held());
        assert!(round(2, 2, 0, 0, 0).is_contended() && !round(1, 1, 0, 0, 0).is_contended());
        assert!(!round(2, 0, 1, 0, 0).is_contended());
    }

    #[test]
    fn release_outcome_is_that_of_a_majority() {
        assert_eq!(released(&[FREED, FREED, None]), Some(Release::Freed));
        assert_eq!(released(&[GONE, GONE, None]), Some(Release::Gone));
        assert_eq!(released(&[FREED, GONE, None]), None);
        assert_eq!(released(&[FREED, FREED, GONE, None, None]), None);
        assert_eq!(
            released(&[FREED, GONE, GONE, GONE, None]),
            Some(Release::Gone)
        );
    }

    #[test]
    fn renewal_counts_new_votes_only_while_the_older_ones_stand() {
        use NodeRenewal::{Extended, Missing, Voted};
        let of = |answers: [NodeRenewal; 2], third, stands, are_known| {
            renewed(
                &[Some(answers[0]), Some(answers[1]), third],
                || stands,
                are_known,
            )
        };
        let (extended, gone) = (Some(Renewal::Extended), Some(Renewal::Gone));
        assert_eq!(of([Extended; 2], None, true, false), extended);
        assert_eq!(
            of([Extended, Voted], None, true, false),
            None,
            "the third may be removed"
        );
        assert_eq!(of([Extended, Voted], None, true, true), extended);
        assert_eq!(of([Extended, Voted], Some(Missing), false, true), gone);
        assert_eq!(of([Extended, Voted], None, false, true), None);
        assert_eq!(
            of([Missing; 2], Some(Extended), true, true),
            None,
            "until their lease ends"
        );
        assert_eq!(of([Missing; 2], None, false, false), gone);
        assert_eq!(of([Voted; 2], Some(Voted), false, true), gone);
    }

    #[test]
    fn lock_is_free_when_enough_leases_have_ended() {
        let left = |seconds: &[u64]| {
            seconds
                .iter()
                .map(|s| Some(Duration::from_secs(*s)))
                .collect()
        };
        assert_eq!(
            free_in(left(&[9, 5, 7]), 5, 2),
            Some(Duration::from_secs(5))
        );
        assert_eq!(
            free_in(left(&[9, 5, 7, 1, 2]), 5, 0),
            Some(Duration::from_secs(5))
        );
        assert_eq!(free_in(vec![None, None], 3, 0), None);
        assert_eq!(free_in(Vec::new(), 3, 0), None);
    }

    #[test]
    fn holder_is_the_owner_with_a_majority() {
        let held = |owner: &str, seconds| {
            let owner = OwnerText::new(owner);
            Some(LockInfo::held(HolderInfo::new(
                owner,
                Some(Duration::from_secs(seconds)),
                1,
            )))
        };
        let info = holder(&[held("a", 9), held("a", 3), held("b", 5)]).unwrap();
        assert_eq!(info.holder.unwrap().remaining, Some(Duration::from_secs(3)));
        assert_eq!(
            holder(&[held("a", 9), held("b", 3), Some(LockInfo::FREE)]),
            Some(LockInfo::FREE)
        );
        assert_eq!(holder(&[held("a", 9), Some(LockInfo::FREE), None]), None);
        assert_eq!(
            holder(&[Some(LockInfo::FREE), Some(LockInfo::FREE), None]),
            Some(LockInfo::FREE)
        );
    }
}

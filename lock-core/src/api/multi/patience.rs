//! [`Patience`]: how long an acquisition of several locks waits for one of them while it holds
//! others, derived from its earlier waits.
//!
//! During such a wait the held locks are unavailable to other threads although no work is done
//! under them. The wait is even useless if those threads hold the awaited lock and wait for the
//! held locks. But if other clients keep the queues of several locks from ever being empty, no try
//! succeeds, so there must be waits.
//!
//! If the waiters of no member are queued in the store, brief waits are enough: after some of them
//! the thread acquires the lock by chance. In a queue in the store, however, the thread must wait
//! until it is first, while it holds the other locks. Such waits are in one order for all threads.
//! They alternate with rounds that only try, because clients of other libraries wait in another
//! order, and do not release their locks meanwhile.

use std::cmp::Reverse;
use std::time::Duration;

/// The number of failed rounds after which the thread waits for the other locks while it holds
/// some, because a try never succeeds on a lock whose queue is never empty.
const ROUNDS_OF_TRIES: u32 = 3;

/// The smallest estimate of the wait for a lock. The estimate is the longest earlier wait for that
/// lock, but at least a part of the longest wait for any of the locks. It is multiplied by a random
/// number from one to two, so that two clients that wait for each other's locks do not give up at
/// the same time. If no member has a queue in the store, this time is the limit of the first wait.
const SHORTEST_TRY_WAIT: Duration = Duration::from_millis(1);
/// The longest wait for any of the locks, divided by this number, is the smallest estimate for each
/// lock.
const PART_OF_LONGEST: u32 = 16;

/// The limit of the first waits while others are held, because other clients wait for the held
/// locks. If no member has a queue in the store, a wait lasts for at most [`SHORTEST_TRY_WAIT`] in
/// the first such round and twice as long in each further round, up to this limit or the estimate,
/// whichever is longer. If a member has such a queue, the wait is the estimate, but in the first
/// such round at most this limit, and at most twice as long in each further one.
const LONGEST_TRY_WAIT: Duration = Duration::from_millis(100);

/// The failed rounds of one acquisition, and how long it waited for each member.
pub(super) struct Patience {
    /// Whether the waiters of at least one member are queued in the store.
    is_queued: bool,
    /// The number of rounds that acquired a lock and released it again because others were missing.
    failed_rounds: u32,
    /// The longest wait for each member so far; `None` if there was no wait for it.
    waited: Vec<Option<Duration>>,
}

impl Patience {
    /// Creates the state of a new acquisition. `is_queued` is true if the waiters of at least one
    /// member are queued in the store.
    pub(super) fn new(members: usize, is_queued: bool) -> Self {
        Self {
            is_queued,
            failed_rounds: 0,
            waited: vec![None; members],
        }
    }

    pub(super) fn failed_rounds(&self) -> u32 {
        self.failed_rounds
    }

    pub(super) fn round_failed(&mut self) {
        self.failed_rounds += 1;
    }

    /// Records the duration of a wait for this member, whether the wait succeeded or not.
    pub(super) fn waited(&mut self, at: usize, took: Duration) {
        self.waited[at] = self.waited[at].max(Some(took));
    }

    /// Returns how long to wait for this member while others are held. Zero in a round that only
    /// tries.
    pub(super) fn beside_others(&self, at: usize) -> Duration {
        let Some(rounds) = self.failed_rounds.checked_sub(ROUNDS_OF_TRIES) else {
            return Duration::ZERO;
        };
        let doubled = |wait: Duration, times| wait.saturating_mul(2u32.saturating_pow(times));
        if self.is_queued {
            return match self.waits_for_all() {
                true => self.of(at).min(doubled(LONGEST_TRY_WAIT, rounds / 2)),
                false => Duration::ZERO,
            };
        }
        let need = self.of(at).max(LONGEST_TRY_WAIT);
        let wait = doubled(SHORTEST_TRY_WAIT, rounds);
        wait.mul_f64(0.5 + fastrand::f64() / 2.0).min(need)
    }

    /// Returns whether this round waits for every lock, in one order for all threads. True in every
    /// second round after the first ones, if a member's waiters are queued in the store.
    pub(super) fn waits_for_all(&self) -> bool {
        let rounds = self.failed_rounds.checked_sub(ROUNDS_OF_TRIES);
        self.is_queued && rounds.is_some_and(|rounds| rounds % 2 == 0)
    }

    /// Returns the estimated wait for this member; `None` if there was no wait for it before.
    pub(super) fn known(&self, at: usize) -> Option<Duration> {
        self.waited[at].map(|_| self.of(at))
    }

    /// Returns the estimated wait for this member. It is random: if each of two threads holds the
    /// lock for which the other waits, one of them gives up first. It is at least as long as the
    /// earlier waits for the member, so that a longer wait follows a wait that failed. A member
    /// without an earlier wait gets the estimate of the member with the longest wait.
    fn of(&self, at: usize) -> Duration {
        let longest = self
            .waited
            .iter()
            .flatten()
            .max()
            .copied()
            .unwrap_or_default();
        let known = self.waited[at].map_or(longest, |it| it.max(longest / PART_OF_LONGEST));
        known.max(SHORTEST_TRY_WAIT).mul_f64(1.0 + fastrand::f64())
    }

    /// Sorts the members by their longest waits: in descending order if all are required, so that
    /// no lock is held during the longest wait, and otherwise in ascending order. Members with
    /// similar waits keep their order, because threads that wait while they hold locks must use one
    /// order.
    pub(super) fn sort(&self, order: &mut [usize], all_are_required: bool) {
        let magnitude = |at: &usize| self.waited[*at].map(magnitude);
        match all_are_required {
            true => order.sort_by_key(|at| Reverse(magnitude(at))),
            // A majority may be complete without the members that take longest.
            false => order.sort_by_key(magnitude),
        }
    }
}

/// Returns the class of a wait. Two waits have equal classes if they are between the same powers of
/// four, in milliseconds.
fn magnitude(wait: Duration) -> u32 {
    u32::try_from(wait.as_millis() + 1)
        .unwrap_or(u32::MAX)
        .ilog2()
        / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn after(waits: &[Option<Duration>]) -> Patience {
        let mut patience = Patience::new(waits.len(), true);
        let known = waits
            .iter()
            .enumerate()
            .filter_map(|(at, wait)| Some((at, (*wait)?)));
        known.for_each(|(at, wait)| patience.waited(at, wait));
        patience
    }

    #[test]
    fn wait_beside_held_locks_is_up_to_twice_the_earlier_one() {
        let patience = after(&[Some(SECOND), None, Some(SECOND / 1_000), Some(16 * SECOND)]);
        for (at, least) in [SECOND, 16 * SECOND, SECOND, 16 * SECOND]
            .into_iter()
            .enumerate()
        {
            for _ in 0..100 {
                let wait = patience.of(at);
                assert!(wait >= least && wait <= 2 * least, "member {at}: {wait:?}");
            }
        }
        assert!(Patience::new(1, true).of(0) <= 2 * SHORTEST_TRY_WAIT);
    }

    #[test]
    fn waits_in_vain_grow_without_a_limit() {
        let mut patience = after(&[Some(SECOND), Some(SECOND)]);
        for _ in 0..60 {
            patience.waited(1, patience.of(1));
        }
        assert!(patience.of(1) > 3_600 * SECOND, "{:?}", patience.of(1));
        assert!(patience.of(0) < patience.of(1));
    }

    #[test]
    fn longest_wait_comes_first_and_similar_ones_by_name() {
        let waits = [2, 20, 0, 3, 2].map(|seconds| (seconds > 0).then_some(seconds * SECOND));
        let patience = after(&waits);
        let mut order = [4, 0, 1, 2, 3];
        patience.sort(&mut order, true);
        assert_eq!(order, [1, 4, 0, 3, 2]);
        patience.sort(&mut order, false);
        assert_eq!(
            order,
            [2, 4, 0, 3, 1],
            "a majority may do without the longest"
        );
    }

    #[test]
    fn only_failed_rounds_make_tries_wait_and_each_twice_as_long() {
        let mut patience = after(&[Some(SECOND)]);
        for _ in 0..ROUNDS_OF_TRIES {
            assert!(!patience.waits_for_all() && patience.beside_others(0).is_zero());
            patience.round_failed();
        }
        assert!(patience.waits_for_all() && patience.failed_rounds() == ROUNDS_OF_TRIES);
        for limit in [100, 200, 400, 800] {
            assert_eq!(patience.beside_others(0), Duration::from_millis(limit));
            patience.round_failed();
            assert!(!patience.waits_for_all() && patience.beside_others(0).is_zero());
            patience.round_failed();
        }
        (0..1_000).for_each(|_| patience.round_failed());
        assert!(patience.beside_others(0) >= SECOND && patience.beside_others(0) <= 2 * SECOND);
    }

    #[test]
    fn locks_without_a_queue_are_waited_for_briefly() {
        let mut patience = Patience::new(2, false);
        (0..ROUNDS_OF_TRIES).for_each(|_| patience.round_failed());
        for rounds in 0..1_000 {
            let longest = Duration::from_millis(1 << rounds.min(7)).min(LONGEST_TRY_WAIT);
            let wait = patience.beside_others(0);
            assert!(wait >= longest / 2 && wait <= longest, "{rounds}: {wait:?}");
            assert!(
                !patience.waits_for_all(),
                "the one that was busy is waited for first"
            );
            patience.round_failed();
        }
        patience.waited(0, 60 * SECOND);
        assert!(
            patience.beside_others(0) >= 60 * SECOND,
            "its queue needs that"
        );
    }
}

//! [`Patience`]: how long to wait for a lock while others are held, derived from the waits so far.
//!
//! Such a wait blocks other threads from locks that are not in use, and it is useless if those
//! threads wait for the same locks in another order. But if other clients keep the queues of
//! several locks from ever being empty, no try succeeds. A lock without a queue is then acquired by
//! chance after some waits. For a lock with one a thread must wait for its turn in the queue while
//! it holds the other locks. Such waits are in one order. They alternate with rounds that only try,
//! because clients of other libraries wait in another order, and keep what they hold.

use std::cmp::Reverse;
use std::time::Duration;

/// After this number of failed rounds the client waits for the other locks while it holds some,
/// because a queue that is never empty needs it.
const ROUNDS_OF_TRIES: u32 = 3;

/// The shortest wait for a lock while others are held. The wait is up to twice the earlier waits
/// for that lock, at least this time and a part of the longest wait for any of the locks, so that
/// clients that wait in another order meet a different wait.
const SHORTEST_TRY_WAIT: Duration = Duration::from_millis(1);
/// The part of the longest wait for any of the locks that each such wait lasts at least.
const PART_OF_LONGEST: u32 = 16;

/// The longest wait while others are held, because other clients wait for the held ones. Waits
/// beside locks without a queue begin with the shortest time and double with each round, up to this
/// time, or to the need of the lock if that is more. Beside a queue the first waits end after this
/// time, and each further one after twice that.
const LONGEST_TRY_WAIT: Duration = Duration::from_millis(100);

/// The knowledge of one acquisition about the queues of its members.
pub(super) struct Patience {
    /// Whether those that wait for a member queue in the store.
    is_queued: bool,
    /// The number of rounds that acquired a lock and released it again.
    failed_rounds: u32,
    /// The longest wait for each member so far, if there was one.
    waited: Vec<Option<Duration>>,
}

impl Patience {
    /// `is_queued` if those that wait for a member queue in the store.
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

    /// Records the duration of a wait for this member, whether it succeeded or not.
    pub(super) fn waited(&mut self, at: usize, took: Duration) {
        self.waited[at] = self.waited[at].max(Some(took));
    }

    /// Returns how long to wait for this member while others are held: zero at first.
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

    /// Returns whether all locks are acquired in one order, with waits for each: with a queue, in
    /// every second round after the first ones.
    pub(super) fn waits_for_all(&self) -> bool {
        let rounds = self.failed_rounds.checked_sub(ROUNDS_OF_TRIES);
        self.is_queued && rounds.is_some_and(|rounds| rounds % 2 == 0)
    }

    /// Returns the estimated wait for this member, if there was a wait before.
    pub(super) fn known(&self, at: usize) -> Option<Duration> {
        self.waited[at].map(|_| self.of(at))
    }

    /// Returns the estimated wait for this member. It is random: of two threads that each hold the
    /// lock the other waits for, one gives up first. A wait without success makes the next one
    /// longer.
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

    /// Sorts the members by their waits, the first to be acquired with no other held. Members with
    /// similar waits keep their order: threads that wait while they hold locks must use one order.
    pub(super) fn sort(&self, order: &mut [usize], all_are_required: bool) {
        let magnitude = |at: &usize| self.waited[*at].map(magnitude);
        match all_are_required {
            true => order.sort_by_key(|at| Reverse(magnitude(at))),
            // A majority may succeed without the members that take longest.
            false => order.sort_by_key(magnitude),
        }
    }
}

/// Returns a class of similar waits: those within the same power of four.
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

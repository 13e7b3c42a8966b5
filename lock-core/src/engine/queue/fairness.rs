//! [`FairnessPolicy`]: the time for which a client may hold a lock, and the time for which it then
//! lets other clients go first.
//!
//! The store serves the first request after a release, and notifies all waiting clients in a fixed
//! order. Without a policy, the first two clients would alternate and the others starve. So a
//! client that has used up its time lets others go first. Each client also delays its attempt after
//! a notified release: the fewer releases it was notified of since its own last turn, the longer
//! the delay. While that number, which includes its own release, is smaller than the number of
//! clients, other clients have waited longer.
//!
//! The store reports with each release how many clients it notified. If it does not, a client
//! estimates the number from the usual count of releases between two of its turns. This estimate
//! favours clients that have more turns than others, so it is only a fallback.
//!
//! The store may not know all clients: some waiters subscribe at another node, and some poll. So a
//! client that recently found the lock busy assumes other waiters, whatever the store reports. A
//! client that seems to be alone leaves the lock free for a hundredth of its time.
//!
//! The policy only delays requests: it decides which client sends an attempt first, never which
//! client gets the lock.

use crate::time::Moment;
use std::time::Duration;

/// The shortest step of the delay after a release. Each client that has waited longer adds one
/// step, of twice the time of a request, because the store serves the first request and notifies
/// all clients in the same order. Otherwise some clients starve.
const SHORTEST_STEP: Duration = Duration::from_micros(300);
/// The longest such step, so that a slow connection does not leave a free lock idle.
const LONGEST_STEP: Duration = Duration::from_millis(5);
/// The longest time for which a client cedes a free lock to others, so that the lock does not idle
/// for longer.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// The reciprocal of the part of its time for which a client that knows of no waiter leaves the
/// lock free. The server does not count clients that poll or are subscribed at another server.
const PART_OF_TIME: u32 = 100;
/// The largest number of clients that are ordered, so that departed clients do not cause long
/// delays.
const MOST_CLIENTS: u16 = 64;
/// The time for which a client that had the lock counts as a waiter, because the server does not
/// count clients that poll or are subscribed at another server.
const MEMORY: Duration = Duration::from_secs(5);

/// The time and the duration of a release to the store, and the store's report about its waiters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReleaseTiming {
    pub(crate) at: Moment,
    /// The duration of the request, if the caller waited for the answer.
    pub(crate) took: Option<Duration>,
    /// The number of clients that the store notified, if it reported that.
    pub(crate) told: Option<u32>,
}

/// The fairness state of a lock, under the local lock's mutex. Uses small integers, because each
/// held lock has one.
#[derive(Default)]
pub(super) struct FairnessPolicy {
    /// The time since which this client has had the lock without a turn of other clients.
    stretch: Option<Moment>,
    /// The time since which this client has neither stood back nor found the lock held by another
    /// client.
    undisturbed: Option<Moment>,
    /// The time until which the head leaves the lock to other clients.
    stand_back: Option<Moment>,
    /// The number of notified releases since this client's last turn, including its own release.
    heard: u16,
    /// The usual number of notified releases between two turns, in quarters.
    usual: u16,
    /// The number of clients that wait for the lock, this one included, as last reported by the
    /// store.
    waiting: Option<u16>,
    /// The time at which another client was last seen to hold the lock.
    others_seen: Option<Moment>,
    /// The smoothed duration of a request in microseconds. A shorter request replaces it, a longer
    /// one adds a quarter of the difference, so that a single delayed thread does not make its
    /// client stand back for long.
    pace: u32,
    /// The time at which this client last released the lock.
    returned: Option<Moment>,
}

impl FairnessPolicy {
    /// Begins a wait, when no other thread of this client holds the lock or waits for it. Forgets
    /// other clients if this client has not had the lock for long.
    pub(super) fn begin(&mut self, now: Moment) {
        if self
            .returned
            .is_some_and(|returned| now >= returned + MEMORY)
        {
            *self = Self {
                pace: self.pace,
                ..Self::default()
            };
        }
    }

    /// Records a grant to an attempt that was sent at `sent`.
    pub(super) fn granted(&mut self, sent: Moment, now: Moment) {
        if self
            .returned
            .is_some_and(|returned| now >= returned + LONGEST_PAUSE)
        {
            self.stretch = None; // other clients had time to acquire it
        }
        // Counted from the answer, because on a busy machine the thread may run late after it read
        // the clock for `sent`.
        self.stretch.get_or_insert(now);
        self.undisturbed.get_or_insert(now);
        self.set_pace(now.since(sent));
        if self.heard > 0 {
            self.usual = self.usual - self.usual / 4 + self.heard;
        }
        self.heard = 0;
    }

    /// Records that another client holds the lock.
    pub(super) fn found_busy(&mut self, now: Moment) {
        self.stretch = None;
        self.undisturbed = None;
        self.others_seen = Some(now);
    }

    /// Records a notified release.
    pub(super) fn release_heard(&mut self) {
        self.heard = (self.heard + 1).min(1_000);
    }

    /// Returns whether this client has held the lock for its whole `budget` without a turn of
    /// others.
    pub(super) fn is_over(&self, now: Moment, budget: Duration) -> bool {
        self.stretch.is_some_and(|since| now >= since + budget)
    }

    /// Records how many clients wait for the lock, this one included.
    pub(super) fn waiting(&mut self, clients: u32) {
        self.waiting = Some(u16::try_from(clients).unwrap_or(u16::MAX));
    }

    /// Returns whether no other client is known to want the lock.
    fn is_alone(&self, now: Moment, counts_waiters: bool) -> bool {
        match self.waiting {
            Some(2..) => false,
            Some(_) if counts_waiters => true,
            _ => self.others_seen.is_none_or(|seen| now >= seen + MEMORY),
        }
    }

    /// Records a release to the store. If this client has used up its time, its next attempt comes
    /// after those of the others. The store knows all waiters only if it `counts_waiters`.
    pub(super) fn released(
        &mut self,
        ReleaseTiming { at: now, took, .. }: ReleaseTiming,
        budget: Duration,
        counts_waiters: bool,
    ) {
        if let Some(took) = took {
            self.set_pace(took);
        }
        self.returned = Some(now);
        // The time of the next attempt counts too: far from the store, an attempt of this client
        // takes as long as one of another client.
        if budget.is_zero() || !self.is_over(now + self.pace(), budget) {
            return;
        }
        self.stretch = None;
        // The pause allows other waiters to be notified, wake up and send their attempts.
        let pause = (self.step() * 3).max(self.delay()).min(LONGEST_PAUSE);
        if self.is_alone(now, counts_waiters) {
            let is_due = |since| now >= since + pause * PART_OF_TIME;
            if counts_waiters || !self.undisturbed.is_some_and(is_due) {
                return;
            }
        }
        self.undisturbed = None;
        // If the caller does not wait for the answer, the release was sent only just now.
        let on_its_way = took.map_or(self.pace().min(LONGEST_PAUSE), |_| Duration::ZERO);
        self.stand_back = Some(now + on_its_way + pause);
    }

    /// Resets the turn: no thread of this client waits any more, or the lock was lost.
    pub(super) fn forget(&mut self) {
        self.stretch = None;
        self.undisturbed = None;
        self.stand_back = None;
    }

    /// Returns the time until which the head leaves the lock to others; `None` if the head's
    /// deadline is earlier.
    pub(super) fn stand_back(&self, deadline: Option<Moment>) -> Option<Moment> {
        self.stand_back
            .filter(|until| deadline.is_none_or(|deadline| deadline > *until))
    }

    /// Ends the pause for other clients: the head contends now.
    pub(super) fn contending(&mut self) {
        self.stand_back = None;
    }

    /// Returns how long this client delays its attempt after a notified release, because other
    /// clients have waited longer.
    pub(super) fn delay(&self) -> Duration {
        (self.step() * u32::from(self.before_us())).min(LONGEST_PAUSE)
    }

    /// Returns whether several clients have waited longer. Far from the store, this client's
    /// attempt would arrive after a release but before the attempts of those clients. So this
    /// client peeks first, and attempts only if they leave the lock free.
    pub(super) fn is_behind(&self) -> bool {
        self.before_us() > 1
    }

    /// Returns the number of notified releases since the last turn.
    pub(super) fn releases(&self) -> u16 {
        self.heard
    }

    /// Returns how many clients have waited longer.
    fn before_us(&self) -> u16 {
        let clients = self.waiting.unwrap_or(self.usual / 4).min(MOST_CLIENTS);
        clients.saturating_sub(self.heard.max(1))
    }

    fn step(&self) -> Duration {
        (self.pace() * 2).clamp(SHORTEST_STEP, LONGEST_STEP)
    }

    fn pace(&self) -> Duration {
        Duration::from_micros(self.pace.into())
    }

    fn set_pace(&mut self, took: Duration) {
        let took = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        let longer = took.saturating_sub(self.pace);
        self.pace = if self.pace == 0 {
            took
        } else {
            took.min(self.pace) + longer / 4
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    /// Makes the policy of a client that regularly gets the lock after `heard` releases.
    fn used_to(heard: u32) -> FairnessPolicy {
        let mut fairness = FairnessPolicy::default();
        for round in 0..40 {
            (0..heard).for_each(|_| fairness.release_heard());
            fairness.granted(moment(round), moment(round));
        }
        fairness
    }

    #[test]
    fn client_that_waited_longer_asks_earlier() {
        let mut fairness = used_to(8);
        let mut last = Duration::MAX;
        for _ in 0..7 {
            fairness.release_heard();
            assert!(fairness.delay() < last, "{:?}", fairness.delay());
            last = fairness.delay();
        }
        fairness.release_heard();
        assert_eq!(fairness.delay(), Duration::ZERO);
        fairness.release_heard();
        assert_eq!(fairness.delay(), Duration::ZERO);
    }

    #[test]
    fn lone_client_does_not_stand_back() {
        let budget = Duration::from_millis(5);
        let over = |told| {
            let mut fairness = FairnessPolicy::default();
            fairness.granted(moment(0), moment(0));
            fairness.waiting(told);
            fairness.released(
                ReleaseTiming {
                    at: moment(6),
                    took: None,
                    told: None,
                },
                budget,
                false,
            );
            fairness
        };
        assert_eq!(over(1).stand_back(None), None);
        assert!(over(2).stand_back(None).is_some());
        let mut fairness = over(1);
        fairness.found_busy(moment(8));
        fairness.granted(moment(10), moment(10));
        let released = |at| ReleaseTiming {
            at: moment(at),
            took: None,
            told: None,
        };
        fairness.released(released(16), budget, false);
        assert!(
            fairness.stand_back(None).is_some(),
            "another client held the lock since"
        );
        fairness.contending();
        fairness.granted(moment(6_000), moment(6_000));
        fairness.released(released(6_006), budget, false);
        assert_eq!(
            fairness.stand_back(None),
            None,
            "the other client was seen too long ago"
        );
        fairness.granted(moment(6_085), moment(6_085));
        fairness.released(released(6_095), budget, true);
        assert_eq!(
            fairness.stand_back(None),
            None,
            "the store counts all waiters"
        );
        fairness.granted(moment(6_095), moment(6_095));
        fairness.released(released(6_105), budget, false);
        assert!(
            fairness.stand_back(None).is_some(),
            "the store does not count all waiters"
        );
    }

    #[test]
    fn one_slow_request_makes_the_client_stand_back_for_little_longer() {
        let stands_back = |requests: &[u64]| {
            let mut fairness = FairnessPolicy::default();
            fairness.waiting(8);
            for micros in requests {
                fairness.granted(moment(0), Moment::from_nanos(micros * 1_000));
            }
            let timing = ReleaseTiming {
                at: moment(100),
                took: None,
                told: None,
            };
            fairness.released(timing, Duration::from_millis(5), true);
            fairness.stand_back(None).unwrap().since(moment(100))
        };
        let (usual, slow) = (stands_back(&[300; 9]), stands_back(&[2_000; 9]));
        let once = stands_back(&[300, 300, 2_000]);
        assert!(
            usual < once && once < slow / 2,
            "{usual:?}, {once:?}, {slow:?}"
        );
        // When all requests become slow, the pause is soon as long as if they had always been slow.
        assert!(stands_back(&[[300; 10], [2_000; 10]].concat()) > slow * 9 / 10);
        assert_eq!(stands_back(&[2_000, 300]), usual);
    }

    #[test]
    fn old_waiter_count_is_forgotten() {
        let mut fairness = used_to(20);
        fairness.waiting(200);
        let timing = ReleaseTiming {
            at: moment(100),
            took: None,
            told: None,
        };
        fairness.released(timing, Duration::from_millis(5), false);
        fairness.release_heard();
        fairness.begin(moment(200));
        assert!(fairness.is_behind());
        fairness.begin(moment(6_000));
        assert!(!fairness.is_behind() && fairness.delay().is_zero());
        fairness.waiting(200);
        (0..MOST_CLIENTS).for_each(|_| fairness.release_heard());
        assert!(
            !fairness.is_behind(),
            "a limited number of clients is waited for"
        );
    }

    #[test]
    fn one_or_two_clients_ask_without_delay() {
        assert_eq!(FairnessPolicy::default().delay(), Duration::ZERO);
        let mut fairness = used_to(2);
        fairness.release_heard();
        fairness.release_heard();
        assert_eq!(fairness.delay(), Duration::ZERO);
    }

    #[test]
    fn departed_clients_are_forgotten() {
        let mut fairness = used_to(20);
        for _ in 0..40 {
            fairness.release_heard();
            fairness.granted(moment(0), moment(0));
        }
        fairness.release_heard();
        assert_eq!(fairness.delay(), Duration::ZERO);
    }

    #[test]
    fn waiter_count_of_the_store_overrides_the_estimate() {
        let mut fairness = used_to(2);
        fairness.waiting(8);
        for _ in 0..7 {
            fairness.release_heard();
            assert!(!fairness.delay().is_zero(), "others have waited for longer");
        }
        fairness.release_heard();
        assert_eq!(fairness.delay(), Duration::ZERO);
        let mut fairness = used_to(20);
        fairness.waiting(8);
        (0..8).for_each(|_| fairness.release_heard());
        assert_eq!(
            fairness.delay(),
            Duration::ZERO,
            "the client had fewer turns than the others"
        );
    }

    #[test]
    fn delay_and_stand_back_are_limited() {
        let mut fairness = used_to(900);
        assert!(fairness.delay() > LONGEST_PAUSE / 4);
        fairness.granted(moment(0), moment(60_000));
        assert_eq!(fairness.delay(), LONGEST_PAUSE);
        let took = Some(Duration::from_secs(10));
        let timing = ReleaseTiming {
            at: moment(70_000),
            took,
            told: None,
        };
        fairness.released(timing, Duration::from_millis(5), false);
        assert_eq!(fairness.stand_back(None), Some(moment(70_050)));
        assert_eq!(fairness.stand_back(Some(moment(70_050))), None);
    }
}

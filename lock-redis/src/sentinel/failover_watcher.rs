//! A background task of [`MasterTracker`]: hears of failovers, and of requests that fail, and then
//! has the sentinels asked. It keeps nothing alive, and ends when the tracker is gone.
//!
//! The sentinels are listened to all at once, each on a connection of its own: very often the one
//! on the machine of the master is silent when the master is, and the first that hears of a
//! failover tells it.

use super::master_tracker::MasterTracker;
use super::watcher_signal::{LOOK_AGAIN, LOOKS};
use lock_core::Moment;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The time between two counts of the replicas while a request needs the number or a sentinel does
/// not know of one, so that a new replica counts soon.
const RECOUNT: Duration = Duration::from_secs(1);

impl MasterTracker {
    /// Does what is due, and says when to look again.
    pub(super) fn watch_for_failovers(&self) -> Moment {
        self.hear_late();
        self.release_again();
        let signal = &self.signal_to_watcher;
        let looks = signal.looks.load(Ordering::SeqCst);
        let (now, asked) = (self.now(), self.last_asked());
        let due = if looks > 0 {
            asked + LOOK_AGAIN * (1 << LOOKS.saturating_sub(looks))
        } else if signal.has_failed_request.load(Ordering::SeqCst) {
            self.may_be_asked_at()
        } else if self.wants_count(now) || self.wants_replicas() {
            asked + RECOUNT
        } else {
            Moment::NEVER
        };
        if now < due {
            return due;
        }
        // Before the question: what comes while it is asked is to be looked into once more.
        signal.has_failed_request.store(false, Ordering::SeqCst);
        let less = looks.saturating_sub(1);
        let (read, written) = (Ordering::SeqCst, Ordering::SeqCst);
        let _more_news = signal.looks.compare_exchange(looks, less, written, read);
        self.ask_now();
        self.now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::AddressMap;
    use crate::node::NodeSettings;
    use crate::protocol::Format;
    use crate::sentinel::sentinel_set::SentinelSet;
    use crate::sentinel::watcher_signal::WatcherSignal;
    use lock_core::{ClientId, Clock, Config, Context, SystemClock};
    use std::sync::Arc;

    /// A late answer keeps the tracker alive for a moment, and may drop the last reference.
    #[test]
    fn watcher_ends_with_the_last_user_of_the_tracker() {
        let context = Context::new(Arc::new(SystemClock), ClientId::random());
        let config = Config::from_url("redis+sentinel://127.0.0.1:1/m").unwrap();
        let format = Format::of(&config).unwrap();
        let settings = NodeSettings::new(&config, 0, &context, format).unwrap();
        let signal_to_watcher = Arc::<WatcherSignal>::default();
        let sentinel_set = SentinelSet::new(
            "m",
            [],
            AddressMap::default(),
            &settings,
            Arc::clone(&signal_to_watcher),
        )
        .unwrap();
        let tracker = MasterTracker::new(sentinel_set, settings, Arc::clone(&signal_to_watcher));
        let by = SystemClock.now() + Duration::from_secs(10);
        let wait_while = |is: &dyn Fn() -> bool| {
            while is() {
                assert!(
                    SystemClock.now() < by,
                    "the watcher has not reacted in time"
                );
                std::thread::yield_now();
            }
        };
        tracker.start_watcher().unwrap();
        // After a question that no sentinel answered, it sleeps.
        tracker.report_failure();
        wait_while(&|| tracker.last_asked() == Moment::from_nanos(0));
        wait_while(&|| Arc::strong_count(&tracker) > 1);
        drop(tracker);
        wait_while(&|| signal_to_watcher.task.is_running());
    }
}

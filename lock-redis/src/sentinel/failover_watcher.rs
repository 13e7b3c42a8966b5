//! The failover watcher: the background task of [`MasterTracker`] that queries the sentinels after
//! their messages, after requests that failed, and once a second while the number of replicas is
//! needed or a listed replica has not been reached. The task also judges late answers, and repeats
//! recent releases on a new master. Between its turns the task does not keep the tracker alive, and
//! it ends when the tracker is dropped.
//!
//! The client subscribes to the messages of all sentinels, each on a connection of its own, because
//! the sentinel on the master's machine often fails together with the master. The first sentinel
//! that announces a failover wakes the task.

use super::master_tracker::MasterTracker;
use super::watcher_signal::{LOOK_AGAIN, LOOKS};
use lock_core::Moment;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The time between two counts of the replicas while a request needs their number, or a sentinel
/// lists a replica that it has not reached, so that a new replica counts soon.
const RECOUNT: Duration = Duration::from_secs(1);

impl MasterTracker {
    /// Does the work of the failover watcher that is due, and returns the time of the next turn.
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
        // Reset before the query: a failure during the query requires another query.
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

    /// A sentinel's late answer starts a turn of the watcher, which keeps the tracker alive for a
    /// moment. So the watcher's own thread may drop the last reference.
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
        // The watcher sleeps after a query that no sentinel answered.
        tracker.report_failure();
        wait_while(&|| tracker.last_asked() == Moment::from_nanos(0));
        wait_while(&|| Arc::strong_count(&tracker) > 1);
        drop(tracker);
        wait_while(&|| signal_to_watcher.task.is_running());
    }
}

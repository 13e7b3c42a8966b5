//! The watcher: a thread that hears of failovers, and of requests that fail, and then has the
//! sentinels asked.
//!
//! The sentinels are listened to all at once, each on a connection of its own: very often the one
//! on the machine of the master is silent when the master is, and the first that hears of a
//! failover tells it.

use super::master_tracker::MasterTracker;
use super::watcher_signal::{LOOK_AGAIN, LOOKS, WatcherSignal};
use lock_core::backend::contain;
use lock_core::{Clock, Moment};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

/// How often they are asked how many replicas there are, while a request needs the number.
const RECOUNT: Duration = Duration::from_secs(1);

/// Starts the thread. It keeps nothing alive, and goes when what it looks out for is gone.
pub(super) fn start(
    tracker: Weak<MasterTracker>,
    signal_to_watcher: Arc<WatcherSignal>,
    clock: Arc<dyn Clock>,
) -> std::io::Result<()> {
    let watcher = FailoverWatcher { tracker, signal_to_watcher };
    thread::Builder::new().name("distlock-master".to_owned()).spawn(move || {
        while let Some(until) = watcher.turn(&*clock) {
            clock.wait(&watcher.signal_to_watcher.signal, until);
        }
    })?;
    Ok(())
}

struct FailoverWatcher {
    tracker: Weak<MasterTracker>,
    signal_to_watcher: Arc<WatcherSignal>,
}

impl FailoverWatcher {
    /// Does what is due, and says when to look again; `None`: the tracker is gone.
    fn turn(&self, clock: &dyn Clock) -> Option<Moment> {
        // Kept for as long as this turn takes: asking the sentinels has a bound.
        let tracker = self.tracker.upgrade()?;
        contain(|| tracker.release_again());
        let looks = self.signal_to_watcher.looks.load(Ordering::SeqCst);
        let (now, asked) = (clock.now(), tracker.last_asked());
        let due = if looks > 0 {
            asked + LOOK_AGAIN * (1 << LOOKS.saturating_sub(looks))
        } else if self.signal_to_watcher.doubt.load(Ordering::SeqCst) {
            tracker.may_be_asked_at()
        } else if tracker.wants_count(now) {
            asked + RECOUNT
        } else {
            Moment::NEVER
        };
        if now < due {
            return Some(due);
        }
        // Before the question: what comes while it is asked is to be looked into once more.
        self.signal_to_watcher.doubt.store(false, Ordering::SeqCst);
        let less = looks.saturating_sub(1);
        let _more_news = self.signal_to_watcher.looks.compare_exchange(
            looks,
            less,
            Ordering::SeqCst,
            Ordering::SeqCst,
        );
        // Whatever panics there, the next turn comes.
        contain(|| tracker.ask_now());
        Some(clock.now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Format;
    use crate::node::NodeSettings;
    use crate::sentinel::sentinel_set::{Credentials, SentinelSet};
    use lock_core::{ClientId, Config, Context, SystemClock};

    /// An answer that comes late keeps all of it for a moment, and may be the last to let go.
    #[test]
    fn watcher_ends_with_the_last_user_of_the_tracker() {
        let context = Context::new(Arc::new(SystemClock), ClientId::random());
        let config = Config::from_url("redis+sentinel://127.0.0.1:1/m").unwrap();
        let settings = NodeSettings::new(&config, 0, &context).unwrap();
        let signal_to_watcher = Arc::<WatcherSignal>::default();
        let sentinel_set = SentinelSet::new(
            "m",
            [],
            Credentials::default(),
            &settings,
            Arc::clone(&signal_to_watcher),
        )
        .unwrap();
        let format = Format::of(&config).unwrap();
        let tracker =
            MasterTracker::new(sentinel_set, settings, format, Arc::clone(&signal_to_watcher));
        let by = SystemClock.now() + Duration::from_secs(10);
        let wait_while = |is: &dyn Fn() -> bool| {
            while is() {
                assert!(SystemClock.now() < by, "the watcher does not do its part");
                thread::yield_now();
            }
        };
        tracker.start_watcher().unwrap();
        // After a question that no sentinel answered, it sleeps.
        tracker.doubt();
        wait_while(&|| tracker.last_asked() == Moment::from_nanos(0));
        wait_while(&|| Arc::strong_count(&tracker) > 1);
        drop(tracker);
        wait_while(&|| Arc::strong_count(&signal_to_watcher) > 1);
    }
}

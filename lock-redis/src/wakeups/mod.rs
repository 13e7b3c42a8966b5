//! [`Subscriber`]: receives the releases for all waiters, on one connection and one thread.
//!
//! A release arrives as a message, if the releasing client publishes one: on the lock's channel or,
//! if the waiters of the lock queue in the store, on a channel of this client. If the server
//! supports client tracking, and `tracking=off` is not set, a release also arrives as a report that
//! the lock's key has changed.
//!
//! Only the worker thread uses the connection. A watcher adds its watch to the
//! [`SubscriptionTable`]. If the channel is not subscribed yet, the watcher wakes the worker
//! through a socket pair, and waits for the confirmation: one round trip.
//!
//! - `table`: the watches on each channel, and the state of its subscription
//! - `tracked_keys`: the keys of watched locks, whose changes the server reports
//! - `tracking`: the setting `tracking=`, for reports of key changes
//! - `channel`: the channels on which releases are published
//! - `worker`: the thread, one connection after the other
//! - `connection`: one connection in subscriber mode
//! - `named_owner`: the message of a release to the next waiter
//! - `waker`: the socket pair
//! - `poll_interval`: the interval at which a waiter polls if releases are not published

mod channel;
mod connection;
mod named_owner;
mod poll_interval;
mod table;
mod tracked_keys;
mod tracking;
mod waker;
mod worker;

pub(crate) use channel::{ChannelKind, ReleaseChannel, unpublished};
pub(crate) use connection::REPORTS_SINCE;
pub(crate) use poll_interval::{PollInterval, UNTRACKED};
pub(crate) use tracking::OPTION as TRACKING;
pub(crate) use tracking::{NotTracked, Tracking, warn as warn_of_tracking};
pub(crate) use worker::{ChangeListener, MessageListener};

use crate::connection::Dialer;
use lock_core::backend::{Failure, Wake, Watch, no_thread};
use lock_core::{Error, Moment};
use parking_lot::Mutex;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use table::{SubscriptionState, SubscriptionTable, WatchId};
use waker::Waker;
use worker::{Shared, SubscriberWorker, Trouble};

/// Receives the releases for all waiters; see the [module](self).
pub(crate) struct Subscriber {
    shared: Arc<Shared>,
    tracking: Tracking,
}

impl Subscriber {
    /// Returns a subscriber that has no thread and no connection until the first watch, or the
    /// first call of [`reports_to`](Self::reports_to).
    pub(crate) fn new(dialer: Arc<Dialer>, tracking: Tracking) -> Self {
        let table = Mutex::new(SubscriptionTable::default());
        Self {
            shared: Arc::new(Shared {
                dialer,
                table,
                trouble: OnceLock::new(),
                on_change: OnceLock::new(),
                on_message: OnceLock::new(),
                reports_to: AtomicU64::new(0),
            }),
            tracking,
        }
    }

    /// Calls `wake` after each message or report of a release of a lock, and when these may have
    /// been missed, until the watch is dropped.
    ///
    /// Waits until `by` for the server's confirmation of the subscription, if it is not confirmed
    /// yet.
    pub(crate) fn watch(
        &self,
        releases: &ReleaseChannel,
        wake: Arc<dyn Wake>,
        by: Moment,
    ) -> Result<Watch, Failure> {
        let mut table = self.shared.table.lock();
        self.start(&mut table)?;
        let now = self.shared.dialer.clock().now();
        let (id, standing) = table.add_waiter(releases, wake, now);
        drop(table);
        let registration = Registration {
            shared: Arc::clone(&self.shared),
            id,
        };
        let SubscriptionState::Awaited(confirmation) = standing else {
            return Ok(Watch::new(registration));
        };
        self.shared.dialer.clock().wait(&confirmation.signal, by);
        // The table is locked, so that a confirmation that arrives at this moment is not missed.
        let table = self.shared.table.lock();
        let outcome = confirmation.take();
        let trouble = table.trouble().cloned();
        drop(table);
        match outcome {
            Some(Ok(())) => Ok(Watch::new(registration)),
            Some(Err(failure)) => Err(failure),
            None => Err(Failure::NotSent(trouble.unwrap_or_else(|| {
                let server = self.shared.dialer.server();
                Error::unavailable(format!("{server} did not confirm a subscription in time"))
            }))),
        }
    }

    /// Watches the releases of a lock without waiting for the confirmation. `wake` is also called
    /// at the confirmation, because messages may have been missed until then.
    pub(crate) fn follow_releases(
        &self,
        releases: &ReleaseChannel,
        wake: Arc<dyn Wake>,
    ) -> Result<Watch, Failure> {
        let now = self.shared.dialer.clock().now();
        self.start_following(|table| table.add_waiter(releases, wake, now))
    }

    /// Watches a channel of messages that are no releases, without waiting for the confirmation. If
    /// the server refuses the subscription, no messages arrive.
    pub(crate) fn follow(
        &self,
        kind: ChannelKind,
        channel: &str,
        wake: Arc<dyn Wake>,
    ) -> Result<Watch, Failure> {
        self.start_following(|table| table.add(kind, channel, wake))
    }

    fn start_following(
        &self,
        add: impl FnOnce(&mut SubscriptionTable) -> (WatchId, SubscriptionState),
    ) -> Result<Watch, Failure> {
        let mut table = self.shared.table.lock();
        self.start(&mut table)?;
        let (id, _) = add(&mut table);
        table.missed(&id);
        drop(table);
        Ok(Watch::new(Registration {
            shared: Arc::clone(&self.shared),
            id,
        }))
    }

    /// Requests reports of changes of this key if the waiter `is_first` in its queue, so that the
    /// lock's waiters are also woken after a release that is not published. For any other waiter,
    /// ends such a request. Returns true if the reports are in effect.
    pub(crate) fn track(&self, key: &str, is_first: bool) -> bool {
        let now = self.shared.dialer.clock().now();
        let mut table = self.shared.table.lock();
        table.track(key, is_first, now);
        table.is_tracked(key)
    }

    /// Returns the number of the connection to which other connections can direct the reports of
    /// changes of their keys; `None` if tracking is off, or while there is no such connection; in
    /// the second case, the worker is woken to make one. The listener of the first call receives
    /// each report.
    pub(crate) fn reports_to(
        &self,
        on_change: impl FnOnce() -> Arc<dyn ChangeListener>,
    ) -> Option<u64> {
        if self.tracking == Tracking::Off {
            return None;
        }
        // Before the number is read, so that the listener receives every report to that connection.
        self.shared.on_change.get_or_init(on_change);
        let id = self.shared.reports_to.load(Ordering::Acquire);
        if id == 0 {
            let mut table = self.shared.table.lock();
            // Without a thread, the next renewal notices a loss, and tries to start the thread
            // again.
            if self.try_start(&mut table).is_ok() {
                table.want_connection();
            }
        }
        Some(id).filter(|id| *id != 0)
    }

    /// Sets the function that the worker calls with each message. Must be set before the first
    /// watch.
    pub(crate) fn on_message(&self, read: MessageListener) {
        let _once = self.shared.on_message.set(read);
    }

    /// Sets the function that the worker calls when a connection is lost or cannot be made.
    pub(crate) fn on_trouble(&self, tell: Trouble) {
        let _once = self.shared.trouble.set(tell);
    }

    /// Starts the worker if it is not running.
    fn start(&self, table: &mut SubscriptionTable) -> Result<(), Failure> {
        self.try_start(table).map_err(|error| {
            Failure::NotSent(no_thread(
                "cannot start the thread that hears of releases",
                error,
            ))
        })
    }

    fn try_start(&self, table: &mut SubscriptionTable) -> io::Result<()> {
        if table.has_waker() {
            return Ok(());
        }
        let (waker, poller) = Waker::pair()?;
        let shared = Arc::clone(&self.shared);
        let tracking = self.tracking;
        thread::Builder::new()
            .name("distlock-sub".to_owned())
            .spawn(move || {
                SubscriberWorker::new(shared, poller, tracking).run();
            })?;
        table.set_waker(waker);
        Ok(())
    }
}

/// Ends the worker and its connection, without waiting for them, because the worker may be
/// dialling.
impl Drop for Subscriber {
    fn drop(&mut self) {
        self.shared.table.lock().close();
    }
}

/// A watch; ends when dropped.
struct Registration {
    shared: Arc<Shared>,
    id: WatchId,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let now = self.shared.dialer.clock().now();
        let wake = self.shared.table.lock().remove(&self.id, now);
        // Dropped without the mutex, because this may run foreign code.
        drop(wake);
    }
}

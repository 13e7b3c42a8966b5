//! [`Subscriber`]: receives releases for all waiters, on one connection and one thread.
//!
//! A release is a message on the lock's channel, if the client that released publishes any; and in
//! any case a change of the lock's key, which the server reports (client tracking).
//!
//! The worker thread alone has the connection. A watcher adds its watch to the
//! [`SubscriptionTable`], wakes the worker through a socket pair, and parks until the confirmation:
//! one round trip.
//!
//! - `table`: the watches on each channel, and the state of its subscription
//! - `tracked_keys`: the keys of watched locks, whose changes the server reports
//! - `tracking`: whether it is asked to
//! - `channel`: where releases are published
//! - `worker`: the thread, one connection after the other
//! - `connection`: one connection in subscriber mode
//! - `named_owner`: what a release of a fair lock says
//! - `waker`: the socket pair
//! - `poll_interval`: how often a waiter asks again where releases are not published

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

/// Receives releases for all waiters. See the [module's text](self).
pub(crate) struct Subscriber {
    shared: Arc<Shared>,
    tracking: Tracking,
}

impl Subscriber {
    /// A subscriber without thread and connection until the first watch.
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

    /// Calls `wake` after every release of a lock, until the watch is dropped.
    ///
    /// Waits for the server's confirmation until `by`.
    pub(crate) fn watch(
        &self,
        releases: &ReleaseChannel,
        wake: Arc<dyn Wake>,
        by: Moment,
    ) -> Result<Watch, Failure> {
        let mut table = self.shared.table.lock();
        self.start(&mut table)?;
        let (id, standing) = table.add_waiter(releases, wake);
        drop(table);
        let registration = Registration {
            shared: Arc::clone(&self.shared),
            id,
        };
        let SubscriptionState::Awaited(confirmation) = standing else {
            return Ok(Watch::new(registration));
        };
        self.shared.dialer.clock().wait(&confirmation.signal, by);
        // Under the lock: a confirmation that comes just now counts.
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

    /// The same without waiting for the confirmation: `wake` is called then, too, because messages
    /// may have been missed.
    pub(crate) fn follow_releases(
        &self,
        releases: &ReleaseChannel,
        wake: Arc<dyn Wake>,
    ) -> Result<Watch, Failure> {
        self.start_following(|table| table.add_waiter(releases, wake))
    }

    /// The same for a channel of other messages. Where the server refuses, there are none.
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

    /// Whether waiters of the lock under this key are woken after every release, also by a client
    /// that publishes none.
    pub(crate) fn is_tracked(&self, key: &str) -> bool {
        self.shared.table.lock().is_tracked(key)
    }

    /// The connection to which other connections may have changes reported, of keys that they read:
    /// `None` while there is none. Each report is passed to what the first call gave here.
    pub(crate) fn reports_to(
        &self,
        on_change: impl FnOnce() -> Arc<dyn ChangeListener>,
    ) -> Option<u64> {
        if self.tracking == Tracking::Off {
            return None;
        }
        // First: what is reported from here on must reach it.
        self.shared.on_change.get_or_init(on_change);
        let id = self.shared.reports_to.load(Ordering::Acquire);
        if id == 0 {
            let mut table = self.shared.table.lock();
            // Without a thread the next renewal tells of a loss, and asks once more.
            if self.try_start(&mut table).is_ok() {
                table.want_connection();
            }
        }
        Some(id).filter(|id| *id != 0)
    }

    /// Whether the server still counts us as a subscriber of a channel that has no watches.
    pub(crate) fn lingering(&self) -> impl Fn(&str) -> bool + Send + use<> {
        let shared = Arc::clone(&self.shared);
        move |channel| shared.table.lock().lingers(channel)
    }

    /// Has the worker call `read` with each message. To be set before the first watch.
    pub(crate) fn on_message(&self, read: MessageListener) {
        let _once = self.shared.on_message.set(read);
    }

    /// Has the worker call `tell` whenever a connection was lost or could not be made.
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

/// Ends the worker and its connection, without waiting: it may be dialling.
impl Drop for Subscriber {
    fn drop(&mut self) {
        self.shared.table.lock().close();
    }
}

/// One watch; ends when dropped.
struct Registration {
    shared: Arc<Shared>,
    id: WatchId,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let now = self.shared.dialer.clock().now();
        let wake = self.shared.table.lock().remove(&self.id, now);
        // Without the lock: dropping it may run foreign code.
        drop(wake);
    }
}

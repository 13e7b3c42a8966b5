//! [`Subscriber`]: hears of releases, for everybody who waits, on one connection and one thread.
//!
//! The thread alone owns the connection. Whoever wants to watch writes that on the [`SubscriptionTable`], wakes the thread through a
//! socket pair, and parks until the server has confirmed: one round trip, and no interval at which anything is polled.
//!
//! - `table`: who watches what, and how far each subscription is
//! - `worker`: the thread, one connection after the other
//! - `connection`: one connection: what was asked on it, and what comes in
//! - `waker`: the socket pair

mod connection;
mod table;
mod waker;
mod worker;

use crate::connection::Dialer;
use crate::format::PollInterval;
use lock_core::backend::{Failure, Wake, Watch, no_thread};
use lock_core::{Error, Moment};
use parking_lot::Mutex;
use std::io;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;
use table::{SubscriptionState, SubscriptionTable, WatchId};
use waker::Waker;
use worker::SubscriberWorker;

/// Which kind of channels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChannelKind {
    /// Every node of a cluster tells of what is published on any of them.
    Plain,
    /// Only the nodes of the channel's slot do.
    Sharded,
}

impl ChannelKind {
    /// The command that publishes there.
    pub(crate) fn publish(self) -> &'static str {
        match self {
            Self::Plain => "PUBLISH",
            Self::Sharded => "SPUBLISH",
        }
    }
}

/// Who waits for which channel. See the [module's text](self).
pub(crate) struct Subscriber {
    shared: Arc<Shared>,
    command_timeout: Duration,
}

/// What the thread and those who watch share.
struct Shared {
    dialer: Arc<Dialer>,
    /// Written and read by the thread and by all who watch. Nobody is woken and no foreign code runs under it.
    table: Mutex<SubscriptionTable>,
    /// Who is told that there is no connection.
    trouble: OnceLock<Trouble>,
}

/// See [`Subscriber::on_trouble`]. Must be short.
pub(crate) type Trouble = Arc<dyn Fn() + Send + Sync>;

impl Subscriber {
    /// A subscriber that has no thread and no connection until somebody watches.
    pub(crate) fn new(dialer: Arc<Dialer>, command_timeout: Duration) -> Self {
        let table = Mutex::new(SubscriptionTable::default());
        Self {
            shared: Arc::new(Shared { dialer, table, trouble: OnceLock::new() }),
            command_timeout,
        }
    }

    /// Calls `wake` at every message on `channel`, which tells of releases, from the return of this until the watch is
    /// dropped. Where the server will not tell, it is called so often.
    ///
    /// Waits for the server's confirmation until `by`.
    pub(crate) fn watch(
        &self,
        kind: ChannelKind,
        channel: &str,
        polls: PollInterval,
        wake: Arc<dyn Wake>,
        by: Moment,
    ) -> Result<Watch, Failure> {
        let mut table = self.shared.table.lock();
        self.start(&mut table)?;
        let (id, standing) = table.add(kind, channel, Some(polls), wake);
        drop(table);
        let registration = Registration { shared: Arc::clone(&self.shared), id };
        let SubscriptionState::Awaited(confirmation) = standing else {
            return Ok(Watch::new(registration));
        };
        self.shared.dialer.clock().wait(&confirmation.signal, by);
        // Under the table's lock, or a confirmation that comes just now could be missed.
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

    /// The same without waiting for the confirmation, for whoever may have missed messages already: `wake` is called
    /// when the subscription stands, too.
    pub(crate) fn follow_releases(
        &self,
        kind: ChannelKind,
        channel: &str,
        polls: PollInterval,
        wake: Arc<dyn Wake>,
    ) -> Result<Watch, Failure> {
        self.start_following(kind, channel, Some(polls), wake)
    }

    /// The same for a channel that tells of something else than releases. Where the server will not tell, it does not.
    pub(crate) fn follow(
        &self,
        kind: ChannelKind,
        channel: &str,
        wake: Arc<dyn Wake>,
    ) -> Result<Watch, Failure> {
        self.start_following(kind, channel, None, wake)
    }

    fn start_following(
        &self,
        kind: ChannelKind,
        channel: &str,
        polls: Option<PollInterval>,
        wake: Arc<dyn Wake>,
    ) -> Result<Watch, Failure> {
        let mut table = self.shared.table.lock();
        self.start(&mut table)?;
        let (id, _) = table.add(kind, channel, polls, wake);
        table.missed(&id);
        drop(table);
        Ok(Watch::new(Registration { shared: Arc::clone(&self.shared), id }))
    }

    /// Says of a channel whether the server takes us for somebody who waits there, and nobody does any more.
    pub(crate) fn lingering(&self) -> impl Fn(&str) -> bool + Send + use<> {
        let shared = Arc::clone(&self.shared);
        move |channel| shared.table.lock().lingers(channel)
    }

    /// From now on `tell` is called, by the subscriber's thread, whenever a connection was lost or there was none to be had.
    pub(crate) fn on_trouble(&self, tell: Trouble) {
        let _once = self.shared.trouble.set(tell);
    }

    /// Starts the thread if it is not running yet.
    fn start(&self, table: &mut SubscriptionTable) -> Result<(), Failure> {
        self.try_start(table).map_err(|error| {
            Failure::NotSent(no_thread("cannot start the thread that hears of releases", error))
        })
    }

    fn try_start(&self, table: &mut SubscriptionTable) -> io::Result<()> {
        if table.has_waker() {
            return Ok(());
        }
        let (waker, poller) = Waker::pair()?;
        let shared = Arc::clone(&self.shared);
        let command_timeout = self.command_timeout;
        thread::Builder::new()
            .name("distlock-sub".to_owned())
            .spawn(move || SubscriberWorker::new(shared, poller, command_timeout).run())?;
        table.set_waker(waker);
        Ok(())
    }
}

/// Ends the thread and its connection, without waiting for them: it may be dialling.
impl Drop for Subscriber {
    fn drop(&mut self) {
        self.shared.table.lock().close();
    }
}

/// One watch; ends with it.
struct Registration {
    shared: Arc<Shared>,
    id: WatchId,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let now = self.shared.dialer.clock().now();
        let wake = self.shared.table.lock().remove(&self.id, now);
        // Only now: dropping it may run anything.
        drop(wake);
    }
}

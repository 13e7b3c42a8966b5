//! [`SubscriberWorker`]: the subscriber's thread, one connection after the other.

use super::channel::unpublished;
use super::connection::{Disconnected, PubSubConnection, PubSubEvent, PubSubRequest};
use super::table::{DeferredWakeups, SubscriptionTable, WorkerTasks};
use super::tracked_keys::{ReadBudget, TrackingSupport};
use super::tracking::{self, NotTracked, Tracking};
use super::waker::Poller;
use crate::connection::Dialer;
use crate::connection::error_mapping::{self, Asked};
use lock_core::backend::{Backoff, Failure, contain};
use lock_core::{Error, Moment, WarningKind};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The state that the worker and the watchers share.
pub(super) struct Shared {
    pub(super) dialer: Arc<Dialer>,
    /// While this is locked, no waiter is woken and no foreign code runs.
    pub(super) table: Mutex<SubscriptionTable>,
    /// Called when a connection is lost or cannot be made.
    pub(super) trouble: OnceLock<Trouble>,
    /// Called when keys have changed.
    pub(super) on_change: OnceLock<Arc<dyn ChangeListener>>,
    /// Called with each message whose text is used.
    pub(super) on_message: OnceLock<MessageListener>,
    /// The number of the connection, if changes can be reported to it; otherwise 0.
    pub(super) reports_to: AtomicU64,
}

/// The type of a function that is called with the channel and the text of a message, before the
/// channel's watches are woken. Must return quickly, because the worker calls it.
pub(crate) type MessageListener = Arc<dyn Fn(&str, &str) + Send + Sync>;

/// The type of the function for [`Subscriber::on_trouble`](super::Subscriber::on_trouble).
pub(crate) type Trouble = Arc<dyn Fn() + Send + Sync>;

/// The listener for [`Subscriber::reports_to`](super::Subscriber::reports_to). Its functions must
/// return quickly, because the worker calls them.
pub(crate) trait ChangeListener: Send + Sync {
    /// Handles changes of these keys; `None`: of all keys.
    fn changed(&self, keys: Option<&[String]>);

    /// Checks that the connections with reported changes are still open. Called every second or
    /// two, or once in a command timeout if that is longer and nothing is watched.
    fn look(&self);
}

/// The state of the thread.
pub(super) struct SubscriberWorker {
    shared: Arc<Shared>,
    poller: Poller,
    /// The pauses before the next attempt to connect.
    backoff: Backoff,
    tracking: Tracking,
    /// The budget for reports of keys that other connections have read.
    reports: ReadBudget,
    /// The number of connections in a row that were lost before the server had replied to the
    /// request for reports.
    lost_over_hello: u32,
    /// The number of connections in a row that were lost soon after they had been made.
    lost_soon: u32,
}

/// The subscriber was dropped.
struct Closed;

/// The outcome of a read. After `Full`, arrived messages may still be in a buffer, where `poll`
/// does not see them.
#[derive(Clone, Copy)]
enum ReadProgress {
    Empty,
    Full,
}

impl SubscriberWorker {
    /// The first pause before the subscriber connects again. The pause doubles, with jitter, so
    /// that clients do not reconnect together.
    const FIRST_PAUSE: Duration = Duration::from_millis(10);
    /// The longest pause before the subscriber connects again, because waiters get no messages
    /// meanwhile.
    const LONGEST_PAUSE: Duration = Duration::from_secs(1);
    /// The time without any arrival after which the server gets a `PING`, or a command timeout if
    /// that is longer, so that a dead connection is found while most of a lease remains.
    const SILENCE: Duration = Duration::from_secs(1);
    /// The number of connections in a row, each lost within a second, at which a warning is given.
    /// Fewer may have a harmless cause, such as a restart.
    const SHORT_CONNECTIONS: u32 = 5;
    /// The time that a connection has to last before the warning of short connections can be
    /// repeated, so that one fault does not lead to several warnings.
    const STEADY: Duration = Duration::from_secs(60);
    /// The number of messages that are read before new subscriptions are sent, so that a flood of
    /// releases does not delay new waiters.
    const STRETCH: usize = 1000;

    pub(super) fn new(shared: Arc<Shared>, poller: Poller, tracking: Tracking) -> Self {
        let backoff = Backoff::new(Self::FIRST_PAUSE, Self::LONGEST_PAUSE);
        Self {
            shared,
            poller,
            backoff,
            tracking,
            reports: ReadBudget::default(),
            lost_over_hello: 0,
            lost_soon: 0,
        }
    }

    /// Runs until the subscriber is dropped. A panic ends only the present connection.
    pub(super) fn run(mut self) {
        loop {
            let outcome = contain(|| self.serve_once()).unwrap_or_else(|| {
                // The connection is in an unknown state, so the next one starts from the table.
                self.shared.table.lock().disconnected();
                self.pause_before_retry()
            });
            if let Err(Closed) = outcome {
                return;
            }
        }
    }

    /// Waits until a connection is needed, makes and serves one until it ends, and then pauses.
    fn serve_once(&mut self) -> Result<(), Closed> {
        self.wait_until_wanted()?;
        // Bounded by the connect timeout.
        match self.shared.dialer.dial(Moment::NEVER) {
            Ok(connection) => {
                self.shared.table.lock().connected();
                let reads_text = self.shared.on_message.get().is_some();
                if let Ok(mut connection) =
                    PubSubConnection::new(connection, self.now(), reads_text)
                {
                    let Disconnected = self.serve(&mut connection)?;
                    self.lost_over_hello += u32::from(connection.awaits_tracking());
                }
                self.warn_if_lost_again();
                self.shared.reports_to.store(0, Ordering::Release);
                let server = self.shared.dialer.server();
                let lost = Error::unavailable(format!("the connection to {server} was lost"));
                let mut table = self.shared.table.lock();
                table.disconnected();
                let wakes = table.failed(&Failure::NotSent(lost), self.now());
                drop(table);
                self.deliver(wakes);
            }
            Err(failure) => {
                let now = self.now();
                let wakes = self.shared.table.lock().failed(&failure, now);
                self.deliver(wakes);
            }
        }
        if let Some(tell) = self.shared.trouble.get() {
            tell();
        }
        self.pause_before_retry()
    }

    /// Counts a lost connection, and warns if too many in a row were lost soon after they had been
    /// made. A connection that lasts resets the count.
    fn warn_if_lost_again(&mut self) {
        self.lost_soon = self.lost_soon.saturating_add(1);
        if self.lost_soon < Self::SHORT_CONNECTIONS {
            return;
        }
        let server = self.shared.dialer.server();
        server.warn(WarningKind::ShortConnections, || {
            format!(
                "{server} or something on the way to it closes each connection for messages within \
                 {:?}, so waiters learn of a release about once a second: does a proxy, balancer \
                 or firewall let subscriptions stay open?",
                SubscriptionTable::LINGER
            )
        });
    }

    fn now(&self) -> Moment {
        self.shared.dialer.clock().now()
    }

    fn wait_until_wanted(&self) -> Result<(), Closed> {
        loop {
            let mut table = self.shared.table.lock();
            if table.look_if_closed() {
                return Err(Closed);
            }
            if table.look_if_wanted() {
                return Ok(());
            }
            drop(table);
            self.poller.sleep(None, false, Duration::MAX);
        }
    }

    /// Pauses before the next attempt.
    fn pause_before_retry(&mut self) -> Result<(), Closed> {
        let until = self.now() + self.backoff.next();
        loop {
            if self.shared.table.lock().look_if_closed() {
                return Err(Closed);
            }
            let left = until.since(self.now());
            if left.is_zero() {
                return Ok(());
            }
            self.poller.sleep(None, false, left);
        }
    }

    /// Serves the watches on this connection until it breaks.
    fn serve(&mut self, connection: &mut PubSubConnection) -> Result<Disconnected, Closed> {
        let mut last_retry = self.now();
        let steady_from = last_retry + Self::STEADY;
        let ends = self.begin_tracking(connection, last_retry);
        // The server may have sent a message together with the last bytes of the handshake.
        let mut progress = ReadProgress::Full;
        let sample = self.shared.table.lock().sample();
        if let Some((kind, channel)) = sample {
            connection.push(PubSubRequest::Publish(kind, channel), last_retry);
        }
        loop {
            let now = self.now();
            let unpublished_anywhere = self
                .shared
                .dialer
                .server()
                .has_reported(WarningKind::NotPublished);
            let mut table = self.shared.table.lock();
            let is_time = now.since(last_retry) >= SubscriptionTable::LINGER;
            if is_time {
                last_retry = now;
                let is_late = |since: Moment| now.since(since) >= SubscriptionTable::LINGER;
                // A confirmed subscription does not prove that the connection lasts: it may be cut
                // after each confirmation.
                if !connection.pending_since().is_some_and(is_late) {
                    table.stands();
                    self.backoff.reset();
                    self.lost_soon = 0;
                }
                if now >= steady_from {
                    self.shared
                        .dialer
                        .server()
                        .clear_warnings(WarningKind::ShortConnections);
                }
                table.retry_refused();
            }
            let mut tasks = table.take_work(now);
            let (wakes, next_poll) = table.poll(unpublished_anywhere, now);
            drop(table);
            if tasks.closed {
                return Err(Closed);
            }
            self.deliver(wakes);
            self.deliver(std::mem::take(&mut tasks.wakes));
            if let Some(listener) = self.shared.on_change.get().filter(|_| is_time) {
                contain(|| listener.look());
            }
            if connection.is_over() || now >= ends {
                return Ok(Disconnected);
            }
            progress = match self.step(connection, tasks, progress, next_poll) {
                Ok(progress) => progress,
                Err(broken) => return Ok(broken),
            };
        }
    }

    /// Requests reports of key changes. Returns the time until which the connection is used. That
    /// time is limited if the request is left out after lost connections, so that a later
    /// connection sends it again.
    fn begin_tracking(&mut self, connection: &mut PubSubConnection, now: Moment) -> Moment {
        if self.tracking == Tracking::Off {
            return Moment::NEVER;
        }
        if self.lost_over_hello >= tracking::LOST_CONNECTIONS {
            self.lost_over_hello -= 1;
            tracking::warn(self.shared.dialer.server(), &NotTracked::HungUp);
            return now + tracking::RETRY;
        }
        connection.push(PubSubRequest::Hello, now);
        connection.push(PubSubRequest::Track, now);
        self.shared
            .table
            .lock()
            .set_tracking(TrackingSupport::Requested);
        Moment::NEVER
    }

    /// Sends the pending requests, sleeps until something happens, and reads the arrived messages.
    fn step(
        &mut self,
        connection: &mut PubSubConnection,
        tasks: WorkerTasks,
        progress: ReadProgress,
        next_poll: Moment,
    ) -> Result<ReadProgress, Disconnected> {
        let now = self.now();
        for unsubscription in tasks.unsubscribe {
            connection.push(PubSubRequest::Unsubscribe(unsubscription), now);
        }
        if tasks.reads_too_late {
            tracking::warn(self.shared.dialer.server(), &NotTracked::TableFull);
        }
        // Reads precede the subscriptions, so that from the confirmation on no change goes
        // unreported.
        for key in tasks.reads {
            connection.push(PubSubRequest::Read(key), now);
        }
        for key in tasks.permit_reads {
            connection.push(PubSubRequest::ReadPermits(key), now);
        }
        for subscription in tasks.subscribe {
            connection.push(PubSubRequest::Subscribe(subscription), now);
        }
        let silence = Self::SILENCE.max(self.shared.dialer.command_timeout());
        let due = match connection.pending_since() {
            Some(since) => since + self.shared.dialer.command_timeout(),
            None => connection.last_received + silence,
        };
        if due <= now && connection.pending_since().is_some() {
            return Err(Disconnected);
        }
        if due <= now {
            connection.push(PubSubRequest::Ping, now);
        }
        connection.flush()?;
        if matches!(progress, ReadProgress::Full) {
            return self.take_in(connection);
        }
        // The sleep is shorter while there are watches, because the table must find those that have
        // ended.
        let longest = if tasks.is_watched {
            SubscriptionTable::LINGER
        } else {
            silence
        };
        let due = due
            .min(next_poll)
            .min(tasks.next_read.unwrap_or(Moment::NEVER));
        let longest = longest.min(due.since(now)).max(Duration::from_millis(1));
        let (fd, writing) = (connection.fd(), connection.wants_to_write());
        if self.poller.sleep(Some(fd), writing, longest) {
            self.take_in(connection)
        } else {
            Ok(ReadProgress::Empty)
        }
    }

    fn take_in(&mut self, connection: &mut PubSubConnection) -> Result<ReadProgress, Disconnected> {
        let now = self.now();
        for _ in 0..Self::STRETCH {
            let Some(event) = connection.receive(now)? else {
                return Ok(ReadProgress::Empty);
            };
            // A former server may still grant its locks, which the present one does not know.
            if connection.is_over() {
                return Err(Disconnected);
            }
            let wakes = self.handle(event, now);
            self.deliver(wakes);
        }
        Ok(ReadProgress::Full)
    }

    fn handle(&mut self, event: PubSubEvent, now: Moment) -> DeferredWakeups {
        let server = self.shared.dialer.server();
        let mut table = self.shared.table.lock();
        match event {
            PubSubEvent::Message(channel, next) => table.message(&channel, next, now),
            PubSubEvent::Text(channel, text) => {
                let wakes = table.message(&channel, None, now);
                drop(table);
                if let Some(read) = self.shared.on_message.get() {
                    contain(|| read(&channel, &text));
                }
                wakes
            }
            PubSubEvent::Read(key, state) => table.read(&key, state, now),
            PubSubEvent::Changed(keys) => {
                let (elsewhere, wakeups) = table.changed(keys, now);
                drop(table);
                self.pass_on(elsewhere, now);
                wakeups
            }
            PubSubEvent::Tracking(Ok(here)) => {
                table.set_tracking(TrackingSupport::Confirmed);
                drop(table);
                if let Some(id) = here.id {
                    self.shared.reports_to.store(id, Ordering::Release);
                    // Causes the renewal of all held locks, because only renewals from now on
                    // direct reports to this connection.
                    self.tell_changed(None);
                }
                self.lost_over_hello = 0;
                server.clear_warnings(WarningKind::NotTracked);
                DeferredWakeups::default()
            }
            PubSubEvent::Tracking(Err(error)) => {
                table.set_tracking(TrackingSupport::None);
                drop(table);
                self.lost_over_hello = 0;
                tracking::warn(server, &NotTracked::Refused(error));
                DeferredWakeups::default()
            }
            PubSubEvent::Confirmed(subscription) => {
                server.clear_channel_warning(WarningKind::NotSubscribed, || {
                    subscription.channel.to_string()
                });
                table.confirmed(&subscription)
            }
            PubSubEvent::Refused(subscription, error) => {
                let channel = &subscription.channel;
                let failure = error_mapping::refused(server, &error, &Asked::Subscribe(channel));
                if !error_mapping::will_not(&error) || !table.may_be_polled(&subscription) {
                    return table.refused(&subscription, &failure);
                }
                let wakes = table.poll_instead(&subscription);
                drop(table);
                let cause =
                    error_mapping::cause_on_channel(server, &error, channel, Asked::Subscribe);
                server.warn_of(WarningKind::NotSubscribed, cause, || {
                    format!(
                        "{server} does not tell of releases, so those who wait ask again and \
                         again: {} ({error})",
                        failure.error()
                    )
                });
                wakes
            }
            PubSubEvent::Published(kind, channel, answer) => {
                drop(table);
                match answer {
                    Ok(()) => {
                        server.clear_channel_warning(WarningKind::NotPublished, || {
                            channel.to_string()
                        });
                    }
                    Err(error) if error_mapping::will_not(&error) => {
                        unpublished(server, &error, kind, &channel);
                    }
                    Err(_) => {}
                }
                DeferredWakeups::default()
            }
            PubSubEvent::Ended(channel) => table.ended(&channel),
            PubSubEvent::Ignored => DeferredWakeups::default(),
        }
    }

    /// Passes on changes of keys that other connections have read; `None`: of all keys. The budget
    /// limits how often: if the server tracks fewer keys than are held, the renewal of one lock
    /// leads to the report of another. Beyond the budget, the next regular renewal notices a loss.
    fn pass_on(&mut self, keys: Option<Vec<String>>, now: Moment) {
        let is_news = keys.as_ref().is_none_or(|keys| !keys.is_empty());
        if !is_news || self.shared.on_change.get().is_none() {
            return;
        }
        if self.reports.take(now) {
            self.tell_changed(keys.as_deref());
        } else {
            tracking::warn(self.shared.dialer.server(), &NotTracked::TableFull);
        }
    }

    /// Calls the listener for changes, while no mutex is held. A panic of the listener ends nothing
    /// else.
    fn tell_changed(&self, keys: Option<&[String]>) {
        if let Some(tell) = self.shared.on_change.get() {
            contain(|| tell.changed(keys));
        }
    }

    /// Wakes waiters, while no mutex is held. A panic of one waiter does not prevent the wake-up of
    /// the others.
    fn deliver(&self, wakes: DeferredWakeups) {
        wakes.raise_confirmations();
        for wake in wakes.watches {
            contain(|| match &wakes.next {
                Some(next) => wake.wake_next(next),
                None => wake.wake(),
            });
        }
    }
}

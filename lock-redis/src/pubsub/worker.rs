//! [`SubscriberWorker`]: the subscriber's thread, one connection after the other.

use super::Shared;
use super::connection::{Disconnected, PubSubConnection, PubSubEvent, PubSubRequest};
use super::table::{DeferredWakeups, SubscriptionTable, WorkerTasks};
use super::waker::Poller;
use crate::error_mapping::{self, Asked};
use crate::format::unpublished;
use lock_core::backend::Failure;
use lock_core::{Error, Moment, WarningKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// What the thread has.
pub(super) struct SubscriberWorker {
    shared: Arc<Shared>,
    poller: Poller,
    command_timeout: Duration,
    /// How long to wait before the next try to connect.
    pause: Duration,
}

/// The backend is gone.
struct Closed;

/// Whether everything that has come was taken in. What is left may be in our own buffer, where poll does not see it.
#[derive(Clone, Copy)]
enum ReadProgress {
    Empty,
    Full,
}

impl SubscriberWorker {
    /// The pause before the first try after a connection was lost. A random part of it is left out, so that clients
    /// do not come back all at the same time.
    const FIRST_PAUSE: Duration = Duration::from_millis(20);
    const LONGEST_PAUSE: Duration = Duration::from_secs(1);
    /// A server that was silent for longer is asked whether it is still there - or for the command timeout, if that is
    /// longer.
    const SILENCE: Duration = Duration::from_secs(1);
    /// How many messages are taken at a stretch, without a look at what else there is to do.
    const STRETCH: usize = 1000;

    pub(super) fn new(shared: Arc<Shared>, poller: Poller, command_timeout: Duration) -> Self {
        Self { shared, poller, command_timeout, pause: Self::FIRST_PAUSE }
    }

    /// Runs until the backend is gone, whatever panics.
    pub(super) fn run(mut self) {
        loop {
            let turn = catch_unwind(AssertUnwindSafe(|| self.turn()));
            let turn = turn.unwrap_or_else(|_panic| {
                // Whatever it was, this connection cannot be trusted any more; the next one starts from the table.
                self.shared.table.lock().disconnected();
                self.rest()
            });
            if let Err(Closed) = turn {
                return;
            }
        }
    }

    /// One connection, from the moment somebody watches to its end; and the pause after it.
    fn turn(&mut self) -> Result<(), Closed> {
        self.wait_until_wanted()?;
        // The connect timeout is all that bounds it.
        match self.shared.dialer.dial(Moment::NEVER) {
            Ok(connection) => {
                self.shared.table.lock().connected();
                if let Ok(connection) = PubSubConnection::new(connection, self.now()) {
                    let Disconnected = self.serve(connection)?;
                }
                let server = self.shared.dialer.server();
                let lost = Error::unavailable(format!("the connection to {server} was lost"));
                let mut table = self.shared.table.lock();
                table.disconnected();
                let wakes = table.failed(&Failure::NotSent(lost));
                drop(table);
                self.deliver(wakes);
            }
            Err(failure) => {
                let wakes = self.shared.table.lock().failed(&failure);
                self.deliver(wakes);
            }
        }
        if let Some(tell) = self.shared.trouble.get() {
            tell();
        }
        self.rest()
    }

    fn now(&self) -> Moment {
        self.shared.dialer.clock().now()
    }

    fn wait_until_wanted(&self) -> Result<(), Closed> {
        loop {
            let mut table = self.shared.table.lock();
            if table.is_closed() {
                return Err(Closed);
            }
            if table.is_wanted() {
                return Ok(());
            }
            drop(table);
            self.sleep(Duration::MAX);
        }
    }

    /// Pauses before the next try.
    fn rest(&mut self) -> Result<(), Closed> {
        let shortened = self.pause.mul_f64(0.5 + fastrand::f64() / 2.0);
        let until = self.now() + shortened;
        self.pause = (self.pause * 2).min(Self::LONGEST_PAUSE);
        loop {
            if self.shared.table.lock().is_closed() {
                return Err(Closed);
            }
            let left = until.since(self.now());
            if left.is_zero() {
                return Ok(());
            }
            self.sleep(left);
        }
    }

    /// Sleeps until woken, or for `longest`.
    fn sleep(&self, longest: Duration) {
        if self.poller.sleep(None, false, longest).is_err() {
            // Only a lack of memory can make poll fail: give others the time to free some.
            std::thread::yield_now();
        }
    }

    /// Serves the watches on this connection until it breaks.
    fn serve(&mut self, mut connection: PubSubConnection) -> Result<Disconnected, Closed> {
        let mut asked_again = self.now();
        // With TLS something may have come, and been decrypted, together with the end of the handshake.
        let mut intake = ReadProgress::Full;
        let sample = self.shared.table.lock().sample();
        if let Some((kind, channel)) = sample {
            connection.ask(PubSubRequest::Publish(kind, channel), asked_again);
        }
        loop {
            let now = self.now();
            let is_untold = self.shared.dialer.server().is_told_of(WarningKind::NotPublished);
            let mut table = self.shared.table.lock();
            if now.since(asked_again) >= SubscriptionTable::LINGER {
                asked_again = now;
                table.ask_again();
            }
            let work = table.take_work(now);
            let (wakes, next_poll) = table.poll(is_untold, now);
            drop(table);
            if work.closed {
                return Err(Closed);
            }
            self.deliver(wakes);
            if connection.is_over() {
                return Ok(Disconnected);
            }
            intake = match self.step(&mut connection, work, intake, next_poll) {
                Ok(intake) => intake,
                Err(broken) => return Ok(broken),
            };
        }
    }

    /// Sends what is to be sent, sleeps until something happens, and takes in what has come.
    fn step(
        &mut self,
        connection: &mut PubSubConnection,
        work: WorkerTasks,
        intake: ReadProgress,
        next_poll: Moment,
    ) -> Result<ReadProgress, Disconnected> {
        let now = self.now();
        for leaving in work.unsubscribe {
            connection.ask(PubSubRequest::Unsubscribe(leaving), now);
        }
        for subscription in work.subscribe {
            connection.ask(PubSubRequest::Subscribe(subscription), now);
        }
        let silence = Self::SILENCE.max(self.command_timeout);
        let due = match connection.unanswered_since() {
            Some(since) => since + self.command_timeout,
            None => connection.last_heard + silence,
        };
        if due <= now && connection.unanswered_since().is_some() {
            return Err(Disconnected);
        }
        if due <= now {
            connection.ask(PubSubRequest::Ping, now);
        }
        connection.flush()?;
        if matches!(intake, ReadProgress::Full) {
            return self.take_in(connection);
        }
        // While anything is watched, also to see what is not watched any more.
        let longest = if work.is_watched { SubscriptionTable::LINGER } else { silence };
        let due = due.min(next_poll);
        let longest = longest.min(due.since(now)).max(Duration::from_millis(1));
        let (stream, writing) = (connection.stream(), connection.wants_to_write());
        let awake = self.poller.sleep(Some(stream), writing, longest)?;
        if awake.readable { self.take_in(connection) } else { Ok(ReadProgress::Empty) }
    }

    fn take_in(&mut self, connection: &mut PubSubConnection) -> Result<ReadProgress, Disconnected> {
        let now = self.now();
        for _ in 0..Self::STRETCH {
            let Some(incoming) = connection.receive(now)? else {
                return Ok(ReadProgress::Empty);
            };
            self.pause = Self::FIRST_PAUSE;
            let wakes = self.note(incoming);
            self.deliver(wakes);
        }
        Ok(ReadProgress::Full)
    }

    fn note(&self, incoming: PubSubEvent) -> DeferredWakeups {
        let server = self.shared.dialer.server();
        let mut table = self.shared.table.lock();
        match incoming {
            PubSubEvent::Message(channel) => table.heard(&channel),
            PubSubEvent::Acknowledgement(subscription) => {
                server.is_served(WarningKind::NotSubscribed, || subscription.channel.to_string());
                table.confirmed(&subscription)
            }
            PubSubEvent::Refused(subscription, error) => {
                let channel = &subscription.channel;
                let failure = error_mapping::refused(server, &error, &Asked::Subscribe(channel));
                if !error_mapping::will_not(&error) || !table.is_polled(&subscription) {
                    return table.refused(&subscription, &failure);
                }
                let wakes = table.untold(&subscription);
                drop(table);
                let cause =
                    error_mapping::cause_on_channel(server, &error, channel, Asked::Subscribe);
                server.warn_of(WarningKind::NotSubscribed, cause, || {
                    format!(
                        "{server} does not tell of releases, so those who wait ask again and again: {} ({error})",
                        failure.error()
                    )
                });
                wakes
            }
            PubSubEvent::Published(kind, channel, answer) => {
                drop(table);
                match answer {
                    Ok(()) => {
                        server.is_served(WarningKind::NotPublished, || channel.to_string());
                    }
                    Err(error) if error_mapping::will_not(&error) => {
                        unpublished(server, &error, kind, &channel);
                    }
                    Err(_) => {}
                }
                DeferredWakeups::default()
            }
            PubSubEvent::Ended(channel) => table.ended(&channel),
            PubSubEvent::Noted => DeferredWakeups::default(),
        }
    }

    /// DeferredWakeups everybody; no lock is held, and one that panics keeps nobody from being woken.
    fn deliver(&self, wakes: DeferredWakeups) {
        wakes.raise_confirmations();
        for wake in wakes.watches {
            let _panicked = catch_unwind(AssertUnwindSafe(|| wake.wake()));
        }
    }
}

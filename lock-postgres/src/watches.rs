//! [`Watches`]: the notification of waiters about releases.
//!
//! One connection of a client listens on the channels of the names that are watched. A name has one
//! of 64 channels, by its hash. A release publishes the name, if any client has registered its
//! interest in the row of the name: most locks have no waiters, and transactions that publish
//! exclude each other when they commit.
//!
//! A statement cannot be sent on a connection that waits for notifications. So there is a channel
//! for each client, on which it notifies itself when it wants to listen on one more. Behind a
//! pooler that lends a connection for a transaction only, no notification arrives, this one
//! included. While there is no connection, or none with notifications, the waiters are woken at an
//! interval.

use crate::connection::{Connection, ConnectionPool, Deadline, Parameter};
use crate::numbers::micros;
use lock_core::backend::{BackgroundTask, Backoff, Failure, Wake, Watch};
use lock_core::{ClientId, Clock, Error, Moment, WarningKind};
use parking_lot::{Condvar, Mutex};
use postgres::types::Type;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// The time for which an interest is registered, because a client that has died costs a
/// notification for each release until then.
const INTEREST: Duration = Duration::from_secs(60);
/// The time after which interests are registered again, so that one failure does not end them.
const REGISTERING: Duration = Duration::from_secs(15);
/// The longest time without a sign of the server, so that a dead connection is noticed.
const SILENCE: Duration = Duration::from_secs(5);
/// The time within which a notification to oneself arrives, so that one that does not is noticed.
pub(crate) const ECHO: Duration = Duration::from_secs(1);
/// The time between two wake-ups where no notifications arrive, because a release is then noticed
/// by a new attempt only.
const POLLING: Duration = Duration::from_millis(100);
/// The time after which it is tried again whether notifications arrive, because a pooler may be
/// gone.
const PROBING: Duration = Duration::from_secs(60);
/// The time for which the connection stays after the last watch, because the next one is likely.
const IDLE: Duration = Duration::from_secs(30);

/// The watches of a client.
pub(crate) struct Watches {
    shared: Arc<Shared>,
    listening: BackgroundTask,
}

struct Shared {
    pool: Arc<ConnectionPool>,
    /// The client's own channel.
    own: String,
    schema: String,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The watches by the stored name of the lock.
    by_name: HashMap<String, Vec<Registered>>,
    next: u64,
    /// The channels of the watched names.
    wanted: HashSet<String>,
    mode: Mode,
    /// When a name was last watched.
    watched_at: Option<Moment>,
    /// The error that ended the last connection, if there is none now.
    failed: Option<Error>,
    /// The deadline of the connection that waits for notifications.
    waiting: Option<Arc<Deadline>>,
    /// True if the client was warned that no notification arrives.
    has_warned: bool,
    is_closed: bool,
}

/// A callback, and the number of its watch.
type Registered = (u64, Arc<dyn Wake>);

/// The state of the connection.
#[derive(Default)]
enum Mode {
    #[default]
    Disconnected,
    /// The connection listens on these channels.
    Listens(HashSet<String>),
    /// Notifications do not arrive.
    Polls,
}

impl State {
    fn is_notified_of(&self, channel: &str) -> bool {
        match &self.mode {
            Mode::Disconnected => false,
            Mode::Listens(channels) => channels.contains(channel),
            Mode::Polls => true,
        }
    }

    /// Returns whether the thread is needed: while a name is watched, and for some time after.
    fn is_needed(&mut self, now: Moment) -> bool {
        if !self.by_name.is_empty() {
            self.watched_at = Some(now);
        }
        let is_recent = |watched_at| now.since(watched_at) <= IDLE;
        !self.is_closed && self.watched_at.is_some_and(is_recent)
    }

    fn wakes(&self, name: Option<&str>) -> Vec<Arc<dyn Wake>> {
        let watches: Vec<_> = match name {
            Some(name) => self.by_name.get(name).into_iter().flatten().collect(),
            None => self.by_name.values().flatten().collect(),
        };
        watches
            .into_iter()
            .map(|(_, wake)| Arc::clone(wake))
            .collect()
    }
}

impl Watches {
    pub(crate) fn new(pool: Arc<ConnectionPool>, client: ClientId) -> Self {
        let shared = Shared {
            own: format!("distlock:{client}"),
            schema: pool.dialer().settings().schema.clone(),
            pool,
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        Self {
            shared: Arc::new(shared),
            listening: BackgroundTask::default(),
        }
    }

    /// Registers a callback for the releases of a name, and waits until these are received.
    pub(crate) fn add(
        &self,
        name: String,
        wake: Arc<dyn Wake>,
        patience: i64,
        by: Moment,
    ) -> Result<Watch, Failure> {
        let shared = &self.shared;
        let mut state = shared.state.lock();
        let id = state.next;
        state.next += 1;
        state
            .by_name
            .entry(name.clone())
            .or_default()
            .push((id, wake));
        drop(state);
        let watching = Watching {
            shared: Arc::clone(shared),
            name,
            id,
        };
        self.start()?;
        if !shared.settings_poll() {
            shared.register(&watching.name, patience, by)?;
        }
        Ok(Watch::new(watching))
    }

    /// Starts the thread that listens, unless it runs.
    fn start(&self) -> Result<(), Failure> {
        let shared = Arc::clone(&self.shared);
        let mut backoff = Backoff::new(POLLING, SILENCE);
        let mut connect_at = match shared.settings_poll() {
            true => Moment::NEVER,
            false => shared.clock().now(),
        };
        let turn = move || shared.turn(&mut connect_at, &mut backoff);
        let started = self.listening.start(self.shared.clock(), turn);
        started.map_err(|error| {
            let why = "there is no thread that waits for notifications";
            Failure::NotSent(Error::unavailable(why).with_source(error))
        })
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.is_closed = true;
        let waiting = state.waiting.take();
        drop(state);
        if let Some(waiting) = waiting {
            waiting.end();
        }
        self.listening.wake();
    }
}

/// A watch, removed on drop.
struct Watching {
    shared: Arc<Shared>,
    name: String,
    id: u64,
}

impl Drop for Watching {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        let Some(watches) = state.by_name.get_mut(&self.name) else {
            return;
        };
        let at = watches.iter().position(|(id, _)| *id == self.id);
        let ended = at.map(|at| watches.swap_remove(at));
        if watches.is_empty() {
            state.by_name.remove(&self.name);
        }
        drop(state);
        drop(ended); // not under the mutex: it may be the last part of the engine
    }
}

impl Shared {
    fn settings_poll(&self) -> bool {
        self.pool.dialer().settings().polls
    }

    fn clock(&self) -> &Arc<dyn Clock> {
        self.pool.dialer().clock()
    }

    /// Registers the interest in a name in the store, and waits until the connection listens on the
    /// name's channel.
    fn register(&self, name: &str, patience: i64, by: Moment) -> Result<(), Failure> {
        let statement = format!("SELECT \"{}\".watch($1, $2, $3)", self.schema);
        let rows = self.pool.with(by, |connection| {
            let parameters: &[Parameter<'_>] = &[
                (&name, Type::TEXT),
                (&micros(INTEREST), Type::INT8),
                (&patience, Type::INT8),
            ];
            connection.query(&statement, parameters, by)
        })?;
        let channel: String = rows.first().map(|row| row.get(0)).unwrap_or_default();
        let mut state = self.state.lock();
        state.wanted.insert(channel.clone());
        while !state.is_notified_of(&channel) {
            if matches!(state.mode, Mode::Listens(_)) {
                drop(state);
                self.notify_self(by)?;
                state = self.state.lock();
                if state.is_notified_of(&channel) {
                    break;
                }
            }
            let left = by.since(self.clock().now());
            if left.is_zero() {
                let late = || Error::unavailable("the database sends no notifications in time");
                let why = state.failed.clone().unwrap_or_else(late);
                return Err(Failure::NotSent(why));
            }
            self.changed.wait_for(&mut state, left.min(POLLING));
        }
        Ok(())
    }

    /// Ends the wait of the connection that listens.
    fn notify_self(&self, by: Moment) -> Result<(), Failure> {
        let notified = self.pool.with(by, |connection| {
            let parameters: &[Parameter<'_>] = &[(&self.own, Type::TEXT)];
            connection.query("SELECT pg_notify($1, '')", parameters, by)
        });
        notified.map(drop)
    }

    /// Listens from the moment `connect_at` on. Then, and before, wakes all waiters: they ask the
    /// store themselves. Returns when to do that again; `None` if the thread is not needed.
    fn turn(&self, connect_at: &mut Moment, backoff: &mut Backoff) -> Option<Moment> {
        let now = self.clock().now();
        let mut state = self.state.lock();
        if !state.is_needed(now) {
            state.mode = Mode::Disconnected;
            return None;
        }
        drop(state);
        if now >= *connect_at {
            self.state.lock().mode = Mode::Disconnected;
            let listened = self.listen();
            let mut state = self.state.lock();
            state.waiting = None;
            let has_worked = matches!(state.mode, Mode::Listens(_));
            if has_worked {
                state.mode = Mode::Disconnected;
            }
            if has_worked || listened.is_ok() {
                backoff.reset();
            }
            let pause = listened.unwrap_or_else(|failure| {
                state.failed = Some(failure.into_error());
                backoff.next()
            });
            *connect_at = self.clock().now() + pause;
        }
        self.wake(None);
        let jitter = Duration::from_millis(fastrand::u64(..20));
        Some((self.clock().now() + POLLING + jitter).min(*connect_at))
    }

    fn wake(&self, name: Option<&str>) {
        let wakes = self.state.lock().wakes(name);
        for wake in wakes {
            wake.wake();
        }
    }

    /// Connects and listens, until the connection fails or is no longer needed. Returns the time
    /// until the next connection.
    fn listen(&self) -> Result<Duration, Failure> {
        let dialer = self.pool.dialer();
        let by = self.clock().now() + SILENCE;
        let mut connection = dialer.dial(by)?;
        connection.run(&format!("LISTEN \"{}\"", self.own), by)?;
        self.notify_self(by)?;
        let by = self.clock().now() + SILENCE;
        if connection.next_notification(ECHO, by).is_none() {
            if !connection.is_open() {
                return Err(failed(&connection));
            }
            if !std::mem::replace(&mut self.state.lock().has_warned, true) {
                dialer.notices().warn(WarningKind::NotSubscribed, || {
                    format!(
                        "{} delivers no notifications, as a pooler in transaction mode: waiters \
                         ask again every {POLLING:?}",
                        connection.server()
                    )
                });
            }
            drop(connection);
            self.set_mode(Mode::Polls);
            return Ok(PROBING);
        }
        self.set_mode(Mode::Listens(HashSet::new()));
        self.state.lock().waiting = Some(connection.deadline());
        let mut registered = self.clock().now();
        let mut is_new = true;
        loop {
            self.listen_to_wanted(&mut connection)?;
            if is_new {
                self.register_again(&mut connection)?;
                // Releases since the connection before ended were not received.
                self.wake(None);
                is_new = false;
            }
            let now = self.clock().now();
            if !self.state.lock().is_needed(now) {
                return Ok(Duration::ZERO);
            }
            if now.since(registered) > REGISTERING {
                self.register_again(&mut connection)?;
                registered = now;
            }
            match connection.next_notification(SILENCE, now + SILENCE * 2) {
                Some((channel, name)) if channel != self.own => self.wake(Some(&name)),
                Some(_) => {}
                None => connection.run("SELECT 1", self.clock().now() + SILENCE)?,
            }
            if !connection.is_open() {
                return Err(failed(&connection));
            }
        }
    }

    fn set_mode(&self, mode: Mode) {
        let mut state = self.state.lock();
        state.mode = mode;
        state.failed = None;
        self.changed.notify_all();
    }

    /// Listens on the channels that were added.
    fn listen_to_wanted(&self, connection: &mut Connection) -> Result<(), Failure> {
        let state = self.state.lock();
        let missing = state.wanted.iter().filter(|it| !state.is_notified_of(it));
        let missing: Vec<_> = missing.cloned().collect();
        drop(state);
        if missing.is_empty() {
            return Ok(());
        }
        let statements = missing.iter().map(|it| format!("LISTEN \"{it}\";"));
        let by = self.clock().now() + SILENCE;
        connection.run(&statements.collect::<String>(), by)?;
        if let Mode::Listens(channels) = &mut self.state.lock().mode {
            channels.extend(missing);
        }
        self.changed.notify_all();
        Ok(())
    }

    fn register_again(&self, connection: &mut Connection) -> Result<(), Failure> {
        let names: Vec<_> = self.state.lock().by_name.keys().cloned().collect();
        let parameters: &[Parameter<'_>] =
            &[(&names, Type::TEXT_ARRAY), (&micros(INTEREST), Type::INT8)];
        let statement = format!("SELECT \"{}\".watch_again($1, $2)", self.schema);
        let by = self.clock().now() + SILENCE;
        connection.query(&statement, parameters, by).map(drop)
    }
}

fn failed(connection: &Connection) -> Failure {
    let server = connection.server();
    Failure::NotSent(Error::unavailable(format!(
        "the connection to {server} that waits for notifications has ended"
    )))
}

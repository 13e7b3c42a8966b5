//! [`SessionStore`]: locks of sessions, `pg_advisory_lock`, without tables.
//!
//! A lock is held by the connection on which it was acquired, one for each held lock, and ends with
//! that connection, whatever happens to the client: no lease of a client that has died is waited
//! for. The key of a lock is a hash of its name with 64 bits. Two names with one key would exclude
//! each other, which is safe.
//!
//! The engine knows leases. So a lock also ends with its lease: a renewal asks the server on the
//! lock's connection and begins the lease anew, and a task of this store ends what was not renewed.

use crate::connection::{Connection, Dialer, Parameter, Settings};
use crate::names::Names;
use lock_core::backend::{
    Abilities, AcquisitionId, Admin, Answer, Attempt, BackgroundTask, Failure, Grant, HolderInfo,
    LockInfo, NodeId, OwnerText, Release, ReleaseOptions, Renewal, RenewalRequest, Tombstone,
    Waking,
};
use lock_core::{Backend, Config, Context, Error, LockName, Moment, OwnerId};
use parking_lot::Mutex;
use postgres::types::Type;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The time between two attempts of a waiter, because the release of a session's lock is not
/// published.
const POLLING: Duration = Duration::from_millis(50);
/// The time between two checks of the held connections, so that a holder soon learns that one has
/// ended.
const WATCHING: Duration = Duration::from_millis(250);
/// The pause between two checks whether an ended session has released its lock, because the server
/// ends it asynchronously.
const ENDING: Duration = Duration::from_millis(5);

/// How often it is tried whether a pooler exchanges two sessions.
const PROBES: u32 = 3;

/// The key of a lock.
const KEY: &str = "hashtextextended($1, 0)";

/// Whether the session itself holds the lock.
const OWNS: &str = "EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.granted \
    AND l.pid = pg_backend_pid() AND l.objsubid = 1 \
    AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended($1, 0))";

/// The sessions that hold a lock. The halves of its key are in two columns.
const HOLDERS: &str = "SELECT a.pid, a.application_name FROM pg_locks l JOIN pg_stat_activity a \
    USING (pid) WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 \
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
    AND (l.classid::bigint << 32 | l.objid::bigint) = hashtextextended($1, 0)";

/// Locks that are held by connections.
pub(crate) struct SessionStore {
    shared: Arc<Shared>,
    watching: BackgroundTask,
    names: Names,
    /// The most connections that are kept without a lock.
    most: usize,
}

struct Shared {
    dialer: Arc<Dialer>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    held: HashMap<(LockName, OwnerId), Arc<Held>>,
    /// Sessions without a lock.
    idle: Vec<Session>,
    /// The owners that get no lock any more, each until a moment.
    closed: HashMap<(LockName, OwnerId), Moment>,
    /// True if it was found that connections keep their sessions.
    is_direct: bool,
}

/// A held lock. Without its session it has ended.
struct Held {
    session: Mutex<Option<Session>>,
    until: Mutex<Moment>,
}

/// A connection with a word that only its session knows: behind a pooler that lends sessions, the
/// next request may be of another one.
struct Session {
    connection: Connection,
    word: String,
}

/// Returns a value if the session knows the word of the parameter `$2`, and otherwise NULL.
fn if_same(value: &str) -> String {
    format!("SELECT CASE WHEN current_setting('distlock.session', true) = $2 THEN {value} END")
}

impl Session {
    /// Begins a session on a new connection. Has the server notice within about 15 s that this
    /// client has vanished without a word: otherwise its locks would stay for hours.
    fn begin(mut connection: Connection, by: Moment) -> Result<Self, Failure> {
        let word = format!("{:032x}", fastrand::u128(..));
        connection.run(
            &format!(
                "SET distlock.session = '{word}'; SET tcp_keepalives_idle = 6; \
                 SET tcp_keepalives_interval = 3; SET tcp_keepalives_count = 3; \
                 SET tcp_user_timeout = 15000"
            ),
            by,
        )?;
        Ok(Self { connection, word })
    }

    /// Returns what a value is in this session. `text` is the parameter `$1`.
    fn ask(&mut self, value: &str, text: &str, by: Moment) -> Result<bool, Failure> {
        let parameters: &[Parameter<'_>] = &[(&text, Type::TEXT), (&self.word, Type::TEXT)];
        let rows = self.connection.query(&if_same(value), parameters, by)?;
        match rows.first().and_then(|row| row.get(0)) {
            Some(value) => Ok(value),
            None => Err(is_pooler(&self.connection)),
        }
    }
}

fn is_pooler(connection: &Connection) -> Failure {
    Failure::NotSent(Error::configuration(format!(
        "{} is a pooler in transaction mode, where no session can hold a lock: connect to the \
         server itself, or leave `form=session` out",
        connection.server()
    )))
}

impl SessionStore {
    pub(crate) fn new(settings: Settings, config: &Config, context: &Context) -> Self {
        let dialer = Dialer::new(settings, config, context);
        Self {
            shared: Arc::new(Shared {
                dialer,
                state: Mutex::default(),
            }),
            watching: BackgroundTask::default(),
            names: Names::new(config),
            most: usize::try_from(config.pool()).unwrap_or(usize::MAX),
        }
    }

    /// Runs a request in a session without a lock, and returns the session, too. If one of
    /// before proves to be closed before the request was sent, another one is used.
    fn with<T>(
        &self,
        by: Moment,
        request: impl Fn(&mut Session) -> Result<T, Failure>,
    ) -> Result<(T, Session), Failure> {
        loop {
            let idle = self.shared.state.lock().idle.pop();
            let idle = idle.and_then(|mut it| it.connection.is_usable().then_some(it));
            let is_old = idle.is_some();
            let mut session = idle.map_or_else(|| self.connect(by), Ok)?;
            match request(&mut session) {
                Ok(done) => return Ok((done, session)),
                Err(Failure::NotSent(_)) if is_old => {}
                // The connection is closed here: a lock that it has taken ends with it.
                Err(failure) => return Err(failure),
            }
        }
    }

    /// Makes a session.
    fn connect(&self, by: Moment) -> Result<Session, Failure> {
        let dial = || Session::begin(self.shared.dialer.dial_without_schema(by)?, by);
        let session = dial()?;
        if self.shared.state.lock().is_direct {
            return Ok(session);
        }
        let [session, other] = refuse_pooler(session, dial()?, by)?;
        self.shared.state.lock().is_direct = true;
        self.put_back(other);
        Ok(session)
    }

    /// Keeps a session without a lock for the next one.
    fn put_back(&self, session: Session) {
        let mut state = self.shared.state.lock();
        if session.connection.is_open() && state.idle.len() < self.most {
            state.idle.push(session);
        }
    }

    /// Runs a statement about one lock on a connection without a lock.
    fn ask(
        &self,
        statement: &str,
        name: &LockName,
        by: Moment,
    ) -> Result<Vec<postgres::Row>, Failure> {
        let stored = self.names.stored(name)?;
        let parameters: &[Parameter<'_>] = &[(&stored, Type::TEXT)];
        let (rows, session) = self.with(by, |it| it.connection.query(statement, parameters, by))?;
        self.put_back(session);
        Ok(rows)
    }

    fn find(&self, name: &LockName, owner: OwnerId) -> Option<Arc<Held>> {
        let key = (name.clone(), owner);
        self.shared.state.lock().held.get(&key).cloned()
    }

    /// Holds a lock by its session for so long, and has the task end it then.
    fn hold(
        &self,
        name: &LockName,
        owner: OwnerId,
        session: Session,
        time: Duration,
    ) -> Result<(), Failure> {
        let held = Held {
            session: Mutex::new(Some(session)),
            until: Mutex::new(self.shared.now() + time),
        };
        let key = (name.clone(), owner);
        self.shared.state.lock().held.insert(key, Arc::new(held));
        // After the lock is there: a turn that found none may be about to end the task.
        let shared = Arc::downgrade(&self.shared);
        let turn = move || shared.upgrade()?.watch();
        self.watching
            .start(self.shared.dialer.clock(), turn)
            .map_err(|error| {
                self.shared.forget(name, owner);
                let why = Error::unavailable("there is no thread to watch held locks");
                Failure::NotSent(why.with_source(error))
            })
    }

    /// Begins the lease of a held lock anew, if the server still has its session. Otherwise the
    /// lock has ended, and the answer is false.
    fn extend(
        &self,
        name: &LockName,
        owner: OwnerId,
        lease: Duration,
        by: Moment,
    ) -> Result<bool, Failure> {
        let Some(held) = self.find(name, owner) else {
            return Ok(false);
        };
        let mut slot = held.session.lock();
        let Some(session) = slot.as_mut() else {
            return Ok(false);
        };
        let sent = self.shared.now();
        if *held.until.lock() <= sent {
            return Ok(false);
        }
        if sent >= by {
            let late = Error::unavailable("there was no time left to ask the server");
            return Err(Failure::NotSent(late));
        }
        let stored = self.names.stored(name)?;
        if !matches!(session.ask(OWNS, &stored, by), Ok(true)) {
            // Without its connection, the lock ends: so no answer is needed to know that.
            *slot = None;
            drop(slot);
            self.shared.forget(name, owner);
            return Ok(false);
        }
        let mut until = held.until.lock();
        *until = (*until).max(self.shared.now() + lease);
        Ok(true)
    }
}

/// Fails if a pooler lends a session for one transaction only: then a lock would stay with a
/// session that other clients use.
///
/// Such a pooler lends the session that was returned last. So while one connection is in a
/// transaction, the other one gets that one's session of before.
fn refuse_pooler(
    mut one: Session,
    mut other: Session,
    by: Moment,
) -> Result<[Session; 2], Failure> {
    let is_same = |session: &mut Session| session.ask("true", "", by).map(drop);
    // Several times, because other clients of the pooler may take a session in between.
    for _ in 0..PROBES {
        other.connection.run("BEGIN", by)?;
        is_same(&mut other)?;
        is_same(&mut one)?;
        other.connection.run("COMMIT", by)?;
        one.connection.run("BEGIN", by)?;
        is_same(&mut one)?;
        is_same(&mut other)?;
        one.connection.run("COMMIT", by)?;
    }
    Ok([one, other])
}

/// Returns what a thread has returned; a panic counts as no answer.
fn join(
    thread: std::thread::ScopedJoinHandle<'_, Result<Renewal, Failure>>,
) -> Result<Renewal, Failure> {
    let panicked = |_| {
        Err(Failure::Unknown(Error::unavailable(
            "a renewal has panicked",
        )))
    };
    thread.join().unwrap_or_else(panicked)
}

impl Shared {
    fn now(&self) -> Moment {
        self.dialer.clock().now()
    }

    fn forget(&self, name: &LockName, owner: OwnerId) -> Option<Arc<Held>> {
        self.state.lock().held.remove(&(name.clone(), owner))
    }

    /// Ends the locks whose lease is over, and has the holders of those whose connection has ended
    /// notified. Returns when to do that again; `None` if no lock is held.
    fn watch(&self) -> Option<Moment> {
        let now = self.now();
        let mut state = self.state.lock();
        state.closed.retain(|_, until| now < *until);
        let held: Vec<_> = state
            .held
            .iter()
            .map(|(key, held)| (key.clone(), Arc::clone(held)))
            .collect();
        drop(state);
        let mut ended = Vec::new();
        for ((name, owner), held) in &held {
            // A session that is in use shows its user what has happened to it.
            let Some(mut session) = held.session.try_lock() else {
                continue;
            };
            let is_over = *held.until.lock() <= now;
            let is_open = session.as_mut().is_some_and(|it| it.connection.check());
            if is_over || !is_open {
                *session = None;
                drop(session);
                self.forget(name, *owner);
                if !is_over {
                    ended.push(name.clone());
                }
            }
        }
        if !ended.is_empty() {
            self.dialer.notices().changed(Some(&ended));
        }
        (!held.is_empty()).then(|| self.now() + WATCHING)
    }
}

impl Backend for SessionStore {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        let Attempt {
            name, owner, lease, ..
        } = *attempt;
        let stored = self.names.stored(name)?;
        let now = self.shared.now();
        let key = (name.clone(), owner);
        let closed = self.shared.state.lock().closed.get(&key).copied();
        if closed.is_some_and(|until| now < until) {
            return Ok(Answer::Busy(None));
        }
        if self.extend(name, owner, lease.duration(), by)? {
            return Ok(Answer::Granted(Grant::new(None)));
        }
        // The label of the session is the owner, which an inspection reports.
        // A session that has the lock already would be granted it again: it is of another client,
        // lent by a pooler.
        let take = format!(
            "CASE WHEN {OWNS} THEN NULL ELSE pg_try_advisory_lock({KEY}) \
             AND set_config('application_name', '{owner}', false) <> '' END"
        );
        // A connection must be there first: it may be the one that detects another server.
        let (taken, session) = self.with(by, |it| match self.shared.dialer.pause() {
            Some(left) => Ok(Err(left)),
            None => it.ask(&take, &stored, by).map(Ok),
        })?;
        let is_taken = match taken {
            Ok(is_taken) => is_taken,
            Err(left) => {
                self.put_back(session);
                return Ok(crate::store::paused(left));
            }
        };
        if !is_taken {
            self.put_back(session);
            return Ok(Answer::Busy(None));
        }
        self.hold(name, attempt.owner, session, lease.duration())?;
        Ok(Answer::Granted(Grant::new(None)))
    }

    fn renew(
        &self,
        _node: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        let renew = |RenewalRequest { acquisition, .. }: &RenewalRequest| {
            let AcquisitionId {
                name, owner, lease, ..
            } = acquisition;
            let is_held = self.extend(name, *owner, lease.duration(), by)?;
            Ok(match is_held {
                true => Renewal::Extended,
                false => Renewal::Gone,
            })
        };
        // Each on its own thread, because each asks on its own connection, of which one may hang.
        std::thread::scope(|scope| {
            let start = |request| {
                let thread = std::thread::Builder::new().name("distlock-renew".to_owned());
                thread.spawn_scoped(scope, move || renew(request))
            };
            let started: Vec<_> = batch.iter().map(start).collect();
            let answer = |(thread, request): (std::io::Result<_>, _)| match thread {
                Ok(thread) => join(thread),
                Err(_) => renew(request),
            };
            started.into_iter().zip(batch).map(answer).collect()
        })
    }

    fn release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        let AcquisitionId {
            name, owner, lease, ..
        } = acquisition;
        let stored = self.names.stored(name)?;
        let now = self.shared.now();
        if options.tombstone == Tombstone::Leave {
            let (key, until) = ((name.clone(), *owner), now + lease.duration());
            let mut state = self.shared.state.lock();
            state.closed.retain(|_, until| now < *until);
            state.closed.insert(key, until);
            drop(state);
        }
        let Some(held) = self.shared.forget(name, *owner) else {
            let is_kept = |it: lock_core::backend::KeptLock| self.find(name, it.owner).is_some();
            return Ok(match options.kept.is_some_and(is_kept) {
                true => Release::Freed,
                false => Release::Gone,
            });
        };
        let is_over = *held.until.lock() <= now;
        let session = held.session.lock().take();
        let Some(mut session) = session.filter(|_| !is_over) else {
            return Ok(Release::Gone);
        };
        let kept = options.kept;
        let value = match kept {
            Some(kept) => format!(
                "set_config('application_name', '{}', false) <> ''",
                kept.owner
            ),
            None => format!("pg_advisory_unlock({KEY})"),
        };
        match session.ask(&value, &stored, by) {
            Ok(true) => {}
            // The session had ended before.
            Err(Failure::NotSent(_)) if self.shared.now() < by => return Ok(Release::Gone),
            Ok(false) => return Ok(Release::Gone),
            // The lock ends with the connection, which is closed here.
            Err(_) => return Ok(Release::Freed),
        }
        match kept {
            Some(kept) => self.hold(name, kept.owner, session, kept.time.duration())?,
            None => self.put_back(session),
        }
        Ok(Release::Freed)
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        let rows = self.ask(HOLDERS, name, by)?;
        let Some(row) = rows.first() else {
            return Ok(LockInfo::FREE);
        };
        let owner = OwnerText::new(row.get(1));
        let now = self.shared.now();
        let state = self.shared.state.lock();
        let mut own = state.held.iter();
        let own = own.find(|((held, id), _)| held == name && id.matches(&owner));
        // The leases of other clients are known to them alone.
        let rest = own.map(|(_, held)| held.until.lock().since(now));
        Ok(LockInfo::held(HolderInfo::new(owner, rest, 1)))
    }

    fn abilities(&self) -> Abilities {
        let (interval, jitter) = (POLLING, POLLING / 5);
        let waking = Waking::Polls { interval, jitter };
        Abilities::full()
            .tokens(false)
            .waking(waking)
            .waits_for_releases(true)
    }

    fn admin(&self) -> Option<&dyn Admin> {
        Some(self)
    }
}

impl Admin for SessionStore {
    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        let end = format!("SELECT pid, pg_terminate_backend(pid) FROM ({HOLDERS}) holders");
        let pid = |row: &postgres::Row| -> i32 { row.get(0) };
        let ended: Vec<_> = self.ask(&end, name, by)?.iter().map(pid).collect();
        if ended.is_empty() {
            return Ok(false);
        }
        // The server ends a session asynchronously. Another one may have the lock by then.
        let has_ended = |rows: &[postgres::Row]| !rows.iter().any(|row| ended.contains(&pid(row)));
        while !has_ended(&self.ask(HOLDERS, name, by)?) {
            self.shared.dialer.pause_for(ENDING);
        }
        Ok(true)
    }
}

impl fmt::Debug for SessionStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "sessions of postgres {}",
            self.shared.dialer.settings().hosts()
        )
    }
}

//! The servers of the races, and clients that can be paused between two commands.

use distlock::backend::{
    AcquisitionId, Answer, Attempt, Backend, ClientId, Context, Failure, LeaseTime, OwnerId,
    Receipt, Release, ReleaseOptions, Tokens,
};
use distlock::config::Replication;
use distlock::time::{Clock, Moment, Signal, SystemClock, Woken};
use distlock::{Config, FencingToken, LockName};
use lock_redis::RedisStore;
use lock_redis::servers::{Format, StepHook};
use parking_lot::{Condvar, Mutex};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

/// The bound on every wait, so that a hanging race ends with a message.
const PATIENCE: Duration = Duration::from_secs(20);

/// Waits until the condition holds.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = soon();
    while !is_so() {
        assert!(SystemClock.now() < end, "waited in vain for this: {what}");
        SystemClock.wait(
            &Arc::new(Signal::new()),
            SystemClock.now() + Duration::from_millis(5),
        );
    }
}

/// A Redis server that starts without data, and is killed when this is dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) port: u16,
    /// The server's directory. A replica writes its master's data there, and a server that starts
    /// reads what is there: so each server has a directory of its own.
    _folder: TempDir,
}

impl Server {
    pub(crate) fn start() -> Self {
        // Another process may take a free port before the server binds it: then another port is
        // tried.
        let mut started = (0..20).filter_map(|_| Self::start_on(free_port()));
        started.next().expect("one of so many ports is free")
    }

    /// Starts a server on this port; returns `None` if the port is taken.
    pub(crate) fn start_on(port: u16) -> Option<Self> {
        let binary = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let folder = tempfile::tempdir().expect("a folder of its own");
        let process = Command::new(&binary)
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(folder.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {binary}: {error}; install redis-server"));
        let mut server = Self {
            process,
            port,
            _folder: folder,
        };
        let mut is_ours = false;
        until("the server answers, or gives up", || {
            is_ours = server.answers_itself();
            is_ours
                || server
                    .process
                    .try_wait()
                    .expect("it is our child")
                    .is_some()
        });
        is_ours.then_some(server)
    }

    /// Returns whether the process that answers on the port is this server, and not one that was
    /// there before.
    fn answers_itself(&self) -> bool {
        const ITS_NUMBER: &str =
            r#"EVAL "return tonumber(redis.call('INFO', 'server'):match('process_id:(%d+)'))" 0"#;
        let number = self.process.id();
        self.try_ask(ITS_NUMBER)
            .is_ok_and(|answer| answer == format!(":{number}"))
    }

    /// Kills the server, and starts an empty one on its port.
    pub(crate) fn start_again(&mut self) {
        self.stop();
        *self = Self::start_on(self.port).expect("its port is still free");
    }

    pub(crate) fn stop(&mut self) {
        self.process.kill().ok();
        self.process.wait().ok();
    }

    /// Sends a line, and returns the first line of the answer.
    pub(crate) fn ask(&self, line: &str) -> String {
        self.try_ask(line).expect("the server is up, and answers")
    }

    fn try_ask(&self, line: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{line}\r\n").as_bytes())?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    }

    pub(crate) fn has_the_lock(&self) -> bool {
        self.ask("EXISTS x") == ":1"
    }

    /// Returns the remaining time of the lock's key in milliseconds; -1 if the key never expires.
    pub(crate) fn left(&self) -> i64 {
        self.ask("PTTL x")[1..].parse().expect("a number")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Returns a port without a listener, below the range of outgoing connections. A server is
/// restarted on its port, and a client that dials a port of that range before the server listens
/// may connect to itself. Tests and benchmarks, which may run at the same time, use other ranges.
fn free_port() -> u16 {
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(|| fastrand::u16(16_000..20_000))
        .find(is_free)
        .expect("it never ends")
}

/// The machine's clock with a different time of day.
#[derive(Debug)]
enum Time {
    /// Ahead by this many seconds; behind if negative.
    Ahead(i64),
    /// Always at this time.
    Still(Duration),
}

impl Clock for Time {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    fn unix_time(&self) -> Duration {
        let now = SystemClock.unix_time();
        match self {
            Self::Ahead(seconds) if *seconds < 0 => {
                now - Duration::from_secs(seconds.unsigned_abs())
            }
            Self::Ahead(seconds) => now + Duration::from_secs(seconds.unsigned_abs()),
            Self::Still(time) => *time,
        }
    }

    fn wait(&self, signal: &Arc<Signal>, until: Moment) -> Woken {
        SystemClock.wait(signal, until)
    }
}

/// The hook that pauses a client before certain steps.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    state: Mutex<Held>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Held {
    at: &'static [&'static str],
    is_there: bool,
    may_go: bool,
}

impl Hold {
    /// Starts a task that reports its steps, and waits until the task is paused before one of
    /// `steps` or has ended.
    pub(crate) fn until<T: Send + 'static>(
        self: &Arc<Self>,
        steps: &'static [&'static str],
        begin: impl FnOnce() -> T + Send + 'static,
    ) -> Begun<T> {
        *self.state.lock() = Held {
            at: steps,
            ..Held::default()
        };
        let thread = std::thread::spawn(begin);
        until("it is there, or done", || {
            self.state.lock().is_there || thread.is_finished()
        });
        Begun {
            hold: Arc::clone(self),
            thread,
        }
    }
}

impl StepHook for Hold {
    fn at(&self, step: &'static str, _: &LockName) {
        let mut state = self.state.lock();
        if !state.at.contains(&step) {
            return;
        }
        state.is_there = true;
        while !state.may_go {
            self.changed.wait(&mut state);
        }
        *state = Held::default();
    }
}

/// A grant of the lock.
#[derive(Clone, Debug)]
struct Granted {
    receipt: Receipt,
    /// The fencing token of the grant; `None` if the format has no tokens.
    token: Option<FencingToken>,
}

/// A client of the lock `x`, which uses the backend directly. It does not check the end of its
/// lease, because a paused process does not either.
#[derive(Clone)]
pub(crate) struct Client {
    backend: Arc<dyn Backend>,
    owner: OwnerId,
    lease: Duration,
    replication: Replication,
    hold: Arc<Hold>,
    held: Arc<Mutex<Option<Granted>>>,
}

impl Client {
    /// Returns a client of this server with this format.
    pub(crate) fn new(server: &Server, format: &str) -> Self {
        Self::with(server, format, Time::Ahead(0))
    }

    /// Returns a client whose clock is this many seconds ahead; behind if negative.
    pub(crate) fn ahead(server: &Server, format: &str, seconds: i64) -> Self {
        Self::with(server, format, Time::Ahead(seconds))
    }

    /// Returns a client whose clock always shows `time`.
    pub(crate) fn still(server: &Server, format: &str, time: Duration) -> Self {
        Self::with(server, format, Time::Still(time))
    }

    fn with(server: &Server, format: &str, time: Time) -> Self {
        Self::at(
            &format!("redis://127.0.0.1:{}?format={format}", server.port),
            time,
        )
    }

    /// Returns a client without the right to set the expiry of keys.
    pub(crate) fn without_expire(server: &Server, format: &str) -> Self {
        server.ask("ACL SETUSER limited on >secret ~* &* +@all -expire -pexpire");
        let url = format!(
            "redis://limited:secret@127.0.0.1:{}?format={format}",
            server.port
        );
        Self::at(&url, Time::Ahead(0))
    }

    fn at(url: &str, time: Time) -> Self {
        let (hold, id) = (Arc::<Hold>::default(), ClientId::random());
        let context = Context::new(Arc::new(time), id);
        let config = Config::from_url(url).expect("a good URL");
        let format = Format::bare(&config, &context, Arc::clone(&hold) as _).expect("a good URL");
        let backend = RedisStore::standalone(&config, &context, format).expect("a good URL");
        Self::on(Arc::new(backend), id, hold)
    }

    /// Returns a client of this store, which reports its steps to `hold`.
    pub(crate) fn on(backend: Arc<dyn Backend>, id: ClientId, hold: Arc<Hold>) -> Self {
        let (owner, lease) = (OwnerId::new(id, 1), Duration::from_secs(60));
        let (replication, held) = (Replication::off(), Arc::default());
        Self {
            backend,
            owner,
            lease,
            replication,
            hold,
            held,
        }
    }

    pub(crate) fn lease(self, lease: Duration) -> Self {
        Self { lease, ..self }
    }

    pub(crate) fn replication(self, replication: Replication) -> Self {
        Self {
            replication,
            ..self
        }
    }

    /// Tries to acquire the lock, and returns whether it was granted.
    pub(crate) fn take(&self) -> bool {
        matches!(self.attempt(), Ok(Answer::Granted(_)))
    }

    /// Tries to acquire the lock, and returns the store's answer.
    pub(crate) fn attempt(&self) -> Result<Answer, Failure> {
        let (name, lease) = (
            name(),
            LeaseTime::new(self.lease).expect("an ordinary lease"),
        );
        let tokens = if !self.backend.abilities().tokens {
            Tokens::None
        } else {
            Tokens::Assign { reserve: 0 }
        };
        let attempt = Attempt::new(&name, self.owner, lease).tokens(tokens);
        let attempt = attempt.replication(self.replication);
        let answer = self.backend.acquire(&attempt, soon())?;
        if let Answer::Granted(grant) = &answer {
            let token = grant.tokens.map(|tokens| tokens.first());
            *self.held.lock() = Some(Granted {
                receipt: grant.receipt.clone(),
                token,
            });
        }
        Ok(answer)
    }

    /// Returns the token of the client's last grant.
    pub(crate) fn token(&self) -> Option<FencingToken> {
        self.held.lock().as_ref().and_then(|held| held.token)
    }

    /// Releases the lock, and returns whether the store freed it.
    pub(crate) fn give_back(&self) -> bool {
        matches!(self.release(), Ok(Release::Freed))
    }

    /// Releases the lock of any owner by force, and returns whether it was held.
    pub(crate) fn free_by_force(&self) -> bool {
        self.backend
            .admin()
            .expect("a store with requests of operators")
            .force_release(&name(), soon())
            .is_ok_and(|is_freed| is_freed)
    }

    /// Releases the lock, and returns the store's answer. The request is sent even without a grant.
    pub(crate) fn release(&self) -> Result<Release, Failure> {
        let lease = LeaseTime::new(self.lease).expect("an ordinary lease");
        let receipt = self.held.lock().as_ref().map(|held| held.receipt.clone());
        let acquisition =
            AcquisitionId::new(name(), self.owner, lease, receipt.unwrap_or_default());
        self.backend
            .release(&acquisition, ReleaseOptions::WITHOUT_TOMBSTONE, soon())
    }

    /// Starts a task of this client, and waits until the task is paused before one of `steps` or
    /// has ended.
    pub(crate) fn until<T: Send + 'static>(
        &self,
        steps: &'static [&'static str],
        begin: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Begun<T> {
        let client = self.clone();
        self.hold.until(steps, move || begin(&client))
    }
}

/// A task that was started.
pub(crate) struct Begun<T> {
    hold: Arc<Hold>,
    thread: JoinHandle<T>,
}

impl<T> Begun<T> {
    /// Returns whether the task is paused.
    pub(crate) fn is_held_up(&self) -> bool {
        self.hold.state.lock().is_there
    }

    /// Lets the task continue, and returns its outcome.
    pub(crate) fn go_on(self) -> T {
        self.hold.state.lock().may_go = true;
        self.hold.changed.notify_all();
        self.thread.join().expect("it does not panic")
    }
}

pub(crate) fn name() -> LockName {
    LockName::new("x").expect("a good name")
}

fn soon() -> Moment {
    SystemClock.now() + PATIENCE
}

//! [`RedisServer`]: a real server for one test.

use super::lifeline::LifeLine;
use super::probe::Probe;
use super::rights;
use super::time::{eventually, scaled};
use super::time_of_day::TimeOfDay;
use lock_conformance::{forget_process, watch_process};
use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// The longest time until a started server answers, so that a slow machine fails no test. Measured:
/// about 10 ms.
const START: Duration = Duration::from_secs(60);

/// The distance of a cluster node's bus port above its port.
const BUS: u16 = 10_000;

/// The largest number of bytes of a server's log that are shown when a test fails.
const LOG_TAIL: usize = 4_000;

/// A `redis-server` for one test, on a free port and without persistence. It has a directory of its
/// own, and is killed when the test process ends. Its log is shown when the test fails. It knows
/// the user of [`rights`], and the test fails if the server refused that user a command.
pub struct RedisServer {
    port: u16,
    /// The settings of the start, for a restart.
    setup: Setup,
    directory: TempDir,
    running: Option<Running>,
}

#[derive(Default)]
struct Setup {
    /// The additional arguments of the command line.
    arguments: Vec<String>,
    environment: Vec<(&'static str, PathBuf)>,
    /// True for a server that does not get the library's user: one that is too old for users, and a
    /// sentinel.
    without_user: bool,
    /// For a sentinel: the initial content of its settings file, which the sentinel rewrites.
    sentinel: Option<String>,
    /// True for a node of a cluster: its user has the additional rights for a cluster, and a port
    /// is reserved for its bus.
    on_cluster: bool,
}

impl Setup {
    fn of(arguments: &[&str], clock: Option<&TimeOfDay>) -> Self {
        let arguments = arguments
            .iter()
            .map(|&argument| argument.to_owned())
            .collect();
        let environment = clock.map(TimeOfDay::environment).unwrap_or_default();
        Self {
            arguments,
            environment,
            ..Self::default()
        }
    }
}

struct Running {
    // In this order, so that the line is dropped before the process.
    line: LifeLine,
    process: Child,
}

impl RedisServer {
    /// Starts a server and waits until it answers.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with these additional arguments, as in `["--maxclients", "20"]`, which
    /// override the default ones.
    pub fn start_with(arguments: &[&str]) -> Self {
        Self::start_with_clock(arguments, None)
    }

    /// Starts a server that knows no user but its default one.
    pub fn start_without_user() -> Self {
        Self::launch(Setup {
            without_user: true,
            ..Setup::default()
        })
    }

    /// Starts a server that reads the time of day from this clock.
    pub fn start_on(clock: &TimeOfDay) -> Self {
        Self::start_with_clock(&[], Some(clock))
    }

    /// Starts a server with these additional arguments on this clock; `None` is the machine's
    /// clock.
    pub fn start_with_clock(arguments: &[&str], clock: Option<&TimeOfDay>) -> Self {
        Self::launch(Setup::of(arguments, clock))
    }

    /// Starts a sentinel with these lines in its settings file.
    pub fn start_sentinel(settings: &str) -> Self {
        Self::start_sentinel_with(settings, Vec::new())
    }

    /// Starts a sentinel with these lines in its settings file and these additional arguments.
    pub fn start_sentinel_with(settings: &str, arguments: Vec<String>) -> Self {
        let sentinel = Some(settings.to_owned());
        Self::launch(Setup {
            arguments,
            sentinel,
            without_user: true,
            ..Setup::default()
        })
    }

    /// Starts a cluster node. Its port and its bus port, 10,000 above, are both below the ports of
    /// outgoing connections. Its user has the rights that are needed on a cluster.
    pub fn start_cluster_node(arguments: &[&str]) -> Self {
        Self::start_cluster_node_on(arguments, None)
    }

    /// Starts a cluster node that reads the time of day from this clock; `None` is the machine's
    /// clock.
    pub fn start_cluster_node_on(arguments: &[&str], clock: Option<&TimeOfDay>) -> Self {
        Self::launch(Setup {
            on_cluster: true,
            ..Setup::of(arguments, clock)
        })
    }

    fn launch(setup: Setup) -> Self {
        let directory = directory(&setup);
        let mut server = Self {
            port: 0,
            setup,
            directory,
            running: None,
        };
        if let Some(settings) = &server.setup.sentinel {
            std::fs::write(server.settings_file(), settings).unwrap();
        }
        // A port that was free a moment ago may be taken when the server binds it. Then another
        // port is tried.
        for _ in 0..20 {
            server.port = if server.setup.on_cluster {
                free_pair_of_ports()
            } else {
                free_port()
            };
            if server.try_launch() {
                return server;
            }
        }
        panic!(
            "no redis-server came up on any of 20 ports; the last log:\n{}",
            server.log_tail()
        );
    }

    /// Returns `redis://127.0.0.1:PORT` with the login of the user with the least rights.
    pub fn url(&self) -> String {
        self.url_as(rights::LOGIN)
    }

    /// Returns `redis://127.0.0.1:PORT` with this login: `user`, `user:password` or `:password`, or
    /// empty for none.
    pub fn url_as(&self, login: &str) -> String {
        let at = if login.is_empty() { "" } else { "@" };
        format!("redis://{login}{at}127.0.0.1:{}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the port on which a cluster node communicates with the other nodes.
    pub fn bus_port(&self) -> u16 {
        self.port + BUS
    }

    /// Returns whether the server runs and is not [paused](Self::pause).
    pub fn is_running(&self) -> bool {
        let stopped = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process_id()));
            stat.unwrap_or_default()
                .rsplit(')')
                .next()
                .unwrap_or("")
                .starts_with(" T")
        };
        self.running.is_some() && !stopped()
    }

    /// Returns the port on which a cluster node takes keys from other nodes.
    pub fn port_for_nodes(&self) -> u16 {
        let tls = self
            .argument("--tls-cluster")
            .and_then(|_| self.argument("--tls-port"));
        tls.map_or(self.port, |port| port.parse().expect("a port is a number"))
    }

    /// Returns the word after this one on the command line.
    fn argument(&self, name: &str) -> Option<&str> {
        let mut words = self.setup.arguments.iter().skip_while(|word| *word != name);
        words.nth(1).map(String::as_str)
    }

    /// Makes a connection of the test's own.
    pub fn probe(&self) -> Probe {
        Probe::connect(self.port)
    }

    /// Kills the server by SIGKILL: its port refuses connections from now on, and data that is not
    /// on disk is lost.
    pub fn kill(&mut self) {
        if let Some(Running { line, mut process }) = self.running.take() {
            drop(line);
            forget_process(process.id());
            process.kill().expect("our own child can be killed");
            process.wait().expect("our own child can be waited for");
        }
    }

    /// Stops the server by SIGSTOP, and waits until it has stopped: connections stay open and are
    /// accepted, but nothing is answered.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
        eventually("the server has stopped", START, || !self.is_running());
    }

    /// Continues a stopped server by SIGCONT.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Kills the server, if it still runs, and starts it on the same port, empty.
    pub fn restart(&mut self) {
        self.kill();
        eventually("the server is back on its port", START, || {
            self.try_launch()
        });
    }

    /// Restarts the server as a replica of the server on this port, whatever it was before.
    pub fn restart_as_replica_of(&mut self, port: u16) {
        const OPTION: &str = "--replicaof";
        let arguments = &mut self.setup.arguments;
        if let Some(at) = arguments.iter().position(|argument| argument == OPTION) {
            arguments.drain(at..at + 3);
        }
        arguments.extend([OPTION, "127.0.0.1", &port.to_string()].map(str::to_owned));
        self.restart();
    }

    /// Returns the processor time that the server has used, in user and system mode.
    pub fn cpu_time(&self) -> Duration {
        let mut probe = self.probe();
        let seconds = |field| -> f64 { probe.info_field("cpu", field).unwrap().parse().unwrap() };
        Duration::from_secs_f64(["used_cpu_user", "used_cpu_sys"].map(seconds).iter().sum())
    }

    /// Returns the ID of the server's process, for tests that inspect the process.
    pub fn process_id(&self) -> u32 {
        self.running.as_ref().expect("the server runs").process.id()
    }

    /// Starts the process. Returns whether the server that answers on the port is this process.
    fn try_launch(&mut self) -> bool {
        let mut process = self.spawn();
        let line = LifeLine::with_files(&process, self.directory.path());
        let up = eventually("the server answers, or gives up", START, || {
            if process
                .try_wait()
                .expect("our own child can be looked at")
                .is_some()
            {
                return Some(false);
            }
            let answered_by = Probe::try_connect(self.port).ok()?.process_id()?;
            // If another server answers on this port, ours cannot bind the port, and ends soon.
            (answered_by == process.id()).then_some(true)
        });
        if up {
            watch_process(process.id());
            self.running = Some(Running { line, process });
        }
        up
    }

    fn spawn(&self) -> Child {
        let binary = binary();
        let Setup {
            arguments,
            environment,
            without_user,
            sentinel,
            on_cluster,
        } = &self.setup;
        let mut user = vec!["--user"];
        user.extend(if *on_cluster {
            rights::on_cluster()
        } else {
            rights::without_prefix()
        });
        user.retain(|_| !without_user);
        // If the nodes use TLS among each other, the server would otherwise choose its bus port
        // relative to its TLS port.
        let bus = self
            .argument("--tls-cluster")
            .map(|_| self.bus_port().to_string());
        let bus = bus
            .into_iter()
            .flat_map(|port| ["--cluster-port".to_owned(), port]);
        let mut command = Command::new(&binary);
        match sentinel {
            Some(_) => command.arg(self.settings_file()).arg("--sentinel"),
            None => command.args(["--save", "", "--appendonly", "no"]),
        };
        command
            .args([
                "--bind",
                "127.0.0.1",
                "--port",
                &self.port.to_string(),
                "--daemonize",
                "no",
            ])
            .arg("--dir")
            .arg(self.directory.path())
            .arg("--logfile")
            .arg(self.log_file())
            .args(user)
            .args(bus)
            .args(arguments)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "`{binary}` does not start ({error}): install it with `apt-get install \
                     redis-server`, or name \
                     another one in REDIS_SERVER"
                )
            })
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.process_id())
            .ok()
            .and_then(Pid::from_raw);
        kill_process(pid.expect("a child has a number"), signal).expect("our child can be told");
    }

    fn settings_file(&self) -> PathBuf {
        self.directory.path().join("sentinel.conf")
    }

    fn log_file(&self) -> PathBuf {
        self.directory.path().join("redis.log")
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read(self.log_file()).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(LOG_TAIL)..]).into_owned()
    }
}

impl RedisServer {
    /// Writes 500 keys with 20 MB in all. The keys are few, so that a delay for each key lasts
    /// about as long as planned on a busy machine. They are large, so that a server that loads them
    /// answers requests meanwhile: it does so after every 2 MiB, which Redis before 7 has no
    /// setting for.
    pub fn fill(&self) {
        const MANY: &str =
            "for i = 1, 500 do redis.call('SET', 'key' .. i, string.rep('x', 40000)) end";
        let mut probe = self.probe();
        probe.command(&["CONFIG", "SET", "rdbcompression", "no"]);
        probe.command(&["EVAL", MANY, "0"]);
    }

    /// Makes the server answer requests after every few keys while it loads its data, from its next
    /// start on. Does nothing before Redis 7, which lacks the setting.
    pub fn answer_while_loading(&mut self) {
        const SETTING: &str = "loading-process-events-interval-bytes";
        if !self
            .probe()
            .command(&["CONFIG", "GET", SETTING])
            .texts()
            .is_empty()
        {
            self.setup
                .arguments
                .extend([format!("--{SETTING}"), "65536".to_owned()]);
        }
    }

    /// Changes these settings of the running server, and returns their previous values.
    pub fn configure<const N: usize>(&self, settings: [[&str; 2]; N]) -> [[String; 2]; N] {
        let mut probe = self.probe();
        settings.map(|[name, value]| {
            let before = probe.command(&["CONFIG", "GET", name]).texts().remove(1);
            let answer = probe.command(&["CONFIG", "SET", name, value]);
            assert_eq!(answer.text(), "OK", "{name} {value}");
            [name.to_owned(), before]
        })
    }

    /// Returns the commands that the server refused to the library's user. A test fails if there
    /// are any.
    pub fn refused(&self) -> Vec<String> {
        rights::refused(self.port)
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "--- log of redis-server on port {} ---\n{}---",
                self.port,
                self.log_tail()
            );
            return self.kill();
        }
        let mut refused = Vec::new();
        if self.running.is_some() {
            self.resume();
            refused = self.refused();
        }
        self.kill();
        assert!(
            refused.is_empty(),
            "the library may not do what it does: {refused:#?}"
        );
    }
}

/// Makes a directory for the server. Before each vote a sentinel waits until its settings are on
/// the disk. On a busy machine this takes seconds, and the sentinels would elect no leader.
/// Therefore their directories are in memory, if the system has such a file system.
fn directory(setup: &Setup) -> TempDir {
    const IN_MEMORY: &str = "/dev/shm";
    let mut directory = tempfile::Builder::new();
    directory.prefix("distlock-redis-");
    let in_memory = setup
        .sentinel
        .is_some()
        .then(|| directory.tempdir_in(IN_MEMORY).ok());
    in_memory
        .flatten()
        .unwrap_or_else(|| directory.tempdir().unwrap())
}

/// Returns a port without a listener, below the ports of outgoing connections: on one of those, a
/// client that reconnects to a dead server could connect to itself. No port is returned twice
/// during a run: a sentinel that still watches a killed server would make the next server on its
/// port a replica.
pub fn free_port() -> u16 {
    Ports {
        name: "single",
        range: 22_000..32_000,
        distances: &[0],
    }
    .next()
}

/// Returns the first of two free ports. The second is for the bus of a cluster node.
fn free_pair_of_ports() -> u16 {
    Ports {
        name: "pair",
        range: 10_000..12_000,
        distances: &[0, BUS],
    }
    .next()
}

/// A range of ports from which all processes of this user take the next one in turn, so that a port
/// is taken again only after all others. The last port is in a file, which is locked while it is
/// read and written.
struct Ports {
    name: &'static str,
    range: Range<u16>,
    /// The distances of the ports that are taken together, from the returned one.
    distances: &'static [u16],
}

impl Ports {
    fn next(&self) -> u16 {
        let user = rustix::process::getuid().as_raw();
        let path = std::env::temp_dir().join(format!("distlock-test-ports-{user}-{}", self.name));
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        // The lock ends when the file is closed, even if this process is killed.
        rustix::fs::flock(&file, FlockOperation::LockExclusive).expect("a file can be locked");
        let mut last = String::new();
        file.read_to_string(&mut last).expect("a file of our own");
        let range = self.range.clone();
        let last: Option<u16> = last.trim().parse().ok().filter(|last| range.contains(last));
        let mut port = last.unwrap_or_else(|| fastrand::u16(range.clone()));
        for _ in range.clone() {
            port = if port + 1 < range.end {
                port + 1
            } else {
                range.start
            };
            let is_free =
                |distance| TcpListener::bind((Ipv4Addr::LOCALHOST, port + distance)).is_ok();
            if self.distances.iter().all(|&distance| is_free(distance)) {
                file.rewind()
                    .and_then(|()| write!(file, "{port:5}"))
                    .expect("a file of our own");
                return port;
            }
        }
        panic!("no port is free in {range:?}");
    }
}

/// Returns the server binary that the tests run on.
pub(super) fn binary() -> String {
    std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned())
}

/// Returns the bound on one exchange between a test and a server.
pub(super) fn exchange_bound() -> Duration {
    scaled(Duration::from_secs(60))
}

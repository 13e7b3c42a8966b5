//! [`Server`]: a redis-server for the benchmarks; [`Counters`]: the figures that it reports.

use crate::raw::{Raw, Reply, request};
use rustix::process::{Pid, setpriority_process};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A server on a free port of the loopback, without persistence. Killed when dropped.
pub(crate) struct Server {
    process: Child,
    pub(crate) port: u16,
    /// True after [`go_first`](Self::go_first): the server and its clients run before all other
    /// processes.
    pub(crate) goes_first: bool,
    /// Restores the niceness of the session that [`go_first`](Self::go_first) has changed, however
    /// this process ends.
    _restorer: Option<Child>,
    directory: TempDir,
}

/// How the system prefers the server and the clients to all other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// Real-time scheduling: no thread waits for a time slice of another process. But on one
    /// processor a thread runs until it sleeps: a waiter that a release wakes does not run before
    /// the releasing thread has taken the lock again.
    RealTime,
    /// Normal scheduling, with a much larger share than other processes: for workloads in which it
    /// matters which thread runs next.
    Nice,
}

/// What a server has done since it started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// Processor time, in seconds.
    pub(crate) cpu: f64,
    /// Requests from clients: EVALSHA, EVAL, SUBSCRIBE, UNSUBSCRIBE and PING.
    pub(crate) requests: f64,
    /// All commands, including those that scripts call.
    pub(crate) commands: f64,
    /// Requests that a node of a cluster has answered with MOVED, ASK or TRYAGAIN.
    pub(crate) redirects: f64,
    /// Calls of SET, by clients and by scripts.
    pub(crate) sets: f64,
    /// Time inside EVALSHA, in microseconds.
    pub(crate) script_us: f64,
    pub(crate) clients: f64,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with these additional arguments.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        Self::start_under(&[], arguments)
    }

    /// Starts the server under another program, such as valgrind, which runs it.
    pub(crate) fn start_under(program: &[&str], arguments: &[&str]) -> Self {
        // Another process may take the port before the server does.
        (0..10)
            .find_map(|_| Self::start_on(free_port(), program, arguments))
            .expect("one of ten ports stays free until the server listens")
    }

    /// Starts the server on this port, or returns `None` if another server already listens there.
    fn start_on(port: u16, program: &[&str], arguments: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory of our own");
        let binary = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        // The shell kills the server when this process closes the pipe, which the system does
        // however the process ends.
        let process = Command::new("sh")
            .args([
                "-c",
                "\"$@\" & server=$!; cat >/dev/null; kill -KILL $server 2>&-",
                "sh",
            ])
            .args(program)
            .arg(&binary)
            .args([
                "--bind",
                "127.0.0.1",
                "--port",
                &port.to_string(),
                "--save",
                "",
            ])
            .args([
                "--appendonly",
                "no",
                "--maxclients",
                "20000",
                "--loglevel",
                "warning",
            ])
            .arg("--dir")
            .arg(directory.path())
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // The shell has its own process group: otherwise Ctrl-C would end it before it kills
            // the server.
            .process_group(0)
            .spawn()
            .expect("`sh` starts");
        let server = Self {
            process,
            port,
            goes_first: false,
            _restorer: None,
            directory,
        };
        let end = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
            assert!(
                Instant::now() < end,
                "`{binary}` does not listen on port {port}: is redis-server installed?"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        server.answers().then_some(server)
    }

    /// Returns whether the server that answers on the port is this one.
    fn answers(&self) -> bool {
        let ours = self.directory.path().canonicalize().expect("it is there");
        let mut raw = Raw::connect(self.port);
        raw.send(&request(&["CONFIG", "GET", "dir"]));
        let directory = match raw.read() {
            Ok(Reply::List(pair)) => pair.into_iter().next_back(),
            _ => None,
        };
        matches!(directory, Some(Reply::Text(path)) if path == ours.as_os_str().as_bytes())
    }

    /// Gives the server the last processor, and this process, with all processes that it starts,
    /// the others. Otherwise the figures would depend on the scheduler's choice, which differs from
    /// run to run. Does nothing on a machine with one processor.
    pub(crate) fn pin(&self) {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        if count < 2 {
            return;
        }
        let (mut ours, mut theirs) = (CpuSet::new(), CpuSet::new());
        (0..count - 1).for_each(|cpu| ours.set(cpu));
        theirs.set(count - 1);
        let server = Pid::from_raw(self.pid());
        // Some containers refuse this: then nothing is pinned, and the figures are noisier.
        let _refused = sched_setaffinity(server, &theirs).is_err();
        let _refused = sched_setaffinity(None, &ours).is_err();
    }

    /// Gives the server, and this process with all processes that it starts, the highest niceness
    /// priority, and enables [`prefer`](Self::prefer). Otherwise a woken thread on a busy machine
    /// waits for time slices of other processes. Such waits would dominate the figures, most of all
    /// with many threads, which are woken often.
    pub(crate) fn go_first(&mut self) {
        const GROUP: &str = "/proc/self/autogroup";
        const HIGHEST: i32 = -20;
        for pid in [Pid::from_raw(self.pid()), None] {
            setpriority_process(pid, HIGHEST).expect("priority is for root only");
        }
        // Niceness counts among the processes of a session. Sessions share the processors evenly,
        // unless this file gives one a niceness. A system without such shares does not have the
        // file.
        if let Ok(group) = std::fs::read_to_string(GROUP) {
            let old = group
                .split_whitespace()
                .last()
                .expect("it says how nice the session is");
            let restorer = Command::new("sh")
                .args([
                    "-c",
                    "cat >/dev/null; echo \"$1\" > /proc/self/autogroup",
                    "sh",
                    old,
                ])
                .stdin(Stdio::piped())
                .process_group(0)
                .spawn();
            self._restorer = Some(restorer.expect("`sh` starts"));
            std::fs::write(GROUP, HIGHEST.to_string()).expect("root may");
        }
        self.goes_first = true;
    }

    /// Lets the server, and the processes that this process starts next, run before all others in
    /// this way. Does nothing unless [`go_first`](Self::go_first) was called.
    pub(crate) fn prefer(&self, priority: Priority) {
        if !self.goes_first {
            return;
        }
        let policy = match priority {
            Priority::RealTime => ["--fifo", "--pid", "1"],
            Priority::Nice => ["--other", "--pid", "0"],
        };
        for pid in [self.pid().to_string(), std::process::id().to_string()] {
            let status = Command::new("chrt")
                .arg("--all-tasks")
                .args(policy)
                .arg(&pid)
                .status();
            let status = status.expect("`chrt` (of util-linux) starts");
            assert!(status.success(), "real-time priority is for root only");
        }
    }

    /// Ends the server by SHUTDOWN, so that a program which runs the server can write its report.
    pub(crate) fn shut_down(&self) {
        Raw::connect(self.port).send(&request(&["SHUTDOWN", "NOSAVE"]));
    }

    fn pid(&self) -> i32 {
        let text = info(&mut Raw::connect(self.port), "server");
        let pid = text
            .lines()
            .find_map(|line| line.strip_prefix("process_id:"));
        pid.and_then(|text| text.trim().parse().ok())
            .expect("a server says who it is")
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters::of(&mut Raw::connect(self.port))
    }

    pub(crate) fn flush(&self) {
        Raw::connect(self.port).call(&request(&["FLUSHALL"]));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _reaped = self.process.wait();
    }
}

/// Returns a port without a listener, below the range of outgoing connections: a client that dials
/// a port of that range before the server listens may connect to itself. The servers of the tests
/// use another range.
pub(crate) fn free_port() -> u16 {
    let free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    std::iter::repeat_with(|| fastrand::u16(12_000..16_000))
        .find(free)
        .expect("it never ends")
}

impl Counters {
    /// Reads the counters of the server at the other end.
    pub(crate) fn of(raw: &mut Raw) -> Self {
        let mut counters = Self::default();
        // One request for each section: servers before 7.0 accept only one at a time.
        for line in ["cpu", "clients", "stats", "commandstats", "errorstats"]
            .map(|part| info(raw, part))
            .concat()
            .lines()
        {
            let Some((key, value)) = line.split_once(':') else {
                continue;
            };
            match key {
                "used_cpu_user" | "used_cpu_sys" => counters.cpu += number(value),
                // Without the connection that asks.
                "connected_clients" => counters.clients = number(value) - 1.0,
                "total_commands_processed" => counters.commands += number(value),
                "cmdstat_evalsha" => {
                    counters.script_us += field(value, "usec=");
                    counters.requests += field(value, "calls=");
                }
                "cmdstat_eval" | "cmdstat_subscribe" | "cmdstat_unsubscribe" | "cmdstat_ping" => {
                    counters.requests += field(value, "calls=");
                }
                "errorstat_MOVED" | "errorstat_ASK" | "errorstat_TRYAGAIN" => {
                    counters.redirects += field(value, "count=");
                }
                "cmdstat_set" => counters.sets += field(value, "calls="),
                _ => {}
            }
        }
        counters
    }
}

fn info(raw: &mut Raw, part: &str) -> String {
    match raw.call(&request(&["INFO", part])) {
        Reply::Text(text) => String::from_utf8(text).expect("INFO is text"),
        other => panic!("INFO answers {other:?}"),
    }
}

fn number(text: &str) -> f64 {
    text.trim().parse().expect("INFO has numbers")
}

fn field(text: &str, name: &str) -> f64 {
    let (_, rest) = text.split_once(name).expect("a field of commandstats");
    number(rest.split(',').next().expect("split gives one at least"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_that_another_server_has_taken_is_left_to_it() {
        let other = Server::start();
        assert!(Server::start_on(other.port, &[], &[]).is_none());
        assert!(other.answers());
    }
}

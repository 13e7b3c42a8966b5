//! [`Server`]: a redis-server for the benchmarks, and what it says of itself.

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
    /// Whether nothing else runs on the machine while the server or its clients have something to
    /// do.
    pub(crate) goes_first: bool,
    /// Gives up what [`go_first`](Self::go_first) took, in whatever way we end.
    _restorer: Option<Child>,
    directory: TempDir,
}

/// How the server and the clients run before everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    /// No thread waits for a time slice of others. But on one processor a thread runs until it
    /// sleeps: one that is woken by a release does not get to run before the one who released has
    /// taken the lock again.
    RealTime,
    /// As the system does it always, with a much larger share than others: for what depends on who
    /// runs next.
    Nice,
}

/// What a server has done since it started.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// Processor time, in seconds.
    pub(crate) cpu: f64,
    /// Requests from clients; what scripts call is not counted.
    pub(crate) requests: f64,
    /// All commands; what scripts call is counted, too.
    pub(crate) commands: f64,
    /// Requests that were sent elsewhere: of a cluster only.
    pub(crate) redirects: f64,
    /// SET, sent by clients and called by scripts.
    pub(crate) sets: f64,
    /// Time inside EVALSHA, in microseconds.
    pub(crate) script_us: f64,
    pub(crate) clients: f64,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same with more on the command line.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        Self::start_under(&[], arguments)
    }

    /// Starts the server as an argument of another program, which runs it.
    pub(crate) fn start_under(program: &[&str], arguments: &[&str]) -> Self {
        // Another process may take the port before the server does.
        (0..10)
            .find_map(|_| Self::start_on(free_port(), program, arguments))
            .expect("one of ten ports stays free until the server listens")
    }

    /// `None` if another server listens on the port by then.
    fn start_on(port: u16, program: &[&str], arguments: &[&str]) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory of our own");
        let binary = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        // The shell kills the server when no process holds its other end any more, in whatever way
        // we ended.
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
            // A group of its own, so that Ctrl-C does not end the shell before it can do its work.
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

    /// Whether it is this server that answers on the port.
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

    /// Gives the server the last processor for itself and this process, with all that it starts,
    /// the others: so the scheduler's choice, which differs from run to run, is none of the
    /// figures. Not where there is only one.
    pub(crate) fn pin(&self) {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        if count < 2 {
            return;
        }
        let (mut ours, mut theirs) = (CpuSet::new(), CpuSet::new());
        (0..count - 1).for_each(|cpu| ours.set(cpu));
        theirs.set(count - 1);
        let server = Pid::from_raw(self.pid());
        // Refused in some containers: then it is not pinned, and the figures are noisier.
        let _refused = sched_setaffinity(server, &theirs).is_err();
        let _refused = sched_setaffinity(None, &ours).is_err();
    }

    /// From now on [`prefer`](Self::prefer) lets the server, and this process with all that it
    /// starts, run before everything else. Where others use the machine, too, a woken thread waits
    /// for one of their time slices, and that is what would be measured: most of all with many
    /// threads, which are woken often.
    pub(crate) fn go_first(&mut self) {
        const GROUP: &str = "/proc/self/autogroup";
        const HIGHEST: i32 = -20;
        for pid in [Pid::from_raw(self.pid()), None] {
            setpriority_process(pid, HIGHEST).expect("priority is for root only");
        }
        // Niceness counts among the processes of a session; between sessions the system shares
        // evenly, unless it is told that this one is nice. (Where it does not, there is no such
        // file.)
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

    /// Lets the server, and what this process starts next, run before everything else in this way,
    /// if they are to.
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

    /// Ends it as an administrator does.
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

/// A port without a listener, below the ports of outgoing connections: a client that dials one of
/// these before the server listens may connect to itself. The tests' servers have others.
pub(crate) fn free_port() -> u16 {
    let free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    std::iter::repeat_with(|| fastrand::u16(12_000..16_000))
        .find(free)
        .expect("it never ends")
}

impl Counters {
    /// Asks the server at the other end.
    pub(crate) fn of(raw: &mut Raw) -> Self {
        let mut counters = Self::default();
        // In a request each: servers before 7.0 know no more than one section at a time.
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
                // But not this one.
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

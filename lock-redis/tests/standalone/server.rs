//! [`RedisServer`]: a redis-server of one's own, and a look into it with other eyes (`redis-cli`).

use lock_core::{Clock, Signal, SystemClock};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// A running server; killed when dropped.
pub(crate) struct RedisServer {
    child: Child,
    port: u16,
    arguments: Vec<String>,
}

impl RedisServer {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// A server with more arguments, as in `--requirepass x`.
    pub(crate) fn with(arguments: &[&str]) -> Self {
        let arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let port = free_port();
        Self { child: spawn(port, &arguments), port, arguments }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// What `redis-cli` prints for a command.
    pub(crate) fn cli(&self, words: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .args(["-p", &self.port.to_string(), "--no-auth-warning"])
            .args(words)
            .output()
            .expect("redis-cli is installed with redis-server");
        String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
    }

    pub(crate) fn number(&self, words: &[&str]) -> i64 {
        let answer = self.cli(words);
        answer.parse().unwrap_or_else(|_| panic!("{words:?} answered {answer}"))
    }

    /// How often the server was asked for this command since `CONFIG RESETSTAT`.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let stats = self.cli(&["INFO", "commandstats"]);
        let start = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&start));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    }

    /// A connection that shows the bytes as they come.
    pub(crate) fn raw(&self) -> Raw {
        Raw(TcpStream::connect(("127.0.0.1", self.port)).unwrap())
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn revive(&mut self) {
        self.child = spawn(self.port, &self.arguments);
    }

    /// Stops the process; its sockets go on taking connections and bytes.
    pub(crate) fn pause(&self) {
        self.signal(rustix::process::Signal::STOP);
    }

    pub(crate) fn resume(&self) {
        self.signal(rustix::process::Signal::CONT);
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)
            .unwrap();
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.resume_quietly();
        let _already_dead = self.child.kill();
        let _status = self.child.wait();
    }
}

impl RedisServer {
    fn resume_quietly(&self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        let _gone = rustix::process::kill_process(pid, rustix::process::Signal::CONT);
    }
}

/// See [`RedisServer::raw`].
pub(crate) struct Raw(TcpStream);

impl Raw {
    pub(crate) fn send(&mut self, line: &str) {
        self.0.write_all(format!("{line}\r\n").as_bytes()).unwrap();
    }

    /// Exactly as many bytes as `expected` has, which they must be.
    pub(crate) fn expect(&mut self, expected: &str) {
        self.0.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut bytes = vec![0; expected.len()];
        self.0.read_exact(&mut bytes).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes), expected);
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn spawn(port: u16, arguments: &[String]) -> Child {
    let binary = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
    let child = Command::new(&binary)
        .args(["--port", &port.to_string(), "--save", "", "--appendonly", "no"])
        .args(["--dir", std::env::temp_dir().to_str().unwrap(), "--dbfilename", "none.rdb"])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("{binary}: {error} (apt-get install redis-server)"));
    eventually("the server answers", || {
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
        stream.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
        let mut answer = [0; 1];
        stream.write_all(b"PING\r\n").is_ok() && stream.read_exact(&mut answer).is_ok()
    });
    child
}

/// Looks until it is true; ten seconds at most.
pub(crate) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = SystemClock.now() + Duration::from_secs(10);
    while !is_so() {
        assert!(SystemClock.now() < end, "not within 10 s: {what}");
        pause(Duration::from_millis(5));
    }
}

/// Lets time pass.
pub(crate) fn pause(time: Duration) {
    SystemClock.wait(&Arc::new(Signal::new()), SystemClock.now() + time);
}

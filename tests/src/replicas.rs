//! [`Replicated`]: a master and its replicas, for one test.

use super::probe::Probe;
use super::process::RedisServer;
use super::time::eventually;
use super::time_of_day::TimeOfDay;
use std::time::Duration;

/// How long replicas may take until they have all data. Measured: some 100 ms from the start.
const SYNC: Duration = Duration::from_secs(20);

/// A master and its replicas, in sync once [`Replicated::start`] returns.
pub struct Replicated {
    pub master: RedisServer,
    pub replicas: Vec<RedisServer>,
}

impl Replicated {
    /// Starts a master and this many replicas.
    pub fn start(count: usize) -> Self {
        Self::start_on(&vec![None; count])
    }

    /// Starts a master and a replica on each of these clocks.
    pub fn start_on(clocks: &[Option<&TimeOfDay>]) -> Self {
        let master = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
        let of_master = ["--replicaof", "127.0.0.1", &master.port().to_string()];
        let start = |clock: &Option<_>| RedisServer::start_with_clock(&of_master, *clock);
        let replicas = clocks.iter().map(start).collect();
        let replicated = Self { master, replicas };
        replicated.must_be_in_sync();
        replicated
    }

    /// Returns the master's URL with these settings.
    pub fn url(&self, settings: &str) -> String {
        format!("{}?{settings}", self.master.url())
    }

    /// Waits until every replica has all that the master has.
    pub fn must_be_in_sync(&self) {
        let mut probe = self.master.probe();
        let count = self.replicas.len().to_string();
        // Three times in a row: a replica that has just been filled may hold up the next request
        // for almost a second (seen in two of eight runs), until its next periodic acknowledgement.
        let mut times = 0;
        eventually("all replicas are in sync", SYNC, || {
            // `PUBLISH` is replicated, and changes no key.
            probe.command(&["PUBLISH", "sync", "now"]);
            let count = probe.command(&["WAIT", &count, "100"]).int();
            times = if count == self.replicas.len() as i64 {
                times + 1
            } else {
                0
            };
            times == 3
        });
    }

    /// Cuts the connection between the master and this replica, which stays up.
    pub fn cut(&self, replica: usize) {
        // Port 1 refuses connections: the replica keeps trying, as if its network to the master
        // were down.
        self.follow(replica, "1");
    }

    /// Connects this replica to the master again.
    pub fn mend(&self, replica: usize) {
        self.follow(replica, &self.master.port().to_string());
    }

    fn follow(&self, replica: usize, port: &str) {
        let answer = self.replicas[replica]
            .probe()
            .command(&["REPLICAOF", "127.0.0.1", port]);
        assert!(answer.text().starts_with("OK"));
    }

    /// Opens a connection of the test's own to each server, the master first.
    pub fn probes(&self) -> Vec<Probe> {
        std::iter::once(&self.master)
            .chain(&self.replicas)
            .map(RedisServer::probe)
            .collect()
    }
}

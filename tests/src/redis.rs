//! Clients of a test's server, and what that server counted of them.

use super::probe::Probe;
use super::process::RedisServer;
use distlock::{Client, ClientBuilder};

/// A client of this server, with settings after the `?`.
pub fn client(server: &RedisServer, options: &str) -> Client {
    builder(server, options).connect().unwrap()
}

pub fn builder(server: &RedisServer, options: &str) -> ClientBuilder {
    distlock::builder()
        .url(&format!("{}?{options}", server.url()))
        .unwrap()
}

/// What the server counted since the counters were reset. An acquire looks for its tombstone, and
/// nothing else asks EXISTS; a release that frees publishes, and nothing else does.
#[derive(Debug, PartialEq, Eq)]
pub struct Counted {
    /// Also the 32 with which each connection begins, unless with `joined=off`.
    pub scripts: u64,
    pub acquires: u64,
    pub releases: u64,
    pub subscriptions: u64,
}

pub fn counted(probe: &mut Probe) -> Counted {
    Counted {
        scripts: probe.command_calls("evalsha") + probe.command_calls("eval"),
        // Also read behind a renewal, unless with `tracking=off`; once for those that are joined.
        // Each release looks for a queue, too.
        acquires: probe
            .command_calls("exists")
            .saturating_sub(probe.command_calls("publish")),
        releases: probe.command_calls("publish"),
        subscriptions: probe.command_calls("subscribe"),
    }
}

//! Clients of a test's server, and the server's counts of their requests.

use super::probe::Probe;
use super::process::RedisServer;
use distlock::{Client, ClientBuilder};

/// Connects a client to this server; `options` follow the `?` of the URL.
pub fn client(server: &RedisServer, options: &str) -> Client {
    builder(server, options).connect().unwrap()
}

pub fn builder(server: &RedisServer, options: &str) -> ClientBuilder {
    distlock::builder()
        .url(&format!("{}?{options}", server.url()))
        .unwrap()
}

/// The requests since the server's counters were reset, found by the commands of their scripts: an
/// acquire runs EXISTS once; a release that frees the lock runs EXISTS and PUBLISH once.
#[derive(Debug, PartialEq, Eq)]
pub struct Counted {
    /// Includes the 32 scripts that each connection runs first, unless with `joined=off`.
    pub scripts: u64,
    pub acquires: u64,
    pub releases: u64,
    pub subscriptions: u64,
}

pub fn counted(probe: &mut Probe) -> Counted {
    Counted {
        scripts: probe.command_calls("evalsha") + probe.command_calls("eval"),
        // A renewal also reads its key by EXISTS, unless with `tracking=off`. Joined requests may
        // run EXISTS once together.
        acquires: probe
            .command_calls("exists")
            .saturating_sub(probe.command_calls("publish")),
        releases: probe.command_calls("publish"),
        subscriptions: probe.command_calls("subscribe"),
    }
}

//! What can only be seen on a real Redis server: what is sent, what is stored, what is left.

mod held;
mod life;
mod requests;
mod waiting;

use crate::harness::probe::Probe;
use crate::harness::process::RedisServer;
use distlock::{Client, ClientBuilder};

/// A client of this server, with settings after the `?`.
fn client(server: &RedisServer, options: &str) -> Client {
    builder(server, options).connect().unwrap()
}

fn builder(server: &RedisServer, options: &str) -> ClientBuilder {
    distlock::builder().url(&format!("{}?{options}", server.url())).unwrap()
}

/// What the server counted since the counters were reset. An acquire looks for its tombstone, and nothing else asks
/// EXISTS; a release that frees publishes, and nothing else does.
#[derive(Debug, PartialEq, Eq)]
struct Counted {
    scripts: u64,
    acquires: u64,
    releases: u64,
    subscriptions: u64,
}

fn counted(probe: &mut Probe) -> Counted {
    Counted {
        scripts: probe.command_calls("evalsha") + probe.command_calls("eval"),
        acquires: probe.command_calls("exists"),
        releases: probe.command_calls("publish"),
        subscriptions: probe.command_calls("subscribe"),
    }
}

//! [`Quorum`]: independent servers, a majority of which holds a lock.

use super::store::counter_of;
use crate::probe::Probe;
use crate::process::RedisServer;
use crate::quorum::Servers;
use distlock::backend::{Backend, Context};
use distlock::{ClientBuilder, Config, LockName, builder, schemes};
use lock_conformance::{Seen, Subject};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A node has 2 s for a response: on a busy machine a thread may wait for a processor for half a
/// second. The dead nodes of these tests refuse at once.
const OPTIONS: &str = "max_lease=10m&node_timeout=2s";

/// The servers of a quorum, and open connections to read from them.
pub struct Nodes {
    servers: Servers,
    dead: usize,
    /// The connections stay open: five new ones take longer than the time from the end of a guard's
    /// validity to the end of its lease.
    probes: Mutex<Vec<Probe>>,
}

impl Nodes {
    /// Starts a quorum with this many servers that run and this many that do not.
    pub fn start(alive: usize, dead: usize, options: &str) -> Self {
        let servers = Servers::with(alive, dead, &format!("{OPTIONS}{options}"));
        let probes = servers.servers.iter().map(RedisServer::probe).collect();
        Self {
            servers,
            dead,
            probes: Mutex::new(probes),
        }
    }
}

/// A quorum as the store of a case.
pub struct Quorum {
    pub nodes: Arc<Nodes>,
    /// Reads the holder of a lock on one server.
    pub holder: fn(&mut Probe, &str) -> Option<String>,
}

/// Returns the only field of a hash, which is the owner as Redisson writes it.
pub fn only_field(probe: &mut Probe, key: &str) -> Option<String> {
    let holders = probe.hgetall(key);
    assert!(
        holders.len() <= 1,
        "a lock with several holders: {holders:?}"
    );
    holders.into_keys().next()
}

impl Subject for Quorum {
    fn name(&self) -> String {
        self.nodes.servers.url.clone()
    }

    fn backend(&self, context: &Context) -> Arc<dyn Backend> {
        let config = Config::from_url(&self.nodes.servers.url).unwrap();
        schemes().open(&config, context).unwrap()
    }

    fn client(&self, context: &Context) -> ClientBuilder {
        builder()
            .clock(Arc::clone(&context.clock))
            .url(&self.nodes.servers.url)
            .unwrap()
    }

    fn probe(&self, lock: &LockName) -> Seen {
        let mut probes = self.nodes.probes.lock();
        let nodes = probes.len() + self.nodes.dead;
        let holders = probes.iter_mut().filter_map(|probe| {
            let holder = (self.holder)(probe, lock.as_str());
            let left = probe.pttl(lock.as_str())?;
            Some((holder?, Some(left)))
        });
        majority_of(holders.collect(), nodes)
    }

    fn lose(&self, lock: &LockName) {
        let key = lock.as_str();
        for probe in self.nodes.probes.lock().iter_mut() {
            probe.command(&["DEL", key, &counter_of(key)]);
        }
    }
}

/// Returns a quorum's view of a lock, from the holders on the reachable nodes and their remaining
/// leases. Two owners with one node each, as after a late release and a late attempt, are no
/// majority.
pub(super) fn majority_of(holders: Vec<(String, Option<Duration>)>, nodes: usize) -> Seen {
    let mut by_owner: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (owner, left) in holders {
        by_owner.entry(owner).or_default().push(left);
    }
    let least = by_owner.into_values().find_map(|mut left| {
        left.sort_unstable_by(|a, b| b.cmp(a));
        left.get(nodes / 2).copied()
    });
    least.map_or(Seen::FREE, Seen::held)
}

//! The exam, mounted on quorums.

use distlock::{
    Backend, ClientBuilder, Config, Context, LockName, MemoryBackend, Moment, QuorumBackend,
    SystemClock, builder, schemes,
};
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::quorum::{Dead, Servers};
use lock_core::conformance::{NEEDS_REPLICAS, Seen, Subject};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

// Three stores in memory.
mod memory3 {
    lock_core::conformance_tests!(super::MemoryQuorum::new(3, 0));
}

// Five, two of which never answer anything.
mod memory5_two_dead {
    lock_core::conformance_tests!(super::MemoryQuorum::new(3, 2));
}

// Three servers.
mod redis3 {
    lock_core::conformance_tests!(super::RedisQuorum::start(3, 0));
}

// Three servers with what most others write under the key, and the same without our tokens.
mod redis3_token {
    lock_core::conformance_tests!(super::RedisQuorum::of_tokens("format=token", &[]));
}
mod redis3_bare_token {
    use lock_core::conformance::NEEDS_TOKENS;
    lock_core::conformance_tests!(super::RedisQuorum::of_tokens(
        "format=token&tokens=off",
        NEEDS_TOKENS
    ));
}

// Five, two of which are not there.
mod redis5_two_dead {
    lock_core::conformance_tests!(super::RedisQuorum::start(3, 2));
}

/// A node has as long for an answer as every other store that sits the exam: on a busy machine half a second is no long
/// time for a thread to get a processor. The dead ones here say so at once.
const NODE_TIMEOUT: Duration = Duration::from_secs(2);
const OPTIONS: &str = "max_lease=10m&node_timeout=2s";

/// A quorum of stores in this process's memory.
struct MemoryQuorum {
    alive: Vec<MemoryBackend>,
    dead: usize,
}

impl MemoryQuorum {
    fn new(alive: usize, dead: usize) -> Self {
        let alive = (0..alive).map(|_| MemoryBackend::new(Arc::new(SystemClock))).collect();
        Self { alive, dead }
    }

    fn nodes(&self) -> usize {
        self.alive.len() + self.dead
    }
}

impl Subject for MemoryQuorum {
    fn cannot(&self) -> &[(&str, &str)] {
        NEEDS_REPLICAS
    }

    fn name(&self) -> String {
        format!("a quorum of {} in memory, {} dead", self.nodes(), self.dead)
    }

    fn backend(&self, context: &Context) -> Arc<dyn Backend> {
        let alive = self.alive.iter().map(|store| Arc::new(store.clone()) as Arc<dyn Backend>);
        let dead = (0..self.dead).map(|_| Arc::new(Dead) as Arc<dyn Backend>);
        let stores = dead.chain(alive).collect();
        Arc::new(QuorumBackend::new(stores, NODE_TIMEOUT, context).unwrap())
    }

    fn probe(&self, lock: &LockName) -> Seen {
        let holders = self.alive.iter().filter_map(|store| {
            let holder = store.inspect(lock, Moment::NEVER).expect("it is in memory").holder?;
            Some((holder.owner.as_str().to_owned(), holder.remaining))
        });
        majority_of(holders.collect(), self.nodes())
    }

    fn lose(&self, lock: &LockName) {
        self.alive.iter().for_each(|store| store.lose(lock));
    }
}

/// What a quorum says, from who has it on the nodes that are there, and for how long yet. Two who have a node each, one of
/// whom is late to give it back and the other to be told that it is too late, are no majority.
fn majority_of(holders: Vec<(String, Option<Duration>)>, nodes: usize) -> Seen {
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

/// A quorum of Redis servers of its own.
struct RedisQuorum {
    quorum: Servers,
    dead: usize,
    /// What a server says of a lock: who has it.
    holder: fn(&mut Probe, &str) -> Option<String>,
    cannot: Vec<(&'static str, &'static str)>,
    /// Kept open: five new connections take longer than what a guard leaves of its lease.
    probes: Mutex<Vec<Probe>>,
}

impl RedisQuorum {
    fn start(alive: usize, dead: usize) -> Self {
        let quorum = Servers::with(alive, dead, OPTIONS);
        let probes = quorum.servers.iter().map(RedisServer::probe).collect();
        let cannot = NEEDS_REPLICAS.to_vec();
        Self { quorum, dead, holder: field, cannot, probes: Mutex::new(probes) }
    }

    /// Three servers with locks of the format `token`, and what those cannot do beyond the others.
    fn of_tokens(options: &str, cannot: &[(&'static str, &'static str)]) -> Self {
        let quorum = Servers::with(3, 0, &format!("{OPTIONS}&{options}"));
        let probes = quorum.servers.iter().map(RedisServer::probe).collect();
        let cannot = [NEEDS_REPLICAS, cannot].concat();
        Self { quorum, dead: 0, holder: Probe::get, cannot, probes: Mutex::new(probes) }
    }
}

/// The only field of a hash, as Redisson has it.
fn field(probe: &mut Probe, key: &str) -> Option<String> {
    let holders = probe.hgetall(key);
    assert!(holders.len() <= 1, "a lock with several holders: {holders:?}");
    holders.into_keys().next()
}

impl Subject for RedisQuorum {
    fn cannot(&self) -> &[(&str, &str)] {
        &self.cannot
    }

    fn name(&self) -> String {
        format!("a quorum of {} servers, {} dead", self.quorum.servers.len() + self.dead, self.dead)
    }

    fn backend(&self, context: &Context) -> Arc<dyn Backend> {
        let config = Config::from_url(&self.quorum.url).unwrap();
        schemes().open(&config, context).unwrap()
    }

    fn client(&self, context: &Context) -> ClientBuilder {
        builder().clock(Arc::clone(&context.clock)).url(&self.quorum.url).unwrap()
    }

    fn probe(&self, lock: &LockName) -> Seen {
        let mut probes = self.probes.lock();
        let nodes = probes.len() + self.dead;
        let holders = probes.iter_mut().filter_map(|probe| {
            let holder = (self.holder)(probe, lock.as_str());
            let left = probe.pttl(lock.as_str())?;
            Some((holder?, Some(left)))
        });
        majority_of(holders.collect(), nodes)
    }

    fn lose(&self, lock: &LockName) {
        let key = lock.as_str();
        let counter = if key.contains('{') {
            format!("redisson_lock_token:{key}")
        } else {
            format!("redisson_lock_token:{{{key}}}")
        };
        for probe in self.probes.lock().iter_mut() {
            probe.command(&["DEL", key, &counter]);
        }
    }
}

//! [`Store`]: one server, a cluster, or a master behind sentinels, and how a case reads its locks.

use super::format::Format;
use super::mount::{Borrowed, Pool, Shared};
use crate::cluster::Cluster;
use crate::probe::Probe;
use crate::process::RedisServer;
use crate::replicas::Replicated;
use crate::sentinel::Group;
use distlock::backend::{Backend, Context};
use distlock::{ClientBuilder, Config, LockName, builder, schemes};
use lock_conformance::{ReplicaSet, Seen, Subject};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

/// The servers of a store.
pub trait Servers: Send + Sync {
    /// Connects to the server of this key.
    fn probe(&self, key: &str) -> Probe;

    /// Connects to this replica of the key's server.
    fn replica(&self, _key: &str, _number: usize) -> Probe {
        panic!("it has no replicas")
    }

    /// Returns the number of each master's replicas; `None` if a case may not hold them back.
    fn replicas(&self) -> Option<u32> {
        None
    }

    /// Holds back this many replicas of each master, and lets the others continue.
    fn hold_back(&self, _replicas: u32) {}
}

/// A server, and its files.
pub struct Single {
    pub server: RedisServer,
    pub url: String,
    pub _files: Option<TempDir>,
}

impl Single {
    /// Starts a server with these arguments.
    pub fn start(arguments: &[&str]) -> Self {
        let server = RedisServer::start_with(arguments);
        Self {
            url: server.url(),
            server,
            _files: None,
        }
    }

    pub fn url(&self) -> String {
        self.url.clone()
    }
}

impl Servers for Single {
    fn probe(&self, _: &str) -> Probe {
        self.server.probe()
    }
}

impl Servers for Replicated {
    fn probe(&self, _: &str) -> Probe {
        self.master.probe()
    }

    fn replica(&self, _: &str, number: usize) -> Probe {
        self.replicas[number].probe()
    }

    fn replicas(&self) -> Option<u32> {
        u32::try_from(self.replicas.len()).ok()
    }

    fn hold_back(&self, replicas: u32) {
        pause_first(&self.replicas, replicas);
    }
}

/// A master with replicas, which sentinels watch.
pub struct Watched {
    pub group: Group,
    /// True if only one case uses the group, and may hold its replicas back.
    pub alone: bool,
}

impl Servers for Watched {
    fn probe(&self, _: &str) -> Probe {
        self.group.servers[0].probe()
    }

    fn replica(&self, _: &str, number: usize) -> Probe {
        self.group.servers[1 + number].probe()
    }

    fn replicas(&self) -> Option<u32> {
        self.alone
            .then(|| u32::try_from(self.group.servers.len() - 1).unwrap())
    }

    fn hold_back(&self, replicas: u32) {
        pause_first(&self.group.servers[1..], replicas);
    }
}

/// A cluster, with one replica to each master.
pub struct Sharded {
    pub cluster: Cluster,
    pub alone: bool,
}

impl Servers for Sharded {
    fn probe(&self, key: &str) -> Probe {
        self.cluster.probe(key)
    }

    fn replica(&self, key: &str, _: usize) -> Probe {
        let master = self.cluster.owner_of(key);
        let mut probe = self.cluster.node(master + self.cluster.len() / 2).probe();
        assert_eq!(probe.command(&["READONLY"]).text(), "OK");
        probe
    }

    fn replicas(&self) -> Option<u32> {
        self.alone.then_some(1)
    }

    /// Holds back the replicas of all masters, because the caller does not name a lock.
    fn hold_back(&self, replicas: u32) {
        for number in self.cluster.len() / 2..self.cluster.len() {
            let replica = self.cluster.node(number);
            if replicas > 0 {
                replica.pause();
            } else {
                replica.resume();
            }
        }
    }
}

/// Pauses the first `count` replicas, and resumes the others. A paused replica stays connected, and
/// the master counts it as present.
fn pause_first(replicas: &[RedisServer], count: u32) {
    for (number, replica) in replicas.iter().enumerate() {
        if number < count as usize {
            replica.pause();
        } else {
            replica.resume();
        }
    }
}

/// A store in one wire format.
pub struct Store<S> {
    servers: S,
    url: String,
    /// The beginning of all keys.
    prefix: &'static str,
    has_tags: bool,
    format: Format,
}

impl<S> Store<S> {
    /// Makes a store; the options of the format are added to the URL.
    pub fn new(servers: S, url: &str, format: Format) -> Self {
        let mark = if url.contains('?') { '&' } else { '?' };
        let url = match format.options {
            "" => url.to_owned(),
            options => format!("{url}{mark}{options}"),
        };
        Self {
            servers,
            url,
            prefix: format.prefix,
            has_tags: false,
            format,
        }
    }

    /// Makes all keys begin with this prefix.
    pub fn prefix(self, prefix: &'static str) -> Self {
        let mark = if self.url.contains('?') { '&' } else { '?' };
        Self {
            url: format!("{}{mark}prefix={prefix}", self.url),
            prefix,
            ..self
        }
    }

    /// Makes the cases use lock names with hash tags.
    pub fn with_tags(self) -> Self {
        Self {
            has_tags: true,
            ..self
        }
    }

    fn key(&self, lock: &LockName) -> String {
        format!("{}{lock}", self.prefix)
    }
}

impl<S> Subject for Store<S>
where
    S: Deref + Send + Sync,
    S::Target: Servers,
{
    fn name(&self) -> String {
        self.url.clone()
    }

    fn backend(&self, context: &Context) -> Arc<dyn Backend> {
        schemes()
            .open(&Config::from_url(&self.url).unwrap(), context)
            .unwrap()
    }

    fn client(&self, context: &Context) -> ClientBuilder {
        builder()
            .clock(Arc::clone(&context.clock))
            .url(&self.url)
            .unwrap()
    }

    fn settings(&self, config: Config) -> Config {
        if self.format.is_owned {
            config
        } else {
            config.with_lease(Duration::from_secs(60))
        }
    }

    fn probe(&self, lock: &LockName) -> Seen {
        let key = self.key(lock);
        (self.format.read)(self.servers.probe(&key), &key)
    }

    fn lose(&self, lock: &LockName) {
        let key = self.key(lock);
        self.servers
            .probe(&key)
            .command(&["DEL", &key, &counter_of(&key)]);
    }

    fn has_tags(&self) -> bool {
        self.has_tags
    }

    fn replicas(&self) -> Option<&dyn ReplicaSet> {
        self.servers.replicas().map(|_| self as &dyn ReplicaSet)
    }
}

impl<S> ReplicaSet for Store<S>
where
    S: Deref + Send + Sync,
    S::Target: Servers,
{
    fn count(&self) -> u32 {
        self.servers.replicas().expect("it has replicas")
    }

    fn hold_back(&self, replicas: u32) {
        self.servers.hold_back(replicas);
    }

    fn probe(&self, replica: u32, lock: &LockName) -> Seen {
        let key = self.key(lock);
        (self.format.read)(self.servers.replica(&key, replica as usize), &key)
    }
}

/// Returns the key of the token counter of the lock with this key.
pub fn counter_of(key: &str) -> String {
    match key {
        tagged if tagged.contains('{') => format!("redisson_lock_token:{tagged}"),
        plain => format!("redisson_lock_token:{{{plain}}}"),
    }
}

/// Opens a store of this format on servers that all cases share.
pub fn shared<T: Servers + 'static>(
    servers: &Shared<T>,
    url: fn(&T) -> String,
    format: Format,
) -> impl Fn() -> Store<Arc<T>> + Send + Sync + 'static {
    let servers = servers.clone();
    move || {
        let servers = servers.get();
        let url = url(&servers);
        Store::new(servers, &url, format)
    }
}

/// Opens a store of this format on servers that one case has for itself.
pub fn borrowed<T: Servers + 'static>(
    pool: &Arc<Pool<T>>,
    url: fn(&T) -> String,
    format: Format,
) -> impl Fn() -> Store<Borrowed<T>> + Send + Sync + 'static {
    let pool = Arc::clone(pool);
    move || {
        let servers = pool.take();
        let url = url(&servers);
        Store::new(servers, &url, format)
    }
}

//! The stores that sit the exam here.

use distlock::{
    Backend, Client, ClientBuilder, Config, Context, DistLock, LockName, MajorityLock,
    MemoryBackend, MultiLock, Mutex, SystemClock, builder, schemes,
};
use distlock_tests::authority::Authority;
use distlock_tests::cluster::Cluster;
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::rights;
use distlock_tests::sentinel::Group;
use lock_core::conformance::{NEEDS_REPLICAS, SINGLE_STORE_ONLY, Seen, Subject};
use std::sync::{Arc, LazyLock};
use std::thread::panicking;
use tempfile::TempDir;

/// A store in this process's memory.
pub(crate) struct MemorySubject(MemoryBackend);

impl MemorySubject {
    pub(crate) fn new() -> Self {
        Self(MemoryBackend::new(Arc::new(SystemClock)))
    }
}

impl Subject for MemorySubject {
    fn name(&self) -> String {
        "memory".to_owned()
    }

    fn backend(&self, _: &Context) -> Arc<dyn Backend> {
        Arc::new(self.0.clone())
    }

    fn probe(&self, lock: &LockName) -> Seen {
        Seen::of(&self.0, lock)
    }

    fn lose(&self, lock: &LockName) {
        self.0.lose(lock);
    }

    fn cannot(&self) -> &[(&str, &str)] {
        NEEDS_REPLICAS
    }
}

/// The same without anything that it is let off: what it cannot do, it must fail.
pub(crate) struct MemoryWithoutExcuse(MemorySubject);

impl MemoryWithoutExcuse {
    pub(crate) fn new() -> Self {
        Self(MemorySubject::new())
    }
}

impl Subject for MemoryWithoutExcuse {
    fn name(&self) -> String {
        self.0.name()
    }

    fn backend(&self, context: &Context) -> Arc<dyn Backend> {
        self.0.backend(context)
    }

    fn probe(&self, lock: &LockName) -> Seen {
        self.0.probe(lock)
    }

    fn lose(&self, lock: &LockName) {
        self.0.lose(lock);
    }
}

/// A Redis Cluster that all cases share.
pub(crate) struct ClusterSubject {
    cluster: Arc<Cluster>,
    url: String,
    /// What its keys begin with.
    prefix: &'static str,
    tags: bool,
}

impl ClusterSubject {
    /// With names as they come.
    pub(crate) fn untagged() -> Self {
        let cluster = Cluster::shared();
        Self { url: cluster.url(), cluster, prefix: "", tags: false }
    }

    /// With names that have hash tags, and with plain channels.
    pub(crate) fn tagged() -> Self {
        let cluster = Cluster::shared();
        Self { url: cluster.url() + "?channels=plain", cluster, prefix: "", tags: true }
    }

    /// As a user who may do what `docs/OPERATIONS.md` lists, and nothing else.
    pub(crate) fn with_the_least_rights() -> Self {
        let cluster = Cluster::shared();
        // The first word is the name.
        let url = cluster.url_as("least:SECRET", &rights::documented_for_cluster()[1..]);
        Self { url: url + "?prefix=app:", cluster, prefix: "app:", tags: false }
    }

    fn key(&self, lock: &LockName) -> String {
        format!("{}{lock}", self.prefix)
    }
}

impl Subject for ClusterSubject {
    fn name(&self) -> String {
        format!("cluster{}", if self.tags { ", with hash tags" } else { "" })
    }

    fn backend(&self, context: &Context) -> Arc<dyn Backend> {
        schemes().open(&Config::from_url(&self.url).unwrap(), context).unwrap()
    }

    fn client(&self, context: &Context) -> ClientBuilder {
        builder().clock(Arc::clone(&context.clock)).url(&self.url).unwrap()
    }

    fn probe(&self, lock: &LockName) -> Seen {
        let key = self.key(lock);
        seen(self.cluster.probe(&key), &key)
    }

    fn lose(&self, lock: &LockName) {
        let key = self.key(lock);
        lose(self.cluster.probe(&key), &key);
    }

    fn has_tags(&self) -> bool {
        self.tags
    }

    fn cannot(&self) -> &[(&str, &str)] {
        &WHERE_SERVERS_ARE_SHARED
    }
}

/// Locks of one name in three stores, taken as one.
pub(crate) struct SeveralSubject {
    name: &'static str,
    stores: [MemoryBackend; 3],
    make: fn(Vec<Mutex>) -> Arc<dyn DistLock>,
    cannot: &'static [(&'static str, &'static str)],
}

impl SeveralSubject {
    /// All three of them.
    pub(crate) fn all() -> Self {
        Self::new("all of three", |members| MultiLock::new(members).unwrap().into())
    }

    /// The majority of the three.
    pub(crate) fn majority() -> Self {
        Self::new("a majority of three", |members| MajorityLock::new(members).unwrap().into())
    }

    /// The same lock in the middle of others.
    pub(crate) fn nested() -> Self {
        Self::new("one of a lock of two", |mut members| {
            let last = members.pop().unwrap();
            let inner: Arc<dyn DistLock> = MultiLock::new(members).unwrap().into();
            MultiLock::new([inner, last.into()]).unwrap().into()
        })
    }

    fn new(name: &'static str, make: fn(Vec<Mutex>) -> Arc<dyn DistLock>) -> Self {
        let stores = [(); 3].map(|()| MemoryBackend::new(Arc::new(SystemClock)));
        Self { name, stores, make, cannot: SINGLE_STORE_ONLY }
    }

    /// The same, and lets nothing be left out.
    pub(crate) fn sitting_all(self) -> Self {
        Self { cannot: &[], ..self }
    }
}

impl Subject for SeveralSubject {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn backend(&self, _: &Context) -> Arc<dyn Backend> {
        panic!("several locks have no one store")
    }

    fn clients(&self, context: &Context) -> Vec<ClientBuilder> {
        let client = |store: &MemoryBackend| {
            Client::builder().clock(Arc::clone(&context.clock)).backend(Arc::new(store.clone()))
        };
        self.stores.iter().map(client).collect()
    }

    fn lock(&self, clients: &[Client], name: &LockName) -> Arc<dyn DistLock> {
        (self.make)(clients.iter().map(|client| client.mutex(name).unwrap()).collect())
    }

    /// Held if anything of it is: what is free must be free everywhere.
    fn probe(&self, lock: &LockName) -> Seen {
        let seen = self.stores.each_ref().map(|store| Seen::of(store, lock));
        let held = seen.iter().filter(|it| it.held);
        held.min_by_key(|it| it.remaining).copied().unwrap_or(Seen::FREE)
    }

    fn lose(&self, lock: &LockName) {
        self.stores.iter().for_each(|store| store.lose(lock));
    }

    fn cannot(&self) -> &[(&str, &str)] {
        self.cannot
    }
}

/// What cannot be asked where all cases share the servers: none of them may hold their replicas back. With sentinels they
/// are sat apart, all of them, in [`replicated`](super::replicated).
static WHERE_SERVERS_ARE_SHARED: LazyLock<Vec<(&str, &str)>> = LazyLock::new(|| {
    NEEDS_REPLICAS
        .iter()
        .map(|(case, _)| {
            (*case, "other cases use these replicas, too; it is sat on servers of its own")
        })
        .collect()
});

/// One Redis server of its own, reached by its URL.
pub(crate) struct RedisSubject {
    server: RedisServer,
    url: String,
    /// What its keys begin with.
    prefix: &'static str,
    /// What the server needs in the file system.
    _files: Option<TempDir>,
}

impl RedisSubject {
    pub(crate) fn start() -> Self {
        let server = RedisServer::start();
        Self { url: server.url(), server, prefix: "", _files: None }
    }

    /// The same as a user who may do what `docs/OPERATIONS.md` lists, and nothing else.
    pub(crate) fn with_the_least_rights() -> Self {
        let server = RedisServer::start();
        let words = [&["ACL", "SETUSER"], &rights::documented()[..]].concat();
        assert_eq!(server.probe().command(&words).text(), "OK");
        let url = format!("{}?prefix=app:", server.url());
        Self { url, server, prefix: "app:", _files: None }
    }

    fn key(&self, lock: &LockName) -> String {
        format!("{}{lock}", self.prefix)
    }

    /// The same over a socket in the file system.
    pub(crate) fn on_a_socket() -> Self {
        let files = tempfile::tempdir().unwrap();
        let socket = files.path().join("redis.sock").display().to_string();
        let server = RedisServer::start_with(&["--unixsocket", &socket]);
        Self {
            url: format!("redis+unix://{}@{socket}", rights::LOGIN),
            server,
            prefix: "",
            _files: Some(files),
        }
    }

    /// The same over TLS.
    pub(crate) fn on_tls() -> Self {
        let authority = Authority::new();
        let (server, port) = authority.server("127.0.0.1", 2090, "no", &[]);
        Self { url: authority.url(port), server, prefix: "", _files: Some(authority.into_files()) }
    }
}

impl Subject for RedisSubject {
    fn name(&self) -> String {
        "redis".to_owned()
    }

    fn backend(&self, context: &Context) -> Arc<dyn Backend> {
        let config = Config::from_url(&self.url).unwrap();
        schemes().open(&config, context).unwrap()
    }

    fn client(&self, context: &Context) -> ClientBuilder {
        builder().clock(Arc::clone(&context.clock)).url(&self.url).unwrap()
    }

    fn probe(&self, lock: &LockName) -> Seen {
        seen(self.server.probe(), &self.key(lock))
    }

    fn lose(&self, lock: &LockName) {
        lose(self.server.probe(), &self.key(lock));
    }

    fn cannot(&self) -> &[(&str, &str)] {
        NEEDS_REPLICAS
    }
}

/// As Redisson stores it: a hash with one field, whose TTL is the lease.
pub(super) fn seen(mut probe: Probe, key: &str) -> Seen {
    let holders = probe.hgetall(key);
    assert!(holders.len() <= 1, "a lock with several holders: {holders:?}");
    // Between the two requests the lease may end.
    match (holders.len(), probe.pttl(key)) {
        (1, Some(left)) => Seen::held(Some(left)),
        (1, None) => {
            assert!(!probe.exists(key), "a lock that never ends");
            Seen::FREE
        }
        _ => Seen::FREE,
    }
}

/// Deletes a lock and its counter.
pub(super) fn lose(mut probe: Probe, key: &str) {
    let counter = match key {
        tagged if tagged.contains('{') => format!("redisson_lock_token:{tagged}"),
        plain => format!("redisson_lock_token:{{{plain}}}"),
    };
    probe.command(&["DEL", key, &counter]);
}

/// A master with replicas and sentinels. All cases share one group, which lives as long as the tests: each has names
/// that nobody else has, and none does anything to the servers.
pub(super) fn shared_group() -> &'static Group {
    static SHARED: LazyLock<Group> = LazyLock::new(Group::steady);
    &SHARED
}

/// A master with replicas and sentinels.
pub(crate) struct SentinelSubject(&'static Group);

impl SentinelSubject {
    pub(crate) fn start() -> Self {
        Self(shared_group())
    }
}

impl Drop for SentinelSubject {
    fn drop(&mut self) {
        let refused = self.0.servers[0].refused();
        assert!(refused.is_empty() || panicking(), "the library may not do this: {refused:#?}");
    }
}

impl Subject for SentinelSubject {
    fn name(&self) -> String {
        "sentinel".to_owned()
    }

    fn backend(&self, context: &Context) -> Arc<dyn Backend> {
        let config = Config::from_url(&self.0.url()).unwrap();
        schemes().open(&config, context).unwrap()
    }

    fn client(&self, context: &Context) -> ClientBuilder {
        builder().clock(Arc::clone(&context.clock)).url(&self.0.url()).unwrap()
    }

    fn probe(&self, lock: &LockName) -> Seen {
        seen(self.0.servers[0].probe(), lock.as_str())
    }

    fn lose(&self, lock: &LockName) {
        lose(self.0.servers[0].probe(), lock.as_str());
    }

    fn cannot(&self) -> &[(&str, &str)] {
        &WHERE_SERVERS_ARE_SHARED
    }
}

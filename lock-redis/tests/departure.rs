//! A backend that is gone leaves no thread and no connection behind. Alone in its process, to count its threads.

#![allow(clippy::unwrap_used, reason = "this is a test")]

#[allow(dead_code, reason = "the other tests use the rest")]
#[path = "standalone/server.rs"]
mod server;

use lock_core::backend::{Attempt, Wake};
use lock_core::{
    Backend, ClientId, Clock, Config, Context, LeaseTime, LockName, OwnerId, SystemClock,
};
use lock_redis::RedisBackend;
use server::{RedisServer, eventually};
use std::fs;
use std::sync::Arc;
use std::time::Duration;

struct Nobody;

impl Wake for Nobody {
    fn wake(&self) {}
}

/// The names of our threads in this process.
fn threads() -> Vec<String> {
    let names = fs::read_dir("/proc/self/task").unwrap().map(|task| {
        fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default().trim().to_owned()
    });
    names.filter(|name| name.starts_with("distlock")).collect()
}

#[test]
fn a_backend_that_is_dropped_takes_its_threads_and_connections_with_it() {
    let server = RedisServer::start();
    let connections = || server.cli(&["CLIENT", "LIST"]).matches("name=distlock").count();
    let name = LockName::new("a").unwrap();
    let soon = || SystemClock.now() + Duration::from_secs(5);
    let client = ClientId::random();
    let open = |url: &str| {
        let context = Context::new(Arc::new(SystemClock), client);
        RedisBackend::new(&Config::from_url(url).unwrap(), &context).unwrap()
    };

    // In all its ways: used, watched (and the watch outlives it), unreachable, never used.
    let used = open(&server.url());
    let lease = LeaseTime::new(Duration::from_secs(1)).unwrap();
    used.acquire(&Attempt::new(&name, OwnerId::new(client, 1), lease), soon()).unwrap();
    let watch = used.watch(&name, Arc::new(Nobody), soon()).unwrap();
    let unreachable = open("redis://127.0.0.1:1");
    let by = SystemClock.now() + Duration::from_millis(50);
    assert!(unreachable.watch(&name, Arc::new(Nobody), by).is_err());
    let unused = open(&server.url());
    let mut running = threads();
    running.sort();
    let expected =
        ["distlock-slots", "distlock-slots", "distlock-slots", "distlock-sub", "distlock-sub"];
    assert_eq!(running, expected);
    assert_eq!(connections(), 2, "one that was borrowed and one that listens");

    let start = SystemClock.now();
    drop((used, unreachable, unused));
    let took = SystemClock.now().since(start);
    assert!(took < Duration::from_millis(50), "dropping took {took:?}");
    eventually("no thread is left", || threads().is_empty());
    eventually("no connection is left", || connections() == 0);
    drop(watch);
}

//! A dropped backend leaves no thread and no connection behind.

use distlock::backend::{Attempt, ClientId, Context, LeaseTime, OwnerId, Wake};
use distlock::time::{Clock, SystemClock};
use distlock::{Config, LockName, schemes};
use distlock_tests::own_process::{alone, own_threads};
use distlock_tests::process::RedisServer;
use distlock_tests::time::{eventually, timed};
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(10);

struct NoWaiter;

impl Wake for NoWaiter {
    fn wake(&self) {}
}

#[test]
fn dropped_backend_leaves_no_thread_and_no_connection() {
    alone(
        "backend_drop::dropped_backend_leaves_no_thread_and_no_connection",
        nothing_is_left,
    );
}

fn nothing_is_left() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let mut connections = || {
        probe
            .clients()
            .iter()
            .filter(|line| line.contains("name=distlock"))
            .count()
    };
    let name = LockName::new("a").unwrap();
    let soon = || SystemClock.now() + Duration::from_secs(5);
    let client = ClientId::random();
    let open = |url: &str| {
        let context = Context::new(Arc::new(SystemClock), client);
        schemes()
            .open(&Config::from_url(url).unwrap(), &context)
            .unwrap()
    };

    // Backends in all states: one used and watched (the watch outlives it), one unreachable, one
    // never used.
    let used = open(&server.url());
    let lease = LeaseTime::new(Duration::from_secs(1)).unwrap();
    used.acquire(&Attempt::new(&name, OwnerId::new(client, 1), lease), soon())
        .unwrap();
    let watch = used.watch(&name, Arc::new(NoWaiter), soon()).unwrap();
    let unreachable = open("redis://127.0.0.1:1");
    let by = SystemClock.now() + Duration::from_millis(50);
    assert!(unreachable.watch(&name, Arc::new(NoWaiter), by).is_err());
    let unused = open(&server.url());
    let expected = [
        "distlock-slots",
        "distlock-slots",
        "distlock-slots",
        "distlock-sub",
        "distlock-sub",
    ];
    // Not the task that reads the reply to the query which follows the first attempt.
    let lasting: Vec<_> = own_threads()
        .into_iter()
        .filter(|name| name != "distlock-task")
        .collect();
    assert_eq!(lasting, expected);
    assert_eq!(connections(), 2, "one for requests and one for messages");

    timed(0, |_| drop((used, unreachable, unused)));
    eventually("no thread is left", LONG, || own_threads().is_empty());
    eventually("no connection is left", LONG, || connections() == 0);
    drop(watch);
}

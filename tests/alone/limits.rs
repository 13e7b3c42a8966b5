//! When the system gives no more: file descriptors, threads.

use crate::harness::alone::{alone, own_threads};
use crate::harness::process::RedisServer;
use crate::harness::redis::client;
use crate::harness::time::{Stopwatch, eventually, scaled};
use distlock::{DistLock, GuardState};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::error::Error;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);

/// Runs `work` with a soft limit on `resource`, and gives it back afterwards.
fn limited<T>(resource: Resource, to: u64, work: impl FnOnce() -> T) -> T {
    let before = getrlimit(resource);
    let limit = |current| Rlimit { current, maximum: before.maximum };
    setrlimit(resource, limit(Some(to))).unwrap();
    let result = work();
    setrlimit(resource, limit(before.current)).unwrap();
    result
}

#[test]
fn without_a_file_descriptor_nothing_new_is_asked_and_what_is_held_stays() {
    alone("limits::without_a_file_descriptor_nothing_new_is_asked_and_what_is_held_stays", || {
        let server = RedisServer::start();
        let lease = scaled(Duration::from_millis(900));
        let (holder, newcomer) =
            (client(&server, &format!("watchdog={}ms", lease.as_millis())), client(&server, ""));
        let guard = holder.mutex("held").unwrap().lock().unwrap();
        let mut probe = server.probe();
        eventually("it has been renewed", LONG, || {
            own_threads().iter().any(|name| name.contains("lane"))
                && probe.command_calls("evalsha") > 0
        });
        let free = newcomer.mutex("free").unwrap();
        let watch = Stopwatch::start();
        limited(Resource::Nofile, 3, || {
            let error = free.try_lock().unwrap_err();
            assert!(error.is_unavailable(), "{error:?}");
            let source = error.source().unwrap().to_string();
            assert!(source.contains("Too many open files"), "{source}");
            assert!(watch.elapsed() < scaled(Duration::from_secs(2)), "{:?}", watch.elapsed());
            eventually("what is held is renewed", LONG, || watch.elapsed() > lease * 3);
            assert_eq!(guard.state(), GuardState::Held);
        });
        free.try_lock().unwrap().unwrap().unlock().unwrap();
        guard.unlock().unwrap();
    });
}

#[test]
fn without_a_thread_for_the_watchdog_there_is_no_lock_and_the_next_one_is_kept() {
    alone(
        "limits::without_a_thread_for_the_watchdog_there_is_no_lock_and_the_next_one_is_kept",
        || {
            let client = distlock::connect("memory://?watchdog=600ms").unwrap();
            let lock = client.mutex("x").unwrap();
            let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
            let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
            // Enough for what a lock needs, and not for a thread's stack.
            let error = limited(Resource::As, pages * 4096 + 600_000, || {
                lock.lock().map(drop).unwrap_err()
            });
            assert!(error.is_unavailable() && error.to_string().contains("thread"), "{error:?}");
            assert_eq!(lock.hold_count(), 0);
            let guard = lock.lock().unwrap();
            let watch = Stopwatch::start();
            eventually("it outlives its lease by far", LONG, || {
                assert!(guard.is_valid(), "nobody renews it: {:?}", guard.loss());
                watch.elapsed() > Duration::from_secs(2)
            });
            guard.unlock().unwrap();
        },
    );
}

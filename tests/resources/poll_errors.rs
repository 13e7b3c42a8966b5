//! The limit of file descriptors is lowered to zero, so that sockets cannot be polled: no thread
//! may spin because of that.

use distlock::LockOptions;
use distlock_tests::cluster::Cluster;
use distlock_tests::guards::deadline;
use distlock_tests::own_process::{alone, own_cpu_time};
use distlock_tests::process::RedisServer;
use distlock_tests::quorum::Servers;
use distlock_tests::sentinel::Group;
use distlock_tests::time::{Stopwatch, always, eventually, scaled};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// A renewal moves the end of a lease by more than this, which is more than the clock's error.
const MOMENT: Duration = Duration::from_millis(100);

/// Checks that a lock stays held and then passes to a waiter, with little processor time, while
/// this process may open no descriptor.
fn locks_without_spinning(url: &str) {
    let [holder, other] = [url; 2].map(|url| distlock::connect(url).unwrap());
    let watched = LockOptions::new().watched(scaled(Duration::from_secs(6)));
    let guard = holder.mutex("a").unwrap().lock_with(&watched).unwrap();
    let first = deadline(&guard);
    let waits = other.mutex("a").unwrap();
    let before = getrlimit(Resource::Nofile);
    let limit = |current| {
        setrlimit(
            Resource::Nofile,
            Rlimit {
                current,
                maximum: before.maximum,
            },
        )
        .unwrap();
    };
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waits.lock().unwrap().unlock());
        eventually("it waits", LONG, || other.queue_length("a").unwrap() == 1);
        // By the time of the renewal the waiter has subscribed.
        eventually("the lock is renewed", LONG, || {
            deadline(&guard) > first + MOMENT
        });
        let (cpu, watch) = (own_cpu_time(), Stopwatch::start());
        limit(Some(0));
        always("the lock is held", Duration::from_millis(1_500), || {
            guard.is_valid()
        });
        guard.unlock().unwrap();
        waiter.join().unwrap().unwrap();
        let time = watch.elapsed();
        limit(before.current);
        let cpu = own_cpu_time() - cpu;
        println!("{cpu:?} of processor time in {time:?}");
        assert!(cpu < time / 8, "{cpu:?} of processor time in {time:?}");
    });
}

#[test]
fn lock_without_descriptors_spins_nowhere() {
    alone(
        "poll_errors::lock_without_descriptors_spins_nowhere",
        || {
            let server = RedisServer::start();
            locks_without_spinning(&server.url());
        },
    );
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn locks_of_all_topologies_spin_nowhere_without_descriptors() {
    alone(
        "poll_errors::locks_of_all_topologies_spin_nowhere_without_descriptors",
        || {
            let (group, cluster) = (Group::steady(), Cluster::steady());
            let quorum = Servers::with(3, 0, "");
            for url in [group.url(), cluster.url(), quorum.url.clone()] {
                println!("{url}");
                locks_without_spinning(&url);
            }
        },
    );
}

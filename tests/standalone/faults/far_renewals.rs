//! Renewals on a far server: the lease of each lock decides how long its renewal may take; the
//! shorter leases of other locks do not.

use distlock::{Client, LockOptions};
use distlock_tests::distance::Distance;
use distlock_tests::process::RedisServer;
use distlock_tests::time::{always, scaled};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// One lock with this lease, and threads of the same client that acquire other locks with a short
/// lease again and again.
struct Scene {
    round_trip: Duration,
    lease: Duration,
    short: Duration,
    threads: usize,
}

impl Scene {
    /// Holds the lock for this time, checks that it is not lost, and returns the number of
    /// connections to the server.
    fn hold_for(&self, time: Duration) -> u64 {
        let server = RedisServer::start();
        let way = Distance::new(server.port(), scaled(self.round_trip));
        let client = distlock::connect(&way.url()).unwrap();
        let watched = LockOptions::new().watched(scaled(self.lease));
        let kept = client.mutex("kept").unwrap().lock_with(&watched).unwrap();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for thread in 0..self.threads {
                let (scene, client, is_over) = (self, &client, &is_over);
                scope.spawn(move || scene.use_others(client, thread, is_over));
            }
            let _over = Over(&is_over);
            always("the lock is held", time, || kept.loss().is_none());
        });
        kept.unlock().unwrap();
        server.probe().stat("total_connections_received")
    }

    fn use_others(&self, client: &Client, thread: usize, is_over: &AtomicBool) {
        let watched = LockOptions::new().watched(scaled(self.short));
        let lock = client.mutex(format!("other{thread}")).unwrap();
        while !is_over.load(Ordering::SeqCst) {
            // This lock may be lost: a round trip is a large part of its lease.
            let _lost = lock.lock_with(&watched).and_then(|guard| {
                guard.verify()?;
                guard.unlock()
            });
        }
    }
}

/// Ends the threads, also if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn short_leases_at_300_ms_cost_no_watched_lock() {
    let scenes = [(9, 1, 20), (30, 1, 65), (30, 4, 65)];
    thread::scope(|scope| {
        for (lease, threads, seconds) in scenes {
            scope.spawn(move || {
                let lease = Duration::from_secs(lease);
                let scene = Scene {
                    round_trip: ms(300),
                    lease,
                    short: ms(800),
                    threads,
                };
                let connections = scene.hold_for(Duration::from_secs(seconds));
                println!("{lease:?} beside {threads} threads: {connections} connections");
                assert!(connections < 60, "{connections} connections");
            });
        }
    });
}

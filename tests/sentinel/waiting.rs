//! The requests of a waiter, and the server that gets them.

use crate::fake_sentinel::Liar;
use crate::scene::{SOON, connect, take};
use distlock_tests::process::RedisServer;
use distlock_tests::time::{Stopwatch, eventually};
use std::thread;
use std::time::Duration;

/// The channel on which releases of the lock `busy` are published.
const CHANNEL: &str = "redisson_lock__channel:{busy}";

/// A client without questions for this long has no more to ask, with a wide margin.
const QUIET: Duration = Duration::from_millis(1_500);

#[test]
fn waiter_behind_others_looks_at_the_master_only() {
    let server = RedisServer::start();
    let liar = Liar::naming(server.port(), 1);
    let client = connect(&liar.url());
    let lock = client.mutex("busy").unwrap();
    // Behind so many subscribers the client looks at the lock before each attempt.
    let mut others: Vec<_> = (0..8).map(|_| server.probe()).collect();
    for other in &mut others {
        other.command(&["SUBSCRIBE", CHANNEL]);
    }
    eventually("the client listens to the sentinel", SOON, || {
        take(&lock).unlock().unwrap();
        liar.listeners() == 1
    });
    let (mut asked, mut since) = (liar.questions(), Stopwatch::start());
    eventually("the client has no more questions", SOON, || {
        if liar.questions() != asked {
            (asked, since) = (liar.questions(), Stopwatch::start());
        }
        since.elapsed() > QUIET
    });
    // Refreshes the client's count of subscribers, which is valid for a few seconds.
    take(&lock).unlock().unwrap();
    let other = distlock::connect(&server.url())
        .unwrap()
        .mutex("busy")
        .unwrap();
    let held = other.lock().unwrap();

    let mut probe = server.probe();
    let (attempts, looks) = (probe.command_calls("hset"), probe.command_calls("hmget"));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| lock.try_lock_for(SOON).unwrap().map(drop));
        for look in 1..=4 {
            eventually("the waiter looks", SOON, || {
                probe.command_calls("hmget") >= looks + look
            });
            server.probe().command(&["PUBLISH", CHANNEL, "0"]);
        }
        let (attempts_now, asked_now) = (probe.command_calls("hset"), liar.questions());
        held.unlock().unwrap();
        assert!(waiter.join().unwrap().is_some());
        assert_eq!((attempts_now, asked_now), (attempts, asked));
    });
}

//! Whether the servers of a store report changes of keys: to a waiter the silent release of a
//! foreign client, to a holder the loss.

use crate::probe::Probe;
use crate::time::{eventually, let_pass, within};
use distlock::{Client, DistLock, LockGuard, LossCause};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// What a client asks for whose waiters and holders learn nothing by themselves during the test.
pub const SETTINGS: &str = "watchdog=10m";

/// A foreign holder, as Redisson writes it.
pub const STRANGER: &str = "7b6d2f0e-5f55-4c05-9b3a-d3a6a3a8d1a1:5";

/// A foreign client has the lock on all these servers, and frees it without a message.
#[track_caller]
pub fn silent_release_wakes_waiter(client: &Client, name: &str, servers: &mut [Probe]) {
    for server in &mut *servers {
        assert_eq!(server.command(&["HSET", name, STRANGER, "1"]).int(), 1);
        assert_eq!(server.command(&["PEXPIRE", name, "600000"]).int(), 1);
    }
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let lock = client.mutex(name).unwrap();
            within(LONG, || lock.lock().unwrap().unlock().unwrap());
        });
        for server in &mut *servers {
            eventually("the key is tracked", LONG, || server.stat("tracking_total_keys") > 0);
        }
        for server in &mut *servers {
            assert_eq!(server.command(&["DEL", name]).int(), 1);
        }
        waiter.join().unwrap();
    });
}

/// The lock of a holder is deleted on all these servers.
#[track_caller]
pub fn loss_is_reported(client: &Client, name: &str, servers: &mut [Probe]) {
    let guard = client.mutex(name).unwrap().lock().unwrap();
    let losses = guard.losses();
    for server in &mut *servers {
        eventually("the key is tracked", LONG, || server.stat("tracking_total_keys") > 0);
    }
    for server in &mut *servers {
        assert_eq!(server.command(&["DEL", name]).int(), 1);
    }
    let loss = losses.recv_timeout(LONG).expect("it is told of the loss");
    assert_eq!(loss.cause(), LossCause::Gone);
}

/// Locks of these guards are held, of which each has a lease that need not be renewed for minutes:
/// only once, a second after the grant, for its report. Not again and again, as if each renewal
/// showed a change.
#[track_caller]
pub fn renewals_are_few(held: &[LockGuard], servers: &mut [Probe]) {
    let mut scripts = || -> Vec<u64> {
        let calls =
            |server: &mut Probe| server.command_calls("evalsha") + server.command_calls("eval");
        servers.iter_mut().map(calls).collect()
    };
    let before = scripts();
    let_pass(Duration::from_secs(3));
    let most = 8 * held.len() as u64;
    for (before, now) in before.into_iter().zip(scripts()) {
        assert!(now - before <= most, "{} scripts in 3 s, of {} locks", now - before, held.len());
    }
}

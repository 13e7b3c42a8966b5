//! Tests that the servers of a store report changes of keys: a waiter learns of a foreign client's
//! release that sends no message, and a holder learns of the loss of its lock.

use crate::probe::Probe;
use crate::time::{eventually, let_pass, within};
use crate::version::skipped_before_7;
use distlock::{Client, DistLock, Interrupt, LossCause};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Settings with a lease so long that waiters and holders learn of a change during a test only from
/// the server's report.
pub const SETTINGS: &str = "watchdog=10m";

/// A foreign owner, as Redisson writes it.
pub const STRANGER: &str = "7b6d2f0e-5f55-4c05-9b3a-d3a6a3a8d1a1:5";

/// Checks that a waiter gets the lock when a foreign client that holds it on all these servers
/// frees it without a message.
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
            eventually("the key is tracked", LONG, || {
                server.stat("tracking_total_keys") > 0
            });
        }
        for server in &mut *servers {
            assert_eq!(server.command(&["DEL", name]).int(), 1);
        }
        waiter.join().unwrap();
    });
}

/// Checks that a holder is notified of the loss when its lock is deleted on all these servers.
#[track_caller]
pub fn loss_is_reported(client: &Client, name: &str, servers: &mut [Probe]) {
    if skipped_before_7("reports of a held lock's changes") {
        return;
    }
    let guard = client.mutex(name).unwrap().lock().unwrap();
    let losses = guard.losses();
    for server in &mut *servers {
        eventually("the key is tracked", LONG, || {
            server.stat("tracking_total_keys") > 0
        });
    }
    for server in &mut *servers {
        assert_eq!(server.command(&["DEL", name]).int(), 1);
    }
    let loss = losses.recv_timeout(LONG).expect("it is told of the loss");
    assert_eq!(loss.cause(), LossCause::Gone);
}

/// Checks that hardly any request is sent while each of these locks is held by one client and
/// waited for by another: only a renewal a second after the grant, which has the key tracked, and
/// now and then an attempt of a waiter. A client that took each reply for a change would send
/// requests without a pause.
#[track_caller]
pub fn little_is_asked(held: &[&dyn DistLock], wanted: &[&dyn DistLock], servers: &mut [Probe]) {
    // Without the 32 scripts that each new connection runs first.
    let mut scripts = || -> Vec<u64> {
        let calls = |server: &mut Probe| {
            let scripts = server.command_calls("evalsha") + server.command_calls("eval");
            scripts.saturating_sub(32 * server.command_calls("client|setname"))
        };
        servers.iter_mut().map(calls).collect()
    };
    let guards: Vec<_> = held.iter().map(|lock| lock.lock().unwrap()).collect();
    let interrupt = Interrupt::new();
    thread::scope(|scope| {
        for lock in wanted {
            let interrupt = &interrupt;
            scope.spawn(move || {
                let ended = lock.lock_interruptibly(interrupt);
                assert!(ended.unwrap_err().is_interrupted());
            });
        }
        // A new connection sets its name before it sends its first scripts.
        let mut before = scripts();
        eventually("no connection is being made", LONG, || {
            let_pass(Duration::from_millis(200));
            let earlier = std::mem::replace(&mut before, scripts());
            let grew = |(now, then): (&u64, u64)| now.saturating_sub(then);
            before.iter().zip(earlier).map(grew).all(|more| more < 32)
        });
        let_pass(Duration::from_secs(3));
        let asked: Vec<_> = scripts()
            .iter()
            .zip(before)
            .map(|(now, then)| now.saturating_sub(then))
            .collect();
        interrupt.fire();
        let most = 15 * (held.len() + wanted.len()) as u64;
        assert!(
            asked.iter().all(|count| *count <= most),
            "{asked:?} scripts in 3 s"
        );
        println!("{asked:?} scripts in 3 s, at most {most}");
    });
    drop(guards);
}

/// Runs [`little_is_asked`] with a mutex, a fair mutex, a read lock and a write lock.
#[track_caller]
pub fn little_is_asked_of_all_kinds([one, other]: [Client; 2], servers: &mut [Probe]) {
    let mutexes = |client: &Client| {
        [
            client.mutex("mutex").unwrap(),
            client.fair_mutex("fair").unwrap(),
        ]
    };
    let read_write = |client: &Client| ["read", "written"].map(|it| client.rw_lock(it).unwrap());
    let (ours, theirs) = (mutexes(&one), mutexes(&other));
    let (our_rw, their_rw) = (read_write(&one), read_write(&other));
    let held: [&dyn DistLock; 4] = [&ours[0], &ours[1], our_rw[0].read(), our_rw[1].write()];
    let wanted: [&dyn DistLock; 4] = [
        &theirs[0],
        &theirs[1],
        their_rw[0].write(),
        their_rw[1].read(),
    ];
    little_is_asked(&held, &wanted, servers);
}

//! Whether the servers of a store report changes of keys: to a waiter the silent release of a
//! foreign client, to a holder the loss.

use crate::probe::Probe;
use crate::time::{eventually, let_pass, within};
use crate::version::skipped_before_7;
use distlock::{Client, DistLock, Interrupt, LossCause};
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

/// The lock of a holder is deleted on all these servers.
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

/// Each of these locks is held by one client and waited for by another, and hardly anything is
/// asked of the servers meanwhile: a renewal a second after the grant, for its report, and the look
/// of a waiter now and then. Not again and again, as if each answer showed a change.
#[track_caller]
pub fn little_is_asked(held: &[&dyn DistLock], wanted: &[&dyn DistLock], servers: &mut [Probe]) {
    // Without those that a connection begins with.
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
        // A connection that is being made has its name, but not yet sent its first scripts.
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

/// The same of a mutex, a fair one, a lock that is read and one that is written.
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

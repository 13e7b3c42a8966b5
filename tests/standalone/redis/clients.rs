//! What a client sees of another client's locks, and what a dropped client leaves in the store.

use distlock::time::ManualClock;
use distlock::{LockOptions, LossCause};
use distlock_tests::guards::await_renewals;
use distlock_tests::process::RedisServer;
use distlock_tests::redis::{builder, client};
use distlock_tests::time::{Stopwatch, always, eventually, let_pass, ms, scaled};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

#[test]
fn events_report_acquisition_renewal_and_release() {
    let server = RedisServer::start();
    let (tell, told) = mpsc::channel();
    let tell = parking_lot::Mutex::new(tell);
    let handler = move |event: &distlock::Event| {
        let text = format!("{event:?}");
        let _sent = tell
            .lock()
            .send(text.split([' ', '{']).next().unwrap_or_default().to_owned());
    };
    let client = builder(&server, "watchdog=3s")
        .events(Arc::new(handler))
        .connect()
        .unwrap();
    let lock = client.mutex("told").unwrap();
    let guard = lock.lock().unwrap();
    let next = || told.recv_timeout(LONG).unwrap();
    assert_eq!(next(), "Acquired");
    assert_eq!(next(), "Renewed");
    server.probe().command(&["DEL", "told"]);
    eventually("the loss is told", LONG, || next() == "Lost");
    assert!(guard.unlock().unwrap_err().is_lost());
}
#[test]
fn detached_lock_ends_with_its_client() {
    let server = RedisServer::start();
    let client = client(&server, "");
    client.mutex("left").unwrap().lock().unwrap().detach();
    let mut probe = server.probe();
    assert!(probe.exists("left"));
    drop(client);
    eventually(
        "it is given back, long before its lease of 30 s",
        LONG,
        || !probe.exists("left"),
    );
}

#[test]
fn lock_of_a_client_is_seen_and_refused_by_a_second_client() {
    let server = RedisServer::start();
    let (one, two) = (client(&server, ""), client(&server, ""));
    let (here, there) = (one.mutex("x").unwrap(), two.mutex("x").unwrap());
    let guard = here
        .lock_with(&LockOptions::new().lease(Duration::from_secs(10)))
        .unwrap();
    assert!(there.try_lock().unwrap().is_none());
    assert!(
        there.is_locked().unwrap()
            && !there.is_held_by_current_thread()
            && here.is_held_by_current_thread()
    );
    let left = there.time_to_live().unwrap().unwrap();
    assert!(
        left > Duration::from_secs(9) && left <= Duration::from_secs(10),
        "{left:?}"
    );
    assert!(there.unlock().unwrap_err().is_not_held());
    assert!(there.force_unlock().unwrap() && !there.force_unlock().unwrap());
    let next = there.try_lock().unwrap().unwrap();
    assert!(next.fencing_token() > guard.fencing_token());
    assert!(guard.verify().unwrap_err().is_lost() && !guard.is_valid());
    assert!(guard.unlock().unwrap_err().is_lost());
    assert!(next.verify().is_ok());
}

#[test]
fn lock_is_lost_when_server_restarts_empty_next_is_renewed() {
    let mut server = RedisServer::start();
    let lease = scaled(Duration::from_secs(3));
    let client = builder(&server, "")
        .configure(|config| config.with_watchdog(lease))
        .connect()
        .unwrap();
    let lock = client.mutex("restarted").unwrap();
    let guard = lock.lock().unwrap();
    let losses = guard.losses();
    server.restart();
    let restarted = Stopwatch::start();
    let loss = losses.recv_timeout(LONG).unwrap();
    println!("told {:?} after the restart: {loss}", restarted.elapsed());
    assert_eq!(loss.cause(), LossCause::Gone);
    assert!(!guard.is_valid() && lock.lock().unwrap_err().is_lost());
    let token = guard.fencing_token();
    assert!(guard.unlock().unwrap_err().is_lost());
    let again = lock.lock().unwrap();
    assert!(
        again.fencing_token() > token,
        "the counter is gone, and the tokens grow"
    );
    await_renewals(&again);
    assert!(server.probe().exists("restarted"));
    again.unlock().unwrap();
}

/// Renewals of a thousand locks that a batch job takes at its start are spread over time, not sent
/// all at once. The clock is moved by hand.
#[test]
fn locks_taken_at_once_are_not_renewed_at_once() {
    const LOCKS: u64 = 1_000;
    let server = RedisServer::start();
    let (lease, clock) = (Duration::from_secs(600), ManualClock::new());
    let client = builder(&server, "")
        .configure(|config| config.with_watchdog(lease))
        .clock(Arc::new(clock.clone()))
        .connect()
        .unwrap();
    let mut probe = server.probe();
    let take = |n| {
        client
            .owned_mutex(format!("burst:{n}"))
            .unwrap()
            .lock()
            .unwrap()
    };
    let held: Vec<_> = (0..LOCKS).map(take).collect();
    // The first renewals come early, to request reports of changes, and once more if the connection
    // for reports was late.
    clock.jump(Duration::from_secs(2));
    eventually("all are tracked", LONG, || {
        probe.stat("tracking_total_keys") >= LOCKS
    });
    let mut before = 0;
    eventually("those under way are over", LONG, || {
        let_pass(ms(100));
        let now = probe.command_calls("pexpire");
        std::mem::replace(&mut before, now) == now
    });
    assert!(before <= 4 * LOCKS, "{before}");
    let mut renewed = || probe.command_calls("pexpire") - before;
    // Renewals are due up to a quarter of the period early.
    let period = lease / 3;
    clock.jump(period * 3 / 4);
    clock.jump(period / 8);
    eventually("some are renewed", LONG, || renewed() > LOCKS / 10);
    always("not all of them", Duration::from_millis(500), || {
        renewed() < LOCKS * 9 / 10
    });
    clock.jump(period / 8);
    eventually("all are renewed", LONG, || renewed() >= LOCKS);
    assert!(held.iter().all(distlock::OwnedGuard::is_valid));
}

#[test]
fn many_names_on_a_connection_leave_no_subscription() {
    const NAMES: usize = 5;
    let server = RedisServer::start();
    let clients = [client(&server, "pool=1"), client(&server, "pool=1")];
    let inside: [parking_lot::Mutex<u32>; NAMES] = Default::default();
    thread::scope(|scope| {
        for n in 0..32 {
            let (client, inside) = (&clients[n % 2], &inside);
            scope.spawn(move || {
                for cycle in 0..160 {
                    let name = (n + cycle) % NAMES;
                    let guard = client.mutex(format!("few:{name}")).unwrap().lock().unwrap();
                    *inside[name].try_lock().expect("alone under the lock") += 1;
                    guard.unlock().unwrap();
                }
            });
        }
    });
    let cycles: u32 = inside.iter().map(|count| *count.lock()).sum();
    assert_eq!(cycles, 32 * 160);
    let mut probe = server.probe();
    println!("subscriptions made: {}", probe.command_calls("subscribe"));
    eventually("no channel is subscribed any more", LONG, || {
        probe.command(&["PUBSUB", "CHANNELS"]).texts().is_empty()
    });
    assert_eq!(probe.keys("few:*"), Vec::<String>::new());
}

//! Jumps of the server's time of day, by which it ends leases and makes tokens: what happens to
//! holders, waiters and tokens.

use crate::bench::{Bench, lease as millis, name, soon};
use distlock::backend::LockKind;
use distlock::{GuardState, LockOptions, LossCause};
use distlock_tests::guards::await_renewals;
use distlock_tests::process::RedisServer;
use distlock_tests::redis::client;
use distlock_tests::time::{Stopwatch, eventually, scaled, within};
use distlock_tests::time_of_day::TimeOfDay;
use lock_core::backend::{AcquisitionId, Attempt, Receipt, ReleaseOptions};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const HOUR: i64 = 3_600_000;

fn lease() -> Duration {
    scaled(Duration::from_secs(3))
}

fn settings() -> String {
    format!("watchdog={}ms&command_timeout=800ms", lease().as_millis())
}

fn started() -> (RedisServer, TimeOfDay) {
    let clock = TimeOfDay::new();
    let server = RedisServer::start_on(&clock);
    clock.set(HOUR);
    let time = || {
        server.probe().command(&["TIME"]).texts()[0]
            .parse::<u64>()
            .unwrap()
    };
    let there = time();
    clock.set(0);
    assert!(
        there > time() + 3_000,
        "this server's clock cannot be moved: it is linked statically"
    );
    (server, clock)
}

#[test]
fn clock_jump_forwards_allows_two_holders_tokens_in_order() {
    let (server, clock) = started();
    let (one, two) = (client(&server, &settings()), client(&server, &settings()));
    let first = one.mutex("a").unwrap().lock().unwrap();
    let (losses, left, watch) = (first.losses(), first.remaining(), Stopwatch::start());
    clock.set(HOUR);
    let second = two
        .mutex("a")
        .unwrap()
        .try_lock()
        .unwrap()
        .expect("its lease is over there");
    assert!(
        first.is_valid() && second.is_valid(),
        "neither can know yet"
    );
    assert!(first.fencing_token() < second.fencing_token());
    let loss = losses.recv_timeout(LONG).expect("it is told");
    println!("told after {:?}: {loss}", watch.elapsed());
    assert_eq!(loss.cause(), LossCause::Gone);
    assert!(
        watch.elapsed() < left,
        "by a renewal, before its own deadline"
    );
    assert!(first.unlock().unwrap_err().is_lost());
    second.verify().unwrap();
    second.unlock().unwrap();
}

#[test]
fn clock_jump_shorter_than_remaining_lease_keeps_the_lock() {
    let (server, clock) = started();
    let client = client(&server, &settings());
    let guard = client.mutex("a").unwrap().lock().unwrap();
    clock.set(i64::try_from(lease().as_millis()).unwrap() / 3);
    await_renewals(&guard);
    assert_eq!(guard.state(), GuardState::Held);
    guard.verify().unwrap();
    guard.unlock().unwrap();
}

#[test]
fn clock_set_back_lengthens_the_lease_on_the_server_only() {
    let (server, clock) = started();
    let (one, two) = (client(&server, &settings()), client(&server, &settings()));
    let (fixed, watched) = (one.mutex("fixed").unwrap(), one.mutex("watched").unwrap());
    let first = fixed.lock_with(&LockOptions::new().lease(lease())).unwrap();
    let kept = watched.lock().unwrap();
    let (watch, token) = (Stopwatch::start(), first.fencing_token());
    clock.set(-HOUR);
    within(first.remaining(), || {
        eventually("its own clock ends it", LONG, || !first.is_valid());
    });
    println!("over after {:?} for its holder", watch.elapsed());
    // In the store the lock lasts for another hour, unless it is released by force.
    let mut probe = server.probe();
    assert!(probe.pttl("fixed").unwrap() > Duration::from_secs(3_500));
    assert!(two.mutex("fixed").unwrap().try_lock().unwrap().is_none());
    assert!(two.mutex("fixed").unwrap().force_unlock().unwrap());
    // A holder that still renews notices nothing, and releases.
    assert_eq!(kept.state(), GuardState::Held);
    kept.unlock().unwrap();
    assert!(!probe.exists("watched"));
    // The counter is ahead of the clock, so tokens still grow.
    let next = two.mutex("fixed").unwrap().try_lock().unwrap().unwrap();
    assert!(
        next.fencing_token() > token,
        "{:?} after {token:?}",
        next.fencing_token()
    );
    drop(first);
    next.unlock().unwrap();
}

#[test]
fn emptied_server_with_clock_set_back_gives_smaller_tokens() {
    let (server, clock) = started();
    let client = client(&server, &settings());
    let lock = client.mutex("a").unwrap();
    let token = lock.lock().unwrap().fencing_token().unwrap();
    clock.set(-HOUR);
    server.probe().command(&["FLUSHALL"]);
    assert!(lock.lock().unwrap().fencing_token().unwrap() < token);
}

/// A waiter dies, and the clock is set back by an hour, so that the waiter's presence seems to last
/// for that hour: other waiters must be granted long before.
#[test]
fn dead_waiter_keeps_no_one_out_after_the_clock_was_set_back() {
    for (held, waits) in [
        (LockKind::Fair, LockKind::Fair),
        (LockKind::Read, LockKind::Write),
    ] {
        let (server, clock) = started();
        clock.set(HOUR);
        let bench = Bench::on(&server);
        let [holder, dead] = [(); 2].map(|()| bench.owner());
        let (held, waits) = (name("x").of_kind(held), name("x").of_kind(waits));
        let attempt = |name, owner| {
            bench
                .backend
                .acquire(&Attempt::new(name, owner, millis(30_000)), soon())
                .unwrap()
        };
        assert!(!attempt(&held, holder).is_busy());
        assert!(attempt(&waits, dead).is_busy());
        clock.set(0);
        let id = AcquisitionId::new(held.clone(), holder, millis(30_000), Receipt::default());
        bench
            .backend
            .release(&id, ReleaseOptions::WITHOUT_TOMBSTONE, soon())
            .unwrap();
        let client = client(&server, "");
        let granted = match held.kind() {
            LockKind::Fair => client.fair_mutex("x").unwrap().try_lock_for(LONG).unwrap(),
            _ => client
                .rw_lock("x")
                .unwrap()
                .read()
                .try_lock_for(LONG)
                .unwrap(),
        };
        assert!(granted.is_some(), "{waits:?} of a dead waiter");
    }
}

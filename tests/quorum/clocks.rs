//! One node's clock is a minute ahead, or a minute behind.

use distlock::{DistLock, GuardState};
use distlock_tests::guards::await_renewals;
use distlock_tests::process::RedisServer;
use distlock_tests::quorum::{Servers, admit, place, set_up, start, url};
use distlock_tests::time::eventually;
use distlock_tests::time_of_day::TimeOfDay;
use std::time::Duration;

const MINUTE: i64 = 60_000;

/// Three servers, of which the last has this clock.
fn quorum(clock: &TimeOfDay, options: &str) -> Servers {
    let odd = RedisServer::start_on(clock);
    admit(&odd);
    let servers = vec![start(), start(), odd];
    let places: Vec<_> = servers.iter().map(|server| place(server.port())).collect();
    set_up(&places, options);
    Servers { url: url(&places, options), servers }
}

#[test]
fn clock_off_by_a_minute_costs_one_round() {
    for ahead in [MINUTE, -MINUTE] {
        let clock = TimeOfDay::new();
        clock.set(ahead);
        // A node that is frozen is no reason for the others to hurry.
        let quorum = quorum(&clock, "max_lease=10m&node_timeout=5s&command_timeout=10s");
        let clients = [quorum.client(), quorum.client()];
        let mut last = None;
        for turn in 0..6 {
            let guard = clients[turn % 2].mutex("a").unwrap().lock().unwrap();
            assert!(guard.fencing_token() > last, "{:?} after {last:?}", guard.fencing_token());
            last = guard.fencing_token();
            guard.unlock().unwrap();
        }
        // Its vote counts, too: without one of the others.
        drop(clients);
        quorum.servers[0].pause();
        let lock = quorum.client().mutex("b").unwrap();
        let guard = lock.try_lock().unwrap().expect("a round more, and no attempt more");
        guard.unlock().unwrap();
        let guard = quorum.client().mutex("a").unwrap().lock().unwrap();
        assert!(guard.fencing_token() > last);
        guard.unlock().unwrap();
    }
}

#[test]
fn clock_ahead_by_more_than_the_longest_lease_is_reported() {
    let clock = TimeOfDay::new();
    clock.set(-MINUTE);
    let quorum = quorum(&clock, "max_lease=30s");
    // That one does not vote for it, and two are enough.
    let lock = quorum.client().mutex("a").unwrap();
    lock.lock().unwrap().unlock().unwrap();
    quorum.servers[0].pause();
    let error = quorum.client().mutex("a").unwrap().try_lock().unwrap_err();
    let its = error.members()[2].error().expect("it refuses").to_string();
    assert!(its.contains("clock") && its.contains("ahead"), "{its}");
}

#[test]
fn node_whose_clock_jumps_past_the_lease_grants_no_majority() {
    let clock = TimeOfDay::new();
    let quorum = quorum(&clock, "max_lease=10m&watchdog=6s&node_timeout=1s&command_timeout=2s");
    let (holder, rival) = (quorum.client(), quorum.client());
    let guard = holder.mutex("a").unwrap().lock().unwrap();
    // On all of them: a majority is enough for the grant, and then no vote could be spared.
    eventually("it is held on all nodes", Duration::from_secs(60), || {
        quorum.servers.iter().all(|server| server.probe().exists("a"))
    });
    clock.set(MINUTE);
    eventually("it has let go there", Duration::from_secs(60), || {
        quorum.servers[2].probe().pttl("a").is_none()
    });
    for _ in 0..5 {
        assert!(rival.mutex("a").unwrap().try_lock().unwrap().is_none());
    }
    // The others keep it.
    await_renewals(&guard);
    assert_eq!(guard.state(), GuardState::Held);
    guard.unlock().unwrap();
}

//! Clocks of a minority of nodes that are ahead or behind: by a minute, by more than the longest
//! lease, or by hours.

use distlock::admin::{QuorumVote, WarningKind};
use distlock::{Client, Config, GuardState};
use distlock_tests::guards::await_renewals;
use distlock_tests::process::RedisServer;
use distlock_tests::quorum::{Servers, Warnings, admit, place, set_up, start, url};
use distlock_tests::time::{always, eventually, let_pass};
use distlock_tests::time_of_day::TimeOfDay;
use std::time::Duration;

const MINUTE: i64 = 60_000;
const HOUR: i64 = 60 * MINUTE;
const SOON: Duration = Duration::from_secs(60);
/// Settings with time-outs that a busy machine does not exceed.
const PATIENT: &str = "max_lease=1m&watchdog=9s&node_timeout=5s&command_timeout=10s";

/// Three servers, of which the last has this clock.
fn quorum(clock: &TimeOfDay, options: &str) -> Servers {
    quorum_of(3, clock, options)
}

/// `count` servers, of which the last ones, the largest possible minority, have this clock.
fn quorum_of(count: usize, clock: &TimeOfDay, options: &str) -> Servers {
    let wrong = count / 2;
    let odd = |_| {
        let odd = RedisServer::start_on(clock);
        admit(&odd);
        odd
    };
    let servers: Vec<_> = (wrong..count)
        .map(|_| start())
        .chain((0..wrong).map(odd))
        .collect();
    let places: Vec<_> = servers.iter().map(|server| place(server.port())).collect();
    set_up(&places, options);
    Servers {
        url: url(&places, options),
        servers,
    }
}

/// Takes and releases a lock so many times. Fails if an attempt fails or a token does not grow.
fn lock_and_unlock(client: &Client, name: &str, times: u32) {
    let lock = client.mutex(name).unwrap();
    let mut last = None;
    for turn in 0..times {
        // Another client's release may still be on its way to a node outside of its majority.
        let guard = lock.try_lock_for(SOON);
        let guard = guard.unwrap_or_else(|error| panic!("turn {turn}: {error}"));
        let guard = guard.expect("no other client wants it");
        assert!(
            guard.fencing_token() > last,
            "{:?} after {last:?}",
            guard.fencing_token()
        );
        last = guard.fencing_token();
        guard.unlock().unwrap();
    }
}

#[test]
fn clock_off_by_a_minute_costs_one_round() {
    for ahead in [MINUTE, -MINUTE] {
        let clock = TimeOfDay::new();
        clock.set(ahead);
        // With one node frozen, the others are all needed, and so have all the time of a busy
        // machine.
        let quorum = quorum(&clock, "max_lease=10m&node_timeout=5s&command_timeout=10s");
        let clients = [quorum.client(), quorum.client()];
        let mut last = None;
        for turn in 0..6 {
            let guard = clients[turn % 2].mutex("a").unwrap().lock().unwrap();
            assert!(
                guard.fencing_token() > last,
                "{:?} after {last:?}",
                guard.fencing_token()
            );
            last = guard.fencing_token();
            guard.unlock().unwrap();
        }
        // The vote of the wrong clock counts, too: with another node paused, it is needed.
        drop(clients);
        quorum.servers[0].pause();
        let lock = quorum.client().mutex("b").unwrap();
        let guard = lock
            .try_lock()
            .unwrap()
            .expect("a round more, and no attempt more");
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
    // The node with the wrong clock does not vote for the lock, but two votes are enough.
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
    let quorum = quorum(
        &clock,
        "max_lease=10m&watchdog=6s&node_timeout=1s&command_timeout=2s",
    );
    let (holder, rival) = (quorum.client(), quorum.client());
    let guard = holder.mutex("a").unwrap().lock().unwrap();
    // All nodes must have granted the lock: with a bare majority, no vote could be spared.
    eventually("it is held on all nodes", Duration::from_secs(60), || {
        quorum
            .servers
            .iter()
            .all(|server| server.probe().exists("a"))
    });
    clock.set(MINUTE);
    eventually("it has let go there", Duration::from_secs(60), || {
        quorum.servers[2].probe().pttl("a").is_none()
    });
    for _ in 0..5 {
        assert!(rival.mutex("a").unwrap().try_lock().unwrap().is_none());
    }
    // The other nodes keep the lock.
    await_renewals(&guard);
    assert_eq!(guard.state(), GuardState::Held);
    guard.unlock().unwrap();
}

/// A client must not take the token of a wrong clock for its next proposal: the other nodes would
/// refuse everything after its first grant.
#[test]
fn minority_of_clocks_off_by_hours_costs_no_attempt() {
    for count in [3, 5] {
        for ahead in [2 * MINUTE, -2 * MINUTE, 3 * HOUR, -3 * HOUR] {
            let clock = TimeOfDay::new();
            clock.set(ahead);
            let quorum = quorum_of(count, &clock, PATIENT);
            let clients = [quorum.client(), quorum.client()];
            let held = clients[0].mutex("held").unwrap().lock().unwrap();
            for client in &clients {
                lock_and_unlock(client, "a", 20);
            }
            // The clocks become right, and then wrong again, while a lock is held.
            clock.set(0);
            clients
                .iter()
                .for_each(|client| lock_and_unlock(client, "a", 5));
            clock.set(ahead);
            clients
                .iter()
                .for_each(|client| lock_and_unlock(client, "a", 5));
            await_renewals(&held);
            assert_eq!(held.state(), GuardState::Held);
            held.unlock().unwrap();
        }
    }
}

/// With another server paused, the vote of the wrong clock is needed, and the error names the
/// clock.
#[test]
fn wrong_clock_is_named_and_leaves_nothing_behind() {
    for ahead in [2 * HOUR, 3 * HOUR] {
        let clock = TimeOfDay::new();
        let mut quorum = quorum(&clock, PATIENT);
        clock.set(ahead);
        let client = quorum.client();
        lock_and_unlock(&client, "a", 5);
        quorum.servers[0].pause();
        let lock = client.mutex("a").unwrap();
        for _ in 0..3 {
            let error = lock.try_lock().unwrap_err();
            assert!(error.is_unavailable(), "{error:?}");
            let its = |at: usize| error.members()[at].error().map(ToString::to_string);
            let wrong = its(2).expect("its clock is wrong");
            assert!(
                wrong.contains("clock") && wrong.contains("ahead"),
                "{wrong}"
            );
            assert_eq!(its(1), None, "its clock is right");
        }
        // With a right clock, the same client can take the same lock: the wrong clock left nothing
        // behind.
        clock.set(0);
        eventually("its vote counts again", SOON, || {
            lock.try_lock()
                .ok()
                .flatten()
                .map(|guard| guard.unlock().unwrap())
        });
        quorum.servers[0].resume();
        clock.set(ahead);
        // Until the first server answers again, it seems dead, and the client does not wait for its
        // vote.
        eventually("the first server is back", SOON, || {
            lock.try_lock()
                .ok()
                .flatten()
                .map(|guard| guard.unlock().unwrap())
        });
        lock_and_unlock(&client, "a", 5);
        quorum.servers[2].kill();
        lock_and_unlock(&client, "a", 5);
    }
}

/// Returns a quorum whose first server was emptied while the clock of the last one was three hours
/// ahead; that clock; and a client of the quorum with its warnings.
fn replaced_beside_a_wrong_clock(count: usize) -> (Servers, TimeOfDay, Client, Warnings) {
    let clock = TimeOfDay::new();
    let odd = RedisServer::start_on(&clock);
    admit(&odd);
    let servers: Vec<_> = (1..count).map(|_| start()).chain([odd]).collect();
    let places: Vec<_> = servers.iter().map(|server| place(server.port())).collect();
    let options = "max_lease=2s&watchdog=1500ms&node_timeout=500ms&command_timeout=2s";
    set_up(&places, options);
    let mut quorum = Servers {
        url: url(&places, options),
        servers,
    };
    clock.set(3 * HOUR);
    let (client, warnings) = Warnings::of(&quorum.url);
    quorum.restart(0);
    eventually("it is a member again", SOON, || {
        let _outcome = client.mutex("a").unwrap().try_lock();
        quorum.servers[0].probe().exists("distlock_quorum")
    });
    (quorum, clock, client, warnings)
}

/// The node with the wrong clock and the emptied member may have granted tokens together, so the
/// member must not vote before the time that the wrong clock showed.
#[test]
fn wrong_clock_that_a_replaced_member_waits_for_is_named() {
    let (quorum, clock, client, warnings) = replaced_beside_a_wrong_clock(3);
    let wrong = place(quorum.servers[2].port());
    eventually("it is warned of", SOON, || {
        let _outcome = client.mutex("a").unwrap().try_lock();
        warnings.have(
            WarningKind::QuorumClock,
            &["votes in", &format!("the clock of {wrong}")],
        )
    });
    // The vote of the wrong clock does not count, so that of the replaced member is needed.
    let lock = client.mutex("a").unwrap();
    // The error of an attempt in which a server was too late has another text.
    eventually("it is told", SOON, || {
        let error = lock.try_lock().err()?;
        let its = error.members().first()?.error()?.to_string();
        its.contains(&format!("the clock of {wrong} was ahead"))
            .then_some(())
    });
    let config = Config::from_url(&quorum.url).unwrap();
    let status = || distlock::admin::quorum_status(&config).unwrap();
    assert_eq!(
        status()[0].waits_for_clock_of.as_deref(),
        Some(&*wrong),
        "{:?}",
        status()
    );
    // While the clock is wrong, `set_up_quorum` cannot shorten the wait.
    distlock::admin::set_up_quorum(&config).unwrap();
    let left = |vote: &QuorumVote| match vote {
        QuorumVote::Paused(left) => Some(*left),
        _ => None,
    };
    assert!(
        left(&status()[0].vote).is_some_and(|left| left > SOON),
        "{:?}",
        status()
    );
    clock.set(0);
    distlock::admin::set_up_quorum(&config).unwrap();
    assert!(
        left(&status()[0].vote).is_none_or(|left| left <= SOON),
        "{:?}",
        status()
    );
    eventually("its vote counts", SOON, || lock.try_lock().ok().flatten())
        .unlock()
        .unwrap();
}

/// Each token that the emptied member granted was granted by two others, too, and at least one of
/// these has a right clock: so the wrong clock does not matter.
#[test]
fn one_wrong_clock_of_five_delays_no_replaced_member() {
    let (quorum, _clock, client, _warnings) = replaced_beside_a_wrong_clock(5);
    // One more server is paused, and the vote of the wrong clock does not count, so that of the
    // replaced member is needed.
    quorum.servers[1].pause();
    let lock = client.mutex("a").unwrap();
    eventually("its vote counts", SOON, || lock.try_lock().ok().flatten())
        .unlock()
        .unwrap();
}

#[test]
fn wrong_clock_is_warned_of_once_until_it_is_right() {
    let clock = TimeOfDay::new();
    let quorum = quorum(
        &clock,
        "max_lease=5s&watchdog=3s&node_timeout=500ms&command_timeout=2s",
    );
    let (client, warnings) = Warnings::of(&quorum.url);
    let wrong = place(quorum.servers[2].port());
    let counted = || warnings.count(WarningKind::QuorumClock, &["does not count", &wrong]);
    let work = || drop(client.mutex("a").unwrap().try_lock());
    for times in 1..3 {
        clock.set(3 * HOUR);
        eventually("it is warned of", SOON, || {
            work();
            counted() == times
        });
        always("it is not repeated", Duration::from_secs(5), || {
            work();
            counted() == times
        });
        clock.set(0);
        // No event shows when the client has noticed that the clock is right again.
        let_pass(Duration::from_secs(5));
        work();
        let_pass(Duration::from_secs(2));
    }
}

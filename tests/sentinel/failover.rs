//! Failovers: a replica replaces a killed, paused or healthy master.

use crate::scene::{SOON, await_move, await_renewal_on, await_usable, builder, client, take};
use distlock::{Event, LockGuard, LossCause};
use distlock_tests::guards::await_renewals;
use distlock_tests::sentinel::{DOWN_AFTER, Group, is_master, keep_a_master};
use distlock_tests::time::{Stopwatch, eventually, with_tolerance, within};
use parking_lot::Mutex;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

#[test]
fn locks_are_taken_on_the_successor_of_a_killed_master() {
    let mut group = Group::start();
    let lock = client(&group, "").mutex("after").unwrap();
    take(&lock).unlock().unwrap();
    let start = Stopwatch::start();
    group.servers[0].kill();
    await_usable(&lock);
    let usable = start.elapsed();
    let new = group.await_other_than(0);
    println!("usable {usable:?} after the kill");
    let guard = take(&lock);
    assert_eq!(group.servers[new].probe().hgetall("after").len(), 1);
    guard.unlock().unwrap();
}

#[test]
fn held_lock_survives_a_failover_without_a_gap() {
    let mut group = Group::start();
    // A long lease, because sentinels that do not agree on a leader of the failover try again
    // seconds later.
    let client = client(&group, "watchdog=16s");
    let guard = take(&client.mutex("held").unwrap());
    let losses = guard.losses();
    group.servers[0].kill();
    let new = group.await_other_than(0);
    await_renewal_on(&guard, &group.servers[new]);
    assert!(losses.try_recv().is_err());
    let mut probe = group.servers[new].probe();
    assert!(
        probe
            .pttl("held")
            .is_some_and(|left| left >= guard.remaining())
    );
    guard.unlock().unwrap();
    assert!(!probe.exists("held"));
}

#[test]
fn lease_shorter_than_the_failover_is_lost_at_its_deadline() {
    let group = Group::steady();
    let client = client(&group, "watchdog=3s");
    let guard = take(&client.mutex("short").unwrap());
    let losses = guard.losses();
    group.servers[0].pause();
    let told_by = guard.remaining();
    let loss = within(told_by, || losses.recv_timeout(SOON)).unwrap();
    assert_eq!(loss.cause(), LossCause::Expired);
    assert!(!guard.is_valid());
    group.servers[0].resume();
}

#[test]
fn lock_missing_on_the_new_master_is_reported_lost() {
    let mut group = Group::start();
    let client = client(&group, "watchdog=15s");
    // No later write reaches the replicas: they are paused, and their links are cut.
    group.servers[1..].iter().for_each(|server| server.pause());
    group.servers[0]
        .probe()
        .command(&["CLIENT", "KILL", "TYPE", "replica"]);
    let guard = take(&client.mutex("unknown").unwrap());
    let losses = guard.losses();
    group.servers[0].kill();
    group.servers[1..].iter().for_each(|server| server.resume());
    let new = group.await_other_than(0);
    assert!(!group.servers[new].probe().exists("unknown"));
    // The next renewal finds the loss, after a third of the lease.
    let loss = losses.recv_timeout(SOON).unwrap();
    assert_eq!(loss.cause(), LossCause::Gone);
    assert!(guard.unlock().is_err_and(|error| error.is_lost()));
}

#[test]
fn failover_on_demand_moves_all_connections_at_once() {
    let group = Group::start();
    let client = client(&group, "watchdog=6s&command_timeout=1s");
    let lock = client.mutex("moves").unwrap();
    let held = take(&client.mutex("held").unwrap());
    await_usable(&lock);
    // The old master stays a master. Otherwise a sentinel would demote it, which closes its
    // connections and would hide a client that keeps using it.
    keep_a_master(&group.servers[group.master()]);
    let old = group.fail_over();
    let new = group.await_other_than(old);
    within(Duration::from_millis(1_500), || {
        await_move(&lock, &group.servers[new]);
    });
    for _ in 0..100 {
        let guard = take(&lock);
        assert!(group.servers[new].probe().exists("moves"));
        guard.unlock().unwrap();
    }
    // A connection that was being made during the switch is closed after its handshake.
    eventually(
        "no connection to the old one is left",
        Duration::from_secs(5),
        || {
            let clients = group.servers[old].probe().clients();
            clients
                .iter()
                .all(|client| !client.contains("name=distlock"))
        },
    );
    assert!(is_master(&group.servers[old]));
    await_renewals(&held);
    held.unlock().unwrap();
}

#[test]
fn paused_master_is_left_and_stays_unused_after_resuming() {
    let group = Group::start();
    let client = client(&group, "command_timeout=30s");
    let lock = client.mutex("zombie").unwrap();
    take(&lock).unlock().unwrap();
    group.servers[0].pause();
    // The waiter's request is in the paused master's socket, and would be answered only when the
    // master resumes.
    let waiting = thread::spawn({
        let lock = client.mutex("asked").unwrap();
        move || {
            let guard = lock.try_lock_for(SOON).unwrap().unwrap();
            (guard.is_valid(), guard.unlock().is_ok())
        }
    });
    let new = group.await_other_than(0);
    // The switch ends requests that wait for the old master, long before the command time-out.
    let outcome = within(Duration::from_secs(3), || waiting.join().unwrap());
    assert_eq!(outcome, (true, true));
    await_move(&lock, &group.servers[new]);
    group.servers[0].resume();
    // The resumed server is a master until a sentinel demotes it, but the client must not use it.
    for _ in 0..50 {
        let guard = take(&lock);
        assert!(group.servers[new].probe().exists("zombie"));
        guard.unlock().unwrap();
    }
    eventually("the resumed server is a replica", SOON, || {
        !is_master(&group.servers[0])
    });
    take(&lock).unlock().unwrap();
}

#[test]
fn every_call_keeps_its_deadline_while_the_master_is_paused() {
    let group = Group::start();
    let client = client(&group, "command_timeout=300ms&connect_timeout=300ms");
    let lock = client.mutex("deadline").unwrap();
    take(&lock).unlock().unwrap();
    group.servers[0].pause();
    let start = Stopwatch::start();
    while start.elapsed() < DOWN_AFTER * 4 {
        let _whatever = within(Duration::from_secs(1), || {
            lock.try_lock_for(Duration::from_millis(100))
        });
    }
    await_usable(&lock);
    group.servers[0].resume();
}

#[test]
fn waiter_watches_the_new_master_after_a_failover() {
    let mut group = Group::start();
    let [holder, waiter] = [(); 2].map(|()| client(&group, "watchdog=60s"));
    let lock = waiter.mutex("waited").unwrap();
    let guard = take(&holder.mutex("waited").unwrap());
    let waiting = thread::spawn(move || take(&lock).unlock().unwrap());
    eventually("it waits", SOON, || {
        waiter.queue_length("waited").unwrap() == 1
    });
    eventually("it is subscribed", SOON, || {
        group.servers[0].probe().stat("pubsub_channels") > 0 || {
            let list = group.servers[0]
                .probe()
                .command(&["PUBSUB", "CHANNELS", "distlock_queue*"]);
            !list.texts().is_empty()
        }
    });
    group.servers[0].kill();
    let new = group.await_other_than(0);
    eventually("the watch has moved", SOON, || {
        let list = group.servers[new]
            .probe()
            .command(&["PUBSUB", "CHANNELS", "distlock_queue*"]);
        list.texts().len() == 1
    });
    // Far less than the rest of the lease, after which a waiter that has got no message tries
    // again.
    within(Duration::from_secs(5), || {
        guard.unlock().unwrap();
        waiting.join().unwrap();
    });
}

#[test]
fn two_failovers_in_a_row_are_followed() {
    let group = Group::start();
    let client = client(&group, "watchdog=10s");
    let lock = client.mutex("twice").unwrap();
    let held = take(&client.mutex("held").unwrap());
    for _ in 0..2 {
        let old = group.fail_over();
        let new = group.await_other_than(old);
        await_move(&lock, &group.servers[new]);
        assert!(held.is_valid(), "{:?}", held.losses().try_recv());
        group.await_quiet(2);
    }
    held.unlock().unwrap();
}

#[test]
fn master_serves_while_all_sentinels_are_down() {
    let mut group = Group::start();
    let client = client(&group, "watchdog=4s");
    let lock = client.mutex("alone").unwrap();
    let held = take(&client.mutex("held").unwrap());
    take(&lock).unlock().unwrap();
    group
        .sentinels
        .iter_mut()
        .for_each(|sentinel| sentinel.kill());
    // Both open and new connections are used, because the server itself says that it is the master.
    for _ in 0..3 {
        take(&lock).unlock().unwrap();
        group.servers[0]
            .probe()
            .command(&["CLIENT", "KILL", "TYPE", "normal"]);
        await_usable(&lock);
        held.verify().unwrap();
    }
    await_renewals(&held);
    held.unlock().unwrap();
}

#[test]
fn calls_stay_bounded_while_sentinels_have_no_majority() {
    let mut group = Group::start();
    let lock = client(&group, "command_timeout=500ms")
        .mutex("split")
        .unwrap();
    take(&lock).unlock().unwrap();
    // One of three sentinels is no majority, so it cannot replace the master.
    group.sentinels[1..]
        .iter()
        .for_each(|sentinel| sentinel.pause());
    group.servers[0].kill();
    let start = Stopwatch::start();
    while start.elapsed() < DOWN_AFTER * 4 {
        let error = within(Duration::from_millis(1_500), || lock.try_lock()).unwrap_err();
        assert!(error.is_unavailable(), "{error:?}");
    }
    group.sentinels[1..]
        .iter()
        .for_each(|sentinel| sentinel.resume());
    await_usable(&lock);
}

#[test]
fn paused_master_delays_no_renewal_on_another() {
    let groups = [(); 2].map(|()| Group::start_with(0, 1));
    let lease = Duration::from_secs(4);
    let left = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&left);
    let well = builder(&format!("{}?watchdog=4s", groups[0].url()))
        .events(Arc::new(move |event: &Event| {
            if let Event::Renewed { left, .. } = event {
                told.lock().push(*left);
            }
        }))
        .connect()
        .unwrap();
    // The renewals on the paused master of this group wait for an answer until the end of the test.
    let ill = client(&groups[1], "watchdog=3s&command_timeout=60s");
    let locks: Vec<_> = (0..20)
        .map(|n| ill.mutex(format!("ill{n}")).unwrap())
        .collect();
    let guard = take(&well.mutex("well").unwrap());
    let held: Vec<_> = locks.iter().map(take).collect();
    let losses: Vec<_> = held.iter().map(LockGuard::losses).collect();
    groups[1].servers[0].pause();
    left.lock().clear();
    let ((), tolerance) = with_tolerance(|| {
        // All locks of the paused group are due for renewal, and are lost.
        losses
            .iter()
            .for_each(|losses| drop(losses.recv_timeout(SOON).unwrap()));
        eventually("it is renewed all the while", SOON, || {
            assert!(guard.is_valid(), "{:?}", guard.loss());
            left.lock().len() >= 3
        });
    });
    groups[1].servers[0].resume();
    let least = left.lock().iter().copied().min().unwrap();
    // A renewal is due with two thirds of the lease left.
    let overdue = (lease * 2 / 3).saturating_sub(least);
    // A renewal that waited for the paused group would be sent with at most a third of the lease
    // left.
    tolerance.must_cover(
        overdue,
        lease / 4,
        &format!("a renewal was sent with {least:?} left"),
    );
    guard.unlock().unwrap();
}

//! Several locks as one, while one of their servers is down, frozen, or has lost its data.

use super::{SOON, left_over, three_servers};
use distlock::{
    Client, GuardState, Interrupt, LockOptions, MajorityLock, MemberOutcome, MultiLock, Mutex,
};
use distlock_tests::process::RedisServer;
use distlock_tests::redis::client;
use distlock_tests::time::{eventually, ms, within};
use std::thread;
use std::time::Duration;

/// Time limits that are short enough for tests that wait for one, and long enough for a busy
/// machine.
const TIMEOUT: &str = "command_timeout=500ms&connect_timeout=500ms";

struct Scene {
    servers: [RedisServer; 3],
    /// Kept until the background cleanup is done.
    _clients: [Client; 3],
    locks: [Mutex; 3],
}

impl Scene {
    /// Creates a lock on each of three servers. The names contain the number of the server, so that
    /// errors and losses show which one is meant.
    fn new() -> Self {
        let servers = three_servers();
        let clients = servers.each_ref().map(|server| client(server, TIMEOUT));
        let mut n = 0;
        let locks = clients.each_ref().map(|client| {
            n += 1;
            client.mutex(format!("lock on server {n}")).unwrap()
        });
        Self {
            servers,
            _clients: clients,
            locks,
        }
    }

    fn all(&self) -> MultiLock {
        MultiLock::new(&self.locks).unwrap()
    }

    fn majority(&self) -> MajorityLock {
        MajorityLock::new(&self.locks).unwrap()
    }

    /// Waits until no key of a lock is left on these servers. Reads over connections of the test's
    /// own.
    fn nothing_is_left_on(&self, servers: &[usize]) {
        for n in servers {
            eventually("nothing is left", SOON, || {
                left_over(&self.servers[*n]).is_empty()
            });
        }
    }
}

#[test]
fn multi_lock_with_a_server_down_names_it_and_keeps_nothing() {
    let mut scene = Scene::new();
    scene.all().lock().unwrap().unlock().unwrap();
    scene.servers[1].kill();
    let all = scene.all();
    for error in [
        all.try_lock().unwrap_err(),
        all.try_lock_for(ms(300)).unwrap_err(),
    ] {
        assert!(error.is_unavailable(), "{error}");
        let text = error.to_string();
        assert!(text.contains("\"lock on server 2\" failed"), "{text}");
        assert!(
            matches!(error.members()[1].outcome(), MemberOutcome::Failed(_)),
            "{error:?}"
        );
    }
    let error = all
        .lock_with(&LockOptions::new().interrupt(&fired_soon()))
        .unwrap_err();
    assert!(error.is_interrupted(), "{error}");
    scene.nothing_is_left_on(&[0, 2]);
    // A majority is still granted, and reports no token of the server that is down.
    let guard = scene.majority().try_lock().unwrap().expect("two of three");
    assert!(guard.fencing_tokens()[1].1.is_none() && guard.state() == GuardState::Held);
    guard.verify().unwrap();
    guard.unlock().unwrap();
    scene.servers[2].kill();
    let error = scene.majority().try_lock_for(ms(300)).unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("server 3"),
        "{error}"
    );
    scene.nothing_is_left_on(&[0]);
}

fn fired_soon() -> Interrupt {
    let interrupt = Interrupt::new();
    thread::spawn({
        let interrupt = interrupt.clone();
        move || {
            distlock_tests::time::let_pass(ms(300));
            interrupt.fire();
        }
    });
    interrupt
}

#[test]
fn frozen_server_costs_a_timeout_and_a_majority_survives() {
    let scene = Scene::new();
    let guard = scene.majority().lock().unwrap();
    scene.all().lock().unwrap().unlock().unwrap();
    scene.servers[0].pause();
    let error = thread::scope(|scope| {
        let other = scope.spawn(|| {
            let strangers = scene
                .servers
                .each_ref()
                .map(|server| client(server, TIMEOUT));
            let mut n = 0;
            let locks = strangers.each_ref().map(|client| {
                n += 1;
                client.mutex(format!("other lock {n}")).unwrap()
            });
            let all = MultiLock::new(&locks).unwrap();
            let error = all.try_lock().unwrap_err();
            let majority = MajorityLock::new(&locks).unwrap();
            majority
                .try_lock()
                .unwrap()
                .expect("two of three answer")
                .unlock()
                .unwrap();
            // Far less than ten time-outs.
            within(Duration::from_secs(1), || {
                for _ in 0..10 {
                    majority
                        .try_lock()
                        .unwrap()
                        .expect("two of three answer")
                        .unlock()
                        .unwrap();
                }
            });
            error
        });
        other.join().unwrap()
    });
    assert!(
        error.is_unavailable() && error.to_string().contains("\"other lock 1\""),
        "{error}"
    );
    assert!(
        guard.is_valid() && guard.verify().is_ok(),
        "two of three are enough"
    );
    guard.unlock().expect("and for unlocking, too");
    scene.servers[0].resume();
    scene.nothing_is_left_on(&[1, 2]);
}

#[test]
fn emptied_server_loses_the_multi_lock_and_frees_the_rest() {
    let mut scene = Scene::new();
    let watched = LockOptions::new().watched(ms(3_000));
    let all = scene.all().lock_with(&watched).unwrap();
    let majority = scene.majority().lock_with(&watched).unwrap();
    let (lost, half_lost) = (all.losses(), majority.losses());
    scene.servers[2].restart();
    let loss = lost.recv_timeout(SOON).unwrap();
    assert_eq!(
        loss.member().unwrap().as_str(),
        "lock on server 3",
        "{loss}"
    );
    assert!(!all.is_valid() && majority.is_valid() && half_lost.is_empty());
    assert!(all.unlock().unwrap_err().is_lost());
    majority.unlock().unwrap();
    scene.nothing_is_left_on(&[0, 1, 2]);
}

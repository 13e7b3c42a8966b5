//! Locks that sessions hold.

use distlock::{Client, LockOptions, LossCause};
use distlock_tests::child::Example;
use distlock_tests::claims::judge;
use distlock_tests::contenders::Contenders;
use distlock_tests::postgres::PostgresServer;
use distlock_tests::time::{Stopwatch, eventually, let_pass, ms};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

fn url(server: &PostgresServer, options: &str) -> String {
    format!("{}?form=session&{options}", server.url())
}

fn client(server: &PostgresServer, options: &str) -> Client {
    distlock::connect(&url(server, options)).unwrap()
}

/// No lease of a holder that was killed is waited for.
#[test]
fn lock_of_a_killed_process_is_free_at_once() {
    let server = PostgresServer::start();
    let mut holder = Example::distlock(&["hold", "killed"])
        .env("DISTLOCK_URL", &url(&server, "watchdog=1h"))
        .spawn();
    let client = client(&server, "");
    let lock = client.mutex("killed").unwrap();
    eventually("it is held", SOON, || lock.try_lock().unwrap().is_none());
    holder.kill();
    assert!(lock.try_lock_for(ms(3_000)).unwrap().is_some());
}

/// The holder learns of the end of its session long before its next renewal.
#[test]
fn end_of_the_session_is_reported_at_once() {
    let server = PostgresServer::start();
    let client = client(&server, "watchdog=1h");
    let guard = client.mutex("ended").unwrap().lock().unwrap();
    let losses = guard.losses();
    server
        .admin()
        .batch_execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
        .unwrap();
    let loss = losses.recv_timeout(SOON).unwrap();
    assert_eq!(loss.cause(), LossCause::Gone, "{loss:?}");
    assert!(!guard.is_valid());
    drop(guard);
    assert!(client.mutex("ended").unwrap().try_lock().unwrap().is_some());
}

#[test]
fn crash_of_the_server_loses_the_lock() {
    let mut server = PostgresServer::start();
    let client = client(&server, "watchdog=1h");
    let guard = client.mutex("crash").unwrap().lock().unwrap();
    server.stop();
    server.start_again();
    eventually("the holder knows", SOON, || !guard.is_valid());
    drop(guard);
    assert!(
        client
            .mutex("crash")
            .unwrap()
            .try_lock_for(SOON)
            .unwrap()
            .is_some()
    );
}

/// A lease without renewals ends for others, too, though the client lives; and an extension
/// lengthens it.
#[test]
fn lease_ends_and_is_extended() {
    let server = PostgresServer::start();
    let [one, two] = ["", ""].map(|it| client(&server, it));
    let lock = two.mutex("leased").unwrap();
    for extends in [false, true] {
        let watch = Stopwatch::start();
        let options = LockOptions::new().lease(ms(1_500));
        let guard = one.mutex("leased").unwrap().lock_with(&options).unwrap();
        if extends {
            let_pass(ms(500));
            guard.extend(ms(2_500)).unwrap();
        }
        let next = lock.try_lock_for(SOON).unwrap().expect("the lease ends");
        let took = watch.elapsed();
        let least = if extends { ms(2_900) } else { ms(1_400) };
        assert!((least..least + ms(1_500)).contains(&took), "{took:?}");
        assert!(!guard.is_valid());
        next.unlock().unwrap();
    }
}

#[test]
fn contending_processes_exclude_each_other() {
    let mut server = PostgresServer::start();
    let mut contenders = Contenders::start(&url(&server, "watchdog=2s"), "contended", 4, 4);
    for round in 0..4 {
        let_pass(ms(1_200));
        match round % 2 {
            0 => contenders.replace_first(),
            _ => {
                server.stop();
                server.start_again();
            }
        }
    }
    let_pass(ms(1_200));
    let claims = contenders.stop();
    assert!(claims.len() > 40, "{} claims", claims.len());
    let mut verdict = judge(claims);
    // These locks have no tokens.
    verdict.backwards.clear();
    verdict.must_be_exact();
}

/// A session that hangs loses its own lock, and none of those that are renewed together with it.
#[test]
fn session_that_hangs_costs_no_other_lock() {
    let server = PostgresServer::start();
    let client = client(&server, "watchdog=3s&command_timeout=1s");
    let names = ["a", "b", "c", "d"];
    let guards = names.map(|name| client.mutex(name).unwrap().lock().unwrap());
    let pid: i32 = server
        .admin()
        .query_one(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted \
             AND (classid::bigint << 32 | objid::bigint) = hashtextextended('b', 0)",
            &[],
        )
        .unwrap()
        .get(0);
    let signal = |name: &str| {
        let kill = std::process::Command::new("kill")
            .args([name, &pid.to_string()])
            .status();
        assert!(kill.unwrap().success());
    };
    signal("-STOP");
    let_pass(ms(6_000));
    let valid = guards.each_ref().map(|guard| guard.is_valid());
    signal("-CONT");
    assert_eq!(valid, [true, false, true, true]);
}

/// The forced release of a lock for which others wait succeeds, though one of them gets it.
#[test]
fn forced_release_of_a_wanted_lock_succeeds() {
    let server = PostgresServer::start();
    let [holder, waiter, operator] = ["", "", ""].map(|it| client(&server, it));
    let _guard = holder.mutex("wanted").unwrap().lock().unwrap();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let guard = waiter.mutex("wanted").unwrap().lock().unwrap();
            let_pass(ms(1_500));
            guard.is_valid()
        });
        let_pass(ms(300));
        assert!(operator.mutex("wanted").unwrap().force_unlock().unwrap());
        assert!(waiting.join().unwrap());
    });
}

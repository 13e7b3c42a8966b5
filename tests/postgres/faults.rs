//! What a fault of the server or of a connection does to a request, a hold and a wait.

use crate::wire::{HARMS, Harm, Wire};
use distlock::time::{Clock, SystemClock};
use distlock::{Client, LockOptions};
use distlock_tests::distance::{Distance, Reach};
use distlock_tests::postgres::PostgresServer;
use distlock_tests::time::{Stopwatch, eventually, let_pass, ms, within};
use std::thread;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(10);

fn client_at(url: &str, options: &str) -> Client {
    distlock::connect(&format!("{url}?{options}")).unwrap()
}

/// Whatever happens to the first attempt, `lock()` gets the lock, and it is free after `unlock`.
#[test]
fn harmed_attempt_is_repeated_and_leaves_nothing_behind() {
    let server = PostgresServer::start();
    let near = client_at(&server.url(), "");
    for (n, harm) in HARMS.into_iter().enumerate() {
        let wire = Wire::new(server.port(), ".acquire(", harm, 1);
        let far = client_at(&server.url_at(wire.port()), "command_timeout=500ms");
        let name = format!("harmed attempt {n}");
        let lock = far.mutex(&name).unwrap();
        let guard = within(SOON, || lock.lock().unwrap());
        assert!(wire.is_done() && guard.is_valid(), "{harm:?}");
        guard.unlock().unwrap();
        // Longer than the copy that arrives late.
        let lock = near.mutex(&name).unwrap();
        for _ in 0..25 {
            let guard = lock.try_lock().unwrap();
            drop(guard.unwrap_or_else(|| panic!("{harm:?}: someone has it")));
            let_pass(ms(100));
        }
    }
}

/// A `try_lock` whose answer is lost reports an error, and its lock does not stay behind.
#[test]
fn try_lock_without_an_answer_locks_for_nobody() {
    let server = PostgresServer::start();
    let near = client_at(&server.url(), "");
    for (n, harm) in HARMS.into_iter().enumerate() {
        let wire = Wire::new(server.port(), ".acquire(", harm, 100);
        let far = client_at(
            &server.url_at(wire.port()),
            "command_timeout=300ms&watchdog=60s",
        );
        let name = format!("no answer {n}");
        let error = far.mutex(&name).unwrap().try_lock().unwrap_err();
        assert!(error.is_unavailable(), "{harm:?}: {error}");
        let lock = near.mutex(&name).unwrap();
        eventually("the rest of the attempt is gone", SOON, || {
            lock.try_lock().unwrap().is_some()
        });
        if harm == HARMS[1] {
            let_pass(ms(2_000));
            assert!(lock.try_lock().unwrap().is_some(), "a late copy has it");
        }
    }
}

#[test]
fn harmed_release_is_repeated() {
    let server = PostgresServer::start();
    let near = client_at(&server.url(), "");
    for (n, harm) in HARMS.into_iter().enumerate() {
        let wire = Wire::new(server.port(), ".release(", harm, 1);
        let far = client_at(
            &server.url_at(wire.port()),
            "command_timeout=500ms&watchdog=60s",
        );
        let name = format!("harmed release {n}");
        let guard = far.mutex(&name).unwrap().lock().unwrap();
        drop(guard);
        assert!(wire.is_done());
        let lock = near.mutex(&name).unwrap();
        eventually("it is free", SOON, || lock.try_lock().unwrap().is_some());
    }
}

#[test]
fn held_lock_survives_ended_sessions_and_a_crash_of_the_server() {
    let mut server = PostgresServer::start();
    let client = client_at(&server.url(), "watchdog=9s");
    let guard = client.mutex("held").unwrap().lock().unwrap();
    let token = guard.fencing_token();
    let other = client_at(&server.url(), "");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| other.mutex("held").unwrap().lock().unwrap().fencing_token());
        let ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
            WHERE application_name <> '' AND pid <> pg_backend_pid()";
        for _ in 0..5 {
            server.admin().batch_execute(ends).unwrap();
            let_pass(ms(300));
            assert!(guard.is_valid());
        }
        server.stop();
        let_pass(ms(500));
        server.start_again();
        let_pass(ms(4_000));
        assert!(guard.is_valid(), "{:?}", guard.loss());
        assert!(!waiting.is_finished(), "it has no end");
        guard.unlock().unwrap();
        let next = within(SOON, || waiting.join().unwrap());
        assert!(next > token);
    });
}

#[test]
fn frozen_server_overruns_no_deadline_and_thaws_without_harm() {
    let server = PostgresServer::start();
    let client = client_at(&server.url(), "command_timeout=500ms&watchdog=20s");
    let lock = client.mutex("frozen").unwrap();
    drop(lock.lock().unwrap());
    let guard = client.mutex("held").unwrap().lock().unwrap();
    server.freeze(true);
    for wait in [0, 1_000] {
        let began = Stopwatch::start();
        let error = lock.try_lock_for(ms(wait)).unwrap_err();
        let took = began.elapsed();
        assert!(error.is_unavailable(), "{error}");
        assert!(took < ms(wait + 1_200), "{took:?} for a wait of {wait} ms");
    }
    server.freeze(false);
    let free = within(SOON, || lock.lock().unwrap());
    assert!(guard.is_valid());
    drop((free, guard));
}

/// A row that an open transaction has locked makes no request wait beyond its deadline, and no
/// renewal of another lock late.
#[test]
fn locked_row_delays_its_own_lock_only() {
    let server = PostgresServer::start();
    let client = client_at(&server.url(), "command_timeout=1s&watchdog=3s");
    let free = client.mutex("free").unwrap();
    drop(free.lock().unwrap());
    let others = client.mutex("other").unwrap().lock().unwrap();
    let held = client.mutex("held").unwrap().lock().unwrap();
    let mut admin = server.admin();
    let mut transaction = admin.transaction().unwrap();
    transaction
        .execute(
            "SELECT FROM distlock.locks WHERE name IN ('free', 'held') FOR UPDATE",
            &[],
        )
        .unwrap();
    let began = Stopwatch::start();
    let error = free.try_lock().unwrap_err();
    assert!(began.elapsed() < ms(1_200));
    assert!(error.to_string().contains("row"), "{error}");
    eventually("the lock that is not renewed is lost", SOON, || {
        !held.is_valid()
    });
    assert!(others.is_valid(), "{:?}", others.loss());
    transaction.rollback().unwrap();
    drop(within(SOON, || free.lock().unwrap()));
    assert!(others.is_valid());
}

#[test]
fn full_server_is_unavailable_and_says_so() {
    let server = PostgresServer::start_with(&["max_connections=12"]);
    let client = client_at(&server.url(), "watchdog=9s&outage_limit=30s");
    let held = client.mutex("held").unwrap().lock().unwrap();
    let mut taken = Vec::new();
    while let Ok(connection) = std::panic::catch_unwind(|| server.admin()) {
        taken.push(connection);
        assert!(taken.len() < 20);
    }
    let other = client_at(&server.url(), "");
    let error = other.mutex("held").unwrap().try_lock().unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert!(error.to_string().contains("max_connections"), "{error}");
    let_pass(ms(1_000));
    assert!(held.is_valid());
    drop(taken);
    assert!(within(SOON, || other.mutex("held").unwrap().try_lock().unwrap()).is_none());
}

#[test]
fn read_only_server_grants_nothing_and_comes_back() {
    let server = PostgresServer::start();
    let client = client_at(&server.url(), "");
    let lock = client.mutex("it").unwrap();
    drop(lock.lock().unwrap());
    let switch = |value: &str| {
        let statement = format!("ALTER SYSTEM SET default_transaction_read_only = {value}");
        let mut admin = server.admin();
        admin
            .batch_execute("SET default_transaction_read_only = off")
            .unwrap();
        admin.batch_execute(&statement).unwrap();
        admin.batch_execute("SELECT pg_reload_conf()").unwrap();
    };
    switch("on");
    // Another name each time: a lock that was granted meanwhile cannot be released.
    let mut names = (0..).map(|n| format!("it {n}"));
    let mut attempt = || client.mutex(names.next().unwrap()).unwrap().try_lock();
    eventually("it grants nothing", SOON, || match attempt() {
        Err(error) => error.is_unavailable() && error.to_string().contains("25006"),
        Ok(_) => false,
    });
    switch("off");
    eventually("it grants again", SOON, || matches!(attempt(), Ok(Some(_))));
}

/// Idle connections that the server has closed fail no request.
#[test]
fn restart_of_the_server_fails_no_later_request() {
    let mut server = PostgresServer::start();
    let client = client_at(&server.url(), "");
    let hold = |name: &str| client.mutex(name).unwrap().try_lock().unwrap().unwrap();
    thread::scope(|scope| {
        for n in 0..6 {
            let guard = hold(&format!("{n}"));
            scope.spawn(move || let_pass(ms(50)));
            drop(guard);
        }
    });
    for _ in 0..3 {
        let guards: Vec<_> = (0..4).map(|n| hold(&format!("before {n}"))).collect();
        drop(guards);
        server.stop();
        server.start_again();
        let_pass(ms(300));
        drop(hold("after"));
    }
}

/// A release wakes a waiter of another client at once, also after the connection that listens has
/// failed.
#[test]
fn waiters_are_woken_at_once() {
    let server = PostgresServer::start();
    let [one, two] = ["", ""].map(|it| client_at(&server.url(), it));
    for round in 0..6 {
        if round == 3 {
            let ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                WHERE query LIKE 'LISTEN%'";
            server.admin().batch_execute(ends).unwrap();
        }
        let guard = one.mutex("woken").unwrap().lock().unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let guard = two.mutex("woken").unwrap().lock().unwrap();
                let now = SystemClock.now();
                drop(guard);
                now
            });
            let_pass(ms(700));
            assert!(!waiting.is_finished());
            let freed = SystemClock.now();
            guard.unlock().unwrap();
            let took = waiting.join().unwrap().since(freed);
            assert!(took < ms(250), "woken after {took:?}");
        });
    }
}

/// A connection that listens and fails again and again after it has worked is replaced at once each
/// time.
#[test]
fn each_failure_of_the_listener_is_mended_at_once() {
    let server = PostgresServer::start();
    let [one, two] = ["", ""].map(|it| client_at(&server.url(), it));
    let ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
        WHERE pid <> pg_backend_pid() \
        AND (query LIKE 'LISTEN%' OR query LIKE '%watch_again%' OR query = 'SELECT 1')";
    for round in 0..8 {
        let guard = one.mutex("listened").unwrap().lock().unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                drop(two.mutex("listened").unwrap().lock().unwrap());
                SystemClock.now()
            });
            let_pass(ms(700));
            server.admin().batch_execute(ends).unwrap();
            let_pass(ms(20));
            let freed = SystemClock.now();
            guard.unlock().unwrap();
            let took = waiting.join().unwrap().since(freed);
            assert!(took < ms(700), "round {round}: woken after {took:?}");
        });
    }
}

/// Under other isolation levels concurrent requests fail, and are repeated.
#[test]
fn other_isolation_levels_only_cost_repetitions() {
    let server = PostgresServer::start();
    for level in ["serializable", "repeatable read"] {
        let escaped = level.replace(' ', r"\%20");
        let options = format!("options=-c default_transaction_isolation={escaped}");
        let options = options.replace(' ', "%20");
        let clients: Vec<_> = (0..4).map(|_| client_at(&server.url(), &options)).collect();
        let name = format!("under {level}");
        let inside = std::sync::atomic::AtomicBool::new(false);
        thread::scope(|scope| {
            for client in &clients {
                scope.spawn(|| {
                    let lock = client.mutex(&name).unwrap();
                    for _ in 0..40 {
                        let guard = lock.lock().unwrap();
                        assert!(!inside.swap(true, std::sync::atomic::Ordering::SeqCst));
                        inside.store(false, std::sync::atomic::Ordering::SeqCst);
                        guard.unlock().unwrap();
                    }
                });
            }
        });
    }
}

/// The harms are what they are meant to be: without a repetition the attempt fails.
#[test]
fn harmed_attempt_is_seen() {
    let server = PostgresServer::start();
    let wire = Wire::new(server.port(), ".acquire(", Harm::LosesReply, 1);
    let far = client_at(&server.url_at(wire.port()), "");
    let lock = far.mutex("seen").unwrap();
    let options = LockOptions::new();
    assert!(lock.try_lock_with(&options).is_err());
    assert!(wire.is_done());
}

/// The end of a wait is not lengthened by a second request, though answers are late by then.
#[test]
fn wait_that_gives_up_lasts_one_request_longer_at_most() {
    const WAIT: Duration = Duration::from_millis(1_500);
    const LATE: Duration = Duration::from_millis(800);
    let server = PostgresServer::start();
    let near = client_at(&server.url(), "");
    for form in ["table", "session"] {
        let distance = Distance::new(server.port(), Duration::ZERO);
        distance.set(Reach::Near);
        let options = format!("command_timeout=1s&form={form}");
        let client = client_at(&server.url_at(distance.port()), &options);
        let near = match form {
            "table" => near.clone(),
            form => client_at(&server.url(), &format!("form={form}")),
        };
        let _held = near.mutex(form).unwrap().lock().unwrap();
        let watch = Stopwatch::start();
        thread::scope(|scope| {
            scope.spawn(|| {
                let_pass(WAIT - ms(300));
                distance.set(Reach::Far(LATE));
            });
            // A fair waiter leaves the queue in the store.
            let lock = match form {
                "table" => client.fair_mutex(form),
                form => client.mutex(form),
            };
            let _busy_or_late = lock.unwrap().try_lock_for(WAIT);
        });
        let took = watch.elapsed();
        assert!(took < WAIT + LATE + ms(450), "{form}: {took:?}");
    }
}

/// While a waiter that has died is at the head of a queue, the others do not wake each other all
/// the time.
#[test]
fn dead_head_of_a_queue_causes_no_storm() {
    let server = PostgresServer::start();
    let clients: Vec<_> = (0..6).map(|_| client_at(&server.url(), "")).collect();
    let holder = client_at(&server.url(), "");
    let guard = holder.fair_mutex("queue").unwrap().lock().unwrap();
    let mut admin = server.admin();
    admin
        .batch_execute(
            "INSERT INTO distlock.waiters (name, owner, present_until, is_reader, is_writer) \
             VALUES ('queue', 'dead:1', clock_timestamp() + interval '4s', false, false)",
        )
        .unwrap();
    thread::scope(|scope| {
        for client in &clients {
            scope.spawn(|| drop(client.fair_mutex("queue").unwrap().lock().unwrap()));
        }
        let_pass(ms(800));
        let mut commits = || -> i64 {
            let count = "SELECT xact_commit FROM pg_stat_database WHERE datname = 'app'";
            admin
                .batch_execute("SELECT pg_stat_force_next_flush()")
                .unwrap();
            admin.query_one(count, &[]).unwrap().get(0)
        };
        let before = commits();
        guard.unlock().unwrap();
        let_pass(ms(2_000));
        let count = commits() - before;
        println!("{count} transactions in 2 s");
        assert!(count < 200, "{count} transactions");
    });
}

/// Requests that wait for a standby which is away are unavailable, and their sessions end.
#[test]
fn standby_that_is_away_uses_up_no_connections() {
    let server = PostgresServer::start();
    let client = client_at(&server.url(), "command_timeout=300ms&synchronous_commit=on");
    drop(client.mutex("before").unwrap().lock().unwrap());
    server.set("synchronous_standby_names=ghost");
    let_pass(ms(300));
    for n in 0..25 {
        let error = client.mutex(format!("away {n}")).unwrap().try_lock();
        assert!(
            error.is_err_and(|error| error.is_unavailable()),
            "{n} was granted"
        );
    }
    let mut admin = server.admin();
    admin.batch_execute("SET synchronous_commit = off").unwrap();
    eventually("few sessions wait for the standby", SOON, || {
        let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'";
        let count: i64 = admin.query_one(waiting, &[]).unwrap().get(0);
        count <= 8
    });
    server.set("synchronous_standby_names=");
    eventually("it grants again", SOON, || {
        matches!(client.mutex("after").unwrap().try_lock(), Ok(Some(_)))
    });
}

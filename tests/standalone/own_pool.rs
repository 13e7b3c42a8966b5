//! Locks over the application's own pool of connections by the crate `redis`.

use distlock::redis_rs::redis::IntoConnectionInfo;
use distlock::redis_rs::{RedisPool, config_of, r2d2, redis};
use distlock::{Client, Event, LockOptions};
use distlock_tests::cluster::Cluster;
use distlock_tests::distance::{Distance, Reach};
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy};
use distlock_tests::replicas::Replicated;
use distlock_tests::resp::Request;
use distlock_tests::time::{Stopwatch, eventually, let_pass};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

fn application(server: &RedisServer) -> redis::Client {
    redis::Client::open(server.url_as("")).unwrap()
}

/// Returns a client of the application behind a proxy.
fn through(proxy: &Proxy) -> redis::Client {
    redis::Client::open(format!("redis://127.0.0.1:{}", proxy.port())).unwrap()
}

fn pool(server: &RedisServer, size: u32, tests: bool) -> r2d2::Pool<redis::Client> {
    pool_of(application(server), size, tests)
}

fn pool_of(client: redis::Client, size: u32, tests: bool) -> r2d2::Pool<redis::Client> {
    let builder = r2d2::Pool::builder()
        .max_size(size)
        .min_idle(Some(0))
        .connection_timeout(Duration::from_secs(1));
    builder.test_on_check_out(tests).build(client).unwrap()
}

fn locks(pool: &r2d2::Pool<redis::Client>) -> Client {
    RedisPool::new(pool.clone()).connect().unwrap()
}

/// Returns a client over a pool of its own, with waking.
fn with_waking(client: redis::Client) -> Client {
    let pool = RedisPool::new(pool_of(client.clone(), 10, false));
    pool.with_waking(&client).unwrap().connect().unwrap()
}

#[test]
fn lock_over_the_applications_pool_excludes_others() {
    let server = RedisServer::start();
    for tests in [false, true] {
        let pool = pool(&server, 4, tests);
        let (ours, theirs) = (locks(&pool), distlock::connect(&server.url_as("")).unwrap());
        let guard = ours.mutex("it").unwrap().lock().unwrap();
        assert!(theirs.mutex("it").unwrap().try_lock().unwrap().is_none());
        redis::cmd("INCR")
            .arg("data")
            .exec(&mut *pool.get().unwrap())
            .unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let lock = theirs.mutex("it").unwrap();
                lock.try_lock_for(LONG)
                    .unwrap()
                    .expect("it comes free")
                    .unlock()
                    .unwrap();
            });
            let_pass(Duration::from_millis(100));
            guard.unlock().unwrap();
            waits.join().unwrap();
        });
        let guard = theirs.mutex("it").unwrap().lock().unwrap();
        assert!(ours.mutex("it").unwrap().try_lock().unwrap().is_none());
        drop(guard);
        let client = RedisPool::new(pool.clone())
            .with_waking(&application(&server))
            .unwrap()
            .connect()
            .unwrap();
        let first = ours.mutex("it").unwrap().lock().unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let lock = client.mutex("it").unwrap();
                drop(lock.try_lock_for(LONG).unwrap().expect("it comes free"));
            });
            let_pass(Duration::from_millis(100));
            first.unlock().unwrap();
            waits.join().unwrap();
        });
    }
}

/// One connection is for renewals alone.
#[test]
fn held_lock_survives_an_exhausted_pool() {
    let server = RedisServer::start();
    let pool = pool(&server, 2, false);
    let locks = locks(&pool);
    let options = LockOptions::new().watched(Duration::from_secs(2));
    let guard = locks.mutex("it").unwrap().lock_with(&options).unwrap();
    let taken = pool.get().unwrap();
    assert!(pool.try_get().is_none(), "one is kept aside");
    let watch = Stopwatch::start();
    let error = locks.mutex("other").unwrap().try_lock().unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    assert!(error.to_string().contains("max_size"), "{error}");
    assert!(watch.elapsed() < Duration::from_secs(10));
    let_pass(Duration::from_secs(5));
    assert!(guard.is_valid());
    drop(taken);
    guard.verify().unwrap();
    guard.unlock().unwrap();
}

/// Applies a fault to the first script of a pool's connection after `armed`.
struct Once {
    fault: Fault,
    armed: AtomicBool,
}

impl Plan for Once {
    fn fate(&self, request: &mut Request) -> Fault {
        let is_script = request.is("EVAL") || request.is("EVALSHA");
        match is_script && self.armed.swap(false, Ordering::SeqCst) {
            true => self.fault,
            false => Fault::Pass,
        }
    }
}

const BROKEN: [Fault; 8] = [
    Fault::Cut,
    Fault::CutReply,
    Fault::CloseAfter,
    Fault::SwallowRequest,
    Fault::SwallowReply,
    Fault::HalfReply,
    Fault::Garbage,
    Fault::DelayReply(Duration::from_secs(2)),
];

/// The application reads no reply to a request of ours, whatever happens to it, and no time-out of
/// ours is left on its connections.
#[test]
fn broken_connection_never_goes_back_alive() {
    thread::scope(|scope| {
        for fault in BROKEN {
            scope.spawn(move || fault_leaves_the_pool_clean(fault));
        }
    });
}

fn fault_leaves_the_pool_clean(fault: Fault) {
    let server = RedisServer::start();
    let once = Arc::new(Once {
        fault,
        armed: AtomicBool::new(false),
    });
    let proxy = Proxy::new(server.port(), Arc::clone(&once) as Arc<dyn Plan>);
    let pool = pool_of(through(&proxy), 3, false);
    let locks = RedisPool::new(pool.clone())
        .builder()
        .unwrap()
        .configure(|config| config.with_command_timeout(Duration::from_millis(500)))
        .connect()
        .unwrap();
    let lock = locks.mutex("it").unwrap();
    lock.lock().unwrap().unlock().unwrap();
    for round in 0..3 {
        once.armed.store(true, Ordering::SeqCst);
        // The outcome depends on the fault: a repeated attempt may be granted in time.
        drop(lock.try_lock_for(Duration::from_millis(800)));
        let bound = Stopwatch::start();
        let mut all: Vec<_> = (0..2).map(|_| pool.get().unwrap()).collect();
        for (place, connection) in all.iter_mut().enumerate() {
            let word = format!("{round} {place}");
            let echoed: String = redis::cmd("ECHO")
                .arg(&word)
                .query(&mut **connection)
                .unwrap();
            assert_eq!(echoed, word, "{fault:?}");
            // Longer than any time-out of ours.
            let slept: Option<String> = redis::cmd("BLPOP")
                .arg("nothing")
                .arg(1)
                .query(&mut **connection)
                .unwrap();
            assert_eq!(slept, None, "{fault:?}");
        }
        assert!(bound.elapsed() < Duration::from_secs(20), "{fault:?}");
    }
    let guard = lock
        .try_lock_for(LONG)
        .unwrap()
        .expect("it is free at last");
    guard.unlock().unwrap();
}

/// Servers that cannot grant locks, or that do so again after a restart.
#[test]
fn server_that_cannot_grant_is_named() {
    let error_at = |client: redis::Client, name: &str| {
        let client = with_waking(client);
        let error = client.mutex(name).unwrap().try_lock().unwrap_err();
        assert!(!error.to_string().contains("max_size"), "{error}");
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            text += &format!("; {error}");
            cause = error.source();
        }
        text
    };
    let replicated = Replicated::start(1);
    let text = error_at(application(&replicated.replicas[0]), "it");
    assert!(text.contains("is a replica"), "{text}");

    let cluster = Cluster::shared();
    let text = error_at(application(cluster.node(0)), &cluster.name_on(1, "it"));
    assert!(text.contains("redis+cluster://"), "{text}");

    let server = RedisServer::start();
    let mut probe = server.probe();
    probe.command(&["CONFIG", "SET", "requirepass", "secret"]);
    let text = error_at(application(&server), "it");
    probe.command(&["CONFIG", "SET", "requirepass", ""]);
    assert!(text.contains("NOAUTH"), "{text}");
}

/// A restart loses the lock of a server without persistence, and nothing else.
#[test]
fn pool_outlives_a_restart_of_its_server() {
    let mut server = RedisServer::start();
    let pool = pool(&server, 4, false);
    let client = RedisPool::new(pool)
        .builder()
        .unwrap()
        .configure(|config| config.with_watchdog(Duration::from_secs(3)))
        .connect()
        .unwrap();
    let guard = client.mutex("it").unwrap().lock().unwrap();
    server.kill();
    let error = client.mutex("other").unwrap().try_lock().unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    server.restart();
    eventually("the loss is noticed", LONG, || !guard.is_valid());
    let other = client.mutex("other").unwrap().try_lock_for(LONG).unwrap();
    other.expect("it is free").unlock().unwrap();
}

/// The connections of the pool lead elsewhere from one request to the next.
#[test]
fn server_of_the_pool_is_judged_again() {
    let (first, second) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::plain(first.port());
    let pool = pool_of(through(&proxy), 4, true);
    let told = Arc::new(AtomicBool::new(false));
    let changed = Arc::clone(&told);
    let locks = RedisPool::new(pool)
        .builder()
        .unwrap()
        .configure(|config| config.with_watchdog(Duration::from_secs(2)))
        .events(Arc::new(move |event: &Event| {
            if matches!(event, Event::ServerChanged { .. }) {
                changed.store(true, Ordering::SeqCst);
            }
        }))
        .connect()
        .unwrap();
    let guard = locks.mutex("it").unwrap().lock().unwrap();
    proxy.switch_to(second.port());
    eventually("the loss is noticed", LONG, || !guard.is_valid());
    eventually("the other server is used", LONG, || {
        let free = locks.mutex("other").unwrap().try_lock();
        free.is_ok_and(|guard| guard.is_some())
    });
    eventually("the change is reported", LONG, || {
        told.load(Ordering::SeqCst)
    });
}

/// The server that was left is not followed again, also by a connection whose refusal the pool has
/// seen.
#[test]
fn refused_connection_is_refused_again() {
    let (first, second) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::plain(first.port());
    let pool = pool_of(through(&proxy), 4, false);
    let locks = locks(&pool);
    let is_free = |name: &str| {
        let free = locks.mutex(name).unwrap().try_lock();
        free.is_ok_and(|guard| guard.is_some())
    };
    assert!(is_free("it"));
    proxy.switch_to(second.port());
    eventually("the other server is followed", LONG, || is_free("it"));
    proxy.switch_to(first.port());
    let elsewhere = Stopwatch::start();
    while elsewhere.elapsed() < Duration::from_secs(5) {
        assert!(!is_free("other"), "the server that was left has granted it");
    }
}

/// Connections that the application had before a switch do not lead back after it.
#[test]
fn idle_connections_of_the_server_that_was_left_are_closed() {
    let lease = Duration::from_secs(1);
    let (first, second) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::plain(first.port());
    let pool = pool_of(through(&proxy), 8, false);
    let locks = RedisPool::new(pool.clone())
        .builder()
        .unwrap()
        .configure(|config| config.with_watchdog(lease))
        .connect()
        .unwrap();
    let lock = locks.mutex("it").unwrap();
    lock.lock().unwrap().unlock().unwrap();
    let of_application: Vec<_> = (0..4).map(|_| pool.get().unwrap()).collect();
    proxy.lead_to(second.port());
    let newest = pool.get().unwrap();
    drop(of_application);
    // The pool lends it first.
    drop(newest);
    let guard = lock.try_lock_for(LONG).unwrap().expect("it is free");
    guard.unlock().unwrap();
    let _in_use = pool.get().unwrap();
    // Longer than the server that was left is refused.
    let_pass(lease * 2);
    let guard = lock.try_lock_for(LONG).unwrap().expect("it is free");
    assert!(
        second.probe().exists("it"),
        "the server that was left has granted it"
    );
    guard.unlock().unwrap();
}

/// Nor does a connection that the application used during the switch, and for long after it: a
/// connection of our own shows where the address leads.
#[test]
fn connection_in_use_during_a_switch_does_not_lead_back() {
    let lease = Duration::from_secs(1);
    let (first, second) = (RedisServer::start(), RedisServer::start());
    let proxy = Proxy::plain(first.port());
    let client = through(&proxy);
    let pool = pool_of(client.clone(), 8, false);
    let connect = || {
        let pool = RedisPool::new(pool.clone()).with_waking(&client).unwrap();
        let builder = pool.builder().unwrap();
        let builder = builder.configure(|config| config.with_watchdog(lease));
        builder.connect().unwrap()
    };
    let locks = connect();
    let lock = locks.mutex("it").unwrap();
    lock.lock().unwrap().unlock().unwrap();
    let old = [
        pool.get().unwrap(),
        pool.get().unwrap(),
        pool.get().unwrap(),
    ];
    proxy.lead_to(second.port());
    let guard = lock.try_lock_for(LONG).unwrap().expect("it is free");
    guard.unlock().unwrap();
    let_pass(lease * 2);
    drop(old);
    // A client that has never met a server is not misled either.
    for lock in [lock, connect().mutex("it").unwrap()] {
        let guard = lock.try_lock_for(LONG).unwrap().expect("it is free");
        let is_there = second.probe().exists("it");
        assert!(is_there, "the server that was left has granted it");
        guard.unlock().unwrap();
    }
}

type Dirt = fn(&mut redis::Connection);

/// What an application may leave on a connection.
const DIRT: [(&str, Dirt); 7] = [
    ("an unread reply", |it| {
        let get = redis::cmd("GET").arg("data").get_packed_command();
        it.send_packed_command(&get).unwrap();
    }),
    ("another database", |it| {
        redis::cmd("SELECT").arg(1).exec(it).unwrap();
    }),
    ("a transaction", |it| redis::cmd("MULTI").exec(it).unwrap()),
    ("an unread error", |it| {
        it.send_packed_command(&redis::cmd("NONSENSE").get_packed_command())
            .unwrap();
    }),
    ("a subscription", |it| {
        let subscribe = redis::cmd("SUBSCRIBE").arg("news").get_packed_command();
        it.send_packed_command(&subscribe).unwrap();
    }),
    ("no replies", |it| {
        let off = redis::cmd("CLIENT")
            .arg("REPLY")
            .arg("OFF")
            .get_packed_command();
        it.send_packed_command(&off).unwrap();
    }),
    ("a watched key", |it| {
        redis::cmd("WATCH").arg("it").exec(it).unwrap();
    }),
];

/// A connection in any state neither locks elsewhere nor confuses a reply.
#[test]
fn state_that_the_application_leaves_confuses_no_lock() {
    let server = RedisServer::start();
    let theirs = distlock::connect(&server.url_as("")).unwrap();
    for (what, dirt) in DIRT {
        let pool = pool(&server, 2, false);
        let locks = RedisPool::new(pool.clone())
            .builder()
            .unwrap()
            .configure(|config| config.with_command_timeout(Duration::from_millis(500)))
            .connect()
            .unwrap();
        let lock = locks.mutex("it").unwrap();
        lock.lock().unwrap().unlock().unwrap();
        for _round in 0..3 {
            dirt(&mut pool.get().unwrap());
            let guard = lock.try_lock_for(LONG).unwrap().expect(what);
            assert!(
                theirs.mutex("it").unwrap().try_lock().unwrap().is_none(),
                "{what}"
            );
            dirt(&mut pool.get().unwrap());
            guard.unlock().unwrap();
            let free = theirs.mutex("it").unwrap().try_lock().unwrap();
            free.expect(what).unlock().unwrap();
        }
    }
}

/// After a restart, or an idle time that the server does not allow, all connections are dead.
#[test]
fn dead_connections_of_the_pool_are_skipped() {
    let server = RedisServer::start();
    let pool = pool(&server, 6, false);
    let locks = locks(&pool);
    let lock = locks.mutex("it").unwrap();
    for is_used in [false, true] {
        drop((0..5).map(|_| pool.get().unwrap()).collect::<Vec<_>>());
        for _ in 0..if is_used { 12 } else { 0 } {
            lock.lock().unwrap().unlock().unwrap();
        }
        // Longer than a connection is taken for alive.
        let_pass(Duration::from_millis(1_200));
        server
            .probe()
            .command(&["CLIENT", "KILL", "TYPE", "normal"]);
        let guard = lock.try_lock().unwrap().expect("it is free");
        guard.unlock().unwrap();
    }
}

/// A release uses the connection that is kept for renewals if it must.
#[test]
fn lock_is_released_over_an_exhausted_pool() {
    let server = RedisServer::start();
    for tests in [false, true] {
        let pool = pool(&server, 3, tests);
        let lock = locks(&pool).mutex("it").unwrap();
        let guard = lock.lock().unwrap();
        let taken = [pool.get().unwrap(), pool.get().unwrap()];
        let error = lock_of_another_thread(&pool);
        assert!(error.contains("max_size"), "{tests}: {error}");
        guard.unlock().unwrap();
        drop(taken);
        lock.lock().unwrap().unlock().unwrap();
    }
}

/// Returns the error of an attempt by another client over the exhausted pool.
fn lock_of_another_thread(pool: &r2d2::Pool<redis::Client>) -> String {
    let client = locks(pool);
    let outcome = client.mutex("other").unwrap().try_lock();
    outcome.expect_err("the pool is exhausted").to_string()
}

/// Threads that need connections of the application, too.
#[test]
fn busy_pool_of_two_keeps_a_lock() {
    keeps_a_lock_for(Duration::from_secs(15));
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn busy_pool_of_two_keeps_a_lock_long() {
    keeps_a_lock_for(Duration::from_secs(60));
}

fn keeps_a_lock_for(time: Duration) {
    let server = RedisServer::start();
    let pool = pool(&server, 2, false);
    let locks = locks(&pool);
    let options = LockOptions::new().watched(Duration::from_secs(6));
    let held = locks.mutex("it").unwrap().lock_with(&options).unwrap();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..32 {
            let (pool, locks, ended) = (&pool, &locks, &ended);
            scope.spawn(move || {
                let lock = locks.mutex(format!("of {number}")).unwrap();
                while !ended.load(Ordering::SeqCst) {
                    if number % 2 == 0 {
                        let mut connection = pool.get().unwrap();
                        redis::cmd("INCR")
                            .arg("data")
                            .exec(&mut *connection)
                            .unwrap();
                    } else {
                        // An exhausted pool is unavailable, never busy.
                        drop(lock.try_lock());
                    }
                }
            });
        }
        let_pass(time);
        let is_valid = held.is_valid() && held.loss().is_none();
        ended.store(true, Ordering::SeqCst);
        assert!(is_valid, "it was lost");
    });
    held.unlock().unwrap();
}

#[test]
fn pool_that_is_too_small_is_refused() {
    let server = RedisServer::start();
    let error = RedisPool::new(pool(&server, 1, false))
        .connect()
        .unwrap_err();
    assert!(
        error.is_configuration() && error.to_string().contains("max_size"),
        "{error}"
    );
}

#[test]
fn settings_of_the_crate_redis_are_taken_over() {
    let shown = |info: &str| {
        let config = config_of(info).unwrap();
        let host = config
            .hosts()
            .first()
            .map(|host| (host.name.clone(), host.port));
        (
            config.scheme().to_owned(),
            host,
            config.path().to_owned(),
            config.user().map(str::to_owned),
        )
    };
    let host = |name: &str, port| Some((name.to_owned(), Some(port)));
    assert_eq!(
        shown("redis://me:secret@h:7/2"),
        (
            "redis".to_owned(),
            host("h", 7),
            "2".to_owned(),
            Some("me".to_owned())
        )
    );
    assert_eq!(shown("valkey://h").1, host("h", 6379));
    for unix in [
        "unix:///run/a b.sock?db=3",
        "redis+unix:///run/a b.sock?db=3",
    ] {
        let (scheme, _, path, _) = shown(unix);
        assert_eq!(
            (scheme.as_str(), path.contains("sock")),
            ("redis+unix", true),
            "{path}"
        );
    }
    let insecure = redis::ConnectionAddr::TcpTls {
        host: "h".to_owned(),
        port: 7,
        insecure: true,
        tls_params: None,
    };
    let error = config_of(insecure.into_connection_info().unwrap()).unwrap_err();
    assert!(error.to_string().contains("tls_ca"), "{error}");
    assert!(config_of("nonsense").unwrap_err().is_configuration());
    let config = config_of("redis://:s3cret@h").unwrap();
    assert!(!format!("{config:?}").contains("s3cret"));
}

/// The end of a wait is not lengthened by a second request, though replies are late by then.
#[test]
fn wait_that_gives_up_lasts_one_request_longer_at_most() {
    const WAIT: Duration = Duration::from_millis(1_500);
    const LATE: Duration = Duration::from_millis(800);
    let server = RedisServer::start();
    let near = distlock::connect(&server.url_as("")).unwrap();
    for wakes in [false, true] {
        let distance = Distance::new(server.port(), Duration::ZERO);
        distance.set(Reach::Near);
        let far = redis::Client::open(format!("redis://127.0.0.1:{}", distance.port())).unwrap();
        let pool = RedisPool::new(pool_of(far.clone(), 4, false));
        let pool = match wakes {
            true => pool.with_waking(&far).unwrap(),
            false => pool,
        };
        let builder = pool.builder().unwrap();
        let client = builder.configure(|it| it.with_command_timeout(Duration::from_secs(1)));
        let client = client.connect().unwrap();
        let name = format!("late {wakes}");
        let _held = near.mutex(&name).unwrap().lock().unwrap();
        let watch = Stopwatch::start();
        thread::scope(|scope| {
            scope.spawn(|| {
                let_pass(WAIT - Duration::from_millis(300));
                distance.set(Reach::Far(LATE));
            });
            let _busy_or_late = client.mutex(&name).unwrap().try_lock_for(WAIT);
        });
        let took = watch.elapsed();
        let most = WAIT + LATE + Duration::from_millis(450);
        assert!(took < most, "with waking: {wakes}, {took:?}");
    }
}

/// The queue passes over a waiter that polls, so it would not be fair.
#[test]
fn fair_locks_need_waking() {
    let server = RedisServer::start();
    let client = locks(&pool(&server, 4, false));
    let refused = |error: distlock::Error| {
        assert!(error.is_unsupported(), "{error}");
        assert!(error.to_string().contains("with_waking"), "{error}");
    };
    refused(client.fair_mutex("it").unwrap().try_lock().unwrap_err());
    let lock = client.fair_rw_lock("it").unwrap();
    refused(lock.read().lock().unwrap_err());
    refused(lock.write().lock().unwrap_err());
    drop(
        client
            .fair_semaphore("slots", 2)
            .unwrap()
            .acquire()
            .unwrap(),
    );
    drop(client.mutex("it").unwrap().lock().unwrap());
}

/// After one failure the connections that may have failed, too, are checked before use.
#[test]
fn closed_connections_fail_one_request() {
    const THREADS: usize = 12;
    let server = RedisServer::start();
    for wakes in [false, true] {
        let application = application(&server);
        let pool = RedisPool::new(pool_of(application.clone(), 20, false));
        let pool = match wakes {
            true => pool.with_waking(&application).unwrap(),
            false => pool,
        };
        let client = pool.connect().unwrap();
        let barrier = std::sync::Barrier::new(THREADS);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (client, barrier) = (&client, &barrier);
                scope.spawn(move || {
                    for round in 0..20 {
                        barrier.wait();
                        let name = format!("{thread} {round}");
                        drop(client.mutex(name).unwrap().lock().unwrap());
                    }
                });
            }
        });
        server
            .probe()
            .command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        let attempts = (0..40).map(|n| client.mutex(format!("after {n}")).unwrap().try_lock());
        let failed = attempts.filter(Result::is_err).count();
        assert!(failed <= 1, "with waking: {wakes}, {failed} failed");
    }
}

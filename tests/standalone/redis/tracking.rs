//! Releases that no client publishes, and losses: the server reports the change of the key.

use distlock::{Client, Clock, DistLock, Event, LockOptions, LossCause, SystemClock, WarningKind};
use distlock_tests::distance::Distance;
use distlock_tests::probe::{Probe, Value};
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy, Sometimes, Turn};
use distlock_tests::redis::client;
use distlock_tests::reports::STRANGER;
use distlock_tests::resp::{Kind, Request};
use distlock_tests::time::{Stopwatch, eventually, let_pass, ms, within};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
/// Far longer than [`LONG`]: a waiter that is not told is too late.
const LEASE: &str = "600000";
/// After this time at the latest a waiter looks that is not told: 5 s, and what a busy machine
/// needs.
const FALLBACK: Duration = Duration::from_secs(15);

/// A string and a hash, each with a foreign holder that publishes nothing.
const TEXT: &[&str] = &["SET", "x", "c3RyYW5nZXI=", "PX", LEASE];
const ENDLESS: &[&str] = &["SET", "x", "c3RyYW5nZXI="];
const HASH: &[&str] = &["HSET", "x", STRANGER, "1"];

/// What a client was warned of.
type Warned = Arc<Mutex<Vec<String>>>;

fn warned_client(url: &str) -> (Client, Warned) {
    let warned = Warned::default();
    let messages = Arc::clone(&warned);
    let handler = move |event: &Event| {
        if let Event::Warning { kind: WarningKind::NotTracked, message, .. } = event {
            messages.lock().push(message.clone());
        }
    };
    let url = format!("{url}{}watchdog=10m", if url.contains('?') { "&" } else { "?" });
    let client = distlock::builder().url(&url).unwrap();
    (client.events(Arc::new(handler)).connect().unwrap(), warned)
}

/// How long a waiter takes to get the lock of a foreign client once `free` was called.
fn freed_after(
    client: &Client,
    probe: &mut Probe,
    hold: &[&[&str]],
    free: impl FnOnce(&mut Probe),
) -> Duration {
    freed_once(client, probe, hold, |probe| waits(client, probe), free)
}

/// The same with another condition on which it is freed.
fn freed_once(
    client: &Client,
    probe: &mut Probe,
    hold: &[&[&str]],
    await_waiter: impl FnOnce(&mut Probe),
    free: impl FnOnce(&mut Probe),
) -> Duration {
    for command in hold {
        assert!(!matches!(probe.command(command), Value::Error(_)), "{command:?}");
    }
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let lock = client.mutex("x").unwrap();
            let guard = within(LONG, || lock.lock().unwrap());
            let granted = SystemClock.now();
            guard.unlock().unwrap();
            granted
        });
        await_waiter(probe);
        let freed = SystemClock.now();
        free(probe);
        waiter.join().unwrap().since(freed)
    })
}

/// Waits until the client's waiter sleeps.
fn waits(client: &Client, probe: &mut Probe) {
    eventually("it is queued", LONG, || client.queue_length("x").unwrap() == 1);
    eventually("it listens", LONG, || {
        let channels = probe.command(&["PUBSUB", "CHANNELS", "*{x}*"]).texts();
        !channels.is_empty()
    });
    let attempts = |probe: &mut Probe| probe.command_calls("evalsha") + probe.command_calls("eval");
    let mut before = u64::MAX;
    eventually("it sleeps", LONG, || {
        let now = attempts(probe);
        let_pass(ms(30));
        std::mem::replace(&mut before, now) == now
    });
}

#[test]
fn silent_end_of_a_lock_wakes_its_waiter() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    for (options, holds) in [
        ("", [&[HASH][..], &[HASH, &["PEXPIRE", "x", LEASE]]]),
        ("format=token", [&[ENDLESS][..], &[TEXT]]),
    ] {
        let client = client(&server, options);
        for hold in holds {
            for end in [
                &["DEL", "x"][..],
                &["UNLINK", "x"],
                &["PEXPIRE", "x", "20"],
                &["RENAME", "x", "y"],
                &["FLUSHALL"],
                &["FLUSHDB", "ASYNC"],
                &["EVAL", "return redis.call('DEL', 'x')", "0"],
            ] {
                let took = freed_after(&client, &mut probe, hold, |probe| {
                    assert!(!matches!(probe.command(end), Value::Error(_)), "{end:?}");
                });
                assert!(took < LONG / 2, "{options} {end:?}: {took:?}");
                probe.command(&["DEL", "y"]);
            }
        }
    }
}

#[test]
fn renewal_of_the_holder_wakes_no_waiter() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let client = client(&server, "format=token");
    freed_after(&client, &mut probe, &[TEXT], |probe| {
        let attempts = probe.command_calls("evalsha");
        for turn in 1..=20 {
            probe.command(&["PEXPIRE", "x", LEASE]);
            // The key is read again after each change.
            eventually("it was read", LONG, || probe.command_calls("pttl") > turn);
            let_pass(ms(5));
        }
        assert_eq!(probe.command_calls("evalsha"), attempts, "the waiter did not ask");
        probe.command(&["DEL", "x"]);
    });
}

#[test]
fn published_release_leads_to_one_attempt() {
    let counted = |tracking: &str| {
        let server = RedisServer::start();
        let mut probe = server.probe();
        let [holder, waiter] = [(); 2].map(|()| client(&server, tracking));
        let attempts = |probe: &mut Probe| {
            let scripts = ["evalsha", "eval"].map(|command| probe.command_calls(command));
            scripts.into_iter().sum::<u64>()
        };
        let mut counts = Vec::new();
        for _ in 0..5 {
            let guard = holder.mutex("x").unwrap().lock().unwrap();
            thread::scope(|scope| {
                let granted = scope.spawn(|| {
                    let lock = waiter.mutex("x").unwrap();
                    let guard = within(LONG, || lock.lock().unwrap());
                    // A late attempt would still come.
                    let_pass(ms(100));
                    guard.unlock().unwrap();
                });
                waits(&waiter, &mut probe);
                let before = attempts(&mut probe);
                guard.unlock().unwrap();
                granted.join().unwrap();
                counts.push(attempts(&mut probe) - before);
            });
        }
        counts.sort_unstable();
        counts
    };
    let (with, without) = (counted("tracking=auto"), counted("tracking=off"));
    assert_eq!(with[2], without[2], "{with:?} {without:?}");
}

/// Rules of the access control list and commands that are missing: the waiter looks now and then,
/// and the client warns once.
#[test]
fn lock_is_found_free_within_seconds_where_tracking_is_refused() {
    const USER: [&str; 9] = ["ACL", "SETUSER", "me", "reset", "on", "nopass", "~*", "&*", "+@all"];
    for (rule, cause) in
        [("-client|tracking", "`+client|tracking +client|caching`"), ("renamed", "HELLO")]
    {
        let server = match rule {
            "renamed" => RedisServer::start_with(&["--rename-command", "HELLO", ""]),
            _ => RedisServer::start(),
        };
        let mut probe = server.probe();
        probe.command(&[&USER[..], &[if rule == "renamed" { "+@all" } else { rule }]].concat());
        let (client, warned) = warned_client(&server.url_as("me"));
        let took = freed_after(&client, &mut probe, &[HASH], |probe| {
            probe.command(&["DEL", "x"]);
        });
        println!("{rule}: noticed after {took:?}");
        assert!(took < FALLBACK, "{rule}: {took:?}");
        eventually("it warns", LONG, || !warned.lock().is_empty());
        let messages = warned.lock().clone();
        assert_eq!(messages.len(), 1, "{messages:?}");
        assert!(messages[0].contains(cause), "{messages:?}");
    }
}

#[test]
fn nothing_is_tracked_where_it_is_switched_off() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let client = client(&server, "tracking=off");
    let took = freed_after(&client, &mut probe, &[HASH], |probe| {
        assert_eq!(probe.command_calls("hello"), 0);
        assert_eq!(probe.info_field("clients", "tracking_clients").unwrap(), "0");
        probe.command(&["DEL", "x"]);
    });
    assert!(took > ms(1) && took < FALLBACK, "{took:?}");
    let url = format!("{}?tracking=maybe", server.url());
    let error = distlock::connect(&url).unwrap_err();
    assert!(error.is_configuration(), "{error}");
    assert!(error.to_string().contains("`tracking=maybe` is not one of"), "{error}");
}

/// Cuts each connection on which `HELLO` arrives, or swallows it.
struct AgainstHello(Fault, AtomicU64);

impl Plan for AgainstHello {
    fn fate(&self, request: &mut Request) -> Fault {
        if !request.is("HELLO") {
            return Fault::Pass;
        }
        self.1.fetch_add(1, Ordering::SeqCst);
        self.0
    }
}

#[test]
fn proxy_that_ends_connections_over_resp3_is_got_along_with() {
    for fault in [Fault::Cut, Fault::SwallowRequest] {
        let server = RedisServer::start();
        let mut probe = server.probe();
        let plan = Arc::new(AgainstHello(fault, AtomicU64::new(0)));
        let proxy = Proxy::new(server.port(), Arc::clone(&plan) as _);
        let url = format!("{}?command_timeout=500ms", proxy.url());
        let (client, warned) = warned_client(&url);
        let took = freed_after(&client, &mut probe, &[HASH], |probe| {
            probe.command(&["DEL", "x"]);
        });
        assert!(took < FALLBACK, "{fault:?}: {took:?}");
        assert!(plan.1.load(Ordering::SeqCst) >= 2, "one may be lost for another reason");
        eventually("it warns", LONG, || !warned.lock().is_empty());
        assert!(warned.lock()[0].contains("HELLO 3"), "{:?}", warned.lock());
    }
}

/// The connection that changes are reported on is cut over and over while foreign clients take and
/// free the lock in silence. Each release is noticed: by a report, or by the look after a
/// reconnection.
#[test]
fn cut_connections_lose_no_silent_release() {
    let server = RedisServer::start();
    let (mut probe, mut killer) = (server.probe(), server.probe());
    let client = client(&server, "format=token,poll=1h");
    let done = AtomicBool::new(false);
    let mut worst = Duration::ZERO;
    thread::scope(|scope| {
        let kills = scope.spawn(|| {
            let mut kills = 0;
            while !done.load(Ordering::SeqCst) {
                kills += killer.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).int();
                let_pass(ms(fastrand::u64(0..20)));
            }
            kills
        });
        for _ in 0..100 {
            let queued = |_: &mut Probe| {
                eventually("it is queued", LONG, || client.queue_length("x").unwrap() == 1);
                let_pass(ms(fastrand::u64(0..60)));
            };
            let took = freed_once(&client, &mut probe, &[TEXT], queued, |probe| {
                probe.command(&["DEL", "x"]);
            });
            worst = worst.max(took);
        }
        done.store(true, Ordering::SeqCst);
        let kills = kills.join().unwrap();
        println!("{kills} connections cut, longest wait {worst:?}");
        assert!(kills > 20, "{kills}");
    });
    assert!(worst < LONG / 2, "{worst:?}");
}

/// The server tracks 100 keys, and 300 are watched: reads of a key evict others, whose waiters are
/// told of a change. That is limited, said once, and no waiter is forgotten.
#[test]
fn full_tracking_table_delays_no_waiter_for_long() {
    const LOCKS: usize = 300;
    let server = RedisServer::start_with(&["--tracking-table-max-keys", "100"]);
    let mut probe = server.probe();
    let (client, warned) = warned_client(&format!("{}?format=token", server.url()));
    let names: Vec<_> = (0..LOCKS).map(|number| format!("n{number}")).collect();
    for name in &names {
        probe.command(&["SET", name, "c3RyYW5nZXI=", "PX", LEASE]);
    }
    thread::scope(|scope| {
        let waiters: Vec<_> = names
            .iter()
            .map(|name| {
                let client = &client;
                scope.spawn(move || {
                    let lock = client.mutex(name).unwrap();
                    within(LONG, || lock.lock().unwrap().unlock().unwrap());
                })
            })
            .collect();
        eventually("all listen", LONG, || {
            probe.command(&["PUBSUB", "CHANNELS", "*"]).texts().len() == LOCKS
        });
        eventually("it warns", LONG, || !warned.lock().is_empty());
        probe.reset_stats();
        let_pass(ms(3_000));
        let reads = probe.command_calls("pttl");
        println!("{reads} reads in 3 s");
        assert!(reads < 20_000, "{reads}");
        assert!(warned.lock()[0].contains("`tracking-table-max-keys`"), "{:?}", warned.lock());
        for name in &names {
            probe.command(&["DEL", name]);
        }
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
    assert_eq!(warned.lock().len(), 1, "{:?}", warned.lock());
}

/// Waits until the changes of so many keys are reported.
fn tracked(probe: &mut Probe, keys: u64) {
    eventually("they are tracked", LONG, || probe.stat("tracking_total_keys") >= keys);
}

/// The leases are ten minutes: without a report the next renewal comes in three.
#[test]
fn loss_is_reported_at_once() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let other = client(&server, "");
    for format in ["redisson", "token"] {
        let client = client(&server, &format!("format={format}&watchdog=10m"));
        let take_over = match format {
            "redisson" => ["EVAL", TAKE_HASH, "1", "x", STRANGER],
            _ => ["EVAL", "return redis.call('SET', KEYS[1], ARGV[1])", "1", "x", STRANGER],
        };
        for end in [&["DEL", "x"][..], &["FLUSHALL"], &take_over, &["force_unlock"]] {
            let guard = client.mutex("x").unwrap().lock().unwrap();
            let losses = guard.losses();
            tracked(&mut probe, 1);
            let began = Stopwatch::start();
            match end {
                ["force_unlock"] if format == "redisson" => {
                    assert!(other.mutex("x").unwrap().force_unlock().unwrap());
                }
                ["force_unlock"] => assert!(client.mutex("x").unwrap().force_unlock().unwrap()),
                end => assert!(!matches!(probe.command(end), Value::Error(_)), "{end:?}"),
            }
            let loss = losses.recv_timeout(LONG).expect("it is told of the loss");
            println!("{format} {:?}: told after {:?}", end[0], began.elapsed());
            assert_eq!(loss.cause(), LossCause::Gone, "{format} {end:?}");
            assert!(!guard.is_valid());
            drop(guard);
            probe.command(&["FLUSHALL"]);
        }
    }
}

/// Deletes the lock when it was renewed, before it is read.
struct DeletesBeforeRead(Mutex<Probe>, AtomicBool);

impl Plan for DeletesBeforeRead {
    fn fate(&self, request: &mut Request) -> Fault {
        if request.is("EXISTS") && !self.1.swap(true, Ordering::SeqCst) {
            let mut probe = self.0.lock();
            eventually("it was renewed", LONG, || probe.command_calls("pexpire") > 0);
            assert_eq!(probe.command(&["DEL", "x"]).int(), 1);
        }
        Fault::Pass
    }
}

#[test]
fn loss_between_renewal_and_read_is_known_at_once() {
    let server = RedisServer::start();
    let plan = DeletesBeforeRead(Mutex::new(server.probe()), AtomicBool::new(false));
    let proxy = Proxy::new(server.port(), Arc::new(plan));
    let client = distlock::connect(&format!("{}?watchdog=10m", proxy.url())).unwrap();
    let guard = client.mutex("x").unwrap().lock().unwrap();
    server.probe().reset_stats();
    let loss = guard.losses().recv_timeout(LONG).expect("it is told of the loss");
    assert_eq!(loss.cause(), LossCause::Gone);
}

/// The waiter is woken all the same.
#[test]
fn loss_is_known_at_the_next_renewal_where_the_report_is_not_allowed() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let rules = ["reset", "on", "nopass", "~*", "&*", "+@all", "-client|caching"];
    probe.command(&[&["ACL", "SETUSER", "me"][..], &rules].concat());
    let (client, warned) = warned_client(&server.url_as("me"));
    let lock = client.mutex("x").unwrap();
    let guard = lock.lock_with(&LockOptions::new().watched(ms(6_000))).unwrap();
    eventually("it warns", LONG, || !warned.lock().is_empty());
    assert!(warned.lock()[0].contains("`+client|tracking +client|caching`"), "{:?}", warned.lock());
    assert_eq!(probe.stat("tracking_total_keys"), 0);
    probe.command(&["DEL", "x"]);
    let loss = guard.losses().recv_timeout(LONG).expect("it is told of the loss");
    assert_eq!(loss.cause(), LossCause::Gone);
    drop(guard);
    let took = freed_after(&client, &mut probe, &[HASH], |probe| {
        probe.command(&["DEL", "x"]);
    });
    assert!(took < LONG / 2, "{took:?}");
}

const TAKE_HASH: &str =
    "redis.call('DEL', KEYS[1]) return redis.call('HSET', KEYS[1], ARGV[1], '1')";

#[test]
fn shortened_lease_is_restored_at_once() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let client = client(&server, "watchdog=10m");
    let guard = client.mutex("x").unwrap().lock().unwrap();
    let losses = guard.losses();
    tracked(&mut probe, 1);
    for turn in 0..20 {
        let renewals = probe.command_calls("hexists");
        probe.command(&["PEXPIRE", "x", "30000"]);
        eventually("it was renewed", LONG, || probe.command_calls("hexists") > renewals);
        assert!(probe.pttl("x").is_some_and(|left| left > LONG));
        if turn % 5 == 0 {
            guard.extend(Duration::from_secs(700)).unwrap();
        }
    }
    let renewals = probe.command_calls("hexists");
    let_pass(ms(300));
    assert_eq!(probe.command_calls("hexists"), renewals, "our own renewals are not reported");
    assert!(guard.is_valid() && losses.try_recv().is_err());
    guard.unlock().unwrap();
}

/// A lock that is held for less than a second costs what it did.
#[test]
fn short_hold_is_not_tracked() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let client = client(&server, "");
    let lock = client.mutex("x").unwrap();
    lock.lock().unwrap().unlock().unwrap();
    probe.reset_stats();
    lock.lock().unwrap().unlock().unwrap();
    assert_eq!(probe.command_calls("evalsha"), 2);
    assert_eq!(probe.command_calls("client|tracking"), 0);
    assert_eq!(probe.stat("tracking_total_keys"), 0);
}

/// Whatever connections are cut, held locks stay held, and a loss is reported once the connections
/// stand again.
#[test]
fn cut_connections_hide_no_loss() {
    const LOCKS: usize = 30;
    let server = RedisServer::start();
    let mut probe = server.probe();
    let client = client(&server, "watchdog=10m");
    let hold = |name: usize| client.mutex(name.to_string()).unwrap().lock().unwrap();
    let guards: Vec<_> = (0..LOCKS).map(hold).collect();
    tracked(&mut probe, LOCKS as u64);
    let mut worst = Duration::ZERO;
    for (turn, guard) in guards.iter().enumerate() {
        for _ in 0..5 {
            let kind = if fastrand::bool() { "pubsub" } else { "normal" };
            probe.command(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
            let_pass(ms(fastrand::u64(0..20)));
        }
        let losses = guard.losses();
        let began = Stopwatch::start();
        assert_eq!(probe.command(&["DEL", &turn.to_string()]).int(), 1);
        let loss = losses.recv_timeout(LONG).expect("it is told of the loss");
        assert_eq!(loss.cause(), LossCause::Gone);
        worst = worst.max(began.elapsed());
        assert!(guards[turn + 1..].iter().all(|later| later.is_valid()), "no false loss");
    }
    println!("longest until a loss was told: {worst:?}");
}

/// What a connection has read is tracked for as long as it stands: without it a loss would stay
/// unknown until the next regular renewal.
#[test]
fn cut_renewal_connection_hides_no_loss() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let client = client(&server, "watchdog=10m");
    for _ in 0..3 {
        let guard = client.mutex("x").unwrap().lock().unwrap();
        let losses = guard.losses();
        tracked(&mut probe, 1);
        let connections = probe.clients();
        let renews =
            connections.iter().find(|it| it.contains(" flags=t ") && !it.contains("resp=3"));
        let renews = renews.expect("it has its changes reported");
        let id = renews.split(' ').next().and_then(|id| id.strip_prefix("id=")).unwrap();
        probe.command(&["CLIENT", "KILL", "ID", id]);
        assert_eq!(probe.command(&["DEL", "x"]).int(), 1);
        let loss = losses.recv_timeout(LONG).expect("it is told of the loss");
        assert_eq!(loss.cause(), LossCause::Gone);
    }
}

/// The renewal of one lock hangs, and that of another goes on another connection.
#[test]
fn loss_of_a_lock_renewed_beside_another_is_known_at_once() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let plan = Sometimes::new(Some(Kind::Renew), Turn::Only(1), Fault::DelayReply(ms(2_500)));
    let proxy = Proxy::new(server.port(), Arc::new(plan));
    let client = distlock::connect(&format!("{}?watchdog=10m", proxy.url())).unwrap();
    let first = client.mutex("a").unwrap().lock().unwrap();
    let_pass(ms(300));
    let second = client.mutex("b").unwrap().lock().unwrap();
    eventually("both were renewed", LONG, || proxy.count(Kind::Renew, Fault::Pass) > 0);
    tracked(&mut probe, 2);
    let losses = second.losses();
    probe.command(&["DEL", "b"]);
    let loss = losses.recv_timeout(LONG).expect("it is told of the loss");
    assert_eq!(loss.cause(), LossCause::Gone);
    assert!(first.is_valid());
}

/// The server tracks 100 keys, and 300 are held: the renewal of one leads to the report of another.
#[test]
fn full_tracking_table_floods_no_server_with_renewals() {
    const LOCKS: usize = 300;
    let server = RedisServer::start_with(&["--tracking-table-max-keys", "100"]);
    let mut probe = server.probe();
    let client = client(&server, "watchdog=10m");
    let hold = |name: usize| client.mutex(name.to_string()).unwrap().lock().unwrap();
    let guards: Vec<_> = (0..LOCKS).map(hold).collect();
    tracked(&mut probe, 90);
    probe.reset_stats();
    let_pass(ms(2_000));
    let renewals = probe.command_calls("hexists");
    println!("{renewals} renewals in 2 s");
    assert!(renewals < 20_000, "{renewals}");
    assert!(guards.iter().all(|guard| guard.is_valid()));
}

/// A `FLUSHALL` is reported as a change of all keys, each time: every loss is told, every waiter
/// gets its lock, and the server is not flooded with renewals and attempts.
#[test]
fn storm_of_flushes_hides_no_loss_and_floods_no_server() {
    const LOCKS: usize = 50;
    const FLUSHES: u64 = 200;
    let server = RedisServer::start();
    let mut probe = server.probe();
    let client = client(&server, "watchdog=10m");
    for round in 0..5 {
        let hold = |name: usize| client.mutex(format!("{round}:{name}")).unwrap().lock().unwrap();
        let guards: Vec<_> = (0..LOCKS).map(hold).collect();
        tracked(&mut probe, LOCKS as u64);
        probe.reset_stats();
        probe.command(HASH);
        thread::scope(|scope| {
            // What it gets a later flush may take from it.
            let lock = client.mutex("x").unwrap();
            let waiter = scope.spawn(move || within(LONG, || drop(lock.lock().unwrap())));
            waits(&client, &mut probe);
            for _ in 0..FLUSHES {
                probe.command(&["FLUSHALL"]);
            }
            waiter.join().unwrap();
        });
        for guard in &guards {
            let loss = guard.losses().recv_timeout(LONG).expect("it is told of the loss");
            assert_eq!(loss.cause(), LossCause::Gone);
        }
        let (renewals, attempts) = (probe.command_calls("hexists"), probe.command_calls("evalsha"));
        println!("{FLUSHES} flushes: {renewals} keys renewed, {attempts} scripts");
        assert!(renewals < LOCKS as u64 * 10 && attempts < 200, "{renewals} {attempts}");
        drop(guards);
    }
}

/// A foreign client holds the lock for two seconds and publishes nothing.
#[test]
fn wait_costs_fewer_requests_than_polling() {
    let requests = |options: &str| {
        let server = RedisServer::start();
        let mut probe = server.probe();
        let client = client(&server, options);
        // With what the scripts call.
        let count = |probe: &mut Probe| {
            let calls = ["evalsha", "eval", "pttl", "subscribe", "client|tracking", "hello"];
            calls.into_iter().map(|command| probe.command_calls(command)).sum::<u64>()
        };
        let held = |probe: &mut Probe| {
            eventually("it is queued", LONG, || client.queue_length("x").unwrap() == 1);
            let_pass(ms(2_000));
            println!("{options}: {} requests in 2 s", count(probe));
        };
        freed_once(&client, &mut probe, &[TEXT], held, |probe| {
            probe.command(&["DEL", "x"]);
        });
        count(&mut probe)
    };
    let (tracked, polled) = (requests("format=token"), requests("format=token&tracking=off"));
    println!("{tracked} requests, with polls {polled}");
    assert!(tracked * 2 < polled, "{tracked} {polled}");
}

/// The median, and the value that one of a hundred exceeds.
fn quantiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
    format!("p50 {:.1?}, p99 {:.1?}", at(50), at(99))
}

/// The figures of `docs/PERFORMANCE.md`. The bounds are far above them: a waiter and a holder that
/// are not told learn of it minutes later.
#[test]
fn reports_arrive_within_milliseconds() {
    const ROUNDS: usize = 20;
    let server = RedisServer::start();
    let mut probe = server.probe();
    for (options, hold) in [("", [HASH, &["PEXPIRE", "x", LEASE]]), ("format=token", [TEXT; 2])] {
        let client = client(&server, options);
        for (what, end, after) in [
            ("DEL", &["DEL", "x"][..], Duration::ZERO),
            ("expiry", &["PEXPIRE", "x", "50"], ms(50)),
            ("FLUSHALL", &["FLUSHALL"], Duration::ZERO),
        ] {
            let took = |_| {
                let took = freed_after(&client, &mut probe, &hold, |probe| {
                    probe.command(end);
                });
                took.saturating_sub(after)
            };
            let times: Vec<_> = (0..ROUNDS).map(took).collect();
            assert!(times.iter().all(|took| *took < LONG / 2));
            println!("{options} waiter, {what}: {}", quantiles(times));
        }
        // As after the death of its holder: the waiter knows when it ends.
        let lock = client.mutex("x").unwrap();
        let took = |_| {
            for command in [hold[0], &["PEXPIRE", "x", "300"]] {
                assert!(!matches!(probe.command(command), Value::Error(_)), "{command:?}");
            }
            let ended = SystemClock.now() + ms(300);
            let guard = within(LONG, || lock.lock().unwrap());
            let granted = SystemClock.now();
            guard.unlock().unwrap();
            granted.since(ended)
        };
        println!(
            "{options} waiter, end of the lease: {}",
            quantiles((0..ROUNDS).map(took).collect())
        );
    }
    let holder = client(&server, "watchdog=10m");
    let other = client(&server, "");
    for what in ["DEL", "FLUSHALL", "force_unlock", "overwritten"] {
        let guards: Vec<_> = (0..ROUNDS)
            .map(|number| holder.mutex(format!("{what}:{number}")).unwrap().lock().unwrap())
            .collect();
        tracked(&mut probe, ROUNDS as u64);
        let mut times = Vec::new();
        for guard in guards {
            let (name, losses) = (guard.name().as_str().to_owned(), guard.losses());
            let began = Stopwatch::start();
            match what {
                "DEL" => drop(probe.command(&["DEL", &name])),
                "FLUSHALL" => drop(probe.command(&["FLUSHALL"])),
                "overwritten" => drop(probe.command(&["SET", &name, "theirs"])),
                _ => drop(other.mutex(&name).unwrap().force_unlock().unwrap()),
            }
            losses.recv_timeout(LONG).expect("it is told of the loss");
            times.push(began.elapsed());
            drop(guard);
        }
        println!("holder, {what}: {}", quantiles(times));
        probe.command(&["FLUSHALL"]);
    }
}

/// Holds back the answer to the first request for reports.
struct HangsOnce(AtomicBool);

impl Plan for HangsOnce {
    fn fate(&self, request: &mut Request) -> Fault {
        let is_asked = request.is("CLIENT") && request.has("REDIRECT");
        if is_asked && !self.0.swap(true, Ordering::SeqCst) {
            Fault::DelayReply(ms(8_000))
        } else {
            Fault::Pass
        }
    }
}

/// The connection that renews one lock hangs before the renewal, and another lock is taken then.
#[test]
fn hanging_request_for_reports_delays_no_other_renewal() {
    let server = RedisServer::start();
    let plan = Arc::new(HangsOnce(AtomicBool::new(false)));
    let proxy = Proxy::new(server.port(), Arc::clone(&plan) as _);
    let url = format!("{}?command_timeout=10s&watchdog=30s", proxy.url());
    let client = distlock::connect(&url).unwrap();
    let first = client.mutex("a").unwrap().lock().unwrap();
    eventually("it hangs", LONG, || plan.0.load(Ordering::SeqCst));
    let lease = LockOptions::new().watched(ms(4_000));
    let second = client.mutex("b").unwrap().lock_with(&lease).unwrap();
    assert!(second.losses().recv_timeout(ms(7_000)).is_err(), "it is renewed");
    second.unlock().unwrap();
    first.unlock().unwrap();
}

/// Batches of renewals are under way at the same time, on several connections: none is sent again
/// for that.
#[test]
fn locks_far_from_the_server_are_renewed_once_in_each_third_of_the_lease() {
    const LOCKS: u64 = 300;
    let server = RedisServer::start();
    let mut probe = server.probe();
    let far = Distance::new(server.port(), ms(30));
    let client = distlock::connect(&format!("{}?watchdog=3s", far.url())).unwrap();
    let hold = |name: u64| client.owned_mutex(name.to_string()).unwrap().lock().unwrap();
    let guards: Vec<_> = (0..LOCKS).map(hold).collect();
    tracked(&mut probe, LOCKS);
    probe.reset_stats();
    let watch = Stopwatch::start();
    let_pass(ms(6_000));
    let renewals = probe.command_calls("hexists");
    // Earlier by up to a twelfth of the lease, so that not all are due at once; and one round more.
    let due = LOCKS * (watch.elapsed().as_millis() as u64 / 750 + 1);
    println!("{renewals} renewals, {due} at most");
    assert!(renewals <= due, "{renewals} {due}");
    assert!(guards.iter().all(|guard| guard.is_valid()));
}

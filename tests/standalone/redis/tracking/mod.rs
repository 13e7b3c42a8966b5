//! Releases that no client publishes: the server reports the change of the key.

mod held;
mod refused;

use distlock::admin::WarningKind;
use distlock::time::{Clock, SystemClock};
use distlock::{Client, Event, LockOptions, LossCause};
use distlock_tests::distance::Distance;
use distlock_tests::probe::{Probe, Value};
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy, Sometimes, Turn};
use distlock_tests::queue::{first_fields, key};
use distlock_tests::redis::client;
use distlock_tests::reports::{STRANGER, little_is_asked_of_all_kinds};
use distlock_tests::resp::{Kind, Request};
use distlock_tests::time::{Stopwatch, eventually, let_pass, ms, within};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Far longer than [`LONG`]: a waiter that is not notified is too late.
const LEASE: &str = "600000";

/// The longest time until a waiter without reports attempts again: 5 s, and what a busy machine
/// needs.
const FALLBACK: Duration = Duration::from_secs(15);

/// A lock as a string, of a foreign holder that publishes nothing. `HASH` is one like Redisson's.
const TEXT: &[&str] = &["SET", "x", "c3RyYW5nZXI=", "PX", LEASE];

const ENDLESS: &[&str] = &["SET", "x", "c3RyYW5nZXI="];

const HASH: &[&str] = &["HSET", "x", STRANGER, "1"];

/// The warnings of a client that changes are not reported.
type Warned = Arc<Mutex<Vec<String>>>;

fn warned_client(url: &str) -> (Client, Warned) {
    let warned = Warned::default();
    let messages = Arc::clone(&warned);
    let handler = move |event: &Event| {
        if let Event::Warning {
            kind: WarningKind::NotTracked,
            message,
            ..
        } = event
        {
            messages.lock().push(message.clone());
        }
    };
    let url = format!(
        "{url}{}watchdog=10m",
        if url.contains('?') { "&" } else { "?" }
    );
    let client = distlock::builder().url(&url).unwrap();
    (client.events(Arc::new(handler)).connect().unwrap(), warned)
}

/// Takes the lock as a foreign client, calls `free` once a waiter sleeps, and returns how long the
/// waiter takes after that.
fn freed_after(
    client: &Client,
    probe: &mut Probe,
    hold: &[&[&str]],
    free: impl FnOnce(&mut Probe),
) -> Duration {
    freed_once(client, probe, hold, |probe| waits(client, probe), free)
}

/// Does what `freed_after` does, but calls `free` when `await_waiter` returns.
fn freed_once(
    client: &Client,
    probe: &mut Probe,
    hold: &[&[&str]],
    await_waiter: impl FnOnce(&mut Probe),
    free: impl FnOnce(&mut Probe),
) -> Duration {
    for command in hold {
        assert!(
            !matches!(probe.command(command), Value::Error(_)),
            "{command:?}"
        );
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
    eventually("it is queued", LONG, || {
        client.queue_length("x").unwrap() == 1
    });
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
        // With pauses, like renewals: quick changes one after the other look like turns of other
        // clients.
        for turn in 1..=5 {
            probe.command(&["PEXPIRE", "x", LEASE]);
            // The key is read again after each change.
            eventually("it was read", LONG, || probe.command_calls("pttl") > turn);
            let_pass(ms(100));
        }
        assert_eq!(
            probe.command_calls("evalsha"),
            attempts,
            "the waiter did not ask"
        );
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
                    // Time for another attempt, which must not come.
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

/// A joined release frees the lock before it publishes, so the report of the change arrives before
/// the message. The message must spare the read in this order as well.
#[test]
fn message_behind_the_report_spares_the_read() {
    const FREE: &str = "redis.call('DEL', 'x') ";
    let server = RedisServer::start();
    let mut probe = server.probe();
    let client = client(&server, "");
    for tells_first in [true, false] {
        let mut counts = Vec::new();
        for _ in 0..5 {
            let mut before = 0;
            freed_after(&client, &mut probe, &[HASH], |probe| {
                let owner = &first_fields(probe, "x")[1];
                let inbox = probe.command(&["PUBSUB", "CHANNELS", &format!("{}:*", key("x"))]);
                let inbox = &inbox.texts()[0];
                let tell = format!("redis.call('PUBLISH', '{inbox}', '{owner}') ");
                let mut release = [tell.as_str(), FREE];
                if !tells_first {
                    release.reverse();
                }
                before = probe.command_calls("pttl");
                probe.command(&["EVAL", &release.concat(), "0"]);
            });
            // Time for another read, which must not come.
            let_pass(ms(100));
            counts.push(probe.command_calls("pttl") - before);
        }
        counts.sort_unstable();
        assert_eq!(
            counts[2], 1,
            "only the attempt's own: {tells_first}: {counts:?}"
        );
    }
}

/// The connection for reports is cut over and over while foreign clients take and free the lock
/// without a message. Each release is noticed, by a report or by the read after a reconnection.
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
                eventually("it is queued", LONG, || {
                    client.queue_length("x").unwrap() == 1
                });
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

/// The server tracks 100 keys, and 300 are watched: each read evicts another key, which is reported
/// as changed. The client limits these reads and warns once, and every waiter is woken.
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
        assert!(
            warned.lock()[0].contains("`tracking-table-max-keys`"),
            "{:?}",
            warned.lock()
        );
        for name in &names {
            probe.command(&["DEL", name]);
        }
        waiters
            .into_iter()
            .for_each(|waiter| waiter.join().unwrap());
    });
    assert_eq!(warned.lock().len(), 1, "{:?}", warned.lock());
}

/// A lock that is held for less than a second costs two scripts, and no request for reports.
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

/// A foreign client holds the lock for two seconds and publishes nothing.
#[test]
fn wait_costs_fewer_requests_than_polling() {
    let requests = |options: &str| {
        let server = RedisServer::start();
        let mut probe = server.probe();
        let client = client(&server, options);
        // Including the calls inside scripts.
        let count = |probe: &mut Probe| {
            let calls = [
                "evalsha",
                "eval",
                "pttl",
                "subscribe",
                "client|tracking",
                "hello",
            ];
            calls
                .into_iter()
                .map(|command| probe.command_calls(command))
                .sum::<u64>()
        };
        let held = |probe: &mut Probe| {
            eventually("it is queued", LONG, || {
                client.queue_length("x").unwrap() == 1
            });
            let_pass(ms(2_000));
            println!("{options}: {} requests in 2 s", count(probe));
        };
        freed_once(&client, &mut probe, &[TEXT], held, |probe| {
            probe.command(&["DEL", "x"]);
        });
        count(&mut probe)
    };
    // `joined=off`, because the scripts with which a connection begins would be counted otherwise.
    let (tracked, polled) = (
        requests("format=token&joined=off"),
        requests("format=token&joined=off&tracking=off"),
    );
    println!("{tracked} requests, with polls {polled}");
    assert!(tracked * 2 < polled, "{tracked} {polled}");
}

/// Cuts the connection at each `SUBSCRIBE` once the flag is set. Earlier requests on the connection
/// are answered.
#[derive(Default)]
struct CutSubscriptions(AtomicBool);

impl Plan for CutSubscriptions {
    fn fate(&self, request: &mut Request) -> Fault {
        match self.0.load(Ordering::SeqCst) && request.is("SUBSCRIBE") {
            true => Fault::Cut,
            false => Fault::Pass,
        }
    }
}

/// The client does not dial such a server in a tight loop, and its waiter attempts without being
/// notified.
#[test]
fn waiter_looks_for_itself_where_each_subscription_is_cut() {
    let server = RedisServer::start();
    let plan = Arc::<CutSubscriptions>::default();
    let proxy = Proxy::new(server.port(), Arc::clone(&plan) as _);
    let client = distlock::connect(&format!("{}?watchdog=10m", proxy.url())).unwrap();
    let mut probe = server.probe();
    let hold = [
        &["HSET", "x", STRANGER, "1"][..],
        &["PEXPIRE", "x", "600000"],
    ];
    let waited = freed_after(&client, &mut probe, &hold, |probe| {
        plan.0.store(true, Ordering::SeqCst);
        let before = probe.stat("total_connections_received");
        probe.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        let_pass(Duration::from_secs(5));
        let dialled = probe.stat("total_connections_received") - before;
        assert!(dialled <= 40, "{dialled} connections in 5 s");
        assert_eq!(probe.command(&["DEL", "x"]).int(), 1);
    });
    let waited = waited.saturating_sub(Duration::from_secs(5));
    assert!(waited < Duration::from_secs(15), "{waited:?}");
}

//! Losses of held locks that the server reports, from Redis 7.0.5 on.

use super::*;

/// Delays the reply to the first request for reports of changes.
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

/// Waits until the server tracks so many keys.
fn tracked(probe: &mut Probe, keys: u64) {
    eventually("they are tracked", LONG, || {
        probe.stat("tracking_total_keys") >= keys
    });
}

/// The leases are ten minutes: without a report, only the next renewal would notice the loss, after
/// three minutes.
#[test]
fn loss_is_reported_at_once() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let other = client(&server, "");
    for format in ["redisson", "token"] {
        let client = client(&server, &format!("format={format}&watchdog=10m"));
        let take_over = match format {
            "redisson" => ["EVAL", TAKE_HASH, "1", "x", STRANGER],
            _ => [
                "EVAL",
                "return redis.call('SET', KEYS[1], ARGV[1])",
                "1",
                "x",
                STRANGER,
            ],
        };
        for end in [
            &["DEL", "x"][..],
            &["FLUSHALL"],
            &take_over,
            &["force_unlock"],
        ] {
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

/// Deletes the lock after its renewal, and before the read that makes the server track the key.
struct DeletesBeforeRead(Mutex<Probe>, AtomicBool);

impl Plan for DeletesBeforeRead {
    fn fate(&self, request: &mut Request) -> Fault {
        if request.is("EXISTS") && !self.1.swap(true, Ordering::SeqCst) {
            let mut probe = self.0.lock();
            eventually("it was renewed", LONG, || {
                probe.command_calls("pexpire") > 0
            });
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
    let loss = guard
        .losses()
        .recv_timeout(LONG)
        .expect("it is told of the loss");
    assert_eq!(loss.cause(), LossCause::Gone);
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
        eventually("it was renewed", LONG, || {
            probe.command_calls("hexists") > renewals
        });
        assert!(probe.pttl("x").is_some_and(|left| left > LONG));
        if turn % 5 == 0 {
            guard.extend(Duration::from_secs(700)).unwrap();
        }
    }
    let renewals = probe.command_calls("hexists");
    let_pass(ms(300));
    assert_eq!(
        probe.command_calls("hexists"),
        renewals,
        "our own renewals are not reported"
    );
    assert!(guard.is_valid() && losses.try_recv().is_err());
    guard.unlock().unwrap();
}

/// Cut connections cause no false loss, and hide no real one: a loss is reported once the client
/// has connected again.
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
        assert!(
            guards[turn + 1..].iter().all(|later| later.is_valid()),
            "no false loss"
        );
    }
    println!("longest until a loss was told: {worst:?}");
}

/// The server tracks what a connection has read only until that connection is closed. If the client
/// did not read the lock again, a loss would stay unknown until the next regular renewal.
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
        let renews = connections
            .iter()
            .find(|it| it.contains(" flags=t ") && !it.contains("resp=3"));
        let renews = renews.expect("it has its changes reported");
        let id = renews
            .split(' ')
            .next()
            .and_then(|id| id.strip_prefix("id="))
            .unwrap();
        probe.command(&["CLIENT", "KILL", "ID", id]);
        assert_eq!(probe.command(&["DEL", "x"]).int(), 1);
        let loss = losses.recv_timeout(LONG).expect("it is told of the loss");
        assert_eq!(loss.cause(), LossCause::Gone);
    }
}

/// The renewal of one lock hangs, so that of another lock uses another connection: its loss is
/// reported all the same.
#[test]
fn loss_of_a_lock_renewed_beside_another_is_known_at_once() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let plan = Sometimes::new(
        Some(Kind::Renew),
        Turn::Only(1),
        Fault::DelayReply(ms(2_500)),
    );
    let proxy = Proxy::new(server.port(), Arc::new(plan));
    let client = distlock::connect(&format!("{}?watchdog=10m", proxy.url())).unwrap();
    let first = client.mutex("a").unwrap().lock().unwrap();
    let_pass(ms(300));
    let second = client.mutex("b").unwrap().lock().unwrap();
    eventually("both were renewed", LONG, || {
        proxy.count(Kind::Renew, Fault::Pass) > 0
    });
    tracked(&mut probe, 2);
    let losses = second.losses();
    probe.command(&["DEL", "b"]);
    let loss = losses.recv_timeout(LONG).expect("it is told of the loss");
    assert_eq!(loss.cause(), LossCause::Gone);
    assert!(first.is_valid());
}

/// The server tracks 100 keys, and 300 locks are held: the renewal of one evicts another, whose
/// report leads to its renewal. The client must limit this loop.
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

/// Each `FLUSHALL` is reported as a change of all keys. Every loss is reported and every waiter
/// gets its lock, but not each report may lead to renewals and attempts.
#[test]
fn storm_of_flushes_hides_no_loss_and_floods_no_server() {
    const LOCKS: usize = 50;
    const FLUSHES: u64 = 200;
    let server = RedisServer::start();
    let mut probe = server.probe();
    let client = client(&server, "watchdog=10m");
    for round in 0..5 {
        let hold = |name: usize| {
            client
                .mutex(format!("{round}:{name}"))
                .unwrap()
                .lock()
                .unwrap()
        };
        let guards: Vec<_> = (0..LOCKS).map(hold).collect();
        tracked(&mut probe, LOCKS as u64);
        probe.reset_stats();
        probe.command(HASH);
        thread::scope(|scope| {
            // A later flush may take the lock from the waiter again.
            let lock = client.mutex("x").unwrap();
            let waiter = scope.spawn(move || within(LONG, || drop(lock.lock().unwrap())));
            waits(&client, &mut probe);
            for _ in 0..FLUSHES {
                probe.command(&["FLUSHALL"]);
            }
            waiter.join().unwrap();
        });
        for guard in &guards {
            let loss = guard
                .losses()
                .recv_timeout(LONG)
                .expect("it is told of the loss");
            assert_eq!(loss.cause(), LossCause::Gone);
        }
        let (renewals, attempts) = (
            probe.command_calls("hexists"),
            probe.command_calls("evalsha"),
        );
        println!("{FLUSHES} flushes: {renewals} keys renewed, {attempts} scripts");
        // Each key is renewed once, and again if a flush comes during the renewal. That is often on
        // a busy machine, but not with each flush.
        let few = LOCKS as u64 * FLUSHES / 5;
        assert!(renewals < few && attempts < 200, "{renewals} {attempts}");
        drop(guards);
    }
}

/// The median, and the value that one of a hundred exceeds.
fn quantiles(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
    format!("p50 {:.1?}, p99 {:.1?}", at(50), at(99))
}

/// Measures the figures of `benches/NOTES.md`. The bounds are far above them, because without
/// reports a waiter or a holder would learn of a change minutes later.
#[test]
fn reports_arrive_within_milliseconds() {
    const ROUNDS: usize = 20;
    let server = RedisServer::start();
    let mut probe = server.probe();
    for (options, hold) in [
        ("", [HASH, &["PEXPIRE", "x", LEASE]]),
        ("format=token", [TEXT; 2]),
    ] {
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
        // The lease ends as after the death of its holder: the waiter knows when.
        let lock = client.mutex("x").unwrap();
        let took = |_| {
            for command in [hold[0], &["PEXPIRE", "x", "300"]] {
                assert!(
                    !matches!(probe.command(command), Value::Error(_)),
                    "{command:?}"
                );
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
            .map(|number| {
                holder
                    .mutex(format!("{what}:{number}"))
                    .unwrap()
                    .lock()
                    .unwrap()
            })
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

/// The request for reports of one lock hangs: another lock, which is acquired meanwhile, is renewed
/// in time.
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
    assert!(
        second.losses().recv_timeout(ms(7_000)).is_err(),
        "it is renewed"
    );
    second.unlock().unwrap();
    first.unlock().unwrap();
}

/// Several batches of renewals are under way at the same time, on several connections: no lock is
/// renewed again because of that.
#[test]
fn locks_far_from_the_server_are_renewed_once_in_each_third_of_the_lease() {
    const LOCKS: u64 = 300;
    let server = RedisServer::start();
    let mut probe = server.probe();
    let far = Distance::new(server.port(), ms(30));
    let client = distlock::connect(&format!("{}?watchdog=3s", far.url())).unwrap();
    let hold = |name: u64| {
        client
            .owned_mutex(name.to_string())
            .unwrap()
            .lock()
            .unwrap()
    };
    let guards: Vec<_> = (0..LOCKS).map(hold).collect();
    tracked(&mut probe, LOCKS);
    probe.reset_stats();
    let watch = Stopwatch::start();
    let_pass(ms(6_000));
    let renewals = probe.command_calls("hexists");
    // Renewals are due early by up to a twelfth of the lease, so that not all are due at once; and
    // one more round may have begun.
    let due = LOCKS * (watch.elapsed().as_millis() as u64 / 750 + 1);
    println!("{renewals} renewals, {due} at most");
    assert!(renewals <= due, "{renewals} {due}");
    assert!(guards.iter().all(|guard| guard.is_valid()));
}

/// Few requests are sent while a lock of any kind is held and waited for, because the keys that are
/// read after a renewal are those that the renewal has written.
#[test]
fn server_is_asked_little_while_locks_of_any_kind_are_held_and_waited_for() {
    let server = RedisServer::start();
    let clients = [(); 2].map(|()| client(&server, "watchdog=10m"));
    let permits = clients
        .each_ref()
        .map(|it| it.semaphore("permits", 3).unwrap());
    let _permits = [
        permits[0].acquire().unwrap(),
        permits[1].acquire_many(2).unwrap(),
    ];
    little_is_asked_of_all_kinds(clients, &mut [server.probe()]);
}

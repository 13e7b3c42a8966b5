//! Requests of many threads that leave as one script: each is granted, refused and freed as if it
//! had been sent alone.

use distlock::{Client, Error};
use distlock_tests::cluster::serve_all_slots;
use distlock_tests::probe::Value;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy, Sometimes, Turn};
use distlock_tests::redis::{client, counted};
use distlock_tests::resp::{Kind, Request};
use distlock_tests::time::{eventually, let_pass, ms};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);
const THREADS: usize = 64;

/// How many of eight cycles are for a lock that all threads share.
const SOME_SHARED: u8 = 1;
const NONE_SHARED: u8 = 0;

/// The results of threads that lock and unlock, mostly a lock of their own, sometimes one of four
/// shared locks.
#[derive(Default)]
struct Cycles {
    is_over: AtomicBool,
    grants: AtomicU64,
    /// The last token of each lock, under a mutex that only the lock's holder may lock.
    tokens: HashMap<String, Mutex<u64>>,
    errors: Mutex<Vec<(String, Error)>>,
}

struct AtDrop<F: Fn()>(F);

impl<F: Fn()> Drop for AtDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl Cycles {
    fn run(clients: &[Client], shared: u8, meanwhile: impl FnOnce(&Self)) -> Self {
        let names = (0..THREADS).map(|thread| format!("own-{thread}"));
        let names: Vec<_> = names
            .chain((0..4).map(|number| format!("shared-{number}")))
            .collect();
        let tokens = names
            .iter()
            .map(|name| (name.clone(), Mutex::default()))
            .collect();
        let cycles = Self {
            tokens,
            ..Self::default()
        };
        thread::scope(|scope| {
            for thread in 0..THREADS {
                // Seven of eight threads are of one client, because only requests of one client are
                // joined.
                let client = &clients[usize::from(thread % 8 == 0) % clients.len()];
                let (cycles, names) = (&cycles, &names);
                scope.spawn(move || {
                    while !cycles.is_over.load(Ordering::Relaxed) {
                        let name = match fastrand::u8(..8) < shared {
                            true => &names[THREADS + fastrand::usize(..4)],
                            false => &names[thread],
                        };
                        if let Err(error) = cycles.once(client, name) {
                            cycles.errors.lock().push((name.clone(), error));
                        }
                    }
                });
            }
            // Also if `meanwhile` panics: otherwise the scope would wait for the threads for ever.
            let _end = AtDrop(|| cycles.is_over.store(true, Ordering::Relaxed));
            meanwhile(&cycles);
        });
        cycles
    }

    fn once(&self, client: &Client, name: &str) -> Result<(), Error> {
        let guard = client.mutex(name)?.lock()?;
        {
            let mut last = self.tokens[name].try_lock().expect("no other holds it");
            let token = guard.fencing_token().expect("tokens are on").get();
            assert!(token > *last, "{name}: {token} after {last}");
            self.grants.fetch_add(1, Ordering::Relaxed);
            if fastrand::u8(..16) == 0 {
                thread::yield_now(); // so that another that is let in finds this one
            }
            *last = token;
        }
        if fastrand::u8(..8) > 0 {
            drop(guard);
            return Ok(());
        }
        guard.unlock()
    }

    fn grants(&self) -> u64 {
        self.grants.load(Ordering::Relaxed)
    }

    /// Waits for `more` further grants.
    fn pass(&self, more: u64) {
        let until = self.grants() + more;
        eventually("locks are taken", LONG, || self.grants() >= until);
    }

    /// Waits until there are a thousand more grants than scripts that acquire, and than other
    /// scripts. How many requests are joined depends on the timing of the threads.
    fn join_many(&self, server: &RedisServer) {
        let saves = |scripts: &u64| scripts + 1_000 <= self.grants();
        eventually("many are joined", LONG, || {
            scripts(server).iter().all(saves)
        });
    }

    /// Asserts that there were no errors, and that no lock is left.
    fn must_end_well(&self, server: &RedisServer, clients: &[Client]) {
        let errors = self.errors.lock();
        assert!(
            errors.is_empty(),
            "{} errors: {:?}",
            errors.len(),
            &errors[0]
        );
        must_be_free(server, clients);
    }
}

fn clients(server: &RedisServer, options: &str) -> [Client; 2] {
    [client(server, options), client(server, options)]
}

/// Waits for the cleanup; then no lock may be left.
fn must_be_free(server: &RedisServer, clients: &[Client]) {
    for client in clients {
        client.wait_for_cleanup(LONG).unwrap();
    }
    let mut probe = server.probe();
    for pattern in ["own-*", "shared-*"] {
        assert_eq!(probe.keys(pattern), [""; 0]);
    }
}

/// Returns how many scripts acquired locks, and how many other scripts there were. Each script that
/// acquires calls `TIME` once.
fn scripts(server: &RedisServer) -> [u64; 2] {
    let mut probe = server.probe();
    let acquires = probe.command_calls("time"); // first: there may be more by the second look
    [acquires, counted(&mut probe).scripts - acquires]
}

#[test]
fn many_locks_at_once_are_exclusive_and_numbered() {
    for options in ["", "format=token"] {
        let server = RedisServer::start();
        let clients = clients(&server, options);
        let cycles = Cycles::run(&clients, SOME_SHARED, |cycles| cycles.pass(5_000));
        cycles.must_end_well(&server, &clients);
        server.probe().reset_stats();
        let cycles = Cycles::run(&clients, NONE_SHARED, |cycles| cycles.join_many(&server));
        cycles.must_end_well(&server, &clients);
        println!(
            "`{options}`: {:?} scripts for {} grants",
            scripts(&server),
            cycles.grants()
        );
    }
}

/// A server that hides its identity, or that is a node of a cluster, may be a proxy that sends each
/// script to the server of its first key: no requests are joined there.
#[test]
fn server_without_identity_gets_no_joined_scripts() {
    let silent = RedisServer::start();
    let node = RedisServer::start_cluster_node(&["--cluster-enabled", "yes"]);
    serve_all_slots(&node);
    for (server, right) in [(silent, "-info"), (node, "+info")] {
        let user = [
            "ACL", "SETUSER", "me", "on", "nopass", "~*", "&*", "+@all", right,
        ];
        server.probe().command(&user);
        let url = format!("{}?command_timeout=1m", server.url_as("me:x"));
        let clients = [distlock::connect(&url).unwrap()];
        let cycles = Cycles::run(&clients, NONE_SHARED, |cycles| cycles.pass(2_000));
        cycles.must_end_well(&server, &clients);
        let (scripts, grants) = (scripts(&server), cycles.grants());
        assert!(
            scripts.iter().all(|it| *it >= grants),
            "{scripts:?} scripts for {grants} grants"
        );
        // The node rejects scripts for several slots. It has rejected only the 32 scripts with
        // which each connection begins (one `EVAL`, 31 `EVALSHA`), and no joined requests.
        let [eval, evalsha] = ["eval", "evalsha"].map(|it| server.probe().rejected_calls(it));
        assert_eq!(evalsha, 31 * eval);
    }
}

#[test]
fn script_that_is_forgotten_again_and_again_costs_no_lock() {
    let server = RedisServer::start();
    let clients = clients(&server, "");
    let cycles = Cycles::run(&clients, SOME_SHARED, |cycles| {
        let mut probe = server.probe();
        for _ in 0..100 {
            cycles.pass(50);
            probe.command(&["SCRIPT", "FLUSH"]);
        }
    });
    cycles.must_end_well(&server, &clients);
}

/// A refused lock fails no other one, and its error reads as if its request had been sent alone.
#[test]
fn refused_lock_spoils_no_other_one() {
    let broken_counter = |server: &RedisServer| {
        server
            .probe()
            .command(&["SET", "redisson_lock_token:{broken}", "text"]);
    };
    let broken_lock = |server: &RedisServer| {
        server.probe().command(&["SET", "broken", "text"]);
    };
    let forbidden = |server: &RedisServer| {
        let user = ["ACL", "SETUSER", "me", "on", "nopass", "&*", "+@all"];
        let keys = [
            "own-*",
            "shared-*",
            "redisson_lock_token:*",
            "distlock_closed:*",
        ];
        let keys = keys.map(|key| format!("~{key}"));
        let keys = keys.iter().map(String::as_str);
        server
            .probe()
            .command(&user.iter().copied().chain(keys).collect::<Vec<_>>());
    };
    let prepare: [&dyn Fn(&RedisServer); 3] = [&broken_counter, &broken_lock, &forbidden];
    for (case, prepare) in prepare.into_iter().enumerate() {
        let server = RedisServer::start();
        prepare(&server);
        let url = if case == 2 {
            server.url_as("me:x")
        } else {
            server.url()
        };
        let url = format!("{url}?command_timeout=1m");
        let client = distlock::connect(&url).unwrap();
        let alone = distlock::connect(&url).unwrap();
        let expected = alone
            .mutex("broken")
            .unwrap()
            .lock()
            .unwrap_err()
            .to_string();
        let clients = [client];
        let cycles = Cycles::run(&clients, NONE_SHARED, |cycles| {
            for _ in 0..200 {
                let broken = clients[0].mutex("broken").unwrap();
                let error = broken.try_lock_for(ms(5_000)).unwrap_err();
                assert_eq!(error.to_string(), expected);
            }
            match case {
                2 => cycles.pass(5_000), // after a key that may not be used nothing is joined
                _ => cycles.join_many(&server),
            }
        });
        cycles.must_end_well(&server, &clients);
        println!(
            "case {case}: {:?} scripts, {} grants",
            scripts(&server),
            cycles.grants()
        );
    }
}

#[test]
fn full_server_grants_none_until_there_is_room() {
    let server = RedisServer::start();
    let clients = clients(&server, "");
    let cycles = Cycles::run(&clients, SOME_SHARED, |cycles| {
        let mut probe = server.probe();
        for _ in 0..5 {
            cycles.pass(500);
            probe.command(&["CONFIG", "SET", "maxmemory", "1"]);
            let mut locks = || ["own-*", "shared-*"].map(|pattern| probe.keys(pattern).len());
            eventually("all are given back", LONG, || locks() == [0, 0]);
            let before = cycles.grants();
            let_pass(ms(50));
            assert_eq!(cycles.grants(), before, "the server is full");
            probe.command(&["CONFIG", "SET", "maxmemory", "0"]);
        }
    });
    cycles.must_end_well(&server, &clients);
}

/// Applies its fault to scripts for several locks only.
struct OfJoined(Sometimes);

impl Plan for OfJoined {
    fn fate(&self, request: &mut Request) -> Fault {
        let is_joined = request.kind() == Kind::Other && request.is("EVALSHA");
        if is_joined {
            self.0.fate(request)
        } else {
            Fault::Pass
        }
    }
}

#[test]
fn joined_requests_without_replies_let_no_two_in() {
    let faults = [
        Fault::Cut,
        Fault::SwallowRequest,
        Fault::Late(ms(100)),
        Fault::CutReply,
        Fault::DelayReply(ms(400)),
        Fault::SwallowReply,
        Fault::HalfReply,
        Fault::Garbage,
    ];
    for (case, fault) in (1..).zip(faults) {
        let server = RedisServer::start();
        let turn = Turn::Chance {
            of_1000: 10,
            seed: case,
        };
        let plan = OfJoined(Sometimes::new(None, turn, fault));
        let proxy = Proxy::new(server.port(), Arc::new(plan));
        let url = format!("{}?command_timeout=300ms&watchdog=3s", proxy.url());
        // The second client connects directly, without faults.
        let clients = [
            distlock::connect(&url).unwrap(),
            client(&server, "watchdog=3s"),
        ];
        let cycles = Cycles::run(&clients, SOME_SHARED, |cycles| {
            eventually("it has happened", LONG, || {
                proxy.count(Kind::Other, fault) >= 5
            });
            cycles.pass(100);
        });
        for (name, error) in &*cycles.errors.lock() {
            assert!(
                error.is_unavailable() || error.is_lost(),
                "{fault:?} {name}: {error}"
            );
        }
        must_be_free(&server, &clients);
        println!(
            "{fault:?}: {} grants, {} errors",
            cycles.grants(),
            cycles.errors.lock().len()
        );
    }
}

/// The joined scripts of a format, for requests that the library does not send.
struct Scripts {
    server: RedisServer,
    format: &'static str,
    acquire: &'static str,
    release: &'static str,
}

/// Joins the files of scripts as the library does.
macro_rules! scripts {
    ($format:literal) => {
        Scripts {
            server: RedisServer::start(),
            format: $format,
            acquire: concat!(
                include_str!(concat!(
                    "../../../lock-redis/src/lua/",
                    $format,
                    "/take.lua"
                )),
                include_str!("../../../lock-redis/src/lua/timestamp.lua"),
                include_str!("../../../lock-redis/src/lua/grant.lua"),
                include_str!("../../../lock-redis/src/lua/acquire_many.lua"),
                include_str!(concat!(
                    "../../../lock-redis/src/lua/",
                    $format,
                    "/look.lua"
                )),
                include_str!(concat!(
                    "../../../lock-redis/src/lua/",
                    $format,
                    "/tells.lua"
                )),
                include_str!("../../../lock-redis/src/lua/queue.lua"),
                include_str!("../../../lock-redis/src/lua/leave.lua"),
                include_str!("../../../lock-redis/src/lua/enter.lua"),
                include_str!("../../../lock-redis/src/lua/attempt.lua"),
                include_str!("../../../lock-redis/src/lua/endings/busy_many.lua"),
            ),
            release: concat!(
                include_str!(concat!(
                    "../../../lock-redis/src/lua/",
                    $format,
                    "/look.lua"
                )),
                include_str!(concat!(
                    "../../../lock-redis/src/lua/",
                    $format,
                    "/drop.lua"
                )),
                include_str!("../../../lock-redis/src/lua/tell.lua"),
                include_str!("../../../lock-redis/src/lua/queue_of.lua"),
                include_str!("../../../lock-redis/src/lua/release_many.lua"),
                include_str!(concat!(
                    "../../../lock-redis/src/lua/",
                    $format,
                    "/take.lua"
                )),
                include_str!("../../../lock-redis/src/lua/timestamp.lua"),
                include_str!("../../../lock-redis/src/lua/grant.lua"),
                include_str!("../../../lock-redis/src/lua/queue.lua"),
                include_str!("../../../lock-redis/src/lua/let_next_in.lua"),
                include_str!("../../../lock-redis/src/lua/leave.lua"),
                include_str!("../../../lock-redis/src/lua/give_up.lua"),
                include_str!("../../../lock-redis/src/lua/endings/waiting_many.lua"),
            ),
        }
    };
}

impl Scripts {
    fn run(&self, script: &str, keys: &[&str], arguments: &[&str]) -> Vec<Value> {
        let count = keys.len().to_string();
        let words = [&["EVAL", script, &count][..], keys, arguments].concat();
        match self.server.probe().command(&words) {
            Value::List(answers) => answers,
            other => panic!("{other:?}"),
        }
    }

    fn acquire(&self, keys: [&str; 9], owners: [&str; 3]) -> Vec<Value> {
        let (before, counters) = keys.split_at(6);
        self.run(
            self.acquire,
            &[before, &["queue 1", "queue 2", "queue 3"], counters].concat(),
            &[&["30000", "60000"][..], &owners].concat(),
        )
    }

    fn holder(&self, lock: &str) -> Option<String> {
        let mut probe = self.server.probe();
        match self.format {
            "token" => probe.get(lock),
            _ => probe.hgetall(lock).into_keys().next(),
        }
    }
}

/// Returns whether the lock is busy for `pttl` milliseconds (-1: without expiry; -2: the owner is
/// closed).
fn is_busy(answer: &Value, pttl: i64) -> bool {
    matches!(answer, Value::List(it) if it[..2] == [0, pttl].map(Value::Int))
}

fn is_error(answer: &Value) -> bool {
    matches!(answer, Value::Error(_))
}

#[test]
fn scripts_for_several_locks_grant_none_twice() {
    for scripts in [scripts!("redisson"), scripts!("token")] {
        // The same lock twice, and two locks with one counter.
        let answers = scripts.acquire(
            ["a", "a", "b", "1", "2", "3", "n", "n", "n"],
            ["x", "y", "z"],
        );
        let [Value::Text(first), Value::List(twice), Value::Text(second)] = &answers[..] else {
            panic!("{answers:?}")
        };
        assert!(first < second, "{answers:?}");
        assert_eq!(twice[0], Value::Int(0));
        assert_eq!(
            ["a", "b"].map(|lock| scripts.holder(lock).unwrap()),
            ["x", "z"]
        );
        // A lock without expiry, a lock whose owner is closed, and a lock that its owner requests
        // again.
        let mut probe = scripts.server.probe();
        probe.command(&["PERSIST", "a"]);
        probe.command(&["SET", "5", "1"]);
        let answers = scripts.acquire(
            ["a", "c", "b", "4", "5", "6", "n", "n", "n"],
            ["y", "y", "z"],
        );
        assert!(
            is_busy(&answers[0], -1) && is_busy(&answers[1], -2),
            "{answers:?}"
        );
        assert_eq!(answers[2], Value::Text(second.clone()));
        assert_eq!(scripts.holder("c"), None);
        // A release by the holder, one by another owner, one of a free lock, and one of a key that
        // is no lock.
        probe.command(&["RPUSH", "d", "text"]);
        let words = ["PUBLISH", "x", "y", "x", "x", "ch", "ch", "ch", "ch"];
        let answers = scripts.run(scripts.release, &["a", "b", "c", "d"], &words);
        assert_eq!(answers[..3], [1, 0, 0].map(Value::Int));
        assert!(is_error(&answers[3]), "{answers:?}");
        assert_eq!(
            ["a", "b"].map(|lock| scripts.holder(lock).is_some()),
            [false, true]
        );
    }
}

/// An error of one lock is the answer for that lock alone. An error of the whole script would not
/// say which locks were granted before.
#[test]
fn error_of_one_lock_is_an_answer_for_it() {
    for scripts in [scripts!("redisson"), scripts!("token")] {
        let mut probe = scripts.server.probe();
        probe.command(&["RPUSH", "broken", "text"]);
        let answers = scripts.acquire(
            ["a", "b", "c", "1", "2", "3", "n", "broken", "n"],
            ["x", "y", "z"],
        );
        assert_eq!(
            [0, 1, 2].map(|place| is_error(&answers[place])),
            [false, true, false]
        );
        assert_eq!(scripts.holder("b"), None);
        // A full server, and a request that also names a held lock.
        probe.command(&["CONFIG", "SET", "maxmemory", "1"]);
        let answers = scripts.acquire(
            ["a", "d", "e", "4", "5", "6", "n", "n", "n"],
            ["y", "y", "y"],
        );
        assert!(
            is_error(&answers[1]) && is_error(&answers[2]),
            "{answers:?}"
        );
        assert_eq!(["d", "e"].map(|lock| scripts.holder(lock)), [None, None]);
        let answers = scripts.acquire(
            ["a", "d", "d", "4", "5", "6", "n", "n", "n"],
            ["x", "y", "z"],
        );
        assert_eq!(
            [0, 1, 2].map(|place| is_error(&answers[place])),
            [false, true, true]
        );
    }
}

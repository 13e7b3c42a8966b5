//! Requests of many threads that leave as one script: each is granted, refused and freed as if it
//! had been sent alone.

use distlock::{Client, DistLock, Error};
use distlock_tests::probe::Value;
use distlock_tests::process::RedisServer;
use distlock_tests::redis::{client, counted};
use distlock_tests::time::{Stopwatch, eventually, ms};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);
const THREADS: usize = 64;

/// What threads did that locked and unlocked, each its own lock and now and then one of a few.
#[derive(Default)]
struct Cycles {
    is_over: AtomicBool,
    grants: AtomicU64,
    /// The last token of each lock; locked by who holds it.
    tokens: HashMap<String, Mutex<u64>>,
    errors: Mutex<Vec<(String, Error)>>,
}

impl Cycles {
    fn run(clients: &[Client], meanwhile: impl FnOnce(&Self)) -> Self {
        let names = (0..THREADS).map(|thread| format!("own-{thread}"));
        let names: Vec<_> = names.chain((0..4).map(|number| format!("shared-{number}"))).collect();
        let tokens = names.iter().map(|name| (name.clone(), Mutex::default())).collect();
        let cycles = Self { tokens, ..Self::default() };
        thread::scope(|scope| {
            for thread in 0..THREADS {
                // The more threads of one client, the more is joined.
                let client = &clients[usize::from(thread % 8 == 0) % clients.len()];
                let (cycles, names) = (&cycles, &names);
                scope.spawn(move || {
                    while !cycles.is_over.load(Ordering::Relaxed) {
                        let name = match fastrand::u8(..8) {
                            0 => &names[THREADS + fastrand::usize(..4)],
                            _ => &names[thread],
                        };
                        if let Err(error) = cycles.once(client, name) {
                            cycles.errors.lock().push((name.clone(), error));
                        }
                    }
                });
            }
            meanwhile(&cycles);
            cycles.is_over.store(true, Ordering::Relaxed);
        });
        cycles
    }

    fn once(&self, client: &Client, name: &str) -> Result<(), Error> {
        let guard = client.mutex(name)?.lock()?;
        {
            let mut last = self.tokens[name].try_lock().expect("no other holds it");
            let token = guard.fencing_token().expect("tokens are on").get();
            assert!(token > *last, "{name}: {token} after {last}");
            *last = token;
        }
        self.grants.fetch_add(1, Ordering::Relaxed);
        if fastrand::u8(..8) > 0 {
            drop(guard);
            return Ok(());
        }
        guard.unlock()
    }

    fn grants(&self) -> u64 {
        self.grants.load(Ordering::Relaxed)
    }

    /// Waits for so many grants more.
    fn pass(&self, more: u64) {
        let until = self.grants() + more;
        eventually("locks are taken", LONG, || self.grants() >= until);
    }

    fn must_have_no_errors(&self) {
        let errors = self.errors.lock();
        assert!(errors.is_empty(), "{} errors: {:?}", errors.len(), &errors[0]);
    }
}

fn clients(server: &RedisServer, options: &str) -> [Client; 2] {
    [client(server, options), client(server, options)]
}

/// The locks that are left when all have been given back.
fn must_be_free(server: &RedisServer, clients: &[Client]) {
    for client in clients {
        client.wait_for_cleanup(LONG).unwrap();
    }
    let mut probe = server.probe();
    for pattern in ["own-*", "shared-*"] {
        assert_eq!(probe.keys(pattern), [""; 0]);
    }
}

#[test]
fn many_locks_at_once_are_exclusive_and_numbered() {
    for options in ["", "format=token"] {
        let server = RedisServer::start();
        let clients = clients(&server, options);
        let before = counted(&mut server.probe()).scripts;
        let cycles = Cycles::run(&clients, |cycles| cycles.pass(10_000));
        cycles.must_have_no_errors();
        must_be_free(&server, &clients);
        let scripts = counted(&mut server.probe()).scripts - before;
        let grants = cycles.grants();
        println!("`{options}`: {scripts} scripts for {grants} grants");
        let alone = 2 * grants;
        assert!(scripts < alone / 10 * 9, "{scripts} of {alone}: hardly any were joined");
    }
}

#[test]
fn script_that_is_forgotten_again_and_again_costs_no_lock() {
    let server = RedisServer::start();
    let clients = clients(&server, "");
    let cycles = Cycles::run(&clients, |cycles| {
        let mut probe = server.probe();
        for _ in 0..100 {
            cycles.pass(50);
            probe.command(&["SCRIPT", "FLUSH"]);
        }
    });
    cycles.must_have_no_errors();
    must_be_free(&server, &clients);
}

/// What one lock is refused is said of that lock only, in the words in which it is said alone.
#[test]
fn refused_lock_spoils_no_other_one() {
    let broken_counter = |server: &RedisServer| {
        server.probe().command(&["SET", "redisson_lock_token:{broken}", "text"]);
    };
    let broken_lock = |server: &RedisServer| {
        server.probe().command(&["SET", "broken", "text"]);
    };
    let forbidden = |server: &RedisServer| {
        let user = ["ACL", "SETUSER", "me", "on", "nopass", "&*", "+@all"];
        let keys = ["own-*", "shared-*", "redisson_lock_token:*", "distlock_closed:*"];
        let keys = keys.map(|key| format!("~{key}"));
        let keys = keys.iter().map(String::as_str);
        server.probe().command(&user.iter().copied().chain(keys).collect::<Vec<_>>());
    };
    let prepare: [&dyn Fn(&RedisServer); 3] = [&broken_counter, &broken_lock, &forbidden];
    for (case, prepare) in prepare.into_iter().enumerate() {
        let server = RedisServer::start();
        prepare(&server);
        let url = if case == 2 { server.url_as("me:x") } else { server.url() };
        let client = distlock::connect(&url).unwrap();
        let alone = distlock::connect(&url).unwrap();
        let expected = alone.mutex("broken").unwrap().lock().unwrap_err().to_string();
        let scripts = || counted(&mut server.probe()).scripts;
        let before = scripts();
        let refused = AtomicU64::new(0);
        let cycles = Cycles::run(std::slice::from_ref(&client), |cycles| {
            let watch = Stopwatch::start();
            while refused.load(Ordering::Relaxed) < 200 && watch.elapsed() < LONG {
                let error = client.mutex("broken").unwrap().try_lock_for(ms(5_000)).unwrap_err();
                assert_eq!(error.to_string(), expected);
                refused.fetch_add(1, Ordering::Relaxed);
            }
            cycles.pass(5_000);
        });
        cycles.must_have_no_errors();
        must_be_free(&server, std::slice::from_ref(&client));
        println!("case {case}: {} scripts, {} grants", scripts() - before, cycles.grants());
    }
}

#[test]
fn full_server_grants_none_until_there_is_room() {
    let server = RedisServer::start();
    let clients = clients(&server, "");
    let cycles = Cycles::run(&clients, |cycles| {
        let mut probe = server.probe();
        for _ in 0..5 {
            cycles.pass(500);
            probe.command(&["CONFIG", "SET", "maxmemory", "1"]);
            let mut locks = || ["own-*", "shared-*"].map(|pattern| probe.keys(pattern).len());
            eventually("all are given back", LONG, || locks() == [0, 0]);
            probe.command(&["CONFIG", "SET", "maxmemory", "0"]);
        }
    });
    cycles.must_have_no_errors();
    must_be_free(&server, &clients);
}

/// The scripts for several locks themselves, where requests say what ours do not.
#[test]
fn scripts_for_several_locks_grant_none_twice() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let acquire = concat!(
        include_str!("../../../lock-redis/src/lua/redisson/look.lua"),
        include_str!("../../../lock-redis/src/lua/redisson/take.lua"),
        include_str!("../../../lock-redis/src/lua/redisson/tells.lua"),
        include_str!("../../../lock-redis/src/lua/grant.lua"),
        include_str!("../../../lock-redis/src/lua/attempt.lua"),
        include_str!("../../../lock-redis/src/lua/acquire_many.lua"),
    );
    let release = concat!(
        include_str!("../../../lock-redis/src/lua/redisson/look.lua"),
        include_str!("../../../lock-redis/src/lua/redisson/gone.lua"),
        include_str!("../../../lock-redis/src/lua/release_many.lua"),
    );
    let mut take = |keys: [&str; 9], owners: [&str; 3]| {
        let words = [&["EVAL", acquire, "9"][..], &keys, &["30000", "60000"], &owners].concat();
        match probe.command(&words) {
            Value::List(answers) => answers,
            other => panic!("{other:?}"),
        }
    };
    let refused = |why: i64| Value::List([0, why, 1].map(Value::Int).to_vec());
    // The same lock twice, and two locks with one counter.
    let answers = take(["a", "a", "b", "1", "2", "3", "n", "n", "n"], ["x", "y", "z"]);
    let [Value::Text(first), Value::List(twice), Value::Text(second)] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert!(first < second, "{answers:?}");
    assert_eq!(twice[0], Value::Int(0));
    let holders = |key| server.probe().hgetall(key).into_keys().collect::<Vec<_>>();
    assert_eq!([holders("a"), holders("b")], [["x"], ["z"]]);
    // One that is held for ever, one whose owner is closed, and one for its owner again.
    server.probe().command(&["PERSIST", "a"]);
    server.probe().command(&["SET", "5", "1"]);
    let answers = take(["a", "c", "b", "4", "5", "6", "n", "n", "n"], ["y", "y", "z"]);
    assert_eq!(answers, [refused(-1), refused(-2), Value::Text(second.clone())]);
    assert!(!server.probe().exists("c"));
    // The holder's, another's, one that is gone, and a key of something else.
    server.probe().command(&["SET", "d", "text"]);
    let words = ["a", "b", "c", "d", "PUBLISH", "x", "y", "x", "x", "ch", "ch", "ch", "ch"];
    let words = [&["EVAL", release, "4"][..], &words].concat();
    let Value::List(answers) = server.probe().command(&words) else { panic!("no list") };
    assert_eq!(answers[..3], [1, 0, 0].map(Value::Int));
    assert!(matches!(&answers[3], Value::Error(error) if error.contains("WRONGTYPE")));
    assert!(!server.probe().exists("a") && server.probe().exists("b"));
}

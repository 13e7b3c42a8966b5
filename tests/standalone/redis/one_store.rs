//! A proxy that claims to be one server, and sends each script to the server of its first key:
//! behind it, no script may be for several locks.

use distlock::{Client, LockOptions};
use distlock_tests::process::RedisServer;
use distlock_tests::redis::{client, counted};
use distlock_tests::router::Router;
use distlock_tests::time::{always, eventually, ms};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
const THREADS: usize = 32;
const NAMES: usize = 12;

/// The results of threads that try for a few locks all the time.
#[derive(Default)]
struct Tries {
    is_over: AtomicBool,
    grants: AtomicU64,
    /// How often a holder met another one, a token did not grow, or a held lock was lost.
    violations: AtomicU64,
    /// The last token of each lock. Only its holder may lock the mutex.
    tokens: Vec<Mutex<u64>>,
}

impl Tries {
    /// Runs all threads on the same few locks.
    fn run(clients: &[Client], until: impl FnOnce(&Self)) -> Self {
        Self::of(NAMES, clients, until)
    }

    fn of(names: usize, clients: &[Client], until: impl FnOnce(&Self)) -> Self {
        let tokens = (0..names).map(|_| Mutex::default()).collect();
        let tries = Self {
            tokens,
            ..Self::default()
        };
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (client, tries) = (&clients[thread % clients.len()], &tries);
                scope.spawn(move || {
                    while !tries.is_over.load(Ordering::Relaxed) {
                        let number = if names == THREADS {
                            thread
                        } else {
                            fastrand::usize(..names)
                        };
                        tries.once(client, number);
                    }
                });
            }
            until(&tries);
            tries.is_over.store(true, Ordering::Relaxed);
        });
        tries
    }

    /// Tries a lock once. A script of another client may wrongly free or take the lock: then the
    /// tokens, the mutex or the release show a violation.
    fn once(&self, client: &Client, number: usize) {
        let lock = client.mutex(format!("shared-{number}")).unwrap();
        let Some(guard) = lock.try_lock().unwrap() else {
            return;
        };
        let token = guard.fencing_token().expect("tokens are on").get();
        match self.tokens[number].try_lock() {
            Some(mut last) => {
                let is_larger = token > *last;
                self.violations
                    .fetch_add(u64::from(!is_larger), Ordering::Relaxed);
                thread::yield_now(); // so that another that is let in finds this one
                *last = token;
            }
            None => {
                self.violations.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.grants.fetch_add(1, Ordering::Relaxed);
        if guard.unlock().is_err() {
            self.violations.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn pass(&self, grants: u64) {
        let until = self.grants.load(Ordering::Relaxed) + grants;
        eventually("locks are taken", LONG, || {
            self.grants.load(Ordering::Relaxed) >= until
        });
    }
}

/// Two servers behind a proxy that sends each script to the server of its first key.
struct Scene {
    servers: [RedisServer; 2],
    router: Router,
}

impl Scene {
    fn new(seed: u64) -> Self {
        let servers = [RedisServer::start(), RedisServer::start()];
        let router = Router::new(&[servers[0].port(), servers[1].port()], seed);
        Self { servers, router }
    }

    fn clients(&self, options: &str) -> [Client; 2] {
        let url = format!("{}?command_timeout=1m{options}", self.router.url());
        [(); 2].map(|()| distlock::connect(&url).unwrap())
    }

    /// Asserts that both servers have had locks.
    fn must_be_spread(&self) {
        for server in &self.servers {
            assert!(
                server.probe().command_calls("hset") > 0,
                "both servers have locks"
            );
        }
    }
}

fn contend(seeds: std::ops::Range<u64>, until: impl Fn(&Tries)) {
    for seed in seeds {
        let scene = Scene::new(seed);
        let tries = Tries::run(&scene.clients(""), &until);
        scene.must_be_spread();
        let violations = tries.violations.into_inner();
        assert_eq!(
            violations,
            0,
            "seed {seed}, of {} grants",
            tries.grants.into_inner()
        );
    }
}

#[test]
fn proxy_that_spreads_scripts_lets_no_two_in() {
    contend(1..3, |tries| tries.pass(4_000));
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn proxy_that_spreads_scripts_lets_no_two_in_for_long() {
    contend(1..5, |tries| {
        let start = distlock_tests::time::Stopwatch::start();
        eventually("the time is over", LONG, || {
            start.elapsed() >= Duration::from_secs(15)
        });
        tries.pass(1);
    });
}

/// The proxy leads to one server at first, which allows joined scripts. Then it spreads and cuts
/// its connections: each new connection must be checked again.
#[test]
fn each_new_connection_is_proven_anew() {
    let scene = Scene::new(1);
    scene.router.spread(false);
    let clients = scene.clients("");
    let tries = Tries::run(&clients, |tries| tries.pass(500));
    assert_eq!(tries.violations.into_inner(), 0);
    // The locks of the first part are all on one server: both begin the second part without locks.
    for client in &clients {
        client.wait_for_cleanup(LONG).unwrap();
    }
    scene.servers[0].probe().command(&["FLUSHALL"]);
    scene.router.spread(true);
    for client in &clients {
        let other = client.mutex("other").unwrap();
        eventually("it is connected again", LONG, || other.try_lock().is_ok());
    }
    let tries = Tries::run(&clients, |tries| tries.pass(4_000));
    scene.must_be_spread();
    assert_eq!(tries.violations.into_inner(), 0);
}

/// A script that renewed several locks would be sent to one server, and find the locks of the other
/// one gone.
#[test]
fn proxy_that_spreads_scripts_costs_no_held_lock() {
    let scene = Scene::new(1);
    let [client, _] = scene.clients("");
    let options = LockOptions::new().watched(ms(3_000));
    let locks: Vec<_> = (0..20)
        .map(|number| client.mutex(format!("held-{number}")))
        .collect();
    let guards: Vec<_> = locks
        .iter()
        .map(|lock| lock.as_ref().unwrap().lock_with(&options).unwrap())
        .collect();
    scene
        .servers
        .iter()
        .for_each(|server| server.probe().reset_stats());
    let renewed = |server: &RedisServer| server.probe().command_calls("pexpire");
    eventually("both servers have renewed", LONG, || {
        assert!(
            guards.iter().all(|guard| guard.loss().is_none()),
            "a held lock is lost"
        );
        scene.servers.iter().all(|server| renewed(server) >= 12)
    });
    guards.into_iter().for_each(|guard| guard.unlock().unwrap());
}

#[test]
fn joined_off_sends_each_lock_alone() {
    let server = RedisServer::start();
    for (options, may_join) in [("joined=off", false), ("", true)] {
        let clients = [client(&server, &format!("command_timeout=1m&{options}"))];
        server.probe().reset_stats();
        let saves = |tries: &Tries| {
            let grants = tries.grants.load(Ordering::Relaxed);
            // Each script that acquires calls `TIME` once, however many locks it is for.
            grants > server.probe().command_calls("time") + 100
        };
        // Each thread has a lock of its own, so that most requests find their lock free.
        let tries = Tries::of(THREADS, &clients, |tries| match may_join {
            true => eventually("some are joined", LONG, || saves(tries)),
            false => tries.pass(2_000),
        });
        assert!(may_join || !saves(&tries));
        assert_eq!(tries.violations.into_inner(), 0);
        let unproven = counted(&mut server.probe());
        println!("`{options}`: {unproven:?}");
    }
    let refused = distlock::connect("redis://127.0.0.1?joined=perhaps").unwrap_err();
    assert!(refused.to_string().contains("joined"), "{refused}");
    always("nothing is left", ms(1), || {
        server.probe().keys("shared-*").is_empty()
    });
}

//! Compares locks over an application's own pool with our own connections, and with the shortest
//! lock that an application can write on its pool: `SET NX PX`, and a release by a script.

use crate::server::Server;
use distlock::redis_rs::{RedisPool, r2d2, redis};
use distlock::{Client, Mutex};
use std::sync::Barrier;
use std::time::{Duration, Instant};

const THREADS: [usize; 3] = [1, 8, 32];
const TURN: Duration = Duration::from_millis(500);
/// As many connections as threads, and the one for renewals.
const CONNECTIONS: u32 = 33;

/// The release of the short lock.
const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', \
                       KEYS[1]) end return 0";

type Pool = r2d2::Pool<redis::Client>;

/// The ways to lock, in the order of the columns.
enum Way {
    Ours(Client),
    /// Over a pool that sends `PING` before it lends a connection, or over one that does not.
    Pool(Client),
    Bare(Pool),
}

/// One thread's lock.
enum Lock {
    Mutex(Mutex),
    Bare(Pool, redis::Script, String),
}

impl Way {
    fn lock(&self, number: usize) -> Lock {
        let name = format!("own:{number}");
        match self {
            Self::Ours(client) | Self::Pool(client) => {
                Lock::Mutex(client.mutex(name).expect("a good name"))
            }
            Self::Bare(pool) => Lock::Bare(
                pool.clone(),
                redis::Script::new(RELEASE),
                format!("bare:{name}"),
            ),
        }
    }
}

impl Lock {
    fn cycle(&self, number: u64) {
        match self {
            Self::Mutex(lock) => {
                let guard = lock.lock().expect("the store is there");
                guard.unlock().expect("it is ours");
            }
            Self::Bare(pool, release, name) => {
                let set: Option<String> = {
                    let mut connection = pool.get().expect("the server is there");
                    redis::cmd("SET")
                        .arg(name)
                        .arg(number)
                        .arg("NX")
                        .arg("PX")
                        .arg(30_000)
                        .query(&mut *connection)
                        .expect("the server answers")
                };
                assert!(set.is_some(), "each thread has its own");
                let mut connection = pool.get().expect("the server is there");
                let freed: i32 = release
                    .key(name)
                    .arg(number)
                    .invoke(&mut *connection)
                    .expect("the server answers");
                assert_eq!(freed, 1);
            }
        }
    }
}

/// Runs one turn, in which each thread locks and unlocks a lock of its own. Returns the cycles per
/// second.
fn turn(way: &Way, threads: usize) -> f64 {
    let barrier = Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|number| {
                let (barrier, lock) = (&barrier, way.lock(number));
                scope.spawn(move || {
                    lock.cycle(0);
                    barrier.wait();
                    let (end, mut cycles) = (Instant::now() + TURN, 0);
                    while Instant::now() < end {
                        cycles += 1;
                        lock.cycle(cycles);
                    }
                    cycles
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        let cycles: u64 = running
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .sum();
        cycles as f64 / start.elapsed().as_secs_f64()
    })
}

fn pool(server: &Server, tests: bool) -> Pool {
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", server.port));
    r2d2::Pool::builder()
        .max_size(CONNECTIONS)
        .min_idle(Some(0))
        .test_on_check_out(tests)
        .build(client.expect("a good URL"))
        .expect("the server is there")
}

/// Prints the medians of this many turns of each way, one after the other.
pub(crate) fn measure(rounds: usize) {
    let server = Server::start();
    let over = |tests| {
        let locks = RedisPool::new(pool(&server, tests)).connect();
        Way::Pool(locks.expect("a pool that is large enough"))
    };
    let url = format!("redis://127.0.0.1:{}", server.port);
    let ways = [
        (
            "own connections",
            Way::Ours(distlock::connect(&url).expect("a good URL")),
        ),
        ("the pool", over(false)),
        ("the pool, with PING", over(true)),
        ("bare SET and script", Way::Bare(pool(&server, false))),
        ("bare, with PING", Way::Bare(pool(&server, true))),
    ];
    println!(
        "| cycles per second | {} threads |",
        THREADS.map(|it| it.to_string()).join(" | ")
    );
    let mut figures = vec![vec![Vec::new(); THREADS.len()]; ways.len()];
    for _ in 0..rounds {
        for (place, threads) in THREADS.into_iter().enumerate() {
            for (number, (_, way)) in ways.iter().enumerate() {
                figures[number][place].push(turn(way, threads));
            }
        }
    }
    for ((name, _), figures) in ways.iter().zip(figures) {
        let medians = figures.into_iter().map(|mut figures| {
            figures.sort_by(f64::total_cmp);
            format!("{:.0}", figures[figures.len() / 2])
        });
        println!("| {name} | {} |", medians.collect::<Vec<_>>().join(" | "));
    }
}

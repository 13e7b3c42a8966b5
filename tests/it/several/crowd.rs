//! Threads of two processes that lock random pairs and triples, in random order, over three servers.

use super::{SOON, left_over, three_servers};
use crate::harness::child::{Child, Example};
use crate::harness::process::RedisServer;
use crate::harness::time::{eventually, let_pass};
use distlock::{Clock, DistLock, MultiLock, Mutex, SystemClock};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::thread;
use std::time::Duration;

const PROCESSES: usize = 2;
const THREADS: usize = 4;

/// How many locks there are on each server.
const NAMES: usize = 2;

/// Longer than anybody waits, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// What makes this test binary one of the processes: where to write its claims, for how long to go on, and the servers.
const ROLE: &str = "DISTLOCK_TEST_SEVERAL";
const ENTRY: &str = "several::crowd::one_of_the_processes";

/// That a thread had a lock, from when to when, in nanoseconds of the machine's clock.
#[derive(Debug, Clone, Copy)]
struct Claim {
    lock: usize,
    token: u64,
    from: u64,
    to: u64,
    /// For how long it had waited.
    waited: u64,
    thread: usize,
}

impl Claim {
    fn write(&self, to: &mut String) {
        let Self { lock, token, from, to: until, waited, thread } = self;
        writeln!(to, "{lock} {token} {from} {until} {waited} {thread}").unwrap();
    }

    fn read(line: &str, process: usize) -> Self {
        let mut numbers = line.split(' ').map(|number| number.parse::<u64>().unwrap());
        let mut next = || numbers.next().unwrap();
        let mut index = || usize::try_from(next()).unwrap();
        let lock = index();
        let (token, from, to, waited) = (next(), next(), next(), next());
        let thread = usize::try_from(next()).unwrap() + process * THREADS;
        Self { lock, token, from, to, waited, thread }
    }
}

/// Not a test of its own: what the other processes run.
#[test]
fn one_of_the_processes() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut words = role.split(' ');
    let (file, seconds) = (words.next().unwrap(), words.next().unwrap());
    let end = SystemClock.now() + Duration::from_secs(seconds.parse().unwrap());
    let clients: Vec<_> = words.map(|url| distlock::connect(url).unwrap()).collect();
    let locks: Vec<_> = (0..clients.len() * NAMES)
        .map(|n| clients[n % clients.len()].mutex(format!("lock:{n}")).unwrap())
        .collect();
    let claims: String = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let locks = &locks;
                scope.spawn(move || {
                    let mut claims = String::new();
                    while SystemClock.now() < end {
                        visit(locks, thread, &mut claims);
                    }
                    claims
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    std::fs::write(file, claims).unwrap();
}

/// Takes two or three locks, whichever and in whatever order, and stays for a moment.
fn visit(locks: &[Mutex], thread: usize, claims: &mut String) {
    let mut chosen: Vec<_> = (0..locks.len()).collect();
    fastrand::shuffle(&mut chosen);
    chosen.truncate(fastrand::usize(2..=3));
    let several = MultiLock::new(chosen.iter().map(|n| &locks[*n])).unwrap();
    let asked = SystemClock.now().as_nanos();
    let taken = several.try_lock_for(PATIENCE).expect("the servers answer");
    let guard = taken.expect("nobody waits for ever");
    let from = SystemClock.now().as_nanos();
    let_pass(Duration::from_micros(fastrand::u64(0..1_000)));
    let to = SystemClock.now().as_nanos();
    for (lock, (name, token)) in chosen.into_iter().zip(guard.fencing_tokens()) {
        assert_eq!(name.as_str(), locks[lock].name().as_str());
        let token = token.unwrap().get();
        Claim { lock, token, from, to, waited: from - asked, thread }.write(claims);
    }
    guard.unlock().expect("it was ours until now");
}

fn start(file: &Path, seconds: u64, servers: &[RedisServer; 3]) -> Child {
    let urls = servers.each_ref().map(RedisServer::url).join(" ");
    Example::program(std::env::current_exe().unwrap())
        .args(&["--exact", ENTRY, "--nocapture"])
        .env(ROLE, &format!("{} {seconds} {urls}", file.display()))
        .spawn()
}

fn crowd(seconds: u64) {
    let servers = three_servers();
    let directory = tempfile::tempdir().unwrap();
    let files =
        [(); PROCESSES].map(|()| fastrand::u64(..)).map(|n| directory.path().join(n.to_string()));
    let mut children = files.each_ref().map(|file| start(file, seconds, &servers));
    for child in &mut children {
        let bound = Duration::from_secs(seconds) + PATIENCE;
        assert_eq!(child.wait_exit(bound), 0, "{}\n{}", child.output(), child.errors());
    }
    let mut by_lock: BTreeMap<usize, Vec<Claim>> = BTreeMap::new();
    let mut visits: BTreeMap<usize, BTreeSet<u64>> = BTreeMap::new();
    let mut longest = Duration::ZERO;
    for (process, file) in files.iter().enumerate() {
        for line in std::fs::read_to_string(file).unwrap().lines() {
            let claim = Claim::read(line, process);
            by_lock.entry(claim.lock).or_default().push(claim);
            longest = longest.max(Duration::from_nanos(claim.waited));
            visits.entry(claim.thread).or_default().insert(claim.from);
        }
    }
    let visits: Vec<_> = visits.values().map(BTreeSet::len).collect();
    println!("visits of each thread in {seconds} s: {visits:?}; the longest wait: {longest:.1?}");
    assert_eq!(visits.len(), PROCESSES * THREADS, "every thread had its turns");
    assert_eq!(by_lock.len(), servers.len() * NAMES);
    for (lock, claims) in &mut by_lock {
        claims.sort_unstable_by_key(|claim| claim.from);
        for pair in claims.windows(2) {
            assert!(pair[0].to <= pair[1].from, "two at once had lock {lock}: {pair:?}");
            assert!(pair[0].token < pair[1].token, "the token of lock {lock} must grow: {pair:?}");
        }
        println!("lock {lock}: {} claims, one at a time, tokens grow", claims.len());
    }
    for server in &servers {
        assert_eq!(left_over(server), [""; 0]);
        eventually("no connection is left", SOON, || server.probe().connections() == 0);
    }
}

#[test]
fn two_processes_that_lock_pairs_and_triples_in_any_order_never_wait_for_each_other() {
    crowd(5);
}

#[test]
#[ignore = "half a minute: `cargo test --test it several:: -- --ignored --nocapture` runs it"]
fn nor_do_they_for_half_a_minute() {
    crowd(30);
}

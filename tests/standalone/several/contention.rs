//! Threads of two processes that lock random pairs and triples, in random order, over three
//! servers.

use super::{SOON, left_over, three_servers};
use distlock::time::{Clock, SystemClock};
use distlock::{MultiLock, Mutex};
use distlock_tests::child::{Child, Example};
use distlock_tests::claims::{Claim, Log, judge};
use distlock_tests::process::RedisServer;
use distlock_tests::time::{eventually, let_pass};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::thread;
use std::time::Duration;

const PROCESSES: usize = 2;
const THREADS: usize = 4;

/// How many locks there are on each server.
const NAMES: usize = 2;

/// Longer than any thread waits, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// The environment variable that makes this test binary one of the contending processes. Its value:
/// the file for the claims, how many seconds to run, and the URLs of the servers.
const ROLE: &str = "LOCK_TEST_SEVERAL";
const ENTRY: &str = "several::contention::child_process_of_the_test";

/// Runs in the contending processes. Without the variable, it does nothing.
#[test]
fn child_process_of_the_test() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let mut words = role.split(' ');
    let (file, seconds) = (words.next().unwrap(), words.next().unwrap());
    let end = SystemClock.now() + Duration::from_secs(seconds.parse().unwrap());
    let clients: Vec<_> = words.map(|url| distlock::connect(url).unwrap()).collect();
    // The same names on each server: names alone do not order these locks, only the order in which
    // they are passed does.
    let locks: Vec<_> = (0..NAMES)
        .flat_map(|n| {
            clients
                .iter()
                .map(move |client| client.mutex(format!("lock:{n}")).unwrap())
        })
        .collect();
    let log = &Log::create(Path::new(file));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (locks, holder) = (&locks, format!("{}.{thread}", std::process::id()));
            scope.spawn(move || {
                visit(locks, &holder, log);
                while SystemClock.now() < end {
                    visit(locks, &holder, log);
                }
            });
        }
    });
}

/// Acquires two or three random locks in random order, and holds them for a moment.
fn visit(locks: &[Mutex], holder: &str, log: &Log) {
    let mut chosen: Vec<_> = (0..locks.len()).collect();
    fastrand::shuffle(&mut chosen);
    chosen.truncate(fastrand::usize(2..=3));
    let several = MultiLock::new(chosen.iter().map(|n| &locks[*n])).unwrap();
    let asked = SystemClock.now();
    let taken = several.try_lock_for(PATIENCE).expect("the servers answer");
    let guard = taken.expect("no thread waits for ever");
    let from = SystemClock.now();
    let_pass(Duration::from_micros(fastrand::u64(0..1_000)));
    let to = SystemClock.now();
    for (number, (name, token)) in chosen.into_iter().zip(guard.fencing_tokens()) {
        assert_eq!(name.as_str(), locks[number].name().as_str());
        let server = number % (locks.len() / NAMES);
        let (lock, token) = (format!("{name}@{server}"), token.unwrap().get());
        log.write(&Claim {
            lock,
            holder: holder.to_owned(),
            token,
            asked,
            from,
            to,
        });
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
    let files = [(); PROCESSES]
        .map(|()| fastrand::u64(..))
        .map(|n| directory.path().join(n.to_string()));
    let mut children = files.each_ref().map(|file| start(file, seconds, &servers));
    for child in &mut children {
        let bound = Duration::from_secs(seconds) + PATIENCE;
        assert_eq!(
            child.wait_exit(bound),
            0,
            "{}\n{}",
            child.output(),
            child.errors()
        );
    }
    let claims: Vec<_> = files.iter().flat_map(|file| Log::read(file)).collect();
    let mut visits: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for claim in &claims {
        visits
            .entry(&claim.holder)
            .or_default()
            .insert(claim.from.as_nanos());
    }
    let visits: Vec<_> = visits.values().map(BTreeSet::len).collect();
    let longest = claims
        .iter()
        .map(|claim| claim.from.since(claim.asked))
        .max()
        .unwrap();
    println!("visits of each thread in {seconds} s: {visits:?}; the longest wait: {longest:.1?}");
    assert_eq!(
        visits.len(),
        PROCESSES * THREADS,
        "every thread had its turns"
    );
    let verdict = judge(claims);
    verdict.must_be_exact();
    assert_eq!(verdict.by_lock.len(), servers.len() * NAMES);
    for server in &servers {
        assert_eq!(left_over(server), [""; 0]);
        eventually("no connection is left", SOON, || {
            server.probe().connections() == 0
        });
    }
}

#[test]
fn two_processes_locking_pairs_in_any_order_never_deadlock() {
    crowd(2);
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn two_processes_locking_pairs_never_deadlock_long() {
    crowd(30);
}

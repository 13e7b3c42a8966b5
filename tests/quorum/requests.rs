//! What a quorum costs in requests and time, and that it excludes clients while nodes fail.

use distlock::admin::QuorumBackend;
use distlock::backend::{Backend, ClientId, Context};
use distlock::time::{Clock, SystemClock};
use distlock::{Client, Config, LockGuard, builder, schemes};
use distlock_tests::child::{Child, Example};
use distlock_tests::own_process::alone;
use distlock_tests::process::{RedisServer, free_port};
use distlock_tests::proxy::{Fault, Plan, Proxy};
use distlock_tests::quorum::{LONGEST, Servers, place, url};
use distlock_tests::resp::{Kind, Request};
use distlock_tests::time::{Stopwatch, eventually, late, let_pass, ms, retry_if_late, scaled};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

/// A plan that delays every request, or swallows every request while `silent` is set.
#[derive(Default)]
struct Far {
    silent: AtomicBool,
}

const DISTANCE: Duration = Duration::from_millis(2);

impl Plan for Far {
    fn fate(&self, _: &mut Request) -> Fault {
        if self.silent.load(Ordering::SeqCst) {
            Fault::SwallowRequest
        } else {
            Fault::Delay(DISTANCE)
        }
    }
}

/// Returns the processor time that this thread and the library's threads have used.
fn processor_time() -> Duration {
    let library = library_tasks().into_iter().map(|(task, _)| task);
    let own = PathBuf::from("/proc/thread-self");
    let nanos = |task: PathBuf| {
        let times = std::fs::read_to_string(task.join("schedstat")).ok()?;
        times.split(' ').next()?.parse::<u64>().ok()
    };
    Duration::from_nanos(library.chain([own]).filter_map(nanos).sum())
}

fn library_tasks() -> Vec<(PathBuf, String)> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| {
        let task = task.ok()?.path();
        let name = std::fs::read_to_string(task.join("comm"))
            .ok()?
            .trim()
            .to_owned();
        name.starts_with("distlock-").then_some((task, name))
    });
    names.collect()
}

/// Returns the names of the library's threads in this process.
fn threads() -> Vec<String> {
    let mut names: Vec<_> = library_tasks().into_iter().map(|(_, name)| name).collect();
    names.sort_unstable();
    names
}

const TIMES: u32 = 50;

/// Returns the median time in which `take` takes a lock, of fifty. The releases are not timed.
fn median(mut take: impl FnMut() -> LockGuard) -> Duration {
    let mut times: Vec<_> = (0..TIMES)
        .map(|_| {
            let watch = Stopwatch::start();
            let guard = take();
            let time = watch.elapsed();
            guard.unlock().unwrap();
            time
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
fn label_of_the_majoritys_holder_is_shown() {
    let mut quorum = Servers::with(3, 0, "max_lease=10m&watchdog=6s&owner=till-7");
    let client = quorum.client();
    let guard = client.mutex("a").unwrap().lock().unwrap();
    let on = |quorum: &Servers| {
        let has = |server: &RedisServer| server.probe().exists("distlock_owner:{a}");
        quorum.servers.iter().filter(|server| has(server)).count()
    };
    eventually("it is renewed", Duration::from_secs(60), || {
        on(&quorum) == 3
    });
    let shown = || {
        client
            .mutex("a")
            .unwrap()
            .inspect()
            .unwrap()
            .holder
            .unwrap()
            .label
    };
    let first = shown();
    assert_eq!(&*first.as_ref().unwrap().text, "till-7");
    quorum.servers[0].kill();
    assert_eq!(&*shown().unwrap().text, "till-7", "two of three");
    guard.unlock().unwrap();
    let next = client.mutex("a").unwrap().lock().unwrap();
    // There is no label, or the next holder's after its first renewal.
    assert_ne!(shown(), first, "that is the former holder's");
    next.unlock().unwrap();
}

#[test]
fn five_nodes_take_one_round_trip_with_two_silent_ones() {
    alone(
        "requests::five_nodes_take_one_round_trip_with_two_silent_ones",
        || {
            // The test compares medians of times, which a late machine can distort.
            retry_if_late(five_far_nodes);
        },
    );
}

fn five_far_nodes() {
    let quorum = Servers::with(5, 0, LONGEST);
    let far: Vec<_> = (0..5).map(|_| Arc::new(Far::default())).collect();
    let proxies: Vec<_> = quorum
        .servers
        .iter()
        .zip(&far)
        .map(|(server, far)| Proxy::new(server.port(), Arc::clone(far) as _))
        .collect();
    let places: Vec<_> = proxies.iter().map(|proxy| place(proxy.port())).collect();
    let singles: Vec<_> = proxies
        .iter()
        .map(|proxy| distlock::connect(&proxy.url()).unwrap())
        .collect();
    let in_sequence: Duration = singles
        .iter()
        .map(|client| {
            let lock = client.mutex("single").unwrap();
            median(|| lock.lock().unwrap())
        })
        .sum();
    drop(singles);
    eventually("they are gone", SOON, || threads().is_empty());
    // On a busy machine a reply may take half a second. With short time-outs the request would be
    // repeated, and counted twice.
    let patient = "max_lease=10m&node_timeout=5s&command_timeout=10s";
    let client = distlock::connect(&url(&places, patient)).unwrap();
    let lock = client.mutex("a").unwrap();
    let asked = || -> Vec<_> {
        proxies
            .iter()
            .map(|proxy| proxy.count(Kind::Acquire, Fault::Delay(DISTANCE)))
            .collect()
    };
    let since = |earlier: &[u64]| -> Vec<_> {
        asked()
            .iter()
            .zip(earlier)
            .map(|(now, before)| now - before)
            .collect()
    };
    let at_first = asked();
    // After this cycle all nodes know the scripts, also those outside of the majority.
    lock.lock().unwrap().unlock().unwrap();
    let most = since(&at_first).into_iter().max();
    eventually("all were asked alike", SOON, || {
        since(&at_first).into_iter().min() == most
    });
    let (asked_before, before) = (asked(), processor_time());
    let together = median(|| lock.lock().unwrap());
    let used = (processor_time() - before) / TIMES;
    // The number of rounds does not depend on how busy the machine is.
    let rounds = since(&asked_before).into_iter().max();
    assert_eq!(
        rounds,
        Some(TIMES.into()),
        "each was asked once for each lock: {asked_before:?}"
    );
    far[1].silent.store(true, Ordering::SeqCst);
    far[3].silent.store(true, Ordering::SeqCst);
    let with_two_silent = median(|| lock.lock().unwrap());
    println!(
        "five nodes, {DISTANCE:?} away: {together:.2?} together, {with_two_silent:.2?} with two \
         of them silent, \
         {in_sequence:.2?} one after the other; {used:.0?} of processor for a lock and unlock"
    );
    println!("{} threads: {}", threads().len(), threads().join(", "));
    assert!(threads().len() <= 16, "{:?}", threads());
    let bound = in_sequence * 3 / 4;
    if together.max(with_two_silent) > bound {
        late(
            bound,
            format!("{together:?} and {with_two_silent:?}, not {bound:?}"),
        );
    }
}

/// Takes a lock on nodes 0, 1 and 2, restarts node 2 empty, and tries the lock with a rival that
/// cannot reach nodes 0 and 1. Returns an error if both clients have a valid guard.
fn amnesia(connect: impl Fn(&[String]) -> Client, options: &str) -> Result<(), String> {
    let mut quorum = Servers::with(5, 0, options);
    let places: Vec<_> = quorum
        .servers
        .iter()
        .map(|server| place(server.port()))
        .collect();
    let without = |gone: [usize; 2]| {
        let mut seen = places.clone();
        gone.iter().for_each(|at| seen[*at] = place(free_port()));
        connect(&seen)
    };
    let holder = without([3, 4]);
    let guard = holder.mutex("a").unwrap().lock().unwrap();
    quorum.restart(2);
    let rival = without([0, 1]);
    let other = rival.mutex("a").unwrap().try_lock();
    match other {
        Ok(Some(other)) => {
            assert!(guard.is_valid() && other.is_valid(), "both believe in it");
            let (first, second) = (guard.fencing_token(), other.fencing_token());
            Err(format!(
                "two valid guards at once, with the tokens {first:?} and {second:?}"
            ))
        }
        other => {
            println!("the rival is told: {other:?}");
            assert!(guard.is_valid());
            Ok(())
        }
    }
}

#[test]
fn forgetful_node_grants_a_held_lock_only_without_its_marker() {
    // The time-outs are long: a rival that got two answers too late would fail even without a
    // marker.
    let options = "max_lease=10m&node_timeout=2s&watchdog=20s&command_timeout=4s";
    amnesia(
        |places| distlock::connect(&url(places, options)).unwrap(),
        options,
    )
    .unwrap();
    // The same protocol on servers that need no marker.
    let unmarked = |places: &[String]| {
        let context = Context::new(Arc::new(SystemClock), ClientId::random());
        let store = |place: &String| {
            let config = Config::from_url(&format!("redis://{place}")).unwrap();
            schemes().open(&config, &context).unwrap()
        };
        let stores: Vec<Arc<dyn Backend>> = places.iter().map(store).collect();
        let quorum = QuorumBackend::new(stores, Duration::from_secs(2), &context).unwrap();
        builder().backend(Arc::new(quorum)).connect().unwrap()
    };
    println!(
        "without the marker: {}",
        amnesia(unmarked, options).unwrap_err()
    );
}

/// The environment variable that makes this test binary one of the processes of `crowd`.
const ROLE: &str = "LOCK_TEST_QUORUM";
const ENTRY: &str = "requests::child_process_of_the_test";
const PROCESSES: usize = 3;
const THREADS: usize = 2;

/// Not a test of its own: the other processes of `crowd` run this.
#[test]
fn child_process_of_the_test() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let mut words = role.split(' ');
    let (file, seconds) = (words.next().unwrap(), words.next().unwrap());
    let end = SystemClock.now() + Duration::from_secs(seconds.parse().unwrap());
    let client = distlock::connect(words.next().unwrap()).unwrap();
    let claims: String = thread::scope(|scope| {
        let visits = |_| {
            let lock = client.mutex("a").unwrap();
            scope.spawn(move || {
                let mut claims = String::new();
                while SystemClock.now() < end {
                    // While nodes are away no majority may be available.
                    if let Ok(Some(guard)) = lock.try_lock_for(Duration::from_secs(5)) {
                        claim(guard, &mut claims);
                    }
                }
                claims
            })
        };
        let threads: Vec<_> = (0..THREADS).map(visits).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    std::fs::write(file, claims).unwrap();
}

/// Holds the lock for a moment, and notes from when to when the guard was valid.
fn claim(guard: LockGuard, claims: &mut String) {
    let from = SystemClock.now();
    let until = from + Duration::from_micros(fastrand::u64(0..20_000));
    let mut to = from;
    loop {
        let now = SystemClock.now();
        if !guard.is_valid() {
            break;
        }
        to = now;
        if now >= until {
            break;
        }
        let_pass(Duration::from_millis(1));
    }
    let token = guard.fencing_token().unwrap();
    writeln!(claims, "{} {} {token}", from.as_nanos(), to.as_nanos()).unwrap();
    drop(guard);
}

fn crowd(seconds: u64) {
    let longest = "max_lease=2s&node_timeout=300ms&watchdog=1s&command_timeout=1s";
    let mut quorum = Servers::with(5, 0, longest);
    let directory = tempfile::tempdir().unwrap();
    let files: Vec<_> = (0..PROCESSES)
        .map(|n| directory.path().join(n.to_string()))
        .collect();
    let start = |file: &Path, url: &str| -> Child {
        Example::program(std::env::current_exe().unwrap())
            .args(&["--exact", ENTRY, "--nocapture"])
            .env(ROLE, &format!("{} {seconds} {url}", file.display()))
            .spawn()
    };
    // The processes are the server's default user. The tests' own user gets its rights only after
    // each start, and the processes do not wait for that.
    let url = quorum
        .url
        .replace(&format!("{}@", distlock_tests::rights::LOGIN), "");
    let mut children: Vec<_> = files.iter().map(|file| start(file, &url)).collect();
    let end = SystemClock.now() + Duration::from_secs(seconds);
    let mut restarts = 0;
    while SystemClock.now() < end {
        for at in [1, 3] {
            quorum.servers[at].kill();
            let_pass(Duration::from_millis(fastrand::u64(0..300)));
            quorum.restart(at);
            restarts += 1;
            // Until the restarted node votes again, it is one of the two that may be away.
            let_pass(Duration::from_millis(fastrand::u64(500..2_000)));
        }
    }
    for child in &mut children {
        assert_eq!(
            child.wait_exit(scaled(SOON)),
            0,
            "{}\n{}",
            child.output(),
            child.errors()
        );
    }
    let mut claims: Vec<[u64; 3]> = Vec::new();
    for file in &files {
        for line in std::fs::read_to_string(file).unwrap().lines() {
            let numbers: Vec<_> = line
                .split(' ')
                .map(|number| number.parse().unwrap())
                .collect();
            claims.push(numbers.try_into().unwrap());
        }
    }
    claims.sort_unstable();
    for pair in claims.windows(2) {
        let [[_, to, token], [from, _, next]] = pair else {
            unreachable!("they are two")
        };
        assert!(to <= from, "two valid guards at once: {pair:?}");
        assert!(token < next, "tokens must grow: {pair:?}");
    }
    println!(
        "{} claims in {seconds} s by {PROCESSES} processes of {THREADS} threads, {restarts} \
         restarts of two of five nodes, \
         empty: one valid guard at a time, tokens grow",
        claims.len()
    );
    assert!(claims.len() > 20, "it went on all the while");
}

#[test]
fn nodes_emptied_in_turn_grant_no_lock_twice() {
    crowd(4);
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn nodes_emptied_in_turn_for_a_minute_grant_no_lock_twice() {
    crowd(60);
}

fn batch_workers(quorum: &Servers, name: &str, jobs: &str) {
    let mut child = Example::new("batch_workers")
        .args(&["--url", &quorum.url, "--name", name, "--jobs", jobs])
        .args(&["--processes", "3", "--workers", "4"])
        .spawn();
    let watch = Stopwatch::start();
    let code = child.wait_exit(scaled(Duration::from_secs(120)));
    let output = child.output();
    assert_eq!(code, 0, "{output}{}", child.errors());
    for part in ["Exact", "tokens   grew with every sale", "twice    none"] {
        assert!(output.contains(part), "{part}: {output}");
    }
    println!("{jobs} jobs exact in {:.1?}", watch.elapsed());
}

#[test]
fn batch_workers_are_exact_with_one_dead_and_one_frozen_node() {
    let mut quorum = Servers::with(5, 0, LONGEST);
    batch_workers(&quorum, "all", "2000");
    let left: Vec<_> = quorum
        .servers
        .iter()
        .map(|server| server.probe().exists("all"))
        .collect();
    println!("on these nodes something is left of it: {left:?}");
    // A process that ends right after its last release may not have sent it to all nodes. A vote
    // that is left on one of three live nodes may be that of a holder with two more votes on the
    // dead ones, and would block the lock: so the second run has a lock of its own.
    quorum.servers[0].kill();
    quorum.servers[2].pause();
    let_pass(ms(10));
    batch_workers(&quorum, "three of five", "1000");
}

#[test]
fn quorum_refuses_semaphores_by_name() {
    let servers = Servers::with(3, 0, "");
    let error = servers.client().semaphore("x", 2).unwrap_err();
    assert!(error.is_unsupported(), "{error}");
    assert!(error.to_string().contains("has no semaphores"), "{error}");
}

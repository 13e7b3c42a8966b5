//! Fair read-write locks: the order over all clients, and which waiter is notified next.

use super::LONG;
use super::waiting::listeners_on;
use crate::bench::{Bench, lease, name, soon};
use distlock::backend::LockKind;
use distlock::{Client, Error, Interrupt, LockOptions, OwnedGuard, RwLock};
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::queue;
use distlock_tests::redis::client;
use distlock_tests::time::{Stopwatch, eventually, let_pass, ms, retry_if_late};
use lock_core::backend::{AcquisitionId, Answer, Attempt, Receipt, Release, ReleaseOptions};
use parking_lot::Mutex as Shared;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

const NAME: &str = "x";
const AT_ONCE: Option<Duration> = Some(Duration::ZERO);

/// The longest time from a release to the grant to a notified waiter, on a machine that is not
/// late.
const TOLD: Duration = Duration::from_secs(2);

fn fair(client: &Client) -> RwLock {
    client.fair_rw_lock(NAME).unwrap()
}

fn waiting(probe: &mut Probe) -> i64 {
    queue::waiting(probe, NAME)
}

fn try_take(
    lock: &RwLock,
    writes: bool,
    wait: Option<Duration>,
    options: &LockOptions,
) -> Result<Option<OwnedGuard>, Error> {
    match writes {
        true => lock.write().acquire_owned(wait, options),
        false => lock.read().acquire_owned(wait, options),
    }
}

fn take(lock: &RwLock, writes: bool, wait: Option<Duration>) -> Option<OwnedGuard> {
    try_take(lock, writes, wait, &LockOptions::new()).unwrap()
}

/// Starts a thread that waits for the lock and passes the guard to `then`. Returns once the thread
/// has a position in the queue and its client listens.
fn enter<T: Send + 'static>(
    probe: &mut Probe,
    client: &Client,
    writes: bool,
    then: impl FnOnce(Option<OwnedGuard>) -> T + Send + 'static,
) -> JoinHandle<T> {
    let options = LockOptions::new();
    enter_with(probe, client, writes, options, |taken| then(taken.unwrap()))
}

fn enter_with<T: Send + 'static>(
    probe: &mut Probe,
    client: &Client,
    writes: bool,
    options: LockOptions,
    then: impl FnOnce(Result<Option<OwnedGuard>, Error>) -> T + Send + 'static,
) -> JoinHandle<T> {
    let before = waiting(probe);
    let lock = fair(client);
    let inbox = format!("{}:{}", queue::key(NAME), client.id());
    let waiter = thread::spawn(move || then(try_take(&lock, writes, Some(LONG), &options)));
    eventually("it has a position", LONG, || waiting(probe) > before);
    eventually("its client listens", LONG, || {
        listeners_on(probe, &inbox) == 1
    });
    waiter
}

fn give_back(guard: Option<OwnedGuard>) {
    guard.expect("it has its turn").unlock().unwrap();
}

/// Eight readers overlap: before each of them releases, another reader attempts to get in. Returns
/// how many readers overtook a queued writer; `None` if the writer was not granted within
/// `longest`.
fn overtaking_readers(
    lock_of: fn(&Client) -> RwLock,
    options: &str,
    longest: Duration,
) -> Option<u32> {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let clients: Vec<_> = (0..3).map(|_| client(&server, options)).collect();
    let read = |n: usize| take(&lock_of(&clients[n % 2]), false, AT_ONCE);
    let mut reading: VecDeque<_> = (0..8).map(|n| read(n).expect("no writer waits")).collect();
    let (writer, was_in) = (lock_of(&clients[2]), Arc::<AtomicBool>::default());
    let notes = Arc::clone(&was_in);
    let writer = thread::spawn(move || {
        let writing = take(&writer, true, Some(longest))?;
        notes.store(true, Ordering::SeqCst);
        writing.unlock().unwrap();
        Some(())
    });
    let (mut reads, mut overtaking) = (0, 0);
    while !writer.is_finished() {
        let is_behind = waiting(&mut probe) > 0;
        if let Some(next) = read(reads) {
            reads += 1;
            overtaking += u32::from(is_behind && !was_in.load(Ordering::SeqCst));
            reading.push_back(next);
        }
        if let Some(first) = reading.pop_front() {
            first.unlock().unwrap();
        }
    }
    println!("{reads} reads");
    writer.join().unwrap().map(|()| overtaking)
}

#[test]
fn writer_beside_overlapping_readers_gets_in_within_one_round() {
    let readers_first = |client: &Client| client.rw_lock(NAME).unwrap();
    let starved = overtaking_readers(readers_first, "writers=equal", ms(500));
    assert_eq!(starved, None, "such readers keep a writer out");
    assert_eq!(overtaking_readers(fair, "", LONG), Some(0));
}

/// Waiters of three clients are granted in the order of their positions. Consecutive readers hold
/// the lock together, and a newcomer overtakes no writer.
#[test]
fn readers_and_writers_of_all_clients_enter_in_the_order_of_arrival() {
    const WRITES: [bool; 14] = [
        false, false, true, false, true, true, false, false, false, false, true, false, false, true,
    ];
    let server = RedisServer::start();
    let clients: Vec<_> = (0..3).map(|_| client(&server, "")).collect();
    let mut probe = server.probe();
    let held = take(&fair(&clients[0]), true, None);
    let seen = Arc::new(Shared::new(Vec::new()));
    let waiters: Vec<_> = (0..WRITES.len())
        .map(|n| {
            let seen = Arc::clone(&seen);
            let before = WRITES[..n].iter().rposition(|writes| *writes);
            let behind = WRITES[n..].iter().position(|writes| *writes);
            let group = before.map_or(0, |at| at + 1)..behind.map_or(WRITES.len(), |at| at + n);
            enter(&mut probe, &clients[n % 3], WRITES[n], move |guard| {
                seen.lock().push(n);
                if !WRITES[n] {
                    eventually("all readers that are next are in", LONG, || {
                        let seen = seen.lock();
                        group.clone().all(|reader| seen.contains(&reader))
                    });
                }
                give_back(guard);
            })
        })
        .collect();
    let newcomer = fair(&clients[1]);
    assert!(take(&newcomer, false, AT_ONCE).is_none());
    give_back(held);
    while waiters.iter().any(|waiter| !waiter.is_finished()) {
        if let Some(reading) = take(&newcomer, false, AT_ONCE) {
            assert_eq!(seen.lock().len(), WRITES.len(), "it overtakes a writer");
            reading.unlock().unwrap();
        }
    }
    waiters
        .into_iter()
        .for_each(|waiter| waiter.join().unwrap());
    let seen = seen.lock();
    for (at, n) in seen.iter().enumerate() {
        let writers = |list: &[usize]| list.iter().filter(|it| WRITES[**it]).count();
        let all: Vec<_> = (0..WRITES.len()).collect();
        assert_eq!(writers(&seen[..at]), writers(&all[..*n]), "{n} in {seen:?}");
    }
    assert_eq!(seen.len(), WRITES.len());
    assert!(take(&newcomer, false, AT_ONCE).is_some());
    eventually("no position is left", LONG, || {
        !probe.exists(&queue::key(NAME))
    });
}

/// A release notifies the next waiter, a granted reader notifies the reader behind it, the last
/// reader notifies the writer, and a writer that gives up notifies the reader behind it. Without
/// that, a waiter would attempt again only after five seconds.
#[test]
fn next_owner_is_told_by_each_that_makes_room() {
    retry_if_late(|| {
        let server = RedisServer::start();
        let clients: Vec<_> = (0..3)
            .map(|_| client(&server, "fair_presence=1m"))
            .collect();
        let mut probe = server.probe();
        let mine = |guard: Option<OwnedGuard>| guard.expect("it has its turn");
        let held = take(&fair(&clients[0]), true, None);
        let readers = [1, 2].map(|n| enter(&mut probe, &clients[n], false, mine));
        let writer = enter(&mut probe, &clients[1], true, mine);
        let_pass(ms(50)); // the attempts behind their subscriptions
        let watch = Stopwatch::start();
        give_back(held);
        let reading = readers.map(|reader| reader.join().unwrap());
        assert_told("readers", watch.elapsed());
        assert!(!writer.is_finished());
        let watch = Stopwatch::start();
        reading
            .into_iter()
            .for_each(|guard| guard.unlock().unwrap());
        let writing = writer.join().unwrap();
        assert_told("the writer", watch.elapsed());
        writing.unlock().unwrap();
        let reading = take(&fair(&clients[0]), false, None);
        let stop = Interrupt::new();
        let options = LockOptions::new().interrupt(&stop);
        let quits = enter_with(&mut probe, &clients[1], true, options, |taken| {
            taken.unwrap_err()
        });
        let behind = enter(&mut probe, &clients[2], false, give_back);
        let_pass(ms(50)); // as above
        let watch = Stopwatch::start();
        stop.fire();
        assert!(quits.join().unwrap().is_interrupted());
        behind.join().unwrap();
        assert_told("the reader behind a writer that gives up", watch.elapsed());
        give_back(reading);
    });
}

/// Fails as late if `time` is not below `TOLD`: a waiter that is not notified attempts again only
/// after five seconds.
fn assert_told(who: &str, time: Duration) {
    println!("{who}: {time:?}");
    if time >= TOLD {
        distlock_tests::time::late(TOLD, format!("{who}: {time:?}"));
    }
}

/// A thread that writes may also read at once, though others wait. After its write release the next
/// reader joins its read hold.
#[test]
fn writer_reads_at_once_though_others_wait() {
    let server = RedisServer::start();
    let clients: Vec<_> = (0..3).map(|_| client(&server, "")).collect();
    let mut probe = server.probe();
    let lock = fair(&clients[0]);
    let writing = lock.write().lock().unwrap();
    let reader = enter(&mut probe, &clients[1], false, |guard| guard.unwrap());
    let writer = enter(&mut probe, &clients[2], true, give_back);
    let reading = lock.read().lock().unwrap();
    assert_eq!(reading.fencing_token(), writing.fencing_token());
    assert_eq!(waiting(&mut probe), 2);
    writing.unlock().unwrap();
    let other = reader.join().unwrap();
    let again = lock.read().lock().unwrap();
    assert!(lock.write().try_lock().unwrap_err().is_misuse());
    assert!(!writer.is_finished());
    again.unlock().unwrap();
    other.unlock().unwrap();
    assert!(reading.is_valid() && !writer.is_finished());
    reading.unlock().unwrap();
    writer.join().unwrap();
    assert!(!probe.exists(NAME));
}

/// A writer that gives up leaves no entry in the queue, and the release of the last live reader
/// frees the lock although dead readers are still in its hash.
#[test]
fn lock_of_dead_readers_and_leavers_is_free_at_once() {
    let server = RedisServer::start();
    let bench = Bench::new(&server.url());
    let mut probe = server.probe();
    let [read, write] =
        [LockKind::FairRead, LockKind::FairWrite].map(|kind| name(NAME).of_kind(kind));
    let plain = ReleaseOptions::WITHOUT_TOMBSTONE;
    let ask = |name: &distlock::LockName, owner| {
        let attempt = Attempt::new(name, owner, lease(30_000));
        bench.backend.acquire(&attempt, soon()).unwrap()
    };
    let release = |name: &distlock::LockName, owner| {
        let held = AcquisitionId::new(name.clone(), owner, lease(30_000), Receipt::default());
        bench.backend.release(&held, plain, soon()).unwrap()
    };
    let [dead, alive, quits, next] = [(); 4].map(|()| bench.owner());
    assert!(!ask(&read, dead).is_busy() && !ask(&read, alive).is_busy());
    assert!(ask(&write, quits).is_busy() && ask(&write, next).is_busy());
    assert_eq!(waiting(&mut probe), 2);
    assert_eq!(release(&write, quits), Release::Gone);
    assert_eq!(waiting(&mut probe), 1);
    let hold = format!("{{{NAME}}}:{dead}:rwlock_timeout:1");
    assert_eq!(probe.command(&["DEL", &hold]).int(), 1);
    assert!(matches!(release(&read, alive), Release::Freed));
    assert!(!probe.exists(NAME), "the dead one ends with the last");
    assert!(matches!(ask(&write, next), Answer::Granted(_)));
    assert!(!probe.exists(&queue::key(NAME)));
    assert!(matches!(release(&write, next), Release::Freed));
    // A reader whose lease ended while another one held the lock queues again, and gives up.
    assert!(!ask(&read, dead).is_busy() && !ask(&read, alive).is_busy());
    assert_eq!(probe.command(&["DEL", &hold]).int(), 1);
    assert!(ask(&write, next).is_busy() && ask(&read, dead).is_busy());
    assert_eq!(waiting(&mut probe), 2);
    assert_eq!(release(&read, dead), Release::Gone);
    assert_eq!(waiting(&mut probe), 1);
    assert!(matches!(release(&read, alive), Release::Freed));
    assert!(matches!(ask(&write, next), Answer::Granted(_)));
    assert!(matches!(release(&write, next), Release::Freed));
    // A release after a forced release leaves no key except the counter.
    assert!(!ask(&read, dead).is_busy());
    assert!(
        bench
            .backend
            .admin()
            .unwrap()
            .force_release(&read, soon())
            .unwrap()
    );
    assert_eq!(release(&read, dead), Release::Gone);
    assert_eq!(
        probe.keys(&format!("*{NAME}*")),
        [format!("redisson_lock_token:{{{NAME}}}")]
    );
}

//! User code that panics at its n-th call, for each n of a cycle of each kind of lock: the cycle
//! continues as without the panic, and no lock stays held in the client or in the store.

use distlock::time::{Clock, Moment, Signal, SystemClock, Woken};
use distlock::{Client, DistLock, Event, EventHandler, LockOptions, MultiLock};
use distlock_tests::own_process::alone;
use distlock_tests::process::RedisServer;
use distlock_tests::time::eventually;
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use parking_lot::Mutex;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::set_global_default;

const LONG: Duration = Duration::from_secs(60);
/// How long a thread waits for a lock that it will not get.
const SHORT: Duration = Duration::from_millis(1);

/// The kinds of user code that the library calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Code {
    Subscriber,
    Recorder,
    Handler,
    Clock,
}

/// Which call panics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    None,
    Each,
    Only(u64),
}

static PLAN: Mutex<(Code, Turn, u64)> = Mutex::new((Code::Clock, Turn::None, 0));

/// Counts a call of user code, and panics if the plan says so. The panic hook is not called, so
/// nothing is printed.
fn called(code: Code) {
    let mut plan = PLAN.lock();
    if plan.0 != code {
        return;
    }
    plan.2 += 1;
    let panics = match plan.1 {
        Turn::None => false,
        Turn::Each => true,
        Turn::Only(number) => number == plan.2,
    };
    drop(plan);
    if panics {
        resume_unwind(Box::new("on purpose"));
    }
}

struct Subscriber;

impl tracing::Subscriber for Subscriber {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        called(Code::Subscriber);
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        called(Code::Subscriber);
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {
        called(Code::Subscriber);
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {
        called(Code::Subscriber);
    }

    fn event(&self, _: &tracing::Event<'_>) {
        called(Code::Subscriber);
    }

    fn enter(&self, _: &Id) {
        called(Code::Subscriber);
    }

    fn exit(&self, _: &Id) {
        called(Code::Subscriber);
    }

    fn try_close(&self, _: Id) -> bool {
        called(Code::Subscriber);
        true
    }
}

struct Metric;

impl CounterFn for Metric {
    fn increment(&self, _: u64) {
        called(Code::Recorder);
    }

    fn absolute(&self, _: u64) {}
}

impl GaugeFn for Metric {
    fn increment(&self, _: f64) {
        called(Code::Recorder);
    }

    fn decrement(&self, _: f64) {
        called(Code::Recorder);
    }

    fn set(&self, _: f64) {}
}

impl HistogramFn for Metric {
    fn record(&self, _: f64) {
        called(Code::Recorder);
    }
}

impl Recorder for Metric {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        called(Code::Recorder);
    }

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        called(Code::Recorder);
    }

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        called(Code::Recorder);
    }

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        called(Code::Recorder);
        Counter::from_arc(Arc::new(Self))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        called(Code::Recorder);
        Gauge::from_arc(Arc::new(Self))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        called(Code::Recorder);
        Histogram::from_arc(Arc::new(Self))
    }
}

struct Handler;

impl EventHandler for Handler {
    fn on_event(&self, _: &Event) {
        called(Code::Handler);
    }
}

#[derive(Debug)]
struct Watch;

impl Clock for Watch {
    fn now(&self) -> Moment {
        called(Code::Clock);
        SystemClock.now()
    }

    fn unix_time(&self) -> Duration {
        called(Code::Clock);
        SystemClock.unix_time()
    }

    fn wait(&self, signal: &Arc<Signal>, until: Moment) -> Woken {
        called(Code::Clock);
        SystemClock.wait(signal, until)
    }
}

type Lock = Arc<dyn DistLock>;
type Kind = (&'static str, fn(&Client) -> Lock);

/// The kind of lock that several threads can hold at the same time.
const READ: &str = "read";

/// The kinds of locks that a thread holds.
const KINDS: [Kind; 5] = [
    ("mutex", |client| client.mutex("mutex").unwrap().into()),
    ("fair", |client| client.fair_mutex("fair").unwrap().into()),
    ("write", |client| {
        client.rw_lock("write").unwrap().write().into()
    }),
    (READ, |client| client.rw_lock("read").unwrap().read().into()),
    ("multi", |client| {
        let names = ["one", "two"].map(|name| client.mutex(name).unwrap());
        MultiLock::new(&names).unwrap().into()
    }),
];

/// Lock, nested lock, a busy thread, renewal, unlock, drop, loss, and lock again.
fn cycle(kind: &str, lock: &Lock, same: &Lock) {
    let guard = lock.lock().unwrap();
    lock.lock().unwrap().unlock().unwrap();
    thread::scope(|scope| {
        let busy = scope.spawn(|| lock.try_lock_for(SHORT).unwrap().is_some());
        assert_eq!(busy.join().unwrap(), kind == READ);
    });
    guard.extend(LONG).unwrap();
    guard.unlock().unwrap();
    // The other thread's wait may not have left the queue of a fair lock yet.
    drop(lock.try_lock_for(LONG).unwrap().expect("it was released"));
    let lost = lock.lock().unwrap();
    assert!(same.force_unlock().unwrap());
    assert!(lost.unlock().unwrap_err().is_lost());
    lock.lock().unwrap().unlock().unwrap();
}

fn cycle_of_permits(client: &Client) {
    let semaphore = client.semaphore("permits", 2).unwrap();
    let permits = semaphore.acquire_many(2).unwrap();
    thread::scope(|scope| {
        let busy = scope.spawn(|| semaphore.try_acquire_for(SHORT).unwrap().is_some());
        assert!(!busy.join().unwrap());
    });
    permits.extend(LONG).unwrap();
    permits.unlock().unwrap();
    drop(semaphore.try_acquire().unwrap().expect("it was released"));
    let lost = semaphore.acquire().unwrap();
    assert!(semaphore.force_release_all().unwrap());
    assert!(lost.unlock().unwrap_err().is_lost());
    semaphore.acquire().unwrap().unlock().unwrap();
}

fn cycle_of_an_election(client: &Client) {
    let election = client.election("election").unwrap();
    for _ in 0..2 {
        election.campaign().unwrap();
        assert!(election.wait_for_leadership(LONG, None).unwrap());
        election.resign().unwrap();
    }
}

/// Runs the cycle of the kind of lock with this number, and returns the name of the kind.
fn cycles(client: &Client, other: &Client, kind: usize) -> &'static str {
    match KINDS.get(kind) {
        Some((name, make)) => {
            cycle(name, &make(client), &make(other));
            name
        }
        None if kind == KINDS.len() => {
            cycle_of_permits(client);
            "permits"
        }
        None => {
            cycle_of_an_election(client);
            "election"
        }
    }
}

/// Runs a cycle with a client that has user code of all kinds, and checks that the lock is free
/// afterwards. Returns the number of calls of `code`.
fn run(url: &str, other: &Client, kind: usize, code: Code, turn: Turn) -> u64 {
    *PLAN.lock() = (code, turn, 0);
    let client = distlock::builder()
        .url(url)
        .unwrap()
        .events(Arc::new(Handler));
    let client = client
        .clock(Arc::new(Watch))
        .metrics_by_name()
        .connect()
        .unwrap();
    let name = cycles(&client, other, kind);
    let calls = std::mem::replace(&mut *PLAN.lock(), (code, Turn::None, 0)).2;
    let what = format!("{name} with {code:?} {turn:?} on {url}");
    // Neither the client nor the store holds the lock any more: both let it be acquired.
    eventually(&what, LONG, || cycles_end(&client, other, kind));
    calls
}

/// Returns whether another client can acquire the lock, and after that another thread of this
/// client.
fn cycles_end(client: &Client, other: &Client, kind: usize) -> bool {
    let options = LockOptions::new();
    let one = |client: &Client| match KINDS.get(kind) {
        Some((_, make)) => make(client).try_lock().unwrap().is_some(),
        None if kind == KINDS.len() => {
            let semaphore = client.semaphore("permits", 2).unwrap();
            semaphore.try_acquire_with(2, &options).unwrap().is_some()
        }
        None => client
            .owned_mutex("election")
            .unwrap()
            .try_lock()
            .unwrap()
            .is_some(),
    };
    one(other) && thread::scope(|scope| scope.spawn(|| one(client)).join().unwrap())
}

/// Runs the cycles of all kinds of locks, with a panic at every `step`-th call of each kind of
/// code.
fn table(url: &str, step: usize) {
    let other = distlock::connect(url).unwrap();
    for kind in 0..KINDS.len() + 2 {
        for code in [Code::Subscriber, Code::Recorder, Code::Handler, Code::Clock] {
            let calls = run(url, &other, kind, code, Turn::None);
            run(url, &other, kind, code, Turn::Each);
            for number in (1..=calls).step_by(step) {
                run(url, &other, kind, code, Turn::Only(number));
            }
            println!("{kind} {code:?}: {calls} calls");
        }
    }
}

/// Installs the subscriber and the recorder of this process.
fn install() {
    set_global_default(Subscriber).expect("there is no other");
    metrics::set_global_recorder(Metric).expect("there is no other");
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn panic_at_any_call_of_user_code_changes_nothing_in_memory() {
    alone(
        "faults::panics::panic_at_any_call_of_user_code_changes_nothing_in_memory",
        || {
            install();
            table("memory://panics", 1);
        },
    );
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn panic_at_some_calls_of_user_code_changes_nothing_on_redis() {
    alone(
        "faults::panics::panic_at_some_calls_of_user_code_changes_nothing_on_redis",
        || {
            install();
            table(&RedisServer::start().url(), 23);
        },
    );
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn panic_at_any_call_of_user_code_changes_nothing_on_redis() {
    alone(
        "faults::panics::panic_at_any_call_of_user_code_changes_nothing_on_redis",
        || {
            install();
            table(&RedisServer::start().url(), 1);
        },
    );
}

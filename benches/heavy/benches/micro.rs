//! Micro-benchmarks of the engine, its queue and its timer wheel, through the public API. The store
//! is in memory, so that no round trip hides their cost.

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use distlock::{Client, LockOptions, Mutex, OwnedGuard};
use parking_lot::ReentrantMutex;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

fn client() -> Client {
    distlock::connect("memory://").expect("a URL of ours")
}

/// Measures a whole lock and unlock without a network, and the creation of a handle.
fn cycle(c: &mut Criterion) {
    let client = client();
    let lock = client.mutex("cycle").expect("a name");
    c.bench_function("lock + unlock", |b| b.iter(|| lock.lock().and_then(|guard| guard.unlock())));
    let fixed = LockOptions::new().lease(Duration::from_secs(30));
    c.bench_function("lock + unlock, fixed lease: no timer", |b| {
        b.iter(|| lock.lock_with(&fixed).and_then(|guard| guard.unlock()));
    });
    c.bench_function("a handle for a name", |b| b.iter(|| client.mutex("another")));
}

fn nested(c: &mut Criterion) {
    let client = client();
    let lock = client.mutex("nested").expect("a name");
    let _outer = lock.lock().expect("it is free");
    c.bench_function("nested lock + unlock", |b| {
        b.iter(|| lock.lock().and_then(|guard| guard.unlock()))
    });
    let local = ReentrantMutex::new(());
    let _held = local.lock();
    c.bench_function("nested parking_lot::ReentrantMutex", |b| {
        b.iter(|| drop(black_box(local.lock())))
    });
}

/// Measures the checks that a program makes before each step of its work.
fn validity(c: &mut Criterion) {
    let client = client();
    let guard = client.owned_mutex("asked").and_then(|lock| lock.lock()).expect("it is free");
    c.bench_function("guard.is_valid()", |b| b.iter(|| black_box(guard.is_valid())));
    c.bench_function("guard.remaining()", |b| b.iter(|| black_box(guard.remaining())));
}

/// Measures whether many other held locks slow down the map of names and the timer wheel, which
/// should both take constant time.
///
/// After a release the timer of the name stays in the wheel, so that the next lock of this name
/// does not touch the wheel. The benchmarks of the wheel therefore lock a new name each time. Its
/// timer is due soon, so that few timers accumulate.
fn among_many(c: &mut Criterion) {
    let later = LockOptions::new().watched(Duration::from_secs(30));
    let soon = LockOptions::new().watched(Duration::from_secs(1));
    for others in [1_000, 100_000] {
        let client = client();
        let hold = |index: usize| {
            client.owned_mutex(format!("other:{index}")).and_then(|lock| lock.lock())
        };
        let _held: Vec<OwnedGuard> =
            (0..others).map(|index| hold(index).expect("it is free")).collect();
        let lock = client.mutex("one").expect("a name");
        c.bench_function(&format!("lock + unlock among {others} held locks"), |b| {
            b.iter(|| lock.lock().and_then(|guard| guard.unlock()));
        });
        let mut names = 0_u64;
        let mut fresh = || {
            names += 1;
            client.mutex(format!("fresh:{names}")).expect("a name")
        };
        let cycle = |lock: &Mutex, lease: &LockOptions| {
            lock.lock_with(lease).and_then(|guard| guard.unlock()).expect("it is free");
        };
        c.bench_function(&format!("schedule: a fresh name among {others} held locks"), |b| {
            let one = |lock: Mutex| {
                cycle(&lock, &soon);
                lock
            };
            b.iter_batched(&mut fresh, one, BatchSize::SmallInput);
        });
        // The second timer of the name is due before the first, which is therefore removed.
        let what = "schedule, cancel, schedule: twice a fresh name";
        c.bench_function(&format!("{what} among {others} held locks"), |b| {
            let two = |lock: Mutex| {
                cycle(&lock, &later);
                cycle(&lock, &soon);
                lock
            };
            b.iter_batched(&mut fresh, two, BatchSize::SmallInput);
        });
    }
}

/// Measures the local queue: three other threads lock and unlock in a loop meanwhile.
fn contended(c: &mut Criterion) {
    let client = client();
    let lock = client.mutex("contended").expect("a name");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    drop(lock.lock().expect("the store is there"));
                }
            });
        }
        c.bench_function("lock + unlock, three others want it", |b| {
            b.iter_batched(
                || (),
                |()| lock.lock().and_then(|guard| guard.unlock()),
                BatchSize::SmallInput,
            );
        });
        done.store(true, Ordering::Relaxed);
    });
}

criterion_group!(micro, cycle, nested, validity, among_many, contended);
criterion_main!(micro);

//! The workloads. Each workload ends at a given time, or when the user stops the benchmark, and
//! releases its locks at its end.

use super::report::Figure;
use super::times::Times;
use distlock::admin::Counters;
use distlock::crossbeam_channel::{Receiver, Sender, after, bounded, select};
use distlock::time::{Clock, Moment, SystemClock};
use distlock::{Client, Error, Interrupt, LockOptions, Mutex, OwnedGuard};
use std::thread;
use std::time::Duration;

/// The interval of the renewals of each held lock; the lease is three times as long.
const RENEWED: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(3);

/// The durations of lock and unlock, which each thread repeats alternately.
#[derive(Default)]
pub(super) struct Pairs {
    pub(super) lock: Times,
    pub(super) unlock: Times,
    pub(super) cycle: Times,
    elapsed: Duration,
}

impl Pairs {
    /// Returns the figure to show: the rate of all threads, and the duration of one pair.
    pub(super) fn figure(&self, id: &'static str, what: &str) -> Figure {
        Figure::of(id, what, &self.cycle).rate(self.cycle.count, self.elapsed)
    }

    fn merge(&mut self, other: &Self) {
        self.lock.merge(&other.lock);
        self.unlock.merge(&other.unlock);
        self.cycle.merge(&other.cycle);
    }
}

/// Acquires and releases each of these locks in a separate thread, at most `most` times. Acquires
/// none after `until`.
pub(super) fn pairs(
    locks: &[Mutex],
    until: Moment,
    most: u64,
    stop: &Interrupt,
) -> Result<Pairs, Error> {
    let began = SystemClock.now();
    let each = in_threads(locks, stop, |lock| pairs_of(lock, until, most, stop))?;
    let mut all = Pairs {
        elapsed: SystemClock.now().since(began),
        ..Pairs::default()
    };
    each.iter().for_each(|one| all.merge(one));
    Ok(all)
}

fn pairs_of(lock: &Mutex, until: Moment, most: u64, stop: &Interrupt) -> Result<Pairs, Error> {
    let mut pairs = Pairs::default();
    while pairs.cycle.count < most {
        let began = SystemClock.now();
        let Some(guard) = take(until, stop, |wait, options| {
            lock.try_lock_for_with(wait, options)
        })?
        else {
            break;
        };
        let granted = SystemClock.now();
        guard.unlock()?;
        let ended = SystemClock.now();
        pairs.lock.add(granted.since(began));
        pairs.unlock.add(ended.since(granted));
        pairs.cycle.add(ended.since(began));
    }
    Ok(pairs)
}

/// Acquires a lock; `None` if the lock is not granted before `until`, or `stop` is fired by a
/// signal or by the failure of another thread.
fn take<T>(
    until: Moment,
    stop: &Interrupt,
    take: impl FnOnce(Duration, &LockOptions) -> Result<Option<T>, Error>,
) -> Result<Option<T>, Error> {
    let left = until.since(SystemClock.now());
    if left.is_zero() || stop.is_fired() {
        return Ok(None);
    }
    match take(left, &LockOptions::new().interrupt(stop)) {
        Err(error) if error.is_interrupted() => Ok(None),
        outcome => outcome,
    }
}

/// Calls `work` with each item in a separate thread. A failure fires `stop`, which ends all
/// threads. If several items have failed, returns the failure of the first in `items`.
fn in_threads<T: Sync, R: Send>(
    items: &[T],
    stop: &Interrupt,
    work: impl Fn(&T) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, Error> {
    thread::scope(|scope| {
        let work = |item| work(item).inspect_err(|_| stop.fire());
        let threads: Vec<_> = items
            .iter()
            .map(|item| scope.spawn(move || work(item)))
            .collect();
        let ended = threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"));
        ended.collect()
    })
}

/// Measures the time from the release by one client to the grant to the other client, which waits
/// for the lock. The waiting client has `pause` to begin its wait before the holder releases the
/// lock.
pub(super) fn hand_off(
    locks: &[Mutex; 2],
    pause: Duration,
    until: Moment,
    stop: &Interrupt,
) -> Result<Times, Error> {
    let mut times = Times::default();
    let stopped = stop.fired();
    thread::scope(|scope| {
        let sides = locks.each_ref().map(|lock| {
            let ((order, orders), (moment, moments)) = (bounded(1), bounded(1));
            let side = move || side(lock, &orders, &moment, until + pause, stop);
            (
                order,
                moments,
                scope.spawn(move || side().inspect_err(|_| stop.fire())),
            )
        });
        let exchange = |holder: usize| {
            let [(holder, released, _), (other, granted, _)] =
                [holder, 1 - holder].map(|at| &sides[at]);
            other.send(()).ok()?;
            select! {
                recv(after(pause)) -> _ => {}
                recv(stopped) -> _ => return None,
            }
            holder.send(()).ok()?;
            let released = released.recv().ok()?;
            Some(granted.recv().ok()?.since(released))
        };
        let mut holder = 0;
        let _first = sides[holder].0.send(()).map(|()| sides[holder].1.recv());
        let mut is_first = true;
        while SystemClock.now() < until
            && let Some(time) = exchange(holder)
        {
            // The first exchange also makes connections, so its time does not count.
            if !is_first {
                times.add(time);
            }
            is_first = false;
            holder = 1 - holder;
        }
        let threads = sides.map(|(_, _, thread)| thread);
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("it does not panic"))
    })?;
    Ok(times)
}

/// Acquires the lock at one message and releases it at the next, and sends the time of each.
fn side(
    lock: &Mutex,
    orders: &Receiver<()>,
    moments: &Sender<Moment>,
    until: Moment,
    stop: &Interrupt,
) -> Result<(), Error> {
    while orders.recv().is_ok() {
        let Some(guard) = take(until, stop, |wait, options| {
            lock.try_lock_for_with(wait, options)
        })?
        else {
            break;
        };
        let is_wanted = moments.send(SystemClock.now()).is_ok() && orders.recv().is_ok();
        let released = SystemClock.now();
        guard.unlock()?;
        if !is_wanted || moments.send(released).is_err() {
            break;
        }
    }
    Ok(())
}

/// Locks that were held, and the number of their renewals.
pub(super) struct Held {
    pub(super) count: usize,
    pub(super) renewed: u64,
    pub(super) lost: usize,
    pub(super) time: Duration,
}

/// Acquires as many of these locks as possible within the first third of the time, and counts their
/// renewals during the rest.
pub(super) fn hold(
    client: &Client,
    names: &[String],
    threads: usize,
    until: Moment,
    counters: &Counters,
    stop: &Interrupt,
) -> Result<Held, Error> {
    let wait = |time: Duration| {
        select! {
            recv(after(time)) -> _ => {}
            recv(stop.fired()) -> _ => {}
        }
    };
    let began = SystemClock.now();
    let third = until.since(began) / 3;
    let parts: Vec<_> = names.chunks(names.len().div_ceil(threads)).collect();
    let guards = in_threads(&parts, stop, |names| {
        let mut guards = Vec::new();
        // Each thread spreads its acquisitions over up to a second, so that the renewals, one a
        // second for each lock, are spread, too.
        let step = RENEWED.min(third / 2) / u32::try_from(names.len()).unwrap_or(u32::MAX);
        for (number, name) in (0..).zip(*names) {
            wait((began + step * number).since(SystemClock.now()));
            let lock = client.owned_mutex(name)?;
            let leased = |wait, options: &LockOptions| {
                lock.try_lock_for_with(wait, &options.clone().watched(LEASE))
            };
            let Some(guard) = take(began + third, stop, leased)? else {
                break;
            };
            guards.push(guard);
        }
        Ok(guards)
    })?;
    let guards: Vec<OwnedGuard> = guards.into_iter().flatten().collect();
    // Waits until the renewals of the first locks are due.
    wait((began + RENEWED).since(SystemClock.now()));
    let (before, from) = (counters.count("renewed"), SystemClock.now());
    wait(until.since(from));
    let (renewed, time) = (
        counters.count("renewed") - before,
        SystemClock.now().since(from),
    );
    let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
    Ok(Held {
        count: guards.len(),
        renewed,
        lost,
        time,
    })
}

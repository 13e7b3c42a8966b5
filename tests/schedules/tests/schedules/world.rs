//! [`World`]: a store, its clients, and the invariants that must hold in every schedule.

use crate::explore::{is_punctual, trace};
use crate::network::Network;
use distlock_schedules::backend::{Admin, Backend, LockInfo};
use distlock_schedules::sync::time;
use distlock_schedules::{
    Client, Clock, Config, DistLock, Error, Event, FencingToken, Interrupt, LockGuard, LockKind,
    LockName, LockOptions, MemoryBackend, Moment, Mutex, OwnedGuard, OwnedMutex, Signal,
    SystemClock, Woken,
};
use std::sync::{self, Arc, MutexGuard, PoisonError};
use std::time::Duration;

pub(crate) use shuttle::thread;

/// Returns a duration of this many milliseconds.
pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The lease of the watchdog, unless a scenario sets another.
pub(crate) const LEASE: Duration = ms(300);

/// A lease that is longer than the scenarios that use it, so that a waiter that sleeps until the
/// lease ends, because it missed a wake-up, exceeds the scenario's time.
pub(crate) const LONG: Duration = ms(30_000);

/// The command time-out of all clients.
pub(crate) const TIMEOUT: Duration = ms(100);

/// The name of the lock that the clients contend for.
pub(crate) const NAME: &str = "x";

/// The virtual clock, with a time of day that advances with the virtual time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Virtual;

impl Clock for Virtual {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    fn unix_time(&self) -> Duration {
        Duration::from_secs(1_800_000_000) + time::peek()
    }

    fn wait(&self, signal: &Arc<Signal>, until: Moment) -> Woken {
        SystemClock.wait(signal, until)
    }
}

/// Sleeps for this virtual time.
pub(crate) fn sleep(time: Duration) {
    Virtual.wait(&Arc::new(Signal::new()), Virtual.now() + time);
}

/// Waits until `condition` holds, checking it each millisecond. In punctual schedules it must hold
/// within this time.
pub(crate) fn until(what: &str, within: Duration, mut condition: impl FnMut() -> bool) {
    let end = time::peek() + within;
    while !condition() {
        assert!(
            time::peek() < end || !is_punctual(),
            "not within {within:?}: {what}"
        );
        sleep(ms(1));
    }
}

/// Asserts in punctual schedules that at most this time has passed since `start`.
pub(crate) fn in_time(what: &str, start: Duration, most: Duration) {
    let took = time::peek() - start;
    assert!(
        took <= most || !is_punctual(),
        "{what} took {took:?}, and may take {most:?}"
    );
}

/// The store, its network and the judge that all tasks of an execution share.
pub(crate) struct World {
    pub(crate) net: Arc<Network>,
    pub(crate) judge: Arc<Judge>,
    store: MemoryBackend,
}

impl World {
    pub(crate) fn new() -> Self {
        let store = MemoryBackend::new(Arc::new(Virtual));
        let net = Arc::new(Network::new(store.clone()));
        let judge = Arc::new(Judge {
            net: Arc::clone(&net),
            record: sync::Mutex::default(),
        });
        Self { net, judge, store }
    }

    pub(crate) fn client(&self) -> Client {
        self.client_with(|config| config)
    }

    /// Makes a client with these settings, whose events the judge counts.
    pub(crate) fn client_with(&self, configure: impl FnOnce(Config) -> Config) -> Client {
        let (judge, net) = (Arc::clone(&self.judge), Arc::clone(&self.net));
        let config = Config::default()
            .with_watchdog(LEASE)
            .with_command_timeout(TIMEOUT);
        distlock_schedules::builder()
            .backend(net)
            .clock(Arc::new(Virtual))
            .config(configure(config))
            .events(Arc::new(move |event: &Event| judge.event(event)))
            .connect()
            .expect("a client")
    }

    /// Returns whether the store has a holder of the lock, of any kind. Reads the store directly,
    /// without the network.
    pub(crate) fn is_held(&self) -> bool {
        let kinds = [
            LockKind::Mutex,
            LockKind::Read,
            LockKind::Permits { limit: 1, count: 1 },
        ];
        kinds.into_iter().any(
            |kind| match self.store.inspect(&named(kind), Moment::NEVER) {
                Ok(info) => info.holder.is_some(),
                // The store refuses to read a semaphore as a mutex or read-write lock, and the
                // other way round.
                Err(failure) => {
                    assert!(failure.error().is_foreign_format(), "{failure:?}");
                    false
                }
            },
        )
    }

    /// Returns the store's information about the lock of this kind. Reads the store directly,
    /// without the network.
    pub(crate) fn inspect(&self, kind: LockKind) -> LockInfo {
        self.store
            .inspect(&named(kind), Moment::NEVER)
            .expect("memory")
    }

    /// Returns how many waiters for a release the store counts.
    pub(crate) fn waiting_clients(&self, kind: LockKind) -> u64 {
        let infos = self.store.inspect_all(&[named(kind)], Moment::NEVER);
        infos
            .into_iter()
            .map(|info| info.expect("memory").waiters.unwrap_or(0))
            .sum()
    }

    /// Holds the lock for `time`, and checks the guard and the store. Returns whether every check
    /// found the guard valid.
    pub(crate) fn stay(&self, guard: &impl Held, time: Duration) -> bool {
        let was_valid = self.judge.stay(guard, time);
        let is_held = self.is_held();
        let is_valid = self.judge.look(guard);
        assert!(
            is_held || !is_valid || self.net.is_lost(guard.token()),
            "a guard is valid, and the store has no holder"
        );
        was_valid && is_valid
    }

    /// Makes the store lose the lock. The holder learns it only from its next request.
    pub(crate) fn lose(&self) {
        self.net.lose(&LockName::new(NAME).expect("a name"));
    }

    /// Interrupts the working threads after 100 ms, waits for their end, and
    /// [settles](Self::settle).
    pub(crate) fn interrupt_and_settle(
        &self,
        stop: &Interrupt,
        working: Vec<thread::JoinHandle<()>>,
        clients: &[Client],
    ) {
        sleep(Duration::from_millis(100));
        stop.fire();
        working
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
        self.settle(clients);
    }

    /// Repairs the network, waits until the clients have nothing left to clean up, and checks that
    /// the store has no holder.
    pub(crate) fn settle(&self, clients: &[Client]) {
        self.net.trouble(0);
        self.net.replicas(false);
        let start = time::peek();
        for client in clients {
            while let Err(error) = client.wait_for_cleanup(LEASE * 4) {
                assert!(!is_punctual(), "{error}");
            }
        }
        in_time("the clean-up", start, ms(1_300));
        sleep(TIMEOUT); // a renewal that has left before may have no answer
        until("all requests have arrived", ms(1_000), || {
            self.net.under_way() == 0
        });
        assert!(
            !is_punctual() || !self.is_held(),
            "the store has a holder that no client knows of"
        );
    }

    /// Checks, after the drop of all handles and guards, that no thread, watch or stored lock
    /// remains.
    pub(crate) fn end(&self) {
        until("the clients' threads end", TIMEOUT, || time::threads() == 0);
        until("all requests have arrived", ms(1_000), || {
            self.net.under_way() == 0
        });
        assert_eq!(self.net.watches(), 0, "watches left");
        // A lease that has ended for its holder lasts longer in the store: by the allowance for
        // clock drift, and by the time for which its request was under way.
        while !is_punctual() && self.is_held() {
            sleep(LEASE);
        }
        assert!(!self.is_held(), "the store still has a holder");
        self.judge.end();
    }
}

/// A guard that is bound to its thread, or an owned one.
pub(crate) trait Held: Sized {
    fn is_valid(&self) -> bool;
    fn token(&self) -> FencingToken;
    fn unlock(self) -> Result<(), Error>;
}

/// A mutex whose guards are bound to their thread, or owned.
pub(crate) trait Lock {
    type Guard: Held;
    fn lock_with(&self, options: &LockOptions) -> Result<Self::Guard, Error>;
}

impl Lock for Mutex {
    type Guard = LockGuard;

    fn lock_with(&self, options: &LockOptions) -> Result<LockGuard, Error> {
        DistLock::lock_with(self, options)
    }
}

impl Lock for OwnedMutex {
    type Guard = OwnedGuard;

    fn lock_with(&self, options: &LockOptions) -> Result<OwnedGuard, Error> {
        Self::lock_with(self, options)
    }
}

/// Acquires the lock. In late schedules repeats attempts whose answers come too late.
pub(crate) fn take<L: Lock>(lock: &L) -> L::Guard {
    take_with(lock, &LockOptions::new())
}

/// Acquires the lock with these options, as [`take`] does.
pub(crate) fn take_with<L: Lock>(lock: &L, options: &LockOptions) -> L::Guard {
    patiently(|| lock.lock_with(options))
}

/// Runs an operation and returns its result. In late schedules repeats it while it fails as
/// unavailable, because its thread may get the answer after the time-out.
pub(crate) fn patiently<T>(mut operation: impl FnMut() -> Result<T, Error>) -> T {
    loop {
        match operation() {
            Ok(done) => return done,
            Err(error) => assert!(error.is_unavailable() && !is_punctual(), "{error}"),
        }
    }
}

/// Releases the lock. In late schedules the lock may have been lost.
pub(crate) fn give(guard: impl Held) {
    let ended = guard.unlock();
    assert!(ended.is_ok() || !is_punctual(), "{ended:?}");
}

/// Returns the guard of a wait, if any. Accepts the errors of a faulty network and of an interrupt.
pub(crate) fn taken<G>(result: Result<Option<G>, Error>) -> Option<G> {
    result.unwrap_or_else(|error| {
        let is_told =
            error.is_unavailable() || error.is_interrupted() || error.is_insufficient_replicas();
        assert!(is_told, "{error}");
        None
    })
}

/// Drops or unlocks the guard, at random. On a faulty network the lock may have been lost, or its
/// release may be unconfirmed.
pub(crate) fn give_anyhow(guard: impl Held) {
    if fastrand::bool() {
        drop(guard);
    } else if let Err(error) = guard.unlock() {
        assert!(error.is_lost() || error.is_unavailable(), "{error}");
    }
}

impl Held for LockGuard {
    fn unlock(self) -> Result<(), Error> {
        Self::unlock(self)
    }

    fn is_valid(&self) -> bool {
        Self::is_valid(self)
    }

    fn token(&self) -> FencingToken {
        self.fencing_token().expect("the store makes tokens")
    }
}

impl Held for OwnedGuard {
    fn unlock(self) -> Result<(), Error> {
        Self::unlock(self)
    }

    fn is_valid(&self) -> bool {
        Self::is_valid(self)
    }

    fn token(&self) -> FencingToken {
        self.fencing_token().expect("the store makes tokens")
    }
}

/// Lets `time` pass, and calls `look` at its beginning, twice in between, and at its end. Returns
/// whether all calls returned `true`.
pub(crate) fn stay(time: Duration, mut look: impl FnMut() -> bool) -> bool {
    let mut found = look();
    for part in [time / 3, time / 3, time - time / 3 * 2] {
        if part.is_zero() {
            thread::yield_now();
        } else {
            sleep(part);
        }
        found &= look();
    }
    found
}

/// Runs `count` threads, each with its number, and waits until they end.
pub(crate) fn threads(count: usize, work: impl Fn(usize) + Send + Sync + 'static) {
    let work = Arc::new(work);
    let threads: Vec<_> = (0..count)
        .map(|number| {
            let work = Arc::clone(&work);
            thread::spawn(move || work(number))
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().expect("no panic"));
}

/// Checks that no two acquisitions have valid guards at once, that tokens grow, and that every
/// acquisition ends once. Only the guards of an acquisition that the store lost are exempt.
/// Recording adds no scheduling point, so it does not change the order of the tasks.
pub(crate) struct Judge {
    net: Arc<Network>,
    record: sync::Mutex<Record>,
}

#[derive(Default)]
struct Record {
    /// Counts the beginnings and ends of checks of guards.
    step: u64,
    /// Each check that found a guard valid: the token, and the steps of the check's beginning and
    /// end.
    valid: Vec<(FencingToken, u64, u64)>,
    acquired: usize,
    released: usize,
    lost: usize,
    failed: usize,
    /// Acquisitions that may end without an event.
    detached: usize,
    /// Each check that found a guard invalid: the token, and the step at which the check had ended.
    invalid: Vec<(FencingToken, u64)>,
}

impl Judge {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self) -> u64 {
        let mut record = self.record();
        record.step += 1;
        record.step
    }

    /// Checks whether a guard is valid, records the answer, and returns it.
    pub(crate) fn look(&self, guard: &impl Held) -> bool {
        let (token, before) = (guard.token(), self.step());
        let is_valid = guard.is_valid();
        self.looked(token, before, is_valid)
    }

    /// Calls `term`, and records the term that it returns, if any, as a valid guard.
    pub(crate) fn look_at_term(&self, term: impl FnOnce() -> Option<FencingToken>) {
        let before = self.step();
        if let Some(token) = term() {
            self.looked(token, before, true);
        }
    }

    /// Records a check of the guard with this token, which began at step `before`, and compares it
    /// with all earlier checks.
    fn looked(&self, token: FencingToken, before: u64, is_valid: bool) -> bool {
        let after = self.step();
        trace(|| format!("guard {token} is valid: {is_valid}"));
        if !is_valid {
            self.record().invalid.push((token, after));
        } else {
            let mut record = self.record();
            let was_lost = record
                .invalid
                .iter()
                .any(|it| it.0 == token && it.1 < before);
            assert!(!was_lost, "{token} was lost, and is valid again");
            let first = record
                .valid
                .iter()
                .filter(|it| it.0 == token)
                .map(|it| it.2)
                .min();
            for (other, began, ended) in &record.valid {
                // It is the older guard that outlived its acquisition, even if the newer guard is
                // being checked.
                let is_excused = || self.net.is_lost(token.min(*other));
                let is_between = first.is_some_and(|first| first < *began) && *ended < before;
                assert!(
                    *other == token || !is_between || is_excused(),
                    "guard {other} was valid while guard {token} was"
                );
                let is_later = *ended < before;
                assert!(
                    !is_later || *other <= token || is_excused(),
                    "{token} is valid after {other} was"
                );
            }
            record.valid.push((token, before, after));
        }
        is_valid
    }

    /// Holds the lock for `time`, and checks the guard. Returns whether every check found it valid.
    fn stay(&self, guard: &impl Held, time: Duration) -> bool {
        stay(time, || self.look(guard))
    }

    fn event(&self, event: &Event) {
        trace(|| format!("{event:?}"));
        let mut record = self.record();
        match event {
            Event::Acquired { .. } => record.acquired += 1,
            Event::Released { .. } => record.released += 1,
            Event::Lost { .. } => record.lost += 1,
            // A loss that the release finds is also reported by `Event::Lost`, which is counted
            // above.
            Event::ReleaseFailed { error, .. } if !error.is_lost() => record.failed += 1,
            _ => {}
        }
    }

    /// Returns the number of losses that events reported.
    pub(crate) fn losses(&self) -> usize {
        self.record().lost
    }

    /// Allows one acquisition to end without an event, because its guard is detached and its client
    /// is dropped.
    pub(crate) fn is_detached(&self) {
        self.record().detached += 1;
    }

    fn end(&self) {
        let Record {
            acquired,
            released,
            lost,
            failed,
            detached,
            ..
        } = *self.record();
        let ended = released + lost + failed;
        assert!(
            (ended..=ended + detached).contains(&acquired),
            "{acquired} were acquired: {released} released, {lost} lost, {failed} unconfirmed"
        );
    }
}

fn named(kind: LockKind) -> LockName {
    LockName::new(NAME).expect("a name").of_kind(kind)
}

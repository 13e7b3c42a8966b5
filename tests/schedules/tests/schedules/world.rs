//! [`World`]: a store, its clients, and what must hold of them in every order.

use crate::explore::is_punctual;
use crate::network::Network;
use distlock_schedules::backend::Backend;
use distlock_schedules::sync::time;
use distlock_schedules::{
    Client, Clock, Config, Event, FencingToken, LockGuard, LockName, MemoryBackend, Moment,
    OwnedGuard, Signal, SystemClock, Woken,
};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(crate) use shuttle::thread;

/// Milliseconds.
pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The lease that the watchdog keeps where a scenario says nothing else.
pub(crate) const LEASE: Duration = ms(300);

/// The command time-out of all clients.
pub(crate) const TIMEOUT: Duration = ms(100);

/// The name of the one lock.
pub(crate) const NAME: &str = "x";

/// The virtual clock, and a time of day that goes with it.
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

/// Lets this task sleep.
pub(crate) fn sleep(time: Duration) {
    Virtual.wait(&Arc::new(Signal::new()), Virtual.now() + time);
}

/// Waits until `condition` holds, with a look each millisecond.
pub(crate) fn until(what: &str, within: Duration, mut condition: impl FnMut() -> bool) {
    let end = time::peek() + within;
    while !condition() {
        assert!(time::peek() < end || !is_punctual(), "not within {within:?}: {what}");
        sleep(ms(1));
    }
}

/// Asserts that so much time at most has passed since `start`, where nothing is late.
pub(crate) fn in_time(what: &str, start: Duration, most: Duration) {
    let took = time::peek() - start;
    assert!(took <= most || !is_punctual(), "{what} took {took:?}, and may take {most:?}");
}

/// What all tasks of an execution share.
pub(crate) struct World {
    pub(crate) net: Arc<Network>,
    pub(crate) judge: Arc<Judge>,
    store: MemoryBackend,
}

impl World {
    pub(crate) fn new() -> Self {
        let store = MemoryBackend::new(Arc::new(Virtual));
        Self { net: Arc::new(Network::new(store.clone())), judge: Arc::default(), store }
    }

    pub(crate) fn client(&self) -> Client {
        self.client_with(|config| config)
    }

    /// A client with these settings, whose events are judged.
    pub(crate) fn client_with(&self, configure: impl FnOnce(Config) -> Config) -> Client {
        let (judge, net) = (Arc::clone(&self.judge), Arc::clone(&self.net));
        let config = Config::default().with_watchdog(LEASE).with_command_timeout(TIMEOUT);
        Client::builder()
            .backend(net)
            .clock(Arc::new(Virtual))
            .config(configure(config))
            .events(Arc::new(move |event: &Event| judge.event(event)))
            .connect()
            .expect("a client")
    }

    /// Whether the store has a holder. Asks it past the network.
    pub(crate) fn is_held(&self) -> bool {
        let name = LockName::new(NAME).expect("a name");
        self.store.inspect(&name, Moment::NEVER).expect("memory").holder.is_some()
    }

    /// Takes the lock away behind the holder's back.
    pub(crate) fn lose(&self) {
        self.store.lose(&LockName::new(NAME).expect("a name"));
    }

    /// All handles and guards are gone: so are threads, watches, and the lock in the store.
    pub(crate) fn end(&self) {
        until("the clients' threads end", TIMEOUT, || time::threads() == 0);
        until("all requests have arrived", ms(1_000), || self.net.under_way() == 0);
        assert_eq!(self.net.watches(), 0, "watches left");
        assert!(!self.is_held(), "the store still has a holder");
        self.judge.end();
    }
}

/// A guard of either kind.
pub(crate) trait Held {
    fn is_valid(&self) -> bool;
    fn token(&self) -> FencingToken;
}

impl Held for LockGuard {
    fn is_valid(&self) -> bool {
        Self::is_valid(self)
    }

    fn token(&self) -> FencingToken {
        self.fencing_token().expect("the store makes tokens")
    }
}

impl Held for OwnedGuard {
    fn is_valid(&self) -> bool {
        Self::is_valid(self)
    }

    fn token(&self) -> FencingToken {
        self.fencing_token().expect("the store makes tokens")
    }
}

/// Sees that no two guards are valid at once, that tokens grow, and that every acquisition ends
/// once. It has no scheduling points of its own.
#[derive(Default)]
pub(crate) struct Judge(Mutex<Record>);

#[derive(Default)]
struct Record {
    /// Counts the beginnings and ends of looks at guards.
    step: u64,
    /// Each look that found a guard valid: its token, and the steps between which it was made.
    valid: Vec<(FencingToken, u64, u64)>,
    acquired: usize,
    released: usize,
    lost: usize,
    failed: usize,
}

impl Judge {
    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self) -> u64 {
        let mut record = self.record();
        record.step += 1;
        record.step
    }

    /// Looks at a guard; says whether it is valid.
    pub(crate) fn look(&self, guard: &impl Held) -> bool {
        let (token, before) = (guard.token(), self.step());
        let is_valid = guard.is_valid();
        let after = self.step();
        if is_valid {
            let mut record = self.record();
            let first = record.valid.iter().filter(|it| it.0 == token).map(|it| it.2).min();
            for (other, began, ended) in &record.valid {
                let is_between = first.is_some_and(|first| first < *began) && *ended < before;
                assert!(
                    *other == token || !is_between,
                    "guard {other} was valid while guard {token} was"
                );
                let is_later = *ended < before;
                assert!(!is_later || *other <= token, "{token} is valid after {other} was");
            }
            record.valid.push((token, before, after));
        }
        is_valid
    }

    /// Is inside for `time`, with looks at the guard. Says whether it was valid all along.
    pub(crate) fn stay(&self, guard: &impl Held, time: Duration) -> bool {
        let mut is_valid = self.look(guard);
        for _ in 0..3 {
            if time.is_zero() {
                thread::yield_now();
            } else {
                sleep(time / 3);
            }
            is_valid &= self.look(guard);
        }
        is_valid
    }

    fn event(&self, event: &Event) {
        let mut record = self.record();
        match event {
            Event::Acquired { .. } => record.acquired += 1,
            Event::Released { .. } => record.released += 1,
            Event::Lost { .. } => record.lost += 1,
            // A loss that the release found is told as a loss, too.
            Event::ReleaseFailed { error, .. } if !error.is_lost() => record.failed += 1,
            _ => {}
        }
    }

    /// How many losses were told.
    pub(crate) fn losses(&self) -> usize {
        self.record().lost
    }

    /// One acquisition ends without an event: it was detached, and its client is gone.
    pub(crate) fn is_detached(&self) {
        self.record().failed += 1;
    }

    fn end(&self) {
        let Record { acquired, released, lost, failed, .. } = *self.record();
        assert_eq!(
            acquired,
            released + lost + failed,
            "acquisitions, beside {released} released, {lost} lost and {failed} unconfirmed"
        );
    }
}

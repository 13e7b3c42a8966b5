//! [`Bench`]: a client of the backend for one test, with owners to spend and deadlines to keep.

use crate::server::RedisServer;
use lock_core::backend::{
    Answer, Attempt, Closing, Failure, Grant, Lane, Receipt, Release, Renewal, Renewing, TenureId,
    Tokens, Wake,
};
use lock_core::{
    Backend, ClientId, Clock, Config, Context, LeaseTime, LockName, Moment, OwnerId, Signal,
    SystemClock,
};
use lock_redis::RedisBackend;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

pub(crate) struct Bench {
    pub(crate) backend: RedisBackend,
    client: ClientId,
    last_owner: AtomicU64,
}

impl Bench {
    pub(crate) fn new(url: &str) -> Self {
        let client = ClientId::random();
        let context = Context::new(Arc::new(SystemClock), client);
        let config = Config::from_url(url).unwrap();
        let backend = RedisBackend::new(&config, &context).unwrap();
        Self { backend, client, last_owner: AtomicU64::new(0) }
    }

    pub(crate) fn on(server: &RedisServer) -> Self {
        Self::new(&server.url())
    }

    pub(crate) fn owner(&self) -> OwnerId {
        OwnerId::new(self.client, self.last_owner.fetch_add(1, Ordering::Relaxed) + 1)
    }

    pub(crate) fn acquire_with(
        &self,
        lock: &str,
        owner: OwnerId,
        lease: LeaseTime,
        tokens: Tokens,
    ) -> Result<Answer, Failure> {
        let name = name(lock);
        self.backend.acquire(&Attempt::new(&name, owner, lease).tokens(tokens), soon())
    }

    pub(crate) fn acquire(&self, lock: &str, owner: OwnerId) -> Answer {
        self.acquire_with(lock, owner, lease(30_000), Tokens::Assign { reserve: 0 }).unwrap()
    }

    /// Acquires a free lock for a new owner.
    pub(crate) fn take(&self, lock: &str) -> (TenureId, Grant) {
        let owner = self.owner();
        let grant = granted(self.acquire(lock, owner));
        (TenureId::new(name(lock), owner, lease(30_000), grant.receipt.clone()), grant)
    }

    pub(crate) fn release(&self, tenure: &TenureId) -> Release {
        self.backend.release(tenure, Closing::CLEAN, soon()).unwrap()
    }

    pub(crate) fn renew(&self, batch: &[Renewing]) -> Vec<Result<Renewal, Failure>> {
        self.backend.renew(Lane::new(0), batch, soon())
    }
}

pub(crate) fn tenure(lock: &str, owner: OwnerId, milliseconds: u64) -> TenureId {
    TenureId::new(name(lock), owner, lease(milliseconds), Receipt::default())
}

pub(crate) fn granted(answer: Answer) -> Grant {
    match answer {
        Answer::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

/// First and last token of a grant.
pub(crate) fn tokens(grant: &Grant) -> (u64, u64) {
    let range = grant.tokens.expect("a grant with tokens");
    (range.first().get(), range.last().get())
}

pub(crate) fn name(lock: &str) -> LockName {
    LockName::new(lock).unwrap()
}

pub(crate) fn lease(milliseconds: u64) -> LeaseTime {
    LeaseTime::new(Duration::from_millis(milliseconds)).unwrap()
}

pub(crate) fn within(time: Duration) -> Moment {
    SystemClock.now() + time
}

pub(crate) fn soon() -> Moment {
    within(Duration::from_secs(5))
}

/// Runs `call` with this much time and checks that it takes no more, but for a scheduler's slice: 50 ms, and twice what
/// a thread that only keeps time was late meanwhile (other programs may be using the machine).
#[track_caller]
pub(crate) fn timed<T>(milliseconds: u64, call: impl FnOnce(Moment) -> T) -> T {
    let (done, lateness) = (AtomicBool::new(false), AtomicU64::new(0));
    let (outcome, late) = thread::scope(|scope| {
        scope.spawn(|| {
            let beat = Duration::from_millis(5);
            while !done.load(Ordering::SeqCst) {
                let due = within(beat);
                SystemClock.wait(&Arc::new(Signal::new()), due);
                let late = SystemClock.now().since(due).as_nanos();
                lateness.fetch_max(u64::try_from(late).unwrap(), Ordering::SeqCst);
            }
        });
        let by = within(Duration::from_millis(milliseconds));
        let outcome = call(by);
        let late = SystemClock.now().since(by);
        done.store(true, Ordering::SeqCst);
        (outcome, late)
    });
    let slice = Duration::from_nanos(lateness.into_inner());
    assert!(late < Duration::from_millis(50) + slice * 2, "{late:?} too late, a thread {slice:?}");
    outcome
}

/// Counts how often it was woken.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}

impl Wake for Counter {
    fn wake(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

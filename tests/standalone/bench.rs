//! [`Bench`]: a client of the backend for one test, with new owners and default deadlines.

use distlock_tests::process::RedisServer;
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, Failure, Grant, NodeId, Receipt, Release, ReleaseOptions,
    Renewal, RenewalRequest, Tokens, Wake, Watch,
};
use lock_core::{
    Backend, ClientId, Clock, Config, Context, LeaseTime, LockName, Moment, OwnerId, SystemClock,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The bound of a wait for an event that must happen.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) struct Bench {
    pub(crate) backend: Arc<dyn Backend>,
    client: ClientId,
    last_owner: AtomicU64,
}

impl Bench {
    /// Returns the channel on which this client receives grants of a mutex by releases.
    pub(crate) fn inbox(&self, lock: &str) -> String {
        format!("distlock_queue:2:{{{lock}}}:{}", self.client)
    }

    pub(crate) fn new(url: &str) -> Self {
        let client = ClientId::random();
        let context = Context::new(Arc::new(SystemClock), client);
        let config = Config::from_url(url).unwrap();
        let backend = distlock::schemes().open(&config, &context).unwrap();
        Self {
            backend,
            client,
            last_owner: AtomicU64::new(0),
        }
    }

    pub(crate) fn on(server: &RedisServer) -> Self {
        Self::new(&server.url())
    }

    pub(crate) fn owner(&self) -> OwnerId {
        OwnerId::new(
            self.client,
            self.last_owner.fetch_add(1, Ordering::Relaxed) + 1,
        )
    }

    pub(crate) fn acquire_with(
        &self,
        lock: &str,
        owner: OwnerId,
        lease: LeaseTime,
        tokens: Tokens,
    ) -> Result<Answer, Failure> {
        let name = name(lock);
        self.backend
            .acquire(&Attempt::new(&name, owner, lease).tokens(tokens), soon())
    }

    pub(crate) fn acquire(&self, lock: &str, owner: OwnerId) -> Answer {
        self.acquire_with(lock, owner, lease(30_000), Tokens::Assign { reserve: 0 })
            .unwrap()
    }

    /// Makes the client subscribe, as a waiting client does: a release passes over waiters whose
    /// clients do not listen.
    pub(crate) fn listens(&self, lock: &LockName) -> Watch {
        let wake = Arc::new(Counter::default());
        self.backend.watch(lock, wake, soon()).unwrap()
    }

    /// Makes one attempt of a new owner that does not wait.
    pub(crate) fn try_once(&self, lock: &str) -> Answer {
        let name = name(lock);
        let attempt = Attempt::new(&name, self.owner(), lease(30_000)).waits(false);
        self.backend.acquire(&attempt, soon()).unwrap()
    }

    /// Acquires a free lock for a new owner.
    pub(crate) fn take(&self, lock: &str) -> (AcquisitionId, Grant) {
        let owner = self.owner();
        let grant = granted(self.acquire(lock, owner));
        (
            AcquisitionId::new(name(lock), owner, lease(30_000), grant.receipt.clone()),
            grant,
        )
    }

    pub(crate) fn release(&self, acquisition: &AcquisitionId) -> Release {
        self.backend
            .release(acquisition, ReleaseOptions::WITHOUT_TOMBSTONE, soon())
            .unwrap()
    }

    pub(crate) fn renew(&self, batch: &[RenewalRequest]) -> Vec<Result<Renewal, Failure>> {
        self.backend.renew(NodeId::new(0), batch, soon())
    }
}

pub(crate) fn acquisition(lock: &str, owner: OwnerId, milliseconds: u64) -> AcquisitionId {
    AcquisitionId::new(name(lock), owner, lease(milliseconds), Receipt::default())
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

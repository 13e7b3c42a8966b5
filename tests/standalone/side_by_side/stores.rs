//! The stores that are compared, each with a clock that the test moves.

use distlock::backend::{ClientId, Context};
use distlock::time::{Clock, Moment, Signal, SystemClock, Woken};
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::subjects::format::REDISSON;
use distlock_tests::subjects::memory::MemorySubject;
use distlock_tests::subjects::store::{Single, Store as RedisStore};
use distlock_tests::time_of_day::TimeOfDay;
use lock_conformance::{Mutant, Subject};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A clock that is ahead of the machine's clock by a time that the test adds to.
#[derive(Debug, Default)]
struct Ahead {
    nanos: AtomicU64,
}

impl Ahead {
    /// The longest time until a sleeping thread notices that the clock was moved.
    const SLICE: Duration = Duration::from_millis(10);

    fn by(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::SeqCst))
    }
}

impl Clock for Ahead {
    fn now(&self) -> Moment {
        SystemClock.now() + self.by()
    }

    fn unix_time(&self) -> Duration {
        SystemClock.unix_time() + self.by()
    }

    fn wait(&self, signal: &Arc<Signal>, until: Moment) -> Woken {
        loop {
            let left = until.since(self.now());
            let slice = SystemClock.now() + left.min(Self::SLICE);
            if SystemClock.wait(signal, slice) == Woken::Signalled {
                return Woken::Signalled;
            }
            if left.is_zero() {
                return Woken::Due;
            }
        }
    }
}

/// A store, and the clocks of its clients and of its server.
pub(super) struct Store {
    pub(super) subject: Arc<dyn Subject>,
    clients: Arc<Ahead>,
    server: Option<(TimeOfDay, Mutex<Probe>)>,
}

impl Store {
    pub(super) fn memory() -> Self {
        let clients = Arc::<Ahead>::default();
        let subject = MemorySubject::on(Arc::clone(&clients) as Arc<dyn Clock>);
        Self {
            subject: Arc::new(subject),
            clients,
            server: None,
        }
    }

    /// Starts a server for this store.
    pub(super) fn redis() -> Self {
        let clock = TimeOfDay::new();
        let server = RedisServer::start_on(&clock);
        // Without reports, a loss is noticed by the next renewal, as in memory.
        let url = format!("{}?tracking=off", server.url());
        let probe = Mutex::new(server.probe());
        let server = Arc::new(Single {
            server,
            url: url.clone(),
            _files: None,
        });
        let subject = Arc::new(RedisStore::new(server, &url, REDISSON));
        Self {
            subject,
            clients: Arc::default(),
            server: Some((clock, probe)),
        }
    }

    pub(super) fn mutant(mutant: Mutant) -> Self {
        Self {
            subject: Arc::new(mutant),
            clients: Arc::default(),
            server: None,
        }
    }

    /// A raw connection to its server, if it has one.
    pub(super) fn probe(&self) -> Option<MutexGuard<'_, Probe>> {
        self.server.as_ref().map(|(_, probe)| probe.lock())
    }

    /// Returns the context for a new client of this store.
    pub(super) fn context(&self) -> Context {
        Context::new(
            Arc::clone(&self.clients) as Arc<dyn Clock>,
            ClientId::random(),
        )
    }

    /// Moves the clients' clock, and then the server's, so that a lease never ends on the server
    /// first.
    pub(super) fn advance(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).expect("a short time");
        self.clients.nanos.fetch_add(nanos, Ordering::SeqCst);
        if let Some((clock, probe)) = &self.server {
            let millis = self.clients.by().as_millis();
            clock.set_for(
                &mut probe.lock(),
                i64::try_from(millis).expect("a short time"),
            );
        }
    }
}

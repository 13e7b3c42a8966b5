//! [`Recheck`]: verifies all held locks when the store may have lost them, or the clock may have
//! skipped time. Locks that the watchdog renews without a limit are renewed at once, in batches,
//! which also verifies them. All other locks, and locks whose renewal is not answered yet, are
//! verified one by one.

use crate::engine::Engine;
use crate::engine::acquisition::Acquisition;
use crate::engine::queue::LocalLock;
use crate::observe::notices::Notices;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::threads::background::BackgroundTask;
use crate::time::backoff::Backoff;
use crate::time::{Clock, Moment};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The pause after the first failed verification, because after a change of servers the new server
/// often answers soon. The pause doubles with each further failure, up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest such pause, so that a loss is noticed within a fraction of the default lease.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A background task that verifies the held locks. It ends when no verification is left that failed
/// because the store was unavailable.
pub(in crate::engine) struct Recheck {
    engine: Weak<Engine>,
    clock: Arc<dyn Clock>,
    task: BackgroundTask,
    /// True if a new run was requested, which verifies all held locks again: a lock may have been
    /// lost after its last verification.
    is_asked: AtomicBool,
}

/// The locks that are not verified yet.
type Unsettled = Vec<Held>;

struct Held {
    lock: Arc<LocalLock>,
    acquisition: Arc<Acquisition>,
    /// The end of the validity when the run began. If it has changed since, the run skips the lock,
    /// because a renewal has probably verified it.
    valid_until: Moment,
}

impl Recheck {
    /// Makes the task that verifies the locks held by `engine` whenever the backend requests it.
    pub(in crate::engine) fn start_on(notices: &Notices, engine: &Engine) -> Arc<Self> {
        let (clock, engine) = (Arc::clone(&engine.clock), Weak::clone(&engine.this));
        let (task, is_asked) = (BackgroundTask::default(), AtomicBool::new(false));
        let recheck = Arc::new(Self {
            engine,
            clock,
            task,
            is_asked,
        });
        let started = Arc::clone(&recheck);
        notices.on_recheck(Arc::new(move || started.start()));
        recheck
    }

    pub(in crate::engine) fn start(self: &Arc<Self>) {
        self.is_asked.store(true, Ordering::SeqCst);
        self.task.wake();
        let (ours, mut left) = (Arc::clone(self), Unsettled::new());
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        // If no thread can be started, only the next renewal, if there is one, finds a loss.
        let _started = self
            .task
            .start(&self.clock, move || ours.turn(&mut left, &mut backoff));
    }

    fn turn(&self, left: &mut Unsettled, backoff: &mut Backoff) -> Option<Moment> {
        if self.is_asked.swap(false, Ordering::SeqCst) {
            *left = self.held();
            backoff.reset();
        }
        // A new request collects all held locks again, so the rest of this run is dropped.
        left.retain(|held| !self.is_asked.load(Ordering::SeqCst) && self.is_left(held));
        (!left.is_empty()).then(|| self.clock.now() + backoff.next())
    }

    fn held(&self) -> Unsettled {
        let engine = self.engine.upgrade();
        let Some(engine) = engine.filter(|it| !it.is_forked()) else {
            return Unsettled::new();
        };
        let held = engine.held().into_iter().map(|(lock, acquisition)| {
            let valid_until = acquisition.valid_until();
            Held {
                lock,
                acquisition,
                valid_until,
            }
        });
        let held = held.collect();
        engine.renew_now(None);
        held
    }

    /// Verifies a held lock, unless it has been renewed or has ended. Returns true if the store was
    /// unavailable, so that the caller tries again.
    fn is_left(
        &self,
        Held {
            lock,
            acquisition,
            valid_until,
        }: &Held,
    ) -> bool {
        // A validity that became shorter, as for a replica whose clock is ahead, confirms nothing.
        let is_settled = acquisition.has_ended() || acquisition.valid_until() > *valid_until;
        let engine = self.engine.upgrade().filter(|_| !is_settled);
        let outcome = engine.map(|engine| engine.verify(lock, acquisition));
        outcome.is_some_and(|it| it.is_err_and(|error| error.is_unavailable()))
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::tests::recorded::{Fault, Recorded};
    use crate::engine::tests::{eventually, parked};
    use crate::{
        Backend, Config, Context, Error, LockOptions, LossCause, MemoryScheme, Notices, Scheme,
        Schemes,
    };
    use parking_lot::Mutex;
    use std::sync::Arc;
    use std::time::Duration;

    /// The in-memory scheme, and the notices of the client that opened it last.
    #[derive(Clone, Default)]
    struct Noted(Arc<Mutex<Notices>>);

    impl Scheme for Noted {
        fn names(&self) -> &[&str] {
            &["memory"]
        }

        fn open(&self, config: &Config, context: &Context) -> Result<Arc<dyn Backend>, Error> {
            *self.0.lock() = context.notices.clone();
            MemoryScheme.open(config, context)
        }
    }

    #[test]
    fn second_notice_is_served_before_the_first_is_settled() {
        let (store, clock) = Recorded::new();
        let client = store.client();
        let notices = Notices::default();
        client.0.verify_on(&notices);
        let options = LockOptions::new().lease(Duration::from_secs(3_600));
        let take = |name: &str| client.mutex(name).unwrap().lock_with(&options).unwrap();
        let locks = [take("x"), take("y")];
        // One of the first two verifications fails, and is repeated later.
        store.fail_next("inspect", Fault::NotSent);
        notices.verify_held();
        parked(&clock, 2);
        assert_eq!(store.count("inspect"), 2);
        for guard in &locks {
            store.store.lose(guard.name());
        }
        store.fail_next("inspect", Fault::NotSent);
        notices.verify_held();
        eventually("the lock that was verified is verified again", || {
            locks.iter().any(|guard| !guard.is_valid())
        });
    }

    #[test]
    fn notice_reports_gone_locks_and_keeps_the_others() {
        let (noted, url) = (Noted::default(), "memory://recheck");
        let other = crate::builder().url(url).unwrap().connect().unwrap();
        let schemes = Schemes::empty().with(noted.clone());
        let client = crate::builder()
            .url(url)
            .unwrap()
            .schemes(schemes)
            .connect()
            .unwrap();
        // The lease is fixed, so neither lock is renewed, and it does not end during the test.
        let options = LockOptions::new().lease(Duration::from_secs(3_600));
        let take = |name: &str| client.mutex(name).unwrap().lock_with(&options).unwrap();
        let (gone, kept) = (take("gone"), take("kept"));
        let losses = gone.losses();
        assert!(other.mutex("gone").unwrap().force_unlock().unwrap());
        assert!(
            gone.is_valid() && losses.try_recv().is_err(),
            "no notice was sent yet"
        );
        noted.0.lock().verify_held();
        let loss = losses.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(loss.cause(), LossCause::Gone);
        assert!(kept.is_valid());
        kept.unlock().unwrap();
    }
}

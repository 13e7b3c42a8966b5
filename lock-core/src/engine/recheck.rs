//! [`Recheck`]: verifies everything that is held, because the backend says that the store may have
//! lost it.

use super::Engine;
use super::acquisition::Acquisition;
use super::entry::Entry;
use crate::clock::{Signal, Woken};
use crate::notices::Notices;
use crate::sync::{Mutex, thread};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The pause before what could not be verified is tried again; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// One thread at a time, which ends when all holdings are verified or over.
struct Recheck {
    engine: Weak<Engine>,
    run: Mutex<Run>,
    /// Raised when it is asked for once more.
    again: Arc<Signal>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Run {
    Idle,
    Running,
    /// Asked for once more meanwhile: what was verified before may be lost by now.
    Again,
}

impl Engine {
    /// Verifies what is held whenever the backend asks for it.
    pub(crate) fn verify_on(&self, notices: &Notices) {
        let (engine, run) = (Weak::clone(&self.this), Mutex::new(Run::Idle));
        let recheck = Arc::new(Recheck { engine, run, again: Arc::default() });
        notices.on_recheck(Arc::new(move || recheck.start()));
    }

    /// All that is held now.
    fn held(&self) -> Vec<(Arc<Entry>, Arc<Acquisition>)> {
        let entries = self.registry.all().into_iter();
        let held = entries.filter_map(|entry| {
            let acquisition = entry.lock().current().map(Arc::clone)?;
            Some((entry, acquisition))
        });
        held.collect()
    }
}

impl Recheck {
    fn start(self: &Arc<Self>) {
        let mut run = self.run.lock();
        if *run != Run::Idle {
            *run = Run::Again;
            drop(run);
            return self.again.raise();
        }
        let ours = Arc::clone(self);
        // Without a thread the next renewal tells, as it does without a notice.
        let started = thread::Builder::new()
            .name("distlock-verify".to_owned())
            .spawn(move || ours.run())
            .is_ok();
        if started {
            *run = Run::Running;
        }
    }

    fn run(&self) {
        let (mut left, mut pause) = (self.held(), FIRST_PAUSE);
        loop {
            left.retain(|held| !self.is_asked_again() && self.is_left(held));
            let mut run = self.run.lock();
            match *run {
                Run::Again => {
                    *run = Run::Running;
                    drop(run);
                    (left, pause) = (self.held(), FIRST_PAUSE);
                    continue;
                }
                _ if left.is_empty() => {
                    *run = Run::Idle; // under the lock: the next notice starts another thread
                    return;
                }
                _ => {}
            }
            drop(run);
            let Some(clock) = self.engine.upgrade().map(|engine| Arc::clone(&engine.clock)) else {
                left.clear();
                continue;
            };
            let _woken: Woken = clock.wait(&self.again, clock.now() + pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn held(&self) -> Vec<(Arc<Entry>, Arc<Acquisition>)> {
        let engine = self.engine.upgrade();
        let engine = engine.filter(|it| !it.is_forked());
        engine.map_or_else(Vec::new, |engine| engine.held())
    }

    fn is_asked_again(&self) -> bool {
        *self.run.lock() == Run::Again
    }

    /// Verifies it; whether that is to be tried again, because the store could not be asked.
    fn is_left(&self, (entry, acquisition): &(Arc<Entry>, Arc<Acquisition>)) -> bool {
        let engine = self.engine.upgrade().filter(|_| !acquisition.has_ended());
        let outcome = engine.map(|engine| engine.verify(entry, acquisition));
        outcome.is_some_and(|it| it.is_err_and(|error| error.is_unavailable()))
    }
}

#[cfg(test)]
mod tests {
    use crate::engine::tests::recorded::{Fault, Recorded};
    use crate::engine::tests::{eventually, parked};
    use crate::{
        Backend, Client, Config, Context, DistLock, Error, LockOptions, LossCause, MemoryScheme,
        Notices, Scheme, Schemes,
    };
    use parking_lot::Mutex;
    use std::sync::Arc;
    use std::time::Duration;

    /// Memory, and the notices of the last client that opened it.
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
        // Of the first two one cannot be asked about, and goes on to be in doubt.
        store.fail_next("inspect", Fault::NotSent);
        notices.verify_held();
        parked(&clock, 2);
        assert_eq!(store.count("inspect"), 2);
        for guard in &locks {
            store.store.lose(guard.name());
        }
        store.fail_next("inspect", Fault::NotSent);
        notices.verify_held();
        eventually("the one that was verified before is asked about again", || {
            locks.iter().any(|guard| !guard.is_valid())
        });
    }

    #[test]
    fn notice_tells_what_is_gone_and_leaves_what_is_not() {
        let (noted, url) = (Noted::default(), "memory://recheck");
        let other = Client::builder().url(url).unwrap().connect().unwrap();
        let schemes = Schemes::empty().with(noted.clone());
        let client = Client::builder().url(url).unwrap().schemes(schemes).connect().unwrap();
        // Neither is renewed while the test runs.
        let options = LockOptions::new().lease(Duration::from_secs(3_600));
        let take = |name: &str| client.mutex(name).unwrap().lock_with(&options).unwrap();
        let (gone, kept) = (take("gone"), take("kept"));
        let losses = gone.losses();
        assert!(other.mutex("gone").unwrap().force_unlock().unwrap());
        assert!(gone.is_valid() && losses.try_recv().is_err(), "it is not told by itself");
        noted.0.lock().verify_held();
        let loss = losses.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(loss.cause(), LossCause::Gone);
        assert!(kept.is_valid());
        kept.unlock().unwrap();
    }
}

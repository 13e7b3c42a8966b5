//! [`Recheck`]: verifies everything that is held, because the backend says that the store may have
//! lost it.

use super::Engine;
use super::acquisition::Acquisition;
use super::entry::Entry;
use crate::clock::Signal;
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
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Run {
    Idle,
    Running,
    /// Asked for once more meanwhile.
    Again,
}

impl Engine {
    /// Verifies what is held whenever the backend asks for it.
    pub(crate) fn verify_on(&self, notices: &Notices) {
        let recheck =
            Arc::new(Recheck { engine: Weak::clone(&self.this), run: Mutex::new(Run::Idle) });
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
            return;
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
        loop {
            self.verify_all();
            let mut run = self.run.lock();
            if *run == Run::Running {
                *run = Run::Idle;
                return;
            }
            *run = Run::Running;
        }
    }

    fn verify_all(&self) {
        let Some(engine) = self.engine.upgrade() else { return };
        if !engine.abilities.owned || engine.is_forked() {
            return;
        }
        let (mut left, mut pause) = (engine.held(), FIRST_PAUSE);
        loop {
            left.retain(|(entry, acquisition)| {
                let outcome = (!acquisition.has_ended()).then(|| engine.verify(entry, acquisition));
                outcome.is_some_and(|it| it.is_err_and(|error| error.is_unavailable()))
            });
            if left.is_empty() {
                return;
            }
            let until = engine.clock.now() + pause;
            let _due = engine.clock.wait(&Arc::new(Signal::new()), until);
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
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
    fn notice_tells_what_is_gone_and_leaves_what_is_not() {
        let (noted, url) = (Noted::default(), "memory://recheck");
        let other = Client::builder().url(url).unwrap().connect().unwrap();
        let schemes = Schemes::none().with(noted.clone());
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

//! [`Ours`]: the verbs of the peers, by distlock.

use crate::harness::probe::Probe;
use crate::harness::time::{Stopwatch, let_pass};
use crate::libraries::Library;
use distlock::{Client, DistLock, LockOptions, Mutex};
use std::time::Duration;

/// What stands in a list `:by` for an increment of ours.
pub(crate) const LABEL: &str = "distlock";

/// Our client, and where the data is that the lock protects.
pub(crate) struct Ours {
    pub(crate) client: Client,
    data: u16,
}

/// How long a visit goes on.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    Times(u64),
    Passed(Duration),
}

impl Ours {
    /// A client that shares its locks with this library, on a store.
    pub(crate) fn connect(library: &Library, url: &str, settings: &str, data: u16) -> Self {
        let prefix = Some(library.prefix).filter(|prefix| !prefix.is_empty());
        let prefix = prefix.map(|prefix| format!("prefix={prefix}")).unwrap_or_default();
        let all = [library.options, &prefix, settings];
        let all: Vec<_> = all.into_iter().filter(|it| !it.is_empty()).collect();
        let client = distlock::connect(&format!("{url}?{}", all.join("&"))).unwrap();
        Self { client, data }
    }

    pub(crate) fn mutex(&self, name: &str) -> Mutex {
        self.client.mutex(name).unwrap()
    }

    /// Adds one under the lock, by two commands that only the lock keeps apart; so many times, or for so long. How often it
    /// was.
    pub(crate) fn count(&self, name: &str, key: &str, until: Until, pause: Duration) -> u64 {
        let (lock, mut data) = (self.mutex(name), Probe::connect(self.data));
        let (stopwatch, mut done) = (Stopwatch::start(), 0);
        loop {
            match until {
                Until::Times(times) if done >= times => return done,
                Until::Passed(time) if stopwatch.elapsed() >= time => return done,
                Until::Times(_) | Until::Passed(_) => {}
            }
            let guard = lock.lock().unwrap();
            let value = data.get(key).map_or(0, |value| value.parse::<u64>().unwrap());
            data.command(&["SET", key, &(value + 1).to_string()]);
            data.command(&["RPUSH", &format!("{key}:by"), LABEL]);
            guard.unlock().unwrap();
            done += 1;
            let_pass(pause);
        }
    }
}

/// A lease of this length, which nobody renews.
pub(crate) fn fixed(lease: Duration) -> LockOptions {
    LockOptions::new().lease(lease)
}

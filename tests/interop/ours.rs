//! [`Ours`]: the verbs of the peers, implemented by distlock.

use crate::libraries::Library;
use distlock::{Client, DistLock, LockOptions, Mutex};
use distlock_tests::probe::Probe;
use distlock_tests::time::{Stopwatch, let_pass, scaled};
use std::time::Duration;

/// What the list `:by` contains for an increment of ours.
pub(crate) const LABEL: &str = "distlock";

/// How long all turns of a thread may take. Measured: some seconds. Without notifications every
/// turn would take a lease, and the test should not fail only after hours.
pub(crate) const LONG: Duration = Duration::from_secs(90);

/// Our client, and the port of the server with the data that the lock protects.
pub(crate) struct Ours {
    pub(crate) client: Client,
    /// The store's URL, without settings.
    store: String,
    library: &'static Library,
    data: u16,
}

/// When a thread stops counting: after so many increments, or after this time.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    Times(u64),
    Passed(Duration),
}

impl Ours {
    /// Connects a client that shares its locks with this library to a store.
    pub(crate) fn connect(
        library: &'static Library,
        store: &str,
        settings: &str,
        data: u16,
    ) -> Self {
        let url = url(library, store, settings);
        let client = distlock::connect(&url).unwrap();
        Self {
            client,
            store: store.to_owned(),
            library,
            data,
        }
    }

    /// Returns the URL of a client for the same library and store, with other settings.
    pub(crate) fn url(&self, settings: &str) -> String {
        url(self.library, &self.store, settings)
    }

    pub(crate) fn mutex(&self, name: &str) -> Mutex {
        self.client.mutex(name).unwrap()
    }

    /// Adds one under the lock again and again, and returns how often.
    pub(crate) fn count(&self, name: &str, key: &str, until: Until, pause: Duration) -> u64 {
        count(&self.mutex(name), self.data, key, until, pause)
    }
}

/// Adds one under the lock again and again, and returns how often. Each time it sends two commands
/// to the server on port `data`; only the lock keeps other clients from getting between the two.
pub(crate) fn count(
    lock: &dyn DistLock,
    data: u16,
    key: &str,
    until: Until,
    pause: Duration,
) -> u64 {
    let mut data = Probe::connect(data);
    let (stopwatch, mut done) = (Stopwatch::start(), 0);
    loop {
        match until {
            Until::Times(times) if done >= times => return done,
            Until::Passed(time) if stopwatch.elapsed() >= time => return done,
            Until::Times(_) | Until::Passed(_) => {}
        }
        assert!(
            stopwatch.elapsed() < scaled(LONG),
            "only {done} turns: is no waiter told of releases?"
        );
        let guard = lock
            .try_lock_for(scaled(LONG))
            .unwrap()
            .expect("they give it back");
        let value = data
            .get(key)
            .map_or(0, |value| value.parse::<u64>().unwrap());
        data.command(&["SET", key, &(value + 1).to_string()]);
        data.command(&["RPUSH", &format!("{key}:by"), LABEL]);
        guard.unlock().unwrap();
        done += 1;
        let_pass(pause);
    }
}

fn url(library: &Library, store: &str, settings: &str) -> String {
    let prefix = match library.prefix {
        "" => String::new(),
        prefix => format!("prefix={prefix}"),
    };
    let all = [library.options, &prefix, settings];
    let all: Vec<_> = all.into_iter().filter(|it| !it.is_empty()).collect();
    format!("{store}?{}", all.join("&"))
}

/// Returns options with a lease of this length, which is not renewed.
pub(crate) fn fixed(lease: Duration) -> LockOptions {
    LockOptions::new().lease(lease)
}

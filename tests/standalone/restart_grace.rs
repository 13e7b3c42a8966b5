//! `restart_grace`: clients acquire no new locks on a server that was started a moment ago.

use crate::bench::LONG;
use distlock::{Client, Event};
use distlock_tests::process::RedisServer;
use distlock_tests::time::{Stopwatch, eventually};
use distlock_tests::time_of_day::TimeOfDay;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// As long as a lease: longer than it takes to start a server, on any machine.
const GRACE: Duration = Duration::from_secs(8);

fn client(server: &RedisServer) -> Client {
    let settings = "watchdog=8s&restart_grace=8s&tracking=off";
    distlock::connect(&format!("{}?{settings}", server.url())).unwrap()
}

#[test]
fn restarted_server_grants_nothing_until_its_grace_is_over() {
    let mut server = RedisServer::start();
    let paused = Arc::<Mutex<Vec<Duration>>>::default();
    let told = Arc::clone(&paused);
    let url = format!("{}?watchdog=8s&restart_grace=8s&tracking=off", server.url());
    let handler = move |event: &Event| {
        if let Event::Paused { left, .. } = event {
            told.lock().push(*left);
        }
    };
    let builder = distlock::builder().url(&url).unwrap();
    let waiter = builder.events(Arc::new(handler)).connect().unwrap();
    // The server of the test is new, too, so that the first lock waits for its grace.
    let held = waiter.mutex("a").unwrap().lock().unwrap();
    assert!(!paused.lock().is_empty(), "it was told why it waits");
    let other = client(&server).mutex("other").unwrap();
    let others = other.try_lock_for(LONG).unwrap().expect("free");
    server.restart();
    let since = Stopwatch::start();
    // A new client must wait as well, and its attempt that does not wait fails at once.
    let new = client(&server).mutex("a").unwrap();
    let error = new.try_lock().unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("restart_grace"),
        "{error}"
    );
    let guard = new.try_lock_for(LONG).unwrap().expect("it is free by then");
    // Less a second of rounding, and the time of the start before the stopwatch.
    assert!(
        since.elapsed() + Duration::from_secs(2) > GRACE,
        "{:?}",
        since.elapsed()
    );
    assert!(!held.is_valid(), "the lock of before is over");
    guard.unlock().unwrap();
    drop((held, others));
}

#[test]
fn held_locks_are_renewed_and_released_during_the_grace() {
    let mut server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let client = client(&server);
    let [kept, freed] = ["kept", "freed"].map(|name| client.mutex(name).unwrap().lock().unwrap());
    server.restart();
    let since = Stopwatch::start();
    eventually("it is released", LONG, || freed.verify().is_ok());
    freed.unlock().unwrap();
    let renewals = || server.probe().command_calls("pexpire");
    let before = renewals();
    eventually("it is renewed", LONG, || renewals() > before);
    assert!(kept.is_valid() && !server.probe().exists("freed"));
    let refused = client.mutex("new").unwrap().try_lock();
    assert!(refused.is_err() || since.elapsed() > GRACE - Duration::from_secs(2));
    kept.unlock().unwrap();
}

/// A server whose clock was set back reports a negative uptime.
#[test]
fn clock_that_was_set_back_shortens_no_grace_and_lengthens_none() {
    let clock = TimeOfDay::new();
    let server = RedisServer::start_on(&clock);
    clock.set(-100_000);
    let uptime = || {
        server
            .probe()
            .info_field("server", "uptime_in_seconds")
            .unwrap()
    };
    eventually("it runs for a negative time", LONG, || {
        uptime().starts_with('-')
    });
    let lock = client(&server).mutex("a").unwrap();
    let since = Stopwatch::start();
    assert!(lock.try_lock().is_err());
    lock.try_lock_for(LONG)
        .unwrap()
        .expect("it is free")
        .unlock()
        .unwrap();
    let took = since.elapsed();
    assert!(
        took + Duration::from_secs(1) > GRACE && took < Duration::from_secs(90),
        "{took:?}"
    );
}

#[test]
fn server_that_hides_its_age_is_refused_with_a_grace_only() {
    let server = RedisServer::start();
    let blind = [
        "ACL", "SETUSER", "blind", "on", ">pw", "~*", "&*", "+@all", "-info",
    ];
    server.probe().command(&blind);
    let lock = |settings: &str| {
        let url = format!("{}?{settings}", server.url_as("blind:pw"));
        distlock::connect(&url).unwrap().mutex("a").unwrap()
    };
    let error = lock("restart_grace=8s").try_lock().unwrap_err();
    assert!(
        error.is_configuration() && error.to_string().contains("+info"),
        "{error}"
    );
    lock("tracking=off")
        .try_lock()
        .unwrap()
        .expect("free")
        .unlock()
        .unwrap();
}

//! Settings that the engine reads, and those of a client with a backend of its own.

use super::*;
use crate::{Config, TokenPolicy};

fn configured(store: &Recorded, change: impl FnOnce(Config) -> Config) -> Result<Client, Error> {
    let clock = Arc::new(store.clock.clone());
    Client::builder().backend(Arc::new(store.clone())).clock(clock).configure(change).connect()
}

#[test]
fn contradictions_are_refused_also_with_a_backend_of_ones_own() {
    let (store, _clock) = Recorded::new();
    let refused = configured(&store, |config| config.with_pool(0)).unwrap_err();
    assert!(refused.is_configuration() && refused.to_string().contains("pool 0"));
}

#[test]
fn tokens_that_are_switched_off_are_not_asked_for() {
    let (store, _clock) = Recorded::new();
    let client = configured(&store, |config| config.with_tokens(TokenPolicy::Off)).unwrap();
    assert!(client.mutex("x").unwrap().lock().unwrap().fencing_token().is_none());
}

#[test]
fn the_lease_the_time_out_and_the_limit_of_an_outage_are_what_was_set() {
    let (store, clock) = Recorded::new();
    let client = configured(&store, |config| {
        config
            .with_watchdog(90 * SECOND)
            .with_command_timeout(3 * SECOND)
            .with_outage_limit(5 * SECOND)
    })
    .unwrap();
    let lock = client.mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    assert!(guard.remaining() > 85 * SECOND);
    assert_eq!(store.time_given("acquire"), 3 * SECOND);
    guard.unlock().unwrap();
    store.cut("acquire", Fault::NotSent);
    let start = clock.now();
    let waiter = thread::spawn(move || lock.lock().map(drop));
    while clock.now().since(start) < 5 * SECOND {
        eventually("it sleeps, and so does the timer", || sleeping(&clock) == 2);
        assert!(!waiter.is_finished());
        clock.advance(SECOND / 100);
    }
    eventually("it is done at the limit, and not later", || waiter.is_finished());
    assert!(waiter.join().unwrap().unwrap_err().is_unavailable());
}

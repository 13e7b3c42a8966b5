//! Settings that the engine reads, and the check of settings for a custom backend.

use super::*;
use crate::{Config, TokenPolicy};

fn configured(store: &Recorded, change: impl FnOnce(Config) -> Config) -> Result<Client, Error> {
    let clock = Arc::new(store.clock.clone());
    crate::builder()
        .backend(Arc::new(store.clone()))
        .clock(clock)
        .configure(change)
        .connect()
}

#[test]
fn invalid_setting_is_refused_for_a_custom_backend() {
    let (store, _clock) = Recorded::new();
    let refused = configured(&store, |config| config.with_pool(0)).unwrap_err();
    assert!(refused.is_configuration() && refused.to_string().contains("pool 0"));
}

#[test]
fn disabled_tokens_leave_the_guard_without_token() {
    let (store, _clock) = Recorded::new();
    let client = configured(&store, |config| config.with_tokens(TokenPolicy::Off)).unwrap();
    assert!(
        client
            .mutex("x")
            .unwrap()
            .lock()
            .unwrap()
            .fencing_token()
            .is_none()
    );
}

#[test]
fn lease_timeout_and_outage_limit_are_as_configured() {
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
        eventually("the waiter and the timer sleep", || sleeping(&clock) == 2);
        assert!(!waiter.is_finished());
        clock.jump(SECOND / 100);
    }
    eventually("the wait ends at the limit", || waiter.is_finished());
    assert!(waiter.join().unwrap().unwrap_err().is_unavailable());
}

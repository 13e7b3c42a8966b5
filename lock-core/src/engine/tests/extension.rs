//! Explicit extensions of a lease by its holder.

use super::*;

#[test]
fn extension_sends_a_request_only_beyond_the_lease() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let guard = client
        .mutex("x")
        .unwrap()
        .lock_with(&LockOptions::new().lease(10 * SECOND))
        .unwrap();
    guard.extend(9 * SECOND).unwrap();
    assert_eq!(store.count("renew"), 0, "the lease is long enough already");
    guard.extend(20 * SECOND).unwrap();
    assert!(guard.remaining() >= 20 * SECOND && store.count("renew") == 1);
    assert!(guard.ensure(20 * SECOND).is_ok());
    assert!(guard.ensure(30 * SECOND).unwrap_err().is_lease_too_short());
}

#[test]
fn renewal_with_a_shorter_lease_keeps_the_extension() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guard = client.mutex("x").unwrap().lock().unwrap();
    guard.extend(100 * SECOND).unwrap();
    advance(&client, &clock, 11 * SECOND);
    assert_eq!(store.count("renew"), 2);
    assert!(guard.remaining() >= 89 * SECOND, "{:?}", guard.remaining());
}

#[test]
fn extension_does_not_count_as_an_allowed_renewal() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let guard = lock
        .lock_with(&LockOptions::new().watched_at_most(30 * SECOND, 2))
        .unwrap();
    advance(&client, &clock, SECOND);
    guard.extend(32 * SECOND).unwrap();
    advance(&client, &clock, 33 * SECOND);
    assert_eq!(
        (store.count("renew"), guard.state()),
        (3, GuardState::Suspended)
    );
    guard.extend(40 * SECOND).unwrap();
    assert_eq!(
        guard.state(),
        GuardState::Suspended,
        "an extension does not restart the watchdog"
    );
    advance(&client, &clock, 30 * SECOND);
    assert_eq!((store.count("renew"), guard.is_valid()), (4, true));
}

#[test]
fn failed_extension_leaves_the_acquisition_unchanged() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    let left = guard.remaining();
    store.fail_next("renew", Fault::NotSent);
    assert!(guard.extend(60 * SECOND).unwrap_err().is_unavailable());
    assert_eq!((guard.state(), guard.remaining()), (GuardState::Held, left));
    store.fail_next("renew", Fault::NotSent);
    let longer = LockOptions::new().lease(60 * SECOND);
    assert!(lock.lock_with(&longer).unwrap_err().is_unavailable());
    assert_eq!(lock.hold_count(), 1, "the nested hold was not added");
    guard.unlock().unwrap();
    assert_eq!(store.count("release"), 1);
}

/// Starts an extension of `x` that queues behind the extension of another lock. The latter hangs
/// until the gate opens.
fn queued_extension(store: &Recorded, client: &Client) -> thread::JoinHandle<Result<(), Error>> {
    let other = client.owned_mutex("other").unwrap().lock().unwrap();
    let guard = client
        .owned_mutex("x")
        .unwrap()
        .lock_with(&LockOptions::new().lease(SECOND))
        .unwrap();
    store.fail_next("renew", Fault::Hangs);
    let first = thread::spawn(move || drop(other.extend(60 * SECOND)));
    eventually("the first request hangs", || store.count("renew") == 1);
    let second = thread::spawn(move || guard.extend(60 * SECOND));
    eventually("the second request queues", || client.0.workers.threads().1);
    // These threads sleep: the timer, both callers, and the spare worker on standby during the
    // first request.
    eventually("all threads sleep", || {
        first.is_finished() || sleeping(&store.clock) == 4
    });
    second
}

#[test]
fn extension_unconfirmed_for_two_timeouts_is_unavailable() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guard = client.owned_mutex("x").unwrap().lock().unwrap();
    let gate = store.gate.lock();
    store.fail_next("renew", Fault::Hangs);
    let extends = thread::spawn(move || {
        let result = guard.extend(60 * SECOND);
        (result, guard.state())
    });
    eventually("the extension hangs", || {
        store.count("renew") == 1 && sleeping(&clock) == 2
    });
    clock.jump(4 * SECOND);
    eventually("the extension times out", || extends.is_finished());
    drop(gate);
    let (result, state) = extends.join().unwrap();
    assert!(result.unwrap_err().is_unavailable());
    assert_eq!(state, GuardState::Held, "the old deadline stands");
}

#[test]
fn extension_of_a_lock_lost_meanwhile_reports_the_loss() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let gate = store.gate.lock();
    let extends = queued_extension(&store, &client);
    clock.jump(SECOND);
    let lock_state = client
        .0
        .local_lock(&LockName::new("x").unwrap(), Scope::CLIENT)
        .unwrap();
    eventually("the lock is lost", || lock_state.lock().current().is_none());
    drop(gate);
    eventually("the extension returns", || extends.is_finished());
    assert!(extends.join().unwrap().unwrap_err().is_lost());
}

#[test]
fn unsupported_extension_changes_nothing() {
    let (store, clock) = Recorded::new();
    let client = store.able(Abilities::full().renewable(false)).client();
    let lock = client.mutex("x").unwrap();
    let guard = lock
        .lock_with(&LockOptions::new().lease(10 * SECOND))
        .unwrap();
    assert!(guard.extend(20 * SECOND).unwrap_err().is_unsupported());
    let longer = LockOptions::new().lease(20 * SECOND);
    assert!(lock.lock_with(&longer).unwrap_err().is_unsupported());
    assert_eq!((guard.state(), store.count("renew")), (GuardState::Held, 0));
    advance(&client, &clock, 11 * SECOND);
    assert!(guard.unlock().unwrap_err().is_lost());
    client.wait_for_cleanup(SECOND).unwrap();
    assert_eq!(
        store.count("release") + store.count("close"),
        0,
        "no longer lease to clean up"
    );
}

//! Late and missing answers of the store.

use super::*;

#[test]
fn validity_counts_from_before_the_request_was_sent() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    store.fail_next("acquire", Fault::Slow(4 * SECOND));
    let guard = client
        .mutex("x")
        .unwrap()
        .lock_with(&LockOptions::new().lease(10 * SECOND))
        .unwrap();
    assert!(guard.remaining() < 6 * SECOND, "{:?}", guard.remaining());
}

#[test]
fn grant_answered_after_its_lease_is_unavailable() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    store.fail_next("acquire", Fault::Slow(11 * SECOND));
    let error = lock
        .lock_with(&LockOptions::new().lease(10 * SECOND))
        .unwrap_err();
    assert!(
        error.is_unavailable()
            && error.to_string().contains("11.0s")
            && error.to_string().contains("10s"),
        "{error}"
    );
    assert_eq!(lock.hold_count(), 0);
    assert!(lock.try_lock().unwrap().is_some());
}

#[test]
fn unanswered_attempt_is_repeated_and_closed_by_tombstone() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    store.fail_next("acquire", Fault::Swallowed);
    let guard = lock.lock().unwrap();
    assert_eq!(store.count("acquire"), 2);
    assert!(guard.verify().is_ok());
    guard.unlock().unwrap();
    assert_eq!(
        (store.count("release"), store.count("close")),
        (0, 1),
        "a copy of the attempt may arrive later: it needs a tombstone"
    );
    assert!(!lock.is_locked().unwrap());
}

#[test]
fn failed_attempt_with_unknown_outcome_is_cleaned_up() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    store.fail_next("acquire", Fault::Swallowed);
    store.fail_next("acquire", Fault::Swallowed);
    assert!(lock.try_lock().unwrap_err().is_unavailable());
    eventually("the attempt is cleaned up", || store.count("close") == 1);
    eventually("the lock is free", || !lock.is_locked().unwrap());
}

#[test]
fn applied_release_without_answer_is_no_loss() {
    let (store, _clock) = Recorded::new();
    let unconfirmed = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&unconfirmed);
    let client = crate::builder()
        .backend(Arc::new(store.clone()))
        .clock(Arc::new(store.clock.clone()))
        .events(Arc::new(move |event: &Event| {
            if matches!(event, Event::ReleaseUnconfirmed { .. }) {
                *counted.lock() += 1;
            }
        }))
        .connect()
        .unwrap();
    let guard = client.mutex("x").unwrap().lock().unwrap();
    store.fail_next("release", Fault::Swallowed);
    let done = thread::spawn({
        let clock = store.clock.clone();
        move || {
            for _ in 0..5_000 {
                clock.jump(Duration::from_micros(10));
                thread::yield_now();
            }
        }
    });
    guard.unlock().unwrap();
    done.join().unwrap();
    eventually("the event is emitted", || *unconfirmed.lock() == 1);
}

#[test]
fn lock_gone_at_the_first_release_is_lost() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    store.store.lose(lock.name());
    let error = guard.unlock().unwrap_err();
    assert!(error.is_lost(), "{error:?}");
    assert!(
        lock.try_lock().unwrap().is_some(),
        "the thread may lock again"
    );
}

#[test]
fn final_failure_is_not_repeated_and_not_cleaned_up() {
    let (store, clock) = Recorded::new();
    let client = store.able(Abilities::full().renewable(false)).client();
    let lock = client.mutex("x").unwrap();
    assert!(
        lock.lock().unwrap_err().is_unsupported(),
        "the store cannot renew the lock"
    );
    let fixed = LockOptions::new().lease(10 * SECOND);
    store.fail_next("acquire", Fault::Final);
    assert!(lock.lock_with(&fixed).unwrap_err().is_unavailable());
    assert_eq!(
        store.count("acquire"),
        1,
        "a repeated attempt could take the lock twice"
    );
    client.wait_for_cleanup(SECOND).unwrap();
    assert_eq!(store.count("release") + store.count("close"), 0);
    clock.jump(11 * SECOND);
    for drops in [false, true] {
        let guard = lock.lock_with(&fixed).unwrap();
        store.fail_next("release", Fault::Final);
        let before = store.count("release");
        if drops {
            drop(guard);
        } else {
            assert!(guard.unlock().unwrap_err().is_unavailable());
        }
        client.wait_for_cleanup(SECOND).unwrap();
        assert_eq!(store.count("release") + store.count("close"), before + 1);
    }
}

//! Losses: how they are detected and reported, and what is cleaned up in the store.

use super::*;

#[test]
fn loss_channel_opened_after_the_loss_reports_it() {
    let (store, clock) = Recorded::new();
    let guard = store.client().mutex("x").unwrap().lock().unwrap();
    clock.jump(60 * SECOND);
    assert_eq!(
        guard.losses().try_recv().unwrap().cause(),
        LossCause::Expired
    );
    assert_eq!(
        guard.losses().try_recv().unwrap().cause(),
        LossCause::Expired
    );
}

#[test]
fn verify_that_finds_another_value_or_owner_is_a_loss() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    store.fail_next("inspect", Fault::Foreign);
    assert!(guard.verify().unwrap_err().is_lost());
    assert_eq!(guard.loss().unwrap().cause(), LossCause::Gone);
    drop(guard);
    store.store.lose(lock.name());
    let guard = lock.lock().unwrap();
    store.store.lose(lock.name());
    let successor = store.client().mutex("x").unwrap().lock().unwrap();
    assert!(guard.is_valid(), "the client has not asked the store yet");
    assert!(guard.verify().unwrap_err().is_lost());
    assert!(!guard.is_valid() && successor.verify().is_ok());
}

#[test]
fn ended_lease_admits_no_nested_hold() {
    for _ in 0..20 {
        let (store, clock) = Recorded::new();
        let lock = store.client().mutex("x").unwrap();
        let _guard = lock.lock_with(&LockOptions::new().lease(SECOND)).unwrap();
        clock.jump(SECOND);
        assert!(lock.lock().unwrap_err().is_lost());
        assert_eq!(lock.hold_count(), 1);
    }
}

#[test]
fn unconfirmed_renewals_are_cleaned_up_after_the_loss() {
    let (store, clock) = Recorded::new();
    let (client, events) = store.client_with_events();
    let lock = client.mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    store.cut("renew", Fault::Swallowed);
    advance(&client, &clock, 30 * SECOND);
    assert_eq!(guard.loss().unwrap().cause(), LossCause::Expired);
    eventually("the extended lock is cleaned up", || {
        !lock.is_locked().unwrap()
    });
    eventually("the loss is reported", || {
        events.lock().last().is_some_and(|name| name == "Lost")
    });
}

#[test]
fn unanswered_attempt_gets_a_tombstone_after_its_lease() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    store.fail_next("acquire", Fault::Swallowed);
    let guard = lock
        .lock_with(&LockOptions::new().lease(5 * SECOND))
        .unwrap();
    advance(&client, &clock, 6 * SECOND);
    assert_eq!(guard.state(), GuardState::Lost);
    eventually("the owner is closed", || store.count("close") == 1);
}

#[test]
fn late_grant_is_given_back_before_its_lease_ends() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    store.fail_next("acquire", Fault::Slow(SECOND * 995 / 100));
    let fixed = LockOptions::new().lease(10 * SECOND);
    assert!(
        lock.lock_with(&fixed).unwrap_err().is_unavailable(),
        "the validity of the client is over, the lease in the store is not"
    );
    eventually("the lock is free before its lease ends", || {
        !lock.is_locked().unwrap()
    });
}

#[test]
fn waiter_gets_the_lock_that_a_paused_holder_lost() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let held = client.mutex("x").unwrap().lock().unwrap();
    let waiter = thread::spawn({
        let lock = client.mutex("x").unwrap();
        move || lock.lock().unwrap().fencing_token()
    });
    eventually("the waiter queues", || {
        client.queue_length("x").unwrap() == 1
    });
    parked(&clock, 2);
    clock.jump(60 * SECOND);
    eventually("the waiter has the lock", || waiter.is_finished());
    assert!(waiter.join().unwrap() > held.fencing_token());
    assert!(held.unlock().unwrap_err().is_lost());
}

#[test]
fn loss_is_declared_at_the_deadline_and_never_before() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guard = client.mutex("x").unwrap().lock().unwrap();
    let losses = guard.losses();
    for _ in 0..200 {
        store.fail_next("renew", Fault::NotSent);
    }
    advance(&client, &clock, 29 * SECOND);
    assert_eq!(
        (guard.state(), losses.try_recv().is_err()),
        (GuardState::Suspended, true)
    );
    assert!(guard.is_valid());
    advance(&client, &clock, SECOND);
    let loss = losses.recv_timeout(20 * SECOND).unwrap();
    assert_eq!(loss.cause(), LossCause::Expired);
    assert!(loss.last_failure().is_some());
    assert!(!guard.is_valid());
    assert!(guard.unlock().unwrap_err().is_lost());
}

#[test]
fn holder_paused_past_its_lease_is_invalid_at_once() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guard = client
        .mutex("x")
        .unwrap()
        .lock_with(&LockOptions::new().lease(10 * SECOND))
        .unwrap();
    let rival = store.client().mutex("x").unwrap();
    // `is_valid` reads the clock, so no other thread needs to notice the jump first.
    clock.jump(60 * SECOND);
    assert!(!guard.is_valid());
    let successor = rival.try_lock().unwrap().unwrap();
    assert!(guard.fencing_token() < successor.fencing_token());
    assert!(guard.unlock().unwrap_err().is_lost());
    assert!(successor.verify().is_ok());
}

#[test]
fn dropped_channels_are_forgotten_and_others_notified() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    let both = crate::MultiLock::new([client.mutex("a").unwrap(), client.mutex("b").unwrap()]);
    for lock in [
        client.mutex("x").unwrap().into(),
        Arc::new(both.unwrap()) as Arc<dyn DistLock>,
    ] {
        let guard = lock.lock().unwrap();
        let kept = guard.losses();
        for _ in 0..10_000 {
            assert!(guard.losses().try_recv().is_err());
        }
        assert!(guard.listeners() < 40, "{}", guard.listeners());
        for (name, _) in guard.fencing_tokens() {
            store.store.lose(&name);
        }
        assert!(guard.verify().unwrap_err().is_lost());
        assert_eq!(kept.try_recv().unwrap().cause(), LossCause::Gone);
    }
}

#[test]
fn verify_answered_after_lease_end_is_a_loss() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    let fixed = |seconds: u32| LockOptions::new().lease(seconds * SECOND);
    let guard = lock.lock_with(&fixed(1)).unwrap();
    store.fail_next("inspect", Fault::Slow(SECOND * 3 / 2));
    assert!(
        guard.verify().unwrap_err().is_lost(),
        "the store may have granted the lock since"
    );
    assert_eq!(guard.loss().unwrap().cause(), LossCause::Expired);
    drop(guard);
    let guard = lock.lock_with(&fixed(10)).unwrap();
    store.fail_next("inspect", Fault::Slow(SECOND * 3 / 2));
    assert_eq!(
        guard.verify().unwrap(),
        SECOND * 17 / 2,
        "what is left after the answer"
    );
}

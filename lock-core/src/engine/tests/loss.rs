//! Losses: how they are noticed, told, and what is left in the store.

use super::*;

#[test]
fn who_listens_after_the_loss_is_told_at_once() {
    let (store, clock) = Recorded::new();
    let guard = store.client().mutex("x").unwrap().lock().unwrap();
    clock.advance(60 * SECOND);
    assert_eq!(guard.losses().try_recv().unwrap().cause(), LossCause::Expired);
    assert_eq!(guard.losses().try_recv().unwrap().cause(), LossCause::Expired);
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
    assert!(guard.is_valid(), "so far it cannot know");
    assert!(guard.verify().unwrap_err().is_lost());
    assert!(!guard.is_valid() && successor.verify().is_ok());
}

#[test]
fn ended_lease_admits_no_nested_hold() {
    for _ in 0..20 {
        let (store, clock) = Recorded::new();
        let lock = store.client().mutex("x").unwrap();
        let _guard = lock.lock_with(&LockOptions::new().lease(SECOND)).unwrap();
        clock.advance(SECOND);
        assert!(lock.lock().unwrap_err().is_lost());
        assert_eq!(lock.hold_count(), 1);
    }
}

#[test]
fn what_unconfirmed_renewals_left_in_the_store_is_cleaned_up() {
    let (store, clock) = Recorded::new();
    let (client, events) = store.client_with_events();
    let lock = client.mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    store.cut("renew", Fault::Swallowed);
    advance(&client, &clock, 30 * SECOND);
    assert_eq!(guard.loss().unwrap().cause(), LossCause::Expired);
    eventually("it is free, though the store had extended it", || !lock.is_locked().unwrap());
    eventually("it is told", || events.lock().last().is_some_and(|name| name == "Lost"));
}

#[test]
fn what_a_lost_answer_may_have_left_behind_gets_a_tombstone_when_the_lease_is_over() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    store.fail_next("acquire", Fault::Swallowed);
    let guard = lock.lock_with(&LockOptions::new().lease(5 * SECOND)).unwrap();
    advance(&client, &clock, 6 * SECOND);
    assert_eq!(guard.state(), GuardState::Lost);
    eventually("a late copy is turned down", || store.count("close") == 1);
}

#[test]
fn a_grant_that_came_too_late_is_given_back_at_once() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    store.fail_next("acquire", Fault::Slow(SECOND * 995 / 100));
    let fixed = LockOptions::new().lease(10 * SECOND);
    assert!(
        lock.lock_with(&fixed).unwrap_err().is_unavailable(),
        "the store keeps it, and we may not trust it"
    );
    eventually("it is free before its lease is over", || !lock.is_locked().unwrap());
}

#[test]
fn a_waiter_of_the_same_client_gets_what_a_paused_holder_lost() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let held = client.mutex("x").unwrap().lock().unwrap();
    let waiter = thread::spawn({
        let lock = client.mutex("x").unwrap();
        move || lock.lock().unwrap().fencing_token()
    });
    eventually("it waits", || client.queue_length("x").unwrap() == 1);
    parked(&clock, 2);
    clock.advance(60 * SECOND);
    eventually("it has it", || waiter.is_finished());
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
    assert_eq!((guard.state(), losses.try_recv().is_err()), (GuardState::Suspended, true));
    assert!(guard.is_valid());
    advance(&client, &clock, SECOND);
    let loss = losses.recv_timeout(20 * SECOND).unwrap();
    assert_eq!(loss.cause(), LossCause::Expired);
    assert!(loss.last_failure().is_some());
    assert!(!guard.is_valid());
    assert!(guard.unlock().unwrap_err().is_lost());
}

#[test]
fn a_holder_that_was_paused_past_its_lease_sees_it_at_its_first_look() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guard =
        client.mutex("x").unwrap().lock_with(&LockOptions::new().lease(10 * SECOND)).unwrap();
    let rival = store.client().mutex("x").unwrap();
    // No other thread runs between the jump and the look: `is_valid` is a look at the clock.
    clock.advance(60 * SECOND);
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
    for lock in [client.mutex("x").unwrap().into(), Arc::new(both.unwrap()) as Arc<dyn DistLock>] {
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
fn a_verify_whose_answer_comes_after_the_lease_is_a_loss() {
    let (store, _clock) = Recorded::new();
    let lock = store.client().mutex("x").unwrap();
    let fixed = |seconds: u32| LockOptions::new().lease(seconds * SECOND);
    let guard = lock.lock_with(&fixed(1)).unwrap();
    store.fail_next("inspect", Fault::Slow(SECOND * 3 / 2));
    assert!(guard.verify().unwrap_err().is_lost(), "the store may have granted it since");
    assert_eq!(guard.loss().unwrap().cause(), LossCause::Expired);
    drop(guard);
    let guard = lock.lock_with(&fixed(10)).unwrap();
    store.fail_next("inspect", Fault::Slow(SECOND * 3 / 2));
    assert_eq!(guard.verify().unwrap(), SECOND * 17 / 2, "what is left now, not what was");
}

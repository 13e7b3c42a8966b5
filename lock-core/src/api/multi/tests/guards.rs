//! Tests of the guard of several locks: validity, loss, remaining time and release.

use super::*;

#[test]
fn multi_lock_guard_is_lost_with_one_member_and_notified_once() {
    let three = Three::new();
    let guard = three.all().lock().unwrap();
    assert_eq!((guard.state(), guard.is_valid()), (GuardState::Held, true));
    assert_eq!(guard.verify().unwrap(), 30 * SECOND);
    guard.ensure(20 * SECOND).unwrap();
    assert!(guard.ensure(40 * SECOND).unwrap_err().is_lease_too_short());
    let losses = guard.losses();
    three.stores[1].store.lose(three.locks[1].name());
    three.stores[2].store.lose(three.locks[2].name());
    three.advance(11 * SECOND);
    let loss = losses.try_recv().expect("the renewal finds the loss");
    let of = loss.member().unwrap().as_str();
    assert!(
        loss.cause() == LossCause::Gone && ["b", "c"].contains(&of),
        "{loss}"
    );
    assert!(losses.try_recv().is_err(), "one message only");
    assert_eq!((guard.state(), guard.is_valid()), (GuardState::Lost, false));
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(guard.loss().unwrap().member().unwrap().as_str(), "b");
    let error = guard.ensure(Duration::ZERO).unwrap_err();
    assert!(error.is_lost() && letters(&error) == "dff", "{error}");
    assert!(
        guard.losses().try_recv().is_ok(),
        "a later listener gets it, too"
    );
    let error = guard.unlock().unwrap_err();
    assert!(error.is_lost() && letters(&error) == "dff", "{error}");
    assert_eq!(three.held(), NONE, "the other members are free");
}

#[test]
fn majority_guard_survives_loss_of_spare_member() {
    let three = Three::new();
    let guard = three.majority().lock().unwrap();
    let losses = guard.losses();
    three.stores[0].store.lose(three.locks[0].name());
    three.advance(11 * SECOND);
    assert!(guard.is_valid() && guard.state() == GuardState::Held && guard.loss().is_none());
    guard.ensure(SECOND).unwrap();
    assert!(losses.try_recv().is_err());
    three.stores[2].store.lose(three.locks[2].name());
    three.advance(11 * SECOND);
    assert_eq!(
        losses.try_recv().unwrap().member(),
        Some(three.locks[2].name())
    );
    assert!(!guard.is_valid() && guard.state() == GuardState::Lost && guard.loss().is_some());
    assert!(guard.unlock().unwrap_err().is_lost());
    assert_eq!(three.held(), NONE);
    let guard = three.majority().lock().unwrap();
    three.stores[1].store.lose(three.locks[1].name());
    guard.unlock().expect("two of three were held until now");
}

#[test]
fn loss_channel_closes_without_message_at_unlock() {
    let three = Three::new();
    let guard = three.all().lock().unwrap();
    let losses = guard.losses();
    assert!(losses.try_recv().unwrap_err().is_empty());
    guard.unlock().unwrap();
    assert!(losses.try_recv().unwrap_err().is_disconnected());
}

#[test]
fn watchdog_renews_every_member() {
    let three = Three::new();
    let guard = three.all().lock().unwrap();
    three.advance(65 * SECOND);
    assert!(guard.is_valid() && guard.remaining() > 15 * SECOND);
    assert_eq!(three.held(), [true; 3]);
    assert!(three.count("renew").iter().all(|count| *count >= 6));
    guard.unlock().unwrap();
}

#[test]
fn remaining_time_lasts_while_enough_members_are_held() {
    let three = Three::new();
    let [a, b, _] = &three.locks;
    let options = |seconds: u32| LockOptions::new().lease(seconds * SECOND);
    let outer = [
        a.lock_with(&options(40)).unwrap(),
        b.lock_with(&options(30)).unwrap(),
    ];
    let all = three.all().lock_with(&options(20)).unwrap();
    let majority = three.majority().lock().unwrap();
    assert!(all.remaining() < 20 * SECOND && all.remaining() > 19 * SECOND);
    assert!(majority.remaining() < 30 * SECOND && majority.remaining() > 29 * SECOND);
    all.extend(25 * SECOND).unwrap();
    assert!(all.remaining() >= 25 * SECOND);
    assert_eq!(
        three.count("renew"),
        [0, 0, 1],
        "only the shorter lease is extended"
    );
    three.stores[2].fail_next("renew", Fault::NotSent);
    let error = all.extend(28 * SECOND).unwrap_err();
    assert!(
        error.is_unavailable() && letters(&error) == "ddf",
        "{error}"
    );
    drop((majority, all, outer));
    assert_eq!(three.held(), NONE);
}

#[test]
fn unlock_with_failed_members_frees_the_rest_and_reports() {
    let three = Three::new();
    let guard = three.all().lock().unwrap();
    three.stores[2].store.lose(three.locks[2].name());
    three.stores[1].fail_next("release", Fault::Refused);
    let error = guard.unlock().unwrap_err();
    assert!(
        error.is_lost(),
        "of two failures the loss gives the kind: {error}"
    );
    assert_eq!(letters(&error), "dff");
    assert!(error.members()[1].error().unwrap().is_configuration());
    assert!(!three.held()[0]);
}

#[test]
fn debug_names_the_members() {
    let three = Three::new();
    let guard = three.majority().lock().unwrap();
    let text = format!("{guard:?}");
    assert!(
        text.contains("need: 2") && text.contains("\"b\"") && text.contains("Held"),
        "{text}"
    );
    assert_eq!(format!("{:?}", three.all()), "MultiLock(\"a + b + c\")");
}

#[test]
fn single_lock_lists_its_token() {
    let three = Three::new();
    let guard = three.locks[0].lock().unwrap();
    assert_eq!(
        guard.fencing_tokens(),
        [(three.locks[0].name().clone(), guard.fencing_token())]
    );
    // The guard of a single lock is no larger than the three pointers of its hold, although a guard
    // may be composite.
    assert_eq!(size_of_val(&guard), 3 * size_of::<usize>());
}

#[test]
fn member_that_ends_during_verify_is_a_loss() {
    let three = Three::new();
    let options = |seconds: u32| LockOptions::new().lease(seconds * SECOND);
    let _outer = three.locks[2].lock_with(&options(60)).unwrap();
    let guard = three.all().lock_with(&options(1)).unwrap();
    three.stores[2].fail_next("inspect", Fault::Slow(SECOND * 3 / 2));
    let error = guard.verify().unwrap_err();
    assert!(error.is_lost() && letters(&error) == "ffd", "{error}");
}

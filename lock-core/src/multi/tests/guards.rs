//! How good the guard of several locks is.

use super::*;

#[test]
fn it_is_as_good_as_its_worst_member_and_its_loss_is_told_once() {
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
    let loss = losses.try_recv().expect("the renewal has noticed");
    let of = loss.member().unwrap().as_str();
    assert!(loss.cause() == LossCause::Gone && ["b", "c"].contains(&of), "{loss}");
    assert!(losses.try_recv().is_err(), "once");
    assert_eq!((guard.state(), guard.is_valid()), (GuardState::Lost, false));
    assert_eq!(guard.remaining(), Duration::ZERO);
    assert_eq!(guard.loss().unwrap().member().unwrap().as_str(), "b");
    let error = guard.ensure(Duration::ZERO).unwrap_err();
    assert!(error.is_lost() && letters(&error) == "dff", "{error}");
    assert!(guard.losses().try_recv().is_ok(), "also to who asks later");
    let error = guard.unlock().unwrap_err();
    assert!(error.is_lost() && letters(&error) == "dff", "{error}");
    assert_eq!(three.held(), NONE, "the rest is free");
}

#[test]
fn of_a_majority_as_many_may_be_lost_as_are_not_needed() {
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
    assert_eq!(losses.try_recv().unwrap().member(), Some(three.locks[2].name()));
    assert!(!guard.is_valid() && guard.state() == GuardState::Lost && guard.loss().is_some());
    assert!(guard.unlock().unwrap_err().is_lost());
    assert_eq!(three.held(), NONE);
    let guard = three.majority().lock().unwrap();
    three.stores[1].store.lose(three.locks[1].name());
    guard.unlock().expect("two of three were ours until now");
}

#[test]
fn the_channel_closes_without_a_word_when_it_is_given_back() {
    let three = Three::new();
    let guard = three.all().lock().unwrap();
    let losses = guard.losses();
    assert!(losses.try_recv().unwrap_err().is_empty());
    guard.unlock().unwrap();
    assert!(losses.try_recv().unwrap_err().is_disconnected());
}

#[test]
fn the_watchdog_keeps_all_of_them() {
    let three = Three::new();
    let guard = three.all().lock().unwrap();
    three.advance(65 * SECOND);
    assert!(guard.is_valid() && guard.remaining() > 15 * SECOND);
    assert_eq!(three.held(), [true; 3]);
    assert!(three.count("renew").iter().all(|count| *count >= 6));
    guard.unlock().unwrap();
}

#[test]
fn it_remains_for_as_long_as_enough_of_it_do() {
    let three = Three::new();
    let [a, b, _] = &three.locks;
    let options = |seconds: u32| LockOptions::new().lease(seconds * SECOND);
    let outer = [a.lock_with(&options(40)).unwrap(), b.lock_with(&options(30)).unwrap()];
    let all = three.all().lock_with(&options(20)).unwrap();
    let majority = three.majority().lock().unwrap();
    assert!(all.remaining() < 20 * SECOND && all.remaining() > 19 * SECOND);
    assert!(majority.remaining() < 30 * SECOND && majority.remaining() > 29 * SECOND);
    all.extend(25 * SECOND).unwrap();
    assert!(all.remaining() >= 25 * SECOND);
    assert_eq!(three.count("renew"), [0, 0, 1], "only what is shorter is extended");
    three.stores[2].fail_next("renew", Fault::NotSent);
    let error = all.extend(28 * SECOND).unwrap_err();
    assert!(error.is_unavailable() && letters(&error) == "ddf", "{error}");
    drop((majority, all, outer));
    assert_eq!(three.held(), NONE);
}

#[test]
fn all_are_released_also_when_one_fails_and_every_failure_is_told() {
    let three = Three::new();
    let guard = three.all().lock().unwrap();
    three.stores[2].store.lose(three.locks[2].name());
    three.stores[1].fail_next("release", Fault::Refused);
    let error = guard.unlock().unwrap_err();
    assert!(error.is_lost(), "of two failures the loss is the news: {error}");
    assert_eq!(letters(&error), "dff");
    assert!(error.members()[1].error().unwrap().is_configuration());
    assert!(!three.held()[0]);
}

#[test]
fn its_debug_names_the_members() {
    let three = Three::new();
    let guard = three.majority().lock().unwrap();
    let text = format!("{guard:?}");
    assert!(text.contains("need: 2") && text.contains("\"b\"") && text.contains("Held"), "{text}");
    assert_eq!(format!("{:?}", three.all()), "MultiLock(\"a + b + c\")");
}

#[test]
fn one_lock_has_its_token_in_the_list_of_one() {
    let three = Three::new();
    let guard = three.locks[0].lock().unwrap();
    assert_eq!(guard.fencing_tokens(), [(three.locks[0].name().clone(), guard.fencing_token())]);
    // It shall not get larger for there being others: three pointers and a flag.
    assert_eq!(size_of_val(&guard), 4 * size_of::<usize>());
}

#[test]
fn a_member_that_ends_while_another_is_verified_is_a_loss() {
    let three = Three::new();
    let options = |seconds: u32| LockOptions::new().lease(seconds * SECOND);
    let _outer = three.locks[2].lock_with(&options(60)).unwrap();
    let guard = three.all().lock_with(&options(1)).unwrap();
    three.stores[2].fail_next("inspect", Fault::Slow(SECOND * 3 / 2));
    let error = guard.verify().unwrap_err();
    assert!(error.is_lost() && letters(&error) == "ffd", "{error}");
}

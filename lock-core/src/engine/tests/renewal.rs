//! Renewals: validity, losses, suspension, batches and the timer.

use super::*;
use crate::engine::renew::RenewalHandler;
use crate::{Notices, OwnerLabel};

#[test]
fn renewed_validity_counts_from_sending_less_drift() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guard = client.mutex("x").unwrap().lock().unwrap();
    store.fail_next("renew", Fault::Slow(4 * SECOND));
    advance(&client, &clock, 11 * SECOND);
    let sent = store.times("renew")[0];
    let lease = 30 * SECOND;
    let validity = lease - lease / 100 - Duration::from_millis(2);
    assert_eq!(guard.remaining(), validity - clock.now().since(sent));
}

#[test]
fn label_goes_with_the_first_renewal_and_one_in_two_leases() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    store.fail_next("renew", Fault::NotSent);
    let lease = 30 * SECOND;
    (0..100).for_each(|_| advance(&client, &clock, 3 * SECOND));
    let times: Vec<_> = store
        .times("label")
        .iter()
        .map(|at| at.as_nanos())
        .collect();
    assert!(store.count("renew") > 28, "{}", store.count("renew"));
    assert!((5..=6).contains(&times.len()), "{times:?}");
    // A store that keeps the label for this time does not lose it between two of these renewals.
    let longest = (lease * OwnerLabel::LEASES).as_nanos();
    let gaps = times.windows(2).map(|pair| u128::from(pair[1] - pair[0]));
    assert!(
        gaps.max()
            .is_some_and(|gap| gap + lease.as_nanos() / 2 < longest),
        "{times:?}"
    );
    guard.unlock().unwrap();
    // A new acquisition sends the label with its first renewal.
    let guard = lock.lock().unwrap();
    (0..4).for_each(|_| advance(&client, &clock, 3 * SECOND));
    assert_eq!(store.count("label"), times.len() + 1);
    guard.unlock().unwrap();
}

#[test]
fn lock_stays_lost_if_its_renewal_is_confirmed_late() {
    for _ in 0..10 {
        let (store, clock) = Recorded::new();
        let client = store.client();
        let guard = client.mutex("x").unwrap().lock().unwrap();
        let losses = guard.losses();
        store.fail_next("renew", Fault::Slow(25 * SECOND));
        clock.jump(10 * SECOND);
        eventually("the renewal is sent", || store.count("renew") == 1);
        losses.recv_timeout(20 * SECOND).unwrap();
        advance(&client, &clock, SECOND);
        assert_eq!((guard.state(), guard.is_valid()), (GuardState::Lost, false));
        assert_eq!(guard.loss().unwrap().cause(), LossCause::Expired);
    }
}

#[test]
fn unanswered_renewal_does_not_delay_the_loss() {
    let (store, clock) = Recorded::new();
    let guard = store.client().mutex("x").unwrap().lock().unwrap();
    let losses = guard.losses();
    let gate = store.gate.lock();
    store.fail_next("renew", Fault::Hangs);
    parked(&clock, 1);
    clock.jump(10 * SECOND + SECOND / 10);
    eventually("the renewal is sent", || store.count("renew") == 1);
    parked(&clock, 1);
    clock.jump(20 * SECOND);
    assert_eq!(
        losses.recv_timeout(20 * SECOND).unwrap().cause(),
        LossCause::Expired
    );
    drop(gate);
}

#[test]
fn renewal_confirmed_after_the_release_has_no_effect() {
    let (store, clock) = Recorded::new();
    let (client, events) = store.client_with_events();
    let guard = client.mutex("x").unwrap().lock().unwrap();
    let gate = store.gate.lock();
    store.fail_next("renew", Fault::AnswerHangs);
    clock.jump(10 * SECOND);
    eventually("the renewal is sent", || store.count("renew") == 1);
    guard.unlock().unwrap();
    drop(gate);
    advance(&client, &clock, 35 * SECOND);
    eventually("the release is reported", || {
        events.lock().contains(&"Released".to_owned())
    });
    assert_eq!(*events.lock(), ["Acquired", "Released"]);
    assert_eq!(store.count("renew"), 1);
}

#[test]
fn queued_renewal_of_a_released_lock_is_not_sent() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let early = client.mutex("early").unwrap().lock().unwrap();
    // This is less than the time after which a spare worker sends the renewals that queue behind a
    // hanging request.
    clock.jump(SECOND / 100);
    let numbered = LockOptions::new().watched_at_most(30 * SECOND, 9); // never sent along
    let late = client.mutex("late").unwrap().lock_with(&numbered).unwrap();
    let gate = store.gate.lock();
    store.fail_next("renew", Fault::Hangs);
    clock.jump(10 * SECOND - SECOND / 100);
    eventually("the first renewal hangs", || store.count("renew") == 1);
    clock.jump(SECOND / 100);
    eventually("the second renewal queues", || client.0.workers.threads().1);
    late.unlock().unwrap();
    drop(gate);
    eventually("the worker has no work", || !client.0.workers.threads().1);
    advance(&client, &clock, SECOND);
    assert_eq!(store.count("renew"), 1);
    assert!(early.is_valid());
}

#[test]
fn renewals_that_are_due_soon_are_sent_along_and_stay_together() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guards: Vec<_> = (0..5)
        .map(|n| {
            clock.jump(SECOND / 5);
            client.mutex(format!("n{n}")).unwrap().lock().unwrap()
        })
        .collect();
    // The last lock's renewal is due 10 s after its grant, and is sent 800 ms earlier, along with
    // the others.
    advance(&client, &clock, 39 * SECOND);
    let rounds = store.times("renew").len();
    assert_eq!(
        rounds,
        3,
        "one batch in ten seconds: {:?}",
        store.times("renew")
    );
    assert!(guards.iter().all(|guard| guard.remaining() > 19 * SECOND));
}

#[test]
fn numbered_failed_and_first_renewals_are_not_sent_along() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let numbered = LockOptions::new().watched_at_most(30 * SECOND, 9);
    let _guards = [0, 1].map(|n| {
        clock.jump(SECOND / 5);
        client
            .mutex(format!("numbered{n}"))
            .unwrap()
            .lock_with(&numbered)
            .unwrap()
    });
    advance(&client, &clock, 11 * SECOND);
    assert_eq!(store.count("renew"), 2);

    let (store, clock) = Recorded::new();
    let client = store.client();
    let _guards = [0, 1].map(|n| client.mutex(format!("failed{n}")).unwrap().lock().unwrap());
    store.cut("renew", Fault::NotSent);
    advance(&client, &clock, 29 * SECOND);
    // Each renewal is retried after half a second to a second, independently of the other. If both
    // were retried together, there would be at most 33 requests.
    assert!(
        (38..=60).contains(&store.count("renew")),
        "{:?}",
        store.times("renew")
    );

    let (store, clock) = Recorded::new();
    let store = store.able(store.abilities.first_renewal(Some(SECOND)));
    let client = store.client();
    let _guards = [0, 1].map(|n| {
        clock.jump(SECOND / 5);
        client.mutex(format!("first{n}")).unwrap().lock().unwrap()
    });
    advance(&client, &clock, 2 * SECOND);
    assert_eq!(store.count("renew"), 2);
    assert_eq!(
        store.times("renew")[1].since(store.times("renew")[0]),
        SECOND / 5
    );
}

#[test]
fn change_reported_beside_an_early_renewal_costs_one_more() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let names = ["due", "early"];
    let _guards = names.map(|name| {
        clock.jump(SECOND / 5);
        client.mutex(name).unwrap().lock().unwrap()
    });
    let gate = store.gate.lock();
    store.fail_next("renew", Fault::AnswerHangs);
    clock.jump(10 * SECOND - SECOND / 5);
    eventually("both are being renewed", || store.count("renew") == 1);
    let names = names.map(|name| LockName::new(name).unwrap());
    client.0.renew_now(Some(&names));
    drop(gate);
    advance(&client, &clock, 9 * SECOND);
    // Each lock is renewed once more, alone or together, and not a third time at the original due
    // time.
    let times = store.times("renew");
    assert!(
        (2..=3).contains(&times.len()) && times.iter().all(|at| *at == times[0]),
        "{times:?}"
    );
}

#[test]
fn timer_that_fired_early_is_not_left_beside_a_new_one() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let mutex = client.mutex("x").unwrap();
    let _guard = mutex.lock().unwrap();
    // This is the state in which the timer has fired early, and another thread has armed it again
    // before this check.
    let lock = client.0.registry.all().pop().unwrap();
    for _ in 0..3 {
        assert!(client.0.check(Arc::clone(&lock), clock.now()).is_none());
    }
    assert_eq!(client.0.timer.timers(), 1);
}

#[test]
fn renewals_of_250_locks_need_at_least_three_batches() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guards: Vec<_> = (0..250)
        .map(|n| client.mutex(format!("n{n}")).unwrap().lock().unwrap())
        .collect();
    let gate = store.gate.lock();
    store.fail_next("renew", Fault::Hangs);
    clock.jump(11 * SECOND);
    eventually("the first renewal hangs", || store.count("renew") == 1);
    parked(&clock, 1);
    drop(gate);
    advance(&client, &clock, SECOND);
    assert!(
        store.count("renew") >= 3,
        "{} batches",
        store.count("renew")
    );
    assert!(guards.iter().all(|guard| guard.remaining() > 25 * SECOND));
}

#[test]
fn foreign_value_found_at_renewal_is_a_loss() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guard = client.mutex("x").unwrap().lock().unwrap();
    store.fail_next("renew", Fault::Foreign);
    advance(&client, &clock, 11 * SECOND);
    let loss = guard.loss().unwrap();
    assert_eq!(loss.cause(), LossCause::Gone);
    assert!(loss.last_failure().unwrap().is_foreign_format());
}

#[test]
fn healed_renewal_failure_is_not_part_of_a_later_loss() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guard = client.mutex("x").unwrap().lock().unwrap();
    store.fail_next("renew", Fault::NotSent);
    advance(&client, &clock, 12 * SECOND);
    eventually("the renewal succeeds", || guard.state() == GuardState::Held);
    assert_eq!(store.count("renew"), 2);
    store.store.lose(guard.name());
    advance(&client, &clock, 12 * SECOND);
    eventually("the lock is lost", || guard.state() == GuardState::Lost);
    let loss = guard.loss().unwrap();
    assert_eq!(
        (loss.cause(), loss.last_failure().is_none()),
        (LossCause::Gone, true)
    );
}

#[test]
fn renewal_panic_or_missing_answer_only_suspends() {
    for fault in [Fault::Panic, Fault::Mute] {
        let (store, clock) = Recorded::new();
        let client = store.client();
        let guard = client.mutex("x").unwrap().lock().unwrap();
        store.fail_next("renew", fault);
        advance(&client, &clock, 10 * SECOND + SECOND / 10);
        assert_eq!(guard.state(), GuardState::Suspended, "{fault:?}");
        advance(&client, &clock, 90 * SECOND);
        assert_eq!(guard.state(), GuardState::Held, "{fault:?}");
    }
}

#[test]
fn backend_panic_at_one_lock_leaves_others_renewed() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let (one, other) = (client.mutex("one").unwrap(), client.mutex("other").unwrap());
    let _one = one.lock().unwrap();
    clock.jump(2 * SECOND); // so that neither is sent along with the other
    let other = other.lock().unwrap();
    store.node_panics.store(true, Ordering::SeqCst);
    advance(&client, &clock, 8 * SECOND + SECOND / 2);
    store.node_panics.store(false, Ordering::SeqCst);
    advance(&client, &clock, 90 * SECOND);
    assert!(other.is_valid());
}

#[test]
fn backend_panic_at_acquire_has_an_unknown_outcome() {
    let (store, _clock) = Recorded::new();
    let client = store.client();
    store.fail_next("acquire", Fault::Panic);
    store.fail_next("acquire", Fault::Panic);
    assert!(
        client
            .mutex("x")
            .unwrap()
            .try_lock()
            .unwrap_err()
            .is_unavailable()
    );
    eventually("the attempt is cleaned up", || store.count("close") == 1);
}

#[test]
fn watchdog_keeps_the_longer_lease_of_a_nested_hold() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let outer = lock.lock().unwrap();
    let inner = lock
        .lock_with(&LockOptions::new().watched(60 * SECOND))
        .unwrap();
    advance(&client, &clock, 11 * SECOND);
    assert!(outer.remaining() > 58 * SECOND, "{:?}", outer.remaining());
    drop(inner);
}

#[test]
fn shorter_lease_of_a_nested_hold_changes_nothing() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let _outer = lock.lock().unwrap();
    let _inner = lock
        .lock_with(&LockOptions::new().watched(6 * SECOND))
        .unwrap();
    assert_eq!(store.count("renew"), 0);
    advance(&client, &clock, 9 * SECOND);
    assert_eq!(store.count("renew"), 0);
}

#[test]
fn existing_timer_is_kept_by_the_next_acquisition() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    let lock_state = client.0.local_lock(lock.name(), Scope::CLIENT).unwrap();
    lock.lock().unwrap().unlock().unwrap();
    let timer = lock_state.lock().timer;
    // The timer is not due yet, so the next acquisition finds it armed.
    clock.jump(SECOND / 2);
    lock.lock().unwrap().unlock().unwrap();
    assert!(timer.is_some());
    assert_eq!(lock_state.lock().timer, timer);
}

#[test]
fn earlier_timer_replaces_a_later_one() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    for lease in [3600 * SECOND, 5 * SECOND] {
        lock.lock_with(&LockOptions::new().lease(lease))
            .unwrap()
            .unlock()
            .unwrap();
    }
    drop(lock);
    advance(&client, &clock, 6 * SECOND);
    assert_eq!(
        client.names_in_use(),
        0,
        "the name is forgotten when the shorter lease ends"
    );
}

#[test]
fn short_lease_after_a_long_one_is_lost_in_time() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    lock.lock_with(&LockOptions::new().lease(3600 * SECOND))
        .unwrap()
        .unlock()
        .unwrap();
    let guard = lock
        .lock_with(&LockOptions::new().lease(5 * SECOND))
        .unwrap();
    let losses = guard.losses();
    advance(&client, &clock, 5 * SECOND);
    assert_eq!(losses.try_recv().unwrap().cause(), LossCause::Expired);
}

#[test]
fn renewal_is_sent_with_two_thirds_of_the_lease_left() {
    for lease in [30 * SECOND, 60 * SECOND] {
        let (store, clock) = Recorded::new();
        let client = store.client();
        let lock = client.mutex("x").unwrap();
        let start = clock.now();
        let guard = lock.lock_with(&LockOptions::new().watched(lease)).unwrap();
        advance(&client, &clock, lease * 2);
        let sent: Vec<_> = store
            .times("renew")
            .iter()
            .map(|at| at.since(start))
            .collect();
        assert!((5..=6).contains(&sent.len()), "{sent:?}");
        for (n, at) in sent.iter().enumerate() {
            let due = lease / 3 * u32::try_from(n + 1).unwrap();
            assert!(*at >= due && *at < due + SECOND / 5, "{sent:?}");
        }
        assert!(guard.is_valid() && guard.remaining() > lease / 2);
        guard.unlock().unwrap();
    }
}

#[test]
fn quick_cycles_cause_no_additional_renewals() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    for _ in 0..3_000 {
        lock.lock().unwrap().unlock().unwrap();
    }
    let guard = lock.lock().unwrap();
    let before = store.count("renew");
    advance(&client, &clock, 100 * SECOND);
    let renewals = store.count("renew") - before;
    assert!(
        (9..=10).contains(&renewals),
        "{renewals} renewals in ten periods"
    );
    drop(guard);
}

#[test]
fn failed_renewal_suspends_until_the_next_succeeds() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guard = client.mutex("x").unwrap().lock().unwrap();
    store.fail_next("renew", Fault::NotSent);
    clock.jump(10 * SECOND + SECOND / 10);
    eventually("a renewal failed", || {
        guard.state() == GuardState::Suspended
    });
    assert!(guard.is_valid());
    advance(&client, &clock, 2 * SECOND);
    eventually("the next renewal succeeded", || {
        guard.state() == GuardState::Held
    });
}

#[test]
fn used_up_renewals_are_reported_before_the_lease_ends() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guard = client
        .mutex("x")
        .unwrap()
        .lock_with(&LockOptions::new().watched_at_most(30 * SECOND, 2))
        .unwrap();
    let losses = guard.losses();
    advance(&client, &clock, 29 * SECOND);
    assert!(losses.try_recv().is_err() && store.count("renew") == 2);
    advance(&client, &clock, 2 * SECOND);
    assert_eq!(
        losses.recv_timeout(20 * SECOND).unwrap().cause(),
        LossCause::RenewalsUsedUp
    );
    assert!(guard.is_valid() && guard.remaining() > 15 * SECOND);
    assert_eq!(guard.state(), GuardState::Suspended);
    advance(&client, &clock, 20 * SECOND);
    assert_eq!((guard.state(), store.count("renew")), (GuardState::Lost, 2));
    assert_eq!(guard.loss().unwrap().cause(), LossCause::RenewalsUsedUp);
}

#[test]
fn idle_worker_ends_and_leaves_no_queue_behind() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    for round in 1..=2 {
        let guard = client.mutex("x").unwrap().lock().unwrap();
        advance(&client, &clock, 11 * SECOND);
        assert_eq!(
            (store.count("renew"), client.0.workers.queues()),
            (round, 1)
        );
        guard.unlock().unwrap();
        advance(&client, &clock, 31 * SECOND);
        eventually("the queue is removed", || client.0.workers.queues() == 0);
    }
}

/// Makes a client, and the notices by which its backend reports changes.
fn notified(store: &Recorded) -> (Client, Notices) {
    let (client, notices) = (store.client(), Notices::default());
    client.0.verify_on(&notices);
    (client, notices)
}

#[test]
fn reported_change_is_renewed_at_once() {
    let (store, clock) = Recorded::new();
    let (client, notices) = notified(&store);
    let [gone, kept] = ["gone", "kept"].map(|name| client.mutex(name).unwrap().lock().unwrap());
    let losses = gone.losses();
    notices.changed(Some(&[
        LockName::new("unknown").unwrap(),
        kept.name().clone(),
    ]));
    eventually("one is renewed", || store.count("renew") == 1);
    store.store.lose(gone.name());
    notices.changed(None);
    assert_eq!(
        losses.recv_timeout(20 * SECOND).unwrap().cause(),
        LossCause::Gone
    );
    eventually("the other one is renewed", || store.count("renew") >= 2);
    assert!(kept.is_valid());
    // The next regular renewal stays as planned.
    let before = store.count("renew");
    advance(&client, &clock, 9 * SECOND);
    assert_eq!(store.count("renew"), before);
    advance(&client, &clock, SECOND);
    eventually("it is renewed when it was due", || {
        store.count("renew") == before + 1
    });
}

#[test]
fn change_during_a_renewal_leads_to_another_one() {
    let (store, clock) = Recorded::new();
    let (client, notices) = notified(&store);
    let guard = client.mutex("x").unwrap().lock().unwrap();
    let losses = guard.losses();
    let gate = store.gate.lock();
    store.fail_next("renew", Fault::AnswerHangs);
    clock.jump(10 * SECOND);
    eventually("the renewal is applied", || store.count("renew") == 1);
    store.store.lose(guard.name());
    notices.changed(Some(std::slice::from_ref(guard.name())));
    drop(gate);
    assert_eq!(
        losses.recv_timeout(20 * SECOND).unwrap().cause(),
        LossCause::Gone
    );
}

#[test]
fn change_of_fixed_lease_costs_no_request() {
    let (store, _) = Recorded::new();
    let (client, notices) = notified(&store);
    let options = LockOptions::new().lease(30 * SECOND);
    let guard = client.mutex("x").unwrap().lock_with(&options).unwrap();
    notices.changed(None);
    let watched = client.mutex("y").unwrap().lock().unwrap();
    notices.changed(None);
    eventually("the other one is renewed", || store.count("renew") == 1);
    assert!(guard.is_valid() && watched.is_valid());
}

#[test]
fn first_renewal_comes_early_where_the_store_reports_changes() {
    let (store, clock) = Recorded::new();
    let early = store.able(store.abilities.first_renewal(Some(SECOND)));
    let client = early.client();
    let lock = client.mutex("x").unwrap();
    lock.lock().unwrap().unlock().unwrap();
    advance(&client, &clock, 2 * SECOND);
    assert_eq!(store.count("renew"), 0, "a short hold is not renewed");
    let guard = lock.lock().unwrap();
    advance(&client, &clock, SECOND);
    eventually("it is renewed after a second", || store.count("renew") == 1);
    advance(&client, &clock, 8 * SECOND);
    assert_eq!(store.count("renew"), 1);
    advance(&client, &clock, SECOND + SECOND / 10);
    eventually("and when it would have been", || store.count("renew") == 2);
    assert!(guard.is_valid());
}

#[test]
fn renewals_of_many_permits_count_as_many_in_a_batch() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let semaphore = client.semaphore("s", 10_000).unwrap();
    let many: Vec<_> = (0..5)
        .map(|_| semaphore.acquire_many(1_000).unwrap())
        .collect();
    let few: Vec<_> = (0..20)
        .map(|_| semaphore.acquire_many(100).unwrap())
        .collect();
    advance(&client, &clock, 11 * SECOND);
    // One call for each thousand of the 7,000 permits, and not one call for all.
    let batches = store.count("renew");
    assert!((7..=13).contains(&batches), "{batches} batches");
    assert!(
        many.iter()
            .chain(&few)
            .all(|guard| guard.remaining() > 25 * SECOND)
    );
}

/// `advance` is the time of a running program, in which the watchdog renews locks. `jump` is the
/// time of a paused program.
#[test]
fn time_that_passes_renews_on_the_way_and_a_jump_does_not() {
    let clock = ManualClock::new();
    let connect = || {
        let builder = crate::builder().clock(Arc::new(clock.clone()));
        let builder = builder
            .url("memory://time_that_passes?watchdog=3s")
            .unwrap();
        builder.connect().unwrap()
    };
    let (client, other) = (connect(), connect());
    let held = client.mutex("job").unwrap().lock().unwrap();
    for round in 0..40 {
        clock.advance(5 * SECOND);
        assert!(held.is_valid(), "after {round} rounds: {:?}", held.loss());
    }
    assert!(other.mutex("job").unwrap().try_lock().unwrap().is_none());
    // A wait ends at its deadline.
    let before = clock.sleepers().len();
    let waiter = thread::spawn(move || {
        let guard = other.mutex("job").unwrap().try_lock_for(7 * SECOND);
        guard.unwrap().is_none()
    });
    eventually("it waits", || clock.sleepers().len() > before);
    clock.advance(10 * SECOND);
    assert!(waiter.join().unwrap() && held.is_valid());
    clock.jump(5 * SECOND);
    assert!(!held.is_valid());
}

//! Insufficient replicas: the grants that are revoked, retried or accepted.

use super::*;
use crate::LockGuard;

fn replicated() -> (Recorded, ManualClock) {
    let (store, clock) = Recorded::new();
    (
        store.able(Abilities::full().replication(ReplicaSupport::Listed)),
        clock,
    )
}

fn client(store: &Recorded, replication: Replication) -> Client {
    store
        .builder()
        .configure(|config| config.with_replication(replication))
        .connect()
        .unwrap()
}

fn set(store: &Recorded, confirm: Option<u32>) {
    *store.replicas.lock() = confirm;
}

fn is_free(client: &Client) -> bool {
    !client.mutex("x").unwrap().is_locked().unwrap()
}

fn took(outcome: Result<Option<LockGuard>, Error>) -> Result<bool, Error> {
    outcome.map(|guard| guard.is_some())
}

#[test]
fn grant_with_insufficient_replicas_is_given_back() {
    let (store, _clock) = replicated();
    for policy in [OnInsufficientReplicas::Retry, OnInsufficientReplicas::Fail] {
        let client = client(&store, Replication::all().on_insufficient_replicas(policy));
        let lock = client.mutex("x").unwrap();
        for (confirm, says) in [(Some(1), "1 of 2"), (Some(0), "0 of 2"), (None, "in time")] {
            set(&store, confirm);
            let before = (store.count("acquire"), store.count("release"));
            let error = lock.try_lock().unwrap_err();
            assert!(
                error.is_insufficient_replicas() && error.to_string().contains(says),
                "{error}"
            );
            assert!(error.to_string().contains("given back"), "{error}");
            assert!(
                is_free(&client),
                "the lock is free before the caller gets the error"
            );
            let after = (store.count("acquire"), store.count("release"));
            assert_eq!(
                after,
                (before.0 + 1, before.1 + 1),
                "one attempt and one release"
            );
        }
        set(&store, Some(2));
        drop(lock.try_lock().unwrap().unwrap());
    }
}

#[test]
fn wait_with_insufficient_replicas_retries_with_new_owners() {
    let (store, clock) = replicated();
    let client = client(&store, Replication::replicas(2));
    let lock = client.mutex("x").unwrap();
    set(&store, Some(1));
    let waiter = thread::spawn(move || took(lock.try_lock_for(36_000 * SECOND)));
    let mut owners = Vec::new();
    for count in 1..5 {
        eventually("the grant is given back", || {
            clock.jump(SECOND / 100);
            store.count("release") >= count
        });
        owners.push(store.owner.lock().unwrap());
    }
    owners.dedup();
    assert!(owners.len() > 1, "a closed owner is not used again");
    assert!(!waiter.is_finished());
    set(&store, Some(2));
    advance_until_done(&clock, 0, &waiter);
    assert!(waiter.join().unwrap().unwrap());
}

#[test]
fn insufficient_replicas_are_reported_when_the_wait_ends() {
    for wait in [Some(2 * SECOND), None] {
        let (store, clock) = replicated();
        let limit = |config: crate::Config| {
            config
                .with_outage_limit(3 * SECOND)
                .with_replication(Replication::all())
        };
        let client = store.builder().configure(limit).connect().unwrap();
        let lock = client.mutex("x").unwrap();
        set(&store, Some(1));
        let start = clock.now();
        let waiter = thread::spawn(move || match wait {
            Some(wait) => took(lock.try_lock_for(wait)),
            None => lock.lock().map(|_| true),
        });
        advance_until_done(&clock, 0, &waiter);
        let error = waiter.join().unwrap().unwrap_err();
        assert!(error.is_insufficient_replicas(), "never busy: {error}");
        let took = clock.now().since(start);
        let bound = wait.unwrap_or(3 * SECOND);
        assert!(
            took >= bound && took < bound + SECOND / 2,
            "{took:?} of {bound:?}"
        );
        assert_eq!(store.count("acquire"), store.count("release"));
        assert!(is_free(&client));
    }
}

#[test]
fn insufficient_replicas_with_policy_fail_end_the_wait() {
    let (store, _clock) = replicated();
    let client = client(
        &store,
        Replication::all().on_insufficient_replicas(OnInsufficientReplicas::Fail),
    );
    set(&store, Some(1));
    assert!(
        took(client.mutex("x").unwrap().try_lock_for(60 * SECOND))
            .unwrap_err()
            .is_insufficient_replicas()
    );
    assert_eq!(store.count("acquire"), 1);
}

#[test]
fn accepted_lock_with_insufficient_replicas_emits_events() {
    let (store, clock) = replicated();
    let (told, events) = crossbeam_channel::unbounded();
    let policy = Replication::all().on_insufficient_replicas(OnInsufficientReplicas::Accept);
    let client = store
        .builder()
        .configure(|config| config.with_replication(policy))
        .events(Arc::new(move |event: &Event| {
            told.send(event.clone()).unwrap();
        }))
        .connect()
        .unwrap();
    set(&store, Some(1));
    let guard = client.mutex("x").unwrap().try_lock().unwrap().unwrap();
    advance(&client, &clock, 45 * SECOND);
    assert_eq!(guard.state(), GuardState::Held);
    assert!(guard.remaining() > 15 * SECOND, "renewals are accepted");
    let token = guard.fencing_token();
    guard.unlock().unwrap();
    drop(client);
    let accepted: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::InsufficientReplicasAccepted {
                token,
                insufficient,
                ..
            } => Some((token, insufficient)),
            _ => None,
        })
        .collect();
    assert!(accepted.len() >= 4, "{accepted:?}");
    assert!(
        accepted
            .iter()
            .all(|it| *it == (token, InsufficientReplicas::new(1, 2))),
        "{accepted:?}"
    );
}

#[test]
fn renewal_with_insufficient_replicas_keeps_the_deadline() {
    let (store, clock) = replicated();
    let client = client(&store, Replication::replicas(2));
    let guard = client.mutex("x").unwrap().lock().unwrap();
    let losses = guard.losses();
    let until = clock.now() + guard.remaining();
    set(&store, Some(1));
    advance(&client, &clock, 15 * SECOND);
    assert_eq!(
        (guard.state(), guard.is_valid()),
        (GuardState::Suspended, true)
    );
    assert_eq!(clock.now() + guard.remaining(), until);
    advance(&client, &clock, until.since(clock.now()) - SECOND / 10);
    assert!(
        guard.is_valid() && losses.is_empty(),
        "no loss before the deadline"
    );
    advance(&client, &clock, SECOND / 5);
    let loss = losses.try_recv().unwrap();
    assert_eq!(loss.cause(), LossCause::InsufficientReplicas);
    assert!(
        loss.last_failure().unwrap().is_insufficient_replicas(),
        "{loss}"
    );
    assert!(loss.to_string().contains("1 of 2"), "{loss}");
    eventually("the extended lock is cleaned up", || is_free(&client));
}

#[test]
fn renewal_without_replicas_is_sent_while_others_hang() {
    let (store, clock) = replicated();
    let client = client(&store, Replication::replicas(1));
    let gate = store.gate.lock();
    let take = |n: usize| client.mutex(format!("n{n}")).unwrap().lock().unwrap();
    let needs: Vec<_> = (0..500).map(take).collect();
    let off = LockOptions::new().replication(Replication::off());
    let free = client.mutex("x").unwrap().lock_with(&off).unwrap();
    store.cut("confirm", Fault::Hangs);
    parked(&clock, 1);
    clock.jump(10 * SECOND);
    eventually("the lock without replicas is renewed", || {
        free.remaining() > 28 * SECOND
    });
    for stuck in 1..=4 {
        eventually("a call hangs", || store.count("confirm") == stuck);
        eventually("the next worker stands by", || {
            stuck == 4 || sleeping(&clock) >= 3
        });
        clock.jump(SECOND / 50);
    }
    for _period in 0..4 {
        eventually("the lock without replicas is renewed", || {
            free.remaining() > 28 * SECOND
        });
        parked(&clock, 2);
        clock.jump(5 * SECOND);
        parked(&clock, 2);
        clock.jump(5 * SECOND);
    }
    assert_eq!(store.count("confirm"), 4);
    assert!(needs.iter().all(|guard| !guard.is_valid()));
    store.mend();
    drop(gate);
}

/// Returns the `Degraded` and `Restored` events of a lock whose grant two replicas confirmed, and
/// whose renewals no replica confirms for a while.
fn degraded_and_restored(
    policy: Replication,
    prepare: impl FnOnce(&Recorded),
) -> Vec<&'static str> {
    let (store, clock) = replicated();
    let (told, events) = crossbeam_channel::unbounded();
    let client = store
        .builder()
        .configure(|config| config.with_replication(policy))
        .events(Arc::new(move |event: &Event| {
            told.send(event.clone()).unwrap();
        }))
        .connect()
        .unwrap();
    set(&store, Some(1));
    let error = client.mutex("x").unwrap().try_lock().unwrap_err();
    assert!(
        error.is_insufficient_replicas(),
        "a grant must be confirmed: {error}"
    );
    set(&store, Some(2));
    let guard = client.mutex("x").unwrap().lock().unwrap();
    prepare(&store);
    set(&store, Some(0));
    advance(&client, &clock, 75 * SECOND);
    assert_eq!(guard.state(), GuardState::Held);
    assert!(guard.remaining() > 15 * SECOND, "{guard:?}");
    set(&store, Some(2));
    advance(&client, &clock, 15 * SECOND);
    guard.unlock().unwrap();
    drop(client);
    let what = |event| match event {
        Event::Degraded { insufficient, .. } => {
            assert_eq!(insufficient, InsufficientReplicas::new(0, 2));
            Some("degraded")
        }
        Event::Restored { .. } => Some("restored"),
        _ => None,
    };
    events.iter().filter_map(what).collect()
}

#[test]
fn unconfirmed_renewal_counts_if_allowed_or_unreplicated() {
    let strict = Replication::replicas(2).on_insufficient_replicas(OnInsufficientReplicas::Fail);
    let keeps = strict.keep_unconfirmed_renewals(true);
    assert_eq!(
        degraded_and_restored(keeps, |_| ()),
        ["degraded", "restored"]
    );
    let has_none = |store: &Recorded| store.unreplicated.store(true, Ordering::SeqCst);
    assert_eq!(
        degraded_and_restored(strict, has_none),
        ["degraded", "restored"]
    );
}

#[test]
fn renewal_confirmed_by_replicas_ends_the_suspension() {
    let (store, clock) = replicated();
    let client = client(&store, Replication::replicas(2));
    let guard = client.mutex("x").unwrap().lock().unwrap();
    set(&store, None);
    advance(&client, &clock, 15 * SECOND);
    assert_eq!(guard.state(), GuardState::Suspended);
    set(&store, Some(2));
    advance(&client, &clock, 2 * SECOND);
    assert_eq!(guard.state(), GuardState::Held);
    assert!(guard.remaining() > 25 * SECOND);
}

#[test]
fn extension_with_insufficient_replicas_extends_nothing() {
    let (store, clock) = replicated();
    let client = client(&store, Replication::replicas(2));
    let guard = client.mutex("x").unwrap().lock().unwrap();
    let until = clock.now() + guard.remaining();
    set(&store, Some(0));
    let error = guard.extend(90 * SECOND).unwrap_err();
    assert!(
        error.is_insufficient_replicas() && error.to_string().contains("0 of 2"),
        "{error}"
    );
    assert_eq!(clock.now() + guard.remaining(), until);
    set(&store, Some(2));
    guard.extend(90 * SECOND).unwrap();
    assert!(guard.remaining() > 80 * SECOND);
}

#[test]
fn grant_not_given_back_is_released_in_the_background() {
    let (store, clock) = replicated();
    let client = client(&store, Replication::all());
    set(&store, Some(1));
    store.cut("release", Fault::NotSent);
    let lock = client.mutex("x").unwrap();
    let attempt = thread::spawn(move || took(lock.try_lock()));
    advance_until_done(&clock, 0, &attempt);
    let error = attempt.join().unwrap().unwrap_err();
    assert!(
        error.is_insufficient_replicas() && error.to_string().contains("background"),
        "{error}"
    );
    assert!(std::error::Error::source(&error).is_some());
    assert!(!is_free(&client));
    store.mend();
    advance(&client, &clock, 2 * SECOND);
    assert!(is_free(&client));
}

#[test]
fn unanswered_attempt_short_of_replicas_gets_a_tombstone() {
    let (store, clock) = replicated();
    let client = client(&store, Replication::all());
    set(&store, Some(1));
    store.fail_next("acquire", Fault::Swallowed);
    let lock = client.mutex("x").unwrap();
    let attempt = thread::spawn(move || took(lock.try_lock_for(SECOND / 10)));
    advance_until_done(&clock, 0, &attempt);
    assert!(
        attempt
            .join()
            .unwrap()
            .unwrap_err()
            .is_insufficient_replicas()
    );
    assert!(
        store.count("close") > 0,
        "a copy of the first request may still arrive"
    );
    assert!(store.count("release") > 0 || store.count("acquire") == 2);
    assert!(is_free(&client));
}

#[test]
fn token_after_a_grant_that_was_given_back_is_larger() {
    let (store, _clock) = replicated();
    let client = client(&store, Replication::all());
    let lock = client.owned_mutex("x").unwrap();
    let token = || lock.lock().unwrap().fencing_token().unwrap();
    let seen = token();
    set(&store, Some(1));
    assert!(lock.try_lock().unwrap_err().is_insufficient_replicas());
    set(&store, Some(2));
    assert!(token() > seen);
}

/// The lead is the time by which a lease ends earlier on a replica. It grows between the grant, or
/// the renewal, and the end of the call.
#[test]
fn lead_that_grows_during_a_request_shortens_the_validity() {
    let (store, _clock) = replicated();
    let client = client(&store, Replication::all());
    let lock = client.mutex("x").unwrap();
    let options = LockOptions::new().lease(30 * SECOND);
    let set_leads = |leads: &[u32]| {
        *store.leads.lock() = leads.iter().map(|lead| *lead * SECOND).collect();
    };
    let granted = || lock.lock_with(&options).unwrap().remaining();
    let whole = granted();
    set_leads(&[0, 5]);
    assert_eq!(granted(), whole - 5 * SECOND);
    set_leads(&[0]);
    let guard = lock.lock_with(&options).unwrap();
    guard.extend(40 * SECOND).unwrap();
    let whole = guard.remaining();
    // An extension reads the lead once before its request and twice after it.
    set_leads(&[0, 0, 5]);
    guard.extend(50 * SECOND).unwrap();
    let shortened = guard.remaining();
    assert!(
        shortened > whole && shortened < 46 * SECOND,
        "{shortened:?}, and {whole:?} before"
    );
}

#[test]
fn hand_off_requires_the_same_replication() {
    let (store, _clock) = replicated();
    let client = client(&store, Replication::replicas(1));
    for (asked, attempts) in [(Replication::replicas(1), 0), (Replication::replicas(2), 1)] {
        let other = store.client().mutex("x").unwrap().lock().unwrap();
        let queue = |options: LockOptions| {
            let (lock, queued) = (
                client.owned_mutex("x").unwrap(),
                client.queue_length("x").unwrap(),
            );
            let waiter = thread::spawn(move || lock.lock_with(&options).unwrap());
            eventually("the waiter queues", || {
                client.queue_length("x").unwrap() == queued + 1
            });
            waiter
        };
        let before = store.count("acquire");
        let first = queue(LockOptions::new());
        eventually("the head has asked, and watches", || {
            store.count("acquire") > before && store.watches() == 1
        });
        let second = queue(LockOptions::new().replication(asked));
        other.unlock().unwrap();
        let first = first.join().unwrap();
        let before = store.count("acquire");
        first.unlock().unwrap();
        second.join().unwrap().unlock().unwrap();
        assert_eq!(store.count("acquire"), before + attempts, "{asked:?}");
    }
}

#[test]
fn nested_hold_with_more_replicas_is_misuse() {
    let (store, _clock) = replicated();
    let client = client(&store, Replication::replicas(1));
    let lock = client.mutex("x").unwrap();
    let nested = |policy| {
        lock.lock_with(&LockOptions::new().replication(policy))
            .map(drop)
    };
    let plain = lock
        .lock_with(&LockOptions::new().replication(Replication::off()))
        .unwrap();
    drop(
        lock.lock()
            .expect("the policy of the client does not apply to nested holds"),
    );
    assert!(nested(Replication::replicas(1)).unwrap_err().is_misuse());
    assert_eq!(lock.hold_count(), 1);
    drop(plain);
    let one = lock.lock().unwrap();
    nested(Replication::replicas(1)).unwrap();
    let refused = nested(Replication::all()).unwrap_err().to_string();
    assert!(
        refused.contains("replicas=1") && refused.contains("replicas=all"),
        "{refused}"
    );
    drop(one);
}

#[test]
fn unsupported_replication_is_refused_by_name() {
    let (store, _clock) = Recorded::new();
    let ask = |store: &Recorded, policy| {
        let change = |config: crate::Config| config.with_replication(policy);
        let by_client = store.builder().configure(change).connect().map(drop);
        let options = LockOptions::new().replication(policy);
        let by_lock = store
            .client()
            .mutex("x")
            .unwrap()
            .lock_with(&options)
            .map(drop);
        (by_client, by_lock)
    };
    let refusals = |(by_client, by_lock): (Result<(), Error>, Result<(), Error>)| {
        [by_client, by_lock].map(|result| {
            let error = result.unwrap_err();
            assert!(error.is_unsupported(), "{error:?}");
            error.to_string()
        })
    };
    for refused in refusals(ask(&store, Replication::replicas(1))) {
        assert!(
            refused.contains("replicas=1") && refused.contains("no replicas"),
            "{refused}"
        );
    }
    let counted = store.able(Abilities::full().replication(ReplicaSupport::Counted));
    for refused in refusals(ask(&counted, Replication::all())) {
        assert!(
            refused.contains("replicas=all") && refused.contains("number"),
            "{refused}"
        );
    }
    let (by_client, by_lock) = ask(&counted, Replication::replicas(2));
    assert!(by_client.is_ok() && by_lock.is_ok());
    let (by_client, by_lock) = ask(&counted, Replication::replicas(0));
    assert!(by_client.unwrap_err().is_configuration() && by_lock.unwrap_err().is_misuse());
    assert_eq!(store.count("acquire"), 1, "refused locks send no attempt");
}

#[test]
fn replica_timeout_is_added_and_limited_by_the_lease() {
    let (store, clock) = replicated();
    let policy = Replication::replicas(1).timeout(5 * SECOND);
    let client = client(&store, policy);
    let lock = client.mutex("x").unwrap();
    let guard = lock.lock().unwrap();
    assert_eq!(store.time_given("acquire"), 7 * SECOND);
    advance(&client, &clock, 11 * SECOND);
    assert_eq!(store.time_given("renew"), 7 * SECOND);
    drop(guard);
    drop(
        lock.lock_with(&LockOptions::new().lease(3 * SECOND))
            .unwrap(),
    );
    assert_eq!(store.time_given("acquire"), 3 * SECOND);
    let plain = store.client();
    drop(plain.mutex("y").unwrap().lock().unwrap());
    assert_eq!(store.time_given("acquire"), 2 * SECOND);
}

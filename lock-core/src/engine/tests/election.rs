//! Elections on the in-memory store: gains and losses of the leadership, their order, and the end
//! of the threads.

use super::*;
use crate::crossbeam_channel::Receiver;
use crate::{Election, LeadershipChange};

type Changes = Receiver<LeadershipChange>;

/// Makes a new client that campaigns in the election `x`. Returns the election and its changes.
fn candidate(store: &Recorded) -> (Election, Changes) {
    let election = store.client().election("x").unwrap();
    let changes = election.changes();
    election.campaign().unwrap();
    (election, changes)
}

fn next(changes: &Changes) -> LeadershipChange {
    changes.recv_timeout(20 * SECOND).expect("a change is told")
}

/// Waits for the next change, which must be a gain, and returns its term.
fn gained(changes: &Changes) -> u64 {
    match next(changes) {
        LeadershipChange::Gained { term } => term.expect("the store has tokens").get(),
        other => panic!("{other:?}"),
    }
}

fn lost(cause: LossCause) -> LeadershipChange {
    LeadershipChange::Lost { cause }
}

/// Advances the clock until `holds` returns true, by 100 ms whenever a thread sleeps and none is
/// due.
fn pass(clock: &ManualClock, what: &str, mut holds: impl FnMut() -> bool) {
    eventually(what, || {
        if sleeping(clock) > 0 {
            clock.jump(Duration::from_millis(100));
        }
        holds()
    });
}

#[test]
fn one_of_two_candidates_leads_and_other_follows_resignation() {
    let (store, _clock) = Recorded::new();
    let (a, of_a) = candidate(&store);
    let first = gained(&of_a);
    let (b, of_b) = candidate(&store);
    assert!(a.is_leader() && !b.is_leader());
    assert_eq!(
        (a.term().map(|term| term.get()), b.term()),
        (Some(first), None)
    );
    a.ensure(SECOND).unwrap();
    assert!(b.ensure(Duration::ZERO).unwrap_err().is_not_held());
    a.resign().unwrap();
    assert!(!a.is_leader() && a.remaining().is_zero());
    assert_eq!(next(&of_a), LeadershipChange::Resigned);
    let second = gained(&of_b);
    assert!(second > first && b.is_leader());
    a.resign().unwrap();
    a.campaign().unwrap();
    a.campaign().unwrap();
    b.resign().unwrap();
    assert!(gained(&of_a) > second);
    assert!(of_a.try_recv().is_err(), "each change is told once");
}

#[test]
fn resignation_is_told_and_in_force_before_the_release() {
    let (store, _clock) = Recorded::new();
    let (election, changes) = candidate(&store);
    gained(&changes);
    let gate = store.gate.lock();
    store.fail_next("release", Fault::Hangs);
    thread::scope(|scope| {
        let resigning = scope.spawn(|| election.resign());
        assert_eq!(next(&changes), LeadershipChange::Resigned);
        assert!(!election.is_leader());
        assert!(
            store
                .store
                .inspect(election.name(), Moment::NEVER)
                .unwrap()
                .holder
                .is_some()
        );
        drop(gate);
        resigning.join().unwrap().unwrap();
    });
}

#[test]
fn leader_paused_past_its_lease_is_none_at_once() {
    let (store, clock) = Recorded::new();
    let (election, changes) = candidate(&store);
    let first = gained(&changes);
    store.cut("renew", Fault::NotSent);
    clock.jump(60 * SECOND);
    assert!(!election.is_leader() || election.term().is_some_and(|term| term.get() > first));
    assert_eq!(next(&changes), lost(LossCause::Expired));
    assert!(gained(&changes) > first);
}

#[test]
fn outage_ends_leadership_with_its_validity_only() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let election = client.election("x").unwrap();
    let changes = election.changes();
    election.campaign().unwrap();
    let first = gained(&changes);
    let requests = ["renew", "acquire"];
    requests
        .iter()
        .for_each(|request| store.cut(request, Fault::NotSent));
    advance(&client, &clock, 25 * SECOND);
    assert!(
        election.is_leader() && changes.is_empty(),
        "the lease still runs"
    );
    assert!(
        election
            .ensure(10 * SECOND)
            .unwrap_err()
            .is_lease_too_short()
    );
    pass(&clock, "it is over", || !election.is_leader());
    assert_eq!(next(&changes), lost(LossCause::Expired));
    pass(&clock, "an error is told", || {
        election.last_error().is_some()
    });
    assert!(election.last_error().unwrap().is_unavailable());
    store.mend();
    pass(&clock, "it leads again", || election.is_leader());
    assert!(gained(&changes) > first);
    assert!(election.last_error().is_none());
}

#[test]
fn leader_whose_lock_is_gone_learns_it_and_campaigns_again() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let election = client.election("x").unwrap();
    let changes = election.changes();
    election.campaign().unwrap();
    let first = gained(&changes);
    store.store.lose(election.name());
    advance(&client, &clock, 11 * SECOND);
    assert_eq!(next(&changes), lost(LossCause::Gone));
    assert!(gained(&changes) > first);
}

#[test]
fn dropped_election_resigns_and_leaves_no_thread() {
    let (store, clock) = Recorded::new();
    let (leader, of_leader) = candidate(&store);
    gained(&of_leader);
    let (waiting, of_waiting) = candidate(&store);
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    leader.on_change(move |_| *counted.lock() += 1).unwrap();
    drop(leader.clone());
    assert!(leader.is_leader());
    drop(leader);
    assert_eq!(next(&of_leader), LeadershipChange::Resigned);
    assert!(of_leader.recv_timeout(20 * SECOND).is_err(), "closed");
    gained(&of_waiting);
    eventually("the callback's thread has ended", || {
        Arc::strong_count(&calls) == 1
    });
    assert_eq!(*calls.lock(), 2, "the gain that it began with, and the end");
    drop(waiting);
    eventually("the clients drop the store", || {
        Arc::strong_count(&store.log) == 1
    });
    eventually("the threads end", || clock.sleepers().is_empty());
}

#[test]
fn election_dropped_while_it_waits_leaves_no_thread() {
    let (store, _clock) = Recorded::new();
    let held = store.client().owned_mutex("x").unwrap().lock().unwrap();
    let (waiting, changes) = candidate(&store);
    eventually("it waits", || store.count("acquire") >= 3);
    drop(waiting);
    assert!(changes.recv_timeout(20 * SECOND).is_err(), "it never led");
    drop(held);
    eventually("the clients drop the store", || {
        Arc::strong_count(&store.log) == 1
    });
}

#[test]
fn panics_in_callback_and_backend_end_no_campaign() {
    let (store, clock) = Recorded::new();
    let election = store.client().election("x").unwrap();
    let (seen, panics) = crossbeam_channel::unbounded();
    election
        .on_change(move |change| {
            seen.send(change).unwrap();
            panic!("on purpose");
        })
        .unwrap();
    store.fail_next("acquire", Fault::Panic);
    election.campaign().unwrap();
    pass(&clock, "it leads", || election.is_leader());
    gained(&panics);
    election.resign().unwrap();
    // The clock may run ahead of a slow thread, so the leadership may first be lost and gained
    // again.
    while next(&panics) != LeadershipChange::Resigned {}
}

#[test]
fn refusal_is_the_last_error_until_the_next_success() {
    let (store, clock) = Recorded::new();
    store.cut("acquire", Fault::Refused);
    let (election, changes) = candidate(&store);
    eventually("the refusal is told", || {
        election
            .last_error()
            .is_some_and(|error| error.is_configuration())
    });
    let asked = store.count("acquire");
    pass(&clock, "it asks again and again", || {
        store.count("acquire") > asked + 3
    });
    store.mend();
    pass(&clock, "it leads", || election.is_leader());
    gained(&changes);
    assert!(election.last_error().is_none());
}

#[test]
fn refusal_ends_waits_and_not_the_campaign() {
    let (store, clock) = Recorded::new();
    for fault in [Fault::Refused, Fault::Foreign] {
        store.cut("acquire", fault);
        let (client, told) = store.client_with_events();
        let election = client.election("x").unwrap();
        election.campaign().unwrap();
        thread::scope(|scope| {
            let election = &election;
            for wait in [Duration::MAX, 3_600 * SECOND, Duration::MAX] {
                let waits = scope.spawn(move || election.wait_for_leadership(wait, None));
                pass(&clock, "it is refused", || waits.is_finished());
                let error = waits.join().unwrap().unwrap_err();
                assert!(
                    error.is_configuration() || error.is_foreign_format(),
                    "{error}"
                );
            }
            let failed = || {
                told.lock()
                    .iter()
                    .filter(|it| *it == "CampaignFailed")
                    .count()
            };
            eventually("it is an event", || failed() > 0);
            store.mend();
            let waits = scope.spawn(|| election.wait_for_leadership(Duration::MAX, None));
            pass(&clock, "it leads", || waits.is_finished());
            assert!(waits.join().unwrap().unwrap());
            assert_eq!(failed(), 1, "once for each cause");
        });
        election.resign().unwrap();
    }
}

#[test]
fn follower_whose_leader_the_store_names_has_no_error() {
    let (store, clock) = Recorded::new();
    let lease = LockOptions::new().lease(3_600 * SECOND);
    let _held = store
        .client()
        .owned_mutex("x")
        .unwrap()
        .lock_with(&lease)
        .unwrap();
    store.cut("acquire", Fault::NotSent);
    let (election, _changes) = candidate(&store);
    pass(&clock, "an error is told", || {
        election.last_error().is_some()
    });
    let unknown = election
        .wait_for_leadership(Duration::ZERO, None)
        .unwrap_err();
    assert!(unknown.is_unavailable(), "{unknown}");
    store.mend();
    pass(&clock, "it is over", || election.last_error().is_none());
    assert!(!election.wait_for_leadership(Duration::ZERO, None).unwrap());
}

#[test]
fn wait_for_leadership_ends_by_time_interrupt_or_gain() {
    let (store, clock) = Recorded::new();
    // The clock may run ahead of the thread that renews the lease: a long lease does not end
    // meanwhile.
    let lease = LockOptions::new().lease(3_600 * SECOND);
    let held = store
        .client()
        .owned_mutex("x")
        .unwrap()
        .lock_with(&lease)
        .unwrap();
    let election = store.client().election("x").unwrap();
    assert!(
        election
            .wait_for_leadership(SECOND, None)
            .unwrap_err()
            .is_misuse()
    );
    election.campaign().unwrap();
    let interrupt = Interrupt::new();
    thread::scope(|scope| {
        let waits = scope.spawn(|| election.wait_for_leadership(SECOND, None));
        pass(&clock, "the time is over", || waits.is_finished());
        assert!(!waits.join().unwrap().unwrap());
        let waits = scope.spawn(|| election.wait_for_leadership(Duration::MAX, Some(&interrupt)));
        interrupt.fire();
        assert!(waits.join().unwrap().unwrap_err().is_interrupted());
        let waits = scope.spawn(|| election.wait_for_leadership(Duration::MAX, None));
        drop(held);
        assert!(waits.join().unwrap().unwrap() && election.is_leader());
        assert!(election.wait_for_leadership(Duration::ZERO, None).unwrap());
    });
}

#[test]
fn election_on_a_store_without_tokens_has_no_term() {
    let (store, _clock) = Recorded::new();
    let (election, changes) = candidate(&store.able(store.abilities.tokens(false)));
    assert_eq!(next(&changes), LeadershipChange::Gained { term: None });
    assert!(election.is_leader() && election.term().is_none());
}

#[test]
fn each_consumer_sees_each_change_from_its_first_on() {
    let (store, _clock) = Recorded::new();
    let (election, first) = candidate(&store);
    let term = gained(&first);
    let second = election.changes();
    assert_eq!(gained(&second), term);
    for _ in 0..3 {
        election.resign().unwrap();
        election.campaign().unwrap();
        assert!(election.wait_for_leadership(20 * SECOND, None).unwrap());
    }
    let all = |changes: &Changes| changes.try_iter().collect::<Vec<_>>();
    let told = all(&first);
    assert_eq!((told.len(), &told), (6, &all(&second)));
}

#[test]
fn new_campaign_knows_no_error_of_the_one_before() {
    let (store, _clock) = Recorded::new();
    let election = store.client().election("x").unwrap();
    store.fail_next("acquire", Fault::Refused);
    election.campaign().unwrap();
    eventually("it is refused", || election.last_error().is_some());
    election.resign().unwrap();
    let gate = store.gate.lock();
    store.fail_next("acquire", Fault::Hangs);
    election.campaign().unwrap();
    assert!(election.last_error().is_none());
    assert!(
        !election
            .wait_for_leadership(Duration::ZERO, None)
            .expect("it is not known yet")
    );
    drop(gate);
    eventually("it leads", || election.is_leader());
}

/// The next candidate leads as soon as the leader's work has ended, by a return or by a panic.
#[test]
fn leadership_ends_with_the_work() {
    let connect = || {
        crate::builder()
            .url("memory://ends_with_the_work")
            .unwrap()
            .connect()
            .unwrap()
    };
    let (one, next) = (connect(), connect());
    let (election, successor) = (one.election("it").unwrap(), next.election("it").unwrap());
    let busy = next.mutex("it").unwrap();
    let led = election.lead(10 * SECOND, None, |election| {
        assert!(election.is_leader() && busy.try_lock().unwrap().is_none());
        election.term()
    });
    assert!(led.unwrap().flatten().is_some());
    assert!(!election.is_leader());
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        election.lead(10 * SECOND, None, |_| panic!("on purpose"))
    }));
    assert!(panicked.is_err() && !election.is_leader());
    assert_eq!(successor.lead(10 * SECOND, None, |_| 7).unwrap(), Some(7));
    // A candidate that has not become the leader in time stops its campaign.
    let held = busy.lock().unwrap();
    assert_eq!(election.lead(SECOND / 100, None, |_| 7).unwrap(), None);
    held.unlock().unwrap();
    assert!(busy.try_lock().unwrap().is_some());
}

#[test]
fn work_of_a_lost_term_is_no_success() {
    let connect = || {
        let builder = crate::builder().url("memory://work_of_a_lost_term?watchdog=600ms");
        builder.unwrap().connect().unwrap()
    };
    let (client, operator) = (connect(), connect());
    let election = client.election("it").unwrap();
    let lost = election.lead(10 * SECOND, None, |election| {
        let changes = election.changes();
        assert!(operator.mutex("it").unwrap().force_unlock().unwrap());
        let is_loss = |change: &LeadershipChange| matches!(change, LeadershipChange::Lost { .. });
        // Not by a look at the state, which may miss a short time without leadership.
        while !is_loss(&next(&changes)) {}
        // The candidate leads again, but its work belongs to the first term: `lead` must report
        // that this term was lost.
        eventually("it leads again", || election.is_leader());
    });
    assert!(lost.unwrap_err().is_lost());
    let nested = election.lead(10 * SECOND, None, |election| {
        assert!(election.lead(SECOND, None, |_| ()).unwrap_err().is_misuse());
        election.is_leader()
    });
    assert_eq!(
        nested.unwrap(),
        Some(true),
        "a refused call does not resign"
    );
    election.campaign().unwrap();
    assert!(election.lead(SECOND, None, |_| ()).unwrap_err().is_misuse());
    election.resign().unwrap();
}

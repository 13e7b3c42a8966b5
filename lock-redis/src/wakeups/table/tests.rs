//! Tests of the table: sequences of events from watchers, the worker and the server.

use super::*;
use crate::wakeups::poll_interval::PollInterval;
use lock_core::{Clock, SystemClock};

struct NoWaiter;

impl Wake for NoWaiter {
    fn wake(&self) {}
}

fn at(milliseconds: u64) -> Moment {
    Moment::from_nanos(0) + Duration::from_millis(milliseconds)
}

fn add(table: &mut SubscriptionTable) -> (WatchId, Option<Arc<Confirmation>>) {
    add_on(table, "c")
}

fn add_on(table: &mut SubscriptionTable, channel: &str) -> (WatchId, Option<Arc<Confirmation>>) {
    add_with(table, channel, None)
}

/// Adds a watch of a waiter in the queue of the lock `k`.
fn add_in_queue(table: &mut SubscriptionTable) -> WatchId {
    add_with(table, "c", Some("k")).0
}

fn add_with(
    table: &mut SubscriptionTable,
    channel: &str,
    grants: Option<&str>,
) -> (WatchId, Option<Arc<Confirmation>>) {
    let releases = ReleaseChannel {
        kind: ChannelKind::Plain,
        name: channel.to_owned(),
        key: Some("k".to_owned()),
        has_permits: false,
        grants: grants.map(str::to_owned),
        polls: PollInterval::default(),
    };
    let (id, standing) = table.add_waiter(&releases, Arc::new(NoWaiter), at(0));
    match standing {
        SubscriptionState::Live => (id, None),
        SubscriptionState::Awaited(confirmation) => (id, Some(confirmation)),
    }
}

fn subscription(work: &WorkerTasks) -> Subscription {
    let [subscription] = &work.subscribe[..] else {
        panic!("{:?}", work.subscribe)
    };
    subscription.clone()
}

#[test]
fn channel_is_requested_once_and_confirmed_to_all() {
    let mut table = SubscriptionTable::default();
    let (_, first) = add(&mut table);
    let (_, second) = add(&mut table);
    let asked = subscription(&table.take_work(at(0)));
    let (_, third) = add(&mut table);
    assert!(table.take_work(at(0)).subscribe.is_empty());
    let wakes = table.confirmed(&asked);
    assert!(wakes.watches.is_empty(), "nothing was missed");
    for confirmation in [first, second, third] {
        assert!(matches!(confirmation.unwrap().take(), Some(Ok(()))));
    }
    assert!(add(&mut table).1.is_none(), "it stands");
    assert_eq!(table.message("c", None, at(0)).watches.len(), 4);
    assert!(table.message("d", None, at(0)).watches.is_empty());
}

#[test]
fn confirmation_of_an_ended_subscription_is_ignored() {
    let mut table = SubscriptionTable::default();
    let (id, _) = add(&mut table);
    let first = subscription(&table.take_work(at(0)));
    table.remove(&id, at(0));
    // The client has sent SUBSCRIBE, UNSUBSCRIBE and SUBSCRIBE. After the first confirmation, the
    // second one is still missing.
    assert_eq!(&*table.take_work(at(1_000)).unsubscribe[0].channel, "c");
    let (_, confirmation) = add(&mut table);
    let second = subscription(&table.take_work(at(1_000)));
    let _none = table.confirmed(&first);
    assert!(confirmation.as_ref().unwrap().take().is_none());
    assert!(add(&mut table).1.is_some(), "not yet");
    let _none = table.confirmed(&second);
    assert!(confirmation.unwrap().take().is_some());
}

#[test]
fn channel_lingers_and_is_found_again() {
    let mut table = SubscriptionTable::default();
    let (id, _) = add(&mut table);
    let asked = subscription(&table.take_work(at(0)));
    let _none = table.confirmed(&asked);
    table.remove(&id, at(0));
    assert!(table.take_work(at(999)).is_watched);
    let (id, confirmation) = add(&mut table);
    assert!(confirmation.is_none());
    assert!(table.take_work(at(5_000)).unsubscribe.is_empty());
    table.remove(&id, at(5_000));
    let work = table.take_work(at(6_000));
    assert!(work.unsubscribe.len() == 1 && !work.is_watched);
}

/// Returns the shortest time of 100 turns of the worker while this many channels are watched.
fn turns_with(channels: usize) -> Duration {
    let mut table = SubscriptionTable::default();
    let _watches: Vec<_> = (0..channels)
        .map(|n| add_on(&mut table, &format!("c{n}")))
        .collect();
    table.take_work(at(0));
    let turns = |_| {
        let start = SystemClock.now();
        for turn in 0..100 {
            table.take_work(at(turn));
            assert!(table.poll(false, at(turn)).0.watches.is_empty());
        }
        SystemClock.now().since(start)
    };
    (0..10).map(turns).min().unwrap()
}

/// If each turn visited each channel, turns with many channels would take 2,000 times as long as
/// turns with few.
#[test]
fn turn_of_the_worker_looks_at_no_channel_without_news() {
    let (few, many) = (turns_with(10), turns_with(20_000));
    println!("{few:?}, {many:?}");
    assert!(many < few * 50, "{few:?}, {many:?}");
}

#[test]
fn missed_messages_wake_waiters_once_after_reconnection() {
    let mut table = SubscriptionTable::default();
    let _watch = add(&mut table);
    let asked = subscription(&table.take_work(at(0)));
    let _none = table.confirmed(&asked);
    table.disconnected();
    let (_, confirmation) = add(&mut table);
    let asked = subscription(&table.take_work(at(0)));
    let wakes = table.confirmed(&asked);
    assert_eq!(wakes.watches.len(), 2);
    assert!(confirmation.unwrap().take().is_some());
    assert!(table.confirmed(&asked).watches.is_empty());
}

#[test]
fn refusal_fails_watchers_wakes_waiters_and_is_retried() {
    let mut table = SubscriptionTable::default();
    let _watch = add(&mut table);
    let asked = subscription(&table.take_work(at(0)));
    let _none = table.confirmed(&asked);
    table.disconnected();
    let (_, confirmation) = add(&mut table);
    let asked = subscription(&table.take_work(at(0)));
    let failure = Failure::Refused(Error::configuration("not allowed"));
    assert_eq!(table.refused(&asked, &failure).watches.len(), 2);
    assert!(matches!(
        confirmation.unwrap().take(),
        Some(Err(Failure::Refused(_)))
    ));
    assert!(table.take_work(at(0)).subscribe.is_empty());
    table.retry_refused();
    subscription(&table.take_work(at(0)));
}

#[test]
fn only_a_permanent_refusal_ends_a_wait_early() {
    let mut table = SubscriptionTable::default();
    let (_, confirmation) = add(&mut table);
    let confirmation = confirmation.unwrap();
    let _none = table.failed(&Failure::NotSent(Error::unavailable("refused")), at(0));
    assert!(confirmation.take().is_none());
    assert_eq!(table.trouble().unwrap().to_string(), "refused");
    let _tickets = table.failed(&Failure::Refused(Error::configuration("password")), at(0));
    assert!(matches!(
        confirmation.take(),
        Some(Err(Failure::Refused(_)))
    ));
    table.connected();
    assert!(table.trouble().is_none());
}

#[test]
fn refused_channel_is_polled_until_it_is_confirmed() {
    let mut table = SubscriptionTable::default();
    let (_, confirmation) = add(&mut table);
    let asked = subscription(&table.take_work(at(0)));
    assert_eq!(table.poll(false, at(0)).1, Moment::NEVER);
    let _tickets = table.poll_instead(&asked);
    assert!(
        matches!(confirmation.unwrap().take(), Some(Ok(()))),
        "it is no failure"
    );
    let (wakes, next) = table.poll(false, at(0));
    assert!(wakes.watches.is_empty() && next <= at(125), "{next:?}");
    assert_eq!(table.poll(false, at(99)).0.watches.len(), 0);
    assert_eq!(table.poll(false, at(125)).0.watches.len(), 1);
    assert_eq!(
        table.poll(false, at(126)).0.watches.len(),
        0,
        "once for each interval"
    );
    table.retry_refused();
    let asked = subscription(&table.take_work(at(1_000)));
    assert_eq!(
        table.confirmed(&asked).watches.len(),
        1,
        "to look for itself"
    );
    assert_eq!(table.poll(false, at(2_000)).1, Moment::NEVER);
    assert!(
        table.poll(true, at(2_000)).1 <= at(2_125),
        "but where releases are not published"
    );
}

#[test]
fn further_watch_of_a_polled_channel_asks_for_no_subscription() {
    let mut table = SubscriptionTable::default();
    let _first = add(&mut table);
    let asked = subscription(&table.take_work(at(0)));
    let _tickets = table.poll_instead(&asked);
    let (_, confirmation) = add(&mut table);
    assert!(confirmation.is_none());
    assert!(table.take_work(at(0)).subscribe.is_empty());
    let due = table.poll(false, at(0)).1;
    assert_eq!(table.poll(false, due).0.watches.len(), 2);
}

#[test]
fn tracked_channel_is_not_polled() {
    let mut table = SubscriptionTable::default();
    let _watch = add(&mut table);
    table.set_tracking(TrackingSupport::Confirmed);
    let work = table.take_work(at(0));
    assert_eq!((work.reads.len(), work.subscribe.len()), (1, 1));
    assert!(
        table
            .read(&work.reads[0], KeyState::Free, at(0))
            .watches
            .is_empty(),
        "it will look"
    );
    let _confirmed = table.confirmed(&subscription(&work));
    assert_eq!(
        table.poll(true, at(0)).1,
        Moment::NEVER,
        "the server reports releases"
    );
    let changed = Some(["k", "other", "k"].map(str::to_owned).to_vec());
    let elsewhere = Some(["other", "k"].map(str::to_owned).to_vec());
    assert_eq!(
        table.changed(changed, at(100)).0,
        elsewhere,
        "one report for each read"
    );
    let work = table.take_work(at(100));
    assert_eq!(
        table
            .read(&work.reads[0], KeyState::Free, at(100))
            .watches
            .len(),
        1
    );
    table.disconnected();
    assert!(table.poll(true, at(200)).1 < Moment::NEVER);
}

#[test]
fn key_is_forgotten_with_its_channel() {
    let mut table = SubscriptionTable::default();
    table.set_tracking(TrackingSupport::Confirmed);
    let (id, _) = add(&mut table);
    let work = table.take_work(at(0));
    let _held = table.read(&work.reads[0], KeyState::Held, at(0));
    assert!(table.is_tracked("k"));
    table.remove(&id, at(0));
    table.take_work(at(1_000));
    assert!(!table.is_tracked("k"));
    let _none = table.changed(None, at(1_000));
    assert!(table.take_work(at(1_000)).reads.is_empty());
}

/// Two kinds of lock with one name, such as a mutex and a read-write lock, have two channels.
#[test]
fn change_of_a_key_wakes_the_waiters_of_each_channel() {
    let mut table = SubscriptionTable::default();
    table.set_tracking(TrackingSupport::Confirmed);
    let (first, _) = add_on(&mut table, "c");
    let _second = add_on(&mut table, "d");
    let work = table.take_work(at(0));
    for asked in &work.subscribe {
        let _confirmed = table.confirmed(asked);
    }
    let woken = |table: &mut SubscriptionTable, key: &Arc<str>, now| {
        let _none = table.changed(Some(vec!["k".to_owned()]), at(now));
        assert_eq!(table.take_work(at(now)).reads.len(), 1, "{now}");
        table.read(key, KeyState::Free, at(now)).watches.len()
    };
    let _held = table.read(&work.reads[0], KeyState::Held, at(0));
    assert_eq!(woken(&mut table, &work.reads[0], 100), 2);
    table.remove(&first, at(100));
    assert_eq!(table.take_work(at(1_100)).unsubscribe.len(), 1);
    assert!(table.is_tracked("k"), "the other one is watched");
    assert_eq!(woken(&mut table, &work.reads[0], 1_200), 1);
}

#[test]
fn waiters_look_once_when_no_connection_comes_back() {
    let mut table = SubscriptionTable::default();
    let _watch = add(&mut table);
    let asked = subscription(&table.take_work(at(0)));
    let _confirmed = table.confirmed(&asked);
    table.disconnected();
    let failure = Failure::NotSent(Error::unavailable("refused"));
    let mut woken = |now| table.failed(&failure, at(now)).watches.len();
    assert_eq!(
        [0, 2_999, 3_000, 4_000, 60_000].map(&mut woken),
        [0, 0, 1, 0, 0]
    );
    // A connection that is lost again too soon does not end the outage.
    table.connected();
    assert!(table.failed(&failure, at(65_000)).watches.is_empty());
    table.stands();
    let mut woken = |now| table.failed(&failure, at(now)).watches.len();
    assert_eq!([70_000, 73_000, 74_000].map(&mut woken), [0, 1, 0]);
}

#[test]
fn only_the_first_of_a_queue_has_its_key_read() {
    let mut table = SubscriptionTable::default();
    table.set_tracking(TrackingSupport::Confirmed);
    let first_wait = add_in_queue(&mut table);
    let asked = subscription(&table.take_work(at(0)));
    let _confirmed = table.confirmed(&asked);
    table.track("k", false, at(1));
    assert!(table.take_work(at(100)).reads.is_empty() && !table.is_tracked("k"));
    table.track("k", true, at(100));
    assert!(
        table.take_work(at(100)).reads.is_empty(),
        "most grants come sooner"
    );
    let work = table.take_work(at(106));
    assert_eq!(work.reads.len(), 1);
    let _held = table.read(&work.reads[0], KeyState::Held, at(106));
    assert!(table.is_tracked("k"));
    table.remove(&first_wait, at(107));
    // In its second wait, the waiter is not the first of the queue at the beginning.
    let _second_wait = add_in_queue(&mut table);
    table.track("k", false, at(150));
    let _none = table.changed(Some(vec!["k".to_owned()]), at(200));
    assert!(table.take_work(at(300)).reads.is_empty() && !table.is_tracked("k"));
    table.track("k", true, at(300));
    assert_eq!(table.take_work(at(306)).reads.len(), 1);
}

/// The message is, for example, the name of a lock, which the registry of Spring Integration
/// publishes.
#[test]
fn message_of_another_library_names_no_owner() {
    let mut table = SubscriptionTable::default();
    add(&mut table);
    let message = NamedOwner::read("registry:lock");
    let wakeups = table.message("c", Some(message), at(1));
    assert!(wakeups.next.is_none() && wakeups.watches.len() == 1);
}

/// The node may be a replica by now. A replica receives messages about grants that its master has
/// taken back.
#[test]
fn channel_that_the_server_ended_grants_nothing() {
    let mut table = SubscriptionTable::default();
    add_in_queue(&mut table);
    let confirm = |table: &mut SubscriptionTable| {
        let work = table.take_work(at(0));
        let _woken = table.confirmed(&subscription(&work));
    };
    let is_granted = |table: &mut SubscriptionTable| {
        let message = NamedOwner::read("8b1e7c1a-0000-4000-8000-000000000000:3 7 42 0 1:5 k");
        let next = table.message("c", Some(message), at(0)).next;
        next.expect("it names an owner").granted.is_some()
    };
    confirm(&mut table);
    assert!(is_granted(&mut table));
    let _woken = table.ended("c");
    assert!(!is_granted(&mut table));
    table.retry_refused();
    confirm(&mut table);
    assert!(!is_granted(&mut table));
}

#[test]
fn grant_counts_for_the_lock_that_it_names() {
    let mut table = SubscriptionTable::default();
    add_in_queue(&mut table);
    let owner = "8b1e7c1a-0000-4000-8000-000000000000:3";
    for (says, is_granted) in [
        (format!("{owner} 7 42 0 1:5 k"), true),
        (format!("{owner} 7 42 0 1:5 {{k}}"), false),
        (format!("{owner} 7 42 0 1:5 k "), false),
        (format!("{owner} 7 42 0 1:5"), false),
        (format!("{owner} 7 42"), false),
        (format!("{owner} 0 42 0 1:5 k"), false),
        (owner.to_owned(), false),
    ] {
        let next = table
            .message("c", Some(NamedOwner::read(&says)), at(0))
            .next
            .unwrap();
        assert_eq!(next.owner.as_str(), owner);
        assert_eq!(
            next.granted
                .and_then(|it| it.grant.tokens)
                .map(|it| it.first().get()),
            is_granted.then_some(42),
            "{says}"
        );
    }
}

//! Tests of the table: sequences of what watchers, the thread and the server do.

use super::*;

struct Nobody;

impl Wake for Nobody {
    fn wake(&self) {}
}

fn at(milliseconds: u64) -> Moment {
    Moment::from_nanos(0) + Duration::from_millis(milliseconds)
}

fn add(table: &mut SubscriptionTable) -> (WatchId, Option<Arc<Confirmation>>) {
    let (id, standing) =
        table.add(ChannelKind::Plain, "c", Some(PollInterval::default()), Arc::new(Nobody));
    match standing {
        SubscriptionState::Live => (id, None),
        SubscriptionState::Awaited(confirmation) => (id, Some(confirmation)),
    }
}

fn subscription(work: &WorkerTasks) -> Subscription {
    let [subscription] = &work.subscribe[..] else { panic!("{work:?}") };
    subscription.clone()
}

#[test]
fn a_channel_is_asked_for_once_and_confirmed_to_all() {
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
    assert_eq!(table.heard("c").watches.len(), 4);
    assert!(table.heard("d").watches.is_empty());
}

#[test]
fn the_confirmation_of_a_subscription_that_was_ended_counts_for_no_later_one() {
    let mut table = SubscriptionTable::default();
    let (id, _) = add(&mut table);
    let first = subscription(&table.take_work(at(0)));
    table.remove(&id, at(0));
    // SUBSCRIBE, UNSUBSCRIBE, SUBSCRIBE: after the first confirmation the second is still to come.
    assert_eq!(&*table.take_work(at(1_000)).unsubscribe[0].channel, "c");
    let (_, confirmation) = add(&mut table);
    let second = subscription(&table.take_work(at(1_000)));
    let _nobody = table.confirmed(&first);
    assert!(confirmation.as_ref().unwrap().take().is_none());
    assert!(add(&mut table).1.is_some(), "not yet");
    let _nobody = table.confirmed(&second);
    assert!(confirmation.unwrap().take().is_some());
}

#[test]
fn a_channel_lingers_and_is_found_again() {
    let mut table = SubscriptionTable::default();
    let (id, _) = add(&mut table);
    let asked = subscription(&table.take_work(at(0)));
    let _nobody = table.confirmed(&asked);
    table.remove(&id, at(0));
    assert!(table.take_work(at(999)).is_watched);
    let (id, confirmation) = add(&mut table);
    assert!(confirmation.is_none());
    assert!(table.take_work(at(5_000)).unsubscribe.is_empty());
    table.remove(&id, at(5_000));
    let work = table.take_work(at(6_000));
    assert!(work.unsubscribe.len() == 1 && !work.is_watched);
}

#[test]
fn what_was_missed_while_disconnected_is_made_up_for_once() {
    let mut table = SubscriptionTable::default();
    let _watch = add(&mut table);
    let asked = subscription(&table.take_work(at(0)));
    let _nobody = table.confirmed(&asked);
    table.disconnected();
    let (_, confirmation) = add(&mut table);
    let asked = subscription(&table.take_work(at(0)));
    let wakes = table.confirmed(&asked);
    assert_eq!(wakes.watches.len(), 2);
    assert!(confirmation.unwrap().take().is_some());
    assert!(table.confirmed(&asked).watches.is_empty());
}

#[test]
fn a_refusal_fails_who_waits_wakes_who_watches_and_is_asked_again() {
    let mut table = SubscriptionTable::default();
    let _watch = add(&mut table);
    let asked = subscription(&table.take_work(at(0)));
    let _nobody = table.confirmed(&asked);
    table.disconnected();
    let (_, confirmation) = add(&mut table);
    let asked = subscription(&table.take_work(at(0)));
    let failure = Failure::Refused(Error::configuration("not allowed"));
    assert_eq!(table.refused(&asked, &failure).watches.len(), 2);
    assert!(matches!(confirmation.unwrap().take(), Some(Err(Failure::Refused(_)))));
    assert!(table.take_work(at(0)).subscribe.is_empty());
    table.ask_again();
    subscription(&table.take_work(at(0)));
}

#[test]
fn only_a_server_that_will_not_have_us_ends_a_wait_early() {
    let mut table = SubscriptionTable::default();
    let (_, confirmation) = add(&mut table);
    let confirmation = confirmation.unwrap();
    let _nobody = table.failed(&Failure::NotSent(Error::unavailable("refused")));
    assert!(confirmation.take().is_none());
    assert_eq!(table.trouble().unwrap().to_string(), "refused");
    let _tickets = table.failed(&Failure::Refused(Error::configuration("password")));
    assert!(matches!(confirmation.take(), Some(Err(Failure::Refused(_)))));
    table.connected();
    assert!(table.trouble().is_none());
}

#[test]
fn a_channel_that_is_not_told_of_is_polled_until_it_is() {
    let mut table = SubscriptionTable::default();
    let (_, confirmation) = add(&mut table);
    let asked = subscription(&table.take_work(at(0)));
    assert_eq!(table.poll(false, at(0)).1, Moment::NEVER);
    let _tickets = table.untold(&asked);
    assert!(matches!(confirmation.unwrap().take(), Some(Ok(()))), "it is no failure");
    let (wakes, next) = table.poll(false, at(0));
    assert!(wakes.watches.is_empty() && next <= at(125), "{next:?}");
    assert_eq!(table.poll(false, at(99)).0.watches.len(), 0);
    assert_eq!(table.poll(false, at(125)).0.watches.len(), 1);
    assert_eq!(table.poll(false, at(126)).0.watches.len(), 0, "once for each interval");
    table.ask_again();
    let asked = subscription(&table.take_work(at(1_000)));
    assert_eq!(table.confirmed(&asked).watches.len(), 1, "to look for itself");
    assert_eq!(table.poll(false, at(2_000)).1, Moment::NEVER);
    assert!(table.poll(true, at(2_000)).1 <= at(2_125), "but where releases are not published");
}

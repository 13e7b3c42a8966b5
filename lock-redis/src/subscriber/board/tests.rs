//! Tests of the board: sequences of what watchers, the thread and the server do.

use super::*;

struct Nobody;

impl Wake for Nobody {
    fn wake(&self) {}
}

fn at(milliseconds: u64) -> Moment {
    Moment::from_nanos(0) + Duration::from_millis(milliseconds)
}

fn add(board: &mut Board) -> (WatchId, Option<Arc<Ticket>>) {
    let (id, standing) = board.add(Channels::Plain, "c", Some(Polls::default()), Arc::new(Nobody));
    match standing {
        Standing::Live => (id, None),
        Standing::Awaited(ticket) => (id, Some(ticket)),
    }
}

fn subscription(work: &Work) -> Subscription {
    let [subscription] = &work.subscribe[..] else { panic!("{work:?}") };
    subscription.clone()
}

#[test]
fn a_channel_is_asked_for_once_and_confirmed_to_all() {
    let mut board = Board::default();
    let (_, first) = add(&mut board);
    let (_, second) = add(&mut board);
    let asked = subscription(&board.take_work(at(0)));
    let (_, third) = add(&mut board);
    assert!(board.take_work(at(0)).subscribe.is_empty());
    let wakes = board.confirmed(&asked);
    assert!(wakes.watches.is_empty(), "nothing was missed");
    for ticket in [first, second, third] {
        assert!(matches!(ticket.unwrap().take(), Some(Ok(()))));
    }
    assert!(add(&mut board).1.is_none(), "it stands");
    assert_eq!(board.heard("c").watches.len(), 4);
    assert!(board.heard("d").watches.is_empty());
}

#[test]
fn the_confirmation_of_a_subscription_that_was_ended_counts_for_no_later_one() {
    let mut board = Board::default();
    let (id, _) = add(&mut board);
    let first = subscription(&board.take_work(at(0)));
    board.remove(&id, at(0));
    // SUBSCRIBE, UNSUBSCRIBE, SUBSCRIBE: after the first confirmation the second is still to come.
    assert_eq!(&*board.take_work(at(1_000)).unsubscribe[0].channel, "c");
    let (_, ticket) = add(&mut board);
    let second = subscription(&board.take_work(at(1_000)));
    let _nobody = board.confirmed(&first);
    assert!(ticket.as_ref().unwrap().take().is_none());
    assert!(add(&mut board).1.is_some(), "not yet");
    let _nobody = board.confirmed(&second);
    assert!(ticket.unwrap().take().is_some());
}

#[test]
fn a_channel_lingers_and_is_found_again() {
    let mut board = Board::default();
    let (id, _) = add(&mut board);
    let asked = subscription(&board.take_work(at(0)));
    let _nobody = board.confirmed(&asked);
    board.remove(&id, at(0));
    assert!(board.take_work(at(999)).is_watched);
    let (id, ticket) = add(&mut board);
    assert!(ticket.is_none());
    assert!(board.take_work(at(5_000)).unsubscribe.is_empty());
    board.remove(&id, at(5_000));
    let work = board.take_work(at(6_000));
    assert!(work.unsubscribe.len() == 1 && !work.is_watched);
}

#[test]
fn what_was_missed_while_disconnected_is_made_up_for_once() {
    let mut board = Board::default();
    let _watch = add(&mut board);
    let asked = subscription(&board.take_work(at(0)));
    let _nobody = board.confirmed(&asked);
    board.disconnected();
    let (_, ticket) = add(&mut board);
    let asked = subscription(&board.take_work(at(0)));
    let wakes = board.confirmed(&asked);
    assert_eq!(wakes.watches.len(), 2);
    assert!(ticket.unwrap().take().is_some());
    assert!(board.confirmed(&asked).watches.is_empty());
}

#[test]
fn a_refusal_fails_who_waits_wakes_who_watches_and_is_asked_again() {
    let mut board = Board::default();
    let _watch = add(&mut board);
    let asked = subscription(&board.take_work(at(0)));
    let _nobody = board.confirmed(&asked);
    board.disconnected();
    let (_, ticket) = add(&mut board);
    let asked = subscription(&board.take_work(at(0)));
    let failure = Failure::Refused(Error::configuration("not allowed"));
    assert_eq!(board.refused(&asked, &failure).watches.len(), 2);
    assert!(matches!(ticket.unwrap().take(), Some(Err(Failure::Refused(_)))));
    assert!(board.take_work(at(0)).subscribe.is_empty());
    board.ask_again();
    subscription(&board.take_work(at(0)));
}

#[test]
fn only_a_server_that_will_not_have_us_ends_a_wait_early() {
    let mut board = Board::default();
    let (_, ticket) = add(&mut board);
    let ticket = ticket.unwrap();
    let _nobody = board.failed(&Failure::NotSent(Error::unavailable("refused")));
    assert!(ticket.take().is_none());
    assert_eq!(board.trouble().unwrap().to_string(), "refused");
    let _tickets = board.failed(&Failure::Refused(Error::configuration("password")));
    assert!(matches!(ticket.take(), Some(Err(Failure::Refused(_)))));
    board.connected();
    assert!(board.trouble().is_none());
}

#[test]
fn a_channel_that_is_not_told_of_is_polled_until_it_is() {
    let mut board = Board::default();
    let (_, ticket) = add(&mut board);
    let asked = subscription(&board.take_work(at(0)));
    assert_eq!(board.poll(false, at(0)).1, Moment::NEVER);
    let _tickets = board.untold(&asked);
    assert!(matches!(ticket.unwrap().take(), Some(Ok(()))), "it is no failure");
    let (wakes, next) = board.poll(false, at(0));
    assert!(wakes.watches.is_empty() && next <= at(125), "{next:?}");
    assert_eq!(board.poll(false, at(99)).0.watches.len(), 0);
    assert_eq!(board.poll(false, at(125)).0.watches.len(), 1);
    assert_eq!(board.poll(false, at(126)).0.watches.len(), 0, "once for each interval");
    board.ask_again();
    let asked = subscription(&board.take_work(at(1_000)));
    assert_eq!(board.confirmed(&asked).watches.len(), 1, "to look for itself");
    assert_eq!(board.poll(false, at(2_000)).1, Moment::NEVER);
    assert!(board.poll(true, at(2_000)).1 <= at(2_125), "but where releases are not published");
}

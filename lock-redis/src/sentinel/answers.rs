//! [`Answers`]: the last replies and messages of one sentinel, with their times.

use super::report::{MasterReport, SentinelReply};
use crate::connection::Address;
use lock_core::Moment;
use parking_lot::Mutex;
use std::time::Duration;

/// The shortest time for which a round still waits for a sentinel after the first answer of
/// another, because the sentinel that knows the latest failover is right, and may be distant. Also
/// added to three times the sentinel's usual time, which a query on a new connection takes.
const GRACE: Duration = Duration::from_millis(100);

/// The longest time for which a round waits for a sentinel that has never answered, once a majority
/// has answered, because connecting takes several round trips. After the first answer and before a
/// majority, the round waits for half of the remaining time, because the sentinels that have
/// answered may be a minority that is cut off.
const UNKNOWN: Duration = Duration::from_secs(1);

/// The time for which a message counts if its sentinel does not answer queries, because within that
/// time all sentinels that reach each other learn of the failover.
const ANNOUNCED: Duration = Duration::from_secs(10);

/// The last replies and messages of one sentinel; see the [module](self).
#[derive(Debug, Default)]
pub(super) struct Answers(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The start of the query that is under way.
    asking: Option<Moment>,
    /// True if another query must follow the one that is under way.
    is_asked_again: bool,
    last: Option<Answer>,
    /// The last report on the master.
    report: Option<MasterReport>,
    /// The usual time from a query to its answer: that of the slowest recent answer. Each faster
    /// answer lowers it, by an eighth at most.
    usual: Option<Duration>,
    /// The master that the last message named, and when. Reset by a report that was requested
    /// later, or that names the same master.
    announced: Option<(Moment, Address)>,
}

#[derive(Debug)]
struct Answer {
    asked: Moment,
    answered: Moment,
    reply: SentinelReply,
}

impl Answers {
    /// Begins a query. Returns `false` if one is under way: then another query will follow that
    /// one, unless that one fails.
    pub(super) fn begin(&self, now: Moment) -> bool {
        let mut state = self.0.lock();
        state.is_asked_again = state.asking.is_some();
        if !state.is_asked_again {
            state.asking = Some(now);
        }
        !state.is_asked_again
    }

    /// Records the reply to the query, or its failure. Returns whether another query follows, which
    /// begins now; never after a failure.
    pub(super) fn note(&self, reply: SentinelReply, now: Moment) -> bool {
        let mut state = self.0.lock();
        let asked = state.asking.unwrap_or(now);
        let has_failed = matches!(reply, SentinelReply::Failed(_));
        if !has_failed {
            let taken = now.since(asked);
            let decayed = state.usual.unwrap_or_default() * 7 / 8;
            state.usual = Some(taken.max(decayed));
        }
        if let SentinelReply::MasterReport(report) = &reply {
            // A message that arrived after this query was sent, and names another master, is newer
            // than the report.
            let is_open =
                |(at, master): &(Moment, Address)| *at > asked && *master != report.master;
            state.announced = state.announced.take().filter(is_open);
            state.report = Some((**report).clone());
        }
        state.last = Some(Answer {
            asked,
            answered: now,
            reply,
        });
        state.is_asked_again = std::mem::take(&mut state.is_asked_again) && !has_failed;
        state.asking = state.is_asked_again.then_some(now);
        std::mem::take(&mut state.is_asked_again)
    }

    /// Ends the query that is under way, without a reply.
    pub(super) fn abandon(&self) {
        self.0.lock().asking = None;
    }

    /// Records a message that names this master. Ignores it if the last report has already named
    /// this master, and no message has named another one since.
    pub(super) fn announce(&self, master: Address, now: Moment) {
        let mut state = self.0.lock();
        let is_reported = state
            .report
            .as_ref()
            .is_some_and(|report| report.master == master);
        if state.announced.is_some() || !is_reported {
            state.announced = Some((now, master));
        }
    }

    /// Returns the reply to a query that began at `since` or later.
    pub(super) fn reply_since(&self, since: Moment) -> Option<SentinelReply> {
        let state = self.0.lock();
        state
            .last
            .as_ref()
            .filter(|it| it.asked >= since)
            .map(|it| it.reply.clone())
    }

    /// Returns the last reply that came at `since` or later, whenever its query began. If a message
    /// is newer than the last report and not older than `ANNOUNCED`, it takes the place of the
    /// reply, and counts as a report of the next failover.
    pub(super) fn said_since(&self, since: Moment, now: Moment) -> Option<SentinelReply> {
        let state = self.0.lock();
        let announced = state
            .announced
            .as_ref()
            .filter(|(at, _)| now.since(*at) < ANNOUNCED);
        if let (Some((_, master)), Some(report)) = (announced, &state.report) {
            let (master, epoch) = (master.clone(), report.epoch + 1);
            let asked = Moment::from_nanos(0);
            let report = MasterReport {
                master,
                epoch,
                run_id: None,
                asked,
                ..report.clone()
            };
            return Some(SentinelReply::MasterReport(Box::new(report)));
        }
        state
            .last
            .as_ref()
            .filter(|it| it.answered >= since)
            .map(|it| it.reply.clone())
    }

    /// Returns the time until which a round from `start` to `by` waits for the answer of this
    /// sentinel, if another sentinel answered at `first`. `are_most` is true if a majority has
    /// answered. A round does not wait for a sentinel that hangs, or that did not answer the last
    /// query and has announced no new master: its answer counts when it arrives.
    pub(super) fn awaited_until(
        &self,
        (start, by): (Moment, Moment),
        first: Moment,
        are_most: bool,
    ) -> Moment {
        let state = self.0.lock();
        let has_failed = state
            .last
            .as_ref()
            .is_some_and(|it| matches!(it.reply, SentinelReply::Failed(_)));
        if has_failed && state.announced.is_none() {
            return start;
        }
        let asked = state.asking.unwrap_or(start);
        let due = match state.usual {
            Some(usual) => asked + GRACE + usual * 3,
            None if are_most => asked + UNKNOWN.min(by.since(asked) / 2),
            None => asked + by.since(asked) / 2,
        };
        if due <= start {
            start
        } else {
            due.max(first + GRACE)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Account;
    use lock_core::Error;
    use lock_core::backend::Failure;

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1) + Duration::from_millis(millis)
    }

    fn report(port: u16, epoch: u64, asked: Moment) -> SentinelReply {
        let master = Address::new("m", port);
        let account = Account {
            asked_at: Address::new("s", 1),
            id: "s".to_owned(),
            listed: Vec::new(),
        };
        SentinelReply::MasterReport(Box::new(MasterReport {
            master,
            epoch,
            asked,
            run_id: None,
            replicas: Vec::new(),
            replica_ids: None,
            has_unheard: false,
            replicas_down: Vec::new(),
            quorum: None,
            down_after: None,
            account,
        }))
    }

    fn failed() -> SentinelReply {
        SentinelReply::Failed(Failure::NotSent(Error::unavailable("no way")))
    }

    fn named(reply: Option<SentinelReply>) -> Option<(u16, u64)> {
        match reply {
            Some(SentinelReply::MasterReport(report)) => Some((report.master.port, report.epoch)),
            _ => None,
        }
    }

    #[test]
    fn time_for_an_answer_follows_the_usual_time_of_its_sentinel() {
        let by = at(100_000);
        let until =
            |answers: &Answers, start| answers.awaited_until((at(start), by), at(start), true);
        let answers = Answers::default();
        assert!(answers.begin(at(0)));
        assert_eq!(until(&answers, 0), at(1_000), "it has never answered");
        let little = (at(0), at(300));
        assert_eq!(
            answers.awaited_until(little, at(0), true),
            at(150),
            "half of the time"
        );
        let alone = answers.awaited_until((at(0), by), at(0), false);
        assert_eq!(alone, at(50_000), "the others may all know better");
        assert!(!answers.note(report(1, 1, at(0)), at(250)));
        assert!(answers.begin(at(1_000)));
        assert_eq!(until(&answers, 1_000), at(1_000 + 100 + 750));
        assert_eq!(until(&answers, 1_900), at(1_900), "it hangs");
        assert!(!answers.note(failed(), at(3_000)));
        assert!(answers.begin(at(4_000)));
        assert_eq!(
            until(&answers, 4_000),
            at(4_000),
            "it was silent the last time"
        );
        assert!(!answers.note(report(1, 1, at(4_000)), at(4_000)));
        let usual = Duration::from_millis(250) * 7 / 8;
        assert!(answers.begin(at(5_000)));
        assert_eq!(
            until(&answers, 5_000),
            at(5_100) + usual * 3,
            "one fast answer is not usual"
        );
    }

    #[test]
    fn question_during_another_follows_it_unless_that_fails() {
        let answers = Answers::default();
        assert!(answers.begin(at(0)) && !answers.begin(at(10)));
        assert!(answers.note(report(1, 1, at(0)), at(20)));
        assert_eq!(
            named(answers.reply_since(at(10))),
            None,
            "it was asked before"
        );
        assert_eq!(
            named(answers.said_since(at(10), at(20))),
            Some((1, 1)),
            "it counts"
        );
        assert!(!answers.note(report(2, 2, at(20)), at(30)));
        assert_eq!(named(answers.reply_since(at(10))), Some((2, 2)));
        assert!(answers.begin(at(40)) && !answers.begin(at(50)));
        assert!(!answers.note(failed(), at(60)));
        assert!(answers.begin(at(70)));
    }

    /// A message and a report name the same new master. If the message counted as a further
    /// failover, the client would switch to that failover, and back with the next report.
    #[test]
    fn message_that_crosses_its_own_report_is_no_other_failover() {
        let master = |port| Address::new("m", port);
        for is_message_first in [true, false] {
            let answers = Answers::default();
            assert!(answers.begin(at(0)));
            answers.note(report(1, 7, at(0)), at(1));
            assert!(answers.begin(at(10)));
            if is_message_first {
                answers.announce(master(2), at(11));
            }
            answers.note(report(2, 8, at(10)), at(12));
            if !is_message_first {
                answers.announce(master(2), at(13));
            }
            assert_eq!(named(answers.said_since(at(10), at(14))), Some((2, 8)));
            // Two messages name the first master, then the second one again, with no report in
            // between.
            answers.announce(master(1), at(20));
            answers.announce(master(2), at(21));
            assert_eq!(named(answers.said_since(at(10), at(22))), Some((2, 9)));
        }
    }

    #[test]
    fn message_counts_until_a_later_question_is_answered() {
        let answers = Answers::default();
        assert!(answers.begin(at(0)));
        answers.note(report(1, 7, at(0)), at(1));
        assert!(answers.begin(at(10)));
        answers.announce(Address::new("m", 2), at(11));
        // This report's query is older than the message, and the next query fails.
        answers.note(report(1, 7, at(10)), at(12));
        assert_eq!(named(answers.said_since(at(10), at(13))), Some((2, 8)));
        assert!(answers.begin(at(20)));
        answers.note(failed(), at(21));
        assert_eq!(named(answers.said_since(at(20), at(22))), Some((2, 8)));
        assert_eq!(
            named(answers.said_since(at(20), at(20_000))),
            None,
            "not for ever"
        );
        assert!(answers.begin(at(30)));
        answers.note(report(3, 9, at(30)), at(31));
        assert_eq!(named(answers.said_since(at(30), at(32))), Some((3, 9)));
    }
}

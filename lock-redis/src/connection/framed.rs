//! [`FramedConnection`]: a connection with commands of its own before and behind the requests of a
//! write.
//!
//! - `ASKING` before each request, so that a node serves a slot that is just being moved to it.
//! - A read of the keys behind each renewal, so that the server reports their next change.
//! - `WAIT` behind all requests. It says how many replicas have what *this connection* wrote, so it
//!   leaves in the same write. It cannot be called in a script, where Redis refuses it.
//! - `INFO replication` behind all requests: how far the history of the server's data has come.
//!   Inside the script or transaction the offset would be that before the write.
//!
//! The server answers nothing else on a connection during `WAIT`, so that is sent on a borrowed
//! connection only.

use super::history::HISTORY;
use super::replica_ack::Acknowledgement;
use super::{
    Batch, BorrowedConnection, CallError, Connection, ConnectionLike, Dialer, Introduction, Mark,
    MultiplexedConnection, NeededReplicas, Request, Server, ServerGeneration,
};
use crate::connection::{Reply, ServerError, Text};
use crate::lua::Script;
use lock_core::backend::Failure;
use lock_core::{Clock, Error, InsufficientReplicas, Moment};
use std::sync::Arc;
use std::time::Duration;

/// A connection, and what is sent along with each write on it.
pub(crate) struct FramedConnection<'a> {
    connection: BaseConnection<'a>,
    is_asking: bool,
    tracking: Option<Tracking>,
    wait: Option<ReplicaWait<'a>>,
    /// Where the history of the server's data is noted.
    notes: Option<&'a Dialer>,
}

enum BaseConnection<'a> {
    /// The one that all threads share.
    Shared(Arc<MultiplexedConnection>),
    /// For this caller alone.
    Borrowed(BorrowedConnection<'a>),
}

/// `CLIENT TRACKING ON OPTIN` was sent: the server tracks what the command behind a `CLIENT CACHING
/// YES` reads, and nothing that a script reads. A read inside the script would make the server go
/// through all keys of the script (Redis 7.0).
#[derive(Default)]
pub(crate) struct Tracking {
    /// Whether a key was deleted between its renewal and its read: that change is not reported.
    pub(crate) has_missed_change: bool,
    /// Whether a missed change cannot be excluded, because some keys are other owners': one of
    /// those may be counted in place of a key that was deleted.
    pub(crate) may_have_missed_change: bool,
    /// Why the server tracks no keys any more, if it says so.
    pub(crate) refusal: Option<ServerError>,
}

/// The `WAIT` that goes behind all requests of a write.
struct ReplicaWait<'a> {
    clock: &'a dyn Clock,
    replicas: u32,
    time: Duration,
    acknowledgement: Acknowledgement,
}

/// What a reply answers.
enum Place {
    Request,
    Asking,
    Caching,
    /// The read of so many keys.
    Read(usize),
    Wait,
    History,
}

const ASKING: Request<'static> = Request(&[&[b"ASKING"]]);

/// Has the keys tracked that the next command reads.
const CACHING: Request<'static> = Request(&[&[b"CLIENT", b"CACHING", b"YES"]]);

impl<'a> FramedConnection<'a> {
    pub(crate) fn shared(connection: Arc<MultiplexedConnection>) -> Self {
        Self::new(BaseConnection::Shared(connection))
    }

    pub(crate) fn borrowed(connection: BorrowedConnection<'a>) -> Self {
        Self::new(BaseConnection::Borrowed(connection))
    }

    fn new(connection: BaseConnection<'a>) -> Self {
        Self {
            connection,
            is_asking: false,
            tracking: None,
            wait: None,
            notes: None,
        }
    }

    /// With `ASKING` before each request.
    pub(crate) fn asking(self) -> Self {
        Self {
            is_asking: true,
            ..self
        }
    }

    /// With a read of the keys behind each renewal.
    pub(crate) fn tracked(self) -> Self {
        Self {
            tracking: Some(Tracking::default()),
            ..self
        }
    }

    /// With a question for the history of the server's data behind each write, where the server
    /// answers that.
    pub(crate) fn noting(self, dialer: &'a Dialer) -> Self {
        Self {
            notes: Some(dialer),
            ..self
        }
    }

    /// Waits behind each write for so many replicas, and for so long.
    pub(crate) fn waiting(self, clock: &'a dyn Clock, replicas: u32, time: Duration) -> Self {
        let wait = ReplicaWait {
            clock,
            replicas,
            time,
            acknowledgement: Acknowledgement::By(0),
        };
        Self {
            wait: Some(wait),
            ..self
        }
    }

    /// What the reads behind the renewals have shown.
    pub(crate) fn tracking(&self) -> Option<&Tracking> {
        self.tracking.as_ref()
    }

    /// The subscriber's connection to which the server reports changes of what is read here; 0: to
    /// none.
    pub(crate) fn reports_to(&self) -> u64 {
        match &self.connection {
            BaseConnection::Shared(_) => 0,
            BaseConnection::Borrowed(connection) => connection.reports_to,
        }
    }

    /// Whether the last write, which was carried out, counts for a request that needs so many
    /// replicas: if not, what is missing.
    pub(crate) fn weigh(
        &self,
        needed: NeededReplicas,
    ) -> Result<Option<InsufficientReplicas>, Failure> {
        match &self.wait {
            Some(wait) => wait.acknowledgement.weigh(self.server(), needed),
            None => Ok(None),
        }
    }

    /// How many replicas have the last write, as far as the server has said.
    pub(crate) fn confirmed(&self) -> u32 {
        self.wait
            .as_ref()
            .map_or(0, |wait| wait.acknowledgement.count())
    }

    fn base(&mut self) -> &mut dyn ConnectionLike {
        match &mut self.connection {
            BaseConnection::Shared(connection) => connection,
            BaseConnection::Borrowed(connection) => &mut **connection,
        }
    }

    fn base_ref(&self) -> &dyn ConnectionLike {
        match &self.connection {
            BaseConnection::Shared(connection) => connection,
            BaseConnection::Borrowed(connection) => &**connection,
        }
    }

    /// What `WAIT` is sent for; `None` where it is not sent.
    fn sent_wait(&self) -> Option<&ReplicaWait<'a>> {
        self.wait.as_ref().filter(|wait| wait.replicas > 0)
    }

    /// Whether nothing is sent but these requests.
    fn is_plain(&self, batch: &Batch) -> bool {
        !self.is_asking
            && (self.tracking.is_none() || !batch.marks().any(Mark::reads_keys))
            && self.sent_wait().is_none()
            && (self.notes.is_none() || self.history().is_none())
    }

    /// Puts the replies where they belong. Returns those to the requests, and what the server said
    /// to `WAIT`.
    fn sort(
        &mut self,
        places: Vec<Place>,
        replies: Vec<Reply>,
        asked: Option<(ServerGeneration, Moment)>,
    ) -> (Vec<Reply>, Option<Reply>) {
        let mut answers = Vec::with_capacity(places.len());
        let (mut refused, mut waited) = (None, None);
        for (place, reply) in places.into_iter().zip(replies) {
            match place {
                // Behind an `ASKING` that was refused the next reply only says that the slot is
                // elsewhere.
                Place::Request => answers.push(refused.take().unwrap_or(reply)),
                Place::Asking => refused = Some(reply).filter(|it| matches!(it, Reply::Error(_))),
                Place::Caching => {
                    if let (Some(tracking), Reply::Error(error)) = (&mut self.tracking, reply) {
                        tracking.refusal = Some(error);
                    }
                }
                Place::Read(keys) => {
                    if let (Some(tracking), Some(renewal)) = (&mut self.tracking, answers.last()) {
                        tracking.read(renewal, keys, &reply);
                    }
                }
                Place::Wait => waited = Some(reply),
                Place::History => {
                    if let (Some(dialer), Some((generation, at))) = (self.notes, &asked) {
                        let now = dialer.clock().now();
                        if let Some(introduction) = Introduction::of(&reply, *at, now) {
                            dialer.note(generation, introduction);
                        }
                    }
                }
            }
        }
        (answers, waited)
    }
}

impl Tracking {
    /// `reply` says how many of these keys are there behind their renewal.
    fn read(&mut self, renewal: &Reply, keys: usize, reply: &Reply) {
        let Reply::Int(there) = *reply else { return };
        let written = renewed(renewal, keys);
        self.has_missed_change |= usize::try_from(there).is_ok_and(|there| there < written);
        self.may_have_missed_change |= (1..keys).contains(&written);
    }
}

/// How many of these keys a renewal has written.
fn renewed(reply: &Reply, keys: usize) -> usize {
    match reply {
        Reply::Int(1) => keys,
        Reply::Array(each) => each.iter().filter(|one| **one == Reply::Int(1)).count(),
        _ => 0,
    }
}

impl ReplicaWait<'_> {
    /// How long the server may wait. Never zero, which is "for ever", and with time left for the
    /// answer: a number that is too small says more than no answer, and the connection lives on.
    fn patience(&self, by: Moment) -> Duration {
        let left = by.since(self.clock.now());
        self.time.min(left / 4 * 3).max(Duration::from_millis(1))
    }
}

impl FramedConnection<'_> {
    /// These requests with all that goes along with them, and what each of those is.
    fn framed(&self, batch: &Batch, by: Moment) -> (Batch, Vec<Place>) {
        let (mut all, mut places) = (Batch::new(), Vec::with_capacity(batch.len() + 2));
        for mark in batch.marks() {
            // Between `MULTI` and `EXEC` it would be queued with the rest.
            if self.is_asking && !mark.in_transaction() {
                all.add(&ASKING);
                places.push(Place::Asking);
            }
            all.add_from(batch, mark);
            places.push(Place::Request);
            if mark.reads_keys() && self.tracking.is_some() {
                all.add(&CACHING);
                all.add_with_keys_of("EXISTS", batch, mark);
                places.extend([Place::Caching, Place::Read(mark.key_count())]);
            }
        }
        if let Some(wait) = self.sent_wait() {
            let count = Text::number(wait.replicas.into());
            let time = Text::millis(wait.patience(by));
            all.add(&Request(&[&[b"WAIT", count.as_bytes(), time.as_bytes()]]));
            places.push(Place::Wait);
        }
        (all, places)
    }
}

impl ConnectionLike for FramedConnection<'_> {
    fn exchange_one(&mut self, batch: &Batch, by: Moment) -> Result<Reply, CallError> {
        if self.is_plain(batch) {
            return self.base().exchange_one(batch, by);
        }
        let (mut replies, outcome) = self.exchange(batch, by);
        outcome.map(|()| replies.pop().expect("as many replies as requests"))
    }

    fn exchange(&mut self, batch: &Batch, by: Moment) -> (Vec<Reply>, Result<(), CallError>) {
        if self.is_plain(batch) {
            return self.base().exchange(batch, by);
        }
        let (mut all, mut places) = self.framed(batch, by);
        let waits = self.sent_wait().is_some();
        let generation = self.notes.and_then(|_| self.history().cloned());
        let asked = generation.zip(self.notes.map(|dialer| dialer.clock().now()));
        if asked.is_some() {
            all.add(&HISTORY);
            places.push(Place::History);
        }
        let (replies, outcome) = self.base().exchange(&all, by);
        let (answers, waited) = self.sort(places, replies, asked);
        if answers.len() < batch.len() {
            // The requests that were answered have no answer of replicas, which is not "none".
            if let (true, Err(error)) = (waits, &outcome) {
                self.note_acknowledgement(None, Err(error.clone()), by);
            }
            return (answers, outcome);
        }
        if waits {
            self.note_acknowledgement(waited, outcome, by);
        }
        // What the answers say counts, also if the connection broke behind them.
        (answers, Ok(()))
    }

    fn is_first_use(&mut self, script: &Script) -> bool {
        self.base().is_first_use(script)
    }

    /// Behind a script that the server does not know, `WAIT` would wait all its time for nothing,
    /// and the text would have what is left of it: a short lease would end before its first
    /// renewal.
    fn needs_script_text(&mut self, script: &Script) -> bool {
        if self.sent_wait().is_some() {
            self.base().is_first_use(script)
        } else {
            self.base().needs_script_text(script)
        }
    }

    fn history(&self) -> Option<&ServerGeneration> {
        match self.is_asking {
            true => None,
            false => self.base_ref().history(),
        }
    }

    fn is_one_store(&self) -> bool {
        !self.is_asking && self.base_ref().is_one_store()
    }

    fn server(&self) -> &Arc<Server> {
        self.base_ref().server()
    }

    fn close_with(&mut self, why: &Error) {
        self.base().close_with(why);
    }

    fn is_verified(&self) -> bool {
        self.base_ref().is_verified()
    }

    fn mark_verified(&mut self) {
        self.base().mark_verified();
    }
}

impl FramedConnection<'_> {
    /// Notes what the server said to `WAIT`, behind requests that it has answered.
    fn note_acknowledgement(
        &mut self,
        waited: Option<Reply>,
        outcome: Result<(), CallError>,
        by: Moment,
    ) {
        let acknowledgement = match (waited, outcome) {
            (Some(Reply::Int(count)), _) => Acknowledgement::By(u32::try_from(count).unwrap_or(0)),
            (Some(Reply::Error(error)), _) => Acknowledgement::Refused(error),
            (Some(_), _) => {
                self.close();
                Acknowledgement::Lost(self.server().garbage("not one that WAIT gives"))
            }
            (None, Err(CallError::NotSent(error) | CallError::Unknown(error))) => {
                match self
                    .wait
                    .as_ref()
                    .is_some_and(|wait| wait.clock.now() >= by)
                {
                    true => Acknowledgement::Late,
                    false => Acknowledgement::Lost(error),
                }
            }
            (None, Ok(())) => unreachable!("as many replies as requests, or an error"),
        };
        if let Some(wait) = &mut self.wait {
            wait.acknowledgement = acknowledgement;
        }
    }
}

impl Connection {
    /// Has the server report changes of what is read on this connection to the one with this
    /// number. The error, if it refuses.
    pub(crate) fn report_to(
        &mut self,
        subscriber: u64,
        by: Moment,
    ) -> Result<Option<ServerError>, CallError> {
        let id = Text::number(subscriber);
        let tracking: &[&[u8]] = &[
            b"CLIENT",
            b"TRACKING",
            b"ON",
            b"REDIRECT",
            id.as_bytes(),
            b"OPTIN",
            b"NOLOOP",
        ];
        // Without the second nothing would be tracked.
        let (replies, outcome) = self.call_many(&[Request(&[tracking]), CACHING], by);
        outcome?;
        let refused = replies.into_iter().find_map(|reply| match reply {
            Reply::Error(error) => Some(error),
            _ => None,
        });
        if refused.is_none() {
            self.reports_to = subscriber;
        }
        Ok(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::multiplexed::tests::pair;
    use lock_core::SystemClock;
    use lock_core::backend::Failure;
    use std::io::{Read, Write};
    use std::thread;

    #[test]
    fn replies_cut_before_wait_do_not_count_as_no_replica() {
        let (shared, mut theirs) = pair();
        let peer = thread::spawn(move || {
            // Answers the first of two requests, and closes.
            let mut byte = [0];
            theirs.read_exact(&mut byte).unwrap();
            theirs.write_all(b":1\r\n").unwrap();
        });
        let clock = SystemClock;
        let mut connection =
            FramedConnection::shared(shared).waiting(&clock, 1, Duration::from_secs(1));
        let mut batch = Batch::new();
        batch.add_command("SET", b"a", &[b"1"]);
        batch.add_command("SET", b"b", &[b"1"]);
        let by = clock.now() + Duration::from_secs(20);
        let (replies, outcome) = connection.exchange(&batch, by);
        peer.join().unwrap();
        assert_eq!(replies, [Reply::Int(1)]);
        assert!(outcome.is_err());
        let needed = NeededReplicas {
            count: 1,
            ahead: 0,
            awaited: 1,
        };
        let weighed = connection.weigh(needed);
        assert!(matches!(weighed, Err(Failure::Unknown(_))), "{weighed:?}");
    }
}

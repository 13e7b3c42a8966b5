//! [`FramedConnection`]: a connection that adds commands of its own before and after the requests
//! of a write.
//!
//! - `ASKING` before each request, except inside a transaction, so that a node serves a slot that
//!   is just being moved to it.
//! - A read of the keys after each renewal, so that the server reports their next change.
//! - `WAIT` after all requests. It returns how many replicas have the writes of *this connection*,
//!   so it is sent together with the requests. Inside a script, Redis before 7.2 refuses it, and
//!   later versions do not wait.
//! - `INFO replication` after all requests, for the position in the history of the server's data.
//!   Inside the script or transaction, the offset would be the one before the write.
//!
//! During `WAIT` the server answers nothing else on the connection, so `WAIT` is sent only on
//! borrowed connections.

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

/// A connection, and the commands that accompany each write on it.
pub(crate) struct FramedConnection<'a> {
    connection: BaseConnection<'a>,
    is_asking: bool,
    tracking: Option<Tracking>,
    wait: Option<ReplicaWait<'a>>,
    /// The dialer that records the history of the server's data.
    notes: Option<&'a Dialer>,
}

enum BaseConnection<'a> {
    /// The connection that all threads share.
    Shared(Arc<MultiplexedConnection>),
    /// A connection for this caller alone.
    Borrowed(BorrowedConnection<'a>),
}

/// The results of the reads that make the server track keys. After `CLIENT TRACKING ON OPTIN`, the
/// server tracks only the keys that the command after a `CLIENT CACHING YES` reads. That command is
/// a read of its own, and not the script: otherwise each read inside the script would make the
/// server process all keys of the script (Redis 7.0).
#[derive(Default)]
pub(crate) struct Tracking {
    /// True if a key was deleted between its renewal and its read: the server does not report that
    /// change.
    pub(crate) has_missed_change: bool,
    /// True if a missed change cannot be excluded: if other owners hold some of the keys, the read
    /// may have counted such a key in place of a deleted one.
    pub(crate) may_have_missed_change: bool,
    /// The server's error if it no longer tracks keys that are read on this connection.
    pub(crate) refusal: Option<ServerError>,
}

/// The `WAIT` after all requests of a write.
struct ReplicaWait<'a> {
    clock: &'a dyn Clock,
    replicas: u32,
    time: Duration,
    acknowledgement: Acknowledgement,
}

/// The command that a reply answers.
enum Place {
    Request,
    Asking,
    Caching,
    /// The read of this number of keys.
    Read(usize),
    Wait,
    History,
}

const ASKING: Request<'static> = Request(&[&[b"ASKING"]]);

/// The command that makes the server track the keys that the next command reads.
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

    /// Returns `true` for the connection that all threads share.
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.connection, BaseConnection::Shared(_))
    }

    /// Adds `ASKING` before each request, except inside a transaction.
    pub(crate) fn asking(self) -> Self {
        Self {
            is_asking: true,
            ..self
        }
    }

    /// Adds a read of the keys after each renewal.
    pub(crate) fn tracked(self) -> Self {
        Self {
            tracking: Some(Tracking::default()),
            ..self
        }
    }

    /// Adds a query for the history of the server's data after each write, if the server answers
    /// such queries.
    pub(crate) fn noting(self, dialer: &'a Dialer) -> Self {
        Self {
            notes: Some(dialer),
            ..self
        }
    }

    /// Adds a wait for this number of replicas, unless it is 0, for at most this time, after each
    /// write.
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

    /// Returns the results of the reads after the renewals.
    pub(crate) fn tracking(&self) -> Option<&Tracking> {
        self.tracking.as_ref()
    }

    /// Returns the client ID of the subscriber's connection, to which the server reports changes of
    /// keys that are read on this connection; 0 if there is none.
    pub(crate) fn reports_to(&self) -> u64 {
        match &self.connection {
            BaseConnection::Shared(_) => 0,
            BaseConnection::Borrowed(connection) => connection.reports_to,
        }
    }

    /// Checks whether the last write, which was carried out, is on enough replicas for a request
    /// with this need. Returns the shortage, or `None`.
    pub(crate) fn weigh(
        &self,
        needed: NeededReplicas,
    ) -> Result<Option<InsufficientReplicas>, Failure> {
        match &self.wait {
            Some(wait) => wait.acknowledgement.weigh(self.server(), needed),
            None => Ok(None),
        }
    }

    /// Returns how many replicas have the last write, according to the server; 0 if that is
    /// unknown.
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

    /// Returns the `WAIT` to send; `None` if none is sent.
    fn sent_wait(&self) -> Option<&ReplicaWait<'a>> {
        self.wait.as_ref().filter(|wait| wait.replicas > 0)
    }

    /// Returns `true` if no command is to be added to these requests.
    fn is_plain(&self, batch: &Batch) -> bool {
        !self.is_asking
            && (self.tracking.is_none() || !batch.marks().any(Mark::reads_keys))
            && self.sent_wait().is_none()
            && (self.notes.is_none() || self.history().is_none())
    }

    /// Handles each reply by its place. Returns the replies to the requests, and the reply to
    /// `WAIT`.
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
                // The error of a refused `ASKING` replaces the next reply, which only says that the
                // slot is elsewhere.
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
    /// Compares the renewal with the read after it; `reply` is the number of these keys that exist.
    fn read(&mut self, renewal: &Reply, keys: usize, reply: &Reply) {
        let Reply::Int(there) = *reply else { return };
        let written = renewed(renewal, keys);
        self.has_missed_change |= usize::try_from(there).is_ok_and(|there| there < written);
        self.may_have_missed_change |= (1..keys).contains(&written);
    }
}

/// Returns how many of these keys a renewal has written.
fn renewed(reply: &Reply, keys: usize) -> usize {
    match reply {
        Reply::Int(1) => keys,
        Reply::Array(each) => each.iter().filter(|one| **one == Reply::Int(1)).count(),
        _ => 0,
    }
}

impl ReplicaWait<'_> {
    /// Returns the time for which the server may wait. Never zero, which `WAIT` takes as no limit.
    /// Leaves time for the answer before `by`: a count that is too small says more than no answer,
    /// and the connection stays open.
    fn patience(&self, by: Moment) -> Duration {
        let left = by.since(self.clock.now());
        self.time.min(left / 4 * 3).max(Duration::from_millis(1))
    }
}

impl FramedConnection<'_> {
    /// Returns these requests with the commands that accompany them, except the query for the
    /// history, and the place of each.
    fn framed(&self, batch: &Batch, by: Moment) -> (Batch, Vec<Place>) {
        let (mut all, mut places) = (Batch::new(), Vec::with_capacity(batch.len() + 2));
        for mark in batch.marks() {
            // Between `MULTI` and `EXEC`, `ASKING` would be queued with the other commands.
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
            // The number of replicas that have the answered requests is unknown, which is not zero.
            if let (true, Err(error)) = (waits, &outcome) {
                self.note_acknowledgement(None, Err(error.clone()), by);
            }
            return (answers, outcome);
        }
        if waits {
            self.note_acknowledgement(waited, outcome, by);
        }
        // The answers count even if the connection broke after them.
        (answers, Ok(()))
    }

    fn is_first_use(&mut self, script: &Script) -> bool {
        self.base().is_first_use(script)
    }

    /// Before `WAIT`, a script is sent by its text if this connection has not sent it before.
    /// Otherwise, after a hash that the server does not know, `WAIT` could wait for its whole time
    /// in vain. Then little time would be left to send the text, and a short lease would end before
    /// its first renewal.
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
    /// Records the server's reply to `WAIT`, or the reason why there is none.
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
    /// Makes the server report to the client ID `subscriber` the changes of keys that are read on
    /// this connection. Returns the server's error if the server refuses.
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
        // A refusal of `CACHING` counts, too: without `CACHING`, nothing would be tracked.
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
            // Answers the first of two requests, and closes the connection.
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

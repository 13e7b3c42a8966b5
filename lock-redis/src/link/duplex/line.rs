//! [`Line`]: who waits on a connection, in the order of their requests, and the bytes that have not left yet.
//!
//! Pure bookkeeping: it does no I/O and wakes nobody. Answers have no names; the oldest request that has none owns the
//! next one that comes. So a place stays in the line until its answer has come, also when nobody wants it any more.

use crate::link::{CallError, Server};
use crate::reply::Reply;
use lock_core::backend::Failure;
use lock_core::{Error, Moment, Signal};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// What becomes of one request.
pub(super) type Outcome = Result<Reply, CallError>;

/// Where a thread waits for its answer.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) signal: Arc<Signal>,
    /// Written by whoever reads or ends the connection, under the lock of the line, as long as this slot has its place
    /// there; taken by the thread that waits.
    answer: Mutex<Option<Outcome>>,
}

impl Slot {
    pub(super) fn take(&self) -> Option<Outcome> {
        self.answer.lock().take()
    }

    pub(super) fn has_answer(&self) -> bool {
        self.answer.lock().is_some()
    }
}

/// A request whose answer nobody waits for.
pub(crate) struct Errand {
    /// The request, if it was sent with the hash of its script, and the script's text: sent instead if the server does not
    /// know the hash. Empty if the text was sent.
    pub(crate) by_hash: Vec<u8>,
    pub(crate) text: &'static str,
    /// Told what came of it. Runs on whichever thread reads; so it must be short, not wait, and not use the link.
    pub(crate) done: Box<dyn FnOnce(Result<Reply, Failure>) -> Heard + Send>,
}

/// What an errand says of the answer it was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Heard {
    Sense,
    /// It is no answer to what was asked: questions and answers may be out of step.
    Nonsense,
}

/// Who gets an answer.
enum Owner {
    Waiter(Arc<Slot>),
    Errand(Errand),
    /// It gave up: its answer is dropped.
    Nobody,
}

/// One request that has no answer yet.
struct Place {
    ticket: Ticket,
    /// Its bytes on the wire, counted from the first byte of the connection.
    start: u64,
    end: u64,
    by: Moment,
    owner: Owner,
}

/// A request's number on its connection. They grow, so places stand in the order of their tickets.
pub(super) type Ticket = u64;

/// What is to be done after the line was changed, and its lock is free again.
#[derive(Default)]
pub(super) struct Aftermath {
    pub(super) wake: Vec<Arc<Slot>>,
    /// What came of them, and until when they had time.
    pub(super) errands: Vec<(Errand, Moment, Outcome)>,
}

/// The line. Everything in it is written and read under one lock.
pub(super) struct Line {
    /// Bytes that no writer has taken.
    unsent: Vec<u8>,
    /// How many bytes were ever let in, without those that were taken back.
    end: u64,
    places: VecDeque<Place>,
    tickets: Ticket,
    errands: usize,
    /// Who reads for everybody. While anybody waits there is one: it is in the line, and awake or woken or asleep in
    /// the socket. Whoever leaves hands it on under the lock of the line.
    pub(super) reader: Option<Ticket>,
    /// Whether the reader sleeps in the socket. While it does not, it will look for unsent bytes before it does.
    pub(super) asleep: bool,
    /// Whether somebody writes at the moment.
    pub(super) writing: bool,
    /// Whether bytes that count as gone wait outside of the line, because the peer took no more.
    pub(super) backlog: bool,
    death: Option<Error>,
    /// When an answer last came, and how many requests there had been by then.
    last_heard: Moment,
    tickets_heard: Ticket,
    /// How many links to this server had died when this one was last looked at.
    pub(super) deaths_seen: u64,
}

impl Line {
    /// What is to be written may wait while it is less than this part of what is under way. With 128 threads, a quarter or an
    /// eighth gave 0.93 of what the server can do at most, a half the same or a little less, the whole 0.86, and waiting for
    /// the reader in any case 0.83. With 8 it does not matter.
    const SHARE: u64 = 4;

    pub(super) fn new(now: Moment, deaths: u64) -> Self {
        Self {
            unsent: Vec::new(),
            end: 0,
            places: VecDeque::new(),
            tickets: 0,
            errands: 0,
            reader: None,
            asleep: false,
            writing: false,
            backlog: false,
            death: None,
            last_heard: now,
            tickets_heard: 0,
            deaths_seen: deaths,
        }
    }

    /// Puts a request at the end. An error if the connection is dead.
    pub(super) fn enter(
        &mut self,
        bytes: &[u8],
        by: Moment,
        slot: &Arc<Slot>,
    ) -> Result<Ticket, CallError> {
        self.must_live()?;
        Ok(self.place(bytes, by, Owner::Waiter(Arc::clone(slot))))
    }

    /// The same for a request that nobody waits for.
    pub(super) fn enter_errand(
        &mut self,
        bytes: &[u8],
        by: Moment,
        errand: Errand,
    ) -> Result<(), (Errand, CallError)> {
        if let Err(error) = self.must_live() {
            return Err((errand, error));
        }
        self.errands += 1;
        self.place(bytes, by, Owner::Errand(errand));
        Ok(())
    }

    fn must_live(&self) -> Result<(), CallError> {
        self.death.as_ref().map_or(Ok(()), |error| Err(CallError::NotSent(error.clone())))
    }

    fn place(&mut self, bytes: &[u8], by: Moment, owner: Owner) -> Ticket {
        self.unsent.extend_from_slice(bytes);
        let start = self.end;
        self.end += bytes.len() as u64;
        self.tickets += 1;
        let ticket = self.tickets;
        self.places.push_back(Place { ticket, start, end: self.end, by, owner });
        ticket
    }

    /// How many bytes have left, or may have.
    fn left(&self) -> u64 {
        self.end - self.unsent.len() as u64
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// How many requests have left whole, or may have: so many answers may come.
    pub(super) fn awaited(&self) -> usize {
        let left = self.left();
        self.places.partition_point(|place| place.end <= left)
    }

    /// Whether the peer has so much to do that what waits here may wait a little longer, to leave along with more.
    ///
    /// That is, as in Nagle's algorithm, while there are answers to come - but not until the last of them: the
    /// server would run dry, and then it would be its turn while we wait, and ours while it waits. So it gets more as
    /// soon as what there is for it is a share of what it has.
    pub(super) fn is_peer_busy(&self) -> bool {
        let under_way =
            self.places.front().map_or(0, |place| self.left().saturating_sub(place.start));
        (self.unsent.len() as u64) < under_way / Self::SHARE
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whether answers are to come, but nobody wants any of them any more.
    pub(super) fn has_only_abandoned(&self) -> bool {
        !self.is_empty() && self.places.iter().all(|place| matches!(place.owner, Owner::Nobody))
    }

    pub(super) fn is_dead(&self) -> bool {
        self.death.is_some()
    }

    pub(super) fn has_errands(&self) -> bool {
        self.errands > 0
    }

    /// Whether there is something to be written and nobody who does it.
    pub(super) fn wants_writer(&self) -> bool {
        !self.writing && (self.backlog || !self.unsent.is_empty())
    }

    /// The deadline of the oldest request without an answer.
    pub(super) fn oldest(&self) -> Option<Moment> {
        self.places.front().map(|place| place.by)
    }

    /// Whether the oldest request is late, and no answer at all has come since it was made, or for as long as `grace`:
    /// among many there are always some that were made just before the last answer came.
    pub(super) fn is_mute(&self, now: Moment, grace: Duration) -> bool {
        self.places.front().is_some_and(|place| {
            let is_silent = || now.since(self.last_heard) >= grace;
            place.by <= now && (place.ticket > self.tickets_heard || is_silent())
        })
    }

    /// A whole answer has come.
    pub(super) fn heard(&mut self, now: Moment) {
        self.last_heard = now;
        self.tickets_heard = self.tickets;
    }

    pub(super) fn last_heard(&self) -> Moment {
        self.last_heard
    }

    /// Takes what is to be written. From here on it counts as gone.
    pub(super) fn take_unsent(&mut self, empty: Vec<u8>) -> Vec<u8> {
        debug_assert!(empty.is_empty(), "it would be sent again");
        std::mem::replace(&mut self.unsent, empty)
    }

    /// Gives back the buffer of which the first `sent` bytes have left.
    pub(super) fn put_back(&mut self, mut bytes: Vec<u8>, sent: usize) -> Vec<u8> {
        if sent == bytes.len() {
            bytes.clear();
            return bytes;
        }
        bytes.drain(..sent);
        bytes.append(&mut self.unsent);
        std::mem::replace(&mut self.unsent, bytes)
    }

    /// An answer has come. An error if nobody can have asked for it.
    /// Whoever reads knows its own without being woken.
    pub(super) fn answer(
        &mut self,
        reply: Reply,
        mine: Option<&Arc<Slot>>,
        after: &mut Aftermath,
    ) -> Result<(), &'static str> {
        let left = self.left();
        if self.places.front().is_none_or(|place| place.end > left) {
            return Err("there is more than was asked for");
        }
        let place = self.places.pop_front().expect("it was looked at");
        match (place.owner, mine) {
            (Owner::Waiter(slot), Some(mine)) if Arc::ptr_eq(&slot, mine) => {
                *slot.answer.lock() = Some(Ok(reply));
            }
            (owner, _) => self.settle(owner, place.by, Ok(reply), after),
        }
        Ok(())
    }

    fn settle(&mut self, owner: Owner, by: Moment, outcome: Outcome, after: &mut Aftermath) {
        match owner {
            Owner::Waiter(slot) => {
                *slot.answer.lock() = Some(outcome);
                after.wake.push(slot);
            }
            Owner::Errand(errand) => {
                self.errands -= 1;
                after.errands.push((errand, by, outcome));
            }
            Owner::Nobody => {}
        }
    }

    /// Somebody does not wait any longer for its answer. `None`: it has it already. Otherwise, whether its request may
    /// have left; one that has not is taken out.
    pub(super) fn abandon(&mut self, ticket: Ticket) -> Option<MayHaveLeft> {
        let at = self.places.binary_search_by_key(&ticket, |place| place.ticket).ok()?;
        Some(self.abandon_at(at).1)
    }

    fn abandon_at(&mut self, at: usize) -> (Owner, MayHaveLeft) {
        let left = self.left();
        let place = &mut self.places[at];
        let owner = std::mem::replace(&mut place.owner, Owner::Nobody);
        if place.start < left {
            return (owner, MayHaveLeft(true));
        }
        let (start, length) = (place.start, place.end - place.start);
        self.places.remove(at);
        let from = usize::try_from(start - left).expect("it is in a buffer");
        let count = usize::try_from(length).expect("it is in a buffer");
        self.unsent.drain(from..from + count);
        self.end -= length;
        for later in self.places.range_mut(at..) {
            later.start -= length;
            later.end -= length;
        }
        (owner, MayHaveLeft(false))
    }

    /// Gives up the errands whose deadline has come.
    pub(super) fn give_up_errands(&mut self, now: Moment, server: &Server, after: &mut Aftermath) {
        let mut at = 0;
        while at < self.places.len() {
            let place = &self.places[at];
            if place.by > now || !matches!(place.owner, Owner::Errand(_)) {
                at += 1;
                continue;
            }
            let by = place.by;
            let (owner, MayHaveLeft(left)) = self.abandon_at(at);
            let error = server.io_error("answer", io::ErrorKind::TimedOut.into());
            let error = if left { CallError::Unknown(error) } else { CallError::NotSent(error) };
            if let Owner::Errand(errand) = owner {
                self.errands -= 1;
                after.errands.push((errand, by, Err(error)));
            }
            at += usize::from(left);
        }
    }

    /// Makes the first who waits the reader.
    pub(super) fn hand_on_reading(&mut self, after: &mut Aftermath) {
        self.asleep = false;
        let mut waiters = self.places.iter();
        let heir = waiters.find_map(|place| match &place.owner {
            Owner::Waiter(slot) => Some((place.ticket, slot)),
            _ => None,
        });
        self.reader = heir.map(|(ticket, _)| ticket);
        after.wake.extend(heir.map(|(_, slot)| Arc::clone(slot)));
    }

    /// Has somebody woken who waits and does not read, so that it writes. Where nobody is, the reader does it when it
    /// looks up.
    pub(super) fn wake_a_writer(&self, after: &mut Aftermath) {
        let mut waiters = self.places.iter().filter(|place| Some(place.ticket) != self.reader);
        after.wake.extend(waiters.find_map(|place| match &place.owner {
            Owner::Waiter(slot) => Some(Arc::clone(slot)),
            _ => None,
        }));
    }

    /// The connection is dead: everybody is told, each what it means for its own request. Only the first cause counts.
    pub(super) fn die(&mut self, error: &Error, after: &mut Aftermath) {
        if self.death.is_some() {
            return;
        }
        self.death = Some(error.clone());
        let left = self.left();
        for place in std::mem::take(&mut self.places) {
            let outcome = if place.start < left {
                CallError::Unknown(error.clone())
            } else {
                CallError::NotSent(error.clone())
            };
            self.settle(place.owner, place.by, Err(outcome), after);
        }
        self.unsent.clear();
        self.backlog = false;
        self.reader = None;
        self.asleep = false;
    }
}

/// Whether bytes of a request may have reached the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct MayHaveLeft(pub(super) bool);

//! Reading for everybody: what comes on the socket finds those who wait for it.

use super::Duplex;
use super::line::{Aftermath, Line, Outcome, Slot, Ticket};
use super::transport::Inlet;
use crate::link::Frames;
use crate::reply::Reply;
use lock_core::Moment;
use parking_lot::MutexGuard;
use rustix::net::RecvFlags;
use std::io::{self, ErrorKind};
use std::sync::Arc;

/// The ticket of one who is not in the line, and reads.
const OUTSIDER: Ticket = 0;

/// The reader's own.
#[derive(Default)]
pub(super) struct Reading {
    inlet: Inlet,
    frames: Frames,
    replies: Vec<Reply>,
}

impl Duplex {
    /// Sleeps until something comes or `until` has come, and gives it to those whose it is. If our answer is among it, the
    /// role is handed on.
    pub(super) fn read(
        &self,
        until: Moment,
        slot: &Arc<Slot>,
    ) -> Result<Outcome, MutexGuard<'_, Line>> {
        let fill = |reading: &mut Reading| reading.inlet.fill(&self.transport, &*self.clock, until);
        let (mut line, mut after) = self.read_with(fill, Some(slot));
        let outcome = slot.take();
        if outcome.is_some() {
            line.hand_on_reading(&mut after);
        }
        let line = self.conclude(line, after);
        match outcome {
            Some(outcome) => Ok(outcome),
            None if self.clock.now() >= self.patience(&line) => Err(self.give_up(line)),
            None => Err(line),
        }
    }

    /// Reads once, and notes whose the answers are.
    fn read_with(
        &self,
        fill: impl FnOnce(&mut Reading) -> io::Result<bool>,
        mine: Option<&Arc<Slot>>,
    ) -> (MutexGuard<'_, Line>, Aftermath) {
        let mut after = Aftermath::default();
        let mut reading = self.inlet.lock();
        let filled = fill(&mut reading);
        let Reading { inlet, frames, replies } = &mut *reading;
        let mut garbage = match &filled {
            Ok(true) => frames.cut(&mut inlet.plain, replies).err(),
            _ => None,
        };
        let mut line = self.line.lock();
        line.asleep = false;
        if !replies.is_empty() {
            line.heard(self.clock.now());
        }
        // Nothing is believed that came along with what nobody asked for: which of them is the answer?
        let (asked, came) = (line.awaited(), replies.len() + usize::from(!inlet.plain.is_empty()));
        if garbage.is_none() && came > asked {
            garbage = Some("there is more than was asked for");
        }
        for reply in replies.drain(..) {
            if garbage.is_none() {
                garbage = line.answer(reply, mine, &mut after).err();
            }
        }
        if let Some(why) = garbage {
            self.end(&mut line, &self.server.garbage(why), &mut after);
        }
        let last_word = inlet.ended.then(|| ErrorKind::UnexpectedEof.into());
        if let Some(error) = filled.err().or(last_word) {
            self.end(&mut line, &self.server.io_error("answer", error), &mut after);
        }
        (line, after)
    }

    /// Reads without waiting, for one who has the role or found nobody else who writes or reads.
    pub(super) fn read_what_is_there(&self) -> MutexGuard<'_, Line> {
        let take = |reading: &mut Reading| reading.inlet.take(&self.transport, RecvFlags::DONTWAIT);
        let (line, after) = self.read_with(take, None);
        self.conclude(line, after)
    }

    /// The same for one who is not in the line, where nobody reads.
    pub(super) fn look<'a>(&'a self, mut line: MutexGuard<'a, Line>) -> MutexGuard<'a, Line> {
        line.reader = Some(OUTSIDER);
        // Whoever comes meanwhile writes itself.
        line.asleep = true;
        drop(line);
        line = self.read_what_is_there();
        if !line.is_empty() && self.clock.now() >= self.patience(&line) {
            line = self.give_up(line);
        }
        self.leave(line, OUTSIDER);
        self.line.lock()
    }
}

//! [`Waker`] and [`Poller`]: the interruption of a thread that polls sockets.

use crate::connection::{Polled, poll};
use rustix::event::{PollFd, PollFlags};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Wakes a [`Poller`].
#[derive(Debug)]
pub(super) struct Waker(UnixStream);

/// Waits for a socket or the waker.
#[derive(Debug)]
pub(super) struct Poller(UnixStream);

impl Waker {
    pub(super) fn pair() -> io::Result<(Self, Poller)> {
        let (waker, poller) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        poller.set_nonblocking(true)?;
        Ok((Self(waker), Poller(poller)))
    }

    /// Wakes the poller, now or from its next sleep.
    pub(super) fn wake(&self) {
        // A full socket means that the poller is about to wake up; a closed socket, that there is
        // no poller.
        let _ignored = (&self.0).write(&[1]);
    }
}

impl Poller {
    /// Sleeps until `socket` can be read (or written, if `wants_to_write`), or the waker wakes, or
    /// for `longest`. Returns whether the socket must be read: because it has data, has failed, or
    /// could not be polled.
    pub(super) fn sleep(
        &self,
        socket: Option<BorrowedFd<'_>>,
        wants_to_write: bool,
        longest: Duration,
    ) -> bool {
        let wanted = if wants_to_write {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::IN
        };
        let mut sources = vec![PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
        sources.extend(socket.map(|socket| PollFd::from_borrowed_fd(socket, wanted)));
        if matches!(poll(&mut sources, longest), Polled::Impossible) {
            self.forget();
            return true;
        }
        let called = !sources[0].revents().is_empty();
        let happened = sources.get(1).map_or(PollFlags::empty(), PollFd::revents);
        if called {
            self.forget();
        }
        !happened.difference(PollFlags::OUT).is_empty()
    }

    fn forget(&self) {
        let mut calls = [0; 64];
        while matches!((&self.0).read(&mut calls), Ok(count) if count == calls.len()) {}
    }
}

//! [`Waker`] and [`Poller`]: how to interrupt a thread that polls sockets.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// DeferredWakeups a [`Poller`].
#[derive(Debug)]
pub(super) struct Waker(UnixStream);

/// What the thread polls beside its connection.
#[derive(Debug)]
pub(super) struct Poller(UnixStream);

/// What a sleep ended with.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Readiness {
    /// The stream has something to read, or failed: a read tells.
    pub(super) readable: bool,
}

impl Waker {
    pub(super) fn pair() -> io::Result<(Self, Poller)> {
        let (waker, poller) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        poller.set_nonblocking(true)?;
        Ok((Self(waker), Poller(poller)))
    }

    /// DeferredWakeups the poller, now or as soon as it lies down.
    pub(super) fn wake(&self) {
        // If the pipe is full the poller is being woken already; if it is closed there is nobody to wake.
        let _ignored = (&self.0).write(&[1]);
    }
}

impl Poller {
    /// Sleeps until `stream` can be read (or written, if `wants_to_write`), or the waker wakes, or for at most
    /// `longest`; then forgets the waker's calls.
    pub(super) fn sleep(
        &self,
        stream: Option<BorrowedFd<'_>>,
        wants_to_write: bool,
        longest: Duration,
    ) -> io::Result<Readiness> {
        let timeout = Timespec::try_from(longest).ok();
        let wanted = if wants_to_write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut sources = vec![PollFd::from_borrowed_fd(self.0.as_fd(), PollFlags::IN)];
        sources.extend(stream.map(|stream| PollFd::from_borrowed_fd(stream, wanted)));
        match poll(&mut sources, timeout.as_ref()) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Readiness::default()),
            Err(error) => return Err(error.into()),
        }
        let called = !sources[0].revents().is_empty();
        let happened = sources.get(1).map_or(PollFlags::empty(), PollFd::revents);
        if called {
            self.forget();
        }
        Ok(Readiness { readable: !happened.difference(PollFlags::OUT).is_empty() })
    }

    fn forget(&self) {
        let mut calls = [0; 64];
        while matches!((&self.0).read(&mut calls), Ok(count) if count == calls.len()) {}
    }
}

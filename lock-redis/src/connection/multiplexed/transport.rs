//! [`Transport`]: a connection that is read by one thread and written by another at the same time.
//!
//! Plain sockets can do that by themselves: reads wait in the kernel, writes never wait. A TLS session cannot: reading
//! may have to answer, and both change its keys. So it stands under a lock of its own, and the socket does not: whoever
//! reads waits for bytes of ciphertext without the lock, and takes it only to have them deciphered.

use crate::connection::Stream;
use crate::connection::stream::{DeadlineStream, better_timeout, has_nothing};
use crate::connection::tls::Session;
use lock_core::{Clock, Moment};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

pub(super) struct Transport {
    stream: Stream,
    /// `None`: the bytes on the socket are the bytes of the conversation. Locked after the pending, never before.
    session: Option<Mutex<Session>>,
}

/// The writer's own: under a lock that only whoever writes takes.
#[derive(Default)]
pub(super) struct WriteBuffer {
    /// Ciphertext that the peer has not taken yet.
    sealed: Vec<u8>,
    sent: usize,
    /// The empty buffer that is given for a full one.
    pub(super) spare: Vec<u8>,
}

/// How a write ended.
pub(super) struct WriteProgress {
    /// How many of the bytes count as gone.
    pub(super) taken: usize,
    /// Whether the peer takes no more for the moment.
    pub(super) stalled: bool,
    /// Whether bytes that count as gone are still here.
    pub(super) backlog: bool,
}

impl Transport {
    pub(super) fn new(stream: Stream) -> io::Result<Self> {
        let (stream, session) = stream.split();
        stream.set_read_timeout(DeadlineStream::SLICE)?;
        Ok(Self { stream, session: session.map(Mutex::new) })
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// Writes as much as the peer takes at once. An error ends the connection, and means that nothing of `bytes` left.
    pub(super) fn write(
        &self,
        output: &mut WriteBuffer,
        bytes: &[u8],
    ) -> io::Result<WriteProgress> {
        let Some(session) = &self.session else {
            let taken = self.send_all(bytes)?;
            return Ok(WriteProgress { taken, stalled: taken < bytes.len(), backlog: false });
        };
        let mut taken = 0;
        // What is sealed must be sent in this order, so nothing is sealed that cannot leave at once.
        if output.sent == output.sealed.len() {
            output.sealed.clear();
            output.sent = 0;
            session.lock().seal(bytes, &mut output.sealed)?;
            taken = bytes.len();
        }
        output.sent += self.send_all(&output.sealed[output.sent..])?;
        let backlog = output.sent < output.sealed.len();
        Ok(WriteProgress { taken, stalled: backlog || taken < bytes.len(), backlog })
    }

    /// Sends until all is gone or the peer takes no more. What was sent before an error is not told: it does not matter
    /// any more.
    fn send_all(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut sent = 0;
        while sent < bytes.len() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(self.fd(), &bytes[sent..], flags) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) => sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) if sent == 0 => return Err(error.into()),
                // The next one says so again, when it is known what has left.
                Err(_) => break,
            }
        }
        Ok(sent)
    }

    /// Waits until the socket can be written - or read, where that is of interest - or `slice` is over. Whether it can be
    /// read.
    pub(super) fn wait(&self, read: bool, slice: Duration) -> io::Result<bool> {
        let flags = if read { PollFlags::IN | PollFlags::OUT } else { PollFlags::OUT };
        let mut fds = [PollFd::from_borrowed_fd(self.fd(), flags)];
        let timeout = Timespec::try_from(slice.max(Duration::from_millis(1)))
            .map_err(|_| io::Error::from(ErrorKind::InvalidInput))?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let found = fds[0].revents();
        // A connection that is broken says so to whoever reads or writes it.
        Ok(read && found.intersects(PollFlags::IN | PollFlags::ERR | PollFlags::HUP))
    }

    /// Whether the peer has neither closed the connection nor sent what nobody asked for. Only while nobody reads.
    pub(super) fn is_quiet(&self) -> bool {
        if let Some(session) = &self.session {
            return session.lock().is_quiet(self.fd());
        }
        has_nothing(self.fd())
    }

    /// Ends the connection, and whoever waits for it wakes up.
    pub(super) fn shut(&self) {
        let _closed_before = rustix::net::shutdown(self.fd(), Shutdown::Both);
    }
}

/// The reader's own: under a lock that only whoever reads takes.
pub(super) struct ReadBuffer {
    timeout: Duration,
    /// Bytes of the conversation; the first `from` of them are done with.
    pub(super) plain: Vec<u8>,
    raw: Box<[u8]>,
    /// Whether the peer has said by TLS that nothing more comes. What came along with that counts.
    pub(super) ended: bool,
}

impl Default for ReadBuffer {
    fn default() -> Self {
        let raw = vec![0; Self::CHUNK].into();
        Self { timeout: DeadlineStream::SLICE, plain: Vec::new(), raw, ended: false }
    }
}

impl ReadBuffer {
    /// What one read takes at most. A batch of answers of more than a hundred callers fits.
    const CHUNK: usize = 16 << 10;

    /// Waits until `by` for bytes, and appends them to what is there. `false`: none came yet, look at the clock.
    pub(super) fn fill(
        &mut self,
        transport: &Transport,
        clock: &dyn Clock,
        by: Moment,
    ) -> io::Result<bool> {
        // A socket timeout alone bounds nothing: see `DeadlineStream`. It is changed only if it does not serve.
        if let Some(timeout) = better_timeout(self.timeout, by.since(clock.now())) {
            transport.stream.set_read_timeout(timeout)?;
            self.timeout = timeout;
        }
        self.take(transport, RecvFlags::empty())
    }

    /// The same without waiting.
    pub(super) fn take(&mut self, transport: &Transport, flags: RecvFlags) -> io::Result<bool> {
        let count = match rustix::net::recv(transport.fd(), &mut self.raw[..], flags) {
            Ok((0, _)) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok((count, _)) => count,
            Err(Errno::INTR | Errno::AGAIN) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        match &transport.session {
            None => self.plain.extend_from_slice(&self.raw[..count]),
            Some(session) => {
                self.ended = session.lock().open(&self.raw[..count], &mut self.plain)?;
            }
        }
        Ok(true)
    }
}

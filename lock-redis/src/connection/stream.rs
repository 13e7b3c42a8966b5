//! [`DeadlineStream`]: the bytes of one connection, every wait for them bounded by a deadline.

use super::tls::{Session, TlsStream};
use lock_core::{Clock, Moment};
use rustix::net::RecvFlags;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

/// The kinds of connection there are.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream>),
}

impl Stream {
    /// The bare socket, and the TLS session if there is one.
    pub(super) fn split(self) -> (Self, Option<Session>) {
        match self {
            Self::Tls(stream) => stream.split(),
            plain => (plain, None),
        }
    }

    pub(super) fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_read_timeout(Some(timeout)),
            Self::Unix(stream) => stream.set_read_timeout(Some(timeout)),
            Self::Tls(stream) => stream.socket().set_read_timeout(Some(timeout)),
        }
    }

    fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_write_timeout(Some(timeout)),
            Self::Unix(stream) => stream.set_write_timeout(Some(timeout)),
            Self::Tls(stream) => stream.socket().set_write_timeout(Some(timeout)),
        }
    }

    /// Whether something that was written has not left yet: with TLS it may wait here. [`push`](Self::push) sends it.
    pub(crate) fn wants_write(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Unix(_) => false,
            Self::Tls(stream) => stream.wants_write(),
        }
    }

    /// Sends some of what was written and has not left yet.
    pub(crate) fn push(&mut self) -> io::Result<()> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Ok(()),
            Self::Tls(stream) => stream.push(),
        }
    }

    /// From now on reads and writes return [`ErrorKind::WouldBlock`] instead of waiting.
    pub(crate) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.set_nonblocking(true),
            Self::Unix(stream) => stream.set_nonblocking(true),
            Self::Tls(stream) => stream.socket().set_nonblocking(true),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.read(into),
            Self::Unix(stream) => stream.read(into),
            Self::Tls(stream) => stream.read(into),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(stream) => stream.write(bytes),
            Self::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
            Self::Tls(stream) => stream.socket().as_fd(),
        }
    }
}

/// A stream and its socket timeouts.
///
/// A socket timeout alone bounds nothing: it is rounded up to the kernel's ticks (4 to 8 ms), and it starts anew with
/// every byte that a slow peer lets drip. So the clock is asked before every read and write. And because setting a
/// timeout is a system call, it is left as it is while it serves: it may be a little too long, or too short (then the
/// read is simply repeated).
#[derive(Debug)]
pub(super) struct DeadlineStream {
    stream: Stream,
    clock: Arc<dyn Clock>,
    read_timeout: Duration,
    write_timeout: Duration,
}

/// How far a write came before it failed.
pub(super) enum WriteError {
    /// Not one byte left.
    Nothing(io::Error),
    /// Some did; the peer may have all of them.
    Some(io::Error),
}

impl DeadlineStream {
    /// The longest wait without a look at the clock: socket timeouts stand still while the machine sleeps, and the
    /// clock does not.
    pub(super) const SLICE: Duration = Duration::from_secs(1);
    /// How much longer than asked a wait may take before it is worth a system call to say so.
    pub(super) const SLACK: Duration = Duration::from_millis(8);

    pub(super) fn new(stream: Stream, clock: Arc<dyn Clock>) -> io::Result<Self> {
        stream.set_read_timeout(Self::SLICE)?;
        stream.set_write_timeout(Self::SLICE)?;
        Ok(Self { stream, clock, read_timeout: Self::SLICE, write_timeout: Self::SLICE })
    }

    pub(super) fn into_stream(self) -> Stream {
        self.stream
    }

    /// Writes all of `bytes` until `by`.
    pub(super) fn write_all(&mut self, bytes: &[u8], by: Moment) -> Result<(), WriteError> {
        let mut written = 0;
        while written < bytes.len() {
            let step = self.write_some(&bytes[written..], by);
            match step {
                Ok(count) => written += count,
                Err(error) if written == 0 => return Err(WriteError::Nothing(error)),
                Err(error) => return Err(WriteError::Some(error)),
            }
        }
        // Also what only seems to have left: the peer may have got it by now.
        while self.stream.wants_write() {
            self.push(by).map_err(WriteError::Some)?;
        }
        Ok(())
    }

    fn push(&mut self, by: Moment) -> io::Result<()> {
        self.bound_writes(by)?;
        match self.stream.push() {
            Err(error) if is_temporary(&error) => Ok(()),
            done => done,
        }
    }

    /// The handshake of TLS, until `by`. Nothing where the stream has none.
    pub(super) fn handshake_tls(&mut self, by: Moment) -> io::Result<()> {
        loop {
            self.bound_reads(by)?;
            self.bound_writes(by)?;
            let step = match &mut self.stream {
                Stream::Tls(stream) if stream.is_handshaking() => stream.handshake_tls(),
                _ => return Ok(()),
            };
            match step {
                Err(error) if is_temporary(&error) => {}
                done => done?,
            }
        }
    }

    fn write_some(&mut self, bytes: &[u8], by: Moment) -> io::Result<usize> {
        loop {
            self.bound_writes(by)?;
            match self.stream.write(bytes) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Err(error) if is_temporary(&error) => {}
                done => return done,
            }
        }
    }

    /// Reads at least one byte until `by`.
    pub(super) fn read_some(&mut self, into: &mut [u8], by: Moment) -> io::Result<usize> {
        loop {
            self.bound_reads(by)?;
            match self.stream.read(into) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if is_temporary(&error) => {}
                done => return done,
            }
        }
    }

    fn bound_writes(&mut self, by: Moment) -> io::Result<()> {
        if let Some(timeout) = self.next_timeout(self.write_timeout, by)? {
            self.stream.set_write_timeout(timeout)?;
            self.write_timeout = timeout;
        }
        Ok(())
    }

    fn bound_reads(&mut self, by: Moment) -> io::Result<()> {
        if let Some(timeout) = self.next_timeout(self.read_timeout, by)? {
            self.stream.set_read_timeout(timeout)?;
            self.read_timeout = timeout;
        }
        Ok(())
    }

    /// What the socket timeout must be changed to, if it must; an error when `by` has come.
    fn next_timeout(&self, set: Duration, by: Moment) -> io::Result<Option<Duration>> {
        let left = by.since(self.clock.now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        Ok(better_timeout(set, left))
    }

    /// Whether the peer has neither closed the connection nor sent what nobody asked for. A look, without waiting.
    pub(super) fn is_quiet(&mut self) -> bool {
        if let Stream::Tls(stream) = &mut self.stream {
            return stream.is_quiet();
        }
        has_nothing(&self.stream)
    }
}

/// What the timeout `set` of a socket must be changed to where that much time is `left`, if it does not serve.
pub(super) fn better_timeout(set: Duration, left: Duration) -> Option<Duration> {
    // Never zero, which std refuses; the kernel rounds up to its ticks anyway.
    let wanted = left.clamp(Duration::from_millis(1), DeadlineStream::SLICE);
    let serves = wanted / 2 <= set && set <= wanted + DeadlineStream::SLACK;
    (!serves).then_some(wanted)
}

/// Whether a socket is open and nothing has come in. A look, without waiting.
pub(super) fn has_nothing(socket: impl AsFd) -> bool {
    let look = rustix::net::recv(socket, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
    matches!(look, Err(rustix::io::Errno::AGAIN))
}

/// Nothing is wrong with the connection: a signal came, or the socket timeout, which is not the deadline. (`TimedOut`
/// from the socket is neither: it is keepalive's verdict that the peer is gone.)
fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock)
}

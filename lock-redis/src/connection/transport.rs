//! [`Transport`]: a connected socket, with or without TLS, read by one thread and written by
//! another.
//!
//! All connections use it, so all bytes take the same path. A TLS session cannot be read and
//! written at the same time: it has a lock of its own, which is never held while a thread waits for
//! the socket.

use super::tls::TlsSession;
use lock_core::{Clock, Moment, OpenConnection, SystemClock};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket2::{Domain, Socket};
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug)]
pub(crate) struct Transport {
    socket: Socket,
    /// A thread that locks both this and the pending requests of a connection locks the pending
    /// requests first.
    tls: Option<Mutex<TlsSession>>,
    /// Counts the connection while it is open.
    _counted: Option<OpenConnection>,
}

/// The writer's buffers.
#[derive(Debug, Default)]
pub(crate) struct WriteBuffer {
    /// Ciphertext, of which the peer has taken the first `sent` bytes.
    ciphertext: Vec<u8>,
    sent: usize,
}

/// The progress of a write.
pub(crate) struct WriteProgress {
    /// The number of bytes that count as sent.
    pub(crate) taken: usize,
    /// True if the peer takes no more for now.
    pub(crate) stalled: bool,
    /// True if bytes that count as sent are still in the [`WriteBuffer`].
    pub(crate) backlog: bool,
}

/// The reader's buffers.
#[derive(Debug)]
pub(crate) struct ReadBuffer {
    /// The socket's current timeout.
    timeout: Duration,
    received: Box<[u8]>,
    /// True if the peer has ended the TLS session. The bytes that arrived before the end count.
    pub(crate) ended: bool,
}

impl Default for ReadBuffer {
    fn default() -> Self {
        Self {
            timeout: SystemClock::SLICE,
            received: vec![0; ReadBuffer::SIZE].into(),
            ended: false,
        }
    }
}

impl ReadBuffer {
    /// The most bytes of one read. The replies to more than a hundred callers fit.
    const SIZE: usize = 16 << 10;
}

/// Returns the length of one wait for a socket. Never zero, because a socket takes zero as no
/// timeout.
fn slice_of(left: Duration) -> Duration {
    left.clamp(Duration::from_millis(1), SystemClock::SLICE)
}

/// The time by which a socket's timeout may be too long, because changing it is a system call and
/// the kernel's timers are about as coarse.
const SLACK: Duration = Duration::from_millis(8);

/// The pause if sockets cannot be polled, because a thread must not spin.
const POLL_PAUSE: Duration = Duration::from_millis(10);

/// Sending does not wait for the peer, and raises no signal.
const SEND_FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// The result of a wait for sockets.
pub(crate) enum Polled {
    /// The wait took place.
    Done,
    /// Polling failed: it needs memory, and a limit of descriptors above the number of those
    /// polled. The call has paused instead, and the caller has to try its operation without
    /// blocking.
    Impossible,
}

/// Waits for one of `sources`, for at most `longest`. After an error, pauses before it returns.
pub(crate) fn poll(sources: &mut [PollFd<'_>], longest: Duration) -> Polled {
    let timeout = Timespec::try_from(longest).ok();
    match rustix::event::poll(sources, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => Polled::Done,
        Err(_) => {
            let until = SystemClock.now() + longest.min(POLL_PAUSE);
            SystemClock.wait(&Arc::default(), until);
            Polled::Impossible
        }
    }
}

/// Returns the time until `by`; an error if that has passed.
pub(crate) fn time_left(clock: &dyn Clock, by: Moment) -> io::Result<Duration> {
    let left = by.since(clock.now());
    if left.is_zero() {
        Err(ErrorKind::TimedOut.into())
    } else {
        Ok(left)
    }
}

impl Transport {
    /// The most reads in one check of the connection. Otherwise a faulty peer that sends without
    /// end could hold up the check.
    const LOOKS: usize = 16;

    pub(crate) fn new(socket: impl Into<Socket>, tls: Option<TlsSession>) -> io::Result<Self> {
        let socket = socket.into();
        socket.set_read_timeout(Some(SystemClock::SLICE))?;
        Ok(Self {
            socket,
            tls: tls.map(Mutex::new),
            _counted: None,
        })
    }

    /// Returns this transport, counted as open until it is dropped.
    pub(crate) fn counted(self, counted: OpenConnection) -> Self {
        Self {
            _counted: Some(counted),
            ..self
        }
    }

    /// On Linux, limits the time for which bytes that are sent from now on may stay unacknowledged.
    pub(crate) fn limit_unacknowledged(&self, longest: Duration) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        if self.socket.domain()? != Domain::UNIX {
            self.socket.set_tcp_user_timeout(Some(longest))?;
        }
        #[cfg(not(target_os = "linux"))]
        let _ = longest;
        Ok(())
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    #[cfg(test)]
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Completes the TLS handshake until `by`, if there is one.
    pub(crate) fn handshake(
        &self,
        output: &mut WriteBuffer,
        input: &mut ReadBuffer,
        plain: &mut Vec<u8>,
        clock: &dyn Clock,
        by: Moment,
    ) -> io::Result<()> {
        let Some(tls) = &self.tls else { return Ok(()) };
        // The client's last message is sent together with the first request.
        while tls.lock().is_handshaking() {
            while self.write(output, &[])?.stalled {
                self.wait(false, time_left(clock, by)?);
            }
            self.read(input, plain, time_left(clock, by)?)?;
        }
        Ok(())
    }

    /// Writes as much as the peer takes at once. After an error, no part of `bytes` was sent.
    pub(crate) fn write(
        &self,
        output: &mut WriteBuffer,
        bytes: &[u8],
    ) -> io::Result<WriteProgress> {
        let (mut taken, mut is_encrypted, mut has_left) = (0, false, false);
        loop {
            let unsent = match &self.tls {
                None => &bytes[taken..],
                Some(tls) => {
                    // Encrypted bytes have to be sent in order, so all of them are sent before more
                    // are encrypted.
                    if output.ciphertext.is_empty() && !is_encrypted {
                        tls.lock().encrypt(bytes, &mut output.ciphertext)?;
                        (taken, is_encrypted, has_left) = (bytes.len(), true, false);
                    }
                    &output.ciphertext[output.sent..]
                }
            };
            if unsent.is_empty() {
                break;
            }
            match rustix::net::send(self.fd(), unsent, SEND_FLAGS) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(count) if self.tls.is_none() => (taken, has_left) = (taken + count, true),
                Ok(count) => {
                    (output.sent, has_left) = (output.sent + count, true);
                    if output.sent == output.ciphertext.len() {
                        output.ciphertext.clear();
                        output.sent = 0;
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) if !has_left => return Err(error.into()),
                // The next write fails in the same way; so this one can return how much was sent.
                Err(_) => break,
            }
        }
        let backlog = !output.ciphertext.is_empty();
        Ok(WriteProgress {
            taken,
            stalled: backlog || taken < bytes.len(),
            backlog,
        })
    }

    /// Waits until the socket can be written (or read, if `read`), for at most `longest` or one
    /// slice, whichever is shorter. Returns `true` if `read` is set and the socket can be read, or
    /// cannot be polled.
    pub(crate) fn wait(&self, read: bool, longest: Duration) -> bool {
        let flags = if read {
            PollFlags::IN | PollFlags::OUT
        } else {
            PollFlags::OUT
        };
        let mut fds = [PollFd::from_borrowed_fd(self.fd(), flags)];
        let found = match poll(&mut fds, slice_of(longest)) {
            Polled::Done => fds[0].revents(),
            Polled::Impossible => flags,
        };
        // The next read or write reports why a connection broke.
        read && found.intersects(PollFlags::IN | PollFlags::ERR | PollFlags::HUP)
    }

    /// Waits for bytes, for about `longest` or one slice, whichever is shorter, and appends them to
    /// `plain`. Returns `false` if none have arrived.
    ///
    /// The caller has to check its deadline after each read, because the socket's timeout is no
    /// bound: it is rounded up to the kernel's ticks, and starts again with every byte of a slow
    /// peer. The timeout is changed only if it differs too much from `longest`.
    pub(crate) fn read(
        &self,
        input: &mut ReadBuffer,
        plain: &mut Vec<u8>,
        longest: Duration,
    ) -> io::Result<bool> {
        let wanted = slice_of(longest);
        if input.timeout < wanted / 2 || input.timeout > wanted + SLACK {
            self.socket.set_read_timeout(Some(wanted))?;
            input.timeout = wanted;
        }
        self.receive(input, plain, RecvFlags::empty())
    }

    /// Reads without waiting. Returns `false` if there is nothing to read.
    pub(crate) fn read_available(
        &self,
        input: &mut ReadBuffer,
        plain: &mut Vec<u8>,
    ) -> io::Result<bool> {
        self.receive(input, plain, RecvFlags::DONTWAIT)
    }

    fn receive(
        &self,
        input: &mut ReadBuffer,
        plain: &mut Vec<u8>,
        flags: RecvFlags,
    ) -> io::Result<bool> {
        if input.ended {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let count = match rustix::net::recv(self.fd(), &mut input.received[..], flags) {
            Ok((0, _)) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok((count, _)) => count,
            Err(Errno::INTR | Errno::AGAIN) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let received = &input.received[..count];
        let Some(tls) = &self.tls else {
            plain.extend_from_slice(received);
            return Ok(true);
        };
        let mut tls = tls.lock();
        input.ended = tls.decrypt(received, plain).inspect_err(|_| {
            // Sends the reason to the peer, if the socket takes these bytes at once.
            let mut alert = Vec::new();
            let _told = tls.encrypt(&[], &mut alert).map(|()| {
                let _sent = rustix::net::send(self.fd(), &alert, SEND_FLAGS);
            });
        })?;
        Ok(true)
    }

    /// Returns why the TLS session failed, if the peer has sent a reason, perhaps during a write.
    pub(crate) fn tls_error(&self, input: &mut ReadBuffer) -> Option<io::Error> {
        self.tls.as_ref()?;
        for _ in 0..Self::LOOKS {
            match self.read_available(input, &mut Vec::new()) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => return (error.kind() == ErrorKind::InvalidData).then_some(error),
            }
        }
        None
    }

    /// Returns `true` if the peer has neither closed the connection nor sent data. Must be called
    /// only while no thread reads.
    pub(crate) fn is_quiet(&self) -> bool {
        if self.tls.is_none() {
            let look = rustix::net::recv(
                self.fd(),
                &mut [0_u8; 1],
                RecvFlags::PEEK | RecvFlags::DONTWAIT,
            );
            return matches!(look, Err(Errno::AGAIN));
        }
        // Messages of TLS itself, such as a session ticket, are read and do not count as data.
        let (mut input, mut plain) = (ReadBuffer::default(), Vec::new());
        for _ in 0..Self::LOOKS {
            match self.read_available(&mut input, &mut plain) {
                Ok(true) if plain.is_empty() && !input.ended => {}
                Ok(false) => return true,
                _ => return false,
            }
        }
        false
    }

    /// Shuts the connection down: threads that wait on it return.
    pub(crate) fn shut(&self) {
        let _closed_before = self.socket.shutdown(Shutdown::Both);
    }
}

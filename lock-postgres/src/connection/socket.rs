//! [`TimedSocket`]: a socket whose reads and writes end at a [`Deadline`].
//!
//! The `postgres` crate waits for a reply without a bound. It lets its user wrap the socket,
//! though, in what it takes for TLS without a negotiation. So every connection gets its socket from
//! here, with TLS or without, and the negotiation of TLS has a deadline, too.

use lock_core::{Clock, Moment};
use parking_lot::Mutex;
use postgres::Socket;
use postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use std::future::Future;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Sleep, sleep};

/// The moment by which the present request on a connection must end.
pub(crate) struct Deadline {
    clock: Arc<dyn Clock>,
    by: Mutex<Moment>,
    has_written: AtomicBool,
    /// True if the server has ended the wait for a standby during the present request.
    is_unconfirmed: AtomicBool,
    /// True if the connection is not to be used any more.
    has_ended: AtomicBool,
    /// The task that waits for the socket.
    waiting: Mutex<Option<Waker>>,
}

impl Deadline {
    pub(super) fn new(clock: Arc<dyn Clock>, by: Moment) -> Arc<Self> {
        Arc::new(Self {
            clock,
            by: Mutex::new(by),
            has_written: AtomicBool::new(false),
            is_unconfirmed: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            waiting: Mutex::default(),
        })
    }

    /// Begins a request that must end by then.
    pub(super) fn begin(&self, by: Moment) {
        *self.by.lock() = by;
        self.has_written.store(false, Ordering::Relaxed);
        self.is_unconfirmed.store(false, Ordering::Relaxed);
    }

    /// Begins a request that must end within `time`.
    pub(super) fn begin_in(&self, time: Duration) {
        self.begin(self.clock.now() + time);
    }

    /// Ends the present request, on whatever thread it waits, and all later ones.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
        let waiting = self.waiting.lock().take();
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }

    /// Records that the server has ended the wait for a standby: what it answers then as done may
    /// be missing there.
    pub(super) fn note_unconfirmed(&self) {
        self.is_unconfirmed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_unconfirmed(&self) -> bool {
        self.is_unconfirmed.load(Ordering::Relaxed)
    }

    /// Returns whether a byte was written since the request began: then the server may have got
    /// all of the request.
    pub(super) fn has_written(&self) -> bool {
        self.has_written.load(Ordering::Relaxed)
    }

    /// Returns whether the deadline will have passed after `time`.
    pub(super) fn is_over(&self, time: Duration) -> bool {
        self.left() <= time
    }

    fn left(&self) -> Duration {
        match self.has_ended.load(Ordering::SeqCst) {
            true => Duration::ZERO,
            false => self.by.lock().since(self.clock.now()),
        }
    }
}

/// A socket, or a stream over one, whose waits end at the deadline.
pub(super) struct TimedSocket<S> {
    stream: S,
    deadline: Arc<Deadline>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl<S> TimedSocket<S> {
    /// Returns what polling the stream has returned. If the stream is not ready, fails if the
    /// deadline has passed, and otherwise has the task woken when it passes.
    fn bounded<T>(
        &mut self,
        polled: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            return polled;
        }
        *self.deadline.waiting.lock() = Some(context.waker().clone());
        loop {
            let left = self.deadline.left();
            if left.is_zero() {
                return Poll::Ready(Err(ErrorKind::TimedOut.into()));
            }
            // A new one each time, because the deadline may be another one than before.
            let sleep = self.sleep.insert(Box::pin(sleep(left)));
            if sleep.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedSocket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.bounded(polled, context)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedSocket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.deadline.has_written.store(true, Ordering::Relaxed);
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(polled, context)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        self.bounded(polled, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bounded(polled, context)
    }
}

/// How connections are encrypted.
#[derive(Clone)]
pub(crate) enum Tls {
    Off,
    #[cfg(feature = "tls")]
    On(tokio_postgres_rustls::MakeRustlsConnect),
}

/// Makes the stream of one connection.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) deadline: Arc<Deadline>,
    pub(super) tls: Tls,
}

impl Connector {
    /// Returns a connector for another connection, with this time.
    pub(super) fn anew(&self, time: Duration) -> Self {
        let clock = Arc::clone(&self.deadline.clock);
        let by = clock.now() + time;
        Self {
            deadline: Deadline::new(clock, by),
            tls: self.tls.clone(),
        }
    }
}

/// The stream of a connection.
pub(super) enum Stream {
    Plain(TimedSocket<Socket>),
    #[cfg(feature = "tls")]
    Tls(Box<Encrypted>),
}

#[cfg(feature = "tls")]
type Encrypted =
    <tokio_postgres_rustls::MakeRustlsConnect as MakeTlsConnect<TimedSocket<Socket>>>::Stream;

/// The connector for one host.
pub(super) struct HostConnector {
    connector: Connector,
    #[cfg_attr(
        not(feature = "tls"),
        allow(dead_code, reason = "the name in the certificate")
    )]
    host: String,
}

impl MakeTlsConnect<Socket> for Connector {
    type Stream = Stream;
    type TlsConnect = HostConnector;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<HostConnector> {
        let (connector, host) = (self.clone(), host.to_owned());
        Ok(HostConnector { connector, host })
    }
}

impl TlsConnect<Socket> for HostConnector {
    type Stream = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        let stream = TimedSocket {
            stream: socket,
            deadline: self.connector.deadline.clone(),
            sleep: None,
        };
        match self.connector.tls {
            Tls::Off => Box::pin(async { Ok(Stream::Plain(stream)) }),
            #[cfg(feature = "tls")]
            Tls::On(mut tls) => Box::pin(async move {
                let stream = request_tls(stream).await?;
                let tls =
                    MakeTlsConnect::<TimedSocket<Socket>>::make_tls_connect(&mut tls, &self.host);
                let stream = tls.map_err(io::Error::other)?.connect(stream).await?;
                Ok(Stream::Tls(Box::new(stream)))
            }),
        }
    }
}

/// Asks the server for TLS: `SSLRequest` of PostgreSQL's protocol, version 3.
#[cfg_attr(not(feature = "tls"), allow(dead_code, reason = "there is no TLS"))]
async fn request_tls(mut stream: TimedSocket<Socket>) -> io::Result<TimedSocket<Socket>> {
    const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
    stream.write_all(&SSL_REQUEST).await?;
    match stream.read_u8().await? {
        b'S' => Ok(stream),
        _ => Err(io::Error::other(
            "the server has no TLS: switch it on there, or say `sslmode=disable`",
        )),
    }
}

impl TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        match self {
            Self::Plain(_) => ChannelBinding::none(),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => stream.channel_binding(),
        }
    }
}

/// Calls the same method of the stream inside.
macro_rules! forward {
    ($self:ident, $method:ident, $($argument:ident),*) => {
        match $self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).$method($($argument),*),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => Pin::new(stream.as_mut()).$method($($argument),*),
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        forward!(self, poll_read, context, buffer)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        forward!(self, poll_write, context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, poll_flush, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        forward!(self, poll_shutdown, context)
    }
}

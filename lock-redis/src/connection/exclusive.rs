//! [`Connection`]: a connection that one thread uses at a time.

use super::known::Known;
use super::lent::LentConnection;
use super::transport::time_left;
use super::{
    Batch, CallError, ConnectionLike, ReadBuffer, ReplyReader, Server, ServerGeneration, Transport,
    WriteBuffer,
};
use crate::connection::Reply;
use crate::lua::Script;
use lock_core::{Clock, Error, Moment};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// A connection for one thread at a time; every wait on it has a deadline.
pub(crate) struct Connection {
    /// `None` after the connection was closed.
    open: Option<Link>,
    pub(super) server: Arc<Server>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) known: Known,
    /// The client ID of the connection to which the server reports changes of keys that are read on
    /// this connection; 0 if there is none.
    pub(crate) reports_to: u64,
}

/// The open connection.
enum Link {
    Own(Open),
    /// A connection of the application's pool.
    Lent(LentConnection),
}

/// The parts of an open connection of our own.
struct Open {
    transport: Arc<Transport>,
    output: WriteBuffer,
    input: ReadBuffer,
    reader: ReplyReader,
}

impl ConnectionLike for Connection {
    fn exchange(&mut self, batch: &Batch, by: Moment) -> (Vec<Reply>, Result<(), CallError>) {
        if self.known.generation.is_over() {
            self.close_link();
        }
        let (replies, outcome) = match &mut self.open {
            Some(Link::Lent(lent)) => lent.exchange(&self.server, batch, &*self.clock, by),
            _ => {
                let mut replies = Vec::with_capacity(batch.len());
                let sent = self.send(batch.bytes(), by);
                let outcome = sent.and_then(|()| {
                    self.receive(batch.len(), &mut replies, by)
                        .map_err(CallError::Unknown)
                });
                (replies, outcome)
            }
        };
        self.known.last_used = self.clock.now();
        if self.known.generation.is_over() {
            self.close_link();
            return (
                Vec::new(),
                Err(CallError::Unknown(self.server.superseded())),
            );
        }
        // A lent connection stays open if the deadline passed before anything was sent.
        let stays = matches!(&self.open, Some(Link::Lent(lent)) if lent.connection_is_open());
        if outcome.is_err() && !stays {
            self.close_link();
        }
        (replies, outcome)
    }

    fn is_first_use(&mut self, script: &Script) -> bool {
        self.known.sent_scripts.insert(script)
    }

    fn is_one_store(&self) -> bool {
        self.known.is_one_store
    }

    fn history(&self) -> Option<&ServerGeneration> {
        Some(&self.known.generation).filter(|generation| generation.shows_history)
    }

    fn server(&self) -> &Arc<Server> {
        &self.server
    }

    fn close_with(&mut self, _: &Error) {
        self.close_link();
    }
}

impl Connection {
    /// The time for which a connection may have been idle and still be used without a check,
    /// because a check is a system call.
    pub(super) const FRESH: Duration = Duration::from_secs(1);

    pub(super) fn new(
        transport: Arc<Transport>,
        server: Arc<Server>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let (output, input) = (WriteBuffer::default(), ReadBuffer::default());
        let open = Open {
            transport,
            output,
            input,
            reader: ReplyReader::default(),
        };
        Self::on(Link::Own(open), server, clock)
    }

    /// Makes a connection of one that the application has lent, with what this client knows of it
    /// from before. Returns false if that is nothing. If it leads to a server that was left, the
    /// connection is closed.
    pub(super) fn lent(
        mut lent: LentConnection,
        server: Arc<Server>,
        clock: Arc<dyn Clock>,
    ) -> (Self, bool) {
        let known = lent.take_known();
        let mut connection = Self::on(Link::Lent(lent), server, clock);
        let Some(known) = known else {
            return (connection, false);
        };
        if known.generation.is_over() {
            connection.close_link();
        }
        connection.known = known;
        (connection, true)
    }

    /// Returns true for a connection of the application's pool.
    pub(crate) fn is_lent(&self) -> bool {
        matches!(self.open, Some(Link::Lent(_)))
    }

    /// Closes the connection. A lent one is not given back, and a closed one takes its place.
    pub(super) fn close_link(&mut self) {
        if let Some(Link::Lent(lent)) = &mut self.open {
            lent.poison();
        }
        self.open = None;
    }

    fn on(link: Link, server: Arc<Server>, clock: Arc<dyn Clock>) -> Self {
        Self {
            open: Some(link),
            known: Known::nothing(clock.now()),
            server,
            clock,
            reports_to: 0,
        }
    }

    /// Completes the TLS handshake, if there is one, until `by`.
    pub(super) fn handshake_tls(&mut self, by: Moment) -> io::Result<()> {
        let Some(Link::Own(Open {
            transport,
            output,
            input,
            reader,
        })) = &mut self.open
        else {
            return Ok(());
        };
        transport.handshake(output, input, reader.input(), &*self.clock, by)
    }

    /// Returns `true` if the connection is not known to be unusable.
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some() && !self.known.generation.is_over()
    }

    /// Returns `true` if requests for several locks may be joined into one.
    pub(super) fn can_join(&self) -> bool {
        self.known.is_standalone && self.known.is_one_store
    }

    /// Returns the generation of the endpoint's server to which this connection leads.
    pub(crate) fn generation(&self) -> &ServerGeneration {
        &self.known.generation
    }

    /// Returns `true` if the connection was idle for so long that the server may have closed it.
    pub(crate) fn is_stale(&self) -> bool {
        self.is_idle_for(Self::FRESH)
    }

    /// Returns `true` if the connection was idle for more than this time.
    pub(super) fn is_idle_for(&self, time: Duration) -> bool {
        self.clock.now().since(self.known.last_used) > time
    }

    /// Closes the connection if the server has closed it, or has sent unrequested bytes. Does not
    /// wait.
    pub(crate) fn check_idle(&mut self) {
        let is_usable = match &self.open {
            Some(Link::Own(open)) => open.transport.is_quiet(),
            Some(Link::Lent(lent)) => lent.connection_is_open(),
            None => false,
        };
        if !is_usable {
            self.open = None;
        }
    }

    /// Sends a request without effect on a lent connection that was idle for long, or since whose
    /// last use another one has failed, and closes it if the server does not answer. Waits for at
    /// most half the time until `by`, so that another connection can be borrowed.
    pub(crate) fn check_lent(&mut self, by: Moment) -> Result<(), CallError> {
        let Some(Link::Lent(lent)) = &self.open else {
            return Ok(());
        };
        if !self.is_stale() && !lent.is_doubtful(self.known.last_used) {
            return Ok(());
        }
        let now = self.clock.now();
        let half = now + by.since(now) / 2;
        // Each exchange on a lent connection begins with a `PING`.
        self.exchange(&Batch::new(), half).1
    }

    /// Returns the bare transport; `None` if the connection is closed, or another thread is just
    /// shutting it down.
    pub(crate) fn into_transport(mut self) -> Option<Transport> {
        match self.open.take()? {
            Link::Own(open) => Arc::into_inner(open.transport),
            Link::Lent(_) => None,
        }
    }

    fn send(&mut self, bytes: &[u8], by: Moment) -> Result<(), CallError> {
        let Some(Link::Own(Open {
            transport,
            output,
            input,
            ..
        })) = &mut self.open
        else {
            return Err(CallError::NotSent(Error::unavailable(format!(
                "the connection to {} is closed",
                self.server
            ))));
        };
        // The number of bytes that count as sent, even if an error follows.
        let mut taken = 0;
        let mut write_all = || loop {
            let left = time_left(&*self.clock, by)?;
            let progress = transport.write(output, &bytes[taken..])?;
            taken += progress.taken;
            if !progress.stalled {
                return Ok(());
            }
            transport.wait(false, left);
        };
        write_all().map_err(|error| {
            let error = transport.tls_error(input).unwrap_or(error);
            let error = self.server.io_error("take a request", error);
            if taken == 0 {
                CallError::NotSent(error)
            } else {
                CallError::Unknown(error)
            }
        })
    }

    /// Reads this number of replies.
    fn receive(&mut self, count: usize, replies: &mut Vec<Reply>, by: Moment) -> Result<(), Error> {
        let Some(Link::Own(Open {
            transport,
            input,
            reader,
            ..
        })) = &mut self.open
        else {
            unreachable!("a connection that has sent something is open");
        };
        while replies.len() < count {
            match reader.next() {
                Ok(Some(reply)) => replies.push(reply),
                Ok(None) => time_left(&*self.clock, by)
                    .and_then(|left| transport.read(input, reader.input(), left).map(drop))
                    .map_err(|error| self.server.io_error("answer", error))?,
                Err(why) => {
                    replies.clear();
                    return Err(self.server.garbage(why));
                }
            }
        }
        if reader.is_empty() {
            return Ok(());
        }
        // One of the replies belongs to another request, but it is unknown which one.
        replies.clear();
        Err(self.server.garbage("there is more than was asked for"))
    }
}

/// A lent connection goes back with what this client knows of it, if its server was judged.
impl Drop for Connection {
    fn drop(&mut self) {
        if let Some(Link::Lent(lent)) = &mut self.open
            && self.known.generation.is_judged()
        {
            let nothing = Known::nothing(self.known.last_used);
            lent.keep(std::mem::replace(&mut self.known, nothing));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::multiplexed::MultiplexedConnection;
    use crate::connection::{CallbackRequest, Endpoint, ReplyCheck, Request, resp::LARGEST_REPLY};
    use lock_core::SystemClock;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (Connection, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        let server = Arc::new(Server::new(Endpoint::tcp("test", 1), None));
        let transport = Arc::new(Transport::new(ours, None).unwrap());
        let connection = Connection::new(transport, server, Arc::new(SystemClock));
        (connection, theirs)
    }

    fn soon() -> Moment {
        SystemClock.now() + Duration::from_millis(100)
    }

    const PING: Request<'static> = Request(&[&[b"PING"]]);

    #[test]
    fn write_to_a_peer_that_does_not_read_ends_at_the_deadline() {
        let (mut connection, theirs) = pair();
        let much = vec![b'x'; 32 << 20];
        // Enough time to encode the request, even in an unoptimised build on a busy machine.
        let by = soon() + Duration::from_secs(2);
        let outcome = connection.call(&Request(&[&[b"SET", b"k", &much]]), by);
        assert!(SystemClock.now().since(by) < Duration::from_secs(5));
        assert!(
            matches!(outcome, Err(CallError::Unknown(_))),
            "a part was sent: {outcome:?}"
        );
        assert!(!connection.is_open());
        assert!(matches!(
            connection.call(&PING, soon()),
            Err(CallError::NotSent(_))
        ));
        drop(theirs);
    }

    #[test]
    fn endless_reply_is_given_up_before_it_fills_the_memory() {
        let (mut connection, mut theirs) = pair();
        let flood = std::thread::spawn(move || {
            let mut written = theirs.write(b"$2000000000\r\n").unwrap();
            while let Ok(count) = theirs.write(&[b'x'; 1 << 16]) {
                written += count;
            }
            written as u64
        });
        let outcome = connection.call(&PING, SystemClock.now() + Duration::from_secs(60));
        assert!(matches!(outcome, Err(CallError::Unknown(_))), "{outcome:?}");
        assert!(!connection.is_open());
        // The factor allows for the bytes in the kernel's buffers.
        assert!(flood.join().unwrap() < 2 * LARGEST_REPLY as u64);
    }

    #[test]
    fn nothing_is_read_after_a_deadline() {
        let (mut connection, mut theirs) = pair();
        assert!(matches!(
            connection.call(&PING, soon()),
            Err(CallError::Unknown(_))
        ));
        let _closed = theirs.write_all(b"+PONG\r\n");
        assert!(matches!(
            connection.call(&PING, soon()),
            Err(CallError::NotSent(_))
        ));
    }

    #[test]
    fn unrequested_bytes_are_seen_before_the_next_request() {
        let (mut connection, mut theirs) = pair();
        connection.check_idle();
        assert!(connection.is_open());
        theirs.write_all(b"+OK\r\n").unwrap();
        // On a loopback, the bytes have arrived when the write returns.
        connection.check_idle();
        assert!(!connection.is_open());
        let (mut connection, theirs) = pair();
        drop(theirs);
        connection.check_idle();
        assert!(!connection.is_open());
    }

    #[test]
    fn earlier_reply_is_not_taken_for_the_next_one() {
        let (mut connection, mut theirs) = pair();
        theirs.write_all(b":1\r\n:2\r\n").unwrap();
        assert!(matches!(
            connection.call(&PING, soon()),
            Err(CallError::Unknown(_))
        ));
        assert!(!connection.is_open());
    }

    #[test]
    fn replies_come_in_order_and_those_before_the_end_count() {
        let (mut connection, mut theirs) = pair();
        theirs.write_all(b":1\r\n-ERR no\r\n").unwrap();
        let (replies, outcome) = connection.call_many(&[PING, PING], soon());
        outcome.unwrap();
        assert_eq!(replies[0], Reply::Int(1));
        assert!(matches!(&replies[1], Reply::Error(error) if error.code == "ERR"));
        theirs.write_all(b":3\r\n").unwrap();
        let (replies, outcome) = connection.call_many(&[PING, PING], soon());
        assert_eq!(replies, [Reply::Int(3)]);
        assert!(matches!(outcome, Err(CallError::Unknown(_))));
    }

    /// On both kinds of connections, invalid bytes discard all replies: the requests may be out of
    /// step with the replies.
    #[test]
    fn replies_beside_invalid_bytes_are_not_believed() {
        for bytes in [
            &b":1\r\n:2\r\n:3\r\n"[..],
            b":1\r\n:2\r\n:",
            b":1\r\n%1\r\n",
            b":1\r\n\0",
        ] {
            let (mut exclusive, mut theirs) = pair();
            theirs.write_all(bytes).unwrap();
            let (replies, outcome) = exclusive.call_many(&[PING, PING], soon());
            assert!(replies.is_empty(), "{bytes:?}: {replies:?}");
            assert!(matches!(outcome, Err(CallError::Unknown(_))), "{outcome:?}");
            let (connection, mut theirs) = pair();
            let mut shared = Arc::new(
                MultiplexedConnection::new(connection, <_>::default(), 0, SLACK, &[]).unwrap(),
            );
            let (told, first) = std::sync::mpsc::channel();
            let done = Box::new(move |outcome: Result<Reply, _>| {
                told.send(outcome).unwrap();
                ReplyCheck::Expected
            });
            let callback = CallbackRequest {
                by_hash: Vec::new(),
                text: "",
                done,
            };
            assert!(shared.submit(b"a", soon(), callback).is_ok());
            theirs.write_all(bytes).unwrap();
            assert!(shared.call(&PING, soon()).is_err(), "{bytes:?}");
            assert!(first.recv().unwrap().is_err(), "{bytes:?}");
        }
    }

    const SLACK: Duration = Duration::from_secs(1);
}

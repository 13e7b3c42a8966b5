//! [`Proxy`]: a bad network between clients and one server. It acts on whole commands and whole
//! replies, and counts its faults.

use super::process::exchange_bound;
use super::resp::{Kind, Request, is_unasked, read_reply};
use super::rights::LOGIN;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The label under which commands are counted that were held back and that the server has answered.
const ARRIVED_LATE: &str = "arrived late";

/// What the proxy does with one command and its reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing.
    Pass,
    /// The connection is cut; the server does not get the command.
    Cut,
    /// The server gets this command, and the later commands of this connection, only after this
    /// time.
    Delay(Duration),
    /// The server gets neither the command nor anything that follows on this connection: a stream
    /// may lose its end, but never a part in the middle.
    SwallowRequest,
    /// The server gets the command this much later on another connection, even if the client's is
    /// closed by then. The client gets no reply, and what follows on the client's connection is
    /// lost.
    Late(Duration),
    /// The server carries the command out; then the connection is cut without a reply.
    CutReply,
    /// The server carries the command out, the client gets the reply, and the connection is closed.
    CloseAfter,
    /// The server carries the command out; the client gets the reply this much later.
    DelayReply(Duration),
    /// The server carries out this command and those that follow on this connection; the client
    /// gets none of the replies.
    SwallowReply,
    /// The server carries the command out; the client gets the first half of the reply, and then
    /// nothing more on this connection.
    HalfReply,
    /// The server carries the command out; the client gets bytes that are not RESP.
    Garbage,
}

impl Fault {
    /// Returns the label under which the fault is counted.
    fn label(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Cut => "cut",
            Self::Delay(_) => "delay",
            Self::SwallowRequest => "swallow request",
            Self::Late(_) => "late",
            Self::CutReply => "cut reply",
            Self::CloseAfter => "close after",
            Self::DelayReply(_) => "delay reply",
            Self::SwallowReply => "swallow reply",
            Self::HalfReply => "half reply",
            Self::Garbage => "garbage",
        }
    }
}

/// Decides what a proxy does, and observes it. Many threads call it.
pub trait Plan: Send + Sync + 'static {
    /// Returns the fault of this command. The plan may change the command before it is sent.
    fn fate(&self, request: &mut Request) -> Fault;

    /// Called when a command that was held back is sent to the server.
    fn departs_late(&self, _request: &Request) {}

    /// Called when the server has replied, before the client gets the reply.
    fn answered(&self, _request: &Request, _reply: &[u8], _fault: Fault) {}

    /// Returns how much later a subscriber gets a message, and all that follows on its connection.
    fn delay_of_messages(&self) -> Duration {
        Duration::ZERO
    }
}

/// A plan that applies one fault to some of the commands of one kind, or to some of all commands.
pub struct Sometimes {
    kind: Option<Kind>,
    fault: Fault,
    turn: Turn,
    seen: Mutex<(u64, fastrand::Rng)>,
}

/// Which of the commands of its kind get the fault.
#[derive(Clone, Copy, Debug)]
pub enum Turn {
    /// Only the n-th, counted from 1.
    Only(u64),
    /// Every n-th.
    Every(u64),
    /// Each with this probability; the same commands for the same seed.
    Chance { of_1000: u64, seed: u64 },
}

impl Sometimes {
    pub fn new(kind: Option<Kind>, turn: Turn, fault: Fault) -> Self {
        let seed = if let Turn::Chance { seed, .. } = turn {
            seed
        } else {
            0
        };
        Self {
            kind,
            fault,
            turn,
            seen: Mutex::new((0, fastrand::Rng::with_seed(seed))),
        }
    }

    /// Returns whether this command gets the fault. Each call counts the command as seen.
    pub fn strikes(&self, request: &Request) -> bool {
        if self.kind.is_some_and(|kind| kind != request.kind()) {
            return false;
        }
        let (count, random) = &mut *self.seen.lock();
        *count += 1;
        match self.turn {
            Turn::Only(n) => *count == n,
            Turn::Every(n) => *count % n == 0,
            Turn::Chance { of_1000, .. } => random.u64(0..1000) < of_1000,
        }
    }
}

impl Plan for Sometimes {
    fn fate(&self, request: &mut Request) -> Fault {
        if self.strikes(request) {
            self.fault
        } else {
            Fault::Pass
        }
    }
}

/// Applies the first fault that strikes; the later entries do not count the command.
impl Plan for Vec<Sometimes> {
    fn fate(&self, request: &mut Request) -> Fault {
        let mut fates = self.iter().map(|one| one.fate(request));
        fates
            .find(|fate| *fate != Fault::Pass)
            .unwrap_or(Fault::Pass)
    }
}

/// Passes all commands on.
struct Plain;

impl Plan for Plain {
    fn fate(&self, _: &mut Request) -> Fault {
        Fault::Pass
    }
}

/// Listens on a port of its own. Dropping it cuts all its connections, and discards the commands
/// that it still holds back.
pub struct Proxy {
    port: u16,
    inner: Arc<Inner>,
    /// Disconnects `ended` when the proxy is dropped, which ends every pause.
    running: Option<Sender<()>>,
}

struct Inner {
    plan: Arc<dyn Plan>,
    /// The servers to which new connections are made in turn.
    servers: Mutex<VecDeque<u16>>,
    ended: Receiver<()>,
    counts: Mutex<BTreeMap<(Kind, &'static str), u64>>,
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Starts a proxy in front of the server on this port of 127.0.0.1.
    pub fn new(server: u16, plan: Arc<dyn Plan>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let (running, ended) = bounded(0);
        let (counts, open) = (Mutex::default(), Mutex::default());
        let servers = Mutex::new(VecDeque::from([server]));
        let inner = Arc::new(Inner {
            plan,
            servers,
            ended,
            counts,
            open,
        });
        let accepting = Arc::clone(&inner);
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.has_ended() {
                    return;
                }
                let Ok(client) = client else { continue };
                // If the server is down, the client gets a connection that is closed at once.
                let _down = accepting.connect(client);
            }
        });
        Self {
            port,
            inner,
            running: Some(running),
        }
    }

    /// Starts a proxy that passes everything on.
    pub fn plain(server: u16) -> Self {
        Self::new(server, Arc::new(Plain))
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connects new clients to the server on this port. Open connections stay as they are.
    pub fn lead_to(&self, server: u16) {
        self.balance_over(&[server]);
    }

    /// Connects new clients to these servers in turn, as a load balancer does. Open connections
    /// stay as they are.
    pub fn balance_over(&self, servers: &[u16]) {
        *self.inner.servers.lock() = servers.iter().copied().collect();
    }

    /// Connects all clients to the server on this port: open connections are cut.
    pub fn switch_to(&self, server: u16) {
        self.lead_to(server);
        self.cut_all();
    }

    /// `redis://127.0.0.1:PORT`, for the user with the least rights.
    pub fn url(&self) -> String {
        format!("redis://{LOGIN}@127.0.0.1:{}", self.port)
    }

    /// Returns how many commands of this kind had this fault, with any delay.
    pub fn count(&self, kind: Kind, fault: Fault) -> u64 {
        self.inner
            .counts
            .lock()
            .get(&(kind, fault.label()))
            .copied()
            .unwrap_or(0)
    }

    /// Returns how many commands that were held back the server has answered.
    pub fn arrived_late(&self, kind: Kind) -> u64 {
        self.inner
            .counts
            .lock()
            .get(&(kind, ARRIVED_LATE))
            .copied()
            .unwrap_or(0)
    }

    /// Returns all counts as a text for the output of a test.
    pub fn account(&self) -> String {
        let counts = self.inner.counts.lock();
        let parts = counts
            .iter()
            .map(|((kind, what), count)| format!("{kind:?} {what} {count}"));
        parts.collect::<Vec<_>>().join(", ")
    }

    /// Cuts all open connections.
    pub fn cut_all(&self) {
        self.inner.cut_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.running = None;
        // Wakes the accepting thread, which then sees that the proxy has ended.
        let _woken = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        self.inner.cut_all();
    }
}

impl Inner {
    fn has_ended(&self) -> bool {
        self.ended
            .try_recv()
            .is_err_and(|error| error.is_disconnected())
    }

    /// Waits for this time; returns `false` if the proxy ended meanwhile.
    fn pause(&self, time: Duration) -> bool {
        self.ended
            .recv_timeout(time)
            .is_err_and(|error| error.is_timeout())
    }

    fn note(&self, request: &Request, fault: Fault) {
        *self
            .counts
            .lock()
            .entry((request.kind(), fault.label()))
            .or_default() += 1;
    }

    fn cut_all(&self) {
        for stream in self.open.lock().drain(..) {
            let _closed = stream.shutdown(Shutdown::Both);
        }
    }

    fn dial(&self) -> io::Result<TcpStream> {
        let mut servers = self.servers.lock();
        servers.rotate_left(1);
        let next = *servers.back().expect("it leads to at least one");
        drop(servers);
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, next))?;
        server.set_nodelay(true)?;
        Ok(server)
    }

    /// Starts the two threads of a connection. Each ends when either side closes, and closes both.
    fn connect(self: &Arc<Self>, client: TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        // Dialled under the mutex: otherwise `switch_to` misses a connection to the old server.
        let mut open = self.open.lock();
        let server = self.dial()?;
        open.extend([client.try_clone()?, server.try_clone()?]);
        drop(open);
        let (due, answers) = unbounded();
        let (up, down) = (Arc::clone(self), Arc::clone(self));
        let (from, to) = (client.try_clone()?, server.try_clone()?);
        thread::spawn(move || {
            let _ended = up.forward(&from, &to, &due);
            close(&from, &to);
        });
        thread::spawn(move || {
            let _ended = down.answer(&server, &client, &answers);
            close(&server, &client);
        });
        Ok(())
    }

    /// Passes commands on from the client to the server.
    fn forward(
        self: &Arc<Self>,
        client: &TcpStream,
        mut server: &TcpStream,
        due: &Sender<(Request, Fault)>,
    ) -> io::Result<()> {
        let mut client = BufReader::new(client);
        let mut is_lost = false;
        while let Some(mut request) = Request::read(&mut client)? {
            if is_lost {
                continue;
            }
            let fault = self.plan.fate(&mut request);
            self.note(&request, fault);
            match fault {
                Fault::Cut => return Ok(()),
                Fault::SwallowRequest => {
                    is_lost = true;
                    continue;
                }
                Fault::Late(time) => {
                    is_lost = true;
                    let inner = Arc::clone(self);
                    thread::spawn(move || inner.deliver_late(&request, time));
                    continue;
                }
                Fault::Delay(time) if !self.pause(time) => return Ok(()),
                _ => {}
            }
            let bytes = request.bytes();
            // Queued before the command is sent: otherwise its reply could arrive first and match
            // no command.
            let _gone = due.send((request, fault));
            server.write_all(&bytes)?;
        }
        Ok(())
    }

    /// Sends a command after this time, on a connection of its own: the client may have closed its
    /// connection by then.
    fn deliver_late(&self, request: &Request, time: Duration) {
        if !self.pause(time) {
            return;
        }
        self.plan.departs_late(request);
        let delivered = self.dial().and_then(|mut server| {
            server.set_read_timeout(Some(exchange_bound()))?;
            server.write_all(&request.bytes())?;
            read_reply(&mut BufReader::new(server))
        });
        if let Ok(Some(reply)) = delivered {
            self.plan.answered(request, &reply, Fault::Late(time));
            *self
                .counts
                .lock()
                .entry((request.kind(), ARRIVED_LATE))
                .or_default() += 1;
        }
    }

    /// Passes replies on from the server to the client. Data that no command requested, such as a
    /// message to a subscriber, matches no command; only the plan's delay of messages applies to
    /// it.
    fn answer(
        &self,
        server: &TcpStream,
        mut client: &TcpStream,
        due: &Receiver<(Request, Fault)>,
    ) -> io::Result<()> {
        let mut server = BufReader::new(server);
        let mut is_mute = false;
        while let Some(reply) = read_reply(&mut server)? {
            let mut fault = Fault::Pass;
            if is_unasked(&reply) {
                let delay = self.plan.delay_of_messages();
                if !delay.is_zero() && !self.pause(delay) {
                    return Ok(());
                }
            } else if let Ok((request, its_fault)) = due.try_recv() {
                self.plan.answered(&request, &reply, its_fault);
                fault = its_fault;
            }
            match fault {
                Fault::CutReply => return Ok(()),
                Fault::CloseAfter => return client.write_all(&reply),
                Fault::SwallowReply => is_mute = true,
                Fault::DelayReply(time) if !self.pause(time) => return Ok(()),
                _ if is_mute => {}
                Fault::HalfReply => {
                    is_mute = true;
                    client.write_all(&reply[..reply.len() / 2])?;
                }
                Fault::Garbage => client.write_all(b"\x15\x03\x01 no RESP at all\r\n")?,
                _ => client.write_all(&reply)?,
            }
        }
        Ok(())
    }
}

fn close(one: &TcpStream, other: &TcpStream) {
    for stream in [one, other] {
        let _closed = stream.shutdown(Shutdown::Both);
    }
}

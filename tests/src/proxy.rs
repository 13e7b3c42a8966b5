//! [`Proxy`]: a bad network between clients and one server. It acts on whole commands and whole
//! answers, and counts what it did.

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

/// What a held back command is counted as when the server has answered it.
const ARRIVED_LATE: &str = "arrived late";

/// What happens to one command and its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Nothing.
    Pass,
    /// The connection is cut; the server has seen nothing.
    Cut,
    /// The server gets it this much later. So do those behind it on this connection.
    Delay(Duration),
    /// The server never gets it, nor what follows on this connection: a stream loses its end, never
    /// a part in the middle.
    SwallowRequest,
    /// The server gets it this much later, whatever has become of the connection. Its answer goes
    /// nowhere, and what follows on this connection gets nowhere.
    Late(Duration),
    /// Carried out, and the connection is cut.
    CutReply,
    /// Carried out, the client gets the answer, and the connection is closed.
    CloseAfter,
    /// Carried out, and the client hears this much later of it.
    DelayReply(Duration),
    /// Carried out, and the client never hears of it, nor of what follows on this connection, which
    /// is carried out.
    SwallowReply,
    /// Carried out; the client gets the first half of the answer, and then nothing any more.
    HalfReply,
    /// Carried out; the client gets something that is no RESP.
    Garbage,
}

impl Fault {
    /// What it is counted as.
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

/// Decides what a proxy does, and observes it. Called by many threads.
pub trait Plan: Send + Sync + 'static {
    /// What happens to this command. It may be changed before it goes on.
    fn fate(&self, request: &mut Request) -> Fault;

    /// A command that was held back goes to the server now.
    fn departs_late(&self, _request: &Request) {}

    /// The server has answered; the client does not know yet.
    fn answered(&self, _request: &Request, _reply: &[u8], _fault: Fault) {}

    /// How much later a subscriber gets a message, and what follows on its connection.
    fn delay_of_messages(&self) -> Duration {
        Duration::ZERO
    }
}

/// One fault for commands of one kind (or for every command), some of them.
pub struct Sometimes {
    kind: Option<Kind>,
    fault: Fault,
    turn: Turn,
    seen: Mutex<(u64, fastrand::Rng)>,
}

/// Which commands of its kind a fault befalls.
#[derive(Clone, Copy, Debug)]
pub enum Turn {
    /// The n-th alone, from 1.
    Only(u64),
    /// Every n-th.
    Every(u64),
    /// Each with this probability, the same for the same seed.
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

    /// Whether it befalls this command, which counts as seen.
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

/// The first that strikes; those behind it do not see the command.
impl Plan for Vec<Sometimes> {
    fn fate(&self, request: &mut Request) -> Fault {
        let mut fates = self.iter().map(|one| one.fate(request));
        fates
            .find(|fate| *fate != Fault::Pass)
            .unwrap_or(Fault::Pass)
    }
}

/// Passes everything on.
struct Plain;

impl Plan for Plain {
    fn fate(&self, _: &mut Request) -> Fault {
        Fault::Pass
    }
}

/// Listens on a port of its own. Gone, with all its connections, when dropped; what it still holds
/// back is dropped, too.
pub struct Proxy {
    port: u16,
    inner: Arc<Inner>,
    /// Disconnected by the drop, which ends every pause.
    running: Option<Sender<()>>,
}

struct Inner {
    plan: Arc<dyn Plan>,
    /// The servers that new connections lead to, in turn.
    servers: Mutex<VecDeque<u16>>,
    ended: Receiver<()>,
    counts: Mutex<BTreeMap<(Kind, &'static str), u64>>,
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// In front of the server on this port of ours.
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
                // A server that is down is, through a proxy, a connection that is closed at once.
                let _down = accepting.connect(client);
            }
        });
        Self {
            port,
            inner,
            running: Some(running),
        }
    }

    /// One that passes everything on.
    pub fn plain(server: u16) -> Self {
        Self::new(server, Arc::new(Plain))
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// New connections lead to the server on this port. Those that stand stay.
    pub fn lead_to(&self, server: u16) {
        self.balance_over(&[server]);
    }

    /// New connections lead to these servers in turn, as a balancer of connections does it. Those
    /// that stand stay.
    pub fn balance_over(&self, servers: &[u16]) {
        *self.inner.servers.lock() = servers.iter().copied().collect();
    }

    /// All connections lead to the server on this port: open ones are cut.
    pub fn switch_to(&self, server: u16) {
        self.lead_to(server);
        self.cut_all();
    }

    /// `redis://127.0.0.1:PORT`, for the user with the least rights.
    pub fn url(&self) -> String {
        format!("redis://{LOGIN}@127.0.0.1:{}", self.port)
    }

    /// How often this fault (its delay does not matter) befell commands of this kind.
    pub fn count(&self, kind: Kind, fault: Fault) -> u64 {
        self.inner
            .counts
            .lock()
            .get(&(kind, fault.label()))
            .copied()
            .unwrap_or(0)
    }

    /// How many requests that were held back the server has answered.
    pub fn arrived_late(&self, kind: Kind) -> u64 {
        self.inner
            .counts
            .lock()
            .get(&(kind, ARRIVED_LATE))
            .copied()
            .unwrap_or(0)
    }

    /// All that it did, for people.
    pub fn account(&self) -> String {
        let counts = self.inner.counts.lock();
        let parts = counts
            .iter()
            .map(|((kind, what), count)| format!("{kind:?} {what} {count}"));
        parts.collect::<Vec<_>>().join(", ")
    }

    /// Cuts every connection there is.
    pub fn cut_all(&self) {
        self.inner.cut_all();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.running = None;
        // Wakes the thread that accepts, which looks and leaves.
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

    /// Lets time pass; `false` if the proxy ended meanwhile.
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

    /// Commands, from the client to the server.
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
            // Before it is sent, or the answer may be there first.
            let _gone = due.send((request, fault));
            server.write_all(&bytes)?;
        }
        Ok(())
    }

    /// On a connection of its own, so that it does not matter whether the client's is still open.
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

    /// Answers, from the server to the client. What was not requested, such as a message to a
    /// subscriber, is passed on.
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

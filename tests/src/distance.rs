//! [`Distance`]: a network with a round trip, between clients and one server; [`Network`]: one
//! between a client and several servers, each at a distance of its own.
//!
//! It knows nothing of commands: bytes leave as they came, in order, half a round trip later.
//! Loopback has no round trip, and hides by that what clients do to each other.

use crossbeam_channel::{Receiver, Sender, unbounded};
use lock_core::{Clock, Moment, SystemClock};
use parking_lot::{Condvar, Mutex};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How a server is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// At once.
    Near,
    /// With this round trip.
    Far(Duration),
    /// Connections are accepted and stay open, and no byte arrives, in either direction, before
    /// this changes.
    CutOff,
}

/// A round trip that is longer than what a client nearby waits for a second opinion, and shorter
/// than any timeout: the far side of the earth.
pub const FAR: Reach = Reach::Far(Duration::from_millis(250));

/// So many members: all near, then each of them [`FAR`] or cut off, alone.
pub fn layouts(members: usize) -> Vec<Vec<Reach>> {
    let mut layouts = vec![vec![Reach::Near; members]];
    for reach in [FAR, Reach::CutOff] {
        layouts.extend((0..members).map(|odd| {
            let mut layout = vec![Reach::Near; members];
            layout[odd] = reach;
            layout
        }));
    }
    layouts
}

/// Bytes that are under way, and when they left. None: the connection was closed.
type Parcel = (Moment, Vec<u8>);

/// Listens on a port of its own until it is dropped.
pub struct Distance {
    port: u16,
    way: Arc<Way>,
}

/// What all connections of a [`Distance`] share.
struct Way {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    reach: Reach,
    has_ended: bool,
}

impl Distance {
    /// Puts the server on this port of ours so far away.
    pub fn new(server: u16, round_trip: Duration) -> Self {
        Self::of(server, Reach::Far(round_trip))
    }

    /// Puts the server on this port of ours where it is reached like this.
    pub fn of(server: u16, reach: Reach) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let state = Mutex::new(State {
            reach,
            has_ended: false,
        });
        let way = Arc::new(Way {
            state,
            changed: Condvar::new(),
        });
        let accepting = Arc::clone(&way);
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.state.lock().has_ended {
                    return;
                }
                let _closed = client.and_then(|client| connect(client, server, &accepting));
            }
        });
        Self { port, way }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// From now on the server is reached like this, over the open connections, too. What is under
    /// way arrives by the new rule.
    pub fn set(&self, reach: Reach) {
        self.way.state.lock().reach = reach;
        self.way.changed.notify_all();
    }
}

impl Drop for Distance {
    fn drop(&mut self) {
        self.way.state.lock().has_ended = true;
        self.way.changed.notify_all();
        // Wakes the thread that accepts. Connections end with their clients or the server.
        let _woken = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl Way {
    /// Waits until what left then arrives; `false` if it never does.
    fn await_arrival(&self, left: Moment) -> bool {
        let mut state = self.state.lock();
        loop {
            match state.reach {
                Reach::Near => return true,
                Reach::Far(round_trip) => {
                    let rest = (left + round_trip / 2).since(SystemClock.now());
                    if rest.is_zero() {
                        return true;
                    }
                    self.changed.wait_for(&mut state, rest);
                }
                Reach::CutOff if state.has_ended => return false,
                Reach::CutOff => self.changed.wait(&mut state),
            }
        }
    }
}

fn connect(client: TcpStream, server: u16, way: &Arc<Way>) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server))?;
    for (from, to) in [(&client, &server), (&server, &client)] {
        from.set_nodelay(true)?;
        let (sender, receiver) = unbounded();
        let (from, to, way) = (from.try_clone()?, to.try_clone()?, Arc::clone(way));
        thread::spawn(move || send(from, &sender));
        thread::spawn(move || arrive(&to, &receiver, &way));
    }
    Ok(())
}

fn send(mut from: TcpStream, sender: &Sender<Parcel>) {
    let mut bytes = vec![0; 1 << 16];
    loop {
        let length = from.read(&mut bytes).unwrap_or(0);
        let parcel = (SystemClock.now(), bytes[..length].to_vec());
        if sender.send(parcel).is_err() || length == 0 {
            return;
        }
    }
}

fn arrive(mut to: &TcpStream, receiver: &Receiver<Parcel>, way: &Way) {
    for (left, bytes) in receiver {
        if !way.await_arrival(left) || bytes.is_empty() || to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _closed = to.shutdown(Shutdown::Both);
}

/// What is between one client and its servers, each of which is reached in its own way. Other
/// clients, and the servers themselves, do without it.
pub struct Network(Vec<(u16, Distance)>);

impl Network {
    /// The servers on these ports, and how each is reached.
    pub fn new(servers: impl IntoIterator<Item = (u16, Reach)>) -> Self {
        let way = |(server, reach)| (server, Distance::of(server, reach));
        Self(servers.into_iter().map(way).collect())
    }

    /// From now on this server, by its place in the list, is reached like this.
    pub fn set(&self, place: usize, reach: Reach) {
        self.0[place].1.set(reach);
    }

    /// Where the client dials, in the order of the servers.
    pub fn ports(&self) -> Vec<u16> {
        self.0.iter().map(|(_, way)| way.port()).collect()
    }

    /// The option that has a client dial here whom the servers announce at 127.0.0.1.
    pub fn address_map(&self) -> String {
        let pair = |(server, way): &(u16, Distance)| {
            format!("127.0.0.1:{server}=127.0.0.1:{}", way.port())
        };
        format!(
            "address_map={}",
            self.0.iter().map(pair).collect::<Vec<_>>().join(",")
        )
    }
}

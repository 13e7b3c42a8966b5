//! [`Distance`]: delays the bytes between clients and one server; [`Network`]: does so between a
//! client and several servers, each at a distance of its own.
//!
//! Commands are not parsed: all bytes arrive unchanged and in order, half a round trip later. On
//! plain loopback an answer arrives almost at once, which hides races between clients.

use crossbeam_channel::{Receiver, Sender, unbounded};
use lock_core::{Clock, Moment, SystemClock};
use parking_lot::{Condvar, Mutex};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The way to a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Bytes arrive at once.
    Near,
    /// Bytes arrive after half of this round trip.
    Far(Duration),
    /// Connections are accepted and stay open, but no byte arrives in either direction until the
    /// reach is changed.
    CutOff,
}

/// A round trip to the far side of the earth: longer than a client waits for further answers after
/// the first one, and shorter than any time-out.
pub const FAR: Reach = Reach::Far(Duration::from_millis(250));

/// Returns layouts of so many members: one with all members near, and for each member one in which
/// it alone is [`FAR`], and one in which it alone is cut off.
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

/// Bytes that are under way, and when they left. No bytes mean that the connection was closed.
type Parcel = (Moment, Vec<u8>);

/// A proxy with a delay in front of one server. It listens on a port of its own until it is
/// dropped.
pub struct Distance {
    port: u16,
    way: Arc<Way>,
}

/// The state that all connections of a [`Distance`] share.
struct Way {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    reach: Reach,
    has_ended: bool,
}

impl Distance {
    /// Delays the server on this port by this round trip.
    pub fn new(server: u16, round_trip: Duration) -> Self {
        Self::of(server, Reach::Far(round_trip))
    }

    /// Makes the server on this port have this reach.
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

    /// Changes the reach of the server, also for open connections and for the bytes that are under
    /// way.
    pub fn set(&self, reach: Reach) {
        self.way.state.lock().reach = reach;
        self.way.changed.notify_all();
    }
}

impl Drop for Distance {
    fn drop(&mut self) {
        self.way.state.lock().has_ended = true;
        self.way.changed.notify_all();
        // Wakes the accepting thread, which then ends. Open connections end when the client or the
        // server closes them.
        let _woken = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl Way {
    /// Waits until the bytes that left at this time arrive. Returns `false` if they never do.
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

/// The network between one client and its servers, each with a reach of its own. Other clients, and
/// the servers among each other, connect directly.
pub struct Network(Vec<(u16, Distance)>);

impl Network {
    /// Makes a network to the servers on these ports, each with its reach.
    pub fn new(servers: impl IntoIterator<Item = (u16, Reach)>) -> Self {
        let way = |(server, reach)| (server, Distance::of(server, reach));
        Self(servers.into_iter().map(way).collect())
    }

    /// Changes the reach of the server at this index of the list.
    pub fn set(&self, place: usize, reach: Reach) {
        self.0[place].1.set(reach);
    }

    /// Returns the ports to which the client connects, in the order of the servers.
    pub fn ports(&self) -> Vec<u16> {
        self.0.iter().map(|(_, way)| way.port()).collect()
    }

    /// Returns the option `address_map` with which a client connects to this network instead of the
    /// announced servers on 127.0.0.1.
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

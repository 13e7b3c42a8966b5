//! [`Distance`]: a network with a round trip, between clients and one server.
//!
//! It knows nothing of commands: bytes leave as they came, in order, half a round trip later.
//! Loopback has no round trip, and hides by that what clients do to each other.

use crossbeam_channel::{Receiver, Sender, unbounded};
use lock_core::{Clock, Moment, SystemClock};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Bytes that are under way, and when they arrive.
type Parcel = (Moment, Vec<u8>);

/// Listens on a port of its own until it is dropped.
pub struct Distance {
    port: u16,
    ended: Arc<AtomicBool>,
}

impl Distance {
    /// Puts the server on this port of ours so far away.
    pub fn new(server: u16, round_trip: Duration) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let ended = Arc::new(AtomicBool::new(false));
        let accepting = Arc::clone(&ended);
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.load(Ordering::SeqCst) {
                    return;
                }
                let _closed = client.and_then(|client| connect(client, server, round_trip / 2));
            }
        });
        Self { port, ended }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Distance {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts. Connections end with their clients or the server.
        let _woken = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

fn connect(client: TcpStream, server: u16, one_way: Duration) -> io::Result<()> {
    let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server))?;
    for (from, to) in [(&client, &server), (&server, &client)] {
        from.set_nodelay(true)?;
        let (sender, receiver) = unbounded();
        let (from, to) = (from.try_clone()?, to.try_clone()?);
        thread::spawn(move || send(from, one_way, &sender));
        thread::spawn(move || arrive(&to, &receiver));
    }
    Ok(())
}

fn send(mut from: TcpStream, one_way: Duration, sender: &Sender<Parcel>) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        let due = SystemClock.now() + one_way;
        if sender.send((due, bytes[..length].to_vec())).is_err() {
            return;
        }
    }
}

fn arrive(mut to: &TcpStream, receiver: &Receiver<Parcel>) {
    for (due, bytes) in receiver {
        let left = due.since(SystemClock.now());
        if !left.is_zero() {
            super::time::let_pass(left);
        }
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _closed = to.shutdown(Shutdown::Both);
}

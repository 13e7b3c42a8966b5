//! [`Switch`]: an address that leads to one server, and then to another one.

use parking_lot::Mutex;
use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::thread;

/// Listens on a port of its own, and passes bytes on. Gone, with all its connections, when dropped.
pub struct Switch {
    port: u16,
    inner: Arc<Inner>,
}

struct Inner {
    /// The port of the server.
    server: AtomicU16,
    ended: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Switch {
    /// An address of the server on this port of ours.
    pub fn new(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let (server, ended) = (AtomicU16::new(server), AtomicBool::new(false));
        let inner = Arc::new(Inner { server, ended, open: Mutex::default() });
        let accepting = Arc::clone(&inner);
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.ended.load(Ordering::SeqCst) {
                    return;
                }
                // A server that is down is a connection that is closed at once.
                let _down = client.and_then(|client| accepting.connect(&client));
            }
        });
        Self { port, inner }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on it leads to the server on this port. The connections that there are end.
    pub fn lead_to(&self, server: u16) {
        self.inner.server.store(server, Ordering::SeqCst);
        self.inner.cut_all();
    }
}

impl Inner {
    fn connect(&self, client: &TcpStream) -> io::Result<()> {
        let mut open = self.open.lock();
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.server.load(Ordering::SeqCst)))?;
        for (from, to) in [(client, &server), (&server, client)] {
            from.set_nodelay(true)?;
            open.push(from.try_clone()?);
            let (mut from, mut to) = (from.try_clone()?, to.try_clone()?);
            thread::spawn(move || {
                let _ended = io::copy(&mut from, &mut to);
                [&from, &to].map(|stream| stream.shutdown(Shutdown::Both))
            });
        }
        Ok(())
    }

    fn cut_all(&self) {
        for stream in self.open.lock().drain(..) {
            let _closed = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.inner.ended.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _woken = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        self.inner.cut_all();
    }
}

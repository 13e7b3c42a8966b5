//! [`Wall`]: a proxy that can cut one server off from some addresses. It passes bytes on without
//! reading them.

use parking_lot::Mutex;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

/// Listens on a port of its own and passes connections on to one server, except from addresses that
/// are kept out. Dropping it cuts all its connections.
pub struct Wall {
    port: u16,
    inner: Arc<Inner>,
}

struct Inner {
    server: u16,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The addresses that are refused; `None` stands for all.
    kept_out: Vec<Option<IpAddr>>,
    open: Vec<(IpAddr, [TcpStream; 2])>,
    /// The number of connections that were refused.
    refused: u64,
    ended: bool,
}

impl State {
    fn keeps_out(&self, from: IpAddr) -> bool {
        self.ended
            || self
                .kept_out
                .iter()
                .any(|it| it.is_none_or(|it| it == from))
    }

    fn cut(&mut self) {
        let open = std::mem::take(&mut self.open);
        let (cut, left) = open
            .into_iter()
            .partition(|(from, _)| self.keeps_out(*from));
        self.open = left;
        let cut: Vec<(IpAddr, [TcpStream; 2])> = cut;
        for stream in cut.iter().flat_map(|(_, both)| both) {
            let _closed = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Wall {
    /// Starts a wall in front of the server on this port of 127.0.0.1.
    pub fn before(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let inner = Arc::new(Inner {
            server,
            state: Mutex::default(),
        });
        let accepting = Arc::clone(&inner);
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.state.lock().ended {
                    return;
                }
                // If the server is down, the client gets a connection that is closed at once.
                let _down = client.and_then(|client| accepting.pass(client));
            }
        });
        Self { port, inner }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Refuses connections from this address from now on, or, with `None`, from all addresses. Open
    /// connections of refused addresses are cut.
    pub fn keep_out(&self, from: Option<IpAddr>) {
        let mut state = self.inner.state.lock();
        state.kept_out.push(from);
        state.cut();
    }

    /// Accepts all addresses again.
    pub fn open(&self) {
        self.inner.state.lock().kept_out.clear();
    }

    /// Returns how many connections were refused.
    pub fn refused(&self) -> u64 {
        self.inner.state.lock().refused
    }
}

impl Drop for Wall {
    fn drop(&mut self) {
        let mut state = self.inner.state.lock();
        state.ended = true;
        state.cut();
        drop(state);
        // Wakes the accepting thread, which then sees that the wall has ended.
        let _woken = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl Inner {
    fn pass(&self, client: TcpStream) -> io::Result<()> {
        let from = client.peer_addr()?.ip();
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.server))?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let both = [client.try_clone()?, server.try_clone()?];
        let mut state = self.state.lock();
        if state.keeps_out(from) {
            state.refused += 1;
            return Ok(());
        }
        state.open.push((from, both));
        drop(state);
        for (from, to) in [(client.try_clone()?, server.try_clone()?), (server, client)] {
            thread::spawn(move || {
                let _ended = io::copy(&mut &from, &mut &to);
                for stream in [from, to] {
                    let _closed = stream.shutdown(Shutdown::Both);
                }
            });
        }
        Ok(())
    }
}

//! [`Router`]: a proxy in front of several servers that acts as one server. Scripts, and some
//! commands on keys, go to a server that their first key determines; all else, such as `INFO`, goes
//! to the first server.

use super::resp::{Request, read_reply};
use super::rights::LOGIN;
use parking_lot::Mutex;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufReader, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// Listens on a port of its own. Dropping it cuts all its connections.
pub struct Router {
    port: u16,
    inner: Arc<Inner>,
}

struct Inner {
    servers: Vec<u16>,
    seed: u64,
    spreads: AtomicBool,
    has_ended: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
}

impl Router {
    /// Starts a router in front of the servers on these ports; the seed determines the server of a
    /// key.
    pub fn new(servers: &[u16], seed: u64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        let (spreads, has_ended) = (AtomicBool::new(true), AtomicBool::default());
        let (servers, open) = (servers.to_vec(), Mutex::default());
        let inner = Arc::new(Inner {
            servers,
            seed,
            spreads,
            has_ended,
            open,
        });
        let accepting = Arc::clone(&inner);
        thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.has_ended.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(client) = client else { continue };
                let inner = Arc::clone(&accepting);
                thread::spawn(move || {
                    let _ended = inner.serve(&client);
                    let _closed = client.shutdown(Shutdown::Both);
                });
            }
        });
        Self { port, inner }
    }

    /// `redis://127.0.0.1:PORT`, for the user with the least rights.
    pub fn url(&self) -> String {
        format!("redis://{LOGIN}@127.0.0.1:{}", self.port)
    }

    /// Sends each command to the server of its key from now on, or, with `false`, all commands to
    /// the first server. Open connections are cut.
    pub fn spread(&self, spreads: bool) {
        self.inner.spreads.store(spreads, Ordering::SeqCst);
        self.inner.cut_all();
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.inner.has_ended.store(true, Ordering::SeqCst);
        // Wakes the accepting thread, which then sees that the router has ended.
        let _woken = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        self.inner.cut_all();
    }
}

impl Inner {
    fn cut_all(&self) {
        for stream in self.open.lock().drain(..) {
            let _closed = stream.shutdown(Shutdown::Both);
        }
    }

    fn dial(&self, port: u16) -> io::Result<TcpStream> {
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        server.set_nodelay(true)?;
        self.open.lock().push(server.try_clone()?);
        Ok(server)
    }

    /// Passes one command at a time on, until `HELLO` or `SUBSCRIBE` makes the connection a
    /// subscriber's.
    fn serve(&self, client: &TcpStream) -> io::Result<()> {
        client.set_nodelay(true)?;
        self.open.lock().push(client.try_clone()?);
        let servers: Vec<_> = self
            .servers
            .iter()
            .map(|port| self.dial(*port))
            .collect::<io::Result<_>>()?;
        let mut answers: Vec<_> = servers.iter().map(BufReader::new).collect();
        let (mut commands, mut client) = (BufReader::new(client), client);
        while let Some(request) = Request::read(&mut commands)? {
            let at = self.server_of(&request);
            (&servers[at]).write_all(&request.bytes())?;
            if request.is("HELLO") || request.is("SUBSCRIBE") {
                return pass_on(&mut commands, client, &servers[0]);
            }
            // The login is valid on all servers, and commands may go to any of them.
            if request.is("AUTH") {
                for (server, answer) in servers.iter().zip(&mut answers).skip(1) {
                    (&*server).write_all(&request.bytes())?;
                    read_reply(answer)?;
                }
            }
            let Some(reply) = read_reply(&mut answers[at])? else {
                return Ok(());
            };
            client.write_all(&reply)?;
        }
        Ok(())
    }

    fn server_of(&self, request: &Request) -> usize {
        const OF_ONE_KEY: &[&str] = &["EXISTS", "GET", "SET", "PTTL", "TYPE", "ZCOUNT"];
        let key = match () {
            () if !self.spreads.load(Ordering::SeqCst) => return 0,
            () if request.is("EVAL") || request.is("EVALSHA") => request.word(3),
            () if OF_ONE_KEY.iter().any(|command| request.is(command)) => request.word(1),
            () => return 0,
        };
        let mut hasher = DefaultHasher::new();
        (self.seed, key).hash(&mut hasher);
        usize::try_from(hasher.finish() % self.servers.len() as u64).expect("it is small")
    }
}

/// Passes bytes on both ways, until either side closes.
fn pass_on(
    commands: &mut BufReader<&TcpStream>,
    client: &TcpStream,
    server: &TcpStream,
) -> io::Result<()> {
    let (mut from, mut to) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || {
        let _ended = io::copy(&mut from, &mut to);
        let _closed = to.shutdown(Shutdown::Both);
    });
    let mut bytes = [0; 4096];
    loop {
        let count = commands.read(&mut bytes)?;
        if count == 0 {
            return server.shutdown(Shutdown::Both);
        }
        { server }.write_all(&bytes[..count])?;
    }
}

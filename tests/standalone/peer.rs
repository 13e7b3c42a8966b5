//! [`Peer`]: a scripted server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Serves each connection on a thread of its own, for as long as the test runs.
pub(crate) struct Peer {
    address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Peer {
    pub(crate) fn new(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&connections);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::SeqCst);
                let serve = serve.clone();
                thread::spawn(move || serve(stream));
            }
        });
        Self {
            address,
            connections,
        }
    }

    /// Starts a peer that completes the handshake as a server would, and then runs `serve`.
    pub(crate) fn after_handshake(serve: impl Fn(TcpStream) + Clone + Send + 'static) -> Self {
        Self::new(move |mut stream| {
            read_request(&mut stream);
            // The replies to the client's name, to the query for the server's ID, and to the 32
            // scripts after them.
            let ran = "$3\r\nabc\r\n".repeat(32);
            let answers = format!("+OK\r\n$10\r\nrun_id:abc\r\n{ran}");
            stream.write_all(answers.as_bytes()).unwrap();
            serve(stream);
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

/// Reads what the client has sent at once; returns false at the end of the connection.
pub(crate) fn read_request(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 64 * 1024];
    stream.read(&mut bytes).is_ok_and(|count| count > 0)
}

/// Reads a request with one channel, and returns the channel with its length and line ends.
pub(crate) fn read_channel(stream: &mut TcpStream) -> String {
    let mut bytes = [0; 4096];
    let count = stream.read(&mut bytes).unwrap();
    let text = String::from_utf8_lossy(&bytes[..count]);
    text[text.rfind('$').expect("it has an argument")..].to_owned()
}

/// Keeps the connection open, and reads and answers nothing.
pub(crate) fn hold(stream: TcpStream) {
    std::mem::forget(stream);
}

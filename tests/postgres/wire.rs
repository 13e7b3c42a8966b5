//! [`Wire`]: a proxy in front of a database server that harms the calls of one function.

use distlock_tests::time::let_pass;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// What is done with a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Harm {
    /// The server gets it; the client's connection is cut without an answer.
    LosesReply,
    /// The client's connection is cut; the server gets the call this much later.
    ArrivesLate(Duration),
    /// The client gets the first bytes of the answer, and then nothing, on an open connection.
    HalvesReply,
    /// The server gets a part of the call; then the connection is cut.
    HalvesCall,
}

/// Every harm.
pub(crate) const HARMS: [Harm; 4] = [
    Harm::LosesReply,
    Harm::ArrivesLate(Duration::from_millis(1_500)),
    Harm::HalvesReply,
    Harm::HalvesCall,
];

/// Harms the first calls of a function, and passes everything else on.
pub(crate) struct Wire {
    port: u16,
    left: Arc<AtomicUsize>,
}

impl Wire {
    /// Starts a proxy in front of the server on this port that harms the first `times` calls.
    pub(crate) fn new(server: u16, function: &'static str, harm: Harm, times: usize) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let left = Arc::new(AtomicUsize::new(times));
        let counter = Arc::clone(&left);
        thread::spawn(move || {
            for client in listener.incoming() {
                let left = Arc::clone(&counter);
                let client = client.unwrap();
                let server = TcpStream::connect((Ipv4Addr::LOCALHOST, server));
                let Ok(server) = server else { continue };
                thread::spawn(move || {
                    let _ended = pass(&client, &server, function, harm, &left);
                    let _closed = client.shutdown(Shutdown::Both);
                });
            }
        });
        Self { port, left }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Returns whether all calls that were to be harmed were.
    pub(crate) fn is_done(&self) -> bool {
        self.left.load(Ordering::SeqCst) == 0
    }
}

/// Passes on what both sides send, until a call is harmed.
fn pass(
    client: &TcpStream,
    server: &TcpStream,
    function: &str,
    harm: Harm,
    left: &AtomicUsize,
) -> std::io::Result<()> {
    let (mut from_client, mut to_server) = (client.try_clone()?, server.try_clone()?);
    let (mut from_server, mut to_client) = (server.try_clone()?, client.try_clone()?);
    // The number of bytes that the client still gets; all of them if it is huge.
    let allowed = Arc::new(AtomicUsize::new(usize::MAX));
    let shared = Arc::clone(&allowed);
    thread::spawn(move || {
        let mut bytes = [0; 8192];
        while let Ok(count @ 1..) = from_server.read(&mut bytes) {
            let now = shared.load(Ordering::SeqCst);
            let passed = count.min(now);
            if now != usize::MAX {
                shared.store(now - passed, Ordering::SeqCst);
            }
            if passed > 0 && to_client.write_all(&bytes[..passed]).is_err() {
                break;
            }
        }
        if shared.load(Ordering::SeqCst) == usize::MAX {
            let _closed = to_client.shutdown(Shutdown::Both);
        }
    });
    let mut bytes = [0; 8192];
    loop {
        let count = from_client.read(&mut bytes)?;
        if count == 0 {
            let _closed = to_server.shutdown(Shutdown::Write);
            return Ok(());
        }
        let call = &bytes[..count];
        let is_call = call
            .windows(function.len())
            .any(|it| it == function.as_bytes());
        let takes = |left: usize| left.checked_sub(1);
        let is_harmed = is_call
            && left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, takes)
                .is_ok();
        if !is_harmed {
            to_server.write_all(call)?;
            continue;
        }
        match harm {
            Harm::LosesReply => {
                allowed.store(0, Ordering::SeqCst);
                to_server.write_all(call)?;
                let_pass(Duration::from_millis(100));
                return Ok(());
            }
            Harm::ArrivesLate(time) => {
                allowed.store(0, Ordering::SeqCst);
                client.shutdown(Shutdown::Both)?;
                let_pass(time);
                to_server.write_all(call)?;
                let_pass(Duration::from_millis(500));
                return Ok(());
            }
            Harm::HalvesReply => {
                allowed.store(12, Ordering::SeqCst);
                to_server.write_all(call)?;
            }
            Harm::HalvesCall => {
                to_server.write_all(&call[..count / 2])?;
                let _closed = to_server.shutdown(Shutdown::Both);
                return Ok(());
            }
        }
    }
}

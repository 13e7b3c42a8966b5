//! [`Liar`]: something that listens like a sentinel and says what a test wants.

use crate::harness::resp::Request;
use crate::harness::sentinel::MASTER;
use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

/// A sentinel that names always the same master, with the same epoch. Serves for as long as the test runs.
pub(crate) struct Liar {
    port: u16,
}

impl Liar {
    pub(crate) fn naming(master: u16, epoch: u64) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || serve(stream, master, epoch));
            }
        });
        Self { port }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

fn serve(mut stream: TcpStream, master: u16, epoch: u64) -> Option<()> {
    let mut requests = BufReader::new(stream.try_clone().ok()?);
    while let Some(request) = Request::read(&mut requests).ok()? {
        let port = master.to_string();
        let answer = match (request.word(0).as_str(), request.word(1).as_str()) {
            ("SENTINEL", "MASTER") => list(&["name", MASTER, "config-epoch", &epoch.to_string()]),
            ("SENTINEL", "GET-MASTER-ADDR-BY-NAME") => list(&["127.0.0.1", &port]),
            ("SENTINEL", "MYID") => format!("$5\r\nliar{}\r\n", epoch % 10),
            ("SENTINEL", _) => "*0\r\n".to_owned(),
            ("SUBSCRIBE", channel) => {
                format!("*3\r\n$9\r\nsubscribe\r\n${}\r\n{channel}\r\n:1\r\n", channel.len())
            }
            ("PING", _) => list(&["pong", ""]),
            _ => "+OK\r\n".to_owned(),
        };
        stream.write_all(answer.as_bytes()).ok()?;
    }
    Some(())
}

fn list(words: &[&str]) -> String {
    let words: Vec<_> = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    format!("*{}\r\n{}", words.len(), words.concat())
}

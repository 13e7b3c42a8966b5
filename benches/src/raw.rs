//! [`Raw`]: the reference for the library: one plain socket, prebuilt requests, and replies that
//! are barely checked. It sends byte for byte what the library sends, as read from the server's own
//! MONITOR (see `learn.rs`).

use std::io::ErrorKind::{TimedOut, WouldBlock};
use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

pub(crate) struct Raw(BufReader<TcpStream>);

#[derive(Debug)]
pub(crate) enum Reply {
    Nil,
    Int(i64),
    Text(Vec<u8>),
    List(Vec<Reply>),
}

/// Returns the bytes of a request with these words.
pub(crate) fn request<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words.iter().map(AsRef::as_ref) {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

impl Raw {
    pub(crate) fn connect(port: u16) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the server listens");
        stream.set_nodelay(true).expect("a TCP socket takes it");
        Self(BufReader::with_capacity(1 << 16, stream))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("the server reads");
    }

    pub(crate) fn call(&mut self, bytes: &[u8]) -> Reply {
        self.send(bytes);
        self.read().expect("the server answers")
    }

    /// Returns the next reply, if it begins within `wait`; if `wait` is zero, only if it has
    /// arrived. The read time-out stays set, so this is only for connections that wait for
    /// messages.
    pub(crate) fn next_within(&mut self, wait: Duration) -> Option<Reply> {
        let socket = self.0.get_ref();
        socket
            .set_nonblocking(wait.is_zero())
            .expect("a socket takes it");
        // A zero wait reads without blocking: no time-out is shorter than a tick of the system.
        socket
            .set_read_timeout(Some(wait).filter(|wait| !wait.is_zero()))
            .expect("not zero");
        let nothing = self
            .0
            .fill_buf()
            .is_err_and(|e| [WouldBlock, TimedOut].contains(&e.kind()));
        self.0
            .get_ref()
            .set_nonblocking(false)
            .expect("a socket takes it");
        (!nothing).then(|| self.read().expect("the server answers"))
    }

    pub(crate) fn read(&mut self) -> Result<Reply> {
        let mut line = Vec::with_capacity(32);
        self.0.read_until(b'\n', &mut line)?;
        let text = std::str::from_utf8(&line)
            .expect("it starts with text")
            .trim_end();
        let number = |text: &str| text.parse::<i64>().expect("a number");
        Ok(match text.as_bytes().first() {
            Some(b':') => Reply::Int(number(&text[1..])),
            Some(b'+') => Reply::Text(text.as_bytes()[1..].to_vec()),
            Some(b'$') if text == "$-1" => Reply::Nil,
            Some(b'$') => {
                let length = usize::try_from(number(&text[1..])).expect("a length") + 2;
                let mut bytes = vec![0; length];
                self.0.read_exact(&mut bytes)?;
                bytes.truncate(length - 2);
                Reply::Text(bytes)
            }
            Some(b'*') => Reply::List(
                (0..number(&text[1..]))
                    .map(|_| self.read())
                    .collect::<Result<_>>()?,
            ),
            _ => panic!("the server says {text:?}"),
        })
    }
}

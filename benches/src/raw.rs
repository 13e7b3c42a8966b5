//! The reference: one plain socket, requests prebuilt, answers read and hardly looked at. What it sends is, byte for
//! byte, what the library sends: the words come from the server's own MONITOR (see `learn.rs`).

use std::io::{BufRead, BufReader, ErrorKind, Read, Result, Write};
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

/// The bytes of one request.
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

    /// The next answer; `None` if there is none within `wait`. Only between answers, never inside one.
    pub(crate) fn next_within(&mut self, wait: Duration) -> Option<Reply> {
        self.0.get_ref().set_read_timeout(Some(wait)).expect("not zero");
        let waited = self.0.fill_buf().map(|_| ());
        self.0.get_ref().set_read_timeout(None).expect("none is allowed");
        match waited {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                None
            }
            _ => Some(self.read().expect("the server answers")),
        }
    }

    pub(crate) fn read(&mut self) -> Result<Reply> {
        let mut line = Vec::with_capacity(32);
        self.0.read_until(b'\n', &mut line)?;
        let text =
            std::str::from_utf8(&line).expect("a reply starts with a line of text").trim_end();
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
            Some(b'*') => {
                Reply::List((0..number(&text[1..])).map(|_| self.read()).collect::<Result<_>>()?)
            }
            _ => panic!("the server says {text:?}"),
        })
    }
}

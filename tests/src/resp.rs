//! [`Request`]: whole commands and whole replies on a connection, and which of the library's
//! scripts a command runs.

use std::io::{self, BufRead, Read};

/// What a command does to a lock. It is told from the number of keys and arguments of the script,
/// because scripts are sent by hash or by text.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    Acquire,
    /// A release without a tombstone.
    Release,
    /// A release that writes a tombstone or gives tokens back.
    Close,
    Renew,
    Other,
}

/// The words of a command.
#[derive(Clone, Debug)]
pub struct Request {
    words: Vec<Vec<u8>>,
}

impl Request {
    /// Reads the next command of this connection; `None` at its end.
    pub fn read(from: &mut impl BufRead) -> io::Result<Option<Self>> {
        if from.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let mut words = Vec::new();
        for _ in 0..count(&line(from)?, b'*')? {
            let length = count(&line(from)?, b'$')?;
            let mut word = vec![0; length + 2];
            from.read_exact(&mut word)?;
            word.truncate(length);
            words.push(word);
        }
        Ok(Some(Self { words }))
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("*{}\r\n", self.words.len()).into_bytes();
        for word in &self.words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    }

    /// Returns whether this is the given command, in upper or lower case.
    pub fn is(&self, command: &str) -> bool {
        self.words
            .first()
            .is_some_and(|word| word.eq_ignore_ascii_case(command.as_bytes()))
    }

    pub fn kind(&self) -> Kind {
        match (self.keys(), self.arguments()) {
            // Checked first: a renewal of three locks has as many keys and arguments as a close.
            (Some(keys), arguments) if arguments == 2 * keys && self.begins_with_a_lease() => {
                Kind::Renew
            }
            // Mutexes, also with a waiter's queue and fields; with four or five keys also readers.
            (Some(3), 2..=4) | (Some(4 | 5), 2..=5) if self.begins_with_a_lease() => Kind::Acquire,
            (Some(4), 14) => Kind::Acquire,
            // A fourth key is a list to which the release pushes. More than six arguments: the lock
            // has a minimum hold, or the release takes `turns`.
            (Some(3 | 4), 6 | 8 | 9) => Kind::Close,
            // A reader's close.
            (Some(3), 4) => Kind::Close,
            // A second key is a reader's hold, or a list to which the release pushes. A fourth
            // argument is sent where a release granted the lock.
            (Some(1..=3), 3) | (Some(1), 4) => Kind::Release,
            _ => Kind::Other,
        }
    }

    /// Returns the owner that acquires, releases or closes.
    pub fn owner(&self) -> Option<String> {
        let at = match self.kind() {
            // The owner follows the keys and the lease.
            Kind::Acquire => 4 + self.keys()?,
            Kind::Close | Kind::Release => 3 + self.keys()?,
            Kind::Renew | Kind::Other => return None,
        };
        Some(String::from_utf8_lossy(&self.words[at]).into_owned())
    }

    /// Returns whether one of the command's words is this one.
    pub fn has(&self, word: &str) -> bool {
        self.words.iter().any(|it| it == word.as_bytes())
    }

    /// Returns the word at this place as text; empty if there is none.
    pub fn word(&self, at: usize) -> String {
        self.words
            .get(at)
            .map(|word| String::from_utf8_lossy(word).into_owned())
            .unwrap_or_default()
    }

    /// Replaces an argument of the script; the first argument is number 0.
    pub fn replace_argument(&mut self, at: usize, word: &str) {
        let first = 3 + self.keys().expect("it runs a script");
        self.words[first + at] = word.as_bytes().to_vec();
    }

    /// Becomes a request that the server answers with this error.
    pub fn be_refused(&mut self, error: &str) {
        self.be_script(&format!(
            "return redis.error_reply('{}')",
            error.replace('\'', "\\'")
        ));
    }

    /// Becomes a request that the server answers with the result of this script.
    pub fn be_script(&mut self, script: &str) {
        self.words = ["EVAL", script, "0"]
            .map(|word| word.as_bytes().to_vec())
            .to_vec();
    }

    /// Returns the number of the script's keys; `None` if this command runs no script.
    fn keys(&self) -> Option<usize> {
        let is_script = self.is("EVALSHA") || self.is("EVAL");
        let count = self.words.get(2).filter(|_| is_script)?;
        std::str::from_utf8(count).ok()?.parse().ok()
    }

    fn arguments(&self) -> usize {
        self.words
            .len()
            .saturating_sub(3 + self.keys().unwrap_or(0))
    }

    /// Tells a renewal of one lock from a forced release with as many keys and arguments: a forced
    /// release begins with a channel.
    fn begins_with_a_lease(&self) -> bool {
        let first = self.keys().and_then(|keys| self.words.get(3 + keys));
        first.is_some_and(|word| word.iter().all(u8::is_ascii_digit))
    }
}

/// Reads the next reply and returns its bytes; `None` at the end of the connection.
pub fn read_reply(from: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    if from.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let (mut bytes, mut missing) = (Vec::new(), 1_usize);
    while missing > 0 {
        missing -= 1;
        let head = line(from)?;
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(b"\r\n");
        match head.first() {
            Some(b'$') if head != b"$-1" => {
                let mut text = vec![0; count(&head, b'$')? + 2];
                from.read_exact(&mut text)?;
                bytes.extend_from_slice(&text);
            }
            Some(b'*') if head != b"*-1" => missing += count(&head, b'*')?,
            // RESP3.
            Some(kind @ (b'>' | b'~')) => missing += count(&head, *kind)?,
            Some(b'%') => missing += 2 * count(&head, b'%')?,
            _ => {}
        }
    }
    Ok(Some(bytes))
}

/// Returns whether the server sent this without a request: a message, or the report that a key has
/// changed.
pub fn is_unasked(reply: &[u8]) -> bool {
    let lines: Vec<_> = reply.split(|byte| *byte == b'\n').take(3).collect();
    let [head, _, kind] = &lines[..] else {
        return false;
    };
    let is_pushed = matches!(head.first(), Some(b'>' | b'*'));
    is_pushed && matches!(*kind, b"message\r" | b"smessage\r" | b"invalidate\r")
}

fn line(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    from.take(1 << 16).read_until(b'\n', &mut line)?;
    if !line.ends_with(b"\r\n") {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    line.truncate(line.len() - 2);
    Ok(line)
}

fn count(line: &[u8], kind: u8) -> io::Result<usize> {
    let number = line
        .strip_prefix(&[kind])
        .and_then(|digits| std::str::from_utf8(digits).ok());
    number
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| io::Error::other(format!("not RESP: {:?}", String::from_utf8_lossy(line))))
}

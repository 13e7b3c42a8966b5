//! [`ReplyReader`]: parses the bytes from a server as replies of RESP2, and of RESP3 on connections
//! that request it.
//!
//! The parser of the `redis` crate is not used: it owns the stream, copies each reply once more,
//! and cannot read an error text that is not UTF-8. A test compares the two parsers.

use crate::connection::{Reply, ServerError};

/// Parses replies from bytes that arrive in any pieces, in one pass.
#[derive(Default)]
pub(crate) struct ReplyReader {
    bytes: Vec<u8>,
    /// The number of `bytes` that were read.
    read: usize,
    /// The incomplete arrays, outermost first.
    arrays: Vec<IncompleteArray>,
    /// The number of bytes of the incomplete reply that were read.
    size: usize,
    invalid: Option<InvalidReply>,
    /// True if RESP3 may arrive.
    is_resp3: bool,
}

/// The reason why bytes are not a reply.
pub(crate) type InvalidReply = &'static str;

/// An array that lacks some of its items.
struct IncompleteArray {
    count: usize,
    items: Vec<Reply>,
}

/// The beginning of a reply.
enum Value {
    Whole(Reply),
    /// This number of items follows.
    Array(usize),
}

/// The largest reply, far more than any request of this library causes, so that a broken server
/// cannot exhaust the memory.
pub(crate) const LARGEST_REPLY: usize = 16 << 20;
/// The deepest nesting of arrays in a reply; the deepest replies that are used, to `CLUSTER SHARDS`
/// and `CLUSTER SLOTS`, have four levels.
const DEEPEST: usize = 8;
/// The longest line of a reply, longer than any status or error.
const LONGEST_LINE: usize = 64 << 10;

const UNREADABLE: InvalidReply = "it cannot be parsed";
const ENDLESS: InvalidReply = "it has no end";

impl ReplyReader {
    /// Returns a reader for a connection that may switch to RESP3 (`HELLO 3`). Maps, sets and
    /// pushes become arrays; a map's keys and values take turns. The other types that only RESP3
    /// has are refused, except nil.
    pub(crate) fn resp3() -> Self {
        Self {
            is_resp3: true,
            ..Self::default()
        }
    }

    /// Returns the buffer to which received bytes are appended.
    pub(crate) fn input(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Returns `true` if nothing was received after the replies that were returned.
    pub(crate) fn is_empty(&self) -> bool {
        self.read == self.bytes.len() && self.arrays.is_empty() && self.invalid.is_none()
    }

    /// Returns the next reply; `None` until the rest of it arrives. Always fails after invalid
    /// bytes.
    pub(crate) fn next(&mut self) -> Result<Option<Reply>, InvalidReply> {
        if let Some(why) = self.invalid {
            return Err(why);
        }
        let next = self.read_reply();
        if !matches!(next, Ok(Some(_))) {
            self.bytes.drain(..self.read);
            self.read = 0;
        }
        self.invalid = next.as_ref().err().copied();
        next
    }

    fn read_reply(&mut self) -> Result<Option<Reply>, InvalidReply> {
        while let Some((value, length)) = value(&self.bytes[self.read..], self.is_resp3)? {
            self.read += length;
            self.size += length;
            let completed = match value {
                Value::Whole(reply) => self.complete(reply),
                Value::Array(_) if self.arrays.len() == DEEPEST => return Err(UNREADABLE),
                Value::Array(count) => {
                    // An item has at least three bytes, so a count alone allocates nothing.
                    let capacity = count.min((self.bytes.len() - self.read) / 3);
                    self.arrays.push(IncompleteArray {
                        count,
                        items: Vec::with_capacity(capacity),
                    });
                    None
                }
            };
            if completed.is_some() {
                self.size = 0;
                return Ok(completed);
            }
        }
        let size = self.size + self.bytes.len() - self.read;
        if size > LARGEST_REPLY {
            Err(ENDLESS)
        } else {
            Ok(None)
        }
    }

    /// Adds a value to the innermost incomplete array. Returns the whole reply if the value
    /// completes it.
    fn complete(&mut self, mut value: Reply) -> Option<Reply> {
        while let Some(mut array) = self.arrays.pop() {
            array.items.push(value);
            if array.items.len() < array.count {
                self.arrays.push(array);
                return None;
            }
            value = Reply::Array(array.items);
        }
        Some(value)
    }
}

/// Returns the value, or the head of an array, that `bytes` begin with, and its length; `None` if
/// more bytes are needed.
fn value(bytes: &[u8], is_resp3: bool) -> Result<Option<(Value, usize)>, InvalidReply> {
    let Some((kind, text)) = line(bytes)? else {
        return Ok(None);
    };
    let mut length = text.len() + 3;
    let reply = match kind {
        b':' => Reply::Int(number(text)?),
        b'+' => Reply::Text(String::from_utf8_lossy(text).into_owned()),
        b'-' => Reply::Error(ServerError::parse(&String::from_utf8_lossy(text))),
        b'$' => match count(text)? {
            None => Reply::Nil,
            Some(count) => {
                let Some(body) = bytes.get(length..length + count + 2) else {
                    return Ok(None);
                };
                length += body.len();
                Reply::Bulk(body.strip_suffix(b"\r\n").ok_or(UNREADABLE)?.to_vec())
            }
        },
        b'*' => match count(text)? {
            None => Reply::Nil,
            Some(0) => Reply::Array(Vec::new()),
            Some(count) => return Ok(Some((Value::Array(count), length))),
        },
        b'_' if is_resp3 => Reply::Nil,
        b'>' | b'~' | b'%' if is_resp3 => {
            let items = if kind == b'%' { 2 } else { 1 };
            match count(text)?.ok_or(UNREADABLE)? * items {
                0 => Reply::Array(Vec::new()),
                count => return Ok(Some((Value::Array(count), length))),
            }
        }
        kind if RESP3.contains(&kind) => return Err("it is RESP3, which was not asked for"),
        _ => return Err(UNREADABLE),
    };
    Ok(Some((Value::Whole(reply), length)))
}

/// The first bytes of types that only RESP3 has.
const RESP3: &[u8] = b"_#,(!=%~>|";

/// Returns the kind and the text of the first line; `None` if its end has not arrived.
fn line(bytes: &[u8]) -> Result<Option<(u8, &[u8])>, InvalidReply> {
    let Some(&kind) = bytes.first() else {
        return Ok(None);
    };
    let Some(end) = bytes
        .iter()
        .take(LONGEST_LINE)
        .position(|byte| *byte == b'\n')
    else {
        // Bytes of another protocol are refused at the first byte, even if no line ends.
        let is_resp = b"$*+-:".contains(&kind) || RESP3.contains(&kind);
        return match () {
            () if !is_resp => Err(UNREADABLE),
            () if bytes.len() >= LONGEST_LINE => Err(ENDLESS),
            () => Ok(None),
        };
    };
    let text = bytes[1..end.max(1)].strip_suffix(b"\r").ok_or(UNREADABLE)?;
    Ok(Some((kind, text)))
}

fn number(text: &[u8]) -> Result<i64, InvalidReply> {
    // Parsed by hand, because nearly all replies are numbers.
    let (sign, digits) = match text {
        [b'-', digits @ ..] => (-1, digits),
        digits => (1, digits),
    };
    if digits.is_empty() {
        return Err(UNREADABLE);
    }
    digits.iter().try_fold(0_i64, |value, digit| {
        let digit = i64::from(digit.wrapping_sub(b'0'));
        let next = value
            .checked_mul(10)
            .and_then(|value| value.checked_add(sign * digit));
        next.filter(|_| digit < 10).ok_or(UNREADABLE)
    })
}

/// Returns how many bytes or items follow; `None` for nil.
fn count(text: &[u8]) -> Result<Option<usize>, InvalidReply> {
    match number(text)? {
        -1 => Ok(None),
        count => match usize::try_from(count) {
            Ok(count) if count <= LARGEST_REPLY => Ok(Some(count)),
            Ok(_) => Err(ENDLESS),
            Err(_) => Err(UNREADABLE),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the replies in `bytes`, which arrive in pieces of `step`.
    fn read(bytes: &[u8], step: usize) -> (Vec<Reply>, Result<(), InvalidReply>) {
        let (mut reader, mut replies) = (ReplyReader::default(), Vec::new());
        for part in bytes.chunks(step) {
            reader.input().extend_from_slice(part);
            loop {
                match reader.next() {
                    Ok(Some(reply)) => replies.push(reply),
                    Ok(None) => break,
                    Err(why) => return (replies, Err(why)),
                }
            }
        }
        (
            replies,
            if reader.is_empty() {
                Ok(())
            } else {
                Err("incomplete")
            },
        )
    }

    /// Returns the replies that the parser of the `redis` crate reads from the same bytes.
    fn parsed_by_crate(mut bytes: &[u8]) -> Vec<Reply> {
        use redis::Value;

        fn reply(value: Value) -> Reply {
            match value {
                Value::Nil => Reply::Nil,
                Value::Int(value) => Reply::Int(value),
                Value::Okay => Reply::Text("OK".to_owned()),
                Value::SimpleString(text) => Reply::Text(text),
                Value::BulkString(bytes) => Reply::Bulk(bytes),
                Value::Array(items) => Reply::Array(items.into_iter().map(reply).collect()),
                Value::ServerError(error) => Reply::Error(ServerError {
                    code: error.code().to_owned(),
                    detail: error.details().unwrap_or("").to_owned(),
                }),
                other => panic!("{other:?}"),
            }
        }

        let (mut parser, mut replies) = (redis::Parser::default(), Vec::new());
        while let Ok(value) = parser.parse_value(&mut bytes) {
            replies.push(reply(value));
        }
        replies
    }

    #[test]
    fn replies_equal_those_of_the_crate_in_any_pieces() {
        let bytes = b":1\r\n:-120\r\n+OK\r\n$-1\r\n*-1\r\n$5\r\na\r\n\xff0\r\n$0\r\n\r\n\
                      *3\r\n:0\r\n*2\r\n$1\r\nx\r\n:9\r\n-ERR no\r\n-NOSCRIPT No it.\r\n\
                      :1790000000000000\r\n*0\r\n*2\r\n:1\r\n*0\r\n";
        let expected = parsed_by_crate(bytes);
        assert_eq!(expected.len(), 12);
        for step in [1, 2, 3, 7, bytes.len()] {
            assert_eq!(read(bytes, step), (expected.clone(), Ok(())), "{step}");
        }
    }

    #[test]
    fn resp3_is_read_where_it_was_asked_for() {
        let bytes =
            b"%2\r\n$5\r\nproto\r\n:3\r\n$7\r\nmodules\r\n*0\r\n>2\r\n+a\r\n_\r\n~0\r\n:1\r\n";
        let mut reader = ReplyReader::resp3();
        reader.input().extend_from_slice(bytes);
        let bulk = |text: &str| Reply::Bulk(text.into());
        let hello = [
            bulk("proto"),
            Reply::Int(3),
            bulk("modules"),
            Reply::Array(Vec::new()),
        ];
        for expected in [
            Reply::Array(hello.into()),
            Reply::Array(vec![Reply::Text("a".into()), Reply::Nil]),
            Reply::Array(Vec::new()),
            Reply::Int(1),
        ] {
            assert_eq!(reader.next(), Ok(Some(expected)));
        }
        assert!(read(bytes, 7).1.is_err_and(|why| why.contains("RESP3")));
        for invalid in [&b">-1\r\n"[..], b",1.5\r\n", b"%9223372036854775807\r\n"] {
            let mut reader = ReplyReader::resp3();
            reader.input().extend_from_slice(invalid);
            assert!(reader.next().is_err(), "{invalid:?}");
        }
    }

    #[test]
    fn error_text_that_is_not_utf8_is_read() {
        let expected = Reply::Error(ServerError::parse("ERR a\u{fffd}b"));
        assert_eq!(read(b"-ERR a\xffb\r\n", 3), (vec![expected], Ok(())));
    }

    #[test]
    fn invalid_bytes_are_reported_at_once() {
        for bytes in [
            &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
            b"(1\r\n",
            b"*1\r\n#t\r\n",
            b"\0\0",
            b":1x\r\n",
            b":\r\n",
            b":1\n",
            b"$-2\r\n",
            b"$1\r\nabc",
            b"=-1\r\n",
            b"%9223372036854775807\r\n",
            b"~100000000000\r\n",
            // The innermost item has not arrived.
            &b"*1\r\n".repeat(DEEPEST + 1),
        ] {
            let (replies, outcome) = read(bytes, bytes.len());
            assert!(replies.is_empty(), "{bytes:?}");
            assert!(outcome.is_err_and(|why| why != "incomplete"), "{bytes:?}");
        }
    }

    #[test]
    fn endless_replies_are_reported_before_they_fill_the_memory() {
        let line = [b"+".as_slice(), &[b'x'; 2 * LONGEST_LINE]].concat();
        let items = [&b"*16000000\r\n"[..], &b":12\r\n".repeat(LARGEST_REPLY / 5)].concat();
        let lengths = [b"$2000000000\r\nx".as_slice(), b"*9223372036854775807\r\n"];
        for bytes in [lengths[0], lengths[1], &line, &items] {
            assert_eq!(read(bytes, 4096).1, Err(ENDLESS));
        }
    }

    #[test]
    fn no_reply_is_read_after_invalid_bytes() {
        let mut reader = ReplyReader::default();
        reader.input().extend_from_slice(b":1\r\nwhat?\r\n");
        assert_eq!(reader.next(), Ok(Some(Reply::Int(1))));
        assert!(reader.next().is_err() && !reader.is_empty());
        reader.input().extend_from_slice(b":2\r\n");
        assert!(reader.next().is_err());
    }
}

//! The stream format: requests to bytes, bytes to replies, the hash of scripts. Only this module names the `redis` crate.

mod parser;

use crate::reply::Reply;
use crate::text::Text;
pub(super) use parser::ReplyParser;
use redis::Script;
use std::io::Read;

/// A command, its words given in groups so that nobody has to copy them together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a>(pub(crate) &'a [&'a [&'a [u8]]]);

/// Turns requests into bytes, in a buffer that is used again.
#[derive(Default)]
pub(crate) struct RequestEncoder(Vec<u8>);

impl RequestEncoder {
    /// The bytes of these requests, one behind the other.
    pub(crate) fn encode(&mut self, requests: &[Request<'_>]) -> &[u8] {
        self.0.clear();
        for request in requests {
            request.encode(&mut self.0);
        }
        &self.0
    }
}

impl Request<'_> {
    /// Appends the bytes of this request. Not by the crate's `Cmd`, which copies each word into a buffer of its own first.
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        head(b'*', self.0.iter().map(|group| group.len()).sum(), into);
        for word in self.0.iter().copied().flatten() {
            bulk(word, into);
        }
    }
}

/// A request that names a script by its hash, with the script's text instead.
pub(crate) fn with_text(by_hash: &[u8], text: &str) -> Vec<u8> {
    // How many words; then the command and the hash, each behind its length.
    let line_ends = by_hash.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
    let mut ends = line_ends.map(|(at, _)| at + 1).step_by(4);
    let (Some(words), Some(rest)) = (ends.next(), ends.next()) else { return Vec::new() };
    let mut request = by_hash[..words].to_vec();
    for word in ["EVAL", text] {
        bulk(word.as_bytes(), &mut request);
    }
    request.extend_from_slice(&by_hash[rest..]);
    request
}

/// A word, behind its length.
fn bulk(word: &[u8], into: &mut Vec<u8>) {
    head(b'$', word.len(), into);
    into.extend_from_slice(word);
    into.extend_from_slice(b"\r\n");
}

/// A kind and a count, on a line. Nearly all counts have one or two digits, and there is one before every word.
fn head(kind: u8, count: usize, into: &mut Vec<u8>) {
    let digit = |value: usize| b'0' + (value % 10) as u8;
    match count {
        0..10 => into.extend_from_slice(&[kind, digit(count), b'\r', b'\n']),
        10..100 => {
            into.extend_from_slice(&[kind, digit(count / 10), digit(count), b'\r', b'\n']);
        }
        _ => {
            into.push(kind);
            into.extend_from_slice(Text::number(count as u64).as_bytes());
            into.extend_from_slice(b"\r\n");
        }
    }
}

/// Reads replies from a source, by the same [`ReplyParser`] that the connection for all threads has. Keeps what it has read of a
/// reply when the source has no more for the moment.
#[derive(Default)]
pub(crate) struct ReplyReader {
    parser: ReplyParser,
    /// What is no whole reply yet.
    bytes: Vec<u8>,
    /// Whole ones that are still to be handed out, newest first.
    replies: Vec<Reply>,
    /// What came behind them is no reply.
    garbage: Option<&'static str>,
}

/// Why no reply could be read.
pub(crate) enum DecodeError {
    /// The source failed; it knows why.
    Source,
    /// The bytes are no RESP2.
    Garbage(&'static str),
}

impl ReplyReader {
    /// How much is read at a time.
    const CHUNK: usize = 4096;

    /// The next reply from `source`, which must answer the end of the stream with an error.
    pub(crate) fn next(&mut self, source: &mut dyn Read) -> Result<Reply, DecodeError> {
        loop {
            if let Some(reply) = self.replies.pop() {
                return Ok(reply);
            }
            if let Some(why) = self.garbage {
                return Err(DecodeError::Garbage(why));
            }
            let mut chunk = [0; Self::CHUNK];
            let count = source.read(&mut chunk).map_err(|_| DecodeError::Source)?;
            self.bytes.extend_from_slice(&chunk[..count]);
            self.garbage = self.parser.cut(&mut self.bytes, &mut self.replies).err();
            self.replies.reverse();
        }
    }

    /// Whether nothing was read beyond the replies that were handed out.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.replies.is_empty() && self.garbage.is_none()
    }
}

/// The name under which a server keeps a script: the SHA1 of its text, in hexadecimal digits.
pub(crate) fn script_hash(source: &str) -> String {
    Script::new(source).get_hash().to_owned()
}

/// What the parser of the crate makes of the same bytes.
#[cfg(test)]
pub(crate) fn parsed_by_crate(mut bytes: &[u8]) -> Vec<Reply> {
    use crate::reply::ServerError;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reply::ServerError;
    use std::io;

    #[test]
    fn a_request_by_hash_becomes_the_one_by_text_and_nothing_else_changes() {
        let hash = script_hash("return 1\nor 2");
        let arguments: &[&[u8]] = &[b"1", b"key\r\n", b"", b"x"];
        let encoded = |head: &[&[u8]]| {
            let mut bytes = Vec::new();
            Request(&[head, arguments]).encode(&mut bytes);
            bytes
        };
        let by_hash = encoded(&[b"EVALSHA", hash.as_bytes()]);
        assert_eq!(with_text(&by_hash, "return 1\nor 2"), encoded(&[b"EVAL", b"return 1\nor 2"]));
    }

    /// A source that hands out one byte at a time and has no more for the moment after each.
    struct Drip<'a>(&'a [u8], bool);

    impl Read for Drip<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 || self.0.is_empty() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            into[0] = self.0[0];
            self.0 = &self.0[1..];
            Ok(1)
        }
    }

    fn decode(bytes: &[u8]) -> Vec<Result<Reply, &'static str>> {
        let (mut reader, mut source) = (ReplyReader::default(), Drip(bytes, false));
        let mut replies = Vec::new();
        for _ in 0..4 * bytes.len() + 4 {
            match reader.next(&mut source) {
                Ok(reply) => replies.push(Ok(reply)),
                Err(DecodeError::Source) => {}
                Err(DecodeError::Garbage(why)) => {
                    replies.push(Err(why));
                    break;
                }
            }
        }
        replies
    }

    #[test]
    fn words_go_out_as_they_are() {
        let mut encoder = RequestEncoder::default();
        let request = Request(&[&[b"SET"], &[b"k\r\n", b""]]);
        assert_eq!(encoder.encode(&[request]), b"*3\r\n$3\r\nSET\r\n$3\r\nk\r\n\r\n$0\r\n\r\n");
        let lengths = [0, 9, 10, 99, 100, 1234].map(|length| {
            let word = vec![b'x'; length];
            let request = encoder.encode(&[Request(&[&[&word]])]).to_vec();
            String::from_utf8(request).unwrap().replace('x', "")
        });
        let expected = ["0", "9", "10", "99", "100", "1234"];
        assert_eq!(lengths, expected.map(|count| format!("*1\r\n${count}\r\n\r\n")));
        let ping: &[&[&[u8]]] = &[&[b"PING"]];
        let twice = encoder.encode(&[Request(ping), Request(ping)]);
        assert_eq!(twice, b"*1\r\n$4\r\nPING\r\n*1\r\n$4\r\nPING\r\n");
    }

    #[test]
    fn replies_come_in_also_byte_by_byte() {
        let replies: [(&[u8], Reply); 10] = [
            (b"$-1\r\n", Reply::Nil),
            (b"*-1\r\n", Reply::Nil),
            (b":-120\r\n", Reply::Int(-120)),
            (b":0\r\n", Reply::Int(0)),
            (b"+OK\r\n", Reply::Text("OK".into())),
            (b"$5\r\na\r\n\xff0\r\n", Reply::Bulk(b"a\r\n\xff0".to_vec())),
            (b"$0\r\n\r\n", Reply::Bulk(Vec::new())),
            (b"*2\r\n:1\r\n*0\r\n", Reply::Array(vec![Reply::Int(1), Reply::Array(vec![])])),
            (b"-NOSCRIPT No it.\r\n", Reply::Error(ServerError::parse("NOSCRIPT No it."))),
            (b"-ERR a\xffb\r\n", Reply::Error(ServerError::parse("ERR a\u{fffd}b"))),
        ];
        for (bytes, reply) in &replies {
            assert_eq!(decode(bytes), [Ok(reply.clone())]);
        }
        let all: Vec<u8> = replies.iter().flat_map(|(bytes, _)| bytes.iter().copied()).collect();
        let expected: Vec<_> = replies.into_iter().map(|(_, reply)| Ok(reply)).collect();
        assert_eq!(decode(&all), expected);
    }

    #[test]
    fn garbage_is_told() {
        for bytes in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b"(1\r\n", b"*1\r\n#t\r\n", b"\0\0"]
        {
            let outcome = ReplyReader::default().next(&mut bytes.chain(Drip(b"", true)));
            assert!(matches!(outcome, Err(DecodeError::Garbage(_))), "{bytes:?}");
        }
    }

    #[test]
    fn absurd_lengths_neither_panic_nor_ask_for_memory() {
        for bytes in [
            &b"*9223372036854775807\r\n"[..],
            b"$9223372036854775807\r\n",
            b"=-1\r\n",
            b"%9223372036854775807\r\n",
            b"~100000000000\r\n",
        ] {
            assert!(matches!(decode(bytes)[..], [Err(_)]), "{bytes:?}");
        }
    }

    #[test]
    fn a_script_is_known_by_its_sha1() {
        assert_eq!(script_hash("return 1"), "e0e1f9fabfc9d4800c877a703b823ac0578ff8db");
    }
}

//! [`ReplyParser`]: cuts a stream of bytes into replies, many in one go.
//!
//! The parser of the `redis` crate reads from a stream and takes in more than one reply has; where many answers come in
//! one read, that would cost a copy and a buffer for each; and an error with a byte that is no UTF-8 it does not read at all. What is understood here is RESP2, and no more of it than
//! stands in the answers to what we ask; a test holds it against that parser.

use crate::connection::Connection;
use crate::reply::{Reply, ServerError};

/// What has been understood of the reply that is not whole yet.
#[derive(Default)]
pub(crate) struct ReplyParser {
    /// How many of its bytes were looked at.
    scanned: usize,
    /// How many values it still lacks; zero between replies.
    open: u64,
}

type Garbage = &'static str;

/// Nobody has an honest use for deeper lists.
const DEEPEST: usize = 8;
/// Longer than any status or error.
const LONGEST_LINE: usize = 64 << 10;

const UNREADABLE: Garbage = "it cannot be parsed";
const ENDLESS: Garbage = "it has no end";

impl ReplyParser {
    /// Moves all whole replies from `bytes` to `replies`. Those before the garbage are good.
    pub(crate) fn cut(
        &mut self,
        bytes: &mut Vec<u8>,
        replies: &mut Vec<Reply>,
    ) -> Result<(), Garbage> {
        let mut begin = 0;
        while begin < bytes.len() {
            if !self.scan(&bytes[begin..])? {
                break;
            }
            let mut frame = &bytes[begin..begin + self.scanned];
            replies.push(decode(&mut frame, 0)?);
            begin += self.scanned;
            self.scanned = 0;
        }
        if begin == bytes.len() {
            bytes.clear();
        } else {
            bytes.drain(..begin);
        }
        if bytes.len() as u64 > Connection::LARGEST_REPLY { Err(ENDLESS) } else { Ok(()) }
    }

    /// Looks on where it stopped. `true`: the reply is whole, and has `scanned` bytes.
    fn scan(&mut self, bytes: &[u8]) -> Result<bool, Garbage> {
        if self.scanned == 0 {
            self.open = 1;
        }
        while self.open > 0 {
            let Some((kind, text, rest)) = line(&bytes[self.scanned..])? else {
                return Ok(false);
            };
            let length = bytes.len() - self.scanned - rest.len();
            match kind {
                b'$' => {
                    let count = count(text)?;
                    let body = count.map_or(0, |count| count + 2);
                    if rest.len() < body {
                        return Ok(false);
                    }
                    if count.is_some() && !rest[..body].ends_with(b"\r\n") {
                        return Err(UNREADABLE);
                    }
                    self.scanned += body;
                }
                b'*' => self.open += count(text)?.unwrap_or(0) as u64,
                b'+' | b'-' => {}
                b':' => drop(number(text)?),
                b'_' | b'#' | b',' | b'(' | b'!' | b'=' | b'%' | b'~' | b'>' | b'|' => {
                    return Err("it is RESP3, which nobody asked for");
                }
                _ => return Err(UNREADABLE),
            }
            self.scanned += length;
            self.open -= 1;
        }
        Ok(true)
    }
}

/// The first line: its kind, its text, and what follows.
type Line<'a> = (u8, &'a [u8], &'a [u8]);

/// `None` if the end of the line is not there yet.
fn line(bytes: &[u8]) -> Result<Option<Line<'_>>, Garbage> {
    let Some(&kind) = bytes.first() else { return Ok(None) };
    let Some(end) = bytes.iter().take(LONGEST_LINE).position(|byte| *byte == b'\n') else {
        // Garbage is seen by its first byte, also if it has no lines.
        let is_known = b"$*+-:_#,(!=%~>|".contains(&kind);
        return match () {
            () if !is_known => Err(UNREADABLE),
            () if bytes.len() >= LONGEST_LINE => Err(ENDLESS),
            () => Ok(None),
        };
    };
    let text = bytes[1..end.max(1)].strip_suffix(b"\r").ok_or(UNREADABLE)?;
    Ok(Some((kind, text, &bytes[end + 1..])))
}

fn number(text: &[u8]) -> Result<i64, Garbage> {
    // By hand: this is what nearly all our answers consist of.
    let (sign, digits) = match text {
        [b'-', digits @ ..] => (-1, digits),
        digits => (1, digits),
    };
    if digits.is_empty() {
        return Err(UNREADABLE);
    }
    digits.iter().try_fold(0_i64, |value, digit| {
        let digit = i64::from(digit.wrapping_sub(b'0'));
        let next = value.checked_mul(10).and_then(|value| value.checked_add(sign * digit));
        next.filter(|_| digit < 10).ok_or(UNREADABLE)
    })
}

/// How many bytes or values follow; `None` for nil.
fn count(text: &[u8]) -> Result<Option<usize>, Garbage> {
    match number(text)? {
        -1 => Ok(None),
        count => match usize::try_from(count) {
            Ok(count) if count as u64 <= Connection::LARGEST_REPLY => Ok(Some(count)),
            Ok(_) => Err(ENDLESS),
            Err(_) => Err(UNREADABLE),
        },
    }
}

/// Reads one value of a reply that is known to be whole.
fn decode(bytes: &mut &[u8], depth: usize) -> Result<Reply, Garbage> {
    if depth > DEEPEST {
        return Err(UNREADABLE);
    }
    let (kind, text, rest) = line(bytes)?.ok_or(UNREADABLE)?;
    *bytes = rest;
    Ok(match kind {
        b':' => Reply::Int(number(text)?),
        b'+' => Reply::Text(String::from_utf8_lossy(text).into_owned()),
        b'-' => Reply::Error(ServerError::parse(&String::from_utf8_lossy(text))),
        b'$' => match count(text)? {
            None => Reply::Nil,
            Some(count) => {
                let (value, rest) = rest.split_at_checked(count).ok_or(UNREADABLE)?;
                *bytes = rest.get(2..).ok_or(UNREADABLE)?;
                Reply::Bulk(value.to_vec())
            }
        },
        _ => match count(text)? {
            None => Reply::Nil,
            Some(count) => {
                // Each value has at least three bytes: a count alone asks for no memory.
                let mut items = Vec::with_capacity(count.min(bytes.len() / 3));
                for _ in 0..count {
                    items.push(decode(bytes, depth + 1)?);
                }
                Reply::Array(items)
            }
        },
    })
}

#[cfg(test)]
mod tests {
    use super::super::parsed_by_crate;
    use super::*;

    fn cut(bytes: &[u8], step: usize) -> (Vec<Reply>, Result<(), Garbage>) {
        let (mut parser, mut buffer, mut replies) =
            (ReplyParser::default(), Vec::new(), Vec::new());
        for part in bytes.chunks(step) {
            buffer.extend_from_slice(part);
            let outcome = parser.cut(&mut buffer, &mut replies);
            if outcome.is_err() {
                return (replies, outcome);
            }
        }
        (replies, Ok(()))
    }

    #[test]
    fn replies_are_those_of_the_other_parser_in_whatever_pieces_they_come() {
        let bytes = b":1\r\n:-120\r\n+OK\r\n$-1\r\n*-1\r\n$5\r\na\r\n\xff0\r\n$0\r\n\r\n*3\r\n:0\r\n*2\r\n$1\r\nx\r\n:9\r\n\
                      -ERR no\r\n-NOSCRIPT No it.\r\n:1790000000000000\r\n*0\r\n";
        let expected = parsed_by_crate(bytes);
        assert_eq!(expected.len(), 11);
        for step in [1, 2, 3, 7, bytes.len()] {
            assert_eq!(cut(bytes, step), (expected.clone(), Ok(())), "{step}");
        }
    }

    #[test]
    fn garbage_is_told_as_soon_as_it_is_seen() {
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
        ] {
            let (replies, outcome) = cut(bytes, bytes.len());
            assert!(replies.is_empty() && outcome.is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn what_has_no_end_is_told_before_it_fills_the_memory() {
        let line = [b"+".as_slice(), &[b'x'; 2 * LONGEST_LINE]].concat();
        for bytes in [&b"$2000000000\r\nx"[..], b"*9223372036854775807\r\n", &line] {
            assert_eq!(cut(bytes, 4096).1, Err(ENDLESS));
        }
        let deep = b"*1\r\n".repeat(100);
        assert_eq!(cut(&[&deep[..], b":1\r\n"].concat(), 64).1, Err(UNREADABLE));
    }
}

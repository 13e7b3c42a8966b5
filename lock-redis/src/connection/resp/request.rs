//! [`Request`]: a command and its arguments, and how they are encoded.

use crate::connection::Text;

/// A command whose words are given in groups, so that callers need not copy them together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a>(pub(crate) &'a [&'a [&'a [u8]]]);

impl Request<'_> {
    /// Appends the bytes of this request. The `redis` crate's `Cmd` would copy each word twice.
    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        write_count(b'*', self.0.iter().map(|group| group.len()).sum(), into);
        for word in self.0.iter().copied().flatten() {
            write_word(word, into);
        }
    }
}

/// Returns a copy of a request, with the script's text (`EVAL`) in place of its hash (`EVALSHA`).
pub(crate) fn with_text(by_hash: &[u8], text: &str) -> Vec<u8> {
    // The first line is the number of words; then the command and the hash have two lines each.
    let line_ends = by_hash
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n');
    let mut ends = line_ends.map(|(at, _)| at + 1).step_by(4);
    let (Some(words), Some(rest)) = (ends.next(), ends.next()) else {
        return Vec::new();
    };
    let mut request = by_hash[..words].to_vec();
    for word in ["EVAL", text] {
        write_word(word.as_bytes(), &mut request);
    }
    request.extend_from_slice(&by_hash[rest..]);
    request
}

/// Returns the words in a part of a request, each with its length and line ends, as it is sent.
/// Ends at a word that is not complete.
pub(crate) fn encoded_words(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let line = bytes.iter().position(|byte| *byte == b'\n')? + 1;
        let digits = bytes.get(1..line - 2)?;
        let length = digits.iter().try_fold(0_usize, |sum, digit| {
            sum.checked_mul(10)?
                .checked_add(usize::from(digit.wrapping_sub(b'0')))
        })?;
        let (word, rest) = bytes.split_at_checked(line + length + 2)?;
        bytes = rest;
        Some(word)
    })
}

pub(crate) fn write_word(word: &[u8], into: &mut Vec<u8>) {
    write_count(b'$', word.len(), into);
    into.extend_from_slice(word);
    into.extend_from_slice(b"\r\n");
}

/// Appends a line with a type byte and a count. Every word begins with such a line, so the usual
/// counts, of one or two digits, are written without a conversion to text.
pub(crate) fn write_count(kind: u8, count: usize, into: &mut Vec<u8>) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(groups: &[&[&[u8]]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        Request(groups).encode(&mut bytes);
        bytes
    }

    #[test]
    fn words_are_encoded_as_the_crate_encodes_them() {
        let word = [0, 9, 10, 99, 100, 1234].map(|length| vec![b'x'; length]);
        let groups: [&[&[u8]]; 2] = [&[b"SET", b"k\r\n"], &word.each_ref().map(Vec::as_slice)];
        let mut command = redis::cmd("SET");
        command.arg(b"k\r\n");
        command.arg(&word[..]);
        assert_eq!(encoded(&groups), command.get_packed_command());
    }

    #[test]
    fn request_by_hash_becomes_the_request_by_text() {
        let text = "return 1\nor 2";
        let hash = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
        let arguments: &[&[u8]] = &[b"1", b"key\r\n", b"", b"x"];
        let by_hash = encoded(&[&[b"EVALSHA", hash.as_bytes()], arguments]);
        assert_eq!(
            with_text(&by_hash, text),
            encoded(&[&[b"EVAL", text.as_bytes()], arguments])
        );
    }
}

//! [`Text`]: a short argument of a command, written without an allocation.

use lock_core::{ClientId, OwnerId};
use std::fmt::{self, Display, Write};
use std::time::Duration;

/// A text of at most [`Text::MAX`] bytes, stored in place.
pub(crate) struct Text {
    bytes: [u8; Self::MAX],
    length: usize,
}

impl Text {
    /// Enough for an owner: a UUID, a colon, and a number of up to 20 digits.
    const MAX: usize = ClientId::LENGTH + 1 + 20;

    /// Returns the text that `value` displays.
    pub(crate) fn of(value: impl Display) -> Self {
        let mut text = Self {
            bytes: [0; Self::MAX],
            length: 0,
        };
        write!(text, "{value}").expect("owners and numbers have at most 57 characters");
        text
    }

    /// Returns the digits of `value`: the text that [`of`](Self::of) returns, without the cost of
    /// general formatting.
    pub(crate) fn number(value: u64) -> Self {
        let mut text = Self {
            bytes: [0; Self::MAX],
            length: 0,
        };
        text.push_digits(value);
        text
    }

    /// Returns a time in whole milliseconds.
    pub(crate) fn millis(time: Duration) -> Self {
        Self::number(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }

    /// Returns an owner in its wire format, also without general formatting: nearly every request
    /// contains one, and a batch of renewals up to a hundred.
    pub(crate) fn owner(owner: OwnerId) -> Self {
        let mut text = Self {
            bytes: [0; Self::MAX],
            length: ClientId::LENGTH + 1,
        };
        let (client, number) = text
            .bytes
            .split_first_chunk_mut()
            .expect("there is room for it");
        owner.client().encode(client);
        number[0] = b':';
        text.push_digits(owner.number());
        text
    }

    fn push_digits(&mut self, mut value: u64) {
        let start = self.length;
        self.length += value.checked_ilog10().unwrap_or(0) as usize + 1;
        for byte in self.bytes[start..self.length].iter_mut().rev() {
            *byte = b'0' + (value % 10) as u8;
            value /= 10;
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        std::str::from_utf8(self.as_bytes()).expect("only text is put in")
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Write for Text {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let end = self.length + part.len();
        self.bytes
            .get_mut(self.length..end)
            .ok_or(fmt::Error)?
            .copy_from_slice(part.as_bytes());
        self.length = end;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn longest_owner_fits_into_a_text() {
        let owner = OwnerId::new(ClientId::random(), u64::MAX);
        assert_eq!(Text::of(owner).as_bytes(), owner.to_string().as_bytes());
        assert_eq!(Text::owner(owner).as_bytes(), owner.to_string().as_bytes());
        assert_eq!(Text::of(0).as_bytes(), b"0");
    }

    #[test]
    fn numbers_are_printed_in_decimal() {
        for value in [0, 7, 10, 99, 100, 30_000, u64::MAX] {
            assert_eq!(Text::number(value).as_bytes(), value.to_string().as_bytes());
        }
    }
}

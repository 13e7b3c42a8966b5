//! [`PermitId`]: the identity of one permit of a semaphore, by which stores and other programs name
//! it.

use crate::backend::owner::OwnerId;
use crate::error::Error;
use std::fmt;
use std::str::FromStr;

/// The largest number of permits of a semaphore.
pub(crate) const MAX_PERMITS: u32 = 1_000_000;

/// The identity of one permit of a [`Semaphore`](crate::Semaphore), valid in all programs. It has
/// 16 bytes and is printed as 32 hexadecimal digits, as by Redisson's `RPermitExpirableSemaphore`.
///
/// Any program that knows the identity can release the permit, so [`fmt::Debug`] shows only the
/// first characters. Keep the whole text out of logs.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::admin::PermitId;
///
/// let client = distlock::builder().url("memory://")?.connect()?;
/// let downloads = client.semaphore("downloads", 3)?;
/// let permit = downloads.acquire()?;
/// let text = permit.permit_ids()[0].to_string();
///
/// let id: PermitId = text.parse()?;
/// assert!(downloads.release_permit(id)?);
/// assert!(!downloads.release_permit(id)?, "it is free already");
/// # Ok::<(), distlock::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PermitId([u8; 16]);

impl PermitId {
    /// The number of leading bytes that the permits of one acquisition have in common. The
    /// remaining three bytes are the number of the permit.
    pub const COMMON_BYTES: usize = 13;

    /// Makes the identity of the permit `number`, counted from 0, among the permits that `owner`
    /// acquired.
    ///
    /// The identity begins with the first 13 bytes of the client's UUID. The last five of these are
    /// combined (XOR) with the low five bytes of the owner's number. The last three bytes of the
    /// identity are `number`.
    #[must_use]
    pub fn new(owner: OwnerId, number: u32) -> Self {
        let mut id = [0; 16];
        id[..Self::COMMON_BYTES].copy_from_slice(&owner.client().as_bytes()[..Self::COMMON_BYTES]);
        let of_owner = owner.number().to_be_bytes();
        for (byte, of_number) in id[8..Self::COMMON_BYTES].iter_mut().zip(&of_owner[3..]) {
            *byte ^= of_number;
        }
        id[Self::COMMON_BYTES..].copy_from_slice(&number.to_be_bytes()[1..]);
        Self(id)
    }

    /// Makes the identity that consists of these bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the identity, as stores contain them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns the number of the permit if this owner acquired it; otherwise `None`.
    pub(crate) fn number_of(&self, owner: OwnerId) -> Option<u32> {
        let [.., high, middle, low] = self.0;
        let number = u32::from_be_bytes([0, high, middle, low]);
        (Self::new(owner, number) == *self).then_some(number)
    }
}

/// Prints 32 hexadecimal digits, as Redisson does.
impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "PermitId({a:02x}{b:02x}{c:02x}{d:02x}..)")
    }
}

impl FromStr for PermitId {
    type Err = Error;

    /// Parses the text that [`Display`](fmt::Display) prints.
    fn from_str(text: &str) -> Result<Self, Error> {
        let refused = || {
            Error::misuse(
                "a permit is named by 32 hexadecimal digits, as `permit_ids` of its guard and \
                 Redisson's `acquire` return them, and this text is not",
            )
        };
        let digits = text.as_bytes();
        if digits.len() != 32 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(refused());
        }
        let mut id = [0; 16];
        for (byte, digits) in id.iter_mut().zip(text.as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).map_err(|_| refused())?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| refused())?;
        }
        Ok(Self(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::owner::ClientId;
    use std::collections::HashSet;

    #[test]
    fn permits_of_different_owners_differ() {
        let (one, other) = (ClientId::random(), ClientId::random());
        let numbers = [0, 1, 255, 256, (1 << 40) - 1, 1 << 39];
        let owners = [one, other].map(|client| numbers.map(|it| OwnerId::new(client, it)));
        let permits = [0, 1, 256, 999_999];
        let of = |owner: &OwnerId| permits.map(|number| PermitId::new(*owner, number));
        let all: HashSet<_> = owners.as_flattened().iter().flat_map(of).collect();
        assert_eq!(all.len(), 2 * numbers.len() * permits.len());
        for owner in owners.as_flattened() {
            for id in &all {
                let number = id.number_of(*owner);
                assert_eq!(number.is_some(), of(owner).contains(id));
                assert!(number.is_none_or(|number| PermitId::new(*owner, number) == *id));
            }
        }
    }

    #[test]
    fn permit_is_printed_as_redisson_prints_it_and_read_back() {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&[0, 1, 0xab, 0xff]);
        let id = PermitId::from_bytes(bytes);
        assert_eq!(id.to_string(), format!("0001abff{}", "0".repeat(24)));
        assert_eq!(id.to_string().parse::<PermitId>().unwrap(), id);
        assert_eq!(format!("{id:?}"), "PermitId(0001abff..)");
        for wrong in [
            "",
            "0001abff",
            &"0".repeat(33),
            &"+".repeat(32),
            &"ä".repeat(16),
        ] {
            assert!(
                wrong.parse::<PermitId>().unwrap_err().is_misuse(),
                "{wrong}"
            );
        }
    }
}

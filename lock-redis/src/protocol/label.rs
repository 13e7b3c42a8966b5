//! The label of a lock's owner: the owner's name and the time since which the owner has held the
//! lock, for display. The label is stored in a companion key of the lock; with several holders, in
//! a companion key for each holder.
//!
//! The label is written by a separate command, behind the script that renews and in the same write.
//! If the script declared the label's key, renewals would fail for users without a right to that
//! key, and on a cluster while the slot is being moved. A label may arrive late, so it names its
//! owner, and is shown for no other owner. One renewal in every two leases writes the label again,
//! because the late label of a former owner may have replaced it.

use crate::connection::{Reply, Text};
use crate::keys;
use lock_core::backend::{HolderInfo, LockInfo, RenewalRequest};
use lock_core::{Config, OwnerLabel};
use std::time::{Duration, UNIX_EPOCH};

/// The choice to read the labels of holders, or to leave them out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Labels {
    Read,
    LeftOut,
}

/// A label to be written: `SET distlock_owner:{name} "OWNER MILLISECONDS TEXT" PX TIME`.
pub(super) struct LabelWrite {
    key: String,
    value: String,
    time: Text,
}

impl LabelWrite {
    /// Returns the label to write for the lock under `key`; `None` if the renewal carries no label.
    /// `owner` is the owner as inspections show it.
    pub(super) fn of(renewal: &RenewalRequest, key: &str, owner: &str) -> Option<Self> {
        let OwnerLabel { text, since, .. } = renewal.label.as_ref()?;
        let is_shared = renewal.acquisition.name.kind().is_shared();
        let lease = renewal.acquisition.lease.as_millis();
        let since = Text::millis(since.duration_since(UNIX_EPOCH).unwrap_or_default());
        Some(Self {
            key: if is_shared {
                keys::label_of(key, owner)
            } else {
                keys::label(key)
            },
            value: [owner, " ", since.as_str(), " ", text].concat(),
            time: Text::number(lease.saturating_mul(OwnerLabel::LEASES.into())),
        })
    }

    pub(super) fn words(&self) -> [&[u8]; 5] {
        let Self { key, value, time } = self;
        [
            b"SET",
            key.as_bytes(),
            value.as_bytes(),
            b"PX",
            time.as_bytes(),
        ]
    }
}

/// The first millisecond of the year 10000, which the usual date formats cannot write.
const YEAR_10000: u64 = 253_402_300_800_000;

/// Returns the keys of the labels of a lock's holders, as far as the holders are known.
pub(super) fn keys_of(key: &str, info: &LockInfo) -> Vec<String> {
    let shares = match &info.readers {
        Some(readers) if !readers.known.is_empty() => &readers.known[..],
        _ if info.permits.is_some() => info.holder.as_slice(),
        _ => return info.holder.iter().map(|_| keys::label(key)).collect(),
    };
    shares
        .iter()
        .map(|share| keys::label_of(key, share.owner.as_str()))
        .collect()
}

/// Adds the labels in these replies to the holders, in the order of `keys_of`.
pub(super) fn add(info: &mut LockInfo, replies: &[Reply]) {
    let readers = info
        .readers
        .iter_mut()
        .flat_map(|readers| &mut readers.known);
    // For several readers, `info.holder` is the first of them.
    let holders = info
        .holder
        .iter_mut()
        .zip(replies.first())
        .chain(readers.zip(replies));
    holders.for_each(|(holder, reply)| add_to(holder, Some(reply)));
}

/// Adds the label in this reply to its holder.
pub(super) fn add_to(holder: &mut HolderInfo, reply: Option<&Reply>) {
    let value = reply.and_then(Reply::as_bytes);
    holder.label = value.and_then(|value| of(value, holder.owner.as_str()));
}

/// Reads the label in a value; `None` if it is not that of `owner`, or this library cannot have
/// written it.
fn of(value: &[u8], owner: &str) -> Option<OwnerLabel> {
    let rest = std::str::from_utf8(value)
        .ok()?
        .strip_prefix(owner)?
        .strip_prefix(' ')?;
    let (since, text) = rest.split_once(' ')?;
    let since = since.parse().ok().filter(|since| *since < YEAR_10000)?;
    let is_ours = text.len() <= Config::LONGEST_OWNER && !text.contains(char::is_control);
    is_ours.then(|| OwnerLabel::new(text.into(), Duration::from_millis(since)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::backend::{AcquisitionId, Receipt};
    use lock_core::{ClientId, LeaseTime, LockName, OwnerId};

    #[test]
    fn label_is_read_as_written_and_for_its_owner_only() {
        let client = ClientId::random();
        let [owner, other] = [11, 1].map(|number| OwnerId::new(client, number));
        let lease = LeaseTime::new(Duration::from_secs(30)).unwrap();
        let name = LockName::new("a b").unwrap();
        let acquisition = AcquisitionId::new(name, owner, lease, Receipt::default());
        let label = OwnerLabel::new("till 7, \"Łódź\"".into(), Duration::from_micros(1_234_567));
        let renewal = RenewalRequest::new(acquisition).label(Some(label.clone()));
        let write = LabelWrite::of(&renewal, "a b", &owner.to_string()).unwrap();
        let [set, key, value, px, time] = write.words();
        assert_eq!(
            [set, key, px, time],
            [&b"SET"[..], b"distlock_owner:{a b}", b"PX", b"90000"]
        );
        assert_eq!(of(value, &owner.to_string()), Some(label));
        assert_eq!(of(value, &other.to_string()), None);
        for odd in [
            "",
            "x",
            &format!("{owner}"),
            &format!("{owner} "),
            &format!("{owner} x y"),
        ] {
            assert_eq!(of(odd.as_bytes(), &owner.to_string()), None, "{odd:?}");
        }
        let renewal = renewal.label(None);
        assert!(LabelWrite::of(&renewal, "a b", &owner.to_string()).is_none());
    }

    #[test]
    fn label_that_this_library_cannot_write_is_ignored() {
        let owner = OwnerId::new(ClientId::random(), 7).to_string();
        let read =
            |since: u64, text: &str| of(format!("{owner} {since} {text}").as_bytes(), &owner);
        assert!(read(YEAR_10000 - 1, &"x".repeat(Config::LONGEST_OWNER)).is_some());
        assert_eq!(read(YEAR_10000, "x"), None);
        assert_eq!(read(u64::MAX, "x"), None);
        assert_eq!(read(1, &"x".repeat(Config::LONGEST_OWNER + 1)), None);
        for control in ["a\n", "\u{1b}[2J", "\u{7f}", "\u{9b}2J"] {
            assert_eq!(read(1, control), None, "{control:?}");
        }
    }
}

//! Hash of a [`Column`] in few writes: a derived hash writes each field, which takes most of the
//! checker's time. Every field is named here, so that a new field does not compile without its
//! hash.

use super::{Cell, Column, MOST_ATTEMPTS};
use crate::node::{Counter, Disk, Marker, Node, View};
use std::hash::{Hash, Hasher};

impl Hash for Column {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        let Self {
            is_mortal,
            node,
            cells,
            renewals,
            votes,
            late_votes,
            short,
            closing,
            awaits,
            renews,
        } = *self;
        let Node {
            now,
            run,
            disk,
            saved,
        } = node;
        let flags = u8::from(is_mortal);
        hasher.write_u64(u64::from_be_bytes([
            flags, closing, awaits, renews, now, run, late_votes, short,
        ]));
        hasher.write_u128(of_a_disk(disk));
        hasher.write_u128(of_a_disk(saved));
        for attempt in 0..MOST_ATTEMPTS {
            let [first, second] = cells[attempt].map(of_a_cell);
            let [renewal, vote] = [renewals[attempt], votes[attempt]].map(of_a_cell);
            let [a, b, c, d] = [first, second, renewal, vote].map(u64::from);
            hasher.write_u64(a << 48 | b << 32 | c << 16 | d);
        }
    }
}

fn of_a_disk(disk: Disk) -> u128 {
    let Disk {
        lock,
        counter,
        closed,
        marker,
    } = disk;
    let [has_lock, lock] = lock.map_or([0; 2], |lock| [1, lock]);
    let of_a_counter = |Counter { value, stands_for }| [1, value, stands_for];
    let [has_counter, value, stands_for] = counter.map_or([0; 3], of_a_counter);
    let of_a_marker = |Marker {
                           run,
                           since,
                           view: View { quorum, epoch },
                       }| [1, run, since, quorum, epoch];
    let [has_marker, run, since, quorum, epoch] = marker.map_or([0; 5], of_a_marker);
    let has = has_lock | has_counter << 1 | has_marker << 2;
    let bytes = [
        has, lock, value, stands_for, run, since, quorum, epoch, closed,
    ];
    bytes
        .into_iter()
        .fold(0, |packed, byte| packed << 8 | u128::from(byte))
}

fn of_a_cell(cell: Cell) -> u16 {
    let [what, which] = match cell {
        Cell::Unsent => [0, 0],
        Cell::Sent => [1, 0],
        Cell::Done => [2, 0],
        Cell::Granted(View { quorum, epoch }) => [3, quorum << 4 | epoch],
        Cell::Stale(token) => [4, token],
        Cell::Counted(token) => [5, token],
    };
    u16::from_be_bytes([what, which])
}

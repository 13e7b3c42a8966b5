//! [`Ledger`]: a network that loses replies and delays requests, and records which client holds
//! the lock.

use distlock_tests::proxy::{Fault, Plan, Sometimes, Turn};
use distlock_tests::resp::{Kind, Request};
use lock_core::{Clock, Moment, SystemClock};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// A proxy's plan for one lock. All requests of all clients pass it, so it knows what no single
/// client knows.
pub(super) struct Ledger {
    swallow: Sometimes,
    hold_back: Sometimes,
    /// The shortest and the longest time for which a request is held back.
    late: [Duration; 2],
    /// If false, a close is changed so that it leaves no tombstone.
    tombstones: bool,
    random: Mutex<fastrand::Rng>,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    /// Owners whose release the server has carried out and answered: they must never hold again.
    closed: HashSet<String>,
    /// The number of late acquires per owner that were sent after the owner was closed, and that
    /// the server has not answered.
    posthumous: HashMap<String, u32>,
    /// The last owner that was granted the lock, until it sends the release.
    inside: Option<String>,
    /// Since when no owner has held the lock.
    idle_since: Option<Moment>,
    counts: Counts,
}

/// Counts of the requests that were lost or delayed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Counts {
    /// Swallowed answers that were grants.
    pub(super) swallowed_grants: u64,
    /// Swallowed answers to acquires, grants or not.
    pub(super) swallowed_acquires: u64,
    /// Swallowed answers to releases that freed the lock.
    pub(super) swallowed_releases: u64,
    pub(super) late_acquires: u64,
    /// Late acquires that arrived after their owner had been closed.
    pub(super) late_after_close: u64,
    pub(super) late_releases: u64,
    /// Acquires of a closed owner that were granted or entered the queue. Such an owner has no
    /// client: nothing would release its lock.
    pub(super) zombies: u64,
    /// The longest time between a holder's release request and the grant that the next holder
    /// received.
    pub(super) longest_idle: Duration,
}

impl Ledger {
    pub(super) fn new(seed: u64, tombstones: bool) -> Self {
        let chance = |seed| Turn::Chance { of_1000: 30, seed };
        Self {
            swallow: Sometimes::new(None, chance(seed), Fault::SwallowReply),
            hold_back: Sometimes::new(None, chance(seed + 1), Fault::Pass),
            late: [Duration::from_millis(60), Duration::from_millis(400)],
            tombstones,
            random: Mutex::new(fastrand::Rng::with_seed(seed + 2)),
            book: Mutex::default(),
        }
    }

    pub(super) fn counts(&self) -> Counts {
        self.book.lock().counts
    }
}

impl Plan for Ledger {
    fn fate(&self, request: &mut Request) -> Fault {
        let (kind, owner) = (request.kind(), request.owner());
        let Some(owner) = owner else {
            return Fault::Pass;
        };
        if kind == Kind::Close && !self.tombstones {
            request.replace_argument(5, "0"); // how long the tombstone stays
        }
        if kind != Kind::Acquire {
            let mut book = self.book.lock();
            if book.inside.as_ref() == Some(&owner) {
                book.inside = None;
                book.idle_since = Some(SystemClock.now());
            }
        }
        if self.hold_back.strikes(request) {
            let [least, most] = self.late.map(|time| time.as_millis());
            let time = self.random.lock().u128(least..=most);
            return Fault::Late(Duration::from_millis(u64::try_from(time).unwrap()));
        }
        self.swallow.fate(request)
    }

    fn departs_late(&self, request: &Request) {
        if let Some(owner) = request.owner().filter(|_| request.kind() == Kind::Acquire) {
            let mut book = self.book.lock();
            if book.closed.contains(&owner) {
                *book.posthumous.entry(owner).or_default() += 1;
            }
        }
    }

    fn answered(&self, request: &Request, reply: &[u8], fault: Fault) {
        let Some(owner) = request.owner() else { return };
        let is_acquire = request.kind() == Kind::Acquire;
        let is_late = matches!(fault, Fault::Late(_));
        // An error is not a result of the script. The server may not know the script; then the
        // client sends it again.
        if reply.starts_with(b"-") {
            return;
        }
        let has_it = if is_acquire {
            granted(reply)
        } else {
            reply.starts_with(b":") && reply != b":0\r\n"
        };
        let book = &mut *self.book.lock();
        let counts = &mut book.counts;
        if fault == Fault::SwallowReply {
            counts.swallowed_acquires += u64::from(is_acquire);
            counts.swallowed_grants += u64::from(is_acquire && has_it);
            counts.swallowed_releases += u64::from(!is_acquire && has_it);
        }
        if is_late {
            *(if is_acquire {
                &mut counts.late_acquires
            } else {
                &mut counts.late_releases
            }) += 1;
        }
        if !is_acquire {
            book.closed.insert(owner);
            return;
        }
        if is_late {
            if let Some(left) = book.posthumous.get_mut(&owner).filter(|left| **left > 0) {
                *left -= 1;
                counts.late_after_close += 1;
                counts.zombies += u64::from(!refused_as_closed(reply));
            }
        } else if has_it && fault == Fault::Pass {
            if let Some(since) = book.idle_since.take() {
                counts.longest_idle = counts.longest_idle.max(SystemClock.now().since(since));
            }
            book.inside = Some(owner);
        }
    }
}

/// Returns whether this is a grant: its reply is a token or a number, and all other replies are
/// lists.
fn granted(reply: &[u8]) -> bool {
    reply.starts_with(b"$") || reply.starts_with(b":")
}

/// Returns whether the script has refused an acquire because its owner is closed.
fn refused_as_closed(reply: &[u8]) -> bool {
    reply.starts_with(b"*4\r\n:0\r\n:-2\r\n")
}

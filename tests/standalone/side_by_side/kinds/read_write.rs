//! Read-write locks on both stores.

use super::{Request, Scenario};
use lock_core::LockKind;
use std::time::Duration;

static READ_WRITE: Scenario = Scenario {
    name: "read-write",
    step: Duration::from_secs(7),
    leases: [10, 25, 60, 109],
    random,
    has_readers: true,
    may_differ,
    expected: &[
        "Acquire -> granted",
        "Acquire -> busy",
        "Renew -> Gone",
        "Release -> gone",
    ],
};

/// Returns a random request. Where time passes, no writer reads as well: on Redis the lock then
/// lasts for the longer one of the two leases. And there is no mutex, which on Redis waits until
/// the hash of dead readers has expired.
fn random(random: &mut fastrand::Rng, time_passes: bool) -> Request {
    let owner = random.u64(0..super::OWNERS);
    let kinds = [
        LockKind::Read,
        LockKind::Read,
        LockKind::Write,
        LockKind::Mutex,
    ];
    let among = if random.u8(0..8) == 0 && !time_passes {
        4
    } else {
        3
    };
    let kind = kinds[random.usize(0..among)];
    let lease = random.usize(0..4);
    match random.u8(0..100) {
        0..=39 => {
            let beside = (kind == LockKind::Read && !time_passes).then_some(owner);
            Request::Acquire {
                owner,
                kind,
                lease,
                beside,
                waits: true,
            }
        }
        40..=54 => Request::Renew { owner, kind, lease },
        55..=79 => {
            let keeps = kind == LockKind::Write && random.u8(0..8) == 0;
            Request::Release {
                owner,
                kind,
                closes: random.u8(0..12) == 0,
                keeps,
            }
        }
        80..=86 => Request::Verify { owner, kind },
        87..=91 => Request::Inspect(kinds[1 + random.usize(0..2)]),
        92 => Request::Force(kinds[1 + random.usize(0..2)]),
        _ if time_passes => Request::Pass,
        _ => Request::Verify { owner, kind },
    }
}

/// On Redis, dead readers stay in the hash until a writer purges them, so a forced release may
/// still find them.
pub(super) fn may_differ(request: Request, memory: &str, redis: &str) -> bool {
    matches!(request, Request::Force(_)) && (memory, redis) == ("was held: false", "was held: true")
}

#[test]
fn read_write_locks_of_memory_and_redis_answer_alike() {
    super::memory_and_redis_answer_alike(&READ_WRITE, super::CASES);
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn read_write_locks_answer_alike_long() {
    super::memory_and_redis_answer_alike(&READ_WRITE, super::MANY);
}

#[test]
fn differences_of_read_write_locks_are_found() {
    super::differences_are_found(
        &READ_WRITE,
        &[
            (
                "no reader is let in beside its writer",
                |request| match request {
                    Request::Acquire {
                        owner,
                        kind,
                        lease,
                        waits,
                        ..
                    } => Request::Acquire {
                        owner,
                        kind,
                        lease,
                        beside: None,
                        waits,
                    },
                    other => other,
                },
            ),
            ("closed owners are let in", without_tombstones),
            ("renewals are for the shortest lease", with_short_renewals),
        ],
    );
}

/// Changes a release so that it leaves no tombstone.
pub(super) fn without_tombstones(request: Request) -> Request {
    match request {
        Request::Release {
            owner, kind, keeps, ..
        } => Request::Release {
            owner,
            kind,
            closes: false,
            keeps,
        },
        other => other,
    }
}

/// Changes an attempt so that its caller waits, or so that it does not.
pub(super) fn with_waits(request: Request, waits: bool) -> Request {
    match request {
        Request::Acquire {
            owner,
            kind,
            lease,
            beside,
            ..
        } => Request::Acquire {
            owner,
            kind,
            lease,
            beside,
            waits,
        },
        other => other,
    }
}

/// Changes a renewal to the shortest lease.
pub(super) fn with_short_renewals(request: Request) -> Request {
    match request {
        Request::Renew { owner, kind, .. } => Request::Renew {
            owner,
            kind,
            lease: 0,
        },
        other => other,
    }
}

//! Fair read-write locks on both stores: the queue, which waiter is named as the next one, and
//! requests of other kinds in between.

use super::read_write::{may_differ, without_tombstones};
use super::{Request, Scenario};
use lock_core::LockKind;
use std::time::Duration;

static FAIR_READ_WRITE: Scenario = Scenario {
    name: "fair_read_write",
    // A waiter is present after one step, and absent after two.
    step: Duration::from_secs(2),
    leases: [501, 601, 701, 801],
    random,
    has_readers: true,
    may_differ,
    expected: &[
        "Acquire -> granted",
        "Acquire -> busy",
        "Release -> freed",
        "Release -> gone",
        "Force -> was held: true",
        "named as the next one",
    ],
};

/// Returns a kind: mostly a fair reader, often a fair writer, and sometimes another kind.
fn kind(random: &mut fastrand::Rng) -> LockKind {
    match random.u8(0..24) {
        0 => LockKind::Read,
        1 => LockKind::Write,
        2 => LockKind::Mutex,
        3 => LockKind::Fair,
        4..=11 => LockKind::FairWrite,
        _ => LockKind::FairRead,
    }
}

/// Returns a random request. Where time passes, no writer reads as well: on Redis the lock then
/// lasts for the longer one of the two leases.
fn random(random: &mut fastrand::Rng, time_passes: bool) -> Request {
    let (owner, kind, lease) = (
        random.u64(0..super::OWNERS),
        kind(random),
        random.usize(0..4),
    );
    let fair = [LockKind::FairRead, LockKind::FairWrite][random.usize(0..2)];
    match random.u8(0..100) {
        0..=45 => Request::Acquire {
            owner,
            kind,
            lease,
            beside: (kind.is_reader() && !time_passes).then_some(owner),
            waits: owner > 0,
        },
        46..=52 => Request::Renew { owner, kind, lease },
        53..=81 => Request::Release {
            owner,
            kind,
            closes: random.u8(0..12) == 0,
            keeps: kind == LockKind::FairWrite && random.u8(0..8) == 0,
        },
        82..=85 => Request::Verify { owner, kind },
        86..=89 => Request::Inspect(fair),
        90..=92 => Request::Force(fair),
        _ if time_passes => Request::Pass,
        _ => Request::Inspect(fair),
    }
}

#[test]
fn fair_read_write_locks_of_memory_and_redis_answer_alike() {
    super::memory_and_redis_answer_alike(&FAIR_READ_WRITE, super::CASES);
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn fair_read_write_locks_answer_alike_long() {
    super::memory_and_redis_answer_alike(&FAIR_READ_WRITE, super::MANY);
}

#[test]
fn differences_of_fair_read_write_locks_are_found() {
    super::differences_are_found(
        &FAIR_READ_WRITE,
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
            ("readers in no order", |request| match request {
                Request::Acquire {
                    owner,
                    kind: LockKind::FairRead,
                    lease,
                    beside,
                    waits,
                } => Request::Acquire {
                    owner,
                    kind: LockKind::Read,
                    lease,
                    beside,
                    waits,
                },
                other => other,
            }),
            ("closed owners are let in", without_tombstones),
        ],
    );
}

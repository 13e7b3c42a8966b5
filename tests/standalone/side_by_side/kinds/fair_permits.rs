//! Fair semaphores on both stores: the queue, which waiter is named as the next one, and requests
//! of plain semaphores in between.

use super::read_write::{with_waits, without_tombstones};
use super::{Request, Scenario};
use lock_core::LockKind;
use std::time::Duration;

static FAIR_PERMITS: Scenario = Scenario {
    name: "fair_permits",
    // A waiter is present after one step, and absent after two. No permit expires.
    step: Duration::from_secs(2),
    leases: [501, 601, 701, 801],
    random,
    has_readers: false,
    may_differ: |_, _, _| false,
    expected: &[
        "Acquire -> granted",
        "Acquire -> busy",
        "Release -> gone",
        "Force -> was held: true",
        "ReleaseOne -> Changed",
        "ExtendOne -> Changed",
        "AddPermits -> Limit",
        "SetPermits -> Limit { before: None",
        "named as the next one",
    ],
};

/// Returns a kind with one to three permits, mostly of a fair semaphore and sometimes of a plain
/// one.
fn permits(random: &mut fastrand::Rng, owner: u64) -> LockKind {
    let (limit, count) = (5, 1 + u32::try_from(owner % 3).unwrap());
    match random.u8(0..12) {
        0 => LockKind::Permits { limit, count },
        _ => LockKind::FairPermits { limit, count },
    }
}

fn random(random: &mut fastrand::Rng, time_passes: bool) -> Request {
    let owner = random.u64(0..super::OWNERS);
    let kind = permits(random, owner);
    let lease = random.usize(0..4);
    match random.u8(0..100) {
        0..=43 => {
            let waits = owner > 0;
            Request::Acquire {
                owner,
                kind,
                lease,
                beside: None,
                waits,
            }
        }
        44..=46 => {
            // All free permits (a count of 0), by owners that make no other request.
            let kind = LockKind::FairPermits { limit: 5, count: 0 };
            Request::Acquire {
                owner,
                kind,
                lease,
                beside: None,
                waits: false,
            }
        }
        47 => Request::AddPermits(kind, random.i32(-4..5)),
        48 => Request::ReleaseOne {
            owner,
            kind,
            number: random.u32(0..3),
        },
        49 => Request::ExtendOne {
            owner,
            kind,
            number: random.u32(0..3),
            lease,
        },
        50..=54 => Request::Renew { owner, kind, lease },
        55..=79 => {
            let closes = random.u8(0..12) == 0;
            Request::Release {
                owner,
                kind,
                closes,
                keeps: false,
            }
        }
        80..=84 => Request::Verify { owner, kind },
        85..=88 => Request::Inspect(kind),
        89 => Request::Force(kind),
        90..=92 => {
            let limit = random.u32(0..8);
            Request::SetPermits(match random.bool() {
                true => LockKind::FairPermits { limit, count: 1 },
                false => LockKind::Permits { limit, count: 1 },
            })
        }
        _ if time_passes => Request::Pass,
        _ => Request::Inspect(kind),
    }
}

#[test]
fn fair_semaphores_of_memory_and_redis_answer_alike() {
    super::memory_and_redis_answer_alike(&FAIR_PERMITS, super::CASES);
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn fair_semaphores_answer_alike_long() {
    super::memory_and_redis_answer_alike(&FAIR_PERMITS, super::MANY);
}

#[test]
fn differences_of_fair_semaphores_are_found() {
    super::differences_are_found(
        &FAIR_PERMITS,
        &[
            ("no waiter has a position", |request| {
                with_waits(request, false)
            }),
            ("permits in no order", |request| match request {
                Request::Acquire {
                    owner,
                    kind: LockKind::FairPermits { limit, count },
                    lease,
                    beside,
                    waits,
                } => {
                    let kind = LockKind::Permits { limit, count };
                    Request::Acquire {
                        owner,
                        kind,
                        lease,
                        beside,
                        waits,
                    }
                }
                other => other,
            }),
            ("closed owners are let in", without_tombstones),
        ],
    );
}

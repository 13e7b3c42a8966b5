//! Semaphores on both stores.

use super::read_write::{with_short_renewals, without_tombstones};
use super::{Request, Scenario};
use lock_core::LockKind;
use std::time::Duration;

static PERMITS: Scenario = Scenario {
    name: "permits",
    step: Duration::from_secs(7),
    leases: [10, 25, 60, 109],
    random,
    has_readers: false,
    may_differ,
    expected: &[
        "Acquire -> granted 1 of 5",
        "Acquire -> granted 3 of 7",
        "Acquire -> granted 4 of",
        "Acquire -> busy",
        "Acquire -> refused",
        "Renew -> Gone",
        "Release -> gone",
        "Force -> was held: true",
        "SetPermits -> Limit { before: None",
        "AddPermits -> Limit { before: Some",
        "AddPermits -> refused",
        "ReleaseOne -> Changed",
        "ReleaseOne -> NotTaken",
        "ExtendOne -> Changed",
        "ExtendOne -> NotTaken",
    ],
};

/// Returns a kind with one to three permits, and with a limit that may differ from the stored one.
fn permits(owner: u64) -> LockKind {
    let limit = if owner % 4 == 3 { 7 } else { 5 };
    LockKind::Permits {
        limit,
        count: 1 + u32::try_from(owner % 3).unwrap(),
    }
}

fn set(limit: u32) -> Request {
    Request::SetPermits(LockKind::Permits { limit, count: 1 })
}

fn random(random: &mut fastrand::Rng, time_passes: bool) -> Request {
    let owner = random.u64(0..super::OWNERS);
    let kind = match random.u8(0..40) {
        0 => LockKind::Mutex,
        _ => permits(owner),
    };
    let lease = random.usize(0..4);
    match random.u8(0..100) {
        0..=33 => Request::Acquire {
            owner,
            kind,
            lease,
            beside: None,
            waits: true,
        },
        34..=36 => {
            // All free permits (a count of 0), by owners that make no other request.
            let kind = LockKind::Permits { limit: 5, count: 0 };
            Request::Acquire {
                owner,
                kind,
                lease,
                beside: None,
                waits: true,
            }
        }
        37 => Request::AddPermits(LockKind::Permits { limit: 4, count: 1 }, random.i32(-4..5)),
        38..=39 => Request::ReleaseOne {
            owner,
            kind: permits(owner),
            number: random.u32(0..3),
        },
        40..=42 => {
            let number = random.u32(0..3);
            Request::ExtendOne {
                owner,
                kind: permits(owner),
                number,
                lease,
            }
        }
        43..=54 => Request::Renew {
            owner,
            kind: permits(owner),
            lease,
        },
        55..=74 => {
            let closes = random.u8(0..12) == 0;
            Request::Release {
                owner,
                kind: permits(owner),
                closes,
                keeps: false,
            }
        }
        75..=80 => Request::Verify {
            owner,
            kind: permits(owner),
        },
        81..=88 => Request::Inspect(permits(owner)),
        89 => Request::Force(permits(owner)),
        90..=92 => set(random.u32(0..8)),
        _ if time_passes => Request::Pass,
        _ => Request::Inspect(permits(owner)),
    }
}

/// On Redis, expired permits stay in the set until an attempt removes them. A release that still
/// finds them answers `freed`, because no other client had them meanwhile.
fn may_differ(request: Request, memory: &str, redis: &str) -> bool {
    match request {
        Request::Force(_) => (memory, redis) == ("was held: false", "was held: true"),
        Request::Release { .. } => (memory, redis) == ("gone", "freed"),
        _ => false,
    }
}

#[test]
fn semaphores_of_memory_and_redis_answer_alike() {
    super::memory_and_redis_answer_alike(&PERMITS, super::CASES);
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn semaphores_answer_alike_long() {
    super::memory_and_redis_answer_alike(&PERMITS, super::MANY);
}

#[test]
fn differences_of_semaphores_are_found() {
    super::differences_are_found(
        &PERMITS,
        &[
            (
                "one permit is taken, whatever is asked for",
                |request| match request {
                    Request::Acquire {
                        owner,
                        kind,
                        lease,
                        beside,
                        waits,
                    } => {
                        let kind = match kind {
                            LockKind::Permits { limit, .. } => {
                                LockKind::Permits { limit, count: 1 }
                            }
                            other => other,
                        };
                        Request::Acquire {
                            owner,
                            kind,
                            lease,
                            beside,
                            waits,
                        }
                    }
                    other => other,
                },
            ),
            ("the limit is never changed", |request| match request {
                Request::SetPermits(_) => set(5),
                other => other,
            }),
            ("closed owners are let in", without_tombstones),
            ("renewals are for the shortest lease", with_short_renewals),
            ("no permits come back by force", |request| match request {
                Request::Force(kind) => Request::Inspect(kind),
                other => other,
            }),
        ],
    );
}

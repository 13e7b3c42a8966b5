//! Fair locks on both stores: the queue, and which waiter is named as the next one.

use super::read_write::{with_short_renewals, with_waits, without_tombstones};
use super::{Request, Scenario};
use lock_core::LockKind;
use std::time::Duration;

static FAIR: Scenario = Scenario {
    name: "fair",
    // A waiter is present after one step, and absent after two.
    step: Duration::from_secs(2),
    leases: [5, 9, 21, 99],
    random,
    has_readers: false,
    may_differ: |_, _, _| false,
    expected: &[
        "Acquire -> granted",
        "Acquire -> busy, Some",
        "Renew -> Gone",
        "Release -> gone",
        "Force -> was held: true",
        "named as the next one",
    ],
};

/// Returns a random request. Where time passes there are no readers, because on Redis the hash of
/// dead readers stays until a writer purges it.
fn random(random: &mut fastrand::Rng, time_passes: bool) -> Request {
    let owner = random.u64(0..super::OWNERS);
    let kind = match random.u8(0..40) {
        0 | 1 => LockKind::Mutex,
        2 if !time_passes => LockKind::Read,
        3 if !time_passes => LockKind::Write,
        _ => LockKind::Fair,
    };
    let lease = random.usize(0..4);
    match random.u8(0..100) {
        0..=44 => {
            let waits = owner > 0;
            Request::Acquire {
                owner,
                kind,
                lease,
                beside: None,
                waits,
            }
        }
        45..=54 => Request::Renew { owner, kind, lease },
        55..=79 => {
            let keeps = kind == LockKind::Fair && random.u8(0..8) == 0;
            Request::Release {
                owner,
                kind,
                closes: random.u8(0..12) == 0,
                keeps,
            }
        }
        80..=84 => Request::Verify { owner, kind },
        // Where no time passes there are readers, of which an inspection of a fair lock names only
        // one on Redis.
        85..=88 if time_passes => Request::Inspect(LockKind::Fair),
        89..=91 => Request::Force(LockKind::Fair),
        92.. if time_passes => Request::Pass,
        _ => Request::Verify { owner, kind },
    }
}

#[test]
fn fair_locks_of_memory_and_redis_answer_alike() {
    super::memory_and_redis_answer_alike(&FAIR, super::CASES);
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn fair_locks_answer_alike_long() {
    super::memory_and_redis_answer_alike(&FAIR, super::MANY);
}

#[test]
fn differences_of_fair_locks_are_found() {
    super::differences_are_found(
        &FAIR,
        &[
            ("no waiter has a position", |request| {
                with_waits(request, false)
            }),
            ("an attempt without a wait has one", |request| {
                with_waits(request, true)
            }),
            ("a mutex for each", |request| match request {
                Request::Acquire {
                    owner,
                    lease,
                    beside,
                    waits,
                    ..
                } => Request::Acquire {
                    owner,
                    kind: LockKind::Mutex,
                    lease,
                    beside,
                    waits,
                },
                other => other,
            }),
            ("closed owners are let in", without_tombstones),
            ("renewals are for the shortest lease", with_short_renewals),
        ],
    );
}

//! [`Format`]: how the locks of each wire format are read, and what it cannot do.

use crate::probe::Probe;
use lock_conformance::{NEEDS_ALL_KINDS, NEEDS_AN_OWNER, NEEDS_NOTIFICATION, NEEDS_TOKENS, Seen};
use std::time::{Duration, SystemTime};

/// Cases that a store cannot run, each with the reason.
pub type NotApplicable = Vec<(&'static str, &'static str)>;

/// A format, how its locks are read, and what it cannot do.
#[derive(Clone, Copy)]
pub struct Format {
    /// Its options in a URL.
    pub options: &'static str,
    /// What its keys begin with.
    pub prefix: &'static str,
    /// Whether what stands under the key names the owner, so that locks are renewed.
    pub is_owned: bool,
    pub read: fn(Probe, &str) -> Seen,
    /// But for what needs replicas.
    pub cannot: fn() -> NotApplicable,
}

/// A format with owners.
const fn owned(
    options: &'static str,
    read: fn(Probe, &str) -> Seen,
    cannot: fn() -> NotApplicable,
) -> Format {
    Format {
        options,
        prefix: "",
        is_owned: true,
        read,
        cannot,
    }
}

/// A classic format.
const fn classic(
    options: &'static str,
    read: fn(Probe, &str) -> Seen,
    cannot: fn() -> NotApplicable,
) -> Format {
    Format {
        is_owned: false,
        ..owned(options, read, cannot)
    }
}

/// A hash with the owner as its only field: the default.
pub const REDISSON: Format = owned("", only_field, Vec::new);

/// What others write, with our tokens beside it.
pub const TOKEN: Format = owned("format=token", expiring, mutexes_only);

/// Exactly what others write.
pub const BARE_TOKEN: Format = owned("format=token&tokens=off", expiring, || {
    [NEEDS_TOKENS, NEEDS_ALL_KINDS].concat()
});

/// The same, and a release wakes those of another library, too.
pub const WAKES_PYTHON: Format = Format {
    prefix: "lock:",
    ..owned(
        "format=token,wakes=python-redis-lock&prefix=lock:",
        expiring,
        mutexes_only,
    )
};
pub const WAKES_SPRING: Format = Format {
    prefix: "registry:",
    ..owned(
        "format=token,wakes=spring-integration&prefix=registry:",
        expiring,
        mutexes_only,
    )
};

/// `SET NX EX` and `DEL`.
pub const PLAIN: Format = classic("format=plain,poll=20ms", expiring, not_owned);

/// The same by `SETNX` and `EXPIRE`.
pub const PLAIN_COMMANDS: Format = classic("format=plain,commands,poll=20ms", expiring, not_owned);

/// `SETNX`, `GETSET`, and the time that it ends as the value.
pub const TIMESTAMP: Format = classic("format=timestamp,poll=20ms", dated, dated_ahead);

/// The same with `DEL` and `SETNX` where that time is past.
pub const TIMESTAMP_DELETE: Format = classic(
    "format=timestamp,takeover=delete,poll=20ms",
    dated,
    dated_ahead,
);

/// The same as Python writes it, and deletes it by the rule that comes with that.
pub const FLOAT_NOT_OLDER: Format = classic("format=timestamp,float,poll=20ms", dated, dated_ahead);

/// The same, and deletes it only if it is its own.
pub const FLOAT: Format = classic(
    "format=timestamp,float,release=compare,poll=20ms",
    dated,
    dated_ahead,
);

/// `INCR` and `EXPIRE`.
pub const COUNTER: Format = classic("format=counter,poll=20ms", counted, nameless);
pub const COUNTER_MULTI: Format = classic("format=counter,multi,poll=20ms", counted, prolonged);
pub const COUNTER_LUA: Format = classic("format=counter,lua,poll=20ms", counted, nameless);

/// Where it is written in whole seconds, upwards, when the lock ends, and the key never does.
fn dated_ahead() -> NotApplicable {
    const SECONDS: &str =
        "it counts in whole seconds, upwards, and so a lease may be longer than asked";
    let mut cannot = nameless();
    cannot.extend([
        ("granted_lease_is_as_long_as_asked", SECONDS),
        ("busy_answer_tells_remaining_lease", SECONDS),
        ("queries_agree_with_store", SECONDS),
        ("inspected_remaining_lease_decreases", SECONDS),
        ("waiter_takes_lock_whose_lease_ends", SECONDS),
        ("unlock_that_cannot_be_sent_is_an_error", SECONDS),
        (
            "release_after_lease_end_reports_gone",
            "its key stays when the lease is over",
        ),
    ]);
    cannot
}

/// Where a failed attempt extends the lease.
fn prolonged() -> NotApplicable {
    const LOSERS: &str = "a failed attempt extends the lease, so it ends only without attempts";
    let mut cannot = nameless();
    let cases = [
        "reentry_does_not_renew_fixed_lease",
        "abandoned_lock_is_free_after_lease",
        "busy_answer_tells_remaining_lease",
        "unlock_that_cannot_be_sent_is_an_error",
        "release_after_lease_end_keeps_next_holder",
        "lease_without_renewal_expires",
        "waiter_takes_lock_whose_lease_ends",
    ];
    cannot.extend(cases.map(|case| (case, LOSERS)));
    cannot
}

fn mutexes_only() -> NotApplicable {
    NEEDS_ALL_KINDS.to_vec()
}

fn not_owned() -> NotApplicable {
    [
        NEEDS_TOKENS,
        NEEDS_AN_OWNER,
        NEEDS_NOTIFICATION,
        NEEDS_ALL_KINDS,
    ]
    .concat()
}

/// Where the value is a time or a number.
fn nameless() -> NotApplicable {
    let mut cannot = not_owned();
    cannot.push((
        "inspect_names_holder",
        "its value does not say who holds the lock",
    ));
    cannot
}

/// As Redisson stores it: a hash with one field, whose TTL is the lease.
fn only_field(mut probe: Probe, key: &str) -> Seen {
    let holders = probe.hgetall(key);
    assert!(
        holders.len() <= 1,
        "a lock with several holders: {holders:?}"
    );
    // Between the two requests the lease may end.
    match (holders.len(), probe.pttl(key)) {
        (1, Some(left)) => Seen::held(Some(left)),
        (1, None) => {
            assert!(!probe.exists(key), "a lock that never ends");
            Seen::FREE
        }
        _ => Seen::FREE,
    }
}

/// A string whose TTL is the lease, and nothing of another format's.
fn expiring(mut probe: Probe, key: &str) -> Seen {
    match (probe.get(key), probe.pttl(key)) {
        (Some(_), Some(left)) => Seen::held(Some(left)),
        _ => Seen::FREE,
    }
}

/// The same, and it is a number.
fn counted(mut probe: Probe, key: &str) -> Seen {
    let number = probe.get(key).map(|text| text.parse::<u64>());
    assert!(!matches!(number, Some(Err(_))), "{number:?}");
    expiring(probe, key)
}

/// A string that says until when, in seconds since 1970.
fn dated(mut probe: Probe, key: &str) -> Seen {
    let Some(until) = probe.get(key).map(|text| text.parse::<f64>().unwrap()) else {
        return Seen::FREE;
    };
    let now = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    let left = until - now.as_secs_f64();
    if left < 0.0 {
        Seen::FREE
    } else {
        Seen::held(Some(Duration::from_secs_f64(left)))
    }
}

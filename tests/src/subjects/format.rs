//! [`Format`]: how the locks of each wire format are read, and which cases it cannot run.

use crate::probe::Probe;
use lock_conformance::{
    NEEDS_A_QUEUE, NEEDS_ALL_KINDS, NEEDS_AN_OWNER, NEEDS_NOTIFICATION, NEEDS_TOKENS, Seen,
};
use std::time::{Duration, SystemTime};

/// Cases that a store cannot run, each with the reason.
pub type NotApplicable = Vec<(&'static str, &'static str)>;

/// A wire format of the store under test.
#[derive(Clone, Copy)]
pub struct Format {
    /// The options of a URL that select the format.
    pub options: &'static str,
    /// The beginning of all keys.
    pub prefix: &'static str,
    /// True if the value names the owner. Only such locks are renewed.
    pub is_owned: bool,
    pub read: fn(Probe, &str) -> Seen,
    /// Returns the cases that the format cannot run, besides those that need replicas.
    pub cannot: fn() -> NotApplicable,
}

/// Makes a format whose values name the owner.
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

/// Makes a classic format.
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

/// A string as other libraries write it, with our fencing tokens under another key.
pub const TOKEN: Format = owned("format=token", expiring, mutexes_only);

/// A string as other libraries write it, and no other key.
pub const BARE_TOKEN: Format = owned("format=token&tokens=off", expiring, || {
    [NEEDS_TOKENS, NEEDS_ALL_KINDS].concat()
});

/// [`TOKEN`], with releases that also wake the waiters of python-redis-lock.
pub const WAKES_PYTHON: Format = Format {
    prefix: "lock:",
    ..owned(
        "format=token,wakes=python-redis-lock&prefix=lock:",
        expiring,
        without_a_queue,
    )
};
pub const WAKES_SPRING: Format = Format {
    prefix: "registry:",
    ..owned(
        "format=token,wakes=spring-integration&prefix=registry:",
        expiring,
        without_a_queue,
    )
};

/// `SET NX EX` and `DEL`.
pub const PLAIN: Format = classic("format=plain,poll=20ms", expiring, not_owned);

/// [`PLAIN`] with `SETNX` and `EXPIRE` in place of `SET NX EX`.
pub const PLAIN_COMMANDS: Format = classic("format=plain,commands,poll=20ms", expiring, not_owned);

/// `SETNX` and `GETSET`; the value is the time at which the lock ends.
pub const TIMESTAMP: Format = classic("format=timestamp,poll=20ms", dated, dated_ahead);

/// [`TIMESTAMP`] that takes over an ended lock by `DEL` and `SETNX`.
pub const TIMESTAMP_DELETE: Format = classic(
    "format=timestamp,takeover=delete,poll=20ms",
    dated,
    dated_ahead,
);

/// [`TIMESTAMP`] with the time as a Python float. By default a release of this spelling deletes the
/// key unless its time is older than our own.
pub const FLOAT_NOT_OLDER: Format = classic("format=timestamp,float,poll=20ms", dated, dated_ahead);

/// [`FLOAT_NOT_OLDER`] with a release that deletes the key only if its time is our own.
pub const FLOAT: Format = classic(
    "format=timestamp,float,release=compare,poll=20ms",
    dated,
    dated_ahead,
);

/// `INCR` and `EXPIRE`.
pub const COUNTER: Format = classic("format=counter,poll=20ms", counted, nameless);
pub const COUNTER_MULTI: Format = classic("format=counter,multi,poll=20ms", counted, prolonged);
pub const COUNTER_LUA: Format = classic("format=counter,lua,poll=20ms", counted, nameless);

/// Returns the cases that the formats with a time as value cannot run: in whole seconds the lease
/// ends later than requested, and the key never expires.
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

/// Returns the cases that cannot run where a failed attempt extends the lease.
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

fn without_a_queue() -> NotApplicable {
    [NEEDS_ALL_KINDS, NEEDS_A_QUEUE].concat()
}

fn not_owned() -> NotApplicable {
    [
        NEEDS_TOKENS,
        NEEDS_AN_OWNER,
        NEEDS_NOTIFICATION,
        NEEDS_ALL_KINDS,
        NEEDS_A_QUEUE,
    ]
    .concat()
}

/// Returns the cases that cannot run where the value is a time or a number.
fn nameless() -> NotApplicable {
    let mut cannot = not_owned();
    cannot.push((
        "inspect_names_holder",
        "its value does not say who holds the lock",
    ));
    cannot
}

/// Reads a lock as Redisson stores it: a hash with one field, whose TTL is the lease.
fn only_field(mut probe: Probe, key: &str) -> Seen {
    let holders = probe.hgetall(key);
    assert!(
        holders.len() <= 1,
        "a lock with several holders: {holders:?}"
    );
    // The lease may end between the two requests.
    match (holders.len(), probe.pttl(key)) {
        (1, Some(left)) => Seen::held(Some(left)),
        (1, None) => {
            assert!(!probe.exists(key), "a lock that never ends");
            Seen::FREE
        }
        _ => Seen::FREE,
    }
}

/// Reads a lock that is a string, whose TTL is the lease.
fn expiring(mut probe: Probe, key: &str) -> Seen {
    match (probe.get(key), probe.pttl(key)) {
        (Some(_), Some(left)) => Seen::held(Some(left)),
        _ => Seen::FREE,
    }
}

/// Reads a lock that is a number, whose TTL is the lease.
fn counted(mut probe: Probe, key: &str) -> Seen {
    let number = probe.get(key).map(|text| text.parse::<u64>());
    assert!(!matches!(number, Some(Err(_))), "{number:?}");
    expiring(probe, key)
}

/// Reads a lock that is the time of its end, in seconds since 1970.
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

//! Wire formats that sit the exam, each on one Redis server, on a cluster, and on a master that sentinels name.

use super::subjects::shared_group;
use distlock::{Backend, ClientBuilder, Config, Context, LockName, builder, schemes};
use distlock_tests::cluster::Cluster;
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::sentinel::Group;
use lock_core::conformance::{NEEDS_AN_OWNER, NEEDS_REPLICAS, NEEDS_TOKENS, Seen, Subject};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// A format, how its locks are read, and what it cannot do.
#[derive(Clone, Copy)]
pub(crate) struct Format {
    /// What stands behind the `?` of the URL.
    pub(super) options: &'static str,
    pub(super) seen: fn(Probe, &str) -> Seen,
    pub(super) cannot: fn() -> Vec<(&'static str, &'static str)>,
}

/// What others write, with our tokens beside it.
pub(crate) const TOKEN: Format =
    Format { options: "format=token", seen: expiring, cannot: || NEEDS_REPLICAS.to_vec() };

/// Exactly what others write.
pub(crate) const BARE_TOKEN: Format = Format {
    options: "format=token&tokens=off",
    seen: expiring,
    cannot: || [NEEDS_REPLICAS, NEEDS_TOKENS, NEEDS_TOMBSTONES].concat(),
};

/// The same, and a release wakes those of another library, too.
pub(crate) const WAKES_PYTHON: Format =
    Format { options: "format=token,wakes=python-redis-lock&prefix=lock:", ..TOKEN };
pub(crate) const WAKES_SPRING: Format =
    Format { options: "format=token,wakes=spring-integration&prefix=registry:", ..TOKEN };

/// `SET NX EX` and `DEL`.
pub(crate) const PLAIN: Format =
    Format { options: "format=plain,poll=20ms", seen: expiring, cannot: not_owned };

/// The same by `SETNX` and `EXPIRE`.
pub(crate) const PLAIN_COMMANDS: Format =
    Format { options: "format=plain,commands,poll=20ms", seen: expiring, cannot: not_owned };

/// `SETNX`, `GETSET`, and the time that it ends as the value.
pub(crate) const TIMESTAMP: Format =
    Format { options: "format=timestamp,poll=20ms", seen: dated, cannot: dated_ahead };

/// The same with `DEL` and `SETNX` where that time is past.
pub(crate) const TIMESTAMP_DELETE: Format = Format {
    options: "format=timestamp,takeover=delete,poll=20ms",
    seen: dated,
    cannot: dated_ahead,
};

/// The same as Python writes it, and deletes it by the rule that comes with that.
pub(crate) const FLOAT_NOT_OLDER: Format =
    Format { options: "format=timestamp,float,poll=20ms", seen: dated, cannot: dated_ahead };

/// The same, and deletes it only if it is its own.
pub(crate) const FLOAT: Format = Format {
    options: "format=timestamp,float,release=compare,poll=20ms",
    seen: dated,
    cannot: dated_ahead,
};

/// `INCR` and `EXPIRE`.
pub(crate) const COUNTER: Format =
    Format { options: "format=counter,poll=20ms", seen: counted, cannot: nameless };
pub(crate) const COUNTER_MULTI: Format =
    Format { options: "format=counter,multi,poll=20ms", seen: counted, cannot: prolonged };
pub(crate) const COUNTER_LUA: Format =
    Format { options: "format=counter,lua,poll=20ms", seen: counted, cannot: nameless };

/// Where it is written in whole seconds, upwards, when the lock ends, and the key never does.
fn dated_ahead() -> Vec<(&'static str, &'static str)> {
    const SECONDS: &str =
        "it counts in whole seconds, upwards, and so a lease may be longer than asked";
    let mut cannot = nameless();
    cannot.extend([
        ("a_lease_is_as_long_as_asked", SECONDS),
        ("busy_says_for_how_long", SECONDS),
        ("queries_agree_with_the_store", SECONDS),
        ("the_remaining_time_runs_down", SECONDS),
        ("takes_a_lock_that_expires", SECONDS),
        ("an_unlock_that_cannot_be_sent_is_told", SECONDS),
        ("a_release_after_the_lease_says_gone", "its key stays when the lease is over"),
    ]);
    cannot
}

/// Where whoever asks in vain makes the lease longer.
fn prolonged() -> Vec<(&'static str, &'static str)> {
    const LOSERS: &str =
        "whoever asks in vain gives the lock another lease, so it ends only if nobody asks";
    let mut cannot = nameless();
    let cases = [
        "a_fixed_lease_stays_fixed_inside",
        "an_abandoned_lock_frees_after_its_lease",
        "busy_says_for_how_long",
        "an_unlock_that_cannot_be_sent_is_told",
        "late_release_does_not_free_the_next_holder",
        "lease_expires_unrenewed",
        "takes_a_lock_that_expires",
    ];
    cannot.extend(cases.map(|case| (case, LOSERS)));
    cannot
}

fn not_owned() -> Vec<(&'static str, &'static str)> {
    [NEEDS_REPLICAS, NEEDS_TOKENS, NEEDS_AN_OWNER].concat()
}

/// Where the value is a time or a number.
fn nameless() -> Vec<(&'static str, &'static str)> {
    let mut cannot = not_owned();
    cannot.push(("the_holder_is_named", "its value does not say who holds the lock"));
    cannot
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
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let left = until - now.as_secs_f64();
    if left < 0.0 { Seen::FREE } else { Seen::held(Some(Duration::from_secs_f64(left))) }
}

/// A store of a format.
pub(crate) struct FormatSubject {
    format: Format,
    place: Place,
    url: String,
    cannot: Vec<(&'static str, &'static str)>,
}

enum Place {
    Server(RedisServer),
    Cluster(Arc<Cluster>),
    Sentinel(&'static Group),
}

impl FormatSubject {
    /// On a server of its own.
    pub(crate) fn on_redis(format: Format) -> Self {
        let server = RedisServer::start();
        let url = format!("{}?{}", server.url(), format.options);
        Self { format, place: Place::Server(server), url, cannot: (format.cannot)() }
    }

    /// On a cluster that all share.
    pub(crate) fn on_cluster(format: Format) -> Self {
        let cluster = Cluster::shared();
        let url = format!("{}?{}", cluster.url(), format.options);
        Self { format, place: Place::Cluster(cluster), url, cannot: (format.cannot)() }
    }

    /// On a master with replicas and sentinels, which all share.
    pub(crate) fn on_sentinel(format: Format) -> Self {
        let group = shared_group();
        let url = format!("{}?{}", group.url(), format.options);
        Self { format, place: Place::Sentinel(group), url, cannot: (format.cannot)() }
    }

    /// The same, and lets nothing be left out.
    pub(crate) fn sitting_all(self) -> Self {
        Self { cannot: Vec::new(), ..self }
    }

    fn is_owned(&self) -> bool {
        self.format.options.starts_with("format=token")
    }

    fn key(&self, lock: &LockName) -> String {
        let prefix = self.url.split_once("prefix=").map_or("", |(_, prefix)| prefix);
        format!("{prefix}{}", lock.as_str())
    }

    fn probe_of(&self, key: &str) -> Probe {
        match &self.place {
            Place::Server(server) => server.probe(),
            Place::Cluster(cluster) => cluster.probe(key),
            Place::Sentinel(group) => group.servers[0].probe(),
        }
    }
}

impl Subject for FormatSubject {
    fn name(&self) -> String {
        self.url.split_once('?').map(|(_, options)| options.to_owned()).unwrap_or_default()
    }

    fn backend(&self, context: &Context) -> Arc<dyn Backend> {
        schemes().open(&Config::from_url(&self.url).unwrap(), context).unwrap()
    }

    fn client(&self, context: &Context) -> ClientBuilder {
        builder().clock(Arc::clone(&context.clock)).url(&self.url).unwrap()
    }

    fn settings(&self, config: Config) -> Config {
        if self.is_owned() { config } else { config.with_lease(Duration::from_secs(60)) }
    }

    fn probe(&self, lock: &LockName) -> Seen {
        let key = self.key(lock);
        (self.format.seen)(self.probe_of(&key), &key)
    }

    fn lose(&self, lock: &LockName) {
        let key = self.key(lock);
        super::subjects::lose(self.probe_of(&key), &key);
    }

    fn cannot(&self) -> &[(&str, &str)] {
        &self.cannot
    }
}

const PLAINLY: &str = "it takes a free lock by one plain SET, which minds no tombstone";

/// What a plain SET cannot: turn itself down.
const NEEDS_TOMBSTONES: &[(&str, &str)] = &[
    ("a_late_copy_locks_for_nobody", PLAINLY),
    ("a_late_copy_of_a_used_lock_locks_for_nobody", PLAINLY),
    ("a_closed_owner_is_never_granted_again", PLAINLY),
    ("an_owner_that_holds_nothing_can_be_closed", PLAINLY),
    ("a_tombstone_lives_for_a_lease", PLAINLY),
];

//! The stored data of semaphores, which is that of Redisson's `RPermitExpirableSemaphore`.

use super::{NAME, TAKEN, stored};
use crate::bench::{Bench, lease, soon};
use distlock::backend::{LockKind, OwnerId};
use distlock::{LockName, LockOptions};
use distlock_tests::probe::{Probe, Value};
use distlock_tests::process::RedisServer;
use distlock_tests::queue;
use distlock_tests::redis::client;
use distlock_tests::time::{eventually, ms};
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, Failure, HolderInfo, Receipt, Release, ReleaseOptions, Renewal,
    RenewalRequest,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The expiry that Redisson writes for a permit that never expires.
const NEVER: &str = "922337203685477";

const LONG: Duration = Duration::from_secs(60);

/// A backend that requests permits, and a probe of its server.
struct Store {
    _server: RedisServer,
    bench: Bench,
    probe: Probe,
}

impl Store {
    fn start() -> Self {
        let server = RedisServer::start();
        let (bench, probe) = (Bench::on(&server), server.probe());
        Self {
            _server: server,
            bench,
            probe,
        }
    }

    fn acquire(&self, owner: OwnerId, count: u32) -> Result<Answer, Failure> {
        self.bench.backend.acquire(
            &Attempt::new(&permits(3, count), owner, lease(30_000)),
            soon(),
        )
    }

    #[track_caller]
    fn take(&self, count: u32) -> AcquisitionId {
        let owner = self.bench.owner();
        let answer = self.acquire(owner, count).unwrap();
        assert!(matches!(answer, Answer::Granted(_)), "{answer:?}");
        self.id(owner, count)
    }

    fn id(&self, owner: OwnerId, count: u32) -> AcquisitionId {
        AcquisitionId::new(permits(3, count), owner, lease(30_000), Receipt::default())
    }

    fn release(&self, held: &AcquisitionId, options: ReleaseOptions) -> Release {
        self.bench.backend.release(held, options, soon()).unwrap()
    }

    fn renew(&self, held: &AcquisitionId) -> Renewal {
        self.bench
            .renew(&[RenewalRequest::new(held.clone())])
            .remove(0)
            .unwrap()
    }

    fn verify(&self, held: &AcquisitionId) -> Option<HolderInfo> {
        self.bench.backend.verify(held, soon()).unwrap()
    }

    /// How many permits are free and how many are taken.
    fn stored(&mut self) -> (String, i64) {
        stored(&mut self.probe)
    }

    /// When each permit expires, by the server's clock.
    fn expiries(&mut self) -> Vec<f64> {
        let words = self
            .probe
            .command(&["ZRANGE", TAKEN, "0", "-1", "WITHSCORES"]);
        let Value::List(words) = words else {
            panic!("{words:?}")
        };
        words
            .into_iter()
            .skip(1)
            .step_by(2)
            .map(|it| it.text().parse().unwrap())
            .collect()
    }

    /// The server's clock in milliseconds.
    fn now(&mut self) -> f64 {
        let time = self.probe.command(&["TIME"]).texts();
        let [seconds, micros] = [&time[0], &time[1]].map(|it| it.parse::<f64>().unwrap());
        seconds * 1e3 + micros / 1e3
    }

    /// Stores permits that have already expired, as a dead holder leaves them.
    fn leave_expired(&mut self, count: u32) {
        let script = "for i = 1, ARGV[1] do redis.call('ZADD', KEYS[2], i, 'dead' .. i) end \
             return redis.call('DECRBY', KEYS[1], ARGV[1])";
        self.probe
            .command(&["EVAL", script, "2", NAME, TAKEN, &count.to_string()])
            .int();
    }
}

fn permits(limit: u32, count: u32) -> LockName {
    LockName::new(NAME)
        .unwrap()
        .of_kind(LockKind::Permits { limit, count })
}

const PLAIN: ReleaseOptions = ReleaseOptions::WITHOUT_TOMBSTONE;

#[test]
fn permits_expire_by_the_servers_clock_after_their_lease() {
    let mut store = Store::start();
    let before = store.now();
    store.take(2);
    let after = store.now();
    assert_eq!(store.stored(), ("1".to_owned(), 2));
    for expiry in store.expiries() {
        assert!(
            expiry >= before.floor() + 30_000.0 && expiry <= after + 30_000.0,
            "{expiry}"
        );
    }
    assert_eq!(store.probe.keys("*"), [NAME, TAKEN]);
    assert_eq!(store.probe.command(&["TTL", NAME]), Value::Int(-1));
    assert_eq!(store.probe.command(&["TTL", TAKEN]), Value::Int(-1));
}

#[test]
fn permits_of_an_acquisition_are_its_owners() {
    let mut store = Store::start();
    let (one, two) = (store.take(1), store.take(2));
    let ids = "local ids = redis.call('ZRANGE', KEYS[1], 0, -1) \
         for i, id in ipairs(ids) do ids[i] = string.gsub(id, '.', function(c) \
         return string.format('%02x', string.byte(c)) end) end return ids";
    let ids = store.probe.command(&["EVAL", ids, "1", TAKEN]).texts();
    let client = one.owner.client().to_string().replace('-', "");
    let number = |id: &str| {
        let own = u64::from_str_radix(&id[16..26], 16).unwrap();
        own ^ u64::from_str_radix(&client[16..26], 16).unwrap()
    };
    assert!(
        ids.iter()
            .all(|id| id.len() == 32 && id[..16] == client[..16]),
        "{ids:?}"
    );
    let mut parts: Vec<_> = ids.iter().map(|id| (number(id), &id[26..])).collect();
    parts.sort_unstable();
    let [first, second] = [one, two].map(|held| held.owner.number());
    assert_eq!(
        parts,
        [(first, "000000"), (second, "000000"), (second, "000001")]
    );
}

#[test]
fn repeated_acquire_takes_nothing_more() {
    let mut store = Store::start();
    let held = store.take(2);
    assert!(matches!(
        store.acquire(held.owner, 2),
        Ok(Answer::Granted(_))
    ));
    assert_eq!(store.stored(), ("1".to_owned(), 2));
    // Also when no more permits are free.
    store.take(1);
    assert!(matches!(
        store.acquire(held.owner, 2),
        Ok(Answer::Granted(_))
    ));
    assert_eq!(store.stored(), ("0".to_owned(), 3));
}

#[test]
fn repeated_release_frees_nothing_more() {
    let mut store = Store::start();
    let (held, _other) = (store.take(2), store.take(1));
    assert_eq!(store.release(&held, PLAIN), Release::Freed);
    assert_eq!(store.release(&held, PLAIN), Release::Gone);
    assert_eq!(store.stored(), ("2".to_owned(), 1));
    assert_eq!(
        (store.renew(&held), store.verify(&held)),
        (Renewal::Gone, None)
    );
    assert_eq!(store.stored(), ("2".to_owned(), 1), "no renewal revives");
}

#[test]
fn closed_owner_gets_no_permit() {
    let mut store = Store::start();
    for held in [store.take(1), store.id(store.bench.owner(), 1)] {
        let _any = store.release(&held, ReleaseOptions::WITH_TOMBSTONE);
        assert!(matches!(store.acquire(held.owner, 1), Ok(Answer::Busy(_))));
        assert_eq!(store.stored(), ("3".to_owned(), 0));
    }
    assert_eq!(store.probe.keys("distlock_closed:{downloads}:*").len(), 2);
}

#[test]
fn acquisition_that_lost_one_permit_is_gone() {
    let mut store = Store::start();
    let held = store.take(2);
    assert_eq!(
        store.probe.command(&["ZREMRANGEBYRANK", TAKEN, "0", "0"]),
        Value::Int(1)
    );
    store.probe.command(&["INCR", NAME]);
    let kept = store.take(1);
    assert_eq!(
        (store.renew(&held), store.verify(&held)),
        (Renewal::Gone, None)
    );
    assert_eq!(store.release(&held, PLAIN), Release::Gone);
    assert_eq!(store.stored(), ("2".to_owned(), 1), "the other one is free");
    assert_eq!(store.renew(&kept), Renewal::Extended);
}

#[test]
fn renewal_never_shortens_a_permits_lease() {
    let mut store = Store::start();
    let held = store.take(2);
    let before = store.expiries();
    let mut short = held.clone();
    short.lease = lease(1_000);
    assert_eq!(store.renew(&short), Renewal::Extended);
    let after = store.expiries();
    assert!(
        before
            .iter()
            .zip(&after)
            .all(|(before, after)| after > before),
        "{after:?}"
    );
    let left = store.verify(&held).unwrap();
    assert_eq!(
        (left.owner.as_str(), left.holds),
        (held.owner.to_string().as_str(), 2)
    );
    assert!(left.remaining.unwrap() > Duration::from_secs(20));
}

#[test]
fn expired_permits_are_reclaimed_a_thousand_at_a_time() {
    let mut store = Store::start();
    store.take(3);
    store.leave_expired(1_500);
    let owner = store.bench.owner();
    for (free, taken) in [("-500", 503), ("0", 3)] {
        let busy = store.acquire(owner, 1).unwrap();
        assert!(matches!(busy, Answer::Busy(Some(_))), "{busy:?}");
        assert_eq!(store.stored(), (free.to_owned(), taken));
    }
    store.probe.command(&["DEL", NAME, TAKEN]);
    store.take(1);
    store.leave_expired(2);
    store.take(2);
    assert_eq!(store.stored(), ("0".to_owned(), 3));
}

#[test]
fn permit_that_expired_is_not_renewed_or_verified() {
    let mut store = Store::start();
    let held = store.take(1);
    let id = "return redis.call('ZADD', KEYS[1], 'XX', 1, redis.call('ZRANGE', KEYS[1], 0, 0)[1])";
    store.probe.command(&["EVAL", id, "1", TAKEN]);
    assert_eq!(
        (store.renew(&held), store.verify(&held)),
        (Renewal::Gone, None)
    );
    assert_eq!(store.stored(), ("2".to_owned(), 1));
}

#[test]
fn absent_number_of_permits_is_counted_again() {
    let mut store = Store::start();
    let held = store.take(2);
    store.probe.command(&["DEL", NAME]);
    store.take(1);
    assert_eq!(store.stored(), ("0".to_owned(), 3));
    store.probe.command(&["DEL", NAME]);
    assert_eq!(store.release(&held, PLAIN), Release::Freed);
    store.take(2);
    assert_eq!(store.stored(), ("0".to_owned(), 3));
}

#[test]
fn permit_without_an_end_is_busy_without_expiry() {
    let mut store = Store::start();
    store.take(1);
    store.probe.command(&["SET", NAME, "0"]);
    let left = store.acquire(store.bench.owner(), 1).unwrap();
    assert!(
        matches!(left, Answer::Busy(Some(left)) if left > Duration::from_secs(20)),
        "{left:?}"
    );
    store.probe.command(&["DEL", TAKEN]);
    let none_taken = store.acquire(store.bench.owner(), 1).unwrap();
    assert!(matches!(none_taken, Answer::Busy(None)), "{none_taken:?}");
    store
        .probe
        .command(&["ZADD", TAKEN, NEVER, "0123456789abcdef"]);
    let endless = store.acquire(store.bench.owner(), 1).unwrap();
    assert!(
        matches!(endless, Answer::BusyWithoutExpiry(None)),
        "{endless:?}"
    );
    let holder = store
        .bench
        .backend
        .inspect(&permits(3, 1), soon())
        .unwrap()
        .holder
        .unwrap();
    assert_eq!(
        (holder.owner.as_str(), holder.remaining),
        ("30313233343536373839616263646566", None)
    );
}

#[test]
fn forced_release_gives_all_permits_back() {
    let server = RedisServer::start();
    let client = client(&server, "watchdog=10m");
    let semaphore = client.semaphore(NAME, 3).unwrap();
    assert!(!semaphore.force_release_all().unwrap(), "it was never used");
    let (one, two) = (
        semaphore.acquire().unwrap(),
        semaphore.acquire_many(2).unwrap(),
    );
    let waiter = std::thread::spawn({
        let semaphore = semaphore.clone();
        move || semaphore.acquire().unwrap().unlock().unwrap()
    });
    let mut probe = server.probe();
    eventually("it waits", LONG, || queue::waiting(&mut probe, NAME) == 1);
    assert!(semaphore.force_release_all().unwrap());
    waiter.join().unwrap();
    assert!(one.unlock().unwrap_err().is_lost() && two.unlock().unwrap_err().is_lost());
    assert_eq!(stored(&mut probe), ("3".to_owned(), 0));
    assert!(!semaphore.force_release_all().unwrap());
}

#[test]
fn lower_limit_is_kept_and_a_higher_one_wakes() {
    let server = RedisServer::start();
    let client = client(&server, "watchdog=10m");
    let mut semaphore = client.semaphore(NAME, 3).unwrap();
    assert_eq!(semaphore.set_limit(2).unwrap(), None);
    let held = semaphore.acquire_many(2).unwrap();
    let mut probe = server.probe();
    assert_eq!(semaphore.set_limit(1).unwrap(), Some(2));
    assert_eq!(stored(&mut probe), ("-1".to_owned(), 2));
    let permits = semaphore.inspect().unwrap().permits.unwrap();
    assert_eq!((permits.limit, permits.free), (1, 0));
    assert!(semaphore.try_acquire_for(ms(50)).unwrap().is_none() && held.verify().is_ok());
    let waiter = semaphore.clone();
    let waiter = std::thread::spawn(move || drop(waiter.acquire().unwrap()));
    eventually("it waits", LONG, || queue::waiting(&mut probe, NAME) == 1);
    assert_eq!(semaphore.set_limit(3).unwrap(), Some(1));
    waiter.join().unwrap();
    held.unlock().unwrap();
    assert_eq!(stored(&mut probe), ("3".to_owned(), 0));
}

/// A limit that is lowered after a waiter began to wait binds that waiter: one of two permits
/// becomes free, but the other one is as many as the new limit allows.
#[test]
fn lower_limit_binds_those_that_wait_already() {
    let server = RedisServer::start();
    let client = client(&server, "watchdog=10m");
    let mut semaphore = client.semaphore(NAME, 2).unwrap();
    let [first, last] = [(); 2].map(|()| semaphore.acquire().unwrap());
    let (is_free, waits) = (Arc::new(AtomicBool::new(false)), semaphore.clone());
    let may_enter = Arc::clone(&is_free);
    let waiter = std::thread::spawn(move || {
        let _permit = waits.acquire().unwrap();
        may_enter.load(Ordering::SeqCst)
    });
    let mut probe = server.probe();
    eventually("it waits", LONG, || queue::waiting(&mut probe, NAME) == 1);
    assert_eq!(semaphore.set_limit(1).unwrap(), Some(2));
    first.unlock().unwrap();
    assert_eq!(stored(&mut probe), ("0".to_owned(), 1));
    let before = probe.command_calls("zmscore");
    eventually("it asks again", LONG, || {
        probe.command_calls("zmscore") > before + 1
    });
    assert!(!waiter.is_finished());
    is_free.store(true, Ordering::SeqCst);
    last.unlock().unwrap();
    assert!(waiter.join().unwrap(), "beside the last permit");
    assert_eq!(stored(&mut probe), ("1".to_owned(), 0));
}

#[test]
fn thousand_permits_are_one_acquisition_and_no_more() {
    let server = RedisServer::start();
    let client = client(&server, "watchdog=1s");
    let semaphore = client.semaphore(NAME, 5_000).unwrap();
    let mut probe = server.probe();
    let held = semaphore.acquire_many(1_000).unwrap();
    assert_eq!(stored(&mut probe), ("4000".to_owned(), 1_000));
    assert!(held.verify().is_ok());
    held.unlock().unwrap();
    assert_eq!(stored(&mut probe), ("5000".to_owned(), 0));
    let error = semaphore.acquire_many(1_001).unwrap_err();
    assert!(error.is_misuse(), "{error}");
    assert!(error.to_string().contains("1000 at most"), "{error}");
}

#[test]
fn scripts_survive_script_flush() {
    let server = RedisServer::start();
    let (client, mut probe) = (client(&server, "watchdog=10m"), server.probe());
    let mut semaphore = client.semaphore(NAME, 2).unwrap();
    for _ in 0..2 {
        let mut flush = || probe.command(&["SCRIPT", "FLUSH"]).text();
        flush();
        let one = semaphore.acquire().unwrap();
        flush();
        assert!(one.verify().is_ok());
        flush();
        one.unlock().unwrap();
        flush();
        drop(semaphore.acquire().unwrap());
        flush();
        assert_eq!(semaphore.set_limit(2).unwrap(), Some(2));
        flush();
        assert_eq!(semaphore.inspect().unwrap().permits.unwrap().limit, 2);
        flush();
        semaphore.force_release_all().unwrap();
    }
}

#[test]
fn foreign_data_under_a_semaphores_keys_is_left_alone() {
    let server = RedisServer::start();
    let (client, mut probe) = (client(&server, ""), server.probe());
    for (command, says) in [
        (&["HSET", NAME, "a", "1"][..], "under the key is a hash"),
        (&["RPUSH", NAME, "a"], "under the key is a list"),
        (&["SET", NAME, "abc"], "no whole number"),
        (&["SET", NAME, "1.5"], "no whole number"),
        (&["SET", NAME, "123456789012"], "no whole number"),
        (&["SET", NAME, ""], "no whole number"),
        (&["SET", NAME, "007"], "no whole number"),
        (&["SET", NAME, "-0"], "no whole number"),
        (&["RPUSH", TAKEN, "a"], "no set of permits"),
    ] {
        probe.command(command);
        let before = [NAME, TAKEN].map(|key| probe.command(&["DUMP", key]));
        let mut semaphore = client.semaphore(NAME, 2).unwrap();
        let mut errors = vec![semaphore.try_acquire().unwrap_err()];
        errors.extend(semaphore.set_limit(3).err());
        errors.extend(semaphore.inspect().err());
        errors.extend(semaphore.force_release_all().err());
        assert!(
            errors.len() == 4 || command[2].is_empty(),
            "{command:?}: {errors:?}"
        );
        for error in errors {
            assert!(error.is_foreign_format(), "{command:?}: {error}");
            let text = error.to_string();
            assert!(
                text.contains(NAME) && text.contains(says),
                "{command:?}: {text}"
            );
        }
        let after = [NAME, TAKEN].map(|key| probe.command(&["DUMP", key]));
        assert_eq!(after, before, "{command:?}");
        probe.command(&["DEL", NAME, TAKEN]);
    }
}

#[test]
fn semaphore_and_mutex_refuse_each_others_name() {
    let server = RedisServer::start();
    let client = client(&server, "");
    let permit = client.semaphore(NAME, 2).unwrap().acquire().unwrap();
    let error = client.mutex(NAME).unwrap().try_lock().unwrap_err();
    assert!(error.is_foreign_format(), "{error}");
    assert!(error.to_string().contains("semaphore"), "{error}");
    permit.unlock().unwrap();
    let _held = client.mutex("locked").unwrap().lock().unwrap();
    let error = client
        .semaphore("locked", 2)
        .unwrap()
        .try_acquire()
        .unwrap_err();
    assert!(error.is_foreign_format(), "{error}");
}

#[test]
fn permits_are_tracked_while_they_are_awaited_only() {
    let server = RedisServer::start();
    let client = client(&server, "watchdog=1s");
    let semaphore = client.semaphore(NAME, 1).unwrap();
    let held = semaphore.acquire_with(1, &LockOptions::new()).unwrap();
    let mut probe = server.probe();
    eventually("it was renewed twice", LONG, || {
        probe.command_calls("zadd") >= 3
    });
    assert_eq!(probe.stat("tracking_total_keys"), 0);
    // The key of a mutex that is held meanwhile is tracked.
    let _lock = client.mutex("beside").unwrap().lock().unwrap();
    eventually("it was renewed", LONG, || {
        probe.stat("tracking_total_keys") == 1
    });
    assert!(semaphore.try_acquire_for(ms(500)).unwrap().is_none());
    // The semaphore's key is still tracked, because nothing has changed it. The mutex's key is not,
    // for a moment of each renewal.
    eventually("the semaphore's key is, too", LONG, || {
        probe.stat("tracking_total_keys") == 2
    });
    // The report of this change ends the tracking, and no waiter begins it again.
    held.unlock().unwrap();
    eventually("it is not tracked again", LONG, || {
        probe.stat("tracking_total_keys") == 1
    });
}

#[test]
fn formats_without_kinds_refuse_semaphores_by_name() {
    let server = RedisServer::start();
    for format in [
        "token",
        "plain&lease=10s",
        "timestamp&lease=10s",
        "counter&lease=10s",
    ] {
        let client = client(&server, &format!("format={format}"));
        let error = client.semaphore(NAME, 2).unwrap_err();
        assert!(error.is_unsupported(), "{format}: {error}");
        assert!(
            error.to_string().contains("no semaphores"),
            "{format}: {error}"
        );
    }
    assert!(server.probe().keys("*").is_empty());
}

//! Operators and other programs that change permits and limits, and `drain`, which acquires all
//! free permits at once.

use super::{NAME, TAKEN, stored};
use distlock::admin::PermitId;
use distlock::{Client, LockOptions, Semaphore};
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy};
use distlock_tests::queue;
use distlock_tests::redis::client;
use distlock_tests::resp::Request;
use distlock_tests::time::{eventually, ms};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// A lease so long that no renewal is due during a test.
fn unrenewed() -> LockOptions {
    LockOptions::new().watched(LONG * 10)
}

/// When a permit expires, by the server's clock; 0 if it is not taken.
fn expiry(probe: &mut Probe, id: PermitId) -> f64 {
    // The script converts the ID to bytes, which the probe cannot send.
    let script = "local id = string.gsub(ARGV[1], '..', function(digits) \
         return string.char(tonumber(digits, 16)) end) \
         return redis.call('ZSCORE', KEYS[1], id) or '0'";
    let score = probe
        .command(&["EVAL", script, "1", TAKEN, &id.to_string()])
        .text();
    score.parse().unwrap()
}

#[test]
fn permit_is_released_by_its_printed_id_from_another_client() {
    let server = RedisServer::start();
    let (one, other) = (client(&server, ""), client(&server, ""));
    let [ours, theirs] = [&one, &other].map(|client| client.semaphore(NAME, 2).unwrap());
    let (lost, kept) = (
        ours.acquire_with(1, &unrenewed()).unwrap(),
        ours.acquire_with(1, &unrenewed()).unwrap(),
    );
    let printed = lost
        .permit_ids()
        .iter()
        .map(PermitId::to_string)
        .collect::<Vec<_>>();
    let id: PermitId = printed[0].parse().unwrap();
    assert_eq!(printed.len(), 1);
    assert!(theirs.release_permit(id).unwrap());
    assert!(!theirs.release_permit(id).unwrap(), "it is free");
    assert!(!theirs.extend_permit(id, LONG).unwrap(), "and stays free");
    let elsewhere = other.semaphore("uploads", 2).unwrap();
    assert!(
        !elsewhere.release_permit(kept.permit_ids()[0]).unwrap(),
        "another semaphore's"
    );
    let _theirs = theirs.try_acquire().unwrap().expect("one is free");
    assert!(lost.verify().unwrap_err().is_lost());
    assert!(lost.unlock().unwrap_err().is_lost());
    kept.unlock().unwrap();
    eventually("its permit is free", LONG, || {
        stored(&mut server.probe()) == ("1".to_owned(), 1)
    });
    assert_eq!(
        one.owned_mutex("m").unwrap().lock().unwrap().permit_ids(),
        []
    );
}

#[test]
fn extension_by_another_client_outlasts_the_holder() {
    let server = RedisServer::start();
    let holder = client(&server, "");
    let [dead, over] = [LONG, ms(1_000)].map(|lease| {
        let semaphore = holder.semaphore(NAME, 2).unwrap();
        semaphore
            .acquire_with(1, &LockOptions::new().lease(lease))
            .unwrap()
    });
    let [id, other] = [&dead, &over].map(|guard| guard.permit_ids()[0]);
    let semaphore = client(&server, "").semaphore(NAME, 2).unwrap();
    assert!(semaphore.extend_permit(id, LONG * 10).unwrap());
    let mut probe = server.probe();
    let extended = expiry(&mut probe, id);
    assert!(extended > expiry(&mut probe, other) + 300_000.0);
    assert!(semaphore.extend_permit(id, ms(100)).unwrap());
    assert!(
        expiry(&mut probe, id) >= extended,
        "it is never made shorter"
    );
    assert!(semaphore.extend_permit(id, ms(1)).unwrap_err().is_misuse());
    std::mem::forget((dead, over));
    eventually("the other one's lease ends", LONG, || {
        semaphore.inspect().unwrap().permits.unwrap().free == 1
    });
    assert!(!semaphore.extend_permit(other, LONG).unwrap());
    assert!(semaphore.release_permit(id).unwrap());
    assert_eq!(semaphore.inspect().unwrap().permits.unwrap().free, 2);
}

#[test]
fn operators_that_change_the_limit_at_once_all_count() {
    const TURNS: i32 = 50;
    let server = RedisServer::start();
    let add = |client: Client, more: i32| {
        let mut semaphore = client.semaphore(NAME, 1_000).unwrap();
        for _ in 0..TURNS {
            assert_eq!(semaphore.add_permits(more).unwrap(), semaphore.limit());
        }
    };
    thread::scope(|scope| {
        for more in [5, -3] {
            let client = client(&server, "");
            scope.spawn(move || add(client, more));
        }
    });
    assert_eq!(stored(&mut server.probe()), ("1100".to_owned(), 0));
}

/// Strikes the first requests that change a limit: only those name the largest possible limit.
struct Struck(Fault, AtomicU32);

impl Plan for Struck {
    fn fate(&self, request: &mut Request) -> Fault {
        let is_it = request.has(&Semaphore::MAX_LIMIT.to_string());
        let left = |left: u32| left.checked_sub(1);
        let is_struck = is_it
            && self
                .1
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, left)
                .is_ok();
        if is_struck { self.0 } else { Fault::Pass }
    }
}

#[test]
fn change_of_the_limit_without_an_answer_counts_once() {
    for (fault, free) in [
        (Fault::CutReply, "8"),
        (Fault::SwallowReply, "8"),
        (Fault::Cut, "5"),
    ] {
        let server = RedisServer::start();
        let proxy = Proxy::new(server.port(), Arc::new(Struck(fault, AtomicU32::new(1))));
        let client = distlock::connect(&format!("{}?command_timeout=2s", proxy.url())).unwrap();
        let mut semaphore = client.semaphore(NAME, 5).unwrap();
        // From then on the server knows the script.
        semaphore.set_limit(5).unwrap();
        let error = semaphore.add_permits(3).unwrap_err();
        assert!(error.is_unavailable(), "{fault:?}: {error}");
        assert_eq!(
            stored(&mut server.probe()),
            (free.to_owned(), 0),
            "{fault:?}"
        );
        assert_eq!(semaphore.limit(), 5, "it is not known");
    }
}

#[test]
fn limit_is_changed_within_its_bounds_only() {
    let server = RedisServer::start();
    let mut semaphore = client(&server, "").semaphore(NAME, 3).unwrap();
    let permit = semaphore.acquire_with(1, &unrenewed()).unwrap();
    for (more, says) in [
        (-3, "would make 0"),
        (Semaphore::MAX_LIMIT as i32, "would make 1000003"),
    ] {
        let error = semaphore.add_permits(more).unwrap_err();
        assert!(
            error.is_misuse() && error.to_string().contains(says),
            "{error}"
        );
    }
    assert_eq!(
        (semaphore.add_permits(-2).unwrap(), semaphore.limit()),
        (1, 1)
    );
    assert!(semaphore.acquire_many(2).unwrap_err().is_misuse());
    assert!(permit.is_valid());
    assert_eq!(stored(&mut server.probe()), ("0".to_owned(), 1));
}

#[test]
fn drain_takes_a_thousand_at_once_and_all_come_back() {
    let server = RedisServer::start();
    let semaphore = client(&server, "").semaphore(NAME, 2_500).unwrap();
    let mut drained = Vec::new();
    while let Some(guard) = semaphore.drain_with(&unrenewed()).unwrap() {
        drained.push(guard);
    }
    let counts: Vec<_> = drained
        .iter()
        .map(|guard| guard.permit_ids().len())
        .collect();
    assert_eq!(counts, [1_000, 1_000, 500]);
    assert_eq!(stored(&mut server.probe()), ("0".to_owned(), 2_500));
    assert!(semaphore.try_acquire().unwrap().is_none());
    for guard in drained {
        guard.extend(LONG * 20).unwrap();
        guard.unlock().unwrap();
    }
    assert_eq!(stored(&mut server.probe()), ("2500".to_owned(), 0));
}

#[test]
fn drain_with_a_wait_takes_what_comes_free() {
    let server = RedisServer::start();
    let (semaphore, other) = (client(&server, ""), client(&server, ""));
    let semaphore = semaphore.semaphore(NAME, 5).unwrap();
    let other = other.semaphore(NAME, 5).unwrap();
    let (three, two) = (
        other.acquire_with(3, &unrenewed()).unwrap(),
        other.acquire_with(2, &unrenewed()).unwrap(),
    );
    assert!(semaphore.drain().unwrap().is_none());
    thread::scope(|scope| {
        let waits = scope.spawn(|| semaphore.drain_for_with(LONG, &unrenewed()).unwrap());
        let mut probe = server.probe();
        eventually("it waits", LONG, || queue::waiting(&mut probe, NAME) == 1);
        three.unlock().unwrap();
        let drained = waits.join().unwrap().expect("three are free");
        assert_eq!(drained.permit_ids().len(), 3);
        assert!(two.is_valid());
    });
    assert_eq!(stored(&mut server.probe()), ("3".to_owned(), 2));
}

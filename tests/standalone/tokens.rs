//! Fencing tokens and their counter.

use crate::bench::{Bench, granted, lease, soon, tokens};
use distlock_tests::process::RedisServer;
use lock_core::backend::{AcquisitionId, Answer, Failure, Release, ReleaseOptions, Tokens};
use lock_core::{Clock, FencingToken, SystemClock};

const COUNTER: &str = "redisson_lock_token:{a}";
/// The default lifetime of the counter in milliseconds.
const KEEP: i64 = 60 * 60 * 1000;

fn cycle(bench: &Bench) -> u64 {
    let (held, grant) = bench.take("a");
    assert_eq!(bench.release(&held), Release::Freed);
    tokens(&grant).0
}

fn take_with_reserve(bench: &Bench, reserve: u32) -> (AcquisitionId, (u64, u64)) {
    let owner = bench.owner();
    let answer = bench
        .acquire_with("a", owner, lease(30_000), Tokens::Assign { reserve })
        .unwrap();
    let grant = granted(answer);
    let held = AcquisitionId::new(
        crate::bench::name("a"),
        owner,
        lease(30_000),
        grant.receipt.clone(),
    );
    (held, tokens(&grant))
}

#[test]
fn tokens_are_server_microseconds_and_grow() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let before = SystemClock.unix_time().as_micros() as u64;
    let mut last = 0;
    for _ in 0..200 {
        let token = cycle(&bench);
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    assert!(last > before && last <= SystemClock.unix_time().as_micros() as u64);
    assert_eq!(
        server.probe().command(&["GET", COUNTER]).text(),
        last.to_string(),
        "exact to the last digit"
    );
}

#[test]
fn counter_is_kept_for_an_hour_or_as_configured() {
    let server = RedisServer::start();
    let token = cycle(&Bench::on(&server)) as i64;
    assert_eq!(server.probe().expires_at(COUNTER), token / 1000 + KEEP);
    server.probe().command(&["DEL", COUNTER]);
    let token = cycle(&Bench::new(&format!("{}?token_retention=3h", server.url()))) as i64;
    assert_eq!(server.probe().expires_at(COUNTER), token / 1000 + 3 * KEEP);
}

/// The expiry of the counter is set again every 100 s, or when tokens are reserved, but not at each
/// grant.
#[test]
fn counter_is_kept_for_at_least_100_s_less() {
    const MINUTE: u32 = 60_000_000;
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let mut probe = server.probe();
    let mut life_after =
        |token: u64| probe.expires_at(COUNTER) - i64::try_from(token).unwrap() / 1000;
    for _ in 0..100 {
        let life = life_after(cycle(&bench));
        assert!((KEEP - 100_000..=KEEP).contains(&life), "{life}");
    }
    let old = SystemClock.unix_time().as_micros() as u64 - 2 * u64::from(MINUTE);
    server
        .probe()
        .command(&["SET", COUNTER, &old.to_string(), "EX", "100"]);
    assert_eq!(
        life_after(cycle(&bench)),
        KEEP,
        "the counter stood still for two minutes"
    );
    let (held, (_, last)) = take_with_reserve(&bench, MINUTE);
    assert_eq!(life_after(last), KEEP, "tokens were set aside");
    bench.release(&held);
}

#[test]
fn counter_made_by_redisson_counts_on_without_expiry() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    server.probe().command(&["INCR", COUNTER]);
    for _ in 0..3 {
        assert!(cycle(&bench) > 1);
        assert_eq!(server.probe().command(&["PTTL", COUNTER]).int(), -1);
    }
}

#[test]
fn persistent_counter_is_kept() {
    let server = RedisServer::start();
    cycle(&Bench::on(&server));
    assert!(server.probe().command(&["PTTL", COUNTER]).int() > 0);
    let keeping = Bench::new(&format!("{}?tokens=keep", server.url()));
    cycle(&keeping);
    assert_eq!(server.probe().command(&["PTTL", COUNTER]).int(), -1);
}

#[test]
fn tokens_grow_past_a_counter_ahead_of_the_clock() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    server
        .probe()
        .command(&["SET", COUNTER, "8007199254740990", "EX", "100"]);
    assert_eq!(cycle(&bench), 8_007_199_254_740_991);
    assert_eq!(
        server.probe().command(&["GET", COUNTER]).text(),
        "8007199254740991"
    );
    assert_eq!(server.probe().expires_at(COUNTER), 8_007_199_254_740 + KEEP);
    assert_eq!(cycle(&bench), 8_007_199_254_740_992);
}

#[test]
fn exhausted_counter_refuses_and_changes_nothing() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    for counter in [
        "9007199254740991",
        "9007199254740993",
        "99999999999999999999",
        "x",
        "",
        "-1",
        "1.5",
    ] {
        server.probe().command(&["SET", COUNTER, counter]);
        let failure = bench.acquire_with(
            "a",
            bench.owner(),
            lease(100),
            Tokens::Assign { reserve: 0 },
        );
        let failure = failure.unwrap_err();
        assert!(
            matches!(failure, Failure::Refused(_)),
            "{counter}: {failure:?}"
        );
        assert!(
            failure.error().is_foreign_format(),
            "{counter}: {failure:?}"
        );
        assert_eq!(server.probe().command(&["GET", COUNTER]).text(), counter);
        assert!(!server.probe().exists("a"));
    }
    server.probe().command(&["DEL", COUNTER]);
    server.probe().command(&["RPUSH", COUNTER, "1"]);
    let failure = bench.acquire_with(
        "a",
        bench.owner(),
        lease(100),
        Tokens::Assign { reserve: 0 },
    );
    assert!(failure.unwrap_err().error().is_foreign_format());
    assert!(!server.probe().exists("a"));
}

#[test]
fn repeated_request_is_refused_by_an_inexact_counter() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let (held, _) = bench.take("a");
    server
        .probe()
        .command(&["SET", COUNTER, "9007199254740993"]);
    let again = bench.acquire_with("a", held.owner, lease(100), Tokens::Assign { reserve: 0 });
    assert!(again.unwrap_err().error().is_foreign_format());
}

#[test]
fn no_tokens_when_switched_off_or_not_requested() {
    let server = RedisServer::start();
    let off = Bench::new(&format!("{}?tokens=off", server.url()));
    assert!(!off.backend.abilities().tokens);
    let (held, grant) = off.take("a");
    assert!(grant.tokens.is_none());
    assert!(granted(off.acquire("a", held.owner)).tokens.is_none());
    off.release(&held);
    let bench = Bench::on(&server);
    assert!(bench.backend.abilities().tokens);
    let answer = bench
        .acquire_with("a", bench.owner(), lease(100), Tokens::None)
        .unwrap();
    assert!(matches!(answer, Answer::Granted(grant) if grant.tokens.is_none()));
    assert_eq!(server.probe().keys("redisson_lock_token*"), [""; 0]);
}

#[test]
fn repeated_request_gets_the_same_range() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let (held, range) = take_with_reserve(&bench, 7);
    assert_eq!(range.1 - range.0, 7);
    let again = bench.acquire_with(
        "a",
        held.owner,
        lease(30_000),
        Tokens::Assign { reserve: 7 },
    );
    assert_eq!(tokens(&granted(again.unwrap())), range);
    server.probe().command(&["DEL", COUNTER]);
    let again = bench.acquire_with(
        "a",
        held.owner,
        lease(30_000),
        Tokens::Assign { reserve: 7 },
    );
    let renewed = tokens(&granted(again.unwrap()));
    assert!(
        renewed.0 > range.0 && renewed.1 - renewed.0 == 7,
        "made anew: {renewed:?}"
    );
}

#[test]
fn unused_reserved_tokens_are_returned() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let (held, (first, last)) = take_with_reserve(&bench, 1_000_000);
    assert_eq!(
        server.probe().command(&["GET", COUNTER]).text(),
        last.to_string(),
        "the end of the range"
    );
    let expiry = server.probe().expires_at(COUNTER);
    let closing = ReleaseOptions::WITHOUT_TOMBSTONE.last_used(FencingToken::new(first + 2));
    assert_eq!(
        bench.backend.release(&held, closing, soon()).unwrap(),
        Release::Freed
    );
    assert_eq!(
        server.probe().command(&["GET", COUNTER]).text(),
        (first + 2).to_string()
    );
    assert_eq!(
        server.probe().expires_at(COUNTER),
        expiry,
        "the expiry stays as it was"
    );
    assert_eq!(
        server.probe().keys("distlock_closed*"),
        [""; 0],
        "and there is no tombstone"
    );
    assert!(cycle(&bench) > first + 2);
}

#[test]
fn no_tokens_are_returned_without_the_lock_or_the_counter() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let (held, (first, last)) = take_with_reserve(&bench, 1_000_000);
    let closing = ReleaseOptions::WITHOUT_TOMBSTONE.last_used(FencingToken::new(first));
    // The lock `{a}` and Redisson's `RFencedLock` use the same counter.
    server.probe().command(&["INCR", COUNTER]);
    assert_eq!(
        bench.backend.release(&held, closing, soon()).unwrap(),
        Release::Freed
    );
    assert_eq!(
        server.probe().command(&["GET", COUNTER]).text(),
        (last + 1).to_string()
    );

    let (held, (first, last)) = take_with_reserve(&bench, 5);
    let closing = ReleaseOptions::WITHOUT_TOMBSTONE.last_used(FencingToken::new(first));
    server.probe().command(&["DEL", "a"]);
    assert_eq!(
        bench.backend.release(&held, closing, soon()).unwrap(),
        Release::Gone
    );
    assert_eq!(
        server.probe().command(&["GET", COUNTER]).text(),
        last.to_string()
    );
}

#[test]
fn counter_without_expiry_keeps_none_after_a_return() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    server.probe().command(&["SET", COUNTER, "1"]);
    let (held, (first, _)) = take_with_reserve(&bench, 9);
    let closing = ReleaseOptions::WITH_TOMBSTONE.last_used(FencingToken::new(first + 1));
    assert_eq!(
        bench.backend.release(&held, closing, soon()).unwrap(),
        Release::Freed
    );
    assert_eq!(
        server.probe().command(&["GET", COUNTER]).text(),
        (first + 1).to_string()
    );
    assert_eq!(server.probe().command(&["PTTL", COUNTER]).int(), -1);
}

#[test]
fn refused_acquire_leaves_a_counter_ahead_of_the_clock_as_it_is() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let ahead = "1900000000000000";
    probe.command(&["SET", COUNTER, ahead, "EX", "1000"]);
    let user = [
        "ACL", "SETUSER", "me", "reset", "on", "nopass", "~*", "&*", "+@all", "-pttl",
    ];
    probe.command(&user);
    let lock = distlock::connect(&server.url_as("me"))
        .unwrap()
        .mutex("a")
        .unwrap();
    let error = lock.try_lock().unwrap_err();
    assert!(error.to_string().contains("+pttl"), "{error}");
    assert_eq!(probe.get(COUNTER).unwrap(), ahead);
    assert!(probe.command(&["PTTL", COUNTER]).int() > 0);
}

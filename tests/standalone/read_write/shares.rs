//! Read and write holds in the store: their keys, fields and leases, and what ends each hold.

use super::*;
use distlock_tests::process::RedisServer;
use distlock_tests::time::{eventually, let_pass, ms};
use lock_core::backend::{KeptLock, Tokens};

const SHORT: u64 = 300;

/// Asserts that `left` is `seconds`, less at most `LATE` that may have passed meanwhile.
#[track_caller]
fn assert_left(left: Option<Duration>, seconds: u64) {
    let whole = Duration::from_secs(seconds);
    let left = left.expect("it has an end");
    assert!(
        left <= whole && left + LATE > whole,
        "{left:?} are left of {seconds} s"
    );
}

/// Returns the remaining time that a busy answer reports.
fn left_of(busy: Answer) -> Option<Duration> {
    match busy {
        Answer::Busy(left) => left,
        other => panic!("{other:?}"),
    }
}

#[test]
fn readers_and_writers_stand_as_redissons_do() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    let (one, _) = asked.take(&read(), 20_000);
    assert_eq!(
        fields(&mut probe),
        [format!("{one}=1"), "mode=read".to_owned()]
    );
    let (two, _) = asked.take(&read(), 50_000);
    let mut expected = [
        format!("{one}=1"),
        format!("{two}=1"),
        "mode=read".to_owned(),
    ];
    expected.sort_unstable();
    assert_eq!(fields(&mut probe), expected);
    let mut keys = vec!["x".to_owned(), hold(one), hold(two)];
    keys.sort_unstable();
    assert_eq!(probe.keys("*"), keys);
    for (key, seconds) in [(hold(one), 20), (hold(two), 50), ("x".to_owned(), 50)] {
        assert_left(probe.pttl(&key), seconds);
    }
    assert_eq!(probe.get(&hold(one)).as_deref(), Some("1"));
    assert!(matches!(asked.release(&read(), two), Release::Freed));
    assert!(matches!(asked.release(&read(), one), Release::Freed));
    assert_eq!(probe.keys("*"), [""; 0]);
    let (writer, _) = asked.take(&write(), 30_000);
    assert_eq!(
        fields(&mut probe),
        [format!("{writer}:write=1"), "mode=write".to_owned()]
    );
    assert_eq!(probe.keys("*"), ["redisson_lock_token:{x}", "x"]);
    assert!(matches!(asked.release(&write(), writer), Release::Freed));
    assert!(!probe.exists("x"));
}

#[test]
fn braces_in_a_name_move_no_key_to_another_slot() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    let braced = name("a{x}b").of_kind(LockKind::Read);
    let (owner, _) = asked.take(&braced, 30_000);
    let hold = format!("a{{x}}b:{owner}:rwlock_timeout:1");
    assert_eq!(probe.keys("*"), ["a{x}b".to_owned(), hold]);
    assert!(asked.waits(&braced.of_kind(LockKind::Write)));
    assert!(probe.exists("distlock_queue:2:a{x}b"));
}

#[test]
fn dead_reader_ends_with_its_lease_while_another_renews() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    let (dead, _) = asked.take(&read(), SHORT);
    let (alive, _) = asked.take(&read(), 30_000);
    assert_eq!(asked.0.backend.inspect(&read(), soon()).unwrap().holders, 2);
    let writer = asked.0.owner();
    let busy = asked.attempt(&write(), writer, lease(30_000));
    assert_left(left_of(busy), 30);
    eventually("its lease ends", LONG, || !probe.exists(&hold(dead)));
    assert!(!asked.verifies(&read(), dead) && asked.verifies(&read(), alive));
    let info = asked.0.backend.inspect(&read(), soon()).unwrap();
    assert_eq!(info.holders, 1);
    assert!(alive.matches(&info.holder.unwrap().owner));
    assert_eq!(asked.renew(&read(), alive, 30_000), Renewal::Extended);
    assert!(
        probe.hgetall("x").contains_key(&dead.to_string()),
        "the hash was renewed"
    );
    assert!(asked.is_busy(&write()));
    assert!(
        !probe.hgetall("x").contains_key(&dead.to_string()),
        "a writer has looked"
    );
    // A lock whose readers are all dead is granted at once, although its hash lives on.
    assert_eq!(asked.release(&write(), writer), Release::Gone);
    let (last, _) = asked.take(&read(), SHORT);
    assert!(matches!(asked.release(&read(), alive), Release::Freed));
    eventually("the last ends", LONG, || !probe.exists(&hold(last)));
    assert!(
        probe.pttl("x").unwrap() > Duration::from_secs(10),
        "the hash lives on"
    );
    asked.take(&write(), 30_000);
}

/// A reader of Redisson's has a key for each of its holds: a single remaining key keeps the reader
/// alive.
#[test]
fn reader_lives_while_any_of_its_holds_does() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    let foreign = "7b6d2f0e-5f55-4c05-9b3a-d3a6a3a8d1a1:5";
    probe.command(&["HSET", "x", "mode", "read", foreign, "3"]);
    probe.command(&["PEXPIRE", "x", "600000"]);
    let second = format!("{{x}}:{foreign}:rwlock_timeout:2");
    probe.command(&["SET", &second, "1", "PX", "60000"]);
    let busy = asked.attempt(&write(), asked.0.owner(), lease(30_000));
    assert_left(left_of(busy), 60);
    let info = asked.0.backend.inspect(&write(), soon()).unwrap();
    let holder = info.holder.unwrap();
    assert_eq!(
        (holder.owner.as_str(), holder.holds, info.holders),
        (foreign, 3, 1)
    );
    assert_left(holder.remaining, 60);
    probe.command(&["DEL", &second]);
    asked.take(&write(), 30_000);
}

#[test]
fn lock_whose_readers_are_all_dead_counts_as_free() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    let mut die = |count| die(&asked, &mut probe, count);
    let store = &asked.0.backend;
    die(100);
    for name in [read(), write()] {
        let info = store.inspect(&name, soon()).unwrap();
        assert!(info.holder.is_none() && info.readers.unwrap().known.is_empty());
    }
    let listed = store.inspect_many(&[name("x")], soon()).remove(0).unwrap();
    assert!(listed.holder.is_none(), "{listed:?}");
    // At most a hundred readers are checked in one answer; the others are taken for alive.
    die(23);
    let info = store.inspect(&write(), soon()).unwrap();
    assert!(
        info.holder.is_some() && info.readers.as_ref().unwrap().known.is_empty(),
        "{info:?}"
    );
    assert_eq!(info.holders, 23);
}

/// One answer names at most a hundred readers: the others must be purged, counted and released by
/// force as well.
#[test]
fn dead_readers_beyond_the_first_hundred_are_purged_too() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    for _ in 0..250 {
        let (dead, _) = asked.take(&read(), 30_000);
        probe.command(&["DEL", &hold(dead)]);
    }
    let writer = asked.0.owner();
    eventually("the writer is granted", LONG, || {
        !asked.attempt(&write(), writer, lease(30_000)).is_busy()
    });
    let many = name("many").of_kind(LockKind::Read);
    for _ in 0..1_100 {
        asked.take(&many, 30_000);
    }
    let info = asked.0.backend.inspect(&many, soon()).unwrap();
    assert_eq!(
        (info.holders, info.readers.unwrap().known.len()),
        (1_100, 100)
    );
    assert!(
        asked
            .0
            .backend
            .admin()
            .unwrap()
            .force_release(&many, soon())
            .unwrap()
    );
    asked.take(&many.of_kind(LockKind::Write), 30_000);
}

/// `inspect_all` reads up to a hundred locks in one write, so it samples the readers of a large
/// lock instead of fetching all fields.
#[test]
fn lock_of_many_readers_is_inspected_by_a_sample() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    for count in [1, 40] {
        let read = name(&format!("of {count}")).of_kind(LockKind::Read);
        (0..count).for_each(|_| drop(asked.take(&read, 30_000)));
        for kind in [LockKind::Mutex, LockKind::Write] {
            probe.reset_stats();
            let infos = asked
                .0
                .backend
                .admin()
                .unwrap()
                .inspect_all(&[read.of_kind(kind)], soon());
            let info = infos.into_iter().flatten().next().expect("it is held");
            assert_eq!(info.readers.unwrap().known.len(), count, "{kind:?}");
            assert_eq!(
                probe.command_calls("hkeys") > 0,
                count == 1,
                "{kind:?} of {count}"
            );
        }
    }
}

/// Adds `count` readers to the lock's hash that have no hold keys, like readers that died.
fn die(asked: &Asked, probe: &mut Probe, count: usize) {
    let mut words: Vec<_> = ["HSET", "x", "mode", "read"].map(str::to_owned).into();
    for _ in 0..count {
        words.extend([asked.0.owner().to_string(), "1".to_owned()]);
    }
    probe.command(&words.iter().map(String::as_str).collect::<Vec<_>>());
    probe.command(&["PEXPIRE", "x", "30000"]);
}

#[test]
fn a_thousand_dead_readers_end_in_one_attempt() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    die(&asked, &mut probe, 1_000);
    assert!(!asked.is_busy(&write()), "all of them are dead");
    // One live reader among a thousand dead ones.
    probe.command(&["DEL", "x"]);
    let (reader, _) = asked.take(&read(), 30_000);
    die(&asked, &mut probe, 1_000);
    assert!(asked.is_busy(&write()));
    assert!(
        probe.command(&["HLEN", "x"]).int() < 100,
        "and the dead ones are gone"
    );
    asked.release(&read(), reader);
    assert!(!asked.is_busy(&write()));
}

#[test]
fn dead_readers_do_not_pile_up_beside_a_live_one() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    let (alive, _) = asked.take(&read(), 30_000);
    for _ in 0..500 {
        let (dead, _) = asked.take(&read(), 30_000);
        probe.command(&["DEL", &hold(dead)]);
    }
    let fields = probe.command(&["HLEN", "x"]).int();
    assert!(fields < 50, "{fields} fields of one reader that lives");
    assert!(asked.verifies(&read(), alive));
    asked.release(&read(), alive);
    for _ in 0..50 {
        let (reader, _) = asked.take(&read(), 30_000);
        asked.release(&read(), reader);
    }
    assert!(!probe.exists("x"), "the last one has released");
}

/// The sweep of dead readers spares a reader of Redisson's of whose three holds one is left, and a
/// hold without an expiry.
#[test]
fn reader_with_a_live_hold_is_taken_for_no_dead_one() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    let [several, endless] = [(); 2].map(|()| asked.0.owner().to_string());
    probe.command(&["HSET", "x", "mode", "read", &several, "3", &endless, "1"]);
    probe.command(&["PEXPIRE", "x", "30000"]);
    probe.command(&[
        "SET",
        &format!("{{x}}:{several}:rwlock_timeout:3"),
        "1",
        "PX",
        "30000",
    ]);
    probe.command(&["SET", &format!("{{x}}:{endless}:rwlock_timeout:1"), "1"]);
    for _ in 0..20 {
        let (reader, _) = asked.take(&read(), 30_000);
        asked.release(&read(), reader);
    }
    assert_eq!(probe.command(&["HLEN", "x"]).int(), 3);
}

#[test]
fn forced_release_of_readers_leaves_the_writer_and_a_mutex() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    let force = |kind| {
        asked
            .0
            .backend
            .admin()
            .unwrap()
            .force_release(&name("x").of_kind(kind), soon())
            .unwrap()
    };
    for kind in [LockKind::Write, LockKind::Mutex] {
        let held = name("x").of_kind(kind);
        let (owner, _) = asked.take(&held, 30_000);
        assert!(!force(LockKind::Read), "{kind:?}");
        assert!(asked.verifies(&held, owner), "{kind:?}");
        assert!(force(LockKind::Write) && !probe.exists("x"), "{kind:?}");
    }
    // A read hold beside the write lock is the writer's own, and ends with the write lock.
    let (writer, _) = asked.take(&write(), 30_000);
    let (name, reader) = (read(), asked.0.owner());
    let beside = Attempt::new(&name, reader, lease(30_000)).beside(Some(writer));
    granted(asked.0.backend.acquire(&beside, soon()).unwrap());
    assert!(!force(LockKind::Read) && asked.verifies(&read(), reader));
    assert!(force(LockKind::Write) && !asked.verifies(&read(), reader));
}

#[test]
fn forced_release_ends_the_wait_of_a_writer() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    let _watch = asked.0.listens(&write());
    let force = || {
        let admin = asked.0.backend.admin().unwrap();
        admin.force_release(&write(), soon()).unwrap()
    };
    for forced in [false, true] {
        let (reader, _) = asked.take(&read(), 30_000);
        assert!(asked.waits(&write()), "and never asks again");
        match forced {
            true => assert!(force()),
            false => assert!(matches!(asked.release(&read(), reader), Release::Freed)),
        }
        assert!(
            asked
                .attempt(&read(), asked.0.owner(), lease(30_000))
                .is_busy()
        );
        assert!(!force(), "it is free");
        assert!(!probe.exists(&queue::key("x")));
        asked.take(&read(), 30_000);
        probe.command(&["FLUSHALL"]);
    }
}

#[test]
fn renewal_extends_own_hold_and_never_shortens_or_revives() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    let (one, _) = asked.take(&read(), 20_000);
    let (other, _) = asked.take(&read(), 10_000);
    assert_left(probe.pttl("x"), 20);
    let ends = probe.expires_at(&hold(other));
    assert_eq!(asked.renew(&read(), one, 50_000), Renewal::Extended);
    for key in ["x", &hold(one)] {
        assert_left(probe.pttl(key), 50);
    }
    assert_eq!(probe.expires_at(&hold(other)), ends, "another's");
    assert_eq!(asked.renew(&read(), one, 5_000), Renewal::Extended);
    assert_eq!(asked.renew(&read(), other, 5_000), Renewal::Extended);
    for (key, seconds) in [("x", 50), (&hold(one), 50), (&hold(other), 10)] {
        assert_left(probe.pttl(key), seconds);
    }
    probe.command(&["DEL", &hold(one)]);
    assert_eq!(asked.renew(&read(), one, 50_000), Renewal::Gone);
    assert!(!probe.exists(&hold(one)));
    assert_eq!(asked.renew(&read(), other, 50_000), Renewal::Extended);
    probe.command(&["DEL", &hold(other)]);
    assert_eq!(asked.renew(&read(), other, 50_000), Renewal::Gone);
    assert_eq!(probe.keys("*"), [""; 0], "it was the last");
}

#[test]
fn repeated_requests_of_a_reader_count_once() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    let (owner, _) = asked.take(&read(), 30_000);
    granted(asked.attempt(&read(), owner, lease(5_000)));
    assert_eq!(
        fields(&mut probe),
        [format!("{owner}=1"), "mode=read".to_owned()]
    );
    for key in ["x", &hold(owner)] {
        assert_left(probe.pttl(key), 30);
    }
    granted(asked.attempt(&read(), owner, lease(50_000)));
    assert_left(probe.pttl(&hold(owner)), 50);
    let closing = ReleaseOptions::WITH_TOMBSTONE;
    assert!(matches!(
        asked.release_with(&read(), owner, closing),
        Release::Freed
    ));
    assert_eq!(asked.release_with(&read(), owner, closing), Release::Gone);
    assert!(
        asked.attempt(&read(), owner, lease(30_000)).is_busy(),
        "it is closed"
    );
    assert_eq!(probe.keys("*"), [format!("distlock_closed:{{x}}:{owner}")]);
    // A release that overtakes its own attempt.
    let late = asked.0.owner();
    assert_eq!(asked.release_with(&read(), late, closing), Release::Gone);
    assert!(asked.attempt(&read(), late, lease(30_000)).is_busy());
    let writer = asked.0.owner();
    assert_eq!(asked.release_with(&write(), writer, closing), Release::Gone);
    assert!(asked.attempt(&write(), writer, lease(30_000)).is_busy());
    assert!(!probe.exists(&queue::key("x")), "it does not wait");
}

#[test]
fn release_after_lease_end_reports_gone() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    let (short, _) = asked.take(&read(), 100);
    let (long, _) = asked.take(&read(), 30_000);
    eventually("its lease ends", LONG, || !probe.exists(&hold(short)));
    assert_eq!(asked.release(&read(), short), Release::Gone);
    assert_eq!(
        fields(&mut probe),
        [format!("{long}=1"), "mode=read".to_owned()]
    );
}

#[test]
fn kinds_of_a_name_are_busy_for_each_other() {
    let server = RedisServer::start();
    let asked = Asked(Bench::on(&server));
    for held in [LockKind::Mutex, LockKind::Read, LockKind::Write] {
        let name = |kind| name(&format!("{held:?}")).of_kind(kind);
        let (owner, _) = asked.take(&name(held), 30_000);
        for kind in [LockKind::Mutex, LockKind::Read, LockKind::Write] {
            let shares = (held, kind) == (LockKind::Read, LockKind::Read);
            let answer = asked.attempt(&name(kind), asked.0.owner(), lease(30_000));
            assert_eq!(answer.is_busy(), !shares, "{kind:?} beside {held:?}");
            assert!(
                matches!(answer, Answer::Busy(Some(_))) || shares,
                "{answer:?}"
            );
            assert_eq!(
                asked.release(&name(LockKind::Write), asked.0.owner()),
                Release::Gone
            );
        }
        assert!(asked.verifies(&name(held), owner));
        assert!(
            asked
                .0
                .backend
                .admin()
                .unwrap()
                .force_release(&name(LockKind::Write), soon())
                .unwrap()
        );
        asked.take(&name(LockKind::Write), 30_000);
    }
}

#[test]
fn reader_gets_the_counters_value_as_its_token() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    let token = |grant: Grant| grant.tokens.map(|tokens| tokens.first().get());
    let (reader, grant) = asked.take(&read(), 30_000);
    assert_eq!(token(grant), None);
    asked.release(&read(), reader);
    let (writer, grant) = asked.take(&write(), 30_000);
    let written = token(grant);
    asked.release(&write(), writer);
    let (reader, grant) = asked.take(&read(), 30_000);
    assert_eq!(token(grant), written);
    let name = read();
    let again = Attempt::new(&name, reader, lease(30_000)).tokens(Tokens::None);
    assert_eq!(
        token(granted(asked.0.backend.acquire(&again, soon()).unwrap())),
        None
    );
    probe.command(&["SET", "redisson_lock_token:{x}", "no number"]);
    assert_eq!(token(asked.take(&read(), 30_000).1), None);
    let calls = probe.all_command_calls();
    assert!(!calls.contains_key("incr"), "{calls:?}");
}

#[test]
fn kept_write_lock_ends_by_itself() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    let keep = |milliseconds| {
        let kept = KeptLock::new(asked.0.owner(), lease(milliseconds));
        (
            kept.owner,
            ReleaseOptions::WITHOUT_TOMBSTONE.kept(Some(kept)),
        )
    };
    let (writer, _) = asked.take(&write(), 30_000);
    let (kept, options) = keep(5_000);
    assert!(matches!(
        asked.release_with(&write(), writer, options),
        Release::Freed
    ));
    assert_eq!(
        asked.release_with(&write(), writer, options),
        Release::Freed,
        "repeated"
    );
    assert_eq!(
        fields(&mut probe),
        [format!("{kept}:write=1"), "mode=write".to_owned()]
    );
    assert_left(probe.pttl("x"), 5);
    assert!(asked.is_busy(&read()) && asked.is_busy(&write()));
    assert_eq!(asked.renew(&write(), writer, 30_000), Renewal::Gone);
    probe.command(&["DEL", "x"]);

    // The writer also reads: the minimum hold must neither end nor shorten its read hold.
    let (writer, _) = asked.take(&write(), 30_000);
    let reader = asked.0.owner();
    let name = read();
    let beside = Attempt::new(&name, reader, lease(30_000)).beside(Some(writer));
    granted(asked.0.backend.acquire(&beside, soon()).unwrap());
    let (kept, options) = keep(5_000);
    asked.release_with(&write(), writer, options);
    let mut expected = [
        format!("{kept}:write=1"),
        format!("{reader}=1"),
        "mode=write".to_owned(),
    ];
    expected.sort_unstable();
    assert_eq!(fields(&mut probe), expected);
    assert!(asked.verifies(&read(), reader) && asked.is_busy(&read()));
    assert_left(probe.pttl("x"), 30);
}

#[test]
fn forced_release_ends_all_holds_and_frees_the_name() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    let force = |name: &LockName| {
        asked
            .0
            .backend
            .admin()
            .unwrap()
            .force_release(name, soon())
            .unwrap()
    };
    for by in [read(), write()] {
        assert!(!force(&by), "it is free");
        let readers: Vec<_> = (0..3).map(|_| asked.take(&read(), 30_000).0).collect();
        assert!(force(&by) && !force(&by) && !probe.exists("x"));
        for reader in readers {
            assert_eq!(asked.renew(&read(), reader, 30_000), Renewal::Gone);
            assert!(!asked.verifies(&read(), reader));
        }
        let (writer, _) = asked.take(&write(), 30_000);
        let info = asked.0.backend.inspect(&write(), soon()).unwrap();
        assert!(writer.matches(&info.holder.unwrap().owner) && info.holders == 1);
        assert!(
            asked
                .0
                .backend
                .inspect(&read(), soon())
                .unwrap()
                .holder
                .is_none()
        );
        assert!(force(&write()));
        assert_eq!(asked.renew(&write(), writer, 30_000), Renewal::Gone);
        assert_eq!(asked.release(&write(), writer), Release::Gone);
    }
}

#[test]
fn foreign_data_under_the_name_is_refused_and_kept() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    let refused = |answer: Result<(), lock_core::backend::Failure>| {
        let error = answer.unwrap_err().into_error();
        assert!(error.is_foreign_format(), "{error}");
    };
    for data in [["SET", "x", "a text", ""], ["HSET", "x", "mode", "odd"]] {
        let words = data.into_iter().filter(|word| !word.is_empty());
        probe.command(&words.collect::<Vec<_>>());
        for name in [read(), write()] {
            let attempt = Attempt::new(&name, asked.0.owner(), lease(30_000));
            refused(asked.0.backend.acquire(&attempt, soon()).map(drop));
            refused(asked.0.backend.inspect(&name, soon()).map(drop));
            refused(
                asked
                    .0
                    .backend
                    .admin()
                    .unwrap()
                    .force_release(&name, soon())
                    .map(drop),
            );
        }
        assert!(probe.exists("x"));
        probe.command(&["DEL", "x"]);
    }
    // A lock without an expiry is busy, too.
    probe.command(&[
        "HSET",
        "x",
        "mode",
        "write",
        &format!("{}:write", asked.0.owner()),
        "1",
    ]);
    let answer = asked.attempt(&read(), asked.0.owner(), lease(30_000));
    assert!(matches!(answer, Answer::BusyWithoutExpiry(_)), "{answer:?}");
}

/// A reader that renews a short lease in time is never purged, though a writer attempts after each
/// renewal.
#[test]
fn clients_that_keep_holding_are_not_purged() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    let (reader, _) = asked.take(&read(), 600);
    for _ in 0..20 {
        assert_eq!(asked.renew(&read(), reader, 600), Renewal::Extended);
        assert!(asked.is_busy(&write()));
        let_pass(ms(50));
    }
    assert!(probe.exists(&hold(reader)));
}

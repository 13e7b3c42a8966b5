//! The settings of the classic formats.

use crate::stage::{Client, Server};
use distlock::LockOptions;
use distlock::backend::{Answer, Failure, Release};
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::redis::client;
use distlock_tests::time::within;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// The time of day of clients whose clocks stand still.
const NOW: Duration = Duration::from_secs(1_800_000_000);

/// The stored end of a one-minute lock that is taken at `NOW`, in each spelling.
const UNTIL: [(&str, &str); 2] = [("seconds", "1800000061"), ("float", "1800000060.0")];

/// A waiter with a longer interval would find the end of a lease too late; the SETNX page polls
/// every 10 ms.
#[test]
fn poll_interval_must_be_shorter_than_the_lease() {
    let server = RedisServer::start();
    for format in ["plain", "timestamp", "counter"] {
        let poll = |poll: &str| format!("format={format},poll={poll}");
        let lock = client(&server, &poll("1s")).mutex("x").unwrap();
        let options = LockOptions::new().lease(SECOND);
        let error = lock.try_lock_with(&options).unwrap_err();
        assert!(error.is_configuration(), "{format}: {error:?}");
        assert!(error.to_string().contains("`poll`"), "{format}: {error}");
        assert!(
            !server.probe().exists("x"),
            "{format}: nothing was asked for"
        );
        for often in ["999ms", "10ms"] {
            let lock = client(&server, &poll(often)).mutex("x").unwrap();
            lock.try_lock_with(&options)
                .unwrap()
                .expect("it is free")
                .unlock()
                .unwrap();
        }
        // A lease in the settings is checked when the client connects.
        let connect = |poll: &str, lease: &str| {
            let options = format!("format={format},poll={poll}&lease={lease}");
            distlock::connect(&format!("{}?{options}", server.url()))
        };
        let refused = connect("2s", "2s").unwrap_err();
        assert!(refused.is_configuration(), "{format}: {refused:?}");
        let said = refused.to_string();
        assert!(
            said.contains("every 2s") && said.contains("lease=2s"),
            "{format}: {said}"
        );
        assert!(connect("1999ms", "2s").is_ok(), "{format}");
    }
}

/// A client whose clock is sixty years ahead does not take over a lock without expiry.
#[test]
fn lock_without_expiry_is_never_past() {
    const FAR: i64 = 60 * 365 * 24 * 60 * 60;
    for format in ["timestamp", "timestamp,float", "timestamp,takeover=delete"] {
        let server = Server::start();
        let holder = Client::new(&server, format).lease(Duration::from_secs(FAR as u64));
        assert!(holder.take());
        let late = Client::ahead(&server, format, FAR);
        assert!(!late.take(), "{format}");
        // A timestamp one day before the largest one is an ordinary end of a lease, and has passed.
        server.ask("SET x 2147397248");
        assert!(late.take(), "{format}");
    }
}

#[test]
fn lock_that_was_never_acquired_is_not_released() {
    for format in ["timestamp", "timestamp,float", "timestamp,release=compare"] {
        let server = Server::start();
        let [holder, other] = [(); 2].map(|()| Client::new(&server, format));
        assert!(holder.take() && !other.take());
        let outcome = other.release();
        let is_misuse = matches!(&outcome, Err(Failure::NotSent(error)) if error.is_misuse());
        assert!(is_misuse, "{format}: {outcome:?}");
        assert!(server.has_the_lock(), "{format}");
        assert!(holder.give_back(), "{format}");
    }
}

/// `release=` decides about a timestamp that the client did not write. `delete` (the SETNX page)
/// deletes any, `not-older` (tornado-redis) one that is not older than its own, `compare` only its
/// own.
#[test]
fn timestamp_is_deleted_by_the_configured_rule() {
    let rules = [
        ("delete", [true, true, true]),
        ("not-older", [false, true, true]),
        ("compare", [false, true, false]),
    ];
    for (spelling, until) in UNTIL {
        let usual = if spelling == "float" {
            "not-older"
        } else {
            "delete"
        };
        for (rule, deletes) in rules {
            let mut formats = vec![format!("timestamp,{spelling},release={rule}")];
            formats.extend((rule == usual).then(|| format!("timestamp,{spelling}")));
            let (older, newer) = (until.replace("0006", "0005"), until.replace("0006", "0007"));
            for format in formats {
                for (stored, deleted) in [&older, until, &newer].into_iter().zip(deletes) {
                    let server = Server::start();
                    let client = Client::still(&server, &format, NOW);
                    assert!(client.take());
                    assert_eq!(
                        server.ask("STRLEN x"),
                        format!(":{}", until.len()),
                        "{format}"
                    );
                    server.ask(&format!("SET x {stored}"));
                    let outcome = client.release();
                    let told = format!("{format} on {stored}: {outcome:?}");
                    assert!(
                        matches!(outcome, Ok(Release::Freed | Release::Gone)),
                        "{told}"
                    );
                    assert_eq!(matches!(outcome, Ok(Release::Freed)), deleted, "{told}");
                    assert_eq!(server.has_the_lock(), !deleted, "{told}");
                }
            }
        }
    }
}

/// A waiter that polls every ten seconds gives up at its deadline of half a second, not at its next
/// poll.
#[test]
fn polling_wait_ends_at_its_deadline() {
    let server = RedisServer::start();
    for format in ["plain", "timestamp", "counter"] {
        let [one, other] = [(); 2].map(|()| {
            let client = client(&server, &format!("format={format},poll=10s&lease=60s"));
            client.mutex(format).unwrap()
        });
        let _held = one.lock().unwrap();
        // Long before the next poll.
        let waited = within(SECOND * 5, || other.try_lock_for(SECOND / 2).unwrap());
        assert!(waited.is_none(), "{format}");
    }
}

/// A timestamp is read as busy, with its remaining time, by clients of both spellings.
#[test]
fn remaining_time_is_read_from_both_spellings() {
    for (spelling, until) in UNTIL {
        let server = Server::start();
        server.ask(&format!("SET x {until}"));
        for other in ["seconds", "float"] {
            let client = Client::still(&server, &format!("timestamp,{other}"), NOW);
            let Ok(Answer::Busy(Some(left))) = client.attempt() else {
                panic!("{other} on {spelling}: {:?}", client.attempt());
            };
            assert_eq!(
                left.as_secs(),
                until.parse::<f64>().unwrap() as u64 - NOW.as_secs()
            );
        }
    }
}

/// Python clients read their clocks in whole seconds, and still hold a lock that a finer clock
/// finds past: `float` takes over only after the full second.
#[test]
fn float_timestamp_is_past_by_a_clock_of_whole_seconds() {
    for (format, until) in [
        ("timestamp,float", "1800000000.0"),
        ("timestamp,seconds", "1800000000"),
    ] {
        let server = Server::start();
        server.ask(&format!("SET x {until}"));
        let takes =
            |later| Client::still(&server, format, NOW + Duration::from_millis(later)).take();
        let is_finer = format.ends_with("seconds");
        assert_eq!(takes(900), is_finer, "{format}");
        assert!(is_finer || takes(1_000), "{format}");
    }
}

fn probe(server: &Server) -> Probe {
    Probe::connect(server.port)
}

/// A client that found the lock taken, and then deleted, sends no `GETSET`: it would overwrite a
/// value that another client has stored since.
#[test]
fn takeover_of_a_released_lock_uses_no_getset() {
    for format in ["timestamp", "timestamp,float", "timestamp,takeover=delete"] {
        let server = Server::start();
        let [holder, late] = [(); 2].map(|()| Client::new(&server, format));
        assert!(holder.take());
        let attempt = late.until(&["GET"], Client::take);
        assert!(attempt.is_held_up() && holder.give_back());
        assert!(attempt.go_on(), "{format}: it was free");
        let asked = |command: &str| probe(&server).command_calls(command);
        assert_eq!(
            (asked("del"), asked("getset")),
            (1, 0),
            "{format}: the holder's release is one"
        );
    }
}

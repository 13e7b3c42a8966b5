//! Servers on TLS: which certificates each side accepts, and the errors for those that it does not.

use crate::bench::{Bench, LONG, granted, lease};
use crate::life;
use crate::peer::{Peer, hold};
use distlock_tests::authority::Authority;
use distlock_tests::process::RedisServer;
use distlock_tests::time::timed;
use lock_core::backend::{Failure, Tokens};
use std::io::Write;

fn attempt(url: &str) -> Result<(), Failure> {
    let bench = Bench::new(url);
    let owner = bench.owner();
    let outcome = timed(500, |_| {
        bench.acquire_with("a", owner, lease(30_000), Tokens::None)
    });
    outcome.map(|answer| drop(granted(answer)))
}

/// Asserts that an attempt fails at once with a configuration error, which contains `says`.
#[track_caller]
fn is_refused(url: &str, says: &str) {
    let failure = attempt(url).unwrap_err();
    assert!(matches!(failure, Failure::Refused(_)), "{failure:?}");
    assert!(failure.error().is_configuration(), "{failure:?}");
    assert!(failure.error().to_string().contains(says), "{failure:?}");
}

#[track_caller]
fn is_unavailable(url: &str, says: &str) {
    let failure = attempt(url).unwrap_err();
    assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
    assert!(failure.error().is_unavailable(), "{failure:?}");
    assert!(failure.error().to_string().contains(says), "{failure:?}");
}

#[test]
fn lock_works_on_tls() {
    let authority = Authority::new();
    let (server, port) = authority.server("127.0.0.1", 2090, "no", &[]);
    life::of_a_lock(&server, &authority.url(port));
}

#[test]
fn lock_works_on_tls_1_2() {
    let authority = Authority::new();
    let (server, port) = authority.server("127.0.0.1", 2090, "no", &["--tls-protocols", "TLSv1.2"]);
    life::of_a_lock(&server, &authority.url(port));
}

#[test]
fn certificate_of_unknown_authority_is_refused() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (_server, port) = authority.server("127.0.0.1", 2090, "no", &[]);
    is_refused(&other.url(port), "`tls_ca=FILE`");
    is_refused(&format!("rediss://127.0.0.1:{port}"), "`tls_ca=FILE`");
}

#[test]
fn expired_certificate_is_refused() {
    let authority = Authority::new();
    let (_server, port) = authority.server("127.0.0.1", 2021, "no", &[]);
    is_refused(&authority.url(port), "has expired");
}

#[test]
fn certificate_for_a_different_host_is_refused_unless_named() {
    let authority = Authority::new();
    let (_server, port) = authority.server("redis.example", 2090, "no", &[]);
    is_refused(&authority.url(port), "`tls_name=HOST`");
    attempt(&format!("{}&tls_name=redis.example", authority.url(port))).unwrap();
    is_refused(
        &format!("{}&tls_name=other.example", authority.url(port)),
        "is not for other.example, which `tls_name` names, but for",
    );
}

#[test]
fn defect_of_a_certificate_is_named() {
    let authority = Authority::new();
    let (_server, port) = authority.server("", 2090, "no", &[]);
    is_refused(&authority.url(port), "subject alternative name");
    let authority = Authority::new();
    let (_server, port) = authority.server_with_its_own();
    is_refused(&authority.url(port), "is that of an authority");
}

#[test]
fn server_that_asks_for_a_client_certificate_gets_it() {
    for protocol in ["TLSv1.2", "TLSv1.3"] {
        let (authority, other) = (Authority::new(), Authority::new());
        let (server, port) =
            authority.server("127.0.0.1", 2090, "yes", &["--tls-protocols", protocol]);
        authority.certify("client", "worker", 2090);
        other.certify("client", "worker", 2090);
        let with = |by: &Authority| {
            let (cert, key) = (by.file("client.crt"), by.file("client.key"));
            format!("{}&tls_cert={cert}&tls_key={key}", authority.url(port))
        };
        is_refused(&authority.url(port), "tls_cert=FILE");
        is_refused(&with(&other), "`tls_cert`");
        life::of_a_lock(&server, &with(&authority));
    }
}

#[test]
fn server_without_tls_is_reported_as_such() {
    let server = RedisServer::start();
    let url = format!("rediss://127.0.0.1:{}?connect_timeout=300ms", server.port());
    let authority = Authority::new();
    is_unavailable(
        &format!("{url}&tls_ca={}", authority.file("ca.crt")),
        "`redis://`",
    );
    let talker = Peer::new(|mut stream| stream.write_all(b"-ERR unknown command\r\n").unwrap());
    let url = talker.url().replace("redis://", "rediss://");
    is_unavailable(
        &format!("{url}?tls_ca={}", authority.file("ca.crt")),
        "`redis://`",
    );
}

#[test]
fn server_with_tls_is_reported_on_a_plain_url() {
    let authority = Authority::new();
    let (_server, port) = authority.server("127.0.0.1", 2090, "no", &[]);
    is_unavailable(&format!("redis://127.0.0.1:{port}"), "`rediss://`");
}

#[test]
fn silent_tls_peer_is_bounded_by_the_connect_timeout() {
    let authority = Authority::new();
    let ca = authority.file("ca.crt");
    let drip = |mut stream: std::net::TcpStream| {
        // The beginning of a record, byte by byte, for as long as the client listens.
        let record = [22, 3, 3, 64, 0].into_iter().chain(std::iter::repeat(2));
        for byte in record {
            if stream.write_all(&[byte]).is_err() {
                return;
            }
            distlock_tests::time::let_pass(std::time::Duration::from_millis(20));
        }
    };
    for peer in [Peer::new(hold), Peer::new(drip)] {
        let url = peer.url().replace("redis://", "rediss://");
        is_unavailable(
            &format!("{url}?connect_timeout=300ms&tls_ca={ca}"),
            "TLS handshake",
        );
    }
}

#[test]
fn idle_or_killed_tls_connection_costs_no_answer() {
    let authority = Authority::new();
    let (server, port) = authority.server("127.0.0.1", 2090, "no", &[]);
    let bench = Bench::new(&authority.url(port));
    let connections = || server.probe().stat("total_connections_received");
    let (held, _) = bench.take("a");
    let before = connections();
    // Longer than an idle link is used without a check. The check must not take unread session
    // tickets for unrequested replies.
    distlock_tests::time::let_pass(std::time::Duration::from_millis(1_200));
    bench.release(&held);
    assert_eq!(connections(), before + 1, "only the probe");
    server
        .probe()
        .command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    distlock_tests::time::let_pass(std::time::Duration::from_millis(1_200));
    let (held, _) = bench.take("a");
    bench.release(&held);
}

#[test]
fn unreadable_certificate_file_keeps_its_last_content() {
    let authority = Authority::new();
    let (server, port) = authority.server("127.0.0.1", 2090, "no", &[]);
    let bench = Bench::new(&authority.url(port));
    std::fs::remove_file(authority.file("ca.crt")).unwrap();
    for _ in 0..2 {
        let (held, _) = bench.take("a");
        bench.release(&held);
        server
            .probe()
            .command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        distlock_tests::time::let_pass(std::time::Duration::from_millis(1_200));
    }
}

#[test]
fn many_and_large_messages_wake_every_watch() {
    // More than one TLS record, and more than the subscriber reads at a time.
    let authority = Authority::new();
    let (server, port) = authority.server("127.0.0.1", 2090, "no", &[]);
    let bench = Bench::new(&authority.url(port));
    // Held, because the report that a free lock is tracked would be one more wake-up.
    let (_held, _) = bench.take("a");
    let counter = std::sync::Arc::new(crate::bench::Counter::default());
    let (name, by) = (crate::bench::name("a"), crate::bench::soon());
    let _watch = bench.backend.watch(&name, counter.clone(), by).unwrap();
    let script = "for i = 1, 5000 do redis.call('PUBLISH', KEYS[1], string.rep('x', 50)) end";
    let told = server
        .probe()
        .command(&["EVAL", script, "1", &bench.inbox("a")]);
    println!("{told:?}");
    distlock_tests::time::eventually("all were heard", LONG, || counter.count() == 5_000);
}

#[test]
fn watch_on_an_open_tls_connection_is_confirmed_at_once() {
    // The subscription must be sent at once, although nothing arrives on the quiet connection.
    let authority = Authority::new();
    let (_server, port) = authority.server("127.0.0.1", 2090, "no", &[]);
    let bench = Bench::new(&authority.url(port));
    let counter = std::sync::Arc::new(crate::bench::Counter::default());
    let watch = |lock| {
        let (name, by) = (crate::bench::name(lock), crate::bench::soon());
        bench.backend.watch(&name, counter.clone(), by).unwrap()
    };
    let _first = watch("a");
    // A subscriber that noticed new watches only by its regular checks would do so once a second.
    timed(1_000, |_| {
        for lock in ["b", "c", "d", "e", "f", "g", "h", "i"] {
            distlock_tests::time::let_pass(std::time::Duration::from_millis(50));
            drop(watch(lock));
        }
    });
}

#[test]
fn invalid_tls_settings_are_refused_before_dialling() {
    let authority = Authority::new();
    authority.certify("client", "worker", 2090);
    authority.certify("second", "worker", 2090);
    let ca = authority.file("ca.crt");
    let (cert, key) = (authority.file("client.crt"), authority.file("client.key"));
    let wrong_key = authority.file("second.key");
    for (url, says) in [
        (
            "redis://h?tls_ca=x".to_owned(),
            "no option `tls_ca` for `redis://`",
        ),
        (
            "redis+unix:///run/r?tls_name=x".to_owned(),
            "no option `tls_name`",
        ),
        (
            "rediss://h?tls_ca=/does/not/exist".to_owned(),
            "`tls_ca=/does/not/exist`",
        ),
        (format!("rediss://h?tls_ca={key}"), "`tls_ca="),
        (
            format!("rediss://h?tls_ca={ca}&tls_cert={cert}"),
            "belong together",
        ),
        (
            format!("rediss://h?tls_ca={ca}&tls_key={key}"),
            "belong together",
        ),
        (
            format!("rediss://h?tls_ca={ca}&tls_cert={cert}&tls_key={cert}"),
            "`tls_key=",
        ),
        (
            format!("rediss://h?tls_ca={ca}&tls_cert={cert}&tls_key={wrong_key}"),
            "together",
        ),
        (format!("rediss://h?tls_ca={ca}&tls_name=a%20b"), "no name"),
        (
            format!("rediss://h,i?tls_ca={ca}"),
            "`rediss://` means one server",
        ),
    ] {
        let error = distlock::connect(&url).unwrap_err();
        assert!(error.is_configuration(), "{url}: {error:?}");
        assert!(error.to_string().contains(says), "{url}: {error:?}");
    }
}

//! Peers that are silent, slow, broken or gone: every call returns in time, and its error says
//! whether the request may have been carried out.

use crate::bench::{Bench, LONG, acquisition, lease, name, soon};
use crate::peer::{Peer, hold, read_request};
use distlock_tests::process::{RedisServer, free_port};
use distlock_tests::proxy::{Fault, Proxy, Sometimes, Turn};
use distlock_tests::resp::{Kind, Request};
use distlock_tests::time::{eventually, let_pass, timed};
use lock_core::backend::{
    Answer, Attempt, Failure, NodeId, RENEW_BATCH, Release, ReleaseOptions, Renewal,
    RenewalRequest, Tokens,
};
use lock_core::{Clock, Moment, SystemClock};
use std::error::Error as _;
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// In milliseconds; long enough for a request to be sent on a busy machine.
const DEADLINE: u64 = 1_000;

fn attempt(bench: &Bench, by: Moment) -> Result<Answer, Failure> {
    let (name, owner) = (name("a"), bench.owner());
    bench
        .backend
        .acquire(&Attempt::new(&name, owner, lease(30_000)), by)
}

fn drip(mut stream: TcpStream, bytes: &[u8]) {
    for byte in bytes {
        if stream.write_all(&[*byte]).is_err() {
            return;
        }
        let_pass(Duration::from_millis(50));
    }
}

/// Returns peers that complete the handshake and then fail to answer, each in another way.
fn bad_peers() -> Vec<(&'static str, Peer)> {
    let unanswered = |answer: &'static [u8]| {
        move |mut stream: TcpStream| {
            read_request(&mut stream);
            stream.write_all(answer).unwrap();
            hold(stream);
        }
    };
    vec![
        ("silent", Peer::after_handshake(hold)),
        (
            "dripping",
            Peer::after_handshake(|mut stream| {
                read_request(&mut stream);
                drip(stream, &[b"$1000\r\n".as_slice(), &[b'x'; 1000]].concat());
            }),
        ),
        (
            "half an answer",
            Peer::after_handshake(unanswered(b"*2\r\n:0\r\n:12")),
        ),
        (
            "garbage",
            Peer::after_handshake(unanswered(b"HTTP/1.1 400 Bad Request\r\n\r\n")),
        ),
        (
            "an answer of another kind",
            Peer::after_handshake(unanswered(b"+OK\r\n")),
        ),
        (
            "two answers",
            Peer::after_handshake(unanswered(b":1\r\n:1\r\n")),
        ),
        (
            "an answer and a half",
            Peer::after_handshake(unanswered(b":1\r\n*1\r\n")),
        ),
        (
            "RESP3",
            Peer::after_handshake(unanswered(b"%1\r\n:1\r\n:2\r\n")),
        ),
        (
            "a long answer",
            Peer::after_handshake(|mut stream| {
                read_request(&mut stream);
                let _refused = stream.write_all(b"$2000000000\r\n");
                while stream.write_all(&[b'x'; 65536]).is_ok() {}
            }),
        ),
        (
            "hanging up",
            Peer::after_handshake(|mut stream| {
                read_request(&mut stream);
            }),
        ),
    ]
}

#[test]
fn silent_peer_costs_one_deadline_and_its_link_is_closed() {
    thread::scope(|scope| {
        for (what, peer) in bad_peers() {
            scope.spawn(move || costs_no_more_than_the_deadline(what, &peer));
        }
    });
}

fn costs_no_more_than_the_deadline(what: &str, peer: &Peer) {
    // The client waits for a late answer for up to `command_timeout` before it gives the connection
    // up.
    let bench = Bench::new(&format!("{}?command_timeout=100ms", peer.url()));
    eventually(
        &format!("{what}: a later try has a link of its own"),
        LONG,
        || {
            let failure = timed(DEADLINE, |by| attempt(&bench, by)).unwrap_err();
            assert!(
                matches!(failure, Failure::Unknown(_)),
                "{what}: {failure:?}"
            );
            assert!(failure.error().is_unavailable(), "{what}: {failure:?}");
            peer.connections() > 1
        },
    );
}

#[test]
fn every_call_keeps_its_deadline() {
    let peer = Peer::after_handshake(hold);
    let bench = Bench::new(&peer.url());
    let held = acquisition("a", bench.owner(), 1_000);
    let unknown = |failure: Failure| assert!(matches!(failure, Failure::Unknown(_)), "{failure:?}");
    unknown(
        timed(DEADLINE, |by| {
            bench
                .backend
                .release(&held, ReleaseOptions::WITHOUT_TOMBSTONE, by)
        })
        .unwrap_err(),
    );
    unknown(
        timed(DEADLINE, |by| {
            bench
                .backend
                .release(&held, ReleaseOptions::WITH_TOMBSTONE, by)
        })
        .unwrap_err(),
    );
    unknown(timed(DEADLINE, |by| bench.backend.inspect(&held.name, by)).unwrap_err());
    unknown(
        timed(DEADLINE, |by| {
            bench.backend.admin().unwrap().force_release(&held.name, by)
        })
        .unwrap_err(),
    );
    let batch = vec![RenewalRequest::new(held); RENEW_BATCH];
    let answers = timed(DEADLINE, |by| {
        bench.backend.renew(NodeId::new(0), &batch, by)
    });
    assert_eq!(answers.len(), RENEW_BATCH);
    answers
        .into_iter()
        .for_each(|answer| unknown(answer.unwrap_err()));
}

#[test]
fn peer_without_greeting_has_been_sent_nothing() {
    let silent = Peer::new(hold);
    let dripping = Peer::new(|stream| drip(stream, &[b'+'; 1000]));
    let garbled = Peer::new(|mut stream| {
        stream.write_all(b"220 mail.example ESMTP\r\n").unwrap();
        hold(stream);
    });
    let closing = Peer::new(drop);
    for peer in [silent, dripping, garbled, closing] {
        let bench = Bench::new(&peer.url());
        let failure = timed(DEADLINE, |by| attempt(&bench, by)).unwrap_err();
        assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
        assert!(failure.error().is_unavailable(), "{failure:?}");
    }
}

#[test]
fn connect_timeout_bounds_all_of_connecting() {
    let peer = Peer::new(hold);
    let bench = Bench::new(&format!("{}?connect_timeout=100ms", peer.url()));
    let failure = timed(100, |_| attempt(&bench, soon())).unwrap_err();
    assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
}

#[test]
fn refused_connection_is_told_at_once_with_its_cause() {
    let port = free_port();
    let bench = Bench::new(&format!("redis://me:s3cret@127.0.0.1:{port}"));
    let failure = timed(50, |_| attempt(&bench, soon())).unwrap_err();
    assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
    let error = failure.error();
    assert!(error.is_unavailable());
    assert!(
        error.to_string().contains(&format!("127.0.0.1:{port}")),
        "{error}"
    );
    assert!(
        error.source().unwrap().to_string().contains("refused"),
        "{error:?}"
    );
    assert!(!format!("{failure:?}").contains("s3cret"));
}

#[test]
fn unknown_host_is_told() {
    let bench = Bench::new("redis://no-such-host.invalid");
    let failure = timed(2_000, |by| attempt(&bench, by)).unwrap_err();
    assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
    assert!(
        failure
            .error()
            .to_string()
            .contains("no-such-host.invalid:6379"),
        "{failure:?}"
    );
}

#[test]
fn host_name_works() {
    let server = RedisServer::start();
    Bench::new(&format!("redis://localhost:{}", server.port())).take("a");
}

#[test]
fn past_deadline_sends_nothing() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let (held, _) = bench.take("b");
    server.probe().reset_stats();
    for by in [Moment::from_nanos(0), SystemClock.now()] {
        let failure = attempt(&bench, by).unwrap_err();
        assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
        let failure = bench
            .backend
            .release(&held, ReleaseOptions::WITHOUT_TOMBSTONE, by)
            .unwrap_err();
        assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
    }
    assert_eq!(server.probe().command_calls("evalsha"), 0);
}

#[test]
fn stopped_server_is_unknown_in_time_gone_server_not_sent() {
    let mut server = RedisServer::start();
    let bench = Bench::on(&server);
    let (held, _) = bench.take("b");
    assert_eq!(
        bench.release(&held),
        Release::Freed,
        "the server knows the scripts from here on"
    );
    let (held, _) = bench.take("a");
    server.pause();
    let failure = timed(DEADLINE, |by| {
        bench
            .backend
            .release(&held, ReleaseOptions::WITHOUT_TOMBSTONE, by)
    });
    assert!(matches!(failure, Err(Failure::Unknown(_))), "{failure:?}");
    server.resume();
    eventually("the server has carried out what it was sent", LONG, || {
        !server.probe().exists("a")
    });
    assert_eq!(bench.release(&held), Release::Gone);
    server.kill();
    // The check of the idle connection, the write or the read notices that the server is gone. Only
    // after the read is the outcome unknown.
    let first = timed(DEADLINE, |by| attempt(&bench, by)).unwrap_err();
    assert!(
        matches!(first, Failure::Unknown(_) | Failure::NotSent(_)),
        "{first:?}"
    );
    let second = timed(DEADLINE, |by| attempt(&bench, by)).unwrap_err();
    assert!(matches!(second, Failure::NotSent(_)), "{second:?}");
    server.restart();
    bench.take("a");
}

/// Puts a proxy that counts commands in front of the server.
fn behind_a_proxy(server: &RedisServer) -> Proxy {
    Proxy::new(
        server.port(),
        Arc::new(Sometimes::new(None, Turn::Every(1), Fault::Pass)),
    )
}

#[test]
fn server_killed_during_a_request_is_unknown_at_once() {
    let mut server = RedisServer::start();
    let proxy = behind_a_proxy(&server);
    let bench = Bench::new(&proxy.url());
    bench.take("b");
    let sent = || proxy.count(Kind::Acquire, Fault::Pass);
    let before = sent();
    server.pause();
    let failure = thread::scope(|scope| {
        let asking = scope.spawn(|| timed(60_000, |by| attempt(&bench, by)));
        eventually("it has asked", LONG, || sent() > before);
        let start = SystemClock.now();
        server.kill();
        let failure = asking.join().unwrap().unwrap_err();
        assert!(
            SystemClock.now().since(start) < Duration::from_secs(20),
            "at the deadline"
        );
        failure
    });
    assert!(matches!(failure, Failure::Unknown(_)), "{failure:?}");
}

#[test]
fn link_closed_while_idle_is_replaced_unnoticed() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let (held, _) = bench.take("a");
    server
        .probe()
        .command(&["CLIENT", "KILL", "TYPE", "normal"]);
    let_pass(Duration::from_millis(1_100));
    assert_eq!(bench.release(&held), Release::Freed);
}

/// Makes two attempts at the same time: the server is paused meanwhile, so that they overlap.
fn two_at_once(server: &RedisServer, bench: &Bench) -> Vec<Result<Answer, Failure>> {
    server.pause();
    thread::scope(|scope| {
        let asking: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| attempt(bench, soon())))
            .collect();
        let_pass(Duration::from_millis(50));
        server.resume();
        asking.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

#[test]
fn pooled_links_are_checked_after_a_link_died() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    assert!(two_at_once(&server, &bench).iter().all(Result::is_ok));
    server
        .probe()
        .command(&["CLIENT", "KILL", "TYPE", "normal"]);
    let first = attempt(&bench, soon());
    assert!(
        matches!(first, Err(Failure::Unknown(_) | Failure::NotSent(_))),
        "{first:?}"
    );
    let later = two_at_once(&server, &bench);
    assert!(later.iter().all(Result::is_ok), "{later:?}");
}

#[test]
fn pool_of_one_serves_two_and_says_when_it_is_too_small() {
    let server = RedisServer::start();
    let proxy = behind_a_proxy(&server);
    let bench = Bench::new(&format!("{}?pool=1", proxy.url()));
    thread::scope(|scope| {
        for lock in ["a", "b"] {
            scope.spawn(|| {
                for _ in 0..200 {
                    let (held, _) = bench.take(lock);
                    assert_eq!(bench.release(&held), Release::Freed);
                }
            });
        }
    });
    let tidy = acquisition("a", bench.owner(), 1_000);
    let close = |by| {
        bench
            .backend
            .release(&tidy, ReleaseOptions::WITH_TOMBSTONE, by)
    };
    assert_eq!(close(soon()).unwrap(), Release::Gone);
    server.pause();
    let sent = || proxy.count(Kind::Close, Fault::Pass);
    let before = sent();
    thread::scope(|scope| {
        // Attempts share one connection; each close borrows a connection of the pool.
        let shared: Vec<_> = (0..2)
            .map(|_| scope.spawn(|| timed(3_000, |by| attempt(&bench, by))))
            .collect();
        let first = scope.spawn(|| timed(3_000, close));
        eventually("the only connection is borrowed", LONG, || sent() > before);
        let second = timed(DEADLINE, close).unwrap_err();
        assert!(matches!(second, Failure::NotSent(_)), "{second:?}");
        assert!(second.error().to_string().contains("pool=1"), "{second:?}");
        assert!(matches!(first.join().unwrap(), Err(Failure::Unknown(_))));
        for one in shared {
            assert!(matches!(one.join().unwrap(), Err(Failure::Unknown(_))));
        }
    });
}

#[test]
fn pool_users_delay_no_renewal() {
    let peer = Peer::after_handshake(hold);
    let bench = Bench::new(&format!("{}?pool=1", peer.url()));
    thread::scope(|scope| {
        let user = scope.spawn(|| timed(3_000, |by| attempt(&bench, by)));
        eventually("the user has the only link", LONG, || {
            peer.connections() == 1
        });
        let batch = [RenewalRequest::new(acquisition("a", bench.owner(), 1_000))];
        let answer = timed(1_000, |by| bench.backend.renew(NodeId::new(0), &batch, by)).remove(0);
        assert!(
            matches!(answer, Err(Failure::Unknown(_))),
            "sent on its own link: {answer:?}"
        );
        assert!(user.join().unwrap().is_err());
    });
}

#[test]
fn link_to_a_black_hole_is_given_up_in_time() {
    // A listener with a full queue drops connection requests, as a firewall would.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket
        .bind(
            &"127.0.0.1:0"
                .parse::<std::net::SocketAddr>()
                .unwrap()
                .into(),
        )
        .unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let mut queued = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(100)) {
        queued.push(stream);
        assert!(queued.len() < 100, "the queue never fills");
    }
    let bench = Bench::new(&format!("redis://{address}"));
    let failure = timed(DEADLINE, |by| attempt(&bench, by)).unwrap_err();
    assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
    assert!(
        failure.error().to_string().contains("firewall"),
        "{failure:?}"
    );
}

#[test]
fn short_and_long_deadlines_in_turn_are_both_kept() {
    let server = RedisServer::start();
    let bench = Bench::new(&format!("{}?pool=1", server.url()));
    let (held, _) = bench.take("a");
    let batch = [RenewalRequest::new(held.clone())];
    for milliseconds in [5_000, 20, 1_000, 3, 40, 5_000] {
        let by = SystemClock.now() + Duration::from_millis(milliseconds);
        if let Ok(renewal) = &bench.backend.renew(NodeId::new(0), &batch, by)[0] {
            assert_eq!(*renewal, Renewal::Extended);
        }
        server.pause();
        let outcome = timed(milliseconds.min(300), |by| {
            bench.backend.inspect(&held.name, by)
        });
        assert!(outcome.is_err());
        server.resume();
    }
    assert_eq!(bench.release(&held), Release::Freed);
}

#[test]
fn acquire_without_tokens_keeps_the_link() {
    let peer = Peer::after_handshake(|mut stream| {
        // One read may return two requests: a query follows the first attempt.
        let mut requests = BufReader::new(stream.try_clone().unwrap());
        while let Ok(Some(_)) = Request::read(&mut requests) {
            stream.write_all(b":1\r\n").unwrap();
        }
    });
    let bench = Bench::new(&peer.url());
    for _ in 0..10 {
        let answer = bench
            .acquire_with("a", bench.owner(), lease(100), Tokens::None)
            .unwrap();
        assert!(matches!(answer, Answer::Granted(_)));
    }
    assert_eq!(peer.connections(), 1, "a good answer keeps the link");
}

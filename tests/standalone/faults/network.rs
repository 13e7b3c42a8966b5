//! The proxy itself: each of its faults, seen from both sides.

use distlock_tests::probe::{Probe, Value};
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy, Sometimes, Turn};
use distlock_tests::resp::{Kind, Request};
use distlock_tests::time::{Stopwatch, always, eventually, ms};
use std::io::{BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
const A_WHILE: Duration = Duration::from_millis(100);
/// Far longer than the steps before the end of the delay take on a busy machine.
const DELAY: Duration = Duration::from_millis(1_500);
/// A script with the keys and arguments of an acquire, which counts its runs.
const ACQUIRE: [&str; 9] = [
    "EVAL",
    "return redis.call('INCR', KEYS[1])",
    "3",
    "n",
    "t",
    "c",
    "0",
    "me:1",
    "0",
];

/// Starts a server, and a proxy that applies this fault to the first acquire.
fn first(fault: Fault) -> (RedisServer, Proxy) {
    let server = RedisServer::start();
    let plan = Sometimes::new(Some(Kind::Acquire), Turn::Only(1), fault);
    let proxy = Proxy::new(server.port(), Arc::new(plan));
    (server, proxy)
}

fn encoded() -> Vec<u8> {
    let mut request = format!("*{}\r\n", ACQUIRE.len());
    for word in ACQUIRE {
        request += &format!("${}\r\n{word}\r\n", word.len());
    }
    request.into_bytes()
}

/// Sends an acquire, and reads until the reply contains `says`, or, with `is_cut`, until the
/// connection is closed. Returns the connection, all bytes that arrived until then and for a while
/// after, and whether the connection was closed.
fn send(proxy: &Proxy, says: &str, is_cut: bool) -> (TcpStream, String, bool) {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, proxy.port())).unwrap();
    stream.set_read_timeout(Some(A_WHILE)).unwrap();
    stream.write_all(&encoded()).unwrap();
    let (mut heard, mut part) = (Vec::new(), [0; 100]);
    let is_closed = eventually("the client hears what it is to hear", SOON, || {
        match stream.read(&mut part) {
            Ok(0) => return Some(true),
            Ok(length) => heard.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return Some(true),
            Err(_) if !is_cut && String::from_utf8_lossy(&heard).contains(says) => {
                return Some(false);
            }
            Err(_) => {}
        }
        None
    });
    (
        stream,
        String::from_utf8_lossy(&heard).into_owned(),
        is_closed,
    )
}

fn applied(server: &RedisServer) -> String {
    match server.probe().command(&["GET", "n"]) {
        Value::Text(count) => count,
        _ => "0".to_owned(),
    }
}

#[test]
fn proxy_fault_strikes_once_and_is_counted() {
    // The fault, what the client receives, whether the client is cut off, and how often the server
    // has run the script.
    let faults = [
        (Fault::Pass, ":1\r\n", false, "1"),
        (Fault::Cut, "", true, "0"),
        (Fault::SwallowRequest, "", false, "0"),
        (Fault::CutReply, "", true, "1"),
        (Fault::SwallowReply, "", false, "1"),
        (Fault::HalfReply, ":1", false, "1"),
        (Fault::Garbage, "no RESP", false, "1"),
    ];
    for (fault, says, cut, times) in faults {
        let (server, proxy) = first(fault);
        let (_stream, heard, is_closed) = send(&proxy, says, cut);
        assert!(
            heard.contains(says) && heard.is_empty() == says.is_empty(),
            "{fault:?}: {heard}"
        );
        assert!(fault != Fault::HalfReply || heard == ":1", "{heard}");
        assert_eq!(is_closed, cut, "{fault:?}");
        eventually("the server has run it", SOON, || applied(&server) == times);
        assert_eq!(proxy.count(Kind::Acquire, fault), 1);
        // The fault applies only once, and only to acquires.
        let mut other = Probe::connect(proxy.port());
        let next = 1 + times.parse::<i64>().unwrap();
        assert_eq!(other.command(&ACQUIRE).int(), next, "{fault:?}");
        assert_eq!(
            proxy.count(Kind::Acquire, Fault::Pass),
            1 + u64::from(fault == Fault::Pass)
        );
        assert_eq!(other.command(&["PING"]).text(), "PONG");
        assert_eq!(
            proxy.count(Kind::Other, Fault::Pass),
            1,
            "{}",
            proxy.account()
        );
    }
}

#[test]
fn proxy_passes_nothing_after_a_swallowed_part() {
    // Otherwise the client would take the next reply for the missing one, which no real network can
    // cause.
    for (fault, times) in [
        (Fault::SwallowReply, "2"),
        (Fault::SwallowRequest, "0"),
        (Fault::Late(ms(60_000)), "0"),
    ] {
        let (server, proxy) = first(fault);
        let (mut stream, heard, _) = send(&proxy, "", false);
        assert_eq!(heard, "");
        stream.write_all(&encoded()).unwrap();
        let outcome = stream.read(&mut [0; 7]);
        assert!(outcome.is_err(), "{fault:?}: {outcome:?}");
        eventually("the server has run it", SOON, || applied(&server) == times);
    }
}

#[test]
fn proxy_delays_in_either_direction() {
    for (fault, is_early) in [
        (Fault::Delay(DELAY), false),
        (Fault::DelayReply(DELAY), true),
    ] {
        let (server, proxy) = first(fault);
        let mut probe = Probe::connect(proxy.port());
        let watch = Stopwatch::start();
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| probe.command(&ACQUIRE).int());
            if is_early {
                eventually("the server has run it", SOON, || applied(&server) == "1");
                assert!(!asked.is_finished());
            } else {
                always("the server has not seen it", A_WHILE, || {
                    applied(&server) == "0"
                });
            }
            assert_eq!(asked.join().unwrap(), 1);
        });
        assert!(watch.elapsed() >= DELAY);
    }
}

#[test]
fn request_held_back_arrives_after_the_client_left() {
    let (server, proxy) = first(Fault::Late(DELAY));
    let (stream, heard, is_closed) = send(&proxy, "", false);
    assert_eq!((heard.as_str(), is_closed), ("", false));
    drop(stream);
    always("it is held back", A_WHILE, || applied(&server) == "0");
    eventually("it arrives", SOON, || applied(&server) == "1");
    assert_eq!(proxy.count(Kind::Acquire, Fault::Late(ms(0))), 1);
}

#[test]
fn dropped_proxy_discards_held_requests_and_cuts() {
    let (server, proxy) = first(Fault::Late(DELAY));
    let (mut stream, ..) = send(&proxy, "", false);
    drop(proxy);
    let mut rest = Vec::new();
    assert!(
        matches!(stream.read_to_end(&mut rest), Ok(0) | Err(_)),
        "cut"
    );
    always("nothing arrives", DELAY + A_WHILE, || {
        applied(&server) == "0"
    });
}

#[test]
fn proxy_turns_are_kept_and_chances_follow_the_seed() {
    let request = |words: &[&str]| {
        let mut bytes = format!("*{}\r\n", words.len());
        for word in words {
            bytes += &format!("${}\r\n{word}\r\n", word.len());
        }
        let read = Request::read(&mut BufReader::new(bytes.as_bytes()))
            .unwrap()
            .unwrap();
        assert_eq!(read.bytes(), bytes.as_bytes());
        read
    };
    let acquire = request(&ACQUIRE);
    let struck = |turn| {
        let plan = Sometimes::new(Some(Kind::Acquire), turn, Fault::Cut);
        assert_eq!(plan.fate(&mut request(&["PING"])), Fault::Pass);
        (0..1000)
            .map(|_| plan.strikes(&acquire))
            .collect::<Vec<_>>()
    };
    let count = |turn| struck(turn).iter().filter(|struck| **struck).count();
    assert_eq!((count(Turn::Only(7)), count(Turn::Every(7))), (1, 142));
    assert!(struck(Turn::Only(7))[6] && struck(Turn::Every(7))[6] && struck(Turn::Every(7))[13]);
    let chance = |seed| Turn::Chance { of_1000: 100, seed };
    assert_eq!(struck(chance(1)), struck(chance(1)));
    assert_ne!(struck(chance(1)), struck(chance(2)));
    assert!((50..150).contains(&count(chance(3))));

    assert_eq!(acquire.kind(), Kind::Acquire);
    assert_eq!(acquire.owner().unwrap(), "me:1");
    let kinds: [(&[&str], Kind); 7] = [
        (
            &["EVALSHA", "x", "1", "n", "me:1", "channel", "PUBLISH"],
            Kind::Release,
        ),
        (
            &["EVALSHA", "x", "3", "n", "t", "q", "me:1", "ch", "PUBLISH"],
            Kind::Release,
        ),
        (
            &[
                "EVALSHA", "x", "3", "n", "t", "c", "me:1", "ch", "PUBLISH", "", "", "9",
            ],
            Kind::Close,
        ),
        (
            &["EVALSHA", "x", "2", "n", "m", "900", "me:1", "900", "me:2"],
            Kind::Renew,
        ),
        (
            &["EVALSHA", "x", "1", "n", "channel", "PUBLISH"],
            Kind::Other,
        ),
        (&["EVALSHA", "x", "1", "n"], Kind::Other),
        (&["SET", "3", "3", "n"], Kind::Other),
    ];
    for (words, kind) in kinds {
        assert_eq!(request(words).kind(), kind, "{words:?}");
    }
}

#[test]
fn proxy_passes_on_unsolicited_messages() {
    let (server, proxy) = first(Fault::Pass);
    let mut listener = Probe::connect(proxy.port());
    listener.command(&["SUBSCRIBE", "news"]);
    server.probe().command(&["PUBLISH", "news", "hello"]);
    assert_eq!(
        listener.read_value().unwrap().texts(),
        ["message", "news", "hello"]
    );
    proxy.cut_all();
    assert!(listener.read_value().is_err());
}

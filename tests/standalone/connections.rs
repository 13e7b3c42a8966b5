//! Faults of a connection before, between and after requests, and many threads on few connections.

use crate::bench::{Bench, Counter, LONG, acquisition, lease, name, soon};
use crate::peer::{Peer, hold, read_channel, read_request};
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy};
use distlock_tests::resp::{Kind, Request};
use distlock_tests::time::{Stopwatch, eventually, let_pass, ms, timed};
use lock_core::backend::{Answer, Failure, Release, ReleaseOptions, Tokens, Wake, Watch};
use lock_core::{Clock, SystemClock};
use socket2::SockRef;
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// Longer than an idle connection is used without a check of its socket.
const IDLE: Duration = Duration::from_millis(1_100);

/// The time of one step of a handshake: less than the time-out, which several steps together
/// exceed.
const STEP: Duration = Duration::from_millis(800);

const GRANTED: &[u8] = b":1\r\n";

fn attempt(bench: &Bench) -> Result<Answer, Failure> {
    bench.acquire_with("a", bench.owner(), lease(30_000), Tokens::None)
}

/// Closes the connection by a reset.
fn reset(stream: TcpStream) {
    SockRef::from(&stream)
        .set_linger(Some(Duration::ZERO))
        .unwrap();
    drop(stream);
}

#[test]
fn reset_connection_is_dead_at_once_and_not_reused() {
    let peer = Peer::after_handshake(|mut stream| {
        read_request(&mut stream);
        reset(stream);
    });
    let bench = Bench::new(&peer.url());
    for connections in 1..=3 {
        let failure = timed(0, |_| attempt(&bench)).unwrap_err();
        assert!(matches!(failure, Failure::Unknown(_)), "{failure:?}");
        assert_eq!(peer.connections(), connections);
    }
}

#[test]
fn connection_reset_while_idle_costs_no_answer() {
    let peer = Peer::after_handshake(|mut stream| {
        read_request(&mut stream);
        stream.write_all(GRANTED).unwrap();
        reset(stream);
    });
    let bench = Bench::new(&peer.url());
    for connections in 1..=2 {
        assert!(matches!(attempt(&bench), Ok(Answer::Granted(_))));
        assert_eq!(peer.connections(), connections);
        let_pass(IDLE);
    }
}

#[test]
fn handshake_steps_share_one_timeout() {
    // Each reply alone is in time. The name, the password and the database need several replies.
    let peer = Peer::new(|mut stream| {
        while stream.write_all(b"+OK\r\n").is_ok() {
            let_pass(STEP);
        }
    });
    let address = peer.url().replace("redis://", "redis://me:s3cret@");
    let bench = Bench::new(&format!("{address}/3?connect_timeout=1s"));
    // Here each reply follows its request; above, the peer does not wait for requests.
    let asked = Peer::new(|mut stream| {
        while read_request(&mut stream) {
            let_pass(STEP);
            if stream.write_all(b"+OK\r\n").is_err() {
                return;
            }
        }
    });
    let address = asked.url().replace("redis://", "redis://me:s3cret@");
    let one_at_a_time = Bench::new(&format!("{address}/3?connect_timeout=1s"));
    for bench in [bench, one_at_a_time] {
        let failure = timed(1_000, |_| attempt(&bench)).unwrap_err();
        assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
    }
}

/// Delays one reply in the handshake of each connection by more than a request may take.
struct SlowToBegin;

impl Plan for SlowToBegin {
    fn fate(&self, request: &mut Request) -> Fault {
        if request.is("CLIENT") {
            Fault::DelayReply(ms(400))
        } else {
            Fault::Pass
        }
    }
}

#[test]
fn connection_that_takes_longer_than_a_request_is_made_once() {
    let server = RedisServer::start();
    let proxy = Proxy::new(server.port(), Arc::new(SlowToBegin));
    let bench = Bench::new(&format!("{}?connect_timeout=1m", proxy.url()));
    let mut calls = 0;
    eventually("a later call finds the connection", LONG, || {
        calls += 1;
        let by = SystemClock.now() + Duration::from_millis(50);
        let outcome = bench.backend.inspect(&name("a"), by);
        outcome
            .inspect_err(|it| assert!(matches!(it, Failure::NotSent(_)), "{it:?}"))
            .is_ok()
    });
    assert!(calls > 1);
    assert_eq!(
        proxy.count(Kind::Other, Fault::DelayReply(Duration::ZERO)),
        1
    );
}

#[test]
fn lock_far_away_is_taken_where_connecting_takes_longer_than_a_request() {
    let server = RedisServer::start();
    let proxy = Proxy::new(server.port(), Arc::new(SlowToBegin));
    let limits = "command_timeout=300ms&connect_timeout=1m";
    let client = distlock::connect(&format!("{}?{limits}", proxy.url())).unwrap();
    let lock = client.mutex("a").unwrap();
    let guard = lock.try_lock_for(LONG).unwrap().expect("it is free");
    guard.unlock().unwrap();
}

#[test]
fn connection_is_used_without_a_check_request() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let (held, _) = bench.take("a");
    server.probe().reset_stats();
    let_pass(IDLE);
    bench.release(&held);
    for _ in 0..10 {
        let (held, _) = bench.take("a");
        bench.release(&held);
    }
    let mut probe = server.probe();
    for command in ["ping", "client|setname", "client|setinfo", "auth", "select"] {
        assert_eq!(probe.command_calls(command), 0, "{command}");
    }
}

#[test]
fn frozen_server_costs_idle_connection_one_deadline() {
    let server = RedisServer::start();
    let bench = Bench::new(&format!("{}?pool=1", server.url()));
    let (held, _) = bench.take("a");
    let_pass(IDLE);
    server.pause();
    for _ in 0..2 {
        let outcome = timed(1_500, |by| {
            bench
                .backend
                .release(&held, ReleaseOptions::WITHOUT_TOMBSTONE, by)
        });
        assert!(outcome.is_err(), "{outcome:?}");
    }
    server.resume();
}

#[test]
fn server_that_is_back_is_used_at_once() {
    let mut server = RedisServer::start();
    let bench = Bench::on(&server);
    bench.take("a");
    server.kill();
    // Long enough, and often enough, for a back-off to have grown.
    let outage = Stopwatch::start();
    while outage.elapsed() < ms(1_500) {
        assert!(attempt(&bench).is_err());
        let_pass(ms(5));
    }
    server.restart();
    timed(50, |_| {
        let (held, _) = bench.take("a");
        bench.release(&held);
    });
}

#[test]
fn threads_on_one_connection_all_get_answers() {
    const THREADS: usize = 16;
    let server = RedisServer::start();
    let bench = Bench::new(&format!("{}?pool=1", server.url()));
    bench.release(&bench.take("warm").0);
    let (running, all) = (AtomicUsize::new(THREADS), &Stopwatch::start());
    let mut longest: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| {
                let (bench, running) = (&bench, &running);
                scope.spawn(move || {
                    let lock = format!("lock:{number}");
                    let (mut longest, mut cycles) = (Duration::ZERO, 0);
                    // A thread that has done its share keeps competing until all threads have.
                    while running.load(Ordering::SeqCst) > 0 && all.elapsed() < LONG {
                        let cycle = Stopwatch::start();
                        let (held, _) = bench.take(&lock);
                        assert_eq!(bench.release(&held), Release::Freed);
                        longest = longest.max(cycle.elapsed());
                        cycles += 1;
                        if cycles == 50 {
                            running.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                    longest
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(
        running.into_inner(),
        0,
        "a thread got less than its share: {longest:?}"
    );
    longest.sort_unstable();
    println!(
        "{THREADS} threads, one connection: {:?}; longest cycles {longest:?}",
        all.elapsed()
    );
    assert!(longest[THREADS - 1] < LONG / 3, "{longest:?}");
    assert_eq!(server.probe().connections(), 1);
}

#[test]
fn drop_waits_for_no_server() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let watch = bench.backend.watch(
        &name("a"),
        Arc::new(Counter::default()) as Arc<dyn Wake>,
        soon(),
    );
    bench.take("b");
    server.pause();
    timed(0, |_| drop(watch.unwrap()));
    timed(0, |_| drop(bench));
    server.resume();
}

/// A caller gives up before the server confirms its subscription: messages for other callers must
/// still reach them.
#[test]
fn late_subscribe_confirmation_swallows_no_message() {
    let (go, gone) = crossbeam_channel::bounded::<()>(1);
    let peer = Peer::after_handshake(move |mut stream| {
        let a = read_channel(&mut stream);
        let confirmed =
            |channel: &str, count: u32| format!("*3\r\n$9\r\nsubscribe\r\n{channel}:{count}\r\n");
        stream
            .write_all([":0\r\n", &confirmed(&a, 1)].concat().as_bytes())
            .unwrap();
        let b = read_channel(&mut stream);
        let released = format!("*3\r\n$7\r\nmessage\r\n{a}$1\r\n0\r\n");
        gone.recv().unwrap();
        stream
            .write_all(
                [&*released, &confirmed(&b, 2), &released]
                    .concat()
                    .as_bytes(),
            )
            .unwrap();
        hold(stream);
    });
    let bench = Bench::new(&format!("{}?tracking=off", peer.url()));
    let counter = Arc::new(Counter::default());
    let watch = |lock, by| -> Result<Watch, Failure> {
        bench
            .backend
            .watch(&name(lock), Arc::clone(&counter) as Arc<dyn Wake>, by)
    };
    let _a = watch("a", soon()).unwrap();
    let impatient = timed(150, |by| watch("b", by)).unwrap_err();
    assert!(matches!(impatient, Failure::NotSent(_)), "{impatient:?}");
    go.send(()).unwrap();
    eventually("both messages are heard", LONG, || counter.count() == 2);
    assert_eq!(peer.connections(), 1, "by the connection that was there");
}

#[test]
fn answer_to_abandoned_request_is_discarded() {
    // The reply to the first request arrives after that call has ended; the second request must not
    // get it.
    let (go, gone) = crossbeam_channel::bounded::<()>(1);
    let requests = Arc::new(AtomicUsize::new(0));
    let peer = Peer::after_handshake(move |mut stream| {
        read_request(&mut stream);
        if requests.fetch_add(1, Ordering::SeqCst) == 0 {
            gone.recv().unwrap();
            let _closed = stream.write_all(GRANTED);
        }
        hold(stream);
    });
    let bench = Bench::new(&format!("{}?pool=1", peer.url()));
    let held = acquisition("a", bench.owner(), 1_000);
    let first = timed(500, |by| {
        bench
            .backend
            .release(&held, ReleaseOptions::WITHOUT_TOMBSTONE, by)
    });
    assert!(matches!(first, Err(Failure::Unknown(_))), "{first:?}");
    let second = thread::scope(|scope| {
        // If the handshake was slow, the client gives the silent connection up later, after up to
        // three requests.
        let asks = || {
            let ask = |by| {
                bench
                    .backend
                    .release(&held, ReleaseOptions::WITHOUT_TOMBSTONE, by)
            };
            let mut outcomes = (0..3).map(|_| timed(2_000, ask));
            outcomes
                .find(|_| peer.connections() == 2)
                .expect("it asks on another")
        };
        let asks = scope.spawn(asks);
        eventually("it asks on another connection", LONG, || {
            peer.connections() == 2
        });
        go.send(()).unwrap();
        asks.join().unwrap()
    });
    assert!(matches!(second, Err(Failure::Unknown(_))), "{second:?}");
    assert_eq!(peer.connections(), 2);
}

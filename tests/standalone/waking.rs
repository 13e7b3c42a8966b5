//! Watches, and the one connection behind them.

use crate::bench::{Bench, Counter, LONG, lease, name, soon, within};
use crate::peer::{Peer, hold, read_channel, read_request};
use distlock_tests::process::{RedisServer, free_port};
use distlock_tests::time::{Stopwatch, eventually, let_pass, timed};
use lock_core::backend::{Failure, Tokens, Wake, Watch};
use std::io::Write;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Returns a client whose watches are woken by messages alone. With tracking, the report that a key
/// is tracked would also wake the watches of a free lock.
fn untracked(server: &RedisServer) -> Bench {
    Bench::new(&format!("{}?tracking=off", server.url()))
}

fn watch(bench: &Bench, lock: &str) -> (Watch, Arc<Counter>) {
    let counter = Arc::new(Counter::default());
    let watch = bench
        .backend
        .watch(&name(lock), Arc::clone(&counter) as Arc<dyn Wake>, soon());
    (watch.unwrap(), counter)
}

/// How many connections are subscribed to a channel of `a`.
fn subscribers(server: &RedisServer) -> usize {
    let channels = ["PUBSUB", "CHANNELS", "distlock_queue:2:{a}:*"];
    server.probe().command(&channels).texts().len()
}

#[test]
fn release_wakes_every_watch_of_that_name_only() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let elsewhere = Bench::on(&server);
    let (held, _) = elsewhere.take("a");
    let (_busy, _) = elsewhere.take("b");
    let (_first, one) = watch(&bench, "a");
    let (_second, two) = watch(&bench, "a");
    let (_other, other) = watch(&bench, "b");
    elsewhere.release(&held);
    // A watch may be woken twice: by the message, and because the lock is free a moment later.
    eventually("both are woken", LONG, || {
        one.count() >= 1 && two.count() >= 1
    });
    assert_eq!(other.count(), 0);
}

#[test]
fn message_right_after_the_watch_is_not_lost() {
    let server = RedisServer::start();
    let bench = untracked(&server);
    let mut voice = server.probe();
    for number in 0..300 {
        let lock = format!("lock:{number}");
        let (_watch, counter) = watch(&bench, &lock);
        let channel = bench.inbox(&lock);
        assert_eq!(voice.command(&["PUBLISH", &channel, "0"]).int(), 1);
        eventually("woken", LONG, || counter.count() == 1);
    }
}

#[test]
fn first_watch_costs_a_round_trip_second_none() {
    let server = RedisServer::start();
    let bench = untracked(&server);
    let _warm = watch(&bench, "warm");
    server.probe().reset_stats();
    let watch_all = Stopwatch::start();
    let watches: Vec<_> = (0..100)
        .map(|number| watch(&bench, &format!("{number}")))
        .collect();
    let took = watch_all.elapsed();
    assert_eq!(server.probe().command_calls("subscribe"), 100);
    // A subscriber that noticed new watches only by its regular checks would do so once a second.
    assert!(
        took < Duration::from_secs(20),
        "{took:?}: nothing here polls"
    );
    let again: Vec<_> = (0..100)
        .map(|number| watch(&bench, &format!("{number}")))
        .collect();
    assert_eq!(server.probe().command_calls("subscribe"), 100);
    assert_eq!(server.probe().command_calls("ping"), 0);
    drop((watches, again));
    assert_eq!(server.probe().listeners(), 1, "one connection for all");
}

/// How long a channel without watches stays subscribed.
const LINGER: Duration = Duration::from_secs(1);

#[test]
fn channel_is_left_a_while_after_its_last_watch() {
    let server = RedisServer::start();
    let bench = untracked(&server);
    let (first, _) = watch(&bench, "a");
    let (second, counter) = watch(&bench, "a");
    drop(first);
    let_pass(LINGER * 3 / 2);
    assert_eq!(subscribers(&server), 1, "there is still a watch");
    let subscribed = || server.probe().command_calls("subscribe");
    let mut last = Some(second);
    // Repeated if this thread was held up for so long that the channel may have been unsubscribed.
    let third = eventually("it is watched again in time", LONG, || {
        let (before, unwatched) = (subscribed(), Stopwatch::start());
        drop(last.take());
        let lingers = subscribers(&server) == 1;
        let (again, _) = watch(&bench, "a");
        if unwatched.elapsed() > LINGER / 2 {
            last = Some(again);
            return None;
        }
        assert!(lingers, "it is left only a while later");
        assert_eq!(
            subscribed(),
            before,
            "and is watched again without a subscription"
        );
        Some(again)
    });
    let_pass(LINGER * 3 / 2);
    assert_eq!(subscribers(&server), 1, "it stays");
    drop(third);
    eventually("no client is subscribed", LONG, || {
        subscribers(&server) == 0
    });
    server.probe().command(&["PUBLISH", &bench.inbox("a"), "0"]);
    assert_eq!(counter.count(), 0);
    let (_again, counter) = watch(&bench, "a");
    server.probe().command(&["PUBLISH", &bench.inbox("a"), "0"]);
    eventually("woken by the second subscription", LONG, || {
        counter.count() == 1
    });
}

#[test]
fn watch_churn_around_unsubscribing_loses_no_wake() {
    let server = RedisServer::start();
    let bench = untracked(&server);
    thread::scope(|scope| {
        for round in 0..6 {
            let (bench, mut voice) = (&bench, server.probe());
            scope.spawn(move || {
                let lock = format!("lock:{round}");
                let channel = bench.inbox(&lock);
                drop(watch(bench, &lock));
                // Around the moment at which the channel is unsubscribed.
                let_pass(LINGER * 9 / 10 + Duration::from_millis(40 * round));
                for _ in 0..20 {
                    let (_watch, counter) = watch(bench, &lock);
                    assert_eq!(voice.command(&["PUBLISH", &channel, "0"]).int(), 1);
                    eventually("woken", LONG, || counter.count() >= 1);
                }
            });
        }
    });
}

#[test]
fn reconnect_wakes_every_watch_once() {
    let server = RedisServer::start();
    let bench = untracked(&server);
    let watches: Vec<_> = (0..20)
        .map(|number| watch(&bench, &format!("{number}")))
        .collect();
    let all = |count| watches.iter().all(|(_, counter)| counter.count() == count);
    assert!(all(0));
    server
        .probe()
        .command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    eventually("every watch is woken", LONG, || all(1));
    server.probe().command(&["PUBLISH", &bench.inbox("7"), "0"]);
    eventually("and hears again", LONG, || watches[7].1.count() == 2);
    assert_eq!(watches[8].1.count(), 1);
}

#[test]
fn subscriber_finds_a_server_that_comes_back() {
    let mut server = RedisServer::start();
    let bench = untracked(&server);
    let (_watch, counter) = watch(&bench, "a");
    server.kill();
    let failure = timed(300, |by| {
        bench
            .backend
            .watch(&name("b"), Arc::new(Counter::default()), by)
    });
    let failure = failure.unwrap_err();
    assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
    assert!(failure.error().is_unavailable(), "{failure:?}");
    assert_eq!(counter.count(), 0, "there is nothing to look at yet");
    server.restart();
    eventually("woken after the reconnect", LONG, || counter.count() == 1);
    server.probe().command(&["PUBLISH", &bench.inbox("a"), "0"]);
    eventually("and hears again", LONG, || counter.count() == 2);
}

#[test]
fn watch_on_unreachable_server_fails_in_time_with_the_reason() {
    let port = free_port();
    let bench = Bench::new(&format!("redis://127.0.0.1:{port}"));
    let wake = Arc::new(Counter::default());
    let failure = timed(200, |by| bench.backend.watch(&name("a"), wake, by)).unwrap_err();
    assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
    assert!(
        failure.error().to_string().contains("cannot connect"),
        "{failure:?}"
    );
}

#[test]
fn watch_on_paused_server_fails_in_time_and_recovers() {
    let server = RedisServer::start();
    let bench = Bench::new(&format!(
        "{}?command_timeout=200ms&connect_timeout=200ms",
        server.url()
    ));
    let (_watch, counter) = watch(&bench, "a");
    server.pause();
    let wake = Arc::new(Counter::default());
    let failure = timed(150, |by| bench.backend.watch(&name("b"), wake, by)).unwrap_err();
    assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
    // Long enough for the subscriber to notice, and to close the link.
    let_pass(Duration::from_millis(600));
    server.resume();
    eventually("woken after the reconnect", LONG, || counter.count() == 1);
}

#[test]
fn silent_subscriber_link_is_noticed_without_requests() {
    // A server behind a firewall that has forgotten the connection: nothing comes in, nothing
    // breaks.
    let peer = Peer::after_handshake(|mut stream| {
        let channel = read_channel(&mut stream);
        let answer = format!(":0\r\n*3\r\n$9\r\nsubscribe\r\n{channel}:1\r\n");
        stream.write_all(answer.as_bytes()).unwrap();
        hold(stream);
    });
    let bench = Bench::new(&format!(
        "{}?command_timeout=200ms&tracking=off",
        peer.url()
    ));
    let (_watch, counter) = watch(&bench, "a");
    assert_eq!(peer.connections(), 1);
    let silence = Stopwatch::start();
    eventually("a second connection, and a wake", LONG, || {
        counter.count() == 1
    });
    println!("noticed after {:?}", silence.elapsed());
}

#[test]
fn watch_on_a_faulty_peer_is_bounded_by_the_deadline() {
    let answers: [&'static [u8]; 5] = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"*3\r\n$9\r\nsubscribe\r\n$5\r\nother\r\n:1\r\n",
        b"*3\r\n$9\r\nsubscribe\r\n$26\r\nredisson_lock__ch",
        b"*2\r\n$4\r\npong\r\n$0\r\n\r\n",
        b":1\r\n",
    ];
    for answer in answers {
        let peer = Peer::after_handshake(move |mut stream| {
            read_request(&mut stream);
            let _broken = stream.write_all(answer);
            hold(stream);
        });
        let bench = Bench::new(&format!("{}?tracking=off", peer.url()));
        let wake = Arc::new(Counter::default());
        let failure = timed(150, |by| bench.backend.watch(&name("a"), wake, by)).unwrap_err();
        assert!(matches!(failure, Failure::NotSent(_)), "{failure:?}");
    }
}

#[test]
fn thousand_threads_watch_over_one_connection() {
    let server = RedisServer::start();
    let bench = Bench::on(&server);
    let elsewhere = Bench::on(&server);
    let (held, _) = elsewhere.take("a");
    for number in (1..1000).step_by(2) {
        elsewhere.take(&number.to_string());
    }
    let counters: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..1000)
            .map(|number| {
                let bench = &bench;
                let lock = if number % 2 == 0 {
                    "a".to_owned()
                } else {
                    format!("{number}")
                };
                scope.spawn(move || (number, watch(bench, &lock)))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(server.probe().command_calls("subscribe"), 501);
    elsewhere.release(&held);
    eventually("all who watch `a` are woken", LONG, || {
        counters
            .iter()
            .all(|(number, (_, counter))| (counter.count() > 0) == (number % 2 == 0))
    });
    assert_eq!(server.probe().listeners(), 1);
}

#[test]
fn panicking_wake_does_not_stop_further_wakes() {
    struct Panics;
    impl Wake for Panics {
        fn wake(&self) {
            panic!("on purpose");
        }
    }
    let server = RedisServer::start();
    let bench = untracked(&server);
    let _bad = bench
        .backend
        .watch(&name("a"), Arc::new(Panics), soon())
        .unwrap();
    let (_watch, counter) = watch(&bench, "a");
    for round in 1..=3 {
        server.probe().command(&["PUBLISH", &bench.inbox("a"), "0"]);
        eventually("woken", LONG, || counter.count() == round);
    }
}

#[test]
fn wake_may_watch_and_release() {
    // The contract forbids these calls, but no mutex of the library is held during a wake, so that
    // they work.
    struct Watches(Bench);
    impl Wake for Watches {
        fn wake(&self) {
            let owner = self.0.owner();
            let by = within(Duration::from_secs(1));
            let _answer = self.0.acquire_with("b", owner, lease(1_000), Tokens::None);
            let wake = Arc::new(Counter::default());
            drop(self.0.backend.watch(&name("b"), wake, by));
        }
    }
    let server = RedisServer::start();
    let bench = untracked(&server);
    let (_watch, counter) = watch(&bench, "a");
    let nested = Arc::new(Watches(Bench::on(&server)));
    let _nested = bench.backend.watch(&name("a"), nested, soon()).unwrap();
    server.probe().command(&["PUBLISH", &bench.inbox("a"), "0"]);
    eventually("woken", LONG, || counter.count() == 1);
    eventually("the other one did its work", LONG, || {
        server.probe().exists("b")
    });
}

#[test]
fn revoked_and_restored_right_is_noticed() {
    const RULE: &str = "&distlock_queue:*";
    let server = RedisServer::start();
    server.probe().command(&[
        "ACL",
        "SETUSER",
        "me",
        "on",
        "nopass",
        "~*",
        "resetchannels",
        RULE,
        "+@all",
    ]);
    let bench = Bench::new(&format!("redis://me@127.0.0.1:{}", server.port()));
    let (_watch, counter) = watch(&bench, "a");
    // The server closes connections with subscriptions that their user may no longer have. (Redis
    // before 7 does not if the user had all channels: they still receive messages.)
    server
        .probe()
        .command(&["ACL", "SETUSER", "me", "resetchannels"]);
    eventually("woken, to look for itself", LONG, || counter.count() >= 1);
    server.probe().command(&["ACL", "SETUSER", "me", RULE]);
    eventually("subscribed again", LONG, || subscribers(&server) == 1);
    let before = counter.count();
    server.probe().command(&["PUBLISH", &bench.inbox("a"), "0"]);
    eventually("and hears again", LONG, || counter.count() > before);
}

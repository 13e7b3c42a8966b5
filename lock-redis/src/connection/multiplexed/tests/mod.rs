//! Tests of the multiplexed connection, with a peer on a local socket.

mod joined;
#[cfg(feature = "tls")]
mod last_word;
mod storm;

use super::*;
use crate::connection::{Endpoint, Reply, Request};
use lock_core::SystemClock;
use lock_core::backend::Failure;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;

const GRACE: Duration = Duration::from_millis(200);

pub(in crate::connection) fn pair() -> (Arc<MultiplexedConnection>, TcpStream) {
    pair_with(GRACE)
}

/// Returns a connection with this grace, and its peer.
fn pair_with(grace: Duration) -> (Arc<MultiplexedConnection>, TcpStream) {
    pair_joining(grace, &[])
}

/// Returns a connection on which requests are joined, and its peer.
fn pair_joining(
    grace: Duration,
    joins: &'static [Join],
) -> (Arc<MultiplexedConnection>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (theirs, _) = listener.accept().unwrap();
    let server = Arc::new(Server::new(Endpoint::tcp("test", 1), None));
    let transport = Arc::new(Transport::new(ours, None).unwrap());
    let connection = Connection::new(transport, server, Arc::new(SystemClock));
    let shared = MultiplexedConnection::new(connection, Duration::ZERO, 0, grace, joins);
    (Arc::new(shared.unwrap()), theirs)
}

fn within(millis: u64) -> Moment {
    SystemClock.now() + Duration::from_millis(millis)
}

/// Returns the present time and the time `millis` later.
fn span(millis: u64) -> (Moment, Moment) {
    (within(0), within(millis))
}

/// Sends a request of one word.
fn call(connection: &Arc<MultiplexedConnection>, word: &[u8], by: Moment) -> CallResult {
    Arc::clone(connection).call(&Request(&[&[word]]), by)
}

/// Returns the bytes of a request of one word.
fn encoded(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    Request(&[&[word]]).encode(&mut bytes);
    bytes
}

/// Reads a request, and checks that it has this word.
fn hear_word(stream: &mut TcpStream, word: &[u8]) {
    let bytes = encoded(word);
    assert_eq!(hear(stream, bytes.len()), bytes);
}

/// Reads until `count` bytes have arrived.
fn hear(stream: &mut TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

fn is_unknown(outcome: &CallResult) -> bool {
    matches!(outcome, Err(CallError::Unknown(_)))
}

#[test]
fn late_reply_is_dropped_and_later_ones_find_their_callers() {
    let (connection, mut peer) = pair_with(GRACE * 50);
    assert!(is_unknown(&call(&connection, b"a", within(50))));
    thread::scope(|scope| {
        let next = scope.spawn(|| call(&connection, b"b", within(10_000)));
        hear_word(&mut peer, b"a");
        hear_word(&mut peer, b"b");
        peer.write_all(b":1\r\n:2\r\n").unwrap();
        assert_eq!(next.join().unwrap().unwrap(), Reply::Int(2));
    });
    assert!(connection.is_usable(SystemClock.now(), 0));
}

#[test]
fn requests_of_one_call_leave_together_and_replies_find_them() {
    let (connection, mut peer) = pair_with(GRACE * 50);
    peer.set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let words: [&[&[u8]]; 3] = [&[b"a"], &[b"b"], &[b"c"]];
    let requests = words.each_ref().map(std::slice::from_ref).map(Request);
    let together = || Arc::clone(&connection).call_many(&requests, within(20_000));
    let answers = |values: &[i64]| values.iter().copied().map(Reply::Int).collect::<Vec<_>>();
    thread::scope(|scope| {
        // The peer replies only after all three requests and the request of another thread.
        let first = scope.spawn(together);
        words.iter().for_each(|word| hear_word(&mut peer, word[0]));
        let other = scope.spawn(|| call(&connection, b"x", within(20_000)));
        hear_word(&mut peer, b"x");
        for reply in [":1\r\n", ":2\r\n:3\r\n:4\r\n"] {
            peer.write_all(reply.as_bytes()).unwrap();
        }
        let (replies, outcome) = first.join().unwrap();
        assert_eq!((replies, outcome.is_ok()), (answers(&[1, 2, 3]), true));
        assert_eq!(other.join().unwrap().unwrap(), Reply::Int(4));
    });
    thread::scope(|scope| {
        let cut = scope.spawn(together);
        words.iter().for_each(|word| hear_word(&mut peer, word[0]));
        peer.write_all(b":1\r\n").unwrap();
        drop(peer);
        let (replies, outcome) = cut.join().unwrap();
        assert_eq!(replies, answers(&[1]));
        assert!(matches!(outcome, Err(CallError::Unknown(_))), "{outcome:?}");
    });
    assert!(connection.pending.lock().is_empty());
}

#[test]
fn silent_connection_is_mute_at_a_deadline_and_closed_later() {
    let (connection, _peer) = pair();
    thread::scope(|scope| {
        let start = SystemClock.now();
        let impatient = scope.spawn(|| call(&connection, b"a", within(50)));
        while connection.pending.lock().is_empty() {
            thread::yield_now();
        }
        let patient = scope.spawn(|| (call(&connection, b"b", within(60_000)), SystemClock.now()));
        let late = SystemClock.now() + GRACE;
        assert!(is_unknown(&impatient.join().unwrap()));
        assert!(!connection.is_usable(late, 0) && !connection.pending.lock().is_closed());
        let (outcome, ended) = patient.join().unwrap();
        assert!(is_unknown(&outcome), "{outcome:?}");
        let took = ended.since(start);
        assert!(took >= GRACE && took < Duration::from_secs(10), "{took:?}");
    });
}

#[test]
fn peer_that_takes_nothing_delays_no_caller_past_its_deadline() {
    let (connection, peer) = pair();
    let much = vec![b'x'; 32 << 20];
    thread::scope(|scope| {
        let big = scope.spawn(|| call(&connection, &much, within(3_000)));
        let stalled = within(10_000);
        while !connection.stalled.load(Ordering::Acquire) {
            assert!(SystemClock.now() < stalled, "the peer takes everything");
            thread::yield_now();
        }
        let small: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let by = within(100);
                    (call(&connection, b"small", by), SystemClock.now().since(by))
                })
            })
            .collect();
        for one in small {
            let (outcome, late) = one.join().unwrap();
            // The outcome is unknown if the request was being written at the deadline.
            assert!(outcome.is_err(), "{outcome:?}");
            assert!(late < Duration::from_millis(400), "{late:?}");
        }
        let outcome = big.join().unwrap();
        assert!(is_unknown(&outcome), "a part was sent: {outcome:?}");
    });
    drop(peer);
}

#[test]
fn bytes_of_abandoned_requests_do_not_leave_later() {
    let (connection, mut peer) = pair();
    let much = vec![b'x'; 8 << 20];
    thread::scope(|scope| {
        let big = scope.spawn(|| call(&connection, &much, within(20_000)));
        while !connection.stalled.load(Ordering::Acquire) {
            thread::yield_now();
        }
        // A request that is being written cannot be removed.
        let mut offered = 0;
        loop {
            match call(&connection, b"gone", within(50)) {
                Err(CallError::NotSent(_)) => break,
                outcome => assert!(is_unknown(&outcome), "{outcome:?}"),
            }
            offered += 1;
        }
        let last = scope.spawn(|| call(&connection, b"last", within(20_000)));
        while connection.pending.lock().len() < 2 + offered {
            thread::yield_now();
        }
        hear_word(&mut peer, &much);
        (0..offered).for_each(|_| hear_word(&mut peer, b"gone"));
        hear_word(&mut peer, b"last");
        let answers = [":1\r\n", &":9\r\n".repeat(offered), ":2\r\n"].concat();
        peer.write_all(answers.as_bytes()).unwrap();
        assert_eq!(big.join().unwrap().unwrap(), Reply::Int(1));
        assert_eq!(last.join().unwrap().unwrap(), Reply::Int(2));
    });
    assert!(!connection.stalled.load(Ordering::Acquire));
}

#[test]
fn reply_beside_unrequested_bytes_is_not_believed() {
    for bytes in [
        &b":1\r\n:2\r\n"[..],
        b":1\r\n:",
        b":1\r\n%1\r\n",
        b"what?\r\n",
    ] {
        let (connection, mut peer) = pair();
        thread::scope(|scope| {
            let call = scope.spawn(|| call(&connection, b"a", within(10_000)));
            hear_word(&mut peer, b"a");
            peer.write_all(bytes).unwrap();
            let outcome = call.join().unwrap();
            assert!(is_unknown(&outcome), "{outcome:?}");
        });
        assert!(matches!(
            call(&connection, b"b", within(100)),
            Err(CallError::NotSent(_))
        ));
        assert!(!connection.is_usable(SystemClock.now(), 0));
    }
}

#[test]
fn idle_connection_that_closed_or_sent_bytes_is_unusable() {
    for speaks in [true, false] {
        let (connection, mut peer) = pair();
        // The number of failures has grown, so the connection is checked.
        assert!(connection.is_usable(SystemClock.now(), 1));
        if speaks {
            peer.write_all(b"+hello\r\n").unwrap();
        } else {
            drop(peer);
        }
        assert!(
            connection.is_usable(SystemClock.now(), 1),
            "the look before still counts"
        );
        assert!(!connection.is_usable(SystemClock.now(), 2));
    }
}

#[test]
fn connection_is_mute_although_earlier_replies_came() {
    let (connection, mut peer) = pair();
    let late = within(1_000);
    thread::scope(|scope| {
        let first = scope.spawn(|| call(&connection, b"a", within(10_000)));
        hear_word(&mut peer, b"a");
        let second = scope.spawn(|| call(&connection, b"b", late));
        hear_word(&mut peer, b"b");
        peer.write_all(b":1\r\n").unwrap();
        assert_eq!(first.join().unwrap().unwrap(), Reply::Int(1));
        assert!(connection.is_usable(SystemClock.now(), 0));
        assert!(is_unknown(&second.join().unwrap()));
        assert!(!connection.is_usable(late, 0));
    });
}

#[test]
fn slow_connection_is_unusable_although_no_thread_reads() {
    let (connection, mut peer) = pair();
    let late = within(50);
    thread::scope(|scope| {
        let first = scope.spawn(|| call(&connection, b"a", within(10_000)));
        hear_word(&mut peer, b"a");
        assert!(is_unknown(&call(&connection, b"b", late)));
        // The second request becomes overdue by more than `GRACE`, behind the first.
        assert!(is_unknown(&call(&connection, b"c", late + GRACE)));
        peer.write_all(b":1\r\n").unwrap();
        assert_eq!(first.join().unwrap().unwrap(), Reply::Int(1));
        assert!(!connection.is_usable(late + GRACE, 0));
    });
}

#[test]
fn only_requests_sent_whole_await_replies() {
    let mut pending = PendingRequests::new(within(0), Duration::ZERO, 0, &[]);
    for request in [b"aa", b"bb", b"cc"] {
        pending
            .push(request, span(0), &Arc::default(), Joining::Free)
            .unwrap();
    }
    assert_eq!((pending.len(), pending.awaited()), (3, 0));
    let bytes = pending.take_unsent(Vec::new());
    // The writer may have written all bytes.
    assert_eq!(pending.awaited(), 3);
    pending.put_back(bytes, 3);
    assert_eq!(pending.awaited(), 1);
}

#[test]
fn unsent_bytes_wait_only_while_the_peer_has_more_to_do() {
    let mut pending = PendingRequests::new(within(0), Duration::ZERO, 0, &[]);
    let push = |pending: &mut PendingRequests| {
        pending
            .push(b"xx", span(0), &Arc::default(), Joining::Free)
            .unwrap();
        pending.is_peer_busy()
    };
    assert!(!push(&mut pending), "it has nothing to do");
    for _ in 1..8 {
        push(&mut pending);
    }
    pending.take_unsent(Vec::new());
    for _ in 0..3 {
        assert!(push(&mut pending), "eight are under way");
    }
    assert!(!push(&mut pending), "the fourth makes a half of that");
    for _ in 0..5 {
        pending
            .assign(Reply::Nil, None, &mut DeferredWakeups::default())
            .unwrap();
    }
    pending.take_unsent(Vec::new());
    for _ in 0..5 {
        pending
            .assign(Reply::Nil, None, &mut DeferredWakeups::default())
            .unwrap();
    }
    assert!(!push(&mut pending), "all are answered");
}

#[test]
fn call_after_its_deadline_is_not_sent() {
    let (connection, mut peer) = pair();
    let outcome = call(&connection, b"late", within(0));
    assert!(matches!(outcome, Err(CallError::NotSent(_))), "{outcome:?}");
    assert!(is_unknown(&call(&connection, b"x", within(20))));
    hear_word(&mut peer, b"x");
}

#[test]
fn unread_late_reply_keeps_its_connection_usable() {
    let (connection, mut peer) = pair_with(Duration::from_secs(60));
    let late = within(50);
    assert!(is_unknown(&call(&connection, b"a", late)));
    assert!(
        connection.is_usable(late, 0),
        "a reply may take longer than its caller waits"
    );
    assert!(
        !connection.is_usable(within(250), 0),
        "nothing was received"
    );
    peer.write_all(b":1\r\n").unwrap();
    // On a loopback, the reply has arrived when the write returns.
    assert!(connection.is_usable(SystemClock.now(), 0));
    assert!(connection.pending.lock().is_empty());
}

#[test]
fn closed_connection_is_unusable_after_all_gave_up() {
    let (connection, mut peer) = pair_with(Duration::from_secs(60));
    let late = within(1_000);
    thread::scope(|scope| {
        let first = scope.spawn(|| call(&connection, b"a", within(10_000)));
        hear_word(&mut peer, b"a");
        let second = scope.spawn(|| call(&connection, b"b", late));
        hear_word(&mut peer, b"b");
        peer.write_all(b":1\r\n").unwrap();
        assert_eq!(first.join().unwrap().unwrap(), Reply::Int(1));
        assert!(is_unknown(&second.join().unwrap()));
    });
    assert!(connection.is_usable(late, 0));
    drop(peer);
    assert!(!connection.is_usable(late, 0));
}

/// A deadline that is earlier than any reply can arrive does not make the connection suspect.
#[test]
fn connection_is_suspect_when_replies_are_later_than_usual() {
    let ms = Duration::from_millis;
    let (start, grace) = (within(0), ms(2_000));
    let mute_after = |pending: &mut PendingRequests, sent: Moment, grace| {
        pending
            .push(b"x", (sent, sent + ms(50)), &Arc::default(), Joining::Free)
            .unwrap();
        let is_mute = |after: &u64| pending.is_mute(sent + ms(*after), grace);
        (0..3_000)
            .step_by(10)
            .find(is_mute)
            .expect("it is at some time")
    };
    let answer = |pending: &mut PendingRequests, now: Moment| {
        pending.take_unsent(Vec::new());
        pending.received(now);
        pending
            .assign(Reply::Nil, None, &mut DeferredWakeups::default())
            .unwrap();
    };
    for (dialed_in, expected) in [
        (0, 250),
        (100, 250),
        (300, 600),
        (900, 1_800),
        (5_000, 2_000),
    ] {
        let mut pending = PendingRequests::new(start, ms(dialed_in), 0, &[]);
        assert_eq!(
            mute_after(&mut pending, start, grace),
            expected,
            "{dialed_in}"
        );
    }
    // The limit follows replies that become slower, and then faster again.
    let (mut pending, mut sent) = (PendingRequests::new(start, ms(0), 0, &[]), start);
    for (reply, expected) in [
        (300, 250),
        (400, 600),
        (2, 800),
        (2, 400),
        (2, 250),
        (2, 250),
    ] {
        assert_eq!(
            mute_after(&mut pending, sent, grace),
            expected,
            "before {reply}"
        );
        sent = sent + ms(reply);
        answer(&mut pending, sent);
    }
    assert_eq!(
        mute_after(&mut pending, sent, ms(100)),
        100,
        "never more than the grace"
    );
}

/// Returns a request with an unknown script hash, its callback, and the receiver of the outcome.
fn unknown_script() -> (Vec<u8>, CallbackRequest, Receiver<Result<Reply, Failure>>) {
    let mut request = Vec::new();
    Request(&[&[
        b"EVALSHA",
        b"0123456789012345678901234567890123456789",
        b"0",
    ]])
    .encode(&mut request);
    let (tell, outcome) = mpsc::channel();
    let done = Box::new(move |outcome: Result<Reply, _>| {
        tell.send(outcome).unwrap();
        ReplyCheck::Expected
    });
    let callback = CallbackRequest {
        by_hash: request.clone(),
        text: "return 1",
        done,
    };
    (request, callback, outcome)
}

#[test]
fn callback_that_is_sent_again_keeps_its_deadline() {
    let (connection, mut peer) = pair();
    let by = within(60_000);
    let (request, callback, _outcome) = unknown_script();
    assert!(connection.submit(&request, by, callback).is_ok());
    hear(&mut peer, request.len());
    peer.write_all(b"-NOSCRIPT No matching script.\r\n")
        .unwrap();
    assert!(connection.poll());
    assert_eq!(hear(&mut peer, 12), b"*3\r\n$4\r\nEVAL");
    assert_eq!(connection.pending.lock().oldest(), Some(by));
}

#[test]
fn callback_is_not_sent_again_after_its_deadline() {
    let (connection, mut peer) = pair_with(Duration::from_secs(60));
    let (request, callback, outcome) = unknown_script();
    assert!(connection.submit(&request, within(50), callback).is_ok());
    hear(&mut peer, request.len());
    SystemClock.wait(&Arc::default(), within(60));
    thread::scope(|scope| {
        let reader = scope.spawn(|| call(&connection, b"x", within(60_000)));
        hear_word(&mut peer, b"x");
        peer.write_all(b"-NOSCRIPT No matching script.\r\n:1\r\n")
            .unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), Reply::Int(1));
    });
    let outcome = outcome.recv_timeout(Duration::from_secs(10));
    assert!(
        matches!(outcome, Ok(Err(Failure::NotSent(_)))),
        "{outcome:?}"
    );
    assert!(connection.pending.lock().is_empty());
}

#[test]
fn reader_is_not_woken_to_write_while_another_thread_waits() {
    let (connection, _peer) = pair();
    let mut pending = connection.pending.lock();
    let (reader, other) = (Arc::default(), Arc::default());
    let slots = [&reader, &reader, &other].map(|signal| Arc::new(ReplySlot::new(signal)));
    for slot in &slots {
        pending
            .push(b"x", span(60_000), slot, Joining::Free)
            .unwrap();
    }
    pending.reader = Some(1);
    pending.asleep = true;
    let mut wakeups = DeferredWakeups::default();
    pending.wake_a_writer(&mut wakeups);
    let [woken] = &*wakeups.wake else {
        panic!("{} are woken", wakeups.wake.len())
    };
    assert!(Arc::ptr_eq(woken, &slots[2]));
}

#[test]
fn callback_left_to_an_awake_reader_is_sent_when_that_leaves() {
    for is_answered in [true, false] {
        let (connection, mut peer) = pair();
        peer.set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let long = [b'x'; 200];
        let by = within(if is_answered { 60_000 } else { 300 });
        thread::scope(|scope| {
            let reader = scope.spawn(|| call(&connection, &long, by));
            hear_word(&mut peer, &long);
            while !connection.pending.lock().asleep {
                thread::yield_now();
            }
            connection.pending.lock().asleep = false;
            let done = Box::new(|_: Result<Reply, _>| ReplyCheck::Expected);
            let callback = CallbackRequest {
                by_hash: Vec::new(),
                text: "",
                done,
            };
            assert!(
                connection
                    .submit(b"short", within(60_000), callback)
                    .is_ok()
            );
            assert!(
                connection.pending.lock().wants_writer(),
                "the reader will send it"
            );
            if is_answered {
                peer.write_all(b":1\r\n").unwrap();
            }
            assert_eq!(reader.join().unwrap().is_ok(), is_answered);
        });
        assert_eq!(hear(&mut peer, 5), b"short");
    }
}

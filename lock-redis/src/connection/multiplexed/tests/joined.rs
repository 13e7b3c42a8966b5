//! Tests of joined requests: several requests that are sent as one.

use super::*;
use crate::connection::ServerError;
use crate::connection::with_text;
use crate::protocol::REDISSON;

/// The request of a thread, and the slot where the thread waits.
type Asked = (RequestId, Arc<ReplySlot>);

fn pending() -> PendingRequests {
    PendingRequests::new(within(0), Duration::ZERO, 0, REDISSON.joins)
}

fn encode(words: &[&str]) -> Vec<u8> {
    let words: Vec<_> = words.iter().map(|word| word.as_bytes()).collect();
    let mut bytes = Vec::new();
    Request(&[&words]).encode(&mut bytes);
    bytes
}

fn acquire(name: &str) -> Vec<u8> {
    let words = acquire_words(name);
    encode(&words.each_ref().map(String::as_str))
}

fn acquire_words(name: &str) -> [String; 10] {
    let hash = REDISSON.scripts.acquire.hash().to_owned();
    let [name, counter, tombstone, queue, owner] =
        ["", "counter:", "closed:", "queue:", "owner:"].map(|it| format!("{it}{name}"));
    let [evalsha, count, lease, keep] = ["EVALSHA", "4", "30000", "60000"].map(str::to_owned);
    [
        evalsha, hash, count, name, counter, tombstone, queue, lease, owner, keep,
    ]
}

fn release(name: &str) -> Vec<u8> {
    let (hash, owner) = (REDISSON.scripts.release.hash(), format!("owner:{name}"));
    let channel = format!("channel:{name}");
    encode(&["EVALSHA", hash, "1", name, &owner, &channel, "PUBLISH"])
}

/// Returns the request that joins acquires of these locks.
fn acquire_many(how: [&str; 2], names: &[&str]) -> Vec<u8> {
    let of_all = |what: &str| {
        names
            .iter()
            .map(|name| format!("{what}{name}"))
            .collect::<Vec<String>>()
    };
    let count = (4 * names.len()).to_string();
    let keys = ["", "closed:", "queue:", "counter:"].map(of_all).concat();
    let owners = of_all("owner:");
    let words = [how[0], how[1], &count].map(str::to_owned);
    let common = ["30000", "60000"].map(str::to_owned);
    let words = [&words[..], &keys, &common, &owners].concat();
    encode(&words.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Returns the request that joins releases of these locks, with the script's text.
fn release_many(names: &[&str]) -> Vec<u8> {
    let owners = names.iter().map(|name| format!("owner:{name}"));
    let channels = names.iter().map(|name| format!("channel:{name}"));
    let arguments: Vec<_> = owners.chain(channels).collect();
    let count = names.len().to_string();
    let head = ["EVAL", REDISSON.joins[0].many.source, &count];
    let arguments = arguments.iter().map(String::as_str);
    let words = head
        .iter()
        .chain(names)
        .copied()
        .chain(["PUBLISH"])
        .chain(arguments);
    encode(&words.collect::<Vec<_>>())
}

/// Returns the command and the script as they are sent until the server knows the script.
fn by_text() -> [&'static str; 2] {
    ["EVAL", REDISSON.joins[1].many.source]
}

fn by_hash() -> [&'static str; 2] {
    ["EVALSHA", REDISSON.joins[1].many.hash()]
}

fn push(pending: &mut PendingRequests, bytes: &[u8]) -> Asked {
    let slot = Arc::default();
    (
        pending
            .push(bytes, span(60_000), &slot, Joining::Free)
            .unwrap(),
        slot,
    )
}

/// Pushes an acquire of each lock.
fn push_all<const N: usize>(pending: &mut PendingRequests, names: [&str; N]) -> [Asked; N] {
    names.map(|name| push(pending, &acquire(name)))
}

fn assign(pending: &mut PendingRequests, reply: Reply) -> Vec<Arc<ReplySlot>> {
    let mut wakeups = DeferredWakeups::default();
    pending.assign(reply, None, &mut wakeups).unwrap();
    wakeups.wake
}

fn leaves(pending: &mut PendingRequests) -> String {
    String::from_utf8(pending.take_unsent(Vec::new())).unwrap()
}

fn text(parts: &[Vec<u8>]) -> String {
    String::from_utf8(parts.concat()).unwrap()
}

fn token(number: u8) -> Reply {
    Reply::Bulk(vec![number])
}

fn error(code: &str) -> Reply {
    Reply::Error(ServerError::parse(&format!("{code} no")))
}

fn got((_, slot): &Asked) -> Option<Reply> {
    slot.take().map(|outcome| outcome.unwrap())
}

#[test]
fn joined_kinds_leave_releases_first_and_share_out_replies() {
    let mut pending = pending();
    let asked = ["a", "b", "c", "d"].map(|name| {
        [
            push(&mut pending, &acquire(name)),
            push(&mut pending, &release(&format!("held-{name}"))),
        ]
    });
    let releases = release_many(&["held-a", "held-b", "held-c", "held-d"]);
    let acquires = acquire_many(by_text(), &["a", "b", "c", "d"]);
    assert_eq!(leaves(&mut pending), text(&[releases, acquires]));
    assert_eq!(pending.awaited(), 2);
    let freed = [1, 0, 2, 1].map(Reply::Int);
    assert_eq!(assign(&mut pending, Reply::Array(freed.to_vec())).len(), 4);
    assign(&mut pending, Reply::Array([1, 2, 3, 4].map(token).to_vec()));
    for ([acquired, released], (number, freed)) in asked.iter().zip((1..).zip(freed)) {
        assert_eq!(
            [got(acquired), got(released)],
            [Some(token(number)), Some(freed)]
        );
    }
    assert!(pending.is_empty());
}

#[test]
fn two_are_not_joined_and_none_overtakes_a_ping() {
    let mut pending = pending();
    let ping = encode(&["PING"]);
    let names = ["a", "b", "c", "d", "e"];
    let mut expected = Vec::new();
    for part in [&names[..2], &names[2..]] {
        for name in part {
            push(&mut pending, &acquire(name));
        }
        push(&mut pending, &ping);
    }
    expected.extend(names[..2].iter().map(|name| acquire(name)));
    expected.extend([ping.clone(), acquire_many(by_text(), &names[2..]), ping]);
    assert_eq!(leaves(&mut pending), text(&expected));
    assert_eq!(pending.awaited(), 5);
}

#[test]
fn requests_with_alternating_leases_are_not_joined() {
    let mut pending = pending();
    let longer = |name| {
        let request = String::from_utf8(acquire(name)).unwrap();
        request.replace("$5\r\n30000", "$5\r\n40000").into_bytes()
    };
    let mut expected = Vec::new();
    for name in ["a", "b", "c"] {
        for request in [acquire(name), longer(name)] {
            push(&mut pending, &request);
            expected.push(request);
        }
    }
    assert_eq!(leaves(&mut pending), text(&expected));
}

#[test]
fn at_most_sixteen_are_joined() {
    let mut pending = pending();
    let names: Vec<_> = (0..20).map(|number| format!("lock-{number}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    for name in &names {
        push(&mut pending, &acquire(name));
    }
    let expected = names.chunks(16).map(|some| acquire_many(by_text(), some));
    assert_eq!(leaves(&mut pending), text(&expected.collect::<Vec<_>>()));
}

#[test]
fn request_that_has_left_in_part_stays_as_it_is() {
    let mut pending = pending();
    push_all(&mut pending, ["a"]);
    let bytes = pending.take_unsent(Vec::new());
    pending.put_back(bytes, 10);
    push_all(&mut pending, ["b", "c", "d"]);
    let expected = [
        acquire("a")[10..].to_vec(),
        acquire_many(by_text(), &["b", "c", "d"]),
    ];
    assert_eq!(leaves(&mut pending), text(&expected));
    assert_eq!(pending.awaited(), 2);
}

#[test]
fn joined_request_that_the_peer_did_not_take_leaves_as_it_was() {
    let mut pending = pending();
    let asked = push_all(&mut pending, ["a", "b", "c"]);
    let bytes = pending.take_unsent(Vec::new());
    pending.put_back(bytes, 0);
    push_all(&mut pending, ["d", "e"]);
    // The bytes stay in the joined request, which is sent later.
    assert_eq!(pending.abandon(asked[1].0), Some(MayHaveLeft(true)));
    let expected = [
        acquire_many(by_text(), &["a", "b", "c"]),
        acquire("d"),
        acquire("e"),
    ];
    assert_eq!(leaves(&mut pending), text(&expected));
    assert_eq!(
        assign(&mut pending, Reply::Array([1, 2, 3].map(token).to_vec())).len(),
        2
    );
    assert_eq!(
        asked.each_ref().map(got),
        [Some(token(1)), None, Some(token(3))]
    );
}

#[test]
fn script_is_sent_by_text_until_the_server_has_run_it() {
    let mut pending = pending();
    let names = ["a", "b", "c"];
    let sends = |pending: &mut PendingRequests, how| {
        let asked = push_all(pending, names);
        assert_eq!(leaves(pending), text(&[acquire_many(how, &names)]));
        asked
    };
    let granted = || Reply::Array([1, 2, 3].map(token).to_vec());
    sends(&mut pending, by_text());
    sends(&mut pending, by_text());
    assign(&mut pending, granted());
    assign(&mut pending, granted());
    let asked = sends(&mut pending, by_hash());
    // The server has forgotten the script: each caller sends its own script by its text.
    assert_eq!(assign(&mut pending, error("NOSCRIPT")).len(), 3);
    assert!(asked.iter().all(|one| got(one) == Some(error("NOSCRIPT"))));
    assert_eq!(leaves(&mut pending), "");
    sends(&mut pending, by_text());
}

#[test]
fn after_a_refusal_nothing_is_joined_for_a_while() {
    let cases = [
        ("BUSY", false, true),
        ("CROSSSLOT", false, false),
        ("ERR", false, false),
        ("ERR", true, true),
    ];
    for (code, was_carried_out, resumes) in cases {
        let start = within(0);
        let mut pending = PendingRequests::new(start, Duration::ZERO, 0, REDISSON.joins);
        let names = ["a", "b", "c"];
        let mut how = by_text();
        if was_carried_out {
            push_all(&mut pending, names);
            leaves(&mut pending);
            assign(&mut pending, Reply::Array([1, 2, 3].map(token).to_vec()));
            how = by_hash();
        }
        push_all(&mut pending, names);
        leaves(&mut pending);
        assign(&mut pending, error(code));
        let alone = text(&names.map(acquire));
        assert_eq!(leaves(&mut pending), alone);
        let joined = text(&[acquire_many(how, &names)]);
        for (millis, expected) in [
            (900, &alone),
            (1_100, if resumes { &joined } else { &alone }),
        ] {
            pending.received(start + Duration::from_millis(millis));
            push_all(&mut pending, names);
            assert_eq!(&leaves(&mut pending), expected, "{code} after {millis} ms");
        }
    }
}

#[test]
fn requests_of_one_thread_leave_as_they_are() {
    let (connection, mut peer) = pair_joining(GRACE, REDISSON.joins);
    let names = ["a", "b", "c"];
    let words = names.map(acquire_words);
    let words = words
        .each_ref()
        .map(|words| words.each_ref().map(|word| word.as_bytes()));
    let groups = words.each_ref().map(|words| [words.as_slice()]);
    let requests = groups.each_ref().map(|words| Request(words));
    thread::scope(|scope| {
        scope.spawn(|| {
            let (replies, _) = Arc::clone(&connection).call_many(&requests, within(60_000));
            assert_eq!(replies.len(), 3);
        });
        let expected = names.map(acquire).concat();
        assert_eq!(hear(&mut peer, expected.len()), expected);
        peer.write_all(b"$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n")
            .unwrap();
    });
}

/// The requests of one thread stay in order, because the thread waits for them in order.
#[test]
fn request_that_may_not_be_joined_keeps_its_place() {
    let mut pending = pending();
    push_all(&mut pending, ["a", "b"]);
    pending
        .push(&acquire("c"), span(60_000), &Arc::default(), Joining::Never)
        .unwrap();
    push_all(&mut pending, ["d", "e"]);
    assert_eq!(
        leaves(&mut pending),
        text(&["a", "b", "c", "d", "e"].map(acquire))
    );
}

/// A script that failed as a whole may have been carried out before the failure. Then the outcome
/// is unknown until the request, which is sent again, has a reply.
#[test]
fn acquire_that_is_sent_again_may_have_been_carried_out() {
    for (code, may_have_run) in [("upstream", true), ("NOPERM", false)] {
        let mut pending = pending();
        let asked = push_all(&mut pending, ["a", "b", "c"]);
        leaves(&mut pending);
        assert!(assign(&mut pending, error(code)).is_empty());
        assert_eq!(
            pending.abandon(asked[0].0),
            Some(MayHaveLeft(may_have_run)),
            "{code}"
        );
        assert_eq!(leaves(&mut pending), text(&["b", "c"].map(acquire)));
        assign(&mut pending, token(2));
        assert_eq!(got(&asked[1]), Some(token(2)));
        pending.fail_all(&Error::unavailable("gone"), &mut DeferredWakeups::default());
        assert!(
            is_unknown(&asked[2].1.take().unwrap()),
            "{code}: it has left"
        );
        let asked = {
            let mut pending = self::pending();
            let asked = push_all(&mut pending, ["a", "b", "c"]);
            leaves(&mut pending);
            assign(&mut pending, error(code));
            pending.fail_all(&Error::unavailable("gone"), &mut DeferredWakeups::default());
            asked
        };
        for (_, slot) in asked {
            assert_eq!(
                is_unknown(&slot.take().unwrap()),
                may_have_run,
                "{code}: it has not left"
            );
        }
        for (answer, says_it_all) in [("upstream", false), ("NOSCRIPT", true), ("WRONGTYPE", true)]
        {
            let mut pending = self::pending();
            let asked = push_all(&mut pending, ["a", "b", "c"]);
            leaves(&mut pending);
            assign(&mut pending, error(code));
            leaves(&mut pending);
            assign(&mut pending, error(answer));
            let is_unknown = is_unknown(&asked[0].1.take().unwrap());
            assert_eq!(
                is_unknown,
                may_have_run && !says_it_all,
                "{code}, then {answer}"
            );
        }
    }
}

#[test]
fn one_that_is_refused_is_sent_again_alone() {
    let mut pending = pending();
    let asked = push_all(&mut pending, ["a", "b", "c"]);
    leaves(&mut pending);
    let reply = vec![token(1), error("WRONGTYPE"), token(3)];
    assert_eq!(assign(&mut pending, Reply::Array(reply)).len(), 2);
    assert_eq!(
        [&asked[0], &asked[2]].map(got),
        [Some(token(1)), Some(token(3))]
    );
    // The request is not joined again, even with enough others.
    push_all(&mut pending, ["d", "e"]);
    assert_eq!(leaves(&mut pending), text(&["b", "d", "e"].map(acquire)));
    assign(&mut pending, error("WRONGTYPE"));
    assert_eq!(got(&asked[1]), Some(error("WRONGTYPE")));
}

/// A repeated release would find its lock gone; a repeated acquire has the same answer as before.
#[test]
fn release_that_may_have_been_carried_out_is_not_sent_again() {
    let mut pending = pending();
    let asked = ["a", "b", "c"].map(|name| push(&mut pending, &release(name)));
    leaves(&mut pending);
    assert_eq!(pending.abandon(asked[0].0), Some(MayHaveLeft(true)));
    assert_eq!(assign(&mut pending, error("upstream")).len(), 2);
    assert!(asked[0].1.take().is_none());
    assert!(
        asked[1..]
            .iter()
            .all(|(_, slot)| is_unknown(&slot.take().unwrap()))
    );
    assert_eq!(leaves(&mut pending), "");
    assert!(pending.is_empty());
    // A new connection is needed, because joining has ended on the first.
    let mut pending = self::pending();
    push_all(&mut pending, ["a", "b", "c"]);
    leaves(&mut pending);
    assign(&mut pending, error("upstream"));
    assert_eq!(leaves(&mut pending), text(&["a", "b", "c"].map(acquire)));
}

#[test]
fn those_that_gave_up_are_not_sent_again() {
    let mut pending = pending();
    let asked = push_all(&mut pending, ["a", "b", "c", "d"]);
    leaves(&mut pending);
    pending.abandon(asked[1].0);
    assign(&mut pending, error("BUSY"));
    // This request was not carried out, and has not been sent again.
    assert_eq!(pending.abandon(asked[2].0), Some(MayHaveLeft(false)));
    assert_eq!(leaves(&mut pending), text(&["a", "d"].map(acquire)));
}

#[test]
fn joined_requests_fail_with_their_connection() {
    for has_left in [true, false] {
        let mut pending = pending();
        let asked = push_all(&mut pending, ["a", "b", "c"]);
        if has_left {
            leaves(&mut pending);
        }
        pending.fail_all(&Error::unavailable("gone"), &mut DeferredWakeups::default());
        for (_, slot) in &asked {
            let outcome = slot.take().unwrap();
            assert_eq!(is_unknown(&outcome), has_left, "{outcome:?}");
        }
    }
}

#[test]
fn reply_of_wrong_length_is_rejected() {
    for reply in [Reply::Array([1, 2].map(token).to_vec()), token(1)] {
        let mut pending = pending();
        let asked = push_all(&mut pending, ["a", "b", "c"]);
        leaves(&mut pending);
        let mut wakeups = DeferredWakeups::default();
        assert!(pending.assign(reply, None, &mut wakeups).is_err());
        // The thread that reads calls this after an error.
        pending.fail_all(&Error::unavailable("garbage"), &mut wakeups);
        assert!(
            asked
                .iter()
                .all(|(_, slot)| is_unknown(&slot.take().unwrap()))
        );
    }
}

/// The thread that reads for all is not woken for its own part of a joined reply.
#[test]
fn reader_finds_its_own_part() {
    let mut pending = pending();
    let asked = push_all(&mut pending, ["a", "b", "c"]);
    leaves(&mut pending);
    let mut wakeups = DeferredWakeups::default();
    let reply = Reply::Array([1, 2, 3].map(token).to_vec());
    pending
        .assign(reply, Some(&asked[1].1), &mut wakeups)
        .unwrap();
    assert_eq!(wakeups.wake.len(), 2);
    assert_eq!(got(&asked[1]), Some(token(2)));
}

#[test]
fn callbacks_that_were_joined_expire_and_keep_their_text() {
    let mut pending = pending();
    let (told, outcomes) = mpsc::channel();
    for (name, millis) in [("a", 50), ("b", 60_000), ("c", 60_000)] {
        let told = told.clone();
        let done = Box::new(move |outcome: Result<Reply, Failure>| {
            told.send((name, outcome)).unwrap();
            ReplyCheck::Expected
        });
        let by_hash = release(name);
        let callback = CallbackRequest {
            by_hash,
            text: REDISSON.scripts.release.source,
            done,
        };
        assert!(
            pending
                .push_callback(&release(name), span(millis), callback)
                .is_ok()
        );
    }
    assert_eq!(
        leaves(&mut pending),
        text(&[release_many(&["a", "b", "c"])])
    );
    let mut wakeups = DeferredWakeups::default();
    let server = Server::new(Endpoint::tcp("test", 1), None);
    pending.expire_callbacks(within(100), &server, &mut wakeups);
    assert_eq!(wakeups.callbacks.len(), 1);
    let (_, outcome) = wakeups.callbacks.pop().unwrap();
    assert!(is_unknown(&outcome));
    assert!(pending.has_callbacks());
    // The server does not know the script for one lock, either: each request is sent by its text
    // before any later request.
    assign(&mut pending, error("NOSCRIPT"));
    let again = ["b", "c"].map(|name| with_text(&release(name), REDISSON.scripts.release.source));
    assert_eq!(leaves(&mut pending), text(&again));
    assert_eq!(pending.last_callback(RequestId::MAX), Some(3));
    assert_eq!(pending.last_callback(2), Some(2));
    let mut wakeups = DeferredWakeups::default();
    for _ in 0..2 {
        pending.assign(Reply::Int(1), None, &mut wakeups).unwrap();
    }
    for (callback, outcome) in wakeups.callbacks {
        let _ = (callback.done)(outcome.map_err(Failure::from));
    }
    assert_eq!(
        outcomes
            .try_iter()
            .filter(|(_, outcome)| outcome.is_ok())
            .count(),
        2
    );
    assert!(!pending.has_callbacks());
}

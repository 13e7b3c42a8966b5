//! Labels of holders: what is stored beside a lock, and for whom it is shown.

use distlock::backend::HolderInfo;
use distlock::{Client, DistLock, Event, LockOptions, OwnerLabel};
use distlock_tests::process::RedisServer;
use distlock_tests::redis::{builder, client};
use distlock_tests::time::eventually;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const LONG: Duration = Duration::from_secs(60);
const KEY: &str = "distlock_owner:{a}";
/// Quotes, a space at both ends, and letters of more than one byte.
const ODD: &str = " till 7, \"Łódź\" 'x' ";

fn holder(client: &Client) -> Option<HolderInfo> {
    client.mutex("a").unwrap().inspect().unwrap().holder
}

fn label(client: &Client) -> Option<OwnerLabel> {
    holder(client)?.label
}

fn text(client: &Client) -> Option<String> {
    label(client).map(|label| label.text.to_string())
}

/// A client of this owner, and how many renewals it was told of.
fn renewing(server: &RedisServer, options: &str, owner: &str) -> (Client, Arc<AtomicU64>) {
    let renewals = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&renewals);
    let handler = move |event: &Event| {
        if let Event::Renewed { .. } = event {
            count.fetch_add(1, Ordering::SeqCst);
        }
    };
    let builder = builder(server, options).owner(owner).events(Arc::new(handler));
    (builder.connect().unwrap(), renewals)
}

fn await_renewals(renewals: &AtomicU64, more: u64) {
    let enough = renewals.load(Ordering::SeqCst) + more;
    eventually("it is renewed", LONG, || renewals.load(Ordering::SeqCst) >= enough);
}

#[test]
fn renewed_lock_has_its_label_in_a_key_of_its_own() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    for options in ["", "format=token"] {
        let client = builder(&server, options).owner(ODD).connect().unwrap();
        let before = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let guard = client.mutex("a").unwrap().lock().unwrap();
        let after = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        eventually("it is renewed", LONG, || probe.exists(KEY));
        let owner = holder(&client).unwrap().owner.as_str().to_owned();
        if options.is_empty() {
            let hash = probe.hgetall("a");
            assert_eq!(hash.into_iter().collect::<Vec<_>>(), [(owner.clone(), "1".to_owned())]);
        } else {
            assert_eq!(probe.get("a"), Some(owner.clone()));
        }
        let stored = probe.get(KEY).unwrap();
        let since = stored.strip_prefix(&format!("{owner} ")).unwrap();
        let since: u64 = since.strip_suffix(&format!(" {ODD}")).unwrap().parse().unwrap();
        // The clocks are read one after the other, and rounded.
        let (first, last) = (before.as_millis() as u64 - 1, after.as_millis() as u64 + 1);
        assert!((first..=last).contains(&since), "{first} {since} {last}");
        let shown = label(&client).unwrap();
        assert_eq!(shown, OwnerLabel::new(ODD.into(), Duration::from_millis(since)));
        let left = probe.pttl(KEY).unwrap();
        assert!(left <= 3 * Duration::from_secs(30), "{left:?}");
        guard.unlock().unwrap();
        // Its own time ends it.
        assert_eq!(probe.keys("*a*"), [KEY, "redisson_lock_token:{a}"]);
        assert_eq!(holder(&client), None);
        probe.command(&["FLUSHALL"]);
    }
}

#[test]
fn label_is_prolonged_with_its_lock_and_ends_with_it() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let (client, renewals) = renewing(&server, "watchdog=600ms", "till");
    let guard = client.mutex("a").unwrap().lock().unwrap();
    eventually("it is renewed", LONG, || probe.exists(KEY));
    let since = label(&client).unwrap().since;
    await_renewals(&renewals, 8);
    // Far beyond the first lease.
    let later = label(&client).unwrap().since;
    let difference = later.duration_since(since).or_else(|_| since.duration_since(later)).unwrap();
    assert!(difference <= Duration::from_millis(2), "{difference:?}");
    guard.unlock().unwrap();
    eventually("its time is over", LONG, || !probe.exists(KEY));
}

#[test]
fn label_of_a_former_owner_is_never_shown() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let [first, second] =
        ["first", "second"].map(|it| builder(&server, "").owner(it).connect().unwrap());
    let lost = first.mutex("a").unwrap().lock().unwrap();
    eventually("it is renewed", LONG, || text(&second).as_deref() == Some("first"));
    let of_the_first = probe.get(KEY).unwrap();
    probe.command(&["DEL", "a"]);
    // Only an extension renews it.
    let fixed = LockOptions::new().lease(10 * LONG);
    let guard = second.mutex("a").unwrap().lock_with(&fixed).unwrap();
    assert_eq!(text(&first), None);
    guard.extend(20 * LONG).unwrap();
    assert_eq!(text(&first).as_deref(), Some("second"));
    eventually("the loss is known", LONG, || !lost.is_valid());
    // As a late renewal of the first would leave it.
    probe.command(&["SET", KEY, &of_the_first]);
    assert_eq!(text(&second), None);
    for odd in ["", "x", "x y z", "\n"] {
        probe.command(&["SET", KEY, odd]);
        assert_eq!((text(&first), holder(&first).is_some()), (None, true), "{odd:?}");
    }
    probe.command(&["DEL", KEY]);
    probe.command(&["HSET", KEY, "no", "text"]);
    assert_eq!((text(&first), holder(&first).is_some()), (None, true));
}

#[test]
fn short_holds_and_owner_off_write_no_label() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let quick = client(&server, "").mutex("a").unwrap();
    for _ in 0..100 {
        quick.lock().unwrap().unlock().unwrap();
    }
    let (off, renewals) = renewing(&server, "watchdog=300ms", "off");
    let guard = off.mutex("a").unwrap().lock().unwrap();
    await_renewals(&renewals, 3);
    assert_eq!(text(&off), None);
    guard.unlock().unwrap();
    assert_eq!(probe.keys("distlock_owner:*"), [""; 0]);
}

#[test]
fn refused_labels_are_left_out_and_the_lock_is_renewed() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let rule =
        "ACL SETUSER me reset on nopass ~a ~redisson_lock_token:* ~distlock_closed:* &* +@all";
    probe.command(&rule.split(' ').collect::<Vec<_>>());
    let url = format!("redis://me@127.0.0.1:{}?watchdog=300ms", server.port());
    let renewals = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&renewals);
    let handler = move |event: &Event| {
        assert!(!matches!(event, Event::RenewalFailed { .. }), "{event:?}");
        count.fetch_add(u64::from(matches!(event, Event::Renewed { .. })), Ordering::SeqCst);
    };
    let client = distlock::builder().url(&url).unwrap().events(Arc::new(handler));
    let client = client.connect().unwrap();
    let guard = client.mutex("a").unwrap().lock().unwrap();
    await_renewals(&renewals, 5);
    assert!(guard.is_valid() && holder(&client).is_some());
    let log = format!("{:?}", probe.command(&["ACL", "LOG"]));
    assert_eq!(log.matches("\"object\"").count(), 1, "{log}");
    assert!(log.contains("Text(\"count\"), Int(1)") && log.contains(KEY), "{log}");
}

#[test]
fn full_memory_delays_a_label_and_no_renewal() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let (client, renewals) = renewing(&server, "watchdog=300ms", "till");
    let guard = client.mutex("a").unwrap().lock().unwrap();
    eventually("it is renewed", LONG, || probe.exists(KEY));
    probe.command(&["CONFIG", "SET", "maxmemory", "1"]);
    probe.command(&["DEL", KEY]);
    await_renewals(&renewals, 4);
    assert_eq!((probe.exists(KEY), guard.is_valid()), (false, true));
    probe.command(&["CONFIG", "SET", "maxmemory", "0"]);
    eventually("there is room", LONG, || text(&client).as_deref() == Some("till"));
}

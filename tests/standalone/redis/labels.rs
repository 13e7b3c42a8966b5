//! Labels of holders: the key that stores a label, and for which holder the label is shown.

use distlock::backend::{HolderInfo, LockInfo, LockKind, OwnerLabel};
use distlock::{Client, Event, LockName, LockOptions};
use distlock_tests::process::RedisServer;
use distlock_tests::redis::{builder, client};
use distlock_tests::time::eventually;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const LONG: Duration = Duration::from_secs(60);
const KEY: &str = "distlock_owner:{a}";
/// A label with quotes, a space at both ends, and letters of more than one byte.
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

/// Returns a client with this label, and a count of its renewal events.
fn renewing(server: &RedisServer, options: &str, owner: &str) -> (Client, Arc<AtomicU64>) {
    let renewals = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&renewals);
    let handler = move |event: &Event| {
        if let Event::Renewed { .. } = event {
            count.fetch_add(1, Ordering::SeqCst);
        }
    };
    let builder = builder(server, options)
        .owner(owner)
        .events(Arc::new(handler));
    (builder.connect().unwrap(), renewals)
}

fn await_renewals(renewals: &AtomicU64, more: u64) {
    let enough = renewals.load(Ordering::SeqCst) + more;
    eventually("it is renewed", LONG, || {
        renewals.load(Ordering::SeqCst) >= enough
    });
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
            assert_eq!(
                hash.into_iter().collect::<Vec<_>>(),
                [(owner.clone(), "1".to_owned())]
            );
        } else {
            assert_eq!(probe.get("a"), Some(owner.clone()));
        }
        let stored = probe.get(KEY).unwrap();
        let since = stored.strip_prefix(&format!("{owner} ")).unwrap();
        let since: u64 = since
            .strip_suffix(&format!(" {ODD}"))
            .unwrap()
            .parse()
            .unwrap();
        // The clocks are read one after the other, and rounded.
        let (first, last) = (before.as_millis() as u64 - 1, after.as_millis() as u64 + 1);
        assert!((first..=last).contains(&since), "{first} {since} {last}");
        let shown = label(&client).unwrap();
        assert_eq!(
            shown,
            OwnerLabel::new(ODD.into(), Duration::from_millis(since))
        );
        let left = probe.pttl(KEY).unwrap();
        assert!((60..=90).contains(&left.as_secs()), "{left:?}");
        guard.unlock().unwrap();
        // The key of the label expires by itself.
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
    // Far longer than the first label lasts, which is three leases.
    await_renewals(&renewals, 14);
    let later = label(&client).unwrap().since;
    let difference = later
        .duration_since(since)
        .or_else(|_| since.duration_since(later))
        .unwrap();
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
    eventually("it is renewed", LONG, || {
        text(&second).as_deref() == Some("first")
    });
    let of_the_first = probe.get(KEY).unwrap();
    probe.command(&["DEL", "a"]);
    // A fixed lease: only `extend` renews the lock and stores its label.
    let fixed = LockOptions::new().lease(10 * LONG);
    let guard = second.mutex("a").unwrap().lock_with(&fixed).unwrap();
    assert_eq!(text(&first), None);
    guard.extend(20 * LONG).unwrap();
    assert_eq!(text(&first).as_deref(), Some("second"));
    eventually("the loss is known", LONG, || !lost.is_valid());
    // The first holder's label, as its late renewal would leave it.
    probe.command(&["SET", KEY, &of_the_first]);
    assert_eq!(text(&second), None);
    for odd in ["", "x", "x y z", "\n"] {
        probe.command(&["SET", KEY, odd]);
        assert_eq!(
            (text(&first), holder(&first).is_some()),
            (None, true),
            "{odd:?}"
        );
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
    let (off, renewals) = renewing(&server, "watchdog=2s", "off");
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
    let keys = "~a ~redisson_lock_token:* ~distlock_closed:* ~distlock_queue:*";
    let rule = format!("ACL SETUSER me reset on nopass {keys} &* +@all");
    probe.command(&rule.split(' ').collect::<Vec<_>>());
    let url = format!("redis://me@127.0.0.1:{}?watchdog=2s", server.port());
    let renewals = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&renewals);
    let handler = move |event: &Event| {
        assert!(!matches!(event, Event::RenewalFailed { .. }), "{event:?}");
        count.fetch_add(
            u64::from(matches!(event, Event::Renewed { .. })),
            Ordering::SeqCst,
        );
    };
    let client = distlock::builder()
        .url(&url)
        .unwrap()
        .events(Arc::new(handler));
    let client = client.connect().unwrap();
    let guard = client.mutex("a").unwrap().lock().unwrap();
    await_renewals(&renewals, 5);
    assert!(guard.is_valid() && holder(&client).is_some());
    let log = format!("{:?}", probe.command(&["ACL", "LOG"]));
    assert_eq!(log.matches("\"object\"").count(), 1, "{log}");
    assert!(
        log.contains("Text(\"count\"), Int(1)") && log.contains(KEY),
        "{log}"
    );
}

#[test]
fn full_memory_delays_a_label_and_no_renewal() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let (client, renewals) = renewing(&server, "watchdog=2s", "till");
    let guard = client.mutex("a").unwrap().lock().unwrap();
    eventually("it is renewed", LONG, || probe.exists(KEY));
    probe.command(&["CONFIG", "SET", "maxmemory", "1"]);
    probe.command(&["DEL", KEY]);
    // One renewal in six stores the label.
    await_renewals(&renewals, 14);
    assert_eq!((probe.exists(KEY), guard.is_valid()), (false, true));
    probe.command(&["CONFIG", "SET", "maxmemory", "0"]);
    eventually("there is room", LONG, || {
        text(&client).as_deref() == Some("till")
    });
}

/// Returns the labels of the known readers, sorted; without readers, the label of the holder.
fn labels(info: &LockInfo) -> Vec<Option<String>> {
    let text = |holder: &HolderInfo| holder.label.as_ref().map(|label| label.text.to_string());
    let readers = info
        .readers
        .as_ref()
        .map_or(&[][..], |readers| &readers.known);
    let mut readers: Vec<_> = readers.iter().map(text).collect();
    readers.sort_unstable();
    if readers.is_empty() {
        return info.holder.iter().map(text).collect();
    }
    assert!(
        readers.contains(&info.holder.as_ref().and_then(text)),
        "{info:?}"
    );
    readers
}

/// Returns the labels of a lock, once `inspect` and `inspect_all` show the same.
fn shown(client: &Client, name: &str, kind: LockKind) -> Vec<Option<String>> {
    let alone = || match kind {
        LockKind::Permits { limit, .. } => client.semaphore(name, limit).unwrap().inspect(),
        LockKind::Fair => client.fair_mutex(name).unwrap().inspect(),
        _ => client.rw_lock(name).unwrap().write().inspect(),
    };
    let name = LockName::new(name).unwrap();
    // A listing knows a lock by its name only, except a semaphore.
    let is_semaphore = matches!(kind, LockKind::Permits { .. });
    let names = [if is_semaphore {
        name.of_kind(kind)
    } else {
        name
    }];
    let mut seen = Vec::new();
    // A renewal may come between the two reads.
    eventually("both show the same", LONG, || {
        let among_others = client.inspect_all(&names).remove(0).unwrap();
        seen = labels(&alone().unwrap());
        seen == labels(&among_others)
    });
    seen
}

#[test]
fn each_holder_of_any_kind_has_its_own_label() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let clients = ["desk", "till"].map(|owner| renewing(&server, "watchdog=1500ms", owner).0);
    let [desk, till] = &clients;
    let both = [Some("desk".to_owned()), Some("till".to_owned())];
    let [of_desk, of_till] = both.each_ref().map(|it| vec![it.clone()]);
    let await_labels = |name: &str, kind, expected: &[Option<String>]| {
        eventually("the labels are there", LONG, || {
            shown(desk, name, kind) == expected
        });
    };

    let fair = desk.fair_mutex("fair").unwrap().lock().unwrap();
    await_labels("fair", LockKind::Fair, &of_desk);
    let writer = till.rw_lock("rw").unwrap().write().lock().unwrap();
    await_labels("rw", LockKind::Write, &of_till);
    writer.unlock().unwrap();
    assert_eq!(shown(desk, "rw", LockKind::Write), []);
    let locks = clients
        .each_ref()
        .map(|client| client.rw_lock("rw").unwrap());
    let [one, other] = locks.each_ref().map(|lock| lock.read().lock().unwrap());
    await_labels("rw", LockKind::Read, &both);
    other.unlock().unwrap();
    // A fixed lease: without an extension there is no label.
    let fixed = locks[1]
        .read()
        .lock_with(&LockOptions::new().lease(10 * LONG))
        .unwrap();
    assert_eq!(
        shown(desk, "rw", LockKind::Read),
        [None, of_desk[0].clone()],
        "another hold"
    );

    let kind = |count| LockKind::Permits { limit: 3, count };
    let taken = desk.semaphore("slots", 3).unwrap().acquire_many(2).unwrap();
    await_labels("slots", kind(1), &of_desk);
    let later = till.semaphore("slots", 3).unwrap();
    let last = later
        .acquire_with(1, &LockOptions::new().lease(10 * LONG))
        .unwrap();
    assert_eq!(shown(desk, "slots", kind(1)), [None], "that expires last");
    last.extend(20 * LONG).unwrap();
    assert_eq!(shown(desk, "slots", kind(1)), of_till);
    drop((fair, one, fixed, taken, last));
    eventually("their times are over", LONG, || {
        probe.keys("distlock_owner:*").len() == 1
    });
}

#[test]
fn owner_off_and_refused_labels_leave_every_kind_without() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let rule = "ACL SETUSER me reset on nopass ~rw ~slots ~{rw}:* ~{slots}:* ~redisson_lock_token:* \
                ~distlock_closed:* ~distlock_queue:* &* +@all";
    probe.command(&rule.split_whitespace().collect::<Vec<_>>());
    let (off, of_off) = renewing(&server, "watchdog=2s", "off");
    let (renewals, url) = (Arc::new(AtomicU64::new(0)), server.url_as("me:x"));
    let count = Arc::clone(&renewals);
    let handler = move |event: &Event| {
        assert!(!matches!(event, Event::RenewalFailed { .. }), "{event:?}");
        count.fetch_add(
            u64::from(matches!(event, Event::Renewed { .. })),
            Ordering::SeqCst,
        );
    };
    let refused = distlock::builder()
        .url(&format!("{url}?watchdog=2s"))
        .unwrap();
    let refused = refused.events(Arc::new(handler)).connect().unwrap();
    for (client, renewals) in [(off, of_off), (refused, renewals)] {
        let reader = client.rw_lock("rw").unwrap().read().lock().unwrap();
        let permit = client.semaphore("slots", 1).unwrap().acquire().unwrap();
        await_renewals(&renewals, 8);
        assert!(reader.is_valid() && permit.is_valid());
        assert_eq!(shown(&client, "rw", LockKind::Read), [None]);
        assert_eq!(
            shown(&client, "slots", LockKind::Permits { limit: 1, count: 1 }),
            [None]
        );
        permit.unlock().unwrap();
        reader.unlock().unwrap();
    }
    assert_eq!(probe.keys("distlock_owner:*"), [""; 0]);
    let log = format!("{:?}", probe.command(&["ACL", "LOG"]));
    // The server refuses the label of the first renewal, and of one that was already under way. If
    // labels went on, every renewal would be refused.
    let counts = log
        .split("Text(\"count\"), Int(")
        .skip(1)
        .filter_map(|it| it.split(')').next());
    let refusals: u32 = counts.map(|count| count.parse::<u32>().unwrap()).sum();
    assert!((1..=2).contains(&refusals), "{log}");
}

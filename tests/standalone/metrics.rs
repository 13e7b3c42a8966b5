//! Metrics after known work: exact counts, gauges that return to zero, and measured times.

use distlock::admin::WarningKind;
use distlock::{Client, Event, LockOptions};
use distlock_tests::metrics::Recorded;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Proxy, Sometimes, Turn};
use distlock_tests::redis::client;
use distlock_tests::resp::Kind;
use distlock_tests::time::{Stopwatch, eventually, let_pass};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Checks that nothing is held and no thread waits.
#[track_caller]
fn must_be_idle(recorded: &Recorded) {
    for gauge in ["distlock_held", "distlock_waiting"] {
        assert_eq!(recorded.value(gauge, ""), 0.0, "{gauge}");
    }
}

/// Three locks are taken, one of which is lost, and one call finds the lock held by `other`.
fn known_work(make: impl Fn() -> Client, other: &Client, delete: impl FnOnce(&str)) {
    let (recorded, client) = Recorded::of(make);
    let (first, busy) = (
        client.mutex("first").unwrap(),
        client.mutex("busy").unwrap(),
    );
    for is_awaited in [true, false] {
        let guard = first.lock().unwrap();
        first.lock().unwrap().unlock().unwrap(); // nested: the same acquisition
        assert_eq!(recorded.value("distlock_held", ""), 1.0);
        if is_awaited {
            guard.unlock().unwrap();
        } else {
            drop(guard); // its reply is read by the next request
        }
    }
    let held = other.mutex("busy").unwrap().lock().unwrap();
    assert!(busy.try_lock().unwrap().is_none());
    drop(held);
    let lost = first.lock().unwrap();
    delete("first");
    assert!(lost.unlock().unwrap_err().is_lost());
    for (name, value) in [
        ("distlock_acquired_total", 3.0),
        ("distlock_busy_total", 1.0),
        ("distlock_lost_total", 1.0),
        ("distlock_handed_off_total", 0.0),
        ("distlock_unavailable_total", 0.0),
        ("distlock_unknown_outcomes_total", 0.0),
    ] {
        assert_eq!(recorded.value(name, ""), value, "{name}");
    }
    assert_eq!(
        recorded.value("distlock_events_total", "event=contended"),
        1.0
    );
    assert_eq!(recorded.samples("distlock_wait_seconds", "").len(), 3);
    assert_eq!(
        recorded.samples("distlock_hold_seconds", "").len(),
        2,
        "the lost one is not held"
    );
    let requests = |request| recorded.samples("distlock_request_seconds", request).len();
    assert_eq!(
        (requests("request=acquire"), requests("request=release")),
        (4, 3)
    );
    must_be_idle(&recorded);
}

#[test]
fn known_work_in_memory_has_exact_metrics() {
    let make = || distlock::connect("memory://metrics-of-known-work").unwrap();
    let other = make();
    known_work(make, &other, |name| {
        assert!(other.mutex(name).unwrap().force_unlock().unwrap());
    });
}

#[test]
fn known_work_on_redis_has_exact_metrics() {
    let server = RedisServer::start();
    let delete = |name: &str| {
        server.probe().command(&["DEL", name]);
    };
    known_work(
        || client(&server, "tracking=off"),
        &client(&server, ""),
        delete,
    );
}

#[test]
fn gauge_of_held_returns_to_zero_after_panic_and_loss() {
    let (recorded, client) = Recorded::of(|| distlock::connect("memory://").unwrap());
    let lock = client.mutex("a").unwrap();
    let panicked = thread::scope(|scope| {
        let holder = scope.spawn(|| {
            let _guard = lock.lock().unwrap();
            assert_eq!(recorded.value("distlock_held", ""), 1.0);
            panic!("on purpose");
        });
        holder.join().is_err()
    });
    assert!(panicked);
    must_be_idle(&recorded);
    assert_eq!(recorded.samples("distlock_hold_seconds", "").len(), 1);
    let brief = client.mutex("b").unwrap();
    let guard = brief.lock_with(&LockOptions::new().lease(Duration::from_millis(50)));
    let guard = guard.unwrap();
    eventually("the lease is over", LONG, || !guard.is_valid());
    eventually("the loss is counted", LONG, || {
        recorded.value("distlock_lost_total", "") == 1.0
    });
    must_be_idle(&recorded);
    drop(guard);
    must_be_idle(&recorded);
    assert_eq!(recorded.value("distlock_lost_total", ""), 1.0);
}

#[test]
fn waiting_thread_is_in_gauge_and_histogram() {
    const PASSES: Duration = Duration::from_millis(200);
    let make = || distlock::connect("memory://metrics-of-a-wait").unwrap();
    let other = make();
    let (recorded, client) = Recorded::of(make);
    let guard = other.mutex("a").unwrap().lock().unwrap();
    let watch = Stopwatch::start();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| drop(client.mutex("a").unwrap().lock().unwrap()));
        eventually("a thread waits", LONG, || {
            recorded.value("distlock_waiting", "") == 1.0
        });
        let began_before = watch.elapsed();
        let_pass(PASSES);
        guard.unlock().unwrap();
        waiter.join().unwrap();
        let waited = recorded.samples("distlock_wait_seconds", "");
        assert_eq!(waited.len(), 1);
        let bounds = (watch.elapsed() - began_before).min(PASSES)..watch.elapsed();
        assert!(
            bounds.contains(&Duration::from_secs_f64(waited[0])),
            "{waited:?}: {bounds:?}"
        );
    });
    must_be_idle(&recorded);
}

#[test]
fn handoff_between_threads_is_counted() {
    let url = "memory://metrics-of-a-handoff?hand_off=1s";
    let (recorded, client) = Recorded::of(|| distlock::connect(url).unwrap());
    let lock = client.mutex("a").unwrap();
    // The store reserves tokens for hand-offs only if a thread waits when it grants.
    thread::scope(|scope| {
        let other = distlock::connect(url).unwrap();
        let before = other.mutex("a").unwrap().lock().unwrap();
        let waiters: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    let guard = lock.lock().unwrap();
                    guard.unlock().unwrap();
                })
            })
            .collect();
        eventually("all wait", LONG, || {
            recorded.value("distlock_waiting", "") == 3.0
        });
        before.unlock().unwrap();
        waiters
            .into_iter()
            .for_each(|waiter| waiter.join().unwrap());
    });
    assert_eq!(recorded.value("distlock_acquired_total", ""), 3.0);
    assert_eq!(recorded.samples("distlock_hold_seconds", "").len(), 3);
    let handed_off = recorded.value("distlock_handed_off_total", "");
    let acquires = recorded
        .samples("distlock_request_seconds", "request=release")
        .len();
    assert!(handed_off >= 1.0, "{handed_off}");
    assert_eq!(
        handed_off + acquires as f64,
        3.0,
        "each release is one of the two"
    );
    must_be_idle(&recorded);
}

#[test]
fn full_event_queue_loses_no_count() {
    const CYCLES: usize = 3_000;
    let (go, gate) = mpsc::channel::<()>();
    let gate = parking_lot::Mutex::new(gate);
    let handler = move |_: &Event| {
        let _opened_or_gone = gate.lock().recv();
    };
    let (recorded, client) = Recorded::of(|| {
        let builder = distlock::builder().url("memory://").unwrap();
        builder.events(Arc::new(handler)).connect().unwrap()
    });
    let lock = client.mutex("a").unwrap();
    for _ in 0..CYCLES {
        lock.lock().unwrap().unlock().unwrap(); // two events, of which the queue holds 4,096
    }
    assert_eq!(recorded.value("distlock_acquired_total", ""), CYCLES as f64);
    assert_eq!(recorded.samples("distlock_hold_seconds", "").len(), CYCLES);
    drop(go);
}

#[test]
fn lost_replies_and_outages_are_counted() {
    let server = RedisServer::start();
    client(&server, "")
        .mutex("a")
        .unwrap()
        .lock()
        .unwrap()
        .unlock()
        .unwrap();
    for (kind, label) in [
        (Kind::Acquire, "request=acquire"),
        (Kind::Release, "request=release"),
    ] {
        let plan = Sometimes::new(Some(kind), Turn::Only(1), Fault::CutReply);
        let proxy = Proxy::new(server.port(), Arc::new(plan));
        let url = format!("{}?command_timeout=5s", proxy.url());
        let (recorded, client) = Recorded::of(|| distlock::connect(&url).unwrap());
        client.mutex("a").unwrap().lock().unwrap().unlock().unwrap();
        assert_eq!(proxy.count(kind, Fault::CutReply), 1);
        assert_eq!(
            recorded.value("distlock_unknown_outcomes_total", label),
            1.0
        );
        assert_eq!(recorded.value("distlock_unknown_outcomes_total", ""), 1.0);
        assert_eq!(recorded.value("distlock_acquired_total", ""), 1.0);
        let unconfirmed = recorded.value("distlock_events_total", "event=release_unconfirmed");
        assert_eq!(unconfirmed, if kind == Kind::Release { 1.0 } else { 0.0 });
        must_be_idle(&recorded);
    }
}

#[test]
fn outage_counts_failed_renewals_and_refused_calls() {
    let mut server = RedisServer::start();
    let settings = "watchdog=2s&outage_limit=100ms";
    let (recorded, client) = Recorded::of(|| client(&server, settings));
    let guard = client.mutex("a").unwrap().lock().unwrap();
    let renewals = |result| recorded.value("distlock_renewals_total", result);
    eventually("a renewal", LONG, || renewals("result=ok") >= 1.0);
    server.kill();
    eventually("failed renewals", LONG, || renewals("result=failed") >= 3.0);
    assert!(
        client
            .mutex("b")
            .unwrap()
            .lock()
            .unwrap_err()
            .is_unavailable()
    );
    assert_eq!(recorded.value("distlock_unavailable_total", ""), 1.0);
    eventually("the loss", LONG, || {
        recorded.value("distlock_lost_total", "") == 1.0
    });
    must_be_idle(&recorded);
    drop(guard);
}

/// A wrong password, a key with other data, and misuse by the program.
#[test]
fn refused_calls_are_counted_by_kind_and_reported_once() {
    let server = RedisServer::start();
    let warnings = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&warnings);
    let handler = move |event: &Event| {
        if let Event::Warning {
            kind: WarningKind::Refused,
            message,
            ..
        } = event
        {
            assert!(
                message.contains("password") && !message.contains("s3cret"),
                "{message}"
            );
            counted.fetch_add(1, Ordering::SeqCst);
        }
    };
    let url = format!("redis://locker:s3cret@127.0.0.1:{}", server.port());
    let (recorded, wrong) = Recorded::of(|| {
        let builder = distlock::builder().url(&url).unwrap();
        builder.events(Arc::new(handler)).connect().unwrap()
    });
    for name in ["a", "b", "c"] {
        let error = wrong.mutex(name).unwrap().try_lock().unwrap_err();
        assert!(error.is_configuration(), "{error}");
    }
    assert_eq!(
        recorded.value("distlock_refused_total", "kind=configuration"),
        3.0
    );
    eventually("it is reported", LONG, || {
        warnings.load(Ordering::SeqCst) == 1
    });
    server.probe().command(&["SADD", "set", "x"]);
    let (recorded, client) = Recorded::of(|| distlock::connect(&server.url()).unwrap());
    client.mutex("set").unwrap().try_lock().unwrap_err();
    assert_eq!(
        recorded.value("distlock_refused_total", "kind=foreign_format"),
        1.0
    );
    let nested = client.mutex("nested").unwrap();
    let options = LockOptions::new().not_nested();
    let _held = nested.lock_with(&options).unwrap();
    nested.lock_with(&options).unwrap_err();
    assert_eq!(recorded.value("distlock_refused_total", "kind=misuse"), 1.0);
    assert_eq!(recorded.value("distlock_unavailable_total", ""), 0.0);
}

/// Without the colon before it, a password is taken for the user's name. Still no message shows it.
#[test]
fn password_in_the_place_of_a_user_is_not_shown() {
    let server = RedisServer::start();
    let url = format!("redis://s3cret@127.0.0.1:{}", server.port());
    let client = distlock::connect(&url).unwrap();
    let error = client.mutex("a").unwrap().try_lock().unwrap_err();
    let all = format!("{error} {error:?} {client:?}");
    assert!(
        error.is_configuration() && error.to_string().contains("redis://:"),
        "{error}"
    );
    assert!(!all.contains("s3cret"), "{all}");
}

#[test]
fn open_connections_are_those_that_the_server_has() {
    let server = RedisServer::start();
    let proxy = Proxy::plain(server.port());
    let (recorded, client) = Recorded::of(|| distlock::connect(&proxy.url()).unwrap());
    let lock = client.mutex("a").unwrap();
    let open = || recorded.value("distlock_connections", "");
    let opened = || recorded.value("distlock_connections_opened_total", "");
    assert_eq!((open(), opened()), (0.0, 0.0));
    lock.lock().unwrap().unlock().unwrap();
    let mut probe = server.probe();
    let mut on_server = || {
        let clients = probe.clients();
        clients
            .iter()
            .filter(|client| client.contains("name=distlock"))
            .count() as f64
    };
    eventually("as many as on the server", LONG, || {
        open() == on_server() && open() >= 1.0
    });
    let before = opened();
    proxy.cut_all();
    lock.lock().unwrap().unlock().unwrap();
    assert!(opened() > before, "it connected again");
    eventually("as many as on the server", LONG, || {
        open() == on_server() && open() >= 1.0
    });
    drop((lock, client));
    eventually("none", LONG, || open() == 0.0);
}

#[test]
fn no_label_has_a_lock_name_by_default() {
    let server = RedisServer::start();
    let (recorded, client) = Recorded::of(|| client(&server, "format=token"));
    let lock = client.mutex("pl4nted-name").unwrap();
    lock.lock().unwrap().unlock().unwrap();
    let series = recorded.all();
    assert!(series.len() > 20, "{series:#?}");
    for series in series {
        assert!(!format!("{series:?}").contains("pl4nted"), "{series:?}");
        assert_eq!(series.labels["backend"], "redis");
        assert_eq!(series.labels["format"], "token");
    }
}

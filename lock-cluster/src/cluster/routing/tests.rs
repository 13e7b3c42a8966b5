//! What needs no cluster.

use super::*;
use lock_core::backend::{Backend, Receipt, RenewalRequest, Wake};
use lock_core::{ClientId, LeaseTime, OwnerId, SystemClock};
use std::io::{Read, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

fn open(url: &str) -> Result<ClusterBackend, Error> {
    let context = Context::new(Arc::new(SystemClock), ClientId::random());
    let config = Config::from_url(url).unwrap();
    ClusterMap::store(&config, &context, Format::of(&config)?)
}

#[test]
fn invalid_cluster_url_is_refused() {
    for (url, says) in [
        ("redis+cluster://", "10.0.0.1:7000"),
        ("redis+cluster://a/1", "no database but 0"),
        ("redis+cluster://a?channels=x", "`channels=x`"),
        ("redis+cluster://a?address_map=x", "`address_map`"),
        (
            "redis+cluster://a?channels=sharded&prefix=r:&format=token,wakes=spring-integration",
            "`channels=sharded`: whom `wakes=`",
        ),
    ] {
        let error = open(url).unwrap_err();
        assert!(
            error.is_configuration() && error.to_string().contains(says),
            "{error:?}"
        );
    }
    open("redis+cluster://a,[::1]:7000/0").unwrap();
}

#[test]
fn cluster_has_slots_whatever_the_scheme_of_its_url() {
    for url in ["redis+cluster://a", "redis://a"] {
        let format = format!("{:?}", open(url).unwrap().topology().format());
        assert!(format.contains("has_slots: true"), "{url}: {format}");
    }
}

/// Told only of the time that was under way, it would sleep until its deadline.
#[test]
fn refresh_requested_during_a_refresh_waits_for_the_next() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let backend = open(&format!(
        "redis+cluster://127.0.0.1:{port}?connect_timeout=300ms"
    ));
    let backend = backend.unwrap();
    let shared = backend.topology();
    let ask = || {
        let began = shared.clock().now();
        let outcome = shared.refreshed(began + Duration::from_secs(60));
        (outcome, shared.clock().now().since(began))
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(ask);
        silent.set_nonblocking(true).unwrap();
        let _asked = loop {
            if let Ok(asked) = silent.accept() {
                break asked;
            }
            assert!(!first.is_finished(), "it was not asked: {:?}", first.join());
            std::thread::yield_now();
        };
        let (outcome, took) = ask();
        outcome.unwrap_err();
        assert!(took < Duration::from_secs(30), "{took:?}");
        first.join().unwrap().0.unwrap_err();
    });
}

/// What is still under way then, as a release that is sent on, would wait until its deadline for a
/// thread that has ended.
#[test]
fn refresh_ends_when_the_last_handle_is_dropped() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let backend = open(&format!(
        "redis+cluster://127.0.0.1:{port}?connect_timeout=300ms"
    ));
    let backend = backend.unwrap();
    let shared = Arc::clone(backend.topology());
    let asks = || {
        let began = shared.clock().now();
        let _trouble = shared.refreshed(began + Duration::from_secs(60));
        let took = shared.clock().now().since(began);
        assert!(took < Duration::from_secs(30), "{took:?}");
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(asks);
        let _asked = silent.accept().unwrap();
        let next = scope.spawn(asks);
        // For the next time it waits by now; and should it not, it sees that there will be none.
        let soon = shared.clock().now() + Duration::from_millis(50);
        shared.clock().wait(&Arc::default(), soon);
        drop(backend);
        first.join().unwrap();
        next.join().unwrap();
        asks();
    });
}

/// With thousands that wait, each that comes would cost all of them a look, under a lock that every
/// release needs.
#[test]
fn new_watch_wakes_no_other_waiter() {
    #[derive(Default)]
    struct Calls(AtomicU32);
    impl Wake for Calls {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let node = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::new("127.0.0.1", node.local_addr().unwrap().port());
    let backend = open(&format!("redis+cluster://{address}?tracking=off")).unwrap();
    let shared = backend.topology();
    let names = ["other", "mine"].map(|name| LockName::new(name).unwrap());
    for name in &names {
        shared.place(shared.slot(name), &address);
    }
    let calls = Arc::<Calls>::default();
    // One that is about to be subscribed: who looks at it would do that, and wake it.
    let _waits = shared.watches.register(&names[0], Arc::clone(&calls) as _);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = node.accept().unwrap();
            let channel = "$29\r\nredisson_lock__channel:{mine}";
            let subscribed = format!(":0\r\n*3\r\n$9\r\nsubscribe\r\n{channel}\r\n:1\r\n");
            // It says which node it is, and may not say more.
            let greeting = format!("+OK\r\n$40\r\n{}\r\n-NOPERM no\r\n", "a".repeat(40));
            for answer in [greeting, subscribed] {
                assert!(stream.read(&mut [0; 4096]).unwrap() > 0);
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let by = shared.clock().now() + Duration::from_secs(60);
        drop(
            backend
                .watch(&names[1], Arc::<Calls>::default(), by)
                .unwrap(),
        );
    });
    assert_eq!(calls.0.load(Ordering::SeqCst), 0);
}

#[test]
fn new_backend_connects_nowhere_and_shows_no_secret() {
    let backend = open("redis+cluster://me:s3cret@192.0.2.1:7000").unwrap();
    let shown = format!("{backend:?}");
    assert!(!shown.contains("s3cret"), "{shown}");
}

/// Otherwise it would be asked for only when it is time again, and the lock may not live
/// until then.
#[test]
fn renewal_for_a_slot_without_node_requests_a_refresh() {
    let backend = open("redis+cluster://192.0.2.1:7000").unwrap();
    let shared = backend.topology();
    assert!(!shared.is_asked_for());
    let (name, lease) = (
        LockName::new("a").unwrap(),
        LeaseTime::new(Duration::from_secs(9)).unwrap(),
    );
    let owner = OwnerId::new(ClientId::random(), 1);
    let acquisition = AcquisitionId::new(name.clone(), owner, lease, Receipt::default());
    let by = shared.clock().now() + Duration::from_secs(9);
    let renewal = backend
        .renew(
            backend.renewal_node(&name),
            &[RenewalRequest::new(acquisition)],
            by,
        )
        .remove(0);
    assert!(matches!(renewal, Err(Failure::NotSent(_))), "{renewal:?}");
    assert!(shared.is_asked_for());
}

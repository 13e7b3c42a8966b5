//! Tests without a cluster.

use super::*;
use lock_core::backend::{Backend, Receipt, RenewalRequest, Wake};
use lock_core::{ClientId, LeaseTime, OwnerId, SystemClock};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
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

/// A thread that was woken only at the end of the refresh under way would not wait for the right
/// refresh, and would then sleep until its deadline.
#[test]
fn refresh_requested_during_a_refresh_waits_for_the_next() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
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

/// A request that still waits when the last handle is dropped, such as a release that is rerouted,
/// must not wait until its deadline for a thread that has ended.
#[test]
fn refresh_ends_when_the_last_handle_is_dropped() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
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
        // By now the second thread probably waits for the next refresh. If not, it finds the map
        // closed.
        let soon = shared.clock().now() + Duration::from_millis(50);
        shared.clock().wait(&Arc::default(), soon);
        drop(backend);
        first.join().unwrap();
        next.join().unwrap();
        asks();
    });
}

/// A pass over thousands of waiters for each new watch would take too long, while it locks a mutex
/// that every release needs.
#[test]
fn new_watch_wakes_no_other_waiter() {
    #[derive(Default)]
    struct Calls(AtomicU32);
    impl Wake for Calls {
        fn wake(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let node = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = Address::new("127.0.0.1", node.local_addr().unwrap().port());
    let backend = open(&format!("redis+cluster://{address}?tracking=off")).unwrap();
    let shared = backend.topology();
    let names = ["other", "mine"].map(|name| LockName::new(name).unwrap());
    for name in &names {
        shared.place(shared.slot(name), &address);
    }
    let calls = Arc::<Calls>::default();
    // A waiter whose watch is not subscribed yet: a pass over all watches would subscribe and wake
    // it.
    let _waits = shared
        .watches
        .register(&names[0], Arc::clone(&calls) as _, |_, _| true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = node.accept().unwrap();
            let mut request = [0; 4096];
            assert!(stream.read(&mut request).unwrap() > 0);
            // The node replies with its ID, and refuses the other request.
            let greeting = format!("+OK\r\n$40\r\n{}\r\n-NOPERM no\r\n", "a".repeat(40));
            stream.write_all(greeting.as_bytes()).unwrap();
            // The only argument of SUBSCRIBE is the channel, with its length.
            let count = stream.read(&mut request).unwrap();
            let text = String::from_utf8_lossy(&request[..count]);
            let channel = &text[text.rfind('$').unwrap()..];
            let subscribed = format!(":0\r\n*3\r\n$9\r\nsubscribe\r\n{channel}:1\r\n");
            stream.write_all(subscribed.as_bytes()).unwrap();
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

/// Without the request, the next refresh might come only after the end of the lease.
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

/// A node that redirects the first request about a lock to an unknown node, refuses the next, and
/// hangs up on the first queries for the slot map.
struct RedirectingNode {
    port: u16,
    /// The number of requests about a lock so far.
    requests: AtomicU32,
    /// The number of further queries for the slot map that are not answered.
    unanswered: AtomicU32,
}

impl RedirectingNode {
    fn start(unanswered: u32) -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let node = Arc::new(Self {
            port: listener.local_addr().unwrap().port(),
            requests: AtomicU32::new(0),
            unanswered: AtomicU32::new(unanswered),
        });
        let serves = Arc::clone(&node);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let node = Arc::clone(&serves);
                std::thread::spawn(move || node.serve(&stream.unwrap()));
            }
        });
        node
    }

    /// Returns a store that knows this node as the owner of the slot of `name`.
    fn store(&self, name: &LockName) -> ClusterBackend {
        let address = Address::new("127.0.0.1", self.port);
        let store = open(&format!("redis+cluster://{address}?tracking=off")).unwrap();
        store
            .topology()
            .place(store.topology().slot(name), &address);
        store
    }

    fn serve(&self, stream: &TcpStream) -> Option<()> {
        let mut lines = BufReader::new(stream);
        let number = |lines: &mut BufReader<_>| {
            let mut line = String::new();
            lines.read_line(&mut line).ok()?;
            line.trim().get(1..)?.parse::<usize>().ok()
        };
        loop {
            let mut words = Vec::new();
            for _ in 0..number(&mut lines)? {
                let mut word = vec![0; number(&mut lines)? + 2];
                lines.read_exact(&mut word).ok()?;
                words.push(String::from_utf8(word).ok()?.trim_end().to_owned());
            }
            let reply = self.reply(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
            (&*stream).write_all(reply.as_bytes()).ok()?;
        }
    }

    fn reply(&self, words: &[&str]) -> Option<String> {
        let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
        let id = "a".repeat(40);
        Some(match words {
            ["CLIENT", ..] => "+OK\r\n".to_owned(),
            ["INFO", ..] => bulk("role:master\r\n"),
            ["CLUSTER", "MYID"] => bulk(&id),
            ["CLUSTER", "INFO"] => {
                let less = |left: u32| left.checked_sub(1);
                let (success, failure) = (Ordering::SeqCst, Ordering::SeqCst);
                if self.unanswered.fetch_update(success, failure, less).is_ok() {
                    return None;
                }
                bulk("cluster_state:ok\r\ncluster_current_epoch:1\r\n")
            }
            ["CLUSTER", "SHARDS"] => {
                let port = format!(":{}\r\n", self.port);
                let texts = [
                    ("id", bulk(&id)),
                    ("port", port),
                    ("ip", bulk("127.0.0.1")),
                    ("endpoint", bulk("127.0.0.1")),
                    ("role", bulk("master")),
                    ("replication-offset", ":0\r\n".to_owned()),
                    ("health", bulk("online")),
                ];
                let node: String = texts.map(|(name, value)| bulk(name) + &value).concat();
                let slots = bulk("slots") + "*2\r\n:0\r\n:16383\r\n";
                format!("*1\r\n*4\r\n{slots}{}*1\r\n*14\r\n{node}", bulk("nodes"))
            }
            ["EVALSHA", _, _, "a", ..] if self.requests.fetch_add(1, Ordering::SeqCst) == 0 => {
                "-MOVED 1 127.0.0.1:1\r\n".to_owned()
            }
            _ => "-ERR no\r\n".to_owned(),
        })
    }

    fn requests(&self) -> u32 {
        self.requests.load(Ordering::SeqCst)
    }
}

/// Nothing about the lock was sent to another node: a query for the slot map is not about the lock.
#[test]
fn request_whose_next_node_is_not_found_is_not_sent() {
    let (node, name) = (
        RedirectingNode::start(u32::MAX),
        LockName::new("a").unwrap(),
    );
    let store = node.store(&name);
    let by = store.topology().clock().now() + Duration::from_secs(10);
    let freed = store.admin().unwrap().force_release(&name, by);
    assert!(matches!(freed, Err(Failure::NotSent(_))), "{freed:?}");
    assert_eq!(node.requests(), 1);
}

#[test]
fn read_is_repeated_once_if_finding_its_node_has_failed() {
    let (node, name) = (RedirectingNode::start(1), LockName::new("a").unwrap());
    let store = node.store(&name);
    let by = store.topology().clock().now() + Duration::from_secs(10);
    let info = store.inspect(&name, by);
    assert!(matches!(info, Err(Failure::Refused(_))), "{info:?}");
    assert_eq!(node.requests(), 2);
}

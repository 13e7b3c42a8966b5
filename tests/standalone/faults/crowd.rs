//! One among many: what befalls one lock delays the renewal of no other.

use distlock::{Client, DistLock, Event, GuardState, LockGuard, LockOptions, LossCause};
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy};
use distlock_tests::resp::{Kind, Request};
use distlock_tests::time::{Stopwatch, eventually, let_pass, retry_if_late, scaled};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const LOCKS: usize = 500;
const LONG: Duration = Duration::from_secs(10);
/// For how many leases they are held.
const LEASES: u32 = 4;

/// What the events and the server say of the locks that nothing was done to.
#[derive(Default)]
struct Record {
    /// Renewals, by the tenths of the lease that were left when they were sent.
    sent: Mutex<[u64; 11]>,
    lost: Mutex<BTreeSet<String>>,
    failed: AtomicU64,
}

/// Many locks of one client, held with a short lease.
struct Crowd {
    probe: Probe,
    client: Client,
    guards: Vec<LockGuard>,
    lease: Duration,
    record: Arc<Record>,
}

fn name(number: usize) -> String {
    format!("crowd:{number}")
}

impl Crowd {
    /// `url` leads to the server, perhaps through a proxy. A command may take a fifth of the lease.
    fn hold(server: &RedisServer, url: &str) -> Self {
        let lease = scaled(Duration::from_secs(3));
        let record = Arc::new(Record::default());
        let told = Arc::clone(&record);
        let handler = move |event: &Event| match event {
            Event::Renewed { lock, left, .. } if lock.as_str().starts_with("crowd:") => {
                let tenths = left.as_millis() * 10 / lease.as_millis();
                told.sent.lock()[usize::try_from(tenths).unwrap().min(10)] += 1;
            }
            Event::Lost { lock, .. } => {
                told.lost.lock().insert(lock.to_string());
            }
            Event::RenewalFailed { .. } => {
                told.failed.fetch_add(1, Ordering::SeqCst);
            }
            Event::Missed { count, .. } => panic!("the histogram misses {count} events"),
            _ => {}
        };
        let client = distlock::builder()
            .url(url)
            .unwrap()
            .configure(|config| config.with_watchdog(lease).with_command_timeout(lease / 5))
            .events(Arc::new(handler))
            .connect()
            .unwrap();
        let take = |number| client.mutex(name(number)).unwrap().lock().unwrap();
        let guards = (0..LOCKS).map(take).collect();
        Self { probe: server.probe(), client, guards, lease, record }
    }

    /// Lets some leases pass, and returns the least that the server had left of any lock but those of `apart`.
    fn least(&mut self, apart: &[usize]) -> Duration {
        let script = "local least = 2 ^ 52 \
            for _, key in ipairs(ARGV) do least = math.min(least, redis.call('PTTL', key)) end return least";
        let others: Vec<_> = (0..LOCKS).filter(|at| !apart.contains(at)).map(name).collect();
        let mut words = vec!["EVAL", script, "0"];
        words.extend(others.iter().map(String::as_str));
        let (mut least, watch) = (i64::MAX, Stopwatch::start());
        while watch.elapsed() < self.lease * LEASES {
            let_pass(self.lease / 40);
            least = least.min(self.probe.command(&words).int());
        }
        Duration::from_millis(u64::try_from(least).expect("one has ended"))
    }

    /// Prints what came of it: all but those of `apart` are held, and were renewed with at least `tenths` of the lease left.
    #[track_caller]
    fn conclude(self, what: &str, apart: &[usize], least: Duration, tenths: usize) {
        let Self { guards, lease, record, .. } = self;
        println!("{what}: {} locks for {LEASES} leases of {lease:?}", LOCKS - apart.len());
        let sent = *record.sent.lock();
        for (tenth, count) in sent.iter().enumerate().filter(|(_, count)| **count > 0) {
            println!(
                "  renewed with {}-{} % of the lease left: {count}",
                tenth * 10,
                tenth * 10 + 10
            );
        }
        println!("  least that the server had left of one: {least:.1?}");
        for (at, guard) in guards.iter().enumerate().filter(|(at, _)| !apart.contains(at)) {
            assert_eq!(guard.state(), GuardState::Held, "{at}: {:?}", guard.loss());
        }
        assert_eq!(*record.lost.lock(), apart.iter().map(|&at| name(at)).collect());
        let renewed: u64 = sent.iter().sum();
        let due = u64::from(LEASES * 3 - 2) * (LOCKS - apart.len()) as u64;
        assert!(renewed >= due, "{renewed} of at least {due} renewals");
        assert_eq!(sent[..tenths].iter().sum::<u64>(), 0, "late ones: {sent:?}");
        assert!(least * 10 >= lease * u32::try_from(tenths - 1).unwrap(), "{least:?}");
    }

    /// Each of them is told its loss by the next renewal, no later.
    #[track_caller]
    fn told(&self, broken: &[usize], since: &Stopwatch) {
        for &at in broken {
            let left = (self.lease / 3 + self.lease / 5).saturating_sub(since.elapsed());
            let loss = self.guards[at].losses().recv_timeout(left).expect("it is told in time");
            assert_eq!(loss.cause(), LossCause::Gone);
        }
    }
}

#[test]
fn one_key_of_another_type_among_500_delays_no_renewal() {
    retry_if_late(|| {
        let server = RedisServer::start();
        let mut crowd = Crowd::hold(&server, &server.url());
        let broken = [LOCKS / 2];
        let since = Stopwatch::start();
        crowd.probe.command(&["SET", &name(broken[0]), "text"]);
        crowd.told(&broken, &since);
        let least = crowd.least(&broken);
        assert_eq!(crowd.record.failed.load(Ordering::SeqCst), 0);
        crowd.conclude("one key of another type", &broken, least, 5);
    });
}

#[test]
fn ten_keys_that_are_broken_in_all_ways_among_500_delay_no_renewal() {
    retry_if_late(|| {
        let server = RedisServer::start();
        let mut crowd = Crowd::hold(&server, &server.url());
        // In every batch, and first and last.
        let broken = [0, 1, 99, 100, 150, 199, 250, 301, 402, LOCKS - 1];
        let since = Stopwatch::start();
        for (turn, at) in broken.iter().enumerate() {
            let key = &name(*at);
            crowd.probe.command(&["DEL", key]);
            match turn % 5 {
                0 => crowd.probe.command(&["SET", key, "text"]),
                1 => crowd.probe.command(&["RPUSH", key, "a"]),
                2 => crowd.probe.command(&["HSET", key, "stranger:1", "1"]),
                3 => crowd.probe.command(&["XADD", key, "*", "a", "b"]),
                _ => crowd.probe.command(&["DEL", key]),
            };
        }
        crowd.told(&broken, &since);
        let least = crowd.least(&broken);
        assert_eq!(crowd.record.failed.load(Ordering::SeqCst), 0);
        crowd.conclude("ten broken keys", &broken, least, 5);
    });
}

/// Takes the lock `doubt` and never says so, and never lets it be given back.
struct Doubt;

impl Plan for Doubt {
    fn fate(&self, request: &mut Request) -> Fault {
        match request.kind() {
            Kind::Acquire if request.has("doubt") => Fault::SwallowReply,
            Kind::Close if request.has("doubt") => Fault::SwallowRequest,
            _ => Fault::Pass,
        }
    }
}

#[test]
fn a_clean_up_that_gets_no_answer_delays_no_renewal() {
    retry_if_late(|| {
        let server = RedisServer::start();
        let proxy = Proxy::new(server.port(), Arc::new(Doubt));
        let mut crowd = Crowd::hold(&server, &proxy.url());
        assert!(crowd.client.mutex("doubt").unwrap().try_lock().unwrap_err().is_unavailable());
        let swallowed = || proxy.count(Kind::Close, Fault::SwallowRequest);
        eventually("a clean-up hangs", LONG, || swallowed() > 0);
        let least = crowd.least(&[]);
        println!("clean-ups without an answer: {}", swallowed());
        assert!(swallowed() > 1, "it is tried on");
        assert_eq!(crowd.record.failed.load(Ordering::SeqCst), 0);
        crowd.conclude("a clean-up without an answer", &[], least, 5);
    });
}

/// Swallows the answer to one renewal: of those that renew this lock, the one whose turn it is.
struct OneSlowRenewal {
    of: &'static str,
    turn: u64,
    seen: AtomicU64,
}

impl Plan for OneSlowRenewal {
    fn fate(&self, request: &mut Request) -> Fault {
        let is_it = request.kind() == Kind::Renew && request.has(self.of);
        if is_it && self.seen.fetch_add(1, Ordering::SeqCst) + 1 == self.turn {
            return Fault::SwallowReply;
        }
        Fault::Pass
    }
}

#[test]
fn one_renewal_without_an_answer_among_500_delays_only_those_that_are_in_the_same_request() {
    retry_if_late(|| {
        let server = RedisServer::start();
        let plan = OneSlowRenewal { of: "crowd:0", turn: 2, seen: AtomicU64::new(0) };
        let proxy = Proxy::new(server.port(), Arc::new(plan));
        let mut crowd = Crowd::hold(&server, &proxy.url());
        let least = crowd.least(&[]);
        assert_eq!(proxy.count(Kind::Renew, Fault::SwallowReply), 1);
        let failed = crowd.record.failed.load(Ordering::SeqCst);
        let sent = *crowd.record.sent.lock();
        println!("renewals without an answer, all in one request: {failed}");
        assert!((1..=100).contains(&failed));
        // Those are sent again when the request is given up, each once, and after that they are as early as all others.
        assert_eq!(sent[..6].iter().sum::<u64>(), failed, "late ones: {sent:?}");
        // Two thirds of the lease, less the fifth that a command may take, less the retry.
        crowd.conclude("one renewal without an answer", &[], least, 4);
    });
}

#[test]
fn a_renewal_of_a_long_lease_that_gets_no_answer_costs_no_short_one() {
    retry_if_late(|| {
        let server = RedisServer::start();
        let plan = OneSlowRenewal { of: "long", turn: 1, seen: AtomicU64::new(0) };
        let proxy = Proxy::new(server.port(), Arc::new(plan));
        let client = distlock::connect(&proxy.url()).unwrap();
        let [short, long] = [1, 6].map(|seconds| scaled(Duration::from_secs(seconds)));
        let hold = |name, lease| {
            client.mutex(name).unwrap().lock_with(&LockOptions::new().watched(lease)).unwrap()
        };
        let (kept, slow) = (hold("short", short), hold("long", long));
        let swallowed = || proxy.count(Kind::Renew, Fault::SwallowReply);
        let (mut least, watch) = (short, Stopwatch::start());
        while watch.elapsed() < long {
            least = least.min(kept.remaining());
            let_pass(short / 200);
        }
        assert_eq!(swallowed(), 1);
        println!("the least that was left of {short:?} meanwhile: {least:.1?}");
        kept.unlock().unwrap();
        slow.unlock().unwrap();
    });
}

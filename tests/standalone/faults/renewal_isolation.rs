//! Many locks of one client: whatever happens to one of them, the renewals of all others are on
//! time.

use distlock::{Client, Event, GuardState, LockGuard, LockOptions, LossCause};
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy};
use distlock_tests::resp::{Kind, Request};
use distlock_tests::time::{Tolerance, eventually, scaled, with_tolerance};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const LOCKS: usize = 500;
const LONG: Duration = Duration::from_secs(60);

/// What the events have reported of the locks since the record was last cleared.
#[derive(Default)]
struct Record {
    /// For each lock, how often it was renewed, and the least time that it had left when a renewal
    /// was sent.
    renewed: BTreeMap<String, (u64, Duration)>,
    lost: BTreeSet<String>,
    failed: BTreeSet<String>,
    /// How many locks had been renewed when the first renewal failed.
    renewed_before_the_failure: usize,
}

/// Many locks of one client, held with a lease of a few seconds.
struct Crowd {
    probe: Probe,
    client: Client,
    guards: Vec<LockGuard>,
    lease: Duration,
    record: Arc<Mutex<Record>>,
}

fn name(number: usize) -> String {
    format!("crowd:{number}")
}

impl Crowd {
    /// Holds all locks, through `url`: the server's, or that of a proxy in front of it. A command
    /// may take as long as from one renewal to the next.
    fn hold(server: &RedisServer, url: &str) -> Self {
        let lease = scaled(Duration::from_secs(9));
        let record = Arc::<Mutex<Record>>::default();
        let told = Arc::clone(&record);
        let handler = move |event: &Event| match event {
            Event::Renewed { lock, left, .. } if lock.as_str().starts_with("crowd:") => {
                let mut told = told.lock();
                let (count, least) = told.renewed.entry(lock.to_string()).or_insert((0, lease));
                *count += 1;
                *least = (*least).min(*left);
            }
            Event::Lost { lock, .. } => {
                told.lock().lost.insert(lock.to_string());
            }
            Event::RenewalFailed { lock, .. } => {
                let mut told = told.lock();
                if told.failed.is_empty() {
                    told.renewed_before_the_failure = told.renewed.len();
                }
                told.failed.insert(lock.to_string());
            }
            Event::Missed { count, .. } => panic!("the record misses {count} events"),
            _ => {}
        };
        let client = distlock::builder()
            .url(url)
            .unwrap()
            .configure(|config| config.with_watchdog(lease).with_command_timeout(lease / 3))
            .events(Arc::new(handler))
            .connect()
            .unwrap();
        let take = |number| client.mutex(name(number)).unwrap().lock().unwrap();
        let guards = (0..LOCKS).map(take).collect();
        Self {
            probe: server.probe(),
            client,
            guards,
            lease,
            record,
        }
    }

    /// Waits until all locks except those of `apart` have been renewed twice since the record was
    /// cleared, or the client was made. Returns how late a renewal may have been on this machine.
    fn await_renewals(&self, apart: &[usize]) -> Tolerance {
        let others: Vec<_> = (0..LOCKS)
            .filter(|at| !apart.contains(at))
            .map(name)
            .collect();
        let ((), tolerance) = with_tolerance(|| {
            eventually("all others are renewed twice", LONG, || {
                let record = self.record.lock();
                let twice = |name| {
                    record
                        .renewed
                        .get(name)
                        .is_some_and(|(count, _)| *count >= 2)
                };
                others.iter().all(twice)
            });
        });
        tolerance
    }

    /// Checks that exactly the locks of `apart` were lost, that exactly the renewals of `failed`
    /// failed, and that all others were on time.
    #[track_caller]
    fn conclude(&self, apart: &[usize], failed: &BTreeSet<String>, tolerance: Tolerance) {
        let record = self.record.lock();
        assert_eq!(record.lost, apart.iter().map(|&at| name(at)).collect());
        assert_eq!(record.failed, *failed, "renewals that failed");
        for (at, guard) in self
            .guards
            .iter()
            .enumerate()
            .filter(|(at, _)| !apart.contains(at))
        {
            assert_eq!(guard.state(), GuardState::Held, "{at}: {:?}", guard.loss());
        }
        let on_time = record
            .renewed
            .iter()
            .filter(|(name, _)| !failed.contains(*name));
        let least = on_time
            .map(|(_, (_, least))| *least)
            .min()
            .expect("some were renewed");
        println!(
            "with a lease of {:?} at least {least:.1?} was left at a renewal",
            self.lease
        );
        // A renewal is due with two thirds of the lease left. A renewal that had to wait for a
        // command without an answer has a third left at most.
        let overdue = (self.lease * 2 / 3).saturating_sub(least);
        let what = format!("a renewal of another lock was sent with {least:?} left");
        tolerance.must_cover(overdue, self.lease / 4, &what);
    }

    /// Checks that renewals report the loss of each of these locks.
    #[track_caller]
    fn told(&self, broken: &[usize]) {
        for &at in broken {
            let loss = self.guards[at]
                .losses()
                .recv_timeout(LONG)
                .expect("it is told");
            assert_eq!(loss.cause(), LossCause::Gone);
        }
    }
}

#[test]
fn key_of_wrong_type_among_500_delays_no_renewal() {
    let server = RedisServer::start();
    let mut crowd = Crowd::hold(&server, &server.url());
    let broken = [LOCKS / 2];
    crowd.probe.command(&["SET", &name(broken[0]), "text"]);
    crowd.told(&broken);
    let tolerance = crowd.await_renewals(&broken);
    crowd.conclude(&broken, &BTreeSet::new(), tolerance);
}

#[test]
fn ten_broken_keys_among_500_delay_no_renewal() {
    let server = RedisServer::start();
    let mut crowd = Crowd::hold(&server, &server.url());
    // Locks of every batch, among them the first and the last one.
    let broken = [0, 1, 99, 100, 150, 199, 250, 301, 402, LOCKS - 1];
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
    crowd.told(&broken);
    let tolerance = crowd.await_renewals(&broken);
    crowd.conclude(&broken, &BTreeSet::new(), tolerance);
}

/// Swallows the answer to the acquire of the lock `doubt`, and the requests that would release it.
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
fn cleanup_without_an_answer_delays_no_renewal() {
    let server = RedisServer::start();
    let proxy = Proxy::new(server.port(), Arc::new(Doubt));
    let crowd = Crowd::hold(&server, &proxy.url());
    assert!(
        crowd
            .client
            .mutex("doubt")
            .unwrap()
            .try_lock()
            .unwrap_err()
            .is_unavailable()
    );
    let swallowed = || proxy.count(Kind::Close, Fault::SwallowRequest);
    eventually("a clean-up hangs", LONG, || swallowed() > 0);
    crowd.record.lock().renewed.clear();
    let tolerance = crowd.await_renewals(&[]);
    eventually("it is tried on", LONG, || swallowed() > 1);
    crowd.conclude(&[], &BTreeSet::new(), tolerance);
}

/// Swallows one answer: to the `turn`-th of the requests that renew the lock `of`.
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
fn unanswered_renewal_delays_only_its_own_batch() {
    let server = RedisServer::start();
    let plan = OneSlowRenewal {
        of: "crowd:0",
        turn: 1,
        seen: AtomicU64::new(0),
    };
    let proxy = Proxy::new(server.port(), Arc::new(plan));
    let crowd = Crowd::hold(&server, &proxy.url());
    let swallowed = || proxy.count(Kind::Renew, Fault::SwallowReply);
    eventually("a renewal gets no answer", LONG, || swallowed() == 1);
    let ((), tolerance) = with_tolerance(|| {
        eventually("it is given up", LONG, || {
            !crowd.record.lock().failed.is_empty()
        });
        crowd.await_renewals(&[]);
    });
    let record = crowd.record.lock();
    let (failed, meanwhile) = (record.failed.clone(), record.renewed_before_the_failure);
    drop(record);
    println!(
        "{} in one request without an answer, {meanwhile} renewed meanwhile",
        failed.len()
    );
    assert!(
        (1..=100).contains(&failed.len()) && failed.contains(&name(0)),
        "{failed:?}"
    );
    // On a machine that is not busy, all other locks are renewed meanwhile. If they had to wait,
    // none would be, because `crowd:0` is in the first request.
    assert!(meanwhile > 0, "no others were renewed while it hung");
    assert_eq!(swallowed(), 1);
    crowd.conclude(&[], &failed, tolerance);
}

#[test]
fn unanswered_renewal_of_long_lease_costs_no_short_lease() {
    let server = RedisServer::start();
    let plan = OneSlowRenewal {
        of: "long",
        turn: 1,
        seen: AtomicU64::new(0),
    };
    let proxy = Proxy::new(server.port(), Arc::new(plan));
    let renewed = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&renewed);
    let counts = move |event: &Event| {
        let is_it = matches!(event, Event::Renewed { lock, .. } if lock.as_str() == "short");
        count.fetch_add(u64::from(is_it), Ordering::SeqCst);
    };
    // The renewal hangs until the test is over.
    let client = distlock::builder()
        .url(&format!("{}?command_timeout=60s", proxy.url()))
        .unwrap()
        .events(Arc::new(counts))
        .connect()
        .unwrap();
    let hold = |name, seconds| {
        let watched = LockOptions::new().watched(scaled(Duration::from_secs(seconds)));
        client.mutex(name).unwrap().lock_with(&watched).unwrap()
    };
    let (kept, _slow) = (hold("short", 3), hold("long", 9));
    let swallowed = || proxy.count(Kind::Renew, Fault::SwallowReply);
    eventually("a renewal gets no answer", LONG, || swallowed() == 1);
    let before = renewed.load(Ordering::SeqCst);
    eventually("the short one is renewed", LONG, || {
        assert!(kept.is_valid(), "{:?}", kept.loss());
        renewed.load(Ordering::SeqCst) >= before + 3
    });
    kept.unlock().unwrap();
}

//! Many threads on one connection, with short deadlines: every answer reaches the call that it
//! belongs to, and no call hangs.

use distlock::Config;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy, Sometimes, Turn};
use distlock_tests::resp::{Kind, Request};
use distlock_tests::time::{Stopwatch, eventually, ms, with_tolerance};
use lock_core::backend::Failure;
use lock_core::{Backend, ClientId, Clock, Context, LockName, SystemClock};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const THREADS: usize = 24;
/// The time that an answer takes at most on a machine that is not late.
const ANSWER: Duration = Duration::from_secs(1);
/// The patience of calls that must get an answer.
const PATIENT: Duration = Duration::from_secs(60);

/// A plan with faults of different kinds at random, until `are_over` is set.
struct RandomFaults {
    turns: Vec<(Sometimes, Fault)>,
    are_over: AtomicBool,
}

impl RandomFaults {
    fn new(of_1000: u64) -> Self {
        let faults = vec![
            Fault::Cut,
            Fault::Delay(ms(30)),
            Fault::SwallowRequest,
            Fault::CutReply,
            Fault::DelayReply(ms(30)),
            Fault::SwallowReply,
            Fault::HalfReply,
            Fault::Garbage,
        ];
        let turns = (1..).zip(&faults).map(|(seed, fault)| {
            let turn = Turn::Chance { of_1000, seed };
            (Sometimes::new(Some(Kind::Other), turn, *fault), *fault)
        });
        Self {
            turns: turns.collect(),
            are_over: AtomicBool::new(false),
        }
    }
}

impl Plan for RandomFaults {
    fn fate(&self, request: &mut Request) -> Fault {
        if self.are_over.load(Ordering::SeqCst) {
            return Fault::Pass;
        }
        let struck = self.turns.iter().find(|(turn, _)| turn.strikes(request));
        struck.map_or(Fault::Pass, |(_, fault)| *fault)
    }
}

/// The number of calls by outcome.
type Tally = BTreeMap<&'static str, u64>;

/// Lets each thread query the holder of a random lock `calls` times. Each lock has another holder,
/// which shows an answer that belongs to another call. After `end`, a call must get its answer.
fn ask(
    url: &str,
    calls: usize,
    patience: impl Fn(&mut fastrand::Rng) -> Duration + Sync,
    end: impl FnOnce(),
) -> Tally {
    let config = Config::from_url(url).unwrap();
    let context = Context::new(Arc::new(SystemClock), ClientId::random());
    let backend = distlock::schemes().open(&config, &context).unwrap();
    let (backend, patience) = (&*backend, &patience);
    // The longest time by which a call exceeded its deadline, or the time of an answer, and the
    // outcome of that call.
    let worst = Mutex::new((Duration::ZERO, String::new()));
    let call = |random: &mut fastrand::Rng| {
        let wait = patience(random);
        let watch = Stopwatch::start();
        let outcome = one_call(backend, random, wait);
        let overdue = watch.elapsed().saturating_sub(wait.min(ANSWER));
        let mut worst = worst.lock();
        if overdue > worst.0 {
            *worst = (overdue, format!("{outcome} after {wait:?} and {overdue:?}"));
        }
        outcome
    };
    let (all, tolerance) = with_tolerance(|| {
        let all = Mutex::new(Tally::new());
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (call, all) = (&call, &all);
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(thread as u64);
                    for _ in 0..calls {
                        let outcome = call(&mut random);
                        *all.lock().entry(outcome).or_default() += 1;
                    }
                });
            }
        });
        all.into_inner()
    });
    let (overdue, what) = worst.into_inner();
    println!("at most {overdue:?} late, where {tolerance:?} are tolerated");
    tolerance.must_cover(overdue, ms(4_000), &what);
    end();
    let mut random = fastrand::Rng::with_seed(0);
    eventually("a call is answered", PATIENT, || {
        one_call(backend, &mut random, ANSWER) == "answered"
    });
    all
}

fn one_call(backend: &dyn Backend, random: &mut fastrand::Rng, wait: Duration) -> &'static str {
    let key = random.u32(0..1000);
    let name = LockName::new(&format!("held:{key}")).unwrap();
    let outcome = backend.inspect(&name, SystemClock.now() + wait);
    assert!(wait < PATIENT || outcome.is_ok(), "{outcome:?}");
    match outcome {
        Ok(info) => {
            let holder = info.holder.expect("every lock is held").owner;
            assert_eq!(holder.as_str(), owner_of(key), "another call's answer");
            "answered"
        }
        Err(Failure::NotSent(_)) => "not sent",
        Err(Failure::Unknown(_)) => "unknown",
        Err(failure) => panic!("{failure:?}"),
    }
}

fn owner_of(key: u32) -> String {
    format!("7b6d2f0e-5f55-4c05-9b3a-d3a6a3a8d1a1:{key}")
}

fn server_with_holders() -> RedisServer {
    let server = RedisServer::start();
    let mut probe = server.probe();
    for key in 0..1000 {
        probe.command(&["HSET", &format!("held:{key}"), &owner_of(key), "1"]);
    }
    server
}

#[test]
fn shared_link_with_short_deadlines_mixes_no_answers() {
    let server = server_with_holders();
    // Short deadlines are about as long as an answer takes: they end while a request is queued,
    // written or read, and while the reader's role passes to another thread. If the role got lost,
    // patient calls would wait until their deadline.
    let patient = AtomicU64::new(0);
    let patience = |random: &mut fastrand::Rng| {
        if random.u8(0..4) > 0 {
            return Duration::from_micros(random.u64(0..1_500));
        }
        patient.fetch_add(1, Ordering::SeqCst);
        PATIENT
    };
    let tally = ask(&server.url(), 1_500, patience, || ());
    println!("direct: {tally:?}");
    assert!(tally["answered"] >= patient.into_inner(), "{tally:?}");
    assert!(
        tally.contains_key("not sent") || tally.contains_key("unknown"),
        "{tally:?}"
    );
}

#[test]
fn shared_link_on_a_faulty_network_mixes_no_answers() {
    let server = server_with_holders();
    let faults = Arc::new(RandomFaults::new(1));
    let proxy = Proxy::new(server.port(), Arc::clone(&faults) as Arc<dyn Plan>);
    let url = format!("{}?command_timeout=50ms", proxy.url());
    let patience = |random: &mut fastrand::Rng| Duration::from_millis(random.u64(1..60));
    let tally = ask(&url, 400, patience, || {
        faults.are_over.store(true, Ordering::SeqCst);
    });
    println!("through the proxy: {tally:?}; {}", proxy.account());
    // The bounds are low because a busy machine answers few calls in time. Without answers or
    // faults the test would show nothing.
    assert!(
        tally["answered"] > 100 && tally["unknown"] > 10,
        "{tally:?}"
    );
}

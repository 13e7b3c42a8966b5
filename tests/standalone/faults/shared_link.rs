//! Many threads on one connection, with little patience each: every answer is the caller's own, and nobody hangs.

use distlock::Config;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy, Sometimes, Turn};
use distlock_tests::resp::{Kind, Request};
use distlock_tests::time::{Stopwatch, late, ms, scaled};
use lock_core::backend::Failure;
use lock_core::{Backend, ClientId, Clock, Context, LockName, SystemClock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const THREADS: usize = 24;
/// What a busy machine adds to a deadline. The bound that counts is "not for ever".
const SLACK: Duration = Duration::from_secs(20);
/// The patience of those who must get an answer.
const PATIENT: Duration = Duration::from_secs(60);

/// A different fault now and then.
struct Mischief(Vec<Sometimes>, Vec<Fault>);

impl Mischief {
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
            Sometimes::new(Some(Kind::Other), Turn::Chance { of_1000, seed }, *fault)
        });
        Self(turns.collect(), faults)
    }
}

impl Plan for Mischief {
    fn fate(&self, request: &mut Request) -> Fault {
        let at = self.0.iter().position(|one| one.strikes(request));
        at.map_or(Fault::Pass, |at| self.1[at])
    }
}

/// How calls ended.
type Tally = BTreeMap<&'static str, u64>;

/// Asks `calls` times for each thread who holds one of many locks, each of which has a holder of its own.
fn ask(url: &str, calls: usize, patience: impl Fn(&mut fastrand::Rng) -> Duration + Sync) -> Tally {
    let config = Config::from_url(url).unwrap();
    let context = Context::new(Arc::new(SystemClock), ClientId::random());
    let backend = distlock::schemes().open(&config, &context).unwrap();
    let (backend, patience) = (&backend, &patience);
    let mut all = Tally::new();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let mut random = fastrand::Rng::with_seed(thread as u64);
                    let mut tally = Tally::new();
                    for _ in 0..calls {
                        let wait = patience(&mut random);
                        *tally.entry(one_call(&**backend, &mut random, wait)).or_default() += 1;
                    }
                    tally
                })
            })
            .collect();
        for thread in threads {
            for (how, count) in thread.join().unwrap() {
                *all.entry(how).or_default() += count;
            }
        }
    });
    // Whatever has happened: it works for one who has the time.
    let last = one_call(&**backend, &mut fastrand::Rng::with_seed(0), Duration::ZERO);
    assert_eq!(last, "not sent");
    all
}

fn one_call(backend: &dyn Backend, random: &mut fastrand::Rng, wait: Duration) -> &'static str {
    let key = random.u32(0..1000);
    let name = LockName::new(&format!("held:{key}")).unwrap();
    let (watch, by) = (Stopwatch::start(), SystemClock.now() + wait);
    let outcome = backend.inspect(&name, by);
    let took = watch.elapsed();
    if took > wait.min(Duration::from_secs(1)) + scaled(SLACK) {
        late(format!("{took:?} of {wait:?}: {outcome:?}"));
    }
    assert!(wait < PATIENT || outcome.is_ok(), "{took:?}: {outcome:?}");
    match outcome {
        Ok(info) => {
            let holder = info.holder.expect("every lock is held").owner;
            assert_eq!(holder.as_str(), owner_of(key), "somebody else's answer");
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
    // About as long as an answer takes: deadlines come while a request is queued, written, read, and while the reader's
    // role is handed on. Should that be lost, those who are patient would wait until their end.
    let tally = ask(&server.url(), 1_500, |random| {
        if random.u8(0..4) == 0 { PATIENT } else { Duration::from_micros(random.u64(0..1_500)) }
    });
    println!("direct: {tally:?}");
    assert!(tally["answered"] > 500, "{tally:?}");
    assert!(tally.contains_key("not sent") || tally.contains_key("unknown"), "{tally:?}");
}

#[test]
fn shared_link_on_a_faulty_network_mixes_no_answers() {
    let server = server_with_holders();
    let proxy = Proxy::new(server.port(), Arc::new(Mischief::new(1)));
    let url = format!("{}?command_timeout=50ms", proxy.url());
    let tally = ask(&url, 400, |random| Duration::from_millis(random.u64(1..60)));
    println!("through the proxy: {tally:?}; {}", proxy.account());
    assert!(tally["answered"] > 100 && tally["unknown"] > 10, "{tally:?}");
}

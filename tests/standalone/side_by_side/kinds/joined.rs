//! Requests for several locks in one script: each gets the answer that the memory store gives to a
//! single request.
//!
//! This test joins the requests itself, because it depends on chance which requests the multiplexed
//! connection joins.

use super::{Granted, Invariants, TOO_SLOW, shorten};
use crate::bench::Bench;
use crate::side_by_side::from_environment;
use crate::side_by_side::stores::Store;
use distlock::LockName;
use distlock::backend::{Backend, ClientId, LeaseTime, OwnerId};
use distlock::time::{Clock, Moment, SystemClock};
use distlock_tests::probe::{Probe, Value};
use distlock_tests::process::RedisServer;
use distlock_tests::time::{Stopwatch, eventually};
use lock_conformance::violated;
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, NodeId, Receipt, Release, ReleaseOptions, Renewal,
    RenewalRequest,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const LOCKS: usize = 3;
const OWNERS: u64 = 5;

/// The number of steps of a case. `MOST` is the largest number of requests that are joined.
const STEPS: usize = 60;
const MOST: usize = 8;

/// The time by which the clocks are moved. No lease ends within a second of a whole number of these
/// moves.
const PASSES: Duration = Duration::from_secs(2);
const LEASES: [u64; 4] = [5, 9, 21, 99];

/// A lock, and an owner that makes a request for it.
type One = (usize, u64);

#[derive(Clone, Debug)]
enum Step {
    Acquire(Vec<One>, usize),
    Release(Vec<One>),
    Renew(Vec<(One, usize)>),
    /// Releases with a tombstone, also for an owner whose attempt comes later.
    Close(One),
    Force(usize),
    /// Sets the counter of a free lock ahead of the clock, as after a clock that was wrong.
    RaiseCounter(usize),
    Pass,
}

impl Step {
    fn random(random: &mut fastrand::Rng) -> Self {
        let lock = random.usize(0..LOCKS);
        let many = random.usize(1..=MOST);
        let mut one = || (random.usize(0..LOCKS), random.u64(0..OWNERS));
        let first = one();
        let ones: Vec<_> = std::iter::repeat_with(one).take(many).collect();
        match random.u8(0..100) {
            0..=39 => Self::Acquire(ones, random.usize(0..LEASES.len())),
            40..=59 => Self::Release(ones),
            60..=79 => {
                let lease = || random.usize(0..LEASES.len());
                Self::Renew(
                    ones.into_iter()
                        .zip(std::iter::repeat_with(lease))
                        .collect(),
                )
            }
            80..=85 => Self::Close(first),
            86..=88 => Self::Force(lock),
            89..=91 => Self::RaiseCounter(lock),
            _ => Self::Pass,
        }
    }

    /// Returns how many requests the step joins.
    fn requests(&self) -> usize {
        match self {
            Self::Acquire(ones, _) | Self::Release(ones) => ones.len(),
            Self::Renew(ones) => ones.len(),
            _ => 0,
        }
    }
}

macro_rules! lua {
    ($($file:literal),+) => {
        concat!($(include_str!(concat!("../../../../lock-redis/src/lua/", $file, ".lua"))),+)
            .to_owned()
    };
}

struct Scripts {
    acquire: String,
    release: String,
    renew: String,
    close: String,
}

impl Scripts {
    fn real() -> Self {
        Self {
            acquire: lua!(
                "redisson/take",
                "timestamp",
                "grant",
                "acquire_many",
                "redisson/look",
                "redisson/tells",
                "queue",
                "leave",
                "enter",
                "attempt",
                "endings/busy_many"
            ),
            release: lua!(
                "redisson/look",
                "redisson/drop",
                "tell",
                "queue_of",
                "release_many",
                "redisson/take",
                "timestamp",
                "grant",
                "queue",
                "let_next_in",
                "leave",
                "give_up",
                "endings/waiting_many"
            ),
            renew: lua!("redisson/look", "redisson/gone", "renew"),
            close: lua!(
                "redisson/look",
                "redisson/drop",
                "redisson/gone",
                "redisson/take",
                "timestamp",
                "grant",
                "tell",
                "queue_of",
                "queue",
                "let_next_in",
                "leave",
                "give_up",
                "free_first",
                "pass",
                "close",
                "endings/usual"
            ),
        }
    }

    /// Returns the scripts with `to` in place of `from`, which at least one of them must contain.
    fn changed(from: &str, to: &str) -> Self {
        let mut all = Self::real();
        let mut is_changed = false;
        let Self {
            acquire,
            release,
            renew,
            close,
        } = &mut all;
        for script in [acquire, release, renew, close] {
            is_changed |= script.contains(from);
            *script = script.replace(from, to);
        }
        assert!(is_changed, "no script has {from:?}");
        all
    }
}

/// Both stores, and the scripts that are sent to the server.
struct Both {
    memory: Arc<dyn Backend>,
    redis: Arc<dyn Backend>,
    stores: [Arc<Store>; 2],
    client: ClientId,
    scripts: Scripts,
}

/// The locks of one case.
struct Case<'a> {
    both: &'a Both,
    names: Vec<LockName>,
    invariants: [Invariants; LOCKS],
    by: Moment,
}

impl Both {
    fn new(scripts: Scripts) -> Self {
        let stores = [Arc::new(Store::memory()), Arc::new(Store::redis())];
        let [memory, redis] = stores
            .each_ref()
            .map(|store| store.subject.backend(&store.context()));
        Self {
            memory,
            redis,
            stores,
            client: ClientId::random(),
            scripts,
        }
    }

    /// Takes the steps on both stores, on names that no other case has. Returns how many requests
    /// were compared, or the first difference.
    fn run(&self, number: u64, steps: &[Step]) -> Result<usize, String> {
        let name = |lock| LockName::new(&format!("joined:{number}:{lock}")).unwrap();
        let mut case = Case {
            both: self,
            names: (0..LOCKS).map(name).collect(),
            invariants: Default::default(),
            by: SystemClock.now() + Duration::from_secs(3_600 * 24),
        };
        let (mut compared, since) = (0, Stopwatch::start());
        for step in steps {
            let outcome = case.step(step);
            if since.elapsed() > TOO_SLOW {
                break;
            }
            outcome.map_err(|why| format!("{step:?}: {why}"))?;
            compared += step.requests();
        }
        case.probe().command(&["FLUSHDB"]);
        Ok(compared)
    }

    /// Compares random cases until so many requests were joined. Returns their number, or the first
    /// difference and the steps of its case.
    fn compare(&self, seed: u64, requests: usize) -> Result<usize, (String, Vec<Step>)> {
        let (mut random, mut compared) = (fastrand::Rng::with_seed(seed), 0);
        for number in 0.. {
            let steps: Vec<_> = (0..STEPS).map(|_| Step::random(&mut random)).collect();
            match self.run(number, &steps) {
                Ok(count) => compared += count,
                Err(why) => return Err((why, steps)),
            }
            if compared >= requests {
                break;
            }
        }
        Ok(compared)
    }

    /// Leaves out the steps without which the case fails as well. Returns the remaining steps, and
    /// the last failure.
    fn shorten(&self, mut why: String, steps: Vec<Step>) -> (String, Vec<Step>) {
        let mut number = u64::MAX / 2;
        let steps = shorten(steps, |fewer| {
            number += 1;
            self.run(number, fewer)
                .map_err(|found| why = found)
                .is_err()
        });
        (why, steps)
    }
}

impl Case<'_> {
    fn probe(&self) -> impl std::ops::DerefMut<Target = Probe> {
        self.both.stores[1].probe().expect("it is a server")
    }

    fn script(&self, script: &str, keys: &[String], arguments: &[String]) -> Result<Value, String> {
        let count = keys.len().to_string();
        let words = ["EVAL", script, &count].into_iter();
        let words: Vec<_> = words
            .chain(keys.iter().chain(arguments).map(String::as_str))
            .collect();
        match self.probe().command(&words) {
            Value::Error(error) => Err(error),
            answer => Ok(answer),
        }
    }

    fn owner(&self, owner: u64) -> OwnerId {
        OwnerId::new(self.both.client, owner + 1)
    }

    fn acquisition(&self, (lock, owner): One, which: usize) -> AcquisitionId {
        let name = self.names[lock].clone();
        AcquisitionId::new(name, self.owner(owner), lease(which), Receipt::default())
    }

    fn key(&self, lock: usize) -> String {
        self.names[lock].as_str().to_owned()
    }

    fn counter(&self, lock: usize) -> String {
        format!("redisson_lock_token:{{{}}}", self.names[lock])
    }

    fn queue(&self, lock: usize) -> String {
        format!("distlock_queue:2:{{{}}}", self.names[lock])
    }

    fn channel(&self, lock: usize) -> String {
        format!("redisson_lock__channel:{{{}}}", self.names[lock])
    }

    fn tombstone(&self, (lock, owner): One) -> String {
        format!(
            "distlock_closed:{{{}}}:{}",
            self.names[lock],
            self.owner(owner)
        )
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        let mut granted = Vec::new();
        let answers = match step {
            Step::Acquire(ones, lease) => self.acquire(ones, *lease, &mut granted)?,
            Step::Release(ones) => self.release(ones)?,
            Step::Renew(ones) => self.renew(ones)?,
            Step::Close(one) => self.close(*one)?,
            Step::Force(lock) => [&self.both.memory, &self.both.redis].map(|backend| {
                vec![
                    backend
                        .admin()
                        .unwrap()
                        .force_release(&self.names[*lock], self.by)
                        .unwrap()
                        .to_string(),
                ]
            }),
            Step::RaiseCounter(lock) => {
                const RAISE: &str = "local counter = redis.call('GET', KEYS[1])
                    if counter and redis.call('EXISTS', KEYS[2]) == 0 then
                      redis.call('SET', KEYS[1], string.format('%.0f', counter + 1e9), 'KEEPTTL')
                    end";
                self.script(RAISE, &[self.counter(*lock), self.key(*lock)], &[])?;
                Default::default()
            }
            Step::Pass => {
                self.both
                    .stores
                    .iter()
                    .for_each(|store| store.advance(PASSES));
                Default::default()
            }
        };
        let [memory, redis] = answers;
        if memory != redis {
            return Err(format!("\nmemory: {memory:?}\nredis: {redis:?}"));
        }
        (0..LOCKS).try_for_each(|lock| self.check_lock(lock))?;
        // One owner may occur twice in a step, and gets one token.
        granted.dedup();
        granted
            .into_iter()
            .try_for_each(|(lock, grant): (usize, _)| self.invariants[lock].check_grant(grant))
    }

    fn acquire(
        &self,
        ones: &[One],
        which: usize,
        granted: &mut Vec<(usize, Granted)>,
    ) -> Result<[Vec<String>; 2], String> {
        let memory = ones.iter().map(|&(lock, owner)| {
            let attempt = Attempt::new(&self.names[lock], self.owner(owner), lease(which));
            let answer = self.both.memory.acquire(&attempt, self.by).unwrap();
            is_granted(matches!(answer, Answer::Granted(_)))
        });
        let memory = memory.collect();
        let keys = ones.iter().map(|one| self.key(one.0));
        let keys = keys.chain(ones.iter().map(|one| self.tombstone(*one)));
        let keys = keys.chain(ones.iter().map(|one| self.queue(one.0)));
        let keys: Vec<_> = keys
            .chain(ones.iter().map(|one| self.counter(one.0)))
            .collect();
        let lease = lease(which).as_millis().to_string();
        let arguments = [lease, "3600000".to_owned()].into_iter();
        let owners = ones.iter().map(|one| self.owner(one.1).to_string());
        let arguments: Vec<_> = arguments.chain(owners).collect();
        let answers = list(self.script(&self.both.scripts.acquire, &keys, &arguments)?);
        let mut redis = Vec::new();
        for (&(lock, owner), answer) in ones.iter().zip(answers) {
            redis.push(is_granted(match answer {
                Value::Text(token) => {
                    let (owner, token) = (self.owner(owner), token.parse().unwrap());
                    granted.push((lock, Granted { owner, token }));
                    true
                }
                Value::List(_) => false,
                other => return Err(format!("{other:?}")),
            }));
        }
        // Sorted by lock, so that the grants of one lock are neighbours.
        granted.sort_by_key(|(lock, _)| *lock);
        Ok([memory, redis])
    }

    fn release(&self, ones: &[One]) -> Result<[Vec<String>; 2], String> {
        let release = |one: &One| {
            let (id, options) = (self.acquisition(*one, 3), ReleaseOptions::WITHOUT_TOMBSTONE);
            let answer = self.both.memory.release(&id, options, self.by).unwrap();
            is_freed(!matches!(answer, Release::Gone))
        };
        let memory = ones.iter().map(release).collect();
        let keys: Vec<_> = ones.iter().map(|one| self.key(one.0)).collect();
        let owners = ones.iter().map(|one| self.owner(one.1).to_string());
        let channels = ones.iter().map(|one| self.channel(one.0));
        let arguments: Vec<_> = ["PUBLISH".to_owned()]
            .into_iter()
            .chain(owners)
            .chain(channels)
            .collect();
        let answers = list(self.script(&self.both.scripts.release, &keys, &arguments)?);
        Ok([
            memory,
            answers
                .into_iter()
                .map(|answer| is_freed(answer != Value::Int(0)))
                .collect(),
        ])
    }

    fn renew(&self, ones: &[(One, usize)]) -> Result<[Vec<String>; 2], String> {
        let request =
            |(one, lease): &(One, usize)| RenewalRequest::new(self.acquisition(*one, *lease));
        let requests: Vec<_> = ones.iter().map(request).collect();
        let memory = self.both.memory.renew(NodeId::new(0), &requests, self.by);
        let memory = memory
            .into_iter()
            .map(|it| is_extended(it.unwrap() == Renewal::Extended));
        let keys: Vec<_> = ones.iter().map(|((lock, _), _)| self.key(*lock)).collect();
        let arguments = ones.iter().flat_map(|((_, owner), which)| {
            [
                lease(*which).as_millis().to_string(),
                self.owner(*owner).to_string(),
            ]
        });
        let arguments: Vec<_> = arguments.collect();
        let redis = match self.script(&self.both.scripts.renew, &keys, &arguments)? {
            Value::Int(1) => vec![is_extended(true); ones.len()],
            answers => list(answers)
                .iter()
                .map(|it| is_extended(*it == Value::Int(1)))
                .collect(),
        };
        Ok([memory.collect(), redis])
    }

    fn close(&self, one: One) -> Result<[Vec<String>; 2], String> {
        let (id, options) = (self.acquisition(one, 3), ReleaseOptions::WITH_TOMBSTONE);
        let memory = self.both.memory.release(&id, options, self.by).unwrap();
        let keys = [self.key(one.0), self.counter(one.0), self.tombstone(one)];
        let lifetime = id.lease.as_millis().to_string();
        let owner = self.owner(one.1).to_string();
        let channel = self.channel(one.0);
        let arguments = [&owner, &channel, "PUBLISH", "", "", &lifetime].map(str::to_owned);
        let redis = self.script(&self.both.scripts.close, &keys, &arguments)?;
        let memory = is_freed(!matches!(memory, Release::Gone));
        Ok([vec![memory], vec![is_freed(redis != Value::Int(0))]])
    }

    /// Checks the invariants, and that both stores have the same holder, with the same remaining
    /// time.
    fn check_lock(&mut self, lock: usize) -> Result<(), String> {
        let info = self
            .both
            .memory
            .inspect(&self.names[lock], self.by)
            .unwrap();
        let in_whole_seconds = |left: Duration| left.as_millis().saturating_sub(50).div_ceil(1_000);
        let memory = info.holder.map(|holder| {
            (
                holder.owner.as_str().to_owned(),
                holder.remaining.map(in_whole_seconds),
            )
        });
        let key = self.key(lock);
        let mut probe = self.both.stores[1].probe().expect("it is a server");
        self.invariants[lock].check_keys(&mut probe, &key, false)?;
        let left = probe.pttl(&key).map(in_whole_seconds);
        let redis = self.invariants[lock]
            .holder()
            .map(|owner| (owner.to_owned(), left));
        if memory == redis {
            Ok(())
        } else {
            Err(format!("\nmemory: {memory:?}\nredis: {redis:?}"))
        }
    }
}

fn lease(which: usize) -> LeaseTime {
    LeaseTime::new(Duration::from_secs(LEASES[which])).unwrap()
}

fn list(value: Value) -> Vec<Value> {
    match value {
        Value::List(values) => values,
        other => panic!("the server answered {other:?}, not a list"),
    }
}

fn is_granted(is_so: bool) -> String {
    if is_so { "granted" } else { "busy" }.to_owned()
}

fn is_freed(is_so: bool) -> String {
    if is_so { "freed" } else { "gone" }.to_owned()
}

fn is_extended(is_so: bool) -> String {
    if is_so { "extended" } else { "gone" }.to_owned()
}

fn joined_requests_answer_as_single_ones(requests: usize) {
    let seed = from_environment("DISTLOCK_PROPERTY_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("DISTLOCK_PROPERTY_SEED={seed}");
    let both = Both::new(Scripts::real());
    match both.compare(seed, requests) {
        Ok(compared) => println!("{compared} requests"),
        Err((why, steps)) => {
            let (why, steps) = both.shorten(why, steps);
            violated(format_args!(
                "run it again with DISTLOCK_PROPERTY_SEED={seed}\n{why}\n{steps:#?}"
            ));
        }
    }
}

#[test]
fn joined_requests_of_redis_answer_as_single_ones_in_memory() {
    joined_requests_answer_as_single_ones(3_000);
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn joined_requests_answer_as_single_ones_long() {
    joined_requests_answer_as_single_ones(140_000);
}

#[test]
fn faults_in_joined_scripts_are_found() {
    for (what, from, to) in [
        (
            "an owner in the same request is not seen",
            "if not taken[lock] and (",
            "if (",
        ),
        (
            "tombstones are not looked at",
            "unpack(KEYS, 1, 3 * n)) == 0",
            "unpack(KEYS, 1, n)) == 0",
        ),
        (
            "locks are not looked at",
            "unpack(KEYS, 1, 3 * n)) == 0",
            "unpack(KEYS, n + 1, 3 * n)) == 0",
        ),
        (
            "a closed owner is let in",
            "redis.call('EXISTS', tombstone, lock, queue) == 0",
            "redis.call('EXISTS', lock, queue) == 0",
        ),
        (
            "a repetition gets another token",
            "elseif ours and stored then",
            "elseif false then",
        ),
        ("the counter loses its expiry", "'KEEPTTL', 'GET'", "'GET'"),
        (
            "a token is given twice",
            "first = value + 1",
            "first = value",
        ),
        (
            "a token goes back",
            "if stored and value >= first then",
            "if false then",
        ),
        (
            "the lock has no expiry",
            "redis.pcall('PEXPIRE', key, lease)",
            "1",
        ),
        (
            "any owner releases",
            "drop(redis.pcall, lock, ARGV[1 + i])",
            "redis.call('DEL', lock)",
        ),
        ("a neighbour's owner releases", "ARGV[1 + i])", "ARGV[2])"),
        (
            "a renewal shortens a lease",
            "math.max(pttl, tonumber(lease))",
            "lease",
        ),
        (
            "a renewal extends for the first's lease",
            "ARGV[2 * i - 1]",
            "ARGV[1]",
        ),
        ("any owner renews", "if ours == 0 then", "if false then"),
        (
            "a close leaves no tombstone",
            "redis.call('SET', KEYS[3], '1', 'PX', ARGV[6])",
            "",
        ),
        ("a close frees nothing", "free(KEYS[1], ARGV[1])\n", ""),
    ] {
        let both = Both::new(Scripts::changed(from, to));
        let Err((why, steps)) = both.compare(1, 20_000) else {
            panic!("not found: {what}")
        };
        let (_, shortest) = both.shorten(why, steps);
        println!("{what}: {shortest:?}");
        assert!(shortest.len() <= 8, "{what}: {shortest:#?}");
    }
}

/// Shows that the scripts above are those that the library sends. Otherwise the comparisons would
/// prove nothing.
#[test]
fn compared_scripts_are_those_of_the_library() {
    let server = RedisServer::start();
    let (bench, mut probe) = (Bench::on(&server), server.probe());
    let (acquisition, _) = bench.take("x");
    bench
        .renew(&[RenewalRequest::new(acquisition.clone())])
        .remove(0)
        .unwrap();
    bench
        .backend
        .release(
            &acquisition,
            ReleaseOptions::WITH_TOMBSTONE,
            crate::bench::soon(),
        )
        .unwrap();
    let Scripts {
        acquire,
        release,
        renew,
        close,
    } = Scripts::real();
    let mut is_known = |script: &str| {
        let hash = probe
            .command(&["EVAL", "return redis.sha1hex(ARGV[1])", "0", script])
            .text();
        probe.command(&["SCRIPT", "EXISTS", &hash]) == Value::List(vec![Value::Int(1)])
    };
    assert!(is_known(&renew) && is_known(&close));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for thread in 0..16 {
            let (bench, is_over) = (&bench, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let (acquisition, _) = bench.take(&thread.to_string());
                    bench.release(&acquisition);
                }
            });
        }
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually("requests are joined", crate::bench::LONG, || {
                is_known(&acquire) && is_known(&release)
            });
        }));
        is_over.store(true, Ordering::Relaxed);
        found.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

//! Kinds of locks on two stores: the same random requests of backends must get the same answers.

mod fair;
mod fair_permits;
mod fair_read_write;
mod invariants;
mod joined;
mod permits;
mod read_write;

use super::stores::Store;
use super::{CASES, from_environment};
use distlock::LockName;
use distlock::admin::PermitId;
use distlock::backend::{Backend, LeaseTime, OwnerId, OwnerText};
use distlock::time::{Clock, Moment, SystemClock};
use distlock_tests::time::{Stopwatch, eventually, scaled};
use invariants::Invariants;
use lock_conformance::violated;
use lock_core::LockKind;
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, Failure, KeptLock, LockInfo, NextOwner, NodeId, PermitChange,
    Receipt, Release, ReleaseOptions, Renewal, RenewalRequest, Wake, Watch,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

/// How many requests a case has.
const STEPS: usize = 60;

/// The number of owners of each kind.
const OWNERS: u64 = 6;

/// A case that runs for longer by the machine's clock is cut short, because its answers depend on
/// the machine's speed.
const TOO_SLOW: Duration = Duration::from_millis(900);

/// The time limit for something that happens at once.
const SOON: Duration = Duration::from_secs(10);

/// The requests for a kind of lock, and how their answers are compared.
struct Scenario {
    /// The beginning of the locks' names.
    name: &'static str,
    /// By how much the clocks are moved. No lease ends within a second of a whole number of steps,
    /// nor does the presence of a waiter.
    step: Duration,
    /// In seconds, from short to long.
    leases: [u64; 4],
    random: fn(&mut fastrand::Rng, bool) -> Request,
    /// Whether a lock may have readers.
    has_readers: bool,
    /// Whether memory and Redis may answer this differently when time has passed.
    may_differ: fn(Request, memory: &str, redis: &str) -> bool,
    /// Answers to which the requests must lead.
    expected: &'static [&'static str],
}

#[derive(Clone, Copy, Debug)]
enum Request {
    Acquire {
        owner: u64,
        kind: LockKind,
        lease: usize,
        beside: Option<u64>,
        /// Fixed for each owner, because a thread that waits does not try as well.
        waits: bool,
    },
    Renew {
        owner: u64,
        kind: LockKind,
        lease: usize,
    },
    Release {
        owner: u64,
        kind: LockKind,
        closes: bool,
        keeps: bool,
    },
    Verify {
        owner: u64,
        kind: LockKind,
    },
    Inspect(LockKind),
    Force(LockKind),
    SetPermits(LockKind),
    AddPermits(LockKind, i32),
    /// Releases the owner's permit of this number.
    ReleaseOne {
        owner: u64,
        kind: LockKind,
        number: u32,
    },
    ExtendOne {
        owner: u64,
        kind: LockKind,
        number: u32,
        lease: usize,
    },
    Pass,
}

/// The owners that the store named as the next one, each with the number of its granted attempt, or
/// 0.
#[derive(Debug, Default)]
struct Named(Mutex<Vec<String>>);

impl Wake for Named {
    fn wake(&self) {}

    fn wake_next(&self, next: &NextOwner) {
        let granted = next
            .granted
            .as_ref()
            .map_or(0, |granted| granted.attempt.get());
        let mut named = self.0.lock();
        // After a direct grant, Redis also notifies the waiter that is next then, if it has waited
        // for long.
        let is_behind = granted == 0 && named.last().is_some_and(|last| !last.ends_with(" 0"));
        if !is_behind {
            named.push(format!("{} {granted}", number(&next.owner)));
        }
    }
}

/// Returns the number of an owner's attempt if a release may grant it, and else 0. Every second
/// owner has such a number.
fn number_of_direct(owner: u64, waits: bool) -> u32 {
    if owner.is_multiple_of(2) && waits {
        u32::try_from(owner + 1).unwrap()
    } else {
        0
    }
}

/// Returns the number of an owner, without its client.
fn number(owner: &OwnerText) -> String {
    owner
        .as_str()
        .rsplit_once(':')
        .map_or("", |(_, number)| number)
        .to_owned()
}

/// Returns the readers of a read-write lock as text, and whether a writer waits.
fn readers(info: &LockInfo) -> String {
    info.readers.as_ref().map_or_else(String::new, |readers| {
        let mut known: Vec<_> = readers.known.iter().map(|it| number(&it.owner)).collect();
        known.sort_unstable();
        format!(
            ", readers {known:?}, writer waits: {}",
            readers.writer_waits
        )
    })
}

/// One lock in one store, and the owners that make requests for it.
struct Side {
    store: Arc<Store>,
    backend: Arc<dyn Backend>,
    client: distlock::backend::ClientId,
    name: LockName,
    case: u64,
    time_passes: bool,
    scenario: &'static Scenario,
    named: Arc<Named>,
    /// The grant of the last request.
    granted: Mutex<Option<Granted>>,
    _watch: Watch,
}

/// A grant to an owner, with its token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Granted {
    owner: OwnerId,
    token: u64,
}

impl Side {
    fn new(
        store: &Arc<Store>,
        scenario: &'static Scenario,
        case: u64,
        time_passes: bool,
        by: Moment,
    ) -> Self {
        let context = store.context();
        let name = LockName::new(&format!("{}:{case}", scenario.name)).unwrap();
        let backend = store.subject.backend(&context);
        let named = Arc::<Named>::default();
        let queue = name.of_kind(LockKind::Fair);
        let watch = backend
            .watch(&queue, Arc::clone(&named) as Arc<dyn Wake>, by)
            .unwrap();
        let (store, client) = (Arc::clone(store), context.client);
        let granted = Mutex::default();
        Self {
            store,
            backend,
            client,
            name,
            case,
            time_passes,
            scenario,
            named,
            granted,
            _watch: watch,
        }
    }

    /// Returns the ID of an owner. Each kind of lock has owners of its own, as each wait has.
    fn owner(&self, owner: u64, kind: LockKind) -> OwnerId {
        let of_kind = match kind {
            LockKind::Mutex => 0,
            LockKind::Read => 1,
            LockKind::Write => 2,
            LockKind::Fair => 3,
            LockKind::FairRead => 4,
            LockKind::FairWrite => 5,
            LockKind::Permits { count, .. } => 3 + u64::from(count),
            LockKind::FairPermits { count, .. } => 7 + u64::from(count),
            other => unreachable!("{other:?} is not asked for"),
        };
        OwnerId::new(self.client, (self.case * OWNERS + owner) * 10 + of_kind)
    }

    fn lease(&self, which: usize) -> LeaseTime {
        LeaseTime::new(Duration::from_secs(self.scenario.leases[which])).unwrap()
    }

    fn acquisition(&self, owner: u64, kind: LockKind, lease: usize) -> AcquisitionId {
        let owner = self.owner(owner, kind);
        AcquisitionId::new(
            self.name.of_kind(kind),
            owner,
            self.lease(lease),
            Receipt::default(),
        )
    }

    /// Returns the remaining time in whole seconds, rounded up, because less than a second has
    /// passed since the lease began. The 50 ms allow for renewals, which make a lease longer by a
    /// millisecond at least.
    fn left(&self, left: Option<Duration>) -> Option<u128> {
        let millis = left.filter(|_| self.time_passes)?.as_millis();
        Some(millis.saturating_sub(50).div_ceil(1_000))
    }

    /// Returns the answer as text, without the parts in which the stores differ.
    fn answer(&self, request: Request, by: Moment) -> String {
        self.try_answer(request, by)
            .unwrap_or_else(|failure| match failure {
                Failure::Refused(error) => format!("refused: {:?}", error.kind()),
                other => format!("{other:?}"),
            })
    }

    fn try_answer(&self, request: Request, by: Moment) -> Result<String, Failure> {
        Ok(match request {
            Request::Acquire {
                owner,
                kind,
                lease,
                beside,
                waits,
            } => {
                let name = self.name.of_kind(kind);
                // For kinds without an order, only Redis keeps the waiters in a queue.
                let waits = waits && kind.is_queued();
                let writer = match kind {
                    LockKind::FairRead => LockKind::FairWrite,
                    _ => LockKind::Write,
                };
                let attempt = Attempt::new(&name, self.owner(owner, kind), self.lease(lease))
                    .beside(beside.map(|owner| self.owner(owner, writer)))
                    .direct(NonZeroU64::new(number_of_direct(owner, waits).into()))
                    .waits(waits);
                // The remaining time does not matter to a waiter, which attempts from time to time
                // in any case.
                let tells_when = !self.scenario.has_readers
                    && !waits
                    && (kind.is_queued() || kind.permits().is_some());
                match self.backend.acquire(&attempt, by)? {
                    Answer::Granted(grant) => {
                        let token = grant.tokens.map(|it| it.first().get());
                        *self.granted.lock() = token.map(|token| Granted {
                            owner: self.owner(owner, kind),
                            token,
                        });
                        let limit = grant.limit.map_or(String::new(), |it| format!(" of {it}"));
                        let count = grant.count.map_or(String::new(), |it| format!(" {it}"));
                        format!("granted{count}{limit}, token: {}", grant.tokens.is_some())
                    }
                    Answer::Busy(left) if tells_when => {
                        format!("busy, {:?}", self.left(left))
                    }
                    // Redis reports the longest lease of readers and a writer, and the holder's
                    // lease to a closed owner of a mutex.
                    Answer::Busy(_) => "busy".to_owned(),
                    other => format!("{other:?}"),
                }
            }
            Request::Renew { owner, kind, lease } => {
                let request = RenewalRequest::new(self.acquisition(owner, kind, lease));
                match self
                    .backend
                    .renew(NodeId::new(0), &[request], by)
                    .remove(0)?
                {
                    Renewal::Extended => "extended".to_owned(),
                    other => format!("{other:?}"),
                }
            }
            Request::Release {
                owner,
                kind,
                closes,
                keeps,
            } => {
                let options = match closes {
                    true => ReleaseOptions::WITH_TOMBSTONE,
                    false => ReleaseOptions::WITHOUT_TOMBSTONE,
                };
                // The owner of the minimum hold makes no other request.
                let kept = OwnerId::new(self.client, (self.case + 1) * 1_000_000 + owner);
                let kept = keeps.then(|| KeptLock::new(kept, self.lease(0)));
                let acquisition = self.acquisition(owner, kind, 3);
                match self.backend.release(&acquisition, options.kept(kept), by)? {
                    Release::Gone => "gone".to_owned(),
                    _ => "freed".to_owned(),
                }
            }
            Request::Verify { owner, kind } => {
                let verified = self.backend.verify(&self.acquisition(owner, kind, 0), by)?;
                let left = verified.map(|holder| self.left(holder.remaining));
                format!("held: {left:?}")
            }
            Request::Inspect(kind) => {
                self.inspected(kind, &self.backend.inspect(&self.name.of_kind(kind), by)?)
            }
            Request::Force(kind) => {
                let forced = self
                    .backend
                    .admin()
                    .unwrap()
                    .force_release(&self.name.of_kind(kind), by)?;
                format!("was held: {forced}")
            }
            Request::SetPermits(kind) => {
                let limit = kind.permits().unwrap_or_default().0;
                self.change(kind, PermitChange::SetLimit(limit), by)?
            }
            Request::AddPermits(kind, more) => {
                self.change(kind, PermitChange::AddLimit(more), by)?
            }
            Request::ReleaseOne {
                owner,
                kind,
                number,
            } => {
                let id = PermitId::new(self.owner(owner, kind), number);
                self.change(kind, PermitChange::Release(id), by)?
            }
            Request::ExtendOne {
                owner,
                kind,
                number,
                lease,
            } => {
                let id = PermitId::new(self.owner(owner, kind), number);
                self.change(kind, PermitChange::Extend(id, self.lease(lease)), by)?
            }
            Request::Pass => {
                self.store.advance(self.scenario.step);
                String::new()
            }
        })
    }

    fn change(&self, kind: LockKind, change: PermitChange, by: Moment) -> Result<String, Failure> {
        let name = self.name.of_kind(kind);
        Ok(format!(
            "{:?}",
            self.backend
                .admin()
                .unwrap()
                .change_permits(&name, change, by)?
        ))
    }

    fn inspected(&self, kind: LockKind, info: &LockInfo) -> String {
        let holder = info.holder.as_ref();
        let left = holder.map(|holder| self.left(holder.remaining));
        match (kind, info.holders) {
            // One field of an owner's permits names the owner, on Redis. Another may be the one
            // whose lease ends last.
            (kind, held) if kind.permits().is_some() => {
                let permits = info.permits.map(|permits| (permits.limit, permits.free));
                format!("{permits:?}, held: {held} {left:?}")
            }
            (_, 0 | 1) => {
                format!(
                    "{:?}{}",
                    holder.map(|it| number(&it.owner)).zip(left),
                    readers(info)
                )
            }
            // Of several leases that end at the same time, either store may name another one.
            (_, several) => format!("{several} holders{}", readers(info)),
        }
    }
}

/// The change of each request before it is sent: none, or a fault that must be found.
type Asked = fn(Request) -> Request;

/// How often each answer was seen.
type Seen = BTreeMap<String, u64>;

/// Sends random requests to the first store, and to the second one as `asked` changes them. Returns
/// how often each answer was seen, or the first difference with as few requests as lead to one.
fn compare(
    stores: &[Arc<Store>; 2],
    scenario: &'static Scenario,
    asked: Asked,
    seed: u64,
    cases: u64,
) -> Result<Seen, String> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut seen = Seen::new();
    // Each list of requests uses names of its own.
    let mut number = cases;
    for case in 0..cases {
        let time_passes = case % 2 == 0;
        let requests: Vec<_> = (0..STEPS)
            .map(|_| (scenario.random)(&mut random, time_passes))
            .collect();
        let run = |requests: &[Request], number: u64, seen: &mut Seen| {
            let by = SystemClock.now() + Duration::from_secs(3_600 * 24);
            let sides = stores
                .each_ref()
                .map(|store| Side::new(store, scenario, number, time_passes, by));
            compare_sides(&sides, requests, asked, by, seen)
        };
        let Err(mut why) = run(&requests, case, &mut seen) else {
            continue;
        };
        let shortest = shorten(requests, |fewer| {
            number += 1;
            let found = run(fewer, number, &mut Seen::new());
            found.map_err(|found| why = found).is_err()
        });
        return Err(format!(
            "{why}\ncase {case}, {} requests:\n{shortest:#?}",
            shortest.len()
        ));
    }
    Ok(seen)
}

/// Sends the same requests to both sides, those for the second one as `asked` changes them.
fn compare_sides(
    sides: &[Side; 2],
    requests: &[Request],
    asked: Asked,
    by: Moment,
    seen: &mut Seen,
) -> Result<(), String> {
    let since = Stopwatch::start();
    let mut invariants = Invariants::default();
    for &request in requests {
        let answers = [
            sides[0].answer(request, by),
            sides[1].answer(asked(request), by),
        ];
        let [memory, other] = answers.each_ref().map(String::as_str);
        if since.elapsed() > TOO_SLOW {
            break;
        }
        let may_differ = || (sides[0].scenario.may_differ)(request, memory, other);
        if memory != other && !(sides[0].time_passes && may_differ()) {
            return Err(format!("{request:?}\nmemory: {memory}\nother: {other}"));
        }
        invariants
            .check(&sides[1], request)
            .map_err(|why| format!("{request:?}: {why}"))?;
        let what = format!("{request:?}");
        let what = what.split([' ', '(']).next().unwrap_or_default();
        *seen.entry(format!("{what} -> {memory}")).or_default() += 1;
    }
    let named = || sides.each_ref().map(|side| side.named.0.lock().clone());
    if since.elapsed() > TOO_SLOW {
        *seen
            .entry("cases that were cut short".to_owned())
            .or_default() += 1;
        return Ok(());
    }
    let (since, soon) = (Stopwatch::start(), scaled(SOON));
    eventually("the messages arrive, or will not", SOON * 2, || {
        named()[1].len() >= named()[0].len() || since.elapsed() > soon
    });
    let [memory, other] = named();
    if memory != other {
        return Err(format!("next: {memory:?}\nother: {other:?}"));
    }
    *seen.entry("named as the next one".to_owned()).or_default() += memory.len() as u64;
    Ok(())
}

/// Leaves out ever smaller parts of a failing list, if it fails without them as well.
fn shorten<T: Clone>(mut list: Vec<T>, mut fails: impl FnMut(&[T]) -> bool) -> Vec<T> {
    let mut part = list.len() / 2;
    while part > 0 {
        let mut from = 0;
        while from < list.len() {
            let mut fewer = list.clone();
            fewer.drain(from..(from + part).min(list.len()));
            if fails(&fewer) {
                list = fewer;
            } else {
                from += part;
            }
        }
        part /= 2;
    }
    list
}

/// So many cases have 75,000 requests.
const MANY: u32 = 1_250;

/// Compares memory and Redis.
fn memory_and_redis_answer_alike(scenario: &'static Scenario, cases: u32) {
    let seed = from_environment("DISTLOCK_PROPERTY_SEED").unwrap_or_else(|| fastrand::u64(..));
    let cases: u32 = from_environment("DISTLOCK_PROPERTY_CASES").unwrap_or(cases);
    println!("DISTLOCK_PROPERTY_SEED={seed}");
    let stores = [Arc::new(Store::memory()), Arc::new(Store::redis())];
    let seen = match compare(&stores, scenario, |request| request, seed, cases.into()) {
        Ok(seen) => seen,
        Err(why) => violated(format_args!(
            "run it again with DISTLOCK_PROPERTY_SEED={seed}\n{why}"
        )),
    };
    for (what, times) in seen.iter().filter(|(what, _)| !what.starts_with("Inspect")) {
        println!("{times:6} {what}");
    }
    let is_cut = seen.keys().any(|what| what.starts_with("cases that"));
    for answer in scenario.expected {
        let is_seen = seen.keys().any(|what| what.starts_with(answer));
        assert!(
            is_cut || cases < CASES || is_seen,
            "these requests never lead to `{answer}`"
        );
    }
}

/// Asserts that each of these changes of requests is found as a difference.
fn differences_are_found(scenario: &'static Scenario, ways: &[(&str, Asked)]) {
    let memory = || [Arc::new(Store::memory()), Arc::new(Store::memory())];
    compare(&memory(), scenario, |request| request, 1, CASES.into()).unwrap();
    for (what, asked) in ways {
        let found = compare(&memory(), scenario, *asked, 1, CASES.into());
        let why = found.expect_err(what);
        println!(
            "{what}: {}",
            why.lines().take(2).collect::<Vec<_>>().join(", ")
        );
    }
}

//! Read-write locks of both stores: random requests of backends, and the same answers.

use super::stores::Store;
use super::{CASES, from_environment};
use distlock::{Backend, Clock, LeaseTime, LockName, OwnerId, SystemClock};
use distlock_tests::time::Stopwatch;
use lock_core::LockKind;
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, KeptLock, NodeId, Receipt, Release, ReleaseOptions, Renewal,
    RenewalRequest,
};
use lock_core::conformance::violated;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// How many requests a case has.
const STEPS: usize = 60;

/// The owners that ask: readers and writers alike.
const OWNERS: u64 = 6;

/// By how much the clocks are moved, and leases of which none ends within some seconds of a whole
/// number of such steps; nor does a waiting writer's presence, which is over after one.
const STEP: Duration = Duration::from_secs(7);
const LEASES: [u64; 4] = [10, 25, 60, 109];

/// A case in which that much has passed by the machine's clock proves nothing.
const TOO_SLOW: Duration = Duration::from_millis(900);

#[derive(Clone, Copy, Debug)]
enum Request {
    Acquire { owner: u64, kind: LockKind, lease: u64, beside: Option<u64> },
    Renew { owner: u64, kind: LockKind, lease: u64 },
    Release { owner: u64, kind: LockKind, closes: bool, keeps: bool },
    Verify { owner: u64, kind: LockKind },
    Inspect(LockKind),
    Force(LockKind),
    Pass,
}

impl Request {
    /// Where time passes, no reader is beside a writer, whose lease is the longer one of both on
    /// Redis; and there is no mutex, which waits there until the hash of dead readers has ended.
    fn random(random: &mut fastrand::Rng, time_passes: bool) -> Self {
        let owner = random.u64(0..OWNERS);
        let kinds = [LockKind::Read, LockKind::Read, LockKind::Write, LockKind::Mutex];
        let among = if random.u8(0..8) == 0 && !time_passes { 4 } else { 3 };
        let kind = kinds[random.usize(0..among)];
        let lease = LEASES[random.usize(0..LEASES.len())];
        match random.u8(0..100) {
            0..=39 => {
                let beside = (kind == LockKind::Read && !time_passes).then_some(owner);
                Self::Acquire { owner, kind, lease, beside }
            }
            40..=54 => Self::Renew { owner, kind, lease },
            55..=79 => {
                let keeps = kind == LockKind::Write && random.u8(0..8) == 0;
                Self::Release { owner, kind, closes: random.u8(0..12) == 0, keeps }
            }
            80..=86 => Self::Verify { owner, kind },
            87..=91 => Self::Inspect(kinds[1 + random.usize(0..2)]),
            92 => Self::Force(kinds[1 + random.usize(0..2)]),
            _ if time_passes => Self::Pass,
            _ => Self::Verify { owner, kind },
        }
    }
}

/// One name of a store, and the owners that ask for it.
struct Side {
    store: Arc<Store>,
    backend: Arc<dyn Backend>,
    client: distlock::ClientId,
    name: LockName,
    case: u64,
    time_passes: bool,
}

impl Side {
    fn new(store: &Arc<Store>, case: u64, time_passes: bool) -> Self {
        let context = store.context();
        let name = LockName::new(&format!("read-write:{case}")).unwrap();
        let backend = store.subject.backend(&context);
        Self { store: Arc::clone(store), backend, client: context.client, name, case, time_passes }
    }

    /// Each kind of lock has owners of its own, as each wait has.
    fn owner(&self, owner: u64, kind: LockKind) -> OwnerId {
        let of_kind = match kind {
            LockKind::Read => 1,
            LockKind::Write => 2,
            _ => 3,
        };
        OwnerId::new(self.client, (self.case * OWNERS + owner) * 10 + of_kind)
    }

    fn acquisition(&self, owner: u64, kind: LockKind, lease: u64) -> AcquisitionId {
        let owner = self.owner(owner, kind);
        AcquisitionId::new(self.name.of_kind(kind), owner, seconds(lease), Receipt::default())
    }

    /// What it answers, as far as both stores say the same.
    fn answer(&self, request: Request) -> String {
        let by = SystemClock.now() + Duration::from_secs(3_600 * 24);
        let named = |text: &str| {
            let number = text.rsplit_once(':').map_or("", |(_, number)| number);
            number.to_owned()
        };
        match request {
            Request::Acquire { owner, kind, lease, beside } => {
                let name = self.name.of_kind(kind);
                let attempt = Attempt::new(&name, self.owner(owner, kind), seconds(lease))
                    .beside(beside.map(|owner| self.owner(owner, LockKind::Write)));
                match self.backend.acquire(&attempt, by) {
                    Ok(Answer::Granted(grant)) => {
                        format!("granted, token: {}", grant.tokens.is_some())
                    }
                    Ok(Answer::Busy(_)) => "busy".to_owned(),
                    other => format!("{other:?}"),
                }
            }
            Request::Renew { owner, kind, lease } => {
                let request = RenewalRequest::new(self.acquisition(owner, kind, lease));
                match self.backend.renew(NodeId::new(0), &[request], by).remove(0) {
                    Ok(Renewal::Extended) => "extended".to_owned(),
                    other => format!("{other:?}"),
                }
            }
            Request::Release { owner, kind, closes, keeps } => {
                let options = match closes {
                    true => ReleaseOptions::WITH_TOMBSTONE,
                    false => ReleaseOptions::WITHOUT_TOMBSTONE,
                };
                // Kept for an owner that asks for nothing else.
                let kept = OwnerId::new(self.client, self.case * 1_000_000 + owner);
                let kept = keeps.then(|| KeptLock::new(kept, seconds(LEASES[0])));
                let released = self.backend.release(
                    &self.acquisition(owner, kind, LEASES[3]),
                    options.kept(kept),
                    by,
                );
                match released {
                    Ok(Release::Gone) => "gone".to_owned(),
                    Ok(_) => "freed".to_owned(),
                    Err(failure) => format!("{failure:?}"),
                }
            }
            Request::Verify { owner, kind } => {
                let verified = self.backend.verify(&self.acquisition(owner, kind, LEASES[0]), by);
                format!("held: {}", verified.unwrap().is_some())
            }
            Request::Inspect(kind) => {
                let info = self.backend.inspect(&self.name.of_kind(kind), by).unwrap();
                let holder = info.holder.map(|holder| {
                    // In whole seconds: less than one has passed since the lease began.
                    let left = holder.remaining.unwrap().as_millis().div_ceil(1_000);
                    (named(holder.owner.as_str()), self.time_passes.then_some(left))
                });
                let readers = info.readers.expect("it is a read-write lock");
                let mut known: Vec<_> =
                    readers.known.iter().map(|reader| named(reader.owner.as_str())).collect();
                known.sort_unstable();
                let waits = readers.writer_waits;
                // Of several leases that end together either may be named.
                match info.holders {
                    0 | 1 => format!("{holder:?}, readers {known:?}, writer waits: {waits}"),
                    several => format!("{several} holders {known:?}, writer waits: {waits}"),
                }
            }
            Request::Force(kind) => {
                let forced = self.backend.force_release(&self.name.of_kind(kind), by).unwrap();
                format!("was held: {forced}")
            }
            Request::Pass => {
                self.store.advance(STEP);
                String::new()
            }
        }
    }
}

fn seconds(seconds: u64) -> LeaseTime {
    LeaseTime::new(Duration::from_secs(seconds)).unwrap()
}

#[test]
fn read_write_locks_of_memory_and_redis_answer_alike() {
    let seed = from_environment("DISTLOCK_PROPERTY_SEED").unwrap_or_else(|| fastrand::u64(..));
    let cases: u32 = from_environment("DISTLOCK_PROPERTY_CASES").unwrap_or(CASES);
    println!("DISTLOCK_PROPERTY_SEED={seed}");
    let stores = [Arc::new(Store::memory()), Arc::new(Store::redis())];
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut seen, mut slow) = (BTreeMap::<String, u64>::new(), 0);
    for case in 0..u64::from(cases) {
        let time_passes = case % 2 == 0;
        let sides = stores.each_ref().map(|store| Side::new(store, case, time_passes));
        let (mut so_far, since) = (Vec::new(), Stopwatch::start());
        for _ in 0..STEPS {
            let request = Request::random(&mut random, time_passes);
            let [memory, redis] = sides.each_ref().map(|side| side.answer(request));
            so_far.push(format!("{request:?}: {memory}"));
            if since.elapsed() > TOO_SLOW {
                slow += 1;
                break;
            }
            // Readers whose leases are over stand in the hash until a writer purges them.
            let finds_dead_readers = time_passes
                && matches!(request, Request::Force(_))
                && (memory.as_str(), redis.as_str()) == ("was held: false", "was held: true");
            if memory != redis && !finds_dead_readers {
                violated(format_args!(
                    "run it again with DISTLOCK_PROPERTY_SEED={seed}\nmemory: {memory}\nRedis: \
                     {redis}\ncase {case}:\n{}",
                    so_far.join("\n")
                ));
            }
            let what = format!("{request:?}");
            let what = what.split([' ', '(']).next().unwrap_or_default();
            *seen.entry(format!("{what} -> {memory}")).or_default() += 1;
        }
    }
    for (what, times) in seen.iter().filter(|(what, _)| !what.starts_with("Inspect")) {
        println!("{times:6} {what}");
    }
    assert!(slow < cases / 2, "{slow} of {cases} cases took too long");
    for answer in ["Acquire -> granted", "Acquire -> busy", "Renew -> Ok(Gone)", "Release -> gone"]
    {
        let is_seen = seen.keys().any(|what| what.starts_with(answer));
        assert!(cases < CASES || is_seen, "these requests never lead to `{answer}`");
    }
}

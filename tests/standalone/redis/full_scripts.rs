//! A full server refuses no renewal, no release and no waiter's place in a queue, in any format and
//! for any kind of lock. A table of all scripts says which of them it may refuse.

use super::full_memory::set;
use crate::bench::{Bench, lease, name, soon};
use distlock::backend::LockKind;
use distlock::{LockName, LockOptions};
use distlock_tests::probe::{Probe, Value};
use distlock_tests::process::RedisServer;
use distlock_tests::queue;
use distlock_tests::time::{let_pass, ms};
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, KeptLock, PermitChange, PermitOutcome, Receipt, Release,
    ReleaseOptions, Renewal, RenewalRequest, Tokens,
};
use lock_core::{FencingToken, LeaseTime, OwnerId, PermitId};
use std::collections::BTreeSet;
use std::fs;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a full server must do with a script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Full {
    /// Run it, as the test here shows.
    Runs,
    /// Possibly refuse it, because it takes a lock or more memory.
    Refuses,
    /// Run it, as the tests of joined requests show.
    Joined,
}

/// All scripts, by their files.
const SCRIPTS: [(&str, Full); 27] = [
    ("acquire.lua", Full::Refuses),
    ("acquire_many.lua", Full::Refuses),
    ("clear.lua", Full::Runs),
    ("close.lua", Full::Runs),
    ("count.lua", Full::Refuses),
    ("force.lua", Full::Runs),
    ("inspect.lua", Full::Runs),
    ("mark.lua", Full::Refuses),
    ("permits/acquire.lua", Full::Refuses),
    ("permits/force.lua", Full::Runs),
    ("permits/inspect.lua", Full::Runs),
    ("permits/limit.lua", Full::Refuses),
    ("permits/release.lua", Full::Runs),
    ("permits/release_one.lua", Full::Runs),
    ("permits/renew.lua", Full::Runs),
    ("propose.lua", Full::Refuses),
    ("read_write/acquire_read.lua", Full::Refuses),
    ("read_write/inspect_rw.lua", Full::Runs),
    ("read_write/left.lua", Full::Runs),
    ("read_write/purge.lua", Full::Runs),
    ("read_write/release_read.lua", Full::Runs),
    ("read_write/renew_read.lua", Full::Runs),
    ("release.lua", Full::Runs),
    ("release_last.lua", Full::Runs),
    ("release_many.lua", Full::Joined),
    ("renew.lua", Full::Runs),
    ("rights.lua", Full::Refuses),
];

/// Returns the first lines of all scripts, by their files. A file without a head is only a part of
/// scripts.
fn heads() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock-redis/src/lua");
    let (mut folders, mut heads) = (vec![folder.clone()], Vec::new());
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next).expect("the sources") {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|it| it == "lua") {
                let text = fs::read_to_string(&path).unwrap();
                let first = text.lines().next().unwrap_or_default().to_owned();
                let file = path
                    .strip_prefix(&folder)
                    .unwrap()
                    .to_str()
                    .unwrap()
                    .to_owned();
                // As in "-- name: what it does".
                let is_named = first.split(' ').nth(1).is_some_and(|it| it.ends_with(':'));
                if text.contains("\n-- Returns ") && is_named {
                    heads.push((file, first));
                }
            }
        }
    }
    heads
}

/// A server that is full for a while, and a monitor that shows which scripts it receives meanwhile.
struct Scene {
    server: RedisServer,
    bench: Bench,
    monitor: Probe,
}

impl Scene {
    fn new(options: &str) -> Self {
        let server = RedisServer::start();
        let bench = Bench::new(&format!("{}?{options}", server.url()));
        let mut monitor = server.probe();
        assert_eq!(monitor.command(&["MONITOR"]).text(), "OK");
        Self {
            server,
            bench,
            monitor,
        }
    }

    /// Runs `call` while the server is full. The server has also forgotten all scripts, so that
    /// clients send their texts.
    fn full<T>(&self, call: impl FnOnce() -> T) -> T {
        set(&self.server, "maxmemory", "1");
        let mut probe = self.server.probe();
        probe.command(&["SCRIPT", "FLUSH"]);
        // Marks the beginning for the monitor, which does not show `CONFIG`.
        probe.command(&["ECHO", "full"]);
        let outcome = call();
        probe.command(&["ECHO", "no more"]);
        set(&self.server, "maxmemory", "0");
        outcome
    }

    fn acquire(&self, name: &LockName, owner: OwnerId) -> Answer {
        let attempt = Attempt::new(name, owner, long()).tokens(Tokens::Assign { reserve: 5 });
        self.bench.backend.acquire(&attempt, soon()).unwrap()
    }

    /// Takes a lock of this kind, under a name of its own.
    fn take(&self, kind: LockKind) -> AcquisitionId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = name(&format!("{}", NEXT.fetch_add(1, Ordering::Relaxed))).of_kind(kind);
        let owner = self.bench.owner();
        let Answer::Granted(grant) = self.acquire(&name, owner) else {
            panic!("it is free")
        };
        AcquisitionId::new(name, owner, long(), grant.receipt)
    }

    #[track_caller]
    fn must_release(&self, held: &AcquisitionId, options: ReleaseOptions) {
        let released = self.full(|| self.bench.backend.release(held, options, soon()));
        let kind = held.name.kind();
        assert!(
            matches!(released, Ok(Release::Freed)),
            "{kind:?} {options:?}: {released:?}"
        );
    }

    /// Returns the files of all scripts that the server received while it was full.
    fn sent(mut self, heads: &[(String, String)]) -> BTreeSet<String> {
        self.server.probe().command(&["ECHO", "the end"]);
        let (mut sent, mut is_full) = (BTreeSet::new(), false);
        loop {
            let Value::Text(line) = self.monitor.read_value().unwrap() else {
                panic!("no line")
            };
            if line.ends_with("\"ECHO\" \"the end\"") {
                return sent;
            }
            if line.contains("\"ECHO\"") {
                is_full = line.ends_with("\"full\"");
            }
            let found = heads
                .iter()
                .filter(|(_, head)| is_full && line.contains(head.as_str()));
            sent.extend(found.map(|(file, _)| file.clone()));
        }
    }
}

fn long() -> LeaseTime {
    lease(30_000)
}

fn acquisition_of(name: &LockName, owner: OwnerId) -> AcquisitionId {
    AcquisitionId::new(name.clone(), owner, long(), Receipt::default())
}

/// Renews, verifies, inspects, releases and force-releases locks of a kind on a full server.
fn holds_last_and_end(scene: &Scene, kind: LockKind) {
    let held = scene.take(kind);
    let request = [RenewalRequest::new(held.clone())];
    let renewed = scene.full(|| scene.bench.renew(&request)).remove(0);
    assert!(
        matches!(renewed, Ok(Renewal::Extended)),
        "{kind:?}: {renewed:?}"
    );
    let verified = scene.full(|| scene.bench.backend.verify(&held, soon()));
    assert!(verified.unwrap().is_some(), "{kind:?}");
    assert!(
        scene
            .full(|| scene.bench.backend.inspect(&held.name, soon()))
            .is_ok(),
        "{kind:?}"
    );
    scene.must_release(&held, ReleaseOptions::WITHOUT_TOMBSTONE);
    scene.must_release(&scene.take(kind), ReleaseOptions::WITH_TOMBSTONE);
    if !kind.is_shared() {
        let unused = ReleaseOptions::WITHOUT_TOMBSTONE.last_used(FencingToken::new(1));
        scene.must_release(&scene.take(kind), unused);
        let kept = KeptLock::new(scene.bench.owner(), long());
        scene.must_release(
            &scene.take(kind),
            ReleaseOptions::WITHOUT_TOMBSTONE.kept(Some(kept)),
        );
    }
    let held = scene.take(kind);
    let forced = scene.full(|| {
        scene
            .bench
            .backend
            .admin()
            .unwrap()
            .force_release(&held.name, soon())
    });
    assert!(forced.unwrap(), "{kind:?}");
}

/// On a full server a waiter keeps its place in the queue, and can give it up.
fn waiters_stay_and_leave(scene: &Scene) {
    let mut probe = scene.server.probe();
    let permits = LockKind::FairPermits { limit: 9, count: 7 };
    for kind in [
        LockKind::Fair,
        permits,
        LockKind::FairRead,
        LockKind::FairWrite,
        LockKind::Write,
    ] {
        let mut held = scene.take(match kind {
            LockKind::FairRead => LockKind::FairWrite,
            kind => kind,
        });
        held.name = held.name.of_kind(kind);
        let waits = scene.bench.owner();
        let ask = || {
            let attempt = Attempt::new(&held.name, waits, long()).direct(NonZeroU64::new(1));
            scene.bench.backend.acquire(&attempt, soon())
        };
        assert!(ask().unwrap().is_busy());
        let key = queue::key(held.name.as_str());
        // The last field is the end of the waiter's presence.
        let until = |probe: &mut Probe| -> u64 {
            let fields = probe.command(&["ZRANGE", &key, "1", "1"]).texts();
            let last = fields[0].rsplit(' ').next();
            last.unwrap().parse().unwrap()
        };
        let before = until(&mut probe);
        let_pass(ms(10));
        let busy = scene.full(ask);
        assert!(matches!(busy, Ok(Answer::Busy(_))), "{kind:?}: {busy:?}");
        assert!(probe.pttl(&key).is_some(), "it ends by itself");
        assert!(until(&mut probe) > before, "its presence begins anew");
        let gone = scene.full(|| {
            let waiting = acquisition_of(&held.name, waits);
            scene
                .bench
                .backend
                .release(&waiting, ReleaseOptions::WITH_TOMBSTONE, soon())
        });
        assert!(matches!(gone, Ok(Release::Gone)), "{kind:?}: {gone:?}");
        assert!(!probe.exists(&key), "{kind:?}");
    }
}

/// Other programs extend and release permits on a full server.
fn permits_of_others_last_and_end(scene: &Scene) {
    let held = scene.take(LockKind::Permits { limit: 9, count: 1 });
    let id = PermitId::new(held.owner, 0);
    for change in [PermitChange::Extend(id, long()), PermitChange::Release(id)] {
        let changed = scene.full(|| {
            scene
                .bench
                .backend
                .admin()
                .unwrap()
                .change_permits(&held.name, change, soon())
        });
        assert!(
            matches!(changed, Ok(PermitOutcome::Changed)),
            "{change:?}: {changed:?}"
        );
    }
}

/// A full server refuses a writer's attempt, which purges the dead readers all the same.
fn dead_readers_end(scene: &Scene) {
    let mut probe = scene.server.probe();
    let held = scene.take(LockKind::Read);
    let hold = format!("{{{}}}:{}:rwlock_timeout:1", held.name, held.owner);
    assert_eq!(probe.command(&["DEL", &hold]).int(), 1);
    let write = held.name.of_kind(LockKind::Write);
    let attempt = Attempt::new(&write, scene.bench.owner(), long()).waits(false);
    let refused = scene.full(|| scene.bench.backend.acquire(&attempt, soon()));
    assert!(refused.is_err(), "{refused:?}");
    assert!(
        !probe.exists(held.name.as_str()),
        "the lock of dead readers is free"
    );
}

#[test]
fn full_server_keeps_holders_and_waiters_of_every_kind() {
    let heads = heads();
    let files: BTreeSet<_> = heads.iter().map(|(file, _)| file.as_str()).collect();
    let listed: BTreeSet<_> = SCRIPTS.iter().map(|(file, _)| *file).collect();
    assert_eq!(files, listed, "each script is in the table");
    let mut sent = BTreeSet::new();
    for (options, all_kinds) in [
        ("", true),
        ("tokens=off", true),
        ("writers=equal", true),
        ("format=token", false),
        ("format=token&tokens=off", false),
        ("prefix=lock:&format=token,wakes=python-redis-lock", false),
        (
            "prefix=registry:&format=token,wakes=spring-integration",
            false,
        ),
    ] {
        let scene = Scene::new(options);
        let of_kinds = [
            LockKind::Fair,
            LockKind::Read,
            LockKind::Write,
            LockKind::Permits { limit: 9, count: 1 },
            LockKind::Permits { limit: 9, count: 7 },
            LockKind::FairPermits { limit: 9, count: 7 },
            LockKind::FairRead,
            LockKind::FairWrite,
        ];
        let kinds = of_kinds.into_iter().filter(|_| all_kinds);
        kinds
            .chain([LockKind::Mutex])
            .for_each(|kind| holds_last_and_end(&scene, kind));
        if all_kinds {
            dead_readers_end(&scene);
            permits_of_others_last_and_end(&scene);
        }
        if options.is_empty() {
            waiters_stay_and_leave(&scene);
        }
        sent.extend(scene.sent(&heads));
    }
    let scene = Scene::new("");
    let classic = format!("{}?format=timestamp,release=compare", scene.server.url());
    let lock = distlock::connect(&classic).unwrap().mutex("x").unwrap();
    let guard = lock
        .lock_with(&LockOptions::new().lease(long().duration()))
        .unwrap();
    scene.full(|| guard.unlock().unwrap());
    sent.extend(scene.sent(&heads));
    for (file, full) in SCRIPTS {
        assert!(
            full != Full::Runs || sent.contains(file),
            "{file} was not tried"
        );
    }
}

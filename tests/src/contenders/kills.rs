//! [`rounds`]: repeatedly kills the master of a held lock, while threads of several processes
//! contend for the lock.
//!
//! For any store in which a replica replaces a dead master. Every grant is confirmed by all
//! replicas.

use super::{Contenders, stay};
use crate::claims::{Claim, judge};
use crate::cluster::Cluster;
use crate::probe::{Probe, Value};
use crate::sentinel::Group;
use crate::time::{always, eventually, ms, scaled, with_tolerance};
use distlock::time::{Clock, Moment, SystemClock};
use distlock::{Client, LockGuard, Mutex};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const PROCESSES: usize = 4;
const THREADS: usize = 4;

/// The bound on a wait that includes a failover, so that a hanging test ends.
const SOON: Duration = Duration::from_secs(30);

/// The name of the contended lock. Other names with its hash tag are on the same node.
pub const NAME: &str = "{judged}";

/// The servers of a store, with failovers of their masters.
pub trait Masters: Send + Sync {
    /// Returns the URL of the store, without options.
    fn url(&self) -> String;

    /// Returns the number of the master that has the lock.
    fn master(&self) -> usize;

    fn kill(&mut self, server: usize);

    /// Waits until all observers (the sentinels, or the other nodes) name another master, and
    /// returns its number.
    fn await_successor(&self, killed: usize) -> usize;

    /// Returns whether the new master has a replica while the killed server is down. Otherwise no
    /// replica can confirm a grant before that server is back.
    fn has_spare_replicas(&self) -> bool;

    /// Restarts the killed server, which becomes a replica.
    fn bring_back(&mut self, killed: usize);

    /// Waits until a replica confirms the writes of this master.
    fn await_replica(&self, master: usize);

    /// Waits until all observers see all servers up, and the replicas are in sync.
    fn await_quiet(&self);
}

/// The holder's reaction to the kill of its master.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// Keeps holding the lock until there is a new master.
    Stays,
    /// Releases the lock while there is no master.
    LetsGo,
}

/// The times of the events of one round, counted from the kill.
struct Round {
    holder: Holder,
    /// When all observers named the new master.
    failed_over: Duration,
    /// When a replica confirmed the writes of the new master.
    replica: Duration,
    /// When the holder released the lock.
    let_go: Duration,
    /// When another lock of that master, which was free at the kill, was acquired.
    usable: Duration,
    /// When the next holder acquired the lock that was held at the kill.
    next: Duration,
}

/// The steps of a round that its threads wait for.
#[derive(Default)]
struct Stage {
    gone: AtomicBool,
    replaced: AtomicBool,
    let_go: AtomicBool,
    taken: AtomicBool,
}

impl Stage {
    /// Returns a value whose drop sets the flag, even if the test fails before: otherwise the
    /// waiting threads would never end.
    fn raise(flag: &AtomicBool) -> impl Drop {
        struct Raised<'a>(&'a AtomicBool);
        impl Drop for Raised<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        Raised(flag)
    }
}

struct Times {
    killed: Moment,
    failed_over: Moment,
    replica: Moment,
}

/// The servers and the contenders.
struct Scene<M> {
    masters: M,
    client: Client,
    lock: Mutex,
    contenders: Contenders,
    /// The claims of the test itself, which is one of the holders.
    claims: Vec<Claim>,
}

impl<M: Masters> Scene<M> {
    fn start(masters: M) -> Self {
        let url = format!("{}?replicas=all&watchdog=20s", masters.url());
        let client = distlock::connect(&url).unwrap();
        let lock = client.mutex(NAME).unwrap();
        let contenders = Contenders::start(&url, NAME, PROCESSES, THREADS);
        let scene = Self {
            masters,
            client,
            lock,
            contenders,
            claims: Vec::new(),
        };
        scene.await_claims_of_all_processes(Moment::from_nanos(0));
        scene
    }

    fn await_claims_of_all_processes(&self, since: Moment) {
        eventually("every process had the lock", SOON, || {
            let claims = self
                .contenders
                .claims()
                .into_iter()
                .filter(|claim| claim.from >= since);
            let mut processes: Vec<_> = claims
                .map(|claim| claim.holder.split('.').next().unwrap().to_owned())
                .collect();
            processes.sort_unstable();
            processes.dedup();
            processes.len() == PROCESSES
        });
    }

    /// Runs one round: kills the master while the test holds the lock, and brings it back as a
    /// replica.
    fn round(&mut self, holder: Holder, number: usize) -> Round {
        let old = self.masters.master();
        let free = self.client.mutex(format!("free{number}:{NAME}")).unwrap();
        let stage = Stage::default();
        let asked = SystemClock.now();
        let guard = take(&self.lock);
        let (masters, contenders) = (&mut self.masters, &self.contenders);
        let (
            Times {
                killed,
                failed_over,
                replica,
            },
            taken,
            let_go,
        ) = thread::scope(|scope| {
            let killing = scope.spawn(|| kill(masters, old, &stage, contenders));
            let taking = scope.spawn(|| {
                eventually("the master is gone", SOON, || {
                    stage.gone.load(Ordering::SeqCst)
                });
                let guard = take(&free);
                let taken = SystemClock.now();
                stage.taken.store(true, Ordering::SeqCst);
                guard.unlock().unwrap();
                taken
            });
            let let_go = Stage::raise(&stage.let_go);
            let awaited = if holder == Holder::Stays {
                &stage.replaced
            } else {
                &stage.gone
            };
            let claim = stay(&guard, "test", asked, || awaited.load(Ordering::SeqCst));
            self.claims.push(claim.expect("it was valid"));
            assert!(
                awaited.load(Ordering::SeqCst),
                "it is valid all the time: {:?}",
                guard.loss()
            );
            let moment = SystemClock.now();
            let outcome = guard.unlock();
            assert!(holder == Holder::LetsGo || outcome.is_ok(), "{outcome:?}");
            drop(let_go);
            (killing.join().unwrap(), taking.join().unwrap(), moment)
        });
        let next = eventually("others take it on the new master", SOON, || {
            let claims = self.contenders.claims().into_iter().map(|claim| claim.from);
            claims.filter(|from| *from >= let_go.max(killed)).min()
        });
        if self.masters.has_spare_replicas() {
            self.masters.bring_back(old);
        }
        self.masters.await_quiet();
        self.await_claims_of_all_processes(SystemClock.now());
        let [failed_over, replica, let_go, usable, next] =
            [failed_over, replica, let_go, taken, next].map(|moment| moment.since(killed));
        Round {
            holder,
            failed_over,
            replica,
            let_go,
            usable,
            next,
        }
    }

    /// Stops the contenders, and returns the claims of all holders.
    fn end(self) -> Vec<Claim> {
        let Self {
            contenders,
            mut claims,
            ..
        } = self;
        claims.extend(contenders.stop());
        claims
    }
}

/// Kills this server, and returns once the new master has a replica that confirms. If only the
/// killed server can be that replica, checks that no client gets a lock before the server is back.
fn kill<M: Masters>(masters: &mut M, old: usize, stage: &Stage, others: &Contenders) -> Times {
    let (gone, replaced) = (Stage::raise(&stage.gone), Stage::raise(&stage.replaced));
    let killed = SystemClock.now();
    masters.kill(old);
    drop(gone);
    let new = masters.await_successor(old);
    let failed_over = SystemClock.now();
    drop(replaced);
    if !masters.has_spare_replicas() {
        eventually("the holder has let go", SOON, || {
            stage.let_go.load(Ordering::SeqCst)
        });
        always(
            "nothing is granted that no replica could confirm",
            ms(500),
            || {
                !stage.taken.load(Ordering::SeqCst)
                    && others.claims().iter().all(|claim| claim.from < killed)
            },
        );
        masters.bring_back(old);
    }
    masters.await_replica(new);
    Times {
        killed,
        failed_over,
        replica: SystemClock.now(),
    }
}

/// Waits until a replica of this master confirms a write.
pub fn await_confirmation(mut master: Probe) {
    eventually("a replica confirms", SOON, || {
        // A message is replicated, and leaves no key in the store.
        master.command(&["PUBLISH", "x", "x"]);
        master.command(&["WAIT", "1", "20"]) == Value::Int(1)
    });
}

/// Waits for the lock and acquires it; its master may be being replaced meanwhile.
#[track_caller]
fn take(lock: &Mutex) -> LockGuard {
    lock.try_lock_for(SOON).unwrap().expect("it comes free")
}

/// Runs `count` rounds, and checks the claims of all holders. Once there is a master with a
/// replica, each lock must be acquired within `bound`.
pub fn rounds<M: Masters>(masters: M, count: usize, bound: Duration) {
    let mut scene = Scene::start(masters);
    let (rounds, tolerance) = with_tolerance(|| {
        let round = |number| {
            let holder = if number % 2 == 0 {
                Holder::Stays
            } else {
                Holder::LetsGo
            };
            let round = scene.round(holder, number);
            round.print(number);
            round
        };
        (0..count).map(round).collect::<Vec<_>>()
    });
    judge(scene.end()).must_be_exact();
    print("failover", rounds.iter().map(|round| round.failed_over));
    print(
        "a replica that confirms",
        rounds.iter().map(|round| round.replica),
    );
    print(
        "a free lock, from when it could be",
        rounds.iter().map(Round::late),
    );
    for (holder, what) in [
        (Holder::Stays, "by then"),
        (Holder::LetsGo, "without a master"),
    ] {
        let of_kind = rounds.iter().filter(|round| round.holder == holder);
        let what = format!("the lock that was held, given back {what}, from when it could be");
        print(&what, of_kind.map(Round::next_late));
    }
    // The last check is of lateness. A release without an answer is repeated every second, so the
    // next holder is allowed half a second more.
    for (number, round) in rounds.iter().enumerate() {
        let after = round.late().max(round.next_late().saturating_sub(ms(500)));
        let (overdue, most) = (after.saturating_sub(bound), scaled(SOON) / 4);
        tolerance.must_cover(overdue, most, &format!("round {number}: {after:?}"));
    }
}

impl Round {
    /// Returns the time from which locks could be acquired again: there were a master and a
    /// replica.
    fn possible(&self) -> Duration {
        self.failed_over.max(self.replica)
    }

    /// Returns the time from then until the free lock was acquired.
    fn late(&self) -> Duration {
        self.usable.saturating_sub(self.possible())
    }

    /// Returns the time until the held lock was acquired again, from when that was possible: there
    /// were a master and a replica, and the holder had released the lock.
    fn next_late(&self) -> Duration {
        self.next.saturating_sub(self.possible().max(self.let_go))
    }

    fn print(&self, number: usize) {
        let Self {
            holder,
            failed_over,
            replica,
            usable,
            next,
            ..
        } = self;
        let holder = if *holder == Holder::Stays {
            "stays "
        } else {
            "lets go"
        };
        println!(
            "round {number:2}, holder {holder}: failover {failed_over:.2?}, replica \
             {replica:.2?}, free lock {usable:.2?}, \
             next {next:.2?}"
        );
    }
}

/// Prints the shortest, the median and the longest of these times.
fn print(what: &str, times: impl Iterator<Item = Duration>) {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    if let [shortest, .., longest] = times[..] {
        let half = times[times.len() / 2];
        println!("{what}: {shortest:.2?} to {longest:.2?}, half of them within {half:.2?}");
    }
}

impl Masters for Group {
    fn url(&self) -> String {
        Self::url(self)
    }

    fn master(&self) -> usize {
        Self::master(self)
    }

    fn kill(&mut self, server: usize) {
        self.servers[server].kill();
    }

    fn await_successor(&self, killed: usize) -> usize {
        self.await_other_than(killed)
    }

    fn has_spare_replicas(&self) -> bool {
        true
    }

    fn bring_back(&mut self, killed: usize) {
        let port = self.servers[Self::master(self)].port();
        self.servers[killed].restart_as_replica_of(port);
    }

    fn await_replica(&self, master: usize) {
        await_confirmation(self.servers[master].probe());
    }

    fn await_quiet(&self) {
        Self::await_quiet(self, 2);
    }
}

impl Masters for Cluster {
    fn url(&self) -> String {
        Self::url(self)
    }

    fn master(&self) -> usize {
        self.owner_of(NAME)
    }

    fn kill(&mut self, server: usize) {
        self.node_mut(server).kill();
    }

    fn await_successor(&self, killed: usize) -> usize {
        self.await_other_than(killed, self.slot(NAME))
    }

    /// Returns `false`: the only replica of the killed master is the new master.
    fn has_spare_replicas(&self) -> bool {
        false
    }

    fn bring_back(&mut self, killed: usize) {
        self.node_mut(killed).restart();
    }

    fn await_replica(&self, master: usize) {
        await_confirmation(self.node(master).probe());
        self.await_listing(master);
    }

    fn await_quiet(&self) {
        self.wait_until_agreed(self.len());
    }
}

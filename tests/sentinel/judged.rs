//! Many threads of several processes want one lock while its master is killed, again and again, with it held. Each says
//! when it had the lock, and a judge looks whether two had it at once.

use crate::contenders::{Contenders, stay};
use crate::harness::claims::{Claim, judge};
use crate::harness::probe::Value;
use crate::harness::sentinel::Group;
use crate::harness::time::{eventually, fairly, ms};
use crate::scene::{SOON, connect, take};
use distlock::{Client, Clock, Moment, Mutex, SystemClock};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const PROCESSES: usize = 4;
const THREADS: usize = 4;
const NAME: &str = "judged";

/// What is done by the holder whose master is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holder {
    /// Goes on holding until the next master is there.
    Stays,
    /// Gives the lock back when there is no master.
    LetsGo,
}

/// When what happened in one round, counted from the kill.
struct Round {
    holder: Holder,
    /// All sentinels name the new master, and it says that it is one.
    failed_over: Duration,
    /// The other replica confirms what the new master writes.
    replica: Duration,
    /// Another lock, which was free, was taken.
    usable: Duration,
    /// The lock that was held at the kill was taken by the next one; counted from when it was let go.
    next: Duration,
}

/// How far the failover is, for those who wait for it.
#[derive(Default)]
struct Stage {
    gone: AtomicBool,
    replaced: AtomicBool,
}

struct Times {
    killed: Moment,
    failed_over: Moment,
    replica: Moment,
}

/// Kills this server, and returns when the next master has a replica that confirms.
fn kill(group: &mut Group, old: usize, stage: &Stage) -> Times {
    let killed = SystemClock.now();
    group.servers[old].kill();
    stage.gone.store(true, Ordering::SeqCst);
    let new = group.await_other_than(old);
    let failed_over = SystemClock.now();
    stage.replaced.store(true, Ordering::SeqCst);
    let mut probe = group.servers[new].probe();
    eventually("the other replica confirms", SOON, || {
        probe.command(&["PUBLISH", "x", "x"]);
        probe.command(&["WAIT", "1", "20"]) == Value::Int(1)
    });
    Times { killed, failed_over, replica: SystemClock.now() }
}

/// The group, and who takes part.
struct Scene {
    group: Group,
    client: Client,
    lock: Mutex,
    contenders: Contenders,
    /// Of the holder that the test is itself.
    claims: Vec<Claim>,
}

impl Scene {
    fn start() -> Self {
        let group = Group::start();
        let url = format!("{}?replicas=all&watchdog=20s", group.url());
        let client = connect(&url);
        let lock = client.mutex(NAME).unwrap();
        let contenders = Contenders::start(&url, NAME, PROCESSES, THREADS);
        let scene = Self { group, client, lock, contenders, claims: Vec::new() };
        eventually("all processes are there", SOON, || {
            scene.holders_since(Moment::from_nanos(0)) >= PROCESSES
        });
        scene
    }

    fn holders_since(&self, since: Moment) -> usize {
        let claims = self.contenders.claims().into_iter().filter(|claim| claim.from >= since);
        let mut processes: Vec<_> =
            claims.map(|claim| claim.holder.split('.').next().unwrap().to_owned()).collect();
        processes.sort_unstable();
        processes.dedup();
        processes.len()
    }

    /// Kills the master while the lock is held, and brings it back as a replica.
    fn round(&mut self, holder: Holder, number: usize) -> Round {
        let old = self.group.master();
        let free = self.client.mutex(format!("free{number}")).unwrap();
        let stage = Stage::default();
        let asked = SystemClock.now();
        let guard = take(&self.lock);
        let group = &mut self.group;
        let (Times { killed, failed_over, replica }, taken, let_go) = thread::scope(|scope| {
            let killing = scope.spawn(|| kill(group, old, &stage));
            let taking = scope.spawn(|| {
                eventually("the master is gone", SOON, || stage.gone.load(Ordering::SeqCst));
                let guard = take(&free);
                let taken = SystemClock.now();
                guard.unlock().unwrap();
                taken
            });
            let stage = if holder == Holder::Stays { &stage.replaced } else { &stage.gone };
            let claim = stay(&guard, "test", asked, || stage.load(Ordering::SeqCst));
            self.claims.push(claim.expect("it was valid"));
            assert!(stage.load(Ordering::SeqCst), "it is valid all the time: {:?}", guard.loss());
            let let_go = SystemClock.now();
            let outcome = guard.unlock();
            assert!(holder == Holder::LetsGo || outcome.is_ok(), "{outcome:?}");
            (killing.join().unwrap(), taking.join().unwrap(), let_go)
        });
        let next = eventually("others take it on the new master", SOON, || {
            let claims = self.contenders.claims().into_iter().map(|claim| claim.from);
            claims.filter(|from| *from >= let_go.max(killed)).min()
        });
        self.recover(old);
        Round {
            holder,
            failed_over: failed_over.since(killed),
            replica: replica.since(killed),
            usable: taken.since(killed),
            next: next.since(if holder == Holder::Stays { let_go } else { killed }),
        }
    }

    /// The server that was killed comes back, as a replica of the new master, and everybody sees it.
    fn recover(&mut self, killed: usize) {
        let port = self.group.servers[self.group.master()].port();
        self.group.servers[killed].restart_as_replica_of(port);
        self.group.await_quiet(2);
        let since = SystemClock.now();
        eventually("every process had the lock since", SOON, || {
            self.holders_since(since) == PROCESSES
        });
    }

    /// What everybody said.
    fn end(self) -> Vec<Claim> {
        let Self { contenders, mut claims, .. } = self;
        claims.extend(contenders.stop());
        claims
    }
}

fn rounds(count: usize) {
    let mut scene = Scene::start();
    let rounds: Vec<_> = (0..count)
        .map(|number| {
            let holder = if number % 2 == 0 { Holder::Stays } else { Holder::LetsGo };
            let round = scene.round(holder, number);
            round.print(number);
            round
        })
        .collect();
    judge(scene.end()).must_be_exact();
    print("failover", rounds.iter().map(|round| round.failed_over));
    print("a free lock, after the failover", rounds.iter().map(Round::late));
    for (holder, what) in
        [(Holder::Stays, "from its release"), (Holder::LetsGo, "after the failover")]
    {
        let of_kind = rounds.iter().filter(|round| round.holder == holder);
        print(&format!("the lock that was held, {what}"), of_kind.map(Round::next_late));
    }
    for (number, round) in rounds.iter().enumerate() {
        assert!(round.late() <= ms(1_000), "round {number}: {:?} too late", round.late());
        // A release without an answer is tried again at least every second.
        assert!(round.next_late() <= ms(1_500), "round {number}: {:?} too late", round.next_late());
    }
}

impl Round {
    /// How long it took until locks could be taken again, from when they could be: there is a master, and a replica.
    fn late(&self) -> Duration {
        self.usable.saturating_sub(self.failed_over.max(self.replica))
    }

    /// The same for the lock that was held: from its release, or, where there was no master to release it on, from when
    /// there was one.
    fn next_late(&self) -> Duration {
        match self.holder {
            Holder::Stays => self.next,
            Holder::LetsGo => self.next.saturating_sub(self.failed_over.max(self.replica)),
        }
    }

    fn print(&self, number: usize) {
        let Self { holder, failed_over, replica, usable, next } = self;
        let holder = if *holder == Holder::Stays { "stays " } else { "lets go" };
        println!(
            "round {number:2}, holder {holder}: failover {failed_over:.2?}, replica {replica:.2?}, free lock {usable:.2?}, \
             next {next:.2?}"
        );
    }
}

/// The distribution.
fn print(what: &str, times: impl Iterator<Item = Duration>) {
    let mut times: Vec<_> = times.collect();
    times.sort_unstable();
    if let [shortest, .., longest] = times[..] {
        println!(
            "{what}: {shortest:.2?} to {longest:.2?}, half of them within {:.2?}",
            times[times.len() / 2]
        );
    }
}

#[test]
fn over_three_kills_with_the_lock_held_nobody_else_has_it_while_a_guard_is_valid() {
    fairly(|| rounds(3));
}

#[test]
#[ignore = "a minute or two: `cargo test --all-features --test sentinel nor_over_twenty -- --ignored --nocapture` runs it"]
fn nor_over_twenty_kills() {
    rounds(20);
}

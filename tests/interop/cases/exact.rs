//! No two clients, of either side, hold a lock at once.

use crate::libraries::Library;
use crate::ours::{LABEL, LONG, Until, count};
use crate::peer::{Peer, Pending};
use crate::scene::Scene;
use distlock::DistLock;
use distlock_tests::process::RedisServer;
use lock_conformance::violated_unless;
use std::thread;
use std::time::Duration;

const THREADS: usize = 4;
const TIMES: u64 = 200;

/// The pause between two increments of a thread: long enough for other threads to get the lock, and
/// so short that a thread always waits for it.
const PAUSE: Duration = Duration::from_millis(1);

/// How long both sides contend for the lock without a break, to compare their shares.
const CONTEST: Duration = Duration::from_secs(2);

/// The largest number of rounds in which the two sides must meet, or both get their shares. If a
/// side polls, it is chance which side finds the lock free. A side that contends all the time may
/// starve a polling one, so the pause doubles in each round, and the lock is free more often. That
/// no two holders are inside at once must be true in every round.
const ROUNDS: usize = 5;

/// Returns the pause of each round.
fn pauses() -> impl Iterator<Item = Duration> {
    (0..ROUNDS).map(|round| PAUSE * (1 << round))
}

/// Four threads of each side add up to the exact sum, and the lock changes sides.
pub(crate) fn no_increment_is_lost_between_both_sides(library: &'static Library) {
    let scene = Scene::with(library, "", library.eager);
    let lock = scene.ours.mutex("lock");
    add_up(
        library.name,
        &scene.peer,
        &lock,
        "lock",
        &scene.server,
        (TIMES, library.crossings),
    );
    assert!(
        !scene.probe().exists(&library.key("lock")),
        "the lock is free in the end"
    );
}

/// Has each thread of the peer count once, without a check. A JVM loads classes at its first
/// requests, which on a busy machine takes as long as all of our increments.
fn warm_up(peer: &Peer, name: &str, data: &RedisServer) {
    for pending in all(peer, &format!("count {name} warm 1 0 0")) {
        pending.within(LONG);
    }
    data.probe().command(&["DEL", "warm", "warm:by"]);
}

/// Sends this line to each thread of the peer.
fn all<'a>(peer: &'a Peer, line: &str) -> Vec<Pending<'a>> {
    (0..THREADS)
        .map(|thread| peer.tell(&format!("t{thread}"), line))
        .collect()
}

/// Checks the sum under a lock that both sides share: `lock` is ours, and `name` is its name in the
/// peer. The sum is on `data`.
pub(crate) fn add_up(
    what: &str,
    peer: &Peer,
    lock: &dyn DistLock,
    name: &str,
    data: &RedisServer,
    (times, least): (u64, usize),
) {
    warm_up(peer, name, data);
    let mut crossings = 0;
    for pause in pauses() {
        // The first change of sides does not count: one side may have waited until the other had
        // finished.
        crossings += add_up_once(what, peer, lock, name, data, (times, pause)).saturating_sub(1);
        if crossings >= least {
            return;
        }
    }
    panic!("in {ROUNDS} rounds the two sides met {crossings} times only: little was shown");
}

/// Runs one round, and returns how often the lock changed sides.
fn add_up_once(
    what: &str,
    peer: &Peer,
    lock: &dyn DistLock,
    name: &str,
    data: &RedisServer,
    (times, pause): (u64, Duration),
) -> usize {
    let theirs = all(
        peer,
        &format!("count {name} sum {times} {} 0", pause.as_micros()),
    );
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| count(lock, data.port(), "sum", Until::Times(times), pause));
        }
    });
    for pending in theirs {
        assert_eq!(pending.within(LONG), times.to_string());
    }
    let (each, mut probe) = (times * THREADS as u64, data.probe());
    let sum = probe.get("sum").map(|sum| sum.parse::<u64>().unwrap());
    let lost = format!(
        "{sum:?} of {}: an increment is lost, two were inside",
        2 * each
    );
    violated_unless(sum == Some(2 * each), lost);
    let by = probe.command(&["LRANGE", "sum:by", "0", "-1"]).texts();
    let ours = by.iter().filter(|it| *it == LABEL).count() as u64;
    assert_eq!((ours, by.len() as u64), (each, 2 * each));
    probe.command(&["DEL", "sum", "sum:by"]);
    let crossings = by.windows(2).filter(|two| two[0] != two[1]).count();
    say!(
        "{what}: {} increments, {crossings} times from one side to the other",
        by.len()
    );
    crossings
}

/// Both sides contend for the lock for two seconds, with equally many threads. Neither starves.
pub(crate) fn both_sides_get_a_share_of_the_lock(library: &'static Library) {
    let scene = Scene::of(library);
    warm_up(&scene.peer, "lock", &scene.server);
    // A `share` of 0 accepts everything: such a library is notified of its own releases only, so
    // one side may hold the lock until it has finished.
    let fair = library.share..=100 - library.share;
    // A JVM that has just started may be slow to wake.
    let rounds = if library.is_told() { 2 } else { ROUNDS };
    let is_fair = (0..rounds).any(|_| fair.contains(&share(&scene, library)));
    assert!(is_fair, "one side starves each time");
}

/// Returns our part of all turns, in percent.
fn share(scene: &Scene, library: &Library) -> u64 {
    let line = format!(
        "contend lock sum {} {} 0",
        CONTEST.as_millis(),
        PAUSE.as_micros()
    );
    let theirs = all(&scene.peer, &line);
    let ours: u64 = thread::scope(|scope| {
        let visits = || {
            scene
                .ours
                .count("lock", "sum", Until::Passed(CONTEST), PAUSE)
        };
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(visits)).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum()
    });
    let theirs: Vec<u64> = theirs
        .into_iter()
        .map(|pending| pending.within(LONG).parse().unwrap())
        .collect();
    let (all, mut probe) = (ours + theirs.iter().sum::<u64>(), scene.probe());
    let share = ours * 100 / all;
    say!(
        "{}: of {all} turns {share} % were ours, theirs by thread {theirs:?}",
        library.name
    );
    let sum = probe.get("sum");
    let what = format!("{sum:?} of {all}: an increment is lost, two were inside");
    violated_unless(sum == Some(all.to_string()), what);
    probe.command(&["DEL", "sum", "sum:by"]);
    share
}

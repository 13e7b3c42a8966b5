//! No two holders are inside at once.

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

/// Between two increments of a thread: time for the others to get in, and so short that a waiter
/// waits all the time.
const PAUSE: Duration = Duration::from_millis(1);

/// How long both sides want the lock all the time, to see who gets it.
const CONTEST: Duration = Duration::from_secs(2);

/// Where a side asks now and then, it is chance who finds the lock free: so often they try
/// whether the two sides meet, and whether both get their share. That no two holders are
/// inside at once must be so each time. A side that wants the lock all the time may starve one that
/// only asks: to meet, they pause for twice as long each time, so that it is free more often.
const ROUNDS: usize = 5;

/// How long they pause in each round.
fn pauses() -> impl Iterator<Item = Duration> {
    (0..ROUNDS).map(|round| PAUSE * (1 << round))
}

/// Four threads of theirs and four of ours add up to the exact sum, and pass the lock to and fro.
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

/// A JVM loads what it needs at its first requests: on a busy machine that takes as long as all
/// increments of ours.
fn warm_up(peer: &Peer, name: &str, data: &RedisServer) {
    for pending in all(peer, &format!("count {name} warm 1 0 0")) {
        pending.within(LONG);
    }
    data.probe().command(&["DEL", "warm", "warm:by"]);
}

/// Has each of their threads do this.
fn all<'a>(peer: &'a Peer, line: &str) -> Vec<Pending<'a>> {
    (0..THREADS)
        .map(|thread| peer.tell(&format!("t{thread}"), line))
        .collect()
}

/// The same for whatever lock is one for both: ours, and the name that they know it by. What it
/// protects is on `data`.
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
        // The first time is no meeting: one side may have waited for the end of the other.
        crossings += add_up_once(what, peer, lock, name, data, (times, pause)).saturating_sub(1);
        if crossings >= least {
            return;
        }
    }
    panic!("in {ROUNDS} rounds the two sides met {crossings} times only: little was shown");
}

/// How often the lock went from one side to the other meanwhile.
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

/// Both want the lock for some seconds, with as many threads: neither starves.
pub(crate) fn both_sides_get_a_share_of_the_lock(library: &'static Library) {
    let scene = Scene::of(library);
    warm_up(&scene.peer, "lock", &scene.server);
    // From 0 to 100 where nothing is promised: they hear of their own releases only, and one side
    // may go on until it is done.
    let fair = library.share..=100 - library.share;
    // A JVM that has just begun comes late when it is woken.
    let rounds = if library.is_told() { 2 } else { ROUNDS };
    let is_fair = (0..rounds).any(|_| fair.contains(&share(&scene, library)));
    assert!(is_fair, "one side starves each time");
}

/// What of the turns was ours, in percent.
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

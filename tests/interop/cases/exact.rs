//! Nobody is inside beside anybody else.

use crate::harness::process::RedisServer;
use crate::libraries::Library;
use crate::ours::{LABEL, LONG, Until, count};
use crate::peer::Peer;
use crate::scene::Scene;
use distlock::DistLock;
use std::thread;
use std::time::Duration;

const THREADS: usize = 4;
const TIMES: u64 = 500;

/// Between two increments of a thread: time for the others to get in, and never so long that nobody waits.
const PAUSE: Duration = Duration::from_millis(1);

/// How long both sides want the lock all the time, to see who gets it.
const CONTEST: Duration = Duration::from_secs(3);

/// Four threads of theirs and four of ours add up to the exact sum, and pass the lock to and fro.
pub(crate) fn no_increment_is_lost(library: &'static Library) {
    let Some(scene) = Scene::with(library, "", library.eager) else { return };
    let lock = scene.ours.mutex("lock");
    add_up(library.name, &scene.peer, &lock, "lock", &scene.server, (TIMES, library.crossings));
    assert!(!scene.probe().exists(&library.key("lock")), "the lock is free in the end");
}

/// The same for whatever lock is one for both: ours, and the name that they know it by. What it protects is on `data`.
pub(crate) fn add_up(
    what: &str,
    peer: &Peer,
    lock: &dyn DistLock,
    name: &str,
    data: &RedisServer,
    (times, least): (u64, usize),
) {
    let line = format!("count {name} sum {times} {} 0", PAUSE.as_micros());
    let theirs: Vec<_> =
        (0..THREADS).map(|thread| peer.tell(&format!("t{thread}"), &line)).collect();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| count(lock, data.port(), "sum", Until::Times(times), PAUSE));
        }
    });
    for pending in theirs {
        assert_eq!(pending.within(LONG), times.to_string());
    }
    let (each, mut probe) = (times * THREADS as u64, data.probe());
    let sum = probe.get("sum").map(|sum| sum.parse::<u64>().unwrap());
    assert_eq!(sum, Some(2 * each), "an increment is lost: two were inside");
    let by = probe.command(&["LRANGE", "sum:by", "0", "-1"]).texts();
    let ours = by.iter().filter(|it| *it == LABEL).count() as u64;
    assert_eq!((ours, by.len() as u64), (each, 2 * each));
    let crossings = by.windows(2).filter(|two| two[0] != two[1]).count();
    say!("{what}: {} increments, {crossings} times from one side to the other", by.len());
    assert!(crossings >= least, "the two sides met {crossings} times only: little was shown");
}

/// Both want the lock for some seconds, with as many threads: neither starves.
pub(crate) fn both_get_their_share(library: &'static Library) {
    let Some(scene) = Scene::of(library) else { return };
    let line = format!("contend lock sum {} {} 0", CONTEST.as_millis(), PAUSE.as_micros());
    let theirs: Vec<_> =
        (0..THREADS).map(|thread| scene.peer.tell(&format!("t{thread}"), &line)).collect();
    let ours: u64 = thread::scope(|scope| {
        let visits = || scene.ours.count("lock", "sum", Until::Passed(CONTEST), PAUSE);
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(visits)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    let theirs: Vec<u64> =
        theirs.into_iter().map(|pending| pending.within(LONG).parse().unwrap()).collect();
    let all = ours + theirs.iter().sum::<u64>();
    let share = ours * 100 / all;
    say!("{}: of {all} turns {share} % were ours, theirs by thread {theirs:?}", library.name);
    assert_eq!(
        scene.probe().get("sum"),
        Some(all.to_string()),
        "an increment is lost: two were inside"
    );
    // Where nothing is promised: they hear of their own releases only, and one side may go on until it is done.
    assert!(
        (library.share..=100 - library.share).contains(&share),
        "of {all} turns {ours} were ours: one side starves"
    );
}

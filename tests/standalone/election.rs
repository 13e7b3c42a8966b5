//! Elections between processes that are killed and paused: never two leaders, and terms that grow.

use distlock::time::{Clock, Moment, SystemClock};
use distlock_tests::claims::judge;
use distlock_tests::contenders::Contenders;
use distlock_tests::contenders::leaders::{Role, interrupted_candidate};
use distlock_tests::own_process::alone;
use distlock_tests::process::RedisServer;
use distlock_tests::redis::client;
use distlock_tests::time::eventually;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// The lease of the leadership.
const LEASE: &str = "watchdog=1s";

/// Waits until a process has led after this moment, and returns its process ID.
fn await_leader(candidates: &mut Contenders, after: Moment) -> u32 {
    eventually("a process leads", LONG, || {
        candidates.leader(after).map(|leader| leader.id())
    })
}

/// Pauses the leader until another process leads.
fn replace_by_pause(candidates: &mut Contenders) {
    let begun = SystemClock.now();
    let old = await_leader(candidates, begun);
    // Pauses `old` even if another process leads by now: otherwise `old` could lead next, and the
    // wait below would not end.
    candidates.of(old).pause();
    eventually("another process leads", LONG, || {
        candidates
            .leader(begun)
            .is_some_and(|leader| leader.id() != old)
    });
    candidates.of(old).resume();
}

#[test]
fn killed_and_paused_leaders_never_lead_beside_another() {
    let server = RedisServer::start();
    let url = format!("{}?{LEASE}", server.url());
    let mut candidates = Contenders::candidates(Role::Valid, &url, "x", 4);
    for round in 0..6 {
        if round % 3 == 2 {
            let begun = SystemClock.now();
            let old = await_leader(&mut candidates, begun);
            candidates.of(old).kill();
            eventually("another process leads", LONG, || {
                candidates
                    .leader(begun)
                    .is_some_and(|leader| leader.id() != old)
            });
        } else {
            replace_by_pause(&mut candidates);
        }
    }
    let verdict = judge(candidates.terms());
    verdict.must_be_exact();
    assert!(verdict.by_lock["x"].len() > 6, "{:?}", verdict.by_lock);
}

#[test]
fn judge_finds_the_leader_that_ignores_validity() {
    let server = RedisServer::start();
    let url = format!("{}?{LEASE}", server.url());
    let mut candidates = Contenders::candidates(Role::Told, &url, "x", 3);
    eventually("two lead at once", LONG, || {
        replace_by_pause(&mut candidates);
        !judge(candidates.terms()).together.is_empty()
    });
}

/// The campaign's thread may have a request under way when the process ends. The grant would remain
/// for a whole lease, and so would a place in the queue for its presence.
#[test]
fn interrupted_candidates_leave_nothing_in_the_store() {
    let server = RedisServer::start();
    let url = format!("{}?watchdog=60s", server.url());
    let mut probe = server.probe();
    for round in 0..60 {
        let holder = (round % 3 == 0).then(|| client(&server, "").mutex("x").unwrap());
        let held = holder.as_ref().map(|lock| lock.lock().unwrap());
        let after = Duration::from_micros(round * 25);
        let mut candidate = interrupted_candidate(after, &url, "x");
        assert_eq!(candidate.wait_exit(LONG), 0, "{}", candidate.errors());
        drop(held);
        eventually("nothing remains", Duration::from_secs(20), || {
            !probe.exists("x") && !probe.exists("distlock_queue:2:{x}")
        });
    }
}

/// Returns how many threads of this process have this name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|it| it.trim() == name).count()
}

#[test]
fn dropped_election_releases_at_once_and_ends_its_threads() {
    alone(
        "election::dropped_election_releases_at_once_and_ends_its_threads",
        || {
            let server = RedisServer::start();
            let client = client(&server, "");
            let elections = [(); 3].map(|()| client.election("x").unwrap());
            for election in &elections {
                election.campaign().unwrap();
                election.on_change(drop).unwrap();
            }
            eventually("one leads", LONG, || {
                elections.iter().any(distlock::Election::is_leader)
            });
            eventually("each has its threads", LONG, || {
                (threads("distlock-elect"), threads("distlock-leader")) == (3, 3)
            });
            drop(elections);
            eventually("the lock is free", LONG, || !server.probe().exists("x"));
            eventually("no thread is left", LONG, || {
                threads("distlock-elect") + threads("distlock-leader") == 0
            });
        },
    );
}

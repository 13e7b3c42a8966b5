//! Failovers and restarts one after the other, with one lock held all the time.

use crate::scene::{SOON, await_move, client, connect, take};
use distlock::{Client, LockGuard};
use distlock_tests::sentinel::{Group, is_master};
use distlock_tests::time::{Stopwatch, eventually};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

const NAME: &str = "held";

/// The options of all clients: a long lease, because sentinels that do not agree on a leader of the
/// failover try again seconds later.
const SETTINGS: &str = "watchdog=20s&replicas=all";

/// Another client, which repeatedly tries to acquire the held lock.
struct Rival {
    is_over: Arc<AtomicBool>,
    asked: Arc<AtomicU32>,
    thread: thread::JoinHandle<()>,
}

impl Rival {
    fn start(client: Client) -> Self {
        let (is_over, asked) = (Arc::<AtomicBool>::default(), Arc::<AtomicU32>::default());
        let (ends, counts) = (Arc::clone(&is_over), Arc::clone(&asked));
        let thread = thread::spawn(move || {
            let lock = client.mutex(NAME).unwrap();
            while !ends.load(Ordering::SeqCst) {
                // A failed request is no grant.
                let granted = lock.try_lock().ok().flatten();
                assert!(granted.is_none(), "two holders");
                counts.fetch_add(1, Ordering::SeqCst);
            }
        });
        Self {
            is_over,
            asked,
            thread,
        }
    }

    fn stop(self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.join().unwrap();
        assert!(self.asked.load(Ordering::SeqCst) > 0);
    }
}

/// Restarts the server with this number as a replica of the present master.
fn restart(group: &mut Group, place: usize) {
    let master = group.servers[group.master()].port();
    group.servers[place].restart_as_replica_of(master);
    group.await_quiet(2);
}

fn must_be_held(guard: &LockGuard, group: &Group, step: &str) {
    assert!(guard.is_valid(), "{step}: {:?}", guard.loss());
    let master = group.master();
    eventually(step, SOON, || {
        assert!(guard.is_valid(), "{step}: {:?}", guard.loss());
        group.servers[master].probe().exists(NAME)
    });
}

/// Runs `count` rounds: a failover on demand, restarts of all three servers one by one, and a kill
/// of the master.
fn rounds(count: u32) {
    let mut group = Group::start();
    let holder = client(&group, SETTINGS);
    let guard = take(&holder.mutex(NAME).unwrap());
    let rival = Rival::start(connect(&format!("{}?{SETTINGS}", group.url())));
    let mut longest = std::time::Duration::ZERO;
    for round in 1..=count {
        let old = group.fail_over();
        let new = group.await_other_than(old);
        group.await_quiet(2);
        must_be_held(
            &guard,
            &group,
            &format!("round {round}: failover on demand"),
        );
        // First the two replicas are restarted; then, after a failover, the former master.
        for place in (0..3).filter(|place| *place != new) {
            restart(&mut group, place);
            must_be_held(
                &guard,
                &group,
                &format!("round {round}: restart of {place}"),
            );
        }
        let old = group.fail_over();
        let master = group.await_other_than(old);
        group.await_quiet(2);
        restart(&mut group, old);
        must_be_held(
            &guard,
            &group,
            &format!("round {round}: restart of the master"),
        );
        let lock = holder.mutex(format!("free{round}")).unwrap();
        take(&lock).unlock().unwrap();
        let start = Stopwatch::start();
        let new = group.replace_killed(master, 2, |_| {});
        await_move(&lock, &group.servers[new]);
        longest = longest.max(start.elapsed());
        restart(&mut group, master);
        must_be_held(
            &guard,
            &group,
            &format!("round {round}: death of the master"),
        );
    }
    println!("{count} rounds, at most {longest:?} from the kill to the next grant");
    guard.verify().unwrap();
    rival.stop();
    guard.unlock().unwrap();
}

#[test]
fn one_hold_survives_failovers_and_rolling_restarts() {
    rounds(2);
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn one_hold_survives_ten_rounds_of_failovers_and_restarts() {
    rounds(10);
}

/// The restarted former master is empty, and says that it is a master until a sentinel demotes it.
#[test]
fn returned_master_is_not_used_although_it_says_that_it_is_one() {
    let mut group = Group::start();
    let old = group.master();
    let veteran = client(&group, SETTINGS);
    let held = take(&veteran.mutex(NAME).unwrap());
    let new = group.replace_killed(old, 2, |_| {});
    await_move(&veteran.mutex("moves").unwrap(), &group.servers[new]);
    group.servers[old].restart();
    assert!(is_master(&group.servers[old]));
    let mut attempts = 0;
    eventually("it is demoted", SOON, || {
        // One client that used the former master, and one that has just been created.
        for lock in [&veteran, &client(&group, SETTINGS)].map(|it| it.mutex("free").unwrap()) {
            let guard = take(&lock);
            assert!(group.servers[new].probe().exists("free"));
            guard.unlock().unwrap();
        }
        let rival = client(&group, SETTINGS).mutex(NAME).unwrap();
        assert!(rival.try_lock().ok().flatten().is_none(), "two holders");
        held.verify().unwrap();
        attempts += u32::from(is_master(&group.servers[old]));
        !is_master(&group.servers[old])
    });
    assert!(attempts > 0, "it was a master for a while");
    held.unlock().unwrap();
}

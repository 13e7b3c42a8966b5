//! Slots that the servers move at once with all their keys (`CLUSTER MIGRATESLOTS`).

use crate::scene::{LONG, Load, client_with, take, turn};
use distlock::Mutex;
use distlock_tests::cluster::Cluster;
use distlock_tests::time::{Stopwatch, eventually};
use distlock_tests::version::skip;
use std::thread;
use std::time::Duration;

/// How often the slot goes there and back.
const TIMES: usize = 50;

/// Far longer than a waiter takes that is notified on the slot's new node, so that a waiter that
/// waits for the end of the lease is found out.
const LEASE: Duration = Duration::from_secs(120);

/// Holders keep their locks, and plain and fair waiters get their turns on whichever node the slot
/// is. No two threads hold a lock at once.
#[test]
fn locks_are_kept_while_their_slot_is_moved_at_once() {
    let cluster = Cluster::steady();
    if !cluster.can_move_at_once() {
        return skip("slots moved at once: the server has no CLUSTER MIGRATESLOTS (Valkey 9)");
    }
    let tag = cluster.name_on(0, "atomic");
    let slot = cluster.slot(&tag);
    let [kept, mutex, fair] = ["kept", "mutex", "fair"].map(|name| format!("{{{tag}}}:{name}"));
    let settings = format!(
        "watchdog={}s&command_timeout=3s&connect_timeout=2s",
        LEASE.as_secs()
    );
    let [holder, one, other] = [(); 3].map(|()| client_with(&cluster.url(), &settings));
    let held = take(&holder, &kept);
    let loads = [(); 2].map(|()| Load::default());
    thread::scope(|scope| {
        let waits = scope.spawn(|| turn(&other, &kept));
        {
            let _stops = loads.each_ref().map(Load::until_dropped);
            for client in [&one, &other] {
                let locks: [Mutex; 2] = [
                    client.mutex(&*mutex).unwrap(),
                    client.fair_mutex(&*fair).unwrap(),
                ];
                for (load, lock) in loads.iter().zip(locks) {
                    let (first, second) = (lock.clone(), lock);
                    scope.spawn(move || load.take_turns(&first));
                    scope.spawn(move || load.take_turns(&second));
                }
            }
            for (from, to) in [(0, 1), (1, 0)].into_iter().cycle().take(2 * TIMES) {
                let before = loads.each_ref().map(|load| load.room.visits());
                cluster.move_at_once(slot, from, to);
                eventually("both take turns", LONG, || {
                    loads
                        .iter()
                        .zip(before)
                        .all(|(load, before)| load.room.visits() > before + 4)
                });
                assert!(held.verify().unwrap() > Duration::ZERO);
                assert!(!waits.is_finished(), "it is held");
            }
        }
        let watch = Stopwatch::start();
        held.unlock().unwrap();
        waits.join().unwrap();
        println!("{:.1?} from the release to the grant", watch.elapsed());
        assert!(
            watch.elapsed() < LEASE / 3,
            "it is woken where the slot is now"
        );
    });
    for load in &loads {
        println!(
            "{} visits, {:?} times unavailable",
            load.room.visits(),
            load.unavailable
        );
        assert_eq!(load.room.collisions(), 0);
        assert_eq!(*load.wrong.lock(), [""; 0]);
    }
}

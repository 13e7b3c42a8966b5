//! RedissonMultiLock and RedissonRedLock take their members one by one, as plain RLocks. Our
//! multi-lock, majority and quorum contend with them for the same members.

use super::ENDS;
use crate::cases::exact::add_up;
use crate::cases::waking;
use crate::late::{self, retry_if_late};
use crate::libraries::{ALL_REDISSONS, Library};
use crate::ours::Ours;
use crate::scene::{Independent, Scene};
use crate::suite::{Permit, Suite, case};
use distlock::{DistLock, MajorityLock, MultiLock};
use distlock_tests::process::RedisServer;

const TIMES: u64 = 60;

pub(crate) fn mount(suite: &mut Suite) {
    use Permit::{Exclusive, Shared};
    let order = case!(multi_locks_of_both_sides_exclude_in_any_order);
    suite.each(Shared, &ALL_REDISSONS, order);
    let soon = case!(multi_locks_are_granted_at_once_after_a_release);
    suite.each(Exclusive, &ENDS, soon);
    let whole = case!(failed_redisson_multi_lock_keeps_no_member);
    suite.each(Shared, &ALL_REDISSONS, whole);
    let quorum = case!(redisson_red_lock_and_our_quorum_exclude_each_other);
    suite.each(Shared, &ALL_REDISSONS, quorum);
    let wake = case!(redisson_red_lock_and_our_quorum_wake_each_other_at_once);
    suite.each(Exclusive, &ALL_REDISSONS, wake);
    let majority = case!(redisson_red_lock_and_our_majority_exclude_each_other);
    suite.each(Shared, &ALL_REDISSONS, majority);
}

/// Redisson keeps the members that it has while it waits for the next one, so two such locks with
/// opposite orders of names could block each other. Ours releases its members before it waits.
fn multi_locks_of_both_sides_exclude_in_any_order(library: &'static Library) {
    let scene = Scene::with(library, "", &["kind=multi"]);
    let ours = ["a", "b", "c"].map(|name| scene.ours.mutex(name));
    let several = MultiLock::new(ours).unwrap();
    let what = format!("{} multi", library.name);
    add_up(
        &what,
        &scene.peer,
        &several,
        "c,b,a",
        &scene.server,
        (TIMES, 5),
    );
    assert_eq!(locks_in(&scene.server), [""; 0]);
}

/// A Redisson waiter waits for one member after another, and so does ours.
fn multi_locks_are_granted_at_once_after_a_release(library: &'static Library) {
    retry_if_late(late::TURN, || {
        let scene = Scene::with(library, "", &["kind=multi"]);
        let several = MultiLock::new(["a", "b", "c"].map(|name| scene.ours.mutex(name))).unwrap();
        let member = scene.ours.mutex("b");
        let locks: [(&str, &dyn DistLock); 2] = [("multi", &several), ("member", &member)];
        for (ours, lock) in locks {
            let what = format!("{} multi and our {ours}", library.name);
            waking::both_are_soon(&what, &scene.peer, lock, "a,b,c");
        }
    });
}

fn failed_redisson_multi_lock_keeps_no_member(library: &'static Library) {
    let scene = Scene::with(library, "", &["kind=multi"]);
    let member = scene.ours.mutex("b");
    let guard = member.lock().unwrap();
    assert!(scene.peer.ask("t", "try a,b,c 200 0").starts_with("busy"));
    assert_eq!(locks_in(&scene.server), ["b"]);
    guard.unlock().unwrap();
    scene.peer.ask("t", "lock a,b,c 0");
    assert!(member.try_lock().unwrap().is_none());
    scene.peer.ask("t", "unlock a,b,c");
    assert!(member.try_lock().unwrap().is_some());
}

/// Starts three servers that are used by Redisson's red lock, our quorum and our majority.
fn independent(library: &'static Library) -> Independent {
    Independent::start(
        library,
        "max_lease=10m",
        &["kind=red", "topology=independent"],
    )
}

fn redisson_red_lock_and_our_quorum_exclude_each_other(library: &'static Library) {
    let scene = independent(library);
    let client = scene.servers.client();
    let lock = client.mutex("lock").unwrap();
    let guard = lock.lock().unwrap();
    assert!(scene.peer.ask("t", "try lock 100 0").starts_with("busy"));
    guard.unlock().unwrap();
    scene.peer.ask("t", "lock lock 0");
    assert!(lock.try_lock().unwrap().is_none());
    scene.peer.ask("t", "unlock lock");
    let what = format!("{} red and a quorum", library.name);
    add_up(&what, &scene.peer, &lock, "lock", scene.data(), (TIMES, 5));
}

fn redisson_red_lock_and_our_quorum_wake_each_other_at_once(library: &'static Library) {
    retry_if_late(late::TURN, || {
        let scene = independent(library);
        let client = scene.servers.client();
        let lock = client.mutex("lock").unwrap();
        let what = format!("{} red and a quorum", library.name);
        waking::both_are_soon(&what, &scene.peer, &lock, "lock");
    });
}

fn redisson_red_lock_and_our_majority_exclude_each_other(library: &'static Library) {
    let scene = independent(library);
    let servers = scene.servers.servers.iter();
    let clients: Vec<_> = servers
        .map(|it| Ours::connect(library, &it.url(), "", it.port()))
        .collect();
    let lock = MajorityLock::new(clients.iter().map(|ours| ours.mutex("lock"))).unwrap();
    let what = format!("{} red and a majority", library.name);
    add_up(&what, &scene.peer, &lock, "lock", scene.data(), (TIMES, 5));
}

/// Returns the names of the locks that are held on this server.
fn locks_in(server: &RedisServer) -> Vec<String> {
    let mut keys = server.probe().keys("*");
    keys.retain(|key| !key.starts_with("redisson_"));
    keys
}

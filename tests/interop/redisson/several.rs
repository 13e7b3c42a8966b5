//! RedissonMultiLock and RedissonRedLock take their members one by one, as plain RLocks: ours of several and our quorum
//! meet them there.

use super::{NEWEST, OLDEST};
use crate::cases::exact::add_up;
use crate::cases::waking;
use crate::libraries::{ALL_REDISSONS, Library};
use crate::ours::Ours;
use crate::scene::{Independent, Scene};
use distlock::{DistLock, MajorityLock, MultiLock};
use distlock_tests::process::RedisServer;
use distlock_tests::time::retry_if_late;

const TIMES: u64 = 60;

/// Theirs holds on to what it has while it waits for the next, so names in the other order are where two would wait for each
/// other; ours lets go.
#[test]
fn a_multi_lock_of_theirs_and_one_of_ours_exclude_each_other_in_whatever_order() {
    for library in &ALL_REDISSONS {
        let Some(scene) = Scene::with(library, "", &["kind=multi"]) else { return };
        let ours = ["a", "b", "c"].map(|name| scene.ours.mutex(name));
        let several = MultiLock::new(ours).unwrap();
        add_up(
            &format!("{} multi", library.name),
            &scene.peer,
            &several,
            "c,b,a",
            &scene.server,
            (TIMES, 5),
        );
        assert_eq!(locks_in(&scene.server), [""; 0]);
    }
}

/// Their waiter waits for one member after the other, and so do ours.
#[test]
fn several_locks_of_both_sides_are_had_at_once_when_the_other_gives_them_back() {
    for library in [&NEWEST, &OLDEST] {
        retry_if_late(|| {
            let Some(scene) = Scene::with(library, "", &["kind=multi"]) else { return };
            let several =
                MultiLock::new(["a", "b", "c"].map(|name| scene.ours.mutex(name))).unwrap();
            let member = scene.ours.mutex("b");
            let locks: [(&str, &dyn DistLock); 2] = [("multi", &several), ("member", &member)];
            for (ours, lock) in locks {
                let what = format!("{} multi and our {ours}", library.name);
                waking::both_are_soon(&what, &scene.peer, lock, "a,b,c");
            }
        });
    }
}

#[test]
fn a_multi_lock_of_theirs_keeps_nothing_of_what_it_could_not_have_as_a_whole() {
    for library in &ALL_REDISSONS {
        let Some(scene) = Scene::with(library, "", &["kind=multi"]) else { return };
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
}

/// The same servers, by all three.
fn independent(library: &'static Library) -> Option<Independent> {
    Independent::start(library, "max_lease=10m", &["kind=red", "topology=independent"])
}

#[test]
fn a_red_lock_of_theirs_and_our_quorum_exclude_each_other() {
    for library in &ALL_REDISSONS {
        let Some(scene) = independent(library) else { return };
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
        retry_if_late(|| waking::both_are_soon(&what, &scene.peer, &lock, "lock"));
    }
}

#[test]
fn a_red_lock_of_theirs_and_a_majority_of_our_locks_exclude_each_other() {
    for library in &ALL_REDISSONS {
        let Some(scene) = independent(library) else { return };
        let clients: Vec<_> = scene
            .servers
            .servers
            .iter()
            .map(|server| Ours::connect(library, &server.url(), "", server.port()))
            .collect();
        let lock = MajorityLock::new(clients.iter().map(|ours| ours.mutex("lock"))).unwrap();
        let what = format!("{} red and a majority", library.name);
        add_up(&what, &scene.peer, &lock, "lock", scene.data(), (TIMES, 5));
    }
}

/// The locks that are held there.
fn locks_in(server: &RedisServer) -> Vec<String> {
    let mut keys = server.probe().keys("*");
    keys.retain(|key| !key.starts_with("redisson_"));
    keys
}

//! Documented defects of Redisson on a lock that it shares with us: where it believes in a lock that it has not, or has one
//! that it does not know of, ours stays what it was.
//!
//! Those around lost answers, around what nobody hears, around several locks, tokens and replicas stand beside this. What does not
//! show on a shared key, or cannot be brought about from outside, stands with its reason in `docs/INTEROP.md`.

use super::{NEWEST, OLDEST, REFUSED};
use crate::cases::holding::must_stay_ours;
use crate::cases::steadily;
use crate::peer::BOUND;
use crate::scene::Scene;
use distlock::DistLock;
use distlock_tests::time::{always, eventually, let_pass, ms};
use std::time::Duration;

/// `lock()`, and in it `lock(300 ms)`: the store has the shorter lease, and the next renewal comes later. It believes in two holds
/// and has none.
#[test]
fn a_lock_that_they_shortened_themselves_is_ours_and_their_renewals_leave_it_alone() {
    steadily(|| {
        for library in [&NEWEST, &OLDEST] {
            let Some(scene) = Scene::with(library, "", &["watchdog=3000"]) else { return };
            // What a JVM does for the first time takes long.
            scene.peer.ask("t", "lock warm 0");
            scene.peer.ask("t", "lock warm 300");
            scene.peer.ask("t", "lock lock 0");
            scene.peer.ask("t", "lock lock 300");
            let lock = scene.ours.mutex("lock");
            let guard = lock.try_lock_for(ms(900)).unwrap().expect("their lease was 300 ms");
            // Over more than two of their renewals.
            must_stay_ours(&guard, Duration::from_millis(2_200));
            assert!(scene.peer.refusal("t", "unlock lock").contains(REFUSED));
            must_stay_ours(&guard, ms(100));
            guard.unlock().unwrap();
        }
    });
}

/// `lock()`, in it `lock(900 ms)`, and the inner one is given back: with it went the renewal of both. It believes in a hold that is
/// over soon.
#[test]
fn a_lock_whose_renewal_went_with_an_inner_one_is_ours_when_it_lapses() {
    steadily(|| {
        for library in [&NEWEST, &OLDEST] {
            let Some(scene) = Scene::with(library, "", &["watchdog=1000"]) else { return };
            scene.peer.ask("t", "lock lock 0");
            scene.peer.ask("t", "lock lock 900");
            scene.peer.ask("t", "unlock lock");
            let lock = scene.ours.mutex("lock");
            let got = lock.try_lock_for(Duration::from_secs(3)).unwrap();
            say!("{}: after an inner lock with a lease: {}", library.name, got.is_some());
            let guard = got.expect("nobody renews it");
            must_stay_ours(&guard, Duration::from_secs(1));
            assert!(scene.peer.refusal("t", "unlock lock").contains(REFUSED));
            must_stay_ours(&guard, ms(100));
            guard.unlock().unwrap();
        }
    });
}

/// A thread is interrupted while its request is under way: it hears of an error, and the lock is taken all the same, and
/// renewed for ever. We wait, as for any holder; `force_unlock` ends it.
#[test]
fn a_lock_that_they_do_not_know_they_have_is_waited_for_until_somebody_frees_it() {
    steadily(|| {
        let Some(scene) = Scene::with(&NEWEST, "", &["watchdog=1000"]) else { return };
        scene.peer.ask("t", "try warm 0 1");
        scene.server.pause();
        let pending = scene.peer.tell("t", "lock lock 0");
        let_pass(ms(300));
        scene.peer.shout("t", "interrupt");
        let said = pending.answer(BOUND);
        scene.server.resume();
        let said = said.expect_err("the thread was interrupted");
        let lock = scene.ours.mutex("lock");
        eventually("it is locked nevertheless", BOUND, || lock.is_locked().unwrap());
        always("for nobody, and renewed", Duration::from_secs(3), || {
            lock.try_lock().unwrap().is_none()
        });
        say!("an orphan that is renewed for ever; its thread was told: {said}");
        assert!(lock.force_unlock().unwrap());
        let guard = lock.lock().unwrap();
        must_stay_ours(&guard, Duration::from_secs(3));
        guard.unlock().unwrap();
    });
}

/// One of their locks was overwritten by something else: the newest renews what stands behind it in its batch no more, and loses
/// it without a word. We take what has lapsed and nothing else, and ours, overwritten likewise, costs no other of ours.
#[test]
fn locks_that_they_stop_renewing_are_ours_when_they_lapse_and_not_before() {
    steadily(|| {
        // Behind the first one in a Java hash map, whose order is that of their batch.
        const OTHERS: [&str; 4] = ["b", "c", "d", "e"];
        for (library, renews_the_others) in [(&NEWEST, false), (&OLDEST, true)] {
            let Some(scene) = Scene::with(library, "watchdog=1s", &["watchdog=1000"]) else {
                return;
            };
            let mut probe = scene.probe();
            scene.peer.ask("a", "lock a 0");
            OTHERS.iter().for_each(|name| drop(scene.peer.ask(name, &format!("lock {name} 0"))));
            let (hit, spared) = (
                scene.ours.mutex("hit").lock().unwrap(),
                scene.ours.mutex("spared").lock().unwrap(),
            );
            let losses = hit.losses();
            for name in ["a", "hit"] {
                probe.command(&["SET", name, "something else"]);
            }
            losses.recv_timeout(BOUND).expect("we are told");
            must_stay_ours(&spared, Duration::from_secs(3));
            let mut lapsed = 0;
            for name in OTHERS {
                let is_theirs = probe.exists(name);
                let taken = scene.ours.mutex(name).try_lock().unwrap();
                assert_eq!(taken.is_some(), !is_theirs, "{name}");
                if let Some(guard) = taken {
                    lapsed += 1;
                    assert!(scene.peer.refusal(name, &format!("unlock {name}")).contains(REFUSED));
                    must_stay_ours(&guard, ms(100));
                } else {
                    scene.peer.ask(name, &format!("unlock {name}"));
                }
            }
            say!(
                "{}: beside an overwritten lock {lapsed} of {} were renewed no more",
                library.name,
                OTHERS.len()
            );
            assert_eq!(lapsed == 0, renews_the_others);
            probe.command(&["DEL", "a", "hit"]);
        }
    });
}

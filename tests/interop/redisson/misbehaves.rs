//! Documented defects of Redisson on a lock that it shares with us: where it believes in a lock
//! that it has not, or has one that it does not know of, ours stays what it was.
//!
//! Those around lost answers, around unheard releases, around several locks, tokens and replicas
//! stand beside this. What does not show on a shared key, or cannot be brought about from outside,
//! stands with its reason in `docs/INTEROP.md`.

use super::{ENDS, NEWEST, REFUSED};
use crate::cases::holding::{must_be_renewed, must_stay_ours};
use crate::held_key::HeldKey;
use crate::late::{self, retry_if_late, timely};
use crate::libraries::Library;
use crate::peer::BOUND;
use crate::scene::Scene;
use crate::suite::{Permit, Suite, case};
use distlock_tests::time::{eventually, let_pass, ms};
use std::time::Duration;

/// More than two periods of renewals of a second's leases, and more than one such lease.
const RENEWALS: Duration = Duration::from_millis(1_500);

pub(crate) fn mount(suite: &mut Suite) {
    let shortened = case!(lock_shortened_by_redisson_is_ours_despite_renewals);
    suite.each(Permit::Shared, &ENDS, shortened);
    let inner = case!(lock_without_redisson_renewal_is_ours_after_its_lease);
    suite.each(Permit::Shared, &ENDS, inner);
    let orphan = case!(lock_unknown_to_its_redisson_holder_is_waited_out_or_forced);
    suite.shared(&NEWEST, orphan);
    let lapsed = case!(locks_no_longer_renewed_are_ours_after_their_lease_only);
    suite.each(Permit::Shared, &ENDS, lapsed);
}

/// `lock()`, and in it `lock(300 ms)`: the store has the shorter lease, and the next renewal comes
/// later. It believes in two holds and has none.
fn lock_shortened_by_redisson_is_ours_despite_renewals(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::with(library, "", &["watchdog=3000"]);
        // What a JVM does for the first time takes long.
        scene.peer.ask("t", "lock warm 0");
        scene.peer.ask("t", "lock warm 300");
        scene.peer.ask("t", "lock lock 0");
        scene.peer.ask("t", "lock lock 300");
        let lock = scene.ours.mutex("lock");
        let taken = lock.try_lock_for(ms(900)).unwrap();
        let Some(guard) = taken else {
            late::late(ms(1_000), "a renewal was there first")
        };
        // Over more than two of their renewals.
        must_stay_ours(&guard, Duration::from_millis(2_200));
        assert!(scene.peer.refusal("t", "unlock lock").contains(REFUSED));
        must_stay_ours(&guard, ms(100));
        guard.unlock().unwrap();
    });
}

/// `lock()`, in it `lock(900 ms)`, and the inner one is given back: with it went the renewal of
/// both. It believes in a hold that is over soon.
fn lock_without_redisson_renewal_is_ours_after_its_lease(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::with(library, "", &["watchdog=1000"]);
        scene.peer.ask("t", "lock lock 0");
        scene.peer.ask("t", "lock lock 900");
        let said = scene.peer.tell("t", "unlock lock").answer(BOUND);
        timely!(ms(900), said.is_ok(), "its lease was over: {said:?}");
        let lock = scene.ours.mutex("lock");
        let got = lock.try_lock_for(Duration::from_secs(3)).unwrap();
        say!(
            "{}: after an inner lock with a lease: {}",
            library.name,
            got.is_some()
        );
        let guard = got.expect("it is not renewed");
        must_stay_ours(&guard, RENEWALS);
        assert!(scene.peer.refusal("t", "unlock lock").contains(REFUSED));
        must_stay_ours(&guard, ms(100));
        guard.unlock().unwrap();
    });
}

/// A thread is interrupted while its request is under way: it hears of an error, and the lock is
/// taken all the same, and renewed for ever. We wait, as for any holder; `force_unlock` ends it.
fn lock_unknown_to_its_redisson_holder_is_waited_out_or_forced(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::with(library, "", &["watchdog=1000"]);
        scene.peer.ask("t", "try warm 0 1");
        scene.server.pause();
        let pending = scene.peer.tell("t", "lock lock 0");
        // Nothing shows from outside that the request is on its way.
        let_pass(ms(300));
        scene.peer.shout("t", "interrupt");
        let said = pending.answer(BOUND);
        scene.server.resume();
        let said = said.expect_err("the thread was interrupted");
        let lock = scene.ours.mutex("lock");
        eventually("it is locked nevertheless", BOUND, || {
            lock.is_locked().unwrap()
        });
        let mut orphan = HeldKey::of(scene.probe(), "lock");
        orphan.must_refuse_all_along(|| lock.try_lock_for(RENEWALS).unwrap().is_some());
        say!("an orphan that is renewed for ever; its thread was told: {said}");
        assert!(lock.force_unlock().unwrap());
        let guard = lock.lock().unwrap();
        must_stay_ours(&guard, RENEWALS);
        guard.unlock().unwrap();
    });
}

/// One of their locks was overwritten by something else: the newest renews what stands behind it in
/// its batch no more, and loses it without a word. We take what has lapsed and nothing else, and
/// ours, overwritten likewise, costs no other of ours.
fn locks_no_longer_renewed_are_ours_after_their_lease_only(library: &'static Library) {
    // Behind the first one in a Java hash map, whose order is that of their batch.
    const OTHERS: [&str; 4] = ["b", "c", "d", "e"];
    let renews_the_others = library.id != NEWEST.id;
    retry_if_late(late::LEASE, || {
        let scene = Scene::with(library, "watchdog=1s", &["watchdog=1000"]);
        let mut probe = scene.probe();
        scene.peer.ask("a", "lock a 0");
        OTHERS
            .iter()
            .for_each(|name| drop(scene.peer.ask(name, &format!("lock {name} 0"))));
        let [hit, spared] = ["hit", "spared"].map(|name| scene.ours.mutex(name).lock().unwrap());
        let losses = hit.losses();
        for name in ["a", "hit"] {
            probe.command(&["SET", name, "something else"]);
        }
        losses.recv_timeout(BOUND).expect("we are told");
        must_be_renewed(&spared, RENEWALS);
        let mut lapsed = 0;
        for name in OTHERS {
            let theirs = HeldKey::find(scene.probe(), name);
            let taken = scene.ours.mutex(name).try_lock().unwrap();
            assert!(taken.is_some() || theirs.is_some(), "{name} was free");
            if let (Some(theirs), Some(_)) = (&theirs, &taken) {
                theirs.ended("the lock was granted");
            }
            if let Some(guard) = taken {
                lapsed += 1;
                assert!(
                    scene
                        .peer
                        .refusal(name, &format!("unlock {name}"))
                        .contains(REFUSED)
                );
                must_be_renewed(&guard, ms(100));
            } else {
                scene.peer.ask(name, &format!("unlock {name}"));
            }
        }
        let (name, all) = (library.name, OTHERS.len());
        say!("{name}: beside an overwritten lock {lapsed} of {all} were renewed no more");
        timely!(
            ms(1_000),
            (lapsed == 0) == renews_the_others,
            "docs/INTEROP.md says otherwise"
        );
        probe.command(&["DEL", "a", "hit"]);
    });
}

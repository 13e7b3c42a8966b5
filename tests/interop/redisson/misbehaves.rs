//! Documented defects of Redisson on a lock that it shares with us. It believes that it holds a
//! lock that it has lost, or does not know of a lock that it holds. Our locks are not affected.
//!
//! Defects about lost answers, missed releases, multi-locks, tokens and replicas are in the other
//! files of this folder. Defects that do not show on a shared key, or cannot be caused from
//! outside, are listed in `docs/INTEROP.md` with the reason.

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

/// More than two periods of renewals of a lease of 1 s, and more than one such lease.
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

/// `lock(300 ms)` inside `lock()` sets the shorter lease in the store, which ends before the next
/// renewal. Redisson then believes in two holds and has none.
fn lock_shortened_by_redisson_is_ours_despite_renewals(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::with(library, "", &["watchdog=3000"]);
        // A JVM takes long for what it does for the first time.
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

/// `lock(900 ms)` inside `lock()`, and its unlock, end the renewal of both holds. Redisson then
/// believes in a hold that soon expires.
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

/// A thread is interrupted while its request is pending: it gets an error, but the lock is taken
/// and renewed for ever. Our client waits, as for any holder, until `force_unlock` frees the lock.
fn lock_unknown_to_its_redisson_holder_is_waited_out_or_forced(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::with(library, "", &["watchdog=1000"]);
        scene.peer.ask("t", "try warm 0 1");
        scene.server.pause();
        let pending = scene.peer.tell("t", "lock lock 0");
        // Waits until the request must have been sent, which nothing shows from outside.
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

/// When one of Redisson's locks is overwritten, the newest version no longer renews the locks
/// behind it in the same batch, and loses them without an error. Our client takes only locks that
/// have expired. An overwritten lock of ours makes it lose no other lock.
fn locks_no_longer_renewed_are_ours_after_their_lease_only(library: &'static Library) {
    // These names follow "a" in a Java hash map, whose order is that of the batch.
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

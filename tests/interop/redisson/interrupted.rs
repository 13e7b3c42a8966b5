//! A Redisson thread that is interrupted while it waits for our lock in `lockInterruptibly`.

use super::ENDS;
use crate::cases::holding::until_it_sleeps;
use crate::late::{self, retry_if_late, timely};
use crate::libraries::Library;
use crate::peer::BOUND;
use crate::scene::Scene;
use crate::suite::{Permit, Suite, case};
use distlock_tests::time::{Stopwatch, eventually, ms};

pub(crate) fn mount(suite: &mut Suite) {
    let next = case!(interrupted_redisson_waiter_passes_our_release_on);
    suite.each(Permit::Shared, &ENDS, next);
}

/// The interrupted thread leaves no subscription and no lock behind, and our release wakes the next
/// waiter of the same program at once.
fn interrupted_redisson_waiter_passes_our_release_on(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::with(library, "", &["interruptibly=yes"]);
        // Alone, and together with a second waiter; without a lease of its own, and with one.
        for (lease, has_next) in [(0, false), (60_000, false), (0, true), (60_000, true)] {
            interrupt(&scene, lease, has_next);
        }
    });
}

fn interrupt(scene: &Scene, lease: u64, has_next: bool) {
    let guard = scene.ours.mutex("lock").lock().unwrap();
    let waiting = scene.peer.tell("t", &format!("lock lock {lease}"));
    let next = has_next.then(|| scene.peer.tell("next", "lock lock 0"));
    until_it_sleeps(scene);
    scene.peer.shout("t", "interrupt");
    let said = waiting.answer(BOUND).expect_err("it was interrupted");
    assert!(said.contains("InterruptedException"), "{said}");
    if let Some(next) = next {
        assert!(!next.is_there(), "the lock is ours");
        let freed = Stopwatch::start();
        guard.unlock().unwrap();
        next.ok();
        timely!(
            ms(2_000),
            freed.elapsed() < ms(2_000),
            "it was not told: {:?}",
            freed.elapsed()
        );
        scene.peer.ask("next", "unlock lock");
    } else {
        eventually("its subscription ends", BOUND, || !has_listeners(scene));
        guard.unlock().unwrap();
    }
    eventually("their subscriptions end", BOUND, || !has_listeners(scene));
    // The interrupted thread can still take the lock.
    assert!(scene.peer.ask("t", "try lock 0 0").starts_with("held"));
    scene.peer.ask("t", "unlock lock");
    assert!(!scene.probe().exists("lock"));
}

/// Whether the peer has a subscription. Our client has none, because it holds the lock and does not
/// wait.
fn has_listeners(scene: &Scene) -> bool {
    let channels = scene
        .probe()
        .command(&["PUBSUB", "CHANNELS", "redisson_lock__channel:*"]);
    !channels.texts().is_empty()
}

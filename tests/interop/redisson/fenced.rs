//! RFencedLock takes its tokens from the counter `redisson_lock_token:{name}`, and so does our
//! client.

use super::{FENCED, with};
use crate::cases::exact::no_increment_is_lost_between_both_sides;
use crate::cases::waking::{
    foreign_waiter_gets_our_released_lock_at_once, our_waiter_gets_a_foreign_released_lock_at_once,
};
use crate::held_key::HeldKey;
use crate::late::{self, retry_if_late};
use crate::libraries::{Library, WITH_LATCH};
use crate::peer::BOUND;
use crate::scene::Scene;
use crate::suite::{Permit, Suite, case};
use distlock_tests::probe::{Probe, Value};
use distlock_tests::time::{Stopwatch, eventually, let_pass, scaled};
use std::time::Duration;

static VERSIONS: [Library; 2] = [FENCED, with(WITH_LATCH, &["kind=fenced"])];

const COUNTER: &str = "redisson_lock_token:{lock}";
const ROUNDS: usize = 50;

/// Has both sides take the lock in turns, each one to three times, and returns all tokens in their
/// order.
fn tokens_by_turns(scene: &Scene) -> Vec<u64> {
    let (lock, mut tokens) = (scene.ours.mutex("lock"), Vec::new());
    for round in 0..ROUNDS {
        for _ in 0..=round % 3 {
            tokens.push(scene.peer.ask("t", "fenced lock 0").parse().unwrap());
            scene.peer.ask("t", "unlock lock");
        }
        for _ in 0..=round % 2 {
            let guard = lock.lock().unwrap();
            tokens.push(guard.fencing_token().expect("every grant has one").get());
            guard.unlock().unwrap();
        }
    }
    tokens
}

/// Whether the counter exists and has no expiry.
fn stays(probe: &mut Probe) -> bool {
    probe.command(&["PTTL", COUNTER]) == Value::Int(-1)
}

pub(crate) fn mount(suite: &mut Suite) {
    use Permit::{Exclusive, Shared};
    let grow = case!(tokens_of_both_sides_grow_and_counter_has_no_expiry);
    suite.each(Shared, &VERSIONS, grow);
    suite.shared(&FENCED, case!(our_counter_with_tokens_kept_has_no_expiry));
    suite.shared(&FENCED, case!(our_counter_without_tokens_kept_expires));
    suite.shared(
        &FENCED,
        case!(nested_hold_keeps_our_token_and_changes_redissons),
    );
    suite.shared(
        &FENCED,
        case!(counter_deleted_by_redisson_lowers_no_token_of_ours),
    );
    suite.shared(
        &FENCED,
        case!(counter_given_an_expiry_lowers_no_token_of_ours),
    );
    suite.shared(
        &FENCED,
        case!(lease_ignored_by_a_fenced_lock_is_not_assumed),
    );
    suite.each(
        Exclusive,
        &VERSIONS,
        case!(no_increment_is_lost_under_a_fenced_lock),
    );
    let soon = case!(waiter_gets_a_released_fenced_lock_at_once);
    suite.each(Exclusive, &VERSIONS, soon);
}

fn tokens_of_both_sides_grow_and_counter_has_no_expiry(library: &'static Library) {
    let scene = Scene::of(library);
    let tokens = tokens_by_turns(&scene);
    assert_eq!(
        tokens[0], 1,
        "they were first, and theirs are plain numbers"
    );
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    assert!(stays(&mut scene.probe()));
    let (first, last) = (tokens[0], tokens.last().unwrap());
    say!(
        "{}: {} tokens, from {first} to {last}",
        library.name,
        tokens.len()
    );
}

fn our_counter_with_tokens_kept_has_no_expiry(library: &'static Library) {
    let scene = Scene::with(library, "tokens=keep", &[]);
    let ours = scene.ours.mutex("lock").lock().unwrap();
    let first = ours.fencing_token().unwrap().get();
    assert!(stays(&mut scene.probe()));
    ours.unlock().unwrap();
    assert_eq!(
        scene.peer.ask("t", "fenced lock 0"),
        (first + 1).to_string()
    );
    scene.peer.ask("t", "unlock lock");
    let tokens = tokens_by_turns(&scene);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    assert!(stays(&mut scene.probe()));
}

/// Without `tokens=keep` a counter that our client created expires a day after our last grant, and
/// Redisson's tokens then begin again at 1.
fn our_counter_without_tokens_kept_expires(library: &'static Library) {
    let scene = Scene::of(library);
    scene.ours.mutex("lock").lock().unwrap().unlock().unwrap();
    assert!(!stays(&mut scene.probe()));
}

/// Our nested hold keeps its token. Each nested hold of Redisson gets a larger one, which fences
/// out the outer hold. `getToken` returns the counter whatever client holds the lock.
fn nested_hold_keeps_our_token_and_changes_redissons(library: &'static Library) {
    let scene = Scene::of(library);
    let lock = scene.ours.mutex("lock");
    let (outer, inner) = (lock.lock().unwrap(), lock.lock().unwrap());
    let ours = outer.fencing_token().unwrap();
    assert_eq!(inner.fencing_token(), Some(ours));
    assert_eq!(scene.peer.ask("t", "token lock"), ours.get().to_string());
    drop((inner, outer));
    let theirs: u64 = scene.peer.ask("t", "fenced lock 0").parse().unwrap();
    assert_eq!(
        scene.peer.ask("t", "fenced lock 0"),
        (theirs + 1).to_string()
    );
    scene.peer.ask("t", "unlock lock");
    scene.peer.ask("t", "unlock lock");
    assert!(lock.lock().unwrap().fencing_token().unwrap().get() > theirs + 1);
}

/// Redisson's `delete` deletes the counter, too, so its tokens begin again at 1. Ours continue to
/// grow, because they follow the server's clock.
fn counter_deleted_by_redisson_lowers_no_token_of_ours(library: &'static Library) {
    let scene = Scene::of(library);
    let lock = scene.ours.mutex("lock");
    let token = || lock.lock().unwrap().fencing_token().unwrap();
    let before = token();
    scene.peer.ask("t", "delete lock");
    assert!(!scene.probe().exists(COUNTER));
    assert_eq!(
        scene.peer.ask("t", "fenced lock 0"),
        "1",
        "which ours never do"
    );
    scene.peer.ask("t", "unlock lock");
    assert!(token() > before);
}

/// Redisson's `expire` sets an expiry on the counter, too. So does a multi-lock or a red lock with
/// a fenced member, by the lease that it was called with. When the counter is gone, Redisson's
/// tokens begin again at 1; ours continue to grow, because they follow the server's clock.
fn counter_given_an_expiry_lowers_no_token_of_ours(library: &'static Library) {
    counter_ends(library, &[], |scene| {
        scene.peer.ask("t", "fenced lock 0");
        scene.peer.ask("t", "expire lock 1500");
        scene.peer.ask("t", "unlock lock");
    });
    for kind in ["kind=multi", "kind=red"] {
        counter_ends(library, &["members=fenced", kind], |scene| {
            assert!(
                scene
                    .peer
                    .ask("t", "try lock,other 5000 1500")
                    .starts_with("held"),
                "{kind}"
            );
            scene.peer.ask("t", "unlock lock,other");
        });
    }
}

/// Checks that what `theirs` does makes the counter expire, and that our tokens grow all the same.
fn counter_ends(library: &'static Library, arguments: &[&str], theirs: impl Fn(&Scene)) {
    let scene = Scene::with(library, "", arguments);
    let (lock, mut probe) = (scene.ours.mutex("lock"), scene.probe());
    let token = || lock.lock().unwrap().fencing_token().unwrap();
    let first = token();
    theirs(&scene);
    assert!(
        !probe.exists(COUNTER) || !stays(&mut probe),
        "docs/INTEROP.md says otherwise"
    );
    eventually("it is over", BOUND, || !probe.exists(COUNTER));
    let second = token();
    assert!(second > first, "{first:?}, {second:?}");
    theirs(&scene);
    let third = token();
    assert!(third > second, "{second:?}, {third:?}");
}

/// `lockAndGetToken` ignores the lease that it is called with, and the watchdog keeps the lock. Our
/// client waits, as for any holder.
fn lease_ignored_by_a_fenced_lock_is_not_assumed(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::with(library, "", &["watchdog=1000"]);
        let lock = scene.ours.mutex("lock");
        let token: u64 = scene.peer.ask("t", "fenced lock 300").parse().unwrap();
        let mut held = HeldKey::of(scene.probe(), "lock");
        let since = Stopwatch::start();
        while since.elapsed() < scaled(Duration::from_secs(2)) {
            held.must_refuse(|| lock.try_lock().unwrap().is_some());
            let_pass(Duration::from_millis(10));
        }
        scene.peer.ask("t", "unlock lock");
        let guard = lock.lock().unwrap();
        assert!(guard.fencing_token().unwrap().get() > token);
        guard.unlock().unwrap();
    });
}

fn no_increment_is_lost_under_a_fenced_lock(library: &'static Library) {
    no_increment_is_lost_between_both_sides(library);
}

fn waiter_gets_a_released_fenced_lock_at_once(library: &'static Library) {
    foreign_waiter_gets_our_released_lock_at_once(library);
    our_waiter_gets_a_foreign_released_lock_at_once(library);
}

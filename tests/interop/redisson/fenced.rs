//! RFencedLock has a counter beside the lock, `redisson_lock_token:{name}`; ours are on the same one.

use super::with;
use crate::cases;
use crate::harness::probe::{Probe, Value};
use crate::libraries::{Library, redisson};
use crate::scene::Scene;
use distlock::DistLock;

static FENCED: Library = with(redisson("redisson-4.7.0"), &["kind=fenced"]);
static EARLY: Library = with(redisson("redisson-3.27.2"), &["kind=fenced"]);

const COUNTER: &str = "redisson_lock_token:{lock}";
const ROUNDS: usize = 50;

/// Takes the lock by turns, each side some times, and returns all tokens in their order.
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

/// Whether the counter has no end, which is what it must not get.
fn stays(probe: &mut Probe) -> bool {
    probe.command(&["PTTL", COUNTER]) == Value::Int(-1)
}

#[test]
fn tokens_of_both_sides_grow_together_and_their_counter_never_gets_an_end() {
    for library in [&FENCED, &EARLY] {
        let Some(scene) = Scene::of(library) else { return };
        let tokens = tokens_by_turns(&scene);
        assert_eq!(tokens[0], 1, "they were first, and theirs are plain numbers");
        assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
        assert!(stays(&mut scene.probe()));
        say!(
            "{}: {} tokens, from {} to {}",
            library.name,
            tokens.len(),
            tokens[0],
            tokens.last().unwrap()
        );
    }
}

#[test]
fn with_tokens_kept_a_counter_of_ours_has_no_end_either() {
    let Some(scene) = Scene::with(&FENCED, "tokens=keep", &[]) else { return };
    let ours = scene.ours.mutex("lock").lock().unwrap();
    let first = ours.fencing_token().unwrap().get();
    assert!(stays(&mut scene.probe()));
    ours.unlock().unwrap();
    assert_eq!(scene.peer.ask("t", "fenced lock 0"), (first + 1).to_string());
    scene.peer.ask("t", "unlock lock");
    let tokens = tokens_by_turns(&scene);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
    assert!(stays(&mut scene.probe()));
}

/// Without it a counter that we made has an end, a day after our last grant, and then theirs begin at 1.
#[test]
fn without_tokens_kept_a_counter_that_we_made_ends() {
    let Some(scene) = Scene::of(&FENCED) else { return };
    scene.ours.mutex("lock").lock().unwrap().unlock().unwrap();
    assert!(!stays(&mut scene.probe()));
}

/// A nested hold of ours keeps its token; of theirs each has a new one, beneath which the outer one is then fenced out. And
/// `getToken` tells the counter, whoever holds the lock.
#[test]
fn a_nested_hold_keeps_our_token_and_changes_theirs() {
    let Some(scene) = Scene::of(&FENCED) else { return };
    let lock = scene.ours.mutex("lock");
    let (outer, inner) = (lock.lock().unwrap(), lock.lock().unwrap());
    let ours = outer.fencing_token().unwrap();
    assert_eq!(inner.fencing_token(), Some(ours));
    assert_eq!(scene.peer.ask("t", "token lock"), ours.get().to_string());
    drop((inner, outer));
    let theirs: u64 = scene.peer.ask("t", "fenced lock 0").parse().unwrap();
    assert_eq!(scene.peer.ask("t", "fenced lock 0"), (theirs + 1).to_string());
    scene.peer.ask("t", "unlock lock");
    scene.peer.ask("t", "unlock lock");
    assert!(lock.lock().unwrap().fencing_token().unwrap().get() > theirs + 1);
}

/// Their `delete` takes the counter, too: theirs begin again at 1. Ours go on, by the server's clock.
#[test]
fn a_counter_that_they_delete_does_not_take_ours_back() {
    let Some(scene) = Scene::of(&FENCED) else { return };
    let lock = scene.ours.mutex("lock");
    let token = || lock.lock().unwrap().fencing_token().unwrap();
    let before = token();
    scene.peer.ask("t", "delete lock");
    assert!(!scene.probe().exists(COUNTER));
    assert_eq!(scene.peer.ask("t", "fenced lock 0"), "1", "which ours never do");
    scene.peer.ask("t", "unlock lock");
    assert!(token() > before);
}

#[test]
fn no_increment_is_lost_under_a_fenced_lock() {
    cases::exact::no_increment_is_lost(&FENCED);
}

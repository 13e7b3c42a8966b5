//! Releases that a waiter of Redisson's does not hear of, and sleeps on beside a lock that is free. A waiter of ours is there
//! all the same.

use super::{FENCED, NEWEST, OLDEST};
use crate::cases::steadily;
use crate::libraries::Library;
use crate::ours::{Ours, fixed};
use crate::peer::BOUND;
use crate::scene::Scene;
use distlock::{DistLock, LossCause, Mutex};
use distlock_tests::probe::Value;
use distlock_tests::time::{Stopwatch, eventually, let_pass, ms, scaled};
use std::thread;
use std::time::Duration;

/// So long a waiter of theirs sleeps beside a free lock at most: the lease that it saw.
const LEASE: Duration = Duration::from_secs(3);

/// Ours is there long before that, although theirs are asked as well, and a connection may have to be made anew.
const SOON: Duration = Duration::from_secs(1);

/// Waits until so many clients hear of the lock's releases.
fn until_subscribed(scene: &Scene, name: &str, clients: i64) {
    let channel = format!("redisson_lock__channel:{{{name}}}");
    let mut probe = scene.probe();
    eventually("they are subscribed", BOUND, || {
        let Value::List(counts) = probe.command(&["PUBSUB", "NUMSUB", &channel]) else {
            return false;
        };
        counts.last() == Some(&Value::Int(clients))
    });
}

/// Another client of ours: in one the lock is handed on without the server.
fn another(scene: &Scene, library: &'static Library, settings: &str) -> Ours {
    Ours::connect(library, &scene.server.url(), settings, scene.server.port())
}

/// Waits for it on another thread, and returns how long after the start of the stopwatch it was there.
fn arrival(lock: &Mutex, since: &Stopwatch) -> Duration {
    let guard = lock.try_lock_for(BOUND).unwrap().expect("it is freed");
    let arrived = since.elapsed();
    guard.unlock().unwrap();
    arrived
}

/// All subscriptions are cut, and the locks released before anybody can have a new one: the message goes to nobody. Theirs sleeps
/// to the end of the lease that it saw; ours asks as soon as it is subscribed again.
#[test]
fn a_release_while_nobody_is_subscribed_is_found_by_ours_at_once() {
    steadily(|| {
        for library in [&NEWEST, &OLDEST] {
            let Some(scene) = Scene::of(library) else { return };
            let other = another(&scene, library, "");
            let (for_us, for_them) = (scene.ours.mutex("ours"), scene.ours.mutex("theirs"));
            let [kept, lent] =
                [&for_us, &for_them].map(|lock| lock.lock_with(&fixed(LEASE)).unwrap());
            let clock = Stopwatch::start();
            let theirs = scene.peer.tell("t", "lock theirs 0");
            let waiting = other.mutex("ours");
            let took = thread::scope(|scope| {
                let waiter = scope.spawn(|| arrival(&waiting, &clock));
                for name in ["ours", "theirs"] {
                    until_subscribed(&scene, name, 1);
                }
                // Both ask again behind their subscription.
                let_pass(ms(200));
                assert!(!theirs.is_there() && !waiter.is_finished());
                scene.probe().command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
                let freed = clock.elapsed();
                kept.unlock().unwrap();
                lent.unlock().unwrap();
                waiter.join().unwrap().saturating_sub(freed)
            });
            assert!(took <= scaled(SOON), "{took:?}");
            theirs.ok();
            say!(
                "{}: nobody was subscribed: we were there after {took:?}, they {:?} after they began to wait",
                library.name,
                clock.elapsed()
            );
            scene.peer.ask("t", "unlock theirs");
        }
    });
}

/// Two of theirs wait, one of them for so long that its time is up just when we release: it may take the wake-up of both. Ours has one
/// of its own, and is there; its release then wakes theirs, too.
#[test]
fn a_release_that_their_try_lock_takes_at_its_end_wakes_ours_all_the_same() {
    const WAIT: Duration = Duration::from_millis(300);
    const ROUNDS: u32 = 10;
    steadily(|| {
        let Some(scene) = Scene::of(&NEWEST) else { return };
        let other = another(&scene, &NEWEST, "");
        // Either of theirs may be there before ours, and gives it back at once.
        let visit = |thread: &str, line: &str| {
            [scene.peer.tell(thread, line), scene.peer.tell(thread, "unlock lock")]
        };
        for round in 0..ROUNDS {
            let guard = scene.ours.mutex("lock").lock_with(&fixed(LEASE)).unwrap();
            let sleeper = visit("sleeper", "lock lock 0");
            // Once for all of that process.
            until_subscribed(&scene, "lock", 1);
            let [passer, gone] = visit("passer", &format!("try lock {} 0", WAIT.as_millis()));
            let (waiting, clock) = (other.mutex("lock"), Stopwatch::start());
            let (waiting, clock) = (&waiting, &clock);
            thread::scope(|scope| {
                let waiter = scope.spawn(move || {
                    let guard = waiting.try_lock_for(BOUND).unwrap().expect("it is freed");
                    let arrived = clock.elapsed();
                    // Its time is up, so that only one of theirs waits for our release.
                    let was_held = passer.ok().starts_with("held");
                    assert_eq!(gone.answer(BOUND).is_ok(), was_held);
                    let released = clock.elapsed();
                    guard.unlock().unwrap();
                    (arrived, released)
                });
                // From a little before its end to a little after, over the rounds.
                let_pass(WAIT - ms(10) + ms(2) * round);
                let freed = clock.elapsed();
                guard.unlock().unwrap();
                let (arrived, released) = waiter.join().unwrap();
                let ours = arrived.saturating_sub(freed);
                assert!(ours <= scaled(SOON), "{ours:?}");
                sleeper.into_iter().for_each(|line| drop(line.ok()));
                let theirs = clock.elapsed().saturating_sub(released);
                assert!(theirs <= scaled(SOON), "{theirs:?}: woken by our release");
            });
        }
    });
}

/// `delete` frees our lock and tells nobody. Our guard learns of it at its next renewal, whoever waits at the end of the lease that
/// it saw, and the next holder's token is greater.
#[test]
fn a_lock_of_ours_that_they_delete_is_lost_with_notice_and_found_free_within_a_lease() {
    steadily(|| {
        let Some(scene) = Scene::with(&FENCED, "watchdog=1s", &[]) else { return };
        let other = another(&scene, &FENCED, "watchdog=1s");
        let guard = scene.ours.mutex("lock").lock().unwrap();
        let (losses, token) = (guard.losses(), guard.fencing_token());
        let waiting = other.mutex("lock");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let guard = waiting.try_lock_for(BOUND).unwrap().expect("nobody has it");
                assert!(guard.fencing_token() > token, "what it protects can tell");
                guard.unlock().unwrap();
            });
            until_subscribed(&scene, "lock", 1);
            let clock = Stopwatch::start();
            scene.peer.ask("t", "delete lock");
            let loss = losses.recv_timeout(BOUND).expect("the next renewal notices");
            assert_eq!(loss.cause(), LossCause::Gone);
            assert!(guard.unlock().unwrap_err().is_lost());
            waiter.join().unwrap();
            let took = clock.elapsed();
            say!("deleted by RFencedLock: our waiter was there after {took:?}");
            // What it saw was a lease of a second.
            assert!(took <= Duration::from_secs(1) + scaled(SOON), "{took:?}");
        });
    });
}

//! Releases that a waiter of Redisson's does not hear of, and sleeps on beside a lock that is free.
//! A waiter of ours is there all the same.

use super::{ENDS, FENCED, NEWEST};
use crate::late::{self, retry_if_late, timely};
use crate::libraries::Library;
use crate::ours::{Ours, fixed};
use crate::peer::BOUND;
use crate::scene::Scene;
use crate::suite::{Permit, Suite, case};
use distlock::{LossCause, Mutex};
use distlock_tests::probe::Value;
use distlock_tests::queue;
use distlock_tests::time::{Stopwatch, eventually, let_pass, ms, scaled};
use std::thread;
use std::time::Duration;

pub(crate) fn mount(suite: &mut Suite) {
    let cut = case!(release_without_subscribers_is_found_by_ours_at_once);
    suite.each(Permit::Shared, &ENDS, cut);
    let taken = case!(release_taken_by_redisson_try_lock_still_wakes_ours);
    suite.shared(&NEWEST, taken);
    let deleted = case!(our_lock_deleted_by_redisson_is_lost_and_found_free);
    suite.shared(&FENCED, deleted);
}

/// So long a waiter of theirs sleeps beside a free lock at most: the lease that it saw.
const LEASE: Duration = Duration::from_secs(3);

/// Ours is there long before that, although theirs are asked as well, and a connection may have to
/// be made anew.
const SOON: Duration = Duration::from_secs(1);

/// Waits until a client of theirs hears of the lock's releases.
fn until_they_listen(scene: &Scene, name: &str) {
    let channel = format!("redisson_lock__channel:{{{name}}}");
    let mut probe = scene.probe();
    eventually("they are subscribed", BOUND, || {
        let Value::List(counts) = probe.command(&["PUBSUB", "NUMSUB", &channel]) else {
            return false;
        };
        counts.last() == Some(&Value::Int(1))
    });
}

/// Another client of ours: in one the lock is handed on without the server.
fn another(scene: &Scene, library: &'static Library, settings: &str) -> Ours {
    Ours::connect(library, &scene.server.url(), settings, scene.server.port())
}

/// Waits for it on another thread, and returns how long after the start of the stopwatch it was
/// there.
fn arrival(lock: &Mutex, since: &Stopwatch) -> Duration {
    let guard = lock.try_lock_for(BOUND).unwrap().expect("it is freed");
    let arrived = since.elapsed();
    guard.unlock().unwrap();
    arrived
}

/// All subscriptions are cut, and the locks released before there is a new one: the message reaches
/// no waiter. Theirs sleeps to the end of the lease that it saw; ours asks as soon as it is
/// subscribed again.
fn release_without_subscribers_is_found_by_ours_at_once(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::of(library);
        let other = another(&scene, library, "");
        let (for_us, for_them) = (scene.ours.mutex("ours"), scene.ours.mutex("theirs"));
        let [kept, lent] = [&for_us, &for_them].map(|lock| lock.lock_with(&fixed(LEASE)).unwrap());
        let clock = Stopwatch::start();
        let theirs = scene.peer.tell("t", "lock theirs 0");
        let waiting = other.mutex("ours");
        let took = thread::scope(|scope| {
            let waiter = scope.spawn(|| arrival(&waiting, &clock));
            queue::until_one_waits(&mut scene.probe(), "ours");
            until_they_listen(&scene, "theirs");
            // Both ask again behind their subscription.
            let_pass(ms(200));
            let is_early = theirs.is_there() || waiter.is_finished();
            timely!(LEASE, !is_early, "the lease was over before the release");
            scene.probe().command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
            let freed = clock.elapsed();
            let given_back = [kept, lent].map(|guard| guard.unlock().is_ok());
            timely!(
                LEASE,
                given_back == [true; 2],
                "the lease was over before the release"
            );
            waiter.join().unwrap().saturating_sub(freed)
        });
        timely!(scaled(SOON), took <= scaled(SOON), "{took:?}");
        theirs.ok();
        let (name, slept) = (library.name, clock.elapsed());
        say!("{name}: without subscriptions we were there after {took:?}, they after {slept:?}");
        scene.peer.ask("t", "unlock theirs");
    });
}

/// Two of theirs wait, one of them for so long that its time is up just when we release: it may
/// take the wake-up of both. Ours has one of its own, and is there; its release then wakes theirs,
/// too.
fn release_taken_by_redisson_try_lock_still_wakes_ours(library: &'static Library) {
    const ROUNDS: u32 = 10;
    retry_if_late(late::LEASE, || {
        let scene = Scene::of(library);
        let other = another(&scene, library, "");
        (0..ROUNDS).for_each(|round| take_at_the_end(&scene, &other, round));
    });
}

/// Ours arrives from a little before the end of their time to a little after, over the rounds.
fn take_at_the_end(scene: &Scene, other: &Ours, round: u32) {
    const WAIT: Duration = Duration::from_millis(300);
    // Either of theirs may be there before ours, and gives it back at once.
    let visit = |thread: &str, line: &str| {
        [
            scene.peer.tell(thread, line),
            scene.peer.tell(thread, "unlock lock"),
        ]
    };
    let guard = scene.ours.mutex("lock").lock_with(&fixed(LEASE)).unwrap();
    let sleeper = visit("sleeper", "lock lock 0");
    // Once for all of that process.
    until_they_listen(scene, "lock");
    let [passer, gone] = visit("passer", &format!("try lock {} 0", WAIT.as_millis()));
    let (waiting, clock) = (other.mutex("lock"), Stopwatch::start());
    let (ours, theirs) = thread::scope(|scope| {
        let (waiting, clock) = (&waiting, &clock);
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
        let_pass(WAIT - ms(10) + ms(2) * round);
        let freed = clock.elapsed();
        timely!(
            LEASE,
            guard.unlock().is_ok(),
            "the lease was over before the release"
        );
        let (arrived, released) = waiter.join().unwrap();
        sleeper.into_iter().for_each(|line| drop(line.ok()));
        (
            arrived.saturating_sub(freed),
            clock.elapsed().saturating_sub(released),
        )
    });
    timely!(scaled(SOON), ours <= scaled(SOON), "{ours:?}");
    timely!(
        scaled(SOON),
        theirs <= scaled(SOON),
        "{theirs:?}: woken by our release"
    );
}

/// `delete` frees our lock without a message. Our guard learns of it at its next renewal, a waiter
/// at the end of the lease that it saw, and the next holder's token is greater.
fn our_lock_deleted_by_redisson_is_lost_and_found_free(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::with(library, "watchdog=1s", &[]);
        let other = another(&scene, library, "watchdog=1s");
        let guard = scene.ours.mutex("lock").lock().unwrap();
        let (losses, token) = (guard.losses(), guard.fencing_token());
        let waiting = other.mutex("lock");
        let took = thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let guard = waiting.try_lock_for(BOUND).unwrap().expect("it is free");
                assert!(guard.fencing_token() > token, "what it protects can tell");
                guard.unlock().unwrap();
            });
            queue::until_one_waits(&mut scene.probe(), "lock");
            let clock = Stopwatch::start();
            scene.peer.ask("t", "delete lock");
            let loss = losses
                .recv_timeout(BOUND)
                .expect("the next renewal notices");
            timely!(
                ms(1_000),
                loss.cause() == LossCause::Gone,
                "lost for another cause: {loss:?}"
            );
            assert!(guard.unlock().unwrap_err().is_lost());
            waiter.join().unwrap();
            clock.elapsed()
        });
        say!("deleted by RFencedLock: our waiter was there after {took:?}");
        // What it saw was a lease of a second.
        timely!(
            Duration::from_secs(1),
            took <= Duration::from_secs(1) + scaled(SOON),
            "{took:?}"
        );
    });
}

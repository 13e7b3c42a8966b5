//! Releases that a Redisson waiter misses, so that it sleeps on although the lock is free. Our
//! waiter gets the lock all the same.

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

/// The lease of these locks, for which a Redisson waiter sleeps at most when it misses a release.
const LEASE: Duration = Duration::from_secs(3);

/// How soon our waiter must have the lock: long before the lease ends, although Redisson's waiters
/// may come first, and a connection may have to be opened again.
const SOON: Duration = Duration::from_secs(1);

/// Waits until a client of the peer is subscribed to the releases of the lock.
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

/// Connects another client of ours. Within one client the lock would be handed over without the
/// server.
fn another(scene: &Scene, library: &'static Library, settings: &str) -> Ours {
    Ours::connect(library, &scene.server.url(), settings, scene.server.port())
}

/// Waits for the lock and releases it. Returns how long after the start of the stopwatch it was
/// granted.
fn arrival(lock: &Mutex, since: &Stopwatch) -> Duration {
    let guard = lock.try_lock_for(BOUND).unwrap().expect("it is freed");
    let arrived = since.elapsed();
    guard.unlock().unwrap();
    arrived
}

/// All subscriptions are cut, and the locks are released before there are new ones, so no waiter
/// gets the message. Redisson's waiter sleeps until the end of the lease that it saw. Ours tries
/// again as soon as it is subscribed again.
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
            // Both waiters try once more after their subscription.
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

/// Two Redisson threads wait, and the time limit of one of them ends just when we release: it may
/// take the wake-up of both. Our waiter has a subscription of its own and gets the lock. Its
/// release then wakes the other Redisson thread.
fn release_taken_by_redisson_try_lock_still_wakes_ours(library: &'static Library) {
    const ROUNDS: u32 = 10;
    retry_if_late(late::LEASE, || {
        let scene = Scene::of(library);
        let other = another(&scene, library, "");
        (0..ROUNDS).for_each(|round| take_at_the_end(&scene, &other, round));
    });
}

/// Makes one round. The release comes later from round to round: from a little before the time
/// limit of the Redisson thread to a little after it.
fn take_at_the_end(scene: &Scene, other: &Ours, round: u32) {
    const WAIT: Duration = Duration::from_millis(300);
    // Either Redisson thread may get the lock before ours, and releases it at once.
    let visit = |thread: &str, line: &str| {
        [
            scene.peer.tell(thread, line),
            scene.peer.tell(thread, "unlock lock"),
        ]
    };
    let guard = scene.ours.mutex("lock").lock_with(&fixed(LEASE)).unwrap();
    let sleeper = visit("sleeper", "lock lock 0");
    // All threads of the Redisson program share one subscription.
    until_they_listen(scene, "lock");
    let [passer, gone] = visit("passer", &format!("try lock {} 0", WAIT.as_millis()));
    let (waiting, clock) = (other.mutex("lock"), Stopwatch::start());
    let (ours, theirs) = thread::scope(|scope| {
        let (waiting, clock) = (&waiting, &clock);
        let waiter = scope.spawn(move || {
            let guard = waiting.try_lock_for(BOUND).unwrap().expect("it is freed");
            let arrived = clock.elapsed();
            // The time limit of `passer` is over, so only `sleeper` waits for our release.
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

/// `delete` frees our lock without a message. Our guard learns of it at its next renewal, and our
/// waiter at the end of the lease that it saw. The next holder's token is greater.
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
        // The waiter saw a lease of 1 s.
        timely!(
            Duration::from_secs(1),
            took <= Duration::from_secs(1) + scaled(SOON),
            "{took:?}"
        );
    });
}

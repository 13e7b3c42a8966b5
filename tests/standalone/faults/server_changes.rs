//! A server whose settings or state change while a lock is held or waited for: open connections
//! stay usable, and errors of new ones are reported.

use super::scene::{Row, Scene, builder_of, client_of, command, lease, outage, slow_to_load};
use super::table::Case;
use distlock::{Client, Error, Event, LockOptions, LossCause, Mutex, OwnedGuard};
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::time::{Stopwatch, eventually, let_pass};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

pub(super) const CASES: &[Case] = &[
    ("password changed while holding", password_changed),
    (
        "password changed and connections killed, holding",
        password_changed_and_killed,
    ),
    (
        "password changed while waiting",
        password_changed_while_waiting,
    ),
    (
        "password changed before the first renewal",
        password_changed_before_the_first_renewal,
    ),
    (
        "maxclients reached while holding",
        max_clients_while_holding,
    ),
    (
        "maxclients reached before the first renewal",
        max_clients_before_the_first_renewal,
    ),
    (
        "maxclients reached while waiting",
        max_clients_while_waiting,
    ),
    (
        "LOADING while holding, and the lock was saved",
        loading_while_holding,
    ),
    (
        "LOADING while holding, for longer than the lease",
        loading_beyond_the_lease,
    ),
    (
        "frozen and back while waiting for a time",
        frozen_and_back_while_waiting,
    ),
    ("frozen while waiting without an end", frozen_while_waiting),
    ("restarted empty while waiting", restarted_while_waiting),
];

/// Changes the password. Connections that are open stay authenticated.
fn change_password(scene: &Scene) {
    scene.tell(&["ACL", "SETUSER", "me", "resetpass", ">an0ther"]);
}

fn password_changed() -> Row {
    Scene::as_user().kept(|scene| {
        renewed_once(scene);
        change_password(scene);
    })
}

/// The connection for renewals is opened for the first renewal, and would need the new password.
/// Renewals use the open connection instead.
fn password_changed_before_the_first_renewal() -> Row {
    Scene::as_user().kept(|scene| {
        change_password(scene);
    })
}

fn password_changed_and_killed() -> Row {
    let row = Scene::as_user().lost(LossCause::Expired, |scene| {
        change_password(scene);
        scene.tell(&["CLIENT", "KILL", "USER", "me"]);
    });
    assert!(
        row.said.contains("does not accept the password"),
        "{}",
        row.said
    );
    assert!(
        !row.said.contains("s3cret") && !row.said.contains("an0ther"),
        "{}",
        row.said
    );
    row
}

fn password_changed_while_waiting() -> Row {
    let (scene, holder) = held(Scene::as_user());
    let waiting = waits(&scene, |lock| lock.lock().map(drop));
    change_password(&scene);
    scene.tell(&["CLIENT", "KILL", "USER", "me"]);
    let watch = Stopwatch::start();
    let error = waiting.join().unwrap().unwrap_err();
    assert!(error.is_configuration(), "{error:?}");
    drop(holder);
    // The waiter's next attempt fails at once: no call waits for the old password to become valid
    // again.
    Row::new(error, watch.elapsed(), lease() + command())
}

/// Waits until the lock has been renewed: from then on, renewals have a connection of their own.
fn renewed_once(scene: &Scene) {
    let mut probe = scene.server.probe();
    let before = probe.command_calls("pexpire");
    eventually("it has been renewed", LONG, || {
        probe.command_calls("pexpire") > before
    });
}

fn refuse_new_clients(scene: &Scene) {
    scene.tell(&["CONFIG", "SET", "maxclients", "1"]);
}

fn max_clients_while_holding() -> Row {
    Scene::new().kept(|scene| {
        renewed_once(scene);
        refuse_new_clients(scene);
    })
}

/// Renewals have a connection of their own, which is opened for the first renewal. If that fails,
/// renewals use the open connection.
fn max_clients_before_the_first_renewal() -> Row {
    Scene::new().kept(|scene| {
        refuse_new_clients(scene);
    })
}

/// A subscription needs a connection of its own, which the server refuses, so the waiter polls.
fn max_clients_while_waiting() -> Row {
    let (scene, holder) = held(Scene::new());
    scene.works("other");
    let mut probe = scene.server.probe();
    refuse_new_clients(&scene);
    let takes = |lock: Mutex| lock.try_lock_for(LONG)?.expect("it gets it").unlock();
    let waiting = waits_seen_by(&mut probe, &scene, takes);
    let watch = Stopwatch::start();
    holder.1.unlock().unwrap();
    waiting.join().unwrap().unwrap();
    Row::new(
        "nothing: it is got by asking again",
        watch.elapsed(),
        lease(),
    )
}

type Failures = Arc<parking_lot::Mutex<Vec<String>>>;

/// Returns a client with this lease, and the errors of its failed renewals.
fn listening(server: &RedisServer, lease: Duration) -> (Client, Failures) {
    let failures = Failures::default();
    let heard = Arc::clone(&failures);
    let handler = move |event: &Event| {
        if let Event::RenewalFailed { error, .. } = event {
            println!("a renewal failed: {error}");
            heard.lock().push(error.to_string());
        }
    };
    // A server that is loading answers only now and then.
    let client = builder_of(&server.url())
        .configure(|config| {
            config
                .with_watchdog(lease)
                .with_command_timeout(lease)
                .with_connect_timeout(lease)
        })
        .events(Arc::new(handler))
        .connect()
        .unwrap();
    (client, failures)
}

fn loading_while_holding() -> Row {
    // Loading takes longer than the time from one renewal to the next, and far less than the lease.
    let server = slow_to_load("10000");
    let (client, _failures) = listening(&server, lease() * 3);
    let other = client.clone();
    // The renewal either connects again, with pauses, until the server has loaded its data, or
    // fails and is repeated.
    Scene { server, client }.kept(|scene| {
        renewed_once(scene);
        scene.tell(&["SAVE"]);
        thread::scope(|scope| {
            scope.spawn(|| scene.server.restart());
            let is_it = |error: &Error| error.to_string().contains("still reading its data");
            eventually("it is loading", LONG, || {
                other
                    .ping(Duration::from_millis(500))
                    .is_err_and(|error| is_it(&error))
            });
        });
    })
}

/// Waits until an event reports that a renewal failed because the server was loading. Another
/// thread delivers the events, so this may take a while.
fn assert_loading(failures: &Failures) {
    let is_it = |failure: &String| failure.contains("still reading its data");
    eventually("renewals failed because of that", LONG, || {
        failures.lock().iter().any(is_it)
    });
}

fn loading_beyond_the_lease() -> Row {
    // Loading takes twice as long as the lease.
    let server = slow_to_load("16000");
    let (client, failures) = listening(&server, lease());
    let mut scene = Scene { server, client };
    let guard = scene.client.mutex("a").unwrap().lock().unwrap();
    let losses = guard.losses();
    scene.tell(&["SAVE"]);
    scene.server.kill();
    let (watch, left) = (Stopwatch::start(), guard.remaining());
    let (loss, took) = thread::scope(|scope| {
        scope.spawn(|| scene.server.restart());
        (
            losses.recv_timeout(LONG).expect("the loss is told"),
            watch.elapsed(),
        )
    });
    assert!(
        loss.cause() == LossCause::Expired && took >= left,
        "{loss}, {took:?}"
    );
    assert_loading(&failures);
    assert!(guard.unlock().unwrap_err().is_lost());
    scene.tell(&["CONFIG", "SET", "key-load-delay", "0"]);
    scene.works("a");
    Row::new(format!("lost: {loss}"), took, left)
}

/// Makes another client hold the lock for a long time.
fn held(scene: Scene) -> (Scene, (Client, OwnedGuard)) {
    let holder = client_of(&scene.server.url());
    let lock = holder.owned_mutex("a").unwrap();
    let guard = lock.lock_with(&LockOptions::new().lease(LONG * 6)).unwrap();
    (scene, (holder, guard))
}

type Waiting = JoinHandle<Result<(), Error>>;

/// Starts a thread that waits for the lock; returns when a request was sent and the thread is in
/// the client's queue.
fn waits(
    scene: &Scene,
    takes: impl FnOnce(Mutex) -> Result<(), Error> + Send + 'static,
) -> Waiting {
    waits_seen_by(&mut scene.server.probe(), scene, takes)
}

fn waits_seen_by(
    probe: &mut Probe,
    scene: &Scene,
    takes: impl FnOnce(Mutex) -> Result<(), Error> + Send + 'static,
) -> Waiting {
    let lock = scene.client.mutex("a").unwrap();
    let before = probe.command_calls("evalsha");
    let waiting = thread::spawn(move || takes(lock));
    eventually("it waits", LONG, || {
        probe.command_calls("evalsha") > before && scene.client.queue_length("a").unwrap() == 1
    });
    waiting
}

fn frozen_and_back_while_waiting() -> Row {
    let (scene, (_holder, guard)) = held(Scene::new());
    let waiting = waits(&scene, |lock| {
        lock.try_lock_for(LONG)?.expect("it gets it").unlock()
    });
    scene.server.pause();
    let_pass(lease());
    assert!(!waiting.is_finished());
    scene.server.resume();
    let watch = Stopwatch::start();
    guard.unlock().unwrap();
    waiting.join().unwrap().unwrap();
    // The waiter's attempt may have failed while the server was frozen, and the waiter may be in
    // the pause before its next attempt.
    Row::new("nothing: it is got", watch.elapsed(), command() * 2)
}

fn frozen_while_waiting() -> Row {
    let (scene, _holder) = held(Scene::new());
    let waiting = waits(&scene, |lock| lock.lock().map(drop));
    scene.server.pause();
    let watch = Stopwatch::start();
    let error = waiting.join().unwrap().unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    scene.server.resume();
    // The waiter sleeps for a lease at most, and learns of the outage by its next attempt.
    Row::new(error, watch.elapsed(), lease() + outage() + command())
}

fn restarted_while_waiting() -> Row {
    let mut scene = Scene::new();
    let guard = client_of(&scene.server.url())
        .mutex("a")
        .unwrap()
        .lock()
        .unwrap();
    let losses = guard.losses();
    let waiting = waits(&scene, |lock| {
        lock.try_lock_for(LONG)?.expect("it gets it").unlock()
    });
    scene.server.restart();
    let watch = Stopwatch::start();
    waiting.join().unwrap().unwrap();
    let row = Row::new("nothing: it is got", watch.elapsed(), command() * 2);
    let loss = losses.recv_timeout(LONG).expect("the loss is reported");
    assert_eq!(loss.cause(), LossCause::Gone, "{loss}");
    row
}

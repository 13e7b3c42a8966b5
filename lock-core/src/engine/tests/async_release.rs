//! Dropped guards: the release is sent, and no thread waits for its answer.

use super::*;

/// A store that delays the answers of asynchronous releases, a client of it, and the names of the
/// client's events.
fn lazy() -> (Recorded, Client, Arc<Mutex<Vec<String>>>) {
    let (store, _clock) = Recorded::new();
    store.is_lazy.store(true, Ordering::SeqCst);
    let (client, told) = store.client_with_events();
    (store, client, told)
}

fn is_told(told: &Mutex<Vec<String>>, what: &str) -> bool {
    told.lock().iter().any(|name| name == what)
}

#[test]
fn dropped_guard_releases_without_waiting_for_the_answer() {
    let (store, client, told) = lazy();
    let lock = client.mutex("x").unwrap();
    drop(lock.lock().unwrap());
    assert_eq!((store.count("release"), store.unread.lock().len()), (1, 1));
    assert!(!is_told(&told, "Released"));
    // The next acquisition by this client does not wait for that answer, either.
    drop(lock.lock().unwrap());
    assert_eq!(store.unread.lock().len(), 2);
    store.read();
    eventually("two events", || {
        told.lock()
            .iter()
            .filter(|name| *name == "Released")
            .count()
            == 2
    });
}

#[test]
fn unlock_waits_for_its_answer() {
    let (store, client, told) = lazy();
    client.mutex("x").unwrap().lock().unwrap().unlock().unwrap();
    assert!(store.unread.lock().is_empty());
    eventually("the release is reported", || is_told(&told, "Released"));
}

#[test]
fn unconfirmed_async_release_is_cleaned_up_and_reported() {
    for fault in [Fault::NotSent, Fault::Vanished, Fault::Swallowed] {
        let (store, client, told) = lazy();
        store.fail_next("release", fault);
        drop(client.mutex("x").unwrap().lock().unwrap());
        store.read();
        eventually("the failure is reported", || {
            is_told(&told, "ReleaseFailed")
        });
        eventually("the release is repeated", || store.count("release") == 2);
        client
            .wait_for_cleanup(Duration::ZERO)
            .or_else(|_| client.wait_for_cleanup(20 * SECOND))
            .unwrap();
        assert!(
            !client.mutex("x").unwrap().is_locked().unwrap(),
            "{fault:?}"
        );
    }
}

#[test]
fn async_release_of_a_gone_lock_reports_a_loss() {
    for foreign in [false, true] {
        let (store, client, told) = lazy();
        let guard = client.mutex("x").unwrap().lock().unwrap();
        if foreign {
            store.fail_next("release", Fault::Foreign);
        } else {
            store.store.lose(guard.name());
        }
        let losses = guard.losses();
        drop(guard);
        store.read();
        eventually("the loss is reported", || is_told(&told, "Lost"));
        assert!(losses.try_recv().is_err(), "the guard was dropped before");
    }
}

#[test]
fn client_drop_collects_unread_release_answers() {
    let (store, client, told) = lazy();
    drop(client.mutex("x").unwrap().lock().unwrap());
    let start = crate::SystemClock.now();
    drop(client);
    assert!(crate::SystemClock.now().since(start) < SECOND);
    assert!(store.unread.lock().is_empty());
    eventually("the release is reported", || is_told(&told, "Released"));
    assert_eq!(store.count("inspect"), 1);
    // If all answers have been read, dropping the client sends no request.
    let (store, client, _told) = lazy();
    client.mutex("x").unwrap().lock().unwrap().unlock().unwrap();
    drop(client);
    assert_eq!(store.count("inspect"), 0);
}

#[test]
fn wait_for_cleanup_collects_unread_release_answers() {
    let (store, client, _told) = lazy();
    drop(client.mutex("x").unwrap().lock().unwrap());
    client.wait_for_cleanup(Duration::ZERO).unwrap();
    assert!(store.unread.lock().is_empty());
}

/// The request that collects the answers may concern a lock on another server, which may hang. So
/// the release of a guard must not wait for it.
#[test]
fn dropped_guard_does_not_wait_for_the_collection_of_answers() {
    let (store, client, _told) = lazy();
    drop(client.mutex("x").unwrap().lock().unwrap());
    let guard = client.owned_mutex("y").unwrap().lock().unwrap();
    thread::scope(|scope| {
        // The gate is dropped before the scope joins its threads, even if an assertion fails.
        // Otherwise the join would wait for the hanging request.
        let gate = store.gate.lock();
        store.fail_next("inspect", Fault::Hangs);
        let collecting = scope.spawn(|| client.wait_for_cleanup(Duration::ZERO));
        eventually("it asks", || store.count("inspect") == 1);
        let dropping = scope.spawn(|| drop(guard));
        eventually("the other is released", || store.count("release") == 2);
        drop(gate);
        dropping.join().unwrap();
        let _cleaned = collecting.join().unwrap();
    });
}

#[test]
fn collecting_release_answers_is_limited_in_time() {
    let (store, client, _told) = lazy();
    drop(client.mutex("x").unwrap().lock().unwrap());
    client.wait_for_cleanup(Duration::from_millis(10)).unwrap();
    assert_eq!(store.time_given("inspect"), Duration::from_millis(10));
    drop(client.mutex("x").unwrap().lock().unwrap());
    client.wait_for_cleanup(3600 * SECOND).unwrap();
    assert_eq!(
        store.time_given("inspect"),
        2 * SECOND,
        "the command timeout"
    );
    drop(client.mutex("x").unwrap().lock().unwrap());
    drop(client);
    assert_eq!(store.time_given("inspect"), SECOND);
}

#[test]
fn async_release_that_panics_is_cleaned_up() {
    let (store, client, told) = lazy();
    store.fail_next("release", Fault::Panic);
    drop(client.mutex("x").unwrap().lock().unwrap());
    eventually("the failure is reported", || {
        is_told(&told, "ReleaseFailed")
    });
    let lock = client.mutex("x").unwrap();
    eventually("the lock is free", || !lock.is_locked().unwrap());
}

#[test]
fn thread_that_reads_an_answer_asks_the_backend_nothing() {
    let (store, client, _told) = lazy();
    store.fail_next("release", Fault::Vanished);
    drop(client.mutex("x").unwrap().lock().unwrap());
    // The thread that reads an answer must not ask the backend for a lock's node: the backend may
    // hold a mutex while it reads the answer.
    let before = store.count("node");
    store.node_panics.store(true, Ordering::SeqCst);
    store.read();
    store.node_panics.store(false, Ordering::SeqCst);
    assert_eq!(store.count("node"), before);
    eventually("the lock is cleaned up", || store.count("release") == 2);
}

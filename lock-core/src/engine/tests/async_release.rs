//! Guards that are dropped: the release has left, and no caller waits for its answer.

use super::*;

/// A store that answers late to callers that do not wait, a client of it, and what its events were
/// called.
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
fn the_request_has_left_when_the_guard_is_gone_and_the_answer_is_told_when_it_is_read() {
    let (store, client, told) = lazy();
    let lock = client.mutex("x").unwrap();
    drop(lock.lock().unwrap());
    assert_eq!((store.count("release"), store.unread.lock().len()), (1, 1));
    assert!(!is_told(&told, "Released"));
    // The next one of this client does not wait for that answer either.
    drop(lock.lock().unwrap());
    assert_eq!(store.unread.lock().len(), 2);
    store.read();
    eventually("it is told", || told.lock().iter().filter(|name| *name == "Released").count() == 2);
}

#[test]
fn an_unlock_waits_for_its_answer() {
    let (store, client, told) = lazy();
    client.mutex("x").unwrap().lock().unwrap().unlock().unwrap();
    assert!(store.unread.lock().is_empty());
    eventually("it is told", || is_told(&told, "Released"));
}

#[test]
fn what_was_not_confirmed_is_cleaned_up_and_told() {
    for fault in [Fault::NotSent, Fault::Vanished, Fault::Swallowed] {
        let (store, client, told) = lazy();
        store.fail_next("release", fault);
        drop(client.mutex("x").unwrap().lock().unwrap());
        store.read();
        eventually("it is told", || is_told(&told, "ReleaseFailed"));
        eventually("it is tried again", || store.count("release") == 2);
        client
            .wait_for_cleanup(Duration::ZERO)
            .or_else(|_| client.wait_for_cleanup(20 * SECOND))
            .unwrap();
        assert!(!client.mutex("x").unwrap().is_locked().unwrap(), "{fault:?}");
    }
}

#[test]
fn a_lock_that_was_gone_is_told() {
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
        eventually("it is told", || is_told(&told, "Lost"));
        assert!(losses.try_recv().is_err(), "the guard was gone before");
    }
}

#[test]
fn a_client_that_goes_has_the_answers_read() {
    let (store, client, told) = lazy();
    drop(client.mutex("x").unwrap().lock().unwrap());
    let start = crate::SystemClock.now();
    drop(client);
    assert!(crate::SystemClock.now().since(start) < SECOND);
    assert!(store.unread.lock().is_empty());
    eventually("it is told", || is_told(&told, "Released"));
    assert_eq!(store.count("inspect"), 1);
    // Nothing is asked where nothing is unread.
    let (store, client, _told) = lazy();
    client.mutex("x").unwrap().lock().unwrap().unlock().unwrap();
    drop(client);
    assert_eq!(store.count("inspect"), 0);
}

#[test]
fn settling_has_the_answers_read() {
    let (store, client, _told) = lazy();
    drop(client.mutex("x").unwrap().lock().unwrap());
    client.wait_for_cleanup(Duration::ZERO).unwrap();
    assert!(store.unread.lock().is_empty());
}

#[test]
fn settling_waits_no_longer_than_told_for_the_answers_and_an_end_leaves_time_to_try_again() {
    let (store, client, _told) = lazy();
    drop(client.mutex("x").unwrap().lock().unwrap());
    client.wait_for_cleanup(Duration::from_millis(10)).unwrap();
    assert_eq!(store.time_given("inspect"), Duration::from_millis(10));
    drop(client.mutex("x").unwrap().lock().unwrap());
    client.wait_for_cleanup(3600 * SECOND).unwrap();
    assert_eq!(store.time_given("inspect"), 2 * SECOND, "the command time-out");
    drop(client.mutex("x").unwrap().lock().unwrap());
    drop(client);
    assert_eq!(store.time_given("inspect"), SECOND);
}

#[test]
fn a_backend_that_panics_is_cleaned_up_after() {
    let (store, client, told) = lazy();
    store.fail_next("release", Fault::Panic);
    drop(client.mutex("x").unwrap().lock().unwrap());
    eventually("it is told", || is_told(&told, "ReleaseFailed"));
    let lock = client.mutex("x").unwrap();
    eventually("it is free", || !lock.is_locked().unwrap());
}

#[test]
fn thread_that_reads_an_answer_asks_the_backend_nothing() {
    let (store, client, _told) = lazy();
    store.fail_next("release", Fault::Vanished);
    drop(client.mutex("x").unwrap().lock().unwrap());
    // Not for a node either: the backend may be in the middle of something when it tells.
    let before = store.count("node");
    store.node_panics.store(true, Ordering::SeqCst);
    store.read();
    store.node_panics.store(false, Ordering::SeqCst);
    assert_eq!(store.count("node"), before);
    eventually("it is cleaned up all the same", || store.count("release") == 2);
}

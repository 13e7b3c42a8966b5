//! The client's threads: they end when idle and start again on demand.

use super::*;

#[test]
fn threads_end_with_the_client() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let guard = client.mutex("x").unwrap().lock().unwrap();
    advance(&client, &clock, 11 * SECOND);
    guard.unlock().unwrap();
    parked(&clock, 2);
    drop(client);
    eventually("the threads end", || clock.sleepers().is_empty());
    eventually("the client drops the store", || {
        Arc::strong_count(&store.log) == 1
    });
}

#[test]
fn idle_threads_end_and_restart_with_the_next_lock() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let lock = client.mutex("x").unwrap();
    for _ in 0..2 {
        let guard = lock.lock().unwrap();
        advance(&client, &clock, 45 * SECOND);
        assert!(guard.is_valid());
        guard.unlock().unwrap();
        advance(&client, &clock, 60 * SECOND);
        assert!(clock.sleepers().is_empty(), "{:?}", clock.sleepers());
    }
}

//! Tests of holds on several locks: nested, combined with holds on single members, and detached.

use super::*;

#[test]
fn holds_of_members_and_composite_are_counted_together() {
    let three = Three::new();
    let lock = three.all();
    let [a, b, c] = &three.locks;
    let alone = a.lock().unwrap();
    assert_eq!(
        (lock.hold_count(), lock.is_held_by_current_thread()),
        (0, false)
    );
    let outer = lock.lock().unwrap();
    let inner = lock.lock().unwrap();
    assert_eq!(inner.fencing_tokens(), outer.fencing_tokens());
    assert_eq!(
        (lock.hold_count(), a.hold_count(), b.hold_count()),
        (2, 3, 2)
    );
    assert_eq!(
        three.count("acquire"),
        [1; 3],
        "a nested hold sends no request"
    );
    drop(outer);
    assert!(inner.is_valid() && lock.is_held_by_current_thread());
    inner.unlock().unwrap();
    assert_eq!(three.held(), [true, false, false]);
    assert!(three.majority().hold_count() == 0 && c.hold_count() == 0);
    let other = b.lock().unwrap();
    assert!(three.majority().is_held_by_current_thread() && three.majority().hold_count() == 1);
    drop((alone, other));
    assert_eq!(three.held(), NONE);
}

#[test]
fn reentry_after_loss_of_member_is_refused() {
    let three = Three::new();
    let (all, majority) = (three.all(), three.majority());
    let guard = all.lock().unwrap();
    three.stores[1].store.lose(three.locks[1].name());
    assert!(guard.verify().unwrap_err().is_lost());
    let error = all.try_lock().unwrap_err();
    assert!(error.is_lost() && letters(&error) == "df-", "{error}");
    drop(
        majority
            .try_lock()
            .unwrap()
            .expect("two of three are still held"),
    );
    drop(guard);
    drop(all.try_lock().unwrap().unwrap());
}

#[test]
fn unlock_by_any_handle_ends_newest_detached_hold() {
    let three = Three::new();
    let [a, b, c] = three.locks.clone();
    let lock = three.all();
    assert!(lock.unlock().unwrap_err().is_not_held());
    lock.lock().unwrap().detach();
    lock.lock().unwrap().detach();
    assert!(
        a.unlock().unwrap_err().is_not_held(),
        "it was not locked singly"
    );
    assert!(
        three.majority().unlock().unwrap_err().is_not_held(),
        "nor as a majority lock"
    );
    let same = MultiLock::new([c, a, b]).unwrap();
    same.unlock().unwrap();
    assert_eq!((lock.hold_count(), three.held()), (1, [true; 3]));
    thread::scope(|scope| {
        let other = scope.spawn(|| same.unlock().unwrap_err().is_not_held());
        assert!(other.join().unwrap());
    });
    lock.unlock().unwrap();
    assert_eq!((lock.hold_count(), three.held()), (0, NONE));
    assert!(lock.unlock().unwrap_err().is_not_held());
}

#[test]
fn members_detached_singly_are_unlocked_singly() {
    let three = Three::new();
    let lock = three.all();
    for member in &three.locks {
        member.lock().unwrap().detach();
    }
    assert_eq!(lock.hold_count(), 1, "holds on all members count as one");
    assert!(lock.unlock().unwrap_err().is_not_held());
    assert_eq!(three.held(), [true; 3]);
    for member in &three.locks {
        member.unlock().unwrap();
    }
    assert_eq!(three.held(), NONE);
}

#[test]
fn detached_majorities_end_with_the_members_they_took() {
    let three = Three::new();
    let lock = three.majority();
    let [a, _, c] = three.others_handles();
    let busy = c.lock().unwrap();
    lock.lock().unwrap().detach(); // a, b
    three.stores[0].store.lose(three.locks[0].name());
    drop((busy, a));
    lock.lock().unwrap().detach(); // all three, as far as this client knows
    lock.unlock().unwrap();
    assert_eq!(three.held(), [false, true, false]);
    assert!(
        lock.unlock().unwrap_err().is_lost(),
        "one member of the first hold was lost"
    );
    assert_eq!(three.held(), NONE);
}

#[test]
fn detached_hold_is_released_with_the_last_handle() {
    let three = Three::new();
    three.all().lock().unwrap().detach();
    let Three {
        stores,
        clients,
        locks,
        ..
    } = three;
    drop((clients, locks));
    for (store, name) in stores.iter().zip(NAMES) {
        let other = store.client().mutex(name).unwrap();
        eventually("the lock is free", || !other.is_locked().unwrap());
    }
}

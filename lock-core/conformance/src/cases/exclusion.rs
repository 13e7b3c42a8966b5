//! Mutual exclusion between threads and between clients, and forced unlocks.

use crate::fixture::{
    Lock, assert_within, client, elsewhere, fixed, fresh_name, is_busy, join, let_pass, long, ms,
    mutex, mutexes, now, patience, prompt, spawn, take, take_soon, take_with, take_within,
};
use crate::subject::Subject;
use crate::violation::violated_unless;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// While one client holds a lock, no other client gets it; after the release another client does.
pub(crate) fn held_lock_excludes_second_holder(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let guard = take(&one);
    assert!(subject.probe(one.name()).held);
    assert!(is_busy(&other));
    guard.unlock().expect("it is ours");
    let guard = take(&other);
    assert!(is_busy(&one));
    guard.unlock().expect("it is ours");
}

/// A free lock is granted to each client that requests it, again and again.
pub(crate) fn free_lock_is_granted(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    for mutex in [&one, &one, &other, &one] {
        take(mutex).unlock().expect("it is ours");
        assert!(!subject.probe(mutex.name()).held);
    }
}

/// An attempt on a busy lock returns `None`, and not an error.
pub(crate) fn busy_lock_is_a_value_not_an_error(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let _guard = take(&one);
    assert!(other.try_lock().expect("busy is no error").is_none());
    assert!(
        other
            .try_lock_for(ms(50))
            .expect("busy is no error")
            .is_none()
    );
    assert!(
        other
            .try_lock_for_with(ms(50), &fixed(ms(1_000)))
            .expect("busy is no error")
            .is_none()
    );
}

/// Another thread of the same client cannot take the lock or end the hold of the first thread.
pub(crate) fn other_thread_cannot_take_or_end_held_lock(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    take(&one).detach();
    assert!(one.is_held_by_current_thread());
    elsewhere(|| {
        assert!(is_busy(&one));
        assert!(!one.is_held_by_current_thread());
        assert_eq!(one.hold_count(), 0);
        assert!(
            one.unlock()
                .expect_err("it is not this thread's")
                .is_not_held()
        );
    });
    assert!(is_busy(&other), "it is still held");
    one.unlock().expect("it is this thread's");
    drop(take(&other));
}

/// A second client, as in another process, sees that the lock is held. It cannot take or unlock the
/// lock, and has no hold of it.
pub(crate) fn other_client_cannot_take_or_end_held_lock(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let guard = take(&one);
    assert!(
        other.is_locked().expect("the store answers"),
        "it is held in the store"
    );
    assert!(!other.is_held_by_current_thread());
    assert_eq!(other.hold_count(), 0);
    assert!(
        other
            .unlock()
            .expect_err("it is not this client's")
            .is_not_held()
    );
    assert!(is_busy(&other));
    guard.unlock().expect("it is ours");
}

/// Threads of several clients increment a counter under the lock without a lost update.
pub(crate) fn never_two_inside(subject: &dyn Subject) {
    const ROUNDS: u64 = 12;
    let (counter, inside) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = |mutex: &Lock| {
        for _ in 0..ROUNDS {
            let guard = take_within(mutex, ms(10_000));
            violated_unless(!inside.swap(true, Ordering::SeqCst), "two are inside");
            let read = counter.load(Ordering::SeqCst);
            // Gives a second holder the time to enter.
            let_pass(ms(1));
            counter.store(read + 1, Ordering::SeqCst);
            inside.store(false, Ordering::SeqCst);
            guard.unlock().expect("it is ours");
        }
    };
    let clients: [Lock; 3] = mutexes(subject);
    thread::scope(|scope| {
        let each_twice = clients.iter().chain(&clients);
        let threads: Vec<_> = each_twice
            .map(|mutex| spawn(scope, || work(mutex)))
            .collect();
        threads.into_iter().for_each(join);
    });
    let counted = counter.load(Ordering::SeqCst);
    let what = format!("{counted} of {} counted: two were inside", 6 * ROUNDS);
    violated_unless(counted == 6 * ROUNDS, what);
}

/// Concurrent threads that only call `try_lock`, and unlock each grant, leave the lock free.
pub(crate) fn concurrent_tries_leave_no_lock_behind(subject: &dyn Subject) {
    let name = fresh_name();
    let client = client(subject);
    let (lock, entered) = (mutex(&client, &name), AtomicU64::new(0));
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                spawn(scope, || {
                    for _ in 0..200 {
                        let Some(guard) = lock.try_lock().expect("the store answers") else {
                            continue;
                        };
                        entered.fetch_add(1, Ordering::SeqCst);
                        guard.unlock().expect("it is ours");
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(join);
    });
    assert!(entered.load(Ordering::SeqCst) > 0);
    assert!(!subject.probe(&name).held, "every holder has unlocked");
    drop(take(&lock));
}

/// A forced unlock frees the lock of any holder and returns `true`. The unlock of that holder then
/// reports the loss.
pub(crate) fn force_unlock_frees_lock_of_any_holder(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let guard = take(&one);
    assert!(
        other.force_unlock().expect("the store answers"),
        "it was held"
    );
    assert!(!subject.probe(one.name()).held);
    assert!(!other.is_locked().expect("the store answers"));
    let _next = take(&other);
    assert!(guard.unlock().expect_err("it was taken away").is_lost());
    violated_unless(
        subject.probe(one.name()).held,
        "a lost guard freed its successor's lock",
    );
}

/// A forced unlock wakes waiters.
pub(crate) fn force_unlock_wakes_waiter(subject: &dyn Subject) {
    let [one, other, force] = mutexes(subject);
    take_with(&one, &fixed(long())).detach();
    thread::scope(|scope| {
        let waiting = spawn(scope, || {
            let guard = take_soon(&other);
            let inside = now();
            drop(guard);
            inside
        });
        let_pass(ms(150));
        let forced = now();
        assert!(force.force_unlock().expect("the store answers"));
        let took = join(waiting).since(forced);
        assert_within("woken", took, prompt());
    });
}

/// The queries of a handle agree with the store.
pub(crate) fn queries_agree_with_store(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    for mutex in [&one, &other] {
        assert!(!mutex.is_locked().expect("the store answers"));
        assert_eq!(mutex.time_to_live().expect("the store answers"), None);
    }
    let guard = take_with(&one, &fixed(ms(10_000)));
    for mutex in [&one, &other] {
        assert!(mutex.is_locked().expect("the store answers"));
        let left = mutex
            .time_to_live()
            .expect("the store answers")
            .expect("it is held");
        assert!(
            left <= ms(10_001) && left > ms(8_000),
            "{left:?} of 10 s are left"
        );
    }
    guard.unlock().expect("it is ours");
    assert!(!elsewhere(|| other.is_locked()).expect("the store answers"));
}

/// An owned guard excludes other clients, and another thread can unlock it.
pub(crate) fn owned_guard_unlocks_on_other_thread(subject: &dyn Subject) {
    let name = fresh_name();
    let (here, there) = (client(subject), client(subject));
    let owned = here.owned_mutex(&name).expect("a good name");
    let guard = owned
        .try_lock_for(patience())
        .expect("the store answers")
        .expect("it is free");
    assert!(is_busy(&mutex(&there, &name)));
    elsewhere(move || guard.unlock()).expect("it is the guard's, not the thread's");
    drop(take(&mutex(&there, &name)));
}

/// An owned mutex is not reentrant: each guard is a separate holder.
pub(crate) fn owned_mutex_is_not_reentrant(subject: &dyn Subject) {
    let name = fresh_name();
    let client = client(subject);
    let owned = client.owned_mutex(&name).expect("a good name");
    let guard = owned
        .try_lock()
        .expect("the store answers")
        .expect("it is free");
    assert!(owned.try_lock().expect("the store answers").is_none());
    assert!(
        is_busy(&mutex(&client, &name)),
        "nor is the thread the owner"
    );
    guard.unlock().expect("it is ours");
    assert!(!subject.probe(&name).held);
    drop(take(&mutex(&client, &name)));
}

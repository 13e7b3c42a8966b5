//! One at a time: between threads, between clients, and by force.

use crate::conformance::fixture::{
    Lock, client, elsewhere, fixed, fresh_name, in_time, is_busy, join, let_pass, long, ms, mutex,
    mutexes, now, patience, prompt, spawn, take, take_soon, take_with, take_within,
};
use crate::conformance::subject::Subject;
use crate::conformance::violation::violated_unless;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// While one client holds a lock, no other gets it; afterwards another does.
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

/// A lock that nobody holds is granted, again and again, to whoever asks.
pub(crate) fn free_lock_is_granted(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    for mutex in [&one, &one, &other, &one] {
        take(mutex).unlock().expect("it is ours");
        assert!(!subject.probe(mutex.name()).held);
    }
}

/// Busy is an answer: an error would send the caller to the network people.
pub(crate) fn busy_lock_is_a_value_not_an_error(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let _guard = take(&one);
    assert!(other.try_lock().expect("busy is no error").is_none());
    assert!(other.try_lock_for(ms(50)).expect("busy is no error").is_none());
    let options = fixed(ms(1_000)).wait(ms(50));
    assert!(other.try_lock_with(&options).expect("busy is no error").is_none());
}

/// Another thread of the same client neither gets nor ends what one thread holds.
pub(crate) fn other_thread_cannot_take_or_end_held_lock(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    take(&one).detach();
    assert!(one.is_held_by_current_thread());
    elsewhere(|| {
        assert!(is_busy(&one));
        assert!(!one.is_held_by_current_thread());
        assert_eq!(one.hold_count(), 0);
        assert!(one.unlock().expect_err("it is not this thread's").is_not_held());
    });
    assert!(is_busy(&other), "it is still held");
    one.unlock().expect("it is this thread's");
    drop(take(&other));
}

/// Another client is another process: it neither gets, ends nor counts what this one holds.
pub(crate) fn other_client_cannot_take_or_end_held_lock(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let guard = take(&one);
    assert!(other.is_locked().expect("the store answers"), "it sees that somebody holds it");
    assert!(!other.is_held_by_current_thread());
    assert_eq!(other.hold_count(), 0);
    assert!(other.unlock().expect_err("it is not this client's").is_not_held());
    assert!(is_busy(&other));
    guard.unlock().expect("it is ours");
}

/// Threads of several clients count under the lock, each reading before it writes: nothing is
/// counted twice.
pub(crate) fn never_two_inside(subject: &dyn Subject) {
    const ROUNDS: u64 = 12;
    let (counter, inside) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = |mutex: &Lock| {
        for _ in 0..ROUNDS {
            let guard = take_within(mutex, ms(10_000));
            violated_unless(!inside.swap(true, Ordering::SeqCst), "two are inside");
            let read = counter.load(Ordering::SeqCst);
            // Long enough that a second one who is let in is seen.
            let_pass(ms(1));
            counter.store(read + 1, Ordering::SeqCst);
            inside.store(false, Ordering::SeqCst);
            guard.unlock().expect("it is ours");
        }
    };
    let clients: [Lock; 3] = mutexes(subject);
    thread::scope(|scope| {
        let each_twice = clients.iter().chain(&clients);
        let threads: Vec<_> = each_twice.map(|mutex| spawn(scope, || work(mutex))).collect();
        threads.into_iter().for_each(join);
    });
    let counted = counter.load(Ordering::SeqCst);
    let what = format!("{counted} of {} counted: two were inside", 6 * ROUNDS);
    violated_unless(counted == 6 * ROUNDS, what);
}

/// A crowd that only tries: as many get in as unlock, and what is held afterwards is kept by the
/// watchdog.
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
    assert!(!subject.probe(&name).held, "nobody is inside any more");
    drop(take(&lock));
}

/// Force ends whoever's holding, and says whether there was one; the holder learns of it when it
/// unlocks.
pub(crate) fn force_unlock_frees_lock_of_any_holder(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    let guard = take(&one);
    assert!(other.force_unlock().expect("the store answers"), "it was held");
    assert!(!subject.probe(one.name()).held);
    assert!(!other.is_locked().expect("the store answers"));
    let _next = take(&other);
    assert!(guard.unlock().expect_err("it was taken away").is_lost());
    violated_unless(subject.probe(one.name()).held, "a lost guard freed its successor's lock");
}

/// Whoever waits for a lock that is freed by force is woken.
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
        in_time("woken", took, prompt());
    });
}

/// What the handle says of the lock is what the store says.
pub(crate) fn queries_agree_with_store(subject: &dyn Subject) {
    let [one, other] = mutexes(subject);
    for mutex in [&one, &other] {
        assert!(!mutex.is_locked().expect("the store answers"));
        assert_eq!(mutex.time_to_live().expect("the store answers"), None);
    }
    let guard = take_with(&one, &fixed(ms(10_000)));
    for mutex in [&one, &other] {
        assert!(mutex.is_locked().expect("the store answers"));
        let left = mutex.time_to_live().expect("the store answers").expect("it is held");
        assert!(left <= ms(10_001) && left > ms(8_000), "{left:?} of 10 s are left");
    }
    guard.unlock().expect("it is ours");
    assert!(!elsewhere(|| other.is_locked()).expect("the store answers"));
}

/// A guard with an owner of its own is one more stranger, and goes to another thread to be unlocked
/// there.
pub(crate) fn owned_guard_unlocks_on_other_thread(subject: &dyn Subject) {
    let name = fresh_name();
    let (here, there) = (client(subject), client(subject));
    let owned = here.owned_mutex(&name).expect("a good name");
    let guard = owned.try_lock_for(patience()).expect("the store answers").expect("it is free");
    assert!(is_busy(&mutex(&there, &name)));
    elsewhere(move || guard.unlock()).expect("it is the guard's, not the thread's");
    drop(take(&mutex(&there, &name)));
}

/// A handle with owners of its own is never reentrant: each guard is a holder.
pub(crate) fn owned_mutex_is_not_reentrant(subject: &dyn Subject) {
    let name = fresh_name();
    let client = client(subject);
    let owned = client.owned_mutex(&name).expect("a good name");
    let guard = owned.try_lock().expect("the store answers").expect("it is free");
    assert!(owned.try_lock().expect("the store answers").is_none());
    assert!(is_busy(&mutex(&client, &name)), "nor is its thread's handle the same owner");
    guard.unlock().expect("it is ours");
    assert!(!subject.probe(&name).held);
    drop(take(&mutex(&client, &name)));
}

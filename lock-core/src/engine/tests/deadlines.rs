//! The results of waiters at their deadlines, while other threads of their client send requests or
//! leave the queue.

use super::handoff::waits_for;
use super::*;

/// The wait of each waiter that reaches its deadline in these tests.
const SHORT: Duration = Duration::from_micros(100);

fn is_done<T>(waiter: thread::JoinHandle<T>) -> T {
    eventually("the waiter is done", || waiter.is_finished());
    waiter.join().unwrap()
}

#[test]
fn follower_in_line_of_a_granted_permit_is_late_and_no_error() {
    let (store, clock) = Recorded::new();
    let (holder, client) = (store.client(), store.client());
    let held = holder.semaphore("x", 1).unwrap().acquire().unwrap();
    let semaphore = client.semaphore("x", 1).unwrap();
    let gate = store.gate.lock();
    let head = thread::spawn({
        store.fail_next("acquire", Fault::Slow(Duration::ZERO));
        store.fail_next("acquire", Fault::Hangs);
        let semaphore = semaphore.clone();
        move || semaphore.acquire()
    });
    eventually("the head asks in line", || store.count("acquire") == 3);
    let follower = thread::spawn(move || semaphore.try_acquire_for(SHORT));
    parked(&clock, 2); // the follower, and the holder's timer
    clock.jump(SHORT);
    parked(&clock, 2); // past its deadline it waits for the head's answer
    held.unlock().unwrap();
    drop(gate);
    let permit = is_done(head).unwrap();
    assert!(is_done(follower).expect("the store has answered").is_none());
    permit.unlock().unwrap();
}

/// "Refused" is not "busy", even for followers whose head left the queue because of the refusal.
#[test]
fn followers_of_a_refused_head_are_not_told_busy() {
    for _ in 0..20 {
        let (store, clock) = Recorded::new();
        let _other_use = store.client().semaphore("x", 1).unwrap().acquire().unwrap();
        let client = store.client();
        let gate = store.gate.lock();
        store.cut("acquire", Fault::Hangs);
        let asked = store.count("acquire");
        let mut waiters = vec![waits_for(&client, SHORT)];
        eventually("the head asks", || store.count("acquire") > asked);
        waiters.extend((0..4).map(|_| waits_for(&client, SHORT)));
        let wait_for_more = || {
            clock
                .sleepers()
                .iter()
                .filter(|it| clock.now() < **it)
                .count()
        };
        eventually("all wait for their turn", || wait_for_more() == 5); // and a timer
        clock.jump(SHORT);
        eventually("all wait for the head's answer", || wait_for_more() == 5);
        drop(gate);
        for waiter in waiters {
            let error = is_done(waiter).expect_err("the store refuses");
            assert!(!error.is_unavailable(), "{error}");
        }
    }
}

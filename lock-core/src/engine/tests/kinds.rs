//! Read-write locks, semaphores and fair locks on one in-memory store, mostly by two clients.

use super::*;
use crate::backend::WAITER_PRESENCE;
use crate::engine::OTHER_LIMITS;
use crate::{FencingToken, LockKind, OwnedMutex, Semaphore, WriterPriority};

/// Makes two clients of one store.
fn pair() -> ([Client; 2], ManualClock) {
    let (store, clock) = Recorded::new();
    ([store.client(), store.client()], clock)
}

fn brief() -> LockOptions {
    LockOptions::new().lease(SECOND * 5)
}

#[test]
fn readers_share_and_exclude_a_writer() {
    let ([a, b], _) = pair();
    let (a, b) = (a.rw_lock("x").unwrap(), b.rw_lock("x").unwrap());
    let first = a.read().lock().unwrap();
    let second = b.read().try_lock().unwrap().expect("readers share");
    assert!(first.fencing_token().is_none(), "no writer was here yet");
    assert_eq!(a.read().inspect().unwrap().holders, 2);
    assert!(thread::scope(|scope| {
        scope
            .spawn(|| a.write().try_lock().unwrap().is_none())
            .join()
            .unwrap()
    }));
    first.unlock().unwrap();
    second.unlock().unwrap();
    let writer = b.write().try_lock().unwrap().expect("free");
    assert!(a.read().try_lock().unwrap().is_none() && a.write().try_lock().unwrap().is_none());
    let token = writer.fencing_token().unwrap();
    writer.unlock().unwrap();
    assert_eq!(a.read().lock().unwrap().fencing_token(), Some(token));
    let next = b.write().lock().unwrap().fencing_token();
    assert!(next > Some(token));
}

#[test]
fn owned_guard_of_a_read_write_lock_is_sent_and_excludes() {
    let ([a, b], _) = pair();
    let (a, b) = (a.rw_lock("x").unwrap(), b.rw_lock("x").unwrap());
    let (once, options) = (Some(Duration::ZERO), LockOptions::new());
    let readers =
        [&a, &a, &b].map(|lock| lock.read().acquire_owned(once, &options).unwrap().unwrap());
    assert!(!a.read().is_held_by_current_thread());
    assert!(
        a.write().acquire_owned(once, &options).unwrap().is_none(),
        "no thread of its own reads"
    );
    thread::spawn(|| readers.map(|reader| reader.unlock().unwrap()))
        .join()
        .unwrap();
    let writer = a.write().acquire_owned(None, &options).unwrap().unwrap();
    assert!(a.read().acquire_owned(once, &options).unwrap().is_none());
    assert!(
        a.write().acquire_owned(once, &options).unwrap().is_none(),
        "not reentrant"
    );
    thread::spawn(|| writer.unlock().unwrap()).join().unwrap();
    assert!(b.read().try_lock().unwrap().is_some());
}

#[test]
fn waiting_writer_keeps_new_readers_out() {
    let ([a, b], _) = pair();
    let (a, b) = (a.rw_lock("x").unwrap(), b.rw_lock("x").unwrap());
    let reading = a.read().lock().unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| b.write().lock().unwrap().fencing_token());
        eventually("the writer is known", || {
            scope
                .spawn(|| b.read().try_lock().unwrap().is_none())
                .join()
                .unwrap()
        });
        drop(
            a.read()
                .try_lock()
                .unwrap()
                .expect("re-entry is no new reader"),
        );
        reading.unlock().unwrap();
        assert!(writer.join().unwrap().is_some());
    });
    assert!(
        b.read().try_lock().unwrap().is_some(),
        "the writer waits no more"
    );
}

#[test]
fn writer_that_gives_up_lets_readers_in() {
    let ([a, b], clock) = pair();
    let (a, b) = (a.rw_lock("x").unwrap(), b.rw_lock("x").unwrap());
    let reading = a.read().lock().unwrap();
    assert!(thread::scope(|scope| {
        scope
            .spawn(|| b.write().try_lock().unwrap().is_none())
            .join()
            .unwrap()
    }));
    eventually("the attempt is forgotten", || {
        b.read().try_lock().unwrap().is_some()
    });
    drop((reading, clock));
}

#[test]
fn waiting_writer_without_priority_keeps_no_reader_out() {
    let store = "memory://equal-writers";
    let connect = |priority| {
        let client = crate::builder().url(store).unwrap();
        client
            .configure(|config| config.with_writers(priority))
            .connect()
            .unwrap()
    };
    let [first, equal] = [WriterPriority::First, WriterPriority::Equal].map(connect);
    let [x, same] = [&first, &equal].map(|client| client.rw_lock("x").unwrap());
    let reading = x.read().lock().unwrap();
    let gate = first.rw_lock("x").unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| gate.write().lock().unwrap().is_valid());
        let others = || {
            scope
                .spawn(|| x.read().try_lock().unwrap().is_none())
                .join()
                .unwrap()
        };
        eventually("the writer is known", others);
        drop(
            same.read()
                .try_lock()
                .unwrap()
                .expect("this client's readers do not care"),
        );
        reading.unlock().unwrap();
        assert!(writer.join().unwrap());
    });
    let reading = x.read().lock().unwrap();
    thread::scope(|scope| {
        let writer = scope.spawn(|| same.write().lock().unwrap().is_valid());
        eventually("the writer waits", || {
            equal.0.waiting(same.write().name()) > 0
        });
        let other = || x.read().try_lock().unwrap().is_some();
        assert!(
            scope.spawn(other).join().unwrap(),
            "this client's writers keep no reader out"
        );
        reading.unlock().unwrap();
        assert!(writer.join().unwrap());
    });
}

#[test]
fn writer_may_read_and_goes_on_reading() {
    writer_reads_and_goes_on(false);
    writer_reads_and_goes_on(true);
}

fn writer_reads_and_goes_on(is_fair: bool) {
    let ([a, b], _) = pair();
    let [a, b] = [a, b].map(|client| match is_fair {
        true => client.fair_rw_lock("x").unwrap(),
        false => client.rw_lock("x").unwrap(),
    });
    let writing = a.write().lock().unwrap();
    let reading = a.read().lock().unwrap();
    assert_eq!(reading.fencing_token(), writing.fencing_token());
    let again = a.write().lock().unwrap();
    drop(again);
    assert!(b.read().try_lock().unwrap().is_none(), "it still writes");
    writing.unlock().unwrap();
    let other = b.read().try_lock().unwrap().expect("it reads now");
    assert!(
        a.write().try_lock().unwrap_err().is_misuse(),
        "a reader cannot write"
    );
    drop(other);
    reading.unlock().unwrap();
    assert!(b.write().try_lock().unwrap().is_some());
}

/// A thread cannot have a minimum hold of the write lock and a read lock at once: in a store in
/// which readers and the writer share a lease, the minimum hold would last as long as the reads.
#[test]
fn shortest_time_and_reads_beside_a_writer_are_refused() {
    let ([a, b], _) = pair();
    let (a, b) = (a.rw_lock("x").unwrap(), b.rw_lock("x").unwrap());
    let least = LockOptions::new().at_least(SECOND);
    let writing = a.write().lock_with(&least).unwrap();
    assert!(a.read().lock().unwrap_err().is_misuse());
    writing.unlock().unwrap();
    assert!(b.write().try_lock().unwrap().is_none(), "it is kept");
    a.write().force_unlock().unwrap();
    let writing = a.write().lock().unwrap();
    let reading = a.read().lock().unwrap();
    assert!(writing.keep_at_least(SECOND).unwrap_err().is_misuse());
    assert!(a.write().lock_with(&least).unwrap_err().is_misuse());
    reading.unlock().unwrap();
    writing.keep_at_least(SECOND).unwrap();
    writing.unlock().unwrap();
    assert!(b.read().try_lock().unwrap().is_none(), "it is kept");
}

/// A hand-off would admit the next writer while the former writer still reads.
#[test]
fn writer_that_goes_on_reading_hands_nothing_off() {
    let (store, _) = Recorded::new();
    let (other, client) = (store.client(), store.client());
    let held = other.rw_lock("x").unwrap().write().lock().unwrap();
    let lock = client.rw_lock("x").unwrap();
    let local = client
        .0
        .find_local_lock(lock.write().name(), Scope::CLIENT)
        .unwrap();
    let (written, is_written) = std::sync::mpsc::channel();
    thread::scope(|scope| {
        let (lock, store, waiting) = (&lock, &store, || local.waiting());
        let first = scope.spawn(move || {
            let writing = lock.write().lock().unwrap();
            let token = writing.fencing_token();
            let reading = lock.read().lock().unwrap();
            assert_eq!(
                reading.fencing_token(),
                token,
                "not what is set aside for hand-offs"
            );
            let asked = store.count("acquire");
            writing.unlock().unwrap();
            eventually("the next writer asks the store", || {
                store.count("acquire") > asked
            });
            assert!(
                reading.is_valid() && is_written.try_recv().is_err(),
                "a writer beside it"
            );
            reading.unlock().unwrap();
            assert!(is_written.recv().unwrap() > token);
        });
        eventually("the first queues", || waiting() == 1);
        scope.spawn(move || {
            let guard = lock.write().lock().unwrap();
            written.send(guard.fencing_token()).unwrap();
        });
        eventually("the second queues", || waiting() == 2);
        held.unlock().unwrap();
        first.join().unwrap();
    });
}

#[test]
fn thread_is_told_that_it_would_wait_for_itself() {
    let ([a, b], _) = pair();
    let (rw, fair_rw) = (a.rw_lock("x").unwrap(), a.fair_rw_lock("x").unwrap());
    let (mutex, fair) = (a.mutex("x").unwrap(), a.fair_mutex("x").unwrap());
    let locks: [&dyn DistLock; 6] = [
        &mutex,
        &fair,
        rw.read(),
        rw.write(),
        fair_rw.read(),
        fair_rw.write(),
    ];
    for (held, lock) in locks.iter().enumerate() {
        let guard = lock.lock().unwrap();
        for (other, lock) in locks.iter().enumerate() {
            let is_downgrade = [(3, 2), (5, 4)].contains(&(held, other));
            let is_refused = other != held && !is_downgrade;
            let refused = lock.try_lock();
            assert_eq!(
                refused.is_err_and(|error| error.is_misuse()),
                is_refused,
                "{held} {other}"
            );
        }
        drop(guard);
    }
    // Another client is another holder, even in the same thread: the lock is busy.
    let _held = mutex.lock().unwrap();
    assert!(b.fair_mutex("x").unwrap().try_lock().unwrap().is_none());
}

#[test]
fn try_on_a_fair_or_a_write_lock_keeps_none_out() {
    let (store, _) = Recorded::new();
    let clients: [Client; 3] = std::array::from_fn(|_| store.client());
    let fair: [_; 3] = std::array::from_fn(|n| clients[n].fair_mutex("x").unwrap());
    let held = fair[0].lock().unwrap();
    assert!(fair[1].try_lock().unwrap().is_none());
    held.unlock().unwrap();
    assert!(
        fair[2].try_lock().unwrap().is_some(),
        "the try left no position"
    );
    let rw: [_; 3] = std::array::from_fn(|n| clients[n].rw_lock("y").unwrap());
    let _reading = rw[0].read().lock().unwrap();
    assert!(rw[1].write().try_lock().unwrap().is_none());
    assert!(
        rw[2].read().try_lock().unwrap().is_some(),
        "no writer waits"
    );
    assert_eq!(
        store.count("release") + store.count("close"),
        3,
        "nothing is cleaned up"
    );
}

#[test]
fn share_of_a_dead_reader_ends_whatever_others_renew() {
    let ([a, b], clock) = pair();
    let dead = a.rw_lock("x").unwrap().read().lock_with(&brief()).unwrap();
    let alive = b.rw_lock("x").unwrap();
    let alive_guard = alive.read().lock().unwrap();
    std::mem::forget(dead);
    advance(&b, &clock, SECOND * 6);
    assert!(alive_guard.is_valid());
    assert_eq!(alive.read().inspect().unwrap().holders, 1);
}

#[test]
fn detached_read_hold_is_unlocked_by_its_thread_only() {
    let ([a, _b], _clock) = pair();
    let lock = a.rw_lock("x").unwrap();
    lock.read().lock().unwrap().detach();
    assert_eq!(lock.read().hold_count(), 1);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_eq!(lock.read().hold_count(), 0);
            assert!(lock.read().unlock().unwrap_err().is_not_held());
        });
    });
    lock.read().unlock().unwrap();
    assert_eq!(lock.read().hold_count(), 0);
}

#[test]
fn semaphore_grants_no_more_than_its_limit() {
    let ([a, b], _) = pair();
    let (a, b) = (a.semaphore("x", 3).unwrap(), b.semaphore("x", 3).unwrap());
    let one = a.acquire().unwrap();
    let two = b.acquire_many(2).unwrap();
    assert!(a.try_acquire().unwrap().is_none() && b.try_acquire().unwrap().is_none());
    one.unlock().unwrap();
    assert!(
        a.try_acquire_with(2, &LockOptions::new())
            .unwrap()
            .is_none()
    );
    let last = a.try_acquire().unwrap().expect("one is free");
    let info = b.inspect().unwrap();
    assert_eq!((info.holders, info.permits.unwrap().free), (3, 0));
    drop(two);
    assert_eq!(b.inspect().unwrap().permits.unwrap().free, 2);
    assert!(last.is_valid() && a.acquire_many(4).unwrap_err().is_misuse());
}

#[test]
fn waiter_for_a_permit_is_woken_by_a_release() {
    let ([a, b], _) = pair();
    let (a, b) = (a.semaphore("x", 1).unwrap(), b.semaphore("x", 1).unwrap());
    let held = a.acquire().unwrap();
    let waiter = thread::spawn(move || b.acquire().unwrap().is_valid());
    held.unlock().unwrap();
    assert!(waiter.join().unwrap());
}

#[test]
fn limit_is_changed_for_all_and_told_to_who_names_another() {
    let (store, _clock) = Recorded::new();
    let told = Arc::new(Mutex::new(Vec::new()));
    let events = Arc::clone(&told);
    let other = store.builder().events(Arc::new(move |event: &Event| {
        if let Event::LimitDiffers { asked, stored, .. } = event {
            events.lock().push((*asked, *stored));
        }
    }));
    let (mut a, b) = (
        store.client().semaphore("x", 2).unwrap(),
        other.connect().unwrap().semaphore("x", 5).unwrap(),
    );
    let held = a.acquire_many(2).unwrap();
    assert!(
        b.try_acquire().unwrap().is_none(),
        "the first client's limit counts"
    );
    assert_eq!(a.set_limit(1).unwrap(), Some(2));
    assert!(held.is_valid(), "permits above the limit stay");
    drop(held);
    let permits: Vec<_> = (0..2).map(|_| b.acquire().map(drop)).collect();
    assert!(permits.iter().all(Result::is_ok));
    eventually("the other limit is told", || *told.lock() == [(5, 1)]);
}

#[test]
fn other_limit_is_told_once_for_each_that_is_named() {
    let (store, _clock) = Recorded::new();
    let (a, told) = store.client_with_events();
    let _held = store.client().semaphore("x", 2).unwrap().acquire().unwrap();
    let names_other = |name: &str, limit: u32| {
        let permit = a.semaphore(name, limit).unwrap().try_acquire().unwrap();
        permit.expect("one is free").unlock().unwrap();
    };
    let count = || {
        told.lock()
            .iter()
            .filter(|event| *event == "LimitDiffers")
            .count()
    };
    for _ in 0..10 {
        names_other("x", 5);
        names_other("x", 3);
    }
    names_other("x", 4);
    eventually("each is told", || count() >= 3);
    assert_eq!(count(), 3);
    for number in 0..OTHER_LIMITS + 50 {
        let name = format!("x{number}");
        drop(
            store
                .client()
                .semaphore(&name, 2)
                .unwrap()
                .acquire()
                .unwrap(),
        );
        names_other(&name, 5);
    }
    assert_eq!(a.0.other_limits.lock().len(), OTHER_LIMITS);
}

/// The store reports the name of a changed lock without its kind, so the client finds the lock of
/// each kind by the name.
#[test]
fn change_is_found_for_a_mutex_a_writer_and_a_fair_lock() {
    let ([a, b], _clock) = pair();
    let of = |client: &Client, kind: &str| -> Arc<dyn DistLock> {
        match kind {
            "write" => client.rw_lock(kind).unwrap().write().into(),
            "fair" => client.fair_mutex(kind).unwrap().into(),
            "fair write" => client.fair_rw_lock(kind).unwrap().write().into(),
            _ => client.mutex(kind).unwrap().into(),
        }
    };
    // A fair lock is found in another index, by thread, so the other kinds are repeated afterwards.
    for kind in ["mutex", "write", "fair", "fair write", "mutex", "write"] {
        let guard = of(&a, kind).lock().unwrap();
        let _reader = a.rw_lock("read").unwrap().read().lock().unwrap();
        assert!(of(&b, kind).force_unlock().unwrap());
        let names = [kind, "read"].map(|name| LockName::new(name).unwrap());
        a.0.renew_now(Some(&names));
        eventually("the loss is known", || !guard.is_valid());
        assert!(guard.unlock().unwrap_err().is_lost());
    }
}

/// The store must know the waiters of locks that are granted in order, and the writers that take
/// precedence over readers. So these waiters send an attempt each second.
#[test]
fn waiter_that_polls_seldom_shows_itself_each_second() {
    let waking = Waking::Polls {
        interval: 60 * SECOND,
        jitter: Duration::ZERO,
    };
    for (kind, expected) in [("mutex", 1..=1), ("write", 5..=6), ("fair", 5..=6)] {
        let (store, clock) = Recorded::new();
        let polls = store
            .able(Abilities::full().all_kinds(true).waking(waking))
            .client();
        let of = |client: &Client| -> Arc<dyn DistLock> {
            match kind {
                "write" => client.rw_lock("x").unwrap().write().into(),
                "fair" => client.fair_mutex("x").unwrap().into(),
                _ => client.mutex("x").unwrap().into(),
            }
        };
        let holder = store.client();
        let held = of(&holder).lock().unwrap();
        let lock = of(&polls);
        let waiter = thread::spawn(move || lock.lock().map(drop).unwrap());
        eventually("it has asked", || store.count("acquire") == 2);
        for _ in 0..20 {
            parked(&clock, 2);
            clock.jump(SECOND / 4);
        }
        parked(&clock, 2);
        let asked = store.count("acquire") - 1;
        assert!(expected.contains(&asked), "{kind}: {asked} attempts in 5 s");
        held.unlock().unwrap();
        advance_until_done(&clock, 0, &waiter);
        waiter.join().unwrap();
    }
}

/// The lease of the writer ends while its own thread's attempt to read hangs. Meanwhile another
/// writer acquires and releases the lock.
#[test]
fn reader_after_a_lost_writer_has_the_last_ones_token() {
    let (store, clock) = Recorded::new();
    let (a, b) = (store.client(), store.client());
    let gate = store.gate.lock();
    thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let lock = a.rw_lock("x").unwrap();
            let writer = lock.write().lock_with(&brief()).unwrap();
            store.fail_next("acquire", Fault::Hangs);
            let reader = lock.read().lock().unwrap();
            assert!(writer.unlock().unwrap_err().is_lost());
            reader.fencing_token()
        });
        eventually("it asks to read", || store.count("acquire") == 2);
        clock.jump(6 * SECOND);
        let other = b
            .rw_lock("x")
            .unwrap()
            .write()
            .try_lock()
            .unwrap()
            .expect("its lease is over");
        let last = other.fencing_token();
        other.unlock().unwrap();
        drop(gate);
        assert_eq!(reads.join().unwrap(), last);
        assert!(last.is_some());
    });
}

#[test]
fn more_permits_than_the_store_has_are_refused_and_the_limit_told() {
    let ([a, b], _) = pair();
    let _one = a.semaphore("x", 2).unwrap().acquire().unwrap();
    let error = b.semaphore("x", 5).unwrap().acquire_many(3).unwrap_err();
    assert!(
        error.is_misuse() && error.to_string().contains("the semaphore has 2"),
        "{error}"
    );
}

#[test]
fn waiter_in_line_is_refused_more_permits_than_there_are() {
    let ([a, _b], _) = pair();
    let mut semaphore = a.semaphore("x", 3).unwrap();
    let _held = semaphore.acquire().unwrap();
    let wait = |interrupt: &Interrupt| {
        let (semaphore, interrupt) = (semaphore.clone(), interrupt.clone());
        thread::spawn(move || {
            let options = LockOptions::new().interrupt(&interrupt);
            semaphore.acquire_with(3, &options).map(drop).unwrap_err()
        })
    };
    let name = || {
        LockName::new("x")
            .unwrap()
            .of_kind(LockKind::Permits { limit: 3, count: 3 })
    };
    let in_line = || {
        let line = a.0.find_local_lock(&name(), Scope::CLIENT);
        line.map_or(0, |line| line.waiting())
    };
    let (first, second) = (Interrupt::new(), Interrupt::new());
    let first_waits = wait(&first);
    eventually("the first waits", || in_line() == 1);
    let second_waits = wait(&second);
    eventually("the second waits behind it", || in_line() == 2);
    semaphore.set_limit(2).unwrap();
    first.fire();
    assert!(first_waits.join().unwrap().is_interrupted());
    eventually("the second looks how many there are", || {
        second_waits.is_finished()
    });
    assert!(second_waits.join().unwrap().is_misuse());
}

#[test]
fn released_permits_occupy_no_memory() {
    let ([a, _b], _clock) = pair();
    let semaphore: Semaphore = a.semaphore("x", 1).unwrap();
    for _ in 0..100 {
        semaphore.acquire().unwrap().unlock().unwrap();
        drop(semaphore.acquire().unwrap());
    }
    assert_eq!(a.names_in_use(), 0);
}

#[test]
fn name_of_a_semaphore_is_no_lock() {
    let ([a, b], _) = pair();
    let _permit = a.semaphore("x", 1).unwrap().acquire().unwrap();
    assert!(
        b.mutex("x")
            .unwrap()
            .try_lock()
            .unwrap_err()
            .is_foreign_format()
    );
    let _held = a.mutex("y").unwrap().lock().unwrap();
    assert!(
        b.semaphore("y", 1)
            .unwrap()
            .try_acquire()
            .unwrap_err()
            .is_foreign_format()
    );
}

/// After the loss of a write lock or of several permits, a part may remain in the store, so the
/// client sends a release. A lost mutex or single permit leaves no part.
#[test]
fn what_may_be_left_of_a_lost_kind_is_released() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let brief = brief();
    let mut released = 0;
    for (what, expected) in [
        ("mutex", 0),
        ("write", 1),
        ("fair write", 1),
        ("one permit", 0),
        ("permits", 1),
    ] {
        let write = client.rw_lock("write").unwrap();
        let fair_write = client.fair_rw_lock("fair write").unwrap();
        let semaphore = client.semaphore("permits", 3).unwrap();
        let (guard, permits) = match what {
            "mutex" => (
                Some(client.mutex("mutex").unwrap().lock_with(&brief).unwrap()),
                None,
            ),
            "write" => (Some(write.write().lock_with(&brief).unwrap()), None),
            "fair write" => (Some(fair_write.write().lock_with(&brief).unwrap()), None),
            "one permit" => (None, Some(semaphore.acquire_with(1, &brief).unwrap())),
            _ => (None, Some(semaphore.acquire_with(3, &brief).unwrap())),
        };
        clock.jump(SECOND * 5);
        let is_valid = || {
            guard.as_ref().is_some_and(|it| it.loss().is_none())
                || permits.as_ref().is_some_and(|it| it.loss().is_none())
        };
        eventually("it is lost", || !is_valid());
        client.wait_for_cleanup(SECOND).unwrap();
        let now = store.count("release") + store.count("close");
        assert_eq!(now - released, expected, "{what}");
        released = now;
    }
}

#[test]
fn fair_lock_is_granted_in_the_order_of_arrival() {
    let (store, clock) = Recorded::new();
    let clients: Vec<_> = (0..3).map(|_| store.client()).collect();
    let held = clients[0].fair_mutex("x").unwrap().lock().unwrap();
    let order = Arc::new(Mutex::new(Vec::<(usize, FencingToken)>::new()));
    let waiters: Vec<_> = (0..9)
        .map(|n| {
            let (lock, order) = (clients[n % 3].fair_mutex("x").unwrap(), Arc::clone(&order));
            let before = store.count("acquire");
            let waiter = thread::spawn(move || {
                let guard = lock.lock().unwrap();
                order.lock().push((n, guard.fencing_token().unwrap()));
                guard.unlock().unwrap();
            });
            // One attempt before the watch and one after it.
            eventually("it has a position", || store.count("acquire") >= before + 2);
            waiter
        })
        .collect();
    assert!(
        clients[1]
            .fair_mutex("x")
            .unwrap()
            .try_lock()
            .unwrap()
            .is_none()
    );
    held.unlock().unwrap();
    for waiter in waiters {
        waiter.join().unwrap();
    }
    let order = order.lock();
    assert_eq!(
        order.iter().map(|(n, _)| *n).collect::<Vec<_>>(),
        (0..9).collect::<Vec<_>>()
    );
    assert!(order.is_sorted_by_key(|(_, token)| *token));
    drop(clock);
}

#[test]
fn fair_permits_are_granted_in_the_order_of_arrival() {
    let (store, _clock) = Recorded::new();
    let clients: Vec<_> = (0..3).map(|_| store.client()).collect();
    let permits_of = |n: usize| clients[n % 3].fair_semaphore("x", 4).unwrap();
    let held = permits_of(0).acquire_many(3).unwrap();
    let order = Arc::new(Mutex::new(Vec::new()));
    let waiters: Vec<_> = (0..9_u32)
        .map(|n| {
            let (permits, order) = (permits_of(n as usize), Arc::clone(&order));
            let before = store.count("acquire");
            let waiter = thread::spawn(move || {
                // More than half of the permits, so that each thread waits for the thread before
                // it. Thread 4 wants the one permit that is free, and must wait in order
                // nevertheless.
                let guard = permits
                    .acquire_many(if n == 4 { 1 } else { 3 + n % 2 })
                    .unwrap();
                order.lock().push(n);
                guard.unlock().unwrap();
            });
            // One attempt before the limit check and the watch, and one after them.
            eventually("it has a position", || store.count("acquire") >= before + 2);
            waiter
        })
        .collect();
    assert!(permits_of(1).try_acquire().unwrap().is_none());
    held.unlock().unwrap();
    waiters
        .into_iter()
        .for_each(|waiter| waiter.join().unwrap());
    assert_eq!(*order.lock(), (0..9).collect::<Vec<_>>());
    assert!(permits_of(1).try_acquire().unwrap().is_some());
}

#[test]
fn fair_waiters_ask_three_times_within_their_presence() {
    // A third of the presence must not be one second: the timer sleeps until its first check then.
    for presence in [SECOND * 6, SECOND * 30] {
        for kind in ["lock", "permits"] {
            let (store, clock) = Recorded::new();
            let configure = move |config: crate::Config| config.with_fair_presence(presence);
            let client = store.builder().configure(configure).connect().unwrap();
            let long = LockOptions::new().watched(SECOND * 3_600);
            let (lock, permits) = (client.fair_mutex("x"), client.fair_semaphore("y", 1));
            let (lock, permits) = (lock.unwrap(), permits.unwrap());
            let _held = (
                lock.lock_with(&long).unwrap(),
                permits.acquire_with(1, &long).unwrap(),
            );
            let waiter = thread::spawn(move || match kind {
                "lock" => lock.try_lock_for(SECOND * 60).unwrap().is_none(),
                _ => permits.try_acquire_for(SECOND * 60).unwrap().is_none(),
            });
            let next = clock.now() + presence / 3;
            eventually("it waits", || {
                store.count("acquire") == 4 && clock.sleepers().contains(&next)
            });
            advance(&client, &clock, presence / 3 - SECOND / 10);
            assert_eq!(store.count("acquire"), 4, "{presence:?} {kind}");
            advance(&client, &clock, SECOND / 5);
            eventually("it asks again", || store.count("acquire") == 5);
            advance_until_done(&clock, 0, &waiter);
            assert!(waiter.join().unwrap());
        }
    }
}

#[test]
fn dead_fair_waiter_keeps_others_out_for_its_presence() {
    for presence in [SECOND, SECOND * 3, SECOND * 30] {
        for kind in [
            LockKind::Fair,
            LockKind::FairWrite,
            LockKind::FairPermits { limit: 1, count: 1 },
        ] {
            let (store, clock) = Recorded::new();
            let client = store.client();
            let name = LockName::new("x").unwrap().of_kind(kind);
            let lease = LeaseTime::new(SECOND * 60).unwrap();
            let [holder, dead, next] = [1, 2, 3].map(|n| OwnerId::new(client.id(), n << 32));
            let ask = |owner, presence| {
                let attempt = Attempt::new(&name, owner, lease).presence(presence);
                store.acquire(&attempt, clock.now() + SECOND).unwrap()
            };
            assert!(!ask(holder, SECOND).is_busy() && ask(dead, presence).is_busy());
            let held = AcquisitionId::new(name.clone(), holder, lease, Default::default());
            let released = ReleaseOptions::WITHOUT_TOMBSTONE;
            store
                .release(&held, released, clock.now() + SECOND)
                .unwrap();
            clock.jump(presence - SECOND / 100);
            assert!(ask(next, SECOND).is_busy(), "{presence:?} {kind:?}");
            clock.jump(SECOND / 100);
            assert!(!ask(next, SECOND).is_busy(), "{presence:?} {kind:?}");
        }
    }
}

/// Makes a client whose mutexes are fair.
fn in_order(store: &Recorded) -> Client {
    let configure = |config: crate::Config| config.with_order(crate::LockOrder::Fair);
    store.builder().configure(configure).connect().unwrap()
}

/// Starts a thread that waits for a fair lock; its result is the guard. Returns when the thread has
/// a watch and has sent an attempt after it.
fn waits_in_line(
    store: &Recorded,
    client: &Client,
    options: LockOptions,
) -> thread::JoinHandle<crate::OwnedGuard> {
    let lock = client.owned_mutex("x").unwrap();
    let before = store.count("acquire");
    let waiter = thread::spawn(move || lock.acquire(None, &options).unwrap().unwrap());
    // One attempt before the watch and one after it.
    eventually("it has a position", || store.count("acquire") >= before + 2);
    waiter
}

/// Returns a client to which the release by another client has granted the lock, and the guard.
fn granted_directly(store: &Recorded) -> (Client, crate::OwnedGuard) {
    let [first, next] = [in_order(store), in_order(store)];
    let held = first.mutex("x").unwrap().lock().unwrap();
    let waiter = waits_in_line(store, &next, LockOptions::new());
    held.unlock().unwrap();
    (next, waiter.join().unwrap())
}

#[test]
fn direct_grant_takes_no_request_and_is_renewed_to_the_whole_lease() {
    let (store, clock) = Recorded::new();
    let clients = [in_order(&store), in_order(&store)];
    let held = clients[0].mutex("x").unwrap().lock().unwrap();
    let waiter = waits_in_line(&store, &clients[1], LockOptions::new());
    let (asked, first) = (store.count("acquire"), held.fencing_token());
    held.unlock().unwrap();
    let guard = waiter.join().unwrap();
    assert_eq!(store.count("acquire"), asked);
    assert!(guard.fencing_token() > first);
    let left = guard.remaining();
    assert!(
        left < WAITER_PRESENCE && left > WAITER_PRESENCE - SECOND / 10,
        "{left:?}"
    );
    assert_eq!(store.count("renew"), 0);
    advance(&clients[1], &clock, SECOND);
    eventually("it is renewed", || store.count("renew") == 1);
    eventually("to its whole lease", || guard.remaining() > SECOND * 20);
    advance(&clients[1], &clock, SECOND * 5);
    assert!(guard.is_valid() && guard.verify().is_ok());
    guard.unlock().unwrap();
    assert!(!clients[0].mutex("x").unwrap().is_locked().unwrap());
}

/// A direct grant does not count if the server was replaced since, or if the watch had to connect
/// anew: the server may have restarted without the grant.
#[test]
fn direct_grant_that_does_not_count_is_asked_for() {
    for reconnects in [false, true] {
        let (store, _clock) = Recorded::new();
        let clients = [in_order(&store), in_order(&store)];
        let held = clients[0].mutex("x").unwrap().lock().unwrap();
        let waiter = waits_in_line(&store, &clients[1], LockOptions::new());
        let asked = store.count("acquire");
        store.grants_count.store(reconnects, Ordering::SeqCst);
        store.reconnects.store(reconnects, Ordering::SeqCst);
        held.unlock().unwrap();
        assert!(waiter.join().unwrap().is_valid());
        assert_eq!(store.count("acquire"), asked + 1, "{reconnects}");
    }
}

#[test]
fn direct_grant_without_tokens_has_none() {
    let (store, _clock) = Recorded::new();
    let configure = |config: crate::Config| {
        config
            .with_order(crate::LockOrder::Fair)
            .with_tokens(crate::config::TokenPolicy::Off)
    };
    let client = || store.builder().configure(configure).connect().unwrap();
    let clients = [client(), client()];
    let held = clients[0].mutex("x").unwrap().lock().unwrap();
    let waiter = waits_in_line(&store, &clients[1], LockOptions::new());
    let asked = store.count("acquire");
    held.unlock().unwrap();
    assert_eq!(waiter.join().unwrap().fencing_token(), None);
    assert_eq!(store.count("acquire"), asked);
}

/// A direct grant has less than the requested lease until the first renewal.
#[test]
fn direct_grant_outlasts_a_renewal_without_an_answer() {
    let (store, clock) = Recorded::new();
    let (client, guard) = granted_directly(&store);
    store.fail_next("renew", Fault::Unanswered);
    let gate = store.gate.lock();
    clock.jump(SECOND);
    eventually("it is renewed", || store.count("renew") == 1);
    let given = store.time_given("renew");
    assert!(
        given <= SECOND,
        "{given:?} of the two seconds that are left"
    );
    clock.jump(given);
    drop(gate);
    eventually("it failed", || guard.state() == GuardState::Suspended);
    advance(&client, &clock, SECOND / 3);
    eventually("it is renewed again", || store.count("renew") == 2);
    eventually("to its whole lease", || guard.remaining() > SECOND * 20);
}

#[test]
fn minimum_hold_of_a_direct_grant_counts_from_the_grant() {
    let (store, clock) = Recorded::new();
    let clients = [in_order(&store), in_order(&store)];
    let mutex = clients[0].mutex("x").unwrap();
    let held = mutex.lock().unwrap();
    let waiter = waits_in_line(&store, &clients[1], LockOptions::new().at_least(SECOND / 2));
    let asked = store.count("acquire");
    advance(&clients[0], &clock, SECOND * 9 / 10);
    held.unlock().unwrap();
    waiter.join().unwrap().unlock().unwrap();
    assert_eq!(
        store.count("acquire"),
        asked,
        "it was granted by the release"
    );
    clock.jump(SECOND * 2 / 5);
    assert!(mutex.is_locked().unwrap(), "for half a second");
    clock.jump(SECOND / 5);
    assert!(!mutex.is_locked().unwrap());
}

#[test]
fn whole_lease_of_a_direct_grant_begins_when_it_is_needed() {
    let (store, _clock) = Recorded::new();
    let (_client, guard) = granted_directly(&store);
    guard.ensure(SECOND * 2).unwrap();
    assert_eq!(store.count("renew"), 0);
    guard.ensure(SECOND * 20).unwrap();
    assert_eq!(store.count("renew"), 1);
    assert!(guard.ensure(SECOND * 40).unwrap_err().is_lease_too_short());
    assert_eq!(store.count("renew"), 1, "that was its whole lease");
}

/// The leader renews the direct grant at once, so that later queries of the leadership send no
/// request.
#[test]
fn leader_by_a_direct_grant_has_its_whole_lease_from_the_beginning() {
    let (store, _clock) = Recorded::new();
    let clients = [in_order(&store), in_order(&store)];
    let held = clients[0].mutex("x").unwrap().lock().unwrap();
    let (election, before) = (clients[1].election("x").unwrap(), store.count("acquire"));
    election.campaign().unwrap();
    eventually("it has a position", || store.count("acquire") >= before + 2);
    let asked = store.count("acquire");
    held.unlock().unwrap();
    assert!(election.wait_for_leadership(SECOND * 20, None).unwrap());
    assert!(
        election.remaining() > SECOND * 20,
        "{:?}",
        election.remaining()
    );
    assert_eq!((store.count("acquire"), store.count("renew")), (asked, 1));
}

/// A direct grant does not count until an attempt has confirmed it if the lease is fixed, if the
/// number of renewals is limited, or if replicas must confirm the grant.
#[test]
fn other_waits_are_granted_by_an_attempt_of_their_own() {
    let others = [
        ("a fixed lease", LockOptions::new().lease(SECOND * 30)),
        (
            "counted renewals",
            LockOptions::new().watched_at_most(SECOND * 30, 9),
        ),
        (
            "replicas",
            LockOptions::new().replication(Replication::replicas(1)),
        ),
    ];
    for (what, options) in others {
        let (store, _clock) = Recorded::new();
        let abilities = Abilities::full()
            .all_kinds(true)
            .replication(ReplicaSupport::Counted);
        let store = store.able(abilities);
        *store.replicas.lock() = Some(2);
        let clients = [in_order(&store), in_order(&store)];
        let held = clients[0].mutex("x").unwrap().lock().unwrap();
        let waiter = waits_in_line(&store, &clients[1], options);
        let asked = store.count("acquire");
        held.unlock().unwrap();
        drop(waiter.join().unwrap());
        assert_eq!(store.count("acquire"), asked + 1, "{what}");
    }
}

#[test]
fn fair_waiter_that_gives_up_leaves_no_position() {
    let ([a, b], _) = pair();
    let held = a.fair_mutex("x").unwrap().lock().unwrap();
    let other = b.fair_mutex("x").unwrap();
    assert!(thread::scope(|scope| {
        scope
            .spawn(|| other.try_lock().unwrap().is_none())
            .join()
            .unwrap()
    }));
    held.unlock().unwrap();
    eventually("its position is gone", || {
        thread::scope(|scope| {
            scope
                .spawn(|| other.try_lock().unwrap().is_some())
                .join()
                .unwrap()
        })
    });
}

#[test]
fn fair_lock_and_mutex_of_a_name_exclude_each_other() {
    let ([a, b], _) = pair();
    let held = a.fair_mutex("x").unwrap().lock().unwrap();
    let mutex: OwnedMutex = b.owned_mutex("x").unwrap();
    assert!(mutex.try_lock().unwrap().is_none());
    held.unlock().unwrap();
    let held = mutex.lock().unwrap();
    assert!(a.fair_mutex("x").unwrap().try_lock().unwrap().is_none());
    drop(held);
}

/// A semaphore without free permits, and threads of one client, each of which waits for one permit.
struct Line {
    client: Client,
    store: Recorded,
    clock: ManualClock,
    semaphore: Semaphore,
    held: Option<crate::OwnedGuard>,
    waiters: Vec<thread::JoinHandle<()>>,
}

impl Line {
    fn of(threads: usize) -> Self {
        let (store, clock) = Recorded::new();
        let client = store.client();
        let semaphore = client.semaphore("x", 4).unwrap();
        let held = Some(semaphore.acquire_many(4).unwrap());
        let mut line = Self {
            client,
            store,
            clock,
            semaphore,
            held,
            waiters: Vec::new(),
        };
        for at in 0..threads {
            line.waiters.push(thread::spawn({
                let semaphore = line.semaphore.clone();
                move || semaphore.acquire().unwrap().unlock().unwrap()
            }));
            line.await_length(at + 1);
        }
        line
    }

    /// Waits until this many threads are in line.
    fn await_length(&self, length: usize) {
        eventually("they stand in line", || {
            let line = self
                .client
                .0
                .find_local_lock(self.semaphore.name(), Scope::CLIENT);
            line.map_or(0, |line| line.waiting()) == length
        });
    }

    fn end(mut self) {
        drop(self.held.take());
        self.waiters
            .into_iter()
            .for_each(|waiter| waiter.join().unwrap());
    }
}

#[test]
fn only_the_first_thread_in_line_asks_for_a_permit() {
    const THREADS: usize = 50;
    let line = Line::of(THREADS);
    let asked = line.store.count("acquire");
    // At least the holder's attempt, and two attempts of the first thread in line: one before its
    // watch and one after it.
    assert!(asked <= 5, "{asked}");
    line.semaphore.force_release_all().unwrap();
    let Line {
        store,
        waiters,
        held,
        ..
    } = line;
    waiters
        .into_iter()
        .for_each(|waiter| waiter.join().unwrap());
    let asked = store.count("acquire") - asked;
    assert!(
        asked <= 3 * THREADS,
        "{asked} requests for {THREADS} permits"
    );
    assert!(held.unwrap().unlock().unwrap_err().is_lost());
}

#[test]
fn thread_in_line_returns_at_its_deadline_and_interrupt() {
    let line = Line::of(1);
    let late = thread::spawn({
        let semaphore = line.semaphore.clone();
        move || semaphore.try_acquire_for(SECOND).unwrap().is_none()
    });
    line.await_length(2);
    let interrupt = Interrupt::new();
    let interrupted = thread::spawn({
        let options = LockOptions::new().interrupt(&interrupt);
        let semaphore = line.semaphore.clone();
        move || {
            semaphore
                .acquire_with(1, &options)
                .unwrap_err()
                .is_interrupted()
        }
    });
    line.await_length(3);
    interrupt.fire();
    assert!(interrupted.join().unwrap());
    line.await_length(2);
    line.clock.jump(SECOND);
    assert!(late.join().unwrap());
    line.await_length(1);
    line.end();
}

#[test]
fn thread_in_line_for_many_permits_keeps_back_none_for_one() {
    let line = Line::of(0);
    let many = thread::spawn({
        let semaphore = line.semaphore.clone();
        move || drop(semaphore.acquire_many(3).unwrap())
    });
    eventually("it waits", || line.store.count("watch") > 0);
    line.semaphore.force_release_all().unwrap();
    many.join().unwrap();
    let two = line.semaphore.acquire_many(2).unwrap();
    let many = thread::spawn({
        let semaphore = line.semaphore.clone();
        move || drop(semaphore.acquire_many(3).unwrap())
    });
    eventually("it waits", || line.store.count("watch") > 1);
    drop(
        line.semaphore
            .try_acquire_for(SECOND)
            .unwrap()
            .expect("two are free"),
    );
    drop(two);
    many.join().unwrap();
    assert!(line.held.unwrap().unlock().unwrap_err().is_lost());
}

#[test]
fn drained_permits_are_renewed_and_released_by_their_number() {
    let (store, clock) = Recorded::new();
    let client = store.client();
    let semaphore = client.semaphore("s", 5).unwrap();
    let one = semaphore.acquire().unwrap();
    let drained = semaphore.drain().unwrap().unwrap();
    assert_eq!(drained.permit_ids().len(), 4);
    assert!(semaphore.drain().unwrap().is_none());
    advance(&client, &clock, 100 * SECOND);
    assert!(drained.is_valid() && one.is_valid());
    drained.unlock().unwrap();
    let free = || semaphore.inspect().unwrap().permits.unwrap().free;
    assert_eq!(free(), 4);
    // An operator releases one of the permits by force. Once the client knows of the loss, it
    // releases the others.
    let drained = semaphore.drain().unwrap().unwrap();
    assert!(semaphore.release_permit(drained.permit_ids()[3]).unwrap());
    assert!(drained.verify().unwrap_err().is_lost());
    eventually("the others are free", || free() == 4);
    // An attempt whose reply is lost keeps no permit busy, either.
    store.fail_next("acquire", Fault::Swallowed);
    let drained = semaphore.drain().unwrap().unwrap();
    assert_eq!((drained.permit_ids().len(), free()), (4, 0));
    drained.unlock().unwrap();
    assert_eq!(free(), 4);
    store.cut("acquire", Fault::Swallowed);
    assert!(semaphore.drain().unwrap_err().is_unavailable());
    store.mend();
    eventually("what it may have taken comes back", || free() == 4);
}

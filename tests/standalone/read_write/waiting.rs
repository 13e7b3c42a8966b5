//! Waiters: which events wake them, and how a waiting writer keeps readers out.

use super::*;
use distlock_tests::probe::Value;
use distlock_tests::process::RedisServer;
use distlock_tests::redis::client;
use distlock_tests::time::{Stopwatch, eventually, let_pass, ms, retry_if_late};
use lock_core::backend::WAITER_PRESENCE;

/// Returns how many clients listen for grants of the lock.
fn listeners(probe: &mut Probe) -> usize {
    queue::listeners(probe, "x")
}

fn waiting(probe: &mut Probe) -> i64 {
    queue::waiting(probe, "x")
}

pub(super) fn listeners_on(probe: &mut Probe, channel: &str) -> i64 {
    match probe.command(&["PUBSUB", "NUMSUB", channel]) {
        Value::List(parts) => parts[1].clone().int(),
        other => panic!("{other:?}"),
    }
}

/// Calls `free` once `waiter` sleeps, and returns how long `waiter` takes after that.
fn woken_after<T: Send>(
    probe: &mut Probe,
    waiter: impl FnOnce() -> T + Send,
    free: impl FnOnce(),
) -> Duration {
    thread::scope(|scope| {
        let waits = scope.spawn(waiter);
        eventually("it listens", LONG, || listeners(probe) == 1);
        // Time for the attempt that follows the subscription.
        let_pass(ms(20));
        assert!(!waits.is_finished());
        let freed = Stopwatch::start();
        free();
        waits.join().unwrap();
        freed.elapsed()
    })
}

fn assert_woken(time: Duration) {
    println!("woken after {time:?}");
    if time >= WOKEN {
        distlock_tests::time::late(WOKEN, format!("{time:?}"));
    }
}

#[test]
fn writer_is_woken_by_the_last_reader() {
    retry_if_late(|| {
        let server = RedisServer::start();
        let clients = [client(&server, ""), client(&server, "")];
        let [a, b] = clients
            .each_ref()
            .map(|client| client.rw_lock("x").unwrap());
        let mut probe = server.probe();
        let first = a.read().lock().unwrap();
        elsewhere(|| a.read().lock().map(|guard| guard.detach()));
        let writes = || b.write().lock().unwrap().unlock().unwrap();
        let free = || {
            first.unlock().unwrap();
            assert!(a.read().force_unlock().unwrap(), "the other's");
        };
        assert_woken(woken_after(&mut probe, writes, free));
        let last = a.read().lock().unwrap();
        assert_woken(woken_after(&mut probe, writes, || last.unlock().unwrap()));
    });
}

#[test]
fn readers_are_woken_by_the_writer_and_by_its_downgrade() {
    retry_if_late(|| {
        let server = RedisServer::start();
        let clients = [client(&server, ""), client(&server, "")];
        let [a, b] = clients
            .each_ref()
            .map(|client| client.rw_lock("x").unwrap());
        let mut probe = server.probe();
        let writing = a.write().lock().unwrap();
        let free = || writing.unlock().unwrap();
        let reads = || b.read().lock().unwrap().unlock().unwrap();
        assert_woken(woken_after(&mut probe, reads, free));
        let writing = a.write().lock().unwrap();
        let reading = a.read().lock().unwrap();
        assert_eq!(reading.fencing_token(), writing.fencing_token());
        assert_eq!(probe.hgetall("x")["mode"], "write");
        let free = || writing.unlock().unwrap();
        assert_woken(woken_after(&mut probe, reads, free));
        assert_eq!(probe.hgetall("x")["mode"], "read");
        reading.verify().unwrap();
        reading.unlock().unwrap();
        assert!(!probe.exists("x"));
    });
}

/// The release of a mutex wakes a reader of another client that waits for the same name.
#[test]
fn mutex_and_reader_of_a_name_wake_each_other() {
    retry_if_late(|| {
        let server = RedisServer::start();
        let clients = [client(&server, ""), client(&server, "")];
        let (mutex, lock) = (
            clients[0].mutex("x").unwrap(),
            clients[1].rw_lock("x").unwrap(),
        );
        let mut probe = server.probe();
        let held = mutex.lock().unwrap();
        let free = || held.unlock().unwrap();
        let reads = || lock.read().lock().unwrap().unlock().unwrap();
        assert_woken(woken_after(&mut probe, reads, free));
    });
}

/// Waiters of one client for both kinds share its inbox, and each of them is woken.
#[test]
fn mutex_and_writer_of_a_name_wait_in_one_client() {
    retry_if_late(|| {
        let server = RedisServer::start();
        let clients = [client(&server, ""), client(&server, "")];
        let [holder, lock] = clients
            .each_ref()
            .map(|client| client.rw_lock("x").unwrap());
        let (held, mutex) = (
            holder.write().lock().unwrap(),
            clients[1].mutex("x").unwrap(),
        );
        let mut probe = server.probe();
        thread::scope(|scope| {
            let writes = scope.spawn(|| lock.write().lock().unwrap().unlock().unwrap());
            eventually("the writer listens", LONG, || listeners(&mut probe) == 1);
            let locks = scope.spawn(|| mutex.lock().unwrap().unlock().unwrap());
            eventually("the other one, too", LONG, || waiting(&mut probe) == 2);
            let_pass(ms(20)); // the attempts behind their subscriptions
            let freed = Stopwatch::start();
            held.unlock().unwrap();
            writes.join().unwrap();
            locks.join().unwrap();
            assert_woken(freed.elapsed());
        });
    });
}

#[test]
fn waiting_writer_keeps_new_readers_out_for_its_presence() {
    let server = RedisServer::start();
    let (asked, mut probe) = (Asked(Bench::on(&server)), server.probe());
    let _watch = asked.0.listens(&write());
    let (reader, _) = asked.take(&read(), 30_000);
    let (writer, other) = (asked.0.owner(), Asked(Bench::on(&server)));
    assert!(asked.wait(&write(), writer).is_busy());
    assert_eq!(waiting(&mut probe), 1);
    let is_kept_out = || asked.attempt(&read(), asked.0.owner(), lease(30_000));
    let busy = is_kept_out();
    assert!(
        matches!(busy, Answer::Busy(Some(left)) if left <= WAITER_PRESENCE),
        "{busy:?}"
    );
    assert!(asked.is_busy(&read()), "also one that does not wait");
    granted(asked.attempt(&read(), reader, lease(30_000)));
    assert_eq!(asked.renew(&read(), reader, 30_000), Renewal::Extended);
    // The writer keeps readers out until its release, or until the end of its wait.
    asked.release(&read(), reader);
    assert!(is_kept_out().is_busy(), "the writer is next");
    granted(asked.wait(&write(), writer));
    assert_eq!(waiting(&mut probe), 0);
    assert!(asked.is_busy(&write()));
    assert_eq!(waiting(&mut probe), 0, "a try keeps no reader out");
    let quits = asked.0.owner();
    assert!(
        asked.wait(&write(), quits).is_busy(),
        "another writer waits"
    );
    assert_eq!(waiting(&mut probe), 1);
    asked.release(&write(), writer);
    assert!(is_kept_out().is_busy(), "that writer is next");
    assert_eq!(asked.release(&write(), quits), Release::Gone);
    assert_eq!(waiting(&mut probe), 0);
    asked.take(&read(), 30_000);
    // Of two waiting writers, the first keeps readers out even after the second gives up.
    assert!(asked.waits(&write()));
    let second = other.0.owner();
    assert!(other.wait(&write(), second).is_busy());
    assert_eq!(other.release(&write(), second), Release::Gone);
    assert!(asked.is_busy(&read()));
    eventually("a dead writer is forgotten", LONG, || {
        !asked.is_busy(&read())
    });
}

#[test]
fn readers_without_respect_for_writers_come_in_beside_readers() {
    let server = RedisServer::start();
    let first = Asked(Bench::on(&server));
    let equal = Asked(Bench::new(&format!("{}?writers=equal", server.url())));
    let (reader, _) = first.take(&read(), 30_000);
    let writer = equal.0.owner();
    assert!(equal.wait(&write(), writer).is_busy());
    assert!(first.is_busy(&read()) && first.waits(&read()));
    let (other, _) = equal.take(&read(), 30_000);
    assert!(matches!(first.release(&read(), reader), Release::Freed));
    assert!(matches!(equal.release(&read(), other), Release::Freed));
    assert!(
        equal
            .attempt(&read(), equal.0.owner(), lease(30_000))
            .is_busy(),
        "of a free lock the writer is next"
    );
    granted(equal.wait(&write(), writer));
}

#[test]
fn writer_that_gives_up_wakes_readers() {
    retry_if_late(|| {
        let server = RedisServer::start();
        let clients = [
            client(&server, ""),
            client(&server, ""),
            client(&server, ""),
        ];
        let [a, b, c] = clients
            .each_ref()
            .map(|client| client.rw_lock("x").unwrap());
        let reading = a.read().lock().unwrap();
        let interrupt = distlock::Interrupt::new();
        thread::scope(|scope| {
            let writer = scope.spawn(|| b.write().lock_interruptibly(&interrupt).map(drop));
            let mut probe = server.probe();
            eventually("the writer waits", LONG, || waiting(&mut probe) == 1);
            let reader = scope.spawn(|| c.read().lock().unwrap().unlock().unwrap());
            eventually("both listen", LONG, || listeners(&mut probe) == 2);
            let_pass(ms(20));
            assert!(!reader.is_finished());
            let gave_up = Stopwatch::start();
            interrupt.fire();
            assert!(writer.join().unwrap().unwrap_err().is_interrupted());
            reader.join().unwrap();
            assert_woken(gave_up.elapsed());
        });
        reading.unlock().unwrap();
    });
}

/// Six readers hold the lock in overlap all the time: a writer gets in all the same.
#[test]
fn writer_is_not_starved_by_overlapping_readers() {
    let server = RedisServer::start();
    let clients = [client(&server, ""), client(&server, "")];
    let done = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        for n in 0..6 {
            let (client, done) = (&clients[n % 2], &done);
            scope.spawn(move || {
                let lock = client.rw_lock("x").unwrap();
                while !done.load(std::sync::atomic::Ordering::SeqCst) {
                    let guard = lock.read().lock().unwrap();
                    let_pass(ms(5 + 7 * n as u64));
                    guard.unlock().unwrap();
                }
            });
        }
        let writer = clients[0].rw_lock("x").unwrap();
        let granted = (0..5).all(|_| {
            let_pass(ms(60));
            writer.write().try_lock_for(LONG).unwrap().is_some()
        });
        done.store(true, std::sync::atomic::Ordering::SeqCst);
        assert!(granted);
    });
}

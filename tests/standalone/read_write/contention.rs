//! Readers and writers that contend all the time, as threads and as processes: a writer must be
//! alone inside.

use super::{LONG, elsewhere};
use distlock::{Client, LockOptions};
use distlock_tests::contenders::read_write::ReadersAndWriters;
use distlock_tests::process::RedisServer;
use distlock_tests::redis::client;
use distlock_tests::time::{Stopwatch, eventually, scaled, within};
use lock_conformance::violated;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// What a writer adds to `Inside::now`; a reader adds 1, so that one number counts both.
const WRITER: i64 = 1_000;

#[derive(Default)]
struct Inside {
    /// The number of readers inside, plus `WRITER` for each writer.
    now: AtomicI64,
    most_readers: AtomicI64,
    reads: AtomicU64,
    writes: AtomicU64,
    last_token: AtomicU64,
}

impl Inside {
    fn read(&self, client: &Client) {
        let guard = client.rw_lock("x").unwrap().read().lock().unwrap();
        let before = self.now.fetch_add(1, Ordering::SeqCst);
        if before >= WRITER {
            violated(format!("a reader came in beside a writer: {before}"));
        }
        self.most_readers.fetch_max(before + 1, Ordering::SeqCst);
        let seen = self.last_token.load(Ordering::SeqCst);
        let token = guard.fencing_token().map_or(0, |token| token.get());
        if token < seen {
            violated(format!(
                "a reader has the token {token} behind the writer's {seen}"
            ));
        }
        thread::yield_now();
        self.now.fetch_sub(1, Ordering::SeqCst);
        guard.unlock().unwrap();
        self.reads.fetch_add(1, Ordering::SeqCst);
    }

    fn write(&self, client: &Client) {
        let guard = client.rw_lock("x").unwrap().write().lock().unwrap();
        let before = self.now.fetch_add(WRITER, Ordering::SeqCst);
        if before != 0 {
            violated(format!("a writer came in beside others: {before}"));
        }
        let token = guard.fencing_token().unwrap().get();
        let last = self.last_token.swap(token, Ordering::SeqCst);
        if token <= last {
            violated(format!("the token {token} follows {last}"));
        }
        self.now.fetch_sub(WRITER, Ordering::SeqCst);
        guard.unlock().unwrap();
        self.writes.fetch_add(1, Ordering::SeqCst);
    }
}

/// A thread that writes also reads, and loses only its write lock. The read hold keeps the lock's
/// hash, so the loss must remove the writer's field: otherwise no other reader would get in.
#[test]
fn lost_write_lock_leaves_nothing_behind() {
    let server = RedisServer::start();
    let [own, other] = [client(&server, ""), client(&server, "")];
    let lock = own.rw_lock("x").unwrap();
    let brief = LockOptions::new().lease(Duration::from_secs(1));
    let written = lock.write().lock_with(&brief).unwrap();
    let reading = lock
        .read()
        .lock_with(&LockOptions::new().watched(LONG * 10))
        .unwrap();
    eventually("the write lock is lost", LONG, || written.loss().is_some());
    let other = other.rw_lock("x").unwrap();
    eventually("other readers are let in", LONG, || {
        other.read().try_lock().unwrap().is_some()
    });
    assert!(reading.is_valid());
}

#[test]
fn contending_readers_and_writers_exclude_each_other() {
    let server = RedisServer::start();
    let clients = [client(&server, ""), client(&server, "")];
    let (inside, watch) = (Inside::default(), Stopwatch::start());
    let time = scaled(Duration::from_secs(3));
    thread::scope(|scope| {
        for n in 0..12 {
            let (inside, watch, client) = (&inside, &watch, &clients[n % 2]);
            scope.spawn(move || {
                while watch.elapsed() < time {
                    if n < 8 {
                        inside.read(client);
                    } else {
                        inside.write(client);
                    }
                }
            });
        }
    });
    let [reads, writes] = [&inside.reads, &inside.writes].map(|it| it.load(Ordering::SeqCst));
    let most = inside.most_readers.load(Ordering::SeqCst);
    println!("{reads} reads, {writes} writes, {most} readers at once at most");
    assert!(
        most > 1 && writes > 10 && reads > 10,
        "{most}, {writes}, {reads}"
    );
    within(LONG, || {
        elsewhere(|| clients[0].rw_lock("x")?.write().lock().map(drop));
    });
    let (mut probe, counter) = (server.probe(), ["redisson_lock_token:{x}"]);
    eventually("nothing else is left", LONG, || probe.keys("*") == counter);
}

/// Processes keep reading and writing after another one is paused, one is killed, and the paused
/// one resumes.
#[test]
fn killed_and_paused_processes_let_no_two_in_and_block_briefly() {
    let server = RedisServer::start();
    let url = format!("{}?watchdog=1s", server.url());
    let mut contenders = ReadersAndWriters::start(&url, 3, 3, 2);
    let count = |contenders: &ReadersAndWriters| {
        let account = contenders.account();
        (account.reads.len(), account.writes.len())
    };
    let go_on = |contenders: &ReadersAndWriters, what: &str| {
        let (reads, writes) = count(contenders);
        eventually(what, LONG, || {
            let now = count(contenders);
            now.0 > reads + 20 && now.1 > writes + 20
        });
    };
    go_on(&contenders, "they read and write");
    contenders.children[0].pause();
    go_on(&contenders, "they go on beside a paused one");
    contenders.children[1].kill();
    go_on(&contenders, "they go on beside a killed one");
    contenders.children[0].resume();
    go_on(&contenders, "they go on beside one that was paused");
    let account = contenders.stop();
    println!(
        "{} reads, {} writes",
        account.reads.len(),
        account.writes.len()
    );
    let lock = client(&server, "").rw_lock("x").unwrap();
    within(LONG, || lock.write().lock().unwrap().unlock().unwrap());
    // Tombstones of the paused process last for some seconds. A dead waiter stays in the queue
    // until the first release after the end of its presence.
    let counter = ["redisson_lock_token:{x}"];
    eventually("nothing else is left", LONG, || {
        lock.write().lock().unwrap().unlock().unwrap();
        server.probe().keys("*") == counter
    });
}

//! Names that differ only by braces: their locks share none of our keys, and no grant.

use crate::bench::LONG;
use distlock::{Client, Error};
use distlock_tests::process::RedisServer;
use distlock_tests::redis::{builder, client};
use distlock_tests::time::{always, eventually, ms};
use std::thread;

#[test]
fn fair_lock_is_granted_to_no_waiter_of_the_tagged_name() {
    for (held, released) in [("{x}", "x"), ("x", "{x}"), (":{x}", "{x}"), ("{x}", ":{x}")] {
        let server = RedisServer::start();
        let [holder, waiter, other] = [(); 3].map(|()| client(&server, ""));
        let guard = holder.fair_mutex(held).unwrap().lock().unwrap();
        let unlocked = other.fair_mutex(released).unwrap().lock().unwrap();
        let waits = waiter.fair_mutex(held).unwrap();
        let waiting = thread::spawn(move || waits.lock().unwrap().unlock().unwrap());
        let mut probe = server.probe();
        eventually("it waits", LONG, || {
            !probe.keys("distlock_queue:*").is_empty()
        });
        unlocked.unlock().unwrap();
        let rule = format!("{released} was released, and {held} is still held");
        always(&rule, ms(1_000), || !waiting.is_finished());
        guard.verify().unwrap();
        guard.unlock().unwrap();
        waiting.join().unwrap();
    }
}

#[test]
fn waiting_writer_keeps_no_reader_of_the_tagged_name_out() {
    let server = RedisServer::start();
    let [reader, writer] = [(); 2].map(|()| client(&server, ""));
    let guard = reader.rw_lock("x").unwrap().read().lock().unwrap();
    let waits = writer.rw_lock("x").unwrap();
    let waiting = thread::spawn(move || waits.write().lock().unwrap().unlock().unwrap());
    let mut probe = server.probe();
    eventually("it waits", LONG, || {
        !probe.keys("distlock_queue:*").is_empty()
    });
    assert!(
        reader
            .rw_lock("{x}")
            .unwrap()
            .read()
            .try_lock()
            .unwrap()
            .is_some()
    );
    guard.unlock().unwrap();
    waiting.join().unwrap();
}

#[test]
fn labels_of_names_that_differ_by_braces_are_two() {
    let server = RedisServer::start();
    let label = |text: &str| {
        builder(&server, "watchdog=1s")
            .owner(text)
            .connect()
            .unwrap()
    };
    let [plain, tagged] = [label("plain"), label("tagged")];
    let _held = [
        plain.mutex("x").unwrap().lock(),
        tagged.mutex("{x}").unwrap().lock(),
    ];
    let shows = |client: &Client, name: &str, says: &str| {
        let holder = client.mutex(name).unwrap().inspect().unwrap().holder;
        holder
            .and_then(|it| it.label)
            .is_some_and(|label| &*label.text == says)
    };
    // At the same time: under a common key the later label would have replaced the earlier one.
    eventually("both have one", LONG, || {
        shows(&plain, "x", "plain") && shows(&tagged, "{x}", "tagged")
    });
}

/// Redisson keeps the permits of `x` and of `{x}` under one key.
#[test]
fn semaphore_whose_key_is_one_hash_tag_is_refused() {
    let server = RedisServer::start();
    let plain = client(&server, "");
    let mut tagged = plain.semaphore("{x}", 2).unwrap();
    let refused: [Result<(), Error>; 5] = [
        tagged.acquire().map(drop),
        tagged.try_acquire_for(ms(100)).map(drop),
        tagged.inspect().map(drop),
        tagged.set_limit(3).map(drop),
        tagged.force_release_all().map(drop),
    ];
    for outcome in refused {
        let error = outcome.unwrap_err();
        assert!(error.is_misuse(), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains("`{x}:timeout`") && text.contains("name it `x`"),
            "{text}"
        );
    }
    assert_eq!(server.probe().keys("*"), [""; 0]);
    let prefixed = client(&server, "prefix=app:");
    for (client, name) in [
        (&plain, "x"),
        (&plain, "{x}:all"),
        (&plain, ":{x}"),
        (&prefixed, "{x}"),
    ] {
        client
            .semaphore(name, 2)
            .unwrap()
            .acquire()
            .unwrap()
            .unlock()
            .unwrap();
    }
}

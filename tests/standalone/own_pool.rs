//! Locks over the application's own pool of connections by the crate `redis`.

use distlock::redis_rs::{RedisPool, r2d2, redis};
use distlock::{Client, LockOptions};
use distlock_tests::process::RedisServer;
use distlock_tests::time::{Stopwatch, let_pass};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

fn application(server: &RedisServer) -> redis::Client {
    redis::Client::open(server.url_as("")).unwrap()
}

fn pool(server: &RedisServer, size: u32, tests: bool) -> r2d2::Pool<redis::Client> {
    let builder = r2d2::Pool::builder().max_size(size).min_idle(Some(0));
    builder
        .test_on_check_out(tests)
        .build(application(server))
        .unwrap()
}

fn locks(pool: &r2d2::Pool<redis::Client>) -> Client {
    RedisPool::new(pool.clone()).connect().unwrap()
}

#[test]
fn lock_over_the_applications_pool_excludes_others() {
    let server = RedisServer::start();
    for tests in [false, true] {
        let pool = pool(&server, 4, tests);
        let (ours, theirs) = (locks(&pool), distlock::connect(&server.url_as("")).unwrap());
        let guard = ours.mutex("it").unwrap().lock().unwrap();
        assert!(theirs.mutex("it").unwrap().try_lock().unwrap().is_none());
        redis::cmd("INCR")
            .arg("data")
            .exec(&mut *pool.get().unwrap())
            .unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let lock = theirs.mutex("it").unwrap();
                lock.try_lock_for(LONG)
                    .unwrap()
                    .expect("it comes free")
                    .unlock()
                    .unwrap();
            });
            let_pass(Duration::from_millis(100));
            guard.unlock().unwrap();
            waits.join().unwrap();
        });
        let guard = theirs.mutex("it").unwrap().lock().unwrap();
        assert!(ours.mutex("it").unwrap().try_lock().unwrap().is_none());
        drop(guard);
        let client = RedisPool::new(pool.clone())
            .with_waking(&application(&server))
            .unwrap()
            .connect()
            .unwrap();
        let first = ours.mutex("it").unwrap().lock().unwrap();
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let lock = client.mutex("it").unwrap();
                drop(lock.try_lock_for(LONG).unwrap().expect("it comes free"));
            });
            let_pass(Duration::from_millis(100));
            first.unlock().unwrap();
            waits.join().unwrap();
        });
    }
}

/// One connection is for renewals alone.
#[test]
fn held_lock_survives_an_exhausted_pool() {
    let server = RedisServer::start();
    let pool = pool(&server, 2, false);
    let locks = locks(&pool);
    let options = LockOptions::new().watched(Duration::from_secs(2));
    let guard = locks.mutex("it").unwrap().lock_with(&options).unwrap();
    let taken = pool.get().unwrap();
    assert!(pool.try_get().is_none(), "one is kept aside");
    let watch = Stopwatch::start();
    let error = locks.mutex("other").unwrap().try_lock().unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    assert!(error.to_string().contains("max_size"), "{error}");
    assert!(watch.elapsed() < Duration::from_secs(10));
    let_pass(Duration::from_secs(5));
    assert!(guard.is_valid());
    drop(taken);
    guard.verify().unwrap();
    guard.unlock().unwrap();
}

//! The content of the store, which is that of Redisson's `RPermitExpirableSemaphore`.

use distlock::{LockOptions, Semaphore};
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::redis::client;
use std::time::Duration;

const NAME: &str = "downloads";
const TAKEN: &str = "{downloads}:timeout";

/// How many permits are free and how many are taken.
pub(super) fn stored(probe: &mut Probe) -> (Option<String>, i64) {
    (probe.get(NAME), probe.command(&["ZCARD", TAKEN]).int())
}

fn brief() -> LockOptions {
    LockOptions::new().lease(Duration::from_millis(300))
}

#[test]
fn acquired_renewed_and_released_permits_are_counted() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let semaphore: Semaphore = client(&server, "watchdog=1s").semaphore(NAME, 3).unwrap();
    let one = semaphore.acquire().unwrap();
    let two = semaphore.acquire_many(2).unwrap();
    assert_eq!(stored(&mut probe), (Some("0".to_owned()), 3));
    assert!(semaphore.try_acquire_with(1, &brief()).unwrap().is_none());
    assert_eq!(probe.pttl(NAME), None);
    assert!(one.is_valid());
    two.unlock().unwrap();
    assert_eq!(stored(&mut probe), (Some("2".to_owned()), 1));
    one.unlock().unwrap();
    assert_eq!(stored(&mut probe), (Some("3".to_owned()), 0));
}

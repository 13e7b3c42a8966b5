//! Locks of several stores.

use distlock::{LockOptions, MultiLock};
use distlock_tests::postgres::PostgresServer;
use distlock_tests::process::RedisServer;
use distlock_tests::time::{let_pass, ms};

/// A lock of several with a member in each store is held in both or in neither.
#[test]
fn multi_lock_has_members_in_both_stores() {
    let (database, redis) = (PostgresServer::start(), RedisServer::start());
    let one = distlock::connect(&database.url()).unwrap();
    let two = distlock::connect(&redis.url()).unwrap();
    let members = || [one.mutex("a").unwrap(), two.mutex("b").unwrap()];
    let both = || MultiLock::new(members()).unwrap();
    let guard = both().lock().unwrap();
    assert_eq!(guard.fencing_tokens().len(), 2);
    let [others_one, others_two] =
        [database.url(), redis.url()].map(|url| distlock::connect(&url).unwrap());
    assert!(others_one.mutex("a").unwrap().try_lock().unwrap().is_none());
    assert!(others_two.mutex("b").unwrap().try_lock().unwrap().is_none());
    guard.unlock().unwrap();
    let busy = others_two.mutex("b").unwrap().lock().unwrap();
    assert!(both().try_lock_for(ms(300)).unwrap().is_none());
    assert!(others_one.mutex("a").unwrap().try_lock().unwrap().is_some());
    drop(busy);
    drop(both().lock().unwrap());
}

/// A minimum hold outlives the release, for other clients too.
#[test]
fn minimum_hold_outlives_the_release() {
    let server = PostgresServer::start();
    let [one, two] = [(); 2].map(|()| distlock::connect(&server.url()).unwrap());
    let options = LockOptions::new().at_least(ms(1_500));
    let guard = one.mutex("least").unwrap().lock_with(&options).unwrap();
    guard.unlock().unwrap();
    let lock = two.mutex("least").unwrap();
    assert!(lock.try_lock().unwrap().is_none());
    let_pass(ms(1_700));
    assert!(lock.try_lock().unwrap().is_some());
}

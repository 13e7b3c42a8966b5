//! What a client starts, and that it is gone with it.

use super::client;
use crate::harness::alone::{alone, own_threads};
use crate::harness::process::RedisServer;
use crate::harness::time::eventually;
use distlock::{DistLock, LockOptions};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);

#[test]
fn a_dropped_client_leaves_no_thread_and_no_connection() {
    alone("redis::life::a_dropped_client_leaves_no_thread_and_no_connection", || {
        let server = RedisServer::start();
        let mut probe = server.probe();
        for _ in 0..3 {
            let (one, two) = (client(&server, "watchdog=200ms"), client(&server, ""));
            let lock = one.mutex("shared").unwrap();
            let guard = lock.lock().unwrap();
            let waiter = thread::spawn(move || drop(two.mutex("shared").unwrap().lock().unwrap()));
            eventually("the second client has subscribed", LONG, || {
                probe.command(&["PUBSUB", "CHANNELS"]).texts()
                    == ["redisson_lock__channel:{shared}"]
            });
            eventually("the watchdog has renewed", LONG, || {
                own_threads().iter().any(|name| name.contains("lane"))
            });
            guard.unlock().unwrap();
            waiter.join().unwrap();
            assert!(!own_threads().is_empty());
            drop((lock, one));
            eventually("all threads of ours are gone", LONG, || own_threads().is_empty());
            eventually("all connections are closed", LONG, || {
                !probe.clients().iter().any(|line| line.contains("name=distlock"))
            });
        }
        assert_eq!(probe.command(&["PUBSUB", "CHANNELS"]).texts(), Vec::<String>::new());
    });
}

#[test]
fn a_detached_lock_goes_with_its_client() {
    let server = RedisServer::start();
    let client = client(&server, "");
    client.mutex("left").unwrap().lock().unwrap().detach();
    let mut probe = server.probe();
    assert!(probe.exists("left"));
    drop(client);
    eventually("it is given back, long before its lease of 30 s", LONG, || !probe.exists("left"));
}

#[test]
fn a_lock_of_one_client_is_seen_and_refused_by_another() {
    let server = RedisServer::start();
    let (one, two) = (client(&server, ""), client(&server, ""));
    let (here, there) = (one.mutex("x").unwrap(), two.mutex("x").unwrap());
    let guard = here.lock_with(&LockOptions::new().lease(Duration::from_secs(10))).unwrap();
    assert!(there.try_lock().unwrap().is_none());
    assert!(
        there.is_locked().unwrap()
            && !there.is_held_by_current_thread()
            && here.is_held_by_current_thread()
    );
    let left = there.remaining().unwrap().unwrap();
    assert!(left > Duration::from_secs(9) && left <= Duration::from_secs(10), "{left:?}");
    assert!(there.unlock().unwrap_err().is_not_held());
    assert!(there.force_unlock().unwrap() && !there.force_unlock().unwrap());
    let next = there.try_lock().unwrap().unwrap();
    assert!(next.fencing_token() > guard.fencing_token());
    assert!(guard.verify().unwrap_err().is_lost() && !guard.is_valid());
    assert!(guard.unlock().unwrap_err().is_lost());
    assert!(next.verify().is_ok());
}

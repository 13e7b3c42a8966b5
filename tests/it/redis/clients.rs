//! What one client sees of another, and what is left of one that is gone.

use crate::harness::process::RedisServer;
use crate::harness::redis::{builder, client};
use crate::harness::time::eventually;
use distlock::{DistLock, LockOptions};
use std::sync::mpsc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

#[test]
fn the_events_tell_what_happened() {
    let server = RedisServer::start();
    let (tell, told) = mpsc::channel();
    let tell = parking_lot::Mutex::new(tell);
    let handler = move |event: &distlock::Event| {
        let text = format!("{event:?}");
        let _sent = tell.lock().send(text.split([' ', '{']).next().unwrap_or_default().to_owned());
    };
    let client =
        builder(&server, "watchdog=300ms").events(std::sync::Arc::new(handler)).connect().unwrap();
    let lock = client.mutex("told").unwrap();
    let guard = lock.lock().unwrap();
    let next = || told.recv_timeout(LONG).unwrap();
    assert_eq!(next(), "Acquired");
    assert_eq!(next(), "Renewed");
    server.probe().command(&["DEL", "told"]);
    eventually("the loss is told", LONG, || next() == "Lost");
    assert!(guard.unlock().unwrap_err().is_lost());
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

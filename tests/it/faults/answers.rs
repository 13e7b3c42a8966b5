//! One lost, late or garbled answer: the lock is got and given back all the same, and nothing is left.

use super::scene::{client_of, command};
use crate::harness::process::RedisServer;
use crate::harness::proxy::{Fault, Proxy, Sometimes, Turn};
use crate::harness::resp::Kind;
use crate::harness::time::{Stopwatch, always};
use distlock::DistLock;
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(10);
/// The pauses before a repetition, and what a busy machine adds.
const SLACK: Duration = Duration::from_millis(300);

/// With a delay that is longer than a command may take, where there is one.
fn all() -> [Fault; 9] {
    [
        Fault::Cut,
        Fault::Delay(command() * 2),
        Fault::SwallowRequest,
        Fault::Late(command() * 2),
        Fault::CutReply,
        Fault::DelayReply(command() * 2),
        Fault::SwallowReply,
        Fault::HalfReply,
        Fault::Garbage,
    ]
}

/// A server that knows the scripts, behind a proxy whose first command of this kind meets this fault.
fn behind(kind: Kind, fault: Fault) -> (RedisServer, Proxy) {
    let server = RedisServer::start();
    client_of(&server.url()).mutex("b").unwrap().lock().unwrap().unlock().unwrap();
    let proxy =
        Proxy::new(server.port(), Arc::new(Sometimes::new(Some(kind), Turn::Only(1), fault)));
    (server, proxy)
}

#[test]
fn an_acquire_that_meets_any_fault_is_repeated_and_leaves_nothing_behind() {
    for fault in all() {
        let (server, proxy) = behind(Kind::Acquire, fault);
        let lock = client_of(&proxy.url()).mutex("a").unwrap();
        let watch = Stopwatch::start();
        let guard = lock.try_lock_for(LONG).unwrap().expect("it is free");
        let took = watch.elapsed();
        println!("acquire meets {fault:?}: got after {took:.1?}");
        assert!(took < command() + SLACK, "{fault:?}: {took:?}");
        guard.verify().unwrap();
        let owners = server.probe().hgetall("a");
        assert_eq!(owners.len(), 1);
        guard.unlock().unwrap();
        assert_eq!(proxy.count(Kind::Acquire, fault), 1, "{}", proxy.account());
        // Whatever of the first request is still under way comes to nothing.
        let mut probe = server.probe();
        always("it is free", command() * 2, || !probe.exists("a"));
        assert_eq!(proxy.arrived_late(Kind::Acquire), u64::from(matches!(fault, Fault::Late(_))));
    }
}

#[test]
fn a_release_that_meets_any_fault_is_told_truly_and_done_soon() {
    for fault in all() {
        let (server, proxy) = behind(Kind::Release, fault);
        let guard = client_of(&proxy.url()).mutex("a").unwrap().lock().unwrap();
        let watch = Stopwatch::start();
        let outcome = guard.unlock();
        let took = watch.elapsed();
        assert!(took < command() + SLACK, "{fault:?}: {took:?}");
        // Also after silence there is time to ask again.
        outcome.unwrap_or_else(|error| panic!("{fault:?}: {error:?}"));
        assert!(!server.probe().exists("a"));
        println!("release meets {fault:?}: done after {took:.1?}");
    }
}

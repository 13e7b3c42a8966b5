//! A lock over a failover to a replica with another clock: its holder, and the next holder.

use super::claims::{Claim, Verdict, judge};
use super::contenders::stay;
use super::process::RedisServer;
use super::time::eventually;
use distlock::time::{Clock, SystemClock};
use distlock::{Client, LockOptions};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// How many `TIME` requests a client sends to a server to read its clock.
const READS: u64 = 5;

/// Makes the client use the replicas of this lock's master, and waits until it has read their
/// clocks.
pub fn await_sample(client: &Client, name: &str, replicas: &[&RedisServer]) {
    // The attempt may be refused: the clock of a replica that does not count is read, too.
    let _granted = client.mutex(name).unwrap().try_lock();
    for replica in replicas {
        let mut probe = replica.probe();
        eventually("the clock of a replica is read", LONG, || {
            probe.command_calls("time") >= READS
        });
    }
}

/// Lets one client take a lock with a fixed lease, replaces the master, and lets the next client
/// take the lock as soon as it can. Returns whether both held it at once. The first client counts
/// as holder for as long as its guard is valid.
pub fn over_a_failover(
    first: &Client,
    name: &str,
    lease: Duration,
    fail_over: impl FnOnce() -> Client + Send,
) -> Verdict {
    let asked = SystemClock.now();
    let options = LockOptions::new().lease(lease);
    let held = first.mutex(name).unwrap().lock_with(&options).unwrap();
    let claims = thread::scope(|scope| {
        let next = scope.spawn(|| {
            let next = fail_over();
            let asked = SystemClock.now();
            let lock = next.mutex(name).unwrap();
            let guard = eventually("the next client has it", LONG, || {
                lock.try_lock_for(LONG).ok().flatten()
            });
            stay(&guard, "next", asked, || true).expect("it has just been granted")
        });
        let claim = stay(&held, "test", asked, || false);
        let claims: Vec<Claim> = claim.into_iter().chain(next.join().ok()).collect();
        claims
    });
    assert_eq!(claims.len(), 2, "{claims:?}");
    let [to, from] = [claims[0].to, claims[1].from];
    println!(
        "the next one {:?} after the first, {:?} before its end",
        from.since(to),
        to.since(from)
    );
    judge(claims)
}

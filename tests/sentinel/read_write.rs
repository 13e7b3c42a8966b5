//! Read-write locks over a failover.

use crate::scene::{SOON, await_renewal_on, client};
use distlock_tests::sentinel::Group;
use distlock_tests::time::eventually;

#[test]
fn readers_survive_a_failover_and_keep_writers_out() {
    let mut group = Group::start();
    // A long lease, because sentinels that do not agree on a leader of the failover try again
    // seconds later.
    let clients = [
        client(&group, "watchdog=16s"),
        client(&group, "watchdog=16s"),
    ];
    let [a, b] = clients
        .each_ref()
        .map(|client| client.rw_lock("held").unwrap());
    let writing = a.write().try_lock_for(SOON).unwrap().expect("it is free");
    let first = a
        .read()
        .try_lock_for(SOON)
        .unwrap()
        .expect("beside its own writer");
    writing.unlock().unwrap();
    let second = b
        .read()
        .try_lock_for(SOON)
        .unwrap()
        .expect("the other reads only");
    // The replicas must have both readers and the ends of their leases before the master is killed.
    let is_copied = |server: &distlock_tests::process::RedisServer| {
        let mut probe = server.probe();
        probe.hgetall("held").len() == 3 && probe.keys("*rwlock_timeout*").len() == 2
    };
    eventually("it is copied", SOON, || group.servers.iter().all(is_copied));
    group.servers[0].kill();
    let new = group.await_other_than(0);
    await_renewal_on(&first, &group.servers[new]);
    await_renewal_on(&second, &group.servers[new]);
    let mut probe = group.servers[new].probe();
    assert_eq!(probe.hgetall("held")["mode"], "read");
    assert_eq!(probe.keys("*rwlock_timeout*").len(), 2);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| b.write().try_lock().unwrap().is_none());
        assert!(other.join().unwrap());
    });
    first.verify().unwrap();
    first.unlock().unwrap();
    second.unlock().unwrap();
    let writing = b
        .write()
        .try_lock_for(SOON)
        .unwrap()
        .expect("both have released");
    assert_eq!(probe.hgetall("held")["mode"], "write");
    writing.unlock().unwrap();
}

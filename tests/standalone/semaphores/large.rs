//! Keys with so many members that the server would serve no other client while it frees them.

use super::{NAME, TAKEN, stored};
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::time::{eventually, ms};

const MEMBERS: u32 = 2_000;

/// Stores permits that never expire, as Redisson does, and dead readers, `MEMBERS` of each.
fn fill(probe: &mut Probe) {
    let script = "redis.call('SET', KEYS[1], 0) redis.call('HSET', KEYS[3], 'mode', 'read') \
         redis.call('PEXPIRE', KEYS[3], 600000) for i = 1, ARGV[1] do \
         redis.call('ZADD', KEYS[2], 922337203685477, i) redis.call('HSET', KEYS[3], \
         'f81d4fae-7dec-11d0-a765-00a0c91e6bf6:' .. i, 1) end";
    let keys = [NAME, TAKEN, "x"];
    let words = [
        "EVAL",
        script,
        "3",
        keys[0],
        keys[1],
        keys[2],
        &MEMBERS.to_string(),
    ];
    probe.command(&words);
}

/// Returns how many keys the server has freed in the background.
fn freed(probe: &mut Probe) -> u64 {
    let freed = probe.info_field("memory", "lazyfreed_objects");
    freed.expect("it is told since Redis 6.2").parse().unwrap()
}

#[test]
fn large_locks_are_freed_beside_the_servers_work() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let all = [
        "ACL", "SETUSER", "me", "reset", "on", "nopass", "~*", "&*", "+@all",
    ];
    probe.command(&all);
    let client = distlock::connect(&format!("redis://me@127.0.0.1:{}", server.port())).unwrap();
    let semaphore = client.semaphore(NAME, 5).unwrap();
    let lock = client.rw_lock("x").unwrap();
    for (rule, is_lazy) in [("+unlink", true), ("-unlink", false)] {
        fill(&mut probe);
        let before = freed(&mut probe);
        probe.command(&[&all[..], &[rule]].concat());
        assert!(semaphore.force_release_all().unwrap());
        assert!(lock.write().force_unlock().unwrap());
        assert_eq!(
            stored(&mut probe),
            (MEMBERS.to_string(), 0),
            "each counts once"
        );
        assert!(!probe.exists("x"));
        assert!(!semaphore.force_release_all().unwrap() && !lock.write().force_unlock().unwrap());
        assert_eq!(
            stored(&mut probe),
            (MEMBERS.to_string(), 0),
            "and not when it is repeated"
        );
        if is_lazy {
            eventually("both are freed", ms(20_000), || {
                freed(&mut probe) == before + 2
            });
        } else {
            assert_eq!(freed(&mut probe), before, "by DEL");
        }
    }
}

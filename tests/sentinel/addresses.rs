//! Addresses that sentinels announce and clients cannot reach, or reach only through the address
//! map.

use crate::fake_sentinel::Liar;
use crate::scene::{await_move, connect, take};
use distlock::Config;
use distlock::backend::{Admin, ClientId, Context};
use distlock::time::{Clock, SystemClock};
use distlock_tests::process::{RedisServer, free_port};
use distlock_tests::proxy::Proxy;
use distlock_tests::replica_clocks::await_sample;
use distlock_tests::sentinel::{Group, url};
use lock_redis::SentinelBackend;
use std::sync::Arc;
use std::time::Duration;

#[test]
fn unreachable_master_is_reported_with_its_announcer_and_remedies() {
    let dead = free_port();
    let sentinel = Liar::naming(dead, 1);
    let lock = connect(&sentinel.url()).mutex("x").unwrap();
    let error = lock.try_lock().unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    let text = error.to_string();
    for part in [
        &format!("127.0.0.1:{}", sentinel.port()),
        &format!("announced 127.0.0.1:{dead} as the master"),
        &format!("`address_map=127.0.0.1:{dead}="),
        "`replica-announce-ip`",
    ] {
        assert!(text.contains(part), "{text} lacks {part}");
    }
}

#[test]
fn unreachable_sentinel_is_reported_with_its_announcer_and_remedies() {
    let (server, dead) = (RedisServer::start(), free_port());
    let sentinel = Liar::naming(server.port(), 1);
    sentinel.know("a", &[("b".to_owned(), dead)]);
    let context = Context::new(Arc::new(SystemClock), ClientId::random());
    // Without a login, the client is the default user, which may run all commands of a diagnosis.
    let url = format!("redis+sentinel://127.0.0.1:{}/mymaster", sentinel.port());
    let config = Config::from_url(&url).unwrap();
    let backend = SentinelBackend::new(&config, &context).unwrap();
    let findings = backend
        .diagnose(SystemClock.now() + Duration::from_secs(10))
        .unwrap();
    let found = findings
        .iter()
        .find(|it| it.subject.ends_with(&dead.to_string()));
    let text = format!("{:?}", found.expect("the one that is dead is reported"));
    for part in [
        &format!("sentinel at 127.0.0.1:{} announced", sentinel.port()),
        "`address_map=",
        "`sentinel announce-ip`",
    ] {
        assert!(text.contains(part), "{text} lacks {part}");
    }
}

#[test]
fn announced_master_is_reached_through_the_map() {
    let (server, dead) = (RedisServer::start(), free_port());
    let sentinel = Liar::naming(dead, 1);
    let port = server.port();
    for map in [
        format!("127.0.0.1:{dead}=127.0.0.1:{port}"),
        format!("127.0.0.1:{dead}=localhost:{port},10.0.0.1=gateway"),
    ] {
        let lock = connect(&format!("{}?address_map={map}", sentinel.url()))
            .mutex("x")
            .unwrap();
        take(&lock).unlock().unwrap();
    }
}

#[test]
fn replica_is_asked_for_its_clock_through_the_map() {
    let (master, announced) = (RedisServer::start(), free_port());
    let (of, at) = (
        format!("127.0.0.1 {}", master.port()),
        announced.to_string(),
    );
    let replica = RedisServer::start_with(&["--replicaof", &of, "--replica-announce-port", &at]);
    let sentinel = Liar::naming(master.port(), 1);
    let map = format!("127.0.0.1:{announced}=127.0.0.1:{}", replica.port());
    let client = connect(&format!("{}?replicas=1&address_map={map}", sentinel.url()));
    await_sample(&client, "sampled", &[&replica]);
}

/// As from outside a network of containers, no announced address is reachable: neither those of the
/// servers nor those of the sentinels.
#[test]
fn failover_is_followed_through_a_map_of_all_addresses() {
    let mut group = Group::start();
    let announced: Vec<_> = group
        .servers
        .iter()
        .chain(&group.sentinels)
        .map(RedisServer::port)
        .collect();
    let proxies: Vec<_> = announced.iter().map(|port| Proxy::plain(*port)).collect();
    let pairs = announced.iter().zip(&proxies);
    let pairs: Vec<_> = pairs
        .map(|(port, way)| format!("127.0.0.1:{port}=127.0.0.1:{}", way.port()))
        .collect();
    // One sentinel in the URL is enough: it lists the other sentinels, which the map makes
    // reachable.
    let url = url(group.name(), &[proxies[3].port()]);
    let client = connect(&format!(
        "{url}?watchdog=16s&address_map={}",
        pairs.join(",")
    ));
    let lock = client.mutex("mapped").unwrap();
    take(&lock).unlock().unwrap();
    group.sentinels[0].kill();
    group.servers[0].kill();
    let new = group.await_other_than(0);
    await_move(&lock, &group.servers[new]);
    // Without the proxies of the map no server is reachable, which shows that the client used them.
    drop(proxies);
    assert!(lock.try_lock().unwrap_err().is_unavailable());
}

//! Sets of servers that are refused as a quorum, each with its reason; and the nodes' credentials.

use distlock::admin::QuorumBackend;
use distlock::backend::{Backend, ClientId, Context};
use distlock::config::Credentials;
use distlock::time::SystemClock;
use distlock::{Config, Error, connect};
use distlock_tests::probe::Value;
use distlock_tests::process::RedisServer;
use distlock_tests::quorum::{Dead, LONGEST, place, set_up, start, url};
use distlock_tests::sentinel::Group;
use distlock_tests::time::eventually;
use std::sync::Arc;
use std::time::Duration;

fn places(servers: &[RedisServer]) -> Vec<String> {
    servers.iter().map(|server| place(server.port())).collect()
}

#[test]
fn url_with_too_few_or_repeated_servers_is_refused() {
    let refused = |url: &str| connect(url).unwrap_err().to_string();
    assert!(refused("redlock://a,b").contains("at least 3"));
    assert!(refused("redlock://a,b:1,a:6379").contains("a:6379 stands twice"));
    assert!(refused("redlock://a,b,c?max_lease=10s").contains("max_lease=10s"));
    assert!(refused("redlock://a,b,c?max_lease=x").contains("`max_lease=x`"));
    assert!(refused("redlock://a,b,c?durable=perhaps").contains("`durable=perhaps`"));
    assert!(refused("redlock://a,b,c?node_timeout=5s").contains("node_timeout=5s"));
    assert!(refused("redlock://a,b,c/x").contains("`/x`"));
    let wakes = "redlock://a,b,c?prefix=lock:&format=token,wakes=python-redis-lock";
    assert!(refused(wakes).contains("`wakes=python-redis-lock`"));
    let stores = |count: usize| {
        (0..count)
            .map(|_| Arc::new(Dead::default()) as Arc<dyn Backend>)
            .collect()
    };
    let context = Context::new(Arc::new(SystemClock), ClientId::random());
    let quorum = |count| QuorumBackend::new(stores(count), Duration::from_millis(100), &context);
    assert!(quorum(2).unwrap_err().is_configuration());
    assert!(quorum(3).is_ok());
}

#[test]
fn server_with_two_names_counts_once_and_is_not_set_up() {
    let servers: Vec<_> = (0..3).map(|_| start()).collect();
    let good = places(&servers);
    set_up(&good, LONGEST);
    let twice = [
        &good[0],
        &good[1],
        &format!("localhost:{}", servers[0].port()),
    ]
    .map(Clone::clone);
    let run_id = servers[0].probe().info_field("server", "run_id").unwrap();
    let says = |error: &Error| {
        let text = error.to_string();
        let both = [&*twice[0], &*twice[2], &*run_id]
            .iter()
            .all(|part| text.contains(part));
        assert!(both && text.contains("one and the same server"), "{text}");
    };
    let error = distlock::admin::set_up_quorum(&Config::from_url(&url(&twice, LONGEST)).unwrap());
    let error = error.unwrap_err();
    assert!(error.is_configuration(), "{error:?}");
    says(&error);
    // The three names are two servers: a majority, as long as both answer.
    let client = connect(&url(&twice, LONGEST)).unwrap();
    client.mutex("a").unwrap().lock().unwrap().unlock().unwrap();
    servers[1].pause();
    let error = client.mutex("a").unwrap().try_lock().unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    says(&error);
    servers[1].resume();
}

#[test]
fn leftover_marker_is_reported_with_the_key_to_delete() {
    let old: Vec<_> = (0..3).map(|_| start()).collect();
    set_up(&places(&old), LONGEST);
    let new: Vec<_> = (0..2).map(|_| start()).collect();
    let all = [places(&old[..1]), places(&new)].concat();
    let lock = connect(&url(&all, LONGEST)).unwrap().mutex("a").unwrap();
    let error = lock.try_lock().unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    let id = old[0].probe().hgetall("distlock_quorum")["quorum"].clone();
    let text = error.to_string();
    let way_out = format!("delete the key `distlock_quorum` on {}", all[0]);
    assert!(text.contains(&id) && text.contains(&way_out), "{text}");
    old[0].probe().command(&["DEL", "distlock_quorum"]);
    eventually("it begins", Duration::from_secs(20), || {
        let _paused = lock.try_lock();
        new[0].probe().exists("distlock_quorum")
    });
}

#[test]
fn store_with_failover_is_refused() {
    let context = Context::new(Arc::new(SystemClock), ClientId::random());
    let quorum = |context: &Context| {
        let config = Config::from_url("redlock://a,b,c").unwrap();
        distlock::schemes().open(&config, context).unwrap()
    };
    // A quorum cannot be a node of another quorum.
    let stores = (0..3).map(|_| quorum(&context)).collect();
    let error = QuorumBackend::new(stores, Duration::from_millis(100), &context).unwrap_err();
    assert!(error.to_string().contains("not independent"), "{error}");
}

#[test]
fn replica_cluster_node_and_evicting_server_are_refused() {
    let good: Vec<_> = (0..2).map(|_| start()).collect();
    let master = good[0].port().to_string();
    for (arguments, says) in [
        (&["--replicaof", "127.0.0.1", &master][..], "is a replica"),
        (&["--cluster-enabled", "yes"], "node of a Redis Cluster"),
        (&["--maxmemory-policy", "allkeys-lru"], "noeviction"),
    ] {
        let bad = RedisServer::start_with(arguments);
        distlock_tests::quorum::admit(&bad);
        let all = [places(&good), vec![place(bad.port())]].concat();
        let config = Config::from_url(&url(&all, LONGEST)).unwrap();
        let error = distlock::admin::set_up_quorum(&config).unwrap_err();
        assert!(
            error.is_configuration() && error.to_string().contains(says),
            "{error}"
        );
        let told = connect(&url(&all, LONGEST))
            .unwrap()
            .mutex("a")
            .unwrap()
            .try_lock();
        println!("{told:?}");
    }
}

#[test]
fn set_up_of_some_nodes_of_a_larger_quorum_is_refused() {
    let servers: Vec<_> = (0..5).map(|_| start()).collect();
    let all = places(&servers);
    set_up(&all, LONGEST);
    let client = connect(&url(&all, LONGEST)).unwrap();
    let lock = client.mutex("a").unwrap();
    lock.lock().unwrap().unlock().unwrap();
    let fresh: Vec<_> = (0..2).map(|_| start()).collect();
    for places in [all[..3].to_vec(), [&all[..1], &places(&fresh)].concat()] {
        let config = Config::from_url(&url(&places, LONGEST)).unwrap();
        let error = distlock::admin::set_up_quorum(&config).unwrap_err();
        let text = error.to_string();
        assert!(
            error.is_configuration() && text.contains("a quorum of 5 servers"),
            "{text}"
        );
    }
    lock.lock().unwrap().unlock().unwrap();
}

#[test]
fn master_watched_by_a_sentinel_is_refused() {
    let good: Vec<_> = (0..2).map(|_| start()).collect();
    let mut group = Group::start_with(1, 1);
    distlock_tests::quorum::admit(&group.servers[0]);
    let all = [places(&good), vec![place(group.servers[0].port())]].concat();
    let config = Config::from_url(&url(&all, LONGEST)).unwrap();
    let error = distlock::admin::set_up_quorum(&config).unwrap_err();
    let text = error.to_string();
    assert!(
        error.is_configuration() && text.contains("redis+sentinel://"),
        "{text}"
    );
    // As if the quorum had been set up before a sentinel watched the master.
    group.sentinels.clear();
    let mut probe = group.servers[0].probe();
    eventually("no sentinel listens", Duration::from_secs(10), || {
        let listeners = probe.command(&["PUBSUB", "NUMSUB", "__sentinel__:hello"]);
        matches!(listeners, Value::List(pair) if pair[1] == Value::Int(0))
    });
    set_up(&all, LONGEST);
    connect(&url(&all, LONGEST))
        .unwrap()
        .mutex("a")
        .unwrap()
        .lock()
        .unwrap()
        .unlock()
        .unwrap();
}

#[test]
fn every_node_uses_the_credentials_of_the_provider() {
    let servers = [(); 3].map(|()| start());
    let url = format!("redlock://{}?{LONGEST}", places(&servers).join(","));
    let config = |password: &'static str| {
        let provider = move |_: &str| Ok(Credentials::new(password).with_user("locker"));
        Config::from_url(&url)
            .unwrap()
            .with_credentials(Arc::new(provider))
    };
    distlock::admin::set_up_quorum(&config("SECRET")).unwrap();
    let lock = |password| {
        let client = distlock::builder()
            .config(config(password))
            .connect()
            .unwrap();
        client.mutex("x").unwrap().try_lock()
    };
    lock("SECRET")
        .unwrap()
        .expect("it is free")
        .unlock()
        .unwrap();
    let error = lock("wrong").unwrap_err();
    assert!(
        error.to_string().contains("does not accept the password"),
        "{error:?}"
    );
}

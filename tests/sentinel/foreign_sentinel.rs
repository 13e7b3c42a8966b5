//! Addresses that lead to a sentinel of another deployment, whose master has the same name.

use crate::fake_sentinel::Liar;
use crate::scene::{SOON, await_move, await_usable, builder, connect, take};
use distlock::Event;
use distlock_tests::claims::judge;
use distlock_tests::contenders::Contenders;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::Proxy;
use distlock_tests::sentinel::Group;
use distlock_tests::time::{eventually, let_pass, scaled};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

const LEASE: Duration = Duration::from_secs(2);

/// An epoch later than that of the group, so that the foreign sentinel would win by its epoch
/// alone.
const LATER: u64 = 100;

/// Puts a proxy in front of each sentinel. Returns the proxies, and the URL that uses them.
fn behind(group: &Group) -> (Vec<Proxy>, String) {
    let proxies: Vec<_> = group
        .sentinels
        .iter()
        .map(|it| Proxy::plain(it.port()))
        .collect();
    let ports: Vec<_> = proxies.iter().map(Proxy::port).collect();
    (proxies, group.url_of(&ports))
}

#[test]
fn foreign_sentinel_at_one_address_of_three_misleads_no_client() {
    const NAME: &str = "contended";
    let group = Group::steady();
    let foreign = group.namesake(1, LATER);
    let (proxies, url) = behind(&group);
    // Only one of the two processes reaches the foreign sentinel, because the other URL has no
    // proxies.
    let urls = [group.url(), url].map(|url| format!("{url}?watchdog={}s", LEASE.as_secs()));
    let contenders = urls.map(|url| Contenders::start(&url, NAME, 1, 2));
    let claimed = || contenders.each_ref().map(|it| it.claims().len());
    eventually("both have held the lock", SOON, || {
        claimed().iter().all(|claims| *claims > 5)
    });
    proxies[2].switch_to(foreign.sentinels[0].port());
    let before = claimed();
    let_pass(scaled(LEASE * 3));
    let after = claimed();
    let claims: Vec<_> = contenders.into_iter().flat_map(Contenders::stop).collect();
    judge(claims).must_be_exact_after_a_switch();
    assert!(
        before
            .iter()
            .zip(after)
            .all(|(before, after)| after > *before + 5),
        "{after:?}"
    );
    assert!(!foreign.servers[0].probe().exists(NAME));
}

#[test]
fn foreign_sentinel_is_told_with_both_ids() {
    let group = Group::steady();
    let foreign = group.namesake(1, LATER);
    let (proxies, url) = behind(&group);
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    let handler = move |event: &Event| {
        if let Event::ServerRefused {
            server,
            expected,
            found,
            ..
        } = event
        {
            heard
                .lock()
                .push([server.clone(), expected.clone(), found.clone()]);
        }
    };
    let client = builder(&url).events(Arc::new(handler)).connect().unwrap();
    let lock = client.mutex("told").unwrap();
    let guard = take(&lock);
    proxies[2].switch_to(foreign.sentinels[0].port());
    let found = foreign.sentinel_id(0);
    eventually("the foreign sentinel is reported", SOON, || {
        !told.lock().is_empty()
    });
    let [server, expected, is] = told.lock()[0].clone();
    assert!(
        server.ends_with(&proxies[2].port().to_string()) && is == found,
        "{server} {is}"
    );
    assert!(expected.contains(&group.sentinel_id(2)), "{expected}");
    guard.verify().unwrap();
    guard.unlock().unwrap();

    // One of two addresses leads to the foreign sentinel, so neither deployment has a majority.
    let ports = [&proxies[0], &proxies[2]].map(Proxy::port);
    let lock = connect(&group.url_of(&ports)).mutex("told").unwrap();
    let error = lock.try_lock().unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    let text = error.to_string();
    assert!(
        [group.sentinel_id(0), found]
            .iter()
            .all(|id| text.contains(id)),
        "{text}"
    );
    // Once the address leads to the group's sentinel again, the client works again.
    proxies[2].switch_to(group.sentinels[2].port());
    await_usable(&lock);
    assert_eq!(told.lock().len(), 1, "reported once");
}

#[test]
fn recreated_sentinel_counts_once_the_others_know_it() {
    let mut group = Group::steady();
    let (mut proxies, url) = behind(&group);
    let lock = connect(&url).mutex("recreated").unwrap();
    take(&lock).unlock().unwrap();
    let old = group.sentinel_id(2);
    group.recreate_sentinel(2);
    assert_ne!(group.sentinel_id(2), old);
    proxies[2].switch_to(group.sentinels[2].port());
    // From now on the client reaches only the recreated sentinel.
    let recreated = proxies.pop().unwrap();
    drop(proxies);
    group.sentinels.swap(0, 2);
    let before = group.fail_over();
    let new = group.await_other_than(before);
    await_move(&lock, &group.servers[new]);
    drop(recreated);
}

#[test]
fn deployment_at_the_addresses_of_a_dead_one_is_followed() {
    let mut group = Group::start_with(0, 3);
    let later = group.namesake(3, 0);
    let (proxies, url) = behind(&group);
    let client = connect(&format!("{url}?watchdog={}s", LEASE.as_secs()));
    let lock = client.mutex("anew").unwrap();
    let held = take(&client.mutex("held").unwrap());
    take(&lock).unlock().unwrap();
    group
        .sentinels
        .iter_mut()
        .for_each(|sentinel| sentinel.kill());
    group.servers[0].kill();
    for (proxy, sentinel) in proxies.iter().zip(&later.sentinels) {
        proxy.switch_to(sentinel.port());
    }
    eventually(
        "the other deployment is used",
        LEASE + Duration::from_secs(10),
        || {
            lock.try_lock()
                .is_ok_and(|guard| guard.is_some_and(|guard| guard.unlock().is_ok()))
        },
    );
    assert!(!held.is_valid() && held.unlock().unwrap_err().is_lost());
}

#[test]
fn foreign_server_at_masters_address_is_used_once_named() {
    let [master, stranger] = [(); 2].map(|()| RedisServer::start());
    let id = |server: &RedisServer| server.probe().info_field("server", "run_id").unwrap();
    let proxy = Proxy::plain(master.port());
    let sentinel = Liar::naming(proxy.port(), 1);
    sentinel.identify(&id(&master));
    let client = connect(&format!("{}?watchdog=60s", sentinel.url()));
    let lock = client.mutex("named").unwrap();
    let held = take(&client.mutex("held").unwrap());
    take(&lock).unlock().unwrap();
    proxy.switch_to(stranger.port());
    let error = lock.try_lock().unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    let text = error.to_string();
    assert!(
        [id(&master), id(&stranger)]
            .iter()
            .all(|id| text.contains(id)),
        "{text}"
    );
    assert!(held.is_valid() && !stranger.probe().exists("named"));
    // A restarted master has a new `run_id`, too: once the sentinel reports this `run_id`, the
    // server is used.
    sentinel.identify(&id(&stranger));
    await_usable(&lock);
    assert!(held.verify().unwrap_err().is_lost());
}

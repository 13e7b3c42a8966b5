//! The address of the store leads to another server: to one that was restarted, or that took the
//! place of the first.

use crate::bench::LONG;
use distlock::{Client, Event, FencingToken, LockGuard, LockOptions, LossCause};
use distlock_tests::claims::{Claim, judge};
use distlock_tests::contenders::stay;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::Proxy;
use distlock_tests::time::{eventually, let_pass};
use distlock_tests::{queue, redis};
use lock_core::{Clock, SystemClock};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

type Told = Arc<Mutex<Vec<[String; 3]>>>;

/// Connects through the proxy, and records the events that name another server.
fn listening(proxy: &Proxy, settings: &str) -> (Client, Told) {
    let told = Told::default();
    let heard = Arc::clone(&told);
    let handler = move |event: &Event| {
        if let Event::ServerChanged {
            server, was, is, ..
        } = event
        {
            heard.lock().push([server.clone(), was.clone(), is.clone()]);
        }
    };
    let builder = distlock::builder()
        .url(&format!("{}?{settings}", proxy.url()))
        .unwrap();
    (builder.events(Arc::new(handler)).connect().unwrap(), told)
}

fn run_id(server: &RedisServer) -> String {
    server.probe().info_field("server", "run_id").unwrap()
}

fn take(client: &Client, name: &str) -> LockGuard {
    client
        .mutex(name)
        .unwrap()
        .try_lock_for(LONG)
        .unwrap()
        .expect("it is free")
}

/// Returns the connections of this library's clients.
fn connections(server: &RedisServer) -> Vec<String> {
    let mut clients = server.probe().clients();
    clients.retain(|client| client.contains("name=distlock"));
    clients
}

#[test]
fn replaced_server_is_followed_and_held_locks_are_verified() {
    let [old, new] = [(); 2].map(|()| RedisServer::start());
    let proxy = Proxy::plain(old.port());
    let (client, told) = listening(&proxy, "watchdog=60s");
    // A lock that is renewed only after a third of a minute, and one that is never renewed.
    let watched = take(&client, "watched");
    let options = LockOptions::new().lease(Duration::from_secs(600));
    let fixed = client.mutex("fixed").unwrap().lock_with(&options).unwrap();
    // A lock that the new server has as well, as if it had been replicated in time.
    let kept = take(&client, "kept");
    let (owner, count) = old.probe().hgetall("kept").into_iter().next().unwrap();
    new.probe().command(&["HSET", "kept", &owner, &count]);
    new.probe().command(&["PEXPIRE", "kept", "60000"]);
    let losses = [&watched, &fixed].map(LockGuard::losses);
    proxy.switch_to(new.port());
    let next = take(&client, "next");
    assert!(next.fencing_token() > fixed.fencing_token());
    for losses in losses {
        let loss = losses
            .recv_timeout(Duration::from_secs(10))
            .expect("it is told soon");
        assert_eq!(loss.cause(), LossCause::Gone);
    }
    eventually("it is told", LONG, || !told.lock().is_empty());
    let [server, was, is] = told.lock()[0].clone();
    assert!(server.ends_with(&proxy.port().to_string()), "{server}");
    assert_eq!([was, is], [run_id(&old), run_id(&new)]);
    assert!(kept.verify().is_ok() && kept.is_valid());
    kept.unlock().unwrap();
    next.unlock().unwrap();
}

#[test]
fn restarted_server_is_followed_with_an_event() {
    let mut server = RedisServer::start();
    let proxy = Proxy::plain(server.port());
    let (client, told) = listening(&proxy, "watchdog=60s");
    let guard = take(&client, "held");
    let losses = guard.losses();
    let was = run_id(&server);
    server.restart();
    take(&client, "next").unlock().unwrap();
    assert!(losses.recv_timeout(Duration::from_secs(10)).is_ok());
    let is = run_id(&server);
    eventually("it is told", LONG, || {
        told.lock().iter().any(|it| it[1..] == [&*was, &*is])
    });
}

/// The check of the former server says nothing about the new one, which is checked again.
#[test]
fn replacement_server_that_may_evict_is_refused() {
    let [old, new] = [(); 2].map(|()| RedisServer::start());
    for [setting, value] in [["maxmemory", "100mb"], ["maxmemory-policy", "volatile-lru"]] {
        assert_eq!(
            new.probe()
                .command(&["CONFIG", "SET", setting, value])
                .text(),
            "OK"
        );
    }
    let proxy = Proxy::plain(old.port());
    let (client, told) = listening(&proxy, "eviction=refuse");
    take(&client, "a").unlock().unwrap();
    proxy.switch_to(new.port());
    let lock = client.mutex("a").unwrap();
    let refused = lock.try_lock_for(LONG).unwrap_err();
    assert!(refused.is_configuration(), "{refused:?}");
    assert!(refused.to_string().contains("volatile-lru"), "{refused}");
    eventually("it is told", LONG, || !told.lock().is_empty());
}

/// Renewals have a connection of their own, which leads to the old server until it is closed. They
/// must not keep the lock valid while the new server grants it to another client.
#[test]
fn connection_to_the_former_server_is_not_used() {
    const NAME: &str = "contended";
    let [old, new] = [(); 2].map(|()| RedisServer::start());
    let proxy = Proxy::plain(old.port());
    let (client, _) = listening(&proxy, "watchdog=3s");
    let claims = Mutex::new(Vec::<Claim>::new());
    let ended = AtomicBool::new(false);
    let asked = SystemClock.now();
    let guard = client.owned_mutex(NAME).unwrap().lock().unwrap();
    let claim = |from, to, token: Option<FencingToken>| Claim {
        lock: NAME.to_owned(),
        holder: "first".to_owned(),
        token: token.unwrap().get(),
        asked,
        from,
        to,
    };
    eventually("it is renewed on a connection of its own", LONG, || {
        connections(&old).len() >= 2
    });
    // The connection for attempts was opened first.
    let number = |it: &String| id(it).parse::<u64>().unwrap();
    let shared = connections(&old).into_iter().min_by_key(number).unwrap();
    proxy.lead_to(new.port());
    old.probe().command(&["CLIENT", "KILL", "ID", &id(&shared)]);
    take(&client, "another").unlock().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let late = distlock::connect(&format!("{}?watchdog=3s", proxy.url())).unwrap();
            let lock = late.mutex(NAME).unwrap();
            while !ended.load(Ordering::SeqCst) {
                let asked = SystemClock.now();
                let Ok(Some(guard)) = lock.try_lock_for(Duration::from_secs(1)) else {
                    continue;
                };
                let until = SystemClock.now() + Duration::from_millis(20);
                let stayed = stay(&guard, "late", asked, || SystemClock.now() >= until);
                claims.lock().extend(stayed);
                let _lost = guard.unlock();
            }
        });
        // Checks for three leases whether the first holder's guard is valid.
        let mut from = SystemClock.now();
        let until = from + Duration::from_secs(9);
        while SystemClock.now() < until {
            let now = SystemClock.now();
            if guard.is_valid() {
                claims.lock().push(claim(from, now, guard.fencing_token()));
            }
            from = now;
            let_pass(Duration::from_millis(20));
        }
        ended.store(true, Ordering::SeqCst);
    });
    let claims = claims.into_inner();
    let since = claims
        .iter()
        .filter(|it| it.holder == "late")
        .map(|it| it.from)
        .min()
        .unwrap();
    let both = claims
        .iter()
        .filter(|it| it.holder == "first" && it.to > since)
        .count();
    println!(
        "{} claims, {both} looks of the first while others were inside",
        claims.len()
    );
    assert_eq!(
        both, 0,
        "it held on the old server what was granted on the new one"
    );
    let mut late = claims;
    late.retain(|it| it.holder == "late");
    judge(late).must_be_exact_after_a_switch();
    assert!(guard.unlock().unwrap_err().is_lost());
}

/// The waiter's subscription is still open on the former server, where a release grants it the
/// lock: that grant must not count.
#[test]
fn grant_of_the_former_server_is_not_used() {
    const NAME: &str = "granted";
    let [old, new] = [(); 2].map(|()| RedisServer::start());
    let proxy = Proxy::plain(old.port());
    let (client, told) = listening(&proxy, "");
    let holder = redis::client(&old, "").owned_mutex(NAME).unwrap();
    let held = holder.lock().unwrap();
    let (lock, got) = (client.owned_mutex(NAME).unwrap(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let guard = lock.lock().unwrap();
            got.store(true, Ordering::SeqCst);
            guard.unlock().unwrap();
        });
        queue::until_one_waits(&mut old.probe(), NAME);
        proxy.lead_to(new.port());
        let other = take(&redis::client(&new, ""), NAME);
        // Cuts all connections except the subscription.
        old.probe().command(&["CLIENT", "KILL", "TYPE", "normal"]);
        take(&client, "another").unlock().unwrap();
        assert_eq!(told.lock().len(), 1, "it is known");
        held.unlock().unwrap();
        let_pass(Duration::from_millis(400));
        assert!(
            other.is_valid() && !got.load(Ordering::SeqCst),
            "two holders"
        );
        other.unlock().unwrap();
    });
}

fn id(connection: &str) -> String {
    let word = connection
        .split(' ')
        .find_map(|word| word.strip_prefix("id="));
    word.expect("a connection has a number").to_owned()
}

/// A balancer may lead to two servers in turn: the client keeps to the one that it used last.
#[test]
fn former_server_is_not_followed_back_at_once() {
    let [old, new] = [(); 2].map(|()| RedisServer::start());
    let proxy = Proxy::plain(old.port());
    let (client, told) = listening(&proxy, "watchdog=60s");
    take(&client, "a").unlock().unwrap();
    proxy.switch_to(new.port());
    take(&client, "a").unlock().unwrap();
    proxy.switch_to(old.port());
    let error = client.mutex("a").unwrap().try_lock().unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    let text = error.to_string();
    assert!(
        [run_id(&old), run_id(&new)]
            .iter()
            .all(|id| text.contains(id)),
        "{text}"
    );
    proxy.switch_to(new.port());
    take(&client, "a").unlock().unwrap();
    assert_eq!(told.lock().len(), 1);
}

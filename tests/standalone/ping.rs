//! `Client::ping`: whether the store answers, and what is wrong if it does not.

use distlock::Client;
use distlock_tests::distance::{Distance, Reach};
use distlock_tests::process::RedisServer;
use distlock_tests::time::within;
use std::time::Duration;

/// Far less than the outage limit, for which an attempt to lock would wait.
const WAIT: Duration = Duration::from_secs(1);

fn client(url: &str) -> Client {
    distlock::connect(url).unwrap()
}

#[test]
fn ping_of_an_answering_store_succeeds_and_stores_nothing() {
    let server = RedisServer::start();
    client(&server.url()).ping(WAIT).unwrap();
    assert_eq!(server.probe().command(&["DBSIZE"]).int(), 0);
}

#[test]
fn ping_of_a_silent_store_names_it_and_the_reason_in_time() {
    let mut server = RedisServer::start();
    let ready = client(&server.url());
    ready.ping(WAIT).unwrap();
    server.pause();
    let error = within(WAIT, || ready.ping(WAIT)).unwrap_err();
    let address = format!("127.0.0.1:{}", server.port());
    let says = |error: &distlock::Error, what: &str| {
        let text = error.to_string();
        assert!(text.contains(&address) && text.contains(what), "{text}");
    };
    assert!(error.is_unavailable(), "{error:?}");
    says(&error, "in time");
    server.kill();
    let error = within(WAIT, || ready.ping(WAIT)).unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    says(&error, "connect");
}

#[test]
fn client_refused_by_the_store_learns_why() {
    let server = RedisServer::start();
    server
        .probe()
        .command(&["CONFIG", "SET", "requirepass", "secret"]);
    let url = format!("redis://:wrong@127.0.0.1:{}", server.port());
    let error = client(&url).ping(WAIT).unwrap_err();
    assert!(
        error.to_string().contains("does not accept the password"),
        "{error:?}"
    );
}

/// A call that waits for less than a round trip fails; that is no fault of the connection.
#[test]
fn short_waits_on_a_far_server_cost_no_connection() {
    let server = RedisServer::start();
    let way = Distance::of(server.port(), Reach::Near);
    let client = client(&way.url());
    let lock = client.mutex("a").unwrap();
    lock.lock().unwrap().unlock().unwrap();
    way.set(Reach::Far(Duration::from_millis(300)));
    lock.lock().unwrap().unlock().unwrap();
    let mut probe = server.probe();
    let before = probe.stat("total_connections_received");
    let short = Duration::from_millis(50);
    for _ in 0..3 {
        assert!(client.ping(short).unwrap_err().is_unavailable());
        lock.lock().unwrap().unlock().unwrap();
    }
    assert_eq!(probe.stat("total_connections_received"), before);
}

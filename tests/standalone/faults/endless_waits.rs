//! Waits without a deadline that can never succeed: an error ends each of them long before the
//! outage limit.

use distlock::admin::Counters;
use distlock::{Client, Election, Error, Interrupt, MultiLock};
use distlock_tests::process::{RedisServer, free_port};
use distlock_tests::time::{always, eventually, ms, within};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Waits for this name without a deadline, and returns the error that ended the wait.
type Wait = fn(&Client, &str) -> Result<(), Error>;

const WAITS: [(&str, Wait); 10] = [
    ("mutex", |client, name| client.mutex(name)?.lock().map(drop)),
    ("owned", |client, name| {
        client.owned_mutex(name)?.lock().map(drop)
    }),
    ("fair", |client, name| {
        client.fair_mutex(name)?.lock().map(drop)
    }),
    ("write", |client, name| {
        client.rw_lock(name)?.write().lock().map(drop)
    }),
    ("read", |client, name| {
        client.rw_lock(name)?.read().lock().map(drop)
    }),
    ("permit", |client, name| {
        client.semaphore(name, 2)?.acquire().map(drop)
    }),
    ("permits", |client, name| {
        client.semaphore(name, 2)?.acquire_many(2).map(drop)
    }),
    ("multi", |client, name| {
        MultiLock::new([&client.mutex(name)?])?.lock().map(drop)
    }),
    ("election", |client, name| {
        leads(&client.election(name)?, Duration::MAX)
    }),
    ("bounded election", |client, name| {
        leads(&client.election(name)?, LONG * 60)
    }),
];

fn leads(election: &Election, wait: Duration) -> Result<(), Error> {
    election.campaign()?;
    election.wait_for_leadership(wait, None).map(drop)
}

/// Checks that every wait ends by an error that `is_expected`, although the client would tolerate
/// an outage of ten minutes.
fn all_end(url: &str, names: [&str; 2], is_expected: impl Fn(&Error) -> bool) {
    let client = distlock::connect(&format!("{url}?outage_limit=10m")).unwrap();
    for (what, wait) in WAITS {
        // A text is foreign to a lock, and a hash is foreign to a semaphore.
        let name = names[usize::from(what.starts_with("permit"))];
        let error = within(LONG, || wait(&client, name)).expect_err(what);
        assert!(is_expected(&error), "{what} on {url}: {error:?}");
    }
    within(LONG, || client.wait_for_cleanup(Duration::MAX)).unwrap();
}

#[test]
fn waits_end_by_wrong_password() {
    let server = RedisServer::start();
    server
        .probe()
        .command(&["CONFIG", "SET", "requirepass", "s3cret"]);
    let url = format!("redis://:wr0ng@127.0.0.1:{}", server.port());
    all_end(&url, ["x"; 2], Error::is_configuration);
}

#[test]
fn waits_end_by_missing_right() {
    let server = RedisServer::start();
    let me = [
        "ACL", "SETUSER", "me", "on", "nopass", "~*", "&*", "+@all", "-evalsha", "-eval",
    ];
    server.probe().command(&me);
    let url = format!("redis://me@127.0.0.1:{}", server.port());
    all_end(&url, ["x"; 2], Error::is_configuration);
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn waits_end_by_wrong_topology() {
    let server = RedisServer::start();
    let url = format!("redis+cluster://127.0.0.1:{}", server.port());
    all_end(&url, ["x"; 2], |error| !error.is_unavailable());
}

#[test]
fn waits_end_by_foreign_value() {
    let server = RedisServer::start();
    server.probe().command(&["SET", "text", "a page"]);
    server.probe().command(&["HSET", "hash", "page:1", "42"]);
    all_end(&server.url(), ["text", "hash"], Error::is_foreign_format);
}

/// An outage does not end a campaign. It is reported once it has lasted longer than the outage
/// limit.
#[test]
fn outage_is_told_of_a_campaign_and_ends_no_wait_without_an_end() {
    let counters = Arc::new(Counters::new());
    let url = format!("redis://127.0.0.1:{}?outage_limit=300ms", free_port());
    let builder = distlock::builder()
        .url(&url)
        .unwrap()
        .events(counters.clone());
    let client = builder.connect().unwrap();
    let election = client.election("x").unwrap();
    election.campaign().unwrap();
    eventually("it is the last error at once", LONG, || {
        election
            .last_error()
            .is_some_and(|error| error.is_unavailable())
    });
    let stop = Interrupt::new();
    thread::scope(|scope| {
        let waits = scope.spawn(|| election.wait_for_leadership(Duration::MAX, Some(&stop)));
        eventually("it is an event", LONG, || {
            counters.count("campaign_failed") > 0
        });
        always("it waits", ms(300), || !waits.is_finished());
        stop.fire();
        let error = waits.join().unwrap().unwrap_err();
        assert!(error.is_interrupted(), "{error}");
    });
    let error = election
        .wait_for_leadership(ms(10), None)
        .expect_err("it is not known");
    assert!(error.is_unavailable(), "{error}");
    assert_eq!(counters.count("campaign_failed"), 1, "once for each cause");
}

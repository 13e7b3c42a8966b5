//! Standbys that are promoted.

use distlock_tests::postgres::PostgresServer;
use distlock_tests::time::{eventually, let_pass, ms, within};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

/// Returns the URL of both servers.
fn url_of(servers: [&PostgresServer; 2], options: &str) -> String {
    let [one, two] = servers.map(PostgresServer::port);
    format!("postgres://postgres@127.0.0.1:{one},127.0.0.1:{two}/app?{options}")
}

/// A grant that waited for the standby is there after its promotion.
#[test]
fn lock_on_a_synchronous_standby_survives_its_promotion() {
    let names = "synchronous_standby_names=*";
    let mut main = PostgresServer::start();
    let standby = main.standby(&["hot_standby=on"]);
    main.set(names);
    let url = url_of([&main, &standby], "watchdog=9s&synchronous_commit=on");
    let client = distlock::connect(&url).unwrap();
    let guard = client.mutex("kept").unwrap().lock().unwrap();
    let token = guard.fencing_token();
    main.stop();
    standby.promote();
    let other = distlock::connect(&url).unwrap();
    let lock = other.mutex("kept").unwrap();
    assert!(within(SOON, || lock.try_lock_for(ms(5_000)).unwrap()).is_none());
    assert!(guard.is_valid(), "{:?}", guard.loss());
    guard.unlock().unwrap();
    let next = within(SOON, || lock.lock().unwrap());
    assert!(next.fencing_token() > token);
}

/// A grant that the promoted standby lacks is reported as lost soon, and its tokens still grow. The
/// server of before is not used again, though it takes writes.
#[test]
fn lock_that_the_promoted_standby_lacks_is_lost_and_the_old_server_is_left() {
    let main = PostgresServer::start();
    let standby = main.standby(&["hot_standby=on"]);
    let url = url_of([&main, &standby], "watchdog=15s");
    let client = distlock::connect(&url).unwrap();
    drop(client.mutex("earlier").unwrap().lock().unwrap());
    eventually("the standby has the first lock", SOON, || {
        let row = standby
            .admin()
            .query_one("SELECT count(*) FROM distlock.locks", &[]);
        row.unwrap().get::<_, i64>(0) == 1
    });
    standby.set("primary_conninfo=");
    eventually("the standby follows no longer", SOON, || {
        let row = main
            .admin()
            .query_one("SELECT count(*) FROM pg_stat_replication", &[]);
        row.unwrap().get::<_, i64>(0) == 0
    });
    let guard = client.mutex("lacking").unwrap().lock().unwrap();
    let token = guard.fencing_token();
    standby.promote();
    // What a failover does: clients are cut off from the server of before.
    let ends = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
        WHERE application_name <> '' AND pid <> pg_backend_pid()";
    main.freeze(true);
    let other = distlock::connect(&url).unwrap();
    let next = within(SOON, || other.mutex("lacking").unwrap().lock().unwrap());
    assert!(next.fencing_token() > token, "the token has grown");
    eventually("the holder learns of its loss", SOON, || !guard.is_valid());
    main.freeze(false);
    main.admin().batch_execute(ends).unwrap();
    for _ in 0..10 {
        let lock = client.mutex("earlier").unwrap();
        drop(within(SOON, || lock.lock().unwrap()));
        let_pass(ms(50));
    }
    let used = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'distlock%'";
    let row = main.admin().query_one(used, &[]).unwrap();
    assert_eq!(
        row.get::<_, i64>(0),
        0,
        "connections to the server that was left"
    );
}

/// A standby alone is no store, and the error says so.
#[test]
fn standby_is_refused() {
    let main = PostgresServer::start();
    let standby = main.standby(&["hot_standby=on"]);
    let client = distlock::connect(&standby.url()).unwrap();
    let error = client.mutex("it").unwrap().try_lock().unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert!(error.to_string().contains("standby"), "{error}");
}

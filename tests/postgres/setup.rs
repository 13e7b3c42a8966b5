//! Tables, rights, and what is refused.

use distlock::admin::{Initialised, init_postgres, postgres_schema};
use distlock::{Config, ErrorKind};
use distlock_tests::child::Example;
use distlock_tests::postgres::PostgresServer;
use distlock_tests::time::ms;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);

fn error_of(url: &str) -> distlock::Error {
    let client = distlock::connect(url).unwrap();
    client.mutex("it").unwrap().try_lock().unwrap_err()
}

#[test]
fn missing_tables_and_wrong_users_are_named() {
    let server = PostgresServer::start();
    let error = error_of(&format!("{}?schema=nothing", server.url()));
    assert_eq!(error.kind(), ErrorKind::Configuration);
    assert!(
        error.to_string().contains("distlock postgres init"),
        "{error}"
    );
    let error = error_of(&server.url().replace("/app", "/nothing"));
    assert!(error.to_string().contains("no such database"), "{error}");
    let error = error_of(&server.url().replace("postgres@", "nobody@"));
    assert!(error.to_string().contains("user"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Configuration);
    let error = error_of(&format!("{}?schema=other", server.url()));
    assert_eq!(error.kind(), ErrorKind::Configuration);
    let mut admin = server.admin();
    admin
        .batch_execute("COMMENT ON TABLE distlock.locks IS 'distlock 99'")
        .unwrap();
    let error = error_of(&server.url());
    assert!(error.to_string().contains("distlock 99"), "{error}");
}

#[test]
fn tables_are_made_once_by_the_command() {
    let server = PostgresServer::start();
    let url = format!("{}?schema=Other", server.url());
    let run = |arguments: &[&str]| {
        let mut child = Example::distlock(arguments)
            .env("DISTLOCK_URL", &url)
            .spawn();
        let code = child.wait_exit(SOON);
        assert_eq!(code, 0, "{}", child.errors());
        child.output()
    };
    let text = run(&["postgres", "init", "--dry-run"]);
    assert!(text.contains("CREATE TABLE \"Other\".locks"), "{text}");
    assert!(text.contains("GRANT USAGE"), "{text}");
    assert_eq!(error_of(&url).kind(), ErrorKind::Configuration);
    assert!(run(&["postgres", "init"]).contains("were made"));
    assert!(run(&["postgres", "init"]).contains("nothing to do"));
    assert!(run(&["run", "job", "--", "echo", "done"]).contains("done"));
    assert!(run(&["status", "job"]).contains("free"));
    // The servers of the tests do not write to the disk.
    let text = run(&["doctor", "--accept", "fsync"]);
    assert!(
        text.contains("connections") && text.contains("durability"),
        "{text}"
    );
    println!("{text}");
}

/// The rights that the schema's text names are enough, and none of them is too many.
#[test]
fn documented_rights_are_enough_and_needed() {
    let server = PostgresServer::start();
    let config = Config::from_url(&server.url()).unwrap();
    let text = postgres_schema(&config).unwrap();
    let rights: Vec<_> = text
        .lines()
        .filter_map(|line| line.trim_start_matches("--").trim().strip_prefix("GRANT "))
        .map(|line| line.replace("that_role", "worker"))
        .collect();
    assert_eq!(rights.len(), 3, "{rights:?}");
    let mut admin = server.admin();
    admin.batch_execute("CREATE ROLE worker LOGIN").unwrap();
    let revoke = "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA distlock FROM PUBLIC";
    admin.batch_execute(revoke).unwrap();
    let url = server.url().replace("postgres@", "worker@");
    for left_out in (0..rights.len()).map(Some).chain([None]) {
        admin.batch_execute("DROP OWNED BY worker").unwrap();
        for (n, right) in rights.iter().enumerate() {
            if Some(n) != left_out {
                admin.batch_execute(&format!("GRANT {right}")).unwrap();
            }
        }
        if let Some(n) = left_out {
            let error = error_of(&url);
            let text = error.to_string();
            assert!(
                text.contains("lacks a right"),
                "without {}: {text}",
                rights[n]
            );
            continue;
        }
        let client = distlock::connect(&url).unwrap();
        drop(client.mutex("a").unwrap().lock().unwrap());
        drop(client.fair_mutex("a").unwrap().lock().unwrap());
        drop(client.rw_lock("b").unwrap().read().lock().unwrap());
        drop(client.semaphore("c", 2).unwrap().acquire().unwrap());
        assert!(!client.mutex("a").unwrap().force_unlock().unwrap());
        assert_eq!(client.locks("*").count(), 0);
    }
}

/// A role that owns its schema and nothing else can make the tables.
#[test]
fn role_that_owns_only_the_schema_makes_the_tables() {
    let server = PostgresServer::start();
    server
        .admin()
        .batch_execute(
            "CREATE ROLE owner LOGIN; CREATE SCHEMA owned AUTHORIZATION owner; \
             REVOKE CREATE ON DATABASE app FROM PUBLIC",
        )
        .unwrap();
    let url = server.url().replace("postgres@", "owner@") + "?schema=owned";
    let config = Config::from_url(&url).unwrap();
    assert_eq!(init_postgres(&config).unwrap(), Initialised::Made);
    assert_eq!(init_postgres(&config).unwrap(), Initialised::Present);
    drop(
        distlock::connect(&url)
            .unwrap()
            .mutex("a")
            .unwrap()
            .lock()
            .unwrap(),
    );
}

/// Names that are no longer used leave the table, and their tokens still grow.
#[test]
fn unused_names_are_deleted_and_their_tokens_grow() {
    let server = PostgresServer::start();
    let client = distlock::connect(&format!("{}?token_retention=3m", server.url())).unwrap();
    let first = client
        .mutex("first")
        .unwrap()
        .lock()
        .unwrap()
        .fencing_token();
    let mut admin = server.admin();
    let mut most = 0;
    for n in 0..3_000 {
        drop(client.mutex(format!("name {n}")).unwrap().lock().unwrap());
        if n % 100 == 0 {
            let old = "UPDATE distlock.locks SET used_at = used_at - interval '1h'";
            admin.batch_execute(old).unwrap();
            let count = admin.query_one("SELECT count(*) FROM distlock.locks", &[]);
            most = most.max(count.unwrap().get::<_, i64>(0));
        }
    }
    println!("at most {most} rows");
    assert!(most < 1_000, "{most} rows");
    let there = "SELECT count(*) FROM distlock.locks WHERE name = 'first'";
    let there = admin.query_one(there, &[]).unwrap();
    assert_eq!(there.get::<_, i64>(0), 0);
    let next = client
        .mutex("first")
        .unwrap()
        .lock()
        .unwrap()
        .fencing_token();
    assert!(next > first);
}

/// The query of the recipe: a transaction that has seen the token excludes other holders until its
/// end, and does not see a token that is over.
#[test]
fn transaction_that_checks_the_token_excludes_later_holders() {
    let recipes = include_str!("../../docs/RECIPES.md");
    let query = recipes
        .split("```sql")
        .find(|it| it.contains("FROM distlock.locks"))
        .and_then(|it| it.split("```").next())
        .expect("the recipe has a query");
    let query = query.replace(":name", "$1").replace(":token", "$2");
    let server = PostgresServer::start();
    let client = distlock::connect(&server.url()).unwrap();
    let other = distlock::connect(&format!("{}?command_timeout=500ms", server.url())).unwrap();
    let guard = client.mutex("orders").unwrap().lock().unwrap();
    let token = i64::try_from(guard.fencing_token().unwrap().get()).unwrap();
    let mut application = server.admin();
    let mut transaction = application.transaction().unwrap();
    let seen = transaction.query(&query, &[&"orders", &token]).unwrap();
    assert_eq!(seen.len(), 1);
    let lock = other.mutex("orders").unwrap();
    assert!(lock.force_unlock().unwrap_err().is_unavailable());
    assert!(!matches!(lock.try_lock(), Ok(Some(_))));
    transaction.commit().unwrap();
    assert!(lock.force_unlock().unwrap());
    let next = lock.try_lock().unwrap().expect("it is free");
    let seen = application.query(&query, &[&"orders", &token]).unwrap();
    assert!(seen.is_empty(), "the token is over");
    next.unlock().unwrap();
    // A later holder may have no token.
    let without = distlock::connect(&format!("{}?tokens=off", server.url())).unwrap();
    let later = without.mutex("orders").unwrap().lock().unwrap();
    assert_eq!(later.fencing_token(), None);
    let seen = application.query(&query, &[&"orders", &token]).unwrap();
    assert!(seen.is_empty(), "the token is over");
    drop((guard, later));
}

/// A client leaves no connection and no thread behind.
#[test]
fn dropped_client_closes_its_connections() {
    let server = PostgresServer::start();
    let client = distlock::connect(&server.url()).unwrap();
    let guard = client.mutex("a").unwrap().lock().unwrap();
    assert!(
        client
            .mutex("a")
            .unwrap()
            .inspect()
            .unwrap()
            .holder
            .is_some()
    );
    drop((guard, client));
    let mut admin = server.admin();
    distlock_tests::time::eventually("all connections are closed", SOON, || {
        let used = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'distlock%'";
        admin.query_one(used, &[]).unwrap().get::<_, i64>(0) == 0
    });
    distlock_tests::time::let_pass(ms(10));
}

/// With `tokens=keep` no row is deleted, and no attempt at a new name fails because of that.
#[test]
fn new_names_are_granted_where_tokens_are_kept() {
    let server = PostgresServer::start();
    let client = distlock::connect(&format!("{}?tokens=keep", server.url())).unwrap();
    for n in 0..400 {
        drop(client.mutex(format!("kept {n}")).unwrap().lock().unwrap());
    }
    let mut admin = server.admin();
    let count = admin
        .query_one("SELECT count(*) FROM distlock.locks", &[])
        .unwrap();
    assert_eq!(count.get::<_, i64>(0), 400);
}

/// A server that was started a moment ago grants nothing within `restart_grace`.
#[test]
fn server_that_was_just_started_waits_for_the_grace() {
    let mut server = PostgresServer::start();
    server.stop();
    server.start_again();
    let client = distlock::connect(&format!("{}?restart_grace=4s", server.url())).unwrap();
    let lock = client.mutex("it").unwrap();
    let error = lock.try_lock().unwrap_err();
    assert!(error.to_string().contains("restart_grace"), "{error}");
    assert!(
        lock.try_lock_for(Duration::from_secs(10))
            .unwrap()
            .is_some()
    );
}

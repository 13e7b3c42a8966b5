//! Processes that contend, are killed and paused, while the server restarts.

use distlock_tests::child::Example;
use distlock_tests::claims::judge;
use distlock_tests::contenders::Contenders;
use distlock_tests::postgres::PostgresServer;
use distlock_tests::time::{let_pass, ms};
use std::time::Duration;

const NAME: &str = "contended";

/// Eight processes with four threads each. One after the other is killed, paused for longer than
/// its lease, or the server crashes and comes back. No two threads hold the lock at the same time,
/// and its tokens grow.
fn contend(url: impl Fn(&PostgresServer) -> String, rounds: usize) {
    let mut server = PostgresServer::start_with(&["autovacuum_naptime=1s", "fsync=on"]);
    let url = url(&server);
    let mut contenders = Contenders::start(&url, NAME, 8, 4);
    for round in 0..rounds {
        let_pass(ms(1_500));
        match round % 3 {
            0 => contenders.replace_first(),
            1 => {
                let child = contenders.child(round % 8);
                child.pause();
                let_pass(ms(2_500));
                contenders.child(round % 8).resume();
            }
            _ => {
                server.stop();
                let_pass(ms(300));
                server.start_again();
            }
        }
    }
    let_pass(ms(1_500));
    let claims = contenders.stop();
    assert!(claims.len() > 20 * rounds, "{} claims", claims.len());
    judge(claims).must_be_exact();
    let mut admin = server.admin();
    let count = |admin: &mut postgres::Client, what: &str| -> i64 {
        admin.query_one(what, &[]).unwrap().get(0)
    };
    assert_eq!(count(&mut admin, "SELECT count(*) FROM distlock.locks"), 1);
    let dead = "SELECT pg_relation_size('distlock.locks')";
    let size = count(&mut admin, dead);
    println!("the table has {size} bytes");
    assert!(size < 200_000, "{size} bytes for one lock");
}

#[test]
fn contending_processes_exclude_each_other_through_kills_and_crashes() {
    contend(|server| format!("{}?watchdog=2s", server.url()), 6);
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn contending_processes_exclude_each_other_for_long() {
    contend(|server| format!("{}?watchdog=2s", server.url()), 45);
}

/// 200,000 acquisitions by eight processes, with all faults, among them a failover to a synchronous
/// standby.
#[test]
#[ignore = "long: tests/run.sh --all"]
fn many_acquisitions_leave_one_holder_at_a_time_and_a_small_table() {
    acquire_often("", 200_000);
}

/// 20,000 acquisitions with the same faults and without hand-offs inside the processes, so that the
/// store grants each.
#[test]
#[ignore = "long: tests/run.sh --all"]
fn many_grants_of_the_store_leave_one_holder_at_a_time_and_a_small_table() {
    acquire_often("&hand_off=0s", 20_000);
}

fn acquire_often(options: &str, acquisitions: usize) {
    let mut main = PostgresServer::start_with(&["autovacuum_naptime=1s"]);
    let standby = main.standby(&["autovacuum_naptime=1s", "wal_retrieve_retry_interval=100ms"]);
    main.set("synchronous_standby_names=*");
    let ports = [main.port(), standby.port()];
    let url = format!(
        "postgres://postgres@127.0.0.1:{},127.0.0.1:{}/app?watchdog=2s&synchronous_commit=on{options}",
        ports[0], ports[1]
    );
    let mut contenders = Contenders::start_brief(&url, NAME, 8, 4);
    let mut is_promoted = false;
    for round in 0.. {
        let_pass(ms(2_000));
        let count = contenders.claims().len();
        println!("round {round}: {count} acquisitions");
        if count >= acquisitions && is_promoted {
            break;
        }
        assert!(round < 200, "{count} acquisitions");
        match round % 4 {
            0 => contenders.replace_first(),
            1 => {
                contenders.child(round % 8).pause();
                let_pass(ms(2_500));
                contenders.child(round % 8).resume();
            }
            2 if !is_promoted => {
                main.stop();
                main.start_again();
            }
            3 if !is_promoted && count >= acquisitions / 2 => {
                main.stop();
                standby.promote();
                is_promoted = true;
            }
            _ => {}
        }
    }
    let claims = contenders.stop();
    println!("{} acquisitions", claims.len());
    judge(claims).must_be_exact();
    let mut admin = standby.admin();
    let row = admin.query_one(
        "SELECT (SELECT count(*) FROM distlock.locks), pg_relation_size('distlock.locks'), \
         n_tup_upd, n_tup_hot_upd, n_dead_tup FROM pg_stat_user_tables WHERE relname = 'locks' \
         AND schemaname = 'distlock'",
        &[],
    );
    let row = row.unwrap();
    let numbers: [i64; 5] = std::array::from_fn(|at| row.get(at));
    println!("rows, bytes, updates, HOT updates, dead: {numbers:?}");
    assert_eq!(numbers[0], 1);
    assert!(numbers[1] < 1_000_000, "{numbers:?}");
}

#[test]
fn contending_processes_that_poll_exclude_each_other() {
    contend(
        |server| format!("{}?watchdog=2s&waking=poll", server.url()),
        3,
    );
}

/// The judge notices two holders: of a lock that an operator has taken away.
#[test]
fn judge_notices_a_lock_that_was_taken_away() {
    let server = PostgresServer::start();
    let contenders = Contenders::start(&format!("{}?watchdog=20s", server.url()), NAME, 4, 2);
    let client = distlock::connect(&server.url()).unwrap();
    for _ in 0..60 {
        let_pass(ms(20));
        client.mutex(NAME).unwrap().force_unlock().unwrap();
    }
    assert!(judge(contenders.stop()).violation().is_some());
}

/// The main job, with the database alone.
#[test]
fn batch_workers_are_exact_on_the_database() {
    let server = PostgresServer::start();
    let url = server.url();
    let arguments = ["--url", &url, "--processes", "4", "--jobs", "2000"];
    let mut workers = Example::new("batch_workers").args(&arguments).spawn();
    assert_eq!(
        workers.wait_exit(Duration::from_secs(60)),
        0,
        "{}",
        workers.errors()
    );
    let output = workers.output();
    assert!(output.contains("Exact: nothing was sold twice"), "{output}");
}

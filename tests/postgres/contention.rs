//! Processes that contend, are killed and paused, while the server restarts.

use distlock_tests::claims::judge;
use distlock_tests::contenders::Contenders;
use distlock_tests::postgres::PostgresServer;
use distlock_tests::time::{let_pass, ms};

const NAME: &str = "contended";

/// Eight processes with four threads each. One after the other is killed, paused for longer than
/// its lease, or the server crashes and comes back. Nobody holds the lock at the same time as
/// another, and its tokens grow.
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

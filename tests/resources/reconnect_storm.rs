//! Many processes whose server is killed and restarted: no lock is lost, and the processes do not
//! connect too often.

use distlock::Event;
use distlock::time::Moment;
use distlock_tests::authority::Authority;
use distlock_tests::child::{Child, Example};
use distlock_tests::guards::deadline;
use distlock_tests::own_process::alone;
use distlock_tests::probe::Value;
use distlock_tests::time::{Stopwatch, eventually, let_pass};
use serde_json::json;
use std::io::stdin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{env, thread};

const LONG: Duration = Duration::from_secs(120);
const PROCESSES: usize = 60;
const LOCKS: usize = 10;
const DOWN: Duration = Duration::from_secs(5);
/// A renewal moves the end of a lease by more than this, which is more than the clock's error.
const MOMENT: Duration = Duration::from_millis(100);
/// The environment variables with the server and the number of a process of the storm.
const URL: &str = "LOCK_TEST_STORM";
const NUMBER: &str = "LOCK_TEST_STORM_NUMBER";

/// Not a test of its own: each process of the storm runs this. It holds its locks, waits for
/// another lock, and after a line on standard input reports when all its locks are renewed.
#[test]
#[ignore = "long: tests/run.sh --all"]
fn process_of_a_storm() {
    let (Ok(url), Ok(number)) = (env::var(URL), env::var(NUMBER)) else {
        return;
    };
    let lost = Arc::new(AtomicU64::new(0));
    let counts = Arc::clone(&lost);
    let handler = move |event: &Event| {
        counts.fetch_add(
            u64::from(matches!(event, Event::Lost { .. })),
            Ordering::SeqCst,
        );
    };
    let client = distlock::builder()
        .url(&url)
        .unwrap()
        .events(Arc::new(handler));
    let client = client.connect().unwrap();
    let take = |n| {
        client
            .mutex(format!("held:{number}:{n}"))
            .unwrap()
            .lock()
            .unwrap()
    };
    let guards: Vec<_> = (0..LOCKS).map(take).collect();
    let wanted = client.mutex("wanted").unwrap();
    let waiter = thread::spawn(move || drop(wanted.lock()));
    eventually("it waits", LONG, || {
        client.queue_length("wanted").unwrap() == 1
    });
    println!("\n{}", json!({ "event": "ready" }));
    let mut line = String::new();
    stdin().read_line(&mut line).unwrap();
    let before: Vec<_> = guards.iter().map(deadline).collect();
    let is_renewed = |(guard, before): (&_, &Moment)| deadline(guard) > *before + MOMENT;
    eventually("all are renewed", LONG, || {
        guards.iter().zip(&before).all(is_renewed) || lost.load(Ordering::SeqCst) > 0
    });
    println!(
        "\n{}",
        json!({ "event": "renewed", "lost": lost.load(Ordering::SeqCst) })
    );
    line.clear();
    stdin().read_line(&mut line).unwrap();
    let ended = guards
        .into_iter()
        .filter(|guard| guard.verify().is_err())
        .count();
    println!("\n{}", json!({ "event": "verified", "lost": ended }));
    drop(waiter);
}

fn start(url: &str, number: usize) -> Child {
    let only = [
        "--exact",
        "reconnect_storm::process_of_a_storm",
        "--include-ignored",
    ];
    let program = Example::program(env::current_exe().unwrap());
    let program = program
        .args(&only)
        .args(&["--nocapture", "--test-threads=1"]);
    program
        .env(URL, url)
        .env(NUMBER, &number.to_string())
        .spawn()
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn sixty_processes_lose_no_lock_to_a_restart_of_their_server() {
    alone(
        "reconnect_storm::sixty_processes_lose_no_lock_to_a_restart_of_their_server",
        || {
            let authority = Authority::new();
            let settings = [
                "--maxclients",
                "300",
                "--server_cpulist",
                "0",
                "--appendonly",
                "yes",
            ];
            let settings = [&settings[..], &["--appendfsync", "always"]].concat();
            let (mut server, port) = authority.server("127.0.0.1", 2100, "no", &settings);
            let url = authority.url(port);
            let client = distlock::connect(&url).unwrap();
            let wanted = client.owned_mutex("wanted").unwrap().lock().unwrap();
            let mut processes: Vec<_> = (0..PROCESSES).map(|number| start(&url, number)).collect();
            for process in &mut processes {
                process.expect_event("ready", LONG);
            }
            server.kill();
            let_pass(DOWN);
            server.restart();
            let watch = Stopwatch::start();
            for process in &mut processes {
                process.send("is it renewed?");
            }
            let mut probe = eventually("the server has room for one more", LONG, || {
                let mut probe = server.probe();
                let pong = Value::Text("PONG".to_owned());
                (probe.command(&["PING"]) == pong).then_some(probe)
            });
            let counter = thread::spawn(move || {
                let mut at = vec![probe.stat("total_connections_received")];
                for _ in 0..100 {
                    let_pass(Duration::from_millis(100));
                    at.push(probe.stat("total_connections_received"));
                }
                let most = at
                    .windows(11)
                    .map(|second| second[10] - second[0])
                    .max()
                    .unwrap();
                (most, at[0], at[100] - at[0])
            });
            let lost = |event: &str, process: &mut Child| {
                process.expect_event(event, LONG)["lost"]
                    .as_u64()
                    .expect("a number")
            };
            for process in &mut processes {
                assert_eq!(lost("renewed", process), 0);
            }
            let renewed = watch.elapsed();
            let (most, first, later) = counter.join().unwrap();
            println!(
                "{first} connections until it has read its data, {later} in the 10 s after that"
            );
            println!("{most} in a second at most; all is renewed in {renewed:.1?}");
            for process in &mut processes {
                process.send("and held?");
                assert_eq!(lost("verified", process), 0);
            }
            wanted.unlock().unwrap();
            // Each process needs connections for requests, renewals and messages. Some more are
            // opened while the server reads its data, and while it has no room for clients.
            let all = first + later;
            assert!(all < 32 * PROCESSES as u64, "{all} connections");
        },
    );
}

//! Interrupted system calls: when a process is stopped and continued, its reads with a time-out,
//! polls and sleeps are interrupted (`signal(7)`), at any moment of any request.

use distlock_tests::child::Example;
use distlock_tests::process::RedisServer;
use std::time::Duration;

/// Far more stops than a process meets in its life.
const STOPS: u32 = 300;

#[test]
fn interrupted_system_calls_are_repeated() {
    stopped_and_continued(STOPS);
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn interrupted_system_calls_are_repeated_long() {
    stopped_and_continued(STOPS * 10);
}

fn stopped_and_continued(stops: u32) {
    let server = RedisServer::start();
    let url = format!("{}?watchdog=10m", server.url());
    let many = [
        "--processes",
        "2",
        "--workers",
        "4",
        "--jobs",
        "1000000",
        "--url",
        &url,
    ];
    let mut child = Example::new("batch_workers").args(&many).spawn();
    let mut probe = server.probe();
    distlock_tests::time::eventually("they are at work", Duration::from_secs(60), || {
        probe.command_calls("evalsha") > 500
    });
    let mut made = || {
        probe
            .info_field("stats", "total_connections_received")
            .unwrap()
    };
    let before = made();
    for _ in 0..stops {
        child.pause();
        child.resume();
        std::thread::yield_now();
    }
    assert!(child.is_running(), "ended by it: {}", child.errors());
    assert_eq!(
        made(),
        before,
        "no connection was given up for it, and none made anew"
    );
    child.interrupt();
    let code = child.wait_exit(Duration::from_secs(60));
    let output = child.output();
    println!("{stops} stops; {output}");
    assert_eq!(code, 130, "{output} {}", child.errors());
    assert!(output.contains("Stopped early, and exact"), "{output}");
    assert!(output.contains("tokens   grew with every sale"), "{output}");
}

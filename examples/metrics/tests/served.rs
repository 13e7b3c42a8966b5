//! Runs the example as a user does, and reads the metrics that it serves.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on panics, and says where"
)]

use distlock::time::{Clock, SystemClock};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The running example, which is killed when the test ends.
struct Example(Child);

impl Drop for Example {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Returns the answer to a request for this path.
fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn example_serves_metrics_of_its_work() {
    let binary = env!("CARGO_BIN_EXE_distlock-metrics-example");
    let arguments = ["memory://", "127.0.0.1:0"];
    let child = Command::new(binary)
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn();
    let mut example = Example(child.unwrap());
    let mut line = String::new();
    BufReader::new(example.0.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let (address, path) = line
        .strip_prefix("http://")
        .unwrap()
        .split_once('/')
        .unwrap();
    let path = format!("/{}", path.split(' ').next().unwrap());
    let until = SystemClock.now() + Duration::from_secs(60);
    // The first answers may come before the first job is done, which takes some milliseconds.
    let samples = loop {
        let answer = get(address, &path);
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        let buckets = "distlock_hold_seconds_bucket{backend=\"memory\",le=\"+Inf\"} ";
        let samples = answer.lines().find_map(|line| line.strip_prefix(buckets));
        match samples.map(|count| count.parse::<u64>().unwrap()) {
            Some(count) if count > 0 => break answer,
            _ => assert!(
                SystemClock.now() < until,
                "nothing was held for a minute: {answer}"
            ),
        }
    };
    for name in [
        "distlock_acquired_total",
        "distlock_wait_seconds_sum",
        "distlock_held",
    ] {
        assert!(
            samples.contains(&format!("\n{name}{{backend=\"memory\"")),
            "{name}: {samples}"
        );
    }
}

//! A semaphore: of all threads of several clients, at most four download at the same time.
//!
//! ```sh
//! cargo run --example semaphore                              # in this process's memory
//! cargo run --example semaphore -- redis://127.0.0.1:6379    # on a server, in several processes
//! ```

#![allow(clippy::disallowed_methods, reason = "the sleep stands for work")]

#[path = "shared/url.rs"]
mod url;

use distlock::Error;
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const LIMIT: u32 = 4;
const CLIENTS: usize = 3;
const THREADS: usize = 4;
const DOWNLOADS: usize = 5;
const WORK: Duration = Duration::from_millis(5);

/// The first argument of a process that this example starts as a client.
const CLIENT: &str = "client";

fn main() -> Result<(), Error> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [client, url] if client == CLIENT => {
            let visits = client_of(url)?;
            visits.iter().for_each(|(from, to)| println!("{from} {to}"));
            Ok(())
        }
        [] => judge(clients_in_memory()?),
        _ => judge(processes(&url::given_or("memory://"))),
    }
}

/// From when to when a thread was inside, in microseconds since 1970.
type Visit = (u128, u128);

/// Runs one client, whose threads download, and returns their visits.
fn client_of(url: &str) -> Result<Vec<Visit>, Error> {
    let downloads = distlock::connect(url)?.semaphore("example:semaphore", LIMIT)?;
    let visits = Mutex::new(Vec::new());
    let download = || -> Result<(), Error> {
        for _ in 0..DOWNLOADS {
            let permit = downloads.acquire()?;
            let from = now();
            thread::sleep(WORK);
            visits.lock().expect("no thread panics").push((from, now()));
            permit.unlock()?;
        }
        Ok(())
    };
    thread::scope(|scope| -> Result<(), Error> {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(download)).collect();
        threads
            .into_iter()
            .try_for_each(|it| it.join().expect("no thread panics"))
    })?;
    Ok(visits.into_inner().expect("no thread panics"))
}

/// Runs several clients of a store in this process's memory, and returns their visits.
fn clients_in_memory() -> Result<Vec<Visit>, Error> {
    thread::scope(|scope| {
        let client = || client_of("memory://semaphore");
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let visits: Result<Vec<_>, _> = clients
            .into_iter()
            .map(|it| it.join().expect("no thread panics"))
            .collect();
        Ok(visits?.concat())
    })
}

/// Runs several processes, each of which is a client, and returns their visits.
fn processes(url: &str) -> Vec<Visit> {
    let own = std::env::current_exe().expect("a program knows where it is");
    let start = || {
        let mut client = Command::new(&own);
        client
            .args([CLIENT, url])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts again")
    };
    let clients: Vec<_> = (0..CLIENTS).map(|_| start()).collect();
    let ended = clients
        .into_iter()
        .map(|it| it.wait_with_output().expect("it ends"));
    let said = ended.flat_map(|output| {
        assert!(output.status.success(), "a client failed");
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    });
    let visit = |line: String| {
        let (from, to) = line.split_once(' ').expect("two times");
        (from.parse().expect("a time"), to.parse().expect("a time"))
    };
    said.map(visit).collect()
}

/// Checks that no more threads than the limit were inside at any time, and prints the largest
/// number.
fn judge(visits: Vec<Visit>) -> Result<(), Error> {
    let all = CLIENTS * THREADS * DOWNLOADS;
    assert_eq!(visits.len(), all);
    let moments: BTreeSet<_> = visits.iter().map(|(from, _)| *from).collect();
    let inside = |at: &u128| {
        visits
            .iter()
            .filter(|(from, to)| from <= at && at < to)
            .count()
    };
    let most = moments.iter().map(inside).max().unwrap_or(0);
    println!("{all} downloads, {most} at once at most: the limit is {LIMIT}");
    assert!(most <= LIMIT as usize);
    Ok(())
}

fn now() -> u128 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_micros()
}

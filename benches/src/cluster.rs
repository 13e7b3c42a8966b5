//! Compares locks on three nodes of a cluster with locks on one of these nodes, in turns, by one
//! client with the same connections.

use crate::raw::{Raw, Reply, request};
use crate::server::{Counters, Server, free_port};
use distlock::Mutex;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const NODES: usize = 3;
const THREADS: usize = 64;
const SLOTS: usize = 16_384;
const TURN: Duration = Duration::from_millis(500);

/// Starts the nodes, and returns when they serve all slots.
fn start() -> Vec<Server> {
    let node = |_| {
        let bus = free_port().to_string();
        let arguments = ["--cluster-enabled", "yes", "--cluster-port", &bus];
        (Server::start_with(&arguments), bus)
    };
    let nodes: Vec<_> = (0..NODES).map(node).collect();
    let (first, bus) = (nodes[0].0.port.to_string(), &nodes[0].1);
    for (number, (node, _)) in nodes.iter().enumerate() {
        let mut raw = Raw::connect(node.port);
        let [from, to] = [number, number + 1].map(|number| number * SLOTS / NODES);
        let (from, to) = (from.to_string(), (to - 1).to_string());
        raw.call(&request(&["CLUSTER", "ADDSLOTSRANGE", &from, &to]));
        raw.call(&request(&[
            "CLUSTER",
            "SET-CONFIG-EPOCH",
            &(number + 1).to_string(),
        ]));
        raw.call(&request(&["CLUSTER", "MEET", "127.0.0.1", &first, bus]));
    }
    let end = Instant::now() + Duration::from_secs(60);
    for (node, _) in &nodes {
        let mut raw = Raw::connect(node.port);
        let mut info = || match raw.call(&request(&["CLUSTER", "INFO"])) {
            Reply::Text(text) => String::from_utf8_lossy(&text).into_owned(),
            other => panic!("CLUSTER INFO answers {other:?}"),
        };
        while !info().contains("cluster_state:ok") {
            assert!(Instant::now() < end, "the nodes do not make a cluster");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    nodes.into_iter().map(|(node, _)| node).collect()
}

/// Returns the name of a lock whose slot belongs to this node.
fn name_on(node: usize, raw: &mut Raw, number: usize) -> String {
    let mut names = (0..).map(|attempt| format!("own:{number}:{attempt}"));
    let lives = |name: &String| match raw.call(&request(&["CLUSTER", "KEYSLOT", name])) {
        Reply::Int(slot) => usize::try_from(slot)
            .is_ok_and(|slot| (node * SLOTS / NODES..(node + 1) * SLOTS / NODES).contains(&slot)),
        other => panic!("CLUSTER KEYSLOT answers {other:?}"),
    };
    names
        .find(lives)
        .expect("one of a few names lives in a third of the slots")
}

/// Returns the requests and the redirects of all nodes together.
fn counters(nodes: &[Server]) -> (f64, f64) {
    let of = |node: &Server| Counters::of(&mut Raw::connect(node.port));
    nodes
        .iter()
        .map(of)
        .fold((0.0, 0.0), |(requests, redirects), one| {
            (requests + one.requests, redirects + one.redirects)
        })
}

/// Runs one turn, in which each thread locks and unlocks a lock of its own. Returns the number of
/// cycles, and the cycles per second.
fn turn(locks: &[Mutex], time: Duration) -> (u64, f64) {
    let barrier = Barrier::new(locks.len() + 1);
    std::thread::scope(|scope| {
        let threads: Vec<_> = locks
            .iter()
            .map(|lock| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    let (end, mut cycles) = (Instant::now() + time, 0);
                    while Instant::now() < end {
                        let guard = lock.lock().expect("the store is there");
                        guard.unlock().expect("it is ours");
                        cycles += 1;
                    }
                    cycles
                })
            })
            .collect();
        barrier.wait();
        let start = Instant::now();
        let cycles: u64 = threads
            .into_iter()
            .map(|thread| thread.join().expect("no panic"))
            .sum();
        (cycles, cycles as f64 / start.elapsed().as_secs_f64())
    })
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Measures locks on one node and on three nodes, and prints a table.
pub(crate) fn measure(rounds: usize) {
    let nodes = start();
    let url = format!("redis+cluster://127.0.0.1:{}", nodes[0].port);
    let client = distlock::connect(&url).expect("a URL of ours");
    let mut raw = Raw::connect(nodes[0].port);
    let columns = [1, NODES].map(|count| {
        let name = |thread: usize| name_on(thread % count, &mut raw, thread + 1_000 * count);
        let lock = |name| client.mutex(name).expect("a name");
        (0..THREADS).map(name).map(lock).collect::<Vec<_>>()
    });
    for locks in &columns {
        let _warm_up = turn(locks, TURN);
    }
    let (mut rates, mut totals) = ([Vec::new(), Vec::new()], [(0, 0.0, 0.0); 2]);
    for round in 0..rounds.max(1) {
        for column in [round % 2, (round + 1) % 2] {
            let before = counters(&nodes);
            let (cycles, rate) = turn(&columns[column], TURN);
            let after = counters(&nodes);
            rates[column].push(rate);
            let total = &mut totals[column];
            *total = (
                total.0 + cycles,
                total.1 + after.0 - before.0,
                total.2 + after.1 - before.1,
            );
        }
    }
    let ratios = rates[1]
        .iter()
        .zip(&rates[0])
        .map(|(three, one)| three / one)
        .collect();
    println!("{THREADS} threads, each with its own lock, {rounds} turns of {TURN:?} each\n");
    println!("| nodes | cycles/s | requests/cycle | redirects |\n|---|---|---|---|");
    for (nodes, (rates, (cycles, requests, redirects))) in
        [1, NODES].into_iter().zip(rates.into_iter().zip(totals))
    {
        let (rate, each) = (median(rates), requests / cycles as f64);
        println!("| {nodes} | {rate:.0} | {each:.3} | {redirects} |");
    }
    println!(
        "\nThree nodes give {:.2} times what one gives, the median of the rounds.",
        median(ratios)
    );
}

//! The examples on a cluster, and many locks at once: what a program notices of moving slots, a
//! failover and a frozen master.

use crate::scene::{LONG, client_with};
use distlock::{Event, EventHandler, LossCause};
use distlock_tests::child::Example;
use distlock_tests::cluster::{Cluster, Failover};
use distlock_tests::time::{Stopwatch, eventually, ms, with_tolerance};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// `batch_workers` sells and `distlock hold` holds a lock while the slots of both move to another
/// node and back, with 1,998 others. Then their master fails over to its replica.
#[test]
fn batch_workers_are_exact_during_resharding_and_a_failover() {
    let cluster = Cluster::steady();
    let url = format!("{}?watchdog=10s", cluster.url());
    let (from, to) = (
        cluster.owner_of("batch_workers"),
        (cluster.owner_of("batch_workers") + 1) % 3,
    );
    let kept = cluster.name_on(from, "kept");
    let mut holder = Example::distlock(&["hold", "--url", &url, &kept]).spawn();
    holder.expect_event("held", LONG);
    let arguments = [
        "--url",
        &url,
        "--processes",
        "2",
        "--workers",
        "4",
        "--jobs",
        "1000000",
    ];
    let mut workers = Example::new("batch_workers").args(&arguments).spawn();
    let counter = || {
        let key = "redisson_lock_token:{batch_workers}";
        cluster.probe("batch_workers").command(&["GET", key])
    };
    let sells = || {
        let before = counter();
        eventually("it sells", LONG, || counter() != before);
    };
    sells();
    let own = ["batch_workers", &kept].map(|name| cluster.slot(name));
    let others = cluster
        .slots_of(from)
        .into_iter()
        .filter(|slot| !own.contains(slot));
    let mut slots: Vec<_> = others.take(1_998).collect();
    // In the middle of the list, so that requests arrive before and after their move.
    own.iter()
        .for_each(|slot| slots.insert(slots.len() / 2, *slot));
    let watch = Stopwatch::start();
    for (from, to) in [(from, to), (to, from)] {
        cluster.move_slots(&slots, from, to);
        holder.send("verify");
        assert_eq!(holder.expect_event("verify", LONG)["valid"], true);
        sells();
    }
    println!("4,000 moves of slots took {:.1?}", watch.elapsed());
    for code in ["MOVED", "ASK", "TRYAGAIN"] {
        println!("{code}: {}", cluster.errors(code));
    }
    cluster.wait_until_agreed(6);
    cluster.fail_over(from, Failover::Plain);
    sells();
    holder.send("verify");
    assert_eq!(holder.expect_event("verify", LONG)["valid"], true);
    workers.interrupt();
    assert_eq!(
        workers.wait_exit(LONG),
        130,
        "{} {}",
        workers.output(),
        workers.errors()
    );
    let output = workers.output();
    assert!(output.contains("Stopped early, and exact"), "{output}");
    println!("{output}");
    holder.send("release");
    holder.expect_event("released", LONG);
}

/// Records what was left of the lease of each lock when it was renewed, by the node that the lock
/// was on at first.
#[derive(Default)]
struct Rhythm {
    nodes: HashMap<String, usize>,
    /// For each node: the number of renewals, by what was left of the lease, in tenths.
    left: Mutex<HashMap<usize, [u64; 11]>>,
    lost: Mutex<HashMap<usize, Vec<LossCause>>>,
    failed: AtomicU64,
    lease: Duration,
}

impl EventHandler for Rhythm {
    fn on_event(&self, event: &Event) {
        match event {
            Event::Renewed { lock, left, .. } => {
                let tenth = (left.as_secs_f64() / self.lease.as_secs_f64() * 10.0) as usize;
                let node = self.nodes[lock.as_str()];
                self.left.lock().entry(node).or_default()[tenth.min(10)] += 1;
            }
            Event::Lost { lock, loss, .. } => {
                let node = self.nodes[lock.as_str()];
                self.lost.lock().entry(node).or_default().push(loss.cause());
            }
            Event::RenewalFailed { .. } => {
                self.failed.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

/// One of three masters freezes until its replica has taken over. The locks on the other two are
/// renewed in time. Those of the frozen master are renewed by the successor, or declared lost at
/// their deadline.
#[test]
fn ten_thousand_locks_are_kept_while_one_of_three_masters_hangs() {
    const MANY: usize = 10_000;
    let cluster = Cluster::start();
    let lease = ms(12_000);
    let frozen = 1;
    let views: Vec<Vec<u16>> = (0..3).map(|node| cluster.slots_of(node)).collect();
    let mut probe = cluster.node(0).probe();
    let mut nodes = HashMap::new();
    for number in 0..MANY {
        let name = format!("many:{number}");
        let slot = probe.command(&["CLUSTER", "KEYSLOT", &name]).int();
        let slot = u16::try_from(slot).unwrap();
        nodes.insert(
            name,
            views
                .iter()
                .position(|slots| slots.binary_search(&slot).is_ok())
                .unwrap(),
        );
    }
    let rhythm = Arc::new(Rhythm {
        nodes,
        lease,
        ..Rhythm::default()
    });
    let settings = format!("watchdog={}ms&command_timeout=500ms", lease.as_millis());
    let client = distlock::builder()
        .url(&format!("{}?{settings}", cluster.url()))
        .unwrap()
        .events(Arc::clone(&rhythm) as _)
        .connect()
        .unwrap();
    let names: Vec<_> = rhythm.nodes.keys().cloned().collect();
    let guards: Vec<_> = thread::scope(|scope| {
        let takers: Vec<_> = names
            .chunks(MANY / 8)
            .map(|names| {
                let client = &client;
                scope.spawn(move || {
                    let take = |name: &String| client.owned_mutex(name).unwrap().lock().unwrap();
                    names.iter().map(take).collect::<Vec<_>>()
                })
            })
            .collect();
        takers
            .into_iter()
            .flat_map(|taker| taker.join().unwrap())
            .collect()
    });
    cluster.wait_for_replicas(frozen);
    let (slot, replica) = (views[frozen][0], cluster.replica_of(frozen));
    let renewals = |node| -> u64 {
        rhythm
            .left
            .lock()
            .get(&node)
            .map_or(0, |tenths| tenths.iter().sum())
    };
    rhythm.left.lock().clear();
    let ((), tolerance) = with_tolerance(|| {
        let watch = Stopwatch::start();
        cluster.node(frozen).pause();
        cluster.wait_for_owner(slot, replica);
        println!("the successor was there after {:.1?}", watch.elapsed());
        eventually("all are renewed twice", Duration::from_secs(60), || {
            [0, 2]
                .iter()
                .all(|node| renewals(*node) > 2 * (MANY as u64 / 3 - 200))
                && (renewals(frozen) > 2_000 || rhythm.lost.lock().contains_key(&frozen))
        });
    });
    let left = rhythm.left.lock().clone();
    let lost = rhythm.lost.lock().clone();
    for node in 0..3 {
        let lost = lost.get(&node).map_or(0, Vec::len);
        println!(
            "node {node}: renewed with so many tenths of the lease left {:?}, lost {lost}",
            left[&node]
        );
    }
    println!(
        "renewals that failed and were tried again: {:?}",
        rhythm.failed
    );
    for node in [0, 2] {
        assert!(
            !lost.contains_key(&node),
            "a lock on a node that is well was lost"
        );
    }
    if let Some(causes) = lost.get(&frozen) {
        assert!(
            causes.iter().all(|cause| *cause == LossCause::Expired),
            "at their deadline, by our clock"
        );
    }
    cluster.node(frozen).resume();
    drop(guards);
    client.wait_for_cleanup(LONG).unwrap();
    // A renewal is due when two thirds of the lease are left. One in a hundred may be later, on a
    // busy machine; a stall by the frozen node would delay all renewals that fall due meanwhile.
    let least = [0, 2].map(|node| {
        let (all, mut so_far) = (left[&node].iter().sum::<u64>(), 0);
        let tenths = left[&node].iter().position(|count| {
            so_far += count;
            so_far * 100 > all
        });
        lease / 10 * u32::try_from(tenths.unwrap() + 1).unwrap()
    });
    let overdue = (lease * 2 / 3).saturating_sub(least[0].min(least[1]));
    let what = format!("the others did not keep their rhythm: {left:?}");
    tolerance.must_cover(overdue, lease / 4, &what);
}

/// A lock and an unlock are two requests, and none of them goes to the wrong node as long as
/// nothing moves.
#[test]
fn cycle_on_a_cluster_is_two_requests_without_redirect() {
    let cluster = Cluster::steady();
    const THREADS: usize = 64;
    let time = ms(500);
    let mut rates = Vec::new();
    for nodes in [&[0][..], &[0, 1, 2]] {
        let client = client_with(&cluster.url(), "hand_off=0s");
        let before = cluster.name_on(nodes[0], "warm");
        client
            .mutex(&before)
            .unwrap()
            .lock()
            .unwrap()
            .unlock()
            .unwrap();
        let names: Vec<_> = (0..THREADS)
            .map(|n| cluster.name_on(nodes[n % nodes.len()], &format!("rate-{}-{n}", nodes.len())))
            .collect();
        for name in &names {
            client
                .mutex(name)
                .unwrap()
                .lock()
                .unwrap()
                .unlock()
                .unwrap();
        }
        for node in 0..3 {
            cluster.node(node).probe().reset_stats();
        }
        let (cycles, watch) = (AtomicU64::new(0), Stopwatch::start());
        thread::scope(|scope| {
            for name in &names {
                let (client, cycles, watch) = (&client, &cycles, &watch);
                scope.spawn(move || {
                    let lock = client.mutex(name).unwrap();
                    while watch.elapsed() < time {
                        lock.lock().unwrap().unlock().unwrap();
                        cycles.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        let cycles = cycles.into_inner();
        let scripts: u64 = (0..3)
            .map(|node| {
                let mut probe = cluster.node(node).probe();
                probe.command_calls("evalsha") + probe.command_calls("eval")
            })
            .sum();
        let rate = cycles as f64 / watch.elapsed().as_secs_f64();
        println!(
            "{} node(s), {THREADS} threads: {rate:.0} cycles a second, {:.3} requests each",
            nodes.len(),
            scripts as f64 / cycles as f64
        );
        rates.push(rate);
        assert!(
            scripts <= 2 * cycles + 2 * THREADS as u64,
            "{scripts} requests for {cycles} cycles"
        );
        for code in ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"] {
            assert_eq!(cluster.errors(code), 0, "{code}");
        }
    }
    println!(
        "three nodes give {:.2} times what one gives",
        rates[1] / rates[0]
    );
}

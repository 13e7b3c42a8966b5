//! Fairness between clients that contend for one lock all the time, at several distances.

use distlock::Mutex;
use distlock::time::{Clock, Moment, SystemClock};
use distlock_tests::distance::Distance;
use distlock_tests::process::RedisServer;
use distlock_tests::time::{late, let_pass, retry_if_late};
use parking_lot::Mutex as Shared;
use std::fmt;
use std::thread;
use std::time::Duration;

const CLIENTS: usize = 4;

/// How long a holder keeps the lock: longer than a client may keep it while others wait.
const LONG: Duration = Duration::from_millis(20);

/// A hold that is shorter than that.
const SHORT: Duration = Duration::from_millis(3);

/// How a holder gives the lock back.
#[derive(Clone, Copy, Debug)]
enum Giving {
    /// The guard is dropped: the next attempt may leave before the release is answered.
    Drop,
    /// `unlock()` waits for the answer.
    Unlock,
}

/// The clients of a contest, and their settings.
#[derive(Clone, Copy)]
struct Contest {
    threads: usize,
    giving: Giving,
    hold: Duration,
    round_trip: Duration,
    /// How many turns each thread has, if a change of holder takes two round trips.
    turns: u32,
}

impl Contest {
    fn time(&self) -> Duration {
        let threads = u32::try_from(CLIENTS * self.threads).unwrap();
        (self.hold + self.round_trip * 2) * self.turns * threads
    }
}

/// What one thread got.
#[derive(Default)]
struct Share {
    turns: u32,
    longest_wait: Duration,
}

/// The result of a contest.
struct Outcome {
    contest: Contest,
    /// The turns of each client.
    turns: Vec<u32>,
    longest_wait: Duration,
    /// The time in which each thread has one turn: one hold and one change of holder each.
    round: Duration,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            contest,
            turns,
            longest_wait,
            round,
        } = self;
        let Contest {
            threads,
            giving,
            hold,
            round_trip,
            ..
        } = contest;
        let rounds = longest_wait.as_secs_f64() / round.as_secs_f64();
        write!(
            f,
            "| {threads} | {giving:?} | {hold:?} | {round_trip:?} | {turns:?} | {longest_wait:.0?} | {rounds:.1} |"
        )
    }
}

impl Outcome {
    fn is_fair(&self) -> bool {
        let fair = f64::from(self.turns.iter().sum::<u32>()) / CLIENTS as f64;
        let near = |turns: &u32| (f64::from(*turns) - fair).abs() <= 0.3 * fair;
        self.turns.iter().all(near) && self.longest_wait < self.bound()
    }

    /// How long a thread waits at most.
    fn bound(&self) -> Duration {
        // A client whose holds are short may have several turns in a row.
        self.round * if self.contest.hold < LONG { 6 } else { 3 }
    }
}

/// Runs a contest. Every client has a connection of its own to the server, as a process would.
fn contend(contest: Contest) -> Outcome {
    let server = RedisServer::start();
    let far = Distance::new(server.port(), contest.round_trip);
    let connect = |_| distlock::connect(&far.url()).unwrap();
    let clients: Vec<_> = (0..CLIENTS).map(connect).collect();
    let locks: Vec<Mutex> = clients
        .iter()
        .map(|client| client.mutex("turns").unwrap())
        .collect();
    let shares: Vec<_> = locks
        .iter()
        .map(|_| Shared::new(Vec::<Share>::new()))
        .collect();
    let begun = SystemClock.now();
    let end = begun + contest.time();
    thread::scope(|scope| {
        for (lock, shares) in locks.iter().zip(&shares) {
            for _ in 0..contest.threads {
                scope.spawn(move || {
                    let share = take_turns(lock, contest, end);
                    shares.lock().push(share);
                });
            }
        }
    });
    let took = SystemClock.now().since(begun);
    let shares: Vec<Vec<Share>> = shares.into_iter().map(Shared::into_inner).collect();
    let turns: Vec<u32> = shares
        .iter()
        .map(|shares| shares.iter().map(|share| share.turns).sum())
        .collect();
    let longest_wait = shares
        .iter()
        .flatten()
        .map(|share| share.longest_wait)
        .max()
        .unwrap();
    let all = turns.iter().sum::<u32>();
    let round = took / all * u32::try_from(CLIENTS * contest.threads).unwrap();
    Outcome {
        contest,
        turns,
        longest_wait,
        round,
    }
}

fn take_turns(lock: &Mutex, contest: Contest, end: Moment) -> Share {
    let mut share = Share::default();
    loop {
        let asked = SystemClock.now();
        if asked >= end {
            return share;
        }
        let guard = lock.lock().unwrap();
        share.longest_wait = share.longest_wait.max(SystemClock.now().since(asked));
        share.turns += 1;
        let_pass(contest.hold);
        match contest.giving {
            Giving::Drop => drop(guard),
            Giving::Unlock => guard.unlock().unwrap(),
        }
    }
}

/// Runs the contests at the same time, because their threads mostly sleep. A late machine may delay
/// a thread for longer than a client leaves the lock to others, and change the order: then the
/// contests run again.
fn all_are_fair(contests: impl Iterator<Item = Contest> + Clone) {
    retry_if_late(|| run_all(contests.clone()));
}

fn run_all(contests: impl Iterator<Item = Contest>) {
    let outcomes: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = contests
            .into_iter()
            .map(|contest| scope.spawn(move || contend(contest)))
            .collect();
        running
            .into_iter()
            .map(|contest| contest.join().unwrap())
            .collect()
    });
    println!(
        "| threads | given back by | held for | round trip | turns | longest wait | in rounds |"
    );
    println!("|---|---|---|---|---|---|---|");
    outcomes.iter().for_each(|outcome| println!("{outcome}"));
    if let Some(unfair) = outcomes.iter().find(|outcome| !outcome.is_fair()) {
        late(unfair.bound(), format!("the turns are not equal: {unfair}"));
    }
}

/// Returns a contest for each way of giving back and each round trip, in milliseconds.
fn each(
    threads: usize,
    hold: Duration,
    turns: u32,
    round_trips: &'static [u64],
) -> impl Iterator<Item = Contest> + Clone {
    [Giving::Drop, Giving::Unlock]
        .into_iter()
        .flat_map(move |giving| {
            round_trips.iter().map(move |ms| {
                let round_trip = Duration::from_millis(*ms);
                Contest {
                    threads,
                    giving,
                    hold,
                    round_trip,
                    turns,
                }
            })
        })
}

#[test]
fn single_thread_clients_near_and_far_have_equal_shares() {
    all_are_fair(each(1, LONG, 25, &[0, 4]));
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn single_thread_clients_at_all_distances_have_equal_shares() {
    all_are_fair(each(1, LONG, 100, &[0, 1, 4, 50]));
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn four_thread_clients_at_all_distances_have_equal_shares() {
    all_are_fair(each(4, LONG, 25, &[0, 1, 4, 50]));
}

/// A hold that is shorter than a round trip ends before another client can attempt.
#[test]
#[ignore = "long: tests/run.sh --all"]
fn short_holds_far_away_have_equal_shares() {
    all_are_fair(each(1, SHORT, 100, &[4, 10, 50]).chain(each(4, SHORT, 50, &[4, 10])));
}

//! The turns of clients that take several locks together, and of clients that contend for each of
//! these locks all the time.

use distlock::{DistLock, LockName, MajorityLock, MultiLock};
use distlock_tests::distance::Distance;
use distlock_tests::process::RedisServer;
use distlock_tests::time::{Stopwatch, eventually, let_pass, retry_if_late};
use lock_conformance::late;
use std::fmt;
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

/// The turns that each client must have before the contest ends.
const TURNS: u32 = 2;

/// The kinds of the contended locks, by their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kinds {
    Fair,
    Plain,
    /// A fair lock, a plain lock, a write lock, and a read lock whose other contenders write.
    Mixed,
}

/// How several locks are taken together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Together {
    /// By so many clients, each with a `MultiLock` that names the locks in another order.
    All(usize),
    Majority,
}

#[derive(Clone, Copy, Debug)]
struct Contest {
    kinds: Kinds,
    together: Together,
    members: usize,
    /// For each lock, the number of clients that want this lock only.
    singles: usize,
    hold: Duration,
    round_trip: Duration,
    /// Whether the locks have one name, under different prefixes: then they are acquired in the
    /// order in which they were passed.
    same_name: bool,
}

impl Contest {
    /// Returns a contest of one `MultiLock` on a near server.
    fn of(kinds: Kinds, members: usize, singles: usize, hold: u64) -> Self {
        let hold = Duration::from_millis(hold);
        let (together, round_trip, same_name) = (Together::All(1), Duration::ZERO, false);
        Self {
            kinds,
            together,
            members,
            singles,
            hold,
            round_trip,
            same_name,
        }
    }

    fn together(self, together: Together) -> Self {
        Self { together, ..self }
    }

    fn far(self, millis: u64) -> Self {
        Self {
            round_trip: Duration::from_millis(millis),
            ..self
        }
    }

    /// Returns a time limit of several times the expected duration.
    fn bound(&self) -> Duration {
        let clients = u32::try_from(self.members * (self.singles + 1)).unwrap();
        Duration::from_secs(30) + (self.hold + self.round_trip * 2) * clients * 40
    }

    /// Returns the lock of this number, of a new client. The order of the names is not that of the
    /// numbers.
    fn member(&self, url: &str, number: usize) -> Arc<dyn DistLock> {
        let client = distlock::connect(&format!("{url}?prefix={number}:")).unwrap();
        let name = if self.same_name { 0 } else { number * 7 % 4 };
        let name = LockName::new(&format!("lock:{name}")).unwrap();
        match (self.kinds, number) {
            (Kinds::Fair, _) | (Kinds::Mixed, 0) => client.fair_mutex(name).unwrap().into(),
            (Kinds::Plain, _) | (Kinds::Mixed, 1) => client.mutex(name).unwrap().into(),
            (Kinds::Mixed, 2) => client.rw_lock(name).unwrap().write().into(),
            (Kinds::Mixed, _) => client.rw_lock(name).unwrap().read().into(),
        }
    }

    /// Returns the lock for a client that wants this lock only: a write lock where the others read.
    fn single(&self, url: &str, number: usize) -> Arc<dyn DistLock> {
        match (self.kinds, number) {
            (Kinds::Mixed, 3) => {
                let client = distlock::connect(&format!("{url}?prefix=3:")).unwrap();
                client.rw_lock("lock:1").unwrap().write().into()
            }
            _ => self.member(url, number),
        }
    }
}

impl fmt::Display for Contest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            kinds,
            together,
            members,
            singles,
            hold,
            round_trip,
            same_name,
        } = self;
        let names = if *same_name { "one name" } else { "names" };
        write!(
            f,
            "{kinds:?}, {together:?} of {members}, {names}, {singles} clients each, {hold:?}, \
             {round_trip:?}"
        )
    }
}

/// Takes a lock again and again, and counts how often.
fn contend(lock: &dyn DistLock, contest: Contest, turns: &AtomicU32, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        // A deadline, so that a client that starves ends soon after the contest.
        let taken = lock
            .try_lock_for(contest.bound() * 2)
            .expect("the server answers");
        let Some(guard) = taken else { return };
        let_pass(contest.hold);
        guard.unlock().expect("it was held until now");
        turns.fetch_add(1, Ordering::Relaxed);
    }
}

/// The turns of the clients that take several locks, and of those that take one.
type Turns = [Vec<AtomicU32>; 2];

/// Lets the clients contend until each one has had its turns.
fn hold_contest(contest: Contest) {
    let Contest {
        together,
        members,
        singles,
        round_trip,
        ..
    } = contest;
    let server = RedisServer::start();
    let way = (!round_trip.is_zero()).then(|| Distance::new(server.port(), round_trip));
    let url = way
        .as_ref()
        .map_or_else(|| server.url_as(""), Distance::url);
    let all = || {
        (0..members)
            .map(|at| contest.member(&url, at))
            .collect::<Vec<_>>()
    };
    let several: Vec<Arc<dyn DistLock>> = match together {
        Together::All(clients) => (0..clients)
            .map(|number| {
                let mut all = all();
                all.rotate_left(number % members);
                MultiLock::new(all).unwrap().into()
            })
            .collect(),
        Together::Majority => vec![MajorityLock::new(all()).unwrap().into()],
    };
    let single: Vec<_> = (0..members * singles)
        .map(|number| contest.single(&url, number % members))
        .collect();
    let turns: Turns =
        [&several, &single].map(|locks| locks.iter().map(|_| AtomicU32::new(0)).collect());
    let (is_over, watch) = (AtomicBool::new(false), Stopwatch::start());
    let outcome = thread::scope(|scope| {
        let with_turns = [&several, &single]
            .into_iter()
            .flatten()
            .zip(turns.iter().flatten());
        for (lock, turns) in with_turns {
            scope.spawn(|| contend(&**lock, contest, turns, &is_over));
        }
        let all_had = || {
            turns
                .iter()
                .flatten()
                .all(|it| it.load(Ordering::Relaxed) >= TURNS)
        };
        let ended = catch_unwind(|| eventually("all have their turns", contest.bound(), all_had));
        is_over.store(true, Ordering::Relaxed);
        ended
    });
    println!("{contest}: {:.1?}, turns {turns:?}", watch.elapsed());
    outcome.unwrap_or_else(|panic| resume_unwind(panic));
}

#[test]
fn multi_lock_of_fair_locks_is_taken_between_other_clients() {
    retry_if_late(|| hold_contest(Contest::of(Kinds::Fair, 2, 6, 20)));
}

#[test]
fn multi_lock_of_mixed_kinds_is_taken_between_other_clients() {
    retry_if_late(|| hold_contest(Contest::of(Kinds::Mixed, 4, 3, 5)));
}

#[test]
fn multi_locks_in_different_orders_are_taken_between_other_clients() {
    let contest = Contest::of(Kinds::Fair, 3, 3, 5).together(Together::All(3));
    retry_if_late(|| hold_contest(contest));
}

/// The locks have no common order, so each client may hold the lock that the other one waits for.
#[test]
fn multi_locks_of_one_name_in_opposite_orders_do_not_starve() {
    let contest = Contest::of(Kinds::Fair, 2, 3, 5).together(Together::All(2));
    retry_if_late(|| {
        hold_contest(Contest {
            same_name: true,
            ..contest
        });
    });
}

#[test]
fn majority_of_fair_locks_is_taken_between_other_clients() {
    let contest = Contest::of(Kinds::Fair, 3, 6, 20).together(Together::Majority);
    retry_if_late(|| hold_contest(contest));
}

/// Multi-locks of two members compete with those of three, in other orders, and with single locks.
/// If their threads waited for each other, that would last until one gives up.
#[test]
fn multi_locks_of_other_members_do_not_wait_for_each_other() {
    const EACH: Duration = Duration::from_secs(6);
    retry_if_late(|| {
        let server = RedisServer::start();
        let names = ["a b", "b c", "c a", "a b c", "c b a", "a", "b"];
        let is_over = AtomicBool::new(false);
        let longest = thread::scope(|scope| {
            let ask = |names: &str| -> Duration {
                let client = distlock::connect(&server.url_as("")).unwrap();
                let locks = names.split(' ').map(|name| client.mutex(name).unwrap());
                let lock = MultiLock::new(locks).unwrap();
                let mut longest = Duration::ZERO;
                while !is_over.load(Ordering::Relaxed) {
                    let watch = Stopwatch::start();
                    let guard = lock.try_lock_for(EACH * 2).unwrap();
                    longest = longest.max(watch.elapsed());
                    let_pass(Duration::from_millis(2));
                    guard.expect("it is free again and again").unlock().unwrap();
                }
                longest
            };
            let asked = names.map(|names| [(); 2].map(|()| scope.spawn(move || ask(names))));
            let_pass(EACH);
            is_over.store(true, Ordering::Relaxed);
            let ended = asked.into_iter().flatten();
            ended.map(|it| it.join().unwrap()).collect::<Vec<_>>()
        });
        println!("{longest:.0?}");
        if longest.iter().any(|it| *it > EACH / 4) {
            late(EACH / 4, format!("waits of {longest:.0?}"));
        }
    });
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn no_client_starves_in_any_contest_for_several_locks() {
    let mut contests = Vec::new();
    for kinds in [Kinds::Fair, Kinds::Plain, Kinds::Mixed] {
        for (members, singles) in [(2, 6), (3, 2)] {
            for (hold, far) in [(1, 0), (20, 0), (20, 10)] {
                let contest = Contest::of(kinds, members, singles, hold).far(far);
                contests.push(contest);
                if members == 3 {
                    contests.push(contest.together(Together::Majority));
                }
                if members == 3 && hold == 20 {
                    let contest = contest.together(Together::All(4));
                    contests.extend([
                        contest,
                        Contest {
                            same_name: true,
                            ..contest
                        },
                    ]);
                }
            }
        }
    }
    contests
        .into_iter()
        .for_each(|contest| retry_if_late(|| hold_contest(contest)));
}

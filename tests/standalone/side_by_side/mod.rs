//! Memory and a real Redis side by side: the same random commands, and every answer must be the
//! same.
//!
//! The memory store is the model, so no other model must agree with it. A case is a plain list of
//! commands. A command that does not apply is skipped on both sides, so every shorter list is valid
//! as well, and a failure shrinks to the few commands that matter.
//!
//! Other kinds of locks are compared by the requests of their backends: see [`kinds`].
//!
//! `DISTLOCK_PROPERTY_CASES=1000` runs longer, `DISTLOCK_PROPERTY_SEED=N` runs what a failure
//! printed.

mod actor;
mod command;
mod kinds;
mod stores;
mod world;

use actor::Answer;
use command::{Command, HandOff, Operation, Terms, cases};
use distlock_tests::time::Stopwatch;
use lock_conformance::{Mutant, Mutation, violated};
use parking_lot::Mutex;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stores::Store;
use world::{Step, World};

/// How many lists of commands are tried. One takes about a tenth of a second.
const CASES: u32 = 150;

fn from_environment<T: std::str::FromStr>(variable: &str) -> Option<T> {
    let text = std::env::var(variable).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text} is not a number")),
    )
}

const HANDED_ON: &str = "handed on within a client";
const CUT_SHORT: &str = "cases that were cut short";

/// How often something was seen.
type Seen = Mutex<BTreeMap<String, u64>>;

/// Runs lists of commands on two stores, until an answer differs.
fn compare(
    left: &Arc<Store>,
    right: &Arc<Store>,
    seed: u64,
    config: Config,
    seen: &Seen,
) -> Result<(), TestError<(HandOff, Vec<Command>)>> {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let config = Config {
        failure_persistence: None,
        ..config
    };
    TestRunner::new_with_rng(config, rng).run(&cases(), |(hand_off, commands)| {
        case(left, right, hand_off, &commands, seen).map_err(TestCaseError::fail)
    })
}

/// Runs one list of commands on both stores, on unused names.
fn case(
    left: &Arc<Store>,
    right: &Arc<Store>,
    hand_off: HandOff,
    commands: &[Command],
    seen: &Seen,
) -> Result<(), String> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let since = Stopwatch::start();
    let mut worlds = [left, right].map(|store| World::new(Arc::clone(store), number, hand_off));
    let mut last: Option<Step> = None;
    for (at, command) in commands.iter().enumerate() {
        let [left, right] = worlds.each_mut().map(|world| {
            world
                .step(command)
                .map_err(|why| format!("step {at}, {command:?}, {}: {why}", world.name()))
        });
        let (left, right) = (left?, right?);
        if hand_off.may_be_over(since.elapsed()) {
            *seen.lock().entry(CUT_SHORT.to_owned()).or_default() += 1;
            break;
        }
        let mut why = String::new();
        for (what, sides) in left.differences(&right) {
            write!(why, "\n{what}").unwrap();
            for (world, side) in worlds.iter().zip(sides) {
                write!(why, "\n  {}: {side}", world.name()).unwrap();
            }
        }
        if !why.is_empty() {
            return Err(format!("step {at}, {command:?}, differs{why}"));
        }
        note(command, last.as_ref(), &left, seen);
        last = Some(left);
    }
    let ended = worlds.map(World::end);
    ended
        .into_iter()
        .collect::<Result<Vec<()>, _>>()
        .map(|_| ())
}

fn note(command: &Command, before: Option<&Step>, step: &Step, seen: &Seen) {
    let mut seen = seen.lock();
    let took = step
        .answers()
        .iter()
        .any(|(who, answer)| *who != command.actor() && matches!(answer, Answer::Took(_)));
    if took && before.is_some_and(|before| step.keeps_owner(command.lock, before)) {
        *seen.entry(HANDED_ON.to_owned()).or_default() += 1;
    }
    for (who, answer) in step.answers() {
        let waited = if *who == command.actor() {
            ""
        } else {
            " for a waiter"
        };
        *seen
            .entry(format!("{:?} -> {answer:?}{waited}", command.kind()))
            .or_default() += 1;
    }
}

#[test]
fn memory_and_redis_give_the_same_answers() {
    let seed = from_environment("DISTLOCK_PROPERTY_SEED").unwrap_or_else(|| fastrand::u64(..));
    let cases = from_environment("DISTLOCK_PROPERTY_CASES").unwrap_or(CASES);
    let (memory, redis) = (Arc::new(Store::memory()), Arc::new(Store::redis()));
    let seen = Seen::default();
    println!("DISTLOCK_PROPERTY_SEED={seed}");
    let config = Config {
        cases,
        max_shrink_iters: 300,
        max_shrink_time: 60_000,
        ..Config::default()
    };
    if let Err(failure) = compare(&memory, &redis, seed, config, &seen) {
        violated(format_args!(
            "run it again with DISTLOCK_PROPERTY_SEED={seed}\n{failure}"
        ));
    }
    let seen = seen.into_inner();
    for (what, times) in &seen {
        println!("{times:6} {what}");
    }
    let is_seen = |answer: &str| seen.keys().any(|what| what.contains(answer));
    for answer in [
        "Took",
        "Busy",
        "for a waiter",
        "Lost",
        "NotHeld",
        "Interrupted",
        "LeaseTooShort",
        "Misuse",
    ]
    .into_iter()
    .chain([
        "TakeAndUseUp -> Took",
        "LockInterrupted -> Failed(Interrupted)",
        "LockTogether -> Took",
        "Settle -> Done",
        "ReplaceClient -> Done",
    ]) {
        assert!(
            cases < CASES || is_seen(answer),
            "these commands never lead to `{answer}`"
        );
    }
}

/// The comparison detects a mutant store. (Mutants that make a thread wait in vain would be found,
/// too, but each costs its bound for every shorter list that is tried.)
#[test]
fn mutant_store_is_detected() {
    for mutation in [
        Mutation::AlwaysGrants,
        Mutation::TokenRepeats,
        Mutation::InspectSaysFree,
        Mutation::InspectMisnames,
        Mutation::RenewalDoesNothing,
        Mutation::ForceKeeps,
        Mutation::ForceAlwaysTrue,
        Mutation::ReleaseDenies,
        Mutation::ShortLease,
    ] {
        let memory = Arc::new(Store::memory());
        let mutant = Arc::new(Store::mutant(Mutant::new(mutation)));
        let config = Config {
            cases: CASES,
            max_shrink_iters: 40,
            ..Config::default()
        };
        match compare(&memory, &mutant, 1, config, &Seen::default()) {
            Err(TestError::Fail(why, case)) => {
                println!("{mutation:?}: {case:?}\n{why}");
            }
            other => panic!("{mutation:?} was not found out: {other:?}"),
        }
    }
}

/// An interrupt ends all waits that share it, for both locks and of both clients, and no other
/// wait, and can be used again. Random commands lead to this case too rarely.
#[test]
fn shared_interrupt_ends_all_its_waits() {
    let does = |actor, lock, operation| Command {
        actor,
        lock,
        operation,
    };
    let (lock, together) = (
        Operation::Lock(Terms::Default),
        Operation::LockTogether(Terms::Default),
    );
    let commands = [
        does(0, 0, lock),
        does(3, 1, lock),
        does(1, 0, together),
        does(4, 1, together),
        does(1, 0, Operation::Interrupt),
        does(1, 0, together),
        does(4, 1, lock),
        does(1, 0, Operation::Interrupt),
        does(3, 1, Operation::Unlock(0)),
        does(1, 0, together),
        does(0, 0, Operation::Unlock(0)),
    ];
    let (memory, redis) = (Arc::new(Store::memory()), Arc::new(Store::redis()));
    let seen = Seen::default();
    case(&memory, &redis, HandOff::Never, &commands, &seen).unwrap();
    let seen = seen.into_inner();
    let counts = [
        "Interrupt -> Failed(Interrupted)",
        "Interrupt -> Failed(Interrupted) for a waiter",
    ];
    assert_eq!(counts.map(|what| seen[what]), [2, 1], "{seen:?}");
    let took = seen
        .iter()
        .filter(|(what, _)| what.contains("Unlock -> Took"));
    assert_eq!(took.map(|(_, times)| times).sum::<u64>(), 2, "{seen:?}");
}

/// A lock passes from thread to thread within a client in both stores alike: its owner stays the
/// same.
#[test]
fn lock_is_handed_on_within_a_client_by_both() {
    let lock = |actor| Command {
        actor,
        lock: 0,
        operation: Operation::Lock(Terms::Default),
    };
    let unlock = |actor| Command {
        actor,
        lock: 0,
        operation: Operation::Unlock(0),
    };
    let commands = [lock(0), lock(1), lock(2), unlock(0), unlock(1), unlock(2)];
    let (memory, redis) = (Arc::new(Store::memory()), Arc::new(Store::redis()));
    for (hand_off, expected) in [(HandOff::Never, 0), (HandOff::Always, 1)] {
        let seen = Seen::default();
        case(&memory, &redis, hand_off, &commands, &seen).unwrap();
        let seen = seen.into_inner();
        let handed_on = seen.get(HANDED_ON).copied().unwrap_or_default();
        assert!(
            handed_on == expected || seen.contains_key(CUT_SHORT),
            "{hand_off:?}: {seen:?}"
        );
    }
}

/// Differences are also found in commands that are too rare for a short random run.
#[test]
fn rare_actions_show_a_difference_too() {
    let mine = |operation| Command {
        actor: 0,
        lock: 0,
        operation,
    };
    let detached = [
        Operation::Lock(Terms::Default),
        Operation::Detach(0),
        Operation::ReplaceClient,
    ];
    for (mutation, operations, last) in [
        (
            Mutation::RenewalSaysGone,
            &[Operation::TakeAndUseUp][..],
            "TakeAndUseUp",
        ),
        (
            Mutation::RenewalDoesNothing,
            &[Operation::TakeAndUseUp],
            "TakeAndUseUp",
        ),
        (Mutation::ReleaseForgets, &detached, "ReplaceClient"),
    ] {
        let commands: Vec<_> = operations.iter().copied().map(mine).collect();
        let compare = |mutant: Mutant| {
            let (memory, mutant) = (Arc::new(Store::memory()), Arc::new(Store::mutant(mutant)));
            case(
                &memory,
                &mutant,
                HandOff::Never,
                &commands,
                &Seen::default(),
            )
        };
        compare(Mutant::unmutated()).unwrap();
        let why = compare(Mutant::new(mutation)).expect_err("the difference is found");
        println!("{mutation:?}: {why}");
        assert!(why.contains(&format!("{last}, ")), "not sooner: {why}");
    }
}

/// The comparison raises no false alarm: a wrapped memory store without a mutation passes.
#[test]
fn sound_store_is_not_reported() {
    let memory = Arc::new(Store::memory());
    let unmutated = Arc::new(Store::mutant(Mutant::unmutated()));
    let config = Config {
        cases: 10,
        max_shrink_iters: 40,
        ..Config::default()
    };
    compare(
        &memory,
        &unmutated,
        fastrand::u64(..),
        config,
        &Seen::default(),
    )
    .unwrap();
}

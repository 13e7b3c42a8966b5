//! Defects of the engine, each of which a scenario must find within a number of schedules.
//!
//! A mutant is a line of the engine that asks `sync::mutant` for its name. Each runs in a process
//! of its own, which is this test's program with `DISTLOCK_MUTANT`.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

/// How many schedules a mutant has to survive to count as not found. The seeds are always the same,
/// so each is found in the same schedule every time.
const MOST: u64 = 4_000;

/// The name of each mutant, and the scenario that finds it.
const MUTANTS: [(&str, &str); 37] = [
    ("any_attempt_was_granted", "fair::late_messages"),
    (
        "campaigns_share_a_signal",
        "election::loss_after_resignations",
    ),
    (
        "doubts_counted_too_early",
        "leaving::cleanup_ends_as_its_wait_begins",
    ),
    ("end_forgets_detached", "leaving::last_handle"),
    ("ended_hold_is_set_aside", "trouble::faulty_network"),
    ("ended_thread_keeps_it", "holding::sent_and_detached"),
    ("failed_renewal_is_not_repeated", "holding::failed_renewal"),
    ("fired_checked_before_lock", "waiting::interrupt"),
    (
        "goes_before_contending_head",
        "waiting::hand_off_lost_before_the_waiter_takes_it",
    ),
    ("grant_after_resignation_leads", "election::terms"),
    (
        "hand_off_beside_renewal",
        "holding::hand_off_beside_renewals",
    ),
    ("hand_off_to_a_leaver", "waiting::interrupt"),
    ("idle_end_outside_the_lock", "holding::idle_watchdog"),
    (
        "interrupt_checked_too_early",
        "waiting::interrupt_at_the_store",
    ),
    ("late_entry_removes_successor", "queueing::handles"),
    ("late_renewal_revives", "holding::validity_is_final"),
    ("leaver_keeps_its_position", "fair::leavers"),
    ("leaver_wakes_no_head", "queueing::deadline"),
    ("loss_declared_twice", "holding::loss"),
    ("loss_leaves_a_rest", "semaphore::rest_of_a_loss"),
    ("no_look_after_watch", "queueing::two_clients"),
    ("no_tombstone", "trouble::faulty_network"),
    ("panic_keeps_it", "holding::panic_inside"),
    ("reader_has_a_reserved_token", "read_write::downgrade"),
    ("released_name_is_kept", "holding::renewal_and_release"),
    (
        "renewal_goes_on_during_release",
        "holding::renewal_and_release",
    ),
    ("signal_taken_before_sleep", "queueing::two_clients"),
    ("sleeps_without_a_look", "queueing::fifo"),
    ("stop_misses_what_is_tried", "leaving::unconfirmed_release"),
    ("stop_wakes_no_watchdog", "leaving::last_handle"),
    (
        "taken_back_owner_is_used_again",
        "trouble::rollback_with_unknown_outcome",
    ),
    ("try_is_taken_for_a_wait", "fair::arrival"),
    (
        "unlock_ends_anothers_detached_hold",
        "holding::sent_and_detached",
    ),
    ("waiter_is_forgotten", "read_write::waiting_writer"),
    ("watchdog_misses_its_signal", "holding::sent_and_detached"),
    ("worker_forgets_a_new_queue", "holding::idle_worker"),
    ("writer_hands_off_beside_its_reads", "read_write::downgrade"),
];

/// The schedule in which a scenario found the mutant, its seed, and what was seen.
fn found(mutant: &str, scenario: &str) -> Option<(u64, u64, String)> {
    let output = Command::new(env::current_exe().expect("this program"))
        .args([&format!("scenarios::{scenario}"), "--exact", "--nocapture"])
        .env("DISTLOCK_MUTANT", mutant)
        .env("DISTLOCK_SCHEDULES", MOST.to_string())
        .env("RUST_BACKTRACE", "0")
        .env_remove("DISTLOCK_FIRST_SEED")
        .output()
        .expect("the program runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut lines = text.lines().skip_while(|line| !line.starts_with("FAILED "));
    let seed = lines
        .next()?
        .split(" seed ")
        .nth(1)?
        .split(' ')
        .next()?
        .parse()
        .ok()?;
    let why = lines.next().unwrap_or_default().chars().take(60).collect();
    (!output.status.success()).then_some((seed + 1, seed, why))
}

#[test]
fn every_mutant_is_found() {
    if env::var_os("DISTLOCK_SEED").is_some() {
        return; // one schedule of one scenario is asked for
    }
    let left = Mutex::new(MUTANTS.iter());
    let table = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let next = left.lock().expect("no panic").next();
                    let Some((mutant, scenario)) = next else {
                        break;
                    };
                    let found = found(mutant, scenario);
                    table
                        .lock()
                        .expect("no panic")
                        .push((mutant, scenario, found));
                }
            });
        }
    });
    let mut table = table.into_inner().expect("no panic");
    table.sort();
    println!("noted: | mutant | scenario | schedules | seed | what was seen |");
    for (mutant, scenario, found) in &table {
        match found {
            Some((count, seed, why)) => {
                println!("noted: | {mutant} | {scenario} | {count} | {seed} | {why} |");
            }
            None => println!("noted: | {mutant} | {scenario} | not found | | |"),
        }
    }
    let missed: Vec<_> = table
        .iter()
        .filter(|it| it.2.is_none())
        .map(|it| it.0)
        .collect();
    assert!(
        missed.is_empty(),
        "not found in {MOST} schedules: {missed:?}"
    );
}

/// No mutant is tested that the engine does not ask for, and none that it asks for is left out.
#[test]
fn every_mutant_is_listed() {
    let mut named = Vec::new();
    collect(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("../../lock-core/src"),
        &mut named,
    );
    named.sort();
    named.dedup();
    let listed: Vec<_> = MUTANTS.iter().map(|it| it.0.to_owned()).collect();
    assert_eq!(named, listed);
}

fn collect(folder: &Path, named: &mut Vec<String>) {
    for file in fs::read_dir(folder).expect("the sources") {
        let path = file.expect("a file").path();
        if path.is_dir() {
            collect(&path, named);
        } else {
            let text = fs::read_to_string(&path).expect("a source");
            let names = text.split("mutant(\"").skip(1);
            named.extend(
                names
                    .filter_map(|rest| rest.split('"').next())
                    .map(str::to_owned),
            );
        }
    }
}

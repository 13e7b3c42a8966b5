//! The trial of `doctor`: a lock of each kind, which one client holds and another waits for.

use crate::exit;
use distlock::admin::{Finding, FindingLevel};
use distlock::{Client, DistLock, Error, LockOptions, Semaphore};
use std::time::Duration;

/// The lock of the trial: always the same one, because a name leaves keys behind for a time.
const NAME: &str = "distlock:doctor";
/// The semaphore of the trial, which the store keeps under a key of its own.
const SLOTS: &str = "distlock:doctor:slots";
/// The lease of the lock, because a process that is killed during the trial must not keep the next
/// trial from the lock for long.
const LEASE: Duration = Duration::from_secs(10);
/// The wait of the second client, so that it enters the queue and subscribes.
const WAIT: Duration = Duration::from_millis(20);

/// The steps of the trial of one kind, by a client that holds the lock and one that waits for it.
type Run = fn(&Client, &Client, Duration) -> Result<Outcome, Error>;

/// What the steps have shown.
enum Outcome {
    /// All of them worked.
    Worked,
    /// Another client holds the lock of the trial.
    Busy,
    /// Both clients got the lock.
    GrantedTwice,
}

/// The ID of each kind's finding, its lock, and its steps.
const TRIALS: [(&str, &str, Run); 6] = [
    ("mutex", NAME, |one, two, lease| {
        exclusive(&one.mutex(NAME)?, &two.mutex(NAME)?, lease)
    }),
    ("fair_mutex", NAME, |one, two, lease| {
        exclusive(&one.fair_mutex(NAME)?, &two.fair_mutex(NAME)?, lease)
    }),
    ("read_lock", NAME, |one, two, lease| {
        let (one, two) = (one.rw_lock(NAME)?, two.rw_lock(NAME)?);
        // The second reader gets in, so a writer waits.
        exclusive(one.read(), two.write(), lease)
    }),
    ("write_lock", NAME, |one, two, lease| {
        let (one, two) = (one.rw_lock(NAME)?, two.rw_lock(NAME)?);
        exclusive(one.write(), two.write(), lease)
    }),
    ("semaphore", SLOTS, |one, two, lease| {
        permit(&one.semaphore(SLOTS, 1)?, &two.semaphore(SLOTS, 1)?, lease)
    }),
    ("fair_semaphore", SLOTS, |one, two, lease| {
        let (one, two) = (one.fair_semaphore(SLOTS, 1)?, two.fair_semaphore(SLOTS, 1)?);
        permit(&one, &two, lease)
    }),
];

/// Tries each kind of lock that the store has, so that what a server or a service refuses of it is
/// found. Ends at the first kind for which the store does not answer.
///
/// A missing right to a kind other than the mutex is a warning. With `is_name_unknown`, the user
/// may have rights to other names than that of the trial, and a missing right is unknown.
pub(crate) fn try_kinds(clients: [&Client; 2], is_name_unknown: bool) -> Vec<Finding> {
    let [one, two] = clients;
    // A quorum refuses a lease that is longer than its longest.
    let longest = one.abilities().longest_lease;
    let lease = longest.map_or(LEASE, |longest| longest.min(LEASE));
    let mut findings = Vec::new();
    for (id, name, run) in TRIALS {
        let outcome = run(one, two, lease);
        let finding = match &outcome {
            Ok(Outcome::Worked) => Finding::ok(id, name, "acquired, waited for and released"),
            Ok(Outcome::Busy) => {
                let seen = "another client holds it; is it another trial?";
                Finding::new(FindingLevel::Unknown, id, name, seen).remedy("repeat the command")
            }
            Ok(Outcome::GrantedTwice) => {
                let seen = "two clients have acquired it at once";
                Finding::new(FindingLevel::Danger, id, name, seen)
                    .why("the store, or a proxy before it, does not do what its scripts say")
            }
            Err(error) if error.is_unsupported() => continue,
            Err(error) => {
                let level = match exit::with_sources(error).contains("NOPERM") {
                    true if is_name_unknown => FindingLevel::Unknown,
                    true if id != "mutex" => FindingLevel::Warning,
                    _ => FindingLevel::Danger,
                };
                Finding::failed(level, id, name, error).why("locks of this kind cannot be used")
            }
        };
        findings.push(finding);
        if outcome.is_err_and(|error| error.is_unavailable()) {
            break;
        }
    }
    findings
}

/// Tries a lock that excludes the other one.
fn exclusive(lock: &dyn DistLock, other: &dyn DistLock, lease: Duration) -> Result<Outcome, Error> {
    let options = LockOptions::new().lease(lease / 2);
    let Some(guard) = lock.try_lock_with(&options)? else {
        return Ok(Outcome::Busy);
    };
    // The fixed lease of some formats cannot be extended.
    guard.extend(most_of(lease)).or_else(ignore_unsupported)?;
    let second = other.try_lock_for_with(WAIT, &options);
    guard.unlock()?;
    Ok(outcome(second?.is_some()))
}

/// Tries a semaphore of one permit.
fn permit(semaphore: &Semaphore, other: &Semaphore, lease: Duration) -> Result<Outcome, Error> {
    let options = LockOptions::new().lease(lease / 2);
    let Some(guard) = semaphore.try_acquire_with(1, &options)? else {
        return Ok(Outcome::Busy);
    };
    guard.extend(most_of(lease))?;
    let second = other.try_acquire_for_with(1, WAIT, &options);
    guard.unlock()?;
    Ok(outcome(second?.is_some()))
}

fn outcome(is_granted_twice: bool) -> Outcome {
    match is_granted_twice {
        true => Outcome::GrantedTwice,
        false => Outcome::Worked,
    }
}

/// Returns less than the lease, because an extension asks for a little more than it is told.
fn most_of(lease: Duration) -> Duration {
    lease / 10 * 9
}

fn ignore_unsupported(error: Error) -> Result<(), Error> {
    match error.is_unsupported() {
        true => Ok(()),
        false => Err(error),
    }
}

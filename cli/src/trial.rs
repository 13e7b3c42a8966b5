//! The trial of `doctor`: a lock of each kind, which one thread holds and another waits for.

use distlock::admin::{Finding, FindingLevel};
use distlock::{Client, DistLock, Error, LockOptions, Semaphore};
use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

/// The lock of the trial: always the same one, because a name leaves keys behind for a time.
const NAME: &str = "distlock:doctor";
/// The semaphore of the trial, which the store keeps under a key of its own.
const SLOTS: &str = "distlock:doctor:slots";
/// The lease of the lock, because a process that is killed during the trial must not keep the next
/// trial from the lock for long.
const LEASE: Duration = Duration::from_secs(10);
/// The wait of the second thread, so that it enters a queue and subscribes.
const WAIT: Duration = Duration::from_millis(20);

/// The steps of the trial of one kind.
type Run = fn(&Client) -> Result<bool, Error>;

/// The ID of each kind's finding, its lock, and its steps.
const TRIALS: [(&str, &str, Run); 6] = [
    ("mutex", NAME, |client| try_lock(&client.mutex(NAME)?)),
    ("fair_mutex", NAME, |client| {
        try_lock(&client.fair_mutex(NAME)?)
    }),
    ("read_lock", NAME, |client| {
        try_lock(client.rw_lock(NAME)?.read())
    }),
    ("write_lock", NAME, |client| {
        try_lock(client.rw_lock(NAME)?.write())
    }),
    ("semaphore", SLOTS, |client| {
        try_permit(&client.semaphore(SLOTS, 1)?)
    }),
    ("fair_semaphore", SLOTS, |client| {
        try_permit(&client.fair_semaphore(SLOTS, 1)?)
    }),
];

/// Tries each kind of lock that the store supports, to find the kinds whose commands a server or a
/// service refuses. Ends at the first kind for which the store does not answer. With
/// `mutexes_only`, a kind other than the mutex that fails is a warning.
pub(crate) fn try_kinds(client: &Client, mutexes_only: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (id, name, run) in TRIALS {
        let outcome = run(client);
        let finding = match &outcome {
            Ok(true) => Finding::ok(id, name, "acquired, waited for and released"),
            Ok(false) => {
                let seen = "another client holds it; is it another trial?";
                Finding::new(FindingLevel::Unknown, id, name, seen).remedy("repeat the command")
            }
            Err(error) if error.is_unsupported() => continue,
            Err(error) => {
                let level = match mutexes_only && id != "mutex" {
                    true => FindingLevel::Warning,
                    false => FindingLevel::Danger,
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

/// Tries a lock. Returns false if another client holds it.
fn try_lock(lock: &dyn DistLock) -> Result<bool, Error> {
    let options = LockOptions::new().lease(LEASE);
    let Some(guard) = lock.try_lock_with(&options)? else {
        return Ok(false);
    };
    // A fixed lease of some formats cannot be extended.
    guard.extend(LEASE).or_else(ignore_unsupported)?;
    let second = || lock.try_lock_for_with(WAIT, &options).map(drop);
    let waited = in_another_thread(second);
    guard.unlock()?;
    waited.map(|()| true)
}

/// Tries a semaphore of one permit. Returns false if another client holds the permit.
fn try_permit(semaphore: &Semaphore) -> Result<bool, Error> {
    let options = LockOptions::new().lease(LEASE);
    let Some(guard) = semaphore.try_acquire_with(1, &options)? else {
        return Ok(false);
    };
    guard.extend(LEASE)?;
    let second = || semaphore.try_acquire_for_with(1, WAIT, &options).map(drop);
    let waited = in_another_thread(second);
    guard.unlock()?;
    waited.map(|()| true)
}

fn ignore_unsupported(error: Error) -> Result<(), Error> {
    match error.is_unsupported() {
        true => Ok(()),
        false => Err(error),
    }
}

fn in_another_thread(run: impl FnOnce() -> Result<(), Error> + Send) -> Result<(), Error> {
    thread::scope(|scope| {
        scope
            .spawn(run)
            .join()
            .unwrap_or_else(|it| resume_unwind(it))
    })
}

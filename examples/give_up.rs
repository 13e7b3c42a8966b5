//! A job that must not hold a lock for ever: the watchdog renews the lease a fixed number of times,
//! and then reports that it will not renew again. The rest of the lease is time to roll the work
//! back.
//!
//! ```sh
//! cargo run --example give_up                              # in this process's memory
//! cargo run --example give_up -- redis://127.0.0.1:6379    # on a server
//! ```

#[path = "shared/url.rs"]
mod url;

use crossbeam_channel::RecvTimeoutError;
use distlock::{Error, LockGuard, LockOptions, Loss, LossCause};
use std::time::Duration;

/// The lease. With two renewals, each after a third of the lease, the watchdog reports after 0.9 s
/// that it will not renew again, and 0.6 s are left then.
const LEASE: Duration = Duration::from_millis(900);
const RENEWALS: u32 = 2;

/// The time of one step. Twenty steps would take four seconds, so the lock cannot be held for all
/// of them.
const STEP: Duration = Duration::from_millis(200);
const STEPS: usize = 20;

fn main() -> Result<(), Error> {
    let url = url::given_or("memory://");
    let lock = distlock::connect(&url)?.mutex("example:give_up")?;
    let stranger = distlock::connect(&url)?.mutex("example:give_up")?;

    let guard = lock.lock_with(&LockOptions::new().watched_at_most(LEASE, RENEWALS))?;
    let mut done = Vec::new();
    let Err(loss) = import(&guard, &mut done) else {
        panic!("{STEPS} steps cannot be done in the time that is allowed");
    };
    println!("told to stop after {} steps, because {loss}", done.len());
    assert_eq!(loss.cause(), LossCause::RenewalsUsedUp);
    assert!(!done.is_empty() && done.len() < STEPS);

    println!("{:.0?} left: time to roll back", guard.remaining());
    while let Some(step) = done.pop() {
        guard.ensure(Duration::from_millis(10))?; // the next holder must find all of it undone
        println!("  undid step {step}");
    }
    assert!(
        guard.is_valid() && stranger.try_lock()?.is_none(),
        "it was ours until the end"
    );

    guard.unlock()?;
    assert!(stranger.try_lock()?.is_some());
    println!("given back in order, with nothing half done behind it");
    Ok(())
}

/// Works until all steps are done, or until the watchdog reports that the lock is about to be lost.
/// Each step takes its time by waiting for that report.
fn import(guard: &LockGuard, done: &mut Vec<usize>) -> Result<(), Loss> {
    let losses = guard.losses();
    for step in 1..=STEPS {
        match losses.recv_timeout(STEP) {
            Ok(loss) => return Err(loss),
            Err(RecvTimeoutError::Timeout) => {
                println!("did step {step}");
                done.push(step);
            }
            Err(RecvTimeoutError::Disconnected) => unreachable!("the guard is still there"),
        }
    }
    Ok(())
}

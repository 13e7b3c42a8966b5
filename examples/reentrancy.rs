//! A thread that holds a lock may lock it again: a function that locks may call another that locks,
//! too.
//!
//! ```sh
//! cargo run --example reentrancy                              # in this process's memory
//! cargo run --example reentrancy -- redis://127.0.0.1:6379    # on a server
//! ```

#[path = "shared/url.rs"]
mod url;

use distlock::{DistLock, Error};
use std::thread;

fn main() -> Result<(), Error> {
    let url = url::given_or("memory://");
    let client = distlock::connect(&url)?;
    let account = client.mutex("example:reentrancy")?;

    transfer(&account)?;

    assert_eq!(account.hold_count(), 0);
    assert!(is_free_for_others(&account)?);
    println!("both guards are gone: the lock is free again");
    Ok(())
}

/// Locks, and calls a function that locks, too.
fn transfer(account: &dyn DistLock) -> Result<(), Error> {
    let guard = account.lock()?;
    println!(
        "transfer: holds it {} time, under token {:?}",
        account.hold_count(),
        guard.fencing_token()
    );

    audit(account)?;

    // The inner guard has ended only its own hold.
    assert_eq!(account.hold_count(), 1);
    assert!(!is_free_for_others(account)?);
    println!(
        "transfer: holds it {} time again, and others still wait",
        account.hold_count()
    );
    guard.unlock()
}

/// Locks, whether or not its caller holds the lock. A nested lock sends nothing to the store.
fn audit(account: &dyn DistLock) -> Result<(), Error> {
    let guard = account.lock()?;
    assert_eq!(account.hold_count(), 2);
    println!(
        "   audit: holds it {} times, under token {:?}",
        account.hold_count(),
        guard.fencing_token()
    );
    guard.unlock()
}

/// Returns whether another thread can lock. Re-entrancy is per thread: every other thread finds a
/// held lock busy, as another program does.
fn is_free_for_others(account: &dyn DistLock) -> Result<bool, Error> {
    let attempt = thread::scope(|scope| {
        let other = scope.spawn(|| account.try_lock().map(|guard| guard.is_some()));
        other.join()
    });
    attempt.expect("trying a lock does not panic")
}

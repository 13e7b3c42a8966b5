//! A job that takes longer than the lease: the watchdog renews the lease until the guard is
//! dropped. If the program died, no thread would renew it, and the lock would be free within one
//! lease.
//!
//! ```sh
//! cargo run --example long_job                              # in this process's memory
//! cargo run --example long_job -- redis://127.0.0.1:6379    # on a server
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "the sleep stands for work, and the user measures"
)]

#[path = "shared/url.rs"]
mod url;

use distlock::{Error, Event, LockOptions};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// The lease. The default is 30 s; a short one lets the example end soon.
const LEASE: Duration = Duration::from_millis(600);

/// The job: eight steps, four leases long.
const STEPS: u32 = 8;
const STEP: Duration = Duration::from_millis(300);

fn main() -> Result<(), Error> {
    let url = url::given_or("memory://");
    let client = distlock::builder()
        .url(&url)?
        .events(Arc::new(tell))
        .connect()?;
    let lock = client.mutex("example:long_job")?;
    // Another client, as another program would have.
    let stranger = distlock::connect(&url)?.mutex("example:long_job")?;

    let guard = lock.lock_with(&LockOptions::new().watched(LEASE))?;
    let start = Instant::now();
    for step in 1..=STEPS {
        thread::sleep(STEP);
        // A check between two steps costs nothing, and stops the job if the lock is lost.
        guard.ensure(Duration::from_millis(50))?;
        println!(
            "step {step} done; {:.0?} left if it were not renewed again",
            guard.remaining()
        );
        assert!(
            stranger.try_lock()?.is_none(),
            "no other client gets it meanwhile"
        );
    }
    assert!(start.elapsed() > 3 * LEASE);
    println!(
        "the job took {:.1?}, the lease is {LEASE:?}, and the lock was ours throughout",
        start.elapsed()
    );

    guard.unlock()?; // had it been lost, this would say so
    assert!(
        stranger.try_lock()?.is_some(),
        "unlocked is free at once, whatever is left of the lease"
    );
    Ok(())
}

/// Prints each renewal. Called on the client's event thread; a program would write to its log.
fn tell(event: &Event) {
    if let Event::Renewed { left, .. } = event {
        println!("  the watchdog renewed it, with {left:.0?} left");
    }
}

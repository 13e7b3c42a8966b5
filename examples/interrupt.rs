//! Ending a wait: an `Interrupt` wakes, at once, every thread that waits with it. The interrupted
//! waits leave no key in the store.
//!
//! ```sh
//! cargo run --example interrupt                              # in this process's memory
//! cargo run --example interrupt -- redis://127.0.0.1:6379    # on a server
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "the sleep stands for work, and the user measures"
)]

#[path = "shared/url.rs"]
mod url;

use distlock::{Error, Interrupt};
use std::thread;
use std::time::{Duration, Instant};

fn main() -> Result<(), Error> {
    let url = url::given_or("memory://");
    let client = distlock::connect(&url)?;
    let (orders, stock) = (
        client.mutex("example:orders")?,
        client.mutex("example:stock")?,
    );

    // Ctrl-C, SIGTERM and SIGHUP fire this interrupt: press Ctrl-C while the example runs, and the
    // waits end as well. An `Interrupt::new()` is fired only by the program itself.
    let stop = Interrupt::on_ctrl_c()?;

    // This thread holds both locks, so the two waiters wait in vain. They share the interrupt.
    let guards = (orders.lock()?, stock.lock()?);
    let waiters = [orders.clone(), stock.clone()].map(|lock| {
        let stop = stop.clone();
        thread::spawn(move || (lock.lock_interruptibly(&stop).map(drop), Instant::now()))
    });

    println!("two threads wait ...");
    thread::sleep(Duration::from_millis(300));
    let fired = Instant::now();
    stop.fire();

    for waiter in waiters {
        let (result, woke) = waiter.join().expect("a waiter does not panic");
        let error = result.expect_err("the lock was ours all the time");
        assert!(error.is_interrupted());
        println!(
            "{error}, after {:.1?}",
            woke.saturating_duration_since(fired)
        );
    }

    // The interrupt stays fired, so a wait that begins later ends at once, too. Held locks are not
    // affected.
    let late = thread::spawn({
        let (orders, stop) = (orders.clone(), stop.clone());
        move || orders.lock_interruptibly(&stop).map(drop)
    });
    let late = late.join().expect("a waiter does not panic");
    assert!(late.is_err_and(|error| error.is_interrupted()));
    assert!(guards.0.is_valid() && guards.1.is_valid());

    drop(guards);
    assert!(!orders.is_locked()? && !stock.is_locked()?);
    println!("nothing of them is left: both locks are free");
    Ok(())
}

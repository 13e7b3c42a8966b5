//! Waiting for a lock, but not for ever: "busy" is an answer, not an error.
//!
//! ```sh
//! cargo run --example try_with_wait                              # in this process's memory
//! cargo run --example try_with_wait -- redis://127.0.0.1:6379    # on a server
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "the sleep stands for work, and the user measures"
)]

#[path = "shared/url.rs"]
mod url;

use distlock::Error;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// How long the other thread holds the lock.
const ITS_WORK: Duration = Duration::from_millis(500);

fn main() -> Result<(), Error> {
    let url = url::given_or("memory://");
    let client = distlock::connect(&url)?;
    let lock = client.mutex("example:try_with_wait")?;

    let (inside, is_inside) = mpsc::channel();
    let other = thread::spawn({
        let lock = lock.clone();
        move || -> Result<(), Error> {
            let guard = lock.lock()?;
            let _main_is_there = inside.send(());
            thread::sleep(ITS_WORK);
            guard.unlock()
        }
    });
    if is_inside.recv().is_err() {
        // The other thread could not lock, and returns the error.
        return other.join().expect("the other thread does not panic");
    }

    // One attempt. `?` returns an error of the store; a busy lock is no error.
    assert!(lock.try_lock()?.is_none());
    println!("try_lock():            busy");

    // A wait that is too short.
    let start = Instant::now();
    assert!(lock.try_lock_for(Duration::from_millis(100))?.is_none());
    println!(
        "try_lock_for(100 ms):  busy, said after {:.0?}",
        start.elapsed()
    );

    // A wait that is long enough: it ends as soon as the lock is free.
    let start = Instant::now();
    let Some(guard) = lock.try_lock_for(Duration::from_secs(10))? else {
        panic!("the other thread needs {ITS_WORK:?}, and we waited for 10 s");
    };
    println!("try_lock_for(10 s):    ours, after {:.0?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(5));
    guard.unlock()?;

    other.join().expect("the other thread does not panic")
}

//! A read-write lock: threads rewrite a table of prices while others read it. No reader ever sees a
//! table that is half written, readers read at the same time, and they do not keep the writers out.
//!
//! ```sh
//! cargo run --example read_write                              # in this process's memory
//! cargo run --example read_write -- redis://127.0.0.1:6379    # on a server
//! ```

#[path = "shared/url.rs"]
mod url;

use distlock::{Error, RwLock};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

const WRITERS: usize = 2;
const READERS: usize = 4;
const WRITES: usize = 20;

/// Prices that belong together: a reader must see a write either completely or not at all.
#[derive(Default)]
struct Table {
    prices: [AtomicU64; 8],
    /// The largest token that has written: a table in a database would refuse smaller ones.
    written_by: AtomicU64,
    reading: AtomicU64,
    most_reading: AtomicU64,
}

fn main() -> Result<(), Error> {
    let url = url::given_or("memory://example");
    // Readers and writers need not be in one process.
    let clients = [distlock::connect(&url)?, distlock::connect(&url)?];
    let locks = [
        clients[0].rw_lock("example:read_write")?,
        clients[1].rw_lock("example:read_write")?,
    ];
    let (table, done) = (Table::default(), AtomicBool::new(false));

    let reads = thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|n| {
                let (table, lock, done) = (&table, &locks[n % 2], &done);
                scope.spawn(move || table.read_until(done, lock))
            })
            .collect();
        let writers: Vec<_> = (0..WRITERS)
            .map(|n| {
                let (table, lock) = (&table, &locks[n % 2]);
                scope.spawn(move || (0..WRITES).try_for_each(|_| table.write(lock)))
            })
            .collect();
        let written = writers
            .into_iter()
            .try_for_each(|it| it.join().expect("no panic"));
        done.store(true, Ordering::SeqCst);
        let reads = readers.into_iter().map(|it| it.join().expect("no panic"));
        let reads: Result<u64, Error> = reads.sum();
        written.and(reads)
    })?;

    let most = table.most_reading.load(Ordering::SeqCst);
    assert!(reads > 0 && table.prices[0].load(Ordering::SeqCst) == (WRITERS * WRITES) as u64);
    println!("{} writes, {reads} reads, no torn one", WRITERS * WRITES);
    println!("up to {most} threads read at the same time");
    Ok(())
}

impl Table {
    /// Adds one to every price, in two steps each.
    fn write(&self, lock: &RwLock) -> Result<(), Error> {
        let guard = lock.write().lock()?;
        let token = guard.fencing_token().map_or(0, |token| token.get());
        assert!(
            self.written_by.swap(token, Ordering::SeqCst) < token,
            "tokens of writers grow"
        );
        for price in &self.prices {
            let before = price.load(Ordering::SeqCst);
            thread::yield_now();
            price.store(before + 1, Ordering::SeqCst);
        }
        guard.unlock() // an error if the lock was lost meanwhile
    }

    /// Reads until the writers are done, and returns how often.
    fn read_until(&self, done: &AtomicBool, lock: &RwLock) -> Result<u64, Error> {
        let mut reads = 0;
        while !done.load(Ordering::SeqCst) {
            let guard = lock.read().lock()?;
            let reading = self.reading.fetch_add(1, Ordering::SeqCst) + 1;
            self.most_reading.fetch_max(reading, Ordering::SeqCst);
            let first = self.prices[0].load(Ordering::SeqCst);
            #[allow(
                clippy::disallowed_methods,
                reason = "a slow reader sees the same all the time"
            )]
            thread::sleep(Duration::from_millis(1));
            let is_whole = self
                .prices
                .iter()
                .all(|it| it.load(Ordering::SeqCst) == first);
            self.reading.fetch_sub(1, Ordering::SeqCst);
            guard.unlock()?;
            assert!(is_whole, "a reader saw a table that was half written");
            reads += 1;
        }
        Ok(reads)
    }
}

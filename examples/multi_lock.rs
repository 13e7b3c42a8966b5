//! Several locks as one: threads move money between accounts, each under the locks of just the
//! accounts it needs, and name them in whatever order they come. No thread waits for ever, and no
//! money is lost.
//!
//! ```sh
//! cargo run --example multi_lock                              # in this process's memory
//! cargo run --example multi_lock -- redis://127.0.0.1:6379    # on a server
//! ```

#[path = "shared/url.rs"]
mod url;

use distlock::{Error, MultiLock, Mutex};
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread;

const ACCOUNTS: usize = 4;
const THREADS: usize = 4;
const TRANSFERS: usize = 25;

/// An account, and the lock that a thread must hold to change it.
struct Account {
    lock: Mutex,
    /// Read and written in two steps, which goes wrong as soon as two do it at once.
    balance: AtomicI64,
}

fn main() -> Result<(), Error> {
    let url = url::given_or("memory://");
    // They need not be of one client: each lock may live on a server of its own.
    let clients = [distlock::connect(&url)?, distlock::connect(&url)?];
    let mut accounts = Vec::new();
    for n in 0..ACCOUNTS {
        let lock = clients[n % 2].mutex(format!("example:multi_lock:{n}"))?;
        accounts.push(Account {
            lock,
            balance: AtomicI64::new(100),
        });
    }

    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|n| {
                let accounts = &accounts;
                scope.spawn(move || transfers(accounts, n))
            })
            .collect();
        threads
            .into_iter()
            .try_for_each(|it| it.join().expect("a transfer does not panic"))
    })?;

    let total: i64 = accounts
        .iter()
        .map(|account| account.balance.load(Ordering::Relaxed))
        .sum();
    assert_eq!(
        total,
        100 * i64::try_from(ACCOUNTS).expect("a small number")
    );
    println!(
        "{} transfers, and there is still {total} in all",
        THREADS * TRANSFERS
    );
    for account in &accounts {
        assert!(!account.lock.is_locked()?);
    }
    println!("all locks are free");
    Ok(())
}

/// Some go up and some go down: one thread's first lock is another one's last.
fn transfers(accounts: &[Account], thread: usize) -> Result<(), Error> {
    for n in 0..TRANSFERS {
        let (from, to) = ((thread + n) % ACCOUNTS, (thread * 3 + n * 2 + 1) % ACCOUNTS);
        if from != to {
            transfer(&accounts[from], &accounts[to])?;
        }
    }
    Ok(())
}

fn transfer(from: &Account, to: &Account) -> Result<(), Error> {
    let both = MultiLock::new([&from.lock, &to.lock])?;
    let guard = both.lock()?;
    // Each account would refuse a smaller token than it has seen; so it gets the one of its own
    // lock.
    let tokens = guard.fencing_tokens();
    assert!(tokens.len() == 2 && tokens.iter().all(|(_, token)| token.is_some()));

    for (account, change) in [(from, -1), (to, 1)] {
        let before = account.balance.load(Ordering::Relaxed);
        thread::yield_now();
        account.balance.store(before + change, Ordering::Relaxed);
    }
    guard.unlock() // an error if any of the two was lost meanwhile
}

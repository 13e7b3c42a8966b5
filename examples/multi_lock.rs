//! Several locks as one: threads move money between accounts, and each transfer locks only the two
//! accounts that it needs, in whatever order they are named. There is no deadlock, and no money is
//! lost.
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
    /// Read and written in two steps: two threads that did this at once would lose a change.
    balance: AtomicI64,
}

fn main() -> Result<(), Error> {
    let url = url::given_or("memory://");
    // The locks need not belong to one client: each may be on a server of its own.
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

/// Makes transfers in both directions: the first lock of one thread is the last one of another.
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
    // A real account would refuse a token smaller than the largest it has seen. So each account is
    // given the token of its own lock.
    let tokens = guard.fencing_tokens();
    assert!(tokens.len() == 2 && tokens.iter().all(|(_, token)| token.is_some()));

    for (account, change) in [(from, -1), (to, 1)] {
        let before = account.balance.load(Ordering::Relaxed);
        thread::yield_now();
        account.balance.store(before + change, Ordering::Relaxed);
    }
    guard.unlock() // an error if any of the two was lost meanwhile
}

//! An application with a pool of connections of its own, by the crates `redis` and `r2d2`: threads
//! read, change and write a balance through the pool, under a lock over the same pool.
//!
//! ```sh
//! cargo run --example own_pool --features redis-rs -- redis://127.0.0.1:6379
//! ```

use distlock::Client;
use distlock::redis_rs::{RedisPool, r2d2, redis};
use std::error::Error;
use std::process::exit;
use std::thread;

type Pool = r2d2::Pool<redis::Client>;

const THREADS: u32 = 8;
const PAYMENTS: u32 = 50;
const BALANCE: &str = "example:own_pool:balance";

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), None) = (arguments.next(), arguments.next()) else {
        eprintln!("the only argument is the URL of the server, as in redis://127.0.0.1:6379");
        exit(64);
    };
    // What the application has anyway.
    let client = redis::Client::open(url)?;
    let pool = r2d2::Pool::builder()
        .max_size(6)
        .test_on_check_out(false)
        .build(client.clone())?;
    redis::cmd("SET")
        .arg(BALANCE)
        .arg(0)
        .exec(&mut *pool.get()?)?;

    // One of the six connections is kept for renewals. A connection beside the pool wakes waiters.
    let locks = RedisPool::new(pool.clone())
        .with_waking(&client)?
        .connect()?;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|_| scope.spawn(|| pay(&pool, &locks).map_err(|error| error.to_string())))
            .collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("no thread panics"))
    })?;

    let balance: u32 = redis::cmd("GET").arg(BALANCE).query(&mut *pool.get()?)?;
    redis::cmd("DEL").arg(BALANCE).exec(&mut *pool.get()?)?;
    println!("{THREADS} threads paid {PAYMENTS} times each: the balance is {balance}");
    assert_eq!(balance, THREADS * PAYMENTS, "no payment is lost");
    Ok(())
}

/// Pays one at a time. Read and write are two requests: without the lock, payments would be lost.
fn pay(pool: &Pool, locks: &Client) -> Result<(), Box<dyn Error>> {
    let lock = locks.mutex("example:own_pool")?;
    for _ in 0..PAYMENTS {
        let guard = lock.lock()?;
        // Borrowed under the lock: a thread that waited for the lock with a connection in its hands
        // would keep it from the holder.
        let mut connection = pool.get()?;
        let balance: u32 = redis::cmd("GET").arg(BALANCE).query(&mut *connection)?;
        redis::cmd("SET")
            .arg(BALANCE)
            .arg(balance + 1)
            .exec(&mut *connection)?;
        drop(connection);
        guard.unlock()?;
    }
    Ok(())
}

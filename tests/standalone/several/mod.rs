//! Several locks as one, on several servers: contention in any order, other clients that want one
//! of the locks, and servers that fail.

mod contention;
mod servers;
mod shares;

use distlock_tests::process::RedisServer;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

fn three_servers() -> [RedisServer; 3] {
    [(); 3].map(|()| RedisServer::start())
}

/// Returns the keys of a server, without token counters.
fn left_over(server: &RedisServer) -> Vec<String> {
    let keys = server.probe().keys("*");
    keys.into_iter()
        .filter(|key| !key.starts_with("redisson_lock_token:"))
        .collect()
}

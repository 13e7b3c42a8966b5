//! Several locks as one, on several servers: crowds that want them in any order, and servers in
//! trouble.

mod contention;
mod servers;

use distlock_tests::process::RedisServer;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

fn three_servers() -> [RedisServer; 3] {
    [(); 3].map(|()| RedisServer::start())
}

/// What is left in a server beside the counters of tokens.
fn left_over(server: &RedisServer) -> Vec<String> {
    let keys = server.probe().keys("*");
    keys.into_iter().filter(|key| !key.starts_with("redisson_lock_token:")).collect()
}

//! One Redis server as a [`Backend`](lock_core::Backend), without the engine above it: on real
//! servers, one for each test, and on peers that only pretend to be one.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot go on panics, and says where"
)]

// Passwords, databases, access control lists.
mod access;

// Servers that are too old.
mod age;

// A client of the backend for one test.
mod bench;

// Connections before, between and after requests, and too few of them.
mod connections;

// Peers that are silent, slow, broken or gone.
mod deadlines;

// Servers that become replicas by hand.
mod demoted;

// Proxies that refuse what a connection begins with.
mod greeting;

// Asynchronous releases.
mod unawaited_releases;

// Acquisition, wait, renewal and release of a lock.
mod life;

// What servers show of their data's history.
mod history;

// What managed services withhold.
mod managed;

// What is recorded as metrics.
mod metrics;

// Names that differ by braces only.
mod names;

// Whether the store can be asked.
mod ping;

// Addresses that lead to another server.
mod replaced_server;

// No grants on servers that were started a moment ago.
mod restart_grace;

// Scripted servers.
mod peer;

// Servers on a socket in the file system.
mod socket;

// The content of the store, and the scripts.
mod store;

// Servers on TLS.
mod tls;

// Fencing tokens and their counter.
mod tokens;

// Watches, and the connection behind them.
mod waking;

// Leaders in several processes.
mod election;

// Locks in the order of arrival.
mod fair;

// Faults of the network, the server, the process and the program.
mod faults;

// The queue of a lock's waiters, for mutexes of all orders and formats.
mod queue;

// Read-write locks.
mod read_write;

// What can only be seen on a real server: requests and keys.
mod redis;

// Permits of semaphores.
mod semaphores;

// The server's time of day jumps.
mod servers_clock;

// Fairness between clients, at several distances.
mod turns;

// Several locks as one, on several servers.
mod several;

// Memory and Redis side by side, with the same random commands.
mod side_by_side;

// Clients that are held up between two commands.
#[allow(dead_code, reason = "the example uses the rest")]
#[path = "../../examples/race_gallery/stage.rs"]
mod stage;

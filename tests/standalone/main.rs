//! One Redis server: tests of the [`Backend`](lock_core::Backend) without the engine, and of
//! clients, on real servers, one for each test, and on peers that imitate a server.

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

// Connections before, between and after requests, and many threads on few of them.
mod connections;

// Peers that are silent, slow, broken or gone.
mod deadlines;

// Servers that become replicas by hand.
mod demoted;

// Proxies that refuse commands at the beginning of a connection.
mod greeting;

// Asynchronous releases.
mod unawaited_releases;

// Acquisition, wait, renewal and release of a lock.
mod life;

// Servers whose data have another history.
mod history;

// Services that withhold commands.
mod managed;

// Metrics.
mod metrics;

// Names that differ by braces only.
mod names;
// The pool of the application.
mod own_pool;

// `Client::ping`.
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

// Requests and keys, which only a real server shows.
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

//! The backend on a real redis-server, one for each test, and on peers that only pretend to be one.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod access; // passwords, databases, access control lists
mod bench; // a client of the backend, and how tests wait
mod deadlines; // peers that are silent, slow, broken or gone
mod peer; // peers that only pretend to be a server
mod server; // a redis-server of one's own, and a look into it with other eyes
mod store; // what stands in the store, and what the scripts do with it
mod tokens; // fencing tokens and their counter
mod waking; // watches, and the connection behind them

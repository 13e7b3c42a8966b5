//! Bad days: a network that loses, delays and garbles, and a server in every kind of trouble.

mod answers;
mod crowd;
mod ledger;
mod network;
mod orphans;
mod scene;
mod server;
mod told;

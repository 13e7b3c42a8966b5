//! Bad days: a network that loses, delays and garbles, and a server in every kind of trouble.

mod answers;
mod apart;
mod crowd;
mod interrupts;
mod ledger;
mod meanwhile;
mod network;
mod orphans;
mod own;
mod scene;
mod server;
mod shared_link;
mod signals;
mod table;
mod tls;
mod told;

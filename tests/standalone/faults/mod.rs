//! Faults of the network, the server, the process and the program.

mod answers;
mod endless_waits;
mod far_renewals;
mod interrupts;
mod ledger;
mod loss_news;
mod misuse;
mod network;
mod orphans;
mod panics;
mod process_limits;
mod renewal_isolation;
mod scene;
mod server;
mod server_changes;
mod shared_link;
mod short_connections;
mod signals;
mod table;
mod tls;

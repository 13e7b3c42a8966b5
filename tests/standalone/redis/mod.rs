//! What can only be seen on a real Redis server: what is sent and what is stored.

mod clients;
mod formats;
mod handoff;
mod neighbours;
mod past;
mod perhaps;
mod replication;
mod requests;
mod successors;
mod wakes;

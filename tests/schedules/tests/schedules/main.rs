//! The engine's threads in orders that a seed decides, on virtual time.
//!
//! - [`explore`]: the scheduler, and how a failure is replayed
//! - [`world`]: a store, clients, and their invariants
//! - [`network`]: what becomes of requests on their way to the store
//! - [`sharing`]: what may be valid together of shared and counted locks
//! - `scenarios`: what the clients do
//! - `mutants`: defects of the engine, each of which a scenario must find

mod explore;
mod mutants;
mod network;
mod scenarios;
mod sharing;
mod world;

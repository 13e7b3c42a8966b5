//! Runs the engine's threads under many schedules, each determined by a seed, on virtual time.
//!
//! - [`explore`]: the scheduler, and the replay of a failure by its seed
//! - [`world`]: a store, clients, and their invariants
//! - [`network`]: the faults of requests on their way to the store
//! - [`sharing`]: checks that readers, writers and permits exclude each other as they must
//! - `scenarios`: the actions of the clients
//! - `mutants`: defects of the engine, each of which a scenario must find

mod explore;
mod mutants;
mod network;
mod scenarios;
mod sharing;
mod world;

//! distlock on PostgreSQL: leases in a table.
//!
//! - `scheme`: [`PostgresScheme`], the store that a `postgres://` URL names
//! - `store`: [`PostgresStore`], the backend: one call of one function of the schema per request
//! - `schema`: the tables and functions; [`init`] makes them
//! - `session`: locks of sessions, without tables
//! - `watches`: the notification of waiters
//! - `connection`: the connections, their deadlines, and the pool
//!
//! The `postgres` crate runs a small asynchronous runtime on the thread of the caller. So a client
//! must not be used on a thread that runs asynchronous tasks.

#![forbid(unsafe_code)]

mod admin;
mod connection;
mod diagnosis;
mod init;
mod inspection;
mod names;
mod numbers;
mod schema;
mod scheme;
mod session;
mod store;
mod watches;

pub use init::{Initialised, init, schema_sql};
pub use scheme::PostgresScheme;
pub use store::PostgresStore;

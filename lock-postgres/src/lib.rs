//! distlock on PostgreSQL: leases in a table.
//!
//! - `scheme`: [`PostgresScheme`], the store that a `postgres://` URL names
//! - `store`: [`PostgresStore`], the backend: one call of one function of the schema per request
//! - `schema`: the tables and functions, and [`init`], which makes them
//! - `watches`: the notification of waiters
//! - `connection`: the connections, their deadlines, and the pool
//!
//! The `postgres` crate runs a small asynchronous runtime on the thread of the caller. So a client
//! must not be used on a thread that runs asynchronous tasks.

#![forbid(unsafe_code)]

mod admin;
mod connection;
mod diagnosis;
mod inspection;
mod schema;
mod scheme;
mod store;
mod watches;

pub use schema::{Initialised, init, schema_sql};
pub use scheme::PostgresScheme;
pub use store::PostgresStore;

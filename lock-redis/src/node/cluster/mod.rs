//! A server as a node of a cluster: which slots it lists, and the redirects that it answers with.

mod redirect;
mod shards;

pub use redirect::Redirect;
pub use shards::Shards;

pub(crate) use shards::{Port, ask};
